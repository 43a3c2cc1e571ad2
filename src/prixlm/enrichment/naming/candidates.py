"""Candidate names of things in one language, and the evidence for each of them.

    namer = Namer(lang, scripts, rate, writers, lexicon)
    candidates = namer.candidates(things)
    features = candidates.features          # (N, F)

A candidate is a name that another language uses and this one could (*taken*), or one that writers
made of the names in other languages (*written*; see `writing`). Several writers often make the same
name: their probabilities are pooled, and how many of them agree is evidence too.

Dimension letters: N candidates, a few of each thing; F features.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from prixlm.arrays import group_starts, rank_in_group
from prixlm.enrichment.naming.endings import Endings
from prixlm.enrichment.naming.vocabulary import Spelling, Vocabulary
from prixlm.enrichment.naming.writing import Casing, NameWriter, is_capital
from prixlm.languages import script_of_text, word_frequencies
from prixlm.romanise import romanise
from prixlm.types import Array

MOST_WRITTEN = 20
"""Most written candidates of a thing."""
_MOST_CASED = 6
"""Written candidates that are tried with capitals and without; others as is usual for the kind."""
_MOST_EDITED, _MOST_VARIANTS = 3, 6
"""Written candidates whose ending is exchanged, and other endings of each, at most."""
FEATURES = (
    *("best_rate", "rate_share", "langs_share", "num_langs", "num_taken"),
    *("pooled", "best_probability", "proposers", "first_share", "known", "lead", "place"),
    *("letters", "length_ratio", "words", "in_script", "known_words", "word_count"),
    *("capital", "capital_sources", "lower_words", "sounds_like", "sounds_like_mean"),
    *("num_sources", "distinct_sources", "source_words", "hyphens", "ending_2", "ending_3"),
    *("kind_alike", "kind_taken", "kind_capital"),
    *("log_mean", "log_best", "log_worst", "log_lead"),
    *("frequency", "frequency_mean", "frequency_lead", "spelt_as_names", "spelt_as_words"),
    *("edited", "agreement"),
)
"""Columns of the features; the log-probability by each writer follows."""
NUM_SPELT = 40_000
"""Frequent words that the spelling of the language is learnt from."""
NUM_READ = 200_000
"""Frequent words that can be found by their sound."""
_MOST_SPELT = 20_000
"""Names that their spelling is learnt from."""
_UNWRITTEN = -15.0
"""Log-probability of a name that no writer can write."""
_RUNS = re.compile(
    # Japanese has no spaces: a change of script is as good as one.
    "[\u30a1-\u30fa\u30fc]+|[\u3041-\u309f]+|[\u3005\u4e00-\u9fff]+"
    "|[^\\W\u30a1-\u30fa\u30fc\u3041-\u309f\u3005\u4e00-\u9fff]+"
)
_ENDINGS = (2, 3)
"""Letters of a name's ending."""
_KIND_PSEUDO = 5.0
"""Pseudo-count that draws the shares of a rare relation towards those of all things."""


class Thing(NamedTuple):
    """A concept and its names in other languages."""

    concept: int
    names: list[tuple[str, list[str], str]]  # name, languages that use it, key of one entity
    own: str | None  # name in the language itself; None if it has none


@dataclass
class _Candidate:
    """A name and who has it."""

    taken: list[str] = field(default_factory=list)  # languages that use it
    written: dict[str, float] = field(default_factory=dict)  # probability by source language
    num_first: int = 0  # writers whose first answer it is
    known: float = 0.0  # share of known words, at best
    logs: dict[str, float] = field(default_factory=dict)  # log-probability by source language
    edited: float = math.nan  # letters that another ending has less; NaN if it has its own


@dataclass(frozen=True)
class Candidates:
    """Candidates of some things, one thing after another."""

    concept: Array  # (N,)
    text: list[str]
    origin: list[list[str]]  # languages that use it, or whose names it was written from
    source: list[str]  # the name that it was made of; of the surest language if there are several
    is_taken: Array  # (N,) bool
    features: Array  # (N, F)
    is_right: Array  # (N,) whether it is the language's own name; False where that is unknown


