"""Cross-lingual entity linking (Sec. 3.3): a mention in one language, an entity named in another.

    tasks = read_tasks("names.txt", {"fi": "fi_queries.txt"})
    ranks = linking_ranks(EncoderScorer(encoder), tasks["fi"])
    accuracy(ranks, 1)

The entities have one or more names; a mention may have several right entities, and any counts. An
entity's score is that of its best name, and the rank of a right one follows the tie rule of
`metrics.py`: entities of one name share the mean of their ranks, so accuracy@1 gains nothing from
names that cannot be told apart.

Dimension letters: Q mentions, N names, E entities.
"""

import dataclasses
import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.spelling import TITLE, similarities, slices
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.types import Array

logger = logging.getLogger(__name__)
_FORMATS = {"xlbel": ("||", 2, 2), "lrxel": ("|||", 3, 4)}
"""What stands between fields, and how many a line of names and a line of mentions has."""


@dataclass(frozen=True)
class LinkingTask:
    """Names of entities, and mentions with the entities that are right."""

    names: list[str]  # (N,)
    owner: Array  # (N,) the entity of each name
    mentions: list[str]  # (Q,)
    offsets: Array  # (Q + 1,) of the right entities of each mention
    right: Array  # entities
    problems: dict[str, int] = field(default_factory=dict)  # lines left out, by reason

    @property
    def num_entities(self) -> int:
        return int(self.owner.max(initial=-1)) + 1

    def differ(self) -> Array:
        """Whether a mention is none of the names of its right entities: (Q,)."""
        names: dict[int, set[str]] = {}
        for row in np.flatnonzero(np.isin(self.owner, self.right)).tolist():
            names.setdefault(int(self.owner[row]), set()).add(self.names[row])
        return np.array(
            [
                not any(mention in names.get(e, ()) for e in self.answers(place))
                for place, mention in enumerate(self.mentions)
            ],
            bool,
        )

    def fingerprint(self) -> str:
        arrays = [
            part.astype(np.int64).tobytes() for part in (self.owner, self.offsets, self.right)
        ]
        texts = json.dumps([self.names, self.mentions]).encode()
        return hashlib.sha256(b"".join([texts, *arrays])).hexdigest()

    def answers(self, place: int) -> list[int]:
        found: list[int] = self.right[self.offsets[place] : self.offsets[place + 1]].tolist()
        return found


class Linker(Protocol):
    """A way to link: where the best right entity of every mention stands."""

    name: str

    def ranks(self, task: LinkingTask, lang: str) -> Array:
        """(Q,), for mentions in `lang`."""


class Scorer(ABC):
    """A way that says how alike mentions and names are."""

    name: str

    @abstractmethod
    def tables(self, mentions: Sequence[str], names: Sequence[str]) -> Iterator[Array]:
        """Scores of all names for some mentions at a time: (q, N), in order."""

    def ranks(self, task: LinkingTask, lang: str) -> Array:
        return linking_ranks(self, task)


class PerLanguage:
    """A way of its own for each language of the mentions, made when it is asked for."""

    def __init__(self, name: str, make: Callable[[str], Linker]) -> None:
        self.name, self.make = name, make

    def ranks(self, task: LinkingTask, lang: str) -> Array:
        return self.make(lang).ranks(task, lang)


class EncoderScorer(Scorer):
    """Cosines of an entity encoder's vectors."""

    def __init__(self, encoder: EntityEncoder, name: str = "encoder") -> None:
        self.encoder, self.name = encoder, name
        self._last: tuple[Sequence[str], Array, Array] | None = None

    def tables(self, mentions: Sequence[str], names: Sequence[str]) -> Iterator[Array]:
        vectors, place = self._vectors(names)
        asked = self.encoder.encode(mentions)
        for rows in slices(len(asked), len(names)):
            yield (asked[rows] @ vectors.T)[:, place]

    def _vectors(self, names: Sequence[str]) -> tuple[Array, Array]:
        """Vectors of the distinct names, and which is whose; those of the last list are kept.

        Names that are the same text shall tie: each is scored once.
        """
        if self._last is None or self._last[0] != names:
            once: dict[str, int] = {}
            place = np.array([once.setdefault(name, len(once)) for name in names])
            self._last = (names, self.encoder.encode(list(once)), place)
        return self._last[1], self._last[2]


