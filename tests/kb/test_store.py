"""The KB folder: streaming, look-ups in both directions, and folders that are refused."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import KB, Entity, PrixError, SplitConfig, import_kb, split_kb
from prixlm.kb.store import SCHEMAS, quote_texts, rechunk


def test_ids_are_row_numbers_and_languages_are_ranges(toy: KB) -> None:
    entities = toy.entities(range(toy.num_entities))
    assert [e.id for e in entities] == list(range(toy.num_entities))
    for lang in toy.languages:
        assert {entities[i].lang for i in toy.entity_range(lang)} == {lang}
    assert sum(len(toy.entity_range(lang)) for lang in toy.languages) == toy.num_entities


def test_names_are_found_and_ids_are_named_in_the_asked_order(toy: KB) -> None:
    (suomi,) = toy.find("Suomi")
    (finland,) = toy.find("フィンランド", "ja")
    assert toy.names([finland.id, suomi.id, finland.id]) == [
        "フィンランド",
        "Suomi",
        "フィンランド",
    ]
    assert toy.find("Suomi", "en") == [] == toy.find("Nowhere")
    assert [e.lang for e in toy.find("Helsinki")] == ["en", "fi"]
    assert toy.find_key(suomi.key) == [suomi]
    assert toy.names([]) == []


def test_an_id_that_is_not_there_is_an_error(toy: KB) -> None:
    with pytest.raises(PrixError, match=f"no entity {toy.num_entities}: .* has 0 to"):
        toy.names([0, toy.num_entities])


def test_links_join_concepts_and_pairs_are_expanded_when_asked(toy: KB) -> None:
    finland = {e.concept for name in ("Finland", "Suomi", "フィンランド") for e in toy.find(name)}
    assert len(finland) == 1 == len({e.concept for e in toy.find("ఫిన్లాండ్")} | finland)
    explicit = [pair for b in toy.link_pairs(explicit=True) for pair in zip(*_ids(b), strict=True)]
    assert len(explicit) == 8 == toy.manifest.counts["links"]
    pairs = [pair for b in toy.link_pairs() for pair in zip(*_ids(b), strict=True)]
    assert len(set(pairs)) == len(pairs) == 10 + 3 + 3  # five, three and three languages
    assert set(explicit) <= set(pairs)
    only = [pair for b in toy.link_pairs(["en", "fi"]) for pair in zip(*_ids(b), strict=True)]
    assert len(only) == 3


def _ids(batch: pa.RecordBatch) -> list[list[int]]:
    return [column.to_pylist() for column in batch.columns]


def test_a_table_streams_in_batches_by_language_and_split(toy: KB) -> None:
    whole = pa.Table.from_batches(toy.batches("triples"))
    assert whole.num_rows == toy.num_triples() == 13
    small = list(toy.batches("triples", ["subject", "lang"], batch_rows=2))
    assert [b.num_rows for b in small] == [2] * 6 + [1]
    english = pa.Table.from_batches(toy.batches("triples", langs=["en"], split="train"))
    assert english.num_rows == toy.num_triples("en", "train") == 6
    assert set(english["lang"].to_pylist()) == {"en"}
    assert list(toy.batches("triples", split="test")) == []


def test_relation_names_fall_back_to_one_for_every_language(world: KB) -> None:
    assert "currency" in world.relation_names("te")
    assert len(world.relation_names("te")) == world.num_relations == len(world.relation_keys())


def test_a_language_that_is_not_there_is_an_error_that_lists_those_that_are(toy: KB) -> None:
    with pytest.raises(PrixError, match="has no language sv; it has ar, en, fi, ja, te"):
        toy.entity_range("sv")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "KB format version 99, this prixlm reads version 1"),
        ({"version": None}, "KB format version None"),
        ({"format": "other"}, "not the manifest of a KB"),
    ],
)
def test_a_folder_of_another_version_is_refused(
    toy: KB, change: dict[str, object], message: str
) -> None:
    path = toy.folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | change))
    with pytest.raises(PrixError, match=message):
        KB(toy.folder)


def test_a_folder_that_is_not_a_kb_or_lacks_a_table_is_refused(toy: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="is not a KB folder"):
        KB(tmp_path)
    toy.path("links").unlink()
    with pytest.raises(PrixError, match=r"links\.parquet is missing"):
        KB(toy.folder)
    (toy.folder / "manifest.json").write_text("{")
    with pytest.raises(PrixError, match="cannot be read"):
        KB(toy.folder)


def test_rechunk_keeps_rows_and_order() -> None:
    batches = [pa.record_batch({"x": list(range(n, n + 7))}) for n in range(0, 70, 7)]
    again = list(rechunk(iter(batches), 16))
    assert [b.num_rows for b in again] == [16, 16, 16, 16, 6]
    assert [x for b in again for x in b["x"].to_pylist()] == list(range(70))


def test_every_table_has_the_schema_that_the_docs_state(toy: KB, tmp_path: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "concepts" / "kb-folder.md").read_text("utf-8")
    split = split_kb(toy, tmp_path / "split", SplitConfig(hide_links=0.5))
    for table, schema in SCHEMAS.items():
        if table != "descriptions":  # the toy KB has none
            assert pq.read_schema(split.path(table)).names == schema.names
        assert f"`{table}.parquet`" in docs
        for name in schema.names:
            assert f"`{name}`" in docs


def test_entities_are_plain_frozen_values(toy: KB) -> None:
    (entity,) = toy.find("Suomi")
    assert entity == Entity(entity.id, "fi", "Suomi", "fi:Suomi", entity.concept)
    with pytest.raises(AttributeError):
        entity.name = "x"  # type: ignore[misc]


def test_aliases_come_after_own_names(toy: KB, tmp_path: Path) -> None:
    lines = ["Q1 label Suomi", "Q1 alias Suomen tasavalta", "Q2 label Suomen tasavalta"]
    words = {"label": "prefLabel", "alias": "altLabel"}
    text = ""
    for line in lines:
        key, kind, name = line.split(" ", 2)
        predicate = f"<http://www.w3.org/2004/02/skos/core#{words[kind]}>"
        text += f'<http://a.org/{key}> {predicate} "{name}"@fi .\n'
    (tmp_path / "names.nt").write_text(text)
    kb = import_kb([tmp_path / "names.nt"], tmp_path / "named")
    assert [entity.name for entity in kb.find("Suomen tasavalta")] == ["Suomen tasavalta", "Suomi"]
    assert kb.aliases(0) == ["Suomen tasavalta"] and kb.aliases(1) == []
    [(ids, names)] = kb.all_names()
    assert list(zip(ids.tolist(), names, strict=True)) == [
        *[(0, "Suomi"), (0, "Suomen tasavalta"), (1, "Suomen tasavalta")]
    ]


def test_all_names_can_be_of_one_language_and_begin_at_a_row(toy: KB) -> None:
    every = [name for _, names in toy.all_names(batch_rows=3) for name in names]
    assert every == toy.names(range(toy.num_entities))
    [(_, later)] = toy.all_names(start=4)
    assert later == every[4:]
    [(ids, finnish)] = toy.all_names("fi")
    own = toy.entity_range("fi")
    assert ids.tolist() == list(own) and finnish == every[own.start : own.stop]


def test_triples_are_counted_by_language_and_relation(toy: KB) -> None:
    counts = toy.relation_counts()
    assert sum(counts.values()) == toy.num_triples()
    capital = toy.relation_names("en").index("capital")
    assert counts["en", capital] == 2 and counts["te", capital] == 1
    assert toy.relation_counts("te") == {("te", capital): 1}
    assert toy.relation_counts(splits=["test"]) == {}


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads take turns as often as possible, so that a race shows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def look_up(kb: KB) -> list[Any]:
    """Every kind of look-up, in an order of its own."""
    return [
        kb.find("Suomi"),
        kb.relation_names("fi"),
        kb.names(range(kb.num_entities)),
        kb.find_key(kb.entities([3])[0].key),
        kb.relation_keys(),
        kb.aliases(0),
        kb.language_of(kb.concepts()).tolist(),
        kb.relation_counts("en"),
        [batch.to_pylist() for batch in kb.link_pairs()],
        [batch.to_pylist() for batch in kb.batches("triples", split="train", batch_rows=3)],
        [names for _, names in kb.all_names("ja")],
        kb.query("SELECT count(*) FROM triples").fetchall(),
    ]


def test_sixteen_threads_look_up_what_one_does(toy: KB, eager_threads: None) -> None:
    expected = look_up(KB(toy.folder))
    together = Barrier(16)
    for _ in range(5):
        kb = KB(toy.folder)  # not connected yet: the threads do that at once

        def ask(kb: KB = kb) -> list[Any]:
            together.wait()
            return look_up(kb)

        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(ask) for _ in range(16)]
            assert all(found.result() == expected for found in asked)


def test_texts_are_quoted_for_sql(toy: KB) -> None:
    quoted = quote_texts(["en", "it's"])
    assert quoted == "'en', 'it''s'"
    assert toy.query(f"SELECT {quoted}").fetchall() == [("en", "it's")]
