"""Cross-lingual entity linking (Sec. 3.3): link a mention in one language to entities of another.

    tasks = read_tasks("names.txt", {"fi": "fi_queries.txt"})
    tables = evaluate_linking(tasks, [*spelling_scorers(), EncoderScorer(encoder)])

An entity has one or more names. A mention may have several right entities, and any of them counts.
The score of an entity is that of its best name. Ranks follow the tie rule of `metrics.py`: entities
of one name share the mean of their ranks, so names that cannot be told apart do not raise
accuracy@1.

A task comes from files (XL-BEL, LR-XEL) or from the links that a split withholds. A *linker* is a
method that ranks the right entity of each mention.

Dimension letters: Q mentions, q mentions of one block, N names, E entities.
"""

import dataclasses
import hashlib
import json
import logging
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from prixlm.arrays import group_starts
from prixlm.decoding.completer import Completer
from prixlm.decoding.search import exact_ranks
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.spelling import SPELLINGS, Spelling, slices
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.languages import normalise
from prixlm.lm.model import PrixLM
from prixlm.lm.trim import check_reading
from prixlm.reports.kept import Kept
from prixlm.reports.tables import ResultTable, name_rows
from prixlm.types import Array, Progress, Query

logger = logging.getLogger(__name__)
_BATCH = 32
"""Mentions that the decoder translates at once."""


@dataclass(frozen=True)
class _Format:
    """How the lines of a benchmark's files are built."""

    separator: str
    name_fields: int  # fields of a line of names: id, name, ...
    mention_fields: int  # fields of a line of mentions: id, ..., mention, ...
    mention_field: int  # which of them is the mention
    several_ids: bool  # ids may be joined by `|`
    name_once: bool  # an id has one name; further lines of the same id are left out


_FORMATS = {
    "xlbel": _Format("||", 2, 2, 1, several_ids=True, name_once=False),
    "lrxel": _Format("|||", 3, 4, 2, several_ids=False, name_once=True),
}


@dataclass(frozen=True)
class LinkingTask:
    """Names of entities, and mentions with the entities that are right."""

    names: list[str]  # (N,)
    owner: Array  # (N,) the entity of each name
    mentions: list[str]  # (Q,)
    offsets: Array  # (Q + 1,): mention i has the entities right[offsets[i]:offsets[i + 1]]
    right: Array  # entities, one mention after another
    problems: dict[str, int] = field(default_factory=dict)  # lines left out, by reason
    into: str | None = None  # the language of the names
    entities: Array | None = None  # (Q,) ids of the mentions, if they are entities of a KB

    def differ(self) -> Array:
        """Return (Q,) whether a mention is none of the names of its right entities."""
        # Names of right entities only: a KB may have millions of others.
        names: dict[int, set[str]] = {}
        for row in np.flatnonzero(np.isin(self.owner, self.right)).tolist():
            names.setdefault(int(self.owner[row]), set()).add(self.names[row])
        return np.array(
            [
                not any(mention in names.get(entity, ()) for entity in self.answers(index))
                for index, mention in enumerate(self.mentions)
            ],
            bool,
        )

    def fingerprint(self) -> str:
        """Return a digest of the whole task, to recognise a table that was made from it."""
        arrays = [
            part.astype(np.int64).tobytes() for part in (self.owner, self.offsets, self.right)
        ]
        texts = json.dumps([self.names, self.mentions]).encode()
        return hashlib.sha256(b"".join([texts, *arrays])).hexdigest()

    def answers(self, mention: int) -> list[int]:
        """Return the right entities of a mention."""
        entities: list[int] = self.right[self.offsets[mention] : self.offsets[mention + 1]].tolist()
        return entities

    def mention_of_right(self) -> Array:
        """Return the mention that each element of `right` belongs to."""
        return np.repeat(np.arange(len(self.mentions)), np.diff(self.offsets))


# Linkers: methods that rank the entities of a task.


class Linker(Protocol):
    """A method that ranks the entities of a task."""

    name: str

    def check(self, tasks: Mapping[str, LinkingTask]) -> None:
        """Refuse tasks that the method cannot be measured by."""

    def ranks(self, task: LinkingTask, lang: str) -> Array:
        """Return (Q,) the rank of the best right entity of every mention in `lang`."""


class IdentifiedLinker(Linker, Protocol):
    """A linker whose results can be kept for a later call."""

    def identity(self) -> str:
        """Return what tells the linker from others of the same name."""


