"""Review: proposals that a person marks in any spreadsheet, and what the marks teach.

    write_review("proposals", "review.tsv")         # a column `mark` to fill in
    read_review("proposals", "review.tsv")          # accept, reject, or open to take a mark back

Names and links that were proposed are lines too, with ids such as `name 3`. Marks lie in the folder
of the proposals (`marks.json`) and add up. Exports leave out what was rejected, or take only what
was accepted. All marks refit the confidence: its log-odds are stretched and moved as they ask for,
and few marks ask for little.
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

from prixlm.enrichment.proposals import read_manifest
from prixlm.errors import PrixError
from prixlm.files import disk_errors, replacing, write_atomically
from prixlm.types import Array

MARKS = {"accept": True, "reject": False, "open": None, "": None}
_COLUMNS = [
    "mark", "id", "lang", "subject", "relation", "object", "confidence", "why", "stated in",
    "runner-up", "check",
]  # fmt: skip
TABLES = {"proposals": "", "labels": "name ", "links": "link "}
"""What can be marked, and what the ids of a review begin with."""
_MARKS = "marks.json"
_PRIOR = 0.5
"""How far log-odds are thought to be off, before any mark: a deviation."""


def write_review(folder: Path | str, out: Path | str, most: int | None = None) -> int:
    """A TSV of the proposals, `most` of each kind at most; how many lines."""
    folder, out = Path(folder), Path(out)
    read_manifest(folder)
    if most is not None and most < 1:
        raise PrixError(f"--most {most}: expected 1 or more.")
    if out.exists():
        raise PrixError(f"{out} is already there: move it, or name another file.")
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
            for place, row in enumerate(itertools.islice(_rows(folder, table), most)):
                cells = [words[marks.get(place)], f"{prefix}{place}", *_told(row, table)]
                cells += [f"{row['confidence']:.3f}", row.get("why", "")]
                cells += [" ".join(row.get("origin", ())), row.get("runner_up") or ""]
                cells.append(_letters(_digest(_told(row, table))))
                file.write("\t".join(_cell(cell) for cell in cells) + "\n")
                number += 1
    return number


def _told(row: dict[str, Any], table: str) -> tuple[str, ...]:
    """Language, subject, relation and object of a proposal, as a person reads them."""
    if table == "labels":
        return row["lang"], row["key"], "name", row["name"]
    if table == "links":
        return row["lang"], row["name"], f"same as ({row['other_lang']})", row["other_name"]
    return (row["lang"], *(row[f"{part}_name"] for part in ("subject", "relation", "object")))


def _rows(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    path = folder / f"{table}.parquet"
    if path.is_file():
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(1 << 14):
                yield from batch.to_pylist()


def _cell(value: Any) -> str:
    """One line, quoted where it has to be, and no formula: a spreadsheet runs what begins so."""
    text = " ".join(str(value).split())
    text = f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return '"' + text.replace('"', '""') + '"' if '"' in text else text


@dataclass(frozen=True)
class Reviewed:
    """What a file of marks said."""

    accepted: int
    rejected: int
    open: int


def read_review(folder: Path | str, path: Path | str) -> Reviewed:
    """Take over the marks of a file; one line that is wrong, and nothing is taken."""
    folder, path = Path(folder), Path(path)
    read_manifest(folder)
    # Of millions of proposals only a number each is kept: two of the same names have the same.
    known = {
        table: np.fromiter((_digest(_told(row, table)) for row in _rows(folder, table)), np.int64)
        for table in TABLES
    }
    found: dict[tuple[str, int], str] = {}
    for line, row in _read(path):
        mark = (row.get("mark") or "").strip().casefold()
        number = (row.get("id") or "").strip()
        if mark not in MARKS:
            raise PrixError(
                f"{path} line {line}: mark {mark!r}, expected accept, reject, open or nothing."
            )
        table, place = _parse_id(number)
        if not 0 <= place < len(known[table]):
            raise PrixError(f"{path} line {line}: no proposal {number!r} in {folder}.")
        # Names may have been changed: a spreadsheet makes 7 of 007. Letters are left alone.
        check = (row.get("check") or "").strip()
        names = [row.get(part) or "" for part in ("lang", "subject", "relation", "object")]
        if (check or _letters(_digest(names))) != _letters(int(known[table][place])):
            own = next(itertools.islice(_rows(folder, table), place, None))
            raise PrixError(
                f"{path} line {line}: proposal {number} is {' · '.join(_told(own, table))} here. "
                "The file is of other proposals, or its lines moved."
            )
        if mark and found.get((table, place), mark) != mark:
            raise PrixError(f"{path} line {line}: proposal {number} is marked twice.")
        if mark:
            found[table, place] = mark
    values = _save_marks(folder, found)
    total = sum(map(len, known.values()))
    return Reviewed(values.count(True), values.count(False), total - len(values))


def _parse_id(text: str) -> tuple[str, int]:
    """The table of a proposal, and its place there; -1 for what is none."""
    for table, prefix in reversed(TABLES.items()):
        rest = text.removeprefix(prefix)
        if text.startswith(prefix) and rest.isascii() and rest.isdecimal():
            return table, int(rest)
    return "proposals", -1


def _save_marks(folder: Path, found: dict[tuple[str, int], str]) -> list[bool]:
    """Add marks to those that are there; all of them now."""
    marks = {table: read_marks(folder, table) for table in TABLES}
    for (table, place), mark in found.items():
        if mark == "open":
            marks[table].pop(place, None)
        else:
            marks[table][place] = mark == "accept"
    plain = {
        table: {str(place): part[place] for place in sorted(part)} for table, part in marks.items()
    }
    write_atomically(folder / _MARKS, json.dumps(plain, indent=0) + "\n")
    return [mark for part in marks.values() for mark in part.values()]


def _digest(names: Sequence[str]) -> int:
    """A number for the names of a proposal, as spreadsheets leave them."""
    text = "\t".join(map(_bare, names)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8]) >> 1


def _letters(number: int) -> str:
    """A number in the letters a to p, which no spreadsheet takes for anything but text."""
    return f"{number:016x}".translate(str.maketrans("0123456789abcdef", "abcdefghijklmnop"))


def _bare(text: str) -> str:
    """A name without what spreadsheets change: quotation marks, spaces, apostrophes."""
    return "".join(letter for letter in text if letter not in "\"'“”‘’" and not letter.isspace())


def _read(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The lines of a review, as we wrote it or as a spreadsheet did, which may quote a cell."""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            names = _cells(file.readline())
            for name in ("mark", "id"):
                if name not in names:
                    raise PrixError(
                        f"{path} has no column {name!r}: expected what `prixlm review` wrote."
                    )
            for number, line in enumerate(file, start=2):
                if line.strip():
                    yield number, dict(zip(names, _cells(line), strict=False))
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"{path} cannot be read as text: {error}.") from None


