"""Trimming: the same tokens for the KB's names, the same logits for the pieces that stay."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModel, AutoTokenizer

from prixlm import KB, PrixError, import_kb
from prixlm.lm.compact import train_tokenizer
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import encode_names, name_batches
from prixlm.lm.trim import pieces_to_keep, trim_tokenizer


@pytest.fixture
def small_kb(tmp_path: Path) -> KB:
    """A KB that uses few of the pieces of the toy KB's tokenizers."""
    path = tmp_path / "few.tsv"
    path.write_text("lang\tsubject\trelation\tobject\nen\tFrance\tcapital\tParis\n", "utf-8")
    return import_kb([path], tmp_path / "few")


@pytest.mark.parametrize("kind", ["xlmr", "mbert"])
def test_logits_of_kept_pieces_are_unchanged(
    kind: str, bases: dict[str, Path], small_kb: KB, tmp_path: Path
) -> None:
    kept = []

    def keep(tokenizer: Tokenizer) -> np.ndarray:
        kept.append(pieces_to_keep(small_kb, tokenizer))
        return kept[0]

    whole = PrixLM.from_base(bases[kind], ["en"]).eval()
    small = PrixLM.from_base(bases[kind], ["en"], keep=keep).eval()
    old_size = len(whole.tokenizer) - 5  # the roles and [EN] come last
    assert len(kept[0]) < old_size and len(small.tokenizer) == len(kept[0]) + 5
    rows = np.append(kept[0], np.arange(old_size, old_size + 5))
    new_rows = torch.from_numpy(rows)
    weights = [m.backbone.get_input_embeddings().weight for m in (whole, small)]
    assert torch.equal(weights[0][new_rows[:-5]], weights[1][:-5])
    with torch.no_grad():  # role tokens are random: give both models the same ones
        weights[1][-5:] = weights[0][-5:]
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
    kept = pieces_to_keep(shared_toy, tokenizer, texts=["Copenhagen and Lisbon"])
    small = trim_tokenizer(tokenizer, kept)
    assert small.get_vocab_size() == len(kept) < tokenizer.get_vocab_size()
    for names in [*name_batches(shared_toy), ["Copenhagen and Lisbon"]]:
        before, after = encode_names(tokenizer, names), encode_names(small, names)
        assert [kept[row].tolist() for row in after] == before
    strange = ["ფინეთი 🦉", "Zürich", "abcxyz"]
    for name, ids in zip(strange, encode_names(small, strange), strict=True):
        assert small.token_to_id("<unk>") not in ids
        assert small.decode(ids) == name


def test_xlmr_trimmed_to_a_benchmark_reads_it_as_before(data: Path, dbp5l: KB) -> None:
    tokenizer = Tokenizer.from_file(str(data / "xlmr" / "tokenizer.json"))
    kept = pieces_to_keep(dbp5l, tokenizer)
    small = trim_tokenizer(tokenizer, kept)
    assert len(kept) < 60_000
    assert small.token_to_id("<pad>") == 1 and small.token_to_id("<mask>") == len(kept) - 1
    for names in name_batches(dbp5l):
        before, after = encode_names(tokenizer, names), encode_names(small, names)
        assert [kept[row].tolist() for row in after] == before
    assert small.encode("Paris").tokens[0] == "<s>" and small.encode("Paris").ids[-1] == 2


def test_other_tokenizers_are_refused() -> None:
    with pytest.raises(PrixError, match="a BPE tokenizer cannot be trimmed"):
        trim_tokenizer(Tokenizer(models.BPE({"a": 0}, [])), np.array([0]))
