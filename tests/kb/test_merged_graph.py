"""The graph of concepts, against a plain reading of the triples."""

import numpy as np

from prixlm import KB
from prixlm.kb.merged_graph import MergedGraph, read_merged

Edge = tuple[int, int, int]


def edges_of(graph: MergedGraph, languages: list[str]) -> dict[Edge, set[str]]:
    """Return the languages of each edge (source, target, relation)."""
    edges = {}
    for i in range(len(graph)):
        edge = (int(graph.source[i]), int(graph.target[i]), int(graph.relation[i]))
        assert edge not in edges, "an edge is there once"
        stated = graph.lang[graph.offset[i] : graph.offset[i + 1]].tolist()
        assert stated == sorted(set(stated))
        edges[edge] = {languages[lang] for lang in stated}
    return edges


def test_an_edge_has_all_languages_that_state_it_in_both_directions(toy: KB) -> None:
    concept = toy.concepts()
    expected: dict[Edge, set[str]] = {}
    for batch in toy.batches("triples"):
        for row in batch.to_pylist():
            a, b, r = concept[row["subject"]], concept[row["object"]], row["relation"]
            for edge in ((a, b, r), (b, a, r + toy.num_relations)):
                expected.setdefault(edge, set()).add(row["lang"])
    graph = read_merged(toy)
    assert edges_of(graph, toy.languages) == expected
    capital = toy.relation_names("en").index("capital")
    [finland], [helsinki] = toy.find("Finland", "en"), toy.find("Helsinki", "en")
    found = edges_of(graph, toy.languages)[finland.concept, helsinki.concept, capital]
    assert found == {"en", "fi", "ja"}  # Telugu and Arabic link Finland, but not Helsinki


def test_edges_are_sorted(world: KB) -> None:
    graph = read_merged(world)
    order = np.lexsort((graph.relation, graph.target, graph.source))
    assert (order == np.arange(len(graph))).all()
    assert graph.offset[0] == 0 and graph.offset[-1] == len(graph.lang)
    assert len(graph.lang) / 2 <= world.num_triples()


def test_a_graph_is_read_once_and_may_be_empty(toy: KB) -> None:
    assert read_merged(toy, ["train", "valid"]) is read_merged(toy, ("valid", "train", "train"))
    nothing = read_merged(toy, ["test"])
    assert len(nothing) == 0 and nothing.offset.tolist() == [0]