def _cells(line: str) -> list[str]:
    return [_unquote(cell) for cell in line.rstrip("\r\n").split("\t")]


def _unquote(cell: str) -> str:
    if len(cell) >= 2 and cell[0] == cell[-1] == '"':
        return cell[1:-1].replace('""', '"')
    return cell


def read_marks(folder: Path | str, table: str = "proposals") -> dict[int, bool]:
    """The marks of one table by the places of its rows."""
    path = Path(folder) / _MARKS
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text("utf-8"))
        if not set(values) <= set(TABLES):
            raise ValueError("not as this version writes it")
        return {int(place): bool(mark) for place, mark in values.get(table, {}).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PrixError(
            f"{path} cannot be read ({error}): remove it, and read the review again."
        ) from None


def corrected_confidence(folder: Path | str, table: str = "proposals") -> Array:
    """The confidence of every row of a table, as the marks correct it."""
    path = Path(folder) / f"{table}.parquet"
    confidence = pq.read_table(path, columns=["confidence"])["confidence"].to_numpy()
    return refit(confidence, read_marks(folder, table))


def refit(confidence: Array, marks: dict[int, bool]) -> Array:
    """Confidences as the marks correct them: (N,), for rows 0 to N - 1.

    Log-odds x become a x + b. Before any mark, log a and b are drawn around 0 with deviation
    `_PRIOR`; the marks make some of them likelier (a Platt scaling with a prior).
    """
    if not marks:
        return confidence
    from scipy.optimize import minimize

    ids = np.array(sorted(marks))
    sign = np.where([marks[number] for number in ids], 1.0, -1.0)
    odds = _log_odds(confidence)
    marked = odds[ids]

    def loss(values: Array) -> float:
        stretched = np.exp(values[0]) * marked + values[1]
        prior = (values**2).sum() / (2 * _PRIOR**2)
        return float(np.logaddexp(0.0, -sign * stretched).sum() + prior)

    stretch, move = minimize(loss, np.zeros(2), method="BFGS").x
    return np.asarray(1 / (1 + np.exp(-(np.exp(stretch) * odds + move))))


def _log_odds(confidence: Array) -> Array:
    clipped = np.clip(confidence, 1e-4, 1 - 1e-4)
    return np.asarray(np.log(clipped / (1 - clipped)))
