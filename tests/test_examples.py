"""The example dump of Wikidata: its shape, its ids, its gaps, and how it is imported."""

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from prixlm import KB, import_kb
from prixlm.languages import script_of_language

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wikidata_example", EXAMPLES / "wikidata.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def dump(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("example") / "sample.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["wikidata.py", "--to", str(path)])
        example.main()
    return path


@pytest.fixture(scope="module")
def entities(dump: Path) -> dict[str, dict[str, Any]]:
    first, *lines, last = dump.read_text("utf-8").splitlines()
    assert (first, last) == ("[", "]")
    rows = [json.loads(line.removesuffix(",")) for line in lines]
    by_id = {row["id"]: row for row in rows}
    assert len(by_id) == len(rows)
    return by_id


@pytest.fixture(scope="module")
def world(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> KB:
    folder = tmp_path_factory.mktemp("example") / "world"
    return import_kb([], folder, format="world", langs=list(example.LANGUAGES))


@pytest.fixture(scope="module")
def kb(dump: Path) -> KB:
    return import_kb([dump], dump.parent / "kb")


def objects(entity: dict[str, Any], relation: str) -> list[str]:
    """Return the items that an entity states for a property."""
    snaks = [statement["mainsnak"] for statement in entity.get("claims", {}).get(relation, [])]
    values = [snak["datavalue"] for snak in snaks if snak["snaktype"] == "value"]
    return [value["value"]["id"] for value in values if value["type"] == "wikibase-entityid"]


def test_the_example_has_thousands_of_items_in_many_scripts(
    entities: dict[str, dict[str, Any]],
) -> None:
    assert 3000 <= sum(entity["type"] == "item" for entity in entities.values()) <= 5000
    labels = Counter(lang for entity in entities.values() for lang in entity["labels"])
    languages = [lang for lang, number in labels.items() if number >= 900 and lang != "mul"]
    assert len(languages) >= 16
    assert len({script_of_language(lang) for lang in languages}) >= 9
    assert labels["mul"] >= 20


def test_the_import_accounts_for_everything_in_the_example(
    entities: dict[str, dict[str, Any]], kb: KB
) -> None:
    types: Counter[str] = Counter()
    ranks: Counter[str] = Counter()
    for entity in entities.values():
        for group in entity.get("claims", {}).values():
            for statement in group:
                ranks[statement["rank"]] += 1
                snak = statement["mainsnak"]
                types[snak.get("datavalue", {}).get("type", snak["snaktype"])] += 1
    literals = {"time", "quantity", "string", "globecoordinate"}
    assert set(types) == literals | {"wikibase-entityid", "novalue"}
    assert set(ranks) == {"normal", "preferred", "deprecated"}
    account = kb.manifest.account
    assert account["rejected"]["object is a literal"] == sum(types[kind] for kind in literals)
    assert account["filtered"]["no value"] == types["novalue"]
    assert set(account["rejected"]) == {"object is a literal", "entity without a name"}
    left = account["filtered"]["not of best rank"] + account["rejected"]["entity without a name"]
    assert left > 100
    assert account["imported"]["facts"] == types["wikibase-entityid"] - left


def test_ids_of_the_example_are_real_or_plainly_invented(
    example: ModuleType, entities: dict[str, dict[str, Any]]
) -> None:
    listed = example.TABLES.read_text("utf-8").replace('"', " ").split()
    real = {key for key in entities if key[0] == "Q" and int(key[1:]) < example.FIRST_INVENTED}
    assert real <= set(listed) and len(real) > 150
    known = {
        "Q183": "Germany",
        "Q64": "Berlin",
        "Q987": "New Delhi",
        "Q70": "Bern",
        "Q46": "Europe",
    }
    known |= {"Q9072": "Estonian", "Q4916": "Euro", "Q8229": "Latin", "Q515": "city"}
    assert {key: entities[key]["labels"]["en"]["value"] for key in known} == known


def test_the_example_has_the_gaps_that_it_states(
    example: ModuleType, entities: dict[str, dict[str, Any]]
) -> None:
    capitals = {country: objects(entities[country], "P36") for country in entities}
    pairs = [(city, country) for country, cities in capitals.items() for city in cities]
    without = [pair for pair in pairs if pair[1] not in objects(entities[pair[0]], "P1376")]
    assert len(pairs) > 200 and 0.1 < len(without) / len(pairs) < 0.25
    # CLDR names all countries in all languages, so what is missing there was left out.
    countries = [e for e in entities.values() if "P297" in e.get("claims", {})]
    for lang, percent in example.LANGUAGES.items():
        missing = sum(lang not in country["labels"] for country in countries) / len(countries)
        assert missing == pytest.approx(percent / 100, abs=0.08), lang


def test_the_example_is_the_same_in_every_run(example: ModuleType, dump: Path, world: KB) -> None:
    again = [json.dumps(entity, ensure_ascii=False) for entity in example.make_entities(world)]
    assert dump.read_text("utf-8") == "[\n" + ",\n".join(again) + "\n]\n"


def test_the_complete_example_has_everything_and_the_same_ids(
    example: ModuleType, entities: dict[str, dict[str, Any]], world: KB
) -> None:
    complete = {entity["id"]: entity for entity in example.make_entities(world, complete=True)}
    assert list(complete) == list(entities)

    def facts(dump: dict[str, dict[str, Any]]) -> set[tuple[str, str, str]]:
        rows = [
            (s, r, o) for s, e in dump.items() for r in e.get("claims", {}) for o in objects(e, r)
        ]
        return set(rows)

    left_out = facts(complete) - facts(entities)
    assert facts(entities) < facts(complete)
    assert 0.1 < len(left_out) / len(facts(complete)) < 0.15
    for key, entity in entities.items():
        assert entity["labels"].items() <= complete[key]["labels"].items()


def test_a_city_of_one_spelling_is_named_alike_in_latin_letters(
    entities: dict[str, dict[str, Any]],
) -> None:
    names = {
        e["labels"]["en"]["value"]: e["labels"] for e in entities.values() if "en" in e["labels"]
    }
    for lang in ("de", "fi", "et", "hu"):
        # Left out or not, never another language's form.
        assert names["Munich"].get(lang) is None
        assert names["Biên Hòa"].get(lang, {"value": "Biên Hòa"})["value"] == "Biên Hòa"
