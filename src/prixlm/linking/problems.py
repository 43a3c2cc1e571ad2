"""The entities of two languages of a KB as the two sides of a `LinkProblem`.

problem = kb_problem(kb, "el", "en", splits=("train",))
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prixlm.arrays import group_starts
from prixlm.decoding.completer import Completer, SearchConfig
from prixlm.engine.jobs import EngineConfig
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import build_vectors
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.linking.grams import Pairs
from prixlm.linking.graph import Facts
from prixlm.linking.linker import LinkProblem, Links
from prixlm.linking.names import Names
from prixlm.types import Array, Progress, Query

_PART = 1024
"""Names that are translated between two reports of progress."""
_SEARCH = SearchConfig(k=10, beam=20)
"""Of translations that are evidence."""


def kb_problem(
    kb: KB,
    lang: str,
    into: str,
    *,
    splits: Sequence[str] | None = None,
    encoder: EntityEncoder | None = None,
    model: Completer | None = None,
    without: bool = False,
    engine: EngineConfig | None = None,
    progress: Progress | None = None,
) -> LinkProblem:
    """Return the entities of `lang` and those of `into`, with all facts of the KB around them.

    splits: of the facts that are read; None: all. without: take entities that have no link, not
    even a withheld one, to have no counterpart.
    encoder: its vectors are evidence. model: so are its translations of the names, in both
    directions. Both may know the links of the KB, so the confidence is fitted on the withheld links
    of the valid split instead. engine: where the names are encoded, if they were not before.
    """
    if lang == into:
        raise PrixError(f"links from {lang} into {into}: expected two different languages.")
    ids = [np.arange(r.start, r.stop) for r in (kb.entity_range(lang), kb.entity_range(into))]
    vectors = None if encoder is None else build_vectors(kb, encoder, progress, engine)

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
    )
    if encoder is not None or model is not None:
        problem = replace(problem, cases=withheld_links(kb, lang, into, "valid"))
    if model is not None:
        ours = translate_names(model, problem.ours, lang, into, progress)
        theirs = translate_names(model, problem.theirs, into, lang, progress)
        back = Pairs(theirs.right, theirs.left, theirs.score)
        problem = replace(problem, translated=(ours, back))
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


def translate_names(
    model: Completer, names: Names, lang: str, into: str, progress: Progress | None = None
) -> Pairs:
    """Return the model's best translations of all labels, with their probability.

    A label that cannot be asked, because it is too long or has no tokens, has none.
    """
    labels = [names.texts[row] for row in group_starts(names.owner).tolist()]
    first = model.kb.entity_range(into).start
    pairs: list[tuple[int, int, float]] = []
    for start in range(0, len(labels), _PART):
        queries = [Query(lang, label, None, into) for label in labels[start : start + _PART]]
        for row, answers in enumerate(model.answer(queries, _SEARCH), start):
            if not isinstance(answers, PrixError):
                pairs += [(row, one.entity - first, math.exp(one.score)) for one in answers]
        if progress is not None:
            progress(f"translate {lang} to {into}", min(start + _PART, len(labels)), len(labels))
    left, right, score = np.array(pairs, float).reshape(-1, 3).T
    return Pairs(left.astype(np.int64), right.astype(np.int64), score.astype(np.float32))


def read_facts(kb: KB, splits: Sequence[str] | None = None) -> Facts:
    """Return the facts of all languages, of some splits or all."""
    columns: list[list[Array]] = [[np.zeros(0, np.int64)] for _ in range(3)]
    for batch in kb.batches("triples", ["subject", "relation", "object", "split"]):
        kept: Any = slice(None)
        if splits is not None:
            # In Arrow: a KB has millions of facts, and a Python string each would take minutes.
            kept = pc.is_in(batch.column("split"), pa.array(splits, pa.string())).to_numpy(False)
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
