"""LoRA: what is trained, its gradients, and the plain checkpoint that it ends as."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from prixlm import KB, PrixError
from prixlm.lm.model import PrixLM
from prixlm.training import lora
from prixlm.training.lora import TrainedRows, adapt
from tests.conftest import FAMILIES
from tests.lm.helpers import batch_encoder, some_facts


@pytest.fixture(params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> str:
    """The family of the base model."""
    return str(request.param)


@pytest.fixture
def adapted(kind: str, families: dict[str, Path], shared_toy: KB) -> PrixLM:
    """A model of each family with random matrices that change what it says."""
    model = PrixLM.from_base(families[kind], shared_toy.languages).eval()
    adapt(model, rank=3, seed=1)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zero at the start, so that nothing changes
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def test_an_adapter_starts_without_an_effect(
    kind: str, families: dict[str, Path], shared_toy: KB
) -> None:
    model = PrixLM.from_base(families[kind], shared_toy.languages).eval()
    batch = batch_encoder(model.encoder, shared_toy).encode(some_facts(shared_toy, 8))
    with torch.no_grad():
        before = model.loss(batch)
        adapt(model, rank=2)
        torch.testing.assert_close(model.loss(batch), before, rtol=1e-6, atol=1e-5)


def test_only_matrices_new_tokens_and_the_head_are_trained(adapted: PrixLM, kind: str) -> None:
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    rows = [name for name in trained if name.endswith(".rows")]
    is_tied = adapted.backbone.config.tie_word_embeddings
    assert len(rows) == (1 if is_tied else 2)
    width = adapted.backbone.config.hidden_size
    assert all(trained[name].shape == (4 + 5, width) for name in rows)
    others = [name for name in trained if "lora_" not in name and name not in rows]
    assert all(
        name.startswith(tuple(f"backbone.{h}" for h in adapted.kind.head)) for name in others
    )
    num_adapted = sum("lora_A" in name for name in trained)
    per_layer = {"modernbert": 4, "xlmr": 6, "mbert": 6}.get(kind, 7)
    assert num_adapted == per_layer * len(adapted.kind.layers)


def test_gradients_are_those_of_the_merged_weights(adapted: PrixLM, shared_toy: KB) -> None:
    """The rows of new tokens get what their rows of a trained matrix would get."""
    batch = batch_encoder(adapted.encoder, shared_toy).encode(some_facts(shared_toy, 20))
    adapted.loss(batch).backward()
    place = torch.tensor(adapted.encoder.special_ids())
    plain = copy.deepcopy(adapted)
    assert plain.adapter is not None
    plain.adapter._model[0] = plain  # a copy of the adapter knows the model that it was copied from
    merged = adapted.adapter.merged_state()
    plain.adapter.merge()
    plain.zero_grad()
    loss = plain.loss(batch)
    loss.backward()
    with torch.no_grad():
        torch.testing.assert_close(adapted.loss(batch), loss, rtol=1e-5, atol=1e-4)
    weight = plain.backbone.get_input_embeddings().weight
    torch.testing.assert_close(
        adapted.adapter.embedded.rows.grad, weight.grad[place], rtol=1e-3, atol=1e-4
    )
    projection = plain.backbone.get_output_embeddings().weight
    torch.testing.assert_close(
        adapted.adapter.projected.rows.grad, projection.grad[place], rtol=1e-3, atol=1e-4
    )
    own = plain.backbone.state_dict()
    assert own.keys() == merged.keys()
    assert all(torch.equal(own[name], merged[name]) for name in own)


def test_a_checkpoint_of_an_adapted_model_is_plain_and_can_be_resumed(
    adapted: PrixLM, families: dict[str, Path], kind: str, shared_toy: KB, tmp_path: Path
) -> None:
    with torch.no_grad():
        adapted.adapter.embedded.rows.add_(0.5)  # as an update would
    batch = batch_encoder(adapted.encoder, shared_toy).encode(some_facts(shared_toy, 8))
    adapted.save(tmp_path / "saved")
    again = PrixLM.load(tmp_path / "saved").eval()
    assert not any("lora" in name for name, _ in again.named_parameters())
    fresh = PrixLM.from_base(families[kind], shared_toy.languages).eval()
    adapt(fresh, rank=3, seed=7).load_trained(adapted.adapter.trained_state())
    with torch.no_grad():
        expected = adapted.loss(batch)
        torch.testing.assert_close(again.loss(batch), expected, rtol=1e-5, atol=1e-4)
        assert torch.equal(fresh.loss(batch), expected)


def test_trained_rows_pass_their_gradient_on() -> None:
    weight = nn.Parameter(torch.randn(6, 4), requires_grad=False)
    rows = TrainedRows(weight, torch.tensor([1, 4]))
    ids = torch.tensor([[1, 2], [4, 1]])
    correction = rows.correction(ids)
    assert correction.shape == (2, 2, 4) and not correction.detach().any()
    correction.sum().backward()
    assert rows.rows.grad.tolist() == [[2.0] * 4, [1.0] * 4]
    with torch.no_grad():
        rows.rows.fill_(7)
    rows.write(weight)
    assert (weight[[1, 4]] == 7).all() and not (weight[[0, 2, 3, 5]] == 7).any()


def test_without_peft_the_remedy_is_named(
    families: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora.importlib.util, "find_spec", lambda _name: None)
    model = PrixLM.from_base(families["gemma"], ["en"])
    with pytest.raises(PrixError, match=r"pip install prixlm\[lora\]"):
        adapt(model)
