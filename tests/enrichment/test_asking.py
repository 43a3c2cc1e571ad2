"""Asking with all evidence: the confidence of a run's own proposals, for any question."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from prixlm import KB, EnrichConfig, GraphConfig, JobConfig, PretrainConfig, PrixError, run_job
from prixlm.enrichment.answerable import Answerability
from prixlm.enrichment.asking import Asked, AskedAnswer, Asker, Question
from prixlm.enrichment.budget import Plan
from prixlm.enrichment.gaps import GapConfig, GapFinder
from prixlm.enrichment.job import Given
from prixlm.enrichment.run import enrich
from prixlm.lm.compact import CompactConfig
from prixlm.rankers.complex import train_graph
from prixlm.training.loop import TrainingConfig
from prixlm.training.sampler import SupplyConfig
from tests.enrichment.helpers import FUSION, write_countries

INTO = ("fi", "sv")
PROPOSALS = EnrichConfig(into=INTO, min_confidence=0.05, fusion=FUSION)
MODEL = PretrainConfig(
    base="compact",
    epochs=1,
    batch=64,
    supply=SupplyConfig(max_links=1),
    training=TrainingConfig(lr=1e-3),
    compact=CompactConfig(vocab=600, width=16, layers=1, heads=2),
)
GRAPH = GraphConfig(rank=4, epochs=2, batch=100)
PLANS = {
    "untrained": Plan(effort="quick"),
    "trained": Plan(effort="quick", graph=GRAPH, model=MODEL),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_countries(tmp_path_factory.mktemp("countries"))


@pytest.fixture(scope="module", params=PLANS)
def work(
    request: pytest.FixtureRequest, files: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A finished work folder, with and without a model and a graph embedding."""
    folder = tmp_path_factory.mktemp("asking") / "work"
    run_job(files, folder, JobConfig(into=INTO, enrich=PROPOSALS, plan=PLANS[request.param]))
    return folder


