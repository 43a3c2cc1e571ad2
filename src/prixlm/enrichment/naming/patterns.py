"""Patterns of names: what stands around a part that is written by sound.

    patterns = Patterns(find_patterns(*pair) for pair in linked)
    patterns.around(["idioma", "gallego"])      # "idioma X" is "X γλώσσα"

Names of a kind are often translated but for one part: *Tel Aviv University* is *Πανεπιστήμιο του
Τελ Αβίβ*, *peso argentin* is *аргентинский песо*. In two linked names, a run of words that sounds
like a run of as many words in the other name is this part. What is left of both names is a pattern.
It is used if several names show it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prixlm.romanise import romanise

_ALIKE = 65.0
"""Similarity of two romanised runs of words (of 100) from which on they are the same part."""
_MOST_WORDS = 6
"""Longer names have no patterns: titles of films are sentences."""
_MIN_NAMES = 2
"""Names that have to show a pattern."""
_PSEUDO = 2.0
"""Pseudo-count of names by which a pattern counts for less than what is written word by word."""

Affixes = tuple[str, str]
Langs = tuple[str | None, str | None]
"""Languages of the source and of the name that is written; None if they are not known."""


class Pattern(NamedTuple):
    """What stands before and after a part, in the source and in the language, in lower case."""

    source: Affixes
    own: Affixes


class Around(NamedTuple):
    """A pattern that fits a name."""

    start: int  # first word of the part
    end: int  # word after the part
    before: str
    after: str
    probability: float


def find_patterns(
    source: Sequence[str],
    own: Sequence[str],
    separators: Sequence[str],
    langs: Langs = (None, None),
) -> list[Pattern]:
    """Return the patterns that two linked names show.

    source, own: words in lower case. separators: those between the words of `own`. langs: the
    languages of source and own, which decide how Chinese characters are read.
    """
    from rapidfuzz import fuzz

    if not 0 < len(source) <= _MOST_WORDS or not 0 < len(own) <= _MOST_WORDS:
        return []
    source_read, own_read = romanise(source, langs[0]), romanise(own, langs[1])
    found = []
    for start, end in _runs(len(source)):
        part = " ".join(source_read[start:end])
        if len(part) < 3:
            continue
        size = end - start
        if size > len(own):
            continue
        # The first one of equally similar runs: its negative place is the largest.
        similarity, place = max(
            (fuzz.ratio(part, " ".join(own_read[place : place + size])), -place)
            for place in range(len(own) - size + 1)
        )
        if similarity >= _ALIKE:
            first, last = -place, size - place
            pieces = [word + sep for word, sep in zip(own, [*separators, ""], strict=True)]
            before = "".join(pieces[:first])
            # The separator after the part belongs to what follows it.
            after = "".join([*separators[last - 1 : last], *pieces[last:]])
            found.append(Pattern(_affixes(source, start, end), (before, after)))
    return found


def pair_words(
    source: Sequence[str], own: Sequence[str], langs: Langs = (None, None)
) -> list[tuple[str, str]] | None:
    """Return the words of two linked names that belong together, or None if that is not known.

    Words that sound alike belong together, the most similar first. One word that is left on both
    sides is a translation.
    """
    from rapidfuzz import fuzz

    if not 0 < len(source) <= _MOST_WORDS or not 0 < len(own) <= _MOST_WORDS:
        return None
    source_read, own_read = romanise(source, langs[0]), romanise(own, langs[1])
    similar = sorted(
        (-fuzz.ratio(a, b), i, j) for i, a in enumerate(source_read) for j, b in enumerate(own_read)
    )
    other: dict[int, int] = {}  # the word of `own` by that of `source`
    for similarity, i, j in similar:
        if -similarity >= _ALIKE and i not in other and j not in other.values():
            other[i] = j
    if not other or (len(source) == len(own) and all(i == j for i, j in other.items())):
        return None
    left = [i for i in range(len(source)) if i not in other]
    left_own = [j for j in range(len(own)) if j not in other.values()]
    if len(left) == len(left_own) == 1:
        other[left[0]] = left_own[0]
    return [(source[i], own[j]) for i, j in sorted(other.items())]


def _affixes(words: Sequence[str], start: int, end: int) -> Affixes:
    return " ".join(words[:start]), " ".join(words[end:])


def _runs(size: int) -> list[tuple[int, int]]:
    return [(start, end) for start in range(size) for end in range(start + 1, size + 1)]


class Patterns:
    """Patterns that several linked names show."""

    def __init__(self, names: Iterable[Sequence[Pattern]]) -> None:
        """names: the patterns of each linked name."""
        counts: dict[Affixes, Counter[Affixes]] = defaultdict(Counter)
        for patterns in names:
            for pattern in patterns:
                counts[pattern.source][pattern.own] += 1
        self._counts = {
            source: (
                sum(own.values()),
                [item for item in own.most_common(4) if item[1] >= _MIN_NAMES],
            )
            for source, own in counts.items()
            if max(own.values()) >= _MIN_NAMES
        }

    def around(self, words: Sequence[str]) -> list[Around]:
        """Return the patterns that fit a name, with their probability."""
        if not 0 < len(words) <= _MOST_WORDS:
            return []
        found = []
        for start, end in _runs(len(words)):
            total, owns = self._counts.get(_affixes(words, start, end), (0, []))
            found += [
                Around(start, end, before, after, count / (total + _PSEUDO))
                for (before, after), count in owns
            ]
        return found