class FuzzyScorer(Scorer):
    """String similarity (rapidfuzz): the honest alternative without a model."""

    def __init__(self, name: str = TITLE) -> None:
        self.name = name

    def tables(self, mentions: Sequence[str], names: Sequence[str]) -> Iterator[Array]:
        return similarities(mentions, names)


def linking_ranks(scorer: Scorer, task: LinkingTask) -> Array:
    """The rank of the best right entity of every mention: (Q,)."""
    order = np.argsort(task.owner, kind="stable")
    owner = task.owner[order]
    firsts = np.flatnonzero(np.diff(owner, prepend=-1))
    entity = owner[firsts]  # entities that have a name, ascending
    ranks, done = np.empty(len(task.mentions)), 0
    for table in scorer.tables(task.mentions, task.names):
        best = np.maximum.reduceat(table[:, order], firsts, axis=1)  # (q, E)
        ranks[done : done + len(best)] = _ranks(best, entity, task, done)
        done += len(best)
    return ranks


def _ranks(best: Array, entity: Array, task: LinkingTask, first: int) -> Array:
    """Other right entities do not stand before the best of them."""
    offsets = task.offsets[first : first + len(best) + 1]
    row = np.repeat(np.arange(len(best)), np.diff(offsets))
    column = np.searchsorted(entity, task.right[offsets[0] : offsets[-1]])
    is_right = np.zeros(best.shape, bool)
    is_right[row, column] = True
    top = np.where(is_right, best, -np.inf).max(axis=1, keepdims=True)
    higher = ((best > top) & ~is_right).sum(axis=1)
    equal = ((best == top) & ~is_right).sum(axis=1)
    return np.asarray(1 + higher + equal / 2)


def accuracy(ranks: Array, k: int) -> float:
    """The share of mentions whose right entity is among the first k."""
    return float((ranks <= k).mean()) if len(ranks) else float("nan")


def read_tasks(
    names: Path | str, queries: Mapping[str, Path | str], format: str = "xlbel"
) -> dict[str, LinkingTask]:
    """Files of mentions, by title, and the file of names that all of them are linked to.

    xlbel: `id||name` and `id||mention`, several right ids joined by `|`.
    lrxel: names `ID ||| title ||| type`, and mentions `ID ||| en title ||| title ||| type`.
    """
    if format not in _FORMATS:
        raise PrixError(f"--format {format}: expected {' or '.join(_FORMATS)}.")
    separator, name_fields, query_fields = _FORMATS[format]
    problems: dict[str, int] = {}
    ids: dict[str, int] = {}
    texts: list[str] = []
    owner: list[int] = []
    seen: set[tuple[str, str]] = set()
    for keys, text, *_ in _fields(Path(names), separator, name_fields, problems):
        for key in _keys(keys, format):
            if format == "lrxel" and key in ids:
                _count(problems, f"{Path(names).name}: an id twice")
                continue
            if (key, text) in seen:
                _count(problems, f"{Path(names).name}: the same id and name again")
                continue
            seen.add((key, text))
            texts.append(text)
            owner.append(ids.setdefault(key, len(ids)))
    if not texts:
        raise PrixError(f"{names} has no names: nothing can be linked to.")
    _warn(problems)
    entities = (texts, np.array(owner), ids)
    found = {}
    for title, path in queries.items():
        own: dict[str, int] = {}
        fields = _fields(Path(path), separator, query_fields, own)
        asked = [(parts[max(1, query_fields - 2)], _keys(parts[0], format)) for parts in fields]
        task = _make_task(entities, asked, own, Path(path))
        if not task.mentions:
            raise PrixError(f"{path} has no mention whose id {names} names.")
        found[title] = dataclasses.replace(task, problems=problems | own)
    return found


def _keys(text: str, format: str) -> list[str]:
    return [key for key in text.split("|") if key] if format == "xlbel" else [text]


