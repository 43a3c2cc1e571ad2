"""The workbench: search, pages, counts and questions, and folders that change under it."""

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from prixlm import KB, EnrichConfig, JobConfig, PrixError, import_kb, run_job
from prixlm.service import workbench as module
from prixlm.service.answering.concepts import NotFound
from prixlm.service.opened import Folders
from prixlm.service.schemas import ExportRequest, Filter, MarkRequest
from prixlm.service.security import status_of
from prixlm.service.workbench import Unavailable, Workbench
from tests.conftest import TOY_FACTS, TOY_LINKS
from tests.enrichment.helpers import FUSION, write_countries
from tests.service import served


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the folders at every call, instead of twice a second."""
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.0)


def test_search_finds_names_in_any_script_and_ids(bench: Workbench) -> None:
    [found] = bench.search("القاهرة").results
    assert found.entity.id == "en:Cairo" and found.matched.lang == "ar" and found.how == "exact"
    by_id = bench.search("en:Cairo", langs=["ar"]).results[0]
    assert by_id.how == "id" and by_id.entity.name.text == "القاهرة"
    assert bench.search("helsnki").results[0].entity.id == "en:Helsinki"
    assert bench.search("Helsinki").results[0].about.startswith("capital of: Finland")
    assert bench.search("   ").results == []


def test_search_in_one_language_shows_names_of_that_language(bench: Workbench) -> None:
    found = bench.search("Helsinki", "fi").results
    assert {one.matched.lang for one in found} == {"fi"}
    with pytest.raises(NotFound, match="no language 'xx': the KB has ar, en, fi, te"):
        bench.search("Helsinki", "xx")


def test_search_names_each_concept_once(bench: Workbench) -> None:
    ids = [one.entity.id for one in bench.search("en:Helsinki").results]
    assert len(ids) == len(set(ids))


def test_the_page_of_an_entity_has_its_proposals_in_place(bench: Workbench) -> None:
    page = bench.entity("en:Helsinki", ["en"])
    groups = {group.relation.name.text: group for group in page.facts}
    assert [one.id for one in groups["capital of"].proposals] == ["fact-2"]
    cairo = bench.entity("en:Cairo", ["en"])
    by_lang = {one.lang: [proposal.id for proposal in one.proposed] for one in cairo.names}
    assert by_lang["fi"] == ["label-0"]
    bench.mark("Anna", MarkRequest(id="label-0", verdict="reject"))
    assert not any(one.proposed for one in bench.entity("en:Cairo").names)


def test_gaps_are_what_a_language_could_add(bench: Workbench) -> None:
    answer = bench.gaps("en:Helsinki", "fi", ["en"])
    assert [gap.relation.name.text for gap in answer.gaps] == ["capital of"]
    assert answer.unnamed_in == ["ar", "te"]
    assert len(bench.gaps("en:Helsinki").gaps) == 2
    assert bench.gaps("en:Helsinki", "te").gaps == []


def test_relations_are_suggested_by_a_part_of_their_name(bench: Workbench) -> None:
    def suggest(query: str) -> list[str]:
        return [one.name.text for one in bench.relations(query, ["en"]).relations]

    assert suggest("CAP") == ["capital of"] and suggest("in") == ["located in"]
    assert suggest("") == ["capital of", "located in"] and suggest("zzz") == []


@pytest.mark.parametrize(
    ("ui", "accepted", "langs"),
    [
        (None, "", ["en"]),
        ("fi", "te", ["fi", "en"]),
        ("xx", "", ["en"]),
        (None, "de, te;q=0.7, fi;q=0.9", ["fi", "en"]),
        (None, "ar-EG,ar;q=0.5", ["ar", "en"]),
        (None, "fi;q=0, te;q=x, *", ["en"]),
        (None, ",;;=,\x00" * 500, ["en"]),
    ],
)
def test_the_reader_is_answered_in_his_language(
    bench: Workbench, ui: str | None, accepted: str, langs: list[str]
) -> None:
    assert bench.reader_langs(ui, accepted) == langs


def test_without_proposals_a_review_is_refused(served_kb: KB) -> None:
    bench = Workbench(Folders(kb=served_kb.folder))
    assert not bench.status().offered.proposals
    assert "proposals" not in bench.overview().counts
    with pytest.raises(NotFound, match="this server has no proposals"):
        bench.proposals(Filter())
    assert bench.lacks()[0].startswith("No proposals")


def test_no_path_of_the_machine_is_told(bench: Workbench, folders: Folders) -> None:
    for folder in (folders.kb, folders.proposals):
        assert folder is not None
        assert str(folder.parent) not in bench.hide_paths(f"{folder}/x cannot be read")
        assert str(folder) not in bench.hide_paths(f"'{folder}'")


@pytest.mark.usefixtures("no_wait")
def test_new_proposals_are_noticed(bench: Workbench, folders: Folders, served_kb: KB) -> None:
    assert folders.proposals is not None
    assert bench.proposals(Filter()).total == 48
    new = served.make_served_proposals(served_kb, folders.proposals.with_name("new"), 2)
    shutil.rmtree(folders.proposals)
    new.rename(folders.proposals)
    assert bench.proposals(Filter()).total == 10
    bench.mark("Anna", MarkRequest(id="fact-7", verdict="accept"))
    assert bench.proposals(Filter()).total == 9


@pytest.mark.usefixtures("no_wait")
def test_a_kb_that_is_replaced_is_noticed_and_refused_while_it_is_gone(tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_text(TOY_FACTS, "utf-8")
    (tmp_path / "links.tsv").write_text(TOY_LINKS, "utf-8")
    files = [tmp_path / "facts.tsv", tmp_path / "links.tsv"]
    kb = import_kb(files, tmp_path / "kb")
    bench = Workbench(Folders(kb=kb.folder))
    assert bench.search("Tallinn").results == []
    kb.folder.rename(tmp_path / "old")
    with pytest.raises(Unavailable) as raised:
        bench.search("Tallinn")
    assert str(tmp_path) not in str(raised.value) and "is not a KB folder" in str(raised.value)
    files[0].write_text(TOY_FACTS + "en\tEstonia\tcapital\tTallinn\n", "utf-8")
    import_kb(files, tmp_path / "kb")
    assert bench.search("Tallinn").results[0].entity.name.text == "Tallinn"


def test_a_change_is_noticed_within_a_second(bench: Workbench, folders: Folders) -> None:
    assert folders.proposals is not None
    before = bench.opened
    os.utime(folders.proposals / "manifest.json")
    deadline = time.monotonic() + 1.0
    while bench.opened is before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert bench.opened is not before


def test_a_folder_that_is_wrong_in_any_way_is_tried_again(
    bench: Workbench, folders: Folders, no_wait: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a column is cut")

    assert folders.proposals is not None
    (folders.proposals / "manifest.json").touch()
    with monkeypatch.context() as broken:
        broken.setattr(module, "Opened", fail)
        for _ in range(2):
            with pytest.raises(Unavailable, match="its files cannot be read"):
                bench.status()
    assert bench.status().languages


def test_who_asks_while_a_folder_is_opened_waits_or_is_told_to_come_back(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(module, "_OPEN_SECONDS", 0.05)
    holds, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with bench._lock:
            holds.set()
            ends.wait(5)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(5)
    with pytest.raises(Unavailable, match="is being opened"):
        bench.status()
    ends.set()
    thread.join()
    assert bench.status().languages


def test_files_of_an_export_do_not_outlive_the_server(bench: Workbench) -> None:
    file, _ = bench.export(ExportRequest(format="tsv"))
    assert file.is_file()
    bench.close()
    assert not file.parent.exists()


def test_a_server_outlives_an_enrich_that_overwrites_its_folder(
    tmp_path: Path, no_wait: None
) -> None:
    """Requests meanwhile are answered, or told to come back; then the new proposals are served."""
    files, folder = write_countries(tmp_path), tmp_path / "work"

    def enrich(least: float) -> None:
        proposals = EnrichConfig(into=("fi",), min_confidence=least, fusion=FUSION)
        job = JobConfig(into=("fi",), effort="quick", enrich=proposals)
        run_job(files, folder, job, overwrite=True)

    enrich(0.05)
    bench = Workbench(Folders(work=folder))
    before = bench.facets(Filter()).total
    running = threading.Thread(target=enrich, args=(0.5,))
    running.start()
    answered = 0
    while running.is_alive():
        try:
            for one in bench.proposals(Filter(), limit=1).proposals:
                assert bench.proposal(one.id, Filter()).proposal.id == one.id
            assert bench.search("Finland").results
            answered += 1
        except PrixError as error:
            status, _ = status_of(error)
            assert status in (404, 409, 503), error
        except OSError:
            pass  # the application answers 503
        time.sleep(0.01)
    running.join()
    assert answered > 0
    after = bench.facets(Filter()).total
    assert after < before
    again = Workbench(Folders(work=folder))
    assert again.facets(Filter()).total == after
    again.close()
    bench.close()
