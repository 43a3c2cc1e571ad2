"""Candidates for links between two sides, and what speaks for each of them.

    texts = TextEvidence(ours, theirs)                      # spelling: the same for any links
    evidence = Evidence(texts, links, graph, ids)           # and what is learnt from some links
    pairs = evidence.pairs(asked, allowed)                  # candidates with features, as arrays

Everything is computed for all pairs at once, in blocks. A kind of evidence that is absent (no
facts, too few links, no encoder, no decoder) brings no candidates, and its features are NaN, which
trees can read. An entity of ours is asked by its label and aliases; of its names and those of a
candidate, the two that are spelled most alike are compared.

Vectors are compared by cosine, and by CSLS (Conneau et al., 2018), which subtracts how close either
name is to the other side's names at all. Mentions have no CSLS: how close a name is to mentions
would depend on which of them are asked together.

Dimension letters: P candidate pairs, K features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from prixlm.arrays import group_starts, pair_keys
from prixlm.linking import translation
from prixlm.linking.grams import (
    Distinct,
    Pairs,
    dense_dots,
    nearest,
    nearest_among,
    pair_dots,
    renumber,
    unite,
)
from prixlm.linking.graph import Neighbourhoods
from prixlm.linking.names import NameSide
from prixlm.threads import usable_cores
from prixlm.types import Array

PER_SOURCE = 20
"""Candidates that each kind of evidence brings for an entity."""
CSLS_NEIGHBOURS = 10
"""Names of the other side whose mean cosine says how crowded the space around a name is."""
MIN_LINKS = 50
"""Links below which nothing is learnt from them."""
SCORES = (
    *("spelling", "romanised", "chunks", "maps", "facts", "neighbours", "around", "encoder"),
    *("csls", "decoder", "decoder_reverse"),
)
"""Features by which the candidates of an entity, and the entities of a candidate, compete."""
_TEXT = (
    *("exact", "words", "length", "other_length", "digits", "grams", "romanised_grams"),
    *("alias",),
)
_GRAPH = ("relations", "degree", "other_degree", "linked", "other_linked", "shared")
FEATURES = (
    *SCORES,
    *_TEXT,
    *_GRAPH,
    *(f"{name}_gap" for name in SCORES),  # above the best other candidate of the entity
    *(f"{name}_back" for name in SCORES),  # above the best other entity of the candidate
)
KINDS: dict[str, tuple[str, ...]] = {
    "spelling": ("spelling", "exact", "grams"),
    "romanised": ("romanised", "romanised_grams", "words"),
    "words": ("chunks", "maps"),
    "graph": ("facts", "neighbours", "around", *_GRAPH),
    "encoder": ("encoder", "csls"),
    "decoder": ("decoder", "decoder_reverse"),
}
"""Features by kind of evidence. Lengths, digits and aliases belong to all kinds."""


@dataclass(frozen=True)
class CandidatePairs:
    """Candidates of some entities, sorted by entity, then candidate."""

    left: Array  # (P,) entities of ours
    right: Array  # (P,) entities of theirs
    name: Array  # (P,) row of the name that matched
    features: Array  # (P, K) float32

    def __len__(self) -> int:
        return len(self.left)

    def column(self, name: str) -> Array:
        """Return one feature: (P,)."""
        return np.asarray(self.features[:, FEATURES.index(name)])

    def select(self, rows: Array) -> "CandidatePairs":
        """Return some of the pairs; rows: numbers or a mask."""
        return CandidatePairs(
            self.left[rows], self.right[rows], self.name[rows], self.features[rows]
        )

    def origins(self, rows: Array) -> list[str]:
        """Return the kinds of evidence that put each of some pairs first, joined by commas."""
        kinds = []
        for kind, features in KINDS.items():
            is_first = np.zeros(len(rows), bool)
            for name in (name for name in features if name in SCORES):
                score = self.column(name)[rows]
                gap = self.column(f"{name}_gap")[rows]
                is_first |= (score > 0) & ~(gap <= 0)
            kinds.append(np.where(is_first, kind, ""))
        return [", ".join(filter(None, row)) for row in np.stack(kinds, axis=1).tolist()]


class TextEvidence:
    """Both sides' names, and the candidates of similar spelling or similar vectors."""

    def __init__(
        self,
        ours: NameSide,
        theirs: NameSide,
        *,
        without: Sequence[str] = (),
        per_source: int = PER_SOURCE,
        translated: tuple[Pairs, Pairs] | None = None,
        near: Pairs | None = None,
    ) -> None:
        """Encode our names. without: kinds of evidence that are left out.

        near: the names of the nearest vectors, if an index has found them; None: searched here.
        translated: how likely a decoder writes an entity of theirs for one of ours, and one of ours
        for one of theirs, both as entities of ours and theirs, for its best answers.
        """
        self.ours, self.theirs, self.without = ours, theirs, tuple(without)
        self.per_source = per_source
        # (names of ours, D) each: n-grams, weighed by the names of the other side.
        self.spelled = theirs.spelled_index.encode(ours.folded)
        self.read = theirs.read_index.encode(ours.read)
        self.words, self.distinct = Distinct.of(ours.folded), Distinct.of(ours.read)
        self.vectors: tuple[Array, Array] | None = None
        if ours.vectors is not None and theirs.vectors is not None and "encoder" not in without:
            self.vectors = ours.vectors, theirs.vectors
        self.translated = None if "decoder" in without else translated
        # Candidates that were found elsewhere: rows of names of both sides.
        self.found = [] if near is None else [near]
        for pairs in self.translated or ():
            rows = ours.labels[pairs.left], theirs.labels[pairs.right]
            self.found.append(Pairs(*rows, pairs.score))
        self._is_near_found = near is not None

    def search(self, rows: Array, among: Array | None) -> list[Pairs]:
        """Return the names most like some of ours: rows of names of both sides, and the score.

        rows: (A,) of our names. among: ascending rows of the names that may answer; None: all.
        They are picked before the search: else namesakes that may not answer fill all places.
        """
        found, k, theirs = [], self.per_source, self.theirs
        if "spelling" not in self.without:
            once = self.words.select(rows)
            near = theirs.spelled_index.search(self.spelled[once.first], k, among=among)
            found.append(once.expand(near))
        if "romanised" not in self.without:
            once = self.distinct.select(rows)
            near = theirs.read_index.search(self.read[once.first], k, among=among)
            found.append(once.expand(near))
        if self.vectors is not None and not self._is_near_found:
            found.append(nearest_dense(self.vectors[0][rows], self.vectors[1], k, among))
        return [Pairs(rows[pairs.left], pairs.right, pairs.score) for pairs in found]

    @cached_property
    def crowding(self) -> tuple[Array, Array]:
        """Return the mean cosine of each name to its nearest names of the other side: (N,) each.

        It costs a search for each side, once for all links that are known in turn.
        """
        assert self.vectors is not None
        from prixlm.entities.index import mean_similarity

        ours, theirs = self.vectors
        return (
            mean_similarity(ours, theirs, CSLS_NEIGHBOURS),
            mean_similarity(theirs, ours, CSLS_NEIGHBOURS),
        )

    def csls(self, row: Array, name: Array, cosine: Array) -> Array:
        """Return twice the cosine of two names, less how crowded it is around both: (P,)."""
        ours, theirs = self.crowding
        return np.asarray(2 * cosine - ours[row] - theirs[name])


