"""Entities without facts in the graph embedding, against a slow mean and a slow score."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prixlm import KB, PrixError, import_kb
from prixlm.rankers.base import Queries
from prixlm.rankers.complex import ComplEx, RotatE
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.names import OpenWorldRanker

RANK = 3


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Rivers and stations in two scripts, some without facts in train, and one like no other."""
    folder = tmp_path_factory.mktemp("kb")
    lines = ["lang\tsubject\trelation\tobject\tsplit"]
    for town in ("Turku", "Oulu", "Tartu"):
        lines.append(f"en\t{town} station\tnear\t{town} river\ttrain")
        lines.append(f"en\t{town} station\tcountry\tLand\ttrain")
    lines += ["el\tΑθήνα\tcountry\tΕλλάδα\ttrain"]
    lines += ["en\tNarva station\tnear\tNarva river\ttest", "en\tNarva station\tnear\t東\ttest"]
    lines += ["en\tOulu station\tnear\tOulu river 2\ttest", "en\tqqqqq\tnear\tNarva river\ttest"]
    lines += ["en\tAthina\tcountry\tLand\tvalid"]
    (folder / "facts.tsv").write_text("\n".join(lines), "utf-8")
    return import_kb([folder / "facts.tsv"], folder / "kb")


def make_model(kb: KB, kind: type[ComplEx] = ComplEx) -> ComplEx:
    """Return an embedding of random vectors, with biases that must not count."""
    generator = torch.Generator().manual_seed(0)
    num_nodes = int(kb.concepts().max()) + 1
    model = kind(num_nodes, kb.num_relations, RANK, kb.num_entities)
    with torch.no_grad():
        for part in (model.node, model.relation, model.bias):
            part.copy_(torch.randn(part.shape, generator=generator))
    return model


def node_of(kb: KB, name: str, lang: str = "en") -> int:
    return int(kb.concepts()[entity_of(kb, name, lang)])


def entity_of(kb: KB, name: str, lang: str = "en") -> int:
    return kb.find(name, lang)[0].id


def slow_grams(texts: dict[int, str]) -> dict[int, dict[str, float]]:
    """Return the n-grams of each concept's name by tf-idf, at length 1."""
    grams: dict[int, set[str]] = {}
    for concept, text in texts.items():
        padded = [f" {word} " for word in text.split()]
        grams[concept] = {
            word[at : at + size]
            for word in padded
            for size in range(2, 6)
            for at in range(max(1, len(word) - size + 1))
        }
    vectors = {}
    for concept, found in grams.items():
        count = {gram: sum(gram in other for other in grams.values()) for gram in found}
        weight = {g: np.log((len(grams) + 1) / (n + 1)) + 1 for g, n in count.items()}
        length = np.sqrt(sum(value**2 for value in weight.values()))
        vectors[concept] = {gram: value / length for gram, value in weight.items()}
    return vectors


def slow_vectors(kb: KB, model: ComplEx) -> dict[int, np.ndarray]:
    """Return the vector of every concept that has one, voter by voter."""
    read = {"Αθήνα": "athina", "Ελλάδα": "ellada", "東": "dong"}
    names = {int(c): kb.names([e])[0] for e, c in enumerate(kb.concepts())}
    spelled = slow_grams({c: name.casefold() for c, name in names.items()})
    romanised = slow_grams({c: read.get(name, name.casefold()) for c, name in names.items()})
    spelled = {c: spelled[c] for c in names}
    trained = {"Land", "Αθήνα", "Ελλάδα"}
    trained |= {f"{t} {k}" for t in ("Turku", "Oulu", "Tartu") for k in ("station", "river")}
    node = model.node.detach().numpy()
    vectors = {c: node[c] for c, name in names.items() if name in trained}
    known = dict(vectors)
    for concept, name in names.items():
        if name in trained:
            continue
        votes = {}
        for other in known:
            cosine = sum(
                v * form[other].get(gram, 0)
                for form in (spelled, romanised)
                for gram, v in form[concept].items()
            )
            votes[other] = (cosine / 2) ** 3
        total = sum(votes.values())
        if total:
            vectors[concept] = sum(v * known[o] for o, v in votes.items()) / (total + 0.1)
    return vectors


def slow_score(model: ComplEx, a: np.ndarray, relation: int, b: np.ndarray) -> float:
    """Return the real part of the product of three complex vectors, the last one conjugated."""
    r = model.relation[relation].detach().numpy()
    x, y, z = (v[:RANK] + 1j * v[RANK:] for v in (a, r, b))
    return float((x * y * np.conj(z)).sum().real)


