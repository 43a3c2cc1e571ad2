"""The model: no leak, the loss as a slow reference has it, folders that others can load."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, XLMRobertaForMaskedLM

from prixlm import KB, PrixError
from prixlm.lm import kernels
from prixlm.lm.encoding import Batch, BatchEncoder, Facts
from prixlm.lm.kernels import Dropout
from prixlm.lm.model import Array, PrixLM, attention_mask
from prixlm.lm.token_cache import build_tokens
from tests.lm.test_encoding import all_facts

BASES = ("xlmr", "mbert")


@pytest.fixture(params=BASES)
def model(request: pytest.FixtureRequest, bases: dict[str, Path], toy: KB) -> PrixLM:
    return PrixLM.from_base(bases[request.param], toy.languages).eval()


def batches_of(model: PrixLM, kb: KB, *, full: bool = False) -> BatchEncoder:
    cache = build_tokens(kb, model.encoder.tokenizer)
    return BatchEncoder(model.encoder, kb, cache, full=full)


def tensors(batch: Batch) -> list[torch.Tensor]:
    return [torch.from_numpy(a) for a in batch[:3]]


@torch.no_grad()
def log_probabilities(model: PrixLM, batch: Batch) -> torch.Tensor:
    return model.log_probabilities(model.hidden(*tensors(batch)))


def some_facts(kb: KB, number: int) -> Facts:
    facts = all_facts(kb)
    return facts.select(np.random.default_rng(1).permutation(len(facts))[:number])


def with_other_tokens(batch: Batch) -> Iterator[tuple[Array, Array, Batch]]:
    """For each t: the rows that have an object token t, its place in every row, and the batch with
    another token there."""
    for step in range(int((batch.length - batch.prefix).max())):
        ids = batch.ids.copy()
        place = batch.prefix + step
        rows = np.flatnonzero(place < batch.length)
        ids[rows, place[rows]] = (ids[rows, place[rows]] + 7) % 50
        yield rows, place, batch._replace(ids=ids)


@pytest.mark.parametrize("padded", [False, True])
def test_object_tokens_cannot_influence_earlier_scores(
    model: PrixLM, toy: KB, padded: bool
) -> None:
    facts = some_facts(toy, 24)
    if not padded:
        lengths = batches_of(model, toy, full=True).num_inputs(facts)
        facts = facts.select(lengths == np.bincount(lengths).argmax())
    batch = batches_of(model, toy, full=True).encode(facts)
    assert (batch.ids == model.encoder.id(model.encoder.base.padding)).any() == padded
    before = log_probabilities(model, batch)
    changed = 0
    for rows, place, other in with_other_tokens(batch):
        after = log_probabilities(model, other)
        for row in rows:
            # Position j predicts token j + 1: all up to place - 1 predict x_u with u <= t.
            assert torch.equal(before[row, : place[row]], after[row, : place[row]])
            changed += not torch.equal(before[row, place[row]], after[row, place[row]])
    assert changed > 0


@pytest.mark.parametrize("padded", [False, True])
def test_object_tokens_cannot_influence_earlier_scores_in_training(
    model: PrixLM, toy: KB, padded: bool
) -> None:
    """The same, for the pass over real tokens that training makes."""
    facts = some_facts(toy, 24)
    encoder = batches_of(model, toy)
    if not padded:
        lengths = encoder.num_inputs(facts)
        facts = facts.select(lengths == np.bincount(lengths).argmax())
    batch = encoder.encode(facts)
    with torch.no_grad():
        before = model.log_probabilities(model.target_states(batch))
        changed = 0
        for _, place, other in with_other_tokens(batch):
            after = model.log_probabilities(model.target_states(other))
            earlier = torch.from_numpy(batch.column < place[batch.row])
            assert torch.equal(before[earlier], after[earlier])
            changed += not torch.equal(before[~earlier], after[~earlier])
    assert changed > 0


def test_training_computes_the_states_of_the_padded_pass(model: PrixLM, toy: KB) -> None:
    for number in (1, 7, 30):
        batch = batches_of(model, toy).encode(some_facts(toy, number))
        with torch.no_grad():
            ours = model.target_states(batch)
            theirs = model.hidden(*tensors(batch))[batch.row, batch.column]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_dropout_drops_its_share_and_follows_the_seed() -> None:
    layer = Dropout(0.1).train()
    values = torch.ones(1000, 1003, requires_grad=True)
    torch.manual_seed(3)
    first = layer(values)
    torch.manual_seed(3)
    again, other = layer(values), layer(values)
    assert torch.equal(first, again) and not torch.equal(first, other)
    zero, scale = first.unique().tolist()
    share = (first == 0).float().mean().item()
    assert zero == 0 and scale in (pytest.approx(256 / 231), pytest.approx(256 / 230))
    assert share == pytest.approx(1 - 1 / scale, abs=2e-3)
    assert first.mean().item() == pytest.approx(1.0, abs=2e-3)
    first.sum().backward()
    assert values.grad is not None and torch.equal(values.grad, first.detach())
    assert torch.equal(layer.eval()(values), values)


def test_dropout_drops_p_on_average_over_masks() -> None:
    layer, values = Dropout(0.1).train(), torch.ones(1000)
    torch.manual_seed(4)
    dropped = torch.stack([layer(values) == 0 for _ in range(1000)]).float()
    assert dropped.mean().item() == pytest.approx(0.1, abs=1e-3)  # 25 or 26 / 256 would not be
    assert dropped.mean(0).std().item() < 0.012  # no place is favoured


def test_a_backbone_gets_our_dropout_and_keeps_its_rates(model: PrixLM) -> None:
    found = [m for m in model.backbone.modules() if isinstance(m, torch.nn.Dropout)]
    assert len(found) >= 7 and all(type(m) is Dropout and m.p == 0.1 for m in found)


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


def test_the_loss_equals_a_slow_reference_one_fact_at_a_time(model: PrixLM, toy: KB) -> None:
    facts = some_facts(toy, 20)
    expected = 0.0
    full = batches_of(model, toy, full=True)
    for row in range(len(facts)):
        batch = full.encode(facts.select(np.array([row])))
        scores = log_probabilities(model, batch)[0]
        eos = int(batch.length[0]) - 2
        for place in range(int(batch.prefix[0]), eos + 1):
            expected -= scores[place - 1, batch.ids[0, place]].item()
    with torch.no_grad():
        whole = model.loss(full.encode(facts)).item()
        short = model.loss(batches_of(model, toy).encode(facts)).item()
    assert whole == pytest.approx(expected, rel=1e-5)
    assert short == pytest.approx(expected, rel=1e-5)


def test_the_chunked_loss_has_the_gradients_of_the_plain_one(
    model: PrixLM, toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batches_of(model, toy).encode(some_facts(toy, 30))
    monkeypatch.setattr(kernels, "CHUNK", 7)
    (3 * model.loss(batch)).backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    states = model.hidden(*tensors(batch))[batch.row, batch.column]
    scores = model.log_probabilities(states)
    (-3 * scores[torch.arange(len(scores)), torch.from_numpy(batch.target)].sum()).backward()
    plain = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert ours.keys() == plain.keys() and len(ours) > 20
    for name, gradient in plain.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-4)


def test_new_tokens_are_random_and_the_old_ones_are_kept(bases: dict[str, Path], toy: KB) -> None:
    base = XLMRobertaForMaskedLM.from_pretrained(bases["xlmr"])
    old = base.get_input_embeddings().weight
    first, again, other = (
        PrixLM.from_base(bases["xlmr"], toy.languages, seed=seed)
        .backbone.get_input_embeddings()
        .weight
        for seed in (0, 0, 1)
    )
    assert torch.equal(first[: len(old)], old) and len(first) == len(old) + 4 + 5
    new = first[len(old) :]
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert new.std().item() == pytest.approx(0.02, rel=0.3)
    assert not torch.allclose(new[0], new[1])


def test_a_saved_folder_is_loaded_by_us_and_by_auto_classes(
    model: PrixLM, toy: KB, tmp_path: Path
) -> None:
    model.save(tmp_path)
    again = PrixLM.load(tmp_path).eval()
    batch = batches_of(model, toy).encode(some_facts(toy, 10))
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


def test_a_causal_decoder_keeps_its_mask(bases: dict[str, Path], toy: KB, tmp_path: Path) -> None:
    """The authors' checkpoint says in its config whether its prefix is causal."""
    XLMRobertaForMaskedLM.from_pretrained(bases["xlmr"]).save_pretrained(tmp_path)
    for path in bases["xlmr"].glob("tokenizer*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"is_decoder": True}))
    model = PrixLM.from_base(tmp_path, toy.languages)
    assert model.settings.mask == "causal"
    assert PrixLM.from_base(bases["xlmr"], toy.languages).settings.mask == "prefix"


def test_a_base_that_cannot_be_used_is_refused(tmp_path: Path, bases: dict[str, Path]) -> None:
    with pytest.raises(PrixError, match=r"no model at .*nowhere.*Expected xlm-roberta-base"):
        PrixLM.from_base(tmp_path / "nowhere", ["en"])
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(PrixError, match="is a gpt2 model; Prix-LM is built on xlm-roberta or bert"):
        PrixLM.from_base(tmp_path, ["en"])
    with pytest.raises(PrixError, match="is not a Prix-LM folder"):
        PrixLM.load(bases["xlmr"])
