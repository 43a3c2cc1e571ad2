"""Comparing rows question by question, and merging the tables of several seeds."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import PrixError
from prixlm.reports.comparing import differences, merge_runs, read_questions
from prixlm.reports.tables import ResultTable, write_tables


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """The questions of a table in which one row is better in Finnish alone."""
    generator = np.random.default_rng(0)
    table = ResultTable("accuracy")
    for lang, gain in (("fi", 0.3), ("en", 0.0)):
        hard = generator.random(500)
        table.add_questions("base", lang, hard < 0.4)
        table.add_questions("model", lang, hard < 0.4 + gain)
    table.add_questions("short", "fi", np.ones(3))
    write_tables(tmp_path, "t", [table])
    return tmp_path / "t.parquet"


def test_a_difference_is_one_outside_its_interval_only(questions: Path) -> None:
    [table] = differences(read_questions(questions), "model", "base")
    assert table.title == "accuracy" and table.columns() == ["first", "second", "difference"]
    gap = table.rows["fi"]["difference"]
    assert gap.value == pytest.approx(table.values("fi")["first"] - table.values("fi")["second"])
    assert gap.interval is not None and gap.interval.low > 0.2
    assert table.details["fi"]["first is"] == "higher"
    assert table.details["en"]["first is"] == "no difference"
    assert table.notes == ["first: model; second: base."]
    [turned] = differences(read_questions(questions), "base", "model")
    assert turned.details["fi"]["first is"] == "lower"


def test_rows_that_cannot_be_compared_are_refused(questions: Path, tmp_path: Path) -> None:
    found = read_questions(questions)
    with pytest.raises(PrixError, match="expected one of base, model, short"):
        differences(found, "model", "nobody")
    with pytest.raises(PrixError, match="500 questions and short 3"):
        differences(found, "model", "short")
    with pytest.raises(PrixError, match="does not hold the values of questions"):
        read_questions(tmp_path / "t.json")


def one_run(value: float, number: int = 10, extra: str = "") -> list[ResultTable]:
    table = ResultTable("MRR", subset="no transfer")
    table.add("model", "fi", value, number)
    if extra:
        table.add(extra, "fi", value, number)
    return [table]


def test_runs_are_merged_into_their_mean_and_range() -> None:
    [table] = merge_runs([one_run(0.3), one_run(0.36, extra="graph"), one_run(0.33)])
    cell = table.rows["model"]["fi"]
    assert cell.value == pytest.approx(0.33) and cell.number == 10
    assert cell.interval == (0.3, 0.36)
    assert table.cells("model", intervals=True) == ["33.0 ± 3.0"]
    assert table.spread == "half of the range of 3 runs"
    assert table.title == "MRR, no transfer" and table.notes == ["Not in every run: graph."]


def test_runs_of_other_questions_are_not_merged() -> None:
    with pytest.raises(PrixError, match="different numbers of questions"):
        merge_runs([one_run(0.3), one_run(0.3, number=11)])
    with pytest.raises(PrixError, match="no table in common"):
        merge_runs([one_run(0.3), [ResultTable("MRR")]])
    with pytest.raises(PrixError, match="two or more runs"):
        merge_runs([one_run(0.3)])
