"""Review in a spreadsheet: a sheet of proposals with a column `mark`, and back.

    write_review("proposals", "review.tsv")                     # fill in the column `mark`
    read_review("proposals", "review.tsv", reviewer="Anna")     # accept, reject, skip or open

Proposed labels and links are lines of the sheet too, with ids such as `name 3` and `link 5`. The
sheet shows the verdict of all reviewers and adds to the same `marks` as the page. The column `was`
keeps what a line showed, so that only marks that a person changed are taken over, even if others
have marked since.

A spreadsheet may change the text of a name (007 becomes 7). So every line ends with a checksum of
its names, written in letters, which shows that the line still belongs to its proposal.
"""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from prixlm.engine.overwriting import check_new_file
from prixlm.errors import PrixError
from prixlm.files import disk_errors, replacing
from prixlm.proposals.marks import (
    ACCEPTED,
    DISPUTED,
    REJECTED,
    SHEET,
    SKIPPED,
    VERDICTS,
    Marks,
    NewMark,
    Verdicts,
)
from prixlm.proposals.tables import read_manifest, table_path
from prixlm.types import Array
from prixlm.untrusted import guard_formula

_PREFIXES = {"facts": "", "labels": "name ", "links": "link "}
"""The tables, and the prefix of their ids in a sheet."""
_COLUMNS = [
    "mark", "id", "lang", "subject", "relation", "object", "confidence", "why", "stated in",
    "runner-up", "instead", "was", "check",
]  # fmt: skip
_WORDS = {ACCEPTED: "accept", REJECTED: "reject", SKIPPED: "skip", DISPUTED: "disputed"}
"""How a sheet writes the state of a row."""
_BATCH_ROWS = 1 << 14


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
    number = 0
    with (
        contextlib.closing(Marks.open(folder, read_only=True)) as marks,
        disk_errors(out),
        replacing(out, new=True) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        file.write("\t".join(_COLUMNS) + "\n")
        for table, prefix in _PREFIXES.items():
            verdicts = marks.verdicts(table)
            words = _words(verdicts)
            for row_number, row in enumerate(itertools.islice(_rows(folder, table), most)):
                statement, was = _statement(row, table), words.get(row_number, "")
                cells = ["" if was == "disputed" else was, f"{prefix}{row_number}", *statement]
                cells += [f"{row['confidence']:.3f}", row.get("why", "")]
                cells += [" ".join(row.get("origin") or ()), row.get("runner_up") or ""]
                replacement = verdicts.replacements.get(row_number)
                cells += ["" if replacement is None else replacement.name, was]
                cells.append(_as_letters(_checksum(statement)))
                file.write("\t".join(map(_quote, cells)) + "\n")
                number += 1
    return number


def read_review(folder: Path | str, path: Path | str, reviewer: str = SHEET) -> ReviewCounts:
    """Add the marks of a sheet that its reader changed. If one line is wrong, no mark is added.

    reviewer: whose marks they are. `open` takes back a mark of this reviewer only.
    """
    folder, path = Path(folder), Path(path)
    read_manifest(folder)
    # There may be millions of proposals: one number is kept of each.
    checksums = {
        table: np.fromiter(
            (_checksum(_statement(row, table)) for row in _rows(folder, table)), np.int64
        )
        for table in _PREFIXES
    }
    with contextlib.closing(Marks.open(folder)) as marks:
        new_marks = _read_marks(folder, path, checksums, marks, reviewer)
        marks.add(reviewer, new_marks)
        verdicts = [marks.verdicts(table) for table in _PREFIXES]
    accepted, rejected = (
        sum(len(table.where(state)) for table in verdicts) for state in (ACCEPTED, REJECTED)
    )
    total = sum(map(len, checksums.values()))
    return ReviewCounts(accepted, rejected, total - accepted - rejected)


def _read_marks(
    folder: Path, path: Path, checksums: dict[str, Array], marks: Marks, reviewer: str
) -> list[NewMark]:
    """Return the marks of a sheet that are neither what it showed nor the reviewer's last ones."""
    shown = {table: _words(marks.verdicts(table)) for table in _PREFIXES}
    own = {
        (table, int(row)): verdict
        for table in _PREFIXES
        for verdict in VERDICTS
        for row in marks.rows_of(reviewer, table, verdict)
    }
    found: dict[tuple[str, int], str] = {}
    changed: list[NewMark] = []
    for line, row in _read_sheet(path):
        mark = (row.get("mark") or "").strip().casefold()
        if mark not in (*VERDICTS, ""):
            raise PrixError(
                f"{path} line {line}: mark {mark!r}, expected {', '.join(VERDICTS)} or an empty "
                "cell."
            )
        place = _check_line(row, checksums, folder, f"{path} line {line}")
        if not mark:
            continue
        if found.setdefault(place, mark) != mark:
            raise PrixError(
                f"{path} line {line}: proposal {row['id']} has two different marks; keep one."
            )
        table, number = place
        # A sheet of version 0.1 does not say what it showed: take what it would show now.
        was = row["was"].strip().casefold() if "was" in row else shown[table].get(number)
        if mark not in (was, own.get(place, "open")):
            changed.append(NewMark(table, number, mark))
            own[place] = mark
    return changed


def _words(verdicts: Verdicts) -> dict[int, str]:
    """Return how a sheet shows the marked rows."""
    pairs = zip(verdicts.rows.tolist(), verdicts.state.tolist(), strict=True)
    return {row: _WORDS[state] for row, state in pairs}


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
    # The facts come last: their prefix is empty, so it would match any id.
    for table, prefix in reversed(_PREFIXES.items()):
        digits = text.removeprefix(prefix)
        if text.startswith(prefix) and digits.isascii() and digits.isdecimal():
            return table, int(digits)
    return "facts", -1


def _statement(row: dict[str, Any], table: str) -> tuple[str, ...]:
    """Return language, subject, relation and object of a proposal as a person reads them."""
    if table == "labels":
        return row["lang"], row["key"], "name", row["name"]
    if table == "links":
        return row["lang"], row["name"], f"same as ({row['other_lang']})", row["other_name"]
    return row["lang"], row["subject_name"], row["relation_name"], row["object_name"]


def _rows(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, if the folder has it."""
    path = table_path(folder, table)
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
    text = guard_formula(" ".join(value.split()))
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
