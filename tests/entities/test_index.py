"""The vector store and its indexes: against brute force, after a kill, in one language."""

import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, EngineConfig, PrixError
from prixlm.engine.jobs import made_by
from prixlm.entities import index as index_module
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import (
    NeighbourIndex,
    build_vectors,
    choose_kind,
    mean_similarity,
    repeatable_kind,
)
from prixlm.errors import Stopped


def unit(rows: int, width: int, seed: int) -> np.ndarray:
    """Random unit vectors."""
    vectors = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# --- vectors --------------------------------------------------------------------------------------


def test_the_vector_store_has_all_names_and_is_resumed_after_a_kill(
    toy: KB, encoder: EntityEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_CHUNK", 4)
    encode, sizes = encoder.encode, []

    def dying(names: list[str], langs: list[str]) -> np.ndarray:
        sizes.append(len(names))
        if len(sizes) == 3:
            raise KeyboardInterrupt
        return encode(names, langs=langs)

    monkeypatch.setattr(encoder, "encode", dying)
    with pytest.raises(KeyboardInterrupt):
        build_vectors(toy, encoder)
    store = build_vectors(toy, encoder)
    assert sizes.count(4) == (toy.num_entities // 4) + 1, "two chunks were not encoded again"
    assert not list((toy.folder / "vectors").glob("*.partial/*.f32"))
    monkeypatch.undo()
    assert store.owner.tolist() == list(range(toy.num_entities))
    np.testing.assert_allclose(
        store.vectors, encoder.encode(toy.names(range(toy.num_entities))), atol=1e-6
    )
    monkeypatch.setattr(encoder, "encode", None)  # the second time nothing is encoded
    np.testing.assert_array_equal(build_vectors(toy, encoder).vectors, store.vectors)


def test_half_a_chunk_is_encoded_again(
    toy: KB, encoder: EntityEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_CHUNK", 4)
    whole = build_vectors(toy, encoder)
    work = whole.folder.with_name(whole.folder.name + ".partial")
    vectors, owner = np.array(whole.vectors), np.array(whole.owner)
    whole.folder.rename(work)
    stamp = json.loads((work / "stamp.json").read_text())
    (work / "stamp.json").write_text(json.dumps(stamp | {"made by": made_by(None)}))
    (work / "vectors.f32").write_bytes(vectors.tobytes()[: 6 * vectors.shape[1] * 4 + 5])
    (work / "owner.i32").write_bytes(owner.tobytes()[: 5 * 4])
    again = build_vectors(toy, encoder)
    np.testing.assert_array_equal(again.vectors, vectors)
    np.testing.assert_array_equal(again.owner, owner)


def test_names_encoded_by_workers_have_the_bytes_of_one_process(
    toy: KB, encoder: EntityEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_CHUNK", 4)
    one = build_vectors(toy, encoder)
    files = {path.name: path.read_bytes() for path in one.folder.iterdir()}
    shutil.rmtree(one.folder)
    two = build_vectors(toy, encoder, engine=EngineConfig(workers=2))
    assert {path.name: path.read_bytes() for path in two.folder.iterdir()} == files


def test_the_parts_of_another_engine_or_version_are_not_resumed(
    toy: KB, encoder: EntityEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_CHUNK", 4)
    whole = build_vectors(toy, encoder)
    files = {path.name: path.read_bytes() for path in whole.folder.iterdir()}
    parts = whole.folder.with_name(whole.folder.name + ".partial")

    def stop(_: str, done: int, total: int) -> None:
        if done * 2 > total:
            raise Stopped("interrupted", 2)

    one_thread = EngineConfig(workers=1)
    for resumed in (None, one_thread):
        shutil.rmtree(whole.folder)
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            if resumed is one_thread:
                patch.setattr(index_module, "made_by", lambda _: {"versions": {"torch": "1.0"}})
            build_vectors(toy, encoder, stop, one_thread)
        # As if the other one had written other bytes.
        [left, *_] = sorted(parts.glob("vectors-*"))
        left.write_bytes(bytes(left.stat().st_size))
        build_vectors(toy, encoder, engine=resumed)
        assert {path.name: path.read_bytes() for path in whole.folder.iterdir()} == files
        assert not parts.exists()


def test_a_folder_that_is_not_ours_is_not_removed(toy: KB, encoder: EntityEncoder) -> None:
    folder = toy.folder / "vectors" / encoder.fingerprint()[:16]
    folder.mkdir(parents=True)
    (folder / "letter.txt").write_text("dear")
    with pytest.raises(PrixError, match="is not a vector store of prixlm"):
        build_vectors(toy, encoder)
    assert (folder / "letter.txt").exists()


def test_a_store_of_another_kb_is_replaced_and_few_stores_are_kept(
    toy: KB, encoder: EntityEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build_vectors(toy, encoder)
    stamp = json.loads((store.folder / "stamp.json").read_text())
    assert stamp["encoder"] == encoder.fingerprint() and stamp["kb"] == toy.fingerprint()
    (store.folder / "stamp.json").write_text(json.dumps(stamp | {"kb": "another"}))
    (store.folder / "vectors.f32").write_bytes(b"")
    again = build_vectors(toy, encoder)
    assert again.vectors.shape == (toy.num_entities, encoder.width)
    monkeypatch.setattr(index_module, "_KEPT_STORES", 2)
    for tokens in (9, 8, 7):
        settings = type(encoder.settings)(max_tokens=tokens)
        newest = build_vectors(toy, EntityEncoder(encoder.model, settings))
    kept = sorted(path.parent for path in (toy.folder / "vectors").glob("*/stamp.json"))
    assert len(kept) == 2 and newest.folder in kept and store.folder not in kept


# --- neighbours -----------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [1, 3])
def test_an_exact_index_equals_brute_force(names: int) -> None:
    vectors, queries = unit(60, 8, 0), unit(7, 8, 1)
    owner = np.sort(np.random.default_rng(2).integers(0, 60 // names, 60)) + 100
    index = NeighbourIndex.build(vectors, owner)
    for within in (None, range(105, 112)):
        nearest = index.search(queries, 5, within)
        for query, entities, scores in zip(queries, nearest.entity, nearest.score, strict=True):
            best: dict[int, float] = {}
            for who, score in zip(owner.tolist(), (vectors @ query).tolist(), strict=True):
                if within is None or who in within:
                    best[who] = max(best.get(who, -9.0), score)
            expected = sorted(best, key=lambda who: -best[who])[:5]
            some = entities >= 0
            assert entities[some].tolist() == expected
            np.testing.assert_allclose(scores[some], [best[who] for who in expected], atol=1e-6)


def test_more_names_are_asked_for_until_there_are_k_entities() -> None:
    """One entity has so many near names that the first answers are all its own."""
    centre = unit(1, 8, 0)
    near = centre + 0.01 * unit(50, 8, 1)
    vectors = np.concatenate([near / np.linalg.norm(near, axis=1, keepdims=True), unit(5, 8, 2)])
    owner = np.concatenate([np.zeros(50, int), np.arange(1, 6)])
    index = NeighbourIndex.build(vectors.astype(np.float32), owner)
    [entities] = index.search(centre, 3).entity
    order = 1 + np.argsort(-(vectors[50:] @ centre[0]))[:2]
    assert entities.tolist() == [0, *order.tolist()]


def test_the_mean_similarity_equals_a_sorted_table() -> None:
    source, target = unit(12, 6, 0), unit(20, 6, 1)
    expected = np.sort(target @ source.T)[:, -3:].mean(1)
    np.testing.assert_allclose(mean_similarity(target, source, 3), expected, atol=1e-6)
    with pytest.raises(PrixError, match="one side is empty"):
        mean_similarity(target, source[:0], 3)


def test_the_mean_similarity_to_many_comes_from_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prixlm.entities.index._EXACT_UP_TO", 100)
    source, target = unit(400, 4, 0), unit(50, 4, 1)
    exact = np.sort(target @ source.T)[:, -3:].mean(1)
    found = mean_similarity(target, source, 3)
    assert (found <= exact + 1e-6).all(), "lists miss neighbours, and invent none"
    assert found.mean() > exact.mean() - 0.1
    np.testing.assert_array_equal(found, mean_similarity(target, source, 3))
    assert repeatable_kind(100) == "exact" and repeatable_kind(101) == "ivf"


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivf"])
def test_an_index_is_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    vectors = unit(400, 8, 0)
    index = NeighbourIndex.build(vectors, kind=kind)
    index.save(tmp_path / "index")
    again = NeighbourIndex.load(tmp_path / "index")
    assert again.kind == kind and again.width == 8
    nearest = again.search(vectors[:50], 3)
    np.testing.assert_array_equal(nearest.entity, index.search(vectors[:50], 3).entity)
    assert (nearest.entity[:, 0] == np.arange(50)).mean() > 0.9
    # A small language is searched exactly, however the whole is.
    within = again.search(vectors[:50], 3, range(100, 200)).entity
    expected = 100 + np.argsort(-vectors[:50] @ vectors[100:200].T, axis=1)[:, :3]
    np.testing.assert_array_equal(within, expected)


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_a_large_language_is_an_index_of_its_own(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Languages lie apart: a search through all names would end among those of the query's."""
    monkeypatch.setattr(index_module, "_EXACT_UP_TO", 100)
    monkeypatch.setattr(index_module, "_HNSW_UP_TO", 10_000 if kind == "hnsw" else 100)
    points = unit(600, 16, 0)
    vectors = np.concatenate([points + 3 * unit(1, 16, 1), points - 3 * unit(1, 16, 1)])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    index = NeighbourIndex.build(vectors, kind=kind)
    index.save(tmp_path / "index")
    queries, within = vectors[:600], range(600, 1200)
    entities = index.search(queries, 5, within).entity
    expected = 600 + np.argsort(-queries @ vectors[600:].T, axis=1)[:, :5]
    shared = [len(np.intersect1d(a, b)) for a, b in zip(entities, expected, strict=True)]
    assert (entities >= 600).all()
    # Only one of the 32 lists of this small IVF is searched; a graph this small is searched whole.
    assert np.mean(shared) / 5 > (0.99 if kind == "hnsw" else 0.5)
    (kept,) = (tmp_path / "index").glob("rows-*")
    again = NeighbourIndex.load(tmp_path / "index")
    before = (kept / "index.faiss").stat().st_mtime_ns
    np.testing.assert_array_equal(again.search(queries, 5, within).entity, entities)
    assert (kept / "index.faiss").stat().st_mtime_ns == before, "read, not built again"


def test_an_index_that_cannot_be_read_is_built_again(
    toy: KB, encoder: EntityEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_EXACT_UP_TO", 0)
    store = build_vectors(toy, encoder)
    index = store.index()
    assert index.kind == "hnsw" and (store.folder / "hnsw" / "index.json").exists()
    (store.folder / "hnsw" / "index.faiss").write_bytes(b"broken")
    again = build_vectors(toy, encoder).index()
    queries = np.asarray(store.vectors)
    np.testing.assert_array_equal(again.search(queries, 2).entity, index.search(queries, 2).entity)
    assert NeighbourIndex.load(store.folder / "hnsw").kind == "hnsw"


def test_a_graph_has_the_same_bytes_whatever_the_threads(tmp_path: Path) -> None:
    """Machines that build it for themselves link a mention to the same entity."""
    first = None
    vectors, threads = unit(3000, 8, 0), index_module.faiss.omp_get_max_threads()
    try:
        for count in (1, 4, 4):
            index_module.faiss.omp_set_num_threads(count)
            NeighbourIndex.build(vectors, kind="hnsw").save(tmp_path / "index")
            content = (tmp_path / "index" / "index.faiss").read_bytes()
            first = first or content
            assert content == first and index_module.faiss.omp_get_max_threads() == count
    finally:
        index_module.faiss.omp_set_num_threads(threads)
    stamp = tmp_path / "index" / "index.json"
    stamp.write_text(json.dumps({"kind": "hnsw", "names": 3000, "width": 8}))
    with pytest.raises(PrixError, match="build it again"):  # of an older version
        NeighbourIndex.load(tmp_path / "index")


def test_an_index_is_opened_once_and_built_by_one_process_at_a_time(
    toy: KB, encoder: EntityEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_EXACT_UP_TO", 0)
    built: list[str] = []
    make = index_module._make_index

    def slow(kind: str, *others: object) -> object:
        built.append(kind)
        time.sleep(0.2)
        return make(kind, *others)

    monkeypatch.setattr(index_module, "_make_index", slow)
    stores = [build_vectors(toy, encoder) for _ in range(3)]  # as of three workers
    workers = [threading.Thread(target=store.index) for store in stores]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert built == ["hnsw"]
    assert stores[0].index() is stores[0].index() and built == ["hnsw"]
    exact = stores[0].index("exact")
    assert stores[0].index("exact") is exact and built == ["hnsw", "exact"]


def test_an_index_refuses_other_vectors_and_half_a_folder(tmp_path: Path) -> None:
    index = NeighbourIndex.build(unit(10, 8, 0))
    with pytest.raises(PrixError, match="vectors of 8 dimensions, and the query has 6"):
        index.search(unit(2, 6, 0), 1)
    index.save(tmp_path / "index")
    stamp = tmp_path / "index" / "index.json"
    stamp.unlink()
    with pytest.raises(PrixError, match="is not a complete index"):
        NeighbourIndex.load(tmp_path / "index")
    stamp.write_text(json.dumps({"kind": "exact", "names": 9}))
    with pytest.raises(PrixError, match="is not a complete index"):
        NeighbourIndex.load(tmp_path / "index")
    stamp.write_text(json.dumps({"kind": "exact", "names": 9, "width": 8}))
    with pytest.raises(PrixError, match="10 vectors and 10 owners, expected 9 of each"):
        NeighbourIndex.load(tmp_path / "index")


def test_an_index_answers_with_as_many_as_there_are() -> None:
    index = NeighbourIndex.build(unit(2, 8, 0))
    assert index.search(np.zeros((0, 8), np.float32), 3).entity.shape == (0, 3)
    few = index.search(unit(1, 8, 1), 4)
    assert (few.entity[0, 2:] == -1).all() and np.isinf(few.score[0, 2:]).all()
    assert (index.search(unit(1, 8, 1), 2, range(5, 9)).entity == -1).all()


def test_what_cannot_be_an_index_is_refused() -> None:
    with pytest.raises(PrixError, match="the owners must be ascending"):
        NeighbourIndex.build(unit(3, 8, 0), np.array([0, 2, 1]))
    with pytest.raises(PrixError, match="kind tree: expected auto, exact, hnsw, ivf"):
        NeighbourIndex.build(unit(3, 8, 0), kind="tree")


def test_larger_sets_get_faster_kinds() -> None:
    assert [choose_kind(n) for n in (10, 200_001, 5_000_001)] == ["exact", "hnsw", "ivf"]
