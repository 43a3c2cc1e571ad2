"""Names as sparse vectors of n-grams, and the names that share most with a text.

    index = GramIndex(names)                 # TF-IDF of hashed n-grams, by numpy
    found = index.search(mentions, 20)       # Pairs: mention, name, cosine

An n-gram is hashed to a column, so there is no vocabulary to build, to store or to agree on. All
texts are hashed at once as one array of code points. A text is asked with its rarest n-grams only:
"(film)" is in ten thousand names and costs ten thousand sums, yet tells little.

Dimension letters: N names, Q mentions, D columns, P pairs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from prixlm.arrays import group_starts, pair_keys, ragged_ranges, split_keys
from prixlm.threads import usable_cores
from prixlm.types import Array

BITS = 21
"""Columns are numbered with so many bits. Two n-grams rarely share a column."""
_BASE = np.uint64(0x9E3779B97F4A7C15 | 1)  # odd, so that it can be divided by modulo 2**64
_MAX_LETTERS = 200
"""Letters of a name that count. Longer ones are sentences, or made to cost time."""
_BLOCK_TEXTS = 1 << 16
_BLOCK_QUERIES = 1 << 13
_RAREST, _RAREST_OF_MANY = 16, 8
"""N-grams of a mention that are looked up, among few names and among many."""
_MANY = 200_000


@dataclass(frozen=True)
class Pairs:
    """Pairs of a mention and a name (or entity), sorted by mention and then by name: (P,) each."""

    left: Array
    right: Array
    score: Array

    def __len__(self) -> int:
        return len(self.left)


def count_grams(
    texts: Sequence[str], sizes: tuple[int, ...] = (2, 3), words: bool = False
) -> sp.csr_matrix:
    """Return how often each text has each n-gram: (N, D) float32.

    A text has a space before and after it, so its first and last letters have n-grams of their own.
    words: count whole words too.
    """
    starts = range(0, max(1, len(texts)), _BLOCK_TEXTS)  # one block at least, if an empty one
    parts = [_count_block(texts[at : at + _BLOCK_TEXTS], sizes, words) for at in starts]
    return sp.csr_matrix(sp.vstack(parts, format="csr"))


def _count_block(texts: Sequence[str], sizes: tuple[int, ...], words: bool) -> sp.csr_matrix:
    padded = [f" {text[:_MAX_LETTERS]} " for text in texts]
    lengths = np.fromiter(map(len, padded), np.int64, len(padded))
    # Half a surrogate pair is no character, but names of dumps have been seen with one.
    codes = np.frombuffer("".join(padded).encode("utf-32-le", "surrogatepass"), np.uint32)
    owner = np.repeat(np.arange(len(padded)), lengths)  # (letters,) the text of each letter
    keys = [_gram_keys(codes, owner, size) for size in sizes]
    if words:
        keys.append(_word_keys(codes, owner))
    row, column = split_keys(np.concatenate(keys))
    # Duplicates are summed by the conversion, so a cell holds a count.
    cells = (np.ones(len(row), np.float32), (row, column))
    matrix = sp.coo_matrix(cells, shape=(len(padded), 1 << BITS)).tocsr()
    matrix.sort_indices()
    return matrix


def _gram_keys(codes: Array, owner: Array, size: int) -> Array:
    """Return one key of text and column for each n-gram that lies within a text."""
    num = max(0, len(codes) - size + 1)
    hashed = np.full(num, size, np.uint64)
    for place in range(size):
        hashed = (hashed + codes[place : place + num]) * _BASE
    inside = owner[:num] == owner[size - 1 : size - 1 + num]
    return pair_keys(owner[:num][inside], _column(hashed[inside]))


def _word_keys(codes: Array, owner: Array) -> Array:
    """Return one key of text and column for each word between spaces."""
    is_space = codes == 32
    # Texts begin and end with a space, so a word lies between a space and the next.
    starts = np.flatnonzero(is_space[:-1] & ~is_space[1:]) + 1
    ends = np.flatnonzero(~is_space[:-1] & is_space[1:]) + 1
    # Rolling hash: the sums of letters times powers, divided by the power of the first letter.
    powers = np.cumprod(np.full(len(codes) + 1, _BASE, np.uint64), dtype=np.uint64)
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(codes.astype(np.uint64) * powers[:-1], out=sums[1:], dtype=np.uint64)
    inverse = np.uint64(pow(int(_BASE), -1, 1 << 64))
    unpowers = np.cumprod(np.full(len(codes) + 1, inverse, np.uint64), dtype=np.uint64)
    hashed = (sums[ends] - sums[starts]) * unpowers[starts]
    return pair_keys(owner[starts], _column((hashed + np.uint64(77)) * _BASE))


def _column(hashed: Array) -> Array:
    """Return the column of each hash: its high bits, which depend on all letters."""
    return np.asarray(hashed >> np.uint64(64 - BITS), np.int64)


def rarity(counts: sp.csr_matrix) -> Array:
    """Return the inverse document frequency of each column, (D,) float32."""
    have = np.bincount(counts.indices, minlength=counts.shape[1])
    return np.log((1 + counts.shape[0]) / (1 + have)).astype(np.float32) + np.float32(1)


def weigh(counts: sp.csr_matrix, idf: Array) -> sp.csr_matrix:
    """Return TF-IDF vectors of unit length: (N, D). A repeated n-gram counts by its logarithm."""
    values = (1 + np.log(counts.data)) * idf[counts.indices]
    return unit_rows(sp.csr_matrix((values, counts.indices, counts.indptr), counts.shape))


def unit_rows(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows at length 1; empty rows stay empty."""
    squares = np.bincount(row_numbers(matrix), matrix.data.astype(float) ** 2, matrix.shape[0])
    length = np.sqrt(np.where(squares > 0, squares, 1.0)).astype(np.float32)
    values = matrix.data / np.repeat(length, np.diff(matrix.indptr))
    return sp.csr_matrix((values, matrix.indices, matrix.indptr), matrix.shape)


