"""Encode facts as token ids: the only file that knows the paper's input format (Sec. 2.1).

    triple   <s> [S] X_s </s></s> [P] X_p </s></s> [O] X_o [EOS] </s>
    link     <s> [S] X_s </s></s> [P] [EN] [ES] </s></s> [O] X_o [EOS] </s>

A model that reads descriptions has that of the subject after its name, if it has one:

    triple   <s> [S] X_s </s></s> [D] X_d </s></s> [P] X_p </s></s> [O] X_o [EOS] </s>

`X_d` is cut to a number of tokens, and to what the names leave of the longest prefix. Names are
never cut. The object's description is never read.

For mBERT, `[CLS]` and `[SEP]` replace `<s>` and `</s>`, doubled in the same way. A decoder such as
Gemma has no separators, because its `<eos>` ends a text, and its `<bos>` in front, if it has one:

    triple   <bos> [S] X_s [P] X_p [O] X_o [EOS]

Its names have a space before them if the tokenizer adds none itself: what the base has read about
Paris, it has read about the piece ` Paris`.

Everything up to and including `[O]` is the prefix; the model predicts `X_o` and `[EOS]`.

`FactEncoder.encode` writes one fact, slowly and readably. `BatchEncoder` writes thousands at once,
by array operations on the token cache; a test compares the two.

Dimension letters: B facts in a batch, L length of the longest, T predicted tokens in the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from prixlm.arrays import ragged_ranges
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.lm.descriptions import DescribedSubjects, build_description_tokens
from prixlm.lm.token_cache import TokenCache, encode_names, object_reading
from prixlm.romanise import Reading, read_names
from prixlm.types import Array

ROLES = ("[S]", "[P]", "[O]", "[EOS]")
DESCRIPTION = "[D]"
"""The role of a description; only models that read descriptions have it."""
LINK = -1
"""The relation of a link: the paper's p = null."""

_RESERVED = {"[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", *ROLES, DESCRIPTION}


@dataclass(frozen=True)
class BaseTokens:
    """The special tokens of a base model, by their role."""

    start: str | None  # in front of every input; None if the base has none
    separator: str | None  # twice between the parts of a fact; None for a decoder
    padding: str
    end: str = ""  # after a text that is read alone; the separator, if there is one

    def __post_init__(self) -> None:
        if not self.end:
            assert self.separator is not None
            object.__setattr__(self, "end", self.separator)

    @property
    def names(self) -> list[str]:
        """All of them, each once."""
        tokens = (self.start, self.separator, self.padding, self.end)
        return list(dict.fromkeys(token for token in tokens if token is not None))


XLMR = BaseTokens("<s>", "</s>", "<pad>")
MBERT = BaseTokens("[CLS]", "[SEP]", "[PAD]")
_STARTS = ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>")
_ENDS = ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>")
_PADS = ("<pad>", "[PAD]", "<|pad|>")


def base_tokens(tokenizer: Any, *, is_decoder: bool) -> BaseTokens:
    """Return the special tokens of a base, as its tokenizer states them.

    tokenizer: of transformers. Where it states none, a usual one that its vocabulary has is taken.
    A family does not decide: a small multilingual E5 is a BERT with the tokens of XLM-R.
    """

    def choose(stated: Sequence[str | None], usual: Sequence[str]) -> str | None:
        found = (t for t in (*stated, *usual) if t and tokenizer.get_vocab().get(t) is not None)
        return next(found, None)

    if is_decoder:
        # Usual names are not guessed: Qwen 3 has a text that looks like a start, and never uses it.
        start = choose([tokenizer.bos_token], ())
        end = choose([tokenizer.eos_token, tokenizer.pad_token], _ENDS)
    else:
        start = choose([tokenizer.cls_token, tokenizer.bos_token], _STARTS)
        end = choose([tokenizer.sep_token, tokenizer.eos_token], _ENDS)
    if end is None or (start is None and not is_decoder):
        missing = "an end" if end is None else "a start"
        raise PrixError(
            f"the tokenizer has no token for {missing} of a text. Expected one that its "
            "tokenizer_config.json names as bos_token, eos_token, cls_token or sep_token."
        )
    padding = choose([tokenizer.pad_token], _PADS) or end  # nothing ever attends to it
    return BaseTokens(start, None if is_decoder else end, padding, end)


