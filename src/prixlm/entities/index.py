"""Find the nearest entities: vectors of a KB's names, and a FAISS index over them.

    store = build_vectors(kb, encoder)     # once: memory-mapped files in the KB's folder
    index = store.index()                  # once, beside them
    nearest = index.search(encoder.encode(["Tallinna"]), 5, owners=kb.entity_range("et"))

`NeighbourIndex` finds the entities whose names are nearest to a vector, by cosine: exactly in small
sets, by HNSW or IVF in large ones. An entity may have several names; the nearest of them counts.

Dimension letters: N names, Q queries, H width, k neighbours.
"""

import importlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.engine.jobs import EngineConfig, Shard, ShardJob, made_by, make_parts
from prixlm.engine.workspace import (
    STAMP,
    Workspace,
    drop_oldest_caches,
    is_cached,
    open_workspace,
    partial_folder,
    read_stamp,
)
from prixlm.entities.encoder import EntityEncoder
from prixlm.errors import PrixError
from prixlm.files import (
    disk_errors,
    first_alone,
    publish,
    read_json,
    refuse_link,
    replacing,
    write_atomically,
)
from prixlm.kb.store import KB, inner_folder
from prixlm.types import Array, Progress

faiss: Any = importlib.import_module("faiss")  # its stubs lack what is used here

KINDS = ("exact", "hnsw", "ivf")
_EXACT_UP_TO, _HNSW_UP_TO = 200_000, 5_000_000
"""Names up to which a search is exact, and up to which it uses a graph."""
_KEPT_STORES = 4
"""Vector stores that a KB keeps, one per encoder; the least recently used is removed first."""
_KEPT_SLICES = 8
"""Indexes of a part of the rows that an index keeps in memory, such as one per language."""
_CHUNK = 1 << 15
"""Names that are encoded between two writes: the most that a kill can lose."""
_THREADS = 1
"""Threads that build a graph."""
_BLOCK = 1 << 16
"""Vectors that are added to an index at once."""
_NAMES = "names.parquet"
_VECTORS, _OWNER, _INDEX, _INDEX_STAMP = "vectors.f32", "owner.i32", "index.faiss", "index.json"


# --- vectors --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VectorStore:
    """The vectors of all names of a KB, and whose names they are, ordered by entity."""

    vectors: Array  # (N, H) float32
    owner: Array  # (N,) int32, the entity of each name, ascending
    folder: Path
    _opened: "dict[str, NeighbourIndex]" = field(default_factory=dict, compare=False, repr=False)

    def index(self, kind: str = "auto") -> "NeighbourIndex":
        """Return an index over all vectors, read from the store's folder or built now, once."""
        kind = choose_kind(len(self.vectors)) if kind == "auto" else kind
        if kind not in self._opened:
            # An exact index would only be a copy of the vectors.
            folder = None if kind == "exact" else self.folder / kind
            build = partial(NeighbourIndex.build, self.vectors, self.owner, kind=kind)
            self._opened[kind] = _read_or_build(folder, build)
        return self._opened[kind]


def build_vectors(
    kb: KB,
    encoder: EntityEncoder,
    progress: Progress | None = None,
    engine: EngineConfig | None = None,
) -> VectorStore:
    """Return the vectors of all names and aliases of a KB, encoding them if needed.

    They lie in the KB's folder, one store per encoder. A build that was stopped is resumed by the
    same version and kind of engine; a finished store serves all.
    engine: where names are encoded; with workers, the disk holds the vectors twice for a while.
    """
    key = encoder.fingerprint()
    folder = inner_folder(kb, f"vectors/{key[:16]}")
    stamp = {"version": 1, "kb": kb.fingerprint(), "encoder": key, "width": encoder.width}
    if not is_cached(folder, stamp):
        if folder.exists() and read_stamp(folder) is None:
            raise PrixError(f"{folder} is not a vector store of prixlm: move it away.")
        working = stamp | {"made by": made_by(engine)}
        with open_workspace(partial_folder(folder), working, wait=True) as work:
            if is_cached(folder, stamp):  # another worker of this machine has built it meanwhile
                work.remove()
            else:
                if engine is None or engine == EngineConfig():
                    _append_vectors(kb, encoder, work.folder, progress)
                else:
                    _encode_parts(kb, encoder, work, engine, progress)
                write_atomically(work.folder / STAMP, json.dumps(stamp))
                publish(work.folder, folder)
        drop_oldest_caches(folder.parent, _KEPT_STORES)
    return _open_store(folder, encoder.width)


