"""Other endings of a written name, as names of things of its kind have them.

    endings = Endings(kind, names)
    endings.variants([3], "удмурт", known=vocabulary)       # ["удмуртский"]

What is written by sound often has the stem of the right name and another ending: a Russian language
ends in -ский and a script in -ская, and an adjective agrees with its noun. A thing's kind is the
set of its relations (see `Kinds`), and its usual endings are those of other things with these
relations.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from prixlm.enrichment.naming.vocabulary import Vocabulary

_SIZES = range(1, 6)
"""Letters of an ending."""
_MIN_SHARE, _MIN_NAMES = 0.02, 3
"""Share and number of a relation's names that have an ending, at least."""
_COVERED = 0.8
"""Share of an ending's names from which on a longer ending stands for it."""
_MOST = 8
"""Endings of a kind, at most."""
_STRONG = 0.15
"""Share of a kind's names from which on an ending also makes words that nobody has used."""
_MIN_STEM = 3
"""Letters before an ending, at least."""
_FIRST, _LAST = 0, 1


class Endings:
    """Usual endings of the first and the last word of names, by relation."""

    def __init__(self, kind: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        """kind: relations of each thing. names: its name in the language."""
        counts: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
        totals: Counter[tuple[int, int]] = Counter()
        self._agreeing: Counter[tuple[str, str]] = Counter()  # endings of first and last words
        self._last: Counter[str] = Counter()
        for relations, name in zip(kind, names, strict=True):
            words = _words(name.lower())
            if len(words) > 1:
                first, last = _agreement(words)
                self._agreeing[first, last] += 1
                self._last[last] += 1
            for place, word in ((_LAST, words[-1:]), (_FIRST, words[:-1][:1])):
                for relation in relations if word else ():
                    totals[relation, place] += 1
                    counts[relation, place].update(_endings(word[0]))
        self._usual = {key: _usual(counter, totals[key]) for key, counter in counts.items()}

    def variants(self, relations: Sequence[int], text: str, known: Vocabulary) -> list[str]:
        """Return a name in lower case with other endings, the most usual ones first.

        A new word has to be a known one, unless its ending is very usual.
        """
        places = [found.span() for found in re.finditer(r"\w+", text)]
        if not places:
            return []
        found: dict[str, float] = {}
        for place, (start, end) in ((_LAST, places[-1]), (_FIRST, places[0])):
            if place == _FIRST and len(places) == 1:
                continue
            word = text[start:end]
            usual = self._of(relations, place)
            for stem in _stems(word, usual):
                # Two letters are cut off only if a known word comes of it.
                can_be_new = len(stem) >= len(word) - 1 or word[len(stem) :] in usual
                for ending in usual:
                    new = stem + ending
                    if word.endswith(ending):
                        continue
                    if (can_be_new and usual[ending] >= _STRONG) or new in known:
                        variant = text[:start] + new + text[end:]
                        found[variant] = max(usual[ending], found.get(variant, 0.0))
        return sorted(found, key=lambda variant: (-found[variant], variant))

    def agreement(self, text: str) -> float:
        """Return how usual the first word's ending is beside the last word's, as a logarithm.

        NaN for a single word. It tells *непальская рупия* from *непальский рупия*.
        """
        words = _words(text.lower())
        if len(words) < 2:
            return math.nan
        first, last = _agreement(words)
        return math.log((self._agreeing[first, last] + 0.1) / (self._last[last] + 1))

    def _of(self, relations: Sequence[int], place: int) -> dict[str, float]:
        """Return the usual endings of several relations with their share, the most usual first."""
        shares: dict[str, float] = {}
        for relation in relations:
            for text, share in self._usual.get((relation, place), {}).items():
                shares[text] = max(share, shares.get(text, 0.0))
        return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0]))[:_MOST])


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _agreement(words: Sequence[str]) -> tuple[str, str]:
    return words[0][-2:], words[-1][-1:]


def _endings(word: str) -> list[str]:
    return [word[-size:] for size in _SIZES if len(word) - size >= _MIN_STEM]


def _stems(word: str, usual: Iterable[str]) -> list[str]:
    """Return the word without a usual ending, as it is, and without its last letters."""
    stems = [word[: -len(ending)] for ending in usual if word.endswith(ending)]
    stems += [word, word[:-1], word[:-2]]
    return [stem for stem in dict.fromkeys(stems) if len(stem) >= _MIN_STEM]


def _usual(counts: Counter[str], total: int) -> dict[str, float]:
    """Return the share of frequent endings that no longer one stands for."""
    enough = {
        ending: count
        for ending, count in counts.items()
        if count >= max(_MIN_NAMES, _MIN_SHARE * total)
    }
    covered = {
        ending[-size:]
        for ending, count in enough.items()
        for size in range(1, len(ending))
        if count >= _COVERED * counts[ending[-size:]]
    }
    best = sorted(
        (ending for ending in enough if ending not in covered),
        key=lambda ending: (-enough[ending], ending),
    )
    return {ending: enough[ending] / total for ending in best[:_MOST]}
