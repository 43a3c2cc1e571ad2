"""Compact models: no name is unknown, and one seed gives one model."""

import pytest
import torch

from prixlm import KB, PrixError
from prixlm.lm.compact import CompactConfig, make_compact, train_tokenizer
from prixlm.lm.token_cache import encode_names

TINY = CompactConfig(vocab=600, width=32, layers=2, heads=4)


def test_no_name_is_unknown_to_a_compact_tokenizer(shared_toy: KB) -> None:
    tokenizer = train_tokenizer(shared_toy, 600)
    names = ["Finland", "ფინეთი 🦉", "ᚠᛁᚾ", "東京", "x" * 50]
    unknown = tokenizer.token_to_id("<unk>")
    for name, ids in zip(names, encode_names(tokenizer, names), strict=True):
        assert unknown not in ids
        assert tokenizer.decode(ids) == name
    assert tokenizer.get_vocab_size() <= 600


def test_a_small_vocabulary_spells_rare_letters_in_bytes(many_letters: KB) -> None:
    """The trainer fails if there are more letters than pieces: rare ones are kept from it."""
    tokenizer = train_tokenizer(many_letters, 700)
    assert tokenizer.get_vocab_size() <= 700
    for name in ("Suomi", "ఫిన్లాండ్", "中华人民共和国", "ປະເທດລາວ"):
        assert tokenizer.decode(encode_names(tokenizer, [name])[0]) == name


def test_compact_models_of_one_seed_are_equal(shared_toy: KB) -> None:
    a, b, c = (make_compact(shared_toy, TINY, seed=seed) for seed in (0, 0, 1))
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)
    pairs = zip(a.parameters(), c.parameters(), strict=True)
    assert not all(torch.equal(x, y) for x, y in pairs)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(PrixError, match="width 64 cannot be divided among 5 heads"):
        CompactConfig(width=64, heads=5)
    with pytest.raises(PrixError, match="vocab 500: expected 600 or more"):
        CompactConfig(vocab=500)
