"""Pretraining (Sec. 2.1 and 3.1): from a KB folder to a Prix-LM folder.

    model = pretrain(KB("kb"), "model", PretrainConfig.preset("compact"))

Prix-LM (All) learns from all triples and links; Prix-LM (Single) is `langs=("et",)`: the triples of
that language only. The run folder has the checkpoints, the metrics, the resolved config and, at the
end, the model itself.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prixlm.checkpoints import checkpoint_folder, checkpoint_steps
from prixlm.compact import CompactConfig, make_compact
from prixlm.encoding import BatchEncoder, Facts
from prixlm.errors import PrixError
from prixlm.kb.disk import write_atomically
from prixlm.kb.store import KB
from prixlm.model import PrixLM
from prixlm.supply import FactSupply, SupplyConfig, cut_batches
from prixlm.tokens import build_tokens, tokenizer_hash
from prixlm.training import Progress, Step, TrainingConfig, train


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """A whole pretraining; the defaults are the paper's."""

    base: str = "xlm-roberta-base"  # or compact, a name on the hub, a folder
    epochs: int = 5
    batch: int = 1024  # facts in a global batch
    token_budget: int = 16_384  # padded tokens in one pass through the model
    num_valid: int = 2000  # valid triples that the validation loss is measured on
    supply: SupplyConfig = field(default_factory=SupplyConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    compact: CompactConfig = field(default_factory=CompactConfig)

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or self.token_budget < 64:
            raise PrixError("epochs and batch have to be 1 or more, and token_budget 64 or more.")

    @classmethod
    def preset(cls, name: str) -> "PretrainConfig":
        """`paper`, `compact` (sized for two cores) or `demo` (a few minutes)."""
        if name == "paper":
            return cls()
        sizes = {
            "compact": cls(
                base="compact",
                epochs=6,
                batch=256,
                training=TrainingConfig(lr=2e-3),
            ),
            "demo": cls(
                base="compact",
                epochs=2,
                batch=256,
                supply=SupplyConfig(max_links=2),
                compact=CompactConfig(vocab=4000, width=128, layers=2),
                training=TrainingConfig(lr=3e-3, validate_every=100, save_every=200),
            ),
        }
        if name not in sizes:
            raise PrixError(f"unknown preset {name}: expected paper, {' or '.join(sizes)}.")
        return sizes[name]

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def pretrain(
    kb: KB, to: Path | str, config: PretrainConfig, progress: Progress | None = None
) -> PrixLM:
    """Train a Prix-LM on the `train` facts of a KB; a run that was stopped goes on."""
    to = Path(to)
    if kb.num_triples(split="train") == 0:
        raise PrixError(f"{kb.folder} has no train triples: there is nothing to learn from.")
    model = _start(kb, to, config)
    task = PretrainTask(kb, model, config, progress)
    to.mkdir(parents=True, exist_ok=True)
    write_atomically(to / "config.run.json", json.dumps(config.as_dict(), indent=1) + "\n")
    train(model, task, config.training, to, progress)
    task.save(model, to)
    return model


def _start(kb: KB, to: Path, config: PretrainConfig) -> PrixLM:
    """The model to train: that of a checkpoint if there is one, else the base.

    A compact tokenizer is never trained twice for a run: its trainer gives other pieces each time.
    """
    steps = checkpoint_steps(to)
    if steps:
        return PrixLM.load(checkpoint_folder(to, steps[-1]))
    if config.base == "compact":
        return make_compact(kb, config.compact, seed=config.training.seed)
    return PrixLM.from_base(config.base, kb.languages, seed=config.training.seed)


class PretrainTask:
    """Steps over the facts of a KB: global batches, cut into passes of about equal length."""

    def __init__(
        self, kb: KB, model: PrixLM, config: PretrainConfig, progress: Progress | None = None
    ) -> None:
        self.config = config
        cache = build_tokens(kb, model.encoder.tokenizer, progress)
        self.batches = BatchEncoder(model.encoder, kb, cache)
        self.supply = FactSupply(kb, self.batches, config.supply)
        self.valid = self._read_valid(kb)
        self.steps_an_epoch = self.supply.num_blocks(config.batch)
        self.num_steps = config.epochs * self.steps_an_epoch
        self.fingerprint = {
            "KB": kb.fingerprint(),
            "tokenizer": tokenizer_hash(model.encoder.tokenizer),
            "config": hashlib.sha256(json.dumps(config.as_dict()).encode()).hexdigest(),
        }

    def _read_valid(self, kb: KB) -> Facts | None:
        """A fixed sample of the valid triples, of the trained languages."""
        if not any(
            kb.num_triples(lang, "valid") for lang in self.config.supply.langs or kb.languages
        ):
            return None
        facts = FactSupply(kb, self.batches, self.config.supply, split="valid").triples
        generator = np.random.default_rng(self.config.supply.seed)
        return facts.select(np.sort(generator.permutation(len(facts))[: self.config.num_valid]))

    def steps(self, first: int, rank: int, world: int) -> Iterator[Step]:
        for epoch in range(first // self.steps_an_epoch, self.config.epochs):
            start = max(0, first - epoch * self.steps_an_epoch)
            for facts in self.supply.blocks(epoch, self.config.batch, start):
                targets = self.batches.num_targets(facts).sum()
                own = facts.select(slice(rank, None, world))
                yield Step(self._cut(own), float(max(1, targets)), len(facts))

    def _cut(self, facts: Facts) -> list[Facts]:
        lengths = self.batches.num_inputs(facts)
        return [facts.select(rows) for rows in cut_batches(lengths, self.config.token_budget)]

    def loss(self, model: PrixLM, batch: Facts) -> Tensor:
        return model.loss(self.batches.encode(batch))

    def validate(self, model: PrixLM) -> dict[str, float]:
        """Nats per object token, and per object name (comparable across tokenizers)."""
        if self.valid is None:
            return {}
        total = torch.zeros(())
        for part in self._cut(self.valid):
            total += self.loss(model, part).cpu()
        targets = int(self.batches.num_targets(self.valid).sum())
        return {"loss": total.item() / targets, "nats_per_name": total.item() / len(self.valid)}

    def save(self, model: PrixLM, folder: Path) -> None:
        model.save(folder)