class Evidence:
    """All evidence, as far as some links are known."""

    def __init__(
        self,
        texts: TextEvidence,
        links: tuple[Array, Array] | None = None,
        graph: Neighbourhoods | None = None,
        ids: tuple[Array, Array] | None = None,
        *,
        mutual: bool = True,
        seed: int = 0,
    ) -> None:
        """Learn from links. links: entities of ours, and theirs. ids: both sides in the graph.

        mutual: entities compete for a candidate. Mentions do not: many may mean the same, and what
        is said of one must not depend on the others.
        """
        self.texts, self.mutual = texts, mutual
        self.graph = None if graph is None or ids is None or "graph" in texts.without else graph
        self.ids = ids or (np.zeros(0, np.int64),) * 2
        self.chunks: tuple[sp.csr_matrix, sp.csr_matrix] | None = None
        self.maps: tuple[Array, Array] | None = None
        if links is not None and len(links[0]) >= MIN_LINKS and "words" not in texts.without:
            self._learn(*links, seed)

    def _learn(self, left: Array, right: Array, seed: int) -> None:
        """Learn from linked names which n-grams stand for which."""
        if len(left) > translation.MAX_LINKS:
            drawn = np.random.default_rng(seed).permutation(len(left))[: translation.MAX_LINKS]
            left, right = left[np.sort(drawn)], right[np.sort(drawn)]
        ours, theirs = self.texts.ours, self.texts.theirs
        rows, others = ours.labels[left], theirs.labels[right]
        learnt = translation.learn_chunks(ours.chunks[rows], theirs.chunks[others])
        self.chunks = translation.translate(ours.chunks, learnt), theirs.chunks
        directions = ours.directions, theirs.directions
        maps = translation.learn_maps(ours.chunks, theirs.chunks, rows, others, directions)
        self.maps = maps.encode_ours(ours.chunks), maps.encode_theirs(theirs.chunks)

    def pairs(self, asked: Array, allowed: Array) -> CandidatePairs:
        """Return the candidates of some entities among the allowed ones, with all features.

        asked: (A,) entities of ours, ascending. allowed: a mask over the entities of theirs.
        """
        return self.describe(*self.candidates(asked, allowed))

    def candidates(self, asked: Array, allowed: Array) -> tuple[Array, Array]:
        """Return the same as rows of names of both sides, sorted: (P,) each."""
        texts = self.texts
        rows = np.flatnonzero(np.isin(texts.ours.owner, asked))
        among = None if allowed.all() else np.flatnonzero(allowed[texts.theirs.owner])
        found = [_only(pairs, rows) for pairs in texts.found] + texts.search(rows, among)
        if self.chunks is not None and self.maps is not None:
            ours, theirs = self.chunks
            once, k = texts.distinct.select(rows), texts.per_source
            close = nearest_among(ours[once.first], theirs, k, among)
            near = nearest_dense(self.maps[0][once.first], self.maps[1], k, among)
            for pairs in (once.expand(close), once.expand(near)):
                found.append(Pairs(rows[pairs.left], pairs.right, pairs.score))
        if self.graph is not None:
            found += self._neighbours(self.graph, asked, np.flatnonzero(allowed))
        if not found:
            found = [Pairs(*(np.zeros(0, np.int64),) * 3)]
        row, name = unite(found)
        kept = allowed[texts.theirs.owner[name]]
        return row[kept], name[kept]

    def _neighbours(self, graph: Neighbourhoods, asked: Array, targets: Array) -> list[Pairs]:
        """Return candidates that share facts, or lie in a similar neighbourhood."""
        rows, others = self.ids[0][asked], self.ids[1][targets]
        mine, names = self.texts.ours.labels[asked], self.texts.theirs.labels[targets]
        k = self.texts.per_source
        near = nearest(graph.facts[rows], graph.facts[others].T.tocsr(), k)
        around = nearest_dense(graph.around[rows], graph.around[others], k)
        return [Pairs(mine[x.left], names[x.right], x.score) for x in (near, around)]

    def describe(self, row: Array, name: Array) -> CandidatePairs:
        """Return one pair for each entity and candidate, by their best names, with all features.

        row, name: (P,) rows of names of ours and of theirs, sorted by `row`.
        """
        texts = self.texts
        columns = dict.fromkeys(FEATURES, np.full(len(row), np.nan, np.float32))
        columns |= _spelling(texts, row, name)
        left, right = texts.ours.owner[row], texts.theirs.owner[name]
        # Of several names of an entity and of a candidate, those that are spelled most alike.
        better = np.fmax(columns["spelling"], columns["romanised"])
        order = np.lexsort((-better, right, left))
        first = order[group_starts(left[order], right[order])]
        left, right, row, name = left[first], right[first], row[first], name[first]
        columns = {key: values[first] for key, values in columns.items()}
        if self.chunks is not None and self.maps is not None:
            columns["chunks"] = pair_dots(*self.chunks, row, name)
            columns["maps"] = dense_dots(*self.maps, row, name)
        if self.graph is not None:
            columns |= _compare_graph(self.graph, self.ids[0][left], self.ids[1][right])
        if texts.vectors is not None:
            columns["encoder"] = dense_dots(*texts.vectors, row, name)
            if self.mutual and len(row):
                columns["csls"] = texts.csls(row, name, columns["encoder"])
        for key, found in zip(KINDS["decoder"], texts.translated or (), strict=False):
            columns[key] = scores_of(found, left, right)
        for key in (key for kind in texts.without for key in KINDS[kind]):
            columns[key] = np.full(len(left), np.nan, np.float32)
        for key in SCORES:
            columns[f"{key}_gap"] = gap_to_others(columns[key], left)
            if self.mutual:
                columns[f"{key}_back"] = gap_to_others(columns[key], right)
        features = np.stack([columns[key] for key in FEATURES], axis=1).astype(np.float32)
        return CandidatePairs(left, right, name, features)


