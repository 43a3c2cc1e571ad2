"""What parsers yield: rows that add up, clean names, and names made from keys."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prixlm.importers.format import (
    NUM_SAMPLES,
    Account,
    Parsed,
    Reject,
    as_sample,
    clean_names,
    file_sources,
    map_unique,
    name_from_key,
)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("http://dbpedia.org/ontology/birthPlace", "birth place"),
        ("http://dbpedia.org/property/nfcchampion", "nfcchampion"),
        ("http://example.org/vocab#isPartOf", "is part of"),
        ("http://dbpedia.org/ontology/isoCodeURL", "iso code URL"),
        ("http://dbpedia.org/ontology/FIFAWorldCup", "FIFA world cup"),
        ("http://ja.dbpedia.org/property/%E5%90%8D%E5%89%8D", "名前"),
        ("http://example.org/has_part/", "has part"),
        ("http://example.org/p/population2010", "population2010"),
        ("http://example.org/%1B%5D0%3Bx%07/p%1B%5B31m%0A", "p [31m"),
        ("P31", "P31"),
        ("Birth Place", "Birth Place"),
    ],
)
def test_the_last_part_of_a_key_is_its_name(key: str, name: str) -> None:
    assert name_from_key(key) == name


def stage_links(parsed: Parsed, number: int) -> None:
    keys = [f"a{i}" for i in range(number)]
    parsed.stage("links", a=keys, b=pa.chunked_array([keys]), line=range(number))


def test_rows_that_are_staged_rejected_or_filtered_add_up() -> None:
    parsed = Parsed(3, read=7)
    stage_links(parsed, 2)
    parsed.reject("malformed line", 5, b"a\tb\xff")
    parsed.filter("language not asked for", 4)
    parsed.filter("nothing", 0)
    assert parsed.check() is parsed and parsed.num_staged() == 2
    assert parsed.samples == [Reject("malformed line", 3, 5, "a\\tb\\xff")]
    assert parsed.filtered == Counter({"language not asked for": 4})
    parsed.read += 1
    with pytest.raises(AssertionError, match="read 8 rows, but 7 are accounted for"):
        parsed.check()


def test_an_empty_table_is_not_staged() -> None:
    parsed = Parsed(0)
    stage_links(parsed, 0)
    assert parsed.tables == {}


def test_only_the_first_rejects_of_a_reason_are_sampled() -> None:
    parsed = Parsed(0)
    bad = np.ones(NUM_SAMPLES + 5, bool)
    bad[0] = False
    parsed.reject_rows("empty name", bad, np.arange(len(bad)) + 1, str)
    parsed.reject("empty name", 999, "x")
    assert parsed.rejected["empty name"] == NUM_SAMPLES + 5
    assert len(parsed.samples) == NUM_SAMPLES
    assert parsed.samples[0] == Reject("empty name", 0, 2, "1")


def test_an_account_adds_parts_up_and_shows_no_zeros() -> None:
    account = Account()
    for _ in range(2):
        account.add(3, Counter(bad=1), Counter(other=0), [Reject("bad", 0, 1, "x")])
    with pytest.raises(AssertionError, match="read 6 rows"):
        account.check()
    account.imported["facts"] += 4
    account.check()
    assert account.as_dict() == {
        "read": 6,
        "imported": {"facts": 4},
        "rejected": {"bad": 2},
        "filtered": {},
    }
    assert len(account.samples) == 2


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("  New\t\nYork ", "New York"),
        ("a\x00b\x85c\u2028d", "a b c d"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\u00a0", ""),
        (None, None),
    ],
)
def test_names_are_on_one_line(raw: str | None, clean: str | None) -> None:
    assert clean_names(pa.array([raw], pa.string())).to_pylist() == [clean]


@given(st.text())
def test_clean_names_stay_clean(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    once = clean_names(pa.array([text], pa.string()))
    assert clean_names(once) == once


def test_a_function_is_called_once_for_each_distinct_string() -> None:
    calls = []

    def upper(text: str) -> str | None:
        calls.append(text)
        return text.upper() if text != "b" else None

    found = map_unique(pa.array(["a", "b", None, "a", "a"]), upper)
    assert found.to_pylist() == ["A", None, None, "A", "A"] and calls == ["a", "b"]


def test_samples_are_printable_and_short() -> None:
    assert as_sample("tab\tä\x1b\u2028") == "tab\\tä\\x1b\\u2028"
    assert as_sample(b"\xff" + b"x" * 5000).startswith("\\xffxxx")
    assert len(as_sample("x" * 5000)) == 301


def test_most_formats_read_each_file_as_a_source() -> None:
    [source] = file_sources([Path("dumps/a.json")])
    assert (source.path, source.name, source.role) == (Path("dumps/a.json"), "a.json", "")


def test_the_keys_and_names_of_relations_are_put_on_one_line() -> None:
    parsed = Parsed(0, read=5)
    facts = {"subject": ["a"] * 3, "object": ["b"] * 3, "lang": ["en"] * 3, "split": ["train"] * 3}
    keys = ["cap\x1b]0;x\x07ital", "plain", "\x1b\n"]
    parsed.stage("facts", **facts, relation=keys, line=[1, 2, 3])
    names = {"key": ["p\tq", "plain"], "lang": [None, "en"], "name": [None, "a\u2028b"]}
    parsed.stage("relations", **names, rank=np.zeros(2, np.int8), line=[4, 5])
    parsed.clean_relations()
    parsed.check()
    (facts_left,), (relations,) = parsed.tables["facts"], parsed.tables["relations"]
    assert facts_left.column("relation").to_pylist() == ["cap ]0;x ital", "plain"]
    assert relations.column("key").to_pylist() == ["p q", "plain"]
    assert relations.column("name").to_pylist() == [None, "a b"]
    assert parsed.samples == [Reject("empty name", 0, 3, "\\x1b\\n")]
