"""Mirror-BERT (Liu et al., 2021; Sec. 2.2): a Prix-LM, XLM-R or mBERT becomes an entity encoder.

    encoder = mirror_tune("model", "encoder", MirrorConfig())                  # the paper's
    encoder = mirror_tune("model", "encoder", MirrorConfig(positives="links"), KB("kb"))

Contrastive learning: two views of one thing shall be near each other, and far from all else in the
batch. The paper's views are a frequent word, twice, under dropout. Ours may also be a name and its
counterpart in another language, along the links of a KB. The training loop is that of pretraining.

Dimension letters: P pairs in a batch, H width.
"""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prixlm.config import to_toml
from prixlm.entities.encoder import EncoderSettings, EntityEncoder
from prixlm.errors import PrixError
from prixlm.files import disk_errors, locked, write_atomically
from prixlm.kb.store import KB
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import Ragged, build_tokens
from prixlm.training.checkpoints import checkpoint_folder, checkpoint_steps, read_state, saving
from prixlm.training.loop import NOT_IN_FINGERPRINT, Step, TrainingConfig, processes, train
from prixlm.training.sampler import Links
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)
_WORDFREQ = {"no": "nb", "tl": "fil"}
"""Wikipedia's codes of languages that wordfreq names otherwise."""


@dataclass(frozen=True, kw_only=True)
class MirrorConfig:
    """A Mirror run; the defaults are the paper's."""

    positives: str = "words"  # a word and itself, or `links`: a name and its counterpart
    lang: str = "en"  # of the words
    number: int = 10_000  # words, or pairs of linked names an epoch
    words: str | None = None  # a file with a word a line, instead of the most frequent ones
    epochs: int = 2
    batch: int = 128  # pairs
    temperature: float = 0.2
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
        if self.epochs < 1 or self.batch < 2 or self.number < 2 or not self.temperature > 0:
            raise PrixError(
                "epochs is 1 or more, batch and number 2 or more, and temperature above 0."
            )
        if self.words is not None and self.positives == "links":
            raise PrixError("a file of words goes with positives words: leave one out.")

    @classmethod
    def preset(cls, name: str) -> "MirrorConfig":
        """`paper`, or `compact`: a small model from scratch takes a higher rate."""
        if name == "paper":
            return cls()
        if name != "compact":
            raise PrixError(f"unknown preset {name}: expected paper or compact.")
        training = dataclasses.replace(cls().training, lr=2e-3, schedule="linear", warmup=0.06)
        return cls(training=training)

    def fingerprint(self) -> str:
        values = dataclasses.asdict(self)
        for name in NOT_IN_FINGERPRINT:
            del values["training"][name]
        if self.words is not None:  # what is in the file counts, not where it lies
            values["words"] = read_words(self)
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def info_nce(first: Tensor, second: Tensor, temperature: float, group: Tensor) -> Tensor:
    """The sum over 2P views of -log P(its partner | all other views): a scalar.

    first, second: (P, H) unit vectors; group: (P,), rows of one group are the same thing and are
    no negatives of each other.
    """
    views = torch.cat([first, second])
    logits = views @ views.T / temperature
    number = len(first)
    partner = torch.arange(2 * number, device=views.device).roll(number)
    same = group.repeat(2)[:, None] == group.repeat(2)[None]
    same[torch.arange(2 * number, device=views.device), partner] = False
    logits = logits.masked_fill(same, float("-inf"))
    return torch.nn.functional.cross_entropy(logits, partner, reduction="sum")


class Pairs(NamedTuple):
    """Views by their rows among some names, and which thing they are."""

    first: Array
    second: Array
    group: Array


class _Words:
    """Each word is its own positive."""

    def __init__(self, names: Ragged) -> None:
        self.names = names
        self.number = len(names)

    def pairs(self, epoch: int, seed: int) -> Pairs:
        order = np.random.default_rng([seed, epoch]).permutation(self.number)
        return Pairs(order, order, order)


class _Linked:
    """A name and a linked one of another language."""

    def __init__(self, names: Ragged, kb: KB, number: int) -> None:
        self.names, self.number = names, number
        self.concept = kb.concepts()
        self.links = Links(kb, most=1)
        if not self.links.number:
            raise PrixError(f"{kb.folder} has no links: use words as positives.")

    def pairs(self, epoch: int, seed: int) -> Pairs:
        generator = np.random.default_rng([seed, epoch])
        # Two names of one language are no link: some more are drawn than are needed.
        drawn = generator.integers(0, self.links.number, 2 * self.number)
        found = self.links.take(drawn, [seed, epoch])
        if not len(found):
            raise PrixError("no two linked names are of different languages.")
        rows = np.resize(np.arange(len(found)), self.number)
        first, second = found.subject[rows], found.object[rows]
        return Pairs(first, second, self.concept[first])


