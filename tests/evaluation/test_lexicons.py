"""VecMap and bilingual lexicon induction."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import PrixError
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.vecmap import fit_mapping
from prixlm.evaluation.lexicons import (
    Dictionary,
    csls_ranks,
    induce,
    induce_by_spelling,
    read_dictionaries,
)

Array = np.ndarray


def unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def transcribed(x: Array, z: Array, pairs: Array) -> tuple[Array, Array]:
    """The steps of the authors' `map_embeddings.py --supervised`, one after another."""
    x, z = unit(x), unit(z)
    x, z = unit(x - x.mean(0)), unit(z - z.mean(0))
    source, target = pairs.T

    def whitening_transformation(m: Array) -> Array:
        _, s, vt = np.linalg.svd(m, full_matrices=False)
        return vt.T.dot(np.diag(1 / s)).dot(vt)

    xw, zw = x.copy(), z.copy()
    wx1 = whitening_transformation(xw[source])
    wz1 = whitening_transformation(zw[target])
    xw, zw = xw.dot(wx1), zw.dot(wz1)
    wx2, s, wz2_t = np.linalg.svd(xw[source].T.dot(zw[target]))
    wz2 = wz2_t.T
    xw, zw = xw.dot(wx2), zw.dot(wz2)
    xw *= s**0.5
    zw *= s**0.5
    xw = xw.dot(wx2.T.dot(np.linalg.inv(wx1)).dot(wx2))
    zw = zw.dot(wz2.T.dot(np.linalg.inv(wz1)).dot(wz2))
    return unit(xw), unit(zw)


def test_the_map_equals_a_transcription_of_its_steps() -> None:
    generator = np.random.default_rng(0)
    x, z = generator.normal(size=(50, 6)), generator.normal(size=(40, 6))
    pairs = np.stack([generator.permutation(40)[:30], generator.permutation(40)[:30]], axis=1)
    found = fit_mapping(x, z, pairs)
    for ours, theirs in zip((found.source, found.target), transcribed(x, z, pairs), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_planted_rotation_is_found() -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(300, 12))
    rotation, _ = np.linalg.qr(generator.normal(size=(12, 12)))
    z = unit(x) @ rotation
    found = fit_mapping(x, z, np.stack([np.arange(60)] * 2, axis=1))
    nearest = (found.source @ found.target.T).argmax(1)
    assert (nearest == np.arange(300)).all()


def test_fewer_pairs_than_dimensions_still_give_numbers() -> None:
    generator = np.random.default_rng(2)
    x, z = generator.normal(size=(30, 16)), generator.normal(size=(30, 16))
    found = fit_mapping(x, z, np.stack([np.arange(4)] * 2, axis=1))
    assert np.isfinite(found.source).all() and np.isfinite(found.target).all()


def test_vectors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PrixError, match="have 3 numbers and target vectors 4"):
        fit_mapping(np.ones((2, 3)), np.ones((2, 4)), np.zeros((1, 2), int))
    with pytest.raises(PrixError, match="no training pair"):
        fit_mapping(np.ones((2, 3)), np.ones((2, 3)), np.zeros((0, 2), int))


def test_ranks_by_csls_equal_a_double_loop() -> None:
    generator = np.random.default_rng(3)
    asked = unit(generator.normal(size=(6, 5))).astype(np.float32)
    target = unit(generator.normal(size=(15, 5))).astype(np.float32)
    target[3] = target[4]
    crowding = generator.random(15).astype(np.float32)
    crowding[3] = crowding[4]
    answers = [[0], [1, 2], [3], [4], [5, 6, 7], [14]]
    found = csls_ranks(asked, target, answers, crowding)
    for x, right, rank in zip(asked, answers, found, strict=True):
        scores = [2 * float(x @ y) - float(r) for y, r in zip(target, crowding, strict=True)]
        best = max(scores[i] for i in right)
        others = [s for i, s in enumerate(scores) if i not in right]
        higher = sum(s > best + 1e-6 for s in others)
        equal = sum(abs(s - best) <= 1e-6 for s in others)
        assert rank == 1 + higher + equal / 2


def test_the_words_of_both_sides_are_found_when_they_are_the_same(
    bases: dict[str, Path],
) -> None:
    """A language translated into itself: every word is its own nearest neighbour."""
    words = [f"{a}{b}{c}" for a in "bdfghklmn" for b in "aeiou" for c in "nrst"]
    same = [(word, word) for word in words]
    dictionary = Dictionary(same[:150], [*same[140:], ("ban", "bar")])
    found = induce(EntityEncoder.load(bases["xlmr"]), dictionary, ["frequent", *words])
    assert found.num_candidates == {"dictionary": 180, "and frequent words": 181}
    for part in found.figures.values():
        assert part["all"].hits_1 > 0.9
        assert part["all"].number == 41 and part["not in train"].number == 30


def test_spelling_finds_what_is_written_alike() -> None:
    train = [("house", "casa"), ("tree", "albero")]
    test = [("music", "musica"), ("music", "canzone"), ("water", "acqua"), ("tree", "pianta")]
    found = induce_by_spelling(Dictionary(train, test), ["acqua", "waterloo"])
    assert found.num_candidates == {"dictionary": 6, "and frequent words": 7}
    # musica is right at once; acqua and pianta share one or two letters with their sources.
    near, far = (found.figures[name] for name in found.num_candidates)
    assert near["all"].number == 3 and near["not in train"].number == 2
    assert near["not in train"].hits_1 == pytest.approx(0.5)  # water: albero is nearer than acqua
    assert far["all"].mrr < near["all"].mrr  # waterloo


def test_lines_that_are_no_pairs_are_counted(tmp_path: Path) -> None:
    train, test = tmp_path / "train", tmp_path / "test"
    train.write_text("a\tb\r\nc d\n\none\ne\t\na\tb\n", "utf-8")
    test.write_text("x\ty z\n", "utf-8")
    found = read_dictionaries(train, test)
    assert found.train == [("a", "b"), ("c", "d")]
    assert found.test == [("x", "y z")]
    assert found.problems == {"train: not two words": 2, "train: twice the same pair": 1}
    test.write_text("\n")
    with pytest.raises(PrixError, match="no pair of words"):
        read_dictionaries(train, test)
    with pytest.raises(PrixError, match="cannot be read"):
        read_dictionaries(train, tmp_path / "none")


def test_the_real_dictionaries_are_read_whole(data: Path) -> None:
    folder = data / "bli" / "fi-ru"
    found = read_dictionaries(
        folder / "yacle.train.freq.5k.fi-ru.tsv", folder / "yacle.test.freq.2k.fi-ru.tsv"
    )
    assert (len(found.train), len(found.test)) == (5000 - 185, 2000 - 31)
    assert sorted(found.problems.values()) == [31, 185]
    in_train = {word for word, _ in found.train}
    assert sum(word in in_train for word, _ in found.test) >= 296
