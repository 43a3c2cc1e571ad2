"""The proposals of a folder in memory: the columns that filters and orders need, and single rows.

    columns = read_columns(folder)
    columns.row[columns.slices["facts"]]        # the facts, the most confident first
    RowReader(path).read(numbers)               # full rows of a Parquet table

Names and evidence stay in the Parquet files. A *place* is an index into the columns: facts, then
labels, then links, each by falling confidence, then by row.

N: proposals of all tables. C: distinct combinations of table, language, relation and kind.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.proposals.confidence import log_odds
from prixlm.proposals.tables import TABLES, check_confidence, table_path
from prixlm.types import Array

_SUBJECTS = {"facts": "subject", "labels": "concept", "links": "entity"}
"""The column that says what a row is about."""
_CACHED_BYTES = 256 << 20
"""Decoded row groups that a reader keeps."""


@dataclass(frozen=True)
class Columns:
    """What is known of all proposals without their names: (N,) by place, unless said otherwise."""

    table: Array  # int8, number in TABLES
    row: Array  # int32, in its table
    place: dict[str, Array]  # by table: (rows,) int32, place of each row
    slices: dict[str, slice]  # by table: its places
    confidence: Array  # float64, as proposed
    odds: Array  # float64, log-odds of the confidence
    relation: Array  # int32, -1 for labels and links
    subject: Array  # int32, entity of a fact or link, concept of a label
    langs: list[str]
    lang: Array  # int16, number in `langs`
    kinds: list[str]
    kind: Array  # int8, number in `kinds`, -1 for labels and links
    cells: Array  # (C, 4) int64, the combinations of table, language, relation and kind
    cell: Array  # int32, number in `cells`


def read_columns(folder: Path) -> Columns:
    """Read the columns of all tables that a folder has."""
    tables = [_read_table(folder, table) for table in TABLES]
    counts = [len(one.confidence) for one in tables]
    stops = np.cumsum(counts).tolist()
    slices = {
        table: slice(stop - count, stop)
        for table, count, stop in zip(TABLES, counts, stops, strict=True)
    }
    # By falling confidence, then by row: for each table (rows,) the row of each of its places.
    orders = [np.argsort(-one.confidence, kind="stable") for one in tables]
    place = {}
    for name, order in zip(TABLES, orders, strict=True):
        place[name] = np.empty(len(order), np.int32)
        place[name][order] = np.arange(len(order)) + slices[name].start

    def gather(values: Sequence[Array], dtype: Any) -> Array:
        """Return a column of all tables by place, from those by row."""
        parts = [one[order] for one, order in zip(values, orders, strict=True)]
        return np.concatenate(parts).astype(dtype, copy=False)

    langs = sorted({lang for one in tables for lang in one.langs})
    kinds = sorted({kind for one in tables for kind in one.kinds})
    table = np.repeat(np.arange(len(TABLES), dtype=np.int8), counts)
    relation = gather([one.relation for one in tables], np.int32)
    lang = gather([_renumber(one.langs, one.lang, langs) for one in tables], np.int16)
    kind = gather([_renumber(one.kinds, one.kind, kinds) for one in tables], np.int8)
    confidence = gather([one.confidence for one in tables], np.float64)
    cells, cell = _find_cells(table, lang, relation, kind)
    return Columns(
        table=table,
        row=np.concatenate(orders).astype(np.int32),
        place=place,
        slices=slices,
        confidence=confidence,
        odds=log_odds(confidence),
        relation=relation,
        subject=gather([one.subject for one in tables], np.int32),
        langs=langs,
        lang=lang,
        kinds=kinds,
        kind=kind,
        cells=cells,
        cell=cell,
    )


def _find_cells(table: Array, lang: Array, relation: Array, kind: Array) -> tuple[Array, Array]:
    """Return the distinct combinations of four columns, (C, 4), and the number of each row's, (N,).

    A combination is packed into one int64, in 8, 16, 32 and 8 bits; -1 is stored as 0.
    """
    packed = (table.astype(np.int64) << 56) | ((lang + 1).astype(np.int64) << 40)
    packed |= ((relation + 1).astype(np.int64) << 8) | (kind + 1)
    found, cell = np.unique(packed, return_inverse=True)
    parts = [found >> 56, (found >> 40) & 0xFFFF, (found >> 8) & 0xFFFFFFFF, found & 0xFF]
    return np.stack(parts, axis=1) - np.array([0, 1, 1, 1]), cell.astype(np.int32)


class RowReader:
    """Rows of a Parquet file by number; the row groups that were read last stay in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._metadata = metadata = pq.read_metadata(path)
        counts = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        self._stops = np.cumsum(counts)
        self._lock = threading.Lock()
        self._groups: OrderedDict[int, pa.Table] = OrderedDict()

    def read(self, numbers: Array) -> list[dict[str, Any]]:
        """Return rows in the order of `numbers`."""
        group = np.searchsorted(self._stops, numbers, side="right")
        found: list[dict[str, Any]] = [{}] * len(numbers)
        for one in np.unique(group):
            wanted = np.flatnonzero(group == one)
            table = self._group(int(one))
            first = int(self._stops[one]) - table.num_rows
            rows = table.take(pa.array(numbers[wanted] - first)).to_pylist()
            for place, row in zip(wanted, rows, strict=True):
                found[place] = row
        return found

    def _group(self, number: int) -> pa.Table:
        with self._lock:
            if number in self._groups:
                self._groups.move_to_end(number)
                return self._groups[number]
            with pq.ParquetFile(self._path, metadata=self._metadata) as file:
                table = file.read_row_group(number, use_threads=False)
            self._groups[number] = table
            while sum(one.nbytes for one in self._groups.values()) > _CACHED_BYTES:
                if len(self._groups) == 1:
                    break
                self._groups.popitem(last=False)
            return table


