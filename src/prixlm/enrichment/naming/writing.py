"""Write names in another language from linked names: known words, and letters for the others.

    writer = NameWriter.fit([("Gene Hackman", "Τζιν Χάκμαν"), ...], scripts=("Grek",))
    writer.write("Gene Burton")         # [Written("τζιν μπάρτον", 0.7, 0.4), ...]

One writer serves one source language. A name is cut into words and a qualifier (what stands in
brackets or after a comma). A word that linked names have is written as they write it, so that words
that are translated come out right; any other word is written by `ChunkModel`. Languages without
spaces between words, or with another number of words, are served by whole names as one unit.

All is in lower case: `Casing` puts the capitals back.
"""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prixlm.enrichment.naming.chunks import MAX_LETTERS, ChunkModel, align_pairs, usable_chunks
from prixlm.enrichment.naming.patterns import Langs, Patterns, find_patterns, pair_words
from prixlm.enrichment.naming.vocabulary import Vocabulary
from prixlm.languages import script_of_text
from prixlm.romanise import romanise

_QUALIFIER = re.compile(r"^(.+?)(\s*\(.*\)|,.*)$", re.DOTALL)
_VOWELS = re.compile("[aeiouy]+")
_NUMBER = re.compile(r"\d+")
_SEPARATOR = re.compile(r"([\s・=＝–-]+)")
_MIN_PAIRS = 50
"""Fewest pairs of words that letters are learnt from."""
_MOST_WORDS = 12
"""Ways to write a word that are kept."""
_PSEUDO = 0.5
"""Pseudo-count of the letters' answer beside a known word's."""
_MOSTLY = 0.8
"""Share of names with as many words from which on names are written word by word only."""
_KNOWN_WORD = 8.0
"""How much more probable a spelling is if the language is known to use it."""
_BY_SOUND, _BY_SOUND_POWER = 0.1, 4
"""Share of a known word that sounds the same but that letters do not lead to; less if it is less
similar, by a power of the similarity."""
_LEAST = 1e-5
"""Probability of a word that a writer would not write."""
_ACUTE = 230
"""Canonical combining class of accents above a letter."""
_RECENT = 256
"""Names of which all that was written is kept."""
_CACHED = 1 << 17
"""Words whose answers are kept."""


class Written(NamedTuple):
    """A name that was written."""

    text: str  # in lower case
    probability: float  # among what the writer wrote for this name
    known: float  # n / (n + 1) for a rarest word that n linked names have: 0 if it is new


class Parts(NamedTuple):
    """A name in parts."""

    words: list[str]
    separators: list[str]  # between the words
    qualifier: str  # "" without one


def split_name(name: str) -> Parts:
    """Cut a name into words, the separators between them, and its qualifier."""
    found = _QUALIFIER.match(name)
    core, qualifier = found.groups() if found else (name, "")
    pieces = _SEPARATOR.split(core)
    return Parts(pieces[::2], pieces[1::2], qualifier)


class Accents:
    """How many accents words have: a Greek word of several syllables has one, wherever it is."""

    def __init__(self, words: Iterable[str], lang: str | None = None) -> None:
        """lang: the language of the words."""
        distinct = sorted(set(words))
        self._lang = lang
        self._counts: dict[int, Counter[int]] = defaultdict(Counter)
        self._has_any = any(map(_num_accents, distinct))
        if self._has_any:
            for word, size in zip(distinct, _num_syllables(distinct, lang), strict=True):
                self._counts[size][_num_accents(word)] += 1

    def probabilities(self, words: Sequence[str]) -> list[float]:
        """Return the share of words of as many syllables that have as many accents."""
        if not self._has_any:
            return [1.0] * len(words)
        return [
            (self._counts[size][_num_accents(word)] + 0.5) / (self._counts[size].total() + 1)
            for word, size in zip(words, _num_syllables(words, self._lang), strict=True)
        ]


def _num_syllables(words: Sequence[str], lang: str | None) -> list[int]:
    """Return the number of runs of vowels in each word as it is romanised, at most 4."""
    return [min(4, len(_VOWELS.findall(reading))) for reading in romanise(words, lang)]


def _num_accents(word: str) -> int:
    if word.isascii():
        return 0
    return sum(unicodedata.combining(c) == _ACUTE for c in unicodedata.normalize("NFD", word))


def _without_accents(word: str) -> str:
    letters = unicodedata.normalize("NFD", word)
    return "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")


def _with_places(qualifier: str, numbers: Sequence[str]) -> str:
    """Return a qualifier with a place, such as {0}, for each number that the source has, too."""
    text = qualifier.replace("{", "").replace("}", "")
    for place, number in enumerate(numbers):
        text = re.sub(rf"(?<![\d{{]){number}(?!\d)", f"{{{place}}}", text, count=1)
    return text


