"""The facts around two entities: shared neighbours, relations of other names, what lies further."""

import numpy as np

from prixlm.linking.graph import Facts, Neighbourhoods, unify_relations

# Two equal graphs of five entities each, 0 to 4 and 5 to 9; 0 and 1 are linked to 5 and 6.
# 2 is a neighbour of both, 3 of 1 alone, and 4 of 3 alone: two facts from what is linked.
SUBJECT = np.array([2, 2, 3, 4, 7, 7, 8, 9])
RELATION = np.array([0, 1, 1, 0, 10, 11, 11, 10])
OBJECT = np.array([0, 1, 1, 3, 5, 6, 6, 8])
CONCEPT = np.array([0, 1, 2, 3, 4, 0, 1, 5, 6, 7])
FACTS = Facts(SUBJECT, RELATION, OBJECT)


def test_what_is_linked_is_one_neighbour_for_both_sides() -> None:
    around = Neighbourhoods(FACTS, CONCEPT, np.array([0, 1]))
    dots = (around.neighbours @ around.neighbours.T).toarray()
    assert dots[2, 7] > 0.999 and dots[3, 8] > 0.999 and 0 < dots[2, 8] < 0.9
    assert dots[4].sum() == 0, "its only neighbour is not linked"
    assert around.num_linked.tolist()[2:5] == [2, 1, 0] and around.degree[3] == 2


def test_relations_that_join_the_same_concepts_become_one() -> None:
    linked = np.array([0, 1, 2, 3, 4, 0, 1, 2, 6, 7])  # 2 and 7 are linked as well
    is_ours = SUBJECT < 5
    unified = unify_relations(FACTS, linked, is_ours)
    assert unified.relation.tolist() == [0, 1, 1, 0, 0, 1, 1, 0]
    around = Neighbourhoods(unified, linked, np.array([0, 1, 2]))
    dots = (around.facts @ around.facts.T).toarray()
    assert dots[3, 8] > 0.999, "the same relation to the same concept"
    apart = Neighbourhoods(FACTS, linked, np.array([0, 1, 2]))
    assert (apart.facts @ apart.facts.T).toarray()[3, 8] == 0


def test_a_relation_of_both_sides_stays_itself() -> None:
    shared = Facts(SUBJECT, RELATION % 10, OBJECT)
    assert unify_relations(shared, CONCEPT, SUBJECT < 5).relation is shared.relation


def test_vectors_reach_entities_whose_neighbours_are_not_linked() -> None:
    around = Neighbourhoods(FACTS, CONCEPT, np.array([0, 1])).around
    dots = around @ around.T
    assert dots[4, 9] > 0.95, "equal graphs: the same lies around both"
    assert dots[4, 9] > dots[4, 7] + 0.1 and dots[3, 8] > dots[3, 7] + 0.1
    again = Neighbourhoods(FACTS, CONCEPT, np.array([0, 1])).around
    assert np.array_equal(around, again), "same seed, same vectors"


def test_without_links_or_facts_nothing_is_described() -> None:
    none = Neighbourhoods(FACTS, CONCEPT, np.zeros(0, int))
    assert none.facts.nnz == 0 and not none.around.any()
    empty = np.zeros(0, np.int64)
    assert not Neighbourhoods(Facts(empty, empty, empty), CONCEPT, np.array([0])).around.any()
