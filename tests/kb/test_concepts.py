"""Connected components over streamed links, against a plain union of sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prixlm.kb import concepts
from prixlm.kb.concepts import (
    ConceptPairs,
    count_linked,
    in_large_concepts,
    number_concepts,
)


def number_slowly(num_entities: int, pairs: list[tuple[int, int]]) -> list[int]:
    groups = [{entity} for entity in range(num_entities)]
    for a, b in pairs:
        if groups[a] is not groups[b]:
            groups[a] |= groups[b]
            for entity in groups[b]:
                groups[entity] = groups[a]
    numbers: dict[int, int] = {}
    return [numbers.setdefault(min(group), len(numbers)) for group in groups]


@given(st.data())
def test_concepts_equal_a_plain_union_in_whatever_batches(data: st.DataObject) -> None:
    num_entities = data.draw(st.integers(1, 30))
    entity = st.integers(0, num_entities - 1)
    pairs = data.draw(st.lists(st.tuples(entity, entity), max_size=40))
    size = data.draw(st.integers(1, 40))
    batches = [
        (np.array([a for a, _ in part], int), np.array([b for _, b in part], int))
        for part in (pairs[i : i + size] for i in range(0, len(pairs), size))
    ]
    found = number_concepts(num_entities, batches)
    assert found.tolist() == number_slowly(num_entities, pairs)


@given(st.data())
def test_pairs_equal_a_plain_join_in_whatever_blocks(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, 30))
    rows = st.lists(st.integers(0, 4), min_size=number, max_size=number)
    concept = np.array(data.draw(rows), int)
    language = np.array(sorted(data.draw(rows)), int)
    wanted = np.array(data.draw(rows), int) > 0
    expected = [
        (a, b)
        for a in range(number)
        for b in range(a + 1, number)
        if wanted[a] and wanted[b] and concept[a] == concept[b] and language[a] != language[b]
    ]
    before, concepts._BLOCK_PAIRS = concepts._BLOCK_PAIRS, data.draw(st.integers(1, 40))
    pairs = ConceptPairs(concept, language, wanted)
    found = [pair for a, b in pairs.blocks() for pair in zip(a.tolist(), b.tolist(), strict=True)]
    concepts._BLOCK_PAIRS = before
    assert found == expected and len(pairs) == len(expected)


def test_entities_of_concepts_beyond_the_limit_are_told() -> None:
    sizes = [concepts.MAX_CONCEPT, concepts.MAX_CONCEPT + 1]
    large = in_large_concepts(np.repeat([0, 1], sizes))
    assert not large[: sizes[0]].any() and large[sizes[0] :].all()


def test_no_entities_have_no_concepts() -> None:
    assert number_concepts(0, []).tolist() == []


def test_linked_entities_are_counted_by_language() -> None:
    assert count_linked(np.array([0, 1, 2, 1, 3, 0]), {"en": 3, "fi": 3}) == {"en": 2, "fi": 2}
    assert count_linked(np.array([], int), {}) == {}
