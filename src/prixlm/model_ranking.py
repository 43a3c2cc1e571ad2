"""A Prix-LM as a ranker: objects by what the model would write (Sec. 3.2).

    ranker = ModelRanker(Completer("model", kb))                   # Algorithm 1, K = 50
    ranker = ModelRanker(Completer("model", kb), search="exact")   # ranks among all candidates

A beam knows the ranks of what it found, ten by default as in the paper's Hits@10; all others are
beyond. The exact search knows every rank up to `beyond`.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from prixlm.complete import Completer
from prixlm.decode import Found, beam_search, exact_ranks, exact_search
from prixlm.errors import PrixError
from prixlm.metrics import BEYOND
from prixlm.ranking import Queries, Ranked, make_ranked
from prixlm.tokens import Progress

Array = np.ndarray[Any, Any]


class ModelRanker:
    """The decoder, asked by entity and relation ids."""

    def __init__(
        self,
        completer: Completer,
        *,
        search: Literal["beam", "exact"] = "exact",
        beam: int = 50,
        exclude_late: bool = False,
        batch: int = 32,
        name: str = "Prix-LM",
        progress: Progress | None = None,
    ) -> None:
        self.completer, self.model = completer, completer.model
        self.search, self.beam, self.exclude_late = search, beam, exclude_late
        self.batch, self.name, self.progress = batch, name, progress

    def best(self, queries: Queries, k: int) -> Ranked:
        trie = self.completer.trie(queries.lang)

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

        found = list(self._each(queries, search))
        owner = np.repeat(np.arange(len(found)), [len(one.entity) for one in found])
        nothing = [np.zeros(0)]
        entity = np.concatenate([one.entity for one in found] or nothing).astype(np.int64)
        score = np.concatenate([one.score for one in found] or nothing)
        return make_ranked(len(queries), owner, entity, score, k)

    def ranks(self, queries: Queries, objects: Array, beyond: int = BEYOND) -> Array:
        if self.search == "beam":
            ranked = self.best(queries, 10)
            owner = ranked.owners()
            rows = np.flatnonzero(ranked.entity == objects[owner])
            ranks = np.full(len(queries), np.inf)
            ranks[owner[rows]] = rows - ranked.offset[owner[rows]] + 1
            return ranks
        trie = self.completer.trie(queries.lang)
        places = np.flatnonzero(trie.nodes_of(objects) >= 0)  # a name too long has no rank
        asked = objects[places]

        def rank(prefixes: list[list[int]], hidden: list[Array], rows: Array) -> list[Any]:
            return exact_ranks(self.model, trie, prefixes, asked[rows], most=beyond, exclude=hidden)

        found = np.full(len(queries), np.inf)
        for place, one in zip(places, self._each(queries.select(places), rank), strict=True):
            if not one.complete:
                raise PrixError(
                    f"the rank of entity {objects[place]} needs more memory than there is: rank "
                    "with the beam, or in smaller batches."
                )
            found[place] = np.inf if one.rank is None else one.rank
        return found

    def _each(
        self, queries: Queries, work: Callable[[list[list[int]], list[Array], Array], list[Any]]
    ) -> Iterator[Any]:
        """What `work` finds for each query, in their order; long and short ones apart."""
        prefixes = self._prefixes(queries)
        order = np.argsort([len(prefix) for prefix in prefixes], kind="stable")
        results: list[Any] = [None] * len(prefixes)
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
