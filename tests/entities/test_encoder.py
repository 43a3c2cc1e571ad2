"""Names to vectors: pooling, sentence-transformers, the vector store, neighbours."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from prixlm import KB, PrixError, PrixLM
from prixlm.entities.encoder import EncoderSettings, EntityEncoder
from prixlm.entities.index import NeighbourIndex, build_vectors, mean_similarity

NAMES = ["Finland", "Suomi", "フィンランド", "ఫిన్లాండ్", "a", "", "Helsinki " * 12]


@pytest.fixture
def encoder(bases: dict[str, Path]) -> EntityEncoder:
    return EntityEncoder.load(bases["xlmr"])


@pytest.mark.parametrize("base", ["xlmr", "mbert"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_vectors_equal_the_padded_pass_one_by_one(
    bases: dict[str, Path], base: str, pooling: str
) -> None:
    encoder = EntityEncoder.load(bases[base], EncoderSettings(pooling=pooling))
    found = encoder.encode(NAMES)
    for name, vector in zip(NAMES, found, strict=True):
        pieces = encoder.tokenise([name]).ids[: encoder.settings.max_tokens - 2].tolist()
        ids = torch.tensor([[encoder.start, *pieces, encoder.end]])
        length = torch.tensor([ids.shape[1]])
        with torch.no_grad():
            states = encoder.model.hidden(ids, length, length)[0]
        state = states[0] if pooling == "first" else states.mean(0)
        torch.testing.assert_close(
            torch.from_numpy(vector), state / state.norm(), atol=1e-5, rtol=1e-4
        )


def test_a_name_has_the_same_vector_in_whatever_company(encoder: EntityEncoder) -> None:
    alone = np.concatenate([encoder.encode([name]) for name in NAMES])
    np.testing.assert_allclose(encoder.encode(NAMES), alone, atol=1e-6)


@pytest.mark.parametrize("base", ["xlmr", "mbert"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_sentence_transformers_gives_the_same_vectors(
    bases: dict[str, Path], base: str, pooling: str, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = EntityEncoder.load(bases[base], EncoderSettings(pooling=pooling, max_tokens=10))
    encoder.save(tmp_path / "encoder")
    theirs = SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    np.testing.assert_allclose(theirs.encode(NAMES), encoder.encode(NAMES), atol=1e-5)


def test_a_saved_encoder_is_the_same_and_still_a_prix_lm(
    encoder: EntityEncoder, tmp_path: Path
) -> None:
    before = encoder.fingerprint()
    encoder.save(tmp_path / "encoder")
    again = EntityEncoder.load(tmp_path / "encoder")
    assert again.fingerprint() == before == encoder.fingerprint()
    np.testing.assert_array_equal(again.encode(NAMES), encoder.encode(NAMES))
    assert isinstance(PrixLM.load(tmp_path / "encoder"), PrixLM)


def test_a_name_that_spells_a_special_token_is_text(encoder: EntityEncoder) -> None:
    ends, plain = encoder.encode(["a </s> b", "a b"])
    assert not np.allclose(ends, plain)
    assert encoder.end not in encoder.tokenise(["a </s> b"]).ids


def test_the_vector_store_has_all_names_and_goes_on_after_a_kill(
    toy: KB, encoder: EntityEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.entities.index._CHUNK", 4)
    real, calls = encoder.encode, []

    def dying(names: list[str]) -> np.ndarray:
        calls.append(len(names))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(names)

    monkeypatch.setattr(encoder, "encode", dying)
    with pytest.raises(KeyboardInterrupt):
        build_vectors(toy, encoder)
    store = build_vectors(toy, encoder)
    assert calls.count(4) == (toy.num_entities // 4) + 1, "two chunks were not encoded again"
    assert not list((toy.folder / "vectors").glob("*.partial/*.f32"))
    monkeypatch.undo()
    assert store.owner.tolist() == list(range(toy.num_entities))
    np.testing.assert_allclose(
        store.vectors, encoder.encode(toy.names(range(toy.num_entities))), atol=1e-6
    )
    monkeypatch.setattr(encoder, "encode", dying)  # the second time nothing is encoded
    np.testing.assert_array_equal(build_vectors(toy, encoder).vectors, store.vectors)


def unit(rows: int, width: int, seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize("names", [1, 3])
def test_an_exact_index_equals_brute_force(names: int) -> None:
    vectors, queries = unit(60, 8, 0), unit(7, 8, 1)
    owner = np.sort(np.random.default_rng(2).integers(0, 60 // names, 60)) + 100
    index = NeighbourIndex.build(vectors, owner)
    for within in (None, range(105, 112)):
        found = index.search(queries, 5, within)
        for query, entities, scores in zip(queries, found.entity, found.score, strict=True):
            best: dict[int, float] = {}
            for who, score in zip(owner.tolist(), (vectors @ query).tolist(), strict=True):
                if within is None or who in within:
                    best[who] = max(best.get(who, -9.0), score)
            wanted = sorted(best, key=lambda who: -best[who])[:5]
            known = entities >= 0
            assert entities[known].tolist() == wanted
            np.testing.assert_allclose(scores[known], [best[who] for who in wanted], atol=1e-6)


def test_csls_equals_a_double_loop() -> None:
    source, target = unit(12, 6, 0), unit(20, 6, 1)
    index = NeighbourIndex.build(target, csls=source, neighbours=3)
    found = index.search(source, 4)
    for place, x in enumerate(source):
        scores = []
        for y in target:
            around_x = np.sort(target @ x)[-3:].mean()
            around_y = np.sort(source @ y)[-3:].mean()
            scores.append(2 * x @ y - around_x - around_y)
        order = np.argsort(scores)[::-1][:4]
        assert found.entity[place].tolist() == order.tolist()
        np.testing.assert_allclose(found.score[place], np.array(scores)[order], atol=1e-5)
    np.testing.assert_allclose(
        mean_similarity(target, source, 3), np.sort(target @ source.T)[:, -3:].mean(1), atol=1e-6
    )


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivf"])
def test_an_index_is_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    vectors = unit(400, 8, 0)
    index = NeighbourIndex.build(vectors, kind=kind)
    index.save(tmp_path / "index")
    again = NeighbourIndex.load(tmp_path / "index")
    assert again.kind == kind
    found = again.search(vectors[:50], 3)
    np.testing.assert_array_equal(found.entity, index.search(vectors[:50], 3).entity)
    assert (found.entity[:, 0] == np.arange(50)).mean() > 0.9
    # A language is searched exactly, however the whole is.
    within = again.search(vectors[:50], 3, range(100, 200)).entity
    truth = 100 + np.argsort(-vectors[:50] @ vectors[100:200].T, axis=1)[:, :3]
    np.testing.assert_array_equal(within, truth)


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_a_large_language_is_an_index_of_its_own(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Languages lie apart: the way through all names would end among those of the asker."""
    monkeypatch.setattr("prixlm.entities.index.EXACT_TO", 100)
    monkeypatch.setattr("prixlm.entities.index.HNSW_TO", 10_000 if kind == "hnsw" else 100)
    places = unit(600, 16, 0)
    vectors = np.concatenate([places + 3 * unit(1, 16, 1), places - 3 * unit(1, 16, 1)])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    index = NeighbourIndex.build(vectors, kind=kind)
    index.save(tmp_path / "index")
    queries, within = vectors[:600], range(600, 1200)
    found = index.search(queries, 5, within).entity
    truth = 600 + np.argsort(-queries @ vectors[600:].T, axis=1)[:, :5]
    shared = [len(np.intersect1d(a, b)) for a, b in zip(found, truth, strict=True)]
    assert (found >= 600).all()
    # One list of 32 is looked at in an IVF so small; a graph so small is searched whole.
    assert np.mean(shared) / 5 > (0.99 if kind == "hnsw" else 0.5)
    (kept,) = (tmp_path / "index").glob("rows-*")
    again = NeighbourIndex.load(tmp_path / "index")
    before = (kept / "index.faiss").stat().st_mtime_ns
    np.testing.assert_array_equal(again.search(queries, 5, within).entity, found)
    assert (kept / "index.faiss").stat().st_mtime_ns == before, "read, not built again"


