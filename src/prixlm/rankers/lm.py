"""Language models as rankers: objects by the probability that the model writes their name.

    ranker = ModelRanker(Completer("model", kb), search="beam")    # Algorithm 1, K = 50 (Sec. 3.2)
    ranker = ModelRanker(Completer("model", kb), search="exact")   # ranks among all candidates
    ranker = ReadingRanker(kb, Reader(kb, "gemma"))                # a base, asked in words

A beam search gives the ranks of the names that it finds, up to 10 as in the paper's Hits@10; the
exact search gives every rank up to `beyond`. Entities with the same name cannot be told apart and
share the mean of their ranks. The released code ranks names instead (`by_name`): a name counts once
and is right for every entity that has it.

`ReadingRanker` asks a base that no KB was used for (`decoding/reader.py`). What it has read may
answer what no language of the KB states.

Dimension letters: Q queries, N given objects of all queries.
"""

import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np

from prixlm.arrays import (
    group_starts,
    pair_keys,
    ragged_offsets,
    ragged_ranges,
    rank_in_group,
)
from prixlm.decoding.completer import Completer
from prixlm.decoding.reader import Question, Reader
from prixlm.decoding.search import (
    Found,
    Given,
    Rank,
    beam_search,
    beam_search_beside,
    exact_ranks,
    exact_search,
)
from prixlm.decoding.trie import Trie
from prixlm.decoding.walk import score_nodes
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND
from prixlm.rankers.base import (
    NO_PAIRS,
    Answered,
    GivenPairs,
    PairRanker,
    Pairs,
    Queries,
    Ranked,
    Ranker,
    drop_filtered,
    make_ranked,
    read_triples,
    scores_from_pairs,
)
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)
_BEAM_RANKS = 10
"""The ranks that a beam search finds, as in the paper's Hits@10."""

_NOTHING = Found(np.zeros(0, np.int64), np.zeros(0), -np.inf, True, 0)
"""The answers to a query that cannot be asked."""

_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
"""Of a hash that orders the examples of a reader: odd numbers with no pattern in their bits."""

Result = TypeVar("Result")
Prefixes = list[list[int]]
"""The tokens that the model reads of each query."""


