"""Pretraining (Sec. 2.1 and 3.1): from a KB folder to a Prix-LM folder.

    model = pretrain(KB("kb"), "model", PretrainConfig.preset("compact"))

Prix-LM (All) is trained on all triples and links; Prix-LM (Single), with `langs=("et",)`, on the
triples of one language. The run folder holds the checkpoints, the metrics, a plot of the loss, the
resolved config (`run.toml`) and, at the end, the model itself.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from prixlm.config import to_toml
from prixlm.engine.overwriting import check_kind
from prixlm.errors import PrixError
from prixlm.files import disk_errors, first_alone, locked, write_atomically
from prixlm.kb.store import KB
from prixlm.lm.bases import base_fingerprint
from prixlm.lm.compact import CompactConfig, make_compact
from prixlm.lm.descriptions import MAX_TOKENS
from prixlm.lm.encoding import BatchEncoder, Facts
from prixlm.lm.lineage import Lineage
from prixlm.lm.model import SETTINGS, PrixLM, cached_tokens, read_settings
from prixlm.lm.token_cache import tokenizer_hash
from prixlm.lm.trim import pieces_to_keep
from prixlm.reports.plots import plot_metrics
from prixlm.romanise import READINGS, Reading, reading_version
from prixlm.training.checkpoints import checkpoint_folder, checkpoint_steps, read_state, saving
from prixlm.training.loop import (
    NOT_IN_FINGERPRINT,
    Step,
    TrainingConfig,
    is_first_process,
    processes,
    train,
)
from prixlm.training.lora import adapt
from prixlm.training.sampler import FactSupply, SupplyConfig, cut_batches
from prixlm.training.sharding import Sharding
from prixlm.types import Array, Progress

_START = "start-"
"""Folder, among the checkpoints, of a compact model before its first step; a hash of what it
depends on follows."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """A whole pretraining. The defaults are the paper's.

    Example:
        >>> prixlm.PretrainConfig().base
        'xlm-roberta-base'
        >>> prixlm.PretrainConfig.preset("compact").epochs
        9
    """

    base: str = "xlm-roberta-base"  # a name on the hub, a folder, or compact
    epochs: int = 5  # passes over the facts
    steps: int | None = None  # updates, if fewer than the epochs have; None: all of them
    batch: int = 1024  # facts in one update
    token_budget: int = 16_384  # padded tokens in one pass through the model
    num_valid: int = 2000  # valid triples that the validation loss is measured on
    reading: Reading = "script"  # how names are read: script, romanised or both
    trim: bool = False  # keep only the pieces of the base's vocabulary that the KB needs
    keep: str | None = None  # text file whose pieces are kept too, with trim
    descriptions: int = 0  # tokens of the subject's description to read after its name
    prefix: str = "own"  # how a decoder reads the prefix: own (causally) or both (directions)
    adapt: str = "full"  # train all weights, or lora: small matrices beside frozen ones
    lora_rank: int = 16  # rank of these matrices
    recompute: bool = False  # compute layers again in the backward pass: less memory, more time
    shard: bool = False  # divide the model among the processes of torchrun (FSDP)
    supply: SupplyConfig = field(default_factory=SupplyConfig)  # which facts
    training: TrainingConfig = field(default_factory=TrainingConfig)  # how to train
    compact: CompactConfig = field(default_factory=CompactConfig)  # size, if base is compact

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or self.token_budget < 64 or self.num_valid < 1:
            raise PrixError(
                f"epochs {self.epochs}, batch {self.batch}, num_valid {self.num_valid}, "
                f"token_budget {self.token_budget}: expected 1 or more, and a token_budget of 64 "
                "or more."
            )
        if self.steps is not None and self.steps < 1:
            raise PrixError(f"steps {self.steps}: expected 1 or more updates.")
        if not 0 <= self.descriptions <= MAX_TOKENS:
            raise PrixError(
                f"--descriptions {self.descriptions}: expected 0 to {MAX_TOKENS} tokens."
            )
        if self.reading not in READINGS:
            raise PrixError(f"reading {self.reading}: expected {', '.join(READINGS)}.")
        if self.prefix not in ("own", "both"):
            raise PrixError(f"prefix {self.prefix}: expected own or both.")
        if self.adapt not in ("full", "lora") or self.lora_rank < 1:
            raise PrixError(
                f"adapt {self.adapt}, lora_rank {self.lora_rank}: expected full or lora, and a "
                "rank of 1 or more."
            )
        if self.base == "compact" and (self.adapt == "lora" or self.prefix == "both"):
            raise PrixError(
                "a compact model is trained from random weights: leave out --adapt and --prefix."
            )
        if self.shard and self.training.precision == "fp16":
            raise PrixError("--shard trains in bf16 or float32: leave out --precision fp16.")
        if self.shard and self.adapt == "lora":
            raise PrixError(
                "--shard divides a model that is trained as a whole: leave out --adapt lora."
            )
        if self.keep is not None and not self.trim:
            raise PrixError("--keep requires --trim: it names a text whose pieces are kept.")
        if self.base == "compact" and self.trim:
            raise PrixError("a compact model has only pieces of the KB: leave out --trim.")

    @classmethod
    def preset(cls, name: str) -> "PretrainConfig":
        """Return the preset `paper`, `compact` (sized for two cores) or `demo` (a few minutes)."""
        presets = {
            "paper": cls(),
            "compact": cls(
                base="compact",
                epochs=9,
                batch=256,
                token_budget=4096,
                training=TrainingConfig(lr=2e-3),
            ),
            "demo": cls(
                base="compact",
                epochs=2,
                batch=256,
                token_budget=4096,
                supply=SupplyConfig(max_links=2),
                compact=CompactConfig(vocab=4000, width=128, layers=2),
                training=TrainingConfig(lr=3e-3, validate_every=100, save_every=200),
            ),
        }
        if name not in presets:
            raise PrixError(f"unknown preset {name}: expected {', '.join(presets)}.")
        return presets[name]

    def num_steps(self, steps_an_epoch: int) -> int:
        """Return the updates of a run: those of its epochs, or fewer if `steps` says so."""
        whole = self.epochs * steps_an_epoch
        return whole if self.steps is None else min(whole, self.steps)

    def fingerprint(self) -> str:
        """Return a hash of all settings that affect what is learnt.

        The base is compared by its content (`base_fingerprint`), not here by its path.
        """
        values = dataclasses.asdict(self)
        for name in NOT_IN_FINGERPRINT:
            del values["training"][name]
        # A budget cuts the sum of a step into passes. It has to be free to fall when memory runs
        # out, so that it may change, like the number of processes, during a run.
        del values["token_budget"], values["base"], values["recompute"], values["shard"]
        # Runs from before there was a choice can be resumed.
        if self.adapt == "full":
            del values["adapt"], values["lora_rank"]
        if self.prefix == "own":
            del values["prefix"]
        if not self.descriptions:  # as before there were any
            del values["descriptions"]
        if self.reading == "script":
            del values["reading"]  # runs from before there was a choice can be resumed
        else:
            values["reading"] = [self.reading, reading_version()]
        values["keep"] = _texts_to_keep(self)  # the texts count, not the path of their file
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def pretrain(
    kb: KB, to: Path | str, config: PretrainConfig, progress: Progress | None = None
) -> PrixLM:
    """Train a Prix-LM on the train facts of a KB and write it to a folder.

    A run that was stopped resumes from its newest checkpoint.

    Example:
        >>> config = prixlm.PretrainConfig.preset("demo")
        >>> model = prixlm.pretrain(prixlm.KB("kb"), "model", config)
        >>> model.settings.languages
        ('ar', 'en', 'fi', 'ja', 'te')
    """
    to = Path(to)
    check_kb(kb, config)
    _check_folder(to)
    with disk_errors(to / "run.toml"):
        (to / "checkpoints").mkdir(parents=True, exist_ok=True)
    with locked(to / "checkpoints") if is_first_process() else nullcontext():
        # One process makes the tokenizer and the token cache; the others wait and find them. This
        # is before the process group starts, which would give up waiting after ten minutes.
        with first_alone(to / "checkpoints" / "first.lock"):
            model = _start(kb, to, config, progress)
            cached_tokens(model, kb, progress)
        model.recompute = config.recompute
        task = PretrainTask(kb, model, config, progress)
        state = processes()
        if state.is_main_process:
            with disk_errors(to / "run.toml"):
                write_atomically(to / "run.toml", to_toml(config))
        sharding = Sharding(model) if config.shard and state.num_processes > 1 else None
        try:
            train(model, task, config.training, to, progress, sharding)
        finally:
            if state.is_main_process:
                with suppress(OSError):  # of a full disk: the error of `train` reports it
                    plot_metrics(to)
        if model.adapter is not None:  # what is saved is a plain checkpoint
            model.adapter.merge()
        weights = None if sharding is None else sharding.gather_weights(keep=state.is_main_process)
        if state.is_main_process:
            with saving(to / "model.safetensors"):
                model.save(to, weights)
            for start in (to / "checkpoints").glob(f"{_START}*"):
                shutil.rmtree(start, ignore_errors=True)
        state.wait_for_everyone()  # no process returns before the model is written
    return model if sharding is None else PrixLM.load(to)


def check_kb(kb: KB, config: PretrainConfig) -> None:
    """Refuse a KB without train facts or without a language that the config names."""
    missing = sorted(set(config.supply.langs or ()) - set(kb.languages))
    if missing:
        raise PrixError(
            f"{kb.folder} has no {', '.join(missing)}; it has {', '.join(kb.languages)}."
        )
    if config.descriptions and not kb.has_descriptions:
        raise PrixError(
            f"{kb.folder} has no descriptions. Leave out --descriptions, or import the KB again "
            "from a source that has them, without --no-descriptions."
        )
    langs = config.supply.langs or kb.languages
    has_triples = any(kb.num_triples(lang, "train") for lang in langs)
    has_links = config.supply.langs is None and any(kb.manifest.counts["linked"].values())
    if not has_triples and not has_links:
        raise PrixError(
            f"{kb.folder} has no train facts in {', '.join(langs) or 'any language'}. "
            "Choose other languages; `prixlm stats` lists the facts of each."
        )


def make_model(
    kb: KB, config: PretrainConfig, progress: Progress | None = None, begun: Path | None = None
) -> PrixLM:
    """Return the model that a run starts from: compact, or a base with new tokens.

    begun: a checkpoint of the run, perhaps of an older version: names are read as it reads them.
    """
    seed, described = config.training.seed, config.descriptions
    if config.base == "compact":
        return make_compact(
            kb, config.compact, seed=seed, descriptions=described, reading=config.reading
        )
    texts = _texts_to_keep(config)

    def keep(tokenizer: Tokenizer) -> Array:
        if begun is not None:
            kept = Tokenizer.from_file(str(begun / "tokenizer.json")).get_vocab()
            pieces = tokenizer.get_vocab().items()
            return np.array(sorted(number for piece, number in pieces if piece in kept))
        return pieces_to_keep(
            kb, tokenizer, texts, progress, descriptions=described > 0, reading=config.reading
        )

    model = PrixLM.from_base(
        config.base,
        kb.languages,
        seed=seed,
        keep=keep if config.trim else None,
        descriptions=described,
        reading=config.reading,
        prefix=config.prefix,
        spaced=begun is None or read_settings(begun).space,
    )
    if config.adapt == "lora":
        adapt(model, rank=config.lora_rank, seed=seed)
    return model


def _check_folder(to: Path) -> None:
    """Refuse to write into anything but an empty folder or a run of ours."""
    if to.exists() and not to.is_dir():
        raise PrixError(f"{to} is a file: name a folder for the model.")
    check_kind(to, SETTINGS)
    if to.is_dir() and any(to.iterdir()) and not (to / "checkpoints").is_dir():
        raise PrixError(f"{to} exists and is not a run of `prixlm pretrain`: name another folder.")


def _start(kb: KB, to: Path, config: PretrainConfig, progress: Progress | None) -> PrixLM:
    """Return the model of the newest checkpoint if there is one, else the model to start from.

    Training a compact tokenizer twice gives different pieces, so the first process that comes makes
    the model, and all others, and a run that is killed before its first checkpoint, read it.
    """
    fingerprint = _fingerprint(kb, config)
    if read_state(to, fingerprint) is not None:
        newest = checkpoint_folder(to, checkpoint_steps(to)[-1])
        if config.adapt == "full":
            return PrixLM.load(newest)
        return make_model(kb, config, progress, newest)  # the loop loads what was trained
    if config.base != "compact":
        return make_model(kb, config, progress)
    digest = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()
    start = to / "checkpoints" / f"{_START}{digest[:16]}"
    if not (start / SETTINGS).is_file():  # the process that comes first, alone
        with saving(start):
            make_model(kb, config, progress).save(start)
    return PrixLM.load(start)


def _fingerprint(kb: KB, config: PretrainConfig) -> dict[str, Any]:
    base = config.base if config.base == "compact" else base_fingerprint(config.base)
    return {"KB": kb.fingerprint(), "base": base, "config": config.fingerprint()}


def _earlier_kbs(base: str) -> list[str] | None:
    """Return the KBs that a base was trained on before; None if it is not a Prix-LM folder."""
    if not (Path(base) / SETTINGS).is_file():
        return None
    return read_settings(Path(base)).lineage.kbs


def _texts_to_keep(config: PretrainConfig) -> list[str]:
    if config.keep is None:
        return []
    try:
        return Path(config.keep).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"--keep {config.keep} cannot be read as text: {error}.") from None


class PretrainTask:
    """The steps of a pretraining: global batches of facts, cut into passes of similar length."""

    def __init__(
        self, kb: KB, model: PrixLM, config: PretrainConfig, progress: Progress | None = None
    ) -> None:
        """Prepare tokens, facts and validation facts, and give the model its lineage."""
        self.config = config
        cache = cached_tokens(model, kb, progress)
        self.batches = BatchEncoder(model.encoder, kb, cache)
        self.supply = FactSupply(kb, self.batches, config.supply)
        self.valid = self._read_valid(kb, model)
        longest = config.supply.max_tokens + self.batches.num_special + 2  # a link's languages
        if self.batches.described is not None:  # it fills a prefix up to this length, at most
            longest = max(longest, model.encoder.longest + config.supply.max_tokens)
        if longest > model.max_length:
            raise PrixError(
                f"max_tokens {config.supply.max_tokens} allows inputs of {longest} tokens, and the "
                f"model has {model.max_length} positions: choose a smaller max_tokens."
            )
        self.steps_an_epoch = self.supply.num_blocks(config.batch)
        self.num_steps = config.num_steps(self.steps_an_epoch)
        tokenizer = tokenizer_hash(model.encoder.tokenizer)
        # The config does not determine a compact tokenizer, so it is compared separately.
        self.fingerprint = _fingerprint(kb, config) | {"tokenizer": tokenizer}
        self.fingerprint |= {"space": "yes"} if model.settings.space else {}
        self.lineage = self._describe(kb)
        model.settings = dataclasses.replace(model.settings, lineage=self.lineage)

    def steps(self, first: int, rank: int, world: int) -> Iterator[Step]:
        """Yield the steps from number `first` on, for process `rank` of `world`."""
        yield from islice(self._steps_of_epochs(first, rank, world), self.num_steps - first)

    def _steps_of_epochs(self, first: int, rank: int, world: int) -> Iterator[Step]:
        for epoch in range(first // self.steps_an_epoch, self.config.epochs):
            start = max(0, first - epoch * self.steps_an_epoch)
            for facts in self.supply.blocks(epoch, self.config.batch, start):
                # All processes divide by the targets of the whole global batch, so that their
                # summed gradients are those of one process.
                num_targets = self.batches.num_targets(facts).sum()
                mine = facts.select(slice(rank, None, world))
                spare = facts.select(slice(0, 1))
                yield Step(self._cut(mine), float(max(1, num_targets)), len(facts), spare)

    def loss(self, model: PrixLM, batch: Facts) -> Tensor:
        """Return the paper's loss, summed over the object tokens of a batch."""
        return model.loss(self.batches.encode(batch))

    def validate(self, model: PrixLM) -> dict[str, float]:
        """Return nats per object token, and per object name (comparable across tokenizers)."""
        if self.valid is None:
            return {}
        total = torch.zeros(())
        for facts in self._cut(self.valid):
            total += self.loss(model, facts).cpu()
        num_targets = int(self.batches.num_targets(self.valid).sum())
        return {"loss": total.item() / num_targets, "nats_per_name": total.item() / len(self.valid)}

    def save(self, model: PrixLM, folder: Path) -> None:
        """Write the model to a folder."""
        model.save(folder)

    def _cut(self, facts: Facts) -> list[Facts]:
        """Sort facts by length and cut them into passes within the token budget."""
        lengths = self.batches.num_inputs(facts)
        return [facts.select(rows) for rows in cut_batches(lengths, self.config.token_budget)]

    def _read_valid(self, kb: KB, model: PrixLM) -> Facts | None:
        """Return a fixed sample of the valid triples of the trained languages; None without any."""
        if not any(
            kb.num_triples(lang, "valid") for lang in self.config.supply.langs or kb.languages
        ):
            return None
        # The length rule holds for training only: validate on every fact that fits the model.
        any_length = dataclasses.replace(self.config.supply, max_tokens=1 << 30)
        facts = FactSupply(kb, self.batches, any_length, split="valid").triples
        facts = facts.select(self.batches.num_inputs(facts) <= model.max_length)
        generator = np.random.default_rng(self.config.supply.seed)
        return facts.select(np.sort(generator.permutation(len(facts))[: self.config.num_valid]))

    def _describe(self, kb: KB) -> Lineage:
        """Return what `prixlm.json` and the model card say about the training."""
        config, langs = self.config, self.config.supply.langs or tuple(kb.languages)
        links, long_links = self.supply.count_links()
        triples = {lang: kb.num_triples(lang, "train") for lang in langs}
        return Lineage(
            # The name of a folder, not its path, which would tell about this machine.
            base=config.base if "/" not in config.base else Path(config.base).name,
            variant="All" if config.supply.langs is None else "Single",
            sources=[str(source["name"]) for source in kb.manifest.sources][:20],
            licence_of_the_data=kb.manifest.licence,
            kb_fingerprint=kb.fingerprint(),
            earlier_kbs=_earlier_kbs(config.base),
            triples={lang: count for lang, count in triples.items() if count},
            triples_carried_along_links=self.supply.num_carried,
            links_an_epoch=links,
            triples_too_long=dict(sorted(self.supply.dropped.items())),
            links_too_long=long_links,
            epochs=config.epochs,
            steps=self.num_steps,
            facts_a_step=config.batch,
            learning_rate=config.training.lr,
            seed=config.training.seed,
        )
