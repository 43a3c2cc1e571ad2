"""Names as ragged arrays, and slow references without trie or cache."""

import numpy as np
import torch

from prixlm.decoding.search import Found
from prixlm.decoding.trie import Trie
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import Ragged, make_ragged

# Of unequal lengths; the tokens mean nothing to a random model.
PREFIXES = [[0, 5, 9, 11, 2, 2], [0, 5, 7], [0, 6, 8, 10, 12, 14, 16, 2, 2, 7]]

Array = np.ndarray


def random_names(count: int, seed: int, longest: int = 6) -> Ragged:
    """Random names over 12 tokens, so that many share their first tokens."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest + 1, count)
    return make_ragged([generator.integers(20, 32, n).tolist() for n in lengths])


def random_trie(count: int, seed: int) -> tuple[Ragged, Trie]:
    """Random names and the trie of all of them."""
    names = random_names(count, seed)
    return names, Trie.build(names, np.arange(count))


def path_to(trie: Trie, node: int) -> list[int]:
    """The tokens from the root to a node."""
    if node <= 0:
        return []
    return [*path_to(trie, int(trie.parent[node])), int(trie.token[node])]


@torch.no_grad()
def next_log_probabilities(model: PrixLM, prefix: list[int], tokens: list[int]) -> torch.Tensor:
    """log P of everything that may follow, (V,), by transformers' own forward pass: no cache."""
    ids = torch.tensor([[*prefix, *tokens]])
    length = torch.tensor([ids.shape[1]])
    states = model.hidden(ids, torch.tensor([len(prefix)]), length)
    return model.log_probabilities(states[0, -1])


@torch.no_grad()
def sequence_score(model: PrixLM, prefix: list[int], tokens: list[int]) -> float:
    """log P of a sequence of tokens after a prefix: the whole of it in one forward pass."""
    ids = torch.tensor([[*prefix, *tokens]])
    states = model.hidden(ids, torch.tensor([len(prefix)]), torch.tensor([ids.shape[1]]))[0]
    scores = model.log_probabilities(states)
    positions = range(len(prefix) - 1, ids.shape[1] - 1)
    return sum(scores[i, ids[0, i + 1]].item() for i in positions)


def plain_scores(model: PrixLM, prefix: list[int], names: Ragged) -> Array:
    """The score of every name, one forward pass each."""
    eos = model.encoder.id("[EOS]")
    return np.array(
        [sequence_score(model, prefix, [*names.row(i).tolist(), eos]) for i in range(len(names))]
    )


def algorithm_1(
    model: PrixLM, prefix: list[int], names: list[tuple[int, ...]], beam: int
) -> dict[tuple[int, ...], float]:
    """A plain transcription of Algorithm 1: no trie, no cache, one forward pass per beam."""
    eos = model.encoder.id("[EOS]")
    objects = {(*name, eos) for name in names}
    beginnings = {name[:n] for name in objects for n in range(1, len(name))}
    finished: dict[tuple[int, ...], float] = {}
    current: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(max(map(len, objects))):
        following: dict[tuple[int, ...], float] = {}
        for sequence, score in current.items():
            scores = next_log_probabilities(model, prefix, list(sequence))
            for token in range(len(scores)):
                longer = (*sequence, token)
                total = score + scores[token].item()
                if longer in objects:
                    finished[longer[:-1]] = total
                if longer in beginnings:
                    following[longer] = total
        kept = sorted(following, key=lambda sequence: -following[sequence])[:beam]
        current = {sequence: following[sequence] for sequence in kept}
    return finished


def best(scores: Array, k: int) -> tuple[Array, Array]:
    """The k best entities and their scores, without those that were not reached (-inf)."""
    order = np.lexsort((np.arange(len(scores)), -scores))[:k]
    order = order[np.isfinite(scores[order])]
    return order, scores[order]


def assert_same(ours: Found, entities: Array, scores: Array) -> None:
    """Check for the same answers; those of nearly equal scores may be in another order."""
    np.testing.assert_allclose(ours.score, scores, atol=1e-4)
    for entity, score in zip(ours.entity, ours.score, strict=True):
        assert entity in entities[np.abs(scores - score) < 1e-4]
