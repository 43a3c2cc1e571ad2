"""Sample training facts: which facts an epoch has, and in which order.

The facts of an epoch are numbered: first the train triples (and, if asked for, those carried over
from other languages along links), then the links in both directions. Links are not stored. Entity e
has one link for each other member of its concept, at most `max_links` in one epoch (a random run of
the concept's members, different in each epoch), and the entities of link n are computed when it is
needed. So memory holds a few numbers for each entity and each triple, and the order of one epoch.
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
"""Facts that are read or counted at once."""


@dataclass(frozen=True, kw_only=True)
class SupplyConfig:
    """Which facts to train on: the table `[supply]` of a run's TOML file."""

    langs: tuple[str, ...] | None = None  # only triples of these languages, no links (Single)
    links: Literal["all", "none"] = "all"  # links between members of a concept, both directions
    max_links: int = 8  # of one entity in one epoch
    propagate: bool = False  # also facts carried over along links from other languages' train
    max_tokens: int = 30  # facts with this many tokens or more are dropped
    seed: int = 0  # of the order of facts and the choice of links

    def __post_init__(self) -> None:
        if self.max_tokens < 2 or self.max_links < 1:
            raise PrixError(
                f"max_tokens {self.max_tokens}, max_links {self.max_links}: expected max_tokens of "
                "2 or more, and max_links of 1 or more."
            )