@pytest.fixture(scope="module")
def plain(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work folder of a run without a model; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("plain") / "work"
    run_job(files, folder, JobConfig(into=INTO, effort="quick", enrich=PROPOSALS))
    return folder


@pytest.fixture(scope="module")
def asker(plain: Path) -> Asker:
    return Asker.open(plain)


def read_rows(proposals: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(proposals / "proposals.parquet").to_pylist()
    return rows


def ask_named(asker: Asker, lang: str, subject: str, relation: str, k: int = 5) -> Asked:
    [entity] = asker.kb.find(subject, lang)
    number = asker.kb.relation_names("en").index(relation)
    [asked] = asker.ask([(lang, entity.id, number)], k)
    return asked


def check_same(row: dict[str, Any], asked: Asked, kb: KB) -> None:
    """Compare a proposal with the answer to its question."""
    place, answer = next(
        (n, answer) for n, answer in enumerate(asked.answers) if answer.entity == row["object"]
    )
    assert answer.confidence == pytest.approx(row["confidence"], abs=1e-6)
    assert answer.origin == row["origin"] and asked.kind == row["why"]
    ranks = {evidence.ranker: evidence for evidence in answer.evidence}
    for name, column in (("Prix-LM", "model"), ("graph", "graph")):
        assert (ranks[name].rank if name in ranks else None) == row[f"{column}_rank"]
    if "Prix-LM" in ranks:
        assert ranks["Prix-LM"].score == pytest.approx(row["model_score"], abs=1e-4)
    assert kb.names([asked.answers[place + 1].entity]) == [row["runner_up"]]


def test_every_proposal_has_the_same_confidence_and_evidence_when_it_is_asked(work: Path) -> None:
    asker, rows = Asker.open(work), read_rows(work / "proposals")
    manifest = json.loads((work / "proposals" / "manifest.json").read_text("utf-8"))
    assert asker.rankers == manifest["rankers"] and len(rows) >= 50
    questions: list[Question] = [(row["lang"], row["subject"], row["relation"]) for row in rows]
    for row, asked in zip(rows, asker.ask(questions, k=8), strict=True):
        check_same(row, asked, asker.kb)


def test_a_split_that_is_asked_itself_gives_the_same_confidence(split: KB, tmp_path: Path) -> None:
    """With a graph embedding, named explicitly, and facts that are not known to the run."""
    train_graph(split, tmp_path / "graph", GRAPH)
    known = GapConfig(known=("train", "valid"))
    config = replace(PROPOSALS, into=("et",), relations=("capital", "currency"), missing=known)
    enrich(split, tmp_path / "proposals", config, graph=tmp_path / "graph")
    with pytest.raises(PrixError, match="is not in a work folder: name its KB"):
        Asker.open(tmp_path / "proposals")
    with pytest.raises(PrixError, match="made with a graph that is not there"):
        Asker.open(tmp_path / "proposals", kb=split.folder)
    asker = Asker.open(tmp_path / "proposals", kb=split.folder, graph=tmp_path / "graph")
    rows = read_rows(tmp_path / "proposals")
    assert len(rows) > 20
    for row in rows:
        [asked] = asker.ask([(row["lang"], row["subject"], row["relation"])], k=8)
        check_same(row, asked, split)


def test_questions_asked_together_are_answered_as_alone(asker: Asker) -> None:
    questions: list[Question] = [
        (lang, entity, relation)
        for lang in ("sv", "en", "fi")
        for entity in list(asker.kb.entity_range(lang))[::30]
        for relation in range(asker.kb.num_relations)
    ]
    together = asker.ask(questions, k=3)
    assert [(asked.lang, asked.subject, asked.relation) for asked in together] == questions
    assert together == [asked for question in questions for asked in asker.ask([question], k=3)]
    assert asker.ask([]) == []


def test_a_fact_of_another_language_is_answered_with_certainty_that_there_is_one(
    asker: Asker,
) -> None:
    asked = ask_named(asker, "sv", "sv land 3", "capital")
    best = asked.answers[0]
    assert asker.kb.names([best.entity]) == ["sv town 3"] and best.origin == ["en", "fi"]
    assert (asked.kind, asked.answerable, asked.already) == ("elsewhere", 1.0, [])
    lookup = next(evidence for evidence in best.evidence if evidence.ranker == "links: lookup")
    assert (lookup.rank, lookup.score) == (1, 2.0), "two languages state it"


def test_what_the_language_states_is_listed_apart_and_a_second_object_is_unlikely(
    asker: Asker,
) -> None:
    asked = ask_named(asker, "fi", "fi land 3", "capital")
    [stated] = asked.already
    assert asker.kb.names([stated.entity]) == ["fi town 3"] and stated.langs == ["en", "fi"]
    assert stated.entity not in {answer.entity for answer in asked.answers}
    assert (asked.kind, asked.answerable) == ("further", 0.0), "no land has two capitals"
    assert asked.answers and all(answer.confidence == 0 for answer in asked.answers)


def test_an_object_that_the_language_cannot_name_counts_as_stated(asker: Asker) -> None:
    asked = ask_named(asker, "sv", "sv land 3", "currency")  # Swedish has no names of coins
    assert (asked.kind, asked.answerable, asked.already) == ("further", 0.0, [])


def test_a_guess_is_as_answerable_as_the_regression_says(plain: Path, asker: Asker) -> None:
    asked = ask_named(asker, "fi", "fi land 4", "language")  # no language states it
    finder = GapFinder(asker.kb)
    [entity] = asker.kb.find("fi land 4", "fi")
    [gaps] = [
        gaps.select((gaps.queries.subject == entity.id).nonzero()[0]) for gaps in finder.find("fi")
    ]
    [expected] = Answerability.load(plain / "proposals" / "answerable.json").predict(gaps)
    assert asked.kind == "usual" and asked.answerable == pytest.approx(expected, abs=1e-6)
    assert 0 < asked.answers[0].confidence <= asked.answerable < 1


def test_a_relation_that_similar_entities_lack_is_less_answerable_than_a_usual_one(
    asker: Asker,
) -> None:
    usual = ask_named(asker, "fi", "fi land 4", "language")
    unusual = ask_named(asker, "fi", "fi town 4", "language")
    assert unusual.kind == "unusual" and unusual.answerable < usual.answerable


def test_a_limit_takes_the_best(asker: Asker) -> None:
    def answers(k: int) -> list[AskedAnswer]:
        return ask_named(asker, "sv", "sv land 3", "capital", k).answers

    assert len(answers(2)) == 2 and answers(4)[:2] == answers(2)
    confidences = [answer.confidence for answer in answers(10)]
    assert confidences == sorted(confidences, reverse=True)


def test_sixteen_threads_are_answered_as_one(asker: Asker) -> None:
    entities = list(asker.kb.entity_range("sv"))[:48]
    alone = [asker.ask([("sv", entity, 0)]) for entity in entities]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda entity: asker.ask([("sv", entity, 0)]), entities)) == alone