@dataclass(frozen=True)
class _Table:
    """The columns of one table as its file has them: (rows,) each."""

    confidence: Array
    relation: Array  # -1 for labels and links
    subject: Array
    langs: list[str]
    lang: Array  # number in `langs`
    kinds: list[str]
    kind: Array  # number in `kinds`, -1 for labels and links


def _read_table(folder: Path, table: str) -> _Table:
    """Read the columns of a table; empty ones if the folder does not have it."""
    path = table_path(folder, table)
    none = np.zeros(0, np.int32)
    if not path.is_file():
        return _Table(none.astype(np.float64), none, none, [], none, [], none)
    words = ["lang", "why"] if table == "facts" else ["lang"]
    numbers = ["relation"] if table == "facts" else []
    names = ["confidence", _SUBJECTS[table], *words, *numbers]
    found = pq.read_table(path, columns=names, read_dictionary=words)
    confidence = found["confidence"].to_numpy()
    check_confidence(path, confidence)
    # Labels and links have neither a relation nor a kind.
    missing = np.full(found.num_rows, -1, np.int32)
    return _Table(
        confidence,
        found["relation"].to_numpy() if table == "facts" else missing,
        found[_SUBJECTS[table]].to_numpy(),
        *_read_codes(found["lang"]),
        *(_read_codes(found["why"]) if table == "facts" else ([], missing)),
    )


def _read_codes(column: pa.ChunkedArray) -> tuple[list[str], Array]:
    """Return the distinct values of a dictionary column, and the number of each row's value."""
    chunks = column.unify_dictionaries().chunks
    if not chunks:
        return [], np.zeros(0, np.int32)
    codes = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in chunks]
    return chunks[0].dictionary.to_pylist(), np.concatenate(codes)


def _renumber(values: list[str], codes: Array, everything: list[str]) -> Array:
    """Number values by their place in another list; -1 stays."""
    places = np.array([everything.index(value) for value in values] + [-1], np.int16)
    return np.asarray(places[codes])
