"""VecMap: against a transcription of the authors' steps, and on a planted rotation."""

import numpy as np
import pytest

from prixlm import PrixError
from prixlm.entities.vecmap import fit_mapping

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
    mapping = fit_mapping(x, z, pairs)
    expected = transcribed(x, z, pairs)
    for ours, theirs in zip((mapping.source, mapping.target), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_planted_rotation_is_found() -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(300, 12))
    rotation, _ = np.linalg.qr(generator.normal(size=(12, 12)))
    z = unit(x) @ rotation
    mapping = fit_mapping(x, z, np.stack([np.arange(60)] * 2, axis=1))
    nearest = (mapping.source @ mapping.target.T).argmax(1)
    assert (nearest == np.arange(300)).all()


def test_fewer_pairs_than_dimensions_still_give_numbers() -> None:
    generator = np.random.default_rng(2)
    x, z = generator.normal(size=(30, 16)), generator.normal(size=(30, 16))
    mapping = fit_mapping(x, z, np.stack([np.arange(4)] * 2, axis=1))
    assert np.isfinite(mapping.source).all() and np.isfinite(mapping.target).all()


def test_vectors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PrixError, match="have 3 dimensions and target vectors 4"):
        fit_mapping(np.ones((2, 3)), np.ones((2, 4)), np.zeros((1, 2), int))
    with pytest.raises(PrixError, match="no training pair"):
        fit_mapping(np.ones((2, 3)), np.ones((2, 3)), np.zeros((0, 2), int))
    with pytest.raises(PrixError, match="all training words have the same vector"):
        fit_mapping(np.ones((2, 3)), np.ones((2, 3)), np.zeros((1, 2), int))
