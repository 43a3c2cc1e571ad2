"""The model as a ranker: against scoring every entity; entities of one name; long names."""

import itertools
import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, import_kb
from prixlm.decoding.completer import Completer
from prixlm.decoding.reader import Reader
from prixlm.decoding.search import Rank, score_all
from prixlm.rankers import lm
from prixlm.rankers.base import read_triples
from prixlm.rankers.features import CandidateFinder
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.links import UsualObjects
from prixlm.rankers.lm import ModelRanker, ReadingRanker
from tests.rankers.conftest import import_tables, random_completer


def test_ranks_are_those_of_scoring_every_entity(nordic: KB, nordic_completer: Completer) -> None:
    facts = read_facts(nordic, "en")
    exact = ModelRanker(nordic_completer, batch=2)
    ranks = exact.ranks(facts.queries, facts.objects)
    best = exact.best(facts.queries, 4)
    trie, encoder = nordic_completer.trie("en"), nordic_completer.model.encoder
    relations = nordic.relation_names("en")
    for row in range(len(facts)):
        [name] = nordic.names([int(facts.queries.subject[row])])
        prefix = encoder.encode(name, relations[facts.queries.relation[row]], None)
        filtered = facts.queries.filtered_of(row)
        [scored] = score_all(nordic_completer.model, trie, [prefix], exclude=[filtered])
        assert ranks[row] == scored.entity.tolist().index(facts.objects[row]) + 1
        answers = best.entity[best.offset[row] : best.offset[row + 1]]
        assert answers.tolist() == scored.entity[:4].tolist()
    assert exact.ranks(facts.queries, facts.objects, beyond=1).max() == np.inf
    beam = ModelRanker(nordic_completer, search="beam", batch=2)
    assert beam.ranks(facts.queries, facts.objects).tolist() == ranks.tolist()


