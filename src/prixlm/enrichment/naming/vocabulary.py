"""Words of a language with their frequency, and how its words are spelt: evidence for a spelling.

    vocabulary = Vocabulary(word_frequencies("el"))
    vocabulary.frequency("καλιφόρνια")      # 3.9, on the Zipf scale; 0 if it is not a known word
    vocabulary.has_prefix("καλιφ")          # True

A name that was written letter by letter often has one wrong vowel or accent. A spelling that the
language is known to use is better evidence than any rule, and a search that only visits prefixes of
known words finds it (see `ChunkModel.write`).

`Sounds` finds known words that no learnt rule leads to: *Israel* is *Израиль*. `Spelling` is an
n-gram model of letters: it tells an unknown word that looks like one of the language from one that
does not.
"""

import math
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from prixlm.enrichment.naming.ngrams import NGrams, State
from prixlm.romanise import romanise

_ORDER = 5
"""Letters of the longest n-gram of `Spelling`."""
_MOST_STEPS = 1 << 18
"""Steps of `Spelling` that are kept in memory."""
_MOST_OF_A_SOUND = 200
"""Words of one skeleton, at most: the most frequent ones."""
_ALIKE = 60.0
"""Similarity (of 100) of two words that sound alike, at least."""
_CLASSES = {ord(letter): "" for letter in map(chr, range(128))} | {
    ord(letter): number
    for letters, number in (
        ("bfpv", "1"),
        ("cgjkqsxz", "2"),
        ("dt", "3"),
        ("l", "4"),
        ("mn", "5"),
        ("r", "6"),
    )
    for letter in letters
}
_REPEATED = re.compile(r"(\d)\1+")
_ZIPF = 9.0
"""Zipf scale: the logarithm of occurrences in a billion words."""


class Vocabulary:
    """Known words of a language, in lower case."""

    def __init__(self, frequencies: Mapping[str, float]) -> None:
        """frequencies: share of all text by word."""
        self._zipf = {
            word: math.log10(share) + _ZIPF for word, share in frequencies.items() if share > 0
        }
        self._words = sorted(self._zipf)
        self._names: list[str] = []
        self.sounds: Sounds | None = None  # of the frequent words, if `read` was called

    def read(self, most: int, lang: str | None = None) -> None:
        """Romanise the most frequent words, so that they can be found by their sound."""
        self.sounds = Sounds(self.most_frequent(most), lang)

    def with_names(self, words: Iterable[str]) -> "Vocabulary":
        """Return these words and further ones, whose frequency is not known."""
        other = Vocabulary({})
        other._zipf, other._words, other._names = self._zipf, self._words, sorted(set(words))
        other.sounds = self.sounds
        return other

    def __len__(self) -> int:
        """Return the number of words with a known frequency."""
        return len(self._words)

    def __bool__(self) -> bool:
        return bool(self._words or self._names)

    def frequency(self, word: str) -> float:
        """Return the Zipf frequency of a word; 0 if it is not known."""
        return self._zipf.get(word, 0.0)

    def __contains__(self, word: str) -> bool:
        return word in self._zipf or _has(self._names, word)

    def has_prefix(self, prefix: str) -> bool:
        """Return whether a known word begins with these letters."""
        return _has_prefix(self._words, prefix) or _has_prefix(self._names, prefix)

    def most_frequent(self, number: int) -> list[str]:
        """Return the most frequent words, the most frequent first."""
        # Both sorts are stable, so that words of one frequency stay in alphabetical order.
        return sorted(self._words, key=self._zipf.__getitem__, reverse=True)[:number]


def _has(words: Sequence[str], word: str) -> bool:
    place = bisect_left(words, word)
    return place < len(words) and words[place] == word


def _has_prefix(words: Sequence[str], prefix: str) -> bool:
    # Words that begin with the prefix follow it at once in sorted order.
    place = bisect_left(words, prefix)
    return place < len(words) and words[place].startswith(prefix)


class Sounds:
    """Known words by their sound, whatever the rules of a transliteration are."""

    def __init__(self, words: Sequence[str], lang: str | None = None) -> None:
        """words: the most frequent first. lang: their language."""
        self._words: dict[str, list[str]] = defaultdict(list)
        self._readings: dict[str, list[str]] = defaultdict(list)
        for word, reading in zip(words, romanise(words, lang), strict=True):
            key = skeleton(reading)
            if key and len(self._words[key]) < _MOST_OF_A_SOUND:
                self._words[key].append(word)
                self._readings[key].append(reading)

    def near(self, word: str, lang: str | None = None, most: int = 3) -> list[tuple[str, float]]:
        """Return known words that sound like a word of any language, with their similarity."""
        from rapidfuzz import fuzz, process

        [reading] = romanise([word], lang)
        key = skeleton(reading)
        if key not in self._words:
            return []
        found = process.extract(
            reading, self._readings[key], scorer=fuzz.ratio, limit=most, score_cutoff=_ALIKE
        )
        return [(self._words[key][place], similarity / 100) for _, similarity, place in found]


def skeleton(reading: str) -> str:
    """Return the classes of a romanised word's consonants (Soundex): "" without any."""
    # Russian and Greek `kh` is an h elsewhere, and `ts` is spelt as one letter.
    reading = reading.replace("kh", "h").replace("ts", "s")
    return _REPEATED.sub(r"\1", reading.translate(_CLASSES))


class Spelling:
    """An n-gram model of the letters of words."""

    def __init__(self, words: Iterable[str]) -> None:
        """Count each distinct word once."""
        distinct = sorted(set(words))
        letters = Counter(letter for word in distinct for letter in word)
        self._numbers = {letter: number for number, letter in enumerate(sorted(letters), start=1)}
        self._ngrams = NGrams(
            [[NGrams.START, *map(self._number, word), NGrams.END] for word in distinct],
            _ORDER,
            len(self._numbers) + 2,  # the end, and one for all letters that were never seen
        )
        self._memo: dict[str, float] = {}
        # Log-probability of a number after a state, and the state after it: words share most.
        self._steps: dict[tuple[State, int], tuple[float, State]] = {}

    def _number(self, letter: str) -> int:
        return self._numbers.get(letter, len(self._numbers) + 1)

    def log_probability(self, word: str) -> float:
        """Return the mean log-probability of a word's letters and of its end."""
        found = self._memo.get(word)
        if found is None:
            state: State = (NGrams.START,)
            total = 0.0
            for number in (*map(self._number, word), NGrams.END):
                step = self._steps.get((state, number))
                if step is None:
                    step = self._step(state, number)
                total += step[0]
                state = step[1]
            found = total / (len(word) + 1)
            if len(self._memo) > 1 << 17:
                self._memo.clear()
            self._memo[word] = found
        return found

    def _step(self, state: State, number: int) -> tuple[float, State]:
        if len(self._steps) > _MOST_STEPS:
            self._steps.clear()
        step = math.log(self._ngrams.probability(number, state))
        after = self._ngrams.shorten((*state, number))
        self._steps[state, number] = step, after
        return step, after