class ModelRanker(Ranker):
    """The decoder of a Prix-LM, asked with entity and relation ids."""

    beam: int = 50  # unfinished names per step of a beam search, the paper's K
    turn = 1  # its search scores what is given on the way

    def __init__(
        self,
        completer: Completer,
        *,
        search: Literal["beam", "exact"] = "exact",
        by_name: bool = False,
        batch: int = 32,
        name: str = "Prix-LM",
        progress: Progress | None = None,
        beyond: int = BEYOND,
    ) -> None:
        """Take the model and the KB of a completer. batch: queries that are searched together.

        beyond: the deepest rank that the exact search finds.
        """
        self.completer, self.model = completer, completer.model
        self.search, self.by_name = search, by_name
        self.batch, self.name, self.progress = batch, name, progress
        self.max_rank = _BEAM_RANKS if search == "beam" else beyond
        self._name_tries: dict[str, Trie] = {}

    def best(self, queries: Queries, k: int) -> Ranked:
        """Return the k best objects of each query; fewer if the beam finds fewer."""
        trie = self._trie(queries.lang)
        if self.by_name:
            queries, _ = self._to_names(queries, np.full(len(queries), -1))

        def search(prefixes: Prefixes, filtered: list[Array], _: Array) -> list[Found]:
            if self.search == "exact":
                return exact_search(self.model, trie, prefixes, k, exclude=filtered)
            return beam_search(self.model, trie, prefixes, k, beam=self.beam, exclude=filtered)

        return _to_ranked(self._ask(queries, search, lambda _: _NOTHING), k)

    def ask(self, queries: Queries, k: int, given: GivenPairs = NO_PAIRS) -> Answered:
        """Return the k best objects of each query, and the scores of these and of the given pairs.

        With a beam, the search begins with what is given: a better answer is never missed because
        the beam did not find it. Other pairs are scored when they are asked for.
        """
        if self.by_name or self.search == "exact":
            return super().ask(queries, k, given)
        trie = self.completer.trie(queries.lang)
        # A name that is too long is not in the trie; filtered objects are not answers.
        owner, entity, _ = drop_filtered(queries, (*given, np.zeros(len(given[0]))))
        kept = trie.nodes_of(entity) >= 0
        owner, entity = owner[kept], entity[kept]
        bounds = np.searchsorted(owner, np.arange(len(queries) + 1))

        def search(
            prefixes: Prefixes, filtered: list[Array], chunk: Array
        ) -> list[tuple[Found, Array]]:
            rows, query = ragged_ranges(bounds[chunk], bounds[chunk + 1])
            found, scores = beam_search_beside(
                self.model,
                trie,
                prefixes,
                Given(query, entity[rows]),
                k,
                beam=self.beam,
                exclude=filtered,
            )
            parts = np.split(scores, np.cumsum(bounds[chunk + 1] - bounds[chunk])[:-1])
            return list(zip(found, parts, strict=True))

        def too_long(row: int) -> tuple[Found, Array]:
            return _NOTHING, np.full(bounds[row + 1] - bounds[row], -np.inf)

        answers = self._ask(queries, search, too_long)
        ranked = _to_ranked([found for found, _ in answers], k)
        score = np.concatenate([np.zeros(0), *(scores for _, scores in answers)])
        # All pairs with a score so far; a pair that is both listed and given comes twice.
        pairs = (
            np.concatenate([owner, ranked.owners()]),
            np.concatenate([entity, ranked.entity]),
            np.concatenate([score, ranked.score]),
        )

        def scores(wanted_owner: Array, wanted_entity: Array) -> Array:
            result = scores_from_pairs(pairs, wanted_owner, wanted_entity)
            known = pair_keys(pairs[0], pairs[1])
            rest = np.flatnonzero(~np.isin(pair_keys(wanted_owner, wanted_entity), known))
            if len(rest):
                result[rest] = self.scores(queries, wanted_owner[rest], wanted_entity[rest])
            return result

        return Answered(ranked, scores)

    def ranks(self, queries: Queries, objects: Array, beyond: int = BEYOND) -> Array:
        """Return the rank of one object per query among all candidates; infinity above `beyond`."""
        if self.by_name:
            queries, objects = self._to_names(queries, objects)
        if self.search == "beam":
            return self._beam_ranks(queries, objects)
        return self._exact_ranks(queries, objects, beyond)

    def scores(self, queries: Queries, owner: Array, entity: Array) -> Array:
        """Return the log-probability of entity[i] for query owner[i]; -infinity if it has none."""
        trie = self.completer.trie(queries.lang)
        nodes = trie.nodes_of(entity)
        # (S,) the objects that can be written, sorted by query: those of query i are
        # rows[bounds[i]:bounds[i + 1]]. A name that is too long is not in the trie.
        rows = np.flatnonzero(nodes >= 0)
        rows = rows[np.argsort(owner[rows], kind="stable")]
        bounds = np.searchsorted(owner[rows], np.arange(len(queries) + 1))

        def score(prefixes: Prefixes, _: list[Array], chunk: Array) -> list[Array]:
            selected, query = ragged_ranges(bounds[chunk], bounds[chunk + 1])
            scores = score_nodes(self.model, trie, prefixes, nodes[rows[selected]], query)
            return np.split(scores, np.cumsum(bounds[chunk + 1] - bounds[chunk])[:-1])

        def no_scores(row: int) -> Array:
            return np.full(bounds[row + 1] - bounds[row], -np.inf)

        scores = np.full(len(owner), -np.inf)
        by_query = self._ask(queries, score, no_scores)
        if by_query:
            scores[rows] = np.concatenate(by_query)
        return scores

    def _exact_ranks(self, queries: Queries, objects: Array, beyond: int) -> Array:
        """Return exact ranks; a query that does not fit into memory is asked again alone."""
        trie = self._trie(queries.lang)
        rows = np.flatnonzero(trie.nodes_of(objects) >= 0)  # a name that is too long has no rank
        wanted = objects[rows]

        def rank(prefixes: Prefixes, filtered: list[Array], chunk: Array) -> list[Rank]:
            entities = wanted[chunk]
            return exact_ranks(self.model, trie, prefixes, entities, most=beyond, exclude=filtered)

        beyond_all = Rank(None, -np.inf, 0, 0)
        results = self._ask(queries.select(rows), rank, lambda _: beyond_all)
        ranks = np.full(len(queries), np.inf)
        ranks[rows] = [np.inf if result.rank is None else result.rank for result in results]
        left = rows[np.array([not result.complete for result in results], bool)]
        if len(left) and self.batch > 1:
            alone = copy(self)
            alone.batch = 1
            ranks[left] = alone._exact_ranks(queries.select(left), objects[left], beyond)
        elif len(left):
            logger.warning(
                "%s: %d ranks do not fit into memory and count as beyond %d",
                self.name,
                len(left),
                beyond,
            )
        return ranks

    def _beam_ranks(self, queries: Queries, objects: Array) -> Array:
        """Return ranks up to 10; entities with the same name share the mean of their ranks."""
        trie = self._trie(queries.lang)
        ranked = self.best(queries, _BEAM_RANKS)
        owner, node = ranked.owners(), trie.nodes_of(objects)
        # The first answer of each query with the name of its object.
        has_name = np.flatnonzero(trie.nodes_of(ranked.entity) == node[owner])
        first = has_name[np.unique(owner[has_name], return_index=True)[1]]
        query = owner[first]
        # (Q,) entities with that name that the query does not filter.
        filters_name = trie.nodes_of(queries.filtered) == node[queries.owners()]
        num_filtered = np.bincount(queries.owners()[filters_name], minlength=len(queries))
        num_equal = trie.offset[node + 1] - trie.offset[node] - num_filtered
        ranks = np.full(len(queries), np.inf)
        ranks[query] = first - ranked.offset[query] + (num_equal[query] + 1) / 2
        return np.where(ranks > _BEAM_RANKS, np.inf, ranks)

    def _trie(self, lang: str) -> Trie:
        """Return the candidates of a language; if names are ranked, one entity of each name."""
        trie = self.completer.trie(lang)
        if self.by_name and lang not in self._name_tries:
            # The nodes where a name ends, each with the first entity of that name.
            ends = np.flatnonzero(np.diff(trie.offset))
            self._name_tries[lang] = trie.restrict(trie.entity[trie.offset[ends]])
        return self._name_tries[lang] if self.by_name else trie

    def _to_names(self, queries: Queries, objects: Array) -> tuple[Queries, Array]:
        """Replace every entity by the first one of its name; never filter the name of the truth."""
        trie = self.completer.trie(queries.lang)

        def first_of_name(entities: Array) -> Array:
            node = trie.nodes_of(entities)
            return np.where(node < 0, entities, trie.entity[trie.offset[np.maximum(node, 0)]])

        objects, filtered = first_of_name(objects), first_of_name(queries.filtered)
        owner = queries.owners()
        # Another entity of the same name may be known; the name is then right, not filtered.
        kept = filtered != objects[owner]
        counts = np.bincount(owner[kept], minlength=len(queries))
        return replace(queries, offset=ragged_offsets(counts), filtered=filtered[kept]), objects

    def _ask(
        self,
        queries: Queries,
        work: Callable[[Prefixes, list[Array], Array], Sequence[Result]],
        too_long: Callable[[int], Result],
    ) -> list[Result]:
        """Return what `work` gives for each query, in their order; it is called for batches.

        Batches have prefixes of similar length. work: takes prefixes, filtered objects and rows.
        too_long: gives the result of a query that leaves no room for the longest candidate.
        """
        prefixes = self._prefixes(queries)
        lengths = np.array([len(prefix) for prefix in prefixes], np.int64)
        is_too_long = lengths + self._trie(queries.lang).height > self.model.max_length
        if is_too_long.any():
            logger.warning(
                "%s: not asked about %d of %d subjects, whose names are too long for the model; "
                "they count as wrong",
                self.name,
                int(is_too_long.sum()),
                len(prefixes),
            )
        results = {int(row): too_long(int(row)) for row in np.flatnonzero(is_too_long)}
        # Similar lengths together waste little padding.
        order = np.argsort(lengths, kind="stable")
        order = order[~is_too_long[order]]
        for start in range(0, len(order), self.batch):
            rows = order[start : start + self.batch]
            filtered = [queries.filtered_of(row) for row in rows]
            answers = work([prefixes[row] for row in rows], filtered, rows)
            results.update(zip(rows.tolist(), answers, strict=True))
            if self.progress is not None:
                self.progress(f"rank {self.name}, {queries.lang}", start + len(rows), len(order))
        return [results[row] for row in range(len(queries))]

    def _prefixes(self, queries: Queries) -> Prefixes:
        """Return the tokens that the model reads of each query."""
        # A subject is often asked for several relations: read its name once.
        ids, index = np.unique(queries.subject, return_inverse=True)
        names = self.completer.kb.names(ids.tolist())
        relations = self.completer.relation_names(queries.lang)
        encoder, texts = self.model.encoder, [""] * len(ids)
        if encoder.descriptions:
            texts = self.completer.kb.descriptions(ids.tolist())
        return [
            encoder.encode(
                names[subject], relations[relation], None, texts[subject], lang=queries.lang
            )
            for subject, relation in zip(index.tolist(), queries.relation.tolist(), strict=True)
        ]


