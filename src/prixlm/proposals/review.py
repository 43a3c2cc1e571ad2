"""Review: a person marks proposals in a spreadsheet, and the marks correct the confidence.

    write_review("proposals", "review.tsv")         # a column `mark` to fill in
    read_review("proposals", "review.tsv")          # accept, reject, or open to remove a mark

Proposed labels and links are lines of the sheet too, with ids such as `name 3` and `link 5`. Marks
are stored in the proposals folder (`marks.json`) and accumulate over reviews. An export leaves out
rejected proposals, or takes only accepted ones. All marks together correct the confidence of every
proposal: a few marks change it little.

A spreadsheet may change the text of a name (007 becomes 7). So every line ends with a checksum of
its names, written in letters, which shows that the line still belongs to its proposal.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.files import check_new_file, disk_errors, replacing, write_atomically
from prixlm.proposals.tables import MARKS_FILE, read_manifest
from prixlm.types import Array

TABLES = {"proposals": "", "labels": "name ", "links": "link "}
"""The tables that can be marked, and the prefix of their ids in a sheet."""
_MARKS = ("accept", "reject", "open", "")
_COLUMNS = [
    "mark", "id", "lang", "subject", "relation", "object", "confidence", "why", "stated in",
    "runner-up", "check",
]  # fmt: skip
_BATCH_ROWS = 1 << 14
_PRIOR_DEVIATION = 0.5
"""Standard deviation of the two parameters of the correction before any mark."""


@dataclass(frozen=True)
class ReviewCounts:
    """Number of proposals by mark."""

    accepted: int
    rejected: int
    open: int


def write_review(folder: Path | str, out: Path | str, most: int | None = None) -> int:
    """Write proposals as a TSV sheet and return the number of lines.

    most: write the first proposals of each table only.
    """
    folder, out = Path(folder), Path(out)
    read_manifest(folder)
    if most is not None and most < 1:
        raise PrixError(f"--most {most}: expected 1 or more.")
    check_new_file(out)
    words = {True: "accept", False: "reject", None: ""}
    number = 0
    with (
        disk_errors(out),
        replacing(out) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        file.write("\t".join(_COLUMNS) + "\n")
        for table, prefix in TABLES.items():
            marks = read_marks(folder, table)
            for row_number, row in enumerate(itertools.islice(_rows(folder, table), most)):
                statement = _statement(row, table)
                cells = [words[marks.get(row_number)], f"{prefix}{row_number}", *statement]
                cells += [f"{row['confidence']:.3f}", row.get("why", "")]
                cells += [" ".join(row.get("origin", ())), row.get("runner_up") or ""]
                cells.append(_as_letters(_checksum(statement)))
                file.write("\t".join(map(_quote, cells)) + "\n")
                number += 1
    return number


def read_review(folder: Path | str, path: Path | str) -> ReviewCounts:
    """Take over the marks of a sheet. If one line is wrong, no mark is taken."""
    folder, path = Path(folder), Path(path)
    read_manifest(folder)
    # There may be millions of proposals: one number is kept of each.
    checksums = {
        table: np.fromiter(
            (_checksum(_statement(row, table)) for row in _rows(folder, table)), np.int64
        )
        for table in TABLES
    }
    marks: dict[tuple[str, int], str] = {}
    for line, row in _read_sheet(path):
        mark = (row.get("mark") or "").strip().casefold()
        if mark not in _MARKS:
            raise PrixError(
                f"{path} line {line}: mark {mark!r}, expected accept, reject, open or an empty "
                "cell."
            )
        table, number = _check_line(row, checksums, folder, f"{path} line {line}")
        if mark and marks.get((table, number), mark) != mark:
            raise PrixError(
                f"{path} line {line}: proposal {row['id']} has two different marks; keep one."
            )
        if mark:
            marks[table, number] = mark
    values = _add_marks(folder, marks)
    total = sum(map(len, checksums.values()))
    return ReviewCounts(values.count(True), values.count(False), total - len(values))


def _check_line(
    row: dict[str, str], checksums: dict[str, Array], folder: Path, where: str
) -> tuple[str, int]:
    """Return the table and row number of a line's proposal; refuse a line of another one."""
    text = (row.get("id") or "").strip()
    table, number = _parse_id(text)
    if not 0 <= number < len(checksums[table]):
        raise PrixError(f"{where}: there is no proposal {text!r} in {folder}.")
    names = [row.get(column) or "" for column in ("lang", "subject", "relation", "object")]
    # Sheets of version 0.1 have no checksum: it is made from the names.
    check = (row.get("check") or "").strip() or _as_letters(_checksum(names))
    if check != _as_letters(int(checksums[table][number])):
        # Only the wrong line is worth a second pass over the table, for the names.
        proposal = next(itertools.islice(_rows(folder, table), number, None))
        raise PrixError(
            f"{where}: proposal {text} of {folder} is {' · '.join(_statement(proposal, table))}. "
            "The sheet is of other proposals, or its cells were moved."
        )
    return table, number


def _parse_id(text: str) -> tuple[str, int]:
    """Return the table and row number of an id; -1 if it is not an id."""
    # The proposals come last: their prefix is empty, so it would match any id.
    for table, prefix in reversed(TABLES.items()):
        digits = text.removeprefix(prefix)
        if text.startswith(prefix) and digits.isascii() and digits.isdecimal():
            return table, int(digits)
    return "proposals", -1


