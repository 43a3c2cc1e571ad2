"""Scores of object tokens, step by step, with the prefix encoded once (Sec. 2.2).

A `Stepper` holds some queries. Each query's prefix goes through the model once, and its keys and
values are shared by every beam. A token that is added becomes an entry: its keys and values are
kept, and what comes after it names it as its parent. So a beam is the number of its last entry,
nothing is copied when beams part, and a batch may hold tokens of any query at any depth, whole runs
of tokens among them.

    stepper = Stepper(model, prefixes, height)
    scores = stepper.first(tokens)                              # log P of what may follow [O]
    entries, scores = stepper.extend(new, asked)                # add tokens, ask what follows them

Dimension letters: B queries, P longest prefix, M new tokens, A ancestors, H width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prixlm.lm.model import PrixLM, attention_mask
from prixlm.types import Array

_ROWS = 1024
"""Tokens that go through the model at once, and whose logits are held."""
_PIECES = 4096
"""Pieces of the vocabulary that are held at once: logits that stay in a processor's cache. With
fewer rows they are more."""


@dataclass(frozen=True)
class NewTokens:
    """Tokens to add: flat arrays of length M."""

    query: Array
    parent: Array  # the entry before it; -1 after the prefix; -2 - i: new token i of this call
    depth: Array  # how many object tokens are before it
    token: Array


@dataclass(frozen=True)
class Asked:
    """Whose log-probability is wanted: flat arrays of (row of the new tokens, token)."""

    row: Array
    token: Array


class Stepper:
    """Some queries, their prefixes encoded, and the object tokens that were tried."""

    @torch.no_grad()
    def __init__(self, model: PrixLM, prefixes: list[list[int]], height: int) -> None:
        self.model = model.eval()
        config = model.backbone.config
        self.layers = model.backbone.base_model.encoder.layer
        self.num_heads, self.width = config.num_attention_heads, config.hidden_size
        self.device = model.backbone.device
        self.height = height
        self.length = np.array([len(prefix) for prefix in prefixes])
        self.num_entries = 0
        self._make_room(1024)
        self.path = np.zeros((1024, max(1, height)), np.int64)
        self._encode(prefixes)

    def _encode(self, prefixes: list[list[int]]) -> None:
        """The prefixes' keys and values, and the state at `[O]` of each."""
        size = int(self.length.max())
        ids = np.full((len(prefixes), size), self.model.backbone.config.pad_token_id, np.int64)
        for row, prefix in enumerate(prefixes):
            ids[row, : len(prefix)] = prefix
        length = self._tensor(self.length)
        causal = self.model.settings.mask == "causal"
        mask = attention_mask(length, length, size, causal=causal)
        states = self.model.embed(self._tensor(ids), torch.arange(size, device=self.device))
        self.prefix_keys: list[Tensor] = []
        self.prefix_values: list[Tensor] = []
        for layer in self.layers:
            own = layer.attention.self
            q, k, v = (self._heads(part(states)) for part in (own.query, own.key, own.value))
            self.prefix_keys.append(k)
            self.prefix_values.append(v)
            seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
            seen = seen.transpose(1, 2).reshape(states.shape)
            states = layer.feed_forward_chunk(layer.attention.output(seen, states))
        last = states[torch.arange(len(prefixes), device=self.device), length - 1]
        self.hidden_first = last
        real = torch.arange(size, device=self.device) < length[:, None]
        mask = torch.zeros(real.shape, device=self.device).masked_fill(~real, float("-inf"))
        self.prefix_mask = mask[:, None, None, :]

    def first(self, tokens: Array) -> Array:
        """log P of some tokens right after the prefix, for all queries: (B * len(tokens),)."""
        number = len(self.length)
        return self.first_of(np.repeat(np.arange(number), len(tokens)), np.tile(tokens, number))

    @torch.no_grad()
    def first_of(self, query: Array, token: Array) -> Array:
        """log P of tokens right after the prefix of these queries."""
        return self._scores(self.hidden_first, query, token)

    @torch.no_grad()
    def extend(self, new: NewTokens, asked: Asked) -> tuple[Array, Array]:
        """Add tokens; their entries, and the log-probabilities that were asked for."""
        number = len(new.token)
        entries = self.num_entries + np.arange(number)
        self._add_paths(new, entries)
        self.num_entries += number
        self._make_room(self.num_entries)
        states = [
            self._run(new, entries, slice(start, start + _ROWS))
            for start in range(0, number, _ROWS)
        ]
        return entries, self._scores(torch.cat(states), asked.row, asked.token)

    def _run(self, new: NewTokens, entries: Array, part: slice) -> Tensor:
        """Some of the new tokens through all layers; what they follow has been before them."""
        depth, own_entries = new.depth[part], entries[part]
        first, last = int(own_entries[0]), int(own_entries[-1]) + 1
        states = self.model.embed(
            self._tensor(new.token[part])[None],
            self._tensor(self.length[new.query[part]] + depth),
        )[0]
        rows = _Rows(new.query[part], len(self.length), self.device)
        most = int(depth.max()) + 1
        ancestors = self._tensor(self.path[own_entries, :most])  # (M, A)
        beyond = self._tensor(np.arange(most) > depth[:, None])  # a token's own place
        for number, layer in enumerate(self.layers):
            own = layer.attention.self
            self.keys[number][first:last] = own.key(states)
            self.values[number][first:last] = own.value(states)
            seen = self._attend(number, own.query(states), ancestors, beyond, rows)
            states = layer.feed_forward_chunk(layer.attention.output(seen, states))
        return states

    @property
    def num_bytes(self) -> int:
        """What the keys and values of all entries take."""
        return sum(pool.nbytes for pool in (*self.keys, *self.values)) + self.path.nbytes

    def _attend(
        self, layer: int, queries: Tensor, ancestors: Tensor, beyond: Tensor, rows: "_Rows"
    ) -> Tensor:
        """Attention of new tokens to their prefix (shared) and to their own path: (M, H)."""
        heads, size = self.num_heads, self.width // self.num_heads
        queries = queries * size**-0.5
        wide = self._heads(rows.spread(queries))  # (B, h, C, D)
        prefix = wide @ self.prefix_keys[layer].transpose(2, 3) + self.prefix_mask
        flat = rows.pick(prefix.transpose(1, 2)).view(len(queries), heads, -1)  # (M, h, P)
        shape = (*ancestors.shape, heads, size)
        keys = self.keys[layer].index_select(0, ancestors.view(-1)).view(shape)  # (M, A, h, D)
        values = self.values[layer].index_select(0, ancestors.view(-1)).view(shape)
        # Products and sums: for matrices as small as these, faster than a batched product.
        path = (keys * queries.view(-1, 1, heads, size)).sum(-1)  # (M, A, h)
        path = path.masked_fill_(beyond[:, :, None], float("-inf")).transpose(1, 2)
        weights = torch.softmax(torch.cat([flat, path], dim=-1), dim=-1)
        on_prefix, on_path = torch.split(weights, [flat.shape[2], path.shape[2]], dim=-1)
        spread = rows.spread(on_prefix.reshape(len(queries), -1))
        spread = spread.view(*spread.shape[:2], heads, -1).transpose(1, 2)
        seen = rows.pick((spread @ self.prefix_values[layer]).transpose(1, 2))
        on_path = on_path.transpose(1, 2)[..., None]  # (M, A, h, 1)
        return seen + (values * on_path).sum(1).view(len(queries), -1)

    def _add_paths(self, new: NewTokens, entries: Array) -> None:
        """The entries that lead to each new one, itself last."""
        while len(self.path) < self.num_entries + len(entries):
            self.path = np.concatenate([self.path, np.zeros_like(self.path)])
        inner = new.parent <= -2
        parent = np.where(inner, self.num_entries - 2 - new.parent, new.parent)
        for depth in np.unique(new.depth):  # a run's tokens come one level after another
            rows = np.flatnonzero(new.depth == depth)
            if depth > 0:
                self.path[entries[rows], :depth] = self.path[parent[rows], :depth]
            self.path[entries[rows], depth] = entries[rows]

    def _scores(self, states: Tensor, row: Array, token: Array) -> Array:
        """log P of (row, token) pairs, normalised over the whole vocabulary."""
        states = self.model.transform(states)
        weight, bias = self.model.decoder()
        found = np.empty(len(row), np.float32)
        pieces = min(len(weight), _PIECES * max(1, _ROWS // max(1, len(states)) // 2))
        block = row // _ROWS * -(-len(weight) // pieces) + token // pieces
        order = np.argsort(block, kind="stable")
        block = block[order]
        number = 0
        room = states.new_empty(min(_ROWS, len(states)), pieces)
        for start in range(0, len(states), _ROWS):
            part = states[start : start + _ROWS]
            highest, sums, picked = [], [], []
            for piece in range(0, len(weight), pieces):
                some = slice(piece, piece + pieces)
                logits = room[: len(part), : len(weight) - piece]
                torch.addmm(bias[some], part, weight[some].T, out=logits)
                pairs = order[slice(*np.searchsorted(block, [number, number + 1]))]
                number += 1
                if len(pairs):
                    at = self._tensor(row[pairs] - start), self._tensor(token[pairs] - piece)
                    picked.append((pairs, at[0], logits[at]))
                highest.append(logits.amax(1))
                sums.append(logits.sub_(highest[-1][:, None]).exp_().sum(1))
            norm = torch.logsumexp(torch.stack(highest) + torch.stack(sums).log(), dim=0)
            for pairs, at_row, values in picked:
                found[pairs] = (values - norm[at_row]).float().cpu().numpy()
        return found

    def _make_room(self, number: int) -> None:
        """Room for keys and values of this many entries."""
        if not hasattr(self, "keys"):
            shape = (number, self.width)
            kind = next(self.model.parameters()).dtype
            options: dict[str, Any] = {"dtype": kind, "device": self.device}
            self.keys = [torch.empty(shape, **options) for _ in self.layers]
            self.values = [torch.empty(shape, **options) for _ in self.layers]
        elif len(self.keys[0]) < number:
            more = max(number, 2 * len(self.keys[0])) - len(self.keys[0])
            for pool in (self.keys, self.values):
                for place, old in enumerate(pool):
                    pool[place] = torch.cat([old, old.new_empty(more, self.width)])

    def _heads(self, states: Tensor) -> Tensor:
        """(B, L, H) to (B, heads, L, H / heads)."""
        return states.view(*states.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


class _Rows:
    """Tokens laid out by query, in a (B, C) rectangle."""

    def __init__(self, query: Array, num_queries: int, device: torch.device) -> None:
        counts = np.bincount(query, minlength=num_queries)
        self.shape = (num_queries, int(counts.max(initial=1)))
        order = np.argsort(query, kind="stable")
        turn = np.empty(len(query), np.int64)
        turn[order] = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
        place = query * self.shape[1] + turn
        full = np.arange(self.shape[0] * self.shape[1])
        self.whole = np.array_equal(place, full)  # nothing has to be moved
        source = np.zeros_like(full)
        source[place] = np.arange(len(query))
        self.place, self.source = (torch.from_numpy(a).to(device) for a in (place, source))

    def spread(self, flat: Tensor) -> Tensor:
        """(M, X) to (B, C, X); gaps repeat the first token, and nobody reads them."""
        rows = flat if self.whole else flat.index_select(0, self.source)
        return rows.view(*self.shape, -1)

    def pick(self, wide: Tensor) -> Tensor:
        """(B, C, ...) to (M, X)."""
        rows = wide.reshape(self.shape[0] * self.shape[1], -1)
        return rows if self.whole else rows.index_select(0, self.place)
