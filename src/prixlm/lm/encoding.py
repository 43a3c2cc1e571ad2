"""Facts to token ids and back: the only place that knows the paper's format (Sec. 2.1).

    triple   <s> [S] X_s </s></s> [P] X_p </s></s> [O] X_o [EOS] </s>
    link     <s> [S] X_s </s></s> [P] [EN] [ES] </s></s> [O] X_o [EOS] </s>

For mBERT, `[CLS]` and `[SEP]` stand in the place of `<s>` and `</s>`, doubled likewise. All up to
and including `[O]` is the prefix; `X_o` and `[EOS]` are what the model predicts. Whole batches are
gathered from the token cache by array operations.

Dimension letters: B facts in a batch, L its longest row, T object tokens (and `[EOS]`) in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.lm.token_cache import TokenCache, encode_names
from prixlm.types import Array

ROLES = ("[S]", "[P]", "[O]", "[EOS]")
LINK = -1
"""The relation of a link: the paper's p = null."""

_RESERVED = {"[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", *ROLES}


@dataclass(frozen=True)
class BaseTokens:
    """What a base model's own special tokens are called."""

    start: str
    separator: str
    padding: str


XLMR = BaseTokens("<s>", "</s>", "<pad>")
MBERT = BaseTokens("[CLS]", "[SEP]", "[PAD]")


def language_token(lang: str) -> str:
    """`[EN]` for en. (A few three-letter codes would read like a token of BERT's: `[PAD-]`.)"""
    token = f"[{lang.upper()}]"
    return token if token not in _RESERVED else f"[{lang.upper()}-]"


@dataclass(frozen=True)
class Facts:
    """Facts as arrays of equal length: entity ids, and relation ids or `LINK`."""

    subject: Array
    relation: Array
    object: Array

    def __len__(self) -> int:
        return len(self.subject)

    def select(self, rows: Any) -> "Facts":
        return Facts(self.subject[rows], self.relation[rows], self.object[rows])


class Batch(NamedTuple):
    """Encoded facts, padded right."""

    ids: Array  # (B, L) int64
    prefix: Array  # (B,) length up to and including [O]
    length: Array  # (B,)
    row: Array  # (T,) the row of each predicted token,
    column: Array  # (T,) the position that predicts it: the one before its own,
    target: Array  # (T,) and its id


@dataclass(frozen=True)
class FactEncoder:
    """Encodes facts for one tokenizer and a set of languages."""

    tokenizer: Tokenizer
    base: BaseTokens
    languages: tuple[str, ...]

    def __post_init__(self) -> None:
        tokens = [*ROLES, *map(language_token, self.languages)]
        for token in (self.base.start, self.base.separator, self.base.padding, *tokens):
            if self.tokenizer.token_to_id(token) is None:
                raise PrixError(
                    f"the tokenizer has no token {token}. Expected one that was made for "
                    f"{', '.join(self.languages)}: pass the model's own folder."
                )

    def id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        assert found is not None
        return int(found)

    def encode(
        self, subject: str, relation: str | tuple[str, str], object: str | None
    ) -> list[int]:
        """One fact as in the paper's boxes; a pair of languages is a link. Slow, and obvious.

        Without an object it is the prefix, up to and including `[O]`.
        """
        sep = [self.id(self.base.separator)] * 2
        names = [subject, "" if isinstance(relation, tuple) else relation, object or ""]
        s, p, o = encode_names(self.tokenizer, names)
        if isinstance(relation, tuple):
            p = [self.id(language_token(lang)) for lang in relation]
        start, eos = self.id(self.base.start), self.id("[EOS]")
        roles = [self.id(role) for role in ROLES]
        prefix = [start, roles[0], *s, *sep, roles[1], *p, *sep, roles[2]]
        return prefix if object is None else [*prefix, *o, eos, sep[0]]

    def decode(self, ids: Sequence[int]) -> tuple[str, str | tuple[str, str], str]:
        """Subject, relation (or a link's languages) and object of an encoded fact."""
        tokens = [self.tokenizer.id_to_token(token) for token in ids]
        places = [tokens.index(role) for role in ROLES]
        s, p, o = (list(ids[a + 1 : b]) for a, b in pairwise(places))
        p, s = p[:-2], s[:-2]
        languages = {self.id(language_token(lang)): lang for lang in self.languages}
        if len(p) == 2 and all(token in languages for token in p):
            return self._text(s), (languages[p[0]], languages[p[1]]), self._text(o)
        return self._text(s), self._text(p), self._text(o)

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False).strip()


