"""Questions to the models: completion, translation and links, and what is refused."""

import time
from pathlib import Path

import pytest

from prixlm import KB, PrixError
from prixlm.service.answering.concepts import NotFound
from prixlm.service.opened import Folders
from prixlm.service.schemas import Filter
from prixlm.service.workbench import Workbench


def test_facts_are_completed_with_all_evidence(countries: Path) -> None:
    bench = Workbench(Folders(work=countries))
    page = bench.proposals(Filter(table="facts", state="all"), limit=200)
    for proposal in page.proposals[:5]:
        assert proposal.relation is not None
        answer = bench.questions.complete(proposal.relation.key, proposal.lang, proposal.subject.id)
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
    answer = bench.questions.complete("capital", "fi", bench.id_of(int(lookup.concept[subject])))
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
    assert before.pending, "asking for it begins to load the evidence"
    until = time.monotonic() + 60
    while (after := bench.proposal(proposal.id, Filter())).pending:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert len(after.evidence) > len(before.evidence)
    rivals = [one.entity.id for one in after.alternatives]
    assert rivals and proposal.value_id not in rivals
    confidences = [one.confidence or 0.0 for one in after.alternatives]
    assert confidences == sorted(confidences, reverse=True)
    bench.close()


def test_what_cannot_be_completed_is_refused_with_a_reason(bench: Workbench) -> None:
    with pytest.raises(NotFound, match="no relation 'nothing'"):
        bench.questions.complete("nothing", "en", "en:Helsinki")
    with pytest.raises(NotFound, match="has no name in Telugu"):
        bench.questions.complete("capital of", "te", "en:Helsinki")
    with pytest.raises(PrixError, match="the subject is missing"):
        bench.questions.complete("capital of", "en", None, "  ")
    with pytest.raises(NotFound, match="nothing to complete facts with"):
        bench.questions.complete("capital of", "en", "en:Helsinki")
    with pytest.raises(NotFound, match="'Turku' is not a name in English"):
        bench.questions.complete("capital of", "en", None, "Turku")


def test_a_name_is_translated_along_links(bench: Workbench) -> None:
    [answer] = bench.questions.translate("Cairo", "en", "ar").answers
    assert answer.entity.name.text == "القاهرة" and answer.score == 1.0
    assert bench.questions.translate("Europe", "en", "ar").answers == []
    with pytest.raises(NotFound):
        bench.questions.translate("Cairo", "en", "xx")


def test_a_model_completes_and_translates_new_names(shared_toy: KB, toy_model: Path) -> None:
    bench = Workbench(Folders(kb=shared_toy.folder, model=toy_model))
    assert bench.status().offered.model
    answer = bench.questions.complete("capital", "en", None, "France", limit=3)
    assert answer.by == "model" and len(answer.answers) == 3
    assert answer.answers[0].entity.name.text == "Paris" and answer.answers[0].confidence is None
    assert answer.answers[0].stated_in == ["en"]
    new = bench.questions.complete("capital", "en", None, "Atlantis", limit=2)
    assert len(new.answers) == 2 and new.answers[0].stated_in == []
    found = bench.questions.translate("Finland", "en", "fi", limit=2).answers
    assert found[0].entity.name.text == "Suomi" and found[0].score == 1.0
    assert 0 <= found[1].score <= 1
    with pytest.raises(PrixError):
        bench.questions.complete("capital", "en", None, "x" * 900)  # longer than the model reads
    bench.close()


def test_mentions_are_linked_with_a_calibrated_score(bench: Workbench) -> None:
    answers = bench.questions.link(["Helsinki", "القاهرة", "qqqq"], limit=3)
    assert [answer.mention for answer in answers] == ["Helsinki", "القاهرة", "qqqq"]
    assert answers[0].candidates[0].entity.id == "en:Helsinki"
    assert answers[1].candidates[0].entity.id == "en:Cairo"
    assert all(0 <= one.score <= 100 for answer in answers for one in answer.candidates)
