"""Score object tokens step by step, with each prefix encoded only once (Sec. 2.2).

A `Stepper` holds a batch of queries. The prefix of each query goes through the model once; all its
beams share the prefix's keys and values. Each object token that is added becomes an *entry*: a row
of the stepper's cache of keys and values. Entries are numbered in the order in which they are
added, and each names the entry before it as its parent. A beam is therefore one number, that of its
last entry. Nothing is copied when two beams part, and one call may add tokens of any query at any
depth, including whole runs of tokens that follow each other.

    stepper = Stepper(model, prefixes, height)
    scores = stepper.score_first(query, token)      # log P of tokens right after [O]
    entries = stepper.next_entries(len(new.token))  # the entries that the new tokens will get
    scores = stepper.extend(new, asked)             # add tokens, score what may follow them

A model that is read as the authors' released code reads it (mask `released`) has no cache: what it
makes of the prefix depends on the object so far. Its stepper runs every beam from the start.

Dimension letters: B queries, P longest prefix, M new tokens, C most new tokens of one query,
A ancestors of a new token (itself included), H width, h heads of queries, g heads of keys,
r = h / g, D size of a head, V vocabulary, S scores.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from prixlm.arrays import rank_in_group
from prixlm.lm.encoding import Batch
from prixlm.lm.kernels import share_heads, split_heads
from prixlm.lm.model import PrixLM
from prixlm.types import Array

NO_ENTRY = -1
"""Stands for an entry where there is none: the parent of a token that follows the prefix."""
_BLOCK_ROWS = 1024
"""Most tokens in one pass through the model, and most rows in one block of logits."""
_BLOCK_PIECES = 4096
"""Fewest columns in a block of logits (pieces of the vocabulary). The block of 1024 rows and 4096
columns fits into a processor's cache; a batch with fewer rows takes more columns."""

_BEST_ROWS = 64
"""Rows of logits that are held over the whole vocabulary at once."""


@dataclass(frozen=True)
class NewTokens:
    """Object tokens to add, (M,) each. A parent comes before its children."""

    query: Array  # whose object the token belongs to
    parent: Array  # the entry before it, which may be of the same call; NO_ENTRY after the prefix
    depth: Array  # number of object tokens before it
    token: Array


@dataclass(frozen=True)
class Asked:
    """Log-probabilities to compute, (S,) each: P(token | what ends at a new token)."""

    row: Array  # a row of the new tokens
    token: Array  # a token that may follow it


