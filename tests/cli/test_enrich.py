"""`prixlm enrich`, `review`, `export` and `report`, from a source to a page."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from prixlm import KB
from prixlm.enrichment import job as job_module
from prixlm.rankers.fusion import FusionConfig
from prixlm.training.costs import RunCosts
from tests.cli.conftest import succeed, succeed_json
from tests.enrichment.helpers import write_countries
from tests.helpers import fact_row, make_proposals, run_prixlm

QUICK = ("--effort", "quick")
RESULTS = ("proposals.parquet", "labels.parquet", "manifest.json")


@pytest.fixture(scope="session", autouse=True)
def _fast_fusion() -> Iterator[None]:
    """The default takes ten seconds to fit."""
    fast = partial(FusionConfig, facts=150, depth=5, iterations=20, smallest=20, parts=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prixlm.enrichment.run.FusionConfig", fast)
        yield


@pytest.fixture(scope="session")
def work(split: Path, graph: Path) -> Path:
    """A work folder with Estonian capitals, and with a graph embedding as evidence."""
    folder = split.parent / "work"
    asked = ("--into", "et", "--relations", "capital", "--min-confidence", 0.1)
    text = succeed("enrich", split, *asked, "--graph", graph, "--to", folder)
    assert "Written to" in text and "for Estonian" in text
    return folder


@pytest.fixture(scope="session")
def proposals(work: Path) -> Path:
    return work / "proposals"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A dump of countries: tables of facts and links."""
    return write_countries(tmp_path_factory.mktemp("countries"))


