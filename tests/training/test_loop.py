"""Training: it learns, and stopping, in whatever way, changes nothing."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from prixlm import KB, PrixError
from prixlm.config import read_config
from prixlm.errors import Stopped
from prixlm.lm.compact import CompactConfig, make_compact, train_tokenizer
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import encode_names
from prixlm.training.checkpoints import checkpoint_steps
from prixlm.training.loop import TrainingConfig, learning_rate
from prixlm.training.pretrain import PretrainConfig, PretrainTask, pretrain
from prixlm.training.sampler import SupplyConfig

TINY = PretrainConfig(
    base="compact",
    epochs=6,
    batch=16,
    token_budget=256,
    supply=SupplyConfig(max_links=2),
    compact=CompactConfig(vocab=600, width=32, layers=2, heads=4),
    training=TrainingConfig(lr=5e-3, save_every=4, validate_every=5, log_every=1),
)


def losses(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_the_loss_falls_and_checkpoints_are_kept_by_rule(toy: KB, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, epochs=25)
    model = pretrain(toy, tmp_path / "run", config)
    found = losses(tmp_path / "run")
    task = PretrainTask(toy, model, config)
    assert sorted(found) == list(range(1, task.num_steps + 1))
    assert found[task.num_steps] < 0.6 * found[1]
    shares = {round(share * task.num_steps) for share in (0, 0.1, 0.75, 1)}
    assert set(checkpoint_steps(tmp_path / "run")) == shares
    again = PrixLM.load(tmp_path / "run")
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert read_config(tmp_path / "run" / "run.toml", PretrainConfig()) == config
    assert (tmp_path / "run" / "loss.png").stat().st_size > 5000


RUN = """
import dataclasses, json, os, signal, sys
sys.path.insert(0, {tests!r})
from tests.training.test_loop import TINY
from prixlm import KB
from prixlm.training.pretrain import pretrain
def progress(name, done, total):
    if name.startswith("train loss") and done == {step}:
        os.kill(os.getpid(), {signal})
config = dataclasses.replace(TINY, base={base!r})
pretrain(KB({kb!r}), {run!r}, config, progress)
"""


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    kind: signal.Signals, toy: KB, tmp_path: Path
) -> None:
    make_compact(toy, TINY.compact).save(tmp_path / "base")
    config = dataclasses.replace(TINY, base=str(tmp_path / "base"))
    whole = pretrain(toy, tmp_path / "whole", config)
    run = tmp_path / "run"
    code = RUN.format(
        tests=str(Path(__file__).parents[2]),
        kb=str(toy.folder),
        run=str(run),
        base=config.base,
        step=11,
        signal=int(kind),
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == (-kind if kind == signal.SIGKILL else 1), done.stderr
    assert checkpoint_steps(run)[-1] == (8 if kind == signal.SIGKILL else 11)
    model = pretrain(toy, run, config)
    assert losses(run) == losses(tmp_path / "whole")
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_an_interrupt_saves_and_says_so(toy: KB, tmp_path: Path) -> None:
    def progress(name: str, done: int, _total: int) -> None:
        if name.startswith("train loss") and done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped, match="stopped at step 3") as stopped:
        pretrain(toy, tmp_path / "run", TINY, progress)
    assert stopped.value.signal == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before
    assert 3 in checkpoint_steps(tmp_path / "run")


def test_a_checkpoint_of_another_run_is_refused(toy: KB, tmp_path: Path) -> None:
    pretrain(toy, tmp_path / "run", TINY)
    other = dataclasses.replace(TINY, batch=8)
    with pytest.raises(PrixError, match=r"a checkpoint of another run \(other config\)"):
        pretrain(toy, tmp_path / "run", other)


def test_a_loss_that_is_not_finite_stops_before_the_update(
    toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PretrainTask.loss
    calls = []

    def broken(self: PretrainTask, model: PrixLM, batch: object) -> torch.Tensor:
        calls.append(model.training)
        scale = float("nan") if sum(calls) > 5 else 1.0
        return scale * real(self, model, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(PretrainTask, "loss", broken)
    with pytest.raises(PrixError, match=r"the loss is nan at step \d+, before the update"):
        pretrain(toy, tmp_path / "run", TINY)
    assert max(losses(tmp_path / "run").values()) < 100


def test_a_gradient_that_is_not_finite_stops_before_the_update(
    toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PretrainTask.loss

    def steep(self: PretrainTask, model: PrixLM, batch: object) -> torch.Tensor:
        """A finite loss; the root's slope at 0 is infinite."""
        weight = model.backbone.get_input_embeddings().weight
        return real(self, model, batch) + torch.sqrt((weight * 0).sum())  # type: ignore[arg-type]

    monkeypatch.setattr(PretrainTask, "loss", steep)
    with pytest.raises(PrixError, match=r"the gradient's norm is \w+ at step 1, before the update"):
        pretrain(toy, tmp_path / "run", TINY)


def test_the_rate_rises_and_falls_as_in_the_paper() -> None:
    config = TrainingConfig(lr=1.0, warmup=0.06)
    rates = [learning_rate(config, step, 100) for step in range(1, 101)]
    assert rates[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert rates[6:] == sorted(rates[6:], reverse=True) and 0 < rates[-1] < 0.02
    steps = [a - b for a, b in itertools.pairwise(rates[6:])]
    assert max(steps) == pytest.approx(min(steps))


def test_no_name_is_unknown_to_a_compact_tokenizer(toy: KB) -> None:
    tokenizer = train_tokenizer(toy, 600)
    names = ["Finland", "ფინეთი 🦉", "ᚠᛁᚾ", "東京", "x" * 50]
    unknown = tokenizer.token_to_id("<unk>")
    for name, ids in zip(names, encode_names(tokenizer, names), strict=True):
        assert unknown not in ids
        assert tokenizer.decode(ids) == name
    assert tokenizer.get_vocab_size() <= 600


def test_a_small_vocabulary_leaves_rare_letters_to_bytes(world: KB) -> None:
    """17 languages have more letters than there is room for: once an error of the trainer's."""
    tokenizer = train_tokenizer(world, 700)
    assert tokenizer.get_vocab_size() <= 700
    for name in ("Suomi", "ఫిన్లాండ్", "中华人民共和国", "ປະເທດລາວ"):
        assert tokenizer.decode(encode_names(tokenizer, [name])[0]) == name


def test_compact_models_of_one_seed_are_equal(toy: KB) -> None:
    a, b, c = (make_compact(toy, TINY.compact, seed=seed) for seed in (0, 0, 1))
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)
    pairs = zip(a.parameters(), c.parameters(), strict=True)
    assert not all(torch.equal(x, y) for x, y in pairs)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(PrixError, match="unknown preset big"):
        PretrainConfig.preset("big")
    with pytest.raises(PrixError, match="cannot be shared by 5 heads"):
        CompactConfig(width=64, heads=5)
    with pytest.raises(PrixError, match="expected auto, no or bf16"):
        TrainingConfig(precision="fp8")
    with pytest.raises(PrixError, match="from 0 to 1"):
        TrainingConfig(checkpoints=(2.0,))
