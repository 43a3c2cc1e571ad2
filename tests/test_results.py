"""The tables of the results pages equal the JSON files, which say where figures come from."""

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prixlm.reports.tables import ResultTable

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from _generate import results  # noqa: E402  (after the path is set)

PAGES = sorted(results.PAGES.glob("*.md"))
NUMBER = re.compile(r"\d+\.\d")
NO_SHARES = (
    "engine-",
    "labels-ten",
    "link-prediction-training-times",
    "links-speed",
    "names-romanised-2",  # of half of the world KB's concepts, whose number was not written down
    "pretraining-against",
    "pretraining-cost",
    "pretraining-dbp-5l",
    "pretraining-share",
    "serve-load",
    "speed-",
)
"""Transcribed tables of times, sizes and examples, which are no means of values between 0 and 1."""
FILES = sorted(path.stem for path in results.DATA.glob("*.json"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_equal_the_json_files(page: Path) -> None:
    text = page.read_text("utf-8")
    assert results.refreshed(text) == text, "run `make results`; nobody edits these tables by hand"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_of_figures_has_a_json_file(page: Path) -> None:
    unmarked = results.unmarked_tables(page.read_text("utf-8"))
    assert not unmarked, unmarked[0][0]


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_command_the_commit_and_the_time_of_its_figures(name: str) -> None:
    values = results.read(name)
    assert values["source"] in results.SOURCES
    if values["source"] == "view":
        assert all(one in FILES for one in values["of"])
        return
    if values["source"] == "published":
        assert values["citations"]
        return
    assert values["command"] and all(values["command"]), "how was it measured?"
    assert re.fullmatch(r"[0-9a-f]{40}", values["commit"])
    assert datetime.fromisoformat(values["time"]).tzinfo is not None
    if "row_commits" in values:
        assert len(values["row_commits"]) == len(values["table"]["rows"])
    if (ROOT / ".git").exists():
        git = ["git", "cat-file", "-e", f"{values['commit']}^{{commit}}"]
        assert subprocess.run(git, cwd=ROOT).returncode == 0, "no such commit"


@pytest.mark.parametrize("name", FILES)
def test_transcribed_shares_have_a_bound_or_a_reason_why_not(name: str) -> None:
    values = results.read(name)
    if values["source"] != "transcribed" or name.startswith(NO_SHARES):
        return
    bounded = values["questions"]["columns"]
    assert bounded.keys() <= set(values["table"]["columns"])
    last = results.grid_of(values).rows[-1]
    assert last[0] == results.BOUND and NUMBER.findall(" ".join(last))


def test_every_file_is_shown_on_a_page() -> None:
    shown = {
        name
        for page in PAGES
        for match, _ in results.marked_tables(page.read_text("utf-8"))
        for name in match["names"].split()
    }
    of_views = {one for name in shown for one in results.read(name).get("of", ())}
    assert shown | of_views == set(FILES)


def test_a_figure_that_was_edited_by_hand_is_noticed() -> None:
    page = results.PAGES / "link-prediction.md"
    text = page.read_text("utf-8")
    match, _ = next(results.marked_tables(text))
    changed = re.sub(r"\d\.\d", "9.9", match["body"], count=1)
    assert changed != match["body"]
    assert results.refreshed(text.replace(match["body"], changed)) == text


def test_the_figures_of_the_readme_are_those_of_the_link_prediction_table() -> None:
    rows = {
        row[0]: row for row in results.read("link-prediction-mrr-in-one-table")["table"]["rows"]
    }
    known = {cell for row in rows.values() for text in row for cell in re.findall(r"\d+\.\d", text)}
    [table] = results.unmarked_tables((ROOT / "README.md").read_text("utf-8"))
    figures = re.findall(r"\d+\.\d", table[0])
    assert len(figures) == 30 and set(figures) <= known


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of data files."""
    monkeypatch.setattr(results, "DATA", tmp_path)
    return tmp_path


def run_values() -> dict[str, Any]:
    """A run with two tables."""
    generator = np.random.default_rng(0)
    tables = [ResultTable("accuracy"), ResultTable("MRR")]
    for table in tables:
        for row, share in (("x", 0.25), ("y", 0.75)):
            table.add_questions(row, "fi", generator.random(400) < share)
    layout = {"head": "row", "columns": {"fi": [["accuracy", "fi"], ["MRR", "fi"]]}}
    values = {"source": "run", "command": ["c"], "commit": "a" * 40, "time": "2026-01-01T00:00Z"}
    return values | {"layout": layout, "tables": [table.to_json() for table in tables]}


def test_a_run_is_laid_out_with_its_widest_intervals(data: Path) -> None:
    values = run_values()
    results.write("run", values)
    assert results.read("run") == values
    grid = results.grid_of(values)
    rows = values["tables"][0]["rows"], values["tables"][1]["rows"]
    expected = " / ".join(f"{100 * table['x']['fi']:.1f}" for table in rows)
    assert grid.columns == ["row", "fi"] and grid.rows[0] == ["x", expected]
    assert re.fullmatch(r"4\.\d / 4\.\d", grid.rows[-1][1]) and grid.rows[-1][0] == "± at most"
    text = results.table_of(["run"], best=True)
    assert "| y | **7" in text and "| x | 2" in text
    assert "*[Data](data/run.json): measured at commit aaaaaaa, 2026-01-01.*" in text


def test_runs_with_other_columns_are_joined(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_git", lambda *arguments: "c" * 40 + "\n")
    runs = []
    for column in ("fi", "en"):
        table = ResultTable("accuracy")
        table.add_questions("x", column, np.arange(10) < 5)
        runs.append(tmp_path / f"{column}.run")
        runs[-1].write_text(json.dumps([table.to_json()]))
    layout = tmp_path / "layout"
    columns = {name: [["accuracy", name]] for name in ("fi", "en")}
    layout.write_text(json.dumps({"head": "row", "columns": columns}))
    results.add("joined", runs, ["prixlm x"], layout)
    values = results.read("joined")
    assert values["commit"] == "c" * 40 and values["command"] == ["prixlm x"]
    grid = results.grid_of(values)
    assert grid.columns == ["row", "fi", "en"] and grid.rows[0] == ["x", "50.0", "50.0"]
    assert grid.rows[1][0] == "± at most" and "–" not in grid.rows[1]
    values["layout"]["columns"]["mean"] = [["accuracy", "mean"]]
    [table] = [ResultTable.from_json(one) for one in values["tables"]]
    grid = results.grid_of(values)
    assert grid.rows[0][-1] == table.cells("x")[-1] == "50.0"
    assert grid.rows[1][-1] == table.widest()[-1]


def test_a_table_may_join_files_and_show_rows_of_others(data: Path) -> None:
    results.write("run", run_values())
    table = {"columns": ["row", "fi (400)"], "rows": [["z", "1.0 / 99.0"]]}
    older = {"source": "transcribed", "command": ["c"], "commit": "b" * 40, "time": "2026-01-01"}
    results.write("older", older | {"table": table})
    lines = results.table_of(["run", "older"]).split("\n")
    assert [line.split(" | ")[0] for line in lines[2:6]] == ["| x", "| y", "| z", "| ± at most"]
    view = {"source": "view", "of": ["run", "older"]}
    view["rows"] = [["older", "z", "the last"], ["run", "x", "the first"]]
    results.write("view", view)
    grid = results.grid_of(view)
    assert grid.rows[0] == ["the last", "1.0 / 99.0"] and grid.rows[1][0] == "the first"


def transcribed(questions: dict[str, Any], columns: list[str], *rows: list[str]) -> results.Grid:
    """The table of a transcribed file, with the bounds of its intervals."""
    values = {"source": "transcribed", "questions": questions}
    return results.grid_of(values | {"table": {"columns": columns, "rows": list(rows)}})


def test_the_bound_holds_for_every_mean_of_values_between_0_and_1() -> None:
    generator = np.random.default_rng(0)
    for values in (generator.random(500), 1 / generator.integers(1, 9, 500)):
        half = 196 * values.std() / np.sqrt(500)
        assert half < results.bound(100 * values.mean(), 500)
    hits = generator.random(500) < 0.3
    exact = 196 * hits.std() / np.sqrt(500)
    assert exact <= results.bound(100 * hits.mean(), 500) < exact + 0.01
    assert results.bound(0.0, 1_000) > 0, "0.0 may stand for 0.04"


def test_transcribed_figures_have_the_widest_bound_of_their_column() -> None:
    columns = ["row", "el", "mean", "training"]
    rows = [["x", "**50.0 (25.0)**", "1.0", "2 min"], ["y", "90.0 (–)", "–", ""]]
    questions = {"columns": {"el": "10,000 (100)", "mean": "mean"}}
    grid = transcribed(questions, columns, *rows)
    assert grid.rows[:2] == rows
    # 196 · √(0.25 / 10,000) = 0.98, 196 · √(0.1875 / 100) = 8.49
    assert grid.rows[2:] == [["± at most, by bound", "1.0 (8.5)", "1.0", ""]]


def test_a_precision_is_bounded_by_the_answers_that_it_is_of() -> None:
    rows = [["el (1,000)", "a", "80.0 / 40.0"], ["ja (2,000)", "b", "– / 0.0"]]
    questions = {"rows": [1000, 2000], "by": "method", "columns": {"0.5": "found / n"}}
    grid = transcribed(questions, ["language", "method", "0.5"], *rows)
    # 400 right answers are 80 % of 500: 196 · √(0.16 / 500) = 3.51; 196 · √(0.24 / 1,000) = 3.04.
    assert grid.rows[2] == ["± at most, by bound", "a", "3.6 / 3.1"]
    assert grid.rows[3] == ["± at most, by bound", "b", "– / 0.1"]


def test_intervals_that_were_measured_and_bounds_are_lines_apart(data: Path) -> None:
    results.write("run", run_values())
    table = {"columns": ["row", "fi"], "rows": [["z", "1.0 / 99.0"]]}
    older = {"source": "transcribed", "command": ["c"], "commit": "b" * 40, "time": "2026-01-01"}
    results.write("older", older | {"table": table, "questions": {"columns": {"fi": "400 / 400"}}})
    lines = results.table_of(["older", "run"], best=True).split("\n")
    names = [line.split(" | ")[0] for line in lines[2:7]]
    assert names == ["| z", "| x", "| y", "| ± at most", "| ± at most, by bound"]


def test_a_page_is_written_from_its_files_and_tables_without_one_are_found(data: Path) -> None:
    results.write("run", run_values())
    text = (
        "# A\n\n<!-- table: run -->\n<!-- end of table -->\n\n| a | b |\n| --- | --- |\n| c | 1 |\n"
    )
    new = results.refreshed(text)
    assert new.count("± at most") == 1 and results.refreshed(new) == new
    [table] = results.unmarked_tables(new)
    assert table[0].startswith("| a | b |")
    words = "| a | b |\n| --- | --- |\n| c | some words |\n"
    assert not results.unmarked_tables(words), "a table without figures needs no file"


def test_files_are_written_with_a_row_on_a_line(data: Path) -> None:
    table = {"columns": ["a", "b"], "rows": [["x", "1"], ["y", "2"]]}
    results.write("t", {"table": table})
    text = (data / "t.json").read_text("utf-8")
    assert '["x", "1"],\n' in text and json.loads(text) == {"table": table}