def _statement(row: dict[str, Any], table: str) -> tuple[str, ...]:
    """Return language, subject, relation and object of a proposal as a person reads them."""
    if table == "labels":
        return row["lang"], row["key"], "name", row["name"]
    if table == "links":
        return row["lang"], row["name"], f"same as ({row['other_lang']})", row["other_name"]
    return row["lang"], row["subject_name"], row["relation_name"], row["object_name"]


def _rows(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, if the folder has it."""
    path = folder / f"{table}.parquet"
    if path.is_file():
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                yield from batch.to_pylist()


def _read_sheet(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and cells by column, whether a spreadsheet quoted the cells or not."""
    try:
        # Spreadsheets put a byte-order mark first and end lines with \r\n.
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            columns = _split_cells(file.readline())
            for column in ("mark", "id"):
                if column not in columns:
                    raise PrixError(
                        f"{path} has no column {column!r}: expected a sheet of `prixlm review`."
                    )
            for number, line in enumerate(file, start=2):
                if line.strip():
                    yield number, dict(zip(columns, _split_cells(line), strict=False))
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"{path} cannot be read as text: {error}.") from None


def _split_cells(line: str) -> list[str]:
    return [_unquote(cell) for cell in line.rstrip("\r\n").split("\t")]


def _quote(value: str) -> str:
    """Return a cell in one line, quoted if necessary.

    An apostrophe keeps a spreadsheet from running a name that looks like a formula.
    """
    text = " ".join(value.split())
    text = f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return '"' + text.replace('"', '""') + '"' if '"' in text else text


def _unquote(cell: str) -> str:
    if len(cell) >= 2 and cell[0] == cell[-1] == '"':
        return cell[1:-1].replace('""', '"')
    return cell


def _checksum(names: Sequence[str]) -> int:
    """Return 63 bits of a hash of names, without the characters that spreadsheets change."""
    text = "\t".join(
        "".join(letter for letter in name if letter not in "\"'“”‘’" and not letter.isspace())
        for name in names
    )
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def _as_letters(checksum: int) -> str:
    """Write a checksum in the letters a to p, so that a spreadsheet takes it for text."""
    return f"{checksum:016x}".translate(str.maketrans("0123456789abcdef", "abcdefghijklmnop"))


def read_marks(folder: Path | str, table: str = "proposals") -> dict[int, bool]:
    """Return the marks of a table by row number: True if accepted."""
    path = Path(folder) / MARKS_FILE
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text("utf-8"))
        if not set(values) <= set(TABLES):
            raise ValueError(f"tables {', '.join(values)}, expected {', '.join(TABLES)}")
        return {int(number): bool(mark) for number, mark in values.get(table, {}).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PrixError(
            f"{path} cannot be read ({error}): delete it and read the review again."
        ) from None


def _add_marks(folder: Path, new_marks: dict[tuple[str, int], str]) -> list[bool]:
    """Add marks by table and row number to the stored ones; return the values of all marks."""
    marks = {table: read_marks(folder, table) for table in TABLES}
    for (table, number), mark in new_marks.items():
        if mark == "open":
            marks[table].pop(number, None)
        else:
            marks[table][number] = mark == "accept"
    as_json = {
        table: {str(number): values[number] for number in sorted(values)}
        for table, values in marks.items()
    }
    write_atomically(folder / MARKS_FILE, json.dumps(as_json, indent=0) + "\n")
    return [mark for values in marks.values() for mark in values.values()]


def corrected_confidence(folder: Path | str, table: str = "proposals") -> Array:
    """Return the confidence of every row of a table, corrected by its marks: (N,)."""
    path = Path(folder) / f"{table}.parquet"
    confidence = pq.read_table(path, columns=["confidence"])["confidence"].to_numpy()
    return correct_confidence(confidence, read_marks(folder, table))


def correct_confidence(confidence: Array, marks: dict[int, bool]) -> Array:
    """Correct confidences by marks of some rows: Platt scaling with a prior.

    The log-odds x become a x + b. Before any mark, log a and b have a normal prior around 0 with
    deviation `_PRIOR_DEVIATION`; the marks move both to their most probable values. Without a
    rejection nothing changes: reviewers accept the obvious ones first, and that says nothing about
    the doubtful ones.

    confidence: (N,). marks: by row number.
    """
    if all(marks.values()):
        return confidence
    from scipy.optimize import minimize

    rows = np.array(sorted(marks))
    sign = np.where([marks[row] for row in rows], 1.0, -1.0)
    log_odds = _log_odds(confidence)
    marked = log_odds[rows]

    # Negative log-posterior of (log a, b): logistic loss of the marked rows, and the prior.
    def loss(parameters: Array) -> float:
        scaled = np.exp(parameters[0]) * marked + parameters[1]
        prior = (parameters**2).sum() / (2 * _PRIOR_DEVIATION**2)
        return float(np.logaddexp(0.0, -sign * scaled).sum() + prior)

    log_scale, shift = minimize(loss, np.zeros(2), method="BFGS").x
    return np.asarray(1 / (1 + np.exp(-(np.exp(log_scale) * log_odds + shift))))


def _log_odds(confidence: Array) -> Array:
    clipped = np.clip(confidence, 1e-4, 1 - 1e-4)
    return np.asarray(np.log(clipped / (1 - clipped)))