def test_an_index_refuses_other_vectors_and_half_a_folder(tmp_path: Path) -> None:
    index = NeighbourIndex.build(unit(10, 8, 0))
    with pytest.raises(PrixError, match="vectors of 8 numbers, and was asked with 6"):
        index.search(unit(2, 6, 0), 1)
    index.save(tmp_path / "index")
    (tmp_path / "index" / "index.json").unlink()
    with pytest.raises(PrixError, match="half of one"):
        NeighbourIndex.load(tmp_path / "index")
    (tmp_path / "index" / "index.json").write_text(json.dumps({"kind": "exact", "names": 9}))
    with pytest.raises(PrixError, match="half of one"):
        NeighbourIndex.load(tmp_path / "index")
    stamp = {"kind": "exact", "names": 9, "width": 8}
    (tmp_path / "index" / "index.json").write_text(json.dumps(stamp))
    with pytest.raises(PrixError, match="differ in length"):
        NeighbourIndex.load(tmp_path / "index")
    assert index.search(np.zeros((0, 8), np.float32), 3).entity.shape == (0, 3)
    assert (NeighbourIndex.build(unit(2, 8, 0)).search(unit(1, 8, 1), 4).entity[0, 2:] == -1).all()


def test_settings_that_make_no_sense_are_refused(tmp_path: Path, encoder: EntityEncoder) -> None:
    with pytest.raises(PrixError, match="pooling last"):
        EncoderSettings(pooling="last")
    encoder.save(tmp_path / "e")
    (tmp_path / "e" / "encoder.json").write_text("{")
    with pytest.raises(PrixError, match="cannot be read"):
        EntityEncoder.load(tmp_path / "e")


def test_half_a_chunk_is_encoded_again(
    toy: KB, encoder: EntityEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.entities.index._CHUNK", 4)
    whole = build_vectors(toy, encoder)
    folder = whole.folder
    work = folder.with_name(folder.name + ".partial")
    vectors, owner = np.array(whole.vectors), np.array(whole.owner)
    folder.rename(work)
    (work / "vectors.f32").write_bytes(vectors.tobytes()[: 6 * vectors.shape[1] * 4 + 5])
    (work / "owner.i32").write_bytes(owner.tobytes()[: 5 * 4])
    again = build_vectors(toy, encoder)
    np.testing.assert_array_equal(again.vectors, vectors)
    np.testing.assert_array_equal(again.owner, owner)


def test_a_folder_that_is_not_ours_is_not_removed(
    toy: KB, encoder: EntityEncoder, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(PrixError, match="no vectors of ours"):
        build_vectors(toy, encoder, tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").exists()


def test_a_causal_model_reads_names_in_both_directions(encoder: EntityEncoder) -> None:
    import dataclasses

    both = encoder.encode(NAMES)
    encoder.model.settings = dataclasses.replace(encoder.model.settings, mask="causal")
    np.testing.assert_array_equal(encoder.encode(NAMES), both)
    assert encoder.model.settings.mask == "causal", "the model is as it was"
