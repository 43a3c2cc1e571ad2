"""Facts carried along links: the rules worked by hand on the toy KB."""

import numpy as np
import pytest

from prixlm import KB
from prixlm.rankers import base
from prixlm.rankers.base import Queries
from prixlm.rankers.links import PRIOR, Transfer


def ask(kb: KB, lang: str, subject: str, relation: str, hidden: tuple[str, ...] = ()) -> Queries:
    [entity] = kb.find(subject, lang)
    ids = [kb.find(name, lang)[0].id for name in hidden]
    return Queries(
        lang,
        np.array([entity.id]),
        np.array([kb.relation_keys().index(relation)]),
        np.array([0, len(ids)]),
        np.array(ids, np.int64),
    )


def every_question(kb: KB) -> Queries:
    """Every English entity with every relation."""
    english = kb.entity_range("en")
    subjects = np.repeat(np.arange(english.start, english.stop), kb.num_relations)
    relations = np.tile(np.arange(kb.num_relations), len(english))
    none = np.zeros(0, np.int64)
    return Queries("en", subjects, relations, np.zeros(len(subjects) + 1, np.int64), none)


def answers(kb: KB, rule: Transfer, queries: Queries) -> list[str]:
    return kb.names(rule.best(queries, 10).entity.tolist())


def test_the_lookup_finds_what_other_languages_say(toy: KB) -> None:
    rule = Transfer(toy, "lookup")
    queries = ask(toy, "ja", "ヘルシンキ", "country")
    assert answers(toy, rule, queries) == ["フィンランド"]
    assert rule.origins(queries, rule.best(queries, 10)) == [["en", "fi"]]
    assert answers(toy, rule, ask(toy, "ja", "パリ", "country")) == []  # linked to nothing
    assert answers(toy, rule, ask(toy, "te", "ఫిన్లాండ్", "currency")) == []  # no Euro in Telugu
    assert answers(toy, rule, ask(toy, "ja", "ヘルシンキ", "country", ("フィンランド",))) == []


def test_the_pair_rule_weighs_relations_by_what_they_imply(toy: KB) -> None:
    rule = Transfer(toy)
    keys = toy.relation_keys()
    capital, country = keys.index("capital"), keys.index("country")
    assert rule.weight is not None
    # Five merged pairs are (capital, its country); two of them have `country` as well.
    assert rule.weight[capital + len(keys), country] == pytest.approx(2 / 5)
    assert rule.weight[country + len(keys), capital] == pytest.approx(1.0)
    queries = ask(toy, "ja", "パリ", "country")
    ranked = rule.best(queries, 10)
    assert toy.names(ranked.entity.tolist()) == ["フランス", "フィンランド"]
    # `country` has two merged objects: a share of a half is what each has for nothing.
    usual = -np.log(1 - PRIOR / 2)
    assert ranked.score == pytest.approx([-np.log(1 - 2 / 5) + usual, usual])
    assert rule.origins(queries, ranked) == [["ja"], []]
    # Two relations of one pair: capital backwards (2/5), and the country itself, which is certain.
    certain = rule.best(ask(toy, "ja", "ヘルシンキ", "country"), 10).score
    assert certain == pytest.approx([-np.log(1e-6) - np.log(1 - 2 / 5) + usual, usual])


def test_what_there_is_no_evidence_for_shares_the_places_below(toy: KB) -> None:
    rule = Transfer(toy)
    queries = ask(toy, "ja", "パリ", "country")
    ids = {name: toy.find(name, "ja")[0].id for name in ("フランス", "ヘルシンキ", "フィンランド")}
    assert rule.ranks(queries, np.array([ids["フランス"]])) == [1]
    assert rule.ranks(queries, np.array([ids["フィンランド"]])) == [2]
    # Four candidates, two are listed, the other two share 3 and 4.
    assert rule.ranks(queries, np.array([ids["ヘルシンキ"]])) == [3.5]
    fewer = ask(toy, "ja", "パリ", "country", ("フィンランド", "フランス"))
    assert rule.ranks(fewer, np.array([ids["ヘルシンキ"]])) == [1.5]
    assert rule.ranks(queries, np.array([ids["ヘルシンキ"]]), beyond=2) == [np.inf]


def test_many_queries_are_the_single_ones_together(toy: KB) -> None:
    rule = Transfer(toy)
    together = every_question(toy)
    ranked = rule.best(together, 3)
    for number in range(len(together)):
        one = rule.best(together.select(np.array([number])), 3)
        rows = slice(ranked.offset[number], ranked.offset[number + 1])
        assert one.entity.tolist() == ranked.entity[rows].tolist()
        assert one.score == pytest.approx(ranked.score[rows])


def test_usual_objects_are_the_most_frequent_of_the_relation(toy: KB) -> None:
    rule = Transfer(toy, "usual")
    queries = ask(toy, "en", "Helsinki", "currency")
    ranked = rule.best(queries, 10)
    assert toy.names(ranked.entity.tolist()) == ["Euro"]
    euros = [toy.find("Euro", lang)[0].concept for lang in ("en", "fi")]
    merged = {
        (toy.concepts()[row["subject"]], toy.concepts()[row["object"]])
        for batch in toy.batches("triples")
        for row in batch.to_pylist()
        if row["relation"] == toy.relation_keys().index("currency")
    }
    share = sum(o == euros[0] for _, o in merged) / len(merged)
    assert ranked.score == pytest.approx([share]) and 0 < share < 1
    assert rule.name == "usual object"


def test_direct_links_do_not_go_by_way_of_a_third_language(toy: KB) -> None:
    direct, merged = Transfer(toy, "direct"), Transfer(toy, "lookup")
    # Helsinki: Japanese is linked to Finnish, Finnish to English. Finland: Japanese to English.
    queries = ask(toy, "ja", "ヘルシンキ", "country")
    assert answers(toy, merged, queries) == ["フィンランド"]
    assert answers(toy, direct, queries) == []  # Finnish says it, of a Finland not linked to it
    queries = ask(toy, "ja", "フランス", "capital")
    assert answers(toy, direct, queries) == ["パリ"]  # its own train
    assert answers(toy, direct, ask(toy, "en", "Helsinki", "country")) == ["Finland"]
    assert direct.best(ask(toy, "en", "Helsinki", "country"), 1).score.tolist() == [2.0]  # fi too


def test_parts_of_many_queries_make_no_difference(toy: KB, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Transfer(toy)
    queries = every_question(toy)
    objects = np.full(len(queries), toy.entity_range("en").start)
    whole, ranks = rule.best(queries, 3), rule.ranks(queries, objects)
    owner = whole.owners()[::-1]
    scores = rule.scores(queries, owner, whole.entity[::-1])
    monkeypatch.setattr(base, "_CHUNK", 4)
    parts = rule.best(queries, 3)
    for name in ("offset", "entity", "score"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))
    assert np.array_equal(ranks, rule.ranks(queries, objects))
    assert np.array_equal(scores, rule.scores(queries, owner, whole.entity[::-1]))
    assert scores == pytest.approx(whole.score[::-1])