class Scorer(ABC):
    """A linker that scores the similarity of mentions and names."""

    name: str

    @abstractmethod
    def scores(self, task: LinkingTask, lang: str) -> Iterator[Array]:
        """Yield (q, N) scores of all names for a block of mentions in `lang`, in order."""

    def ranks(self, task: LinkingTask, lang: str) -> Array:
        """Return (Q,) the rank of the best right entity of every mention."""
        # Sort the names by entity, so that reduceat takes the best name of each.
        order = np.argsort(task.owner, kind="stable")
        owner = task.owner[order]
        starts = group_starts(owner)
        entity = owner[starts]  # (E,) entities that have a name, ascending
        ranks, done = np.empty(len(task.mentions)), 0
        for scores in self.scores(task, lang):
            best = np.maximum.reduceat(scores[:, order], starts, axis=1)  # (q, E)
            ranks[done : done + len(best)] = _ranks(best, entity, task, done)
            done += len(best)
        return ranks


def _ranks(scores: Array, entity: Array, task: LinkingTask, first: int) -> Array:
    """Rank the best right entity of mentions `first`, `first + 1`, ...; scores: (q, E).

    Other right entities do not count as better.
    """
    offsets = task.offsets[first : first + len(scores) + 1]
    row = np.repeat(np.arange(len(scores)), np.diff(offsets))
    column = np.searchsorted(entity, task.right[offsets[0] : offsets[-1]])
    # (q, E) whether an entity is right for a mention.
    is_right = np.zeros(scores.shape, bool)
    is_right[row, column] = True
    # (q, 1) the score of the best right entity.
    top = np.where(is_right, scores, -np.inf).max(axis=1, keepdims=True)
    higher = ((scores > top) & ~is_right).sum(axis=1)
    equal = ((scores == top) & ~is_right).sum(axis=1)
    return np.asarray(1 + higher + equal / 2)


class EncoderScorer(Scorer):
    """Score by the cosine of an entity encoder's vectors."""

    def __init__(self, encoder: EntityEncoder, name: str = "encoder") -> None:
        self.encoder, self.name = encoder, name
        self._last: tuple[Sequence[str], str | None, Array, Array] | None = None

    def identity(self) -> str:
        """Return what tells the encoder from others."""
        return self.encoder.fingerprint()

    def check(self, tasks: Mapping[str, LinkingTask]) -> None:
        """Refuse a trimmed model that reads mentions or names in other pieces than its base."""
        _check_mentions(self.encoder.model, tasks, self.name)
        names = list({name: None for task in tasks.values() for name in task.names})
        check_reading(self.encoder.model, names, f"names, asked of {self.name}")

    def scores(self, task: LinkingTask, lang: str) -> Iterator[Array]:
        """Yield (q, N) cosines."""
        vectors, index = self._vectors(task.names, task.into)
        asked = self.encoder.encode(task.mentions, langs=_codes(language_of(lang), task.mentions))
        # Blocks of mentions, so that the (q, N) scores fit into memory.
        for rows in slices(len(asked), len(task.names)):
            yield (asked[rows] @ vectors.T)[:, index]

    def _vectors(self, names: Sequence[str], into: str | None) -> tuple[Array, Array]:
        """Return the vectors of the distinct names, and (N,) which of them is each name's.

        Each distinct name is scored once, so that equal names tie exactly. The vectors of the last
        list are kept, as all languages of a benchmark link to the same names.
        """
        if self._last is None or self._last[0] != names or self._last[1] != into:
            numbers: dict[str, int] = {}
            index = np.array([numbers.setdefault(name, len(numbers)) for name in names])
            vectors = self.encoder.encode(list(numbers), langs=_codes(into, numbers))
            self._last = (names, into, vectors, index)
        return self._last[2], self._last[3]


class FuzzyScorer(Scorer):
    """Score by spelling, without a model: by default rapidfuzz's string similarity."""

    def __init__(self, spelling: Spelling = SPELLINGS[0]) -> None:
        self.spelling, self.name = spelling, spelling.title

    def identity(self) -> str:
        """Return what tells the comparison from others."""
        return self.spelling.title

    def check(self, tasks: Mapping[str, LinkingTask]) -> None:
        """Accept every task: strings can always be compared."""

    def scores(self, task: LinkingTask, lang: str) -> Iterator[Array]:
        """Yield (q, N) similarities."""
        return self.spelling.compare(task.mentions, task.names, language_of(lang), task.into)


