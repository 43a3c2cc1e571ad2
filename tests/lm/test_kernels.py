"""The fast kernels against transformers' and torch's plain versions."""

from pathlib import Path

import pytest
import torch

from prixlm import KB
from prixlm.lm import kernels
from prixlm.lm.kernels import Dropout
from prixlm.lm.model import PrixLM
from tests.lm.helpers import batch_encoder, some_facts

# --- packed pass ----------------------------------------------------------------------------------


def test_the_packed_pass_computes_the_states_of_the_padded_pass(
    model: PrixLM, shared_toy: KB
) -> None:
    for count in (1, 7, 30):
        batch = batch_encoder(model.encoder, shared_toy).encode(some_facts(shared_toy, count))
        with torch.no_grad():
            packed = model.target_states(batch)
            padded = model.hidden(*map(torch.from_numpy, batch[:3]))[batch.row, batch.column]
        torch.testing.assert_close(packed, padded, rtol=1e-5, atol=1e-5)


def test_a_layout_pads_and_packs_rows_and_their_gradients() -> None:
    place = torch.tensor([0, 1, 3])  # of 2 x 3 cells: two tokens in the first row, one in the other
    layout = kernels.Layout(place, 2, 3)
    packed = torch.arange(6.0).view(3, 2).requires_grad_()
    padded = layout.pad(packed)
    assert padded.shape == (2, 3, 2)
    assert torch.equal(padded[0, :2], packed[:2]) and torch.equal(padded[1, 0], packed[2])
    assert torch.equal(layout.pack(padded), packed)
    padded.sum().backward()
    assert torch.equal(packed.grad, torch.ones(3, 2)), "padding has no gradient"


# --- dropout --------------------------------------------------------------------------------------


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
    assert dropped.mean(0).std().item() < 0.012  # no value is favoured


@pytest.mark.parametrize("kind", ["xlmr", "mbert"], indirect=True)
def test_a_backbone_gets_our_dropout_and_keeps_its_rates(model: PrixLM) -> None:
    layers = [m for m in model.backbone.modules() if isinstance(m, torch.nn.Dropout)]
    assert len(layers) >= 7 and all(type(m) is Dropout and m.p == 0.1 for m in layers)


# --- cross entropy --------------------------------------------------------------------------------


def test_the_chunked_loss_has_the_gradients_of_the_plain_one(
    families: dict[str, Path], kind: str, shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PrixLM.from_base(families[kind], shared_toy.languages).eval()
    batch = batch_encoder(model.encoder, shared_toy).encode(some_facts(shared_toy, 30))
    monkeypatch.setattr(kernels, "CHUNK", 7)
    (3 * model.loss(batch)).backward()
    chunked = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    states = model.hidden(*map(torch.from_numpy, batch[:3]))[batch.row, batch.column]
    scores = model.log_probabilities(states)
    (-3 * scores[torch.arange(len(scores)), torch.from_numpy(batch.target)].sum()).backward()
    plain = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert chunked.keys() == plain.keys() and len(chunked) > 15
    for name, gradient in plain.items():
        torch.testing.assert_close(chunked[name], gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_bias", [True, False])
def test_the_loss_is_torchs_cross_entropy(has_bias: bool) -> None:
    torch.manual_seed(0)
    states, weight = torch.randn(700, 8), torch.randn(50, 8)
    bias = torch.randn(50) if has_bias else None
    target = torch.randint(50, (700,))
    ours = kernels.linear_cross_entropy(states, weight, bias, target)
    logits = torch.nn.functional.linear(states, weight, bias)
    plain = torch.nn.functional.cross_entropy(logits, target, reduction="sum")
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-3)


def test_flat_logits_of_a_large_vocabulary_have_finite_gradients_in_float16() -> None:
    """The numerators of 70,000 equal shares add up to 70,000, and float16 ends at 65,504."""
    torch.manual_seed(0)
    states = torch.randn(5, 8, requires_grad=True)
    weight = (0.01 * torch.randn(70_000, 8)).requires_grad_()
    bias = torch.zeros(70_000, requires_grad=True)
    target = torch.randint(70_000, (5,))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = kernels.linear_cross_entropy(states, weight, bias, target)
    loss.backward()
    ours = [part.grad for part in (states, weight, bias)]
    states.grad = weight.grad = bias.grad = None
    logits = torch.nn.functional.linear(states, weight, bias)
    torch.nn.functional.cross_entropy(logits, target, reduction="sum").backward()
    for got, part in zip(ours, (states, weight, bias), strict=True):
        torch.testing.assert_close(got, part.grad, rtol=2e-2, atol=1e-4)


def test_rows_of_a_frozen_weight_are_trained_through_their_parameter() -> None:
    torch.manual_seed(0)
    states = torch.randn(600, 8, requires_grad=True)
    weight, target = torch.randn(50, 8), torch.randint(50, (600,))
    place = torch.tensor([3, 48, 49])
    rows = weight[place].clone().requires_grad_()
    kernels.linear_cross_entropy(states, weight, None, target, (place, rows)).backward()
    ours = states.grad, rows.grad
    states.grad = rows.grad = None
    logits = states @ weight.index_copy(0, place, rows).T
    torch.nn.functional.cross_entropy(logits, target, reduction="sum").backward()
    for got, expected in zip(ours, (states.grad, rows.grad), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