class Stepper:
    """A batch of queries with encoded prefixes, and the object tokens that were added to them."""

    @torch.no_grad()
    def __init__(self, model: PrixLM, prefixes: list[list[int]], height: int) -> None:
        """Encode the prefixes. height: the most object tokens that a query will have."""
        self.model = model.eval()
        self.kind = model.kind
        self.num_layers = len(self.kind.layers)
        self.width = self.kind.num_key_heads * self.kind.head_size  # of keys and of values
        self.device = model.backbone.device
        self.length = np.array([len(prefix) for prefix in prefixes])  # (B,)
        self.prefixes = prefixes
        # The cache. A layer's tensors are (capacity, g * D); capacity doubles when it is used up.
        dtype = next(model.parameters()).dtype
        self.has_cache = model.settings.mask != "released"
        capacity = 1024 if self.has_cache else 0
        empty = torch.empty((capacity, self.width), dtype=dtype, device=self.device)
        self.keys = [torch.empty_like(empty) for _ in range(self.num_layers)]
        self.values = [torch.empty_like(empty) for _ in range(self.num_layers)]
        # (capacity, height): the entries from a beam's first token to each entry, itself last.
        self.path = np.zeros((1024, max(1, height)), np.int64)
        self.token = np.zeros(1024, np.int64)  # (capacity,) of each entry
        self.num_entries = 0
        if self.has_cache:
            self._encode_prefixes(prefixes)
        else:
            self.first_states = self._run_whole(prefixes)

    def _encode_prefixes(self, prefixes: list[list[int]]) -> None:
        """Keep the prefixes' keys and values of all layers, and the last state at each `[O]`."""
        size, kind = int(self.length.max()), self.kind
        ids = np.full((len(prefixes), size), self.model.encoder.padding, np.int64)
        for row, prefix in enumerate(prefixes):
            ids[row, : len(prefix)] = prefix
        length = _tensor(self.length, self.device)
        masks = self.model.masks(length, length, size)
        positions = torch.arange(size, device=self.device)
        every = positions.repeat(len(prefixes))  # (B * P,)
        states = kind.embed(_tensor(ids.reshape(-1), self.device), every)  # (B * P, H)
        rotation = kind.rotation(states, every)
        self.prefix_keys: list[Tensor] = []  # (B, g, P, D) for each layer
        self.prefix_values: list[Tensor] = []
        for layer in range(self.num_layers):
            q, k, v = (
                split_heads(part.view(len(prefixes), size, -1), kind.head_size)
                for part in kind.project(layer, states, rotation)
            )
            self.prefix_keys.append(k)
            self.prefix_values.append(v)
            attended = torch.nn.functional.scaled_dot_product_attention(
                *share_heads(q, k, v), masks[kind.window(layer)], scale=kind.scale
            )
            attended = attended.transpose(1, 2).reshape(len(states), -1)
            states = kind.finish(layer, attended, states)
        rows = torch.arange(len(prefixes), device=self.device)
        # (B, H): they predict the first object token.
        self.first_states = kind.norm(states[rows * size + length - 1])
        # (B, 1, 1, P): 0 at a prefix's own positions, -inf at padding; added to attention logits.
        padding = positions >= length[:, None]
        bias = torch.zeros(padding.shape, device=self.device).masked_fill(padding, float("-inf"))
        self.prefix_mask = bias[:, None, None, :]

    def _run_whole(self, sequences: list[list[int]]) -> Tensor:
        """Return the last state of each sequence, read in both directions and from the start."""
        length = np.array([len(sequence) for sequence in sequences])
        ids = np.full((len(sequences), int(length.max())), self.model.encoder.padding, np.int64)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = sequence
        rows, last = np.arange(len(sequences)), length - 1
        return self.model.target_states(Batch(ids, length, length, rows, last, last))

    @torch.no_grad()
    def score_first(self, query: Array, token: Array) -> Array:
        """Return log P of each token right after the prefix of the query beside it: (S,)."""
        return self._score(self.first_states, query, token)

    def next_entries(self, count: int) -> Array:
        """Return the entries that the next `extend` gives to its `count` tokens, in their order.

        They are known beforehand, so that a new token can name another one as its parent.
        """
        return self.num_entries + np.arange(count)

    @torch.no_grad()
    def best_first(self, number: int, banned: Array) -> tuple[Array, Array]:
        """Return the most probable tokens right after each prefix, and their log P: (B, number).

        banned: tokens that count as impossible.
        """
        return self._best(self.first_states, number, banned)

    @torch.no_grad()
    def extend_best(self, new: NewTokens, number: int, banned: Array) -> tuple[Array, Array]:
        """Add tokens; return the most probable tokens after each, and their log P: (M, number)."""
        return self._best(self._extend(new), number, banned)

    @torch.no_grad()
    def extend(self, new: NewTokens, asked: Asked) -> Array:
        """Add tokens as entries; return the log-probabilities asked for, (S,)."""
        return self._score(self._extend(new), asked.row, asked.token)

    def _extend(self, new: NewTokens) -> Tensor:
        """Add tokens as entries; return their last states, (M, H)."""
        entries = self.next_entries(len(new.token))
        self.num_entries += len(entries)
        self._reserve(self.num_entries)
        self._add_paths(new, entries)
        self.token[entries] = new.token
        # Parents come first, so the entries that a block attends to are cached before it or in it.
        states = [
            self._run(new, entries, slice(start, start + _BLOCK_ROWS))
            for start in range(0, len(entries), _BLOCK_ROWS)
        ]
        return torch.cat(states)

    def _best(self, states: Tensor, number: int, banned: Array) -> tuple[Array, Array]:
        """Return the tokens of highest P(token | state) and their log P: (M, number) each.

        The end of a name is always among them: a search needs it, however improbable it is.
        """
        weight, bias = self.model.decoder()
        states = self.model.transform(states)
        eos = self.model.end_of_name
        number = min(number, len(weight))
        tokens, scores = [], []
        for start in range(0, len(states), _BEST_ROWS):
            rows = states[start : start + _BEST_ROWS]
            logits = torch.nn.functional.linear(rows, weight, bias).float()
            logs = torch.log_softmax(logits, dim=-1)  # (rows, V)
            logs[:, _tensor(banned, self.device)] = float("-inf")
            score, token = logs.topk(number, dim=-1)
            has_end = (token == eos).any(-1)
            token[~has_end, -1], score[~has_end, -1] = eos, logs[~has_end, eos]
            tokens.append(token.cpu().numpy())
            scores.append(score.cpu().numpy())
        return np.concatenate(tokens), np.concatenate(scores)

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache of entries takes."""
        return sum(cache.nbytes for cache in (*self.keys, *self.values)) + self.path.nbytes

    def _add_paths(self, new: NewTokens, entries: Array) -> None:
        """Write the paths of new entries: the parent's path, then the entry itself."""
        for depth in np.unique(new.depth):  # level by level: a parent may be new, too
            rows = np.flatnonzero(new.depth == depth)
            if depth > 0:
                self.path[entries[rows], :depth] = self.path[new.parent[rows], :depth]
            self.path[entries[rows], depth] = entries[rows]

    def _run(self, new: NewTokens, entries: Array, block: slice) -> Tensor:
        """Run a block of new tokens through all layers; return their last states, (M, H)."""
        query, depth, block_entries = new.query[block], new.depth[block], entries[block]
        if not self.has_cache:
            paths = zip(query, depth, block_entries, strict=True)
            return self._run_whole(
                [
                    [*self.prefixes[q], *self.token[self.path[entry, : d + 1]].tolist()]
                    for q, d, entry in paths
                ]
            )
        first, last = int(block_entries[0]), int(block_entries[-1]) + 1
        positions = _tensor(self.length[query] + depth, self.device)
        states = self.kind.embed(_tensor(new.token[block], self.device), positions)  # (M, H)
        rotation = self.kind.rotation(states, positions)
        by_query = _ByQuery(query, len(self.length), self.device)
        # (M, A): shorter paths are padded with entry 0, which `beyond` masks.
        longest = int(depth.max()) + 1
        ancestors = _tensor(self.path[block_entries, :longest], self.device)
        beyond = np.arange(longest) > depth[:, None]
        for layer in range(self.num_layers):
            q, k, v = self.kind.project(layer, states, rotation)
            # Cached first: a token attends to itself and to the tokens of the block before it.
            self.keys[layer][first:last] = k
            self.values[layer][first:last] = v
            hidden = self._hidden_by_window(layer, positions, depth, beyond)
            attended = self._attend(layer, q, ancestors, hidden, by_query)
            states = self.kind.finish(layer, attended, states)
        return self.kind.norm(states)

    def _hidden_by_window(
        self, layer: int, positions: Tensor, depth: Array, beyond: Array
    ) -> tuple[Tensor | None, Tensor]:
        """Return what new tokens do not see: of the prefix, (M, P) or None, and of paths, (M, A).

        positions: (M,) from 0, depth: (M,), beyond: (M, A) ancestors that are padding.
        """
        window, size = self.kind.window(layer), int(self.length.max())
        if window is None or window > size + beyond.shape[1]:  # it reaches all of them
            return None, _tensor(beyond, self.device)
        places = torch.arange(size, device=self.device)
        is_far = positions[:, None] - places >= window
        is_far_up = depth[:, None] - np.arange(beyond.shape[1]) >= window
        return is_far, _tensor(beyond | is_far_up, self.device)

    def _attend(
        self,
        layer: int,
        queries: Tensor,
        ancestors: Tensor,
        hidden: tuple[Tensor | None, Tensor],
        by_query: "_ByQuery",
    ) -> Tensor:
        """Attend from new tokens to their prefix and to their own path; return (M, h * D).

        queries: (M, h * D), ancestors: (M, A), hidden: see `_hidden_by_window`. One softmax runs
        over both parts, because together they are the positions that the token may see.
        """
        groups, size = self.kind.num_key_heads, self.kind.head_size
        heads, shared = self.kind.num_heads, self.kind.num_heads // groups
        queries = queries * self.kind.scale
        # The prefix: one batched product per query, since its tokens share the prefix's keys. The
        # r heads that share a head of keys lie one below another: (B, g, r * C, D).
        wide = by_query.spread(queries)  # (B, C, h * D)
        num_rows, most = wide.shape[:2]
        wide = wide.view(num_rows, most, groups, shared, size).permute(0, 2, 3, 1, 4)
        prefix_keys, prefix_values, mask = (
            by_query.chosen(part)
            for part in (self.prefix_keys[layer], self.prefix_values[layer], self.prefix_mask)
        )
        rows = wide.reshape(num_rows, groups, shared * most, size)
        logits = rows @ prefix_keys.transpose(2, 3) + mask  # (B, g, r * C, P)
        logits = logits.view(num_rows, heads, most, -1).transpose(1, 2)
        on_prefix = by_query.pick(logits).view(len(queries), heads, -1)  # (M, h, P)
        if hidden[0] is not None:
            on_prefix = on_prefix.masked_fill(hidden[0][:, None], float("-inf"))
        # The path: each token has its own few entries. Elementwise products and a sum are faster
        # than a batched product of matrices this small.
        shape = (*ancestors.shape, groups, 1, size)
        keys = self.keys[layer].index_select(0, ancestors.view(-1)).view(shape)
        values = self.values[layer].index_select(0, ancestors.view(-1)).view(shape)
        on_path = (keys * queries.view(-1, 1, groups, shared, size)).sum(-1)  # (M, A, g, r)
        on_path = on_path.flatten(2)  # (M, A, h)
        on_path = on_path.masked_fill_(hidden[1][:, :, None], float("-inf")).transpose(1, 2)
        sizes = [on_prefix.shape[2], on_path.shape[2]]
        weights = torch.softmax(torch.cat([on_prefix, on_path], dim=-1), dim=-1)  # (M, h, P + A)
        prefix_weights, path_weights = torch.split(weights, sizes, dim=-1)
        spread = by_query.spread(prefix_weights.reshape(len(queries), -1))
        spread = spread.view(num_rows, most, heads, -1).transpose(1, 2)  # (B, h, C, P)
        spread = spread.reshape(num_rows, groups, shared * most, -1)
        found = (spread @ prefix_values).view(num_rows, heads, most, size)
        from_prefix = by_query.pick(found.transpose(1, 2))  # (M, h * D)
        path_weights = path_weights.transpose(1, 2).reshape(*ancestors.shape, groups, shared, 1)
        return from_prefix + (values * path_weights).sum(1).view(len(queries), -1)

    def _score(self, states: Tensor, row: Array, token: Array) -> Array:
        """Return log P(token | state) for pairs of a row of `states` and a token: (S,)."""
        weight, bias = self.model.decoder()
        return streaming_log_softmax(self.model.transform(states), weight, bias, row, token)

    def _reserve(self, count: int) -> None:
        """Grow the cache to at least this many entries, doubling it at least."""
        while len(self.path) < count:
            self.path = np.concatenate([self.path, np.zeros_like(self.path)])
            self.token = np.concatenate([self.token, np.zeros_like(self.token)])
        capacity = len(self.keys[0])
        if self.has_cache and capacity < count:
            more = max(count, 2 * capacity) - capacity
            for cache in (self.keys, self.values):
                for layer, old in enumerate(cache):
                    cache[layer] = torch.cat([old, old.new_empty(more, self.width)])


