"""Proposals for a reviewer: order, evidence in words, marks, undo, and what others think."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prixlm import PrixError
from prixlm.proposals.marks import read_verdicts
from prixlm.service.answering.concepts import NotFound
from prixlm.service.answering.reviewing import Conflict, Review, language_list
from prixlm.service.schemas import (
    BulkRequest,
    ExportRequest,
    Filter,
    MarkRequest,
    Order,
    Replacement,
)
from prixlm.service.workbench import Workbench
from tests.service.served import SCRIPT

EVERYTHING = Filter(state="all")


@pytest.fixture
def review(bench: Workbench) -> Review:
    return bench.review


def ids_of_all_pages(
    review: Review, asked: Filter, order: Order = "certain", limit: int = 7
) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        page = review.page(asked, order, after, limit)
        found += [proposal.id for proposal in page.proposals]
        after = page.next
        if after is None:
            return found


@pytest.mark.parametrize("order", ["certain", "informative"])
def test_pages_together_are_the_queue(review: Review, order: Order) -> None:
    found = ids_of_all_pages(review, EVERYTHING, order)
    assert len(found) == len(set(found)) == 48 == review.page(EVERYTHING).total
    assert found == [one.id for one in review.page(EVERYTHING, order, None, 200).proposals]


def test_the_next_page_continues_after_one_that_was_marked_meanwhile(review: Review) -> None:
    page = review.page(Filter(), limit=3)
    assert page.next == page.proposals[-1].id
    for proposal in page.proposals:
        review.mark("Anna", MarkRequest(id=proposal.id, verdict="accept"))
    following = review.page(Filter(), after=page.next, limit=200)
    before = {one.id for one in page.proposals}
    assert before.isdisjoint(one.id for one in following.proposals)
    assert following.total == len(following.proposals) == 45


def test_a_proposal_leads_to_its_neighbours_in_the_filter(review: Review) -> None:
    asked = Filter(lang="en", table="facts")
    found = ids_of_all_pages(review, asked)
    for place, text in enumerate(found):
        answer = review.proposal(text, asked)
        assert answer.previous == (found[place - 1] if place else None)
        assert answer.next == (found[place + 1] if place + 1 < len(found) else None)
    # After its mark it is no longer in the filter, but still between the same neighbours.
    review.mark("Anna", MarkRequest(id=found[3], verdict="reject"))
    answer = review.proposal(found[3], asked)
    assert (answer.previous, answer.next) == (found[2], found[4])


def test_a_fact_is_explained_by_who_states_it_and_how_it_ranks(review: Review) -> None:
    answer = review.proposal("fact-2", Filter(), langs=["ar", "en"])
    assert answer.explanation == "English states it. The graph ranks it first."
    [stated] = answer.stated_by
    assert (stated.lang, stated.subject.name.text) == ("en", "Helsinki")
    assert (stated.relation.name.text, stated.object.name.text) == ("capital of", "Finland")
    assert answer.object is not None and answer.object.entity.id == "en:Finland"
    assert [name.lang for name in answer.object.names] == ["fi", "en"]
    assert answer.proposal.confidence == answer.original_confidence == 0.96


def test_a_guess_is_explained_as_one(review: Review) -> None:
    row = {"origin": [], "why": "usual", "graph_rank": 5, "model_rank": 2, "model_score": -1.0}
    evidence = review.describe.evidence("facts", row)
    text = review.describe.explain("facts", row, evidence)
    assert text == (
        "No language states it, but similar entities usually have this relation. "
        "The language model ranks it second."
    )
    other = review.describe.explain("facts", row | {"why": "elsewhere"}, [])
    assert other == "Other languages state this relation of it, with another value."


def test_a_written_name_is_explained_by_its_sources(review: Review) -> None:
    row = {"origin": ["de", "en"], "how": "written"}
    text = review.describe.explain("labels", row, [])
    assert text == "Written from the names in German and English, as linked names are."
    assert review.describe.explain("labels", {"origin": ["en"], "how": "written"}, []) == (
        "Written from the name in English, as linked names are."
    )


@pytest.mark.parametrize(
    ("codes", "text"),
    [
        (["fr"], "French"),
        (["fr", "es"], "French and Spanish"),
        (["fr", "es", "it"], "French, Spanish and Italian"),
        (["fr", "es", "it", "de"], "French, Spanish, Italian and German"),
        (["fr", "es", "it", "de", "fi"], "French, Spanish, Italian and 2 more languages"),
    ],
)
def test_languages_read_as_a_sentence(codes: list[str], text: str) -> None:
    assert language_list(codes) == text


def test_labels_and_links_are_reviewed_alike(review: Review) -> None:
    label = review.proposal("label-0", EVERYTHING)
    assert label.explanation == "English uses this name." and label.object is None
    assert label.proposal.value.text == "Kairo" and label.proposal.relation is None
    link = review.proposal("link-0", EVERYTHING)
    assert link.object is not None and link.object.entity.id == "en:Europe"
    assert link.evidence[0].score == 0.9
    for text in ("label-0", "link-0"):
        assert review.mark("Anna", MarkRequest(id=text, verdict="accept")).marked == 1
        assert review.proposal(text, EVERYTHING).proposal.state == "accepted"


def test_a_mark_is_durable_and_moves_the_confidence_of_what_is_open(
    review: Review, bench: Workbench
) -> None:
    before = review.proposal("fact-5", EVERYTHING).proposal.confidence
    for number in (0, 1, 2, 3):
        answer = review.mark("Anna", MarkRequest(id=f"fact-{number}", verdict="reject"))
    assert answer.open == 44 and answer.proposals[0].state == "rejected"
    after = review.proposal("fact-5", EVERYTHING)
    assert after.proposal.confidence < before == after.original_confidence
    assert bench.opened.proposals is not None
    assert read_verdicts(bench.opened.proposals, "facts").rows.tolist() == [0, 1, 2, 3]


def test_undo_takes_back_one_batch_after_the_other_and_bulk_marks_too(review: Review) -> None:
    review.mark("Anna", MarkRequest(id="fact-0", verdict="reject"))
    review.mark("Bob", MarkRequest(id="fact-1", verdict="reject"))
    asked = Filter(lang="en")
    count = review.page(asked).total
    answer = review.bulk("Anna", BulkRequest(filter=asked, verdict="accept", expected=count))
    assert answer.marked == count == 43 and len(answer.proposals) == 10
    assert review.page(asked).total == 0
    undone = review.undo("Anna")
    assert undone.undone == count and len(undone.ids) == 10 and review.page(asked).total == count
    assert review.undo("Anna").ids == ["fact-0"] and review.undo("Anna").undone == 0
    assert review.proposal("fact-1", Filter()).proposal.state == "rejected"  # Bob's stays
    assert len(review.log(10).marks) == 10 and review.log(10).marks[0].undone


def test_a_bulk_mark_of_another_number_than_was_shown_is_refused(review: Review) -> None:
    with pytest.raises(Conflict, match="now has 43 proposals, not 42"):
        review.bulk("Anna", BulkRequest(filter=Filter(lang="en"), verdict="accept", expected=42))
    assert review.log(10).marks == []


def test_an_edited_fact_is_accepted_with_another_object(review: Review) -> None:
    other = Replacement(entity="en:Helsinki")
    request = MarkRequest(id="fact-2", verdict="accept", replacement=other)
    assert review.mark("Anna", request).proposals[0].state == "accepted"
    [mark] = review.proposal("fact-2", Filter()).marks
    assert (mark.reviewer, mark.replacement) == ("Anna", "Helsinki")
    label = MarkRequest(id="label-0", verdict="accept", replacement=Replacement(text=" Kairo  2 "))
    review.mark("Anna", label)
    assert review.proposal("label-0", Filter()).marks[0].replacement == "Kairo 2"


@pytest.mark.parametrize(
    ("text", "verdict", "replacement", "problem"),
    [
        ("fact-2", "reject", Replacement(entity="en:Helsinki"), "verdict accept only"),
        ("fact-2", "accept", Replacement(text="Turku"), "id of an entity"),
        ("fact-2", "accept", Replacement(), "id of an entity"),
        ("fact-2", "accept", Replacement(entity="en:Cairo"), "no name in Finnish"),
        ("fact-2", "accept", Replacement(entity="nothing"), "no entity"),
        ("label-0", "accept", Replacement(text="   "), "is a text"),
        ("label-0", "accept", Replacement(entity="en:Cairo"), "is a text"),
    ],
)
def test_a_replacement_that_does_not_fit_is_refused(
    review: Review, text: str, verdict: str, replacement: Replacement, problem: str
) -> None:
    request = MarkRequest.model_validate(
        {"id": text, "verdict": verdict, "replacement": replacement.model_dump()}
    )
    with pytest.raises(PrixError, match=problem):
        review.mark("Anna", request)
    assert review.log(10).marks == []


@pytest.mark.parametrize("text", ["fact-999", "label-1", "thing-0", "fact--1", "fact-1e3", ""])
def test_an_id_that_is_not_a_proposal_is_not_found(review: Review, text: str) -> None:
    with pytest.raises(NotFound):
        review.proposal(text, Filter())
    with pytest.raises(NotFound):
        review.mark("Anna", MarkRequest(id=text, verdict="accept"))


def test_reviewers_who_disagree_are_listed_and_decide_nothing(review: Review) -> None:
    review.mark("Anna", MarkRequest(id="fact-0", verdict="accept"))
    review.mark("Bob", MarkRequest(id="fact-0", verdict="reject"))
    review.mark("Bob", MarkRequest(id="fact-1", verdict="reject"))
    found = review.disagreements()
    [one] = found.disagreements
    assert found.total == 1 and one.proposal.id == "fact-0" and one.proposal.state == "disputed"
    assert [(mark.reviewer, mark.verdict) for mark in one.marks] == [
        ("Anna", "accept"),
        ("Bob", "reject"),
    ]


def test_facets_count_what_the_filter_would_leave(review: Review) -> None:
    review.mark("Anna", MarkRequest(id="fact-0", verdict="accept"))
    asked = Filter(table="facts")
    facets = review.facets(asked, ["en"])
    for name, key in (
        ("langs", "lang"),
        ("tables", "table"),
        ("kinds", "kind"),
        ("states", "state"),
    ):
        for value in getattr(facets, name):
            narrowed = asked.model_copy(update={key: value.value})
            assert review.page(narrowed).total == value.count, (name, value)
    for value in facets.relations:
        assert review.page(asked.model_copy(update={"relation": value.value})).total == value.count
    for value in facets.confidence:
        low, high = (float(end) for end in value.value.split("-"))
        band = asked.model_copy(update={"min_confidence": low, "max_confidence": high})
        assert review.page(band).total == value.count
    assert facets.total == 45 == sum(value.count for value in facets.relations)


def test_a_filter_by_subject_finds_facts_names_and_links_of_the_concept(review: Review) -> None:
    cairo = Filter(subject="en:Cairo", state="all")
    tables = {one.table for one in review.page(cairo, limit=200).proposals}
    assert tables == {"facts", "labels"}
    assert review.page(Filter(subject="en:Egypt", state="all")).proposals[0].id == "link-0"


def test_a_sample_is_random_and_repeats_with_its_seed(review: Review) -> None:
    first, again, other = (review.sample(Filter(), seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first.proposals) == 10 and first.total == 48


def test_an_export_holds_what_was_accepted_and_leaves_no_file(review: Review) -> None:
    review.mark("Anna", MarkRequest(id="fact-3", verdict="accept"))
    file, remove = review.export(ExportRequest(format="tsv", accepted=True))
    lines = file.read_text("utf-8").splitlines()
    assert len(lines) == 2 and SCRIPT in lines[1]
    remove()
    assert not file.exists() and not file.parent.exists()
    with pytest.raises(PrixError, match="reference"):
        review.export(ExportRequest(format="quickstatements"))


def test_a_refused_export_leaves_nothing_in_the_temporary_folder(
    review: Review, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with pytest.raises(PrixError, match="has proposals in"):
        review.export(ExportRequest(format="tsv", lang="xx"))
    assert not list((tmp_path / "temporary").iterdir())


def test_many_threads_mark_and_read_at_once(review: Review) -> None:
    def act(number: int) -> int:
        rng = random.Random(number)
        name = f"reviewer {number % 4}"
        for _ in range(5):
            text = f"fact-{rng.randrange(46)}"
            verdict = rng.choice(["accept", "reject", "skip"])
            review.mark(name, MarkRequest.model_validate({"id": text, "verdict": verdict}))
            assert review.proposal(text, Filter()).proposal.id == text
            review.facets(Filter())
        return 5

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(act, range(8))) == 40
    assert len(review.log(200).marks) == 40