def language_token(lang: str) -> str:
    """Return `[EN]` for en; `[PAD-]` for pad, because BERT already uses `[PAD]`."""
    token = f"[{lang.upper()}]"
    return token if token not in _RESERVED else f"[{lang.upper()}-]"


def special_tokens(languages: Sequence[str], descriptions: int = 0) -> list[str]:
    """Return the role and language tokens of a model that reads this much of descriptions."""
    roles = [*ROLES, DESCRIPTION] if descriptions else ROLES
    return [*roles, *map(language_token, languages)]


def add_tokens(tokenizer: Tokenizer, languages: Sequence[str], descriptions: int = 0) -> int:
    """Add the role and language tokens that a tokenizer lacks; return how many were added."""
    tokens = special_tokens(languages, descriptions)
    new = [token for token in tokens if tokenizer.token_to_id(token) is None]
    return int(tokenizer.add_special_tokens([AddedToken(t, special=True) for t in new]))


@dataclass(frozen=True)
class Facts:
    """Facts as three arrays of equal length: entity ids, and relation ids or `LINK`."""

    subject: Array
    relation: Array
    object: Array

    def __len__(self) -> int:
        return len(self.subject)

    def select(self, rows: Any) -> "Facts":
        """Return some of the facts, chosen by indices, a mask or a slice."""
        return Facts(self.subject[rows], self.relation[rows], self.object[rows])


class Batch(NamedTuple):
    """Encoded facts, padded on the right, and the tokens that the model has to predict."""

    ids: Array  # (B, L) int64
    prefix: Array  # (B,) length up to and including [O]
    length: Array  # (B,) without padding
    row: Array  # (T,) the row of each predicted token
    column: Array  # (T,) the position that predicts it, which is the one before its own
    target: Array  # (T,) its id


