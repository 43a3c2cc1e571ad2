"""Facts carried along links: the four rules worked by hand on the toy KB."""

import numpy as np
import pytest

from prixlm import KB
from prixlm.rankers.base import Queries
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.links import (
    PRIOR,
    DirectLookup,
    LinkRanker,
    MergedLookup,
    RelatedPairs,
    UsualObjects,
    WhereUnstated,
)


def ask(kb: KB, lang: str, subject: str, relation: str, filtered: tuple[str, ...] = ()) -> Queries:
    """Return one query that filters the entities of some names."""
    [entity] = kb.find(subject, lang)
    ids = [kb.find(name, lang)[0].id for name in filtered]
    return Queries(
        lang,
        np.array([entity.id]),
        np.array([kb.relation_keys().index(relation)]),
        np.array([0, len(ids)]),
        np.array(ids, np.int64),
    )


def answers(kb: KB, ranker: LinkRanker, queries: Queries) -> list[str]:
    return kb.names(ranker.best(queries, 10).entity.tolist())


def test_the_lookup_finds_what_other_languages_state(shared_toy: KB) -> None:
    toy, ranker = shared_toy, MergedLookup(shared_toy)
    queries = ask(toy, "ja", "ヘルシンキ", "country")
    ranked = ranker.best(queries, 10)
    assert toy.names(ranked.entity.tolist()) == ["フィンランド"]
    assert ranked.score.tolist() == [2.0]  # languages
    assert ranker.origins(queries, ranked) == [["en", "fi"]]
    assert answers(toy, ranker, ask(toy, "ja", "パリ", "country")) == []  # it has no link
    assert answers(toy, ranker, ask(toy, "te", "ఫిన్లాండ్", "currency")) == []  # no Euro in Telugu
    assert answers(toy, ranker, ask(toy, "ja", "ヘルシンキ", "country", ("フィンランド",))) == []


def test_the_lookup_never_reads_test_facts(nordic: KB) -> None:
    facts = read_facts(nordic, "en")
    ranks = MergedLookup(nordic).ranks(facts.queries, facts.objects)
    right = nordic.names(facts.objects[ranks == 1].tolist())
    assert right == ["Stockholm"]  # which Finnish train states
    every_split = MergedLookup(nordic, ("train", "test")).ranks(facts.queries, facts.objects)
    assert (every_split == 1).all()


def test_related_pairs_weigh_relations_by_what_they_imply(shared_toy: KB) -> None:
    toy, ranker = shared_toy, RelatedPairs(shared_toy)
    keys = toy.relation_keys()
    capital, country = keys.index("capital"), keys.index("country")
    # Five merged pairs are (capital, its country); two of them have `country` as well.
    assert ranker.implication[capital + len(keys), country] == pytest.approx(2 / 5)
    assert ranker.implication[country + len(keys), capital] == pytest.approx(1.0)
    queries = ask(toy, "ja", "パリ", "country")
    ranked = ranker.best(queries, 10)
    assert toy.names(ranked.entity.tolist()) == ["フランス", "フィンランド"]
    # `country` has two merged objects: each has half of its triples, whatever the subject.
    usual = -np.log(1 - PRIOR / 2)
    assert ranked.score == pytest.approx([-np.log(1 - 2 / 5) + usual, usual])
    assert ranker.origins(queries, ranked) == [["ja"], []]
    # Two relations of one pair: capital backwards (2/5), and the country itself, which is certain.
    certain = ranker.best(ask(toy, "ja", "ヘルシンキ", "country"), 10).score
    assert certain == pytest.approx([-np.log(1e-6) - np.log(1 - 2 / 5) + usual, usual])


def test_objects_without_evidence_share_the_ranks_below(shared_toy: KB) -> None:
    toy, ranker = shared_toy, RelatedPairs(shared_toy)
    queries = ask(toy, "ja", "パリ", "country")
    france, helsinki, finland = (
        np.array([toy.find(name, "ja")[0].id])
        for name in ("フランス", "ヘルシンキ", "フィンランド")
    )
    assert ranker.ranks(queries, france) == [1]
    assert ranker.ranks(queries, finland) == [2]
    # Four candidates: two have a score, the other two share ranks 3 and 4.
    assert ranker.ranks(queries, helsinki) == [3.5]
    fewer = ask(toy, "ja", "パリ", "country", ("フィンランド", "フランス"))
    assert ranker.ranks(fewer, helsinki) == [1.5]
    assert ranker.ranks(queries, helsinki, beyond=2) == [np.inf]


def test_usual_objects_are_the_most_frequent_of_the_relation(shared_toy: KB) -> None:
    toy, ranker = shared_toy, UsualObjects(shared_toy)
    ranked = ranker.best(ask(toy, "en", "Helsinki", "currency"), 10)
    assert toy.names(ranked.entity.tolist()) == ["Euro"]
    concept, currency = toy.concepts(), toy.relation_keys().index("currency")
    merged = {
        (concept[row["subject"]], concept[row["object"]])
        for batch in toy.batches("triples")
        for row in batch.to_pylist()
        if row["relation"] == currency
    }
    euro = toy.find("Euro", "en")[0].concept
    share = sum(object_ == euro for _, object_ in merged) / len(merged)
    assert ranked.score == pytest.approx([share]) and 0 < share < 1


def test_direct_links_do_not_pass_through_a_third_language(shared_toy: KB) -> None:
    toy, direct, merged = shared_toy, DirectLookup(shared_toy), MergedLookup(shared_toy)
    # Helsinki: Japanese is linked to Finnish, Finnish to English. Finland: Japanese to English.
    queries = ask(toy, "ja", "ヘルシンキ", "country")
    assert answers(toy, merged, queries) == ["フィンランド"]
    assert answers(toy, direct, queries) == []  # Finnish states it, of a Finland without a link
    assert answers(toy, direct, ask(toy, "ja", "フランス", "capital")) == ["パリ"]  # its own train
    helsinki = ask(toy, "en", "Helsinki", "country")
    assert answers(toy, direct, helsinki) == ["Finland"]
    assert direct.best(helsinki, 1).score.tolist() == [2.0]  # stated in English and in Finnish
    assert answers(toy, direct, ask(toy, "en", "Helsinki", "country", ("Finland",))) == []


def test_weak_evidence_is_asked_only_where_no_language_states_an_object(nordic: KB) -> None:
    usual, lookup = UsualObjects(nordic), MergedLookup(nordic)
    queries = read_facts(nordic, "en").queries
    stated = np.diff(lookup.best(queries, 1).offset) > 0
    assert 0 < stated.sum() < len(queries)
    counts = np.diff(WhereUnstated(usual, lookup).best(queries, 10).offset)
    expected = np.diff(usual.best(queries, 10).offset)
    assert counts.tolist() == np.where(stated, 0, expected).tolist()
    # The scores of a query do not depend on the queries beside it.
    rest = queries.select(np.flatnonzero(~stated))
    alone = usual.best(rest, 10)
    ranked = WhereUnstated(usual, lookup).best(queries, 10)
    assert ranked.entity.tolist() == alone.entity.tolist()
    assert ranked.score.tolist() == alone.score.tolist()
