"""N-grams as sparse vectors: hashed in one array, compared with slow counts."""

from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from prixlm.linking import grams
from prixlm.linking.grams import (
    Distinct,
    GramIndex,
    Pairs,
    count_grams,
    dense_dots,
    keep_rarest,
    nearest,
    pair_dots,
    unite,
)

NAMES = ["Athens", "Αθήνα", "東京都", "New York City", "New York", "a", "", "…", "😀 film", "1984"]


def slow_grams(text: str, sizes: tuple[int, ...], words: bool) -> Counter[str]:
    padded = f" {text} "
    found: Counter[str] = Counter()
    for size in sizes:
        found.update(padded[i : i + size] for i in range(len(padded) - size + 1))
    if words:
        found.update(f"word {word}" for word in text.split(" ") if word)
    return found


@given(st.lists(st.text(max_size=20), max_size=8), st.booleans())
def test_rows_count_the_ngrams_and_words_of_a_text(texts: list[str], words: bool) -> None:
    counts = count_grams(texts, (1, 2, 3), words)
    assert counts.shape == (len(texts), 1 << grams.BITS)
    for row, text in enumerate(texts):
        slow = slow_grams(text, (1, 2, 3), words)
        # The columns are hashes, so the counts are compared, whatever their column.
        assert sorted(counts[[row]].data.tolist()) == sorted(slow.values())


def test_equal_ngrams_have_one_column_in_any_text_and_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = count_grams(NAMES, (2, 3), words=True)
    monkeypatch.setattr(grams, "_BLOCK_TEXTS", 3)
    assert (whole != count_grams(NAMES, (2, 3), words=True)).nnz == 0
    shared = whole[[3]].multiply(whole[[4]])
    both = slow_grams(NAMES[3], (2, 3), True) & slow_grams(NAMES[4], (2, 3), True)
    assert shared.nnz == len(both)


def test_words_and_ngrams_of_the_same_letters_differ() -> None:
    both = count_grams(["ab"], (2,), words=True)
    assert both.nnz == 4, "' a', 'ab', 'b ' and the word"


def test_the_nearest_names_are_those_of_the_highest_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grams, "_BLOCK_QUERIES", 2)
    index = GramIndex(NAMES)
    asked = index.encode(["New York Town", "Athina", "東京"])
    found = index.search(asked, 3, rarest=100)
    dots = (asked @ index.vectors.T).toarray()
    for row in range(3):
        of_row = found.left == row
        best = np.sort(dots[row])[::-1][:3]
        assert np.allclose(np.sort(found.score[of_row])[::-1], best[best > 0], atol=1e-6)
    first = {
        int(a): int(b) for a, b in zip(found.left, found.right, strict=True) if dots[a, b] > 0.4
    }
    assert first[0] in (3, 4) and first[2] == 2
    assert np.allclose(
        pair_dots(asked, index.vectors, found.left, found.right), found.score, atol=1e-6
    )


def test_only_the_rarest_ngrams_are_kept() -> None:
    matrix = sp.csr_matrix(np.array([[1.0, 2, 3, 0], [0, 0, 4, 5], [0, 0, 0, 0]], np.float32))
    kept = keep_rarest(matrix, np.array([0.1, 3.0, 2.0, 1.0], np.float32), 2)
    assert kept.toarray().tolist() == [[0, 2, 3, 0], [0, 0, 4, 5], [0, 0, 0, 0]]
    one = keep_rarest(matrix, np.array([0.1, 3.0, 2.0, 1.0], np.float32), 1)
    assert one.toarray().tolist() == [[0, 2, 0, 0], [0, 0, 4, 0], [0, 0, 0, 0]]


def test_dense_rows_have_the_same_dots_as_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((2, 5, 4)).astype(np.float32)
    left, right = generator.integers(0, 5, (2, 9))
    assert np.allclose(dense_dots(a, b, left, right), (a @ b.T)[left, right], atol=1e-5)


def test_no_query_and_no_name_find_nothing() -> None:
    empty = count_grams([])
    assert len(nearest(empty, count_grams(NAMES).T.tocsr(), 3)) == 0
    assert len(GramIndex(["x"]).search(GramIndex(["x"]).encode(["ψ"]), 5)) == 0


def test_pairs_of_several_searches_are_united_and_sorted() -> None:
    one = Pairs(np.array([1, 0]), np.array([2, 5]), np.ones(2))
    two = Pairs(np.array([1, 0]), np.array([2, 1]), np.ones(2))
    left, right = unite([one, two])
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == [(0, 1), (0, 5), (1, 2)]


@given(st.lists(st.sampled_from("abcd"), max_size=12), st.data())
def test_equal_queries_are_searched_once_and_all_get_the_answers(
    values: list[str], data: st.DataObject
) -> None:
    asked = data.draw(st.lists(st.sampled_from(range(len(values))), unique=True)) if values else []
    rows = np.sort(np.array(asked, np.int64))
    once = Distinct.of(values).select(rows)
    assert [values[row] for row in once.first] == sorted(
        {values[row] for row in rows}, key=values.index
    )
    # What is found for a value is its letter's number, as often as that.
    number = np.array(["abcd".index(values[row]) for row in once.first], np.int64)
    left = np.repeat(np.arange(len(number)), number)
    found = once.expand(Pairs(left, number[left], left.astype(float)))
    expected = [(at, "abcd".index(values[row])) for at, row in enumerate(rows.tolist())]
    assert list(zip(found.left.tolist(), found.right.tolist(), strict=True)) == [
        (at, letter) for at, letter in expected for _ in range(letter)
    ]
