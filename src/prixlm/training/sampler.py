"""Which facts an epoch has, and in which order: triples and links as one long list of numbers.

A fact is a number: first come the train triples (and, where asked for, those that links carry over
from other languages), then the links, in both directions. Links are not
written out: entity e has one for each other entity of its concept in another language, at most
`max_links` of them an epoch (a random stretch of the concept's members, another one each epoch),
and which entities number n stands for is computed when it is asked for. What is held in memory is
a few numbers for each entity and each triple, and one epoch's order.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from prixlm.errors import PrixError
from prixlm.kb.carried import carried_triples
from prixlm.kb.store import KB
from prixlm.lm.encoding import LINK, BatchEncoder, Facts
from prixlm.types import Array

_ROWS = 1 << 18


@dataclass(frozen=True, kw_only=True)
class SupplyConfig:
    """What to train on."""

    langs: tuple[str, ...] | None = None  # triples of these languages only, and no links (Single)
    links: Literal["all", "none"] = "all"  # links of concepts, in both directions
    max_links: int = 8  # of one entity in one epoch
    propagate: bool = False  # also facts that links carry over from other languages' train
    max_tokens: int = 30  # facts with this many tokens or more are dropped
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 2 or self.max_links < 1:
            raise PrixError("--max-tokens has to be 2 or more, and --max-links 1 or more.")


class FactSupply:
    """The training facts of a KB (its `train` rows), shuffled anew each epoch."""

    def __init__(self, kb: KB, batches: BatchEncoder, config: SupplyConfig, split: str = "train"):
        self.kb, self.batches, self.config = kb, batches, config
        missing = sorted(set(config.langs or ()) - set(kb.languages))
        if missing:
            raise PrixError(
                f"{kb.folder} has no {', '.join(missing)}; it has {', '.join(kb.languages)}."
            )
        self.dropped: dict[str, int] = {}
        """Triples that the length rule leaves out, by language."""
        self.dropped_carried: dict[str, int] = {}
        wants_carried = config.propagate and split == "train"
        self.triples, self.num_carried = self._read_triples(split), 0
        if wants_carried:
            stream = carried_triples(kb, config.langs, batch_rows=_ROWS)
            carried = self._short(stream, self.dropped_carried)
            self.num_carried = len(carried)
            self.triples = join_facts([self.triples, carried])
        wants_links = config.links == "all" and config.langs is None and split == "train"
        self.links = Links(kb, config.max_links) if wants_links else None
        self.num_triples = len(self.triples)
        self.num_links = self.links.number if self.links else 0
        if not len(self):
            raise PrixError(f"{kb.folder} has no {split} facts to learn from.")

    def __len__(self) -> int:
        return self.num_triples + self.num_links

    def _read_triples(self, split: str) -> Facts:
        """Train triples, without those that the length rule drops (counted by language)."""
        stream = self.kb.batches(
            "triples",
            ["subject", "relation", "object"],
            langs=self.config.langs,
            split=split,
            batch_rows=_ROWS,
        )
        return self._short(stream, self.dropped)

    def _short(self, stream: Iterable[pa.RecordBatch], dropped: dict[str, int]) -> Facts:
        """The facts of a stream, without those that the length rule drops, which are counted."""
        kept = []
        for batch in stream:
            facts = Facts(*(np.asarray(column) for column in batch.columns))
            short = self.batches.num_tokens(facts) < self.config.max_tokens
            languages = self.batches.language(facts.subject[~short])
            for place, number in enumerate(np.bincount(languages)):
                if number:
                    lang = self.kb.languages[place]
                    dropped[lang] = dropped.get(lang, 0) + int(number)
            kept.append(facts.select(short))
        return join_facts(kept)

    def count_links(self) -> tuple[dict[str, int], dict[str, int]]:
        """Links of the first epoch by the subject's language: all, and those too long."""
        everything = np.zeros(len(self.kb.languages), np.int64)
        long = np.zeros(len(self.kb.languages), np.int64)
        for start in range(0, self.num_links, _ROWS):
            assert self.links is not None
            numbers = np.arange(start, min(start + _ROWS, self.num_links))
            links = self.links.take(numbers, [self.config.seed, 0])
            language = self.batches.language(links.subject)
            dropped = self.batches.num_tokens(links) >= self.config.max_tokens
            everything += np.bincount(language, minlength=len(long))
            long += np.bincount(language[dropped], minlength=len(long))
        codes = self.kb.languages
        return (
            {code: int(n) for code, n in zip(codes, everything, strict=True) if n},
            {code: int(n) for code, n in zip(codes, long, strict=True) if n},
        )

    def take(self, numbers: Array, epoch: int) -> Facts:
        """The facts that these numbers stand for; long links are left out."""
        is_link = numbers >= self.num_triples
        facts = self.triples.select(numbers[~is_link])
        if self.links is None or not is_link.any():
            return facts
        seed = [self.config.seed, epoch]
        links = self.links.take(numbers[is_link] - self.num_triples, seed)
        links = links.select(self.batches.num_tokens(links) < self.config.max_tokens)
        return join_facts([facts, links])

    def blocks(self, epoch: int, size: int, first: int = 0) -> Iterator[Facts]:
        """An epoch in global batches of `size` facts, in a random order, from block `first` on."""
        generator = np.random.default_rng([self.config.seed, epoch])
        kind = np.uint32 if len(self) < 2**32 else np.uint64
        order = generator.permutation(np.arange(len(self), dtype=kind))
        for start in range(first * size, len(self), size):
            yield self.take(order[start : start + size].astype(np.int64), epoch)

    def num_blocks(self, size: int) -> int:
        return -(-len(self) // size)


def join_facts(parts: Sequence[Facts]) -> Facts:
    """Facts one after another."""
    if not parts:
        return Facts(*np.zeros((3, 0), np.int32))
    columns = ("subject", "relation", "object")
    return Facts(*(np.concatenate([getattr(part, c) for part in parts]) for c in columns))


def count_links(kb: KB, most: int) -> int:
    """How many directed links an epoch has; two names of one language among them."""
    sizes = np.bincount(kb.concepts()) if kb.num_entities else np.zeros(0, np.int64)
    return int((sizes * np.minimum(sizes - 1, most)).sum())


class Links:
    """The links of all concepts, numbered: entity by entity, at most `most` for each."""

    def __init__(self, kb: KB, most: int) -> None:
        self.kb = kb
        concept = kb.concepts()
        self.members = np.argsort(concept, kind="stable").astype(np.int32)
        sizes = np.bincount(concept)
        first = (np.cumsum(sizes) - sizes).astype(np.int64)
        self.start = first[concept]  # where the members of an entity's concept begin
        self.size = sizes.astype(np.int32)[concept]
        self.place = np.empty(len(concept), np.int32)  # of an entity among them
        self.place[self.members] = np.arange(len(concept)) - self.start[self.members]
        self.count = np.minimum(self.size - 1, most)
        self.ends = np.cumsum(self.count, dtype=np.int64)
        self.number = int(self.ends[-1]) if len(concept) else 0

    def take(self, numbers: Array, seed: list[int]) -> Facts:
        """Links by their numbers; two names of one language are no link and are left out."""
        subject = np.searchsorted(self.ends, numbers, side="right")
        turn = numbers - (self.ends[subject] - self.count[subject])
        others = self.size[subject] - 1
        offset = 1 + (turn + _mix(subject, seed) % others) % others
        place = (self.place[subject] + offset) % self.size[subject]
        object_ = self.members[self.start[subject] + place]
        apart = self.kb.language_of(subject) != self.kb.language_of(object_)
        relation = np.full(len(subject), LINK, np.int64)
        return Facts(subject, relation, object_).select(apart)


def _mix(values: Array, seed: list[int]) -> Array:
    """A number for each value that looks random and depends on the seed: where a stretch begins."""
    key = np.random.default_rng(seed).integers(1, 2**63, 2, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = (values.astype(np.uint64) + key[0]) * (key[1] | np.uint64(1))
        mixed ^= mixed >> np.uint64(29)
    return np.asarray((mixed >> np.uint64(33)).astype(np.int64))


def cut_batches(lengths: Array, budget: int) -> Iterator[Array]:
    """Rows sorted by length, in batches whose padded size is at most `budget` tokens."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        sizes = lengths[order[start:]] * np.arange(1, len(order) - start + 1)
        end = start + max(1, int(np.searchsorted(sizes, budget, side="right")))
        yield order[start:end]
        start = end
