"""Make a small dump in Wikidata's JSON format, to try QuickStatements: 53 countries, their capitals
and their languages, with Wikidata's own ids.

    python examples/wikidata.py --world world --to sample.json

Names and facts come from the world KB (`prixlm import --format world --to world`). Some are left
out, because Wikidata has gaps too: one capital in six has no P1376 (capital of), and one entity in
five has no Estonian name.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from prixlm import KB

# ISO code, country, capital.
COUNTRIES = """
    FI Q33 Q1757  SE Q34 Q1754  NO Q20 Q585   DK Q35 Q1748   IS Q189 Q1764  EE Q191 Q1770
    LV Q211 Q1773 LT Q37 Q216   PL Q36 Q270   DE Q183 Q64    FR Q142 Q90    ES Q29 Q2807
    IT Q38 Q220   PT Q45 Q597   BE Q31 Q239   NL Q55 Q727    LU Q32 Q1842   AT Q40 Q1741
    CH Q39 Q70    HU Q28 Q1781  CZ Q213 Q1085 SK Q214 Q1780  SI Q215 Q437   HR Q224 Q1435
    RO Q218 Q19660 BG Q219 Q472 GR Q41 Q1524  RU Q159 Q649   UA Q212 Q1899  BY Q184 Q2280
    GB Q145 Q84   IE Q27 Q1761  US Q30 Q61    CA Q16 Q1930   JP Q17 Q1490   CN Q148 Q956
    IN Q668 Q987  BR Q155 Q2844 AR Q414 Q1486 MX Q96 Q1489   AU Q408 Q3114  NZ Q664 Q23661
    EG Q79 Q85    MA Q1028 Q3551 TR Q43 Q3640 IR Q794 Q3616  KR Q884 Q8684  TH Q869 Q1861
    VN Q881 Q1858 CL Q298 Q2887 PE Q419 Q2868 CO Q739 Q2841  CY Q229 Q3856
"""
# Language code, item.
LANGUAGES = """
    en Q1860 fi Q1412 sv Q9027 da Q9035 is Q294 et Q9072 lv Q9078 lt Q9083 pl Q809 de Q188 fr Q150
    es Q1321 it Q652 pt Q5146 nl Q7411 hu Q9067 cs Q9056 sk Q9058 sl Q9063 hr Q6654 ro Q7913
    bg Q7918 el Q9129 ru Q7737 uk Q8798 be Q9091 ja Q5287 zh Q7850 hi Q1568 ar Q13955
    tr Q256 fa Q9168
    ko Q9176 th Q9217 vi Q9199
"""
# Relations of the world KB and their properties.
RELATIONS = {
    "relation/capital": "P36",
    "relation/country": "P17",
    "relation/official-language": "P37",
    "relation/neighbouring-country": "P47",
    "relation/language-spoken": "P2936",
}
# English names of the properties.
PROPERTIES = {
    "P36": "capital",
    "P1376": "capital of",
    "P17": "country",
    "P37": "official language",
    "P47": "shares border with",
    "P2936": "language used",
}
# Languages that items have names in.
LABEL_LANGUAGES = ("en", "de", "fr", "es", "it", "fi", "et")


def main() -> None:
    """Write the dump."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    entities = make_entities(KB(args.world))
    lines = ",\n".join(json.dumps(entity, ensure_ascii=False) for entity in entities)
    args.to.write_text(f"[\n{lines}\n]\n", "utf-8")
    print(f"{len(entities)} entities in {args.to}")


def make_entities(kb: KB) -> list[dict[str, Any]]:
    """Return items and properties as Wikidata writes them."""
    facts = kb.query(
        "SELECT s.key, r.key, o.key FROM triples t JOIN entities s ON s.id = t.subject "
        "JOIN entities o ON o.id = t.object JOIN relations r ON r.id = t.relation "
        "WHERE t.lang = 'en' ORDER BY ALL"
    ).fetchall()
    capitals = {a: b for a, r, b in facts if r == "relation/capital"}
    items = _items(capitals)
    claims: dict[str, list[tuple[str, str]]] = {item: [] for item in items.values()}
    for subject, relation, object_ in facts:
        if relation in RELATIONS and subject in items and object_ in items:
            claims[items[subject]].append((RELATIONS[relation], items[object_]))
    # Five in six capitals say what they are the capital of.
    for number, (country, capital) in enumerate(sorted(capitals.items())):
        if country in items and number % 6:
            claims[items[capital]].append(("P1376", items[country]))
    names = _names(kb, items)
    properties = [_property(key, name) for key, name in PROPERTIES.items()]
    return properties + [_item(item, names[item], claims[item]) for item in claims]


def _items(capitals: dict[str, str]) -> dict[str, str]:
    """Return the ids of Wikidata by the keys of the world KB."""
    words = COUNTRIES.split()
    items = {}
    for code, country, capital in zip(words[::3], words[1::3], words[2::3], strict=True):
        items[f"territory/{code}"] = country
        if f"territory/{code}" in capitals:
            items[capitals[f"territory/{code}"]] = capital
    words = LANGUAGES.split()
    return items | {
        f"language/{code}": item for code, item in zip(words[::2], words[1::2], strict=True)
    }


def _names(kb: KB, items: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return the names of items by id and language; one in five has no Estonian name."""
    rows = kb.query(
        "SELECT key, lang, name FROM entities WHERE list_contains($langs, lang) ORDER BY ALL",
        {"langs": list(LABEL_LANGUAGES)},
    ).fetchall()
    names: dict[str, dict[str, str]] = {item: {} for item in items.values()}
    for key, lang, name in rows:
        if key in items and not (lang == "et" and int(items[key][1:]) % 5 == 0):
            names[items[key]][lang] = name
    return names


def _labels(names: dict[str, str]) -> dict[str, dict[str, str]]:
    return {lang: {"language": lang, "value": name} for lang, name in names.items()}


def _property(key: str, name: str) -> dict[str, Any]:
    return {"type": "property", "id": key, "labels": _labels({"en": name})}


def _item(item: str, names: dict[str, str], claims: list[tuple[str, str]]) -> dict[str, Any]:
    """Return an item with its labels and its claims, given as property and value."""
    statements: dict[str, list[dict[str, Any]]] = {}
    for relation, other in claims:
        value = {"entity-type": "item", "id": other, "numeric-id": int(other[1:])}
        snak = {
            "snaktype": "value",
            "property": relation,
            "datavalue": {"type": "wikibase-entityid", "value": value},
        }
        claim = {"mainsnak": snak, "type": "statement", "rank": "normal"}
        statements.setdefault(relation, []).append(claim)
    return {"type": "item", "id": item, "labels": _labels(names), "claims": statements}


if __name__ == "__main__":
    main()
