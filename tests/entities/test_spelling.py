"""Spelling: similar strings score high, block by block."""

import numpy as np
import pytest

from prixlm.entities import spelling
from prixlm.entities.spelling import similarities, slices


def test_the_most_similar_spelling_scores_highest() -> None:
    names = ["Turku", "Helsinki", "Tampere"]
    [scores] = similarities(["helsinkiin", "TAMPERE!", "Åbo"], names)
    assert scores.shape == (3, 3) and scores.dtype == np.float32
    assert scores[:2].argmax(1).tolist() == [1, 2]
    assert scores[1, 2] == 100, "case and punctuation do not count"
    assert scores[2].max() < 50


def test_small_blocks_give_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    mentions, names = ["Suomi", "Ranska", "Euro", "Pariisi"], ["Suomen", "Ransu", "Eurot"]
    [whole] = similarities(mentions, names)
    monkeypatch.setattr(spelling, "_MAX_SCORES", 7)
    blocks = list(similarities(mentions, names))
    assert [len(block) for block in blocks] == [2, 2]
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


def test_blocks_cover_all_queries_once() -> None:
    rows = [row for block in slices(10, 1 << 23) for row in range(10)[block]]
    assert rows == list(range(10))
    assert list(slices(3, 1 << 30)) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert list(slices(0, 5)) == [] and list(slices(2, 0)) == [slice(0, 2)]
