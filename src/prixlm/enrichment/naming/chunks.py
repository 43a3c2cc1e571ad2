"""A transliteration learnt from pairs of words: aligned chunks of letters, and n-grams of them.

    model = ChunkModel.fit([("hackman", "χάκμαν"), ("burton", "μπάρτον"), ...])
    model.write("bateman")              # [("μπέιτμαν", 0.6), ("μπάτεμαν", 0.2), ...]

1. `align_pairs` cuts both words of a pair into the same number of chunks: one letter beside up to
   three, or two beside one. The probabilities of chunk pairs are fitted by expectation maximisation
   over all alignments at once. A pair whose letters go together no better than by chance is a
   translation, and is left out.
2. `ChunkModel` counts n-grams of chunk pairs (interpolated Kneser-Ney) and writes a word by beam
   search, left to right. Long n-grams hold whole words, short ones serve words never seen.

Only counts are kept, so that a fit of thousands of words takes seconds on one core, and equal pairs
give equal answers.

Dimension letters: N pairs of one block, I letters of the longest source, J of the longest target.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from prixlm.enrichment.naming.ngrams import NGrams, State
from prixlm.enrichment.naming.vocabulary import Vocabulary
from prixlm.types import Array

MAX_LETTERS = 30
"""Longest word that is aligned."""
_OPS = ((1, 0), (1, 1), (1, 2), (2, 1), (1, 3), (2, 2))
"""Letters of source and target in a chunk pair."""
_PRIOR = np.array([0.3, 1, 0.3, 0.5, 0.03, 0.05])
"""How welcome each op is: without it, large chunks would memorise the words."""
_BLOCK = 1024
"""Pairs that are aligned together."""
_FLOOR = 1e-9
"""Probability of a chunk pair that was seen once: it can be aligned, but nothing is learnt."""
_ROUNDS = 6
"""Rounds of expectation maximisation."""
_MARGIN = 0.5
"""Nats a letter by which an alignment has to beat chance."""
_ORDER = 6
"""Chunk pairs of the longest n-gram."""
_BEHIND = 7.0
"""Nats behind the best at which a beam, or a chunk that could follow one, is dropped."""
_BEHIND_KNOWN = 12.0
"""The same among known words: few prefixes compete, and the end of a word may decide."""

ChunkPair = tuple[str, str]


class Aligned(NamedTuple):
    """A pair cut into chunks, and how many nats a letter it is above chance."""

    chunks: list[ChunkPair]
    margin: float


@dataclass
class _Block:
    """Pairs of similar length, and the chunk pair at each cell of their grids."""

    rows: Array  # (N,) positions in the list of all pairs
    num_source: Array  # (N,) letters
    num_target: Array  # (N,)
    chunk: Array  # (ops, I + 1, J + 1, N) chunk pair that starts at a cell; -1 where none does


def align_pairs(pairs: Sequence[tuple[str, str]]) -> list[Aligned | None]:
    """Cut each pair into chunks; None for a pair that no chunks cover.

    pairs: distinct, of 1 to MAX_LETTERS letters each.
    """
    if not pairs:
        return []
    blocks, num_chunks = _blocks(pairs)
    chance = _chance(pairs)
    probability = np.full(num_chunks + 1, 1.0 / max(1, num_chunks))
    for number in range(_ROUNDS):
        probability[0] = 0.0  # chunk 0 stands for all that were seen once
        counts = np.zeros(num_chunks + 1)
        for block in blocks:
            _count_block(block, probability, chance[block.rows], number == 0, counts)
        counts[0] = 0.0
        probability = counts / max(counts.sum(), 1e-300)
    aligned: list[Aligned | None] = [None] * len(pairs)
    for block in blocks:
        for row, found in _best_paths(block, probability, chance, pairs):
            aligned[row] = found
    return aligned


def _blocks(pairs: Sequence[tuple[str, str]]) -> tuple[list[_Block], int]:
    """Group pairs by length and number their chunk pairs; return also how many there are."""
    letters = {letter: n for n, letter in enumerate(sorted(set("".join(map("".join, pairs)))), 1)}
    order = sorted(range(len(pairs)), key=lambda row: (len(pairs[row][0]), len(pairs[row][1]), row))
    grids = []
    for start in range(0, len(order), _BLOCK):
        rows = np.array(order[start : start + _BLOCK])
        sources, targets = zip(*(pairs[row] for row in rows), strict=True)
        grids.append((rows, _codes(sources, letters, (1, 2)), _codes(targets, letters, range(4))))
    # Codes of chunks become dense numbers, so that a pair of them fits one int64 key.
    source_codes = np.unique(np.concatenate([codes.ravel() for _, codes, _ in grids]))
    target_codes = np.unique(np.concatenate([codes.ravel() for _, _, codes in grids]))
    keys = [
        _pair_keys(
            np.searchsorted(source_codes, source) * np.sign(source),
            np.searchsorted(target_codes, target) * np.sign(target),
            len(target_codes),
        )
        for _, source, target in grids
    ]
    values, counts = _count_keys(keys)
    frequent = values[counts > 1]
    blocks = []
    for (rows, _, _), key in zip(grids, keys, strict=True):
        found = np.searchsorted(frequent, key)
        is_frequent = (
            frequent[np.minimum(found, max(0, len(frequent) - 1))] == key
            if len(frequent)
            else np.zeros(key.shape, bool)
        )
        chunk = np.where(key < 0, -1, np.where(is_frequent, found + 1, 0)).astype(np.int32)
        lengths = np.array([[len(text) for text in pairs[row]] for row in rows])
        blocks.append(_Block(rows, lengths[:, 0], lengths[:, 1], chunk))
    return blocks, len(frequent)


def _codes(texts: Sequence[str], letters: dict[str, int], sizes: Sequence[int]) -> Array:
    """Return the code of the chunk of each size that starts at each letter: (sizes, L + 1, N).

    A code is the letters' numbers as digits, and the size, so that no two chunks share one; 0 where
    the text ends before the chunk does.
    """
    longest = max(map(len, texts))
    grid = np.zeros((longest + 1 + max(sizes), len(texts)), np.int64)
    for column, text in enumerate(texts):
        grid[: len(text), column] = [letters[letter] for letter in text]
    codes = np.zeros((len(sizes), longest + 1, len(texts)), np.int64)
    base = len(letters) + 1
    for number, size in enumerate(sizes):
        code = np.zeros_like(codes[0])
        is_inside = np.ones(code.shape, bool)
        for offset in range(size):
            letter = grid[offset : offset + longest + 1]
            code = code * base + letter
            is_inside &= letter > 0
        codes[number] = np.where(is_inside, code * 4 + size + (size == 0) * 4, 0)
    return codes


def _pair_keys(source: Array, target: Array, num_targets: int) -> Array:
    """Return the key of the chunk pair at each cell, -1 where none fits: (ops, I + 1, J + 1, N).

    source: (2, I + 1, N), target: (4, J + 1, N): dense numbers of chunks, 0 where there is none.
    """
    keys = []
    for num_source, num_target in _OPS:
        left = source[num_source - 1][:, None]  # (I + 1, 1, N)
        right = target[num_target][None]  # (1, J + 1, N)
        keys.append(np.where((left > 0) & (right > 0), left * num_targets + right, -1))
    return np.stack(keys)


def _count_keys(keys: Sequence[Array]) -> tuple[Array, Array]:
    """Return the distinct keys of all blocks and their counts, without joining the blocks."""
    parts = [np.unique(key[key >= 0], return_counts=True) for key in keys]
    values = np.concatenate([part[0] for part in parts])
    distinct, index = np.unique(values, return_inverse=True)
    return distinct, np.bincount(index, np.concatenate([part[1] for part in parts]), len(distinct))


def _chance(pairs: Sequence[tuple[str, str]]) -> Array:
    """Return the log-probability of each pair if its two words had nothing in common: (pairs,)."""
    logs = []
    for side in (0, 1):
        counts = Counter(letter for pair in pairs for letter in pair[side])
        total = sum(counts.values()) + len(pairs)
        log = {letter: math.log(count / total) for letter, count in counts.items()}
        logs.append([sum(log[letter] for letter in pair[side]) for pair in pairs])
    return np.sum(logs, axis=0) if pairs else np.zeros(0)


def _op_weights(block: _Block, probability: Array) -> Array:
    """Return the weight of each op at each cell: (ops, I + 1, J + 1, N)."""
    weight = np.where(block.chunk < 0, 0.0, np.maximum(probability[block.chunk], _FLOOR))
    return np.asarray(weight * _PRIOR[:, None, None, None])


def _cells(shape: tuple[int, ...]) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (op, i, j, i after it, j after it) in reading order of the cells."""
    _, height, width, _ = shape
    for i in range(height):
        for j in range(width):
            for op, (a, b) in enumerate(_OPS):
                if i + a < height and j + b < width:
                    yield op, i, j, i + a, j + b


