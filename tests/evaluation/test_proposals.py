"""Reliability of proposals: trials on test facts, judged proposals, and their tables."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import KB, PrixError, SplitConfig, import_kb, split_kb
from prixlm.enrichment.answerable import StatedHere
from prixlm.enrichment.trial import SUBSETS, Trial
from prixlm.evaluation.proposals import (
    judge_enrichment,
    judge_proposals,
    judged_tables,
    try_enrichment,
    write_trials,
)
from prixlm.metrics import Interval
from prixlm.rankers.fusion import FusionConfig
from tests.enrichment.helpers import make_trial

FUSION = FusionConfig(depth=5, facts=50, iterations=5, leaves=4, smallest=2)


@pytest.fixture(scope="module")
def trials(numbered: KB, model: Path) -> list[Trial]:
    """Trials of all methods in Finnish."""
    return try_enrichment(numbered, ["fi"], model, config=FUSION)


def test_every_method_is_tried_on_every_subset(numbered: KB, trials: list[Trial]) -> None:
    methods = list(dict.fromkeys(trial.method for trial in trials))
    # A model that is never right has no confidence, and is left out with a warning.
    assert methods in (["transfer alone", "model alone", "fused"], ["transfer alone", "fused"])
    assert [trial.subset for trial in trials] == list(SUBSETS) * len(methods)
    everything, few, stated, unstated = trials[-4:]
    assert stated.held_out + unstated.held_out == everything.held_out
    assert everything.held_out == numbered.num_triples("fi", "test")
    assert few.held_out < everything.held_out, "links carry some over"
    assert [level.level for level in everything.levels] == [0.5, 0.8, 0.95]
    assert 0 <= everything.right <= 1


def test_a_sample_has_that_many_questions(numbered: KB) -> None:
    found = try_enrichment(numbered, ["fi"], config=FUSION, most=3)
    assert {trial.held_out for trial in found if trial.subset == "all"} == {3}
    with pytest.raises(PrixError, match="--most 0: expected 1 or more"):
        try_enrichment(numbered, ["fi"], most=0)


def test_a_language_without_test_facts_is_refused(toy: KB) -> None:
    with pytest.raises(PrixError, match="has no test triples in en: make a split of it"):
        try_enrichment(toy, ["en"])


def test_trials_are_written_with_a_plot(tmp_path: Path) -> None:
    write_trials([make_trial("fused", "et", "all")], tmp_path / "new")
    (values,) = json.loads((tmp_path / "new" / "trials.json").read_text("utf-8"))
    assert values["way"] == "fused" and values["hidden"] == 150
    assert values["levels"][2]["precision"] is None, "JSON has no NaN: none is as sure as 0.95"
    assert (tmp_path / "new" / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_proposals_are_judged_by_the_facts_that_the_run_did_not_know(
    numbered: KB, tmp_path: Path
) -> None:
    test = numbered.query(
        "SELECT lang, subject, relation, object FROM triples WHERE split = 'test' AND lang = 'fi'"
    ).to_arrow_table()
    number = len(test)
    right = test.append_column("confidence", pa.array([0.9] * number))
    wrong = test.set_column(3, "object", test["subject"])
    wrong = wrong.append_column("confidence", pa.array([0.1] * number))
    table = pa.concat_tables([right, wrong])
    why = pa.array(["elsewhere"] * number + ["usual"] * number)
    origin = pa.array([["en"]] * number + [[]] * number, pa.list_(pa.string()))
    table = table.append_column("why", why).append_column("origin", origin)
    pq.write_table(table, tmp_path / "proposals.parquet")
    judged = judge_proposals(numbered, tmp_path, known=("train", "valid"))
    kinds = ["all", "elsewhere", "usual", "answer stated", "answer unstated"]
    assert [(part.lang, part.kind) for part in judged] == [("fi", kind) for kind in kinds]
    assert judged[3].levels[:2] == judged[1].levels[:2], "at 0.95 nothing is proposed"
    assert judged[4].reliability.number == number
    assert {part.held_out for part in judged} == {number}
    assert judged[0].levels[1].precision == judged[0].levels[1].recall == 1.0
    assert judged[2].levels[0].proposed == 0
    (shown,) = judged_tables(judged)
    assert shown.title == f"proposals, fi, against {number} held-out facts"
    assert list(shown.rows)[:3] == [
        f"all ({2 * number})",
        f"elsewhere ({number})",
        f"usual ({number})",
    ]
    assert shown.values(f"elsewhere ({number})")["P.8"] == 1.0
    # All test facts are found at 0.8 in every resample; half of all proposals are right.
    assert judged[0].intervals["R.8"] == judged[0].intervals["P.8"] == Interval(1.0, 1.0)
    assert judged[2].intervals["R.5"] == Interval(0.0, 0.0)
    assert np.isnan(judged[2].intervals["P.5"].low)
    assert shown.has_intervals() and any("ECE here" in note for note in shown.notes)
    # The confidence of a guess has the probability of an answer; others are lower, as learnt.
    share = StatedHere.fit(numbered, ["fi"]).share["fi"]
    assert str(judged[2].here) == str(judged[2].reliability), "NaN is not equal to itself"
    lacks = number / numbered.num_triples("fi", "valid")
    expected = 0.9 * lacks * share[test["relation"].to_numpy()].mean()
    bins = judged[1].here.bins
    assert sum(mean * size for mean, _, size in bins) / number == pytest.approx(expected)


def test_a_fact_that_no_proposal_asks_for_counts_in_the_interval_of_recall(
    numbered: KB, tmp_path: Path
) -> None:
    facts = numbered.query(
        "SELECT lang, subject, relation, object, 0.9::DOUBLE AS confidence, 'usual' AS why, "
        "[]::VARCHAR[] AS origin FROM triples WHERE split = 'test' AND lang = 'fi'"
    ).to_arrow_table()
    pq.write_table(facts.slice(0, len(facts) // 2), tmp_path / "proposals.parquet")
    everything = judge_proposals(numbered, tmp_path, known=("train", "valid"))[0]
    low, high = everything.intervals["R.5"]
    assert 0 < low < everything.levels[0].recall < high < 1
    assert everything.intervals["P.5"] == Interval(1.0, 1.0)


def test_a_run_is_judged_without_having_known_the_test_facts(
    numbered: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "judged"
    judged = judge_enrichment(numbered, ["fi"], to, min_confidence=0.1, fusion=FUSION)
    everything = judged[0]
    assert everything.held_out == numbered.num_triples("fi", "test")
    rows = pq.read_table(tmp_path / "judged" / "proposals" / "proposals.parquet")
    assert everything.reliability.number == rows.num_rows > 0
    stated = [sum(level.proposed for level in part.levels) for part in judged[-2:]]
    assert sum(stated) == sum(level.proposed for level in everything.levels)
    # Finished proposals are judged again, not made again; those of other settings are refused.
    monkeypatch.setattr("prixlm.evaluation.proposals.enrich", None)
    again = judge_enrichment(numbered, ["fi"], to, min_confidence=0.1, fusion=FUSION)
    assert str(again) == str(judged), "NaN is not equal to itself"
    with pytest.raises(PrixError, match="other settings: name another --to"):
        judge_enrichment(numbered, ["fi"], to, min_confidence=0.2, fusion=FUSION)
    with pytest.raises(PrixError, match="has no test triples"):
        judge_enrichment(numbered, ["te"], to)


def test_the_confidence_is_right_on_facts_that_nothing_was_fitted_on(tmp_path: Path) -> None:
    """All languages of the world KB state the same facts, so links find nearly all of them."""
    kb = import_kb([], tmp_path / "kb", format="world", langs=["et", "fi", "en"])
    split = split_kb(kb, tmp_path / "split", SplitConfig(test=0.2, valid=0.1))
    config = FusionConfig(facts=400, smallest=20, iterations=40, rate=0.2, parts=3)
    trials = try_enrichment(split, ["et"], config=config)
    by_method = {(trial.method, trial.subset): trial for trial in trials}
    fused, links = by_method["fused", "all"], by_method["transfer alone", "all"]
    assert fused.held_out == split.num_triples("et", "test")
    assert min(fused.right, links.right) > 0.8 and fused.reliability.ece < 0.15
    assert by_method["fused", "no transfer"].held_out < 0.1 * fused.held_out
