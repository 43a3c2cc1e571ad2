"""Ids, types and properties as the service reads and names them, without HTTP."""

import pytest

from prixlm import KB
from prixlm.entities.evidence import Type
from prixlm.service.reconcile.answers import Answers, find_space
from prixlm.service.reconcile.queries import (
    ConditionQuery,
    ExtendProperty,
    ExtendQuery,
    Query,
    Refused,
)
from prixlm.service.workbench import Folders, Workbench


@pytest.fixture(scope="module")
def answers(bench: Workbench) -> Answers:
    return Answers(bench.opened, bench.matcher())


@pytest.fixture(scope="module")
def toy(shared_toy: KB) -> Answers:
    """A KB without a type relation."""
    bench = Workbench(Folders(kb=shared_toy.folder))
    return Answers(bench.opened, bench.matcher())


def concept(answers: Answers, name: str, lang: str = "en") -> int:
    return answers.opened.kb.find(name, lang)[0].concept


def test_ids_are_found_also_with_the_space_of_the_service(answers: Answers) -> None:
    stalker = concept(answers, "Stalker")
    text = answers.concepts.id_of(stalker)
    assert answers.find(text) == answers.find(answers.space + text) == stalker
    assert answers.find("nothing") is None
    with pytest.raises(Refused, match="no entity 'nothing'"):
        answers.concept("nothing")


def test_the_space_of_identifiers_tells_kbs_apart(answers: Answers, toy: Answers) -> None:
    assert find_space(answers.lookup) != find_space(toy.lookup)
    assert find_space(toy.lookup).startswith("urn:prixlm:")


def test_types_of_a_kb_without_a_type_relation_have_ids_that_are_read_back(toy: Answers) -> None:
    for type_ in toy.evidence.all_types:
        described = toy.describe_type(type_, ["en"])
        assert toy.read_type(described["id"]) == type_
    relation = toy.lookup.relation_keys.index("capital")
    described = toy.describe_type(Type("value", relation), ["en"])
    assert described == {"id": "value:capital", "name": "value of capital"}
    assert toy.read_type("nothing") == toy.read_type("has:nothing") == Type("entity", -1)


def test_types_of_a_type_relation_are_entities(answers: Answers) -> None:
    film = concept(answers, "film")
    described = answers.describe_type(Type("entity", film), ["ar"])
    assert described == {"id": answers.concepts.id_of(film), "name": "فيلم"}
    assert answers.read_type(described["id"]) == Type("entity", film)


def test_a_property_is_a_relation_or_the_names_in_a_language(answers: Answers) -> None:
    director = answers.lookup.relation_keys.index("director")
    assert answers.read_property("director") == (None, director)
    assert answers.read_property("name:ar") == ("ar", None)
    assert answers.read_property("name:xx") == answers.read_property("nothing") == (None, None)


def test_an_unknown_property_says_nothing_unless_it_is_required(answers: Answers) -> None:
    unknown = Query.model_validate({"query": "x", "properties": [{"pid": "nothing", "v": 1}]})
    assert answers.read_query(unknown, None).question.properties == ()
    condition = {"matchType": "property", "propertyId": "nothing", "propertyValue": 1}
    asked = {"conditions": [condition | {"required": True}]}
    question = answers.read_conditions(ConditionQuery.model_validate(asked), []).question
    assert [one.required for one in question.properties] == [True]


def test_a_query_that_asks_for_nothing_is_refused(answers: Answers) -> None:
    with pytest.raises(ValueError, match="expected `query` or `properties`"):
        answers.read_query(Query(), None)
    nameless = ConditionQuery.model_validate(
        {"conditions": [{"matchType": "property", "propertyValue": "x"}]}
    )
    with pytest.raises(ValueError, match="propertyId"):
        answers.read_conditions(nameless, [])


def test_suggested_properties_are_those_with_most_facts_then_names(toy: Answers) -> None:
    ids = toy.popular(None)
    assert ids[0] == "capital" and ids[-1] == "name:te"
    has_country = toy.popular(Type("has", toy.lookup.relation_keys.index("country")))
    assert [pid for pid in has_country if not pid.startswith("name:")] == ["country"]


def test_an_extension_ends_when_its_time_is_over(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server had refused the request, and the thread went on for minutes."""
    monkeypatch.setattr("prixlm.service.reconcile.answers._SECONDS", -1.0)
    asked = ExtendQuery(ids=["x"], properties=[ExtendProperty(id="director")])
    with pytest.raises(Refused, match="no answer in time") as refused:
        answers.extend(asked, ["en"])
    assert refused.value.status == 503


def test_values_of_an_extension_follow_their_settings(answers: Answers) -> None:
    film = answers.concepts.id_of(concept(answers, "Solaris"))
    contents: list[dict[str, object]] = [{}, {"content": "name"}, {"content": "id"}, {"limit": "x"}]
    properties = [ExtendProperty(id="director", settings=settings) for settings in contents]
    _, [(_, values)] = answers.extend(ExtendQuery(ids=[film], properties=properties), ["en"])
    director = answers.concepts.id_of(concept(answers, "Andrei Tarkovsky"))
    entity = {"id": director, "name": "Andrei Tarkovsky", "lang": "en"}
    name = {"str": "Andrei Tarkovsky", "lang": "en"}
    assert values == [[entity], [name], [{"str": director}], [entity]]
