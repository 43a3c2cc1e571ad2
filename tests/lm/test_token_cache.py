"""Token caches: every name once, gathered by arrays, built again only if out of date."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from prixlm import KB, import_kb
from prixlm.files import locked
from prixlm.lm import token_cache as module
from prixlm.lm.token_cache import (
    Ragged,
    build_tokens,
    encode_names,
    object_reading,
    tokenizer_hash,
)
from prixlm.romanise import READINGS, read_names


def test_every_name_has_the_ids_that_the_tokenizer_gives_it(
    world: KB, tokenizers: dict[str, Tokenizer]
) -> None:
    tokenizer = tokenizers["xlmr"]
    cache = build_tokens(world, tokenizer)
    assert len(cache.entities) == world.num_entities
    for entity in world.entities(range(0, world.num_entities, 997)):
        expected = tokenizer.encode(entity.name, add_special_tokens=False).ids
        assert cache.entities.row(entity.id).tolist() == expected
    for index, lang in enumerate(world.languages):
        for relation, name in enumerate(world.relation_names(lang)):
            row = cache.relations.row(index * world.num_relations + relation)
            assert row.tolist() == tokenizer.encode(name, add_special_tokens=False).ids


def test_each_reading_has_a_cache_of_its_own(
    toy: KB, tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizers["xlmr"]
    caches = {reading: build_tokens(toy, tokenizer, reading=reading) for reading in READINGS}
    assert len({cache.folder for cache in caches.values()}) == 3
    for entity in toy.entities(range(toy.num_entities)):
        for reading, cache in caches.items():
            asked, answer = (
                encode_names(tokenizer, read_names([entity.name], how, entity.lang))[0]
                for how in (reading, object_reading(reading))
            )
            assert cache.subjects.row(entity.id).tolist() == asked
            assert cache.entities.row(entity.id).tolist() == answer
    # Another romanisation makes another cache in its place.
    stamp = caches["romanised"].folder / "stamp.json"
    before = stamp.read_text()
    monkeypatch.setattr(module, "reading_version", lambda: "another")
    build_tokens(toy, tokenizer, reading="romanised")
    assert "another" in stamp.read_text() != before


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=20), st.data())
def test_rows_are_gathered_as_a_loop_would_gather_them(
    rows: list[list[int]], data: st.DataObject
) -> None:
    lengths = [len(row) for row in rows]
    ragged = Ragged(np.cumsum([0, *lengths]), np.array([x for row in rows for x in row], np.int32))
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=30))
    ids, counts = ragged.take(np.array(chosen, int))
    assert ids.tolist() == [token for row in chosen for token in rows[row]]
    assert counts.tolist() == [lengths[row] for row in chosen]


def test_a_cache_is_built_again_only_if_it_is_out_of_date(
    toy: KB,
    toy_files: list[Path],
    tokenizers: dict[str, Tokenizer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    real = module.encode_names
    monkeypatch.setattr(module, "encode_names", lambda *a: calls.append(1) or real(*a))
    xlmr, mbert = tokenizers["xlmr"], tokenizers["mbert"]
    build_tokens(toy, xlmr)
    first = len(calls)
    build_tokens(toy, xlmr)
    assert len(calls) == first > 0
    build_tokens(toy, mbert)
    assert len(calls) == 2 * first
    again = import_kb(toy_files, toy.folder, langs=["en", "fi"], overwrite=True)
    assert len(build_tokens(again, xlmr).entities) == again.num_entities
    assert len(calls) > 2 * first


def test_a_half_built_cache_is_not_used(toy: KB, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["xlmr"]
    build_tokens(toy, tokenizer)
    folder = toy.folder / "tokens" / tokenizer_hash(tokenizer)[:16]
    stamp = json.loads((folder / "stamp.json").read_text())
    (folder / "stamp.json").unlink()
    (folder / "entities.ids").write_bytes(b"")
    cache = build_tokens(toy, tokenizer)
    assert json.loads((folder / "stamp.json").read_text()) == stamp
    assert len(cache.entities.ids) == cache.entities.offsets[-1] > 0


def test_a_name_that_spells_a_special_token_is_text(tokenizers: dict[str, Tokenizer]) -> None:
    for name, tokenizer in tokenizers.items():
        special = "</s>" if name == "xlmr" else "[SEP]"
        ids, plain = encode_names(tokenizer, [f"a {special}b", "Finland"])
        assert tokenizer.token_to_id(special) not in ids and len(ids) > 2
        assert plain == tokenizer.encode("Finland", add_special_tokens=False).ids
        assert not tokenizer.encode_special_tokens


def test_old_caches_of_other_tokenizers_are_dropped(
    toy: KB, tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CACHES", 2)
    variants = [Tokenizer.from_str(tokenizers["xlmr"].to_str()) for _ in range(3)]
    for variant, tokenizer in enumerate(variants):
        tokenizer.add_tokens([f"new{variant}"])
    folders = [toy.folder / "tokens" / tokenizer_hash(t)[:16] for t in variants]
    for tokenizer, folder, when in zip(variants[:2], folders, (1000, 2000), strict=False):
        build_tokens(toy, tokenizer)
        os.utime(folder / "stamp.json", (when, when))
    build_tokens(toy, variants[0])  # the older one is used again
    build_tokens(toy, variants[2])
    assert [folder.exists() for folder in folders] == [True, False, True]


def test_half_built_caches_of_killed_runs_are_removed(
    toy: KB, tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = time.time() + 1e6  # of the machine whose disk this is
    monkeypatch.setattr(time, "time", lambda: ahead)
    old, recent, building = (toy.folder / "tokens" / f"{n}.partial" for n in ("old", "new", "now"))
    for folder in (old, recent, building):
        folder.mkdir(parents=True)
        (folder / "entities.ids").write_bytes(b"half")
    with locked(building):
        for folder in (old, building):
            os.utime(folder, (1000, 1000))
        build_tokens(toy, tokenizers["xlmr"])
    assert [folder.exists() for folder in (old, recent, building)] == [False, True, True]