def spelling_scorers() -> list[FuzzyScorer]:
    """Return the linkers that compare spellings: the first rows of every table."""
    return [FuzzyScorer(spelling) for spelling in SPELLINGS]


def language_of(title: str) -> str | None:
    """Return the language of a column: `ja` and `ja_test` are Japanese. None if it names none."""
    code = title.split("_")[0].split(".")[0]
    return code if 2 <= len(code) <= 3 and code.isalpha() else None


def _codes(lang: str | None, names: Collection[str]) -> list[str] | None:
    return None if lang is None else [lang] * len(names)


class PerLanguage:
    """A linker with a model of its own for each language, made when its language is asked for."""

    def __init__(self, name: str, make: Callable[[str], Linker]) -> None:
        self.name, self.make = name, make

    def check(self, tasks: Mapping[str, LinkingTask]) -> None:
        """Accept every task: a language's linker is checked when it is made."""

    def ranks(self, task: LinkingTask, lang: str) -> Array:
        """Return the ranks of the language's own linker."""
        linker = self.make(lang)
        linker.check({lang: task})
        return linker.ranks(task, lang)


class Translation:
    """A linker that lets the decoder translate a mention, among the entities of a KB."""

    def __init__(self, model: PrixLM | Path, kb: KB, into: str, name: str = "translate") -> None:
        self.completer, self.into, self.name = Completer(model, kb), into, name

    def identity(self) -> str:
        """Return what tells the model and the KB from others."""
        return f"{self.completer.identity()} {self.completer.kb.fingerprint()}"

    def check(self, tasks: Mapping[str, LinkingTask]) -> None:
        """Refuse a trimmed model that reads mentions in other pieces than its base."""
        _check_mentions(self.completer.model, tasks, self.name)

    def ranks(self, task: LinkingTask, lang: str) -> Array:
        """Return exact ranks up to ten; infinity beyond, and where the model cannot be asked."""
        for code in (lang, self.into):
            self.completer.check_language(code)
        trie = self.completer.trie(self.into)
        right = task.right + self.completer.kb.entity_range(self.into).start  # ids of the KB
        prefixes = [self._prefix(mention, lang, trie.height) for mention in task.mentions]
        row = task.mention_of_right()
        # One search for each right entity; names that are too long are not in the trie.
        is_open = np.array([prefixes[mention] is not None for mention in row], bool)
        is_open &= trie.nodes_of(right) >= 0
        skipped = len(task.mentions) - len(np.unique(row[is_open]))
        if skipped:
            logger.warning(
                "%s: %d mentions or names are too long or have no tokens, and count as wrong",
                lang,
                skipped,
            )
        # The rank of a mention is that of its best right entity.
        ranks = np.full(len(task.mentions), np.inf)
        for batch in (_BATCH, 1):  # a search that ran out of memory may fit alone
            searches = np.flatnonzero(is_open)
            for start in range(0, len(searches), batch):
                block = searches[start : start + batch]
                results = exact_ranks(
                    self.completer.model,
                    trie,
                    [prefixes[mention] or [] for mention in row[block]],
                    right[block],
                    most=10,
                    exclude=[right[task.offsets[m] : task.offsets[m + 1]] for m in row[block]],
                )
                for search, result in zip(block, results, strict=True):
                    is_open[search] = not result.complete
                    rank = np.inf if result.rank is None else result.rank
                    ranks[row[search]] = min(ranks[row[search]], rank)
        if is_open.any():
            logger.warning("%s: %d ranks are unknown for lack of memory", lang, is_open.sum())
        return ranks

    def _prefix(self, mention: str, lang: str, height: int) -> list[int] | None:
        """Return the model's input for a mention; None if it has no tokens or leaves no room."""
        try:
            prefix = self.completer.encode(Query(lang, mention, None, self.into))
        except PrixError:
            return None
        return prefix if len(prefix) + height <= self.completer.model.max_length else None


def _check_mentions(model: PrixLM, tasks: Mapping[str, LinkingTask], name: str) -> None:
    for lang, task in tasks.items():
        check_reading(model, task.mentions, f"mentions of {lang}, asked of {name}")


# Tables.