def _fields(path: Path, separator: str, number: int, problems: dict[str, int]) -> Iterator[Any]:
    """The fields of each line; lines with another number, or an empty one first, are counted."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"{path} cannot be read as text: {error}.") from None
    for line in filter(str.strip, lines):
        parts = [part.strip() for part in line.split(separator)]
        if len(parts) != number:
            _count(problems, f"{path.name}: not {number} fields joined by {separator}")
        elif not parts[0] or not parts[-1 if number == 2 else number - 2]:
            _count(problems, f"{path.name}: no id or no name")
        else:
            yield parts


def _count(problems: dict[str, int], why: str) -> None:
    problems[why] = problems.get(why, 0) + 1


def _warn(problems: Mapping[str, int]) -> None:
    for why, number in problems.items():
        logger.warning("%d lines: %s", number, why)


def _make_task(
    entities: tuple[list[str], Array, dict[str, int]],
    asked: list[tuple[str, list[str]]],
    problems: dict[str, int],
    path: Path,
) -> LinkingTask:
    """The mentions of a file whose ids have names; the others are counted."""
    names, owner, ids = entities
    mentions, offsets, right = [], [0], []
    for mention, keys in asked:
        found = [ids[key] for key in dict.fromkeys(keys) if key in ids]
        if not found:
            _count(problems, f"{path.name}: no name for the id")
            continue
        if len(found) < len(set(keys)):
            _count(problems, f"{path.name}: no name for one of several ids (kept)")
        mentions.append(mention)
        right += found
        offsets.append(len(right))
    _warn(problems)
    return LinkingTask(names, owner, mentions, np.array(offsets), np.array(right))


Names = tuple[list[str], Array]
"""Names of entities, and which entity each is of."""


def read_names(kb: KB, lang: str) -> Names:
    """The names and aliases of a language's entities, which are counted from 0."""
    own = kb.entity_range(lang)
    within = f"BETWEEN {own.start} AND {own.stop - 1}"
    query = (
        f"SELECT id, name FROM (SELECT id, name, 0 AS how FROM entities WHERE id {within} "
        f"UNION ALL SELECT entity, name, 1 FROM aliases WHERE entity {within}) "
        "ORDER BY id, how, name"
    )
    names: list[str] = []
    owner = [np.zeros(0, np.int64)]
    for batch in kb.stream(query, 1 << 16):
        owner.append(np.asarray(batch.column(0), np.int64) - own.start)
        names += batch.column(1).to_pylist()
    return names, np.concatenate(owner)


def read_hidden_links(
    kb: KB,
    lang: str,
    into: str,
    split: str = "test",
    most: int | None = None,
    names: Names | None = None,
) -> LinkingTask:
    """The hidden links of a split (`prixlm split --hide-links`), as mentions and entities.

    Candidates are all entities of `into` with all their names (read once for several languages);
    mentions are names in `lang`.
    """
    own, other = kb.entity_range(lang), kb.entity_range(into)
    a, b = (np.asarray(column, np.int64) for column in kb.hidden_links(split).columns)
    pairs = [(a, b), (b, a)] if lang != into else []
    found = [np.stack([x, y], axis=1)[_within(x, own) & _within(y, other)] for x, y in pairs]
    rows = np.unique(np.concatenate([np.zeros((0, 2), np.int64), *found]), axis=0)
    if not len(rows):
        raise PrixError(f"{kb.folder} has no hidden link from {lang} into {into}.")
    subjects = np.unique(rows[:, 0])
    if most is not None and len(subjects) > most:
        subjects = np.sort(np.random.default_rng(0).permutation(subjects)[:most])
        rows = rows[np.isin(rows[:, 0], subjects)]
    offsets = np.searchsorted(rows[:, 0], np.append(subjects, np.iinfo(np.int64).max))
    texts, owner = names or read_names(kb, into)
    mentions = kb.names(subjects.tolist())
    return LinkingTask(texts, owner, mentions, offsets, rows[:, 1] - other.start)


def _within(values: Array, ids: range) -> Array:
    return np.asarray((values >= ids.start) & (values < ids.stop))