@dataclass(frozen=True)
class FactEncoder:
    """Encodes single facts for one tokenizer and a set of languages."""

    tokenizer: Tokenizer
    base: BaseTokens
    languages: tuple[str, ...]
    descriptions: int = 0  # most tokens of a subject's description
    longest: int = 0  # most tokens of a prefix with a description
    reading: Reading = "script"  # how names are read before they are split into tokens
    roles: bool = True  # without them it encodes no facts, only texts
    space: str = ""  # before each name, so that a word has the pieces that it has in a sentence

    def __post_init__(self) -> None:
        tokens = special_tokens(self.languages, self.descriptions) if self.roles else []
        for token in (*self.base.names, *tokens):
            if self.tokenizer.token_to_id(token) is None:
                raise PrixError(
                    f"the tokenizer has no token {token}. Expected the tokenizer of a model for "
                    f"{', '.join(self.languages)}: pass that model's own folder."
                )

    @property
    def padding(self) -> int:
        """The id that fills up a batch."""
        return self.id(self.base.padding)

    @property
    def start(self) -> list[int]:
        """The ids in front of every input: one, or none."""
        return [] if self.base.start is None else [self.id(self.base.start)]

    @property
    def separators(self) -> list[int]:
        """The ids between the parts of a fact: two, or none."""
        return [] if self.base.separator is None else [self.id(self.base.separator)] * 2

    @property
    def num_special(self) -> int:
        """The special tokens in front of an object: roles, separators and the start."""
        return len(self.start) + 3 + 2 * len(self.separators)

    def id(self, token: str) -> int:
        """Return the id of a special token."""
        token_id = self.tokenizer.token_to_id(token)
        assert token_id is not None, token
        return int(token_id)

    def special_ids(self) -> list[int]:
        """Return the ids of the role and language tokens, ascending."""
        return sorted(map(self.id, special_tokens(self.languages, self.descriptions)))

    def tokenise(
        self, names: Sequence[str], langs: str | Sequence[str] | None = None
    ) -> list[list[int]]:
        """Return the ids of names, as the model reads them. langs: see `romanise`."""
        return encode_names(self.tokenizer, read_names(names, self.reading, langs), self.space)

    def encode(
        self,
        subject: str,
        relation: str | tuple[str, str],
        object: str | None,
        description: str = "",
        *,
        lang: str | None = None,
    ) -> list[int]:
        """Encode one fact as the paper prints it; a pair of languages is a link.

        Without an object, return the prefix: everything up to and including `[O]`.
        description: of the subject; a model that reads none leaves it out.
        lang: the language of the names of a triple, for a model that reads them romanised.
        """
        separators = self.separators
        langs = relation if isinstance(relation, tuple) else (lang, lang)
        names = [
            *read_names([subject], self.reading, langs[0]),
            *([""] if isinstance(relation, tuple) else read_names([relation], self.reading, lang)),
            *read_names([object or ""], object_reading(self.reading), langs[1]),
        ]
        subject_ids, relation_ids, object_ids = encode_names(self.tokenizer, names, self.space)
        if isinstance(relation, tuple):
            relation_ids = [self.id(language_token(lang)) for lang in relation]
        s, p, o, eos = (self.id(role) for role in ROLES)
        prefix = [*self.start, s, *subject_ids, *separators]
        rest = [p, *relation_ids, *separators, o]
        described = self._describe(description, self.longest - len(prefix) - len(rest))
        prefix += [*described, *rest]
        return prefix if object is None else [*prefix, *object_ids, eos, *separators[:1]]

    def _describe(self, description: str, room: int) -> list[int]:
        """Return the tokens of a description with its role and separators, at most `room`."""
        if not self.descriptions or not description:
            return []
        ids = encode_names(self.tokenizer, [description])[0]
        ids = ids[: max(0, min(self.descriptions, room - 1 - len(self.separators)))]
        return [self.id(DESCRIPTION), *ids, *self.separators] if ids else []


