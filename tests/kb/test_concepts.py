"""Connected components over streamed links, against a plain union of sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prixlm.kb.concepts import count_linked, number_concepts


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


def test_no_entities_have_no_concepts() -> None:
    assert number_concepts(0, []).tolist() == []


def test_linked_entities_are_counted_by_language() -> None:
    assert count_linked(np.array([0, 1, 2, 1, 3, 0]), {"en": 3, "fi": 3}) == {"en": 2, "fi": 2}
    assert count_linked(np.array([], int), {}) == {}
