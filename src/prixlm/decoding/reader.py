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

Every score is kept in `KB/readings/`, because a base takes about a second for a question. A command
that was stopped resumes, and another one that asks the same pays nothing.

Dimension letters: Q questions, N pairs of a question and an object.
"""

import hashlib
import logging
import sqlite3
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
from prixlm.lm.lineage import Lineage
from prixlm.lm.model import SETTINGS, PrixLM, read_settings
from prixlm.lm.token_cache import encode_names, make_ragged, word_space
from prixlm.lm.trim import pieces_to_keep
from prixlm.remote import is_remote, local_folder
from prixlm.types import Array, Progress

_LONGEST = 48
"""Most tokens of an object's name; longer ones have no score."""
_ROOM = 1024
"""Most tokens of a question with its examples; examples that do not fit are left out."""
_BATCH = 8
"""Questions that are read together."""
_TABLE = "CREATE TABLE readings (question BLOB PRIMARY KEY, entity BLOB, score BLOB) WITHOUT ROWID"
_VERSION = 1
"""Of how a question is written and scored: kept scores belong to it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """A fact without its object, and facts of the same relation that show what is asked for."""

    subject: int  # an entity
    relation: str  # its name
    examples: tuple[tuple[int, int], ...] = ()  # subject and object of each


class Reader:
    """A decoder that continues lists of facts."""

    def __init__(self, kb: KB, base: Path | str) -> None:
        """Load a base: a folder, which may be in a store, or a name on the hub."""
        self.kb = kb
        base = local_folder(base) if is_remote(base) else base
        self.model = _load(kb, base)
        self.fingerprint = base_fingerprint(base)
        self.lineage = Lineage()  # of a base that no KB was used for
        if (Path(base) / SETTINGS).is_file():
            # Two Prix-LMs may have equal weights and other masks, and so other scores.
            settings = read_settings(Path(base))
            self.fingerprint += f" {settings.mask}"
            self.lineage = settings.lineage
        tokenizer = self.model.encoder.tokenizer
        self.space = word_space(tokenizer)
        self._comma, self._colon = encode_names(tokenizer, [",", ":"])
        self.trie = lru_cache(maxsize=4)(self._make_trie)
        self._kept = _KeptScores(kb, self.fingerprint)

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
        nodes = self.trie(lang).nodes_of(entity)
        prompts = self.write(questions)
        scores = np.full(len(owner), np.nan)
        scores[nodes < 0] = -np.inf
        for row, kept in self._kept.read(prompts).items():
            mine = np.flatnonzero((owner == row) & np.isnan(scores))
            scores[mine] = kept.find(entity[mine])
        # (S,) the pairs that are left, sorted by question.
        rows = np.flatnonzero(np.isnan(scores))
        rows = rows[np.argsort(owner[rows], kind="stable")]
        bounds = np.searchsorted(owner[rows], np.arange(len(questions) + 1))
        asked = np.flatnonzero(np.diff(bounds))
        # Similar lengths together waste little padding.
        asked = asked[np.argsort([len(prompts[row]) for row in asked.tolist()], kind="stable")]
        for start in range(0, len(asked), _BATCH):
            chunk = asked[start : start + _BATCH]
            selected, query = ragged_ranges(bounds[chunk], bounds[chunk + 1])
            pairs = rows[selected]
            texts = [prompts[row] for row in chunk.tolist()]
            scores[pairs] = score_nodes(self.model, self.trie(lang), texts, nodes[pairs], query)
            for index, text in enumerate(texts):
                mine = pairs[query == index]
                self._kept.add(text, _Scores(entity[mine], scores[mine]))
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


@dataclass(frozen=True)
class _Scores:
    """Scores of some objects for one question."""

    entity: Array  # (N,)
    score: Array  # (N,)

    def find(self, wanted: Array) -> Array:
        """Return the scores of these entities; NaN for those without one."""
        order = np.argsort(self.entity, kind="stable")
        row = order[np.minimum(np.searchsorted(self.entity, wanted, sorter=order), len(order) - 1)]
        return np.where(self.entity[row] == wanted, self.score[row], np.nan)


class _KeptScores:
    """The scores of one base and KB on disk: a row for each question, by a hash of its tokens."""

    def __init__(self, kb: KB, base: str) -> None:
        """Open or make the file; one that is not ours, or cannot be written, is left alone."""
        name = hashlib.sha256(f"{_VERSION} {kb.fingerprint()} {base}".encode()).hexdigest()
        self._path = kb.folder / "readings" / f"{name[:16]}.sqlite"
        try:
            # In a KB of others: SQLite would write what a link leads to.
            for path in (self._path.parent, self._path):
                if path.is_symlink():
                    raise OSError(f"{path} is a link")
            self._path.parent.mkdir(exist_ok=True)
            self._database = _open_kept(f"{self._path.absolute().as_uri()}?mode=rwc")
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Keep the scores in memory from now on."""
        _log.warning("scores are kept in %s no longer (%s): in memory", self._path.parent, error)
        self._database = _open_kept("file::memory:")

    def read(self, prompts: Sequence[list[int]]) -> dict[int, _Scores]:
        """Return the scores of questions, by their number; those that have any."""
        found = {}
        for row, prompt in enumerate(prompts):
            kept = self._read(_question_key(prompt))
            if kept is not None:
                found[row] = kept
        return found

    def add(self, prompt: list[int], scores: _Scores) -> None:
        """Keep scores of a question, beside those that it has."""
        key = _question_key(prompt)
        kept = self._read(key)
        if kept is not None:
            is_new = ~np.isin(kept.entity, scores.entity)
            scores = _Scores(
                np.concatenate([kept.entity[is_new], scores.entity]),
                np.concatenate([kept.score[is_new], scores.score]),
            )
        columns = scores.entity.astype("<i4").tobytes(), scores.score.astype("<f8").tobytes()
        replace = "REPLACE INTO readings VALUES (?, ?, ?)"
        try:
            with self._database:  # one transaction: a kill leaves the row as it was
                self._database.execute(replace, (key, *columns))
        except sqlite3.Error as error:
            self._give_up(error)
            self._database.execute(replace, (key, *columns))

    def _read(self, key: bytes) -> _Scores | None:
        select = "SELECT entity, score FROM readings WHERE question = ?"
        try:
            row = self._database.execute(select, (key,)).fetchone()
            return None if row is None else _parse_scores(*row)
        except (sqlite3.Error, ValueError) as error:
            self._give_up(error)
            return None


