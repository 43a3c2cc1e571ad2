"""Estimates: nothing is written, and they agree with the run."""

import dataclasses
from pathlib import Path

import pytest
import torch

from prixlm import KB, PrixError
from prixlm.lm.encoding import Batch
from prixlm.lm.model import PrixLM
from prixlm.training.checkpoints import checkpoint_folder, checkpoint_steps
from prixlm.training.estimate import estimate_pretrain
from prixlm.training.pretrain import PretrainConfig, pretrain
from prixlm.training.sampler import SupplyConfig


def test_a_dry_run_writes_nothing_and_is_right(
    toy: KB, tiny: PretrainConfig, tiny_run: Path
) -> None:
    before = sorted(path.name for path in toy.folder.rglob("*"))
    estimate = estimate_pretrain(toy, tiny)
    assert sorted(path.name for path in toy.folder.rglob("*")) == before
    assert "Nothing was written" in estimate.as_text()
    model = PrixLM.load(tiny_run)
    assert estimate.steps == model.settings.lineage.steps
    assert estimate.parameters == sum(parameter.numel() for parameter in model.parameters())
    folder = checkpoint_folder(tiny_run, checkpoint_steps(tiny_run)[-1])
    names = ("model.safetensors", "optimizer.safetensors")
    size = sum((folder / name).stat().st_size for name in names)
    assert estimate.checkpoint == pytest.approx(size, rel=0.1)
    assert estimate.facts_per_second > 1 and estimate.seconds > 0
    assert estimate.as_dict()["triples"] == 13


def test_a_dry_run_of_lora_counts_what_is_trained(
    families: dict[str, Path], shared_toy: KB, tiny: PretrainConfig, tmp_path: Path
) -> None:
    config = dataclasses.replace(
        tiny, base=str(families["gemma"]), adapt="lora", lora_rank=2, epochs=1, recompute=True
    )
    estimate = estimate_pretrain(shared_toy, config)
    pretrain(shared_toy, tmp_path / "run", config)
    assert estimate.steps == checkpoint_steps(tmp_path / "run")[-1]
    folder = checkpoint_folder(tmp_path / "run", estimate.steps)
    names = ("model.safetensors", "optimizer.safetensors", "trained.safetensors")
    sizes = [(folder / name).stat().st_size for name in names]
    assert estimate.checkpoint == pytest.approx(sum(sizes), rel=0.15)
    assert estimate.trained < 0.2 * estimate.parameters
    assert f"{estimate.trained / 1e6:,.1f} of " in estimate.as_text()


def test_an_estimate_of_single_counts_no_links(shared_toy: KB, tiny: PretrainConfig) -> None:
    single = dataclasses.replace(tiny, supply=SupplyConfig(langs=("ja",), propagate=True))
    estimate = estimate_pretrain(shared_toy, single)
    assert estimate.links == 0
    assert estimate.triples == 3, "two are stated in Japanese, one is carried from English"


def test_the_memory_of_gpu_and_host_are_told_apart(
    shared_toy: KB, tiny: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = estimate_pretrain(shared_toy, tiny)
    assert found.host == pytest.approx(found.memory, rel=0.05), "on a CPU they are the same"
    assert "GiB for each process, up to twice that" in found.as_text()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    text = dataclasses.replace(found, memory=3 << 30, host=7 << 30).as_text()
    assert "Memory: 3.0 GiB on the GPU and 7.0 GiB on the host, for each process." in text


def test_a_dry_run_of_a_divided_model_tells_the_memory_of_each_process(
    shared_toy: KB, tiny: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.training.estimate.peak_memory", lambda: 8 << 30)
    whole = estimate_pretrain(shared_toy, tiny)
    assert whole.divided == 0 and "--shard" not in whole.as_text()
    config = dataclasses.replace(tiny, shard=True)
    alone = estimate_pretrain(shared_toy, config)
    assert alone.memory == whole.memory and alone.divided == 16 * alone.parameters
    assert "The memory is that of one process. --shard divides" in alone.as_text()
    monkeypatch.setenv("WORLD_SIZE", "4")
    each = estimate_pretrain(shared_toy, config)
    assert whole.memory - 0.75 * each.divided < each.memory < whole.memory
    assert "calculated for each of 4 processes" in each.as_text()


def test_a_language_that_the_kb_lacks_is_refused(shared_toy: KB, tiny: PretrainConfig) -> None:
    config = dataclasses.replace(tiny, supply=SupplyConfig(langs=("sw",)))
    with pytest.raises(PrixError, match="has no sw; it has"):
        estimate_pretrain(shared_toy, config)


@pytest.mark.parametrize(("precision", "expected"), [("bf16", True), ("no", False)])
def test_a_dry_run_measures_in_the_precision_of_the_run(
    precision: str,
    expected: bool,
    shared_toy: KB,
    tiny: PretrainConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    real = PrixLM.loss

    def loss(self: PrixLM, batch: Batch) -> torch.Tensor:
        """Some virtual machines report bf16 and crash when they use it: compute in float32."""
        device = self.backbone.device.type
        found.append(torch.is_autocast_enabled(device))
        assert torch.get_autocast_dtype(device) == torch.bfloat16
        with torch.autocast(device, enabled=False):
            return real(self, batch)

    monkeypatch.setattr("prixlm.training.loop._cpu_multiplies", lambda _: True)
    monkeypatch.setattr(PrixLM, "loss", loss)
    training = dataclasses.replace(tiny.training, precision=precision)
    estimate_pretrain(shared_toy, dataclasses.replace(tiny, training=training))
    assert len(found) > 1 and set(found) == {expected}
