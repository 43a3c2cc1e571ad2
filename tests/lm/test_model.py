"""The model: no leak, the loss as a slow reference computes it, folders that others can load."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, XLMRobertaForMaskedLM

from prixlm import KB, PrixError
from prixlm.lm.encoding import Batch
from prixlm.lm.lineage import Lineage
from prixlm.lm.model import PrixLM, Settings, attention_mask
from prixlm.lm.token_cache import encode_names
from prixlm.types import Array
from tests.lm.helpers import batch_encoder, encode_one, num_after, paper_batch, some_facts


@torch.no_grad()
def log_probabilities(model: PrixLM, batch: Batch) -> torch.Tensor:
    return model.log_probabilities(model.hidden(*map(torch.from_numpy, batch[:3])))


def with_other_tokens(batch: Batch) -> Iterator[tuple[Array, Array, Batch]]:
    """For each t: the rows that have an object token t, its column in every row, and the batch
    with another token there."""
    for step in range(int((batch.length - batch.prefix).max())):
        ids = batch.ids.copy()
        column = batch.prefix + step
        rows = np.flatnonzero(column < batch.length)
        ids[rows, column[rows]] = (ids[rows, column[rows]] + 7) % 50
        yield rows, column, batch._replace(ids=ids)


@pytest.mark.parametrize("padded", [False, True])
def test_object_tokens_cannot_influence_earlier_scores(
    any_model: PrixLM, shared_toy: KB, padded: bool
) -> None:
    model = any_model
    facts = some_facts(shared_toy, 24)
    if not padded:
        lengths = batch_encoder(model.encoder, shared_toy).num_inputs(facts)
        facts = facts.select(lengths == np.bincount(lengths).argmax())
    batch = paper_batch(model, shared_toy, facts)
    sizes = batch.length
    assert (sizes.min() < sizes.max()) == padded
    before = log_probabilities(model, batch)
    changed = 0
    for rows, column, other in with_other_tokens(batch):
        after = log_probabilities(model, other)
        for row in rows:
            # Position j predicts token j + 1: all up to column - 1 predict x_u with u <= t.
            assert torch.equal(before[row, : column[row]], after[row, : column[row]])
            changed += not torch.equal(before[row, column[row]], after[row, column[row]])
    assert changed > 0


@pytest.mark.parametrize("padded", [False, True])
def test_object_tokens_cannot_influence_earlier_scores_in_training(
    any_model: PrixLM, shared_toy: KB, padded: bool
) -> None:
    """The same for the packed pass, which training uses."""
    model = any_model
    facts = some_facts(shared_toy, 24)
    batches = batch_encoder(model.encoder, shared_toy)
    if not padded:
        lengths = batches.num_inputs(facts)
        facts = facts.select(lengths == np.bincount(lengths).argmax())
    batch = batches.encode(facts)
    with torch.no_grad():
        before = model.log_probabilities(model.target_states(batch))
        changed = 0
        for _, column, other in with_other_tokens(batch):
            after = model.log_probabilities(model.target_states(other))
            earlier = torch.from_numpy(batch.column < column[batch.row])
            assert torch.equal(before[earlier], after[earlier])
            changed += not torch.equal(before[~earlier], after[~earlier])
    assert changed > 0


def test_the_mask_is_the_one_worked_by_hand() -> None:
    mask = attention_mask(torch.tensor([2, 3]), torch.tensor([4, 3]), 5)[:, 0].int()
    assert mask[0].tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 0, 0, 0, 0],
    ]
    assert mask[1].tolist() == [[1, 1, 1, 0, 0]] * 3 + [[1, 0, 0, 0, 0]] * 2
    causal = attention_mask(torch.tensor([2]), torch.tensor([3]), 3, causal=True)[0, 0].int()
    assert causal.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_the_loss_equals_a_slow_reference_one_fact_at_a_time(
    any_model: PrixLM, shared_toy: KB
) -> None:
    model = any_model
    facts = some_facts(shared_toy, 20)
    expected = 0.0
    for row in range(len(facts)):
        batch = paper_batch(model, shared_toy, facts.select(np.array([row])))
        scores = log_probabilities(model, batch)[0]
        eos = int(batch.length[0]) - num_after(model)
        for column in range(int(batch.prefix[0]), eos + 1):
            expected -= scores[column - 1, batch.ids[0, column]].item()
    with torch.no_grad():
        printed = model.loss(paper_batch(model, shared_toy, facts)).item()
        short = model.loss(batch_encoder(model.encoder, shared_toy).encode(facts)).item()
    assert printed == pytest.approx(expected, rel=1e-5)
    assert short == pytest.approx(expected, rel=1e-5)


def test_new_tokens_are_random_and_the_old_ones_are_kept(
    bases: dict[str, Path], shared_toy: KB
) -> None:
    base = XLMRobertaForMaskedLM.from_pretrained(bases["xlmr"])
    old = base.get_input_embeddings().weight
    first, again, other = (
        PrixLM.from_base(bases["xlmr"], shared_toy.languages, seed=seed)
        .backbone.get_input_embeddings()
        .weight
        for seed in (0, 0, 1)
    )
    assert torch.equal(first[: len(old)], old) and len(first) == len(old) + 4 + 5
    new = first[len(old) :]
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert new.std().item() == pytest.approx(0.02, rel=0.3)
    assert not torch.allclose(new[0], new[1])


def test_new_tokens_have_the_mean_and_spread_of_the_embeddings_of_the_base(
    bases: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    """Pretrained embeddings are far from the initializer_range of their config."""
    base = XLMRobertaForMaskedLM.from_pretrained(bases["xlmr"])
    old = base.get_input_embeddings().weight
    with torch.no_grad():
        old.mul_(10)  # a spread of 0.2
        old[:, 7] = 3 + 0.5 * old[:, 7]  # one dimension of large values, as XLM-R has
    shutil.copytree(bases["xlmr"], tmp_path / "base")
    base.save_pretrained(tmp_path / "base")
    languages = [f"x{number}" for number in range(400)]
    model = PrixLM.from_base(tmp_path / "base", languages)
    new = model.backbone.get_input_embeddings().weight[len(old) :]
    assert len(new) == 404 and model.backbone.config.initializer_range == 0.02
    torch.testing.assert_close(new.mean(0), old.mean(0), atol=0.05, rtol=0)
    torch.testing.assert_close(new.std(0), old.std(0), atol=0, rtol=0.2)


def test_a_saved_folder_is_loaded_by_us_and_by_auto_classes(
    model: PrixLM, shared_toy: KB, tmp_path: Path
) -> None:
    model.save(tmp_path)
    again = PrixLM.load(tmp_path).eval()
    batch = batch_encoder(model.encoder, shared_toy).encode(some_facts(shared_toy, 10))
    assert torch.equal(log_probabilities(model, batch), log_probabilities(again, batch))
    assert again.settings == model.settings
    plain = AutoModel.from_pretrained(tmp_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.convert_tokens_to_ids("[O]") == model.encoder.id("[O]")
    prefix = model.encoder.encode("Finland", "capital", None)
    ids, length = torch.tensor([prefix]), torch.tensor([len(prefix)])
    with torch.no_grad():
        theirs = plain(input_ids=ids).last_hidden_state
        torch.testing.assert_close(theirs, again.hidden(ids, length, length))
    assert list(tmp_path.glob("*.safetensors")) and not list(tmp_path.glob("*.bin"))


def test_settings_are_read_as_they_were_written() -> None:
    lineage = Lineage(base="b", triples={"et": 3}, triples_carried_along_links=0)
    settings = Settings(languages=("en", "et"), mask="causal", lineage=lineage)
    assert Settings.from_dict(settings.as_dict()) == settings
    assert list(settings.as_dict()) == ["languages", "mask", "trained"]


def test_a_folder_that_is_not_a_model_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="is not a Prix-LM folder"):
        PrixLM.load(bases["xlmr"])
    with pytest.raises(PrixError, match="there is no folder"):
        PrixLM.load(tmp_path / "nowhere")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(PrixError, match="is an unfinished run"):
        PrixLM.load(tmp_path / "run")


def test_a_folder_says_how_its_model_reads_names(
    bases: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    PrixLM.from_base(bases["xlmr"], ["en"]).save(tmp_path / "script")
    assert "reading" not in json.loads((tmp_path / "script" / "prixlm.json").read_text())
    model = PrixLM.from_base(bases["xlmr"], ["en"], reading="romanised")
    model.save(tmp_path / "latin")
    assert PrixLM.load(tmp_path / "latin").settings == model.settings
    assert "in Latin letters" in (tmp_path / "latin" / "README.md").read_text("utf-8")
    assert not caplog.text
    settings = dataclasses.replace(model.settings, reading_version="of yesterday")
    PrixLM(model.backbone, model.tokenizer, settings).save(tmp_path / "old")
    PrixLM.load(tmp_path / "old")
    assert "were romanised by of yesterday" in caplog.text
    path = tmp_path / "old" / "prixlm.json"
    path.write_text(path.read_text().replace('"romanised"', '"runes"'))
    with pytest.raises(PrixError, match="reading runes: expected script"):
        PrixLM.load(tmp_path / "old")


def test_a_decoder_can_read_names_as_words_of_a_sentence(
    kind: str, families: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    """What it has read about Paris, it has read about the piece ` Paris`."""
    langs = shared_toy.languages
    plain = PrixLM.from_base(families[kind], langs)
    model = PrixLM.from_base(families[kind], langs, spaced=True)
    is_decoder = kind in ("gemma", "qwen", "llama")
    assert model.settings.space == model.settings.as_dict().get("space", False) == is_decoder
    [spaced] = encode_names(model.encoder.tokenizer, [" Paris"])
    if is_decoder:
        assert model.encoder.tokenise(["Paris", ""]) == [spaced, []]
        fact = model.encoder.encode("Paris", "country", "France")
        assert fact[len(model.encoder.start) + 1 :][: len(spaced)] == spaced
        assert fact != plain.encoder.encode("Paris", "country", "France")
    else:
        assert model.encoder.tokenise(["Paris"]) == plain.encoder.tokenise(["Paris"])
    # The names of a KB are cached as they are read, and facts are encoded alike one by one.
    facts = some_facts(shared_toy, 12)
    for one in (model, plain):
        batch = batch_encoder(one.encoder, shared_toy).encode(facts)
        for row in range(len(facts)):
            ids = encode_one(one.encoder, shared_toy, facts, row)
            length = len(ids) - num_after(one)
            assert batch.ids[row, : batch.length[row]].tolist() == ids[:length]
    # A folder says how its model reads, also when it is a base itself.
    for one, name in ((model, "spaced"), (plain, "plain")):
        one.save(tmp_path / name)
        again = PrixLM.load(tmp_path / name)
        further = PrixLM.from_base(tmp_path / name, langs, spaced=True)
        for other in (again, further):
            assert other.settings.space == one.settings.space
            assert other.encoder.tokenise(["Paris"]) == one.encoder.tokenise(["Paris"])
