"""Trimming: the same tokens for the KB's names, the same logits for the pieces that stay."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModel, AutoTokenizer

from prixlm import KB, PrixError, import_kb
from prixlm.languages import frequent_words
from prixlm.lm.compact import train_tokenizer
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import encode_names, name_batches
from prixlm.lm.trim import (
    check_reading,
    merge_closure,
    pieces_to_keep,
    read_differently,
    trim_tokenizer,
    warn_of_reading,
)
from tests.trimmed import save_trimmed


@pytest.fixture
def small_kb(tmp_path: Path) -> KB:
    """A KB that uses few of the pieces of the toy KB's tokenizers."""
    path = tmp_path / "few.tsv"
    path.write_text("lang\tsubject\trelation\tobject\nen\tFrance\tcapital\tParis\n", "utf-8")
    return import_kb([path], tmp_path / "few")


def test_logits_of_kept_pieces_are_unchanged(
    kind: str, families: dict[str, Path], small_kb: KB, tmp_path: Path
) -> None:
    kept = []

    def keep(tokenizer: Tokenizer) -> np.ndarray:
        kept.append(pieces_to_keep(small_kb, tokenizer, num_words=0))
        return kept[0]

    whole = PrixLM.from_base(families[kind], ["en"]).eval()
    small = PrixLM.from_base(families[kind], ["en"], keep=keep).eval()
    old_size = len(whole.tokenizer) - 5  # the roles and [EN] come last
    assert len(kept[0]) < old_size and len(small.tokenizer) == len(kept[0]) + 5
    rows = np.append(kept[0], np.arange(old_size, old_size + 5))
    new_rows = torch.from_numpy(rows)
    weights = [m.backbone.get_input_embeddings().weight for m in (whole, small)]
    assert torch.equal(weights[0][new_rows[:-5]], weights[1][:-5])
    with torch.no_grad():  # role tokens are random: give both models the same ones
        weights[1][-5:] = weights[0][-5:]
    for token in ("pad", "bos", "eos"):
        ids = [getattr(m.backbone.config, f"{token}_token_id") for m in (small, whole)]
        assert ids == [None, None] or rows[ids[0]] == ids[1]
    ids = small.encoder.encode("France", "capital", "Paris")
    assert rows[ids].tolist() == whole.encoder.encode("France", "capital", "Paris")
    length = torch.tensor([len(ids)])
    with torch.no_grad():
        ours = small.backbone.get_output_embeddings()(
            small.transform(small.hidden(torch.tensor([ids]), length - 3, length))
        )
        theirs = whole.backbone.get_output_embeddings()(
            whole.transform(whole.hidden(torch.from_numpy(rows[[ids]]), length - 3, length))
        )
    torch.testing.assert_close(ours[..., :-5], theirs[..., new_rows][..., :-5], rtol=0, atol=1e-6)
    small.save(tmp_path / "m")
    assert AutoModel.from_pretrained(tmp_path / "m").config.vocab_size == len(rows)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "m")) == len(rows)
    assert PrixLM.load(tmp_path / "m").encoder.encode("France", "capital", "Paris") == ids


def test_every_name_is_tokenised_as_before(many_letters: KB, shared_toy: KB) -> None:
    tokenizer = train_tokenizer(many_letters, 3000)
    kept = pieces_to_keep(shared_toy, tokenizer, texts=["Copenhagen and Lisbon"], num_words=0)
    small = trim_tokenizer(tokenizer, kept)
    assert small.get_vocab_size() == len(kept) < tokenizer.get_vocab_size()
    for names in [*name_batches(shared_toy), ["Copenhagen and Lisbon"]]:
        before, after = encode_names(tokenizer, names), encode_names(small, names)
        assert [kept[row].tolist() for row in after] == before
    strange = ["ფინეთი 🦉", "Zürich", "abcxyz"]
    for name, ids in zip(strange, encode_names(small, strange), strict=True):
        assert small.token_to_id("<unk>") not in ids
        assert small.decode(ids) == name


@pytest.mark.parametrize("kind", ["gemma", "llama"])
def test_names_are_merged_as_before(
    kind: str, merging_tokenizers: dict[str, Tokenizer], small_kb: KB, shared_toy: KB
) -> None:
    tokenizer = merging_tokenizers[kind]
    kept = pieces_to_keep(small_kb, tokenizer, texts=["Finland  is", "フィンランド"], num_words=0)
    small = trim_tokenizer(tokenizer, kept)
    assert small.get_vocab_size() == len(kept) < tokenizer.get_vocab_size() - 50
    same = [*name_batches(small_kb), ["Finland  is", "フィンランド", "🦉 x"]]
    for names in same:
        before, after = encode_names(tokenizer, names), encode_names(small, names)
        assert [kept[row].tolist() for row in after] == before
    for names in name_batches(shared_toy):  # in other pieces, perhaps, but the same text
        assert [small.decode(ids) for ids in encode_names(small, names)] == names


@pytest.mark.parametrize("kind", ["gemma", "llama"])
def test_names_and_texts_are_merged_as_before_after_a_space(
    kind: str, merging_tokenizers: dict[str, Tokenizer], small_kb: KB
) -> None:
    """As a probe or a reader asks for them: `Paris` and ` Paris` are different pieces."""
    tokenizer = merging_tokenizers[kind]
    kept = pieces_to_keep(small_kb, tokenizer, texts=["It is <mask>.\tHelsinki"], num_words=0)
    small = trim_tokenizer(tokenizer, kept)
    texts = [" France", " Paris", " capital", " Helsinki"]
    before, after = encode_names(tokenizer, texts), encode_names(small, texts)
    assert [kept[row].tolist() for row in after] == before
    fewer = pieces_to_keep(small_kb, tokenizer, num_words=0, spaced=False)
    assert len(fewer) < len(kept)


