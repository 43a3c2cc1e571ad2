"""The look-up: the same answers as the KB itself, from mapped columns."""

import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.models import WordLevel

from prixlm import KB, import_kb
from prixlm.kb import lookup
from prixlm.kb.lookup import _fair_shares, build_lookup
from prixlm.lm import token_cache

AWKWARD = ("z", "Ω", "ﬀ", "😀", "é", "zz", "a")
"""Keys whose order by bytes differs from other orders."""


def test_every_entity_is_as_in_the_kb(world: KB) -> None:
    lookup = build_lookup(world)
    for entity in world.entities(range(0, world.num_entities, 37)):
        assert lookup.entity(entity.id) == entity
        assert lookup.aliases(entity.id) == world.aliases(entity.id)
        assert lookup.find_key(entity.key) == [found.id for found in world.find_key(entity.key)]
        assert lookup.find_key(entity.key, [entity.lang]) == [entity.id]
        assert entity.id in lookup.entities_of(entity.concept)
    assert lookup.find_key("no such key") == lookup.find_key("") == []


def test_concepts_hold_each_entity_once(shared_toy: KB) -> None:
    lookup = build_lookup(shared_toy)
    groups = [lookup.entities_of(concept) for concept in range(lookup.num_concepts)]
    assert sorted(entity for group in groups for entity in group) == list(
        range(shared_toy.num_entities)
    )
    assert all(group == sorted(group) for group in groups)