def evaluate_linking(
    tasks: Mapping[str, LinkingTask],
    linkers: Iterable[Linker],
    progress: Progress | None = None,
    *,
    source: str = "",
    kept: Kept | None = None,
    identity: Mapping[str, str] | None = None,
) -> list[ResultTable]:
    """Return accuracy@1 and @5 of every linker in every language, and @1 where the names differ.

    linkers: may be a generator; each is made when the one before it is done.
    source: names the data in the titles, if there are several. kept: what is measured so far.
    identity: what tells the linker of a row from others, if the caller does not know that all that
    is kept is of the same linkers and tasks. Other rows are then measured in any case.
    """
    kept = kept or Kept()
    # Where mention and name are the same text, linking is trivial.
    differ = {lang: task.differ() for lang, task in tasks.items()}
    apart = "names that differ" + (f", {source}" if source else "")
    first, five = (ResultTable(f"accuracy@{k}", subset=source) for k in (1, 5))
    different = ResultTable("accuracy@1", subset=apart)
    for linker in linkers:
        linker.check(tasks)
        known = kept if identity is None or linker.name in identity else Kept()
        for done, (lang, task) in enumerate(tasks.items(), start=1):
            measure = partial(_ranks_of, linker, task, lang)
            key = [source, linker.name, lang]
            if identity is not None:
                whole = f"{identity.get(linker.name)} {task.into} {task.fingerprint()}"
                key.append(hashlib.sha256(whole.encode()).hexdigest())
            ranks = np.array(known.get(key, measure))
            ranks_apart = ranks[differ[lang]]
            first.add_questions(linker.name, lang, ranks <= 1)
            five.add_questions(linker.name, lang, ranks <= 5)
            different.add_questions(linker.name, lang, ranks_apart <= 1)
            if progress is not None:
                progress(f"link {linker.name}", done, len(tasks))
    return [first, five, different]


def _ranks_of(linker: Linker, task: LinkingTask, lang: str) -> list[float]:
    """Return the rank of the best right entity of every mention, for JSON."""
    ranks: list[float] = linker.ranks(task, lang).tolist()
    return ranks


def evaluate_linking_files(
    encoders: Sequence[Path],
    names: Path,
    mentions: Sequence[Path],
    format: str = "xlbel",
    progress: Progress | None = None,
    *,
    kept: Kept | None = None,
) -> list[ResultTable]:
    """Evaluate spelling and encoder folders on files; paths name rows and columns.

    kept: what an earlier call measured, which is taken if it was of the same encoder and files.
    """
    tasks = read_tasks(names, name_rows(mentions), format)
    scorers = _load_scorers(encoders)
    for scorer in scorers:  # all of them, before the first is measured
        scorer.check(tasks)
    rows: list[IdentifiedLinker] = [*spelling_scorers(), *scorers]
    identity = {scorer.name: scorer.identity() for scorer in rows}
    return evaluate_linking(tasks, rows, progress, kept=kept, identity=identity)


def evaluate_withheld_links(
    kb: KB,
    encoders: Sequence[Path],
    models: Sequence[Path] = (),
    *,
    into: str = "en",
    langs: Sequence[str] | None = None,
    split: str = "test",
    most: int | None = None,
    more: Sequence[Linker] = (),
    progress: Progress | None = None,
    kept: Kept | None = None,
) -> list[ResultTable]:
    """Evaluate spelling, encoders and translating Prix-LMs on a KB's withheld links.

    Refuses a model that was trained on these links. most: mentions sampled per language. more:
    further rows, which are always measured. kept: what an earlier call measured, which is taken if
    it was of the same model and links.
    """
    tasks = withheld_tasks(kb, into, langs, split, most)
    scorers = _load_scorers(encoders)
    translations = [
        Translation(folder, kb, into, f"translate {title}")
        for title, folder in name_rows(models).items()
    ]
    # A model that has seen the links would only repeat them.
    for scorer in scorers:
        scorer.encoder.model.settings.lineage.check_unseen_links(kb, scorer.name)
        scorer.check(tasks)
    for linker in translations:
        linker.completer.model.settings.lineage.check_unseen_links(kb, linker.name)
        linker.check(tasks)
    for other in more:
        other.check(tasks)
    ours: list[IdentifiedLinker] = [*spelling_scorers(), *scorers, *translations]
    identity = {linker.name: linker.identity() for linker in ours}
    return evaluate_linking(tasks, [*ours, *more], progress, kept=kept, identity=identity)


