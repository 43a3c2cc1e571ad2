"""How likely a question has an answer: by things like the subject, and by the relation."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import SplitConfig, import_kb, split_kb
from prixlm.enrichment.answerable import Chance
from prixlm.enrichment.gaps import KINDS, Missing, MissingConfig
from prixlm.rankers.base import Queries


def asked(relation: list[int], share: list[float], kind: str = "usual") -> Missing:
    number = len(relation)
    nothing = np.zeros(number + 1, np.int64)
    queries = Queries("et", np.arange(number), np.array(relation), nothing, np.zeros(0, np.int64))
    return Missing(queries, np.array(share), np.full(number, KINDS.index(kind)))


def learnt(number: int = 4000) -> tuple[Chance, np.ndarray, np.ndarray, np.ndarray]:
    """Relation 0 has an answer as often as things like the subject do, relation 1 never."""
    generator = np.random.default_rng(0)
    relation, share = generator.integers(0, 2, number), generator.uniform(0.5, 1, number)
    stated = (generator.uniform(size=number) < share) & (relation == 0)
    subject = generator.permutation(number)
    counts = stated.astype(float), 1.0 - stated
    return Chance._learn(subject, relation, share, *counts, 3), relation, share, stated


def test_the_share_and_the_relation_tell_what_has_an_answer() -> None:
    chance, relation, share, stated = learnt()
    found = chance.predict(asked(relation.tolist(), share.tolist()))
    assert found[relation == 1].max() < 0.05
    for low in (0.5, 0.7, 0.9):
        part = (relation == 0) & (share >= low) & (share < low + 0.1)
        assert found[part].mean() == pytest.approx(stated[part].mean(), abs=0.06)
    assert found.min() > 0 and found.max() < 1, "never quite sure"


def test_a_relation_that_was_never_asked_is_like_the_mean() -> None:
    chance, _, _, stated = learnt()
    assert chance.rate[2] == pytest.approx(stated.mean(), abs=0.001)
    (found,) = chance.predict(asked([2], [0.75]))
    assert 0.02 < found < 0.98


def test_what_another_language_states_has_an_answer() -> None:
    chance, *_ = learnt()
    np.testing.assert_array_equal(chance.predict(asked([0, 1], [1, 1], "elsewhere")), 1.0)


def test_where_no_valid_fact_answers_nothing_is_likely() -> None:
    nothing = (np.arange(50), np.zeros(50, int), np.full(50, 0.9), np.zeros(50), np.ones(50))
    assert Chance._learn(*nothing, 1).predict(asked([0], [0.9]))[0] == 0
    no_case = [part[:0] for part in nothing]
    assert Chance._learn(*no_case, 1).predict(asked([0], [0.9]))[0] == 0


def test_where_all_are_answered_it_is_still_not_sure(tmp_path: Path) -> None:
    every = (np.arange(50), np.zeros(50, int), np.full(50, 0.9), np.ones(50), np.zeros(50))
    chance = Chance._learn(*every, 2)
    (found, unseen) = chance.predict(asked([0, 1], [0.9, 0.9]))
    assert 0.9 < found < 1 and 0.9 < unseen < 1
    chance.save(tmp_path / "chance.json")
    again = Chance.load(tmp_path / "chance.json")
    np.testing.assert_array_equal(again.predict(asked([0], [0.9])), [found])


def test_the_cases_are_what_would_be_asked_if_only_train_were_known(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("chance")
    kb = import_kb([], folder / "kb", format="world", langs=["et", "en"])
    split = split_kb(kb, folder / "split", SplitConfig(test=0.1, valid=0.2, by_concept=True))
    chance = Chance.fit(split, ["et"])
    relations = split.relation_names("en")
    # A country without a currency in train has one among the held-out facts; a lone island no
    # neighbours.
    currency, neighbour = (relations.index(x) for x in ("currency", "neighbouring country"))
    assert chance.rate[currency] > 0.9 and chance.rate[neighbour] < 0.5
    # All countries have one: those whose currency only test states would not be asked, and are no
    # questions without an answer.
    # What a run does not know, it does not learn from.
    assert not Chance.fit(split, ["et"], MissingConfig(known=("train",))).rate.any()
    few = Chance.fit(split, ["et"], MissingConfig(known=("train", "valid")))
    assert (few.rate <= chance.rate + 1e-9).all() and (few.rate < chance.rate).any()
