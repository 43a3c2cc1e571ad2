"""`prixlm enrich`, `review`, `export` and `report`, from a KB to a page."""

import json
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from prixlm.rankers.fusion import FusionConfig
from tests.cli.conftest import succeed, succeed_json
from tests.helpers import run_prixlm


@pytest.fixture(scope="session")
def proposals(split: Path, graph: Path) -> Path:
    """Proposals of the Estonian capitals, with a graph embedding as evidence."""
    folder = split.parent / "proposals"
    asked = ("--into", "et", "--relations", "capital", "--min-confidence", 0.1)
    fast = partial(FusionConfig, facts=150, depth=5, iterations=20, smallest=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prixlm.enrichment.run.FusionConfig", fast)
        text = succeed("enrich", split, *asked, "--graph", graph, "--to", folder)
    assert "Written to" in text and "for Estonian" in text
    return folder


def test_enrich_uses_the_graph_embedding(proposals: Path) -> None:
    manifest = json.loads((proposals / "manifest.json").read_text("utf-8"))
    assert "graph" in manifest["rankers"]
    rows = pq.read_table(proposals / "proposals.parquet")
    assert rows.num_rows and rows["graph_rank"].null_count < rows.num_rows


def test_a_folder_of_proposals_is_not_replaced_unasked(split: Path, proposals: Path) -> None:
    ran = run_prixlm("enrich", split, "--into", "et", "--to", proposals)
    assert ran.returncode == 2 and "--overwrite" in ran.stderr


def test_a_review_is_written_and_read_back(proposals: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "review.tsv"
    written = succeed_json("review", proposals, "--to", sheet)
    assert written == {"proposals": len(sheet.read_text().splitlines()) - 1, "file": str(sheet)}
    assert "0 accepted, 0 rejected" in succeed("review", proposals, "--marks", sheet)


def test_export_counts_what_it_wrote_and_left_out(proposals: Path, tmp_path: Path) -> None:
    assert "facts in" in succeed("export", proposals, "--format", "nt", "--to", tmp_path / "f.nt")
    options = ("--format", "tsv", "--min-confidence", 0.9, "--to", tmp_path / "f.tsv")
    counts = succeed_json("export", proposals, *options)
    assert counts["written"] + counts["below the confidence"] == (
        pq.read_metadata(proposals / "proposals.parquet").num_rows
    )


def test_a_report_shows_tables_and_refuses_another_kb(
    split: Path, proposals: Path, tmp_path: Path
) -> None:
    rows = succeed("evaluate", "lp", "--kb", split, "--most", 20, "--to", tmp_path / "lp")
    assert "Hits@1" in rows
    options = ("--to", tmp_path / "report", "--table", tmp_path / "lp" / "table.json")
    told = succeed_json("report", proposals, "--kb", split, *options)
    page = Path(told["report"]).read_text("utf-8")
    assert "Hits@10" in page and "links: lookup" in page and "Run time" in page
    assert "Proposals in Estonian with a confidence of 0.1 or more, relations capital" in page
    other = run_prixlm("report", proposals, "--kb", split.parent / "kb", "--to", tmp_path / "x")
    assert other.returncode == 2 and "another KB" in other.stderr


def test_a_wrong_number_of_trials_is_refused(split: Path, proposals: Path) -> None:
    ran = run_prixlm("report", proposals, "--kb", split, "--to", "x", "--try", "-1")
    assert ran.returncode == 2 and "--try -1: expected 0 or more" in ran.stderr
