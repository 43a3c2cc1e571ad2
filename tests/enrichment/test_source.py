"""The source of a job: told from others by content, and refused where nothing can be made of it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from prixlm import KB, JobConfig, PrixError, remote, run_job
from prixlm.enrichment.estimate import estimate_job
from prixlm.enrichment.job import Given, open_job
from prixlm.enrichment.source import export_format, identify
from prixlm.importers.plan import estimate_sources
from tests.enrichment.helpers import INTO, PROPOSALS, QUICK


def test_a_folder_that_is_not_a_work_folder_is_refused(kb: KB, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    for folder, message in (
        (tmp_path / "file", "is a file: name a folder"),
        (tmp_path / "mine", "exists and is not a work folder"),
        (kb.folder, "is the source"),
    ):
        with pytest.raises(PrixError, match=message):
            run_job([kb.folder], folder, QUICK, overwrite=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_language_without_entities_is_refused(kb: KB, tmp_path: Path) -> None:
    config = replace(QUICK, into=("te",), enrich=replace(PROPOSALS, into=("te",)))
    for _ in range(2):  # the same again in the folder that the first run has made
        message = "the source has no entity with a name in te; it has en, fi, sv"
        with pytest.raises(PrixError, match=message):
            run_job([kb.folder], tmp_path / "work", config)
    with pytest.raises(PrixError, match="no entity with a name in te"):
        estimate_job([kb.folder], config)


def test_a_language_that_was_not_imported_is_told_from_one_without_entities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The world KB is imported in 17 languages, and in those to enrich."""
    config = JobConfig(into=("sv",), effort="quick", format="world", langs=("en", "fi"))
    with open_job([], tmp_path / "work", config) as job:
        assert job.kb().languages == ["en", "fi", "sv"]
    with (
        open_job([], tmp_path / "work", replace(config, into=("da",))) as job,
        pytest.raises(PrixError, match=r"kb was imported without da\. Import"),
    ):
        job.split()


def test_a_folder_in_which_nothing_was_made_is_free_for_another_source(
    files: list[Path], tmp_path: Path
) -> None:
    empty = tmp_path / "empty.tsv"
    empty.write_text("lang\tsubject\trelation\tobject\n")
    with pytest.raises(PrixError):
        run_job([empty], tmp_path / "work", QUICK)
    assert run_job(files, tmp_path / "work", QUICK)["config"]["into"] == list(INTO)


def test_neither_order_nor_place_of_the_files_makes_another_source(
    files: list[Path], kb: KB, tmp_path: Path
) -> None:
    identity = identify(files, None, None)
    assert identify(files[::-1], None, None) == identity
    assert identify([Path(shutil.copy(path, tmp_path)) for path in files], None, None) == identity
    (tmp_path / "links.tsv").write_text(files[1].read_text().replace("0", "1"))
    sizes = [path.stat().st_size for path in (files[1], tmp_path / "links.tsv")]
    assert sizes[0] == sizes[1], "only the content differs"
    assert identify([files[0], tmp_path / "links.tsv"], None, None) != identity
    assert identify(files, None, ["en"]) != identity
    assert identify([kb.folder], None, None) == {"kb": kb.fingerprint()}


def test_the_export_has_the_format_of_the_source(kb: KB, tmp_path: Path) -> None:
    with open_job([kb.folder], tmp_path / "work", QUICK) as job:
        assert export_format(tmp_path / "work") == "nq"
        job.state["source"] = {"format": "wikidata", "files": [], "langs": None}
        job.write_state()
    assert export_format(tmp_path / "work") == "quickstatements"
    assert export_format(tmp_path) == "nq", "a folder without a state"


def test_a_kb_of_a_store_is_a_kb_and_not_a_dump(
    kb: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIXLM_CACHE", str(tmp_path / "cache"))
    uri = Path(f"fsspec+file://{tmp_path}/store/kb")
    remote.upload_folder(kb.folder, uri)
    assert identify([uri], None, None) == {"kb": kb.fingerprint()}
    far = run_job([uri], tmp_path / "far", QUICK)
    assert far["proposals"] == run_job([kb.folder], tmp_path / "near", QUICK)["proposals"]
    assert estimate_job([uri], QUICK).notes == estimate_job([kb.folder], QUICK).notes
    given = Given(graph=Path(f"fsspec+file://{tmp_path}/store/none"))
    with pytest.raises(PrixError, match=r"fsspec\+file:///.*/none is empty or not there"):
        run_job([uri], tmp_path / "with graph", QUICK, given=given)


def test_a_dry_run_fetches_the_beginning_of_a_dump_alone(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIXLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("prixlm.importers.plan._HEAD_BYTES", 2000)
    uris = [Path(f"fsspec+file://{tmp_path}/store/{path.name}") for path in files]
    for path, uri in zip(files, uris, strict=True):
        remote.upload(path, uri)
    near, far = estimate_sources(files), estimate_sources(uris)
    assert far.sizes == near.sizes == tuple(path.stat().st_size for path in files)
    assert far.num_rows == pytest.approx(near.num_rows, rel=0.2), "scaled up from 2,000 bytes"
    assert far.as_text().count(" MB") == 2
    [folder] = {uri.parent for uri in uris}
    assert estimate_sources([folder]).sizes == near.sizes
    assert list(estimate_job(uris, QUICK).costs) == ["import"]
    assert list(tmp_path.glob("cache/f*")) == []
