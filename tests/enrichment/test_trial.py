"""Trials of a confidence: test facts as questions, tables, and what JSON keeps of them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from prixlm import KB, import_kb
from prixlm.enrichment.trial import (
    SUBSETS,
    Trial,
    figures_at,
    intervals_at,
    reliability_curves,
    trial_tables,
    try_fusion,
)
from prixlm.metrics import Interval, at_levels, bootstrap_mean, bootstrap_ratio, reliability
from prixlm.rankers.base import Queries, Ranked
from prixlm.rankers.fusion import Fusion
from tests.enrichment.helpers import make_trial

FACTS = """\
lang\tsubject\trelation\tobject\tsplit
en\tFinland\tcapital\tHelsinki\ttest
en\tSweden\tcapital\tStockholm\ttest
en\tNorway\tcapital\tOslo\ttrain
en\tFinland\tborders\tSweden\ttest
en\tFinland\tborders\tNorway\ttest
en\tFinland\tborders\tRussia\tvalid
en\tSweden\tborders\tNorway\ttrain
en\tSweden\tborders\tFinland\ttrain
fi\tSuomi\tcapital\tHelsingfors\ttrain
"""
LINKS = """\
lang_a\tname_a\tlang_b\tname_b
en\tFinland\tfi\tSuomi
en\tHelsinki\tfi\tHelsingfors
"""


class Oracle(Fusion):
    """Answers from a table, with the score as confidence."""

    def __init__(self, kb: KB, answers: dict[tuple[str, str], list[tuple[str, float]]]) -> None:
        self.kb, self.answers = kb, answers
        self.asked: list[tuple[str, str]] = []

    def best(self, queries: Queries, k: int) -> Ranked:
        names, keys = self.kb.names(range(self.kb.num_entities)), self.kb.relation_keys()
        english = {names[entity]: entity for entity in self.kb.entity_range("en")}
        offset, entity, score = [0], [], []
        for row in range(len(queries)):
            asked = (names[queries.subject[row]], keys[queries.relation[row]])
            self.asked.append(asked)
            known = {names[known] for known in queries.filtered_of(row)}
            answers = [pair for pair in self.answers.get(asked, []) if pair[0] not in known][:k]
            entity += [english[name] for name, _ in answers]
            score += [confidence for _, confidence in answers]
            offset.append(len(entity))
        return Ranked(np.array(offset), np.array(entity, int), np.array(score, float))

    def confidence(self, scores: np.ndarray) -> np.ndarray:
        return scores


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Four test facts of three questions; Finnish states one of them."""
    folder = tmp_path_factory.mktemp("nordic")
    files = [folder / "facts.tsv", folder / "links.tsv"]
    for file, text in zip(files, (FACTS, LINKS), strict=True):
        file.write_text(text, "utf-8")
    return import_kb(files, folder / "kb")


def test_answers_are_compared_with_the_test_facts(kb: KB) -> None:
    oracle = Oracle(
        kb,
        {
            # The second answer does not count: the relation has one object.
            ("Finland", "capital"): [("Oslo", 0.9), ("Helsinki", 0.8)],
            ("Sweden", "capital"): [("Stockholm", 0.85)],
            # A valid fact is known, so it is not an answer.
            ("Finland", "borders"): [("Russia", 0.99), ("Sweden", 0.6), ("Norway", 0.4)],
        },
    )
    everything, alone, stated, unstated = try_fusion(oracle, kb, "en", method="oracle")
    assert (everything.method, everything.lang, everything.subset) == ("oracle", "en", "all")
    assert sorted(oracle.asked) == [
        ("Finland", "borders"),
        ("Finland", "capital"),
        ("Sweden", "capital"),
    ]
    assert everything.held_out == 4 and everything.right == pytest.approx(2 / 3)
    assert everything.reliability.number == 3, "the best answer of each question"
    half, eight, most = everything.levels
    assert (half.proposed, half.precision, half.recall) == (3, pytest.approx(2 / 3), 0.5)
    assert (eight.proposed, eight.precision, eight.recall) == (2, 0.5, 0.25)
    assert most.proposed == 0 and np.isnan(most.precision)
    # Finnish states the Finnish capital: without it two questions are left, both answered.
    assert alone.subset == "no transfer" and alone.held_out == 3 and alone.right == 1.0
    # No best answer is stated in Finnish: Oslo is the wrong capital.
    assert stated.subset == "answer stated" and stated.held_out == 0
    assert unstated.subset == "answer unstated" and unstated.held_out == 4


def test_questions_are_told_apart_by_whether_their_best_answer_is_stated(kb: KB) -> None:
    oracle = Oracle(
        kb,
        {
            ("Finland", "capital"): [("Helsinki", 0.9)],
            # Finnish states the second answer of another question: that does not count here.
            ("Sweden", "capital"): [("Oslo", 0.6), ("Helsinki", 0.5)],
        },
    )
    _, _, stated, unstated = try_fusion(oracle, kb, "en")
    assert (stated.held_out, stated.right, stated.reliability.number) == (1, 1.0, 1)
    # A question without an answer is one whose answer nobody states.
    assert (unstated.held_out, unstated.right, unstated.reliability.number) == (3, 0.0, 1)


