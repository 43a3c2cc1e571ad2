"""The nearest entities: vectors of a KB's names, and a FAISS index over them.

    store = build_vectors(kb, encoder)     # once: a memory-mapped table in the KB's folder
    index = store.index()                  # once, beside it
    found = index.search(encoder.encode(["Tallinna"]), 5, owners=kb.entity_range("et"))

`NeighbourIndex` finds the entities whose names are nearest to a vector, by cosine: exactly for
small sets, by HNSW or IVF for large ones. An entity may have several names; it counts with the
nearest of them. For CSLS, which takes from a similarity how crowded both neighbourhoods are
(Conneau et al., 2018), `csls` gives an index whose vectors have one more dimension: what a target
loses is a constant of the target, so that the search stays an inner product.

Dimension letters: N names, Q queries, H width, k neighbours.
"""

import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.entities.encoder import EntityEncoder
from prixlm.errors import PrixError
from prixlm.files import disk_errors, locked, write_atomically
from prixlm.kb.store import KB
from prixlm.types import Array, Progress

KINDS = ("exact", "hnsw", "ivf")
EXACT_TO, HNSW_TO = 200_000, 5_000_000
"""Names up to which a search is exact, and up to which a graph is built (it is larger)."""
MOST_STORES = 4
"""Sets of vectors that a KB keeps, one for each encoder."""
faiss: Any = importlib.import_module("faiss")  # its stubs lack what is used here
_CHUNK = 1 << 15
_MOST_PARTS = 8
"""Languages whose rows are kept as an index of their own."""
_INDEX, _OWNER, _STAMP = "index.faiss", "owner.i32", "index.json"


@dataclass(frozen=True)
class VectorStore:
    """The vectors of names, and the entity of each: rows in the order of the entities."""

    vectors: Array  # (N, H) float32
    owner: Array  # (N,) int32, ascending
    folder: Path

    def index(self, kind: str = "auto") -> "NeighbourIndex":
        """The index over all of them: the one that is there, or a new one."""
        kind = choose_kind(len(self.vectors)) if kind == "auto" else kind
        folder = self.folder / kind
        if kind != "exact" and (folder / _STAMP).exists():
            with suppress(PrixError):
                return NeighbourIndex.load(folder)
        made = NeighbourIndex.build(self.vectors, self.owner, kind=kind)
        if kind != "exact":  # that one is only the vectors again
            # A KB may lie on a disk that cannot be written.
            with suppress(PrixError, OSError, RuntimeError):
                made.save(folder)
        return made


def build_vectors(
    kb: KB, encoder: EntityEncoder, to: Path | None = None, progress: Progress | None = None
) -> VectorStore:
    """The vectors of all names and aliases of a KB: those that are there, or new ones.

    They lie in the KB's folder, one set for each encoder. A build that was stopped goes on.
    """
    key = encoder.fingerprint()
    folder = to or kb.folder / "vectors" / key[:16]
    stamp = {"version": 1, "kb": kb.fingerprint(), "encoder": key, "width": encoder.width}
    found = _read_json(folder / "stamp.json")
    if found == stamp:
        with suppress(OSError):
            (folder / "stamp.json").touch()
        return _open_store(folder, encoder.width)
    if folder.exists() and found is None:
        raise PrixError(f"{folder} is there and has no vectors of ours: name another folder.")
    work = folder.with_name(folder.name + ".partial")
    with disk_errors(folder):
        work.parent.mkdir(parents=True, exist_ok=True)
        with locked(work):
            if _read_json(work / "stamp.json") != stamp:
                for leftover in ("vectors.f32", "owner.i32"):
                    (work / leftover).unlink(missing_ok=True)
                write_atomically(work / "stamp.json", json.dumps(stamp))
            _append_vectors(kb, encoder, work, progress)
            shutil.rmtree(folder, ignore_errors=True)
            work.rename(folder)
    if to is None:
        _drop_old(folder.parent)
    return _open_store(folder, encoder.width)


def _drop_old(folder: Path) -> None:
    """Keep the vectors that were used last: those of a large KB are large."""
    stamps = sorted(folder.glob("*/stamp.json"), key=lambda path: path.stat().st_mtime)
    for stamp in [one for one in stamps if not one.parent.name.endswith(".partial")][:-MOST_STORES]:
        shutil.rmtree(stamp.parent, ignore_errors=True)


