"""Marks of reviewers: an append-only log in a SQLite database beside the proposals.

    marks = Marks.open("proposals")
    marks.add("Anna", [NewMark("facts", 12, "accept")])
    marks.undo("Anna")
    read_verdicts("proposals", "facts").state

The page, the sheet (`review`) and an export share these marks. A call of `add` is one batch: one
transaction, on disk when the call returns. Nothing is ever changed or deleted; to undo a batch is a
new batch that names it. The database appears with the first mark.

The verdict of a row comes from the last mark of each reviewer that is not undone. `open` takes the
reviewer's mark back and `skip` decides nothing. The majority decides; a tie is disputed.
"""

import contextlib
import hashlib
import itertools
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from prixlm.arrays import group_starts
from prixlm.errors import PrixError
from prixlm.files import parse_json
from prixlm.proposals.database import MarksDatabase
from prixlm.proposals.tables import (
    MARKS_FILE,
    OLD_MARKS_FILE,
    read_manifest,
    table_path,
)
from prixlm.proposals.tables import TABLES as TABLES  # of the marks as well
from prixlm.types import Array

VERDICTS = ("accept", "reject", "skip", "open")
ACCEPT, REJECT, SKIP, OPEN = range(len(VERDICTS))
STATES = ("open", "skipped", "accepted", "rejected", "disputed")
UNMARKED, SKIPPED, ACCEPTED, REJECTED, DISPUTED = range(len(STATES))
SHEET = "sheet"
"""The reviewer of marks that come from a sheet without a name."""
MAX_REVIEWER = 60
"""Characters of a reviewer's name."""

_ENTRIES = """
    SELECT m.seq, m.batch, b.time, b.reviewer, m.tab, m.row, m.verdict, m.entity, m.key, m.name,
        EXISTS (SELECT 1 FROM batches u WHERE u.undoes = m.batch)
    FROM marks m JOIN batches b USING (batch)
"""
_MOST = 1 << 62
"""Numbers of marks and batches are smaller."""
# What the columns' own types leave open: an INTEGER of SQLite may hold a text.
_WRONG_MARKS = f"""
    SELECT seq FROM marks m WHERE NOT (
        seq BETWEEN 1 AND {_MOST} AND EXISTS (SELECT 1 FROM batches b WHERE b.batch = m.batch)
        AND typeof(tab) = 'integer' AND typeof(row) = 'integer' AND typeof(verdict) = 'integer'
        AND row >= 0 AND row < CASE tab WHEN 0 THEN ? WHEN 1 THEN ? WHEN 2 THEN ? ELSE 0 END
        AND verdict BETWEEN 0 AND {len(VERDICTS) - 1}
        AND typeof(entity) IN ('null', 'integer')
        AND (entity IS NULL OR entity BETWEEN 0 AND {(1 << 31) - 1})
        AND typeof(name) IN ('null', 'text') AND typeof(key) = typeof(name)
    ) LIMIT 1
"""
_WRONG_BATCHES = f"""
    SELECT batch FROM batches WHERE NOT (
        batch BETWEEN 1 AND {_MOST} AND typeof(time) = 'text' AND typeof(reviewer) = 'text'
        AND typeof(first) = 'integer' AND typeof(stop) = 'integer' AND first BETWEEN 1 AND stop
        AND stop <= (SELECT coalesce(max(seq), 0) + 1 FROM marks)
        AND typeof(bulk) = 'integer' AND bulk IN (0, 1)
        AND typeof(undoes) IN ('null', 'integer') AND typeof(source) IN ('null', 'text')
    ) LIMIT 1
"""
_MARK_TYPE = np.dtype([(name, np.int64) for name in ("row", "seq", "batch", "verdict", "replaced")])


@dataclass(frozen=True, slots=True)
class Replacement:
    """What is accepted instead of the proposed value: an entity, or the text of a label."""

    entity: int | None  # in the language of the fact; None for a label
    key: str
    name: str