class ReadingRanker(PairRanker):
    """A decoder that continues a list of train facts.

    Candidates are the relation's most frequent objects in the language; any other object is scored
    when it is asked for. Examples are chosen by the relation alone, the same ones in each run; a
    fact about the subject itself is never one of them.
    """

    turn = 2  # the most costly, by far: it reads each question once, for all that is proposed
    num_examples: int = 4
    num_candidates: int = 64  # scored for each query

    def __init__(
        self,
        kb: KB,
        reader: Reader,
        splits: Sequence[str] = ("train",),
        *,
        name: str = "reader",
        progress: Progress | None = None,
    ) -> None:
        """Take a reader. splits: whose facts are examples and whose objects are candidates."""
        self.kb, self.reader, self.name, self.progress = kb, reader, name, progress
        self._splits = splits
        self._facts = lru_cache(maxsize=8)(self._read_facts)

    @property
    def identity(self) -> str:
        """A hash of the base, and how it is asked: cached results belong to these."""
        return f"{self.reader.fingerprint} {self.num_examples} {self.num_candidates}"

    def scored(self, queries: Queries) -> Pairs:
        """Return query, object and score of each query's candidates, without filtered ones."""
        return self._score(queries, NO_PAIRS)

    def scores(self, queries: Queries, owner: Array, entity: Array) -> Array:
        """Return the log-probability of entity[i] for query owner[i]; -infinity if it has none."""
        questions = self._questions(queries)
        return self.reader.scores(queries.lang, questions, owner, entity, self.progress)

    def ask(self, queries: Queries, k: int, given: GivenPairs = NO_PAIRS) -> Answered:
        """Return the k best candidates, and the scores of these and of the given pairs at once."""
        pairs = self._score(queries, given)

        def scores(wanted_owner: Array, wanted_entity: Array) -> Array:
            return scores_from_pairs(pairs, wanted_owner, wanted_entity)

        return Answered(make_ranked(len(queries), *pairs, k), scores)

    def _score(self, queries: Queries, given: GivenPairs) -> Pairs:
        """Score the candidates and the given pairs of queries; each pair once."""
        both = zip(self._candidates(queries), given, strict=True)
        owner, entity = np.unique(np.stack([np.concatenate(part) for part in both]), axis=1)
        owner, entity, _ = drop_filtered(queries, (owner, entity, np.zeros(len(owner))))
        score = self.scores(queries, owner, entity)
        known = np.isfinite(score)  # a name may be too long
        return owner[known], entity[known], score[known]

    def _read_facts(self, lang: str) -> Array:
        """Read the facts of a language, (3, T), sorted by relation and then by a fixed hash."""
        facts = read_triples(self.kb, self._splits, lang)
        # A multiplicative hash of the three columns: an order that none of them decides alone.
        factors = np.array(_FACTORS, np.uint64)[:, None]
        mixed = (facts.astype(np.uint64) * factors).sum(axis=0, dtype=np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * factors[0]
        return np.asarray(facts[:, np.lexsort((mixed, facts[1]))])

    def _candidates(self, queries: Queries) -> GivenPairs:
        """Return the most frequent objects of each query's relation: query and entity, (N,)."""
        _, relation, objects = self._facts(queries.lang)
        order = np.lexsort((objects, relation))
        relation, objects = relation[order], objects[order]
        starts = group_starts(relation, objects)
        counts = np.diff(np.append(starts, len(relation)))
        relation, objects = relation[starts], objects[starts]
        # Now each pair of relation and object once: keep the most frequent of each relation.
        order = np.lexsort((objects, -counts, relation))
        order = order[rank_in_group(relation[order]) < self.num_candidates]
        relation, objects = relation[order], objects[order]
        low = np.searchsorted(relation, queries.relation)
        high = np.searchsorted(relation, queries.relation, side="right")
        rows, owner = ragged_ranges(low, high)
        return owner, objects[rows]

    def _questions(self, queries: Queries) -> list[Question]:
        """Return the queries with their examples."""
        subjects, relations, objects = self._facts(queries.lang)
        names = self.kb.relation_names(queries.lang)
        pairs = zip(queries.subject.tolist(), queries.relation.tolist(), strict=True)
        questions = []
        for subject, relation in pairs:
            low, high = np.searchsorted(relations, [relation, relation + 1])
            # Some more than needed: those about the subject are left out, and different objects
            # come first, so that a list does not say the same thing again and again.
            chosen = np.arange(low, min(high, low + 4 * self.num_examples))
            chosen = chosen[(subjects[chosen] != subject) & (objects[chosen] != subject)]
            _, first = np.unique(objects[chosen], return_index=True)
            repeats = np.setdiff1d(np.arange(len(chosen)), first)
            chosen = chosen[np.concatenate([np.sort(first), repeats])][: self.num_examples]
            examples = zip(subjects[chosen].tolist(), objects[chosen].tolist(), strict=True)
            questions.append(Question(subject, names[relation], tuple(examples)))
        return questions


def _to_ranked(answers: Sequence[Found], k: int) -> Ranked:
    """Return the answers to all queries as one ragged array."""
    owner = np.repeat(np.arange(len(answers)), [len(found.entity) for found in answers])
    empty = np.zeros(0)
    entity = np.concatenate([empty, *(found.entity for found in answers)]).astype(np.int64)
    score = np.concatenate([empty, *(found.score for found in answers)])
    return make_ranked(len(answers), owner, entity, score, k)
