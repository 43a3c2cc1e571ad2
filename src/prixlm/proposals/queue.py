"""The queue of a review: which proposals are next, how many there are, and of what kind.

    queue = Queue("proposals")
    places = queue.select(Selection(lang="et", min_confidence=0.9), order="certain")
    queue.rows("facts", places.row[:20])
    queue.facets(Selection())

A *place* is an index into the columns of all proposals (see `columns`): facts, then labels, then
links, each by falling confidence. Marks correct the confidence without changing that order, so a
filter leaves places in the order `certain` and nothing is sorted. `refresh` takes over new marks.

The arrays take 50 bytes a proposal; a process that loads them grows by about 160 (measured on 1 to
3 million proposals).

N: proposals of all tables.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from prixlm.arrays import rank_in_group
from prixlm.errors import PrixError
from prixlm.proposals.columns import RowReader, read_columns
from prixlm.proposals.confidence import Correction, fit_correction
from prixlm.proposals.facets import BANDS, Cube, Facets, count_from, equals
from prixlm.proposals.marks import SKIPPED, STATES, TABLES, UNMARKED, Marks, Verdicts
from prixlm.proposals.tables import table_path
from prixlm.types import Array

ORDERS = ("certain", "informative")

_PARSE_ID = re.compile(r"(fact|label|link)-(0|[1-9][0-9]{0,17})").fullmatch
_CACHED_ANSWERS, _CACHED_ORDERS = 8, 2
_CHUNK = 1 << 16

_Made = TypeVar("_Made")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A filter of proposals."""

    table: str | None = None  # facts, labels or links
    lang: str | None = None
    relation: int | None = None  # of facts
    kind: str | None = None  # why a fact is proposed: elsewhere or usual
    min_confidence: float = 0.0  # of the corrected confidence
    max_confidence: float = 1.0  # exclusive, except for 1
    state: str = "open"  # open, skipped, accepted, rejected, disputed or all
    subject: frozenset[int] | None = None  # entities that facts and links are about
    concepts: frozenset[int] | None = None  # concepts that labels are about; with `subject`
    reviewer: str | None = None  # what only other reviewers skipped is open to this one

    def __post_init__(self) -> None:
        if self.table not in (None, *TABLES):
            raise PrixError(f"table {self.table!r}: expected {', '.join(TABLES)}.")
        if self.state not in (*STATES, "all"):
            raise PrixError(f"state {self.state!r}: expected {', '.join(STATES)} or all.")


class Place(NamedTuple):
    """A proposal by table and row number."""

    table: str
    row: int


@dataclass(frozen=True)
class Places:
    """Proposals in order."""

    table: Array  # (K,) int8, number in TABLES
    row: Array  # (K,) int64

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, number: int) -> Place:
        return Place(TABLES[self.table[number]], int(self.row[number]))

    def head(self, number: int, start: int = 0) -> list[Place]:
        """Return some of the places, from `start` on."""
        return [self[place] for place in range(start, min(start + number, len(self)))]


def format_id(table: str, row: int) -> str:
    """Return the id of a proposal, such as `fact-12`."""
    return f"{table.removesuffix('s')}-{row}"


def parse_id(text: str) -> Place:
    """Return the place of an id such as `fact-12`, `label-3` or `link-5`."""
    found = _PARSE_ID(text)
    if found is None:
        raise PrixError(f"{text[:40]!r} is not a proposal: expected fact-12, label-3 or link-5.")
    return Place(f"{found[1]}s", int(found[2]))


