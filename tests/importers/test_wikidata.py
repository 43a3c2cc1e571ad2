"""Wikidata's JSON dump: what is read of it, by which rules, and that nothing breaks the reader."""

import bz2
import copy
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prixlm.importers.format import ALIAS, LABEL, NUM_SAMPLES, VARIANT, Chunk, Parsed
from prixlm.importers.wikidata import WIKIDATA

SAMPLE = Path(__file__).parents[1] / "data" / "wikidata-sample.json"
LINES = SAMPLE.read_bytes().splitlines()
NAME_COLUMNS = ("key", "lang", "name", "rank")
ENTITIES = [json.loads(line.rstrip(b",")) for line in LINES[1:-1]]

NAMES = {  # key: language: names, labels first, then those of variants and aliases
    "Q42": {
        "ru": "Дуглас Адамс 0 | Адамс, Дуглас 2",
        "ja": "ダグラス・アダムズ 0",
        "ar": "دوغلاس آدمز 0",
        "te": "డగ్లస్ ఆడమ్స్ 0",
        "th": "ดักลัส แอดัมส์ 0",
        "en": "Douglas Adams 1 | Douglas Noel Adams 2 | DNA 2",
        "de": "Douglas Adams 1",
    },
    "Q17": {
        "en": "Japan 0 | State of Japan 2 | JP 2",
        "ja": "日本 0 | 日本国 2 | にっぽん 2",
        "de": "Japan 0",
        "zh": "日本 1 | 日本國 1",
        "te": "జపాన్ 0",
        "th": "ประเทศญี่ปุ่น 0",
        "ar": "اليابان 0",
    },
    "Q1490": {
        "en": "Tokyo 0",
        "ja": "東京都 0",
        "de": "Tokio 0 | Tokio 1 | Tōkyō 2",
        "te": "టోక్యో 0",
        "th": "โตเกียว 0",
        "ar": "طوكيو 0",
    },
    "Q869": {
        "en": "Thailand 0 | Thailand 1 | Siam 2",
        "ja": "タイ王国 0",
        "ar": "تايلاند 0",
        "th": "ประเทศไทย 0 | ไทย 2 | ราชอาณาจักรไทย 2",
        "te": "థాయిలాండ్ 0",
    },
    "Q1861": {"en": "Bangkok 0", "th": "กรุงเทพมหานคร 0", "ja": "バンコク 0", "te": "బ్యాంకాక్ 0"},
    "Q1361": {"te": "హైదరాబాదు 0 | భాగ్యనగరం 2", "en": "Hyderabad 0", "ar": "حيدر آباد 0"},
    "Q79": {"ar": "مصر 0", "arz": "مصر 0", "en": "Egypt 0", "th": "ประเทศอียิปต์ 0"},
    "Q85": {"ar": "القاهرة 0", "en": "Cairo 0", "th": "ไคโร 0"},
    "Q6256": {"en": "country 0", "ja": "国 0", "te": "దేశం 0"},
    "P17": {
        "en": "country 0 | sovereign state 2",
        "de": "Staat 0",
        "ja": "国 0",
        "te": "దేశం 0",
        "th": "ประเทศ 0",
        "ar": "البلد 0",
    },
    "P31": {"en": "instance of 0 | is a 2", "ja": "分類 0", "ar": "نموذج من 0"},
    "P36": {"en": "capital 0", "ja": "首都 0", "th": "เมืองหลวง 0", "te": "రాజధాని 0"},
    "P47": {"en": "shares border with 0", "ar": "لها حدود مع 0"},
}
FACTS = [
    *[("Q42", "P31", "Q5"), ("Q42", "P27", "Q145"), ("Q17", "P31", "Q6256")],
    *[("Q17", "P36", "Q1490"), ("Q1490", "P17", "Q17"), ("Q869", "P31", "Q6256")],
    *[("Q869", "P36", "Q1861"), ("Q869", "P47", "Q819"), ("Q869", "P47", "Q836")],
    *[("Q1861", "P17", "Q869"), ("Q1361", "P17", "Q668"), ("Q79", "P31", "Q6256")],
    *[("Q79", "P36", "Q85"), ("Q85", "P17", "Q79"), ("Q6256", "P279", "Q56061")],
]


def parse(data: bytes, *langs: str, line: int = 1) -> Parsed:
    parser = WIKIDATA.parser([], 0, tuple(sorted(langs)) or None)
    return parser(Chunk(3, line, data)).check()


