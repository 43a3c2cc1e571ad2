"""Coverage: counts that agree with a slow reference over single facts."""

import json
from collections import Counter

from prixlm import KB
from prixlm.kb.coverage import Coverage, count_coverage


def count_slowly(kb: KB) -> Coverage:
    """Count with loops over facts and entities."""
    rows = kb.query("SELECT lang, subject, relation, object FROM triples").fetchall()
    entities = kb.entities(range(kb.num_entities))
    stated = Counter((lang, relation) for lang, _, relation, _ in rows)
    facts = {(entities[s].concept, r, entities[o].concept) for _, s, r, o in rows}
    statable: Counter[tuple[str, int]] = Counter()
    for subject, relation, value in facts:
        for a in entities:
            for b in entities:
                if (a.concept, b.concept, a.lang) == (subject, value, b.lang):
                    statable[a.lang, relation] += 1
    return Coverage(stated, statable)


def test_counts_are_those_of_single_facts(shared_toy: KB) -> None:
    assert count_coverage(shared_toy) == count_slowly(shared_toy)


def test_only_the_asked_languages_could_state_anything(shared_toy: KB) -> None:
    found = count_coverage(shared_toy, ["fi"])
    assert {lang for lang, _ in found.statable} == {"fi"}
    assert found.statable == Counter(
        {key: n for key, n in count_slowly(shared_toy).statable.items() if key[0] == "fi"}
    )


def test_facts_of_other_splits_do_not_count_as_stated(shared_toy: KB) -> None:
    assert not count_coverage(shared_toy, splits=["test"]).stated


def test_relations_come_with_the_largest_first(shared_toy: KB) -> None:
    coverage = count_coverage(shared_toy)
    totals = [
        sum(n for (_, relation), n in coverage.statable.items() if relation == wanted)
        for wanted in coverage.relations()
    ]
    assert totals == sorted(totals, reverse=True) and len(totals) == 3


def test_relations_of_as_many_facts_come_by_id() -> None:
    """They came in the order of a query's threads, and two reports of one folder differed."""
    counts = Counter({("fi", 2): 3, ("fi", 0): 3, ("et", 1): 4})
    assert Coverage(Counter(), counts).relations() == [1, 0, 2]


def test_counts_survive_json(shared_toy: KB) -> None:
    coverage = count_coverage(shared_toy)
    assert Coverage.from_json(json.loads(json.dumps(coverage.to_json()))) == coverage
