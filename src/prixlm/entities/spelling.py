"""Compare names by their spelling: the baselines that need no model.

    for scores in similarities(mentions, names): ...     # (q, N), a block of mentions at a time
    for scores in SPELLINGS[1].compare(mentions, names, "el"): ...     # both sides romanised
    vectors = HASHED_GRAMS[0].encode(words)                            # for VecMap

These are rows of the tables of linking and of lexicon induction. A model that is mapped from one
language into another has to be above letters that are mapped in the same way: `HashedGrams`.

Dimension letters: N names, q mentions of one block.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from prixlm.romanise import read_names
from prixlm.threads import usable_cores
from prixlm.types import Array

_MAX_SCORES = 1 << 24
"""Most scores that are in memory at once."""
_GRAMS = (2, 3)
"""Lengths of the character n-grams, the spaces at both ends of a word included."""
_HASHED = (1, 3)
"""The same for hashed n-grams."""
_COLUMNS = 1024
"""Length of a vector of hashed n-grams."""


def similarities(mentions: Sequence[str], names: Sequence[str]) -> Iterator[Array]:
    """Yield how similar blocks of mentions are to all names, in order: (q, N), from 0 to 100.

    It is rapidfuzz's ratio: the edit distance with insertions and deletions, by the length.
    """
    from rapidfuzz import fuzz, process

    # Prepared once, not for each pair.
    clean_names = _clean(names)
    for rows in slices(len(mentions), len(names)):
        clean = _clean(mentions[rows])
        yield process.cdist(
            clean, clean_names, scorer=fuzz.ratio, workers=usable_cores(), dtype=np.float32
        )


def gram_cosines(mentions: Sequence[str], names: Sequence[str]) -> Iterator[Array]:
    """Yield the cosines of blocks of mentions and all names, by character n-grams: (q, N).

    An n-gram weighs more the fewer names have it (tf-idf).
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(
        analyzer="char_wb", ngram_range=_GRAMS, sublinear_tf=True, dtype=np.float32
    )
    try:
        known = vectorizer.fit_transform(_clean(names)).T.tocsr()  # (grams, N), sparse
    except ValueError:  # no name has a letter
        known = None
    for rows in slices(len(mentions), len(names)):
        if known is None:
            yield np.zeros((len(mentions[rows]), len(names)), np.float32)
        else:
            yield (vectorizer.transform(_clean(mentions[rows])) @ known).toarray()


def _clean(names: Sequence[str]) -> list[str]:
    """Return names in lower case, with spaces for punctuation."""
    from rapidfuzz import utils

    return [utils.default_process(name) for name in names]


@dataclass(frozen=True)
class Spelling:
    """A way to compare names without a model: a row of a table."""

    title: str
    measure: Callable[[Sequence[str], Sequence[str]], Iterator[Array]]
    romanised: bool = False  # compare the names in Latin letters

    def compare(
        self,
        mentions: Sequence[str],
        names: Sequence[str],
        lang: str | None = None,
        into: str | None = None,
    ) -> Iterator[Array]:
        """Yield (q, N) scores. lang, into: languages of the mentions and of the names."""
        if self.romanised:
            mentions = read_names(mentions, "romanised", lang)
            names = read_names(names, "romanised", into)
        return self.measure(mentions, names)


SPELLINGS = (
    Spelling("string similarity (rapidfuzz)", similarities),
    Spelling("string similarity, romanised", similarities, romanised=True),
    Spelling("character n-grams (cosine)", gram_cosines),
    Spelling("character n-grams, romanised", gram_cosines, romanised=True),
)
"""All of them, in the order of the rows."""


@dataclass(frozen=True)
class HashedGrams:
    """Words as counts of their character n-grams, hashed into few columns: vectors without a model.

    Both languages share the columns, so VecMap learns which letters stand for which.
    """

    title: str
    romanised: bool = False  # of the words in Latin letters

    def encode(self, words: Sequence[str], lang: str | None = None) -> Array:
        """Return (N, D) float32 vectors of unit length. lang: the language of the words."""
        from sklearn.feature_extraction.text import HashingVectorizer

        if self.romanised:
            words = read_names(words, "romanised", lang)
        vectorizer = HashingVectorizer(
            analyzer="char_wb", ngram_range=_HASHED, n_features=_COLUMNS, dtype=np.float32
        )
        return np.asarray(vectorizer.transform(_clean(words)).toarray(), np.float32)


HASHED_GRAMS = (
    HashedGrams("hashed n-grams, mapped"),
    HashedGrams("hashed n-grams, romanised, mapped", romanised=True),
)
"""Rows of lexicon induction."""


def slices(num_queries: int, num_names: int) -> Iterator[slice]:
    """Yield blocks of queries, each small enough to hold its scores of all names in memory."""
    step = max(1, _MAX_SCORES // max(1, num_names))
    for start in range(0, num_queries, step):
        yield slice(start, min(start + step, num_queries))