def _count_block(
    block: _Block, probability: Array, chance: Array, is_first: bool, counts: Array
) -> None:
    """Add the expected number of uses of each chunk pair to `counts` (forward and backward)."""
    weight = _op_weights(block, probability)
    rows = np.arange(len(block.rows))
    forward = np.zeros(weight.shape[1:])  # (I + 1, J + 1, N)
    forward[0, 0] = 1
    cells = list(_cells(weight.shape))
    for op, i, j, i_next, j_next in cells:
        forward[i_next, j_next] += forward[i, j] * weight[op, i, j]
    total = forward[block.num_source, block.num_target, rows]
    log_total = np.log(np.maximum(total, 1e-300))
    # The probability that the pair is a transliteration and not a translation; not known at first.
    is_one = 1.0 if is_first else 1 / (1 + np.exp(np.clip(chance - log_total, -50, 50)))
    share = np.where(total > 0, is_one / np.maximum(total, 1e-300), 0.0)
    backward = np.zeros_like(forward)
    backward[block.num_source, block.num_target, rows] = 1
    uses = np.zeros_like(weight)
    for op, i, j, i_next, j_next in reversed(cells):
        rest = weight[op, i, j] * backward[i_next, j_next]
        backward[i, j] += rest
        uses[op, i, j] = rest * forward[i, j] * share
    is_used = uses > 1e-6
    counts += np.bincount(block.chunk[is_used], uses[is_used], len(counts))