def _append_vectors(kb: KB, encoder: EntityEncoder, work: Path, progress: Progress | None) -> None:
    """Encode what is missing, chunk by chunk; only whole chunks count after a kill."""
    row = encoder.width * 4
    total = kb.num_entities + kb.query("SELECT count(*) FROM aliases").fetchall()[0][0]
    with (work / "vectors.f32").open("ab") as vectors, (work / "owner.i32").open("ab") as owners:
        done = min(vectors.tell() // row, owners.tell() // 4) // _CHUNK * _CHUNK
        vectors.truncate(done * row)
        owners.truncate(done * 4)
        for owner, names in _names(kb, done):
            vectors.write(encoder.encode(names).tobytes())
            owners.write(owner.astype(np.int32).tobytes())
            vectors.flush()
            owners.flush()
            done += len(names)
            if progress is not None:
                progress("encode", done, total)


def _names(kb: KB, start: int) -> Iterator[tuple[Array, list[str]]]:
    """Names and aliases, in the order of their entities, from row `start` on."""
    query = (
        "SELECT id, name FROM (SELECT id, name, 0 AS how FROM entities "
        "UNION ALL SELECT entity, name, 1 FROM aliases) ORDER BY id, how, name "
        f"OFFSET {start}"
    )
    for batch in kb.stream(query, _CHUNK):
        yield np.asarray(batch.column(0)), batch.column(1).to_pylist()


def _open_store(folder: Path, width: int) -> VectorStore:
    if not (folder / "owner.i32").stat().st_size:
        return VectorStore(np.zeros((0, width), np.float32), np.zeros(0, np.int32), folder)
    vectors = np.memmap(folder / "vectors.f32", np.float32, "r").reshape(-1, width)
    return VectorStore(vectors, np.memmap(folder / "owner.i32", np.int32, "r"), folder)


@dataclass(frozen=True)
class Found:
    """The nearest entities of each query, best first; where there are fewer than k: -1, -inf."""

    entity: Array  # (Q, k) int64
    score: Array  # (Q, k) float32


class NeighbourIndex:
    """Vectors to search in; `owner` says whose they are, in ascending order."""

    def __init__(
        self, index: Any, owner: Array, kind: str, *, width: int, csls: int | None = None
    ) -> None:
        self.index, self.owner, self.kind, self.width = index, owner, kind, width
        self.csls = csls  # neighbours that CSLS looks at; then vectors have a further dimension
        self.folder: Path | None = None  # where it lies, if it was saved
        self._parts: dict[tuple[int, int], NeighbourIndex] = {}
        self.most_names = int(np.bincount(owner).max()) if len(owner) else 1

    @classmethod
    def build(
        cls,
        vectors: Array,
        owner: Array | None = None,
        *,
        kind: str = "auto",
        csls: Array | None = None,
        neighbours: int = 10,
    ) -> "NeighbourIndex":
        """An index over unit vectors.

        kind: exact, hnsw, ivf, or auto: by their number. csls: the vectors that will be asked for;
        then scores are CSLS with so many `neighbours` on either side.
        """
        owner = np.arange(len(vectors)) if owner is None else np.asarray(owner)
        if len(owner) != len(vectors) or (np.diff(owner) < 0).any():
            raise PrixError("every vector needs an owner, and owners are in ascending order.")
        kind = choose_kind(len(vectors)) if kind == "auto" else kind
        if kind not in KINDS:
            raise PrixError(f"kind {kind}: expected auto, {', '.join(KINDS)}.")
        width = vectors.shape[1]
        if csls is not None:
            crowding = mean_similarity(vectors, csls, neighbours)
            vectors = np.concatenate([vectors, crowding[:, None]], axis=1)
        index = _make_index(kind, len(vectors), vectors.shape[1], lambda rows: vectors[rows])
        return cls(index, owner, kind, width=width, csls=None if csls is None else neighbours)

    def save(self, folder: Path | str) -> None:
        """FAISS's own format, the owners, and a stamp that comes last."""
        if self.csls is not None:
            raise PrixError("a CSLS index belongs to its queries: save the plain one.")
        folder = Path(folder)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _STAMP).unlink(missing_ok=True)
            faiss.write_index(self.index, str(folder / _INDEX))
            np.asarray(self.owner, np.int32).tofile(folder / _OWNER)
            stamp = {"kind": self.kind, "width": self.width, "names": int(self.index.ntotal)}
            write_atomically(folder / _STAMP, json.dumps(stamp) + "\n")
        self.folder = folder

    @classmethod
    def load(cls, folder: Path | str) -> "NeighbourIndex":
        folder = Path(folder)
        stamp = _read_json(folder / _STAMP)
        if not isinstance(stamp, dict) or not {"kind", "width", "names"} <= set(stamp):
            raise PrixError(f"{folder} is no index of ours, or half of one: build it again.")
        try:
            index = faiss.read_index(str(folder / _INDEX))
            owner = np.fromfile(folder / _OWNER, np.int32)
        except (OSError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise PrixError(f"{folder} cannot be read ({reason}): build it again.") from None
        if index.ntotal != len(owner) or index.ntotal != stamp["names"]:
            raise PrixError(f"{folder}: index and owners differ in length: build it again.")
        made = cls(index, owner, stamp["kind"], width=stamp["width"])
        made.folder = folder
        return made

    def search(self, queries: Array, k: int, owners: range | None = None) -> Found:
        """The k nearest entities of each unit vector, among all or a range of entities."""
        if queries.ndim != 2 or queries.shape[1] != self.width:
            raise PrixError(
                f"the index has vectors of {self.width} numbers, and was asked with "
                f"{queries.shape[-1]}: use the encoder that it was built with."
            )
        first, last = 0, len(self.owner)
        if owners is not None:
            first, last = np.searchsorted(self.owner, [owners.start, owners.stop]).tolist()
        if first == last or not len(queries):
            return Found(np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf))
        asked, lost = self._asked(queries)
        index = self._of(first, last)
        # An entity may fill several places with its names: then more are asked for.
        enough = min(k * self.most_names, last - first)
        most = min(k if self.most_names == 1 else 4 * k, enough)
        while True:
            score, row = index(asked, most)
            found = _best_of_each(np.where(row < 0, -1, self.owner[row]), score - lost, k)
            if most == enough or (found.entity >= 0).all():
                return found
            most = min(4 * most, enough)

    def _asked(self, queries: Array) -> tuple[Array, Array]:
        """The queries as they are searched with, and what each loses of its scores: (Q, 1)."""
        asked = np.ascontiguousarray(queries, np.float32)
        if self.csls is None:
            return asked, np.zeros((len(asked), 1), np.float32)
        column = np.ones((len(asked), 1), np.float32)
        plain = np.concatenate([asked, 0 * column], axis=1)  # the cosine alone
        near = self._of(0, len(self.owner))(plain, min(self.csls, len(self.owner)))[0]
        return np.concatenate([2 * asked, -column], axis=1), near.mean(axis=1, keepdims=True)

    def _of(self, first: int, last: int) -> Any:
        """A search among some rows: scores and rows."""
        part = self if (first, last) == (0, len(self.owner)) else self._part(first, last)

        def search(asked: Array, most: int) -> tuple[Array, Array]:
            score, row = part.index.search(asked, most, params=part._params(most))
            return score, np.where(row < 0, -1, row + first)

        return search

    def _part(self, first: int, last: int) -> "NeighbourIndex":
        """Some rows as an index of their own: the way through all of them meets few of these."""
        if (first, last) not in self._parts:
            if len(self._parts) >= _MOST_PARTS:
                self._parts.pop(next(iter(self._parts)))
            self._parts[first, last] = self._make_part(first, last)
        return self._parts[first, last]

    def _make_part(self, first: int, last: int) -> "NeighbourIndex":
        """Built now, or read; one that took long is kept beside the whole."""
        kind = "exact" if self.kind == "exact" else choose_kind(last - first)
        is_kept = self.folder is not None and kind != "exact"
        folder = self.folder / f"rows-{first}-{last}" if self.folder and is_kept else None
        if folder is not None and (folder / _STAMP).exists():
            with suppress(PrixError):
                return NeighbourIndex.load(folder)
        read = self.index.reconstruct_batch
        index = _make_index(kind, last - first, self.index.d, lambda rows: read(rows + first))
        part = NeighbourIndex(index, self.owner[first:last], kind, width=self.width, csls=self.csls)
        if folder is not None:  # it may lie on a disk that cannot be written
            with suppress(PrixError, OSError, RuntimeError):
                part.save(folder)
        return part

    def _params(self, most: int) -> Any:
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=max(128, 2 * most))
        if self.kind == "ivf":
            return faiss.SearchParametersIVF(nprobe=max(1, self.index.nlist // 32))
        return None


def choose_kind(number: int) -> str:
    """Exact for small sets, a graph for large ones, lists for the largest: a graph is larger."""
    if number <= EXACT_TO:
        return "exact"
    return "hnsw" if number <= HNSW_TO else "ivf"


def mean_similarity(vectors: Array, others: Array, neighbours: int) -> Array:
    """How crowded it is around each vector: its mean cosine to its nearest `others`, (N,)."""
    if not len(others):
        raise PrixError("CSLS needs vectors on both sides: one side is empty.")
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(others, np.float32))
    found = np.empty(len(vectors), np.float32)
    most = min(neighbours, len(others))
    for start in range(0, len(vectors), 1 << 14):
        part = np.ascontiguousarray(vectors[start : start + (1 << 14)], np.float32)
        found[start : start + len(part)] = index.search(part, most)[0].mean(axis=1)
    return found


def _make_index(kind: str, number: int, width: int, read: Callable[[Array], Array]) -> Any:
    """An index of FAISS's over `number` vectors, which are read some rows at a time."""
    if kind == "exact":
        index = faiss.IndexFlatIP(width)
    elif kind == "hnsw":
        return _make_graph(number, width, read)
    else:
        lists = max(1, min(int(4 * number**0.5), number // 40))
        centres = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFFlat(centres, width, lists, faiss.METRIC_INNER_PRODUCT)
        rows = np.random.default_rng(0).permutation(number)[: 64 * lists]
        index.train(np.ascontiguousarray(read(np.sort(rows)), np.float32))
    for start in range(0, number, 1 << 16):
        rows = np.arange(start, min(start + (1 << 16), number))
        index.add(np.ascontiguousarray(read(rows), np.float32))
    if kind == "ivf":
        index.make_direct_map()  # so that the rows of a language can be read again
    return index


def _make_graph(number: int, width: int, read: Callable[[Array], Array]) -> Any:
    """HNSW, its rows added in random order.

    One language after another, the first would be linked among themselves, and what lies elsewhere
    is found less often (docs/log.md).
    """
    graph = faiss.IndexHNSWFlat(width, 32, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = 80
    index = faiss.IndexIDMap2(graph)
    order = np.random.default_rng(0).permutation(number)
    for start in range(0, number, 1 << 16):
        rows = np.sort(order[start : start + (1 << 16)])
        index.add_with_ids(np.ascontiguousarray(read(rows), np.float32), rows)
    return index


def _best_of_each(entity: Array, score: Array, k: int) -> Found:
    """Only the best name of each entity: (Q, m), best first, to (Q, k)."""
    order = np.lexsort((np.arange(entity.shape[1])[None] + 0 * entity, entity), axis=1)
    placed = np.take_along_axis(entity, order, axis=1)
    again = np.zeros(entity.shape, bool)
    np.put_along_axis(again, order[:, 1:], placed[:, 1:] == placed[:, :-1], axis=1)
    again |= entity < 0
    keep = np.argsort(again, axis=1, kind="stable")[:, :k]
    dropped = np.take_along_axis(again, keep, axis=1)
    best = np.where(dropped, -1, np.take_along_axis(entity, keep, axis=1))
    scores = np.where(dropped, -np.inf, np.take_along_axis(score, keep, axis=1))
    short = max(0, k - best.shape[1])
    best = np.pad(best, ((0, 0), (0, short)), constant_values=-1)
    return Found(best, np.pad(scores, ((0, 0), (0, short)), constant_values=-np.inf))


def _read_json(path: Path) -> Any:
    with suppress(OSError, ValueError):
        return json.loads(path.read_text("utf-8"))
    return None
