"""Names as ragged arrays, and slow references without trie or cache."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, XLMRobertaForMaskedLM

from prixlm.decoding.search import Found
from prixlm.decoding.trie import Trie
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import Ragged, make_ragged
from tests.conftest import FAMILIES

# Of unequal lengths; the tokens mean nothing to a random model.
PREFIXES = [[0, 5, 9, 11, 2, 2], [0, 5, 7], [0, 6, 8, 10, 12, 14, 16, 2, 2, 7]]

Array = np.ndarray

DECODERS = ["gemma", "qwen", "llama"]
READINGS = [*FAMILIES, *(f"{family}/both" for family in DECODERS), "xlmr/released"]
"""Every family, and how a prefix may be read otherwise."""


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
    if model.settings.mask == "released":  # what is before a token is read without it
        steps = [(tokens[:n], tokens[n]) for n in range(len(tokens))]
        return sum(next_log_probabilities(model, prefix, a)[b].item() for a, b in steps)
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


def save_released(base: Path, to: Path, *, is_decoder: bool, extra: Sequence[str] = ()) -> Path:
    """Save a checkpoint in the layout that the authors released: roles, and no settings of ours.

    extra: further tokens, such as those of languages.
    """
    model = XLMRobertaForMaskedLM.from_pretrained(base)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    tokenizer.add_tokens(["[S]", "[P]", "[O]", "[EOS]", *extra], special_tokens=True)
    torch.manual_seed(3)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    model.config.is_decoder = is_decoder
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)
    return to


@torch.no_grad()
def released_search(
    model: Any, prefix: list[int], names: Sequence[tuple[int, ...]], beam: int
) -> dict[tuple[int, ...], float]:
    """The authors' released search, step by step: one pass of the whole sequence for each beam.

    model: transformers' causal class, read as its config says. names: with `[EOS]`. Returns the
    score (log P) of every name that was reached.
    """
    may_follow: dict[tuple[int, ...], set[int]] = {}
    for name in names:
        for size in range(len(name)):
            may_follow.setdefault(name[:size], set()).add(name[size])
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    reached: dict[tuple[int, ...], float] = {}
    while beams:
        longer: list[tuple[tuple[int, ...], float]] = []
        for tokens, score in beams:
            ids = torch.tensor([[*prefix, *tokens]])
            last = model.roberta(ids).last_hidden_state[0, -1]
            logs = torch.log_softmax(model.lm_head(last), dim=-1)
            longer += [((*tokens, t), score + logs[t].item()) for t in may_follow[tokens]]
        reached |= dict(longer)
        unfinished = [beam_ for beam_ in longer if beam_[0] in may_follow]
        beams = sorted(unfinished, key=lambda beam_: -beam_[1])[:beam]
    return {name: reached[name] for name in names if name in reached}


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
