"""Train an entity encoder with Mirror-BERT (Liu et al., 2021; Sec. 2.2).

    encoder = mirror("model", "encoder", MirrorConfig())                  # the paper's
    encoder = mirror("model", "encoder", MirrorConfig(positives="links"), KB("kb"))

Contrastive learning: two views of the same entity should be near each other, and far from all other
views in the batch. The paper's two views are a frequent word, read twice under dropout. They may
also be a name and its counterpart in another language, along the links of a KB. The loop is that of
pretraining.

Dimension letters: P pairs in a batch, H width.
"""

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import gather
from torch import Tensor

from prixlm.config import to_toml
from prixlm.engine.overwriting import check_kind
from prixlm.entities.encoder import EncoderSettings, EntityEncoder
from prixlm.errors import PrixError
from prixlm.files import disk_errors, first_alone, locked, write_atomically
from prixlm.kb.store import KB
from prixlm.languages import frequent_words
from prixlm.lm.model import PrixLM, cached_tokens
from prixlm.lm.token_cache import Ragged
from prixlm.lm.trim import check_reading, sample_names
from prixlm.training.checkpoints import checkpoint_folder, checkpoint_steps, read_state, saving
from prixlm.training.loop import (
    NOT_IN_FINGERPRINT,
    Step,
    TrainingConfig,
    is_first_process,
    processes,
    train,
)
from prixlm.training.sampler import Links
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MirrorConfig:
    """A Mirror run; the defaults are the paper's.

    Example:
        >>> config = prixlm.MirrorConfig(positives="links", epochs=1)
    """

    positives: str = "words"  # `words`: a word and itself; `links`: a name and its counterpart
    lang: str = "en"  # of the words
    number: int = 10_000  # words, or pairs of linked names per epoch
    words: str | None = None  # a file with one word per line, instead of the most frequent ones
    epochs: int = 2  # passes over the pairs
    batch: int = 128  # pairs
    temperature: float = 0.2  # of the contrastive loss
    dropout: float = 0.1  # for a base without any of its own, such as Gemma
    space: bool = True  # read names of a base that is a decoder after a space, as pretraining does
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            lr=2e-5,
            betas=(0.9, 0.999),
            weight_decay=0.01,
            warmup=0.0,
            schedule="constant",
            checkpoints=(1.0,),
            save_every=200,
            validate_every=50,
        )
    )

    def __post_init__(self) -> None:
        if self.positives not in ("words", "links"):
            raise PrixError(f"positives {self.positives}: expected words or links.")
        for name, lowest in (("epochs", 1), ("batch", 2), ("number", 2)):
            if getattr(self, name) < lowest:
                raise PrixError(f"{name} {getattr(self, name)}: expected {lowest} or more.")
        if not 0 <= self.dropout < 1:
            raise PrixError(f"dropout {self.dropout}: expected 0 or more, and less than 1.")
        if not self.temperature > 0:
            raise PrixError(f"temperature {self.temperature}: expected a value above 0.")
        if self.words is not None and self.positives == "links":
            raise PrixError("a file of words requires positives `words`: leave out one of them.")

    @classmethod
    def preset(cls, name: str) -> "MirrorConfig":
        """Return `paper`, `original` or `compact`.

        `original` is Mirror-BERT's own run on words, with its list as `words`: 200 pairs in a
        batch, where the paper has 128, and no clipping. `compact` has a higher learning rate, for
        small models from scratch.
        """
        paper = cls()
        unclipped = dataclasses.replace(paper.training, clip=math.inf)
        faster = dataclasses.replace(paper.training, lr=2e-3, schedule="linear", warmup=0.06)
        presets = {
            "paper": paper,
            "original": cls(batch=200, training=unclipped),
            "compact": cls(training=faster),
        }
        if name not in presets:
            raise PrixError(f"unknown preset {name}: expected {', '.join(presets)}.")
        return presets[name]

    def fingerprint(self) -> str:
        """Return a hash of everything that decides the result of a run on any base."""
        values = dataclasses.asdict(self)
        del values["dropout"]  # `mirror` adds it for the bases that it is used for
        del values["space"]  # in the fingerprint of the base
        # None is in the fingerprint of the base, as what its family gets.
        values["encoder"]["pooling"] = self.encoder.pooling or "first"
        for name in NOT_IN_FINGERPRINT:
            del values["training"][name]
        if self.words is not None:  # the words count, not the path of their file
            values["words"] = read_words(self)
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def mirror(
    base: Path | str,
    to: Path | str,
    config: MirrorConfig | None = None,
    kb: KB | None = None,
    progress: Progress | None = None,
) -> EntityEncoder:
    """Train an entity encoder from a Prix-LM, XLM-R or mBERT, and write it to a folder.

    A run that was stopped resumes from its newest checkpoint. kb: required for positives `links`.
    Refuses a trimmed model that reads too many of the words in other pieces than its base.

    Example:
        >>> config = prixlm.MirrorConfig(positives="links", number=64, batch=16)
        >>> encoder = prixlm.mirror("model", "encoder", config, prixlm.KB("kb"))
        >>> encoder.width
        128
    """
    config, to = config or MirrorConfig(), Path(to)
    linked_kb = kb if config.positives == "links" else None
    if config.positives == "links" and kb is None:
        raise PrixError("positives `links` requires a KB: pass one, or use words.")
    _check_folder(to, Path(base))
    # A checkpoint is resumed only by a run with the same start, settings and links.
    start = EntityEncoder.load(base, config.encoder, spaced=config.space)
    origin: dict[str, Any] = {"base": start.fingerprint(), "config": config.fingerprint()}
    origin |= {} if linked_kb is None else {"KB": linked_kb.fingerprint()}
    # A word under dropout is two views; without any, both would be the same.
    needs_dropout = config.dropout > 0 and not start.model.kind.drops
    origin |= {"dropout": config.dropout} if needs_dropout else {}
    _check_reading(start.model, config, linked_kb)
    with disk_errors(to):
        (to / "checkpoints").mkdir(parents=True, exist_ok=True)
        with locked(to / "checkpoints") if is_first_process() else nullcontext():
            encoder = start
            if read_state(to, origin) is not None:
                newest = checkpoint_folder(to, checkpoint_steps(to)[-1])
                encoder = EntityEncoder.load(newest)
            if needs_dropout:
                encoder.model.kind.set_dropout(config.dropout)
            if linked_kb is not None:  # before training: checkpoints carry the lineage, too
                model = encoder.model
                lineage = model.settings.lineage.with_links(linked_kb)
                model.settings = dataclasses.replace(model.settings, lineage=lineage)
            # One process makes the token cache before the process group starts; the others wait
            # without a time limit, and find it.
            with first_alone(to / "checkpoints" / "first.lock"):
                task = MirrorTask(encoder, config, linked_kb, origin)
            state = processes()
            if state.is_main_process:
                write_atomically(to / "run.toml", to_toml(config))
            train(encoder.model, task, config.training, to, progress)
            encoder.model.eval()
            if state.is_main_process:
                with saving(to):
                    encoder.save(to)
            state.wait_for_everyone()
    return encoder


