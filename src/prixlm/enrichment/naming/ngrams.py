"""Interpolated n-grams of numbers (Kneser-Ney): chunk pairs of a transliteration, or letters.

ngrams = NGrams([[NGrams.START, 3, 5, NGrams.END], ...], order=6, size=100)
ngrams.probability(5, (NGrams.START, 3))
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

_DISCOUNT = 0.85

State = tuple[int, ...]


class NGrams:
    """Counts of what follows each context, from the empty one to `order` - 1 numbers."""

    START, END = -1, 0

    def __init__(self, sequences: Sequence[Sequence[int]], order: int, size: int) -> None:
        """sequences: each from START to END. size: number of distinct numbers that can follow."""
        self._order, self._size = order, size
        self._counts = _count(sequences, order)
        self._totals = {context: sum(c.values()) for context, c in self._counts.items()}

    def probability(self, number: int, context: State) -> float:
        """Return P(number | context), interpolated over all suffixes of the context."""
        value = 1.0 / self._size
        for size in range(len(context) + 1):
            suffix = context[len(context) - size :]
            counts = self._counts.get(suffix)
            if counts is None:
                break
            held = max(counts.get(number, 0) - _DISCOUNT, 0)
            value = (held + _DISCOUNT * len(counts) * value) / self._totals[suffix]
        return value

    def shorten(self, state: State) -> State:
        """Return the longest suffix that was seen as a context."""
        state = state[-(self._order - 1) :] if self._order > 1 else ()
        while state and state not in self._counts:
            state = state[1:]
        return state


def _count(sequences: Sequence[Sequence[int]], order: int) -> dict[State, Counter[int]]:
    """Return the Kneser-Ney counts of what follows each context.

    The longest contexts, and those at the start of a sequence, count occurrences. Shorter ones
    count the distinct contexts, longer by one, in which a number occurs.
    """
    counts: dict[State, Counter[int]] = defaultdict(Counter)
    for sequence in sequences:
        for end in range(1, len(sequence)):
            for size in range(min(order, end + 1)):
                counts[tuple(sequence[end - size : end])][sequence[end]] += 1
    shorter: dict[State, Counter[int]] = defaultdict(Counter)
    for context, following in counts.items():
        if context:
            for number in following:
                shorter[context[1:]][number] += 1
    for context, following in shorter.items():
        if len(context) < order - 1 and not (context and context[0] == NGrams.START):
            counts[context] = following
    return dict(counts)