def test_a_kept_piece_keeps_every_merge_on_its_way(
    merging_tokenizers: dict[str, Tokenizer],
) -> None:
    """One piece at a time: nothing else could keep its merges."""
    tokenizer = merging_tokenizers["gemma"]
    letters = [i for piece, i in tokenizer.get_vocab().items() if len(piece) == 1]
    special = list(tokenizer.get_added_tokens_decoder())
    long = [piece for piece in tokenizer.get_vocab() if len(piece) > 4 and piece.isalpha()]
    assert len(long) > 10
    for piece in long:
        wanted = np.array([*letters, *special, tokenizer.token_to_id(piece)])
        kept = merge_closure(tokenizer, wanted)
        bytes_ = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        kept = np.union1d(kept, [*special, *bytes_])
        assert trim_tokenizer(tokenizer, kept).encode(piece).tokens == [piece]


def test_xlmr_trimmed_to_a_benchmark_reads_it_as_before(data: Path, dbp5l: KB) -> None:
    """Names, and words: Mirror's, and the candidates of a lexicon."""
    tokenizer = Tokenizer.from_file(str(data / "xlmr" / "tokenizer.json"))
    kept = pieces_to_keep(dbp5l, tokenizer)
    small = trim_tokenizer(tokenizer, kept)
    assert len(kept) < 60_000
    assert small.token_to_id("<pad>") == 1 and small.token_to_id("<mask>") == len(kept) - 1

    def share_of_same(texts: list[str]) -> float:
        before, after = encode_names(tokenizer, texts), encode_names(small, texts)
        pairs = zip(after, before, strict=True)
        return float(np.mean([kept[ids].tolist() == old for ids, old in pairs]))

    for names in name_batches(dbp5l):
        assert share_of_same(names) == 1
    for lang in ("en", "el", "ja"):
        assert share_of_same(frequent_words(lang, 10_000)) == 1
    words = (data / "mirror" / "en_words_top_10k.txt").read_text("utf-8").split()
    assert share_of_same(words) > 0.995
    assert small.encode("Paris").tokens[0] == "<s>" and small.encode("Paris").ids[-1] == 2


def test_aliases_are_tokenised_as_before(tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    label, alias = "2000/01/rdf-schema#label", "2004/02/skos/core#altLabel"
    (tmp_path / "facts.nt").write_text(
        f'<http://x/a> <http://www.w3.org/{label}> "b"@en .\n'
        f'<http://x/a> <http://www.w3.org/{alias}> "Helsinki"@en .\n'
        "<http://x/a> <http://x/r> <http://x/a> .\n"
    )
    kb = import_kb([tmp_path / "facts.nt"], tmp_path / "kb")
    for tokenizer in tokenizers.values():
        [ids] = encode_names(tokenizer, ["Helsinki"])
        assert set(ids) <= set(pieces_to_keep(kb, tokenizer, num_words=0).tolist())


def test_texts_read_in_other_pieces_than_by_the_base_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = PrixLM.load(save_trimmed(tmp_path, ["Paris", "Rome"], ["Oslo"]))
    texts = ["Paris", "Oslo", "Rome Paris", "in Oslo", "never seen"]
    assert read_differently(model, texts) == ["Oslo", "in Oslo"]
    base = PrixLM.from_base(tmp_path / "base", ())
    assert read_differently(base, texts) == []
    with pytest.raises(PrixError, match=r"the pieces of 2 of 5 cities \(40 %\), such as 'Oslo'"):
        check_reading(model, texts, "cities")
    check_reading(model, ["Paris"] * 4, "cities")
    assert not caplog.text and not warn_of_reading(base, texts, "cities")
    with caplog.at_level(logging.WARNING):
        check_reading(model, ["Oslo", *map(str, range(99))], "cities")  # few enough: a warning
    assert "1 of 100 cities (1 %)" in caplog.text
    assert warn_of_reading(model, texts, "names") and "2 of 5 names (40 %)" in caplog.text
    assert "--keep FILE" in caplog.text


def test_a_model_trained_from_a_trimmed_one_still_knows_its_first_base(tmp_path: Path) -> None:
    trimmed = save_trimmed(tmp_path, ["Paris", "Rome"], ["Oslo"])
    assert read_differently(PrixLM.from_base(trimmed, ["en"]), ["Paris", "Oslo"]) == ["Oslo"]

    def without_rome(tokenizer: Tokenizer) -> np.ndarray:
        rome = tokenizer.token_to_id("▁Rome")
        return np.delete(np.arange(tokenizer.get_vocab_size()), rome)

    again = PrixLM.from_base(trimmed, ["en"], keep=without_rome)
    assert read_differently(again, ["Paris", "Oslo", "Rome"]) == ["Oslo", "Rome"]


def test_other_tokenizers_are_refused() -> None:
    with pytest.raises(PrixError, match="a WordLevel tokenizer cannot be trimmed"):
        trim_tokenizer(Tokenizer(models.WordLevel({"a": 0}, "a")), np.array([0]))
