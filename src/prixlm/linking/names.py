"""The names of one side in the forms in which they are compared, each computed when first needed.

    side = NameSide(Names(["Αθήνα", "Athens"], np.array([0, 0])))
    side.read                                # ["athina", "athens"]

Dimension letters: N names, E entities, D columns of n-grams.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from prixlm.arrays import group_starts
from prixlm.entities.names import MAX_TEXT, fold
from prixlm.linking.grams import GramIndex, count_grams, rarity, weigh
from prixlm.linking.translation import Directions, main_directions
from prixlm.romanise import romanise
from prixlm.types import Array

_CHUNKS = (2, 3, 4)
"""Sizes of the n-grams whose counterparts are learnt from links, beside whole words."""


@dataclass(frozen=True)
class Names:
    """Names of some entities: an entity's names are adjacent, its label first."""

    texts: list[str]  # (N,)
    owner: Array  # (N,) the entity of each name, from 0, ascending without gaps
    vectors: Array | None = None  # (N, H) of an encoder, unit rows
    langs: str | list[str] | None = (
        None  # of all names, or of each, if known: decides how they are read
    )


class NameSide:
    """The names of the entities of one side."""

    def __init__(self, names: Names) -> None:
        self.owner, self.vectors = names.owner, names.vectors
        self.labels = group_starts(names.owner)  # (E,) the row of each entity's first name
        self.folded = [fold(text)[:MAX_TEXT] for text in names.texts]
        # A name without any Latin letters stands for itself.
        read = zip(romanise(self.folded, names.langs), self.folded, strict=True)
        self.read = [(new or old)[:MAX_TEXT] for new, old in read]

    def __len__(self) -> int:
        """Return the number of entities."""
        return len(self.labels)

    def distinct(self) -> tuple[Array, Array]:
        """Return the names of an entity that differ, folded or read: row, and number of each name.

        (rows,) the first of equal names, ascending; (N,) which of them each name is. A thing with
        one name in twelve languages has one row for them.
        """
        seen: dict[tuple[int, str, str], int] = {}
        keys = zip(self.owner.tolist(), self.folded, self.read, strict=True)
        number = np.array([seen.setdefault(key, len(seen)) for key in keys], np.int64)
        return np.unique(number, return_index=True)[1], number

    def select(self, rows: Array) -> "NameSide":
        """Return the side with some of its names, at least one of each entity, without vectors."""
        side = NameSide.__new__(NameSide)
        side.owner, side.vectors, side.labels = (
            self.owner[rows],
            None,
            group_starts(self.owner[rows]),
        )
        side.folded = [self.folded[row] for row in rows.tolist()]
        side.read = [self.read[row] for row in rows.tolist()]
        return side

    @cached_property
    def length(self) -> Array:
        """Return the number of letters of each name: (N,)."""
        return np.fromiter(map(len, self.read), np.float32, len(self.read))

    @cached_property
    def is_alias(self) -> Array:
        """Return (N,) whether a name is a further name of its entity."""
        is_alias = np.ones(len(self.owner), np.float32)
        is_alias[self.labels] = 0
        return is_alias

    @cached_property
    def digits(self) -> Array:
        """Return the digits of each name as a number, modulo 2**31; -1 without digits: (N,)."""
        found = ("".join(filter(str.isdecimal, text)) for text in self.read)
        numbers = [int(text[:18]) % (1 << 31) if text else -1 for text in found]
        return np.array(numbers, np.int64)

    @cached_property
    def spelled_index(self) -> GramIndex:
        """Return the n-grams of the names as they are spelled."""
        return GramIndex(self.folded)

    @cached_property
    def read_index(self) -> GramIndex:
        """Return the n-grams of the romanised names."""
        return GramIndex(self.read)

    @cached_property
    def chunks(self) -> sp.csr_matrix:
        """Return n-grams and words, romanised, whose counterparts can be learnt: (N, D)."""
        counts = count_grams(self.read, _CHUNKS, words=True)
        return weigh(counts, rarity(counts))

    @cached_property
    def directions(self) -> Directions:
        """Return the main directions of `chunks`."""
        return main_directions(self.chunks)
