"""The report: nothing in a KB's names is markup, and nothing is loaded from a network."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from prixlm import KB, PrixError
from prixlm.enrichment.report import Report, write_report
from prixlm.files import write_atomically
from prixlm.metrics import reliability
from prixlm.reports.tables import Cell, ResultTable
from tests.helpers import fact_row, make_proposals

HOSTILE = "<script>alert(1)</script>\" onload='x' [a](javascript:x) ![](http://x) `|*"


@pytest.fixture
def proposals(toy: KB, tmp_path: Path) -> Path:
    """Two Finnish proposals; the manifest is full of hostile names."""
    entities = toy.entity_range("fi")
    suomi = {"subject": entities.start}
    rows = [
        fact_row(0, **suomi, object=entities.start + 1, relation=0, subject_name=HOSTILE),
        fact_row(1, **suomi, object=entities.start + 2, relation=1, object_name="هلسنكي"),
    ]
    folder = make_proposals(tmp_path / "proposals", rows)
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    config = {"min_confidence": 0.5, "into": ["fi", "ar"], "missing": {"known": ["train"]}}
    config |= {"relations": [HOSTILE], "limit": 7}
    manifest |= {"config": config, "licence": HOSTILE, "rankers": [HOSTILE]}
    manifest |= {"labels": {"fi": {"names": 3}}, "links": {"ar": {"links": 4}}}
    manifest |= {"proposals": {"fi": {"elsewhere": 2}}}
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return folder


def test_names_are_escaped_everywhere(toy: KB, proposals: Path, tmp_path: Path) -> None:
    curve = reliability([0.9] * 60 + [0.2] * 60, [True] * 55 + [False] * 65)  # type: ignore[arg-type]
    report = Report(
        toy,
        proposals,
        title=HOSTILE,
        introduction=HOSTILE,
        findings=[HOSTILE],
        command=f"prixlm {HOSTILE}",
        reliability={"fused": {"fi": curve}},
        tables=[ResultTable(HOSTILE, rows={HOSTILE: {HOSTILE: Cell(0.5)}}, notes=[HOSTILE])],
        timings={HOSTILE: 1.0},
    )
    page = write_report(tmp_path / "report", report).read_text("utf-8")
    assert "<script" not in page and "&lt;script&gt;" in page
    assert not re.search(r"<[^>]*\sonload=", page)
    assert not re.search(r'(src|href)="(?!data:image/png;base64,)', page), "no network"
    assert "Confidence against the share of right answers" in page
    text = (tmp_path / "report" / "report.md").read_text("utf-8")
    text = re.sub(r"(?<!\\)`[^`]*`", "", text)  # the command is in a code span
    assert "<script" not in text
    assert not re.search(r"(?<!\\)\]\(", text), "a name makes no link"
    values = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))
    assert values["examples"][0]["subject"] == HOSTILE


def test_the_page_has_the_counts_and_settings_of_the_manifest(
    toy: KB, proposals: Path, tmp_path: Path
) -> None:
    page = write_report(tmp_path / "report", Report(toy, proposals)).read_text("utf-8")
    for number, label in ((2, "facts proposed in Finnish"), (4, "links proposed in Arabic")):
        assert f"<li><b>{number}</b>{label}</li>" in page
    assert "Proposals in Finnish, Arabic with a confidence of 0.5 or more" in page
    assert "the 7 most confident" in page


def test_a_name_has_the_direction_of_its_letters(toy: KB, proposals: Path, tmp_path: Path) -> None:
    page = write_report(tmp_path / "report", Report(toy, proposals)).read_text("utf-8")
    assert re.search(r'<td dir="auto" lang="fi">هلسنكي</td>', page)
    assert "Confidence against the share" not in page, "without trials there is no curve"


def test_coverage_agrees_with_an_example_worked_by_hand(
    toy: KB, proposals: Path, tmp_path: Path
) -> None:
    """Finnish can name one capital (Finland's) and states it; of two currencies it states one."""
    write_report(tmp_path / "report", Report(toy, proposals, langs=("fi",)))
    coverage = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))["coverage"]
    rows = {row["relation"]: row["cells"][0]["text"] for row in coverage["rows"]}
    names = toy.relation_names("en")
    relations = pq.read_table(proposals / "proposals.parquet")["relation"].to_pylist()
    assert rows["country"].startswith("100%")
    for relation in relations:
        before, after = rows[names[relation]].split(" → ")
        assert int(after[:-1]) >= int(before[:-1])


def test_a_page_that_prixlm_did_not_write_is_not_overwritten(
    toy: KB, proposals: Path, tmp_path: Path
) -> None:
    report = Report(toy, proposals)
    (tmp_path / "report.md").write_text("# Mine")
    with pytest.raises(PrixError, match=r"report\.md was not written by prixlm"):
        write_report(tmp_path, report)
    assert (tmp_path / "report.md").read_text() == "# Mine"
    for _ in range(2):
        assert write_report(tmp_path / "report", report).is_file()


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_report_that_was_killed_between_its_files_is_written_again(
    written: int, toy: KB, proposals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the data, a page of ours would be taken for one of others."""

    def dying(path: Path, text: str) -> None:
        if sum(1 for one in path.parent.iterdir() if one.suffix != ".lock") == written:
            raise KeyboardInterrupt
        write_atomically(path, text)

    with monkeypatch.context() as patch:
        patch.setattr("prixlm.enrichment.report.write_atomically", dying)
        with pytest.raises(KeyboardInterrupt):
            write_report(tmp_path / "report", Report(toy, proposals))
    assert write_report(tmp_path / "report", Report(toy, proposals)).is_file()
    assert len(list((tmp_path / "report").iterdir())) == 3