@pytest.fixture(scope="module")
def whole(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work folder of a quick run on that dump, never interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "work"
    succeed("enrich", *files, "--into", "fi,sv", *QUICK, "--to", folder)
    return folder


def results(folder: Path) -> list[bytes]:
    return [(folder / "proposals" / name).read_bytes() for name in RESULTS]


def refused(*args: object) -> str:
    """Run a command that must fail with one line; return that line."""
    ran = run_prixlm(*args)
    assert ran.returncode == 2, ran.stdout
    assert "Traceback" not in ran.stderr
    return " ".join(ran.stderr.split())


def test_a_split_with_a_graph_trains_nothing(split: Path, work: Path) -> None:
    names = {path.name for path in work.iterdir()}
    assert names == {"everything", "lock", "proposals", "report", "work.json"}
    state = json.loads((work / "work.json").read_text("utf-8"))
    assert state["plan"]["effort"] == "quick", "as --graph was given"
    manifest = json.loads((work / "proposals" / "manifest.json").read_text("utf-8"))
    assert "graph" in manifest["rankers"]
    rows = pq.read_table(work / "proposals" / "proposals.parquet")
    assert rows.num_rows and rows["graph_rank"].null_count < rows.num_rows


def test_a_quick_run_goes_from_the_world_to_an_export(tmp_path: Path) -> None:
    command = ("enrich", "--format", "world", "--langs", "en,fi", "--into", "et", *QUICK)
    text = succeed(*command, "--to", tmp_path / "my work")
    for line in ("Importing the source.", "Holding out facts", "Fitting the confidence"):
        assert line in text
    assert "for Estonian" in text and "held-out facts of Estonian: at 0.5 or more" in text
    assert f"Open {(tmp_path / 'my work' / 'report' / 'report.html').as_uri()}" in text
    for step in ("review", "export"):
        assert f"  prixlm {step} '{tmp_path / 'my work'}' --" in text
    # The next steps take the work folder itself.
    folder, sheet = tmp_path / "my work", tmp_path / "review.tsv"
    written = succeed_json("review", folder, "--to", sheet)
    assert written["proposals"] == len(sheet.read_text("utf-8").splitlines()) - 1
    counts = succeed_json("export", folder, "--format", "nq", "--to", tmp_path / "f.nq")
    rows = pq.read_table(folder / "proposals" / "proposals.parquet")
    assert counts["written"] == rows.num_rows > 0


def test_a_second_run_says_the_same_and_makes_nothing_again(
    files: list[Path], whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = results(whole)
    for name in ("import_kb", "split_kb", "enrich"):
        monkeypatch.setattr(job_module, name, None)
    text = succeed("enrich", *files, "--into", "sv,fi", *QUICK, "--to", whole)
    assert "for Finnish" in text and "for Swedish" in text and "Importing" not in text
    assert "Next:\n" in text and results(whole) == before


def test_a_killed_run_resumes_and_ends_with_the_same_bytes(
    files: list[Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("enrich", *files, "--into", "fi,sv", *QUICK, "--to", tmp_path / "work")
    for name in ("split_kb", "enrich"):
        step = getattr(job_module, name)

        def dying(*args: Any, step: Any = step, **options: Any) -> None:
            step(*args, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(job_module, name, dying)
            ran = run_prixlm(*command)
        assert ran.returncode == 130 and "Traceback" not in ran.stderr
    succeed(*command)
    assert results(tmp_path / "work") == results(whole)


def test_json_is_the_manifest_and_nothing_else(files: list[Path], whole: Path) -> None:
    manifest = succeed_json("enrich", *files, "--into", "fi,sv", *QUICK, "--to", whole)
    assert manifest == json.loads((whole / "proposals" / "manifest.json").read_text("utf-8"))
    assert set(manifest["proposals"]) >= {"sv"} and manifest["trials"][0]["lang"] == "fi"


def test_a_dry_run_writes_nothing(files: list[Path], whole: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    text = succeed("enrich", *files, "--into", "fi", "--to", work, "--dry-run")
    assert "import: about 1 s" in text and "In all about 60 min." in text
    kb = whole / "kb"
    before = sorted(kb.iterdir())
    told = succeed_json("enrich", kb, "--into", "fi", *QUICK, "--to", work, "--dry-run")
    assert (
        list(told["costs"]) == ["split", "fit and ask", "names"]
        and told["plan"]["effort"] == "quick"
    )
    assert told["costs"]["split"]["disk"] > 0
    assert list(tmp_path.iterdir()) == [] and sorted(kb.iterdir()) == before
    # It needs no folder.
    assert "questions will be asked" in succeed("enrich", kb, "--into", "fi", *QUICK, "--dry-run")


def test_what_a_job_needs_is_asked_for(files: list[Path], tmp_path: Path) -> None:
    for options, message in (
        ((*files, "--to", tmp_path / "w"), "--into is missing: name the languages"),
        ((*files, "--into", "fi"), "--to is missing: name the folder to work in"),
        (("--into", "fi", "--to", tmp_path / "w"), "no source given"),
        ((*files, "--into", "fi", "--to", tmp_path / "w", "--effort", "slow"), "expected quick"),
        ((*files, "--into", "fi", "--to", tmp_path / "w", "--base", "b"), "--effort thorough"),
        ((tmp_path / "x.nt", "--into", "fi", "--to", tmp_path / "w"), "no such file or folder"),
    ):
        assert message in refused("enrich", *options)
    assert list(tmp_path.iterdir()) == []


def test_a_work_folder_of_another_source_is_refused(
    files: list[Path], whole: Path, split: Path
) -> None:
    before = results(whole)
    for source in ((files[0],), (split,)):
        told = refused("enrich", *source, "--into", "fi", *QUICK, "--to", whole, "--overwrite")
        assert "was made from another source" in told and "Name another folder" in told
    assert results(whole) == before


def test_a_language_without_entities_is_refused(files: list[Path], tmp_path: Path) -> None:
    told = refused("enrich", *files, "--into", "te", *QUICK, "--to", tmp_path / "work")
    assert "has no entity with a name in te; it has en, fi, sv" in told


def test_a_source_of_one_language_or_without_links_is_warned_about(
    files: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = ("--into", "fi", *QUICK, "--min-confidence", 0, "--relations", "language")
    alone = ("enrich", files[0], "--langs", "fi", *command, "--to", tmp_path / "alone")
    for args, message in (
        (alone, "has one language: no fact can be carried over from another"),
        (("enrich", files[0], *command, "--to", tmp_path / "w"), "no links between its languages"),
    ):
        assert "usual for similar entities" in succeed(*args)
        assert message in caplog.text
        caplog.clear()


def test_every_language_of_a_source_can_be_asked_for(files: list[Path], tmp_path: Path) -> None:
    options = ("--langs", "all", "--into", "fi", *QUICK, "--relations", "language")
    succeed("enrich", *files, *options, "--to", tmp_path / "work")
    assert KB(tmp_path / "work" / "kb").languages == ["en", "fi", "sv"]


def test_minutes_that_are_too_short_say_what_would_do(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*args: object) -> RunCosts:
        return RunCosts(
            parameters=1,
            triples=1,
            steps=1,
            facts_per_second=1e6,
            seconds=1000.0,
            memory=1,
            checkpoint=1,
            disk=1,
        )

    for name in ("estimate_graph", "estimate_pretrain"):
        monkeypatch.setattr(f"prixlm.enrichment.budget.{name}", slow)
    command = ("enrich", whole / "kb", "--into", "fi", "--to", tmp_path / "work")
    told = refused(*command, "--minutes", 5)
    assert "--minutes 5 is too short to train anything." in told
    assert "it would need --minutes" in told and "Without training: --effort quick." in told


def test_other_settings_need_overwrite_and_marks_are_never_lost(
    files: list[Path], whole: Path, tmp_path: Path
) -> None:
    work = shutil.copytree(whole, tmp_path / "work")
    other = ("enrich", *files, "--into", "sv", *QUICK, "--relations", "capital", "--to", work)
    assert "has proposals of other settings. Pass --overwrite" in refused(*other)
    assert "for Swedish" in succeed(*other, "--overwrite")
    sheet = tmp_path / "review.tsv"
    succeed("review", work, "--to", sheet)
    marked = [line.split("\t") for line in sheet.read_text("utf-8").splitlines()]
    column = marked[0].index("mark")
    marked[1][column] = "accept"
    sheet.write_text("\n".join("\t".join(cells) for cells in marked) + "\n", "utf-8")
    assert "1 accepted" in succeed("review", work, "--marks", sheet)
    again = ("enrich", *files, "--into", "fi,sv", *QUICK, "--to", work, "--overwrite")
    assert "that a person has reviewed" in refused(*again)
    assert "for Swedish" in succeed(*other), "the same settings make nothing again"
    assert "1 accepted" in succeed("review", work, "--marks", sheet)


def test_a_folder_that_is_not_a_work_folder_is_refused(split: Path, proposals: Path) -> None:
    before = sorted(proposals.iterdir())
    told = refused("enrich", split, "--into", "et", *QUICK, "--to", proposals, "--overwrite")
    assert "exists and is not a work folder" in told and sorted(proposals.iterdir()) == before


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
    split: Path, work: Path, tmp_path: Path
) -> None:
    rows = succeed("evaluate", "lp", "--kb", split, "--most", 20, "--to", tmp_path / "lp")
    assert "Hits@1" in rows
    options = ("--to", tmp_path / "report", "--table", tmp_path / "lp" / "table.json")
    # The KB that was asked, or the split that the confidence was fitted on.
    succeed("report", work, "--kb", work / "everything", "--to", tmp_path / "asked")
    # A work folder knows its KB; a folder of proposals does not.
    found = succeed("report", work, "--to", tmp_path / "found")
    assert str(tmp_path / "found") in found.replace("\n", "")
    alone = run_prixlm("report", work / "proposals", "--to", tmp_path / "y")
    assert alone.returncode == 2 and "name its KB with --kb" in alone.stderr
    told = succeed_json("report", work, "--kb", split, *options)
    page = Path(told["report"]).read_text("utf-8")
    assert "Hits@10" in page and "links: lookup" in page and "Run time" in page
    assert "Proposals in Estonian with a confidence of 0.1 or more, relations capital" in page
    other = run_prixlm("report", work, "--kb", split.parent / "kb", "--to", tmp_path / "x")
    assert other.returncode == 2 and "another KB" in other.stderr


def test_a_wrong_number_of_trials_is_refused(split: Path, proposals: Path) -> None:
    ran = run_prixlm("report", proposals, "--kb", split, "--to", "x", "--try", "-1")
    assert ran.returncode == 2 and "--try -1: expected 0 or more" in ran.stderr


def test_an_export_takes_several_references(tmp_path: Path) -> None:
    keys = {"subject_key": "Q33", "relation_key": "P36", "object_key": "Q1757"}
    folder = make_proposals(tmp_path / "proposals", [fact_row(0, **keys, origin=[])])
    options = ("--format", "quickstatements", "--to", tmp_path / "batch.qs")
    references = ("--reference", 'S854:https://a.org,S304:"7"', "--reference", "S248:Q5")
    assert succeed_json("export", folder, *options, *references)["written"] == 1
    line = (tmp_path / "batch.qs").read_text("utf-8")
    assert line.startswith('Q33\tP36\tQ1757\tS854\t"https://a.org"\tS304\t"7"\t!S248\tQ5 /* prixlm')


def test_a_sample_is_drawn_and_reviewed(work: Path, tmp_path: Path) -> None:
    counts = succeed_json("sample", work, "--number", 3, "--to", tmp_path / "sample")
    assert counts == {"et": 3}
    written = succeed_json("review", tmp_path / "sample", "--to", tmp_path / "sheet.tsv")
    assert written["proposals"] == 3
    assert "is already there" in refused("sample", work, "--to", tmp_path / "sample")
