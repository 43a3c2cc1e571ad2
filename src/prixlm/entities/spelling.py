"""String similarity (rapidfuzz): what can be found without a model.

    for table in similarities(mentions, names): ...     # (q, N), some mentions at a time

It is a row of linking and of lexicon induction.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from prixlm.types import Array

TITLE = "string similarity (rapidfuzz)"
_SCORES = 1 << 24
"""Scores that are held at once."""


def similarities(mentions: Sequence[str], names: Sequence[str]) -> Iterator[Array]:
    """How alike all names are to some mentions at a time: (q, N), in order."""
    from rapidfuzz import fuzz, process, utils

    clean = [utils.default_process(name) for name in names]
    for rows in slices(len(mentions), len(names)):
        asked = [utils.default_process(mention) for mention in mentions[rows]]
        yield process.cdist(asked, clean, scorer=fuzz.ratio, workers=-1, dtype=np.float32)


def slices(queries: int, names: int) -> Iterator[slice]:
    """Queries a part at a time, so that the scores of all names can be held."""
    step = max(1, _SCORES // max(1, names))
    for start in range(0, queries, step):
        yield slice(start, min(start + step, queries))