def _spelling(texts: TextEvidence, row: Array, name: Array) -> dict[str, Array]:
    """Return the features of spelling: (P,) each."""
    from rapidfuzz import fuzz, process

    a, b = texts.ours, texts.theirs
    workers = usable_cores()

    def compare(ours: list[str], theirs: list[str], scorer: Callable[..., float]) -> Array:
        pairs = [ours[i] for i in row.tolist()], [theirs[i] for i in name.tolist()]
        score = process.cpdist(*pairs, scorer=scorer, dtype=np.float32, workers=workers)
        return np.asarray(score / np.float32(100))

    spelled = compare(a.folded, b.folded, fuzz.ratio)
    digits = np.where(a.digits[row] == b.digits[name], np.float32(1), np.float32(0))
    digits[(a.digits[row] < 0) & (b.digits[name] < 0)] = np.nan  # neither has any
    return {
        "spelling": spelled,
        "romanised": compare(a.read, b.read, fuzz.ratio),
        "words": compare(a.read, b.read, fuzz.token_set_ratio),
        "exact": (spelled == 1).astype(np.float32),
        "length": a.length[row],
        "other_length": b.length[name],
        "digits": digits,
        "grams": pair_dots(texts.spelled, b.spelled_index.vectors, row, name),
        "romanised_grams": pair_dots(texts.read, b.read_index.vectors, row, name),
        "alias": b.is_alias[name],
    }