def parse_entity(entity: Any, *langs: str) -> Parsed:
    return parse(json.dumps(entity).encode(), *langs)


def rows(parsed: Parsed, table: str, *columns: str) -> list[tuple[Any, ...]]:
    found = [row for batch in parsed.tables.get(table, []) for row in batch.to_pylist()]
    return [tuple(row[column] for column in columns) for row in found]


def named(parsed: Parsed) -> list[tuple[Any, ...]]:
    return rows(parsed, "names", *NAME_COLUMNS) + rows(parsed, "relations", *NAME_COLUMNS)


def names_of(parsed: Parsed) -> list[tuple[Any, ...]]:
    return rows(parsed, "names", "lang", "name", "rank")


def facts_of(parsed: Parsed) -> list[tuple[Any, ...]]:
    return rows(parsed, "facts", "subject", "relation", "object")


def item(**fields: Any) -> dict[str, Any]:
    return {"type": "item", "id": "Q1", **fields}


def labels(**texts: Any) -> dict[str, Any]:
    return {code.replace("_", "-"): {"language": code, "value": x} for code, x in texts.items()}


def statement(value: Any, rank: Any = "normal", kind: str = "wikibase-entityid") -> dict[str, Any]:
    snak = {"snaktype": "value", "property": "P2", "datavalue": {"value": value, "type": kind}}
    return {"mainsnak": snak, "type": "statement", "rank": rank}


def test_the_sample_gives_exactly_the_expected_names() -> None:
    found: dict[str, dict[str, str]] = {}
    for key, lang, name, rank in named(parse(SAMPLE.read_bytes())):
        mine = found.setdefault(key, {})
        mine[lang] = f"{mine[lang]} | {name} {rank}" if lang in mine else f"{name} {rank}"
    assert found == NAMES


def test_the_sample_gives_exactly_the_expected_facts() -> None:
    parsed = parse(SAMPLE.read_bytes())
    assert facts_of(parsed) == FACTS
    assert set(rows(parsed, "facts", "lang", "split")) == {(None, "train")}


def test_the_sample_accounts_for_every_row_that_gives_nothing() -> None:
    parsed = parse(SAMPLE.read_bytes())
    assert parsed.read == 120
    assert parsed.rejected == Counter(
        {"object is a literal": 6, "unknown language code": 2, "empty name": 1}
    )
    assert parsed.filtered == Counter(
        {
            "array bracket or blank line": 2,
            "description of a property": 1,
            "entity without labels or statements": 1,
            "name for all languages (mul)": 1,
            "no value": 2,
            "not an item or property": 1,
            "not of best rank": 3,
            "object is not an item": 1,
            "statement about a property": 3,
        }
    )


def test_rows_and_rejects_carry_their_line() -> None:
    parsed = parse(b"\n".join(LINES[7:9]) + b"\n", line=8)
    assert set(rows(parsed, "names", "key", "line")) == {("Q79", 8), ("Q85", 9)}
    assert rows(parsed, "facts", "object", "line") == [("Q6256", 8), ("Q85", 8), ("Q79", 9)]
    assert [(x.source, x.line) for x in parsed.samples] == [(3, 9)]
    assert "Q85" in parsed.samples[0].text


def test_any_cut_into_chunks_gives_the_same_rows() -> None:
    whole = parse(SAMPLE.read_bytes())
    parts = [parse(text + b"\n", line=line) for line, text in enumerate(LINES, 1)]
    for table, columns in (("names", (*NAME_COLUMNS, "line")), ("facts", ("subject", "line"))):
        assert rows(whole, table, *columns) == [x for p in parts for x in rows(p, table, *columns)]
    assert whole.read == sum(part.read for part in parts)


def test_only_asked_languages_are_named_and_facts_do_not_depend_on_them() -> None:
    parsed = parse(SAMPLE.read_bytes(), "te", "th")
    assert {lang for lang, _, _ in names_of(parsed)} == {"te", "th"}
    assert ("th", "ราชอาณาจักรไทย", ALIAS) in names_of(parsed)
    assert facts_of(parsed) == FACTS
    asked = [text for by in NAMES.values() for lang, text in by.items() if lang in ("te", "th")]
    assert len(named(parsed)) == sum(text.count("|") + 1 for text in asked)
    assert parsed.filtered["language not asked for"] > 0


