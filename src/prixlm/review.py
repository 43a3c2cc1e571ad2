"""Review: proposals that a person marks in any spreadsheet, and what the marks teach.

    write_review("proposals", "review.tsv")         # a column `mark` to fill in
    read_review("proposals", "review.tsv")          # accept, reject, or open to take a mark back

Marks lie in the folder of the proposals (`marks.json`) and add up. Exports leave out what was
rejected, or take only what was accepted. All marks refit the confidence: of the marked proposals at
some confidence, a share was accepted, and isotonic regression, with the fitted confidence as its
prior, follows it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.kb.disk import disk_errors, write_atomically
from prixlm.proposals import read_manifest

Array = np.ndarray[Any, Any]
MARKS = {"accept": True, "reject": False, "open": None, "": None}
_COLUMNS = [
    "mark", "id", "lang", "subject", "relation", "object", "confidence", "why", "stated in",
    "runner-up",
]  # fmt: skip
_MARKS = "marks.json"
_PRIOR = 20.0
"""So many marks weigh as much as the confidence that was fitted before."""


def write_review(folder: Path | str, out: Path | str, most: int | None = None) -> int:
    """A TSV of the proposals, the most confident first; how many."""
    folder, out = Path(folder), Path(out)
    read_manifest(folder)
    if out.exists():
        raise PrixError(f"{out} is already there: move it, or name another file.")
    marks = read_marks(folder)
    words = {True: "accept", False: "reject", None: ""}
    number = 0
    temporary = out.with_name(out.name + ".tmp")
    with disk_errors(out), temporary.open("w", encoding="utf-8", newline="") as file:
        file.write("\t".join(_COLUMNS) + "\n")
        for row in _rows(folder):
            if most is not None and number >= most:
                break
            texts = [row[f"{part}_name"] for part in ("subject", "relation", "object")]
            cells = [words[marks.get(row["id"])], row["id"], row["lang"], *texts]
            cells += [f"{row['confidence']:.3f}", row["why"], " ".join(row["origin"])]
            file.write("\t".join(_cell(cell) for cell in [*cells, row["runner_up"] or ""]) + "\n")
            number += 1
    temporary.replace(out)
    return number


def _told(row: dict[str, Any]) -> tuple[str, ...]:
    """Language and names of a proposal."""
    return (row["lang"], *(row[f"{part}_name"] for part in ("subject", "relation", "object")))


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(folder / "proposals.parquet") as file:
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
    known = np.fromiter((_digest(_told(row)) for row in _rows(folder)), np.int64)
    found: dict[int, str] = {}
    for line, row in _read(path):
        mark = (row.get("mark") or "").strip().casefold()
        number = (row.get("id") or "").strip()
        if mark not in MARKS:
            raise PrixError(
                f"{path} line {line}: mark {mark!r}, expected accept, reject, open or nothing."
            )
        if not number.isdecimal() or int(number) >= len(known):
            raise PrixError(f"{path} line {line}: no proposal {number!r} in {folder}.")
        theirs = [row.get(part) or "" for part in ("lang", "subject", "relation", "object")]
        if _digest(theirs) != known[int(number)]:
            own = next(_told(row) for row in _rows(folder) if row["id"] == int(number))
            raise PrixError(
                f"{path} line {line}: proposal {number} is {' · '.join(own)} here. The file is of "
                "other proposals, or its lines moved."
            )
        if mark and found.get(int(number), mark) != mark:
            raise PrixError(f"{path} line {line}: proposal {number} is marked twice.")
        if mark:
            found[int(number)] = mark
    marks = read_marks(folder)
    for key, mark in found.items():
        if mark == "open":
            marks.pop(key, None)
        else:
            marks[key] = mark == "accept"
    text = json.dumps({str(key): marks[key] for key in sorted(marks)}, indent=0)
    write_atomically(folder / _MARKS, text + "\n")
    values = list(marks.values())
    return Reviewed(values.count(True), values.count(False), len(known) - len(values))


def _digest(names: Sequence[str]) -> int:
    """A number for the names of a proposal, as spreadsheets leave them."""
    return hash(tuple(map(_bare, names)))


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


def read_marks(folder: Path | str) -> dict[int, bool]:
    """The marks of some proposals by their ids."""
    path = Path(folder) / _MARKS
    if not path.exists():
        return {}
    try:
        return {int(key): bool(value) for key, value in json.loads(path.read_text("utf-8")).items()}
    except (OSError, ValueError) as error:
        raise PrixError(
            f"{path} cannot be read ({error}): remove it, and read the review again."
        ) from None


def corrected_confidence(folder: Path | str, marks: dict[int, bool]) -> Array:
    """The confidence of every proposal by its id, as the marks correct it."""
    path = Path(folder) / "proposals.parquet"
    return refit(pq.read_table(path, columns=["confidence"])["confidence"].to_numpy(), marks)


def refit(confidence: Array, marks: dict[int, bool]) -> Array:
    """Confidences as the marks correct them: (N,), for proposals 0 to N - 1.

    Isotonic regression on the marked ones, and on the confidences themselves as `_PRIOR` marks
    that agree with them, spread evenly.
    """
    if not marks:
        return confidence
    from sklearn.isotonic import IsotonicRegression

    ids = np.array(sorted(marks))
    right = np.array([marks[number] for number in ids], float)
    grid = np.linspace(0, 1, 21)
    x = np.concatenate([confidence[ids], grid])
    y = np.concatenate([right, grid])
    weight = np.concatenate([np.ones(len(ids)), np.full(len(grid), _PRIOR / len(grid))])
    fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    return np.asarray(fitted.fit(x, y, sample_weight=weight).predict(confidence))
