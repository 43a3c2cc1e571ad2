"""Counts of proposals by their properties, all from one pass over the arrays.

    cube = Cube.count(columns, state, confidence, edges)
    cube.facets(columns, wanted, state=None, low=0.9, high=1.0)

A cube counts rows by cell (a table, language, relation and kind), state and confidence band. Every
facet is a sum over it, whatever the filters are.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from prixlm.proposals.columns import Columns
from prixlm.proposals.marks import STATES, TABLES
from prixlm.types import Array

BANDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Edges of the confidence bands of `facets`; the last band includes 1."""

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class FacetCount:
    """Number of proposals, and the mean confidence: the share that is expected to be right."""

    count: int
    expected_precision: float


_NONE = FacetCount(0, 0.0)


@dataclass(frozen=True)
class Facets:
    """Counts by value. Each facet ignores its own filter; values without proposals are left out."""

    total: FacetCount
    langs: dict[str, FacetCount]
    relations: dict[int, FacetCount]  # of facts
    kinds: dict[str, FacetCount]
    confidence: dict[tuple[float, float], FacetCount]  # by lower and upper edge
    states: dict[str, FacetCount]
    tables: dict[str, FacetCount]


@dataclass(frozen=True)
class Cube:
    """Rows by cell, state and confidence: what all facets are sums of."""

    edges: Array  # (E,) edges of the confidence bands
    sums: Array  # (2, cells, states, E - 1) number of rows, and sum of confidences

    @classmethod
    def count(
        cls,
        columns: Columns,
        state: Array,
        confidence: Array,
        edges: Sequence[float],
        kept: Array | None = None,
    ) -> "Cube":
        """Count the rows of the tables, or those that are kept.

        state, confidence, kept: (N,), by place.
        """
        shape = (len(columns.cells), len(STATES), len(edges) - 1)
        code = columns.cell * np.int32(shape[1] * shape[2])
        code += state * np.int8(shape[2])
        for table in columns.slices.values():
            # A table is sorted, so that each band is a slice of it.
            for edge in edges[1:-1]:
                code[table][: count_from(confidence[table], edge)] += 1
        if kept is not None:
            code, confidence = code[kept], confidence[kept]
        size = int(np.prod(shape))
        counts = np.bincount(code, minlength=size), np.bincount(code, confidence, size)
        return cls(np.array(edges), np.stack(counts).reshape(2, *shape))

    def facets(
        self,
        columns: Columns,
        wanted: Mapping[str, int | None],
        state: int | None,
        low: float,
        high: float,
    ) -> Facets:
        """Return the counts under a filter.

        wanted: number of the table, lang, relation and kind; None for any.
        state: number in STATES. low, high: confidence, both among the edges.
        """
        names = ("table", "lang", "relation", "kind")
        in_cell = {
            name: equals(columns.cells[:, column], wanted[name])
            for column, name in enumerate(names)
        }
        states = equals(np.arange(len(STATES)), state)
        bands = (self.edges[:-1] >= low) & (self.edges[1:] <= high)

        def by_cell(ignored: str, values: Sequence[_Value]) -> dict[_Value, FacetCount]:
            passes = [kept for name, kept in in_cell.items() if name != ignored]
            kept = np.logical_and.reduce(passes)
            sums = self.sums[:, kept][:, :, states][..., bands].sum((2, 3))
            return _count_values(columns.cells[kept, names.index(ignored)], sums, values)

        cells = np.logical_and.reduce(list(in_cell.values()))
        by_state = self.sums[:, cells][..., bands].sum((1, 3))
        by_band = self.sums[:, cells][:, :, states].sum((1, 2))
        # A band that the filter cuts has several parts.
        band_of = np.searchsorted(BANDS, self.edges[:-1], side="right") - 1
        return Facets(
            _count_values(np.zeros(len(STATES), int), by_state * states, [""]).get("", _NONE),
            langs=by_cell("lang", columns.langs),
            relations=by_cell("relation", range(int(columns.relation.max(initial=-1)) + 1)),
            kinds=by_cell("kind", columns.kinds),
            confidence=_count_values(band_of, by_band, list(itertools.pairwise(BANDS))),
            states=_count_values(np.arange(len(STATES)), by_state, STATES),
            tables=by_cell("table", TABLES),
        )


def count_from(falling: Array, edge: float) -> int:
    """Return how many values of a falling array are `edge` or more."""
    return int(len(falling) - np.searchsorted(falling[::-1], edge, side="left"))


def equals(column: Array, wanted: int | None) -> Array:
    """Return which values equal the wanted one; all if it is None, none if it is negative."""
    if wanted is None:
        return np.ones(len(column), bool)
    return np.asarray(column == wanted) if wanted >= 0 else np.zeros(len(column), bool)


def _count_values(codes: Array, sums: Array, values: Sequence[_Value]) -> dict[_Value, FacetCount]:
    """Count how often each value occurs, with its mean confidence.

    codes: (K,) number of a value, or -1. sums: (2, K) number of rows, and sum of confidences.
    """
    # Shifted by 1, since `bincount` takes no negative numbers.
    counts, confidence = (np.bincount(codes + 1, one, len(values) + 1)[1:] for one in sums)
    return {
        values[number]: FacetCount(int(counts[number]), float(confidence[number] / counts[number]))
        for number in np.flatnonzero(counts).tolist()
    }
