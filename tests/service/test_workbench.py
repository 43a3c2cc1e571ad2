"""The workbench: search, pages, counts and questions, and folders that change under it."""

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.kb.coverage import count_coverage
from prixlm.service import workbench as module
from prixlm.service.concepts import NotFound
from prixlm.service.opened import Folders
from prixlm.service.schemas import ExportRequest, Filter, MarkRequest
from prixlm.service.workbench import Unavailable, Workbench
from tests.conftest import TOY_FACTS, TOY_LINKS
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


def test_the_overview_counts_what_is_stated_missing_and_proposed(
    bench: Workbench, served_kb: KB
) -> None:
    overview = bench.overview(["en"])
    facts = count_coverage(served_kb)
    for row in overview.rows:
        number = served_kb.relation_keys().index(row.relation.key)
        for lang, cell in zip(overview.langs, row.cells, strict=True):
            assert cell.stated == facts.stated[lang, number]
            assert cell.missing == facts.statable[lang, number] - facts.stated[lang, number]
    proposed = {
        (row.relation.name.text, lang): cell.proposed
        for row in overview.rows
        for lang, cell in zip(overview.langs, row.cells, strict=True)
    }
    assert proposed["capital of", "fi"] == 1 and proposed["located in", "en"] == 41
    assert overview.counts["proposals"] == 48 == overview.counts["open"]
    assert overview.names["te"] == "Telugu" and overview.num_relations == 2
    [trial] = overview.trials
    assert (trial.lang, trial.facts, trial.error) == ("fi", 100, 0.03)
    assert trial.levels == [
        {"confidence": 0.5, "precision": 0.8, "recall": 0.7},
        {"confidence": 0.95, "recall": 0.0},
    ]


def test_the_counts_of_the_overview_are_kept_on_disk(
    bench: Workbench, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.overview()
    monkeypatch.setattr(module, "count_coverage", lambda _kb: pytest.fail("counted again"))
    assert Workbench(folders).overview() == first
    path = bench.opened.lookup.folder / "coverage.json"
    path.write_text("{", "utf-8")
    monkeypatch.undo()
    assert Workbench(folders).overview() == first  # a damaged file is made again
    json.loads(path.read_text("utf-8"))


def test_the_overview_shows_the_largest_relations_or_all(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NUM_RELATIONS", 1)
    assert len(bench.overview().rows) == 1 and len(bench.overview(show_all=True).rows) == 2


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


def test_facts_are_completed_with_all_evidence(countries: Path) -> None:
    bench = Workbench(Folders(work=countries))
    page = bench.proposals(Filter(table="facts", state="all"), limit=200)
    for proposal in page.proposals[:5]:
        assert proposal.relation is not None
        answer = bench.complete(proposal.relation.key, proposal.lang, proposal.subject.id)
        assert answer.by == "evidence" and answer.subject.lang == proposal.lang
        found = {one.entity.id: one for one in answer.answers}
        assert found[str(proposal.value_id)].confidence == pytest.approx(
            proposal.confidence, abs=1e-6
        )
        ranks = [one.rank for one in found[str(proposal.value_id)].evidence]
        assert any(rank is not None for rank in ranks)
    bench.close()


def test_what_the_language_states_already_is_listed_apart(countries: Path) -> None:
    bench = Workbench(Folders(work=countries))
    lookup = bench.lookup
    relation = lookup.find_relation("capital")
    assert relation is not None
    subject = next(
        entity
        for entity in bench.kb.entity_range("fi")
        if relation in lookup.facts_of([entity]).relation
    )
    answer = bench.complete("capital", "fi", bench.id_of(int(lookup.concept[subject])))
    facts = lookup.facts_of([subject])
    stated = {bench.id_of(int(lookup.concept[o])) for o in facts.object[facts.relation == relation]}
    assert {one.id for one in answer.already} == stated
    assert stated.isdisjoint(one.entity.id for one in answer.answers)
    bench.close()


def test_a_proposal_shows_all_evidence_and_its_rivals_once_they_are_loaded(
    countries: Path,
) -> None:
    bench = Workbench(Folders(work=countries))
    [proposal] = bench.proposals(Filter(table="facts", state="all"), limit=1).proposals
    before = bench.proposal(proposal.id, Filter())
    bench.warm_up()
    after = bench.proposal(proposal.id, Filter())
    assert len(after.evidence) > len(before.evidence)
    rivals = [one.entity.id for one in after.alternatives]
    assert rivals and proposal.value_id not in rivals
    confidences = [one.confidence or 0.0 for one in after.alternatives]
    assert confidences == sorted(confidences, reverse=True)
    bench.close()


def test_what_cannot_be_completed_is_refused_with_a_reason(bench: Workbench) -> None:
    with pytest.raises(NotFound, match="no relation 'nothing'"):
        bench.complete("nothing", "en", "en:Helsinki")
    with pytest.raises(NotFound, match="has no name in Telugu"):
        bench.complete("capital of", "te", "en:Helsinki")
    with pytest.raises(PrixError, match="the subject is missing"):
        bench.complete("capital of", "en", None, "  ")
    with pytest.raises(NotFound, match="nothing to complete facts with"):
        bench.complete("capital of", "en", "en:Helsinki")
    with pytest.raises(NotFound, match="'Turku' is not a name in English"):
        bench.complete("capital of", "en", None, "Turku")


def test_a_name_is_translated_along_links(bench: Workbench) -> None:
    [answer] = bench.translate("Cairo", "en", "ar").answers
    assert answer.entity.name.text == "القاهرة" and answer.score == 1.0
    assert bench.translate("Europe", "en", "ar").answers == []
    with pytest.raises(NotFound):
        bench.translate("Cairo", "en", "xx")


def test_a_model_completes_and_translates_new_names(shared_toy: KB, toy_model: Path) -> None:
    bench = Workbench(Folders(kb=shared_toy.folder, model=toy_model))
    assert bench.status().offered.model
    answer = bench.complete("capital", "en", None, "France", limit=3)
    assert answer.by == "model" and len(answer.answers) == 3
    assert answer.answers[0].entity.name.text == "Paris" and answer.answers[0].confidence is None
    assert answer.answers[0].stated_in == ["en"]
    new = bench.complete("capital", "en", None, "Atlantis", limit=2)
    assert len(new.answers) == 2 and new.answers[0].stated_in == []
    found = bench.translate("Finland", "en", "fi", limit=2).answers
    assert found[0].entity.name.text == "Suomi" and found[0].score == 1.0
    assert 0 <= found[1].score <= 1
    with pytest.raises(PrixError):
        bench.complete("capital", "en", None, "x" * 900)  # longer than the model reads
    bench.close()


def test_mentions_are_linked_with_a_calibrated_score(bench: Workbench) -> None:
    answers = bench.link(["Helsinki", "القاهرة", "qqqq"], limit=3)
    assert [answer.mention for answer in answers] == ["Helsinki", "القاهرة", "qqqq"]
    assert answers[0].candidates[0].entity.id == "en:Helsinki"
    assert answers[1].candidates[0].entity.id == "en:Cairo"
    assert all(0 <= one.score <= 100 for answer in answers for one in answer.candidates)


def test_files_of_an_export_do_not_outlive_the_server(bench: Workbench) -> None:
    file, _ = bench.export(ExportRequest(format="tsv"))
    assert file.is_file()
    bench.close()
    assert not file.parent.exists()
