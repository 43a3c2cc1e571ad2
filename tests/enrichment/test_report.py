"""The report: nothing of a KB's names is markup, and nothing comes from a network."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import KB
from prixlm.enrichment.proposals import SCHEMA
from prixlm.enrichment.report import Report, write_report
from prixlm.evaluation.proposals import Trial, reliability_curves
from prixlm.metrics import at_levels, reliability
from prixlm.reports.grids import Grid
from tests.enrichment.test_export import make, proposal

HOSTILE = "<script>alert(1)</script>\" onload='x' [a](javascript:x) ![](http://x) `|*"


@pytest.fixture
def proposals(toy: KB, tmp_path: Path) -> Path:
    own = toy.entity_range("fi")
    rows = [
        proposal(0, subject=own.start, object=own.start + 1, relation=0, subject_name=HOSTILE),
        proposal(1, subject=own.start, object=own.start + 2, relation=1, object_name="هلسنكي"),
    ]
    folder = make(tmp_path / "proposals", rows)
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    config = {"min_confidence": 0.5, "into": ["fi", "ar"], "missing": {"known": ["train"]}}
    config |= {"relations": [HOSTILE], "limit": 7}
    manifest |= {"config": config, "licence": HOSTILE, "rankers": [HOSTILE]}
    manifest |= {"labels": {"fi": {"names": 3}}, "links": {"ar": {"links": 4}}}
    manifest |= {"proposals": {"fi": {"elsewhere": 2}}}
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return folder


def trial() -> Trial:
    sure, right = [0.9] * 60 + [0.2] * 60, [True] * 55 + [False] * 65
    levels = at_levels(pa.array(sure).to_numpy(), pa.array(right).to_numpy(False), 150)
    return Trial("fused", "fi", "all", 150, 0.4, reliability(sure, right), levels, 0.3)  # type: ignore[arg-type]


def test_names_are_escaped_everywhere(toy: KB, proposals: Path, tmp_path: Path) -> None:
    report = Report(
        toy,
        proposals,
        title=HOSTILE,
        introduction=HOSTILE,
        command=f"prixlm {HOSTILE}",
        reliability=reliability_curves([trial()]),
        grids=[Grid(HOSTILE, {HOSTILE: {HOSTILE: 0.5}}, notes=[HOSTILE])],
        timings={HOSTILE: 1.0},
    )
    page = write_report(tmp_path / "report", report).read_text("utf-8")
    assert "<script" not in page and "&lt;script&gt;" in page
    assert not re.search(r"<[^>]*\sonload=", page)
    assert not re.search(r'(src|href)="(?!data:image/png;base64,)', page), "no network"
    text = (tmp_path / "report" / "report.md").read_text("utf-8")
    text = re.sub(r"(?<!\\)`[^`]*`", "", text)  # the command stands in a code span
    assert "<script" not in text
    assert not re.search(r"(?<!\\)\]\(", text), "no link of a name's own"
    told = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))
    assert told["examples"][0]["subject"] == HOSTILE


def test_a_name_has_the_direction_of_its_letters(toy: KB, proposals: Path, tmp_path: Path) -> None:
    page = write_report(tmp_path / "report", Report(toy, proposals)).read_text("utf-8")
    assert re.search(r'<td dir="auto" lang="fi">هلسنكي</td>', page)
    assert "Confidence against the share" not in page, "without trials there is no curve"


def test_coverage_is_that_of_a_hand_worked_example(
    toy: KB, proposals: Path, tmp_path: Path
) -> None:
    """Of the capitals that Finnish can name (Finland's), it states one of one; currency: 1 of 2."""
    write_report(tmp_path / "report", Report(toy, proposals, langs=("fi",)))
    coverage = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))["coverage"]
    rows = {row["relation"]: row["cells"][0]["text"] for row in coverage["rows"]}
    names = toy.relation_names("en")
    own = pq.read_table(proposals / "proposals.parquet", schema=SCHEMA)["relation"].to_pylist()
    assert rows["country"].startswith("100%")
    for relation in own:
        before, after = rows[names[relation]].split(" → ")
        assert int(after[:-1]) >= int(before[:-1])