class FactSupply:
    """The facts of one split of a KB, in a new random order each epoch."""

    def __init__(
        self, kb: KB, batches: BatchEncoder, config: SupplyConfig, split: str = "train"
    ) -> None:
        """Read the triples of a split; only train has links and carried facts."""
        self.kb, self.batches, self.config = kb, batches, config
        missing = sorted(set(config.langs or ()) - set(kb.languages))
        if missing:
            raise PrixError(
                f"{kb.folder} has no {', '.join(missing)}; it has {', '.join(kb.languages)}."
            )
        self.dropped: dict[str, int] = {}
        """Triples that the length rule leaves out, by language."""
        # Carried facts that are too long are not counted: the KB does not state them.
        self.triples, self.num_carried = self._read_triples(split), 0
        if config.propagate and split == "train":
            carried = self._short(carried_triples(kb, config.langs, batch_rows=_ROWS), {})
            self.num_carried = len(carried)
            self.triples = join_facts([self.triples, carried])
        # Single has no links: they lead to the names of other languages.
        has_links = config.links == "all" and config.langs is None and split == "train"
        self.links = Links(kb, config.max_links) if has_links else None
        self.num_triples = len(self.triples)
        self.num_links = self.links.num_links if self.links else 0
        if not len(self):
            raise PrixError(f"{kb.folder} has no {split} facts to learn from.")

    def __len__(self) -> int:
        """Return the facts of one epoch, among them links that are too long or of one language."""
        return self.num_triples + self.num_links

    def count_links(self) -> tuple[dict[str, int], dict[str, int]]:
        """Count the first epoch's links by the subject's language: all, and those too long."""
        num_langs = len(self.kb.languages)
        # (languages,) each. Links are computed in blocks: all of them may not fit into memory.
        total, too_long = np.zeros(num_langs, np.int64), np.zeros(num_langs, np.int64)
        for start in range(0, self.num_links, _ROWS):
            assert self.links is not None
            numbers = np.arange(start, min(start + _ROWS, self.num_links))
            links = self.links.take(numbers, [self.config.seed, 0])
            language = self.batches.language(links.subject)
            is_long = self.batches.num_tokens(links) >= self.config.max_tokens
            total += np.bincount(language, minlength=num_langs)
            too_long += np.bincount(language[is_long], minlength=num_langs)
        return self._by_language(total), self._by_language(too_long)

    def take(self, numbers: Array, epoch: int) -> Facts:
        """Return the facts of these numbers; links that are too long are left out."""
        is_link = numbers >= self.num_triples
        triples = self.triples.select(numbers[~is_link])
        if self.links is None or not is_link.any():
            return triples
        seed = [self.config.seed, epoch]
        links = self.links.take(numbers[is_link] - self.num_triples, seed)
        links = links.select(self.batches.num_tokens(links) < self.config.max_tokens)
        return join_facts([triples, links])

    def blocks(self, epoch: int, size: int, first: int = 0) -> Iterator[Facts]:
        """Yield the global batches of an epoch, about `size` facts each, from block `first` on."""
        generator = np.random.default_rng([self.config.seed, epoch])
        # The order of a whole epoch is in memory: four bytes a fact instead of eight.
        dtype = np.uint32 if len(self) < 2**32 else np.uint64
        order = generator.permutation(np.arange(len(self), dtype=dtype))
        for start in range(first * size, len(self), size):
            yield self.take(order[start : start + size].astype(np.int64), epoch)

    def num_blocks(self, size: int) -> int:
        """Return the number of global batches in an epoch."""
        return -(-len(self) // size)

    def _read_triples(self, split: str) -> Facts:
        stream = self.kb.batches(
            "triples",
            ["subject", "relation", "object"],
            langs=self.config.langs,
            split=split,
            batch_rows=_ROWS,
        )
        return self._short(stream, self.dropped)

    def _short(self, stream: Iterable[pa.RecordBatch], dropped: dict[str, int]) -> Facts:
        """Return the facts of a stream that the length rule keeps; count the others by language."""
        kept = []
        for batch in stream:
            facts = Facts(*(np.asarray(column) for column in batch.columns))
            is_short = self.batches.num_tokens(facts) < self.config.max_tokens
            languages = self.batches.language(facts.subject[~is_short])
            for lang, count in self._by_language(np.bincount(languages)).items():
                dropped[lang] = dropped.get(lang, 0) + count
            kept.append(facts.select(is_short))
        return join_facts(kept)

    def _by_language(self, counts: Array) -> dict[str, int]:
        """Return counts by language code, without zeros. counts: by index of `KB.languages`."""
        return {self.kb.languages[i]: int(count) for i, count in enumerate(counts) if count}


def join_facts(blocks: Sequence[Facts]) -> Facts:
    """Concatenate facts."""
    if not blocks:
        return Facts(*np.zeros((3, 0), np.int32))
    columns = ("subject", "relation", "object")
    return Facts(*(np.concatenate([getattr(block, c) for block in blocks]) for c in columns))


def count_links(kb: KB, max_links: int) -> int:
    """Return the directed links of an epoch, counting pairs of names in one language too."""
    sizes = np.bincount(kb.concepts()) if kb.num_entities else np.zeros(0, np.int64)
    return int((sizes * np.minimum(sizes - 1, max_links)).sum())


class Links:
    """The links of all concepts, numbered entity by entity, at most `max_links` for each."""

    def __init__(self, kb: KB, max_links: int) -> None:
        """Prepare five arrays over the E entities; links are computed from them by `take`."""
        self.kb = kb
        concept = kb.concepts()
        # (E,) entities sorted by concept, so that the members of a concept are adjacent.
        self.members = np.argsort(concept, kind="stable").astype(np.int32)
        sizes = np.bincount(concept)
        starts = (np.cumsum(sizes) - sizes).astype(np.int64)
        # (E,) of each entity: where its concept starts in `members`, how many members that has,
        # and the entity's own position among them.
        self.start = starts[concept]
        self.size = sizes.astype(np.int32)[concept]
        self.position = np.empty(len(concept), np.int32)
        self.position[self.members] = np.arange(len(concept)) - self.start[self.members]
        # (E,) links of each entity in an epoch; the numbers of entity e's links end at ends[e].
        self.count = np.minimum(self.size - 1, max_links)
        self.ends = np.cumsum(self.count, dtype=np.int64)
        self.num_links = int(self.ends[-1]) if len(concept) else 0

    def take(self, numbers: Array, seed: list[int]) -> Facts:
        """Return the links of these numbers, without pairs of names in one language.

        seed: another one chooses other links wherever an entity has more than `max_links`.
        """
        subject = np.searchsorted(self.ends, numbers, side="right")
        turn = numbers - (self.ends[subject] - self.count[subject])  # among the subject's links
        # The subject's links lead to consecutive other members, starting at a random one. An offset
        # of 1 to size - 1 from the subject, modulo the size, never reaches the subject itself.
        others = self.size[subject] - 1
        offset = 1 + (turn + _mix(subject, seed) % others) % others
        position = (self.position[subject] + offset) % self.size[subject]
        object_ = self.members[self.start[subject] + position]
        differs = self.kb.language_of(subject) != self.kb.language_of(object_)
        relation = np.full(len(subject), LINK, np.int64)
        return Facts(subject, relation, object_).select(differs)


def _mix(values: Array, seed: list[int]) -> Array:
    """Hash each value with a seed to an int64 from 0 to 2**31: a multiply and a shift."""
    key = np.random.default_rng(seed).integers(1, 2**63, 2, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = (values.astype(np.uint64) + key[0]) * (key[1] | np.uint64(1))
        mixed ^= mixed >> np.uint64(29)
    return np.asarray((mixed >> np.uint64(33)).astype(np.int64))


def cut_batches(lengths: Array, budget: int) -> Iterator[Array]:
    """Yield row indices sorted by length, in batches of at most `budget` padded tokens.

    lengths: (N,). A row that is longer than the budget is a batch of its own.
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        # (rows left,) padded size of a batch that ends with this row: its length times its count.
        sizes = lengths[order[start:]] * np.arange(1, len(order) - start + 1)
        end = start + max(1, int(np.searchsorted(sizes, budget, side="right")))
        yield order[start:end]
        start = end