class Language:
    """What is known of a language without its names: frequent words, and how they are spelt."""

    def __init__(self, frequencies: Mapping[str, float], lang: str | None = None) -> None:
        """frequencies: share of all text by word; empty if the language has no such list."""
        self.vocabulary = Vocabulary(frequencies)
        self.spelling: Spelling | None = None
        if frequencies:
            self.vocabulary.read(NUM_READ, lang)
            self.spelling = Spelling(self.vocabulary.most_frequent(NUM_SPELT))

    @staticmethod
    @lru_cache(maxsize=2)
    def of(lang: str) -> "Language":
        """Return what is known of a language, read once: it takes seconds, whatever the KB is."""
        return Language(word_frequencies(lang), lang)


class Lexicon:
    """The words of a language: how often each occurs in names and in text, and its capitals."""

    def __init__(self, names: Iterable[str], language: Language | None = None) -> None:
        """language: what is known of it without names."""
        names = list(names)
        language = language or Language({})
        self.casing = Casing(names)
        self._counts = Counter(word for name in names for word in _words(name))
        self.vocabulary = language.vocabulary.with_names(self._counts)
        self._of_words = language.spelling
        self._of_names = Spelling(word for name in names[:_MOST_SPELT] for word in _words(name))

    def familiarity(self, text: str) -> tuple[float, float]:
        """Return the share of a text's words that are known, and the logarithm of the rarest."""
        counts = [self._counts[word] for word in _words(text)]
        if not counts:
            return math.nan, math.nan
        return sum(map(bool, counts)) / len(counts), math.log1p(min(counts))

    def frequencies(self, text: str) -> tuple[float, float]:
        """Return the Zipf frequency of a text's rarest word, and their mean; 0 if unknown."""
        words = _RUNS.findall(text.lower())
        if not words or not len(self.vocabulary):
            return math.nan, math.nan
        found = [self.vocabulary.frequency(word) for word in words]
        return min(found), sum(found) / len(found)

    def spellings(self, text: str) -> tuple[float, float]:
        """Return how a text's oddest word is spelt beside words of names, and beside all words."""
        words = _words(text)
        return _oddest(self._of_names, words), _oddest(self._of_words, words)


def _oddest(spelling: Spelling | None, words: Sequence[str]) -> float:
    """Return the log-probability a letter of the least probable word; NaN if that is unknown."""
    if spelling is None or not words:
        return math.nan
    return min(map(spelling.log_probability, words))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@dataclass(frozen=True)
