"""The entities of two languages of a KB as the two sides of a `LinkProblem`.

problem = kb_problem(kb, "el", "en", splits=("train",))
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import build_vectors
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.linking.graph import Facts
from prixlm.linking.linker import LinkProblem, Links
from prixlm.linking.names import Names
from prixlm.types import Array, Progress


def kb_problem(
    kb: KB,
    lang: str,
    into: str,
    *,
    splits: Sequence[str] | None = None,
    encoder: EntityEncoder | None = None,
    without: bool = False,
    progress: Progress | None = None,
) -> LinkProblem:
    """Return the entities of `lang` and those of `into`, with all facts of the KB around them.

    splits: of the facts that are read; None: all. without: take entities that have no link, not
    even a withheld one, to have no counterpart.
    encoder: its vectors are evidence. It may know the links of the KB, so the confidence is fitted
    on the withheld links of the valid split instead.
    """
    if lang == into:
        raise PrixError(f"links from {lang} into {into}: expected two different languages.")
    ids = [np.arange(r.start, r.stop) for r in (kb.entity_range(lang), kb.entity_range(into))]
    vectors = None if encoder is None else build_vectors(kb, encoder, progress)

    def read(code: str) -> Names:
        if vectors is None:
            return read_names(kb, code)
        entities = kb.entity_range(code)  # their names are adjacent, in the same order
        start, end = np.searchsorted(vectors.owner, [entities.start, entities.stop])
        return read_names(kb, code, np.asarray(vectors.vectors[start:end]))

    concept = kb.concepts().astype(np.int64)
    problem = LinkProblem(
        read(lang),
        read(into),
        ids=(ids[0], ids[1]),
        concept=concept,
        facts=read_facts(kb, splits),
        cases=None if encoder is None else withheld_links(kb, lang, into, "valid"),
    )
    if not without:
        return problem
    known = [problem.links()[0]]
    if kb.withholds_links:
        known += [withheld_links(kb, lang, into, split)[0] for split in ("valid", "test")]
    unlinked = np.setdiff1d(np.arange(len(ids[0])), np.concatenate(known))
    return replace(problem, without=unlinked)


def read_names(kb: KB, lang: str, vectors: Array | None = None) -> Names:
    """Return the names and aliases of a language's entities, which are numbered from 0."""
    first = kb.entity_range(lang).start
    texts: list[str] = []
    owner = [np.zeros(0, np.int64)]  # one array a batch
    for entities, some in kb.all_names(lang):
        owner.append(entities.astype(np.int64) - first)
        texts += some
    return Names(texts, np.concatenate(owner), vectors, lang)


def read_facts(kb: KB, splits: Sequence[str] | None = None) -> Facts:
    """Return the facts of all languages, of some splits or all."""
    columns: list[list[Array]] = [[np.zeros(0, np.int64)] for _ in range(3)]
    for batch in kb.batches("triples", ["subject", "relation", "object", "split"]):
        kept: Any = slice(None)
        if splits is not None:
            kept = np.isin(np.asarray(batch.column("split").to_pylist(), object), list(splits))
        for column, name in zip(columns, ("subject", "relation", "object"), strict=True):
            column.append(batch.column(name).to_numpy()[kept].astype(np.int64))
    return Facts(*(np.concatenate(column) for column in columns))


def withheld_links(kb: KB, lang: str, into: str, split: str) -> Links:
    """Return the links that a split withholds, as positions; of several counterparts the first."""
    pairs = [np.asarray(column, np.int64) for column in kb.withheld_links(split).columns]
    a, b = np.concatenate(pairs), np.concatenate(pairs[::-1])  # in both directions
    ours, theirs = kb.entity_range(lang), kb.entity_range(into)
    kept = (a >= ours.start) & (a < ours.stop) & (b >= theirs.start) & (b < theirs.stop)
    order = np.lexsort((b[kept], a[kept]))
    left, first = np.unique(a[kept][order], return_index=True)
    return left - ours.start, b[kept][order][first] - theirs.start
