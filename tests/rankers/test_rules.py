"""Rules counted in the graph, against a plain count of the same."""

import itertools
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, import_kb
from prixlm.rankers import rules
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.rules import Rules

Fact = tuple[int, int, int]


@pytest.fixture(scope="module", params=[1 << 24, 40])
def kb(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> KB:
    """Two languages, linked in part, whose facts follow from each other now and then."""
    patch = pytest.MonkeyPatch()
    patch.setattr(rules, "_ROWS", request.param)
    request.addfinalizer(patch.undo)
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


def merged(kb: KB) -> tuple[set[Fact], set[Fact]]:
    """The merged train triples, and the same with their inverses."""
    concept = kb.concepts().tolist()
    facts = {
        (concept[row["subject"]], row["relation"], concept[row["object"]])
        for batch in kb.batches("triples", split="train")
        for row in batch.to_pylist()
    }
    return facts, facts | {(o, r + kb.num_relations, s) for s, r, o in facts}


def expected_paths(kb: KB, subject: int, relation: int) -> dict[int, float]:
    facts, both = merged(kb)
    out = defaultdict(list)
    for s, r, o in both:
        out[s].append((r, o))
    number: Counter[tuple[int, int]] = Counter()
    for _, q1, x in both:
        number.update((q1, q2) for q2, _ in out[x])
    holds: Counter[tuple[int, int, int]] = Counter()
    for s, r, o in facts:
        ways = {(q1, q2) for q1, x in out[s] for q2, y in out[x] if y == o and x not in (s, o)}
        holds.update((*way, r) for way in ways)
    found: dict[int, dict[tuple[int, int], float]] = defaultdict(dict)
    for q1, x in out[subject]:
        for q2, o in out[x]:
            chance = holds[q1, q2, relation] / (number[q1, q2] + 5)
            if chance >= 0.01 and o != subject and o != x:
                found[o][q1, q2] = chance
    return {o: -sum(np.log(1 - c) for c in ways.values()) for o, ways in found.items()}


def expected_similar(kb: KB, subject: int, relation: int) -> dict[int, float]:
    facts, both = merged(kb)
    known = defaultdict(set)
    for s, r, o in both:
        known[s].add((r, o))
    found: dict[int, float] = defaultdict(float)
    for thing in known[subject]:
        objects: Counter[int] = Counter()
        for s, r, o in facts:
            if r == relation and thing in known[s] and thing != (r, o):
                objects[o] += 1
        for o, number in objects.items():
            chance = number / (sum(objects.values()) + 2)
            if chance >= 0.01:
                found[o] -= np.log(1 - min(chance, 0.999))
    return found


@pytest.mark.parametrize("rule", ["paths", "similar"])
def test_scores_are_those_of_a_plain_count(kb: KB, rule: str) -> None:
    ranker = Rules(kb, rule)  # type: ignore[arg-type]
    expected_of = {"paths": expected_paths, "similar": expected_similar}[rule]
    concept = kb.concepts()
    seen = 0
    for lang in kb.languages:
        facts = read_facts(kb, lang)
        owner, entity, score = ranker.scored(facts.queries)
        for number in range(len(facts)):
            subject = int(concept[facts.queries.subject[number]])
            expected = expected_of(kb, subject, int(facts.queries.relation[number]))
            offset = facts.queries.offset
            hidden = set(facts.queries.hidden[offset[number] : offset[number + 1]].tolist())
            named = {
                e: expected[int(concept[e])]
                for e in kb.entity_range(lang)
                if int(concept[e]) in expected and e not in hidden
            }
            rows = owner == number
            found = dict(zip(entity[rows].tolist(), score[rows].tolist(), strict=True))
            assert found == pytest.approx(named)
            seen += len(named)
    assert seen > 50


def test_what_follows_from_others_is_found(kb: KB) -> None:
    for rule in ("paths", "similar"):
        ranker = Rules(kb, rule)  # type: ignore[arg-type]
        facts = read_facts(kb, "en")
        country = facts.queries.relation == kb.relation_keys().index("country")
        asked = facts.select(np.flatnonzero(country))
        assert (ranker.ranks(asked.queries, asked.objects) == 1).mean() > 0.6


def test_a_kb_without_facts_has_no_rules(tmp_path: Path) -> None:
    text = "lang\tsubject\trelation\tobject\tsplit\nen\ta\tr\tb\ttest\n"
    (tmp_path / "f.tsv").write_text(text)
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb")
    for rule in ("paths", "similar"):
        ranker = Rules(kb, rule)  # type: ignore[arg-type]
        facts = read_facts(kb, "en")
        assert not len(ranker.best(facts.queries, 5).entity)
