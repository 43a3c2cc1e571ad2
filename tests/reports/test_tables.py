"""Result tables: titles, numbers, means, and files that can be read again."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from prixlm import PrixError
from prixlm.files import write_atomically
from prixlm.metrics import Interval, bootstrap_mean
from prixlm.reports.tables import (
    ResultTable,
    name_rows,
    plain,
    read_tables,
    tables_markdown,
    tables_to_json,
    write_tables,
)

NAN = float("nan")


@pytest.fixture
def asked() -> ResultTable:
    """Two methods asked the same questions in two languages."""
    generator = np.random.default_rng(0)
    table = ResultTable("accuracy")
    for method, share in (("x", 0.4), ("y", 0.6)):
        table.add_questions(method, "fi", generator.random(100) < share)
        table.add_questions(method, "en", generator.random(400) < share)
    return table


@pytest.fixture
def table() -> ResultTable:
    """Two methods in two languages, one without a result in one of them."""
    table = ResultTable("a | b")
    table.add("x<y", "fi", 0.5, 3)
    table.add("x<y", "en", NAN, 0)
    table.add("z", "fi", 1.0, 3)
    return table


def test_the_title_is_made_of_its_parts() -> None:
    assert ResultTable("MRR").title == "MRR"
    assert ResultTable("MRR", subset="no transfer").title == "MRR, no transfer"
    table = ResultTable("accuracy", "dictionary", "sources not in train")
    assert table.title == "accuracy among dictionary, sources not in train"


def test_cells_are_per_cent_and_unknown_ones_a_dash(table: ResultTable) -> None:
    assert table.cells("x<y") == ["50.0", "–", "–"] and table.cells("z") == ["100.0", "–", "–"]
    assert table.headers() == ["fi (3)", "en (0)", "mean"]


def test_the_mean_is_over_all_columns_or_unknown(table: ResultTable) -> None:
    table.add("both", "fi", 0.25, 3)
    table.add("both", "en", 0.75, 0)
    assert table.cells("both")[-1] == "50.0" and table.cells("z")[-1] == "–"
    figures = ResultTable("confidence", has_mean=False)
    figures.add("fused", "ECE", 0.1)
    figures.add("fused", "AUROC", 0.9)
    assert figures.headers() == ["ECE", "AUROC"] and figures.cells("fused") == ["10.0", "90.0"]
    one = ResultTable("accuracy")
    one.add("x", "fi", 0.5)
    assert one.headers() == ["fi"], "one column is its own mean"


def test_a_number_is_in_the_header_where_rows_agree_and_else_in_the_cells() -> None:
    table = ResultTable("best word")
    table.add("chance", "fi", 0.1)
    table.add("a", "fi", 0.5, 10)
    table.add("b", "fi", 0.25, 10)
    table.add("a", "en", 0.5, 1200)
    table.add("b", "en", 0.5, 0)
    assert table.headers() == ["fi (10)", "en", "mean"]
    assert table.cells("a") == ["50.0", "50.0 (1,200)", "50.0"]
    assert table.cells("b") == ["25.0", "50.0 (0)", "37.5"]
    assert table.cells("chance")[0] == "10.0"


def test_details_are_further_columns_of_text() -> None:
    table = ResultTable("MRR", details={"a": {"training": "3 min"}})
    table.add("a", "fi", 0.5)
    table.add("b", "fi", 0.5)
    assert table.headers() == ["fi", "training"]
    assert table.cells("a") == ["50.0", "3 min"] and table.cells("b") == ["50.0", ""]


def test_markdown_escapes_every_name(table: ResultTable) -> None:
    table.notes.append("see [x](y)")
    text = tables_markdown([table])
    assert "| x&lt;y | 50.0 | – | – |" in text and "a \\| b" in text and "fi (3)" in text
    assert "see \\[x\\](y)" in text
    assert plain("a\n`b`*_!") == r"a \`b\`\*\_\!"


def test_tables_are_written_and_read(table: ResultTable, tmp_path: Path) -> None:
    table.add("own", "fi", 0.5, 7)
    table.details["own"] = {"ranks": "exact"}
    other = ResultTable("accuracy", "dictionary", "new", has_mean=False, notes=["a note"])
    write_tables(tmp_path / "new", "g", [table, other])
    again = read_tables(tmp_path / "new" / "g.json")
    assert tables_to_json(again) == tables_to_json([table, other])
    assert [one.title for one in again] == [table.title, other.title]
    text = (tmp_path / "new" / "g.json").read_text("utf-8")
    assert "NaN" not in text and json.loads(text)[0]["rows"]["x<y"]["en"] is None
    assert (tmp_path / "new" / "g.md").read_text("utf-8") == tables_markdown([table, other])


def test_a_page_that_prixlm_did_not_write_is_not_overwritten(
    table: ResultTable, tmp_path: Path
) -> None:
    (tmp_path / "notes.md").write_text("# Mine")
    with pytest.raises(PrixError, match=r"notes\.md was not written by prixlm"):
        write_tables(tmp_path, "notes", [table])
    assert (tmp_path / "notes.md").read_text() == "# Mine"
    for _ in range(2):
        write_tables(tmp_path, "ours", [table])


def test_a_file_of_version_0_1_is_read(tmp_path: Path) -> None:
    """It has a title in one piece, and may lack what came later."""
    path = tmp_path / "bli.json"
    old = {
        "title": "accuracy among dictionary, sources not in train",
        "rows": {"a": {"en-fi": 0.5}, "b": {"en-fi": None}},
        "numbers": {"en-fi": 1200},
        "own_numbers": {},
        "notes": ["Candidates: en-fi 3"],
        "has_mean": True,
    }
    path.write_text(json.dumps([old, {"title": "t", "rows": {}, "numbers": {}}]))
    table, empty = read_tables(path)
    assert table.title == old["title"] and table.notes == old["notes"]
    assert table.headers() == ["en-fi (1,200)"] and table.cells("b") == ["–"]
    assert empty.has_mean and empty.columns() == []


def test_a_file_without_tables_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, message in (
        ("{", "cannot be read as JSON"),
        ('[{"rows": {}}]', "does not hold result tables"),
        ("[7]", "does not hold result tables"),
    ):
        path.write_text(text)
        with pytest.raises(PrixError, match=message):
            read_tables(path)
    with pytest.raises(PrixError, match="cannot be read as JSON"):
        read_tables(tmp_path / "nowhere.json")


def test_rows_are_named_by_the_shortest_end_that_is_unique() -> None:
    a, b, c = Path("x/1/model"), Path("x/2/model"), Path("y/encoder")
    assert name_rows([a, c]) == {"model": a, "encoder": c}
    assert name_rows([a, b]) == {"1/model": a, "2/model": b}
    assert name_rows([]) == {}
    with pytest.raises(PrixError, match="is given twice"):
        name_rows([a, a])


def test_tables_that_were_killed_between_their_files_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ResultTable("Hits@1")

    def dying(path: Path, text: str) -> None:
        if any(tmp_path.iterdir()):
            raise KeyboardInterrupt
        write_atomically(path, text)

    with monkeypatch.context() as patch:
        patch.setattr("prixlm.reports.tables.write_atomically", dying)
        with pytest.raises(KeyboardInterrupt):
            write_tables(tmp_path, "g", [table])
    write_tables(tmp_path, "g", [table])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.json", "g.md"]


def test_questions_give_a_mean_a_number_and_an_interval(asked: ResultTable) -> None:
    cell = asked.rows["x"]["fi"]
    values = asked.questions["x", "fi"]
    assert cell.value == pytest.approx(values.mean()) and cell.number == 100
    assert cell.interval == bootstrap_mean(values)
    half = 100 * asked.half_width("x", "fi")
    assert 8 < half < 11, "a share of 0.4 of 100 questions"
    assert asked.cells("x")[0] == f"{100 * cell.value:.1f}"
    assert asked.cells("x", intervals=True)[0] == f"{100 * cell.value:.1f} ± {half:.1f}"
    empty = ResultTable("accuracy")
    empty.add_questions("x", "fi", np.zeros(0))
    assert not empty.has_intervals() and empty.cells("x", intervals=True) == ["–"]


def test_the_interval_of_a_mean_is_wider_where_columns_ask_the_same(asked: ResultTable) -> None:
    halves = [asked.half_width("x", column) for column in ("fi", "en")]
    assert asked.half_width("x", "mean") == pytest.approx(math.hypot(*halves) / 2)
    same = ResultTable("accuracy", rows=asked.rows, parallel=True)
    assert same.half_width("x", "mean") == pytest.approx(sum(halves) / 2)
    widest = max(asked.half_width(row, "fi") for row in asked.rows)
    assert asked.widest()[0] == f"{100 * widest:.1f}" and len(asked.widest()) == 3


def test_intervals_and_questions_are_written_and_read(asked: ResultTable, tmp_path: Path) -> None:
    write_tables(tmp_path, "t", [asked])
    [again] = read_tables(tmp_path / "t.json")
    assert again.rows == asked.rows and isinstance(again.rows["x"]["fi"].interval, Interval)
    ends = json.loads((tmp_path / "t.json").read_text("utf-8"))[0]["intervals"]["x"]["fi"]
    assert ends == list(asked.rows["x"]["fi"].interval or ())
    text = (tmp_path / "t.md").read_text("utf-8")
    assert " ± " in text and "±: half of the 95 % interval" in text
    written = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert [(row["row"], row["column"], len(row["values"])) for row in written] == [
        ("x", "fi", 100),
        ("x", "en", 400),
        ("y", "fi", 100),
        ("y", "en", 400),
    ]
    write_tables(tmp_path, "t", [again])
    assert not (tmp_path / "t.parquet").exists(), "a table without questions has no file of them"
