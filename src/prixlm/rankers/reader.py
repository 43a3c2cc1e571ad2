"""A ranker that reads: a language model asked in words, without any training on the KB.

    ranker = ReadingRanker(kb, "gemma", ("train",))

What a decoder has read may answer what no language of the KB states. It is asked by continuing a
list: a few train facts of the relation, then the question.

    Finland, capital: Helsinki
    France, capital: Paris
    Estonia, capital:

An object's score is the log-probability of its name and of the end of the line. Candidates are the
relation's most frequent objects in the language; any other object is scored when it is asked for.
Names of all candidates share a trie, the question is read once, and tokens that several names begin
with go through the model once.

The vocabulary is trimmed to the pieces of the KB's names: probabilities are those among names, and
their last step is several times faster. Examples are chosen by the relation alone, the same ones in
each run; a fact about the subject itself is never one of them.

Dimension letters: Q queries, N pairs of a query and an object.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from prixlm.arrays import group_starts, ragged_ranges, rank_in_group
from prixlm.decoding.trie import Trie
from prixlm.decoding.walk import score_nodes
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.lm.bases import base_fingerprint
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import encode_names, make_ragged
from prixlm.lm.trim import pieces_to_keep
from prixlm.rankers.base import (
    NO_PAIRS,
    Answered,
    GivenPairs,
    PairRanker,
    Pairs,
    Queries,
    drop_filtered,
    make_ranked,
    read_triples,
    scores_from_pairs,
)
from prixlm.types import Array, Progress

NUM_EXAMPLES = 4
NUM_CANDIDATES = 64
"""The relation's most frequent objects that are scored for each query."""
_LONGEST = 48
"""Most tokens of a candidate's name; longer ones have no score."""
_ROOM = 1024
"""Most tokens of a question with its examples; examples that do not fit are left out."""


