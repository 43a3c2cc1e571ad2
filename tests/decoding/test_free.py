"""Names that are written freely, against every sequence of tokens that there is."""

import itertools

import numpy as np
import pytest

from prixlm.decoding.completer import Completer
from prixlm.decoding.free import FreeName, FreeWriter, free_search
from prixlm.lm.model import PrixLM
from prixlm.types import Query
from tests.decoding.helpers import PREFIXES, next_log_probabilities, sequence_score

ALLOWED = [20, 21, 22]
"""Tokens of the names in a test, few enough to try all sequences."""


def others(model: PrixLM) -> np.ndarray:
    """All tokens but those, and but the end."""
    size = len(model.decoder()[0])
    return np.setdiff1d(np.arange(size), [*ALLOWED, model.encoder.id("[EOS]")])


def every_name(model: PrixLM, prefix: list[int], longest: int) -> list[FreeName]:
    """Score every sequence of the allowed tokens, one forward pass each."""
    eos = model.encoder.id("[EOS]")
    names = [
        FreeName(tokens, sequence_score(model, prefix, [*tokens, eos]))
        for length in range(1, longest + 1)
        for tokens in itertools.product(ALLOWED, repeat=length)
    ]
    return sorted(names, key=lambda name: -name.score)


def test_a_wide_beam_finds_the_best_of_all_sequences(model: PrixLM) -> None:
    found = free_search(model, PREFIXES, 8, beam=200, max_tokens=4, forbidden=others(model))
    for prefix, names in zip(PREFIXES, found, strict=True):
        expected = every_name(model, prefix, 4)[:8]
        scores = [name.score for name in names]
        np.testing.assert_allclose(scores, [name.score for name in expected], atol=1e-4)
        assert {name.tokens for name in names} == {name.tokens for name in expected}


def test_a_beam_of_one_follows_the_best_token_and_may_end_at_any_length(model: PrixLM) -> None:
    prefix, eos, banned = PREFIXES[0], model.encoder.id("[EOS]"), others(model)
    tokens: list[int] = []
    ends = {}
    for _ in range(4):
        scores = next_log_probabilities(model, prefix, tokens)
        if tokens:
            ends[tuple(tokens)] = sequence_score(model, prefix, [*tokens, eos])
        tokens.append(max(ALLOWED, key=lambda token: scores[token].item()))
    [names] = free_search(model, [prefix], 10, beam=1, max_tokens=3, forbidden=banned)
    assert {name.tokens for name in names} <= set(ends)
    for name in names:
        assert name.score == pytest.approx(ends[name.tokens], abs=1e-4)


def test_a_batch_answers_as_single_queries_do(model: PrixLM) -> None:
    together = free_search(model, PREFIXES, 4, beam=6, max_tokens=5)
    for prefix, names in zip(PREFIXES, together, strict=True):
        [alone] = free_search(model, [prefix], 4, beam=6, max_tokens=5)
        assert [name.tokens for name in names] == [name.tokens for name in alone]
    assert free_search(model, [], 4) == []


def test_a_trained_model_writes_the_names_that_it_knows(completer: Completer) -> None:
    writer = FreeWriter(completer)
    [names] = writer.write([Query("en", "Finland", None, "fi")], k=3)
    # Not always the first: the order of a tokenizer's pieces, and so a model, differs by run.
    assert "Suomi" in dict(names) and names[0][1] <= 0
    scores = [score for _, score in names]
    assert scores == sorted(scores, reverse=True)
    assert not any("[" in text for text, _ in names), "no token of a role or a language"


def test_names_that_cannot_be_read_have_no_answer(completer: Completer) -> None:
    writer = FreeWriter(completer)
    good, blank, same, long = writer.write(
        [
            Query("en", "Finland", None, "fi"),
            Query("en", "  ", None, "fi"),
            Query("en", "Finland", None, "en"),
            Query("en", "Finland " * 500, None, "fi"),
        ]
    )
    assert good and not blank and not same and not long