def score_continuations(
    model: PrixLM, prefixes: list[list[int]], query: Array, tokens: list[list[int]]
) -> Array:
    """Return log P of token sequences after prefixes, (S,) float64; each prefix is read once.

    query: (S,) the prefix of each sequence. tokens: no sequence is empty; `[EOS]` is not added.
    """
    lengths = np.array([len(row) for row in tokens])
    stepper = Stepper(model, prefixes, max(1, int(lengths.max(initial=1)) - 1))
    first = np.array([row[0] for row in tokens], np.int64)
    scores = stepper.score_first(query, first).astype(np.float64)
    # (M,) all tokens but the last of each sequence; each predicts the one after it.
    inner = np.array([token for row in tokens for token in row[:-1]], np.int64)
    following = np.array([token for row in tokens for token in row[1:]], np.int64)
    if not len(inner):
        return scores
    owner = np.repeat(np.arange(len(tokens)), lengths - 1)
    depth = rank_in_group(owner)
    entries = stepper.next_entries(len(inner))
    parent = np.where(depth == 0, NO_ENTRY, entries - 1)
    new = NewTokens(query[owner], parent, depth, inner)
    each = stepper.extend(new, Asked(np.arange(len(inner)), following))
    return scores + np.bincount(owner, each, minlength=len(tokens))


