"""Types and property values of concepts, in KBs with and without a type relation."""

from pathlib import Path

import pytest

from prixlm import KB, import_kb
from prixlm.entities.evidence import Evidence, Property, Type, Value
from prixlm.kb.lookup import build_lookup

SAMPLE = Path(__file__).parents[1] / "data" / "wikidata-sample.json"


@pytest.fixture(scope="module")
def toy(shared_toy: KB) -> Evidence:
    """The toy KB, which has no type relation."""
    return Evidence(build_lookup(shared_toy))


def concept(evidence: Evidence, name: str, lang: str = "en") -> int:
    """Return the concept with a name."""
    return evidence.lookup.kb.find(name, lang)[0].concept


def relation(evidence: Evidence, key: str) -> int:
    """Return a relation by its key."""
    return evidence.lookup.relation_keys.index(key)


def capital(evidence: Evidence, *values: Value, **more: object) -> Property:
    """Return what a question says of a capital."""
    return Property(relation=relation(evidence, "capital"), values=values, **more)  # type: ignore[arg-type]


def make_kb(folder: Path, facts: str) -> Evidence:
    """Import a table of facts."""
    (folder / "facts.tsv").write_text("lang\tsubject\trelation\tobject\n" + facts, "utf-8")
    return Evidence(build_lookup(import_kb([folder / "facts.tsv"], folder / "kb")))


def test_without_a_type_relation_types_are_what_has_or_is_a_value(toy: Evidence) -> None:
    assert toy.type_relation is None
    has_capital = Type("has", relation(toy, "capital"))
    is_capital = Type("value", relation(toy, "capital"))
    assert has_capital in toy.types_of(concept(toy, "Finland"))
    assert is_capital in toy.types_of(concept(toy, "Helsinki"))
    assert is_capital not in toy.types_of(concept(toy, "Finland"))
    assert {has_capital, is_capital} <= set(toy.all_types)


def test_wikidata_s_instance_of_gives_the_types(tmp_path: Path) -> None:
    evidence = Evidence(build_lookup(import_kb([SAMPLE], tmp_path / "kb")))
    assert evidence.type_relation is not None
    assert evidence.lookup.relation_keys[evidence.type_relation] == "P31"
    assert evidence.all_types and all(type_.kind == "entity" for type_ in evidence.all_types)
    [most, *_] = evidence.all_types
    assert any(most in evidence.types_of(c) for c in range(evidence.lookup.num_concepts))


@pytest.mark.parametrize(("num_typed", "has_types"), [(5, True), (1, False)])
def test_a_relation_called_type_needs_enough_subjects(
    num_typed: int, has_types: bool, tmp_path: Path
) -> None:
    facts = [f"en\tthing {n}\tsize\tlarge\n" for n in range(10)]
    facts += [f"en\tthing {n}\ttype\tbridge\n" for n in range(num_typed)]
    assert (make_kb(tmp_path, "".join(facts)).type_relation is not None) == has_types


def test_values_agree_in_any_language_script_and_near_spelling(toy: Evidence) -> None:
    finland = concept(toy, "Finland")
    helsinki = concept(toy, "Helsinki")
    for value in ("Helsinki", "HELSINKI", "ヘルシンキ", "Helsinkii"):
        agreed = toy.agreement(finland, capital(toy, Value(value)))
        assert agreed is not None and agreed >= 0.85, value
    assert toy.agreement(finland, capital(toy, Value("", helsinki))) == 1
    assert toy.agreement(finland, capital(toy, Value("Paris"))) == 0


def test_what_the_kb_does_not_say_is_unknown(toy: Evidence) -> None:
    assert toy.agreement(concept(toy, "Helsinki"), capital(toy, Value("Paris"))) is None
    assert toy.agreement(concept(toy, "Finland"), capital(toy)) is None


def test_quantifiers_ask_for_any_all_or_none_of_the_values(toy: Evidence) -> None:
    finland, values = concept(toy, "Finland"), (Value("Helsinki"), Value("Paris"))
    scores = [
        toy.agreement(finland, capital(toy, *values, quantifier=quantifier))
        for quantifier in ("any", "all", "none")
    ]
    assert scores == [1, 0, 0]
    assert toy.agreement(finland, capital(toy, Value("Paris"), quantifier="none")) == 1


def test_names_in_a_language_are_a_property(toy: Evidence) -> None:
    finland = concept(toy, "Finland")
    assert toy.agreement(finland, Property(lang="fi", values=(Value("suomi"),))) == 1
    assert toy.agreement(finland, Property(lang="fi", values=(Value("Finland"),))) == 0
    assert toy.agreement(concept(toy, "Paris"), Property(lang="fi", values=(Value("x"),))) is None