class Queue:
    """All proposals of a folder with their state. Threads may share it."""

    def __init__(self, folder: Path | str, marks: Marks | None = None) -> None:
        self.folder = Path(folder)
        self.marks = marks or Marks.open(self.folder, read_only=True)
        self._lock = threading.RLock()
        self._cache: OrderedDict[Any, Any] = OrderedDict()
        self._orders: OrderedDict[Any, Any] = OrderedDict()
        self._files = {
            table: RowReader(table_path(self.folder, table))
            for table in TABLES
            if table_path(self.folder, table).is_file()
        }
        self._columns = read_columns(self.folder)
        self._confidence = self._columns.confidence  # corrected by the marks
        self._state, self._judged = (np.zeros(len(self._columns.row), np.int8) for _ in range(2))
        self._corrections = dict.fromkeys(TABLES, Correction())
        self._version = 0
        self.refresh()

    def refresh(self) -> None:
        """Take over new marks; cheap if there are none."""
        with self._lock:
            version = self.marks.version
            if version == self._version:
                return
            # Marks added from here on are read now and once more at the next refresh.
            # A smaller version is that of another file: someone moved the marks away.
            is_continued = 0 < self._version < version
            for table in TABLES:
                rows = self.marks.changed(table, self._version) if is_continued else None
                if rows is None:
                    self._take_over(table, None, self.marks.verdicts(table))
                    continue
                # In parts: a bulk mark changes millions of rows, and SQLite is told each of them.
                for start in range(0, len(rows), _CHUNK):
                    part = rows[start : start + _CHUNK]
                    self._take_over(table, part, self.marks.verdicts(table, part))
            self._version = version
            self._cache.clear()
            self._correct()

    def _take_over(self, table: str, rows: Array | None, verdicts: Verdicts) -> None:
        """Set the state of a table, or of some of its rows."""
        cleared = self._columns.slices[table] if rows is None else self._columns.place[table][rows]
        self._state[cleared] = UNMARKED
        self._judged[cleared] = 0
        self._state[self._columns.place[table][verdicts.rows]] = verdicts.state
        judged, right = verdicts.judged()
        self._judged[self._columns.place[table][judged]] = np.where(right, 1, -1)

    def _correct(self) -> None:
        """Fit the correction of each table to its judged rows; apply it where it changed."""
        corrections = {}
        for table, part in self._columns.slices.items():
            judged = np.flatnonzero(self._judged[part]) + part.start
            right = self._judged[judged] == 1
            corrections[table] = fit_correction(self._columns.confidence[judged], right)
        changed = [table for table in TABLES if corrections[table] != self._corrections[table]]
        if changed and self._confidence is self._columns.confidence:
            self._confidence = self._columns.confidence.copy()
        for table in changed:
            part = self._columns.slices[table]
            original, odds = self._columns.confidence[part], self._columns.odds[part]
            corrections[table].apply(original, odds, self._confidence[part])
        self._corrections = corrections

    @property
    def num_open(self) -> int:
        """Number of proposals in the state open, in all tables."""
        with self._lock:
            return int(len(self._state) - np.count_nonzero(self._state))

    def num_rows(self, table: str) -> int:
        """Return the number of rows of a table; 0 if the folder does not have it."""
        return len(self._columns.place[table])

    def confidence(self, table: str, rows: Sequence[int] | Array | None = None) -> Array:
        """Return the corrected confidence of all rows of a table, or of some: float64."""
        with self._lock:
            return np.asarray(self._confidence[self._places_of(table, rows)])

    def states(self, table: str, rows: Sequence[int] | Array | None = None) -> Array:
        """Return the state of all rows of a table, or of some: int8, numbers in STATES."""
        with self._lock:
            return np.asarray(self._state[self._places_of(table, rows)])

    def _places_of(self, table: str, rows: Sequence[int] | Array | None) -> Array:
        places = self._columns.place[table]
        if rows is None:
            return places
        wanted = np.asarray(rows, np.int64)
        wrong = wanted[(wanted < 0) | (wanted >= len(places))]
        if len(wrong):
            raise PrixError(f"{format_id(table, int(wrong[0]))} is not in {self.folder}.")
        return np.asarray(places[wanted])

    def count(self, selection: Selection) -> int:
        """Return the number of proposals that pass a filter."""
        with self._lock:
            return int(np.count_nonzero(self._passes(selection)))

    def expected_precision(self, selection: Selection) -> float | None:
        """Return the mean confidence: the share that is expected to be right. None if no row."""
        with self._lock:
            found = self._confidence[self._passes(selection)]
            return float(found.mean()) if len(found) else None

    def select(
        self, selection: Selection, order: str = "certain", reviewer: str | None = None
    ) -> Places:
        """Return the proposals that pass a filter, in order.

        order: `certain`, the most confident first, or `informative`, the confidence nearest to 0.5
            first, one of each relation in turn.
        reviewer: as in the selection.
        """
        if reviewer is not None:
            selection = replace(selection, reviewer=reviewer)
        with self._lock:
            return self._as_places(self._ordered(selection, order))

    def neighbours(
        self, selection: Selection, order: str, table: str, row: int
    ) -> tuple[Place | None, Place | None]:
        """Return the proposals before and after a row in the order of a filter.

        The row itself need not pass the filter: a row that was just marked is still between the
        same neighbours.
        """
        with self._lock:
            place = int(self._places_of(table, [row])[0])
            _check_order(order)
            if order == "certain":
                found = self._certain_neighbours(self._passes(selection), place)
            else:
                found = self._informative_neighbours(selection, place)
            before, after = (None if one is None else self._as_place(one) for one in found)
            return before, after

    def sample(self, selection: Selection, k: int, seed: int) -> Places:
        """Return up to `k` random proposals that pass a filter, the most confident first."""
        with self._lock:
            ordered = self._ordered(selection, "certain")
            generator = np.random.default_rng(seed)
            chosen = generator.choice(len(ordered), min(k, len(ordered)), replace=False)
            return self._as_places(ordered[np.sort(chosen)])

    def rows(self, table: str, row_numbers: Sequence[int] | Array) -> list[dict[str, Any]]:
        """Return rows of a Parquet table as they are, in the order asked for."""
        self._places_of(table, row_numbers)
        numbers = np.asarray(row_numbers, np.int64)
        return self._files[table].read(numbers) if len(numbers) else []

    def facets(self, selection: Selection) -> Facets:
        """Count the proposals that pass a filter by their properties."""
        with self._lock:
            return self._cached(("facets", selection), lambda: self._facets(selection))

    def _facets(self, selection: Selection) -> Facets:
        wanted = {
            "table": _index(TABLES, selection.table),
            "lang": _index(self._columns.langs, selection.lang),
            "relation": selection.relation,
            "kind": _index(self._columns.kinds, selection.kind),
        }
        state = None if selection.state == "all" else STATES.index(selection.state)
        low, high = selection.min_confidence, selection.max_confidence
        return self._cube(selection).facets(self._columns, wanted, state, low, high)

    def _cube(self, selection: Selection) -> Cube:
        """Count the rows about a selection's subject."""
        low, high = selection.min_confidence, selection.max_confidence
        edges = tuple(sorted({*BANDS, min(1.0, max(0.0, low)), min(1.0, max(0.0, high))}))
        about = selection.subject, selection.concepts

        def make() -> Cube:
            kept = None if about == (None, None) else self._is_about(selection)
            state = self._state_for(selection.reviewer)
            return Cube.count(self._columns, state, self._confidence, edges, kept)

        return self._cached(("cube", edges, about, selection.reviewer), make)

    def _passes(self, selection: Selection) -> Array:
        """Return which places pass a filter: (N,) bool."""

        def make() -> Array:
            passes = np.ones(len(self._columns.row), bool)
            for condition in self._conditions(selection).values():
                passes &= condition
            return passes

        return self._cached(("passes", selection), make)

    def _conditions(self, selection: Selection) -> dict[str, Array]:
        """Return which places pass each condition of a filter, by its name: (N,) bool."""
        conditions: dict[str, Array] = {}
        if selection.table is not None:
            conditions["table"] = self._columns.table == TABLES.index(selection.table)
        if selection.lang is not None:
            conditions["lang"] = equals(
                self._columns.lang, _index(self._columns.langs, selection.lang)
            )
        if selection.relation is not None:
            conditions["relation"] = equals(self._columns.relation, selection.relation)
        if selection.kind is not None:
            conditions["kind"] = equals(
                self._columns.kind, _index(self._columns.kinds, selection.kind)
            )
        if selection.state != "all":
            state = STATES.index(selection.state)
            conditions["state"] = self._state_for(selection.reviewer) == state
        if selection.subject is not None or selection.concepts is not None:
            conditions["subject"] = self._is_about(selection)
        low, high = selection.min_confidence, selection.max_confidence
        if low > 0 or high < 1:
            conditions["confidence"] = self._is_between(low, high)
        return conditions

    def _is_between(self, low: float, high: float) -> Array:
        """Return which places have a confidence from `low` to below `high`, or to 1 inclusive."""
        found = np.zeros(len(self._columns.row), bool)
        for part in self._columns.slices.values():
            confidence = self._confidence[part]
            first = count_from(confidence, high) if high < 1 else 0
            found[part][first : count_from(confidence, low)] = True
        return found

    def _is_about(self, selection: Selection) -> Array:
        """Return which places are about some entities, or for labels concepts."""
        found = np.zeros(len(self._columns.row), bool)
        for table, part in self._columns.slices.items():
            wanted = selection.concepts if table == "labels" else selection.subject
            found[part] = np.isin(self._columns.subject[part], sorted(wanted or ()))
        return found

    def _state_for(self, reviewer: str | None) -> Array:
        """Return the state of each place: (N,) int8. What only others skipped is open."""
        if reviewer is None:
            return self._state

        def make() -> Array:
            skipped = np.flatnonzero(self._state == SKIPPED)
            if not len(skipped):
                return self._state
            state = self._state.copy()
            state[skipped] = UNMARKED
            for number, table in enumerate(TABLES):
                rows = self._columns.row[skipped[self._columns.table[skipped] == number]]
                own = self.marks.rows_of(reviewer, table, "skip", rows)
                # Marks may be newer than the state.
                state[np.intersect1d(self._columns.place[table][own], skipped)] = SKIPPED
            return state

        return self._cached(("state", reviewer), make)

    def _ordered(self, selection: Selection, order: str) -> Array:
        """Return the places that pass a filter, in order: (K,) int32."""
        _check_order(order)

        def make() -> Array:
            if order == "informative":
                ordered = self._informative(selection)
                return ordered[self._passes(selection)[ordered]]
            places = np.flatnonzero(self._passes(selection)).astype(np.int32)
            # Each table is in order. Of several, these are merged: stable sorting finds the runs.
            if len(places) and self._columns.table[places[0]] != self._columns.table[places[-1]]:
                places = places[np.argsort(-self._confidence[places], kind="stable")]
            return places

        return self._cached((order, selection), make)

    def _certain_neighbours(self, passes: Array, place: int) -> tuple[int | None, int | None]:
        """Return the places that pass before and after a place, by falling confidence.

        The nearest ones of each table are compared; nothing is sorted.
        """
        before, after = [], []
        confidence = self._confidence[place]
        for table in self._columns.slices.values():
            rising = self._confidence[table][::-1]
            # Of equal confidences, the ones further left in the arrays come first.
            side: Literal["left", "right"] = "left" if table.start < place else "right"
            split = table.stop - int(np.searchsorted(rising, confidence, side))
            is_here = table.start <= place < table.stop
            split, rest = (place, place + 1) if is_here else (split, split)
            before += _nearest(passes[table.start : split][::-1], split - 1, -1)
            after += _nearest(passes[rest : table.stop], rest, 1)

        def key(one: int) -> tuple[float, int]:
            return -float(self._confidence[one]), one

        return max(before, key=key, default=None), min(after, key=key, default=None)

    def _informative_neighbours(
        self, selection: Selection, place: int
    ) -> tuple[int | None, int | None]:
        """Return the places that pass before and after a place in the order `informative`."""
        everything = self._informative(selection)
        found = np.flatnonzero(everything == place)
        if not len(found):  # of another filter: where would it be?
            everything = self._informative(selection, place)
            found = np.flatnonzero(everything == place)
        here, passes = int(found[0]), self._passes(selection)
        before = _first_passing(passes, everything[:here][::-1])
        return before, _first_passing(passes, everything[here + 1 :])

    def _informative(self, selection: Selection, extra: int | None = None) -> Array:
        """Return the places of a filter in any state, the most informative first: (K,) int32.

        The state is left out and the correction rounded, so that a mark rarely moves the others.
        extra: a place that is taken in although it does not pass.
        """
        selection = replace(selection, state="all", reviewer=None)
        rounded = {
            table: (max(0.1, round(one.scale, 1)), round(one.shift, 1))
            for table, one in self._corrections.items()
        }

        def make() -> Array:
            passes = self._passes(selection)
            if extra is not None:
                passes = passes.copy()
                passes[extra] = True
            places = np.flatnonzero(passes).astype(np.int32)
            odds = self._columns.odds[places]
            scale, shift = np.array([rounded[table] for table in TABLES]).T
            table = self._columns.table[places]
            # The log-odds are 0 at 0.5, and their distance from it orders like the confidence's.
            distance = np.abs(scale[table] * odds + shift[table])
            places = places[np.argsort(distance, kind="stable")]
            # Labels and links take turns like a relation each; facts are table 0.
            group = np.where(
                self._columns.table[places],
                self._columns.table[places] - 1,
                self._columns.relation[places] + 2,
            )
            by_group = _stable_order(group)
            turn = np.empty(len(places), np.int32)
            turn[by_group] = rank_in_group(group[by_group])
            return places[_stable_order(turn)]

        if extra is not None:
            return make()
        # Kept over marks; but a filter of the confidence follows each of them.
        filters = selection.min_confidence > 0 or selection.max_confidence < 1
        key = (selection, tuple(rounded.values()), self._version if filters else None)
        return _remember(self._orders, key, make, _CACHED_ORDERS)

    def _cached(self, key: Any, make: Callable[[], _Made]) -> _Made:
        """Return what `make` makes, kept until the marks change."""
        return _remember(self._cache, key, make, _CACHED_ANSWERS)

    def _as_place(self, place: int) -> Place:
        return Place(TABLES[self._columns.table[place]], int(self._columns.row[place]))

    def _as_places(self, places: Array) -> Places:
        return Places(self._columns.table[places], self._columns.row[places].astype(np.int64))