class BatchEncoder:
    """Encodes many facts of one KB at once, from its token cache.

    `[EOS]` and the separator after it are left out of the inputs: no prediction attends to them,
    because an object token sees only what is before it.
    """

    def __init__(self, encoder: FactEncoder, kb: KB, cache: TokenCache) -> None:
        self.encoder, self.cache = encoder, cache
        self.num_relations = kb.num_relations
        self.language = kb.language_of  # entity ids to indices of `KB.languages`
        self.lang_ids = np.array([encoder.id(language_token(lang)) for lang in kb.languages])
        self.padding, seps = encoder.padding, encoder.separators
        s, p, o, self.eos = (encoder.id(role) for role in ROLES)
        self.before = [[*encoder.start, s], [*seps, p], [*seps, o]]  # tokens before each name
        self.described: DescribedSubjects | None = None
        if encoder.descriptions and kb.has_descriptions:
            self.described = DescribedSubjects(
                build_description_tokens(kb, encoder.tokenizer, cache),
                encoder.descriptions,
                encoder.longest,
                [*seps, encoder.id(DESCRIPTION)],
            )

    @property
    def num_special(self) -> int:
        """The number of special tokens in every input."""
        return sum(map(len, self.before))

    def num_tokens(self, facts: Facts) -> Array:
        """Return the tokens of each fact's names, (N,): what the length rule counts."""
        subjects, predicates, objects = self._lengths(facts)
        return np.asarray(subjects + np.where(facts.relation == LINK, 0, predicates) + objects)

    def num_inputs(self, facts: Facts) -> Array:
        """Return the length of each fact as an input of the model, (N,)."""
        subjects, predicates, objects = self._lengths(facts)
        prefix = subjects + predicates + self.num_special
        if self.described is not None:
            prefix = prefix + self.described.num_added(facts.subject, prefix)
        return np.asarray(prefix + objects)

    def num_targets(self, facts: Facts) -> Array:
        """Return the tokens that the model predicts for each fact, (N,): the object and `[EOS]`."""
        return self.cache.entities.lengths(facts.object) + 1

    def encode(self, facts: Facts) -> Batch:
        """Encode a batch of facts. Works on whole columns: there is no loop over the facts."""
        length = self.num_inputs(facts)
        ids = np.full((len(length), int(length.max(initial=0))), self.padding, np.int64)
        rows = np.arange(len(length))
        column = np.zeros(len(length), np.int64)  # (B,) the next free position of each row
        for special, (flat, counts) in zip(self.before, self._names(facts), strict=True):
            for token in special:
                ids[rows, column] = token
                column += 1
            prefix = column  # after the last round, the position of the first object token
            # Row i takes its counts[i] tokens of `flat` at column[i] and the positions after it.
            positions, owner = ragged_ranges(column, column + counts)
            ids[owner, positions] = flat
            column = column + counts
        row, place, target = self._targets(facts, prefix)
        return Batch(ids, prefix, length, row, place, target)

    def _relation_rows(self, facts: Facts) -> Array:
        """Return the row of each relation's name, in its subject's language, in the cache."""
        return self.language(facts.subject) * self.num_relations + facts.relation

    def _lengths(self, facts: Facts) -> list[Array]:
        """Return the tokens of subjects, predicates and objects, (N,) each."""
        is_link = facts.relation == LINK
        # A link's relation is -1: look up row 0 instead, and replace its length below.
        relations = np.where(is_link, 0, self._relation_rows(facts))
        named = self.cache.relations.lengths(relations) if self.num_relations else 0
        return [
            self.cache.subjects.lengths(facts.subject),
            np.where(is_link, 2, named),  # a link has its two language tokens
            self.cache.entities.lengths(facts.object),
        ]

    def _names(self, facts: Facts) -> list[tuple[Array, Array]]:
        """Return the ids of subjects, predicates and objects, concatenated, and their lengths."""
        is_link = facts.relation == LINK
        rows = self._relation_rows(facts)[~is_link]
        named, counts = self.cache.relations.take(rows) if len(rows) else (rows, rows)
        lengths = np.full(len(is_link), 2)
        lengths[~is_link] = counts
        # (sum of lengths,) the predicates of all facts; `in_link` says which tokens are a link's.
        predicates = np.empty(int(lengths.sum()), np.int64)
        in_link = np.repeat(is_link, lengths)
        predicates[~in_link] = named
        # (2 * links,) subject and object of each link in turn, as their tokens are in `predicates`.
        ends = np.stack([facts.subject[is_link], facts.object[is_link]], axis=1).ravel()
        predicates[in_link] = self.lang_ids[self.language(ends)]
        subjects = self.cache.subjects.take(facts.subject)
        if self.described is not None:
            prefix = subjects[1] + lengths + self.num_special
            subjects = self.described.add(*subjects, facts.subject, prefix)
        return [subjects, (predicates, lengths), self.cache.entities.take(facts.object)]

    def _targets(self, facts: Facts, prefix: Array) -> tuple[Array, Array, Array]:
        """Return row, predicting position and id of all object tokens and `[EOS]`, (T,) each."""
        object_ids, lengths = self.cache.entities.take(facts.object)
        # `[O]`, at prefix - 1, predicts the first object token; the last one predicts `[EOS]`.
        column, row = ragged_ranges(prefix - 1, prefix + lengths)
        target = np.full(len(row), self.eos, np.int64)
        target[column < (prefix - 1 + lengths)[row]] = object_ids
        return row, column, target