def test_a_sample_asks_fewer_questions(kb: KB) -> None:
    oracle = Oracle(kb, {})
    everything, *_ = try_fusion(oracle, kb, "en", most=1)
    assert len(oracle.asked) == 1 and everything.held_out in (1, 2)
    assert everything.right == 0.0 and everything.levels[0].proposed == 0


def test_only_so_many_objects_of_a_question_count(kb: KB) -> None:
    answers = {("Finland", "borders"): [("Oslo", 0.9), ("Sweden", 0.8), ("Norway", 0.7)]}
    found = [try_fusion(Oracle(kb, answers), kb, "en", answers=k)[0] for k in (1, 2, 3)]
    assert [trial.levels[0].recall for trial in found] == [0.0, 0.25, 0.5]


def test_a_trial_is_read_from_json_as_it_was_written() -> None:
    trial = make_trial("fused", "et", "all")
    text = json.dumps(trial.as_dict(), allow_nan=False)
    again = Trial.from_dict(json.loads(text))
    assert again.as_dict() == trial.as_dict() and again.lang == "et"
    assert np.isnan(again.levels[2].precision), "none is as sure as 0.95"
    assert again.reliability.bins == trial.reliability.bins
    assert again.reliability.noise == trial.reliability.noise
    few = replace(trial, reliability=reliability(np.array([0.5]), np.array([True])))
    assert few.as_dict()["reliability"]["ece"] is None
    assert np.isnan(Trial.from_dict(few.as_dict()).reliability.ece)
    assert trial_tables([Trial.from_dict(few.as_dict())])[0].rows


def test_a_trial_has_intervals_and_json_keeps_them(kb: KB) -> None:
    answers = {
        ("Finland", "capital"): [("Oslo", 0.9)],
        ("Finland", "borders"): [("Sweden", 0.6), ("Norway", 0.55)],
    }
    everything, *_ = try_fusion(Oracle(kb, answers), kb, "en")
    # Three questions: none, one and two of their facts are found.
    assert everything.intervals["right"] == bootstrap_mean(np.array([0, 1, 0]))
    in_order = everything.intervals["R.5"]
    assert (in_order.low, in_order.high) == (0.0, 1.0) and "P.95" not in everything.intervals
    assert "ECE" not in everything.intervals, "too few answers to have one"
    (table, *_) = trial_tables([everything])
    assert table.half_width("fused", "R.5") == 0.5
    again = Trial.from_dict(json.loads(json.dumps(everything.as_dict())))
    assert again.intervals == everything.intervals
    assert isinstance(again.intervals["right"], Interval)


def test_answers_of_one_question_are_drawn_together() -> None:
    owner, right = np.repeat([0, 1, 2], 4), np.repeat([True, False, True], 4)
    answers = owner, np.full(12, 0.7), right
    # The second group has half of the answers of the first.
    half = np.tile([True, False], 6)
    found, fewer = intervals_at([answers, tuple(part[half] for part in answers)], np.full(3, 5))
    whole = bootstrap_ratio(np.array([4, 0, 4]), np.array([4, 4, 4]))
    assert found["P.5"] == whole == Interval(0.0, 1.0)
    assert found["R.5"] == bootstrap_ratio(np.array([4, 0, 4]), np.array([5, 5, 5]))
    assert fewer["R.5"] == bootstrap_ratio(np.array([2, 0, 2]), np.array([5, 5, 5]))
    assert np.isnan(found["P.8"].low) and found["R.8"] == Interval(0.0, 0.0)


@pytest.mark.parametrize("intervals", [{"wrong": [0.1, 0.2]}, {"ECE": [0.1]}, {"ECE": "x"}])
def test_intervals_that_we_do_not_write_are_refused(intervals: object) -> None:
    values = make_trial("fused", "et", "all").as_dict() | {"intervals": intervals}
    with pytest.raises(ValueError, match="interval"):
        Trial.from_dict(values)


def test_levels_have_short_names() -> None:
    levels = at_levels(np.array([0.9, 0.6]), np.array([True, False]), 4)
    assert figures_at(levels[:2]) == {"P.5": 0.5, "R.5": 0.25, "P.8": 1.0, "R.8": 0.25}


def test_a_table_has_a_row_per_method_and_a_column_per_figure() -> None:
    trials = [
        make_trial(method, lang, subset, 0 if (lang, subset) == ("te", "no transfer") else 150)
        for method in ("transfer alone", "fused")
        for lang in ("et", "te")
        for subset in SUBSETS
    ]
    tables = trial_tables(trials)
    assert [table.title for table in tables] == [
        "confidence, et, all facts (150)",
        "confidence, te, all facts (150)",
        "confidence, et, no transfer facts (150)",
        "confidence, et, best answer stated elsewhere: facts (150)",
        "confidence, te, best answer stated elsewhere: facts (150)",
        "confidence, et, best answer stated nowhere: facts (150)",
        "confidence, te, best answer stated nowhere: facts (150)",
    ]
    assert all(list(table.rows) == ["transfer alone", "fused"] for table in tables)
    expected = ["right", "ECE", "Brier", "AUROC", "P.5", "R.5", "P.8", "R.8", "P.95", "R.95"]
    assert tables[0].headers() == expected, "figures have no mean"
    assert tables[0].values("fused")["right"] == 0.4
    notes = " ".join(tables[0].notes)
    assert "Average precision, fused: 30.0." in notes and "A perfect confidence" in notes
    assert set(reliability_curves(trials)["fused"]) == {"et", "te"}
