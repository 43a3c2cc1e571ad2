"""Ask a base in words, without any training on the KB: it continues a list of facts.

    reader = Reader(kb, "gemma")
    reader.scores("en", [Question(subject, "capital", examples)], owner, entity)

The question is the last line of a list of facts of the same relation:

    Finland, capital: Helsinki
    France, capital: Paris
    Estonia, capital:

The score of an object is the log-probability of its name and of the end of the line. Names of all
objects share a trie, the question is read once, and tokens that several names begin with go through
the model once.

The vocabulary is trimmed to the pieces of the KB's names. So probabilities are those among names,
and the projection onto the vocabulary, which takes most of the time, is several times faster.

Dimension letters: Q questions, N pairs of a question and an object.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from prixlm.arrays import ragged_ranges
from prixlm.decoding.trie import Trie
from prixlm.decoding.walk import score_nodes
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.lm.bases import base_fingerprint
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import encode_names, make_ragged
from prixlm.lm.trim import pieces_to_keep
from prixlm.types import Array, Progress

_LONGEST = 48
"""Most tokens of an object's name; longer ones have no score."""
_ROOM = 1024
"""Most tokens of a question with its examples; examples that do not fit are left out."""
_BATCH = 8
"""Questions that are read together."""


@dataclass(frozen=True)
class Question:
    """A fact without its object, and facts of the same relation that show what is asked for."""

    subject: int  # an entity
    relation: str  # its name
    examples: tuple[tuple[int, int], ...] = ()  # subject and object of each


class Reader:
    """A decoder that continues lists of facts."""

    def __init__(self, kb: KB, base: Path | str) -> None:
        """Load a base: a folder or a name on the hub."""
        self.kb = kb
        self.model = _load(kb, base)
        self.fingerprint = base_fingerprint(base)
        tokenizer = self.model.encoder.tokenizer
        self.space = "" if _adds_space(tokenizer) else " "
        self._comma, self._colon = encode_names(tokenizer, [",", ":"])
        self.trie = lru_cache(maxsize=4)(self._make_trie)

    def scores(
        self,
        lang: str,
        questions: Sequence[Question],
        owner: Array,
        entity: Array,
        progress: Progress | None = None,
    ) -> Array:
        """Return log P of entity[i] for question owner[i], (N,); -infinity if its name is too long.

        lang: of the objects.
        """
        trie = self.trie(lang)
        nodes = trie.nodes_of(entity)
        # (S,) the pairs that can be scored, sorted by question.
        rows = np.flatnonzero(nodes >= 0)
        rows = rows[np.argsort(owner[rows], kind="stable")]
        bounds = np.searchsorted(owner[rows], np.arange(len(questions) + 1))
        asked = np.flatnonzero(np.diff(bounds))
        written = self.write([questions[row] for row in asked.tolist()])
        prompts = dict(zip(asked.tolist(), written, strict=True))
        # Similar lengths together waste little padding.
        asked = asked[np.argsort([len(prompts[row]) for row in asked.tolist()], kind="stable")]
        scores = np.full(len(owner), -np.inf)
        for start in range(0, len(asked), _BATCH):
            chunk = asked[start : start + _BATCH]
            selected, query = ragged_ranges(bounds[chunk], bounds[chunk + 1])
            texts = [prompts[row] for row in chunk.tolist()]
            wanted = nodes[rows[selected]]
            scores[rows[selected]] = score_nodes(self.model, trie, texts, wanted, query)
            if progress is not None:
                progress(f"read {lang}", start + len(chunk), len(asked))
        return scores

    def write(self, questions: Sequence[Question]) -> list[list[int]]:
        """Return the tokens of a list of facts that ends with the question, for each of them."""
        used = {question.subject for question in questions}
        used |= {entity for q in questions for fact in q.examples for entity in fact}
        ids = sorted(used)
        names = dict(zip(ids, self.kb.names(ids), strict=True))
        return [self._write(question, names) for question in questions]

    def _write(self, question: Question, names: Mapping[int, str]) -> list[int]:
        lines = [(names[subject], names[last]) for subject, last in question.examples]
        lines.append((names[question.subject], ""))
        about = self.space + question.relation
        texts = [text for name, last in lines for text in (name, about, self.space + last)]
        pieces = encode_names(self.model.encoder.tokenizer, texts)
        written = []
        for row in range(len(lines)):
            name, relation, last = pieces[3 * row : 3 * row + 3]
            line = [*name, *self._comma, *relation, *self._colon]
            is_question = row + 1 == len(lines)
            written.append(line if is_question else [*line, *last, self.model.end_of_name])
        while len(written) > 1 and sum(map(len, written)) > _ROOM:
            del written[0]
        return [*self.model.encoder.start, *(token for line in written for token in line)]

    def _make_trie(self, lang: str) -> Trie:
        """Return the trie of a language's names as they continue a line: after a space."""
        entities = self.kb.entity_range(lang)
        names = [self.space + name for name in self.kb.names(list(entities))]
        rows = encode_names(self.model.encoder.tokenizer, names)
        is_short = np.array([len(row) <= _LONGEST for row in rows], bool)
        # `Trie.build` takes rows by entity: those of languages before this one are empty.
        names_by_entity = make_ragged([*([] for _ in range(entities.start)), *rows])
        return Trie.build(names_by_entity, np.arange(entities.start, entities.stop)[is_short])


def _load(kb: KB, base: Path | str) -> PrixLM:
    """Load a decoder without role tokens, with the pieces that the KB's names need."""

    def keep(tokenizer: Tokenizer) -> Array:
        space = "" if _adds_space(tokenizer) else " "
        names = [name for lang in kb.languages for name in kb.relation_names(lang)]
        for lang in kb.languages:
            names += kb.names(list(kb.entity_range(lang)))
        texts = [",", ":", "\n", *(space + name for name in names)]
        return pieces_to_keep(kb, tokenizer, texts, num_words=0)

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
    """Tell whether a tokenizer puts a space in front of every text, as SentencePiece may."""
    [ids] = encode_names(tokenizer, ["x"])
    return (tokenizer.id_to_token(ids[0]) or "").startswith(("▁", "Ġ"))