class ReadingRanker(PairRanker):
    """A decoder that continues a list of facts."""

    def __init__(
        self,
        kb: KB,
        base: Path | str,
        splits: Sequence[str] = ("train",),
        *,
        num_examples: int = NUM_EXAMPLES,
        num_candidates: int = NUM_CANDIDATES,
        batch: int = 8,
        name: str = "reader",
        progress: Progress | None = None,
    ) -> None:
        """Load a base. splits: whose facts are examples and whose objects are candidates.

        batch: queries that are read together.
        """
        self.kb, self.name, self.batch, self.progress = kb, name, batch, progress
        self.num_examples, self.num_candidates = num_examples, num_candidates
        self.model = _load_reader(kb, base)
        self.identity = f"{base_fingerprint(base)} {num_examples} {num_candidates}"
        # (3, T) sorted by relation, and by a hash within it: the order of the examples.
        self._splits = splits
        self._facts = lru_cache(maxsize=8)(self._read_facts)
        self._tries = lru_cache(maxsize=4)(self._make_trie)
        tokenizer = self.model.encoder.tokenizer
        # A tokenizer of SentencePiece may put a space in front by itself.
        self._space = "" if _adds_space(tokenizer) else " "
        self._comma, self._colon = encode_names(tokenizer, [",", ":"])

    def scored(self, queries: Queries) -> Pairs:
        """Return query, object and score of each query's candidates, without filtered ones."""
        owner, entity = self._candidates(queries)
        owner, entity, _ = drop_filtered(queries, (owner, entity, np.zeros(len(owner))))
        return owner, entity, self.scores(queries, owner, entity)

    def scores(self, queries: Queries, owner: Array, entity: Array) -> Array:
        """Return the log-probability of entity[i] for query owner[i]; -infinity if too long."""
        trie = self._tries(queries.lang)
        nodes = trie.nodes_of(entity)
        # (S,) the pairs that can be scored, sorted by query.
        rows = np.flatnonzero(nodes >= 0)
        rows = rows[np.argsort(owner[rows], kind="stable")]
        bounds = np.searchsorted(owner[rows], np.arange(len(queries) + 1))
        asked = np.flatnonzero(np.diff(bounds))
        prompts = dict(zip(asked.tolist(), self._prompts(queries, asked), strict=True))
        # Similar lengths together waste little padding.
        asked = asked[np.argsort([len(prompts[row]) for row in asked.tolist()], kind="stable")]
        scores = np.full(len(owner), -np.inf)
        for start in range(0, len(asked), self.batch):
            chunk = asked[start : start + self.batch]
            selected, query = ragged_ranges(bounds[chunk], bounds[chunk + 1])
            found = score_nodes(
                self.model,
                trie,
                [prompts[row] for row in chunk.tolist()],
                nodes[rows[selected]],
                query,
            )
            scores[rows[selected]] = found
            if self.progress is not None:
                done = start + len(chunk)
                self.progress(f"read {self.name}, {queries.lang}", done, len(asked))
        return scores

    def ask(self, queries: Queries, k: int, given: GivenPairs = NO_PAIRS) -> Answered:
        """Return the k best candidates, and the scores of these and of the given pairs at once."""
        candidates = self._candidates(queries)
        pairs = np.stack([np.concatenate(part) for part in zip(candidates, given, strict=True)])
        owner, entity = np.unique(pairs, axis=1)
        owner, entity, _ = drop_filtered(queries, (owner, entity, np.zeros(len(owner))))
        scored = owner, entity, self.scores(queries, owner, entity)

        def scores(wanted_owner: Array, wanted_entity: Array) -> Array:
            return scores_from_pairs(scored, wanted_owner, wanted_entity)

        finite = np.isfinite(scored[2])
        ranked = make_ranked(len(queries), *(part[finite] for part in scored), k)
        return Answered(ranked, scores)

    # --- candidates and examples ------------------------------------------------------------------

    def _read_facts(self, lang: str) -> Array:
        """Read the facts of a language, (3, T), sorted by relation and then by a fixed hash."""
        facts = read_triples(self.kb, self._splits, lang)
        keys = self.kb.relation_keys()
        salt = np.array([_hash(key) for key in keys], np.uint64)
        # A multiplicative hash of subject and object: an order that no column decides.
        mixed = facts[0].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= (facts[2].astype(np.uint64) + salt[facts[1]]) * np.uint64(0xC2B2AE3D27D4EB4F)
        return facts[:, np.lexsort((mixed, facts[1]))]

    def _candidates(self, queries: Queries) -> tuple[Array, Array]:
        """Return the most frequent objects of each query's relation: query and entity, (N,)."""
        _, relation, objects = self._facts(queries.lang)
        order = np.lexsort((objects, relation))
        relation, objects = relation[order], objects[order]
        starts = group_starts(relation, objects)
        counts = np.diff(np.append(starts, len(relation)))
        relation, objects = relation[starts], objects[starts]
        order = np.lexsort((objects, -counts, relation))
        order = order[rank_in_group(relation[order]) < self.num_candidates]
        relation, objects = relation[order], objects[order]
        low, high = (
            np.searchsorted(relation, queries.relation, side) for side in ("left", "right")
        )
        rows, owner = ragged_ranges(low, high)
        return owner, objects[rows]

    def _prompts(self, queries: Queries, rows: Array) -> list[list[int]]:
        """Return the tokens that the model reads of these queries."""
        subjects, relations, objects = self._facts(queries.lang)
        names = self.kb.relation_names(queries.lang)
        prompts = []
        for subject, relation in zip(
            queries.subject[rows].tolist(), queries.relation[rows].tolist(), strict=True
        ):
            low, high = np.searchsorted(relations, [relation, relation + 1])
            # Some more than needed: those about the subject are left out.
            chosen = np.arange(low, min(high, low + 4 * self.num_examples))
            chosen = chosen[(subjects[chosen] != subject) & (objects[chosen] != subject)]
            # Different objects first, so that a list does not say the same thing again and again.
            _, first = np.unique(objects[chosen], return_index=True)
            chosen = chosen[[*np.sort(first), *np.setdiff1d(np.arange(len(chosen)), first)]]
            chosen = chosen[: self.num_examples]
            facts = [(subjects[row], objects[row]) for row in chosen.tolist()]
            prompts.append(self._write(subject, names[relation], facts))
        return prompts

    def _write(self, subject: int, relation: str, examples: list[tuple[int, int]]) -> list[int]:
        """Return the tokens of a list of facts that ends with a question."""
        ids = [entity for fact in examples for entity in fact]
        texts = self.kb.names([subject, *ids])
        named = iter(texts[1:])
        lines = [*((name, next(named)) for name in named), (texts[0], "")]
        parts = [[name, self._space + relation, self._space + last] for name, last in lines]
        pieces = encode_names(
            self.model.encoder.tokenizer, [text for part in parts for text in part]
        )
        written = []
        for row in range(len(lines)):
            name, about, last = pieces[3 * row : 3 * row + 3]
            line = [*name, *self._comma, *about, *self._colon]
            written.append(line if row == len(examples) else [*line, *last, self.model.end_of_name])
        while len(written) > 1 and sum(map(len, written)) > _ROOM:
            del written[0]
        return [*self.model.encoder.start, *(token for line in written for token in line)]

    def _make_trie(self, lang: str) -> Trie:
        """Return the trie of a language's names as they continue a line: after a space."""
        entities = self.kb.entity_range(lang)
        names = [self._space + name for name in self.kb.names(list(entities))]
        rows = encode_names(self.model.encoder.tokenizer, names)
        short = [len(row) <= _LONGEST for row in rows]
        ids = np.arange(entities.start, entities.stop)[np.array(short, bool)]
        # `Trie.build` takes rows by entity: those of other languages are empty.
        return Trie.build(make_ragged([[]] * entities.start + rows), ids)


def _load_reader(kb: KB, base: Path | str) -> PrixLM:
    """Load a decoder without role tokens, with the pieces that the KB's names need."""

    def keep(tokenizer: Tokenizer) -> Array:
        space = "" if _adds_space(tokenizer) else " "
        names = [name for lang in kb.languages for name in kb.relation_names(lang)]
        for lang in kb.languages:
            names += kb.names(list(kb.entity_range(lang)))
        texts = [space + name for name in names]
        return pieces_to_keep(kb, tokenizer, [",", ":", "\n", *texts], num_words=0)

    model = PrixLM.from_base(base, (), keep=keep, roles=False)
    if not model.kind.is_decoder:
        raise PrixError(
            f"{base} is not a decoder, so it cannot continue a text. Expected a base such as "
            "Gemma 3, Qwen 3 or Llama; an encoder becomes a ranker with `prixlm pretrain`."
        )
    [newline] = encode_names(model.encoder.tokenizer, ["\n"])
    if not newline:
        raise PrixError(f"the tokenizer of {base} has no end of a line: choose another reader.")
    model.end_of_name = newline[-1]
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _adds_space(tokenizer: Tokenizer) -> bool:
    """Tell whether a tokenizer puts a space in front of every text."""
    [ids] = encode_names(tokenizer, ["x"])
    return (tokenizer.id_to_token(ids[0]) or "").startswith(("▁", "Ġ"))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