def _append_vectors(kb: KB, encoder: EntityEncoder, work: Path, progress: Progress | None) -> None:
    """Encode the names that are missing, chunk by chunk, and append them to the store's files."""
    row_bytes = encoder.width * 4
    total = kb.num_entities + kb.query("SELECT count(*) FROM aliases").fetchall()[0][0]
    with (work / _VECTORS).open("ab") as vectors, (work / _OWNER).open("ab") as owners:
        # A kill may leave half a chunk, or vectors without owners: only whole chunks count.
        done = min(vectors.tell() // row_bytes, owners.tell() // 4) // _CHUNK * _CHUNK
        vectors.truncate(done * row_bytes)
        owners.truncate(done * 4)
        for owner, names in kb.all_names(start=done, batch_rows=_CHUNK):
            langs = [kb.languages[i] for i in kb.language_of(owner)]
            vectors.write(encoder.encode(names, langs=langs).tobytes())
            owners.write(owner.astype(np.int32).tobytes())
            vectors.flush()
            owners.flush()
            done += len(names)
            if progress is not None:
                progress("encode", done, total)


def _encode_parts(
    kb: KB, encoder: EntityEncoder, work: Workspace, engine: EngineConfig, progress: Progress | None
) -> None:
    """Encode the names in workers, a part per chunk, and join the parts to the store's files."""
    names = work.make(_NAMES, partial(_write_names, kb))
    file = pq.ParquetFile(names)
    shards = [
        Shard(f"vectors-{chunk:06d}", chunk, file.metadata.row_group(chunk).num_rows)
        for chunk in range(file.metadata.num_row_groups)
    ]
    load = None
    if encoder.folder is not None:
        load = partial(_load_encoding, encoder.folder, kb, names.resolve())
    encoding = _Encoding(kb, encoder, names)
    job = ShardJob("encode", shards, load, encoding, encoding.inputs())
    parts = make_parts(job, work, engine, progress)
    with (work.folder / _VECTORS).open("wb") as vectors, (work.folder / _OWNER).open("wb") as owner:
        for chunk, part in enumerate(parts):
            with part.open("rb") as made:
                shutil.copyfileobj(made, vectors)
            column = file.read_row_group(chunk, columns=["entity"])["entity"]
            owner.write(column.to_numpy().astype(np.int32).tobytes())
    # Only now: until here, a kill leaves all parts in place.
    for path in (*parts, names):
        path.unlink()


@dataclass(frozen=True)
class _Encoding:
    """Encodes chunks of names: what a worker has loaded."""

    kb: KB
    encoder: EntityEncoder
    names: Path  # a row group for each chunk

    def inputs(self) -> dict[str, str]:
        """Return what tells KB and encoder from others."""
        return {"KB": self.kb.fingerprint(), "encoder": self.encoder.fingerprint()}

    def __call__(self, chunk: int, path: Path) -> None:
        """Write the vectors of a chunk: (n, H) float32, row after row."""
        rows = pq.ParquetFile(self.names).read_row_group(chunk)
        langs = [self.kb.languages[i] for i in self.kb.language_of(rows["entity"].to_numpy())]
        path.write_bytes(self.encoder.encode(rows["name"].to_pylist(), langs=langs).tobytes())


def _load_encoding(folder: Path, kb: KB, names: Path) -> _Encoding:
    return _Encoding(kb, EntityEncoder.load(folder), names)


def _write_names(kb: KB, path: Path) -> None:
    """Write all names in their order, with a row group per chunk: workers read any of them."""
    schema = pa.schema([("entity", pa.int64()), ("name", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for owner, names in kb.all_names(batch_rows=_CHUNK):
            columns = {"entity": owner.astype(np.int64), "name": names}
            writer.write_table(pa.table(columns, schema=schema), len(names))


def _open_store(folder: Path, width: int) -> VectorStore:
    if not (folder / _OWNER).stat().st_size:  # an empty file cannot be mapped
        return VectorStore(np.zeros((0, width), np.float32), np.zeros(0, np.int32), folder)
    vectors = np.memmap(folder / _VECTORS, np.float32, "r").reshape(-1, width)
    return VectorStore(vectors, np.memmap(folder / _OWNER, np.int32, "r"), folder)


# --- neighbours -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbours:
    """The nearest entities of each query, best first; -1 and -inf where there are fewer than k."""

    entity: Array  # (Q, k) int64
    score: Array  # (Q, k) float32, cosines


class NeighbourIndex:
    """A FAISS index over the vectors of names, and the entity of each."""

    def __init__(self, index: Any, owner: Array, kind: str) -> None:
        """owner: (N,) ascending, the entity of each vector of the index."""
        self.index, self.owner, self.kind = index, owner, kind
        self.folder: Path | None = None  # where it was saved
        self._slices: dict[tuple[int, int], NeighbourIndex] = {}  # by first and last row
        self.max_names = int(np.bincount(owner).max()) if len(owner) else 1  # of one entity

    @property
    def width(self) -> int:
        """Dimensions of a vector."""
        return int(self.index.d)

    @classmethod
    def build(
        cls, vectors: Array, owner: Array | None = None, *, kind: str = "auto"
    ) -> "NeighbourIndex":
        """Build an index over unit vectors.

        vectors: (N, H). owner: (N,) ascending; without it, vector i belongs to entity i.
        kind: exact, hnsw, ivf, or auto (by the number of vectors).
        """
        owner = np.arange(len(vectors)) if owner is None else np.asarray(owner)
        # Ascending owners make the names of a language one slice of rows.
        if len(owner) != len(vectors) or (np.diff(owner) < 0).any():
            raise PrixError("each vector needs an owner, and the owners must be ascending.")
        kind = choose_kind(len(vectors)) if kind == "auto" else kind
        if kind not in KINDS:
            raise PrixError(f"kind {kind}: expected auto, {', '.join(KINDS)}.")
        index = _make_index(kind, len(vectors), vectors.shape[1], lambda rows: vectors[rows])
        return cls(index, owner, kind)

    def save(self, folder: Path | str) -> None:
        """Write the index in FAISS's own format, the owners, and last a stamp."""
        folder = Path(folder)
        refuse_link(folder)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _INDEX_STAMP).unlink(missing_ok=True)
            with replacing(folder / _INDEX) as temporary:  # several workers may save it at once
                faiss.write_index(self.index, str(temporary))
            with replacing(folder / _OWNER) as temporary:
                np.asarray(self.owner, np.int32).tofile(temporary)
            stamp = {"kind": self.kind, "width": self.width, "names": int(self.index.ntotal)}
            stamp["threads"] = _THREADS
            write_atomically(folder / _INDEX_STAMP, json.dumps(stamp) + "\n")
        self.folder = folder

    @classmethod
    def load(cls, folder: Path | str) -> "NeighbourIndex":
        """Read an index that `save` wrote."""
        folder = Path(folder)
        try:
            stamp = read_json(folder / _INDEX_STAMP)
            kind, _, names = stamp["kind"], stamp["width"], stamp["names"]
            if kind == "hnsw" and stamp.get("threads") != _THREADS:
                raise ValueError("a graph that is not the same each time")
        except (OSError, ValueError, TypeError, KeyError):
            raise PrixError(f"{folder} is not a complete index: build it again.") from None
        try:
            index = faiss.read_index(str(folder / _INDEX))
            owner = np.fromfile(folder / _OWNER, np.int32)
        except (OSError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise PrixError(f"{folder} cannot be read ({reason}): build it again.") from None
        if not index.ntotal == len(owner) == names:
            raise PrixError(
                f"{folder} has {index.ntotal:,} vectors and {len(owner):,} owners, expected "
                f"{names:,} of each: build it again."
            )
        loaded = cls(index, owner, kind)
        loaded.folder = folder
        return loaded

    def search(self, queries: Array, k: int, owners: range | None = None) -> Neighbours:
        """Return the k nearest entities of each query, among all or a range of entities.

        queries: (Q, H) unit vectors.
        """
        if queries.ndim != 2 or queries.shape[1] != self.width:
            raise PrixError(
                f"the index has vectors of {self.width} dimensions, and the query has "
                f"{queries.shape[-1]}: use the encoder that the index was built with."
            )
        first, last = 0, len(self.owner)
        if owners is not None:  # owners are ascending, so a range of entities is a slice of rows
            first, last = np.searchsorted(self.owner, [owners.start, owners.stop]).tolist()
        if first == last or not len(queries):
            return Neighbours(np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf))
        rows = self if (first, last) == (0, len(self.owner)) else self._slice(first, last)
        vectors = np.ascontiguousarray(queries, np.float32)
        # Several of the nearest names may be of one entity. So ask for more than k names, and for
        # four times as many again until every query has k entities.
        enough = min(k * self.max_names, last - first)
        count = min(k if self.max_names == 1 else 4 * k, enough)
        while True:
            score, row = rows.index.search(vectors, count, params=rows._params(count))
            nearest = _best_of_each(np.where(row < 0, -1, rows.owner[row]), score, k)
            if count == enough or (nearest.entity >= 0).all():
                return nearest
            count = min(4 * count, enough)

    def _slice(self, first: int, last: int) -> "NeighbourIndex":
        """Return rows first:last as an index of its own.

        Languages lie apart in the space: a graph or the lists of all rows, followed from a query
        of one language, would meet few names of another.
        """
        if (first, last) not in self._slices:
            if len(self._slices) >= _KEPT_SLICES:
                self._slices.pop(next(iter(self._slices)))  # the oldest
            self._slices[first, last] = self._make_slice(first, last)
        return self._slices[first, last]

    def _make_slice(self, first: int, last: int) -> "NeighbourIndex":
        """Build an index of rows, or read it; one that takes long to build is saved."""
        kind = "exact" if self.kind == "exact" else choose_kind(last - first)
        # A slice of an index that was saved is saved below it; small ones are exact and quick.
        folder = None
        if self.folder is not None and kind != "exact":
            folder = self.folder / f"rows-{first}-{last}"

        def build() -> NeighbourIndex:
            read = self.index.reconstruct_batch
            index = _make_index(kind, last - first, self.width, lambda rows: read(rows + first))
            return NeighbourIndex(index, self.owner[first:last], kind)

        return _read_or_build(folder, build)

    def _params(self, count: int) -> Any:
        """Return how hard FAISS searches for `count` neighbours; None for an exact index."""
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=max(128, 2 * count))
        if self.kind == "ivf":
            return faiss.SearchParametersIVF(nprobe=max(1, self.index.nlist // 32))
        return None


def choose_kind(num_vectors: int) -> str:
    """Return the kind of index for a number of vectors.

    A graph (HNSW) is found faster than lists (IVF) and takes more memory.
    """
    if num_vectors <= _EXACT_UP_TO:
        return "exact"
    return "hnsw" if num_vectors <= _HNSW_UP_TO else "ivf"


def repeatable_kind(num_vectors: int) -> str:
    """Return the kind of index that is quickly built and the same each time.

    An HNSW graph is the same only if one thread builds it.
    """
    return "exact" if choose_kind(num_vectors) == "exact" else "ivf"


def mean_similarity(vectors: Array, others: Array, neighbours: int) -> Array:
    """Return the mean cosine of each vector to its nearest `others`: (N,) float32.

    It tells how crowded the space around a vector is; CSLS (Conneau et al., 2018) subtracts it.
    Exact up to as many others as an exact index has, by inverted lists above.
    """
    if not len(others):
        raise PrixError("CSLS needs vectors on both sides: one side is empty.")
    index = NeighbourIndex.build(others, kind=repeatable_kind(len(others)))
    means = np.empty(len(vectors), np.float32)
    count = min(neighbours, len(others))
    # In blocks, so that only one block at a time is copied to contiguous float32.
    for start in range(0, len(vectors), 1 << 14):
        score = index.search(vectors[start : start + (1 << 14)], count).score
        found = np.isfinite(score)  # the lists that are searched may hold fewer
        total = np.where(found, score, 0).sum(axis=1)
        means[start : start + len(score)] = total / np.maximum(1, found.sum(axis=1))
    return means


def _read_or_build(folder: Path | None, build: Callable[[], NeighbourIndex]) -> NeighbourIndex:
    """Return the index of a folder; build and save it if there is none. None: in memory only.

    Of several workers of a machine, one builds it and the others wait.
    """
    if folder is None:
        return build()
    lock = folder.with_name(f"building-{folder.name}.lock")
    # The disk may be read-only.
    with first_alone(lock) if os.access(folder.parent, os.W_OK) else nullcontext():
        if (folder / _INDEX_STAMP).exists():
            with suppress(PrixError):  # one that cannot be read is built again
                return NeighbourIndex.load(folder)
        index = build()
        with suppress(PrixError, OSError, RuntimeError):
            index.save(folder)
        return index


def _make_index(kind: str, count: int, width: int, read: Callable[[Array], Array]) -> Any:
    """Build a FAISS index of inner products over `count` vectors.

    read: returns the vectors of some rows, (n,) to (n, H); not all of them fit into memory twice.
    """
    if kind == "hnsw":
        return _make_graph(count, width, read)
    if kind == "exact":
        index = faiss.IndexFlatIP(width)
    else:
        # FAISS advises 4 sqrt(N) lists, and at least 39 training vectors for each.
        num_lists = max(1, min(int(4 * count**0.5), count // 40))
        centres = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFFlat(centres, width, num_lists, faiss.METRIC_INNER_PRODUCT)
        sample = np.random.default_rng(0).permutation(count)[: 64 * num_lists]
        index.train(np.ascontiguousarray(read(np.sort(sample)), np.float32))
    for start in range(0, count, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, count))
        index.add(np.ascontiguousarray(read(rows), np.float32))
    if kind == "ivf":
        index.make_direct_map()  # so that a slice of the rows can be read back
    return index


def _make_graph(count: int, width: int, read: Callable[[Array], Array]) -> Any:
    """Build an HNSW graph, with the rows added in random order.

    Added one language after another, the first rows would be linked only among themselves, and
    later ones are found less often (docs/log.md). By one thread: several would build a slightly
    different graph each time, so that each machine would link a few mentions differently.
    """
    graph = faiss.IndexHNSWFlat(width, 32, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = 80
    index = faiss.IndexIDMap2(graph)
    order = np.random.default_rng(0).permutation(count)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(_THREADS)
    try:
        for start in range(0, count, _BLOCK):
            rows = np.sort(order[start : start + _BLOCK])
            index.add_with_ids(np.ascontiguousarray(read(rows), np.float32), rows)
    finally:
        faiss.omp_set_num_threads(threads)
    return index


def _best_of_each(entity: Array, score: Array, k: int) -> Neighbours:
    """Keep the best name of each entity, and the best k entities.

    entity, score: (Q, m) names, best first; entity -1 where there is none.
    """
    # Sort each row by entity, equal ones by position: all but the first of a group are repeats.
    position = np.broadcast_to(np.arange(entity.shape[1]), entity.shape)
    order = np.lexsort((position, entity), axis=1)
    by_entity = np.take_along_axis(entity, order, axis=1)
    is_dropped = np.zeros(entity.shape, bool)
    np.put_along_axis(is_dropped, order[:, 1:], by_entity[:, 1:] == by_entity[:, :-1], axis=1)
    is_dropped |= entity < 0
    # A stable sort moves what is dropped behind what stays, and keeps the order of the rest.
    kept = np.argsort(is_dropped, axis=1, kind="stable")[:, :k]
    missing = np.take_along_axis(is_dropped, kept, axis=1)
    entities = np.where(missing, -1, np.take_along_axis(entity, kept, axis=1))
    scores = np.where(missing, -np.inf, np.take_along_axis(score, kept, axis=1))
    padding = ((0, 0), (0, max(0, k - entities.shape[1])))
    return Neighbours(
        np.pad(entities, padding, constant_values=-1),
        np.pad(scores, padding, constant_values=-np.inf),
    )