def test_a_variant_of_a_language_ranks_below_its_own_label() -> None:
    entity = item(labels=labels(zh_hans="汉", zh="漢", de_at="Paradeiser", nb="by", xx_bad="?"))
    parsed = parse_entity(entity)
    expected = [("zh", "汉", VARIANT), ("zh", "漢", LABEL), ("de", "Paradeiser", VARIANT)]
    assert names_of(parsed) == [*expected, ("no", "by", VARIANT)]
    assert parsed.rejected == Counter({"unknown language code": 1})


def test_an_alias_in_a_variant_is_an_alias() -> None:
    entity = item(aliases={"de-at": [{"language": "de-at", "value": "Jänner"}]})
    assert names_of(parse_entity(entity)) == [("de", "Jänner", ALIAS)]


def test_mul_names_the_asked_languages_of_its_script_that_have_no_label() -> None:
    entity = item(labels=labels(mul="Ada", fr="Adèle", de_at="Adi", te="అడా"))
    parsed = parse_entity(entity, "de", "en", "fi", "fr", "ru", "te")
    assert names_of(parsed)[-2:] == [("en", "Ada", VARIANT), ("fi", "Ada", VARIANT)]
    assert parsed.read == 5  # four labels, one of which became two rows


def test_mul_names_a_language_whose_own_label_is_empty() -> None:
    parsed = parse_entity(item(labels=labels(en=" ", mul="Ada")), "en")
    assert names_of(parsed) == [("en", "Ada", VARIANT)]
    assert parsed.rejected == Counter({"empty name": 1})


def test_mul_names_the_described_languages_when_all_are_asked() -> None:
    entity = item(labels=labels(mul="Ada"), descriptions=labels(en="a", en_gb="b", ru="c", fi="d"))
    assert names_of(parse_entity(entity)) == [("en", "Ada", VARIANT), ("fi", "Ada", VARIANT)]


@pytest.mark.parametrize("text", ["Ada", "1984", "♣"])
def test_mul_that_no_language_takes_is_filtered(text: str) -> None:
    for langs in ((), ("ru",), ("xal", "ru")):
        parsed = parse_entity(item(labels=labels(mul=text), descriptions=[]), *langs)
        assert (parsed.read, parsed.num_staged()) == (1, 0)
        assert parsed.filtered == Counter({"name for all languages (mul)": 1})


def test_mul_that_is_not_a_name_is_rejected_once() -> None:
    for text, reason in (("\n", "empty name"), (7, "malformed name")):
        parsed = parse_entity(item(labels=labels(mul=text)), "en", "fi")
        assert (parsed.read, parsed.rejected) == (1, Counter({reason: 1}))


def test_names_are_one_stripped_line_and_keep_their_joiners() -> None:
    entity = item(
        labels=labels(en="\tNew\r\nYork \u2028", fa="می\u200cخواهم", fr="a  b", de="\x00")
    )
    parsed = parse_entity(entity)
    expected = [("en", "New York", LABEL), ("fa", "می\u200cخواهم", LABEL), ("fr", "a  b", LABEL)]
    assert names_of(parsed) == expected
    assert parsed.rejected == Counter({"empty name": 1})


def test_property_names_are_staged_and_their_statements_are_not() -> None:
    parsed = parse(LINES[11])
    assert ("P17", "te", "దేశం") in rows(parsed, "relations", "key", "lang", "name")
    assert facts_of(parsed) == []
    assert parsed.filtered["statement about a property"] == 2


@pytest.mark.parametrize(
    ("ranks", "kept"),
    [
        (["normal", "normal"], ["Q10", "Q11"]),
        (["normal", "preferred", "preferred"], ["Q11", "Q12"]),
        (["deprecated", "normal"], ["Q11"]),
        (["deprecated"], []),
        (["preferred", "deprecated"], ["Q10"]),
    ],
)
def test_only_statements_of_best_rank_are_facts(ranks: list[str], kept: list[str]) -> None:
    group = [statement({"id": f"Q{10 + i}"}, rank) for i, rank in enumerate(ranks)]
    parsed = parse_entity(item(claims={"P2": group}))
    assert [object_ for _, _, object_ in facts_of(parsed)] == kept
    assert parsed.filtered["not of best rank"] == len(ranks) - len(kept)