def row_numbers(matrix: sp.csr_matrix) -> Array:
    """Return the row of each stored cell."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def keep_rarest(matrix: sp.csr_matrix, idf: Array, most: int) -> sp.csr_matrix:
    """Return the rows with their `most` rarest columns, the others emptied."""
    row = row_numbers(matrix)
    order = np.lexsort((matrix.indices, -idf[matrix.indices], row))
    # The position of a cell within its row, in order of rarity.
    place = np.arange(len(row)) - np.repeat(matrix.indptr[:-1], np.diff(matrix.indptr))
    kept = np.sort(order[place < most])
    cells = (matrix.data[kept], (row[kept], matrix.indices[kept]))
    return sp.csr_matrix(cells, matrix.shape)


def nearest(queries: sp.csr_matrix, names: Any, k: int) -> Pairs:
    """Return the k rows of `names` with the highest dot product with each query, if above 0.

    names: (D, N), the transposed matrix in CSR form.
    """
    from sparse_dot_topn import sp_matmul_topn

    none = np.zeros(0, np.int64)
    found = [(none, none, np.zeros(0, np.float32))]
    num_queries = queries.shape[0] if names.shape[1] else 0  # without names, nothing is found
    for start in range(0, num_queries, _BLOCK_QUERIES):
        block = queries[start : start + _BLOCK_QUERIES]
        top = sp_matmul_topn(
            block, names, top_n=k, threshold=0.0, sort=False, n_threads=usable_cores()
        )
        found.append((row_numbers(top) + start, top.indices.astype(np.int64), top.data))
    left, right, score = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((right, left))
    return Pairs(left[order], right[order], score[order])


def nearest_among(
    queries: sp.csr_matrix, names: sp.csr_matrix, k: int, among: Array | None
) -> Pairs:
    """Return the k of some rows of `names` that are nearest to each query: see `nearest`.

    names: (N, D). among: ascending rows; None: all.
    """
    if among is None:
        return nearest(queries, names.T.tocsr(), k)
    return renumber(nearest(queries, names[among].T.tocsr(), k), among)


def renumber(found: Pairs, among: Array) -> Pairs:
    """Return what was found among some rows with the numbers of all rows."""
    return Pairs(found.left, among[found.right], found.score)


@dataclass(frozen=True)
class Distinct:
    """Equal queries, which are searched once: ten thousand things of one name cost one search."""

    first: Array  # (X,) a row with each distinct value
    number: Array  # (Q,) the distinct value of each row

    @classmethod
    def of(cls, values: Sequence[str]) -> "Distinct":
        """Number the distinct values, in the order in which they occur."""
        seen: dict[str, int] = {}
        number = [seen.setdefault(value, len(seen)) for value in values]
        _, first = np.unique(number, return_index=True)
        return cls(first.astype(np.int64), np.array(number, np.int64))

    def select(self, rows: Array) -> "Distinct":
        """Return the same for some rows, which `first` then numbers among all."""
        _, first, number = np.unique(self.number[rows], return_index=True, return_inverse=True)
        return Distinct(rows[first], number)

    def expand(self, found: Pairs) -> Pairs:
        """Give every row what was found for its value. found.left: the distinct values."""
        starts = np.searchsorted(found.left, np.arange(len(self.first) + 1))
        at, row = ragged_ranges(starts[self.number], starts[self.number + 1])
        return Pairs(row, found.right[at], found.score[at])


class GramIndex:
    """The TF-IDF vectors of names, for a search by n-grams."""

    def __init__(self, names: Sequence[str], sizes: tuple[int, ...] = (2, 3)) -> None:
        self.sizes = sizes
        counts = count_grams(names, sizes)
        self.idf = rarity(counts)
        self.vectors = weigh(counts, self.idf)  # (N, D)
        # (D, M) the transposed vectors of the names that were searched last, and their rows.
        self._columns: tuple[Array | None, sp.csr_matrix] | None = None

    def encode(self, texts: Sequence[str]) -> sp.csr_matrix:
        """Return the vectors of other texts, weighed by how rare n-grams are among the names."""
        return weigh(count_grams(texts, self.sizes), self.idf)

    def search(
        self,
        vectors: sp.csr_matrix,
        k: int,
        rarest: int | None = None,
        among: Array | None = None,
    ) -> Pairs:
        """Return the k names of most similar n-grams; the score is of the rarest ones only.

        among: ascending rows of the names that are searched; None: all.
        """
        columns = self._columns_of(among)
        if rarest is None:
            rarest = _RAREST if columns.shape[1] <= _MANY else _RAREST_OF_MANY
        found = nearest(keep_rarest(vectors, self.idf, rarest), columns, k)
        return found if among is None else renumber(found, among)

    def _columns_of(self, among: Array | None) -> sp.csr_matrix:
        """Return the transposed vectors of some names. Those of the last call are kept.

        Blocks of mentions ask the same names one after another.
        """
        if self._columns is not None:
            last, columns = self._columns
            if last is among or (
                last is not None and among is not None and np.array_equal(last, among)
            ):
                return columns
        vectors = self.vectors if among is None else self.vectors[among]
        self._columns = among, vectors.T.tocsr()
        return self._columns[1]


def pair_dots(a: sp.csr_matrix, b: sp.csr_matrix, left: Array, right: Array) -> Array:
    """Return the dot product of row left[i] of `a` and row right[i] of `b`: (P,) float32."""
    parts = [np.zeros(0, np.float32)]
    for rows in blocks(len(left), 1 << 17):
        product = a[left[rows]].multiply(b[right[rows]])
        parts.append(np.asarray(product.sum(axis=1), np.float32).ravel())
    return np.concatenate(parts)


def dense_dots(a: Array, b: Array, left: Array, right: Array) -> Array:
    """Return the same for dense rows: (P,) float32."""
    parts = [np.zeros(0, np.float32)]
    for rows in blocks(len(left), 1 << 15):
        parts.append(np.einsum("pd,pd->p", a[left[rows]], b[right[rows]], dtype=np.float32))
    return np.concatenate(parts)


def blocks(number: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` rows."""
    for start in range(0, number, size):
        yield slice(start, min(start + size, number))


def unite(found: Sequence[Pairs]) -> tuple[Array, Array]:
    """Return the distinct pairs of several searches, sorted by mention, then name: (P,) each."""
    keys = np.concatenate([pair_keys(pairs.left, pairs.right) for pairs in found])
    keys = np.sort(keys)
    left, right = split_keys(keys[group_starts(keys)])
    return left, right
