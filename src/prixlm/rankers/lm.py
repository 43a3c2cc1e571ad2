"""A Prix-LM as a ranker: objects by what the model would write (Sec. 3.2).

    ranker = ModelRanker(Completer("model", kb))                   # Algorithm 1, K = 50
    ranker = ModelRanker(Completer("model", kb), search="exact")   # ranks among all candidates

A beam knows the ranks of what it found, up to ten as in the paper's Hits@10; all others are
beyond. The exact search knows every rank up to `beyond`. Entities of one name cannot be told apart
and share the mean of their ranks; the released code ranks names instead (`by_name`), where each
counts once, and is right for whichever entity was meant.
"""

import logging
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from prixlm.arrays import ragged_ranges
from prixlm.decoding.completer import Completer
from prixlm.decoding.search import Found, Rank, beam_search, exact_ranks, exact_search
from prixlm.decoding.trie import Trie
from prixlm.decoding.walk import score_nodes
from prixlm.metrics import BEYOND
from prixlm.rankers.base import Queries, Ranked, make_ranked
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)


class ModelRanker:
    """The decoder, asked by entity and relation ids."""

    def __init__(
        self,
        completer: Completer,
        *,
        search: Literal["beam", "exact"] = "exact",
        beam: int = 50,
        exclude_late: bool = False,
        by_name: bool = False,
        batch: int = 32,
        name: str = "Prix-LM",
        progress: Progress | None = None,
    ) -> None:
        self.completer, self.model = completer, completer.model
        self.search, self.beam, self.exclude_late = search, beam, exclude_late
        self.by_name = by_name
        self.batch, self.name, self.progress = batch, name, progress
        self._names: dict[str, Trie] = {}

    def best(self, queries: Queries, k: int) -> Ranked:
        trie = self._trie(queries.lang)
        if self.by_name:
            queries, _ = self._name_once(queries, np.full(len(queries), -1))

        def search(prefixes: list[list[int]], hidden: list[Array], _: Array) -> list[Found]:
            if self.search == "exact":
                return exact_search(self.model, trie, prefixes, k, exclude=hidden)
            return beam_search(
                self.model,
                trie,
                prefixes,
                k,
                beam=self.beam,
                exclude=hidden,
                exclude_late=self.exclude_late,
            )

        nothing = Found(np.zeros(0, np.int64), np.zeros(0), -np.inf, True, 0)
        found = list(self._each(queries, search, lambda _: nothing))
        owner = np.repeat(np.arange(len(found)), [len(one.entity) for one in found])
        empty = [np.zeros(0)]
        entity = np.concatenate([one.entity for one in found] or empty).astype(np.int64)
        score = np.concatenate([one.score for one in found] or empty)
        return make_ranked(len(queries), owner, entity, score, k)

    def ranks(self, queries: Queries, objects: Array, beyond: int = BEYOND) -> Array:
        if self.by_name:
            queries, objects = self._name_once(queries, objects)
        if self.search == "beam":
            return self._beam_ranks(queries, objects)
        trie = self._trie(queries.lang)
        places = np.flatnonzero(trie.nodes_of(objects) >= 0)  # a name too long has no rank
        asked = objects[places]

        def rank(prefixes: list[list[int]], hidden: list[Array], rows: Array) -> list[Any]:
            return exact_ranks(self.model, trie, prefixes, asked[rows], most=beyond, exclude=hidden)

        found = np.full(len(queries), np.inf)
        left = []
        beyond_all = Rank(None, -np.inf, 0, 0)
        each = self._each(queries.select(places), rank, lambda _: beyond_all)
        for place, one in zip(places, each, strict=True):
            found[place] = np.inf if one.rank is None else one.rank
            if not one.complete:
                left.append(place)
        if left and self.batch > 1:  # alone it may fit into memory
            alone = copy(self)
            alone.batch = 1
            found[left] = alone.ranks(queries.select(np.array(left)), objects[left], beyond)
        elif left:
            logger.warning(
                "%s: %d ranks need more memory than there is and count as beyond %d",
                self.name,
                len(left),
                beyond,
            )
        return found

    def scores(self, queries: Queries, owner: Array, entity: Array) -> Array:
        trie = self.completer.trie(queries.lang)
        nodes = trie.nodes_of(entity)
        found = np.full(len(owner), -np.inf)
        places = np.flatnonzero(nodes >= 0)  # a name too long cannot be written
        places = places[np.argsort(owner[places], kind="stable")]
        bounds = np.searchsorted(owner[places], np.arange(len(queries) + 1))

        def score(prefixes: list[list[int]], _: list[Array], rows: Array) -> list[Array]:
            counts = bounds[rows + 1] - bounds[rows]
            asked, query = ragged_ranges(bounds[rows], bounds[rows + 1])
            scored = score_nodes(self.model, trie, prefixes, nodes[places[asked]], query)
            return np.split(scored, np.cumsum(counts)[:-1])

        each = list(
            self._each(queries, score, lambda row: np.full(bounds[row + 1] - bounds[row], -np.inf))
        )
        if each:
            found[places] = np.concatenate(each)
        return found

    def _beam_ranks(self, queries: Queries, objects: Array) -> Array:
        """Ranks up to ten, with ties at their mean."""
        ranked = self.best(queries, 10)
        owner = ranked.owners()
        node = self._trie(queries.lang).nodes_of
        own = node(objects)
        same = node(ranked.entity) == own[owner]
        first = np.flatnonzero(same)
        first = first[np.unique(owner[first], return_index=True)[1]]
        asked = owner[first]
        hidden = np.bincount(
            queries.owners()[node(queries.hidden) == own[queries.owners()]],
            minlength=len(queries),
        )
        trie = self._trie(queries.lang)
        equal = (trie.offset[own + 1] - trie.offset[own] - hidden)[asked]
        ranks = np.full(len(queries), np.inf)
        ranks[asked] = first - ranked.offset[asked] + (equal + 1) / 2
        return np.where(ranks > 10, np.inf, ranks)

    def _trie(self, lang: str) -> Trie:
        """The candidates of a language; of one name only the first, where names are ranked."""
        trie = self.completer.trie(lang)
        if self.by_name and lang not in self._names:
            ends = np.flatnonzero(np.diff(trie.offset))
            self._names[lang] = trie.restrict(trie.entity[trie.offset[ends]])
        return self._names[lang] if self.by_name else trie

    def _name_once(self, queries: Queries, objects: Array) -> tuple[Queries, Array]:
        """Every entity as the first of its name; the name of the truth is never hidden."""
        trie = self.completer.trie(queries.lang)

        def first(entities: Array) -> Array:
            node = trie.nodes_of(entities)
            return np.where(node < 0, entities, trie.entity[trie.offset[np.maximum(node, 0)]])

        objects, hidden, owner = first(objects), first(queries.hidden), queries.owners()
        kept = hidden != objects[owner]
        counts = np.bincount(owner[kept], minlength=len(queries))
        offset = np.append(0, np.cumsum(counts))
        return replace(queries, offset=offset, hidden=hidden[kept]), objects

    def _each(
        self,
        queries: Queries,
        work: Callable[[list[list[int]], list[Array], Array], list[Any]],
        nothing: Callable[[int], Any],
    ) -> Iterator[Any]:
        """What `work` finds for each query, in their order; long and short ones apart.

        A query that leaves no room for the longest candidate gets what `nothing` gives.
        """
        prefixes = self._prefixes(queries)
        lengths = np.array([len(prefix) for prefix in prefixes], np.int64)
        too_long = lengths + self._trie(queries.lang).height > self.model.max_length
        if too_long.any():
            logger.warning(
                "%s: %d names are too long to be asked for", self.name, int(too_long.sum())
            )
        results: list[Any] = [
            nothing(row) if too_long[row] else None for row in range(len(lengths))
        ]
        order = np.argsort(lengths, kind="stable")
        order = order[~too_long[order]]
        for start in range(0, len(order), self.batch):
            rows = order[start : start + self.batch]
            hidden = [queries.hidden[queries.offset[row] : queries.offset[row + 1]] for row in rows]
            found = work([prefixes[row] for row in rows], hidden, rows)
            for row, one in zip(rows, found, strict=True):
                results[row] = one
            if self.progress is not None:
                self.progress(f"rank {self.name}, {queries.lang}", start + len(rows), len(order))
        yield from results

    def _prefixes(self, queries: Queries) -> list[list[int]]:
        """What the model reads of each query."""
        ids, place = np.unique(queries.subject, return_inverse=True)
        names = self.completer.kb.names(ids.tolist())
        relations = self.completer.relation_names(queries.lang)
        encode = self.model.encoder.encode
        return [
            encode(names[subject], relations[relation], None)
            for subject, relation in zip(place.tolist(), queries.relation.tolist(), strict=True)
        ]