def test_new_objects_have_the_score_of_the_mean_of_similar_names(kb: KB) -> None:
    model = make_model(kb)
    vectors, concepts = slow_vectors(kb, model), kb.concepts()
    ranker, entities = OpenWorldRanker(kb, model), kb.entity_range("en")
    facts = read_facts(kb, "en", filtered=())
    new = {"Narva station", "Narva river", "Oulu river 2", "Athina", "東", "qqqqq"}
    found = 0
    for row in range(len(facts)):
        subject = int(concepts[facts.queries.subject[row]])
        relation = int(facts.queries.relation[row])
        owner = np.zeros(len(entities), int) + row
        scores = ranker.scores(facts.queries, owner, np.array(entities))
        for entity, score in zip(entities, scores, strict=True):
            target = int(concepts[entity])
            if kb.names([entity])[0] in new and {subject, target} <= set(vectors):
                expected = slow_score(model, vectors[subject], relation, vectors[target])
                assert score == pytest.approx(expected, abs=1e-4), kb.names([entity])
                found += 1
            else:
                assert score == -np.inf, kb.names([entity])
    assert found >= 8


def test_a_name_in_another_script_is_placed_by_how_it_reads(kb: KB) -> None:
    model = make_model(kb)
    ranker = OpenWorldRanker(kb, model)
    placed = ranker.extended.node[node_of(kb, "Athina")].detach().numpy()
    greek = model.node[node_of(kb, "Αθήνα", "el")].detach().numpy()
    assert placed @ greek > 0.5 * greek @ greek, "no n-gram is shared as it is spelled"


def test_what_is_like_no_known_name_neither_asks_nor_answers(kb: KB) -> None:
    ranker = OpenWorldRanker(kb, make_model(kb))
    assert not ranker.is_placed[node_of(kb, "qqqqq")]
    assert ranker.is_placed[node_of(kb, "東")], "dong shares a pair of letters with station"
    facts = read_facts(kb, "en")
    row = facts.queries.subject.tolist().index(entity_of(kb, "qqqqq"))
    ranked = ranker.best(facts.queries, 10)
    assert ranked.offset[row] == ranked.offset[row + 1]
    assert len(ranked.entity) and entity_of(kb, "qqqqq") not in ranked.entity
    # All candidates tie, so each has the mean of the ranks, and none is first.
    assert ranker.ranks(facts.queries, facts.objects)[row] == (1 + len(kb.entity_range("en"))) / 2


def test_known_and_filtered_objects_are_never_returned(kb: KB) -> None:
    ranker = OpenWorldRanker(kb, make_model(kb))
    subject, relation = entity_of(kb, "Oulu station"), kb.relation_keys().index("near")
    river = entity_of(kb, "Oulu river 2")

    def ask(filtered: list[int]) -> list[int]:
        offset = np.array([0, len(filtered)])
        one = np.array([subject]), np.array([relation])
        return ranker.best(Queries("en", *one, offset, np.array(filtered, int)), 20).entity.tolist()

    assert river in ask([]) and river not in ask([river])
    new = {entity_of(kb, name) for name in ("Narva station", "Narva river", "Athina", "東")}
    assert set(ask([river])) == new


def test_only_the_given_splits_are_read(kb: KB) -> None:
    model = make_model(kb)
    assert not OpenWorldRanker(kb, model).is_known[node_of(kb, "Narva river")]
    more = OpenWorldRanker(kb, model, ("train", "test"))
    assert more.is_known[node_of(kb, "Narva river")] and not more.is_known[node_of(kb, "Athina")]


def test_the_trained_embedding_is_left_as_it_is(kb: KB) -> None:
    for kind in (ComplEx, RotatE):
        model = make_model(kb, kind)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        first, again = OpenWorldRanker(kb, model), OpenWorldRanker(kb, model)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert isinstance(first.extended, kind) and not first.extended.bias.any()
        assert torch.equal(first.extended.node, again.extended.node)


def test_an_embedding_of_another_kb_is_refused(kb: KB) -> None:
    with pytest.raises(PrixError, match="was not made from"):
        OpenWorldRanker(kb, ComplEx(3, 2, RANK, 3))


def test_a_kb_without_new_entities_is_answered_with_nothing(tmp_path: Path) -> None:
    lines = ["lang\tsubject\trelation\tobject\tsplit", "en\ta\tr\tb\ttrain", "en\tb\tr\ta\ttest"]
    (tmp_path / "facts.tsv").write_text("\n".join(lines), "utf-8")
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    ranker = OpenWorldRanker(kb, make_model(kb))
    assert not len(ranker.best(read_facts(kb, "en").queries, 5).entity)
