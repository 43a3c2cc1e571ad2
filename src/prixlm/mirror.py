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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prixlm.checkpoints import checkpoint_folder, checkpoint_steps, read_state, saving
from prixlm.configs import to_toml
from prixlm.embed import EncoderSettings, EntityEncoder
from prixlm.errors import PrixError
from prixlm.kb.disk import disk_errors, locked, write_atomically
from prixlm.kb.store import KB
from prixlm.model import PrixLM
from prixlm.supply import Links
from prixlm.tokens import Ragged, build_tokens
from prixlm.training import Progress, Step, TrainingConfig, train

Array = np.ndarray[Any, Any]


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
        """`paper`, or `compact`: a small model from scratch takes a higher rate, and links."""
        if name == "paper":
            return cls()
        if name != "compact":
            raise PrixError(f"unknown preset {name}: expected paper or compact.")
        training = dataclasses.replace(cls().training, lr=5e-4, schedule="linear", warmup=0.06)
        return cls(training=training)

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(dataclasses.asdict(self)).encode()).hexdigest()


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
        held_out = source.pairs(config.epochs, config.training.seed)
        self.valid = Pairs(*(part[: config.batch] for part in held_out))

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
    with disk_errors(to):
        (to / "checkpoints").mkdir(parents=True, exist_ok=True)
        with locked(to / "checkpoints"):
            encoder = start
            if read_state(to, origin) is not None:
                newest = checkpoint_folder(to, checkpoint_steps(to)[-1])
                encoder = EntityEncoder.load(newest)
            task = MirrorTask(encoder, config, kb, origin)
            write_atomically(to / "run.toml", to_toml(config))
            train(encoder.model, task, config.training, to, progress)
            encoder.model.eval()
            with saving(to):
                encoder.save(to)
    return encoder


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
        lines = Path(config.words).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"{config.words} cannot be read as text: {error}.") from None
    words = list(dict.fromkeys(filter(None, map(str.strip, lines))))[: config.number]
    if len(words) < 2:
        raise PrixError(f"{config.words} has {len(words)} words: expected one a line, 2 or more.")
    return words


def frequent_words(lang: str, number: int) -> list[str]:
    """The most frequent words of a language (wordfreq), most frequent first."""
    import wordfreq

    try:
        return list(wordfreq.top_n_list(lang, number))
    except LookupError:
        known = ", ".join(sorted(wordfreq.available_languages()))
        raise PrixError(
            f"wordfreq has no words of {lang}: give a file of words, or one of {known}."
        ) from None