def _check_order(order: str) -> None:
    if order not in ORDERS:
        raise PrixError(f"order {order!r}: expected {' or '.join(ORDERS)}.")


def _nearest(passes: Array, start: int, step: int) -> list[int]:
    """Return the first place that passes, walking from `start`; empty if there is none."""
    number = int(np.argmax(passes)) if len(passes) else 0
    return [start + step * number] if len(passes) and passes[number] else []


def _first_passing(passes: Array, places: Array) -> int | None:
    """Return the first of some places that passes; it is looked for in chunks, since it is near."""
    for start in range(0, len(places), _CHUNK):
        chunk = places[start : start + _CHUNK]
        found = _nearest(passes[chunk], 0, 1)
        if found:
            return int(chunk[found[0]])
    return None


def _stable_order(values: Array) -> Array:
    """Return the stable order of numbers from 0 to 2**31: two passes of numpy's radix sort.

    numpy sorts 16 bits by radix, and more by comparing, which is several times slower.
    """
    order = np.argsort((values & 0xFFFF).astype(np.uint16), kind="stable")
    high = (values >> 16).astype(np.uint16)
    return order[np.argsort(high[order], kind="stable")] if high.any() else order


def _remember(
    cache: "OrderedDict[Any, Any]", key: Any, make: Callable[[], _Made], most: int
) -> _Made:
    """Return an answer from a cache of the last `most` answers, made if it is not there."""
    found: _Made = cache[key] if key in cache else make()
    cache[key] = found
    cache.move_to_end(key)
    while len(cache) > most:
        cache.popitem(last=False)
    return found


def _index(values: Sequence[str], value: str | None) -> int | None:
    """Return the place of a value in a list; -2 if it is not there, None for None."""
    if value is None:
        return None
    return values.index(value) if value in values else -2
