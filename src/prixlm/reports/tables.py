"""The one type for tables of results, with its JSON and Markdown.

    table = ResultTable("accuracy@1", subset="names that differ")
    table.add_questions("string similarity", "fi", ranks <= 1)      # mean, number and interval
    write_tables(Path("out"), "xel", [table])        # out/xel.json and out/xel.md

Every task reports its results as these tables: a row per method, a column per language or figure.
Values are shares from 0 to 1 and are shown in per cent, with half of their 95 % interval after ±.
`console.print_tables` prints the tables on a terminal and `plots.plot_tables` draws them. The value
of every question is written too, so that rows can be compared (`comparing`).
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.config import checked
from prixlm.engine.overwriting import check_pages
from prixlm.errors import PrixError
from prixlm.files import alone, replacing, write_atomically
from prixlm.files import read_json as parse_json
from prixlm.metrics import Interval, bootstrap_mean
from prixlm.types import Array

MEAN = "mean"
"""Header of the last column: the plain mean over all others, as in the paper."""
UNKNOWN = "–"
BOOTSTRAP = "half of the 95 % interval, a bootstrap over the questions"
"""What stands after ±, unless a table is made of several runs."""
QUESTIONS = pa.schema(
    {
        "table": pa.string(),
        "row": pa.string(),
        "column": pa.string(),
        "values": pa.list_(pa.float32()),
    }
)
"""Columns of the values of single questions."""
_NAN = float("nan")
_KINDS: dict[str, Any] = {
    "title": str,
    "rows": dict[str, dict[str, float | None]],
    "numbers": dict[str, int],
    # These are not in files of version 0.1.
    "metric": str,
    "candidates": str,
    "subset": str,
    "own_numbers": dict[str, dict[str, int]],
    "intervals": dict[str, dict[str, list[float]]],
    "spread": str,
    "details": dict[str, dict[str, str]],
    "notes": list[str],
    "has_mean": bool,
    "parallel": bool,
}
"""Kinds of the values of a table in JSON."""


class Cell(NamedTuple):
    """One result."""

    value: float  # share from 0 to 1; NaN where nothing was asked
    number: int | None = None  # questions that it is a share of
    interval: Interval | None = None  # how far it would move with other questions or another seed


@dataclass(frozen=True)
class ResultTable:
    """Results of one metric by method and column."""

    metric: str
    candidates: str = ""  # what answers were ranked among, if there is a choice
    subset: str = ""  # which of the questions were counted; all if empty
    rows: dict[str, dict[str, Cell]] = field(default_factory=dict)  # by method, then column
    details: dict[str, dict[str, str]] = field(default_factory=dict)  # further columns of text
    notes: list[str] = field(default_factory=list)  # sentences below the table
    has_mean: bool = True  # False if the columns are different figures
    spread: str = BOOTSTRAP  # what the intervals are
    parallel: bool = False  # the columns ask the same questions, in translation
    # By method and column: (N,) the value of each question. Written beside the JSON, not in it.
    questions: dict[tuple[str, str], Array] = field(default_factory=dict, compare=False)

    def add(
        self,
        method: str,
        column: str,
        value: float,
        number: int | None = None,
        interval: Interval | None = None,
    ) -> None:
        """Set the result of a method in a column; rows and columns keep the order of adding."""
        if interval is not None and interval.low != interval.low:  # nothing was asked
            interval = None
        self.rows.setdefault(method, {})[column] = Cell(value, number, interval)

    def add_questions(self, method: str, column: str, values: Array) -> None:
        """Set a result to the mean of the (N,) values of its questions, with its interval."""
        values = np.asarray(values, float)
        mean = float(values.mean()) if len(values) else _NAN
        self.add(method, column, mean, len(values), bootstrap_mean(values))
        self.questions[method, column] = values.astype(np.float32)

    @property
    def title(self) -> str:
        """The metric, the candidates and the subset in one line."""
        among = f" among {self.candidates}" if self.candidates else ""
        return self.metric + among + (f", {self.subset}" if self.subset else "")

    def columns(self) -> list[str]:
        """Return the columns in the order in which they were added."""
        return list(dict.fromkeys(column for row in self.rows.values() for column in row))

    def values(self, method: str) -> dict[str, float]:
        """Return the results of a method by column, NaN where it has none."""
        row = self.rows[method]
        return {column: row[column].value if column in row else _NAN for column in self.columns()}

    def mean(self, method: str) -> float:
        """Return the plain mean over all columns; NaN if one is unknown."""
        # A NaN makes the sum NaN: a mean over fewer languages could not be compared.
        values = self.values(method).values()
        return sum(values) / len(values) if values else _NAN

    def half_width(self, method: str, column: str) -> float:
        """Return half of the interval of a result; NaN if it has none.

        The mean's follows from those of the columns. Columns of other questions are independent;
        those of the same questions may rise and fall together, which is the widest case.
        """
        if column == MEAN and self._shows_mean():
            halves = [self.half_width(method, one) for one in self.columns()]
            total = sum(halves) if self.parallel else math.sqrt(sum(half**2 for half in halves))
            return total / len(halves)
        cell = self.rows[method].get(column)
        return _NAN if cell is None or cell.interval is None else cell.interval.half_width

    def widest(self) -> list[str]:
        """Return the largest half-width of every column, as `header_parts` orders them."""
        columns = [*self.columns(), *([MEAN] if self._shows_mean() else [])]
        texts = []
        for column in columns:
            halves = [self.half_width(method, column) for method in self.rows]
            texts.append(percent(max((half for half in halves if half == half), default=_NAN)))
        return [*texts, *("" for _ in self._detail_columns())]

    def has_intervals(self) -> bool:
        """Tell whether any result has an interval."""
        return any(cell.interval for row in self.rows.values() for cell in row.values())

    def numbers(self) -> dict[str, int]:
        """Return the number of questions of each column whose rows agree on it."""
        numbers: dict[str, set[int]] = {}
        for row in self.rows.values():
            for column, cell in row.items():
                if cell.number is not None:
                    numbers.setdefault(column, set()).add(cell.number)
        return {column: number for column, (number, *more) in numbers.items() if not more}

    def header_parts(self) -> list[tuple[str, str]]:
        """Return the columns after the method, each with its number of questions, if known."""
        numbers = self.numbers()
        parts = [(c, f"{numbers[c]:,}" if c in numbers else "") for c in self.columns()]
        further = [*([MEAN] if self._shows_mean() else []), *self._detail_columns()]
        return parts + [(column, "") for column in further]

    def headers(self) -> list[str]:
        """Return the headers of the columns after the method: `fi (1,234)`."""
        return [f"{name} ({number})" if number else name for name, number in self.header_parts()]

    def cells(self, method: str, *, intervals: bool = False) -> list[str]:
        """Return the texts of a row: per cent, with the number where rows differ in it.

        intervals: with half of the interval after ±.
        """
        numbers, row = self.numbers(), self.rows[method]
        cells = []
        # A number that all rows share is in the header; see `header_parts`.
        for column, value in self.values(method).items():
            number = row[column].number if column in row and column not in numbers else None
            text = percent(value) + (self._plus_minus(method, column) if intervals else "")
            cells.append(text + (f" ({number:,})" if number is not None else ""))
        if self._shows_mean():
            text = percent(self.mean(method))
            cells.append(text + (self._plus_minus(method, MEAN) if intervals else ""))
        details = self.details.get(method, {})
        return [*cells, *(details.get(column, "") for column in self._detail_columns())]

    def _plus_minus(self, method: str, column: str) -> str:
        half = self.half_width(method, column)
        return "" if half != half else f" ± {percent(half)}"

    def _shows_mean(self) -> bool:
        return self.has_mean and len(self.columns()) > 1

    def _detail_columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.details.values() for column in row))

    def to_json(self) -> dict[str, Any]:
        """Return the table for JSON, which has no NaN: an unknown value is null."""
        # As in the text: a number by column where rows agree on it, else by row and column.
        numbers = self.numbers()
        row_numbers = {
            method: {
                column: cell.number
                for column, cell in row.items()
                if cell.number is not None and column not in numbers
            }
            for method, row in self.rows.items()
        }
        values = {
            method: {c: None if cell.value != cell.value else cell.value for c, cell in row.items()}
            for method, row in self.rows.items()
        }
        intervals = {
            method: {column: [*cell.interval] for column, cell in row.items() if cell.interval}
            for method, row in self.rows.items()
        }
        return {
            "title": self.title,
            "metric": self.metric,
            "candidates": self.candidates,
            "subset": self.subset,
            "rows": values,
            "numbers": numbers,
            "own_numbers": {method: row for method, row in row_numbers.items() if row},
            "intervals": {method: row for method, row in intervals.items() if row},
            "spread": self.spread,
            "details": self.details,
            "notes": self.notes,
            "has_mean": self.has_mean,
            "parallel": self.parallel,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ResultTable":
        """Read what `to_json` returned, or a file of version 0.1, which has the title alone."""
        checked(values, _KINDS, optional=_KINDS.keys() - {"title", "rows", "numbers"})
        numbers, row_numbers = values["numbers"], values.get("own_numbers", {})
        intervals = values.get("intervals", {})  # not in files of version 0.1
        rows = {
            method: {
                column: Cell(
                    _NAN if value is None else float(value),
                    row_numbers.get(method, {}).get(column, numbers.get(column)),
                    Interval(*ends) if (ends := intervals.get(method, {}).get(column)) else None,
                )
                for column, value in row.items()
            }
            for method, row in values["rows"].items()
        }
        return cls(
            values.get("metric", values["title"]),
            values.get("candidates", ""),
            values.get("subset", ""),
            rows,
            values.get("details", {}),
            values.get("notes", []),
            values.get("has_mean", True),
            values.get("spread", BOOTSTRAP),
            values.get("parallel", False),
        )


def percent(value: float) -> str:
    """Return a share as per cent with one decimal."""
    return UNKNOWN if value != value else f"{100 * value:.1f}"


def tables_to_json(tables: Iterable[ResultTable]) -> list[dict[str, Any]]:
    """Return tables as JSON values."""
    return [table.to_json() for table in tables]


def tables_markdown(tables: Iterable[ResultTable]) -> str:
    """Return tables as Markdown, one below the other."""
    parts = []
    for table in tables:
        headers = [plain(name) for name in table.headers()]
        lines = [
            f"**{plain(table.title)}** (%)",
            "",
            "| row | " + " | ".join(headers) + " |",
            "| --- |" + " ---: |" * len(headers),
            *(
                f"| {plain(method)} | "
                + " | ".join(map(plain, table.cells(method, intervals=True)))
                + " |"
                for method in table.rows
            ),
        ]
        lines += [f"\n±: {plain(table.spread)}."] if table.has_intervals() else []
        lines += [f"\n{plain(note)}" for note in table.notes]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def plain(text: object) -> str:
    """Escape text for Markdown, so that nothing in a name is read as markup."""
    # A line end would end the table's row, and `<` would begin HTML, which no backslash escapes.
    escaped = " ".join(str(text).split()).replace("<", "&lt;")
    return re.sub(r"([\\|\[\]`*_!])", r"\\\1", escaped)


def write_tables(to: Path, name: str, tables: Sequence[ResultTable]) -> None:
    """Write `name.md` and `name.json` into a folder; refuse to overwrite files of others.

    The values of single questions, if the tables have them, are written to `name.parquet`.
    """
    data, pages = to / f"{name}.json", [to / f"{name}.md", to / f"{name}.parquet"]
    check_pages(data, pages, _are_tables)
    to.mkdir(parents=True, exist_ok=True)
    text = json.dumps(tables_to_json(tables), ensure_ascii=False, indent=1)
    with alone(data):
        # The data go first: after a kill in between, they tell that the page is ours.
        write_atomically(data, text + "\n")
        write_atomically(pages[0], tables_markdown(tables))
        _write_questions(pages[1], tables)


def _write_questions(path: Path, tables: Sequence[ResultTable]) -> None:
    """Write a row for each result that has them: its table, row and column, and the values."""
    rows = [
        {"table": table.title, "row": row, "column": column, "values": values}
        for table in tables
        for (row, column), values in table.questions.items()
    ]
    if not rows:  # nor may those of an earlier table stay
        path.unlink(missing_ok=True)
        return
    with replacing(path) as temporary:
        written = pa.Table.from_pylist(rows, QUESTIONS)
        pq.write_table(written, temporary, compression="zstd")


def _are_tables(values: Any) -> bool:
    """Tell whether these are the values of a file that `write_tables` wrote."""
    return isinstance(values, list) and all(isinstance(v, dict) and "rows" in v for v in values)


def read_tables(path: Path) -> list[ResultTable]:
    """Read the JSON that `write_tables` wrote."""
    return tables_from_json(read_json(path), path)


def tables_from_json(values: Any, path: Path) -> list[ResultTable]:
    """Return the tables of a parsed JSON file; `path` is for the error."""
    try:
        return [ResultTable.from_json(table) for table in values]
    except (TypeError, ValueError) as error:
        raise PrixError(
            f"{path} does not hold result tables ({error}): expected the JSON that "
            "`prixlm evaluate --to` or `prixlm reproduce` wrote."
        ) from None


def read_json(path: Path) -> Any:
    """Parse a JSON file; refuse it in one line if it cannot be read."""
    try:
        return parse_json(path)
    except (OSError, ValueError) as error:
        raise PrixError(f"{path} cannot be read as JSON: {error}.") from None


def name_rows(folders: Sequence[Path]) -> dict[str, Path]:
    """Name the row of each folder or file by the shortest end of its path that is unique."""
    if len(set(folders)) < len(folders):
        raise PrixError(f"{max(folders, key=folders.count)} is given twice.")
    # Take more and more of the last folders until all names differ.
    most = max((len(path.parts) for path in folders), default=0)  # 0 of an empty path
    for length in range(1, 1 + max(1, most)):
        titles = {"/".join(path.parts[-length:]): path for path in folders}
        if len(titles) == len(folders):
            break
    return titles