def _compare_graph(graph: Neighbourhoods, left: Array, right: Array) -> dict[str, Array]:
    """Return the features of the graph: (P,) each. left, right: entities of the graph."""
    matrices = {"neighbours": graph.neighbours, "facts": graph.facts, "relations": graph.relations}
    columns = {key: pair_dots(m, m, left, right) for key, m in matrices.items()}
    columns["around"] = dense_dots(graph.around, graph.around, left, right)
    # A cosine of 1 is weak if each side has one linked neighbour, and strong if each has ten.
    fewer = np.minimum(graph.num_linked[left], graph.num_linked[right])
    columns["shared"] = columns["facts"] * np.sqrt(fewer)
    for key in ("neighbours", "facts", "shared"):  # no linked neighbour: nothing to share
        columns[key][fewer == 0] = np.nan
    columns |= {"degree": graph.degree[left], "other_degree": graph.degree[right]}
    return columns | {"linked": graph.num_linked[left], "other_linked": graph.num_linked[right]}


def scores_of(found: Pairs, left: Array, right: Array) -> Array:
    """Return the score of pairs in a search, 0 for those that it did not find: (P,) float32."""
    key = pair_keys(found.left, found.right)
    order = np.argsort(key)
    asked = pair_keys(left, right)
    at = np.searchsorted(key[order], asked)
    scores = np.zeros(len(asked), np.float32)
    has = np.flatnonzero(at < len(order))
    has = has[key[order[at[has]]] == asked[has]]
    scores[has] = found.score[order[at[has]]]
    return scores


def gap_to_others(score: Array, group: Array) -> Array:
    """Return how far each score is above the best of the others of its group: (P,).

    It is below 0 for all but the best. NaN where the score is missing or has no other beside it.
    """
    value = np.where(np.isnan(score), -np.inf, score)
    order = np.lexsort((-value, group))
    starts = group_starts(group[order])
    sizes = np.diff(np.append(starts, len(order)))
    # (groups,) the two highest scores of each group.
    best, second = value[order[starts]], np.full(len(starts), -np.inf)
    several = sizes > 1
    second[several] = value[order[starts[several] + 1]]
    other = np.repeat(best, sizes)
    other[starts] = second
    with np.errstate(invalid="ignore"):
        gap = value[order] - other
    gaps = np.empty(len(order), np.float32)
    gaps[order] = np.where(np.isfinite(gap), gap, np.nan)
    return gaps


def nearest_dense(queries: Array, names: Array, k: int, among: Array | None = None) -> Pairs:
    """Return the k rows of `names` with the highest dot product with each query, if above 0.

    among: ascending rows that are searched; None: all.
    """
    if among is not None:
        return renumber(nearest_dense(queries, names[among], k), among)
    if not len(names):
        return Pairs(*(np.zeros(0, np.int64),) * 3)
    from prixlm.entities.index import NeighbourIndex, repeatable_kind

    index = NeighbourIndex.build(names, kind=repeatable_kind(len(names)))
    found = index.search(queries, min(k, len(names)))
    row = np.broadcast_to(np.arange(len(queries))[:, None], found.entity.shape)
    kept = (found.entity >= 0) & (found.score > 0)
    return Pairs(row[kept], found.entity[kept].astype(np.int64), found.score[kept])


def _only(pairs: Pairs, asked: Array) -> Pairs:
    kept = np.isin(pairs.left, asked)
    return Pairs(pairs.left[kept], pairs.right[kept], pairs.score[kept])
