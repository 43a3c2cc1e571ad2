"""Spelling: similar strings score high, block by block."""

import numpy as np
import pytest

from prixlm.entities import spelling
from prixlm.entities.spelling import HASHED_GRAMS, SPELLINGS, gram_cosines, similarities, slices


def test_the_most_similar_spelling_scores_highest() -> None:
    names = ["Turku", "Helsinki", "Tampere"]
    [scores] = similarities(["helsinkiin", "TAMPERE!", "Åbo"], names)
    assert scores.shape == (3, 3) and scores.dtype == np.float32
    assert scores[:2].argmax(1).tolist() == [1, 2]
    assert scores[1, 2] == 100, "case and punctuation do not count"
    assert scores[2].max() < 50


def test_the_name_with_the_rarest_shared_letters_has_the_largest_cosine() -> None:
    names = ["Turku (city)", "Helsinki (city)", "Tampere (city)", "???"]
    [scores] = gram_cosines(["helsinkiin", "Tampere (city)", "", "x"], names)
    assert scores.shape == (4, 4) and scores.dtype == np.float32
    assert scores[:2].argmax(1).tolist() == [1, 2]
    assert scores[1, 2] == pytest.approx(1) and not scores[2:].any()
    assert np.concatenate(list(gram_cosines(["a"], ["", "?"]))).tolist() == [[0, 0]]


def test_cosines_equal_a_slow_count() -> None:
    mentions, names = ["aba", "abc"], ["abab", "bc", "cab"]

    def grams(text: str) -> dict[str, float]:
        padded = f" {text} "
        all_ = [padded[i : i + n] for n in (2, 3) for i in range(len(padded) - n + 1)]
        return {gram: 1 + np.log(all_.count(gram)) for gram in all_}

    known = [grams(name) for name in names]
    idf = {g: np.log(4 / (1 + sum(g in k for k in known))) + 1 for k in known for g in k}

    def vector(text: str) -> dict[str, float]:
        weighted = {g: tf * idf[g] for g, tf in grams(text).items() if g in idf}
        size = np.sqrt(sum(value**2 for value in weighted.values()))
        return {g: value / size for g, value in weighted.items()}

    slow = [
        [sum(vector(m)[g] * vector(n).get(g, 0) for g in vector(m)) for n in names]
        for m in mentions
    ]
    [scores] = gram_cosines(mentions, names)
    np.testing.assert_allclose(scores, slow, rtol=1e-5)


def test_romanised_names_are_compared_in_latin_letters() -> None:
    for row in SPELLINGS:
        [scores] = row.compare(["Αθήνα"], ["Athina", "Sparta"], "el", "en")
        assert (scores[0, 0] > scores[0, 1]) == row.romanised, row.title


def test_hashed_n_grams_are_unit_vectors_of_letters() -> None:
    raw, romanised = HASHED_GRAMS
    vectors = raw.encode(["Suomi", "suomi", "Ranska"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert vectors[0] @ vectors[2] < 0.5
    greek, latin = romanised.encode(["Αθήνα"], "el"), romanised.encode(["athina"])
    assert greek[0] @ latin[0] > 0.9 > raw.encode(["Αθήνα"])[0] @ latin[0]


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