def _load_scorers(encoders: Sequence[Path]) -> list[EncoderScorer]:
    named = name_rows(encoders).items()
    return [EncoderScorer(EntityEncoder.load(folder), title) for title, folder in named]


# Tasks from the files of benchmarks.


def read_tasks(
    names: Path | str, mentions: Mapping[str, Path | str], format: str = "xlbel"
) -> dict[str, LinkingTask]:
    """Read files of mentions, by title, that are all linked to one file of names.

    xlbel: `id||name` and `id||mention`, several right ids joined by `|`.
    lrxel: names `ID ||| title ||| type`, and mentions `ID ||| en title ||| title ||| type`.
    """
    if format not in _FORMATS:
        raise PrixError(f"--format {format}: expected {' or '.join(_FORMATS)}.")
    shape = _FORMATS[format]
    # Problems of the names are those of every task; they are logged once.
    problems: Counter[str] = Counter()
    entities = _read_entities(Path(names), shape, problems)
    _warn(problems)
    tasks = {}
    for title, file in mentions.items():
        path = Path(file)
        own: Counter[str] = Counter()
        lines = _read_lines(path, shape, shape.mention_fields, shape.mention_field, own)
        task = _make_task(entities, lines, path, own)
        _warn(own)
        if not task.mentions:
            raise PrixError(f"{path} has no mention whose id {names} names.")
        tasks[title] = dataclasses.replace(task, problems={**problems, **own})
    return tasks


def read_tasks_by_language(
    names: Path, mentions: Sequence[Path], format: str = "xlbel"
) -> dict[str, LinkingTask]:
    """Read files of mentions, whose names tell the language.

    XL-BEL's begin with it (`fi_1k_test_query.txt`), LR-XEL's have it after a hyphen
    (`me_test_en-te_links`, or `en-tel_links`).
    """
    by_language: dict[str, Path] = {}
    for path in mentions:
        linked = re.search(r"-([a-z]{2,3})_links", path.name) if format == "lrxel" else None
        code = linked[1] if linked else path.name.split("_")[0].split(".")[0]
        lang = normalise(code) or code
        if lang in by_language:
            raise PrixError(f"two files of {lang}: pass one for each language.")
        by_language[lang] = path
    return read_tasks(names, by_language, format)


_Entities = tuple[list[str], Array, dict[str, int]]
"""Names, the entity of each name, and the number of each entity's id."""


def _read_entities(path: Path, shape: _Format, problems: Counter[str]) -> _Entities:
    """Read a file of names; lines that repeat another are counted."""
    numbers: dict[str, int] = {}
    texts: list[str] = []
    owner: list[int] = []
    seen: set[tuple[str, str]] = set()
    for keys, text in _read_lines(path, shape, shape.name_fields, 1, problems):
        for key in keys:
            if shape.name_once and key in numbers:
                problems[f"{path.name}: an id twice"] += 1
            elif (key, text) in seen:
                problems[f"{path.name}: the same id and name again"] += 1
            else:
                seen.add((key, text))
                texts.append(text)
                owner.append(numbers.setdefault(key, len(numbers)))
    if not texts:
        raise PrixError(f"{path} has no names: nothing can be linked to.")
    return texts, np.array(owner), numbers


def _read_lines(
    path: Path, shape: _Format, num_fields: int, text_field: int, problems: Counter[str]
) -> Iterator[tuple[list[str], str]]:
    """Yield the ids and the text of each line; lines of another shape are counted."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"{path} cannot be read as text: {error}.") from None
    for line in filter(str.strip, lines):
        fields = [part.strip() for part in line.split(shape.separator)]
        if len(fields) != num_fields:
            problems[f"{path.name}: not {num_fields} fields joined by {shape.separator}"] += 1
        elif not fields[0] or not fields[text_field]:
            problems[f"{path.name}: no id or no name"] += 1
        else:
            keys = list(filter(None, fields[0].split("|"))) if shape.several_ids else [fields[0]]
            yield keys, fields[text_field]


def _make_task(
    entities: _Entities,
    lines: Iterable[tuple[list[str], str]],
    path: Path,
    problems: Counter[str],
) -> LinkingTask:
    """Return the mentions of a file whose ids have names; count the others."""
    names, owner, numbers = entities
    mentions, offsets, right = [], [0], []
    for keys, mention in lines:
        known = [numbers[key] for key in dict.fromkeys(keys) if key in numbers]
        if not known:
            problems[f"{path.name}: no name for the id"] += 1
            continue
        # Several ids mean that any of them is right, so those that are known are enough.
        if len(known) < len(set(keys)):
            problems[f"{path.name}: no name for one of several ids (kept)"] += 1
        mentions.append(mention)
        right += known
        offsets.append(len(right))
    return LinkingTask(names, owner, mentions, np.array(offsets), np.array(right))


def _warn(problems: Mapping[str, int]) -> None:
    for why, number in problems.items():
        logger.warning("%d lines: %s", number, why)


# Tasks from the links that a split withholds.


Names = tuple[list[str], Array]
"""Names of entities, and the entity of each name."""


def read_names(kb: KB, lang: str) -> Names:
    """Read the names and aliases of a language's entities, which are numbered from 0."""
    first = kb.entity_range(lang).start
    names: list[str] = []
    owner = [np.zeros(0, np.int64)]  # one array a batch
    for ids, texts in kb.all_names(lang):
        owner.append(ids.astype(np.int64) - first)
        names += texts
    return names, np.concatenate(owner)