def test_a_preferred_unknown_value_hides_the_normal_ones() -> None:
    unknown = statement(None, "preferred")
    unknown["mainsnak"] = {"snaktype": "somevalue", "property": "P2"}
    parsed = parse_entity(item(claims={"P2": [statement({"id": "Q5"}), unknown]}))
    assert parsed.filtered == Counter({"not of best rank": 1, "no value": 1})


def test_the_best_rank_is_chosen_for_each_property_apart() -> None:
    other = statement({"id": "Q6"}, "preferred")
    other["mainsnak"]["property"] = "P3"
    parsed = parse_entity(item(claims={"P2": [statement({"id": "Q5"})], "P3": [other]}))
    assert facts_of(parsed) == [("Q1", "P2", "Q5"), ("Q1", "P3", "Q6")]


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        ({"entity-type": "item", "numeric-id": 7}, "Q7"),
        ({"entity-type": "item", "numeric-id": 8, "id": "Q7"}, "Q7"),
        ({"entity-type": "property", "numeric-id": 7}, "object is not an item"),
        ({"entity-type": "form", "id": "L7-F2"}, "object is not an item"),
        ({"entity-type": "item", "numeric-id": -7}, "malformed statement"),
        ({"id": None}, "malformed statement"),
        ({"id": "Q7\n"}, "malformed statement"),
        ({}, "malformed statement"),
        ("id", "malformed statement"),
        (None, "malformed statement"),
    ],
)
def test_an_object_is_an_item_by_its_id_or_else_its_number(value: Any, outcome: str) -> None:
    parsed = parse_entity(item(claims={"P2": [statement(value)]}))
    found = [object_ for _, _, object_ in facts_of(parsed)]
    assert [*found, *parsed.rejected, *parsed.filtered] == [outcome]


def test_literals_beyond_the_samples_are_still_counted() -> None:
    group = [statement("x", kind="string")] * (NUM_SAMPLES + 20)
    parsed = parse_entity(item(claims={"P2": group}))
    assert parsed.rejected == Counter({"object is a literal": NUM_SAMPLES + 20})
    assert len(parsed.samples) == NUM_SAMPLES
    assert parsed.samples[0].text == "Q1 P2: string"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"type":"item","id":"Q1"', "malformed JSON"),
        (b'{"type":"item","id":"Q1","labels":{"en":{"value":"\\ud800"}}}', "malformed JSON"),
        (b'{"type":"item","id":"Q1","labels":{"en":{"value":"\xff"}}}', "invalid UTF-8"),
        (b"[" * 5000, "malformed JSON"),
        (b"[[]]", "malformed entity"),
        (b"null", "malformed entity"),
        (b'{"type":"item"}', "malformed entity"),
        (b'{"id":"Q1","labels":{"en":{"value":"x"}}}', "malformed entity"),
        (b'{"type":"item","id":"P1"}', "malformed entity"),
        (b'{"type":"property","id":"Q1"}', "malformed entity"),
        (b'{"type":["item"],"id":"Q1"}', "malformed entity"),
        (b'{"type":"item","id":42}', "malformed entity"),
        (b'{"type":"item","id":"Q1","labels":null}', "malformed entity"),
        (b'{"type":"item","id":"Q1","aliases":["x"]}', "malformed entity"),
        (b'{"type":"item","id":"Q1","claims":"P31"}', "malformed entity"),
        (b'{"type":"item","id":"Q1","labels":{"en":"x"}}', "malformed name"),
        (b'{"type":"item","id":"Q1","labels":{"en":{"value":5}}}', "malformed name"),
        (b'{"type":"item","id":"Q1","aliases":{"en":{"value":"x"}}}', "malformed name"),
        (b'{"type":"item","id":"Q1","labels":{"":{"value":"x"}}}', "unknown language code"),
        (b'{"type":"item","id":"Q1","claims":{"P31":{}}}', "malformed statement"),
        (b'{"type":"item","id":"Q1","claims":{"31":[]}}', "malformed statement"),
        (b'{"type":"item","id":"Q1","claims":{"P31":[null]}}', "malformed statement"),
        (b'{"type":"item","id":"Q1","claims":{"P31":[{"rank":[]}]}}', "malformed statement"),
    ],
)
def test_a_bad_line_is_one_rejected_row_with_its_reason(line: bytes, reason: str) -> None:
    parsed = parse(line + b",\n", line=812)
    assert (parsed.read, parsed.rejected) == (1, Counter({reason: 1}))
    assert [(x.reason, x.line) for x in parsed.samples] == [(reason, 812)]


