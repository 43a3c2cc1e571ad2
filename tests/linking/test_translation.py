"""What is learnt from linked names: a made-up cipher has to come out again."""

import numpy as np
import pytest
import scipy.sparse as sp

from prixlm.linking.grams import count_grams, rarity, weigh
from prixlm.linking.translation import (
    learn_chunks,
    learn_maps,
    main_directions,
    translate,
    unit,
)

CIPHER = str.maketrans("abdefgiklmnoprstu", "xqjwzhyvctbkfdgns")


@pytest.fixture(scope="module")
def sides() -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """400 names of syllables, and the same ones in the cipher."""
    generator = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    names = ["".join(generator.choice(syllables, 3)) for _ in range(400)]
    counts = [count_grams(texts, (2, 3)) for texts in (names, [n.translate(CIPHER) for n in names])]
    ours, theirs = (weigh(one, rarity(one)) for one in counts)
    return ours, theirs


def hits(scores: np.ndarray) -> float:
    return float((scores.argmax(axis=1) == np.arange(len(scores))).mean())


def test_chunks_learn_the_cipher_from_some_links(sides: tuple[sp.csr_matrix, ...]) -> None:
    ours, theirs = sides
    chunks = learn_chunks(ours[:300], theirs[:300])
    asked = translate(ours[300:], chunks)
    assert hits((asked @ theirs[300:].T).toarray()) > 0.9
    sums = np.asarray(chunks.sum(axis=1)).ravel()
    assert sums.max() <= 1 + 1e-4, "probabilities of one n-gram"
    assert hits((ours[300:] @ theirs[300:].T).toarray()) < 0.1, "no letters in common before"


def test_maps_bring_counterparts_together(sides: tuple[sp.csr_matrix, ...]) -> None:
    ours, theirs = sides
    rows = np.arange(300)
    directions = main_directions(ours), main_directions(theirs)
    maps = learn_maps(ours, theirs, rows, rows, directions)
    a, b = maps.encode_ours(ours), maps.encode_theirs(theirs)
    assert hits(a[300:] @ b[300:].T) > 0.9
    assert np.allclose(np.linalg.norm(a, axis=1), 1, atol=1e-5)


def test_an_ngram_that_no_link_has_translates_into_nothing(
    sides: tuple[sp.csr_matrix, ...],
) -> None:
    chunks = learn_chunks(*(side[:50] for side in sides))
    strange = weigh(count_grams(["ψψψψ"]), np.ones(sides[0].shape[1], np.float32))
    assert translate(strange, chunks).nnz == 0


def test_rows_of_zeros_stay() -> None:
    assert unit(np.array([[3.0, 4], [0, 0]])).tolist() == pytest.approx(
        np.array([[0.6, 0.8], [0, 0]])
    )