@dataclass(frozen=True, slots=True)
class NewMark:
    """A mark to add."""

    table: str
    row: int
    verdict: str
    replacement: Replacement | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A mark in the log."""

    seq: int
    batch: int
    time: str  # UTC, ISO 8601
    reviewer: str
    table: str
    row: int
    verdict: str
    replacement: Replacement | None
    undone: bool


@dataclass(frozen=True, slots=True)
class Undone:
    """A batch that was taken back; 0 marks if there was none."""

    count: int
    shown: list[Entry]  # the first marks of it


@dataclass(frozen=True)
class Verdicts:
    """The marked rows of a table, over all reviewers.

    Attributes:
        rows: (N,) int64, sorted. Rows without a mark are not among them.
        state: (N,) int8: SKIPPED, ACCEPTED, REJECTED or DISPUTED.
        replacements: what was accepted instead, by row; only of accepted rows.
        looked_at: (N,) bool, whether someone marked this row itself that way, not in bulk.
    """

    rows: Array
    state: Array
    replacements: dict[int, Replacement]
    looked_at: Array

    def where(self, state: int) -> Array:
        """Return the rows in a state: sorted int64."""
        return np.asarray(self.rows[self.state == state])

    def judged(self) -> tuple[Array, Array]:
        """Return the rows whose proposed value was judged, (M,), and whether it is right, (M,).

        A replaced value was wrong. Rows that were only marked in bulk say nothing: nobody looked
        at them.
        """
        decided = self.looked_at & ((self.state == ACCEPTED) | (self.state == REJECTED))
        rows, right = self.rows[decided], self.state[decided] == ACCEPTED
        replaced = np.fromiter(self.replacements, np.int64, len(self.replacements))
        return rows, right & ~np.isin(rows, replaced)


def has_marks(folder: Path) -> bool:
    """Tell whether a folder holds marks of a reviewer, also of an older version or damaged ones."""
    return any((folder / name).exists() for name in (MARKS_FILE, OLD_MARKS_FILE))


def read_verdicts(folder: Path | str, table: str) -> Verdicts:
    """Return the verdicts of a table. Nothing is written, so the disk may be read-only."""
    with contextlib.closing(Marks.open(folder, read_only=True)) as marks:
        return marks.verdicts(table)


class Marks:
    """The marks of a proposals folder, for several threads and processes at once.

    See `MarksDatabase`.
    """

    def __init__(self, folder: Path, read_only: bool) -> None:
        self.folder = folder
        self._database = MarksDatabase(folder, read_only, self._check_values, self._add_old)
        self._num_rows = {
            table: pq.read_metadata(table_path(folder, table)).num_rows
            for table in TABLES
            if table_path(folder, table).is_file()
        }

    @classmethod
    def open(cls, folder: Path | str, read_only: bool = False) -> "Marks":
        """Open the marks of a folder; refuse damaged ones and those of other proposals.

        The marks of an older version (`marks.json`) are imported once, as marks of "sheet".
        """
        folder = Path(folder)
        read_manifest(folder)
        marks = cls(folder, read_only)
        if not read_only and (folder / OLD_MARKS_FILE).exists():
            marks._import_old()
        with marks._database.reading():  # refuses a damaged file now, not at the first mark
            pass
        return marks

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._database.close()

    @property
    def version(self) -> int:
        """A number that grows with every batch of any process."""
        with self._database.reading() as db:
            return int(db.execute("SELECT coalesce(max(batch), 0) FROM batches").fetchone()[0])

    def add(self, reviewer: str, marks: Iterable[NewMark], *, bulk: bool = False) -> int:
        """Append marks as one batch and return its number; 0 if there are no marks.

        They are on disk when this returns. If one mark is wrong, none is added.
        bulk: whether the rows were marked together, without a look at each.
        """
        if not _is_reviewer(reviewer):
            raise PrixError(
                f"reviewer {reviewer[:MAX_REVIEWER]!r}: expected a name of 1 to {MAX_REVIEWER} "
                "characters, all of them printable."
            )
        # The first row is made before the database: a wrong mark must not leave an empty one.
        rows = map(self._as_row, marks)
        first = next(rows, None)
        if first is None:
            return 0
        with self._database.writing() as db:
            return _append_batch(db, reviewer, itertools.chain([first], rows), bulk=bulk)

    def undo(self, reviewer: str, shown: int = 10) -> "Undone":
        """Take back the reviewer's last batch that is not undone; return what it was.

        shown: the number of marks that are returned; a batch may have millions.
        """
        if not self._database.path.exists():
            return Undone(0, [])
        with self._database.writing() as db:
            found = db.execute(
                "SELECT batch, first, stop FROM batches b WHERE reviewer = ? AND undoes IS NULL "
                "AND NOT EXISTS (SELECT 1 FROM batches u WHERE u.undoes = b.batch) "
                "ORDER BY batch DESC LIMIT 1",
                (reviewer,),
            ).fetchone()
            if found is None:
                return Undone(0, [])
            batch, first, stop = found
            _append_batch(db, reviewer, [], undoes=batch)
            where = "WHERE m.seq >= ? AND m.seq < ? ORDER BY m.seq LIMIT ?"
            return Undone(stop - first, _read_entries(db, where, (first, stop, shown)))

    def verdicts(self, table: str, rows: Array | None = None) -> Verdicts:
        """Return the verdicts of a table, or of some rows of it."""
        with self._database.reading() as db:
            return _decide(db, *_read_last_marks(db, *_where(table, rows)))

    def changed(self, table: str, since: int) -> Array:
        """Return the rows that batches after `since` marked or took back: sorted int64."""
        number = _table_number(table)
        with self._database.reading() as db:
            ranges = db.execute(
                "SELECT first, stop FROM batches WHERE batch > ?1 AND undoes IS NULL UNION ALL "
                "SELECT b.first, b.stop FROM batches u JOIN batches b ON b.batch = u.undoes "
                "WHERE u.batch > ?1",
                (since,),
            ).fetchall()
            # `+tab` keeps SQLite from its index: the range of seq is far smaller.
            query = "SELECT row FROM marks WHERE seq >= ? AND seq < ? AND +tab = ?"
            parts = [
                np.fromiter((row for (row,) in db.execute(query, (*ends, number))), np.int64)
                for ends in ranges
            ]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def last(self, table: str, row: int) -> list[Entry]:
        """Return the last mark of each reviewer on a row, but not `open` ones, oldest first."""
        with self._database.reading() as db:
            where = "WHERE m.tab = ? AND m.row = ? ORDER BY m.seq"
            entries = _read_entries(db, where, (_table_number(table), row))
        by_reviewer = {entry.reviewer: entry for entry in entries if not entry.undone}
        kept = (entry for entry in by_reviewer.values() if entry.verdict != "open")
        return sorted(kept, key=lambda entry: entry.seq)

    def rows_of(self, reviewer: str, table: str, verdict: str, rows: Array | None = None) -> Array:
        """Return the rows whose last mark by a reviewer is this one: sorted int64.

        rows: look at these rows only.
        """
        where, values = _where(table, rows)
        where = f"JOIN batches b USING (batch) {where} AND b.reviewer = ?"
        with self._database.reading() as db:
            marks, _ = _read_last_marks(db, where, [*values, reviewer])
        return np.asarray(marks["row"][marks["verdict"] == VERDICTS.index(verdict)])

    def log(self, limit: int = 100, before: int | None = None) -> list[Entry]:
        """Return the newest marks first. before: only those with a smaller `seq`."""
        with self._database.reading() as db:
            where = "WHERE m.seq < ? ORDER BY m.seq DESC LIMIT ?"
            return _read_entries(db, where, (_MOST if before is None else before, limit))

    def batches(self, limit: int = 100, before: int | None = None) -> list[tuple[Entry, int]]:
        """Return the newest batches first, each by its first mark and its number of marks.

        before: only batches with a smaller number.
        """
        with self._database.reading() as db:
            found = db.execute(
                "SELECT first, stop - first FROM batches WHERE stop > first AND batch < ? "
                "ORDER BY batch DESC LIMIT ?",
                (_MOST if before is None else before, limit),
            ).fetchall()
            sizes = dict(found)
            where = "WHERE m.seq IN (SELECT value FROM json_each(?)) ORDER BY m.seq DESC"
            entries = _read_entries(db, where, (json.dumps(list(sizes)),))
        return [(entry, sizes[entry.seq]) for entry in entries]

    def disagreements(self) -> list[tuple[str, int]]:
        """Return the rows on which the last marks of reviewers differ, as (table, row).

        Two reviewers who accept different values disagree too.
        """
        found = []
        with self._database.reading() as db:
            for table in TABLES:
                marks, _ = _read_last_marks(db, *_where(table, None))
                marks = marks[np.isin(marks["verdict"], (ACCEPT, REJECT))]
                starts, stops = _groups(marks["row"])
                # Most rows have one reviewer; only the others are worth a look.
                several = stops - starts > 1
                for start, stop in zip(starts[several], stops[several], strict=True):
                    if _differ(db, marks[start:stop]):
                        found.append((table, int(marks["row"][start])))
        return found

    def _as_row(self, mark: NewMark) -> tuple[Any, ...]:
        """Return the columns of a mark from `tab` on; refuse a mark that means nothing."""
        new = mark.replacement
        if mark.table not in TABLES or mark.verdict not in VERDICTS:
            raise PrixError(
                f"mark {mark.verdict!r} of {mark.table!r}: expected {', '.join(VERDICTS)} of "
                f"{', '.join(TABLES)}."
            )
        if not 0 <= mark.row < self._num_rows.get(mark.table, 0):
            raise PrixError(f"row {mark.row}: {self.folder} has no such row of {mark.table}.")
        if new is not None and (mark.verdict != "accept" or not new.name.strip()):
            raise PrixError(
                f"row {mark.row} of {mark.table}: a replacement needs a name, and `accept`."
            )
        place = _table_number(mark.table), int(mark.row), VERDICTS.index(mark.verdict)
        return (*place, new and new.entity, new and new.key, new and new.name)

    def _check_values(self, db: sqlite3.Connection) -> None:
        """Refuse values that no mark has: a folder of others may hold anything."""
        sizes = [self._num_rows.get(table, 0) for table in TABLES]
        wrong = db.execute(_WRONG_MARKS, sizes).fetchone()
        if wrong is not None:
            raise sqlite3.DatabaseError(f"mark {wrong[0]} has values that no mark has")
        wrong = db.execute(_WRONG_BATCHES).fetchone()
        if wrong is not None:
            raise sqlite3.DatabaseError(f"batch {wrong[0]} has values that no batch has")
        for _ in db.execute("SELECT key, name FROM marks WHERE name IS NOT NULL"):
            pass  # text in no encoding is refused by being read
        for batch, time, reviewer in db.execute("SELECT batch, time, reviewer FROM batches"):
            if not _is_time(time) or not _is_reviewer(reviewer):
                raise sqlite3.DatabaseError(f"batch {batch} has a time or a reviewer that is none")

    def _import_old(self) -> None:
        """Import `marks.json` unless that was done; keep the file under another name."""
        old = self._database.old
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            self._parse_old(old.read_bytes())  # refuses a damaged file before one is created
            with self._database.writing() as db:
                self._add_old(db)
            old.rename(old.with_name(f"{OLD_MARKS_FILE}.imported"))

    def _add_old(self, db: sqlite3.Connection) -> None:
        """Append the marks of `marks.json`, unless they are there."""
        content = self._database.old.read_bytes()
        source = hashlib.sha256(content).hexdigest()
        if not db.execute("SELECT 1 FROM batches WHERE source = ?", (source,)).fetchone():
            _append_batch(db, SHEET, self._parse_old(content), source=source)

    def _parse_old(self, content: bytes) -> list[tuple[Any, ...]]:
        """Return the rows of `marks.json`: tables, with true or false by row number."""
        names = {table_path(self.folder, table).stem: table for table in TABLES}
        try:
            values = parse_json(content, OLD_MARKS_FILE)
            if not set(values) <= set(names):
                raise ValueError(f"tables {', '.join(values)}, expected {', '.join(names)}")
            return [
                self._as_row(NewMark(names[name], int(row), "accept" if mark else "reject"))
                for name, marks in values.items()
                for row, mark in marks.items()
            ]
        except (ValueError, TypeError, AttributeError, PrixError) as error:
            raise PrixError(
                f"{self._database.old} cannot be read ({error}): delete it and read the review "
                "again."
            ) from None


def _is_reviewer(name: str) -> bool:
    return bool(name.strip()) and len(name) <= MAX_REVIEWER and name.isprintable()


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _table_number(table: str) -> int:
    assert table in TABLES, table
    return TABLES.index(table)


def _where(table: str, rows: Array | None) -> tuple[str, list[Any]]:
    """Return a condition for the marks of a table, or of some rows of it, and its values."""
    if rows is None:
        return "WHERE tab = ?", [_table_number(table)]
    found = "row IN (SELECT value FROM json_each(?))"
    return f"WHERE tab = ? AND {found}", [_table_number(table), json.dumps(rows.tolist())]


def _append_batch(
    db: sqlite3.Connection,
    reviewer: str,
    rows: Iterable[tuple[Any, ...]],
    *,
    bulk: bool = False,
    undoes: int | None = None,
    source: str | None = None,
) -> int:
    """Append a batch within the current transaction; return its number."""
    batch = db.execute("SELECT coalesce(max(batch), 0) + 1 FROM batches").fetchone()[0]
    first = stop = db.execute("SELECT coalesce(max(seq), 0) + 1 FROM marks").fetchone()[0]

    def numbered() -> Iterator[tuple[Any, ...]]:
        nonlocal stop
        for row in rows:
            yield (stop, batch, *row)
            stop += 1

    db.executemany("INSERT INTO marks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", numbered())
    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    values = (batch, time, reviewer, first, stop, int(bulk), undoes, source)
    db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    return int(batch)


def _read_entries(db: sqlite3.Connection, where: str, values: Sequence[Any]) -> list[Entry]:
    return [
        Entry(
            seq, batch, time, reviewer, TABLES[table], row, VERDICTS[verdict],
            None if name is None else Replacement(entity, key, name), bool(undone),
        )
        for seq, batch, time, reviewer, table, row, verdict, entity, key, name, undone
        in db.execute(f"{_ENTRIES} {where}", values)
    ]  # fmt: skip


def _read_last_marks(
    db: sqlite3.Connection, where: str, values: Sequence[Any]
) -> tuple[Array, Array]:
    """Return the last mark of each reviewer on each row that is not undone, by row.

    Returns (M,) of `_MARK_TYPE`, and (M,) bool, whether it was made in bulk.
    """
    query = f"SELECT row, seq, batch, verdict, name IS NOT NULL FROM marks {where}"
    marks = np.fromiter(iter(db.execute(query, values)), _MARK_TYPE)
    # Only the batches of these marks are read: there may be as many batches as marks.
    used, place = np.unique(marks["batch"], return_inverse=True)
    batches = db.execute(
        "SELECT reviewer, bulk, EXISTS (SELECT 1 FROM batches u WHERE u.undoes = b.batch) "
        "FROM batches b WHERE batch IN (SELECT value FROM json_each(?)) ORDER BY batch",
        (json.dumps(used.tolist()),),
    ).fetchall()
    numbers: dict[str, int] = {}
    # (B, 3) number of the reviewer, whether in bulk, whether undone; then (M,) of each mark.
    columns = np.array(
        [(numbers.setdefault(name, len(numbers)), *flags) for name, *flags in batches], np.int64
    ).reshape(-1, 3)
    owner, bulk, undone = columns[place].T
    kept = undone == 0
    marks, owner, bulk = marks[kept], owner[kept], bulk[kept] == 1
    order = np.lexsort((marks["seq"], owner, marks["row"]))
    last = order[_groups(marks["row"][order], owner[order])[1] - 1]
    return marks[last], bulk[last]


def _groups(*columns: Array) -> tuple[Array, Array]:
    """Return the first row of each group of equal rows, and one past its last row."""
    starts = group_starts(*columns)
    stops = np.append(starts[1:], len(columns[0])) if len(starts) else starts
    return starts, stops


def _decide(db: sqlite3.Connection, marks: Array, bulk: Array) -> Verdicts:
    """Return the verdict of each row from the last marks of its reviewers.

    marks: (M,) of `_MARK_TYPE`, by row. bulk: (M,) bool.
    """
    kept = marks["verdict"] != OPEN
    marks, bulk = marks[kept], bulk[kept]
    starts, stops = _groups(marks["row"])
    if not len(starts):
        none = np.zeros(0, np.int64)
        return Verdicts(none, none.astype(np.int8), {}, none.astype(bool))
    accepts, rejects = (
        np.add.reduceat((marks["verdict"] == verdict).astype(np.int64), starts)
        for verdict in (ACCEPT, REJECT)
    )
    state = np.select(
        [accepts > rejects, accepts < rejects, accepts > 0], [ACCEPTED, REJECTED, DISPUTED], SKIPPED
    ).astype(np.int8)
    # Whether a mark has the verdict of its row, in which case it was looked at unless in bulk.
    of_verdict = np.array([ACCEPTED, REJECTED, SKIPPED])[marks["verdict"]]
    agrees = of_verdict == np.repeat(state, stops - starts)
    looked_at = np.logical_or.reduceat(agrees & ~bulk, starts)
    # Of the accepting marks of accepted rows the last counts, by seq, with or without replacement.
    accepting = np.flatnonzero(agrees & (marks["verdict"] == ACCEPT))
    accepting = accepting[np.lexsort((marks["seq"][accepting], marks["row"][accepting]))]
    chosen = marks[accepting[_groups(marks["row"][accepting])[1] - 1]]
    replacements = _read_replacements(db, chosen[chosen["replaced"] == 1])
    return Verdicts(marks["row"][starts], state, replacements, looked_at)


def _read_replacements(db: sqlite3.Connection, marks: Array) -> dict[int, Replacement]:
    """Return the replacements of marks by row."""
    query = "SELECT row, entity, key, name FROM marks WHERE seq IN (SELECT value FROM json_each(?))"
    values = json.dumps(marks["seq"].tolist())
    return {row: Replacement(*rest) for row, *rest in db.execute(query, (values,))}


def _differ(db: sqlite3.Connection, marks: Array) -> bool:
    """Tell whether marks of one row differ in verdict or in the accepted value."""
    replaced = _read_values(db, marks)
    return len({(int(mark["verdict"]), replaced.get(int(mark["seq"]))) for mark in marks}) > 1


def _read_values(db: sqlite3.Connection, marks: Array) -> dict[int, tuple[Any, ...]]:
    """Return the accepted values by seq, of the marks that replace one."""
    query = "SELECT entity, key, name FROM marks WHERE seq = ?"
    return {
        int(seq): db.execute(query, (int(seq),)).fetchone()
        for seq in marks["seq"][marks["replaced"] == 1]
    }