def test_subjects_are_found_by_their_values(toy: Evidence) -> None:
    found = toy.subjects_of(capital(toy), [concept(toy, "Helsinki")])
    assert found.tolist() == [concept(toy, "Finland")]


def test_a_rare_relation_to_a_common_object_is_found(tmp_path: Path) -> None:
    """However many facts of other relations the object has before it."""
    facts = "".join(f"en\tA{number:04}\tcountry\tFinland\n" for number in range(1001))
    evidence = make_kb(tmp_path, facts + "en\tZoo\towner\tFinland\n")
    owned = Property(relation=relation(evidence, "owner"), values=())
    found = evidence.subjects_of(owned, [concept(evidence, "Finland")])
    assert found.tolist() == [concept(evidence, "Zoo")]
    country = Property(relation=relation(evidence, "country"), values=())
    assert len(evidence.subjects_of(country, [concept(evidence, "Finland")])) == 1000


def test_relations_of_a_type_are_those_that_its_entities_have(toy: Evidence) -> None:
    keys = toy.lookup.relation_keys
    has_capital = toy.relations_of(Type("has", relation(toy, "capital")))
    assert {keys[number] for number in has_capital} == {"capital", "currency"}
    is_capital = toy.relations_of(Type("value", relation(toy, "capital")))
    assert {keys[number] for number in is_capital} == {"country"}
    assert toy.relations_of(Type("entity", -1)) == []


DESCRIBED = """\
lang\tname\tdescription
en\tParis\tcapital of France
en\tParis (Troy)\tprince of Troy in the Iliad
ja\tパリ\tフランスの首都
en\tLyon\tfrancehood
"""


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Namesakes that only their descriptions tell apart: the KB states nothing of them."""
    folder = tmp_path_factory.mktemp("described")
    facts = "en\tNice\tcountry\tFrance\nen\tNice\tinstance of\tcity\nen\tTroy\tinstance of\ttown\n"
    (folder / "facts.tsv").write_text("lang\tsubject\trelation\tobject\n" + facts, "utf-8")
    (folder / "things.tsv").write_text(DESCRIBED, "utf-8")
    (folder / "links.tsv").write_text("lang_a\tname_a\tlang_b\tname_b\nen\tFrance\tja\tフランス\n")
    files = [folder / name for name in ("facts.tsv", "things.tsv", "links.tsv")]
    return Evidence(build_lookup(import_kb(files, folder / "kb")))


def test_a_description_that_names_a_value_agrees_where_nothing_is_stated(
    described: Evidence,
) -> None:
    country, france = relation(described, "country"), Value("france")
    paris, prince = concept(described, "Paris"), concept(described, "Paris (Troy)")
    asked = Property(relation=country, values=(france,))
    assert described.agreement(paris, asked) == 1.0
    assert described.agreement(prince, asked) is None  # it does not say the contrary
    assert described.agreement(concept(described, "Lyon"), asked) is None  # part of a word
    assert described.agreement(concept(described, "Nice"), asked) == 1.0  # a fact
    assert described.agreement(
        concept(described, "Nice"), Property(relation=country, values=(Value("Capital"),))
    ) == pytest.approx(0.0)
    by_concept = Value("something else", concept(described, "France"))
    japanese = Property(relation=country, values=(by_concept,))
    assert described.agreement(concept(described, "パリ", "ja"), japanese) == 1.0
    several = (france, Value("Troy"))
    for quantifier, score in (("any", 1.0), ("all", None), ("none", 0.0)):
        asked = Property(values=several, quantifier=quantifier)  # type: ignore[arg-type]
        assert described.agreement(paris, asked) == score
    assert described.agreement(paris, Property(lang="en", values=(Value("x"),))) == 0.0


def test_a_description_that_names_a_type_stands_for_it(tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_text(
        "lang\tsubject\trelation\tobject\nen\tNice\tinstance of\tcity\n"
    )
    (tmp_path / "things.tsv").write_text(
        "lang\tname\tdescription\nen\tLyon\tbig city\nen\tNice\tnice, not a nice town\nen\tX\t\n"
    )
    kb = import_kb([tmp_path / "facts.tsv", tmp_path / "things.tsv"], tmp_path / "kb")
    evidence = Evidence(build_lookup(kb))
    city = Type("entity", concept(evidence, "city"))
    nice = Type("entity", concept(evidence, "Nice"))
    for name, is_city in (("Lyon", True), ("Nice", True), ("X", False)):
        assert evidence.is_a(concept(evidence, name), city) == is_city
        assert not evidence.is_a(concept(evidence, name), nice)
        assert not evidence.is_a(concept(evidence, name), Type("entity", -1))
