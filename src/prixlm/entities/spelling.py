"""Compare names by their spelling (rapidfuzz): the baseline that needs no model.

    for scores in similarities(mentions, names): ...     # (q, N), a block of mentions at a time

It is one row of the tables of linking and of lexicon induction.

Dimension letters: N names, q mentions of one block.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from prixlm.types import Array

TITLE = "string similarity (rapidfuzz)"
_MAX_SCORES = 1 << 24
"""Most scores that are in memory at once."""


def similarities(mentions: Sequence[str], names: Sequence[str]) -> Iterator[Array]:
    """Yield how similar blocks of mentions are to all names, in order: (q, N), from 0 to 100."""
    from rapidfuzz import fuzz, process, utils

    # Letters in lower case, punctuation as spaces: prepared once, not for each pair.
    clean_names = [utils.default_process(name) for name in names]
    for rows in slices(len(mentions), len(names)):
        clean = [utils.default_process(mention) for mention in mentions[rows]]
        yield process.cdist(clean, clean_names, scorer=fuzz.ratio, workers=-1, dtype=np.float32)


def slices(num_queries: int, num_names: int) -> Iterator[slice]:
    """Yield blocks of queries, each small enough to hold its scores of all names in memory."""
    step = max(1, _MAX_SCORES // max(1, num_names))
    for start in range(0, num_queries, step):
        yield slice(start, min(start + step, num_queries))