def withheld_tasks(
    kb: KB,
    into: str,
    langs: Sequence[str] | None = None,
    split: str = "test",
    most: int | None = None,
) -> dict[str, LinkingTask]:
    """Return the withheld links into a language as tasks, by the language of the mentions.

    langs: languages of the mentions; None: all with such links. most: mentions per language.
    """
    if split not in ("test", "valid"):
        raise PrixError(f"--split {split}: expected test or valid.")
    if most is not None and most < 1:
        raise PrixError(f"--most {most}: expected 1 or more.")
    kb.entity_range(into)  # refuses a language that is not there
    links = kb.withheld_links(split)
    # (2, links) the language of both ends; keep the links with an end in `into`.
    ends = kb.language_of(np.stack([column.to_numpy() for column in links.columns]))
    is_into = (ends == kb.languages.index(into)).any(axis=0)
    linked = {kb.languages[i] for i in np.unique(ends[:, is_into])}
    asked = [lang for lang in langs or kb.languages if lang != into]
    without = sorted(set(asked) - linked)
    if without:
        logger.warning("no withheld links into %s from %s", into, ", ".join(without))
    names = read_names(kb, into)
    tasks = {
        lang: read_withheld_links(kb, lang, into, split, most, names)
        for lang in asked
        if lang in linked
    }
    if not tasks:
        raise PrixError(f"{kb.folder} has no withheld links into {into}.")
    return tasks


def read_withheld_links(
    kb: KB,
    lang: str,
    into: str,
    split: str = "test",
    most: int | None = None,
    names: Names | None = None,
) -> LinkingTask:
    """Read the links of a split that withholds some as mentions in `lang` and entities of `into`.

    Candidates are all entities of `into` with all their names. names: what `read_names` returned,
    to read them once for several languages.
    """
    sources, targets = kb.entity_range(lang), kb.entity_range(into)
    a, b = (np.asarray(column, np.int64) for column in kb.withheld_links(split).columns)
    both_ways = [(a, b), (b, a)] if lang != into else []
    # (links, 2) distinct pairs of an entity of `lang` and one of `into`, sorted.
    pairs = [
        np.stack([x, y], axis=1)[_within(x, sources) & _within(y, targets)] for x, y in both_ways
    ]
    rows = np.unique(np.concatenate([np.zeros((0, 2), np.int64), *pairs]), axis=0)
    if not len(rows):
        raise PrixError(f"{kb.folder} has no withheld link from {lang} into {into}.")
    subjects = np.unique(rows[:, 0])
    # A sample of the mentions, with all right entities of each.
    if most is not None and len(subjects) > most:
        subjects = np.sort(np.random.default_rng(0).permutation(subjects)[:most])
        rows = rows[np.isin(rows[:, 0], subjects)]
    # Rows are sorted by mention, so its right entities begin where its id does.
    offsets = np.searchsorted(rows[:, 0], np.append(subjects, np.iinfo(np.int64).max))
    texts, owner = names or read_names(kb, into)
    mentions = kb.names(subjects.tolist())
    right = rows[:, 1] - targets.start
    return LinkingTask(texts, owner, mentions, offsets, right, into=into, entities=subjects)


def _within(values: Array, ids: range) -> Array:
    return np.asarray((values >= ids.start) & (values < ids.stop))