@pytest.fixture(scope="module")
def springfields(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Oregon has three cities of one name: one in train, one in test."""
    folder = tmp_path_factory.mktemp("springfields")
    names = ["Springfield", "Springfield", "Springfield", "Salem", "Portland", "Oregon"]
    source = folder / "dbp"
    (source / "entity").mkdir(parents=True), (source / "kg").mkdir()
    (source / "entity" / "en.tsv").write_text("\n".join(names) + "\n")
    (source / "relations.txt").write_text("city\n")
    (source / "kg" / "en-train.tsv").write_text("5\t0\t0\n")
    (source / "kg" / "en-val.tsv").write_text("5\t0\t3\n")
    (source / "kg" / "en-test.tsv").write_text("5\t0\t1\n5\t0\t4\n")
    return import_kb([source], folder / "kb")


@pytest.mark.parametrize("search", ["beam", "exact"])
def test_entities_of_one_name_share_their_ranks_or_are_ranked_as_one_name(
    springfields: KB, bases: dict[str, Path], search: str
) -> None:
    kb = springfields
    completer = random_completer(kb, bases["xlmr"])
    facts = read_facts(kb, "en")
    prefix = completer.model.encoder.encode("Oregon", kb.relation_names("en")[0], None)
    [scored] = score_all(completer.model, completer.trie("en"), [prefix])
    order = kb.names(scored.entity.tolist())
    portland, springfield = np.argsort(kb.names(facts.objects.tolist()))
    # One Springfield, Salem and Portland are filtered: two Springfields and Oregon are left.
    above = int(order.index("Oregon") < order.index("Springfield"))
    plain = ModelRanker(completer, search=search)  # type: ignore[arg-type]
    plain_ranks = plain.ranks(facts.queries, facts.objects)
    assert plain_ranks[springfield] == above + 1.5
    named = ModelRanker(completer, search=search, by_name=True)  # type: ignore[arg-type]
    name_ranks = named.ranks(facts.queries, facts.objects)
    assert name_ranks[springfield] == above + 1
    ranked = named.best(facts.queries, 6)
    answers = kb.names(ranked.entity[: ranked.offset[1]].tolist())
    assert len(answers) == len(set(answers))
    # Portland's query filters Salem and two Springfields; by name, all three Springfields.
    assert name_ranks[portland] == 1 + int(order.index("Oregon") < order.index("Portland"))
    third = int(order.index("Springfield") < order.index("Portland"))
    assert plain_ranks[portland] == name_ranks[portland] + third


def test_a_rank_that_does_not_fit_into_memory_is_asked_for_alone(
    nordic: KB,
    nordic_completer: Completer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    facts = read_facts(nordic, "en")
    expected = ModelRanker(nordic_completer).ranks(facts.queries, facts.objects)
    exact_ranks = lm.exact_ranks

    def only_alone(model, trie, prefixes, entities, **options):  # type: ignore[no-untyped-def]
        ranks = exact_ranks(model, trie, prefixes, entities, **options)
        return ranks if len(prefixes) == 1 else [Rank(None, 0.0, 0, 0, False)] * len(ranks)

    monkeypatch.setattr(lm, "exact_ranks", only_alone)
    ranks = ModelRanker(nordic_completer, batch=2).ranks(facts.queries, facts.objects)
    assert ranks.tolist() == expected.tolist()

    def never(model, trie, prefixes, entities, **options):  # type: ignore[no-untyped-def]
        return [Rank(None, 0.0, 0, 0, False)] * len(prefixes)

    monkeypatch.setattr(lm, "exact_ranks", never)
    with caplog.at_level(logging.WARNING):
        ranks = ModelRanker(nordic_completer).ranks(facts.queries, facts.objects)
    assert np.isinf(ranks).all() and "3 ranks do not fit into memory" in caplog.text


def test_a_subject_whose_name_is_too_long_has_no_answer(
    nordic: KB, nordic_completer: Completer, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = read_facts(nordic, "en")
    ranker = ModelRanker(nordic_completer)
    prefixes = ranker._prefixes(facts.queries)
    prefixes[1] = prefixes[1] * 20
    monkeypatch.setattr(ranker, "_prefixes", lambda _: prefixes)
    ranked = ranker.best(facts.queries, 2)
    assert np.diff(ranked.offset).tolist() == [2, 0, 2]
    assert np.isinf(ranker.ranks(facts.queries, facts.objects)).tolist() == [False, True, False]
    scores = ranker.scores(facts.queries, np.arange(3), facts.objects)
    assert np.isinf(scores).tolist() == [False, True, False]


# --- a base that reads ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def towns(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Towns of four countries in two languages; every third fact is held out."""
    lines = ["lang\tsubject\trelation\tobject\tsplit"]
    for lang, number in itertools.product(("en", "fi"), range(18)):
        split = "test" if number % 3 == 0 else "train"
        lines.append(f"{lang}\tTown {number}\tcountry\tLand {number % 4}\t{split}")
        lines.append(f"{lang}\tTown {number}\ttwin\tTown {number * 5 % 18}\ttrain")
    links = "lang_a\tname_a\tlang_b\tname_b\nen\tTown 1\tfi\tTown 1\n"
    return import_tables(tmp_path_factory.mktemp("towns"), "\n".join(lines), links)


@pytest.fixture(scope="module")
def reading(towns: KB, families: dict[str, Path]) -> ReadingRanker:
    """A random decoder over the KB of towns, asked with two examples and three candidates."""
    ranker = ReadingRanker(towns, Reader(towns, families["gemma"]))
    ranker.num_examples, ranker.num_candidates = 2, 3
    return ranker


def test_examples_are_train_facts_of_the_relation_and_not_of_the_subject(
    reading: ReadingRanker, towns: KB
) -> None:
    queries = read_facts(towns, "en").queries
    train = set(zip(*read_triples(towns, ("train",), "en").tolist(), strict=True))
    questions = reading._questions(queries)
    assert questions == reading._questions(queries)
    for row, question in enumerate(questions):
        subject, relation = int(queries.subject[row]), int(queries.relation[row])
        assert question.subject == subject and question.relation == "country"
        assert len(question.examples) == 2 and len({o for _, o in question.examples}) == 2
        for s, o in question.examples:
            assert (s, relation, o) in train and subject not in (s, o)
    alone = queries.select(np.array([3]))
    assert reading._questions(alone) == questions[3:4], "other queries change nothing"


def test_a_fused_reader_scores_all_that_others_propose(reading: ReadingRanker, towns: KB) -> None:
    queries, usual = read_facts(towns, "en").queries, UsualObjects(towns)
    for rankers in ([usual, reading], [reading, usual]):  # whatever the order of the features
        candidates = CandidateFinder(towns, rankers, depth=20).find(queries)
        own = set(zip(*reading.scored(queries)[:2], strict=True))
        proposed = set(zip(candidates.owner, candidates.entity, strict=True)) - own
        assert proposed, "it scores three of the four countries by itself"
        assert np.isfinite(candidates.views[rankers.index(reading)].score).all()


def test_a_fused_model_is_asked_once_wherever_its_features_stand(
    nordic: KB, nordic_completer: Completer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, usual = read_facts(nordic, "en").queries, UsualObjects(nordic)
    model = ModelRanker(nordic_completer, search="beam")
    before = CandidateFinder(nordic, [model, usual], depth=2).find(queries)

    def second_pass(*_: object) -> None:
        raise AssertionError("it was asked before it knew what others list")

    monkeypatch.setattr(model, "scores", second_pass)
    after = CandidateFinder(nordic, [usual, model], depth=2).find(queries)
    assert np.array_equal(after.entity, before.entity)
    assert np.array_equal(after.views[1].score, before.views[0].score)


def test_a_reader_keeps_the_protocol(reading: ReadingRanker, towns: KB) -> None:
    facts = read_facts(towns, "en")
    queries, rows = facts.queries, np.arange(len(facts))
    owner, entity, score = reading.scored(queries)
    # Candidates are the three most frequent objects of the relation, without filtered ones.
    _, relation, objects = read_triples(towns, ("train",), "en")
    counts = Counter(objects[relation == queries.relation[0]].tolist())
    usual = {o for o, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3]}
    for row in rows:
        assert set(entity[owner == row]) == usual - set(queries.filtered_of(row))
    best = reading.best(queries, 2)
    for row in rows:
        answers = best.entity[best.offset[row] : best.offset[row + 1]]
        own = entity[owner == row][np.argsort(-score[owner == row], kind="stable")]
        assert answers.tolist() == own[:2].tolist()
    ranks = reading.ranks(queries, facts.objects)
    assert ((ranks >= 1) & (ranks <= len(towns.entity_range("en")))).all()
    # What others propose is scored beside the candidates, in one reading of each question.
    answered = reading.ask(queries, 9, (rows, facts.objects))
    alone = reading.scores(queries, rows, facts.objects)
    np.testing.assert_allclose(answered.scores(rows, facts.objects), alone, atol=1e-4)
    listed = set(zip(answered.ranked.owners(), answered.ranked.entity, strict=True))
    assert set(zip(rows, facts.objects, strict=True)) <= listed
    assert np.isneginf(answered.scores(rows[:1], queries.subject[:1])).all()
