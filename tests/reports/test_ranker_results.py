"""The figures of a ranker as files and tables."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from prixlm import PrixError
from prixlm.metrics import Figures, figures
from prixlm.reports.comparing import merge_runs
from prixlm.reports.ranker_results import (
    RankerResult,
    describe_ranks,
    plot_results,
    read_result_tables,
    read_run,
    result_tables,
    write_results,
)

ONE = Figures(10, 0.1, 0.2, 0.5, 0.25, 0.01)
NONE = Figures(0, *[float("nan")] * 4, 0.0)
FIGURES = {"en": {"all": ONE, "no transfer": NONE}, "fi": {"all": ONE, "no transfer": ONE}}
RESULT = RankerResult("a | $x$ [b]", FIGURES, "exact", 100.0, 2.0)


def test_a_result_is_one_file(tmp_path: Path) -> None:
    RESULT.save(tmp_path / "rows" / "a.json")
    assert repr(RankerResult.load(tmp_path / "rows" / "a.json")) == repr(RESULT)
    assert "NaN" not in (tmp_path / "rows" / "a.json").read_text()
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(PrixError, match=r"is not a valid results row .* delete it to recompute it"):
        RankerResult.load(tmp_path / "b.json")


def test_a_result_of_version_0_1_tells_its_depth_in_its_text(tmp_path: Path) -> None:
    for how, max_rank in (
        ("exact", 1000),
        ("beam K = 50, to rank 10", 10),
        ("exact, to rank 100", 100),
    ):
        values = dataclasses.replace(RESULT, how=how).to_json()
        del values["max_rank"]
        assert RankerResult.from_json(values, tmp_path).max_rank == max_rank
        search = how.split(",")[0]
        assert describe_ranks(max_rank, search) == how


def test_a_ranker_whose_ranks_end_at_10_has_no_mrr() -> None:
    beam = dataclasses.replace(RESULT, title="beam", max_rank=10)
    tables = result_tables([RESULT, beam], subsets=("all", "no transfer"))
    assert [table.title for table in tables] == [
        *("Hits@1", "Hits@3", "Hits@10", "MRR"),
        *("Hits@1, no transfer", "Hits@3, no transfer", "Hits@10, no transfer"),
        "MRR, no transfer",
    ]
    assert tables[2].cells("beam") == ["50.0", "50.0", "50.0"]
    assert tables[3].cells("beam") == ["–", "–", "–"] and tables[3].cells(RESULT.title)[0] == "25.0"
    assert tables[4].cells(RESULT.title) == ["–", "10.0", "–"], "English has no such facts"


def test_results_are_written_as_tables_and_read_by_the_report(tmp_path: Path) -> None:
    other = dataclasses.replace(RESULT, title="_b", training_seconds=None)
    write_results(tmp_path, {"First": [RESULT, other], "Second": [RESULT]})
    text = (tmp_path / "table.md").read_text("utf-8")
    assert text.startswith("## First\n\n**Hits@1** (%)") and "## Second" in text
    assert "| a \\| $x$ \\[b\\] | 10.0 | 10.0 | 10.0 | exact | 2 min |" in text
    assert "| exact | none |" in text and "**MRR, no transfer** (%)" in text
    tables = read_result_tables(tmp_path / "table.json")
    assert [table.title for table in tables] == ["Hits@1", "Hits@10"]
    assert list(tables[0].rows) == [RESULT.title, "_b"] and tables[0].numbers() == {
        "en": 10,
        "fi": 10,
    }
    plot_results([RESULT, other], tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
    path = tmp_path / "list.json"
    path.write_text(json.dumps([tables[0].to_json()]))
    assert read_result_tables(path)[0].title == "Hits@1", "tables of other tasks are a list"


def test_runs_of_several_seeds_are_read_whole_and_merged(tmp_path: Path) -> None:
    one = figures(np.array([1, 5, np.inf]))
    result = RankerResult("lookup", {"en": {"all": one, "no transfer": one}}, "exact")
    for seed in ("a", "b"):
        write_results(tmp_path / seed, {"Link prediction": [result]})
    tables = merge_runs([read_run(tmp_path / "a"), read_run(tmp_path / "b" / "table.json")])
    assert [table.title for table in tables][:5] == [
        *("Hits@1", "Hits@3", "Hits@10", "MRR", "Hits@1, no transfer")
    ]
    cell = tables[0].rows["lookup"]["en"]
    assert cell.value == pytest.approx(1 / 3) and cell.interval == (cell.value, cell.value)