def _best_paths(
    block: _Block, probability: Array, chance: Array, pairs: Sequence[tuple[str, str]]
) -> Iterator[tuple[int, Aligned]]:
    """Yield the row of each pair with its most probable chunks (Viterbi)."""
    weight = _op_weights(block, probability)
    best = np.zeros(weight.shape[1:])  # (I + 1, J + 1, N)
    best[0, 0] = 1
    came_by = np.full(best.shape, -1, np.int8)
    for op, i, j, i_next, j_next in _cells(weight.shape):
        value = best[i, j] * weight[op, i, j]
        is_better = value > best[i_next, j_next]
        best[i_next, j_next][is_better] = value[is_better]
        came_by[i_next, j_next][is_better] = op
    for column, row in enumerate(block.rows.tolist()):
        source, target = pairs[row]
        i, j = len(source), len(target)
        score = best[i, j, column]
        if not score:
            continue
        chunks: list[ChunkPair] = []
        while i or j:
            a, b = _OPS[came_by[i, j, column]]
            chunks.append((source[i - a : i], target[j - b : j]))
            i, j = i - a, j - b
        margin = (math.log(score) - chance[row]) / (len(source) + len(target))
        yield row, Aligned(chunks[::-1], margin)


def usable_chunks(aligned: Iterable[Aligned]) -> list[list[ChunkPair]]:
    """Return the chunks of pairs that are transliterations.

    Chunks of two letters beside two come a second time letter by letter, so that a word with a new
    pair of letters can be written too.
    """
    above = [found.chunks for found in aligned if found.margin >= _MARGIN]
    above += [_cut(chunks) for chunks in above if any(len(s) == len(t) == 2 for s, t in chunks)]
    uses = Counter(chunk for chunks in above for chunk in chunks)
    # A chunk pair of one word is more often a wrong cut than a rule.
    return [chunks for chunks in above if all(uses[chunk] > 1 for chunk in chunks)]


def _cut(chunks: list[ChunkPair]) -> list[ChunkPair]:
    """Return chunks with those of two letters beside two cut in the middle."""
    cut: list[ChunkPair] = []
    for source, target in chunks:
        is_square = len(source) == len(target) == 2
        cut += zip(source, target, strict=True) if is_square else [(source, target)]
    return cut


