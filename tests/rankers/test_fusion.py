"""The fusion: what it learns, that it never sees test facts, its records, saved folders."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.metrics import figures
from prixlm.rankers import fusion as fusion_module
from prixlm.rankers.base import Ranker
from prixlm.rankers.calibrated import CalibratedTrees
from prixlm.rankers.features import CONTEXT
from prixlm.rankers.fusion import (
    Examples,
    Fusion,
    FusionConfig,
    Record,
    _with_records,
    fit_examples,
    fitted_languages,
)
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.links import RelatedPairs
from prixlm.rankers.rules import SimilarRules
from prixlm.rankers.suite import UNTRAINED
from tests.rankers.conftest import Guess, write_chain_kb

SMALL = FusionConfig(depth=5, facts=500, iterations=30, leaves=8, smallest=5)


@pytest.fixture(scope="module")
def fusion(chain: KB) -> Fusion:
    """Two rankers, each of which is right about one relation."""
    return Fusion.fit(chain, [Guess(chain, 0), Guess(chain, 1)], SMALL)


def test_it_learns_which_ranker_is_right_about_a_relation(chain: KB, fusion: Fusion) -> None:
    for lang in chain.languages:
        facts = read_facts(chain, lang)
        hits = figures(fusion.ranks(facts.queries, facts.objects)).hits_1
        alone = [
            float(np.mean(ranker.best(facts.queries, 1).entity == facts.objects))
            for ranker in fusion.rankers
        ]
        assert max(alone) < 0.8 < 0.9 <= hits
        ranked = fusion.best(facts.queries, 3)
        confidence = fusion.confidence(ranked.score)
        assert ((confidence >= 0) & (confidence <= 1)).all()
        first = ranked.offset[:-1]
        assert confidence[first].mean() > 0.85 > 0.15 > confidence[first + 1].mean()


def test_confidences_are_those_of_version_0_1(noisy: KB) -> None:
    """Its features were positional columns; with named arrays the same models must be fitted."""
    keys = ("pairs", "lookup", "paths", "similar")
    rankers = [UNTRAINED[key](noisy, ("train",)) for key in keys]
    fusion = Fusion.fit(noisy, rankers, dataclasses.replace(SMALL, l2=0.0))  # it had no penalty
    facts = read_facts(noisy, "en")
    ranked = fusion.best(facts.queries, 3)
    confidence = fusion.confidence(ranked.score[ranked.offset[:-1]])
    expected = [0.34615385, 0.43333333, 0.72222222, 0.35185185, 0.35185185, 0.35185185]
    assert confidence[:6] == pytest.approx(expected, abs=1e-7)
    assert fusion.ranks(facts.queries, facts.objects)[:4].tolist() == [1, 25.5, 1, 1]


def test_test_facts_change_nothing_in_the_fit(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, iterations=10)
    fits = []
    for shift in (0, 7):
        (tmp_path / str(shift)).mkdir()
        kb = write_chain_kb(tmp_path / str(shift), shift)
        fusion = Fusion.fit(kb, [Guess(kb, 0), RelatedPairs(kb), SimilarRules(kb)], config)
        queries = read_facts(kb, "en", "valid", filtered=("train",)).queries
        fits.append(fusion.best(queries, 5))
    assert np.array_equal(fits[0].score, fits[1].score)
    assert np.array_equal(fits[0].entity, fits[1].entity)


def test_an_explanation_has_the_score_and_rank_of_each_ranker(chain: KB, fusion: Fusion) -> None:
    queries = read_facts(chain, "en").queries
    explained = fusion.explain(queries, 3)
    ranked = fusion.best(queries, 3)
    assert np.array_equal(explained.ranked.entity, ranked.entity)
    assert np.array_equal(explained.ranked.score, ranked.score)
    for ranker in fusion.rankers:
        scores = ranker.scores(queries, ranked.owners(), ranked.entity)
        assert np.array_equal(
            explained.score(ranker), np.where(np.isinf(scores), np.nan, scores), True
        )
        assert np.array_equal(explained.rank(ranker), 1 - explained.score(ranker), True)
    absent = explained.score(None), explained.rank(Guess(chain, 0))
    assert all(np.isnan(values).all() and len(values) == len(ranked.entity) for values in absent)


def test_it_is_saved_without_pickle_and_only_for_its_rankers(
    chain: KB, fusion: Fusion, tmp_path: Path
) -> None:
    fusion.save(tmp_path / "fusion")
    again = Fusion.load(chain, fusion.rankers, tmp_path / "fusion")
    facts = read_facts(chain, "fi")
    ours, theirs = (one.best(facts.queries, 5) for one in (fusion, again))
    assert np.array_equal(ours.score, theirs.score) and np.array_equal(ours.entity, theirs.entity)
    assert np.array_equal(fusion.confidence(ours.score), again.confidence(ours.score))
    assert again.seconds == fusion.seconds > 0 and again.config == fusion.config
    with pytest.raises(PrixError, match="Fit it again"):
        Fusion.load(chain, fusion.rankers[:1], tmp_path / "fusion")
    with pytest.raises(PrixError, match="is not a fusion"):
        Fusion.load(chain, fusion.rankers, tmp_path)


def test_trees_of_other_features_are_refused(chain: KB, fusion: Fusion, tmp_path: Path) -> None:
    fusion.save(tmp_path)
    features = np.random.default_rng(0).normal(size=(200, 2))
    grow = np.arange(200) < 100
    other = CalibratedTrees.fit(features, features[:, 0] > 0, grow=grow, calibrate=~grow)
    other.save(tmp_path / "fusion.skops")
    with pytest.raises(PrixError, match=r"reads 2 features, expected \d+\. Fit it again"):
        Fusion.load(chain, fusion.rankers, tmp_path)


def test_a_fusion_over_rankers_that_know_more_keeps_what_was_fitted(noisy: KB) -> None:
    def rankers(*splits: str) -> list[Ranker]:
        return [UNTRAINED[key](noisy, splits) for key in ("pairs", "lookup")]

    fusion = Fusion.fit(noisy, rankers("train"), dataclasses.replace(SMALL, iterations=10))
    over = fusion.over(noisy, rankers("train", "valid", "test"))
    assert over.model is fusion.model and over.record is fusion.record
    facts = read_facts(noisy, "en")
    before = fusion.ranks(facts.queries, facts.objects)
    after = over.ranks(facts.queries, facts.objects)
    assert (after == 1).mean() > (before == 1).mean() + 0.2, "the answers are its evidence now"
    same = fusion.over(noisy, rankers("train"))
    ours, theirs = (one.best(facts.queries, 3) for one in (fusion, same))
    assert np.array_equal(ours.score, theirs.score) and np.array_equal(ours.entity, theirs.entity)
    with pytest.raises(AssertionError, match="the features have an order"):
        fusion.over(noisy, rankers("train")[::-1])


def test_too_few_valid_facts_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text("lang\tsubject\trelation\tobject\nen\ta\tr\tb\n")
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb")
    with pytest.raises(PrixError, match="has no valid triples"):
        Fusion.fit(kb, [RelatedPairs(kb)])
    more = "lang\tsubject\trelation\tobject\tsplit\nen\ta\tr\tb\ttrain\nen\tc\tr\td\tvalid\n"
    (tmp_path / "f.tsv").write_text(more)
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb2")
    with pytest.raises(PrixError, match="too few to fit a fusion on"):
        Fusion.fit(kb, [RelatedPairs(kb)])
    with pytest.raises(PrixError, match="parts are 2 or more"):
        FusionConfig(parts=1)
    with pytest.raises(PrixError, match="leaves 2 or more"):
        FusionConfig(leaves=1)
    with pytest.raises(PrixError, match="l2 is 0 or more"):
        FusionConfig(l2=-1.0)


def test_the_trees_of_a_fusion_have_an_l2_penalty() -> None:
    assert FusionConfig().trees.l2 == 1.0 and FusionConfig(l2=0.5).trees.l2 == 0.5


def test_languages_with_few_valid_facts_are_fitted_on_all(
    chain: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chain.num_triples("fi", "valid") < 200
    assert fitted_languages(chain, ["fi"]) == ["en", "fi"]
    monkeypatch.setattr(fusion_module, "_ENOUGH", 10)
    assert fitted_languages(chain, ["fi", "te"]) == ["fi"]


def test_the_record_of_a_relation_is_shrunk_towards_that_of_all() -> None:
    relation = np.array([0, 0, 0, 1])
    right = np.array([[1, 0], [1, 0], [0, 0], [1, 1]])
    record = Record.count(relation, right, 3)
    assert record.facts.tolist() == [3, 1, 0]
    overall = np.array([3 / 4, 1 / 4])
    shares = record.shares(np.array([0, 1, 2]), 2.0)
    assert shares[0] == pytest.approx((np.array([2, 0]) + 2 * overall) / 5)
    assert shares[2] == pytest.approx(overall)  # it has no fact


def test_the_record_does_not_reveal_what_is_right() -> None:
    """A ranker whose first answer is right by chance, so that no confidence can be far from 0.5.

    Counted without the question alone, the record of a relation is lower where the ranker is right,
    and trees learn that; their confidence would then be far from 0.5.
    """
    num_queries, num_relations = 2000, 2
    is_hit = np.random.default_rng(0).uniform(size=num_queries) < 0.5
    # Two candidates of each query, of which either the first is right or the second.
    features = np.zeros((2 * num_queries, len(CONTEXT) + 5))
    features[:, len(CONTEXT) + 1] = np.tile([0.0, np.log(2)], num_queries)  # the rank
    examples = Examples(
        features=features,
        labels=np.stack([is_hit, ~is_hit], axis=1).reshape(-1),
        owner=np.repeat(np.arange(num_queries), 2),
        relation=np.arange(num_queries) % num_relations,
        question=np.arange(num_queries),
        right=is_hit[:, None].astype(float),
    )
    config = FusionConfig(smallest=20, parts=4, iterations=100)
    model, record = fit_examples(examples, config, num_relations)
    assert record.facts.tolist() == [1000, 1000]
    described = _with_records(examples, np.ones(num_queries, bool), config, num_relations)
    assert np.abs(model.probability(described)[::2] - 0.5).max() < 0.2
