"""How likely a question has an answer: by similar entities, and by the relation."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, SplitConfig, import_kb, split_kb
from prixlm.enrichment.answerable import Answerability, StatedHere, _Cases
from prixlm.enrichment.gaps import ELSEWHERE, USUAL, GapConfig, Gaps
from prixlm.rankers.base import Queries


def make_gaps(relation: list[int], share: list[float], kind: int = USUAL) -> Gaps:
    number = len(relation)
    offset = np.zeros(number + 1, np.int64)
    queries = Queries("et", np.arange(number), np.array(relation), offset, np.zeros(0, np.int64))
    return Gaps(queries, np.array(share), np.full(number, kind), np.zeros(number, bool))


def equal_cases(number: int, *, answered: bool) -> _Cases:
    """Cases of relation 0 that are all answered, or none."""
    weight = np.full(number, float(answered))
    relation = np.zeros(number, int)
    share, by_name = np.full(number, 0.9), np.zeros(number, bool)
    return _Cases(np.arange(number), relation, share, by_name, weight, 1 - weight)


@pytest.fixture(scope="module")
def cases() -> _Cases:
    """Relation 0 has an answer as often as similar entities do, relation 1 never."""
    generator = np.random.default_rng(0)
    relation, share = generator.integers(0, 2, 4000), generator.uniform(0.5, 1, 4000)
    answered = (generator.uniform(size=4000) < share) & (relation == 0)
    concept, by_name = generator.permutation(4000), np.zeros(4000, bool)
    return _Cases(concept, relation, share, by_name, answered.astype(float), 1.0 - answered)


@pytest.fixture(scope="module")
def learnt(cases: _Cases) -> Answerability:
    return Answerability._learn(cases, 3)


def test_the_share_and_the_relation_tell_which_questions_have_an_answer(
    learnt: Answerability, cases: _Cases
) -> None:
    relation, share = cases.relation, cases.share
    predicted = learnt.predict(make_gaps(relation.tolist(), share.tolist()))
    assert predicted[relation == 1].max() < 0.05
    for low in (0.5, 0.7, 0.9):
        rows = (relation == 0) & (share >= low) & (share < low + 0.1)
        assert predicted[rows].mean() == pytest.approx(cases.answered[rows].mean(), abs=0.06)
    assert predicted.min() > 0 and predicted.max() < 1, "never quite sure"


def test_names_that_tell_less_than_facts_do_not_turn_the_share_round(cases: _Cases) -> None:
    # Named like things that all have the relation, and yet without an answer.
    number, relation, share = 3000, np.zeros(3000, int), np.full(3000, 0.99)
    alike, weight = np.ones(number, bool), np.zeros(number)
    named = _Cases(np.arange(number), relation, share, alike, weight, 1 - weight)
    learnt = Answerability._learn(_Cases.concatenate([cases, named]), 3)
    assert learnt.share_weight >= 0 > learnt.name_weight
    few, many = learnt.predict(make_gaps([0, 0], [0.5, 0.99]))
    assert few < many


def test_a_relation_that_was_never_asked_has_the_mean_rate(
    learnt: Answerability, cases: _Cases
) -> None:
    assert learnt.rate[2] == pytest.approx(cases.answered.mean(), abs=0.001)
    (predicted,) = learnt.predict(make_gaps([2], [0.75]))
    assert 0.02 < predicted < 0.98


def test_a_question_that_another_language_answers_has_an_answer(learnt: Answerability) -> None:
    predicted = learnt.predict(make_gaps([0, 1], [1, 1], ELSEWHERE))
    np.testing.assert_array_equal(predicted, 1.0)


@pytest.mark.parametrize("number", [50, 0])
def test_if_no_valid_fact_answers_a_question_none_has_an_answer(number: int) -> None:
    learnt = Answerability._learn(equal_cases(number, answered=False), 1)
    assert learnt.predict(make_gaps([0], [0.9]))[0] == 0


def test_if_all_questions_are_answered_it_is_still_not_certain(tmp_path: Path) -> None:
    learnt = Answerability._learn(equal_cases(50, answered=True), 2)
    seen, unseen = learnt.predict(make_gaps([0, 1], [0.9, 0.9]))
    assert 0.9 < seen < 1 and 0.9 < unseen < 1
    learnt.save(tmp_path / "answerable.json")
    loaded = Answerability.load(tmp_path / "answerable.json")
    np.testing.assert_array_equal(loaded.predict(make_gaps([0], [0.9])), [seen])


def test_the_cases_are_the_questions_that_would_be_asked_if_only_train_were_known(
    world_et_fi_en: KB, tmp_path: Path
) -> None:
    config = SplitConfig(test=0.1, valid=0.2, by_concept=True)
    split = split_kb(world_et_fi_en, tmp_path / "split", config)
    learnt = Answerability.fit(split, ["et"])
    relations = split.relation_names("en")
    # Every country has a currency, so one without a currency in train has one among the held-out
    # facts, but not all that are named like countries are countries. An island has no neighbours.
    currency, neighbour = (relations.index(x) for x in ("currency", "neighbouring country"))
    assert learnt.rate[currency] > 0.85 and learnt.rate[neighbour] < 0.5
    # A run does not learn from splits that it does not know.
    assert not Answerability.fit(split, ["et"], GapConfig(known=("train",))).rate.any()
    # A currency that only test states is not asked for if test is known; else it counts as a
    # question without an answer.
    without_test = Answerability.fit(split, ["et"], GapConfig(known=("train", "valid")))
    assert (without_test.rate <= learnt.rate + 1e-9).all()
    assert (without_test.rate < learnt.rate).any()


def test_the_share_of_what_others_answer_is_counted_by_relation_and_language(
    tmp_path: Path,
) -> None:
    """English states 40 capitals and 40 mayors; Finnish holds out 30 capitals and no mayor."""
    lines, links = ["lang\tsubject\trelation\tobject\tsplit"], ["lang_a\tname_a\tlang_b\tname_b"]
    for n in range(40):
        for relation in ("capital", "mayor"):
            lines.append(f"en\ten land {n}\t{relation}\ten {relation} {n}\ttrain")
            links.append(f"en\ten {relation} {n}\tfi\tfi {relation} {n}")
        links.append(f"en\ten land {n}\tfi\tfi land {n}")
        if n < 30:
            lines.append(f"fi\tfi land {n}\tcapital\tfi capital {n}\tvalid")
    # The last ten are test facts, which nothing is learnt from.
    lines += [f"fi\tfi land {n}\tcapital\tfi capital {n}\ttest" for n in range(30, 40)]
    for name, rows in (("facts.tsv", lines), ("links.tsv", links)):
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    kb = import_kb([tmp_path / "facts.tsv", tmp_path / "links.tsv"], tmp_path / "kb")
    learnt = StatedHere.fit(kb, ["en", "fi"])
    share = dict(zip(kb.relation_keys(), learnt.share["fi"].tolist(), strict=True))
    mean = (30 + 0.5) / (80 + 1)
    assert share == pytest.approx({"capital": (30 + 10 * mean) / 50, "mayor": 10 * mean / 50})
    # No other language answers what English lacks, so its shares are the prior.
    np.testing.assert_allclose(learnt.share["en"], 0.5)