def _check_folder(to: Path, base: Path) -> None:
    """Refuse to write into anything but an empty folder or a run of ours."""
    if to.exists() and not to.is_dir():
        raise PrixError(f"{to} is a file: name a folder for the encoder.")
    if to.is_dir() and base.is_dir() and to.samefile(base):
        raise PrixError(f"{to} is the model itself: name another folder for the encoder.")
    check_kind(to, "encoder.json")
    # A stopped run has checkpoints and no encoder yet. A pretrained model has checkpoints, too,
    # but also its own weights beside them.
    names = {path.name for path in to.iterdir()} if to.is_dir() else set()
    has_encoder = "encoder.json" in names
    # Another process of `torchrun` may have made `checkpoints` just now, before the lock in it.
    is_ours = has_encoder or names <= {"checkpoints"} or (to / "checkpoints" / "lock").exists()
    is_model = "prixlm.json" in names and not has_encoder
    if is_model or not is_ours:
        raise PrixError(f"{to} exists and is not a run of `prixlm mirror`: name another folder.")


def _check_reading(model: PrixLM, config: MirrorConfig, kb: KB | None) -> None:
    """Refuse a trimmed model that reads too many of the positives unlike its base."""
    if model.untrimmed is None:
        return
    if kb is None:
        check_reading(model, read_words(config), "words")
    else:
        check_reading(model, sample_names(kb), f"names of {kb.folder}")


