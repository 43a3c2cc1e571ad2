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
        return self.probabilities([number], context)[0]

    def probabilities(self, numbers: Sequence[int], context: State) -> list[float]:
        """Return P(number | context) of several numbers; the suffixes are looked up once."""
        values = [1.0 / self._size] * len(numbers)
        for size in range(len(context) + 1):
            suffix = context[len(context) - size :]
            counts = self._counts.get(suffix)
            if counts is None:
                break
            total, backoff = self._totals[suffix], _DISCOUNT * len(counts)
            for place, number in enumerate(numbers):
                # A number that follows the context was counted once or more, so none is below 0.
                held = counts[number] - _DISCOUNT if number in counts else 0.0
                values[place] = (held + backoff * values[place]) / total
        return values

    def shorten(self, state: State) -> State:
        """Return the longest suffix that was seen as a context."""
        state = state[-(self._order - 1) :] if self._order > 1 else ()
        while state and state not in self._counts:
            state = state[1:]
        return state


def _count(sequences: Sequence[Sequence[int]], order: int) -> dict[State, dict[int, int]]:
    """Return the Kneser-Ney counts of what follows each context.

    The longest contexts, and those at the start of a sequence, count occurrences. Shorter ones
    count the distinct contexts, longer by one, in which a number occurs.
    """
    # One n-gram for each position: the longest one, or the one that begins with START. All others
    # follow from these: a context of k numbers is a context of k + 1 without its first one.
    seen = Counter(
        tuple(sequence[max(0, end - order + 1) : end + 1])
        for sequence in sequences
        for end in range(1, len(sequence))
    )
    by_size: list[dict[State, dict[int, int]]] = [defaultdict(dict) for _ in range(order)]
    for ngram, number in seen.items():
        by_size[len(ngram) - 1][ngram[:-1]][ngram[-1]] = number
    for longer, shorter in zip(by_size[:0:-1], by_size[-2::-1], strict=True):
        for context, following in longer.items():
            counts = shorter[context[1:]]
            for number in following:
                counts[number] = counts.get(number, 0) + 1
    return {context: dict(counts) for some in by_size for context, counts in some.items()}
