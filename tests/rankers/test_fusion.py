"""Fusion: what it learns, that it never sees test, its features against direct ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.metrics import figures
from prixlm.rankers.base import PairRanker, Queries
from prixlm.rankers.fusion import Fusion, FusionConfig, Record, _Examples
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.links import Transfer
from prixlm.rankers.rules import Rules

Array = np.ndarray[Any, Any]
SMALL = FusionConfig(depth=5, facts=500, iterations=30, leaves=8, smallest=5)


def write_kb(folder: Path, last: int = 0) -> KB:
    """Subject n has object n + 1 (r0) and n + 2 (r1), of 60; test objects may be others."""
    generator = np.random.default_rng(0)
    lines = ["lang\tsubject\trelation\tobject\tsplit"]
    for lang in ("en", "fi"):
        for n in range(60):
            for r in (0, 1):
                split = generator.choice(["train", "valid", "test"], p=[0.4, 0.4, 0.2])
                object_ = (n + r + 1 + (last if split == "test" else 0)) % 60
                lines.append(f"{lang}\t{lang} {n}\tr{r}\t{lang} {object_}\t{split}")
    links = [f"en\ten {n}\tfi\tfi {n}" for n in range(0, 60, 2)]
    (folder / "facts.tsv").write_text("\n".join(lines))
    (folder / "links.tsv").write_text("\n".join(["lang_a\tname_a\tlang_b\tname_b", *links]))
    return import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")


class Guess(PairRanker):
    """Right for one relation; for the other the truth is third."""

    def __init__(self, kb: KB, right: int) -> None:
        self.name, self.kb, self.right = f"guess {right}", kb, right
        self.number = np.array([int(name.split()[1]) for name in kb.names(range(kb.num_entities))])

    def scored(self, queries: Queries) -> tuple[Array, Array, Array]:
        own = self.kb.entity_range(queries.lang)
        by_number = {int(self.number[e]): e for e in own}
        keys = self.kb.relation_keys()
        owner, entity, score = [], [], []
        for place, (subject, relation) in enumerate(
            zip(queries.subject.tolist(), queries.relation.tolist(), strict=True)
        ):
            truth = int(self.number[subject]) + int(keys[relation][1]) + 1
            offsets = (0, 5, 6) if relation == self.right else (5, 6, 0)
            for rank, offset in enumerate(offsets):
                owner.append(place)
                entity.append(by_number[(truth + offset) % 60])
                score.append(-float(rank))
        return np.array(owner), np.array(entity), np.array(score)


@pytest.fixture
def kb(tmp_path: Path) -> KB:
    return write_kb(tmp_path)


def test_it_learns_whom_to_trust_and_how_far(kb: KB) -> None:
    rankers = [Guess(kb, 0), Guess(kb, 1)]
    fusion = Fusion.fit(kb, rankers, SMALL)
    for lang in kb.languages:
        facts = read_facts(kb, lang)
        found = figures(fusion.ranks(facts.queries, facts.objects))
        alone = [
            float(np.mean(one.best(facts.queries, 1).entity == facts.objects)) for one in rankers
        ]
        assert max(alone) < 0.8 < 0.9 <= found.hits_1
        ranked = fusion.best(facts.queries, 3)
        sure = fusion.confidence(ranked.score)
        assert ((sure >= 0) & (sure <= 1)).all()
        first = ranked.offset[:-1]
        assert sure[first].mean() > 0.85 > 0.15 > sure[first + 1].mean()


def test_test_facts_change_nothing_in_the_fit(tmp_path: Path) -> None:
    fits = []
    for last in (0, 7):
        (tmp_path / str(last)).mkdir()
        kb = write_kb(tmp_path / str(last), last)
        fusion = Fusion.fit(kb, [Guess(kb, 0), Transfer(kb), Rules(kb)], SMALL)
        queries = read_facts(kb, "en", "valid", hide=("train",)).queries
        fits.append(fusion.best(queries, 5))
    assert np.array_equal(fits[0].score, fits[1].score)
    assert np.array_equal(fits[0].entity, fits[1].entity)


def test_features_are_those_counted_directly(kb: KB) -> None:
    rankers = [Guess(kb, 0), Transfer(kb)]
    fusion = Fusion(kb, rankers, SMALL)
    facts = read_facts(kb, "en", "valid", most=6)
    found = fusion.candidates(facts.queries)
    concept = kb.concepts()
    trained = {
        (int(concept[row["subject"]]), row["relation"], int(concept[row["object"]]))
        for batch in kb.batches("triples", split="train")
        for row in batch.to_pylist()
    }
    codes = [entity.lang for entity in kb.entities(range(kb.num_entities))]
    own = {
        (row["subject"], row["relation"], row["object"])
        for batch in kb.batches("triples", langs=["en"], split="train")
        for row in batch.to_pylist()
    }
    whole = [ranker.scores(facts.queries, found.owner, found.entity) for ranker in rankers]
    rows = zip(found.owner.tolist(), found.entity.tolist(), found.features, strict=True)
    for owner, entity, row in rows:
        relation = int(facts.queries.relation[owner])
        asked = int(facts.queries.subject[owner])
        subject, candidate = int(concept[asked]), int(concept[entity])
        assert row[0] == (subject == candidate)
        languages = [{codes[e] for e in np.flatnonzero(concept == c)} for c in (subject, candidate)]
        assert row[1:3].tolist() == [len(part) for part in languages]
        assert row[3] == len(languages[0] & languages[1])
        views = [(trained, subject, candidate), (own, asked, entity)]
        for place, (triples, s, c) in zip((4, 10), views, strict=True):
            ends = [node for x, _, y in triples for node in (x, y)]
            of_relation = [(x, y) for x, r, y in triples if r == relation]
            expected = [
                ends.count(s),
                len(of_relation),
                len(of_relation) / max(1, len({x for x, _ in of_relation})),
                sum(x == s for x, _ in of_relation),
                ends.count(c),
                sum(y == c for _, y in of_relation),
            ]
            assert row[place : place + 6] == pytest.approx(np.log1p(expected))
        for number, scores in enumerate(whole):
            part = row[16 + 5 * number : 21 + 5 * number]
            mine = scores[(found.owner == owner) & (found.entity == entity)][0]
            others = scores[(found.owner == owner) & (found.entity != entity)]
            ordered = sorted((s for s in scores[found.owner == owner] if s > -np.inf), reverse=True)
            sure = ordered[0] - ordered[1] if len(ordered) > 1 else np.nan
            assert part[4] == pytest.approx(sure, nan_ok=True)
            if mine == -np.inf:
                assert np.isnan(part[:4]).all()
                continue
            above = mine - max(others) if np.isfinite(max(others)) else np.nan
            shares = np.exp(np.array(ordered) - ordered[0])
            share = np.log(np.exp(mine - ordered[0]) / shares.sum())
            assert part[[0, 2, 3]] == pytest.approx([mine, above, share], nan_ok=True)
            assert (others > mine).sum() <= np.expm1(part[1]) + 1e-9
            assert np.expm1(part[1]) <= (others >= mine).sum() + 1e-9


def test_it_is_saved_without_pickle_and_only_for_its_rankers(kb: KB, tmp_path: Path) -> None:
    rankers = [Guess(kb, 0), Guess(kb, 1)]
    fusion = Fusion.fit(kb, rankers, SMALL)
    fusion.save(tmp_path / "fusion")
    again = Fusion.load(kb, rankers, tmp_path / "fusion")
    facts = read_facts(kb, "fi")
    ours, theirs = (one.best(facts.queries, 5) for one in (fusion, again))
    assert np.array_equal(ours.score, theirs.score) and np.array_equal(ours.entity, theirs.entity)
    assert np.array_equal(fusion.confidence(ours.score), again.confidence(ours.score))
    with pytest.raises(PrixError, match="Fit it again"):
        Fusion.load(kb, rankers[:1], tmp_path / "fusion")
    with pytest.raises(PrixError, match="is no fusion"):
        Fusion.load(kb, rankers, tmp_path)


def test_too_little_to_fit_on_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text("lang\tsubject\trelation\tobject\nen\ta\tr\tb\n")
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb")
    with pytest.raises(PrixError, match="has no valid triples"):
        Fusion.fit(kb, [Transfer(kb)])
    more = "lang\tsubject\trelation\tobject\tsplit\nen\ta\tr\tb\ttrain\nen\tc\tr\td\tvalid\n"
    (tmp_path / "f.tsv").write_text(more)
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb2")
    with pytest.raises(PrixError, match="too few to fit a fusion on"):
        Fusion.fit(kb, [Transfer(kb)])
    with pytest.raises(PrixError, match="parts are 2 or more"):
        FusionConfig(parts=1)


def test_the_record_of_a_relation_is_drawn_to_that_of_all() -> None:
    relation = np.array([0, 0, 0, 1])
    right = np.array([[1, 0], [1, 0], [0, 0], [1, 1]])
    record = Record.count(relation, right, 3)
    assert record.facts.tolist() == [3, 1, 0]
    overall = np.array([3 / 4, 1 / 4])
    shares = record.shares(np.array([0, 1, 2]), 2.0)
    assert shares[0] == pytest.approx((np.array([2, 0]) + 2 * overall) / 5)
    assert shares[2] == pytest.approx(overall)  # no fact: that of all


def test_the_record_does_not_tell_what_is_right(kb: KB) -> None:
    """A ranker whose first answer is right by a coin: what is fitted can know no better.

    Counted without the question alone, the record of a relation is lower where it is a hit, and
    trees learn that; their confidence would then be far from one half.
    """
    generator = np.random.default_rng(0)
    number, relations = 2000, kb.num_relations
    hit = generator.uniform(size=number) < 0.5
    relation = np.arange(number) % relations
    # Two candidates of each query, of which the first is right or the second.
    width = (
        Fusion(kb, [Transfer(kb)], FusionConfig())
        .candidates(read_facts(kb, "fi", "valid").queries)
        .features.shape[1]
    )
    features = np.zeros((2 * number, width))
    features[:, -4] = np.tile([0.0, np.log(2)], number)  # the rank
    right = np.stack([hit, ~hit], axis=1).reshape(-1)
    examples = _Examples(
        features,
        right,
        np.repeat(np.arange(number), 2),
        relation,
        np.arange(number),
        hit[:, None].astype(float),
    )
    fusion = Fusion(kb, [Transfer(kb)], FusionConfig(smallest=20, parts=4))
    fusion._fit(examples)
    described = fusion._described(examples, np.ones(number, bool))
    confidence = fusion.confidence(fusion.trees.decision_function(described))[::2]
    assert np.abs(confidence - 0.5).max() < 0.2