def test_questions_outside_the_kb_are_refused(asker: Asker) -> None:
    first = asker.kb.entity_range("fi").start
    for question, message in (
        (("de", first, 0), "has no language de"),
        (("fi", first - 1, 0), f"no entity {first - 1} in fi: it has {first} to"),
        (("fi", first, 99), "no relation 99: expected 0 to 2"),
    ):
        with pytest.raises(PrixError, match=message):
            asker.ask([question])
    with pytest.raises(PrixError, match="k 0: expected 1 or more"):
        asker.ask([("fi", first, 0)], k=0)


def test_a_folder_that_would_give_another_confidence_is_refused_with_the_reason(
    plain: Path, tmp_path: Path
) -> None:
    work = shutil.copytree(plain, tmp_path / "work")
    assert Asker.open(work / "proposals").rankers, "the work folder around it is found"
    with pytest.raises(PrixError, match="is not the KB of"):
        Asker.open(work, kb=work / "split")
    with pytest.raises(PrixError, match="is not the split that fitted"):
        Asker.open(work, split=work / "kb")
    shutil.rmtree(work / "split")
    with pytest.raises(PrixError, match="split is not a KB folder"):
        Asker.open(work)


@pytest.mark.parametrize("name", ["fusion/fusion.skops", "fusion/fusion.json", "answerable.json"])
def test_a_fitted_confidence_that_is_missing_or_damaged_is_one_line(
    plain: Path, tmp_path: Path, name: str
) -> None:
    work = shutil.copytree(plain, tmp_path / "work")
    (work / "proposals" / name).write_bytes(b"{")
    with pytest.raises(PrixError, match=r"cannot be read|is not a fusion"):
        Asker.open(work)
    (work / "proposals" / name).unlink()
    with pytest.raises(PrixError, match=r"lacks fusion|lacks answerable|cannot be read"):
        Asker.open(work)


def test_another_embedding_than_that_of_the_run_is_refused(
    files: list[Path], tmp_path: Path
) -> None:
    work = tmp_path / "work"
    plan = Plan(effort="quick", graph=GRAPH)
    run_job(files, work, JobConfig(into=INTO, enrich=PROPOSALS, plan=plan))
    with pytest.raises(PrixError, match="made with another model or graph embedding"):
        Asker.open(work, graph=work / "graph")  # that of the split
    assert "graph" in Asker.open(work).rankers


def test_a_reader_is_evidence_and_is_found_again(
    files: list[Path], families: dict[str, Path], tmp_path: Path
) -> None:
    work, reader = tmp_path / "work", families["gemma"]
    config = JobConfig(into=("sv",), enrich=replace(PROPOSALS, into=("sv",)), effort="quick")
    run_job(files, work, config, given=Given(reader=reader))
    manifest = json.loads((work / "proposals" / "manifest.json").read_text("utf-8"))
    assert manifest["rankers"][-1] == "reader"
    assert Asker.open(work).rankers[-1] == "reader", "the work folder knows its path"
    elsewhere = shutil.copytree(work / "proposals", tmp_path / "elsewhere" / "proposals")
    given = {"kb": work / "kb", "split": work / "split"}
    with pytest.raises(PrixError, match="was made with a reader that is not there: name it"):
        Asker.open(elsewhere, **given)
    assert Asker.open(elsewhere, **given, reader=reader).rankers[-1] == "reader"
    with pytest.raises(PrixError, match="or another reader"):
        Asker.open(work, reader=families["llama"])