class Namer:
    """Makes candidates for things, with their features."""

    scripts: tuple[str, ...]  # of the language
    rate: Mapping[str, float]  # how often the language uses the name of each other language
    writers: Mapping[str, NameWriter]  # by source language
    lexicon: Lexicon
    kinds: "Kinds"
    foreign: tuple[str, ...] = ()  # other scripts that some of the language's names are in
    lang: str | None = None  # the language; None: names are read without knowing it
    writes: bool = True  # False: only names that are taken over

    def can_read(self, name: str) -> bool:
        """Return whether the language could use a name: by its script, or without any letters."""
        script = script_of_text(name)
        if not script:
            return not any(map(str.isalpha, name))
        return script in self.scripts or script in self.foreign

    def candidates(self, things: Sequence[Thing], kind: Sequence[Sequence[int]]) -> Candidates:
        """Return candidates with their features. kind: relations of each thing (see `Kinds`)."""
        owner: list[int] = []
        texts: list[str] = []
        found: list[_Candidate] = []
        for number, thing in enumerate(things):
            for text, candidate in self._of_thing(thing, kind[number]).items():
                owner.append(number)
                texts.append(text)
                found.append(candidate)
        owners = np.array(owner, np.int64)
        features = self._features(things, owners, texts, found, kind)
        concept = np.array([thing.concept for thing in things], np.int64)[owners]
        right = [text == things[row].own for row, text in zip(owner, texts, strict=True)]
        return Candidates(
            concept,
            texts,
            [sorted(item.taken or item.written) for item in found],
            [_source(things[row], item) for row, item in zip(owner, found, strict=True)],
            np.array([bool(item.taken) for item in found], bool),
            features,
            np.array(right, bool),
        )

    def _of_thing(self, thing: Thing, relations: Sequence[int]) -> dict[str, _Candidate]:
        """Return the candidates of one thing by their text."""
        candidates: dict[str, _Candidate] = {}
        for name, langs, _ in thing.names:
            if self.can_read(name):
                candidates.setdefault(name, _Candidate()).taken += langs
        written: dict[str, _Candidate] = {}
        for name, langs, _ in thing.names:
            for lang in langs:
                writer = self.writers.get(lang) if self.writes else None
                for place, answer in enumerate(writer.write(name) if writer else ()):
                    item = written.setdefault(answer.text, _Candidate())
                    item.written[lang] = item.written.get(lang, 0.0) + answer.probability
                    item.num_first += place == 0
                    item.known = max(item.known, answer.known)
        best = sorted(written.items(), key=lambda item: (-sum(item[1].written.values()), item[0]))
        best = best[:MOST_WRITTEN]
        for text, item in best:
            item.logs = self._logs(thing, text)
        best += self._with_other_endings(best, relations, set(written))
        is_common = self.kinds.features([relations])[0, 2] < 0.5
        for number, (text, item) in enumerate(best):
            variants = self.lexicon.casing.variants(text)
            if number >= _MOST_CASED:
                variants = variants[-1:] if is_common else variants[:1]
            for variant in variants:
                if variant in candidates:
                    candidates[variant] = replace(item, taken=candidates[variant].taken)
                elif self.can_read(variant):
                    candidates[variant] = replace(item, taken=[])
        return candidates

    def _with_other_endings(
        self,
        best: Sequence[tuple[str, _Candidate]],
        relations: Sequence[int],
        written: set[str],
    ) -> list[tuple[str, _Candidate]]:
        """Return names that differ from the best ones in an ending.

        What is known of a name holds for its variant; only `edited` tells them apart.
        """
        found: list[tuple[str, _Candidate]] = []
        for text, item in best[:_MOST_EDITED]:
            variants = self.kinds.other_endings.variants(relations, text, self.lexicon.vocabulary)
            for variant in variants[:_MOST_VARIANTS]:
                if variant not in written:
                    written.add(variant)
                    found.append((variant, replace(item, edited=len(text) - len(variant))))
        return found

    def _logs(self, thing: Thing, text: str) -> dict[str, float]:
        """Return the log-probability of a text by each source that names the thing."""
        logs: dict[str, float] = {}
        for name, langs, _ in thing.names:
            for lang in langs:
                if lang in self.writers:
                    log = self.writers[lang].log_probability(name, text)
                    logs[lang] = max(log, logs.get(lang, -math.inf))
        return logs

    def _features(
        self,
        things: Sequence[Thing],
        owner: Array,
        texts: Sequence[str],
        found: Sequence[_Candidate],
        kind: Sequence[Sequence[int]],
    ) -> Array:
        """Return what tells whether the language uses a name: (N, F), columns as `FEATURES`."""
        if not found:
            return np.zeros((0, len(FEATURES) + len(self.writers)))
        endings = [
            (text.count("-"), *self.kinds.endings(kind[row], text))
            for row, text in zip(owner.tolist(), texts, strict=True)
        ]
        # (N,) each: what every single source says.
        single = [
            np.array([item.logs.get(lang, math.nan) for item in found]) for lang in self.writers
        ]
        columns = [
            self._taken_features(owner, found),
            self._written_features(owner, texts, found),
            self._text_features(things, owner, texts),
            np.array([_about(thing) for thing in things])[owner],
            np.array(endings),
            self.kinds.features(kind)[owner],
            self._spelling_features(owner, texts, found),
            *single,
        ]
        return np.column_stack(columns)

    def _taken_features(self, owner: Array, found: Sequence[_Candidate]) -> Array:
        """Return who uses each name: (N, 5)."""
        rates = [[self.rate.get(lang, 0.0) for lang in item.taken] for item in found]
        total = np.array([sum(row) for row in rates])
        number = np.array([len(row) for row in rates], float)
        # (N,) sums over all candidates of the same thing.
        total_of_all = np.bincount(owner, total)[owner]
        number_of_all = np.bincount(owner, number)[owner]
        return np.stack(
            [
                np.array([max(row, default=math.nan) for row in rates]),
                total / np.maximum(total_of_all, 1e-9),
                number / np.maximum(number_of_all, 1),
                np.log1p(number),
                np.bincount(owner, number > 0)[owner],
            ],
            axis=1,
        )

    def _written_features(
        self, owner: Array, texts: Sequence[str], found: Sequence[_Candidate]
    ) -> Array:
        """Return what the writers say of each name: (N, 7), NaN where none writes it."""
        pooled = np.array([sum(item.written.values()) for item in found])
        first = np.array([item.num_first for item in found], float)
        # Both capitalisations of a name share its probability: neither leads the other.
        lower = [text.lower() for text in texts]
        lead, place = _leads(owner, lower, pooled)
        columns = [
            pooled / max(1, len(self.writers)),
            np.array([max(item.written.values(), default=math.nan) for item in found]),
            np.array([len(item.written) for item in found], float),
            first / np.maximum(np.bincount(owner, first)[owner], 1),
            np.array([item.known if item.written else math.nan for item in found]),
            lead,
            place,
        ]
        return np.stack(columns, axis=1)

    def _spelling_features(
        self, owner: Array, texts: Sequence[str], found: Sequence[_Candidate]
    ) -> Array:
        """Return what all sources, and the words of the language, say of a spelling: (N, 11)."""
        logs = [list(item.logs.values()) for item in found]
        mean = np.array([_mean(row) for row in logs])
        lower = [text.lower() for text in texts]
        frequencies = np.array([self.lexicon.frequencies(text) for text in texts])
        columns = [
            mean,
            np.array([max(row, default=math.nan) for row in logs]),
            np.array([min(row, default=math.nan) for row in logs]),
            _leads(owner, lower, np.nan_to_num(mean, nan=_UNWRITTEN), _UNWRITTEN)[0],
            frequencies,
            _leads(owner, lower, np.nan_to_num(frequencies[:, 0]))[0],
            np.array([self.lexicon.spellings(text) for text in lower]),
            np.array([item.edited for item in found]),
            np.array([self.kinds.other_endings.agreement(text) for text in texts]),
        ]
        return np.column_stack(columns)

    def _text_features(self, things: Sequence[Thing], owner: Array, texts: Sequence[str]) -> Array:
        """Return how each name looks, and how it reads beside the sources: (N, 11)."""
        from rapidfuzz import fuzz

        sources = [[name for name, _, _ in thing.names] for thing in things]
        readings = _readings(things)
        capitals = [_mean([is_capital(name) for name in names]) for names in sources]
        lower = [_mean([_lower_words(name) for name in names]) for names in sources]
        length = [_mean([len(name) for name in names]) for names in sources]
        read = romanise(texts, self.lang)
        rows = []
        for row, text, reading in zip(owner.tolist(), texts, read, strict=True):
            alike = [fuzz.ratio(reading, other) for other in readings[row]]
            rows.append(
                (
                    len(text),
                    len(text) / max(1.0, length[row]),
                    len(text.split()),
                    self._share_in_script(text),
                    *self.lexicon.familiarity(text),
                    is_capital(text),
                    capitals[row],
                    lower[row],
                    max(alike, default=math.nan),
                    _mean(alike),
                )
            )
        return np.array(rows, float)

    def _share_in_script(self, text: str) -> float:
        letters = [script_of_text(letter) in self.scripts for letter in text if letter.isalpha()]
        return _mean(letters)


