"""The stepper: scores with a cache equal those without, whatever the order and the blocks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prixlm.decoding import incremental
from prixlm.decoding.incremental import (
    NO_ENTRY,
    Asked,
    NewTokens,
    Stepper,
    streaming_log_softmax,
)
from prixlm.decoding.search import score_all
from prixlm.lm.model import PrixLM
from tests.decoding.helpers import (
    PREFIXES,
    READINGS,
    Array,
    assert_same,
    next_log_probabilities,
    random_trie,
)


def plain_log_softmax(
    states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, row: Array, token: Array
) -> Array:
    """The reference: the whole table of logits at once."""
    table = torch.log_softmax(states @ weight.T + bias, dim=1)
    return table[torch.from_numpy(row), torch.from_numpy(token)].numpy()


@given(
    num_rows=st.integers(1, 20),
    vocabulary=st.integers(1, 70),
    num_pairs=st.integers(0, 40),
    block=st.tuples(st.integers(1, 9), st.integers(1, 80)),
    scale=st.sampled_from([1.0, 100.0]),
    seed=st.integers(0, 1000),
)
def test_the_streaming_log_softmax_equals_that_of_the_whole_table(
    num_rows: int, vocabulary: int, num_pairs: int, block: tuple[int, int], scale: float, seed: int
) -> None:
    """Blocks of all sizes; logits in the hundreds, whose exponentials overflow."""
    generator = torch.Generator().manual_seed(seed)
    states = scale * torch.randn(num_rows, 4, generator=generator)
    weight = torch.randn(vocabulary, 4, generator=generator)
    bias = torch.randn(vocabulary, generator=generator)
    draw = np.random.default_rng(seed)
    row, token = draw.integers(0, num_rows, num_pairs), draw.integers(0, vocabulary, num_pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incremental, "_BLOCK_ROWS", block[0])
        patch.setattr(incremental, "_BLOCK_PIECES", block[1])
        scores = streaming_log_softmax(states, weight, bias, row, token)
    expected = plain_log_softmax(states, weight, bias, row, token)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("model", READINGS, indirect=True)
def test_first_scores_equal_those_without_a_cache(model: PrixLM) -> None:
    stepper = Stepper(model, PREFIXES, 3)
    tokens = np.array([20, 25, 31])
    query = np.repeat(np.arange(3), 3)
    scores = stepper.score_first(query, np.tile(tokens, 3)).reshape(3, 3)
    for prefix, ours in zip(PREFIXES, scores, strict=True):
        expected = next_log_probabilities(model, prefix, [])[torch.from_numpy(tokens)]
        np.testing.assert_allclose(ours, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("model", READINGS, indirect=True)
def test_beams_that_part_keep_their_own_paths(model: PrixLM) -> None:
    """One call adds tokens of two queries at several depths, parents and children together."""
    stepper = Stepper(model, PREFIXES, 3)
    first = stepper.next_entries(2)
    stepper.extend(
        NewTokens(np.array([0, 2]), np.full(2, NO_ENTRY), np.zeros(2, int), np.array([20, 21])),
        Asked(np.zeros(0, np.int64), np.zeros(0, np.int64)),
    )
    entries = stepper.next_entries(5)
    assert entries.tolist() == [2, 3, 4, 5, 6]
    new = NewTokens(
        query=np.array([0, 0, 2, 0, 1]),
        parent=np.array([first[0], first[0], first[1], entries[1], NO_ENTRY]),
        depth=np.array([1, 1, 1, 2, 0]),
        token=np.array([22, 23, 24, 25, 26]),
    )
    paths = [(0, [20, 22]), (0, [20, 23]), (2, [21, 24]), (0, [20, 23, 25]), (1, [26])]
    asked = np.array([27, 28])
    scores = stepper.extend(new, Asked(np.repeat(np.arange(5), 2), np.tile(asked, 5)))
    for (query, path), ours in zip(paths, scores.reshape(5, 2), strict=True):
        expected = next_log_probabilities(model, PREFIXES[query], path)[torch.from_numpy(asked)]
        np.testing.assert_allclose(ours, expected.numpy(), atol=1e-4)


def test_the_cache_grows_and_keeps_what_it_has(model: PrixLM) -> None:
    """More entries than the first capacity of 1024; early parents are still right."""
    stepper = Stepper(model, PREFIXES[:1], 2)
    before = stepper.num_bytes
    nothing = Asked(np.zeros(0, np.int64), np.zeros(0, np.int64))
    token = np.arange(1500) % 12 + 20
    zeros = np.zeros(1500, np.int64)
    stepper.extend(NewTokens(zeros, zeros + NO_ENTRY, zeros, token), nothing)
    assert stepper.num_bytes >= 2 * before and stepper.num_entries == 1500
    last = NewTokens(zeros[:2], np.array([3, 1400]), zeros[:2] + 1, np.array([22, 23]))
    scores = stepper.extend(last, Asked(np.arange(2), np.array([27, 28])))
    for row, (parent, token_, asked) in enumerate([(3, 22, 27), (1400, 23, 28)]):
        path = [int(token[parent]), token_]
        expected = next_log_probabilities(model, PREFIXES[0], path)[asked].item()
        assert scores[row] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("model", READINGS, indirect=True)
def test_small_blocks_of_rows_and_pieces_change_nothing(
    model: PrixLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, trie = random_trie(120, 9)
    whole = score_all(model, trie, PREFIXES)
    monkeypatch.setattr(incremental, "_BLOCK_ROWS", 7)
    monkeypatch.setattr(incremental, "_BLOCK_PIECES", 50)
    for ours, other in zip(score_all(model, trie, PREFIXES), whole, strict=True):
        assert_same(ours, other.entity, other.score)
