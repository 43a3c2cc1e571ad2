"""Concepts as people see them: ids that lead back, pages with gaps, facts that tell apart."""

from pathlib import Path

import pytest

from prixlm import KB, import_kb
from prixlm.kb.lookup import build_lookup
from prixlm.service.answering import concepts as module
from prixlm.service.answering.concepts import Concepts, NotFound, url_of
from tests.service.served import LONG, OVERRIDE, SCRIPT

LABEL = "http://www.w3.org/2000/01/rdf-schema#label"


@pytest.fixture
def concepts(served_kb: KB) -> Concepts:
    return Concepts(build_lookup(served_kb))


def concept_of(concepts: Concepts, name: str, lang: str = "en") -> int:
    return concepts.lookup.kb.find(name, lang)[0].concept


@pytest.mark.parametrize("kb", ["served_kb", "world"])
def test_every_id_leads_back_to_its_concept(kb: str, request: pytest.FixtureRequest) -> None:
    found = Concepts(build_lookup(request.getfixturevalue(kb)))
    for concept in range(0, found.lookup.num_concepts, max(1, found.lookup.num_concepts // 200)):
        assert found.concept_of(found.id_of(concept)) == concept


def test_a_key_that_means_two_concepts_is_prefixed_with_its_language(tmp_path: Path) -> None:
    facts = "".join(
        f"{lang}\t{a}\tr\t{b}\n" for lang, a, b in [("en", "Gift", "Box"), ("de", "Gift", "Tod")]
    )
    (tmp_path / "facts.tsv").write_text(facts, "utf-8")
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    # The keys of tables have their language: without it, two unlinked entities share a key.
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(kb.path("entities"))
    keys = [key.partition(":")[2] for key in table["key"].to_pylist()]
    place = table.schema.get_field_index("key")
    pq.write_table(table.set_column(place, "key", pa.array(keys)), kb.path("entities"))
    found = Concepts(build_lookup(KB(kb.folder)))
    present, poison = (concept_of(found, "Gift", lang) for lang in ("en", "de"))
    assert (found.id_of(present), found.id_of(poison)) == ("en:Gift", "de:Gift")
    assert found.concept_of("en:Gift") == present and found.concept_of("de:Gift") == poison
    with pytest.raises(NotFound, match="no entity 'Gift'"):
        found.concept_of("Gift")


@pytest.mark.parametrize("text", ["", "nothing", "en:", "en:nothing", "xx:Helsinki", "\x00", LONG])
def test_what_is_not_an_id_is_not_found(text: str, concepts: Concepts) -> None:
    if text == LONG:
        text = f"fi:{LONG}"
    with pytest.raises(NotFound):
        concepts.concept_of(text)


def test_a_page_has_every_language_and_shows_what_it_lacks(concepts: Concepts) -> None:
    page = concepts.page(concept_of(concepts, "Helsinki"), ["fi", "en"])
    assert page.entity.id == "en:Helsinki" and page.entity.name.lang == "fi"
    names = {one.lang: one.name for one in page.names}
    assert names == {"ar": None, "en": "Helsinki", "fi": "Helsinki", "te": None}
    groups = {group.relation.name.text: group for group in page.facts}
    # English states the capital and Finnish could; Finnish states the place and English could.
    assert groups["capital of"].missing_in == ["fi"]
    assert groups["located in"].missing_in == ["en"]
    assert [one.value.name.text for one in groups["capital of"].statements] == ["Suomi"]
    assert page.num_facts == 2 and not page.truncated


def test_a_page_shows_facts_in_which_the_entity_is_the_object(concepts: Concepts) -> None:
    page = concepts.page(concept_of(concepts, "Europe"), ["en"])
    [group] = page.facts
    assert group.inverse and len(group.statements) == 4 == page.num_facts
    assert {SCRIPT, OVERRIDE, LONG} < {one.value.name.text for one in group.statements}


def test_a_page_is_bounded_and_says_so(concepts: Concepts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STATEMENTS", 2)
    page = concepts.page(concept_of(concepts, "Europe"), ["en"])
    assert sum(len(group.statements) for group in page.facts) == 2
    assert page.truncated and page.num_facts == 4


def test_names_are_shown_in_the_first_language_that_has_one(concepts: Concepts) -> None:
    finland = concept_of(concepts, "Finland")
    assert concepts.ref(finland, ["te", "fi"]).name.text == "Suomi"
    assert concepts.ref(finland, ["te"]).name.text == "Finland"  # English stands in
    known = concepts.known(finland, ["fi", "en"])
    assert [(name.text, name.lang) for name in known.names] == [("Suomi", "fi"), ("Finland", "en")]


def test_known_facts_leave_out_the_fact_in_question(concepts: Concepts) -> None:
    lookup = concepts.lookup
    helsinki, finland = (concept_of(concepts, name) for name in ("Helsinki", "Finland"))
    relation = lookup.find_relation("capital of")
    assert relation is not None
    facts = concepts.known(helsinki, ["en"], without=(relation, finland)).facts
    assert [fact.relation.name.text for fact in facts] == ["located in"]
    facts = concepts.known(finland, ["en"], without_to=(relation, helsinki)).facts
    assert ("capital of", True) not in {(fact.relation.name.text, fact.inverse) for fact in facts}


def test_a_type_and_then_relations_of_few_values_tell_a_thing_apart(tmp_path: Path) -> None:
    facts = [("Anna", "knows", f"Friend {n}") for n in range(5)]
    facts += [("Anna", "birthplace", "Turku"), ("Anna", "type", "painter")]
    facts += [("Anna", "died in", "Turku")]
    text = "".join(f"en\t{a}\t{r}\t{b}\n" for a, r, b in facts)
    (tmp_path / "facts.tsv").write_text(text, "utf-8")
    concepts = Concepts(build_lookup(import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")))
    anna = concept_of(concepts, "Anna")
    told = [fact.relation.name.text for fact in concepts.known(anna, ["en"]).facts]
    assert told == ["type", "birthplace", "knows"]  # Turku is named once
    assert concepts.about(anna, ["en"]).startswith("painter · birthplace: Turku · knows:")


@pytest.mark.parametrize(
    ("key", "url"),
    [
        ("Q33", "https://www.wikidata.org/wiki/Q33"),
        ("http://dbpedia.org/resource/A", "http://dbpedia.org/resource/A"),
        ("javascript:alert(1)", None),
        ("https://x.org/ onclick=", None),
        ('http://x.org/"><script>', None),
        ("en:Helsinki", None),
        ("data:text/html,x", None),
    ],
)
def test_only_web_addresses_become_links(key: str, url: str | None) -> None:
    assert url_of(key) == url