class MirrorTask:
    """Steps over pairs of views. With several processes each has the negatives of its share."""

    def __init__(
        self, encoder: EntityEncoder, config: MirrorConfig, kb: KB | None, origin: dict[str, Any]
    ) -> None:
        self.encoder, self.config = encoder, config
        source = _source(encoder, config, kb)
        self.source = source
        self.steps_an_epoch = max(1, source.number // config.batch)
        self.num_steps = config.epochs * self.steps_an_epoch
        self.fingerprint = origin
        # Not held out: a fixed batch, to see that the loss falls.
        watched = source.pairs(config.epochs, config.training.seed)
        self.valid = Pairs(*(part[: config.batch] for part in watched))

    def steps(self, first: int, rank: int, world: int) -> Iterator[Step]:
        for epoch in range(first // self.steps_an_epoch, self.config.epochs):
            pairs = self.source.pairs(epoch, self.config.training.seed)
            for step in range(max(0, first - epoch * self.steps_an_epoch), self.steps_an_epoch):
                rows = slice(step * self.config.batch, (step + 1) * self.config.batch)
                own = Pairs(*(part[rows][rank::world] for part in pairs))
                number = len(pairs.first[rows])
                yield Step([own], 2.0 * number, number)

    def loss(self, model: PrixLM, batch: Pairs) -> Tensor:
        """Both views in one pass: each has a dropout of its own."""
        vectors = self.encoder.pool(self.source.names, np.concatenate(batch[:2]))
        first, second = torch.chunk(vectors, 2)
        group = torch.from_numpy(np.asarray(batch.group)).to(vectors.device)
        return info_nce(first, second, self.config.temperature, group)

    def validate(self, model: PrixLM) -> dict[str, float]:
        """The loss of one batch, under dropout as in training, the same each time."""
        with torch.random.fork_rng():
            torch.manual_seed(self.config.training.seed)
            model.train()
            loss = self.loss(model, self.valid).item() / (2 * len(self.valid.first))
            model.eval()
        return {"loss": loss}

    def save(self, model: PrixLM, folder: Path) -> None:
        self.encoder.save(folder)


def mirror_tune(
    base: Path | str,
    to: Path | str,
    config: MirrorConfig | None = None,
    kb: KB | None = None,
    progress: Progress | None = None,
) -> EntityEncoder:
    """An entity encoder from a Prix-LM, XLM-R or mBERT; a run that was stopped goes on."""
    config, to = config or MirrorConfig(), Path(to)
    if config.positives == "links" and kb is None:
        raise PrixError("positives links needs a KB.")
    start = EntityEncoder.load(base, config.encoder)
    origin = {"base": start.fingerprint(), "config": config.fingerprint()}
    origin |= {"KB": kb.fingerprint()} if kb is not None and config.positives == "links" else {}
    _check_folder(to, Path(base))
    state = processes()
    with disk_errors(to):
        (to / "checkpoints").mkdir(parents=True, exist_ok=True)
        with locked(to / "checkpoints") if state.is_main_process else nullcontext():
            encoder = start
            if read_state(to, origin) is not None:
                newest = checkpoint_folder(to, checkpoint_steps(to)[-1])
                encoder = EntityEncoder.load(newest)
            if kb is not None and config.positives == "links":  # a checkpoint says so, too
                model = encoder.model
                trained = model.settings.trained | {"links_of_kb": kb.fingerprint()}
                model.settings = dataclasses.replace(model.settings, trained=trained)
            with state.main_process_first():  # the others then find the token cache
                task = MirrorTask(encoder, config, kb, origin)
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
    """Only a run of ours is written into, and never the model that it starts from."""
    if to.exists() and not to.is_dir():
        raise PrixError(f"{to} is a file: name a folder for the encoder.")
    if to.is_dir() and base.is_dir() and to.samefile(base):
        raise PrixError(f"{to} is the model itself: name another folder for the encoder.")
    is_ours = (to / "encoder.json").exists() or (to / "checkpoints" / "lock").exists()
    is_model = (to / "prixlm.json").exists() and not (to / "encoder.json").exists()
    if to.is_dir() and any(to.iterdir()) and (is_model or not is_ours):
        raise PrixError(f"{to} is there and is no run of prixlm mirror: name another folder.")


def _source(encoder: EntityEncoder, config: MirrorConfig, kb: KB | None) -> _Words | _Linked:
    if config.positives == "links":
        assert kb is not None
        names = build_tokens(kb, encoder.model.encoder.tokenizer).entities
        return _Linked(names, kb, config.number)
    words = read_words(config)
    return _Words(encoder.tokenise(words))


def read_words(config: MirrorConfig) -> list[str]:
    """The words of a file, or the most frequent of a language; each once."""
    if config.words is None:
        return frequent_words(config.lang, config.number)
    try:
        lines = Path(config.words).read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"{config.words} cannot be read as text: {error}.") from None
    words = list(dict.fromkeys(filter(None, map(str.strip, lines))))
    if len(words) > config.number:
        logger.warning("%s: the first %d of %d words", config.words, config.number, len(words))
        words = words[: config.number]
    if len(words) < 2:
        raise PrixError(f"{config.words} has {len(words)} words: expected one a line, 2 or more.")
    return words


def frequent_words(lang: str, number: int) -> list[str]:
    """The most frequent words of a language (wordfreq), most frequent first."""
    import wordfreq

    known = wordfreq.available_languages()
    code = _WORDFREQ.get(lang, lang)
    if code not in known:  # it would answer with the words of a language that it thinks near
        raise PrixError(
            f"wordfreq has no words of {lang}: give a file of words, or one of "
            f"{', '.join(sorted(known))}."
        )
    return list(wordfreq.top_n_list(code, number))