@pytest.mark.parametrize("name", ["shared_toy", "world"])
def test_facts_in_both_directions_are_those_of_the_table(
    name: str, request: pytest.FixtureRequest
) -> None:
    kb: KB = request.getfixturevalue(name)
    lookup = build_lookup(kb)
    facts = kb.query("SELECT subject, relation, object FROM triples").fetchall()
    assert lookup.num_facts == len(facts)
    for entity in range(0, kb.num_entities, max(1, kb.num_entities // 50)):
        of, to = lookup.facts_of([entity]), lookup.facts_to([entity])
        found_of = sorted(zip(of.subject, of.relation, of.object, strict=True))
        found_to = sorted(zip(to.subject, to.relation, to.object, strict=True))
        assert found_of == sorted(fact for fact in facts if fact[0] == entity)
        assert found_to == sorted(fact for fact in facts if fact[2] == entity)
        assert lookup.num_facts_of([entity]) == len(of) + len(to)
        assert len(lookup.facts_of([entity], most=1)) == min(1, len(of))


def test_facts_of_many_entities_are_limited_in_all(
    shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = build_lookup(shared_toy)
    every = range(shared_toy.num_entities)
    whole = lookup.facts_of(every)
    assert len(lookup.facts_of(every, most=100)) == len(whole), "65,536 at most, as there are few"
    for most in range(1, len(whole) + 2):
        monkeypatch.setattr("prixlm.kb.lookup._MOST_FACTS", most)
        for facts in (lookup.facts_of(every, most=1), lookup.facts_to(every, most=1)):
            assert len(facts) <= most


@given(st.lists(st.integers(0, 20), max_size=20), st.integers(0, 60))
def test_shares_are_fair(counts: list[int], most: int) -> None:
    shares = _fair_shares(np.array(counts, int), most)
    assert shares.sum() == min(most, sum(counts)) and (shares <= counts).all()
    cut = [share for share, count in zip(shares.tolist(), counts, strict=True) if share < count]
    assert all(shares.max() <= share + 1 for share in cut), "nobody has two more than one cut"


def test_relations_are_found_by_key_and_by_a_name_in_any_language(world: KB) -> None:
    lookup = build_lookup(world)
    for number, key in enumerate(world.relation_keys()):
        assert lookup.find_relation(key) == number
        for lang in ("en", "te"):
            name, of_lang = lookup.relation_name(number, [lang])
            assert name == world.relation_names(lang)[number] and of_lang in (lang, "en")
            assert lookup.find_relation(name) is not None
    assert lookup.find_relation("no such relation") is None


def test_keys_of_all_scripts_are_found_by_bisection(tmp_path: Path) -> None:
    labels = "http://www.w3.org/2000/01/rdf-schema#label"
    keys = [f"http://e.org/{key}" for key in AWKWARD]
    lines = [f'<{key}> <{labels}> "{n}"@en .\n' for n, key in enumerate(keys)]
    lines += [f"<{keys[0]}> <http://e.org/r> <{key}> .\n" for key in keys]
    (tmp_path / "a.nt").write_text("".join(lines), "utf-8")
    kb = import_kb([tmp_path / "a.nt"], tmp_path / "kb")
    lookup = build_lookup(kb)
    for key in keys:
        [entity] = lookup.find_key(key)
        assert lookup.key(entity) == key


def test_a_key_of_two_concepts_is_not_clear(toy: KB) -> None:
    """The toy KB has no such key, so one is made: the same key in two languages, unlinked."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(toy.path("entities"))
    keys = table["key"].to_pylist()
    [paris] = [e.id for e in toy.find("Paris", "en")]
    [other] = [e.id for e in toy.find("ఫిన్లాండ్", "te")]
    keys[other] = keys[paris]
    place = table.schema.get_field_index("key")
    pq.write_table(table.set_column(place, "key", pa.array(keys)), toy.path("entities"))
    lookup = build_lookup(KB(toy.folder))
    assert np.flatnonzero(~lookup.has_clear_key).tolist() == sorted([paris, other])


def test_a_changed_kb_gets_a_new_lookup(toy_files: list[Path], tmp_path: Path) -> None:
    kb = import_kb(toy_files, tmp_path / "kb")
    before = build_lookup(kb)
    assert (kb.folder / "lookup" / "stamp.json").is_file()
    with toy_files[0].open("a", encoding="utf-8") as file:
        file.write("en\tEstonia\tcapital\tTallinn\n")
    after = build_lookup(import_kb(toy_files, tmp_path / "kb2"))
    shutil.copytree(kb.folder / "lookup", tmp_path / "kb2" / "lookup", dirs_exist_ok=True)
    again = build_lookup(KB(tmp_path / "kb2"))  # the copied files are of another KB
    assert after.num_facts == again.num_facts == before.num_facts + 1


def test_a_kb_on_a_read_only_disk_has_its_lookup_in_the_cache(
    toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lookup = build_lookup(toy)
    assert lookup.folder.is_relative_to(tmp_path / "cache")
    assert not (toy.folder / "lookup").exists()
    assert lookup.num_facts == toy.num_triples()


def test_a_lookup_that_was_built_before_the_disk_became_read_only_is_used(
    toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build_lookup(toy)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert build_lookup(toy).folder == built.folder
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", ["cut", "lacking", "empty"])
def test_a_damaged_lookup_is_built_again(toy: KB, damage: str) -> None:
    """A text that was cut is still a file that can be mapped: its size tells."""
    whole = build_lookup(toy)
    names = [whole.name(entity) for entity in range(toy.num_entities)]
    files = sorted(path for path in whole.folder.iterdir() if path.stat().st_size > 1)
    assert len(files) > 8
    for path in files:
        if damage == "lacking":
            path.unlink()
        else:
            os.truncate(path, 0 if damage == "empty" else path.stat().st_size - 1)
        again = build_lookup(toy)
        assert [again.name(entity) for entity in range(toy.num_entities)] == names, path.name


@pytest.mark.parametrize("size", [None, 3])
def test_a_lookup_that_lacks_a_file_is_built_again(toy: KB, size: int | None) -> None:
    column = build_lookup(toy).folder / "concept"
    if size is None:
        column.unlink()
    else:
        os.truncate(column, size)
    assert len(build_lookup(toy).concept) == toy.num_entities


@pytest.mark.parametrize("cache", ["lookup", "tokens"])
def test_workers_that_find_no_cache_build_it_once(
    toy_files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    """The one that is late waits, and opens what the other has built."""
    kb = import_kb(toy_files, tmp_path / "kb")
    built, both = [], threading.Barrier(3)
    module, name = {
        "lookup": (lookup, "_write_texts"),
        "tokens": (token_cache, "_write_tokens"),
    }[cache]
    write = getattr(module, name)

    def slowly(*args: object) -> None:
        built.append(cache)
        time.sleep(0.3)
        write(*args)

    def build() -> None:
        both.wait()
        if cache == "lookup":
            build_lookup(KB(kb.folder))
        else:
            tokenizer = token_cache.Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
            token_cache.build_tokens(KB(kb.folder), tokenizer)
        built.append("opened")

    monkeypatch.setattr(module, name, slowly)
    threads = [threading.Thread(target=build) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [cache, "opened", "opened", "opened"]
    assert not list(kb.folder.rglob("*.partial"))
