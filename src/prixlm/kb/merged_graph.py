"""The triples of all languages as one graph: entities merged along their links.

Nodes are concepts, so the same fact in several languages is one edge, with the languages that state
it.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from prixlm.arrays import group_starts
from prixlm.kb.store import KB
from prixlm.types import Array


@dataclass(frozen=True)
class MergedGraph:
    """N edges between concepts, in both directions, sorted by (source, target, relation).

    Each edge is there once. The inverse of relation r is r + R, for R relations of the KB. Edge i
    is stated in the languages lang[offset[i]:offset[i + 1]], as indices into `KB.languages`.
    """

    source: Array  # (N,) concept
    target: Array  # (N,) concept
    relation: Array  # (N,) from 0 to 2R - 1
    offset: Array  # (N + 1,) into `lang`
    lang: Array  # languages of all edges, one edge after the other

    def __len__(self) -> int:
        return len(self.source)


_READ: WeakKeyDictionary[KB, dict[tuple[str, ...], MergedGraph]] = WeakKeyDictionary()


def read_merged(kb: KB, splits: Sequence[str] = ("train",)) -> MergedGraph:
    """Return the graph of some splits, of all languages; read once for each opened KB."""
    graphs = _READ.setdefault(kb, {})
    key = tuple(sorted(set(splits)))
    if key not in graphs:
        graphs[key] = _read(kb, key)
    return graphs[key]


def _read(kb: KB, splits: Sequence[str]) -> MergedGraph:
    concept = kb.concepts().astype(np.int64)
    lang_index = {lang: index for index, lang in enumerate(kb.languages)}
    blocks = [np.zeros((4, 0), np.int64)]  # (4, rows): source, relation, target, language
    columns = ["lang", "subject", "relation", "object"]
    batches = (kb.batches("triples", columns, split=split) for split in splits)
    for batch in itertools.chain(*batches):
        subject, relation, object_ = (
            np.asarray(batch.column(place)).astype(np.int64) for place in (1, 2, 3)
        )
        lang = np.array([lang_index[code] for code in batch.column(0).to_pylist()])
        blocks.append(np.stack([concept[subject], relation, concept[object_], lang]))
    a, r, b, lang = np.concatenate(blocks, axis=1)
    # Both directions, sorted so that the same edge and then the same language are adjacent.
    a, b = np.concatenate([a, b]), np.concatenate([b, a])
    r, lang = np.concatenate([r, r + kb.num_relations]), np.tile(lang, 2)
    order = np.lexsort((lang, r, b, a))
    a, b, r, lang = a[order], b[order], r[order], lang[order]
    # A language may state one edge several times, of entities of the same concept.
    kept = group_starts(a, b, r, lang)
    a, b, r, lang = a[kept], b[kept], r[kept], lang[kept]
    first = group_starts(a, b, r)
    return MergedGraph(a[first], b[first], r[first], np.append(first, len(a)), lang)