def _with_numbers(qualifier: str, numbers: Sequence[str]) -> str:
    """Return a qualifier with numbers in their places."""
    for place, number in enumerate(numbers):
        qualifier = qualifier.replace(f"{{{place}}}", number)
    return qualifier


class NameWriter:
    """Writes the names of one source language in another language."""

    def __init__(
        self,
        examples: "Examples",
        rows: Sequence[int] | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        """Learn from some of the examples, or from all.

        rows: positions of the pairs that may be read. vocabulary: known words of the language.
        """
        self._vocabulary = vocabulary or None
        chosen = range(len(examples.units)) if rows is None else rows
        self._words: dict[str, Counter[str]] = defaultdict(Counter)
        self._separators: dict[str, Counter[str]] = defaultdict(Counter)
        self._qualifiers: dict[str, Counter[str]] = defaultdict(Counter)
        names: Counter[bool] = Counter()  # by whether they have as many words in this order
        chunks: dict[tuple[str, str], None] = {}
        for row in chosen:
            source, own = examples.parts[row]
            key, numbers = _NUMBER.sub("#", source.qualifier), _NUMBER.findall(source.qualifier)
            self._qualifiers[key][_with_places(own.qualifier, numbers)] += 1
            names[examples.in_order[row]] += len(source.words) > 1
            for unit in examples.units[row]:
                self._words[unit[0]][unit[1]] += 1
                chunks[unit] = None
            if len(source.words) == len(own.words):
                for pair in zip(source.separators, own.separators, strict=True):
                    self._separators[pair[0]][pair[1]] += 1
        self._patterns = Patterns(examples.patterns[row] for row in chosen)
        self._accents = examples.accents
        self._source_lang = examples.langs[0]
        aligned = [examples.aligned[unit] for unit in chunks if unit in examples.aligned]
        self._letters = ChunkModel(usable_chunks(aligned))
        self._can_spell = len(aligned) >= _MIN_PAIRS
        # Share of the names of several words that the language writes word by word.
        self._word_by_word = (names[True] + 0.5) / (names.total() + 1)
        self._cache: dict[str, list[tuple[str, float]]] = {}
        self._logs: dict[tuple[str, str], float] = {}
        self._best: dict[str, tuple[float, float]] = {}
        self._recent: dict[str, dict[str, float]] = {}

    @classmethod
    def fit(
        cls,
        pairs: Sequence[tuple[str, str]],
        scripts: Sequence[str],
        langs: Langs = (None, None),
    ) -> "NameWriter":
        """Learn from pairs of a source name and the name in the language."""
        return cls(Examples(pairs, scripts, langs))

    def write(self, name: str, most: int = 12) -> list[Written]:
        """Return ways to write a name, the most probable first; empty if there is no evidence."""
        name = name.lower()
        parts = split_name(name)
        known = min((self._known(word) for word in parts.words if word), default=0.0)
        texts: dict[str, float] = defaultdict(float)
        share = self._word_by_word if len(parts.words) > 1 else 1.0
        for text, probability in self._compose(parts):
            texts[text] += share * probability
        for text, probability in self._by_pattern(parts):
            texts[text] += probability
        if share < _MOSTLY or not texts:
            core = name[: len(name) - len(parts.qualifier)]
            whole = self._with_qualifier(self._unit(core), parts.qualifier)
            for text, probability in whole:
                texts[text] += (1 - share) * probability
            known = max(known, self._known(core))
        total = sum(texts.values()) or 1.0
        best = sorted(texts.items(), key=lambda item: (-item[1], item[0]))
        if len(self._recent) >= _RECENT:
            self._recent.clear()
        self._recent[name] = {text: value / total for text, value in best}
        return [Written(text, value / total, known) for text, value in best[:most] if text.strip()]

    def _by_pattern(self, parts: Parts) -> list[tuple[str, float]]:
        """Return names that are made by what stands around a part of linked names."""
        found: dict[str, float] = defaultdict(float)
        for around in self._patterns.around(parts.words):
            middle = Parts(
                parts.words[around.start : around.end],
                parts.separators[around.start : around.end - 1],
                "",
            )
            for text, probability in self._compose(middle)[:_MOST_WORDS]:
                found[around.before + text + around.after] += around.probability * probability
        best = sorted(found.items(), key=lambda item: (-item[1], item[0]))[: 2 * _MOST_WORDS]
        return self._with_qualifier(best, parts.qualifier)

    def _known(self, word: str) -> float:
        number = self._words[word].total() if word in self._words else 0
        return number / (number + 1)

    def _compose(self, parts: Parts) -> list[tuple[str, float]]:
        """Return names that are made word by word, without a word that cannot be written."""
        beams = [("", 1.0)]
        for number, word in enumerate(parts.words):
            answers = self._unit(word) if word else [("", 1.0)]
            separators = self._separator(parts.separators[number - 1]) if number else [("", 1.0)]
            beams = [
                (text + separator + answer, value * share * probability)
                for text, value in beams
                for separator, share in separators
                for answer, probability in answers
            ]
            beams = sorted(beams, key=lambda item: (-item[1], item[0]))[:16]
        return self._with_qualifier(beams, parts.qualifier)

    def _with_qualifier(
        self, cores: list[tuple[str, float]], qualifier: str
    ) -> list[tuple[str, float]]:
        """Return cores with the qualifiers that linked names have in its place."""
        counts = self._qualifiers.get(_NUMBER.sub("#", qualifier))
        if counts is None:
            # A qualifier never seen: names without one are more frequent than a guess is right.
            return [(text, 0.3 * value) for text, value in cores]
        total = counts.total() + _PSEUDO
        numbers = _NUMBER.findall(qualifier)
        owns = [(_with_numbers(own, numbers), count) for own, count in counts.most_common(3)]
        return [(text + own, value * count / total) for text, value in cores for own, count in owns]

    def _separator(self, separator: str) -> list[tuple[str, float]]:
        counts = self._separators.get(separator)
        if counts is None:
            return [(separator, 1.0)]
        return [(own, count / counts.total()) for own, count in counts.most_common(2)]

    def _unit(self, word: str) -> list[tuple[str, float]]:
        """Return ways to write a word: as linked names do, then by its letters."""
        found = self._cache.get(word)
        if found is None:
            counts = self._words.get(word, Counter())
            total = counts.total()
            shares: dict[str, float] = defaultdict(float)
            for own, count in counts.most_common(5):
                shares[own] += count / (total + _PSEUDO)
            for text, probability in self._spell(word):
                shares[text] += _PSEUDO / (total + _PSEUDO) * probability
            found = sorted(shares.items(), key=lambda item: (-item[1], item[0]))[:_MOST_WORDS]
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            self._cache[word] = found
        return found

    def _spell(self, word: str) -> list[tuple[str, float]]:
        if any(map(str.isdigit, word)) and not any(map(str.isalpha, word)):
            return [(word, 1.0)]  # numbers stay
        if not self._can_spell or len(word) > MAX_LETTERS:
            return []
        # A letter that no linked name has is read without its accents.
        spelled = self._letters.write(word, 16, known=self._vocabulary) or self._letters.write(
            _without_accents(word), 16, known=self._vocabulary
        )
        priors = self._priors([text for text, _ in spelled])
        weighted = [
            (text, share * prior) for (text, share), prior in zip(spelled, priors, strict=True)
        ]
        shares: dict[str, float] = defaultdict(float)
        total = sum(value for _, value in weighted)
        for text, value in weighted:
            shares[text] += value / total
        for text, similarity in self._by_sound(word):
            shares[text] += _BY_SOUND * similarity**_BY_SOUND_POWER
        return list(shares.items())

    def _by_sound(self, word: str) -> list[tuple[str, float]]:
        sounds = self._vocabulary.sounds if self._vocabulary is not None else None
        return sounds.near(word, self._source_lang) if sounds is not None else []

    def _priors(self, texts: Sequence[str]) -> list[float]:
        """Return how much spellings gain by their accents, and by being known words."""
        known = self._vocabulary
        return [
            probability * (_KNOWN_WORD if known is not None and text in known else 1.0)
            for text, probability in zip(texts, self._accents.probabilities(texts), strict=True)
        ]

    def log_probability(self, name: str, text: str) -> float:
        """Return the log-probability that a text is the writing of a name, without qualifiers.

        It can be asked for any text, also for one that this writer would not write.
        """
        name, text = name.lower(), text.lower()
        source, own = split_name(name), split_name(text)
        if len(source.words) == len(own.words):
            pairs = zip(source.words, own.words, strict=True)
            log = sum(self._log_unit(*pair) for pair in pairs if any(pair))
        else:
            log = self._log_unit(_join(source), _join(own))
        # What was written by a pattern is found among what the name was last written as.
        if name not in self._recent:
            self.write(name)
        written = self._recent[name].get(text)
        return max(log, math.log(written)) if written else log

    def _log_unit(self, word: str, text: str) -> float:
        key = (word, text)
        found = self._logs.get(key)
        if found is None:
            shares = dict(self._unit(word))
            found = math.log(max(_LEAST, shares.get(text) or self._share(word, text)))
            if len(self._logs) >= _CACHED:
                self._logs.clear()
            self._logs[key] = found
        return found

    def _share(self, word: str, text: str) -> float:
        """Return the probability of a spelling that is not among the best ones of a word.

        It is compared with the best one that letters can write.
        """
        if not self._can_spell or max(len(word), len(text)) > MAX_LETTERS:
            return 0.0
        share, log_of_best = self._best_spelled(word)
        joint = self._letters.joint(word, text) if share else -math.inf
        if joint == -math.inf:
            return 0.0
        [prior] = self._priors([text])
        return min(share, share * prior * math.exp(joint - log_of_best))

    def _best_spelled(self, word: str) -> tuple[float, float]:
        """Return the share of the best spelling that letters can write, and its log-weight.

        The weight is that of the letters and of the prior; the share is 0 if there is no such one.
        """
        found = self._best.get(word)
        if found is None:
            found = (0.0, 0.0)
            for best, share in self._unit(word):
                log = self._letters.joint(word, best)
                if log > -math.inf:
                    [prior] = self._priors([best])
                    found = (share, log + math.log(prior))
                    break
            if len(self._best) >= _CACHED:
                self._best.clear()
            self._best[word] = found
        return found


class Examples:
    """Linked names of two languages, cut and aligned once for several writers.

    The alignment reads all of them. A writer that may not read some of them counts no word and no
    n-gram of theirs; only the probabilities of single chunks have seen them.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        scripts: Sequence[str],
        langs: Langs = (None, None),
    ) -> None:
        """pairs: a source name and the name in the language. scripts: of the language.

        langs: the source language and the language itself.
        """
        self.langs = langs
        self.parts = [
            (split_name(source.lower()), split_name(own.lower())) for source, own in pairs
        ]
        paired = [
            pair_words(source.words, own.words, langs) if len(own.words) > 1 else None
            for source, own in self.parts
        ]
        self.units = [
            _units(source, own, pairs)
            for (source, own), pairs in zip(self.parts, paired, strict=True)
        ]
        self.in_order = [
            pairs is None and len(source.words) == len(own.words)
            for (source, own), pairs in zip(self.parts, paired, strict=True)
        ]
        self.patterns = [
            find_patterns(source.words, own.words, own.separators, langs)
            for source, own in self.parts
        ]
        written = {unit: None for units in self.units for unit in units}
        # Letters are learnt from words in the language's script; a Latin word in a Greek name is
        # kept as a known word.
        spelled = [unit for unit in written if script_of_text(unit[1]) in scripts]
        self.accents = Accents((own for _, own in spelled), langs[1])
        found = align_pairs(spelled)
        self.aligned = {
            unit: aligned for unit, aligned in zip(spelled, found, strict=True) if aligned
        }


def _units(source: Parts, own: Parts, pairs: list[tuple[str, str]] | None) -> list[tuple[str, str]]:
    """Return the words of two names side by side, or both as one unit if their number differs.

    pairs: words that belong together although they are in another order; None if there are none.
    """
    if pairs is None and len(source.words) == len(own.words):
        pairs = list(zip(source.words, own.words, strict=True))
    elif pairs is None:
        pairs = [(_join(source), _join(own))]
    return [pair for pair in pairs if all(map(_can_learn, pair))]


def _can_learn(word: str) -> bool:
    return len(word) <= MAX_LETTERS and bool(word.strip())


def _join(parts: Parts) -> str:
    separators = [*parts.separators, ""]
    return "".join(word + sep for word, sep in zip(parts.words, separators, strict=True))


class Casing:
    """Capitals for names in lower case, as the names of a language have them."""

    def __init__(self, names: Iterable[str]) -> None:
        forms: dict[str, Counter[str]] = defaultdict(Counter)
        for name in names:
            for number, word in enumerate(re.findall(r"\w+", name)):
                # The first word of a name tells nothing about a word in the middle of one.
                forms[word.lower()][word] += 0 if number == 0 else 1
        self._forms = {
            word: counts.most_common(1)[0][0] for word, counts in forms.items() if counts.total()
        }

    def variants(self, text: str) -> list[str]:
        """Return the ways to write a text: as a common noun, and as a proper name."""
        common = re.sub(r"\w+", lambda found: self._form(found[0], found[0]), text)
        proper = re.sub(
            r"\w+", lambda found: self._form(found[0], found[0][:1].upper() + found[0][1:]), text
        )
        first = next((n for n, letter in enumerate(proper) if letter.isalnum()), 0)
        proper = proper[:first] + proper[first : first + 1].upper() + proper[first + 1 :]
        return list(dict.fromkeys((proper, common)))

    def _form(self, word: str, unknown: str) -> str:
        return self._forms.get(word, unknown)


def is_capital(name: str) -> float:
    """Return 1 or 0 by the case of the first letter; NaN in a script without case."""
    for letter in name:
        if letter.isalpha():
            return math.nan if letter.lower() == letter.upper() else float(letter.isupper())
    return math.nan
