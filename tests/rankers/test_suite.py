"""The suite: which rankers take part, looked up by field; what may not take part."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError
from prixlm.decoding.completer import Completer
from prixlm.kb.unsplit import unsplit_kb
from prixlm.metrics import BEYOND
from prixlm.rankers.complex import GraphConfig, train_graph
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.links import WhereUnstated
from prixlm.rankers.lm import ModelRanker
from prixlm.rankers.suite import FUSED, LINKS, RULES, UNTRAINED, load_suite, make_suite

NAMES = ["links: pairs", "links: lookup", "rules: paths", "rules: similar"]
NAMES += ["names: similar", "names: shared", "names: new objects"]


def test_rankers_without_training_have_the_names_of_the_tables(nordic: KB) -> None:
    rankers = {key: make(nordic, ("train",)) for key, make in UNTRAINED.items()}
    assert {key: ranker.name for key, ranker in rankers.items()} == {
        "usual": "usual object",
        "direct": "links: direct",
        "lookup": "links: lookup",
        "pairs": "links: pairs",
        "paths": "rules: paths",
        "similar": "rules: similar",
        "similar-names": "names: similar",
        "shared-names": "names: shared",
        "new-objects": "names: new objects",
    }
    assert set(FUSED) < set(UNTRAINED) == {*LINKS, *RULES}


@pytest.mark.parametrize("key", UNTRAINED)
def test_every_ranker_keeps_the_protocol(nordic: KB, key: str) -> None:
    ranker, facts = UNTRAINED[key](nordic, ("train",)), read_facts(nordic, "en")
    assert ranker.max_rank == BEYOND
    ranked = ranker.best(facts.queries, 5)
    assert ranked.offset[-1] == len(ranked.entity) == len(ranked.score)
    for row in range(len(facts)):
        answers = ranked.entity[ranked.offset[row] : ranked.offset[row + 1]]
        assert not set(answers) & set(facts.queries.filtered_of(row))
        assert set(answers) <= set(nordic.entity_range("en"))
    ranks = ranker.ranks(facts.queries, facts.objects)
    assert ((ranks >= 1) & (ranks <= len(nordic.entity_range("en")))).all()


def test_selections_are_groups_of_the_suite(nordic: KB, nordic_completer: Completer) -> None:
    model = ModelRanker(nordic_completer, search="beam", name="Prix-LM")
    suite = make_suite(nordic, model)
    assert [ranker.name for ranker in suite.rankers] == ["Prix-LM", *NAMES]
    selections = suite.selections()
    assert list(selections) == ["transfer alone", "model alone", "fused"]
    assert selections["transfer alone"] == [suite.links["pairs"], suite.links["lookup"]]
    assert selections["model alone"] == [model] and selections["fused"] == suite.rankers
    assert list(make_suite(nordic).selections()) == ["transfer alone", "fused"]


def test_a_suite_can_read_other_splits(nordic: KB) -> None:
    facts = read_facts(nordic, "en")
    suite = make_suite(nordic)
    ranks = suite.links["lookup"].ranks(facts.queries, facts.objects)
    known = suite.reading(nordic, ("train", "test"))
    assert [ranker.name for ranker in known.rankers] == NAMES
    assert (known.links["lookup"].ranks(facts.queries, facts.objects) == 1).all()
    assert not (ranks == 1).all()


def test_trained_rankers_are_loaded_and_identify_the_suite(
    nordic: KB, nordic_completer: Completer, tmp_path: Path
) -> None:
    config = GraphConfig(rank=2, epochs=1)
    train_graph(nordic, tmp_path / "graph", config)
    training = dataclasses.replace(config.training, seed=1)
    train_graph(nordic, tmp_path / "other", dataclasses.replace(config, training=training))
    suite = load_suite(nordic, graph=tmp_path / "graph")
    assert suite.model is None and suite.graph is not None
    assert [ranker.name for ranker in suite.rankers] == [*NAMES, "graph"]
    assert np.isfinite(suite.graph.best(read_facts(nordic, "en").queries, 1).score).all()
    opened = load_suite(nordic, graph=tmp_path / "graph", open_world=True)
    assert [one.name for one in opened.rankers] == [*NAMES, "graph", "graph: new objects"]
    assert opened.reading(nordic, ("train", "test")).open_world is opened.open_world
    again = load_suite(nordic, graph=tmp_path / "graph")
    other = load_suite(nordic, graph=tmp_path / "other")
    assert suite.identity == again.identity != other.identity
    assert load_suite(nordic).identity == ""
    # A suite of everything may have what was trained on its split, and nothing of another KB.
    whole = unsplit_kb(nordic, tmp_path / "whole")
    lent = load_suite(whole, graph=tmp_path / "graph", split=nordic)
    assert lent.graph is not None and lent.identity == suite.identity
    with pytest.raises(PrixError, match=r"embedding .*graph was trained on the KB that"):
        load_suite(whole, graph=tmp_path / "graph")
    with pytest.raises(PrixError, match=r"embedding .*graph was trained on the KB that"):
        load_suite(whole, graph=tmp_path / "graph", split=whole)
    # The random model was trained on nothing: it may know the facts of any KB.
    nordic_completer.model.save(tmp_path / "model")
    with pytest.raises(PrixError, match="the model was trained on another KB"):
        load_suite(nordic, model=tmp_path / "model")
    with pytest.raises(PrixError, match="the model was trained on another KB"):
        load_suite(whole, model=tmp_path / "model", split=nordic)


def test_a_reader_takes_part_as_the_last_ranker(nordic: KB, families: dict[str, Path]) -> None:
    suite = load_suite(nordic, reader=families["gemma"])
    assert suite.reader is not None and suite.rankers[-1].name == "reader"
    assert suite.reader.turn == max(ranker.turn for ranker in suite.rankers), "it is asked last"
    assert suite.identity and suite.identity != load_suite(nordic).identity
    assert suite.reading(nordic, ("train", "test")).reader is suite.reader


def test_known_objects_are_looked_for_by_name_only_where_no_language_states_one(nordic: KB) -> None:
    rules = make_suite(nordic).rules
    restricted = {key for key, ranker in rules.items() if isinstance(ranker, WhereUnstated)}
    assert restricted == {"similar-names", "shared-names"}, "objects without facts: everywhere"