# --- the task -------------------------------------------------------------------------------------


def info_nce(first: Tensor, second: Tensor, temperature: float, group: Tensor) -> Tensor:
    """Return the sum over the 2P views of -log P(its partner | all other views): a scalar.

    first, second: (P, H) unit vectors of the two views of each pair. group: (P,); pairs of one
    group are of the same entity, and are not negatives of each other.
    """
    views = torch.cat([first, second])  # (2P, H); view i and view i + P are partners
    logits = views @ views.T / temperature  # (2P, 2P)
    view = torch.arange(len(views), device=views.device)
    partner = view.roll(len(first))
    # Neither a view itself nor views of the same entity are negatives; the partner is the target.
    is_same = group.repeat(2)[:, None] == group.repeat(2)[None]
    is_same[view, partner] = False
    logits = logits.masked_fill(is_same, float("-inf"))
    return torch.nn.functional.cross_entropy(logits, partner, reduction="sum")


class Pairs(NamedTuple):
    """Pairs of views as rows of the names, and the entity or concept of each: (P,) each."""

    first: Array
    second: Array
    group: Array


class Share(NamedTuple):
    """The pairs of a batch, of which one process encodes every `world`-th, from `rank` on."""

    pairs: Pairs  # of the whole batch
    rank: int
    world: int


