"""Rules counted in the graph, against a slow count of the same rules."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, import_kb
from prixlm.rankers import rules
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.rules import PathRules, RuleRanker, SimilarRules

Fact = tuple[int, int, int]


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Two languages with some links, whose facts often follow from each other."""
    folder = tmp_path_factory.mktemp("kb")
    generator = np.random.default_rng(3)
    lines = set()
    for lang, n in itertools.product(("en", "fi"), range(40)):
        town, land = n % 7, n % 7 % 3
        facts = [("lives in", f"town {town}"), ("country", f"land {land}")]
        facts += [("knows", f"person {generator.integers(40)}")] * int(generator.integers(2))
        for relation, object_ in facts:
            split = generator.choice(["train", "test"], p=[0.75, 0.25])
            lines.add(f"{lang}\tperson {n}\t{relation}\t{object_}\t{split}")
        lines.add(f"{lang}\ttown {town}\tlies in\tland {land}\ttrain")
    links = [f"en\tperson {n}\tfi\tperson {n}" for n in range(0, 40, 3)]
    links += [f"en\t{kind} {n}\tfi\t{kind} {n}" for kind, n in [("town", 1), ("land", 0)]]
    head = "lang\tsubject\trelation\tobject\tsplit"
    (folder / "facts.tsv").write_text("\n".join([head, *sorted(lines)]))
    (folder / "links.tsv").write_text("\n".join(["lang_a\tname_a\tlang_b\tname_b", *links]))
    return import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")


@lru_cache(maxsize=1)
def merged(kb: KB) -> tuple[set[Fact], set[Fact]]:
    """Return the merged train triples, and the same with their inverses."""
    concept = kb.concepts().tolist()
    facts = {
        (concept[row["subject"]], row["relation"], concept[row["object"]])
        for batch in kb.batches("triples", split="train")
        for row in batch.to_pylist()
    }
    return facts, facts | {(o, r + kb.num_relations, s) for s, r, o in facts}


def expected_paths(kb: KB, subject: int, relation: int) -> dict[int, float]:
    """Return the score of each object by path rules, counted path by path."""
    facts, both = merged(kb)
    steps = defaultdict(list)
    for s, r, o in both:
        steps[s].append((r, o))
    total: Counter[tuple[int, int]] = Counter()
    for _, q1, x in both:
        total.update((q1, q2) for q2, _ in steps[x])
    holds: Counter[tuple[int, int, int]] = Counter()
    for s, r, o in facts:
        paths = {(q1, q2) for q1, x in steps[s] for q2, y in steps[x] if y == o and x not in (s, o)}
        holds.update((*path, r) for path in paths)
    rules_of: dict[int, dict[tuple[int, int], float]] = defaultdict(dict)
    for q1, x in steps[subject]:
        for q2, o in steps[x]:
            confidence = holds[q1, q2, relation] / (total[q1, q2] + 5)
            if confidence >= 0.01 and o not in (subject, x):
                rules_of[o][q1, q2] = confidence
    return {o: -sum(np.log(1 - c) for c in paths.values()) for o, paths in rules_of.items()}


def expected_similar(kb: KB, subject: int, relation: int) -> dict[int, float]:
    """Return the score of each object by rules of similar subjects, counted triple by triple."""
    facts, both = merged(kb)
    properties = defaultdict(set)
    for s, r, o in both:
        properties[s].add((r, o))
    score: dict[int, float] = defaultdict(float)
    for one in properties[subject]:
        objects = Counter(
            o for s, r, o in facts if r == relation and one in properties[s] and one != (r, o)
        )
        for o, count in objects.items():
            confidence = count / (objects.total() + 2)
            if confidence >= 0.01:
                score[o] -= np.log(1 - min(confidence, 0.999))
    return score


@pytest.mark.parametrize("rows", [1 << 24, 40])
@pytest.mark.parametrize(
    ("make", "expected_scores"), [(PathRules, expected_paths), (SimilarRules, expected_similar)]
)
def test_scores_are_those_of_a_slow_count(
    kb: KB,
    make: Callable[[KB], RuleRanker],
    expected_scores: Callable[[KB, int, int], dict[int, float]],
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "_ROWS", rows)  # 40: the counts are made in many chunks
    ranker, concept = make(kb), kb.concepts()
    num_scores = 0
    for lang in kb.languages:
        facts = read_facts(kb, lang)
        owner, entity, score = ranker.scored(facts.queries)
        for row in range(len(facts)):
            subject = int(concept[facts.queries.subject[row]])
            expected = expected_scores(kb, subject, int(facts.queries.relation[row]))
            filtered = set(facts.queries.filtered_of(row).tolist())
            by_entity = {
                e: expected[int(concept[e])]
                for e in kb.entity_range(lang)
                if int(concept[e]) in expected and e not in filtered
            }
            mine = owner == row
            assert dict(zip(entity[mine], score[mine], strict=True)) == pytest.approx(by_entity)
            num_scores += len(by_entity)
    assert num_scores > 50


@pytest.mark.parametrize("make", [PathRules, SimilarRules])
def test_facts_that_follow_from_others_are_found(kb: KB, make: Callable[[KB], RuleRanker]) -> None:
    facts = read_facts(kb, "en")
    is_country = facts.queries.relation == kb.relation_keys().index("country")
    facts = facts.select(np.flatnonzero(is_country))
    assert (make(kb).ranks(facts.queries, facts.objects) == 1).mean() > 0.6


@pytest.mark.parametrize("make", [PathRules, SimilarRules])
def test_a_kb_without_train_facts_has_no_rules(
    tmp_path: Path, make: Callable[[KB], RuleRanker]
) -> None:
    text = "lang\tsubject\trelation\tobject\tsplit\nen\ta\tr\tb\ttest\n"
    (tmp_path / "f.tsv").write_text(text)
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb")
    assert not len(make(kb).best(read_facts(kb, "en").queries, 5).entity)
