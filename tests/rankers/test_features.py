"""The features of a fusion against direct counts, by name."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, import_kb
from prixlm.rankers.base import Answered, GivenPairs, PairRanker, Queries
from prixlm.rankers.features import CONTEXT, CandidateFinder, Candidates, view_of
from prixlm.rankers.heldout import HeldOut, read_facts
from prixlm.rankers.links import RelatedPairs
from tests.rankers.conftest import Guess


@pytest.fixture(scope="module")
def facts(chain: KB) -> HeldOut:
    return read_facts(chain, "en", "valid", most=6)


@pytest.fixture(scope="module")
def finder(chain: KB) -> CandidateFinder:
    return CandidateFinder(chain, [Guess(chain, 0), RelatedPairs(chain)], depth=5)


@pytest.fixture(scope="module")
def candidates(finder: CandidateFinder, facts: HeldOut) -> Candidates:
    return finder.find(facts.queries)


def test_candidates_are_all_that_any_ranker_lists(
    finder: CandidateFinder, candidates: Candidates, facts: HeldOut
) -> None:
    lists = [ranker.best(facts.queries, 5) for ranker in finder.rankers]
    pairs = {pair for x in lists for pair in zip(x.owners(), x.entity, strict=True)}
    found = list(zip(candidates.owner, candidates.entity, strict=True))
    assert found == sorted(pairs)


def test_rankers_are_asked_by_their_turn_wherever_their_features_stand(
    chain: KB, facts: HeldOut, candidates: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = Guess(chain, 0), RelatedPairs(chain), Guess(chain, 1)
    asked: list[tuple[str, int]] = []
    ask = PairRanker.ask

    def recorded(ranker: PairRanker, queries: Queries, k: int, given: GivenPairs) -> Answered:
        asked.append((ranker.name, len(given[0])))
        return ask(ranker, queries, k, given)

    monkeypatch.setattr(PairRanker, "ask", recorded)
    first.turn, third.turn = 1, 2
    CandidateFinder(chain, [first, second, third], depth=5).find(facts.queries)
    names = [name for name, _ in asked]
    assert names == [second.name, first.name, third.name]
    given = [number for _, number in asked]
    assert given[0] == 0 < given[1] < given[2], "the last knows what all others list"
    first.turn = 0
    same = CandidateFinder(chain, [first, second], depth=5).find(facts.queries)
    assert np.array_equal(same.matrix(), candidates.matrix(), equal_nan=True)


def test_the_languages_of_subject_and_candidate_are_counted(
    chain: KB, facts: HeldOut, candidates: Candidates
) -> None:
    concept = chain.concepts()
    codes = np.array([entity.lang for entity in chain.entities(range(chain.num_entities))])
    for row, (owner, entity) in enumerate(zip(candidates.owner, candidates.entity, strict=True)):
        pair = int(concept[facts.queries.subject[owner]]), int(concept[entity])
        subject, candidate = (set(codes[concept == c]) for c in pair)
        values = {name: candidates.context[name][row] for name in CONTEXT[:4]}
        assert values == {
            "is_subject": pair[0] == pair[1],
            "subject_languages": len(subject),
            "candidate_languages": len(candidate),
            "shared_languages": len(subject & candidate),
        }


@pytest.mark.parametrize("scope", ["merged", "own"])
def test_train_triples_are_counted_in_all_languages_and_in_one(
    chain: KB, facts: HeldOut, candidates: Candidates, scope: str
) -> None:
    # In the merged graph an entity stands for its concept, in the own language for itself.
    node = chain.concepts() if scope == "merged" else np.arange(chain.num_entities)
    triples = {
        (int(node[row["subject"]]), row["relation"], int(node[row["object"]]))
        for batch in chain.batches("triples", split="train")
        for row in batch.to_pylist()
        if scope == "merged" or row["lang"] == "en"
    }
    ends = [end for subject, _, object_ in triples for end in (subject, object_)]
    for row, (owner, entity) in enumerate(zip(candidates.owner, candidates.entity, strict=True)):
        subject, candidate = int(node[facts.queries.subject[owner]]), int(node[entity])
        pairs = [(s, o) for s, r, o in triples if r == facts.queries.relation[owner]]
        expected = {
            "subject_degree": ends.count(subject),
            "relation_triples": len(pairs),
            "objects_per_subject": len(pairs) / max(1, len({s for s, _ in pairs})),
            "subject_facts": sum(s == subject for s, _ in pairs),
            "candidate_degree": ends.count(candidate),
            "candidate_facts": sum(o == candidate for _, o in pairs),
        }
        values = {name: candidates.context[f"{scope}_{name}"][row] for name in expected}
        assert values == pytest.approx(expected)


def test_a_view_has_the_score_rank_and_gaps_of_a_ranker(
    finder: CandidateFinder, candidates: Candidates, facts: HeldOut
) -> None:
    for ranker, view in zip(finder.rankers, candidates.views, strict=True):
        scores = ranker.scores(facts.queries, candidates.owner, candidates.entity)
        for row, owner in enumerate(candidates.owner):
            mine = scores[row]
            others = np.delete(scores, row)[np.delete(candidates.owner, row) == owner]
            ordered = sorted(
                (s for s in scores[candidates.owner == owner] if s > -np.inf), reverse=True
            )
            lead = ordered[0] - ordered[1] if len(ordered) > 1 else np.nan
            assert view.lead[row] == pytest.approx(lead, nan_ok=True)
            if mine == -np.inf:
                assert view.rank[row] == -1
                assert np.isnan([view.score[row], view.margin[row], view.share[row]]).all()
                continue
            margin = mine - max(others) if np.isfinite(max(others)) else np.nan
            total = np.exp(np.array(ordered) - ordered[0]).sum()
            expected = [mine, margin, mine - ordered[0] - np.log(total)]
            values = [view.score[row], view.margin[row], view.share[row]]
            assert values == pytest.approx(expected, nan_ok=True)
            assert (others > mine).sum() <= view.rank[row] <= (others >= mine).sum()


def test_of_equal_scores_the_lower_id_is_first() -> None:
    view = view_of(np.array([1.0, 2.0, 2.0, -np.inf, 0.5]), np.array([0, 0, 0, 0, 1]), 3)
    assert view.rank.tolist() == [2, 0, 1, -1, 0]
    assert view.margin.tolist()[:3] == [-1.0, 0.0, 0.0] and np.isnan(view.margin[3:]).all()
    assert view.lead.tolist()[:4] == [0.0] * 4 and np.isnan(view.lead[4])
    assert view.select(np.array([2, 0])).score.tolist() == [2.0, 1.0]


def test_the_matrix_has_a_column_for_each_name_and_logarithms_of_counts(
    candidates: Candidates,
) -> None:
    matrix = candidates.matrix()
    assert matrix.shape == (len(candidates.owner), len(CONTEXT) + 5 * len(candidates.views))
    for name, column in zip(CONTEXT, matrix.T, strict=False):
        is_plain = name in CONTEXT[:4]
        values = candidates.context[name]
        assert np.array_equal(column, values if is_plain else np.log1p(values))
    for number, view in enumerate(candidates.views):
        columns = matrix[:, len(CONTEXT) + 5 * number :][:, :5]
        rank = np.where(view.rank < 0, np.nan, np.log1p(view.rank.clip(0)))
        expected = np.stack([view.score, rank, view.margin, view.share, view.lead], axis=1)
        assert np.array_equal(columns, expected, equal_nan=True)
    assert candidates.context["merged_subject_degree"].dtype.kind == "i"


def test_an_unknown_subject_of_a_kb_without_train_facts_counts_as_0(tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text("lang\tsubject\trelation\tobject\tsplit\nen\ta\tr\tb\ttest\n")
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb")
    facts = read_facts(kb, "en")
    context = CandidateFinder(kb, [], 1).context.describe(
        facts.queries, np.zeros(1, np.int64), facts.objects
    )
    assert all(context[name][0] == 0 for name in CONTEXT[4:])