def test_a_bad_part_does_not_take_the_good_ones_with_it() -> None:
    entity = item(
        labels=labels(en="x", fr=5), aliases=7, claims={"P2": [3, statement({"id": "Q5"})]}
    )
    parsed = parse_entity(entity)
    assert (names_of(parsed), facts_of(parsed)) == ([("en", "x", LABEL)], [("Q1", "P2", "Q5")])
    reasons = ("malformed name", "malformed entity", "malformed statement")
    assert parsed.rejected == Counter(reasons)


def test_nesting_too_deep_to_show_is_rejected_too() -> None:
    deep = b'{"type":"item","id":"Q1","labels":{"en":' + b"[" * 900 + b"]" * 900 + b"}}"
    assert parse(deep).rejected == Counter({"malformed name": 1})


@pytest.mark.parametrize("data", [b"[\n", b"]", b"\n", b" \r\n", b",\n", b"[\r\n"])
def test_brackets_and_blank_lines_are_filtered(data: bytes) -> None:
    assert parse(data).filtered == Counter({"array bracket or blank line": 1})


def test_a_parser_can_be_sent_to_another_process() -> None:
    parser = WIKIDATA.parser([], 0, ("en",))
    assert copy.deepcopy(parser) == parser


def test_the_format_is_recognised_by_its_first_entity(tmp_path: Path) -> None:
    data = SAMPLE.read_bytes()
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(data))
    (tmp_path / "a.json.bz2").write_bytes(bz2.compress(data))
    (tmp_path / "a.ndjson").write_bytes(LINES[1].rstrip(b","))
    for name in ("a.json.gz", "a.json.bz2", "a.ndjson"):
        assert WIKIDATA.recognises(tmp_path / name), name
    others = {"a.txt": data, "b.json": b'{"id": 1}', "c.json": b"[\n1,\n2\n]", "d.json": b""}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
        assert not WIKIDATA.recognises(tmp_path / name), name
    assert not WIKIDATA.recognises(tmp_path)


def test_a_compressed_dump_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "latest-all.json.bz2"
    path.write_bytes(bz2.compress(SAMPLE.read_bytes()))
    sources = WIKIDATA.sources([path])
    assert [source.name for source in sources] == ["latest-all.json.bz2"]
    parser = WIKIDATA.parser(sources, 0, None)
    chunks = list(WIKIDATA.chunks(sources[0], 0))
    assert [fact for chunk in chunks for fact in facts_of(parser(chunk).check())] == FACTS


LEAVES = (st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False)) | (
    st.text(max_size=8) | st.sampled_from(["Q5", "P31", "mul", "en", "preferred", "value", "id"])
)
VALUES = st.recursive(
    LEAVES,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3),
    max_leaves=6,
)
LANGS = st.sampled_from([(), ("en",), ("de", "en", "fi", "ja", "te", "zh")])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key or index) inside `value`."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    inner = [value[key] for key in keys if isinstance(value[key], dict | list)]
    return found + [place for child in inner for place in places(child)]


@given(st.sampled_from(ENTITIES), st.data(), LANGS)
def test_swapped_values_never_break_the_sums(
    entity: Any, data: st.DataObject, langs: tuple[str, ...]
) -> None:
    entity = copy.deepcopy(entity)
    for _ in range(data.draw(st.integers(1, 4))):
        if found := places(entity):
            container, key = found[data.draw(st.integers(0, len(found) - 1))]
            container[key] = data.draw(VALUES)
    parse(orjson.dumps(entity), *langs)


@given(st.sampled_from(LINES), st.data(), LANGS)
def test_flipped_and_cut_bytes_never_break_the_sums(
    line: bytes, data: st.DataObject, langs: tuple[str, ...]
) -> None:
    text = bytearray(line)
    for _ in range(data.draw(st.integers(0, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    start, end = (data.draw(st.integers(0, len(text))) for _ in range(2))
    cut = data.draw(st.sampled_from([text, text[start:end], text[:start] + text[end:]]))
    parse(bytes(cut), *langs)


@given(st.binary(max_size=200))
def test_garbage_never_breaks_the_sums(data: bytes) -> None:
    assert parse(data).read == data.removesuffix(b"\n").count(b"\n") + 1