def gather_views(mine: Tensor, num_pairs: int, rank: int, world: int) -> Tensor:
    """Return the views of all processes in the order of the batch: (2P, H).

    mine: (2p, H) the views of this process. Only these carry a gradient.
    """
    own = mine.view(2, -1, mine.shape[1])  # (2, p, H)
    # Shares differ by a pair at most, and a message has one shape for all: pad to the largest.
    size = -(-num_pairs // world)
    padded = torch.nn.functional.pad(own.detach(), (0, 0, 0, size - own.shape[1]))
    gathered: Tensor = gather(padded[None])  # (world, 2, size, H)
    views = own.new_empty(2, num_pairs, own.shape[2])
    for other in range(world):
        count = len(range(other, num_pairs, world))
        views[:, other::world] = own if other == rank else gathered[other, :, :count]
    return views.view(2 * num_pairs, -1)


class MirrorTask:
    """The steps of a Mirror run. Several processes share a batch, and all of it are negatives."""

    def __init__(
        self, encoder: EntityEncoder, config: MirrorConfig, kb: KB | None, origin: dict[str, Any]
    ) -> None:
        """Read the names. origin: hashes of what the run started from."""
        self.encoder, self.config, self.fingerprint = encoder, config, origin
        self.source: _Words | _LinkedNames
        if config.positives == "links":
            assert kb is not None
            names = cached_tokens(encoder.model, kb).subjects
            self.source = _LinkedNames(names, kb, config.number)
        else:
            self.source = _Words(encoder.tokenise(read_words(config)))
        self.steps_an_epoch = max(1, self.source.num_pairs // config.batch)
        self.num_steps = config.epochs * self.steps_an_epoch
        # Not held out: a fixed batch, to see that the loss falls.
        watched = self.source.pairs(config.epochs, config.training.seed)
        self.valid = Pairs(*(column[: config.batch] for column in watched))

    def steps(self, first: int, rank: int, world: int) -> Iterator[Step]:
        """Yield the steps from number `first` on, for process `rank` of `world`."""
        # A resumed run begins in the middle of an epoch: the pairs of an epoch depend only on its
        # number and the seed, and the steps before `first` are skipped.
        for epoch in range(first // self.steps_an_epoch, self.config.epochs):
            pairs = self.source.pairs(epoch, self.config.training.seed)
            for step in range(max(0, first - epoch * self.steps_an_epoch), self.steps_an_epoch):
                rows = slice(step * self.config.batch, (step + 1) * self.config.batch)
                batch = Pairs(*(column[rows] for column in pairs))
                num_pairs = len(batch.first)
                if num_pairs < world:
                    raise PrixError(
                        f"{num_pairs} pairs in a batch and {world} processes: expected a batch of "
                        f"{world} or more, or fewer processes."
                    )
                yield Step([Share(batch, rank, world)], 2.0 * num_pairs, num_pairs)

    def loss(self, model: PrixLM, batch: Share) -> Tensor:
        """Return this process's share of the loss of a batch.

        Both views go through in one pass, each with masks of its own: of the base's dropout, or of
        the config's if the base has none.
        """
        pairs, rank, world = batch
        mine = np.concatenate([pairs.first[rank::world], pairs.second[rank::world]])
        views = self.encoder.pool(self.source.names, mine)
        if world > 1:
            views = gather_views(views, len(pairs.first), rank, world)
        first, second = torch.chunk(views, 2)
        group = torch.from_numpy(np.asarray(pairs.group)).to(views.device)
        loss = info_nce(first, second, self.config.temperature, group)
        # The loop sums values and gradients over the processes. Each has the value of the whole
        # batch, but the gradient of its own views: so the value alone is divided.
        return loss - loss.detach() * (1 - 1 / world)

    def validate(self, model: PrixLM) -> dict[str, float]:
        """Return the loss of one fixed batch, with the same dropout each time."""
        with torch.random.fork_rng():
            torch.manual_seed(self.config.training.seed)
            model.train()
            loss = self.loss(model, Share(self.valid, 0, 1)).item() / (2 * len(self.valid.first))
            model.eval()
        return {"loss": loss}

    def save(self, model: PrixLM, folder: Path) -> None:
        """Write the encoder."""
        self.encoder.save(folder)


class _Words:
    """Pairs of a word and itself."""

    def __init__(self, names: Ragged) -> None:
        self.names, self.num_pairs = names, len(names)

    def pairs(self, epoch: int, seed: int) -> Pairs:
        """Return all words in the order of an epoch."""
        order = np.random.default_rng([seed, epoch]).permutation(self.num_pairs)
        return Pairs(order, order, order)


class _LinkedNames:
    """Pairs of a name and a linked name in another language."""

    def __init__(self, names: Ragged, kb: KB, num_pairs: int) -> None:
        self.names, self.num_pairs = names, num_pairs
        self.concept = kb.concepts()
        self.links = Links(kb, max_links=1)
        if not self.links.num_links:
            raise PrixError(f"{kb.folder} has no links: use words as positives.")

    def pairs(self, epoch: int, seed: int) -> Pairs:
        """Draw the pairs of an epoch."""
        generator = np.random.default_rng([seed, epoch])
        # Twice as many as needed: `take` drops pairs of one language. If too few are left, they
        # are repeated.
        drawn = generator.integers(0, self.links.num_links, 2 * self.num_pairs)
        links = self.links.take(drawn, [seed, epoch])
        if not len(links):
            raise PrixError("no two linked names are of different languages: use words.")
        rows = np.resize(np.arange(len(links)), self.num_pairs)
        first, second = links.subject[rows], links.object[rows]
        return Pairs(first, second, self.concept[first])


# --- words ----------------------------------------------------------------------------------------


def read_words(config: MirrorConfig) -> list[str]:
    """Return the words of a file, or the most frequent words of a language; each once."""
    if config.words is None:
        return frequent_words(config.lang, config.number)
    try:
        lines = Path(config.words).read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"{config.words} cannot be read as text: {error}.") from None
    words = list(dict.fromkeys(filter(None, map(str.strip, lines))))
    if len(words) > config.number:
        logger.warning(
            "%s: using the first %d of its %d words", config.words, config.number, len(words)
        )
        words = words[: config.number]
    if len(words) < 2:
        raise PrixError(f"{config.words} has {len(words)} words: expected one per line, 2 or more.")
    return words