def _readings(things: Sequence[Thing]) -> list[list[str]]:
    """Return the distinct readings of each thing's names, each name in its language.

    Of several languages that use a name, the first one decides: it differs for Chinese characters.
    """
    names = [(name, langs[0]) for thing in things for name, langs, _ in thing.names]
    flat = romanise([name for name, _ in names], [lang for _, lang in names])
    ends = np.cumsum([len(thing.names) for thing in things]).tolist()
    return [
        sorted(set(flat[end - len(thing.names) : end]))
        for thing, end in zip(things, ends, strict=True)
    ]


def _source(thing: Thing, candidate: _Candidate) -> str:
    """Return the name of a thing that a candidate was made of."""
    lang = min(
        candidate.taken or candidate.written,
        key=lambda lang: (-candidate.written.get(lang, 0.0), lang),
    )
    return next(name for name, langs, _ in thing.names if lang in langs)


def _leads(
    owner: Array, lower: Sequence[str], pooled: Array, alone: float = 0.0
) -> tuple[Array, Array]:
    """Return by how much each name leads the best other one of its thing, and its place: (N,)."""
    names = np.array([f"{row}\t{text}" for row, text in zip(owner, lower, strict=True)])
    _, name = np.unique(names, return_inverse=True)
    # One row for each name of a thing, whatever its capitals, the best of a thing first.
    _, row = np.unique(name, return_index=True)
    order = row[np.lexsort((-pooled[row], owner[row]))]
    place = np.zeros(len(row))
    place[name[order]] = rank_in_group(owner[order])
    starts = group_starts(owner[order])
    sizes = np.diff(np.append(starts, len(order)))
    first = pooled[order[starts]]
    # The second one of a thing, or 0 where there is one name only.
    second = np.where(sizes > 1, pooled[order[np.minimum(starts + 1, len(order) - 1)]], alone)
    group = np.searchsorted(owner[order[starts]], owner)
    place = place[name]
    return pooled - np.where(place == 0, second[group], first[group]), place


