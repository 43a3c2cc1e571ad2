"""Compare rows of a result question by question, and join the tables of several seeds.

    differences(read_questions(Path("out/bli.parquet")), "encoder", "string similarity (rapidfuzz)")
    merge_runs([read_tables(path) for path in paths])        # mean and range over the runs

Two figures with intervals that overlap may still differ, as both rows were asked the same
questions. So their difference has an interval of its own (a paired bootstrap), and is called a
difference only if that leaves out 0.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from prixlm.errors import PrixError
from prixlm.kb.checks import read_checked
from prixlm.metrics import Interval, paired_difference
from prixlm.reports.tables import QUESTIONS, Cell, ResultTable
from prixlm.types import Array

Questions = Mapping[str, Mapping[str, Mapping[str, Array]]]
"""By title of the table, row and column: (N,) the value of each question."""
_REMEDY = (
    "It does not hold the values of questions: expected NAME.parquet of `prixlm evaluate --to` or "
    "`prixlm reproduce`."
)
FIRST, SECOND, DIFFERENCE = "first", "second", "difference"


def read_questions(path: Path) -> dict[str, dict[str, dict[str, Array]]]:
    """Read the values of single questions, which `write_tables` put beside the JSON."""
    table = read_checked(path, QUESTIONS, _REMEDY)
    if not np.isfinite(pc.list_flatten(table["values"]).to_numpy()).all():
        raise PrixError(f"{path}: values has some that are not finite. {_REMEDY}")
    found: dict[str, dict[str, dict[str, Array]]] = {}
    titles, rows, columns = (table[name].to_pylist() for name in ("table", "row", "column"))
    for title, row, column, values in zip(titles, rows, columns, table["values"], strict=True):
        flat = values.values.to_numpy().astype(float)
        found.setdefault(title, {}).setdefault(row, {})[column] = flat
    return found


def differences(questions: Questions, first: str, second: str) -> list[ResultTable]:
    """Return a table for each of theirs: a row per column, with both figures and the difference."""
    known = list(dict.fromkeys(row for rows in questions.values() for row in rows))
    for row in (first, second):
        if row not in known:
            raise PrixError(f"--row {row}: expected one of {', '.join(known)}.")
    tables = []
    for title, rows in questions.items():
        if first in rows and second in rows:
            shared = [column for column in rows[first] if column in rows[second]]
            pairs = {column: (rows[first][column], rows[second][column]) for column in shared}
            tables.append(difference_table(title, first, second, pairs))
    return tables


def difference_table(
    title: str, first: str, second: str, pairs: Mapping[str, tuple[Array, Array]]
) -> ResultTable:
    """Compare two rows column by column. pairs: the values of both, on the same questions."""
    table = ResultTable(title, has_mean=False)
    table.notes.append(f"{FIRST}: {first}; {SECOND}: {second}.")
    for column, (ours, theirs) in pairs.items():
        if len(ours) != len(theirs):
            raise PrixError(
                f"{title}, {column}: {first} was asked {len(ours):,} questions and {second} "
                f"{len(theirs):,}. Only rows of the same questions can be compared."
            )
        table.add_questions(column, FIRST, ours)
        table.add_questions(column, SECOND, theirs)
        gap = paired_difference(ours, theirs)
        table.add(column, DIFFERENCE, gap.value, len(ours), gap.interval)
        ends = " to ".join(f"{100 * end:+.1f}" for end in gap.interval)
        verdict = ("higher" if gap.value > 0 else "lower") if gap.is_one else "no difference"
        table.details[column] = {"95 % interval": ends, f"{FIRST} is": verdict}
    return table


def merge_runs(runs: Sequence[Sequence[ResultTable]]) -> list[ResultTable]:
    """Return the tables that all runs have, with the mean of every result and its range.

    runs: the tables of the same command with other seeds. Rows that a run lacks are left out.
    """
    if len(runs) < 2:
        raise PrixError("name the tables of two or more runs.")
    by_title = [{table.title: table for table in run} for run in runs]
    merged = [
        _merge([run[title] for run in by_title])
        for title in by_title[0]
        if all(title in run for run in by_title)
    ]
    if not merged:
        raise PrixError("these runs have no table in common: expected runs of the same command.")
    return merged


def _merge(tables: Sequence[ResultTable]) -> ResultTable:
    """Return one table of the same table of several runs."""
    first = tables[0]
    shared = [row for row in first.rows if all(row in table.rows for table in tables)]
    left_out = sorted({row for table in tables for row in table.rows} - set(shared))
    merged = ResultTable(
        first.metric,
        first.candidates,
        first.subset,
        has_mean=first.has_mean,
        spread=f"half of the range of {len(tables)} runs",
        parallel=True,  # a better seed may be better in all columns
    )
    for row in shared:
        for column in first.rows[row]:
            cells = [table.rows[row].get(column, Cell(float("nan"))) for table in tables]
            if len({cell.number for cell in cells}) > 1:
                raise PrixError(
                    f"{first.title}, {row}, {column}: the runs were asked different numbers of "
                    "questions. Only runs on the same questions can be merged."
                )
            values = np.array([cell.value for cell in cells])
            ends = Interval(float(values.min()), float(values.max()))
            merged.add(row, column, float(values.mean()), cells[0].number, ends)
    if left_out:
        merged.notes.append(f"Not in every run: {', '.join(left_out)}.")
    return merged