class BatchEncoder:
    """Encodes facts of one KB by the thousand, from its token cache.

    full: with `[EOS]` and the last separator as inputs, as the paper writes them. No prediction
    looks at them (an object token sees only what is before it), so training leaves them out.
    """

    def __init__(
        self, encoder: FactEncoder, kb: KB, cache: TokenCache, *, full: bool = False
    ) -> None:
        self.encoder, self.cache, self.full = encoder, cache, full
        self.num_relations = kb.num_relations
        self.language = kb.language_of  # of entities: its place in `KB.languages`
        self.lang_ids = np.array([encoder.id(language_token(lang)) for lang in kb.languages])
        self.pad = encoder.id(encoder.base.padding)
        start, sep = encoder.id(encoder.base.start), encoder.id(encoder.base.separator)
        s, p, o, self.eos = (encoder.id(role) for role in ROLES)
        self.before = [[start, s], [sep, sep, p], [sep, sep, o]]
        self.after = [self.eos, sep] if full else []

    @property
    def num_special(self) -> int:
        """The special tokens of every input."""
        return sum(map(len, self.before)) + len(self.after)

    def num_tokens(self, facts: Facts) -> Array:
        """The tokens of each fact's names: what the length rule counts (no special tokens)."""
        s, p, o = self._lengths(facts)
        return np.asarray(s + np.where(facts.relation == LINK, 0, p) + o)

    def num_inputs(self, facts: Facts) -> Array:
        """The length of each fact as an input of the model."""
        return np.asarray(sum(self._lengths(facts)) + self.num_special)

    def num_targets(self, facts: Facts) -> Array:
        """How many tokens the model predicts for each fact: its object's, and `[EOS]`."""
        return self.cache.entities.lengths(facts.object) + 1

    def encode(self, facts: Facts) -> Batch:
        """A batch of facts, by array operations alone."""
        lengths = self._lengths(facts)
        total = self.num_inputs(facts)
        ids = np.full((len(total), int(total.max(initial=0))), self.pad, np.int64)
        rows = np.arange(len(total))
        column = np.zeros(len(total), np.int64)
        for special, (flat, count) in zip(self.before, self._pieces(facts), strict=True):
            for token in special:
                ids[rows, column] = token
                column += 1
            _scatter(ids, flat, count, column)
            prefix, column = column, column + count
        for token in self.after:
            ids[rows, column] = token
            column = column + 1
        row, place, target = self._targets(facts, lengths[2], prefix)
        return Batch(ids, prefix, total, row, place, target)

    def _relation_rows(self, facts: Facts) -> Array:
        return self.language(facts.subject) * self.num_relations + facts.relation

    def _lengths(self, facts: Facts) -> list[Array]:
        is_link = facts.relation == LINK
        relations = np.where(is_link, 0, self._relation_rows(facts))
        named = self.cache.relations.lengths(relations) if self.num_relations else 0
        entities = self.cache.entities
        return [
            entities.lengths(facts.subject),
            np.where(is_link, 2, named),
            entities.lengths(facts.object),
        ]

    def _pieces(self, facts: Facts) -> list[tuple[Array, Array]]:
        """The ids of subjects, predicates and objects, one after another, and their lengths."""
        is_link = facts.relation == LINK
        rows = self._relation_rows(facts)[~is_link]
        named, counts = self.cache.relations.take(rows) if len(rows) else (rows, rows)
        lengths = np.full(len(is_link), 2)
        lengths[~is_link] = counts
        predicates = np.empty(int(lengths.sum()), np.int64)
        of_link = np.repeat(is_link, lengths)
        predicates[~of_link] = named
        ends = np.stack([facts.subject[is_link], facts.object[is_link]], axis=1).ravel()
        predicates[of_link] = self.lang_ids[self.language(ends)]
        entities = self.cache.entities
        return [entities.take(facts.subject), (predicates, lengths), entities.take(facts.object)]

    def _targets(self, facts: Facts, lengths: Array, prefix: Array) -> tuple[Array, Array, Array]:
        """Object tokens and `[EOS]`, each with the position before its own: `[O]` for the first."""
        counts = lengths + 1
        row = np.repeat(np.arange(len(counts)), counts)
        ends = np.cumsum(counts)
        step = np.arange(len(row)) - np.repeat(ends - counts, counts)
        target = np.full(len(row), self.eos, np.int64)
        target[step < np.repeat(lengths, counts)] = self.cache.entities.take(facts.object)[0]
        return row, np.repeat(prefix - 1, counts) + step, target


def _scatter(ids: Array, flat: Array, counts: Array, column: Array) -> None:
    """Write ragged rows into `ids`, each from its own column on."""
    rows = np.repeat(np.arange(len(counts)), counts)
    step = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    ids[rows, np.repeat(column, counts) + step] = flat


def add_tokens(tokenizer: Tokenizer, languages: Sequence[str]) -> int:
    """Add the role and language tokens that a tokenizer lacks; how many were new."""
    tokens = [*ROLES, *map(language_token, languages)]
    new = [token for token in tokens if tokenizer.token_to_id(token) is None]
    return int(tokenizer.add_special_tokens([AddedToken(t, special=True) for t in new]))
