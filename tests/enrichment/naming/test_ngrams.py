"""Interpolated n-grams of numbers."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prixlm.enrichment.naming.ngrams import NGrams, State, _count

SEQUENCES = st.lists(st.lists(st.integers(1, 4), max_size=6), min_size=1, max_size=8)


def fit(sequences: list[list[int]], order: int = 3) -> NGrams:
    return NGrams([[NGrams.START, *some, NGrams.END] for some in sequences], order, 5)


@given(SEQUENCES, st.lists(st.integers(1, 6), max_size=3))
def test_the_probabilities_of_what_can_follow_add_up_to_one(
    sequences: list[list[int]], context: list[int]
) -> None:
    ngrams = fit(sequences)
    for state in (tuple(context), (NGrams.START, *context)):
        assert sum(ngrams.probability(n, state) for n in range(5)) == pytest.approx(1)


@given(SEQUENCES, st.lists(st.integers(1, 6), max_size=5))
def test_a_shortened_state_gives_the_same_probabilities(
    sequences: list[list[int]], context: list[int]
) -> None:
    ngrams = fit(sequences)
    state = tuple(context)[-2:]
    short = ngrams.shorten(tuple(context))
    assert len(short) <= 2
    for number in range(5):
        assert ngrams.probability(number, short) == pytest.approx(ngrams.probability(number, state))


def test_what_was_seen_after_a_context_is_more_probable_there() -> None:
    ngrams = fit([[1, 2], [1, 2], [3, 4]])
    assert ngrams.probability(2, (1,)) > ngrams.probability(2, (3,))


def count_slowly(sequences: list[list[int]], order: int) -> dict[State, Counter[int]]:
    """Count every context of every position, then replace those that count distinct ones."""
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


@given(SEQUENCES, st.integers(1, 6))
def test_counts_are_those_of_the_definition(sequences: list[list[int]], order: int) -> None:
    whole = [[NGrams.START, *some, NGrams.END] for some in sequences]
    assert _count(whole, order) == count_slowly(whole, order)
