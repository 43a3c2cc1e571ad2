"""Write a name freely, token by token up to `[EOS]`: a search without a trie (Sec. 2.2).

    writer = FreeWriter(completer)
    writer.write([Query("en", "Gene Hackman", None, "el")], k=5)    # [[FreeName(...), ...]]

`translate` of `Completer` chooses among names that the KB has. This search makes names that nobody
has written yet, so that a model can propose one. Its answers are candidates and nothing more: the
model gives each a probability, but not whether it is right.

The score of a name is that of the other searches: the sum of the log-probabilities of its tokens
and of `[EOS]`. Scores only fall along a name, so the search ends when no unfinished name is above
the k-th finished one.

Dimension letters: B queries, M beams of all queries together, W best tokens of each beam.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prixlm.decoding.completer import Completer
from prixlm.decoding.incremental import NO_ENTRY, NewTokens, Stepper
from prixlm.errors import PrixError
from prixlm.lm.encoding import ROLES, language_token
from prixlm.lm.model import PrixLM
from prixlm.types import Array, Query

_BATCH = 32
"""Queries that are searched for together."""
MAX_TOKENS = 48
"""Longest name in tokens; a name that has not ended by then is dropped."""


@dataclass(frozen=True)
class FreeName:
    """A name that the search wrote."""

    tokens: tuple[int, ...]  # without [EOS]
    score: float  # log-probability


@dataclass
class _Beams:
    """Unfinished names of all queries, (M,) each."""

    query: Array
    entry: Array  # the stepper's entry of the last token
    score: Array
    tokens: list[tuple[int, ...]]


def free_search(
    model: PrixLM,
    prefixes: list[list[int]],
    k: int = 5,
    *,
    beam: int = 10,
    max_tokens: int = MAX_TOKENS,
    forbidden: Array | None = None,
) -> list[list[FreeName]]:
    """Return up to k names for each prefix, the most probable first.

    beam: unfinished names of a query that are kept at each length.
    forbidden: tokens that no name has, such as those of roles and languages.
    """
    if not prefixes:
        return []
    eos = model.end_of_name
    banned = np.zeros(0, np.int64) if forbidden is None else np.asarray(forbidden)
    banned = banned[banned != eos]
    stepper = Stepper(model, prefixes, max_tokens)
    finished: list[list[FreeName]] = [[] for _ in prefixes]
    # Every beam offers its best `beam` tokens and, whatever its place, the end.
    token, score = stepper.best_first(beam + 1, banned)
    start = _Beams(
        np.arange(len(prefixes)),
        np.full(len(prefixes), NO_ENTRY),
        np.zeros(len(prefixes)),
        [()] * len(prefixes),
    )
    beams, new = _grow(start, token, score, eos, beam, finished, k)
    for depth in range(max_tokens):
        if not len(beams.query):
            break
        beams.entry = stepper.next_entries(len(beams.query))
        last = np.array([tokens[-1] for tokens in beams.tokens])
        added = NewTokens(beams.query, new, np.full(len(last), depth), last)
        token, score = stepper.extend_best(added, beam + 1, banned)
        beams, new = _grow(beams, token, score, eos, beam, finished, k)
    return finished


def _grow(
    beams: _Beams,
    token: Array,
    score: Array,
    eos: int,
    beam: int,
    finished: list[list[FreeName]],
    k: int,
) -> tuple[_Beams, Array]:
    """Lengthen beams by a token; return the best ones and the entries that they follow.

    token, score: (M, W) the best tokens after each beam. Names that end are added to `finished`.
    """
    row = np.repeat(np.arange(len(token)), token.shape[1])
    flat, total = token.ravel(), (beams.score[:, None] + score).ravel()
    is_end = (flat == eos) & np.isfinite(total)
    for place in np.flatnonzero(is_end).tolist():
        tokens = beams.tokens[row[place]]
        if tokens:  # a name has a token
            finished[beams.query[row[place]]].append(FreeName(tokens, float(total[place])))
    for names in finished:
        names.sort(key=lambda name: (-name.score, name.tokens))
        del names[k:]
    # Nothing below a beam can score above it.
    least = np.array([names[k - 1].score if len(names) >= k else -np.inf for names in finished])
    query = beams.query[row]
    is_open = ~is_end & np.isfinite(total) & (total > least[query])
    chosen = np.flatnonzero(is_open)
    order = chosen[np.lexsort((flat[chosen], -total[chosen], query[chosen]))]
    starts = np.searchsorted(query[order], query[order])
    order = order[np.arange(len(order)) - starts < beam]
    tokens = [(*beams.tokens[row[place]], int(flat[place])) for place in order]
    kept = _Beams(query[order], np.zeros(0, np.int64), total[order], tokens)
    return kept, beams.entry[row[order]]


class FreeWriter:
    """Writes names in another language with a Prix-LM."""

    def __init__(self, completer: Completer) -> None:
        self.completer = completer
        encoder = completer.model.encoder
        if encoder.reading != "script":
            raise PrixError(
                "the model writes names in Latin letters, so it can only choose among names of the "
                "KB. Write names with a model of `prixlm pretrain --reading script`."
            )
        special = [*ROLES[:-1], *map(language_token, encoder.languages)]
        ids = {encoder.id(token) for token in (*special, *encoder.base.names)}
        # Those of the base too: <unk>, <mask>, a decoder's marks of turns and unused places.
        added = encoder.tokenizer.get_added_tokens_decoder()
        ids |= {number for number, token in added.items() if token.special}
        for token in ("<unk>", "[UNK]", "<mask>", "[MASK]"):
            number = encoder.tokenizer.token_to_id(token)
            if number is not None:
                ids.add(int(number))
        self._forbidden = np.array(sorted(ids))

    def write(
        self, queries: Sequence[Query], k: int = 5, beam: int = 10
    ) -> list[list[tuple[str, float]]]:
        """Return names and their log-probabilities for each query; none for one it cannot read."""
        results: list[list[tuple[str, float]]] = [[] for _ in queries]
        prefixes: dict[int, list[int]] = {}
        model = self.completer.model
        for row, query in enumerate(queries):
            try:
                prefixes[row] = self.completer.encode(query)
            except PrixError:  # such as a name of symbols only
                continue
        # Queries of similar length share a batch, and the model's positions bound the name.
        rows = sorted(prefixes, key=lambda row: (len(prefixes[row]), row))
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            longest = max(len(prefixes[row]) for row in batch)
            room = min(MAX_TOKENS, model.max_length - longest)
            if room < 1:
                continue
            found = free_search(
                model,
                [prefixes[row] for row in batch],
                k,
                beam=beam,
                max_tokens=room,
                forbidden=self._forbidden,
            )
            for row, names in zip(batch, found, strict=True):
                results[row] = self._texts(names)
        return results

    def _texts(self, names: Sequence[FreeName]) -> list[tuple[str, float]]:
        """Return the texts of names; different tokens may spell the same one."""
        texts: dict[str, float] = {}
        for name in names:
            text = self.completer.model.encoder.tokenizer.decode(list(name.tokens)).strip()
            if text and text not in texts:
                texts[text] = name.score
        return list(texts.items())