class ChunkModel:
    """N-grams of chunk pairs, and the search for the best spelling of a word."""

    def __init__(self, sequences: Sequence[Sequence[ChunkPair]], order: int = _ORDER) -> None:
        numbers: dict[ChunkPair, int] = {}
        self._targets = [""]  # of each chunk pair by number; 0 is the end
        for sequence in sequences:
            for pair in sequence:
                if pair not in numbers:
                    numbers[pair] = len(self._targets)
                    self._targets.append(pair[1])
        self.ngrams = NGrams(
            [
                [NGrams.START, *(numbers[pair] for pair in sequence), NGrams.END]
                for sequence in sequences
            ],
            order,
            len(self._targets),
        )
        by_source: dict[str, list[int]] = defaultdict(list)
        for (source, _), number in numbers.items():
            by_source[source].append(number)
        self._by_source = dict(by_source)
        self._memo: dict[tuple[State, str], list[tuple[float, State, str]]] = {}

    @classmethod
    def fit(cls, pairs: Sequence[tuple[str, str]], order: int = _ORDER) -> "ChunkModel":
        """Align pairs and count the chunks of those that are transliterations."""
        found = [aligned for aligned in align_pairs(pairs) if aligned is not None]
        return cls(usable_chunks(found), order)

    @property
    def num_chunks(self) -> int:
        """Number of distinct chunk pairs."""
        return len(self._targets) - 1

    def write(
        self, word: str, most: int = 8, beam: int = 12, known: Vocabulary | None = None
    ) -> list[tuple[str, float]]:
        """Return spellings of a word with their share of the beam's probability, the best first.

        known: words that the language is known to use. The best `most` of them are returned, too,
        even if the beam alone would lose them.

        Empty for a word with a letter that no chunk has: nothing is written by guess.
        """
        spellings = self._search(word, beam, None)
        if known and spellings:
            found = self._search(word, 3 * beam, known)
            for text in _best(found, most):
                if text not in spellings:
                    spellings[text] = found[text]
        return _shares(spellings, most, known)

    def joint(self, word: str, text: str) -> float:
        """Return the log-probability of a word together with one spelling; -inf if impossible."""
        best: list[dict[tuple[State, int], float]] = [{} for _ in range(len(word) + 1)]
        best[0][((NGrams.START,), 0)] = 0.0
        for position in range(len(word)):
            for size in (1, 2):
                source = word[position : position + size]
                if len(source) < size or source not in self._by_source:
                    continue
                column = best[position + size]
                for (state, done), score in best[position].items():
                    for log, next_state, target in self._expand(state, source):
                        if text.startswith(target, done):
                            key = (next_state, done + len(target))
                            if score + log > column.get(key, -math.inf):
                                column[key] = score + log
        return max(
            (
                score + self._log_end(state)
                for (state, done), score in best[-1].items()
                if done == len(text)
            ),
            default=-math.inf,
        )

    def _search(self, word: str, beam: int, known: Vocabulary | None) -> dict[str, float]:
        """Return the log-probability of each spelling that a beam search finds.

        known: if given, only its words, and only their prefixes on the way.
        """
        columns: list[dict[tuple[State, str], float]] = [{} for _ in range(len(word) + 1)]
        columns[0][((NGrams.START,), "")] = 0.0
        for position in range(len(word)):
            beams = _largest(beam, columns[position], known)
            for size in (1, 2):
                source = word[position : position + size]
                if len(source) < size or source not in self._by_source:
                    continue
                column = columns[position + size]
                for (state, text), score in beams:
                    for log, next_state, target in self._expand(state, source):
                        key = (next_state, text + target)
                        value = score + log
                        if value > column.get(key, -math.inf):
                            column[key] = value
        found: dict[str, float] = {}
        for (state, text), score in columns[-1].items():
            if text and (known is None or text in known):
                value = score + self._log_end(state)
                found[text] = _log_add(found[text], value) if text in found else value
        return found

    def _log_end(self, state: State) -> float:
        return math.log(self.ngrams.probability(NGrams.END, state))

    def _expand(self, state: State, source: str) -> list[tuple[float, State, str]]:
        """Return log-probability, next state and target of the chunks that can follow."""
        key = (state, source)
        found = self._memo.get(key)
        if found is None:
            numbers = self._by_source[source]
            values = self.ngrams.probabilities(numbers, state)
            scored = [
                (math.log(value), number) for value, number in zip(values, numbers, strict=True)
            ]
            found = [
                (log, self.ngrams.shorten((*state, number)), self._targets[number])
                for log, number in _near_best(heapq.nlargest(12, scored))
            ]
            if len(self._memo) > 1 << 18:  # bounded: a large KB has many words
                self._memo.clear()
            self._memo[key] = found
        return found


def _largest(
    number: int, scores: dict[tuple[State, str], float], known: Vocabulary | None
) -> list[tuple[tuple[State, str], float]]:
    """Return the best beams; ties are ordered by their text, so that equal fits search alike.

    known: if given, only beams that a known word begins with.
    """
    if known is None:
        best = heapq.nlargest(number, scores.items(), key=lambda item: (item[1], item[0][1]))
    else:
        best = []
        for item in sorted(scores.items(), key=lambda item: (item[1], item[0][1]), reverse=True):
            if len(best) == number:
                break
            if known.has_prefix(item[0][1]):
                best.append(item)
    behind = _BEHIND if known is None else _BEHIND_KNOWN
    return [item for item in best if item[1] > best[0][1] - behind]


def _log_add(a: float, b: float) -> float:
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def _near_best(scored: list[tuple[float, int]]) -> list[tuple[float, int]]:
    return [item for item in scored if item[0] > scored[0][0] - _BEHIND]


def _best(scores: dict[str, float], most: int) -> list[str]:
    return heapq.nlargest(most, scores, key=lambda text: (scores[text], text))


def _shares(
    scores: dict[str, float], most: int, known: Vocabulary | None
) -> list[tuple[str, float]]:
    """Return the share of the best spellings; known words are among them up to `most` twice."""
    if not scores:
        return []
    highest = max(scores.values())
    shares = {text: math.exp(score - highest) for text, score in scores.items()}
    total = sum(shares.values())
    chosen = _best(scores, most)
    if known:
        chosen += _best({text: scores[text] for text in scores if text in known}, most)
    return [
        (text, shares[text] / total)
        for text in sorted(set(chosen), key=lambda text: (-scores[text], text))
    ]