def _about(thing: Thing) -> tuple[float, float, float]:
    """Return the number of languages, of distinct names, and of words in a name."""
    return (
        sum(len(langs) for _, langs, _ in thing.names),
        len(thing.names),
        _mean([len(name.split()) for name, _, _ in thing.names]),
    )


def _lower_words(name: str) -> float:
    """Return the share of words in lower case after the first; NaN without any."""
    return _mean([is_capital(word) == 0.0 for word in name.split()[1:]])


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


class Kinds:
    """How things of a kind are named: taken over or written, in capitals or not, with which ending.

    A thing's kind is the set of relations that it has, as subject or as object. Names of people are
    transliterated and titles of films translated; languages end in -ский in Russian and scripts in
    -ская. Both show in the relations.
    """

    def __init__(
        self, kind: Sequence[Sequence[int]], things: Sequence[Thing], lang: str | None = None
    ) -> None:
        """Learn from things with a name. kind: relations of each thing, (things) lists.

        lang: the language of the names.
        """
        values = _naming_values(things, lang)
        # A script without capitals has no value in the last column: its mean is 0.
        known = np.maximum(1, (~np.isnan(values)).sum(axis=0))
        self._mean = np.nansum(values, axis=0) / known
        sums: dict[int, Array] = {}
        self._num_things: Counter[int] = Counter()
        self.other_endings = Endings(kind, [thing.own or "" for thing in things])
        self._endings: Counter[tuple[int, str]] = Counter()  # by relation; -1 stands for all
        for relations, thing, value in zip(kind, things, values, strict=True):
            value = np.where(np.isnan(value), self._mean, value)
            for relation in relations:
                sums[relation] = sums.get(relation, 0.0) + value
            for relation in (*relations, -1):
                self._num_things[relation] += 1
                for size in _ENDINGS:
                    self._endings[relation, _ending(thing.own or "", size)] += 1
        self._rate = {
            relation: (total + _KIND_PSEUDO * self._mean)
            / (self._num_things[relation] + _KIND_PSEUDO)
            for relation, total in sums.items()
        }

    def features(self, kind: Sequence[Sequence[int]]) -> Array:
        """Return the mean over the relations of each thing: (things, 3), NaN without any."""
        rows = [
            np.mean([self._rate.get(relation, self._mean) for relation in relations], axis=0)
            if relations
            else np.full(3, math.nan)
            for relations in kind
        ]
        return np.array(rows).reshape(-1, 3)

    def endings(self, relations: Sequence[int], text: str) -> list[float]:
        """Return how usual the ending of a name is among things of the kind, for each size."""
        return [
            _mean([self._share(relation, _ending(text, size)) for relation in relations])
            for size in _ENDINGS
        ]

    def _share(self, relation: int, ending: str) -> float:
        """Return the share of a relation's things with an ending, drawn towards that of all."""
        overall = self._endings[-1, ending] / max(1, self._num_things[-1])
        number = self._num_things[relation]
        return (self._endings[relation, ending] + _KIND_PSEUDO * overall) / (number + _KIND_PSEUDO)


def _ending(text: str, size: int) -> str:
    return f"{size}{text[-size:].lower()}"


def _naming_values(things: Sequence[Thing], lang: str | None) -> Array:
    """Return how alike each own name reads, whether it is taken over, its capital: (things, 3)."""
    from rapidfuzz import fuzz

    values = np.zeros((len(things), 3))
    own_read = romanise([thing.own or "" for thing in things], lang)
    for row, (thing, own, others) in enumerate(
        zip(things, own_read, _readings(things), strict=True)
    ):
        values[row] = (
            max(fuzz.ratio(own, other) for other in others) / 100,
            is_taken(thing),
            is_capital(thing.own or ""),
        )
    return values


def is_taken(thing: Thing) -> bool:
    """Return whether another language uses the thing's own name."""
    return any(name == thing.own for name, _, _ in thing.names)