def streaming_log_softmax(
    states: Tensor, weight: Tensor, bias: Tensor | None, row: Array, token: Array
) -> Array:
    """Return `log_softmax(states @ weight.T + bias)[row, token]` without the whole table of logits.

    states: (M, H), weight: (V, H), bias: (V,) if any; row, token: (S,) pairs in any order. Returns
    (S,) float32.

    A vocabulary of 250,000 pieces makes the table of logits z, (M, V), far larger than the cache of
    a processor, and only a few of its cells are asked for. With log softmax(z)_t = z_t - Z and
    Z = log sum_v exp(z_v), the table is made block by block. Each block b leaves only the cells
    asked for and, for each row, its own log-sum-exp (shifted by the maximum, so that nothing
    overflows):

        Z_b = m_b + log sum_{v in b} exp(z_v - m_b),    m_b = max_{v in b} z_v

    The blocks of a row then give Z = log sum_b exp(Z_b): exactly the softmax's own normaliser.
    """
    scores = np.empty(len(row), np.float32)
    few_rows = max(1, _BLOCK_ROWS // max(1, len(states)) // 2)
    width = min(len(weight), _BLOCK_PIECES * few_rows)  # columns of a block
    wanted = iter(_pairs_by_block(row, token, len(states), len(weight), width))
    buffer = states.new_empty(min(_BLOCK_ROWS, len(states)), width)  # reused by all blocks
    for top in range(0, len(states), _BLOCK_ROWS):
        rows = states[top : top + _BLOCK_ROWS]
        block_sums: list[Tensor] = []  # Z_b of each row, block by block
        picked: list[tuple[Array, Tensor, Tensor]] = []  # pairs, their rows, their logits
        for left in range(0, len(weight), width):
            columns = slice(left, left + width)
            logits = buffer[: len(rows), : len(weight) - left]
            if bias is None:
                torch.mm(rows, weight[columns].T, out=logits)
            else:
                torch.addmm(bias[columns], rows, weight[columns].T, out=logits)
            pairs = next(wanted)
            if len(pairs):
                at_row = _tensor(row[pairs] - top, states.device)
                at_column = _tensor(token[pairs] - left, states.device)
                picked.append((pairs, at_row, logits[at_row, at_column]))
            highest = logits.amax(1)
            exponentials = logits.sub_(highest[:, None]).exp_()  # in place: the logits are done
            block_sums.append(highest + exponentials.sum(1).log())
        normaliser = torch.logsumexp(torch.stack(block_sums), dim=0)  # Z of each row
        for pairs, at_row, values in picked:
            scores[pairs] = (values - normaliser[at_row]).float().cpu().numpy()
    return scores


def _pairs_by_block(
    row: Array, token: Array, num_rows: int, num_columns: int, width: int
) -> list[Array]:
    """Return which pairs lie in each block of the table, blocks in reading order."""
    blocks_across = -(-num_columns // width)
    num_blocks = -(-num_rows // _BLOCK_ROWS) * blocks_across
    block = row // _BLOCK_ROWS * blocks_across + token // width
    order = np.argsort(block, kind="stable")
    return np.split(order, np.searchsorted(block[order], np.arange(1, num_blocks)))


class _ByQuery:
    """Lays new tokens out by query in a (B, C) rectangle, where one product serves a query.

    Queries without a new token are left out: most searches end before the last one of a batch.
    """

    def __init__(self, query: Array, num_queries: int, device: torch.device) -> None:
        """query: (M,) of each token, in any order."""
        present, query = np.unique(query, return_inverse=True)
        self._present = _tensor(present, device) if len(present) < num_queries else None
        counts = np.bincount(query, minlength=1)
        self.shape = (len(counts), int(counts.max(initial=1)))
        order = np.argsort(query, kind="stable")
        column = np.empty(len(query), np.int64)  # (M,) of each token in its query's row
        column[order] = rank_in_group(query[order])
        cell = query * self.shape[1] + column  # (M,) of each token in the flat rectangle
        cells = np.arange(self.shape[0] * self.shape[1])
        self.is_full = np.array_equal(cell, cells)  # then nothing has to be moved
        source = np.zeros_like(cells)  # (B * C,) the token in each cell; gaps repeat token 0
        source[cell] = np.arange(len(query))
        self.cell, self.source = _tensor(cell, device), _tensor(source, device)

    def chosen(self, by_query: Tensor) -> Tensor:
        """Return the rows of those queries that have a new token: all of B, or fewer."""
        return by_query if self._present is None else by_query.index_select(0, self._present)

    def spread(self, flat: Tensor) -> Tensor:
        """(M, X) to (B, C, X); gaps repeat the first token, and nobody reads them."""
        rows = flat if self.is_full else flat.index_select(0, self.source)
        return rows.view(*self.shape, -1)

    def pick(self, wide: Tensor) -> Tensor:
        """(B, C, ...) to (M, X): the opposite of `spread`."""
        rows = wide.reshape(self.shape[0] * self.shape[1], -1)
        return rows if self.is_full else rows.index_select(0, self.cell)


def _tensor(array: Array, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