def _open_kept(uri: str) -> sqlite3.Connection:
    """Open or make a database of scores; refuse one that has anything else."""
    # Two commands may read at once: each waits for the other's write.
    database = sqlite3.connect(uri, timeout=60, check_same_thread=False, uri=True)
    try:
        # A file of others may bring views that never end, or triggers.
        database.execute("PRAGMA trusted_schema = OFF")
        found = database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        if found not in ([], [("table", "readings", _TABLE)]):
            raise sqlite3.DatabaseError("it holds other tables than scores")
        if not found:
            database.execute(_TABLE.replace("TABLE", "TABLE IF NOT EXISTS", 1))
            database.commit()
    except BaseException:
        database.close()
        raise
    return database


def _parse_scores(entity: object, score: object) -> _Scores:
    """Return the scores of a row; ValueError if it is not one that we wrote."""
    if not (isinstance(entity, bytes) and isinstance(score, bytes)) or not entity:
        raise ValueError("a row is not scores")
    scores = _Scores(np.frombuffer(entity, "<i4").astype(np.int64), np.frombuffer(score, "<f8"))
    if len(scores.entity) != len(scores.score):
        raise ValueError("a row has more objects than scores, or fewer")
    return scores


def _question_key(prompt: list[int]) -> bytes:
    return hashlib.sha256(np.array(prompt, "<i4").tobytes()).digest()[:16]


def _load(kb: KB, base: Path | str) -> PrixLM:
    """Load a decoder without role tokens, with the pieces that the KB's names need."""

    def keep(tokenizer: Tokenizer) -> Array:
        space = word_space(tokenizer)
        names = [name for lang in kb.languages for name in kb.relation_names(lang)]
        for lang in kb.languages:
            names += kb.names(list(kb.entity_range(lang)))
        texts = [",", ":", "\n", *(space + name for name in names)]
        # These texts have every piece that a question needs: more would change kept scores.
        return pieces_to_keep(kb, tokenizer, texts, num_words=0, spaced=False)

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
