"""Benchmark folders with numbered entities, in the shape of DBP-5L; their split is kept.

    entity/LL.tsv                one IRI or name per line; the line number, from 0, is the id
    relations.txt                the same for relations
    kg/LL-{train,val,test}.tsv   subject, relation and object ids
    seed_alignlinks/AA-BB.tsv    pairs of ids, also written as floats

Each line is an entity: if an IRI is on several lines of a file, the later ones get the key
`IRI#line`. Entity and relation lists are held in memory; they are small in all such benchmarks.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prixlm.errors import PrixError
from prixlm.importers.dbpedia import names_from_iris
from prixlm.importers.format import (
    LABEL,
    Chunk,
    Format,
    Limits,
    Parsed,
    Parser,
    Source,
    clean_names,
)
from prixlm.importers.streams import line_chunks
from prixlm.importers.tables import SPLITS, reject_lines, split_columns
from prixlm.languages import normalise
from prixlm.types import Array


@functools.cache
def _read_list(path: Path, limits: Limits, _stamp: tuple[int, int]) -> tuple[pa.Array, pa.Array]:
    """Return the lines of an entity or relation list as unique keys and as written.

    Keys of empty lines, and lines that are not UTF-8, are null; a line beyond the limit is empty,
    and a name beyond it is cut to one that is rejected. _stamp: size and time of the file, so that
    a file that has changed is read again.
    """
    # DBP-5L lists some IRIs several times, under different ids.
    seen: set[str] = set()
    keys: list[pa.Array] = []
    shown: list[pa.Array] = []
    number = 0
    for chunk in line_chunks(Source(path, path.name, limits=limits), 0):
        assert isinstance(chunk.data, bytes)
        data = b"" if chunk.broken else chunk.data.replace(b"\r\n", b"\n").removesuffix(b"\n")
        # As they are in chunks, one after the other: lists of strings take many times their size.
        texts = [
            text[: limits.name + 1] for text in data.decode("utf-8", "surrogateescape").split("\n")
        ]
        chunk_keys: list[str | None] = []
        for line, text in enumerate(texts, number):
            key = text if "://" in text else f"{path.stem}:{text}"  # identifies within its list
            key = f"{key}#{line}" if text in seen else key
            seen.add(text)
            chunk_keys.append(key if text.strip() and _is_text(text) else None)
        keys.append(pa.array(chunk_keys, pa.string()))
        shown.append(pa.array([text if _is_text(text) else None for text in texts], pa.string()))
        number += len(texts)
    nothing = [pa.nulls(1, pa.string())]  # of an empty file: one empty line
    return pa.concat_arrays(keys or nothing), pa.concat_arrays(shown or nothing)


def _read(path: Path, limits: Limits) -> tuple[pa.Array, pa.Array]:
    """Return `_read_list` of the file as it is now, read once."""
    status = path.stat()
    return _read_list(path, limits, (status.st_size, status.st_mtime_ns))


def _is_text(text: str) -> bool:
    """Tell whether a text decoded with surrogateescape was valid UTF-8."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


@dataclass(frozen=True)
class FolderParser:
    """Parses one file of a folder; `role` says which, as in `facts:en:train` or `entities:ja`."""

    folder: Path
    role: str
    langs: tuple[str, ...] | None
    limits: Limits

    def __call__(self, chunk: Chunk) -> Parsed:
        parsed = Parsed(chunk.source)
        kind, *details = self.role.split(":")
        match kind:
            case "entities":
                self._entities(chunk, details[0], parsed)
            case "relations":
                self._relations(chunk, parsed)
            case "facts":
                self._facts(chunk, details[0], details[1], parsed)
            case "links":
                self._links(chunk, details[0], details[1], parsed)
        return parsed.check()

    def _keys(self, name: str) -> pa.Array:
        return _read(self._list(name), self.limits)[0]

    def _list(self, name: str) -> Path:
        return self.folder / (f"entity/{name}.tsv" if name != "relations" else "relations.txt")

    def _own_rows(
        self, chunk: Chunk, name: str, parsed: Parsed
    ) -> tuple[pa.Array, pa.Array, Array]:
        """Return the keys and texts of this chunk of a list, and their lines."""
        assert isinstance(chunk.data, bytes)
        # The list was read as a whole, since its keys must be unique: take the rows of the chunk.
        num_lines = chunk.data.count(b"\n") + (not chunk.data.endswith(b"\n"))
        keys, texts = (
            a.slice(chunk.line - 1, num_lines) for a in _read(self._list(name), self.limits)
        )
        lines = chunk.line + np.arange(len(keys))
        parsed.read += len(keys)
        no_text = np.asarray(texts.is_null())
        parsed.reject_rows("invalid UTF-8", no_text, lines, lambda _row: "")
        empty = np.asarray(keys.is_null()) & ~no_text
        parsed.reject_rows("empty name", empty, lines, lambda _row: "")
        good = keys.is_valid()
        return keys.filter(good), texts.filter(good), lines[np.asarray(good)]

    def _entities(self, chunk: Chunk, name: str, parsed: Parsed) -> None:
        keys, texts, lines = self._own_rows(chunk, name, parsed)
        lang = normalise(name)
        if self.langs is not None and lang not in self.langs:
            parsed.filter("language not asked for", len(keys))
            return
        names = clean_names(pc.coalesce(names_from_iris(texts)[1], texts))
        empty = np.asarray(pc.equal(names, ""))
        parsed.reject_rows("empty name", empty, lines, lambda row: texts[row].as_py())
        keep = pa.array(~empty)
        keys, names, lines = keys.filter(keep), names.filter(keep), lines[~empty]
        parsed.stage(
            "names",
            key=keys,
            lang=pa.array([lang] * len(keys), pa.string()),
            name=names,
            rank=np.full(len(keys), LABEL, np.int8),
            line=lines,
        )

    def _relations(self, chunk: Chunk, parsed: Parsed) -> None:
        keys, _, lines = self._own_rows(chunk, "relations", parsed)
        nothing = pa.nulls(len(keys), pa.string())
        ranks = np.full(len(keys), LABEL, np.int8)
        parsed.stage("relations", key=keys, lang=nothing, name=nothing, rank=ranks, line=lines)

    def _facts(self, chunk: Chunk, name: str, split: str, parsed: Parsed) -> None:
        lists = [self._keys(name), self._keys("relations"), self._keys(name)]
        keys, lines = _take_ids(chunk, lists, parsed)
        lang = normalise(name)
        if self.langs is not None and lang not in self.langs:
            parsed.filter("language not asked for", len(lines))
            return
        parsed.stage(
            "facts",
            subject=keys[0],
            relation=keys[1],
            object=keys[2],
            lang=pa.array([lang] * len(lines), pa.string()),
            split=pa.array([SPLITS[split]] * len(lines), pa.string()),
            line=lines,
        )

    def _links(self, chunk: Chunk, a: str, b: str, parsed: Parsed) -> None:
        keys, lines = _take_ids(chunk, [self._keys(a), self._keys(b)], parsed)
        if self.langs is not None and not {normalise(a), normalise(b)} <= set(self.langs):
            parsed.filter("language not asked for", len(lines))
            return
        parsed.stage("links", a=keys[0], b=keys[1], line=lines)


def _take_ids(
    chunk: Chunk, lists: Sequence[pa.Array], parsed: Parsed
) -> tuple[list[pa.Array], Array]:
    """Return the keys for rows of ids, one array for each column, and their lines.

    lists: the keys of each column, by id. Rows with a malformed or unknown id are rejected.
    """
    assert isinstance(chunk.data, bytes)
    names = [str(column) for column in range(len(lists))]
    rows, lines, bad = split_columns(chunk.data, chunk.line, names, "\t")
    parsed.read += len(lines) + len(bad)
    reject_lines(bad, len(lists), parsed)
    columns = [rows[name] for name in names]

    def show(row: int) -> str:
        return "\t".join(column[row].as_py().decode("utf-8", "replace") for column in columns)

    # At most nine digits, so that an id fits an int32; DBP-5L writes the ids of links as floats.
    numbers = [pc.match_substring_regex(column, r"^\s*\d{1,9}(\.0*)?\s*$") for column in columns]
    good = functools.reduce(np.logical_and, [np.asarray(number) for number in numbers])
    parsed.reject_rows("id is not a number", ~good, lines, show)
    # (rows,) each: whether all ids of the row have a key, and the ids of one column.
    known, ids = good.copy(), []
    for column, keys in zip(columns, lists, strict=True):
        column_ids = np.zeros(len(lines), np.int64)
        # Only rows of numbers are converted; the id of the others stays 0 and is not used.
        digits = pc.replace_substring_regex(column.filter(pa.array(good)), r"^\s+|[\s.].*$", "")
        column_ids[good] = np.asarray(pc.cast(digits.cast(pa.string()), pa.int64()))
        # An id beyond the list is clipped for the look-up, and then refused by the first test.
        valid = np.asarray(keys.is_valid())
        known &= (column_ids < len(keys)) & valid[np.minimum(column_ids, len(keys) - 1)]
        ids.append(column_ids)
    parsed.reject_rows("id that no list has", good & ~known, lines, show)
    keyed = [keys.take(pa.array(i[known])) for keys, i in zip(lists, ids, strict=True)]
    return keyed, lines[known]


def read_links(folder: Path) -> pa.Table:
    """Return the links of AA-BB.tsv files, whose ids are lines of the lists in `entity` beside it.

    Columns: lang_a, a, lang_b, b, with keys as an import gives them. JMAC's `seed_train_pairs` is
    such a folder. A row that an import would reject is refused.
    """
    parts = [pa.table({name: pa.array([], pa.string()) for name in ("lang_a", "a", "lang_b", "b")})]
    for path in sorted(folder.glob("*.tsv")):
        names = path.stem.split("-")
        langs = [normalise(name) for name in names]
        lists = [folder.parent / "entity" / f"{name}.tsv" for name in names]
        if len(names) != 2 or None in langs or not all(one.is_file() for one in lists):
            raise PrixError(
                f"{path}: expected AA-BB.tsv, with the lists of both languages, entity/AA.tsv and "
                f"entity/BB.tsv, in {folder.parent}."
            )
        source = Source(path, path.name, f"links:{names[0]}:{names[1]}")
        parser = FolderParser(folder.parent, source.role, None, source.limits)
        for chunk in line_chunks(source, 0):
            parsed = parser(chunk)
            if parsed.samples:
                first = parsed.samples[0]
                raise PrixError(f"{path} line {first.line}: {first.reason}: {first.text}")
            for batch in parsed.tables.get("links", ()):
                texts = (pa.array([lang] * batch.num_rows, pa.string()) for lang in langs)
                columns = zip(texts, (batch.column("a"), batch.column("b")), strict=True)
                flat = [column for pair in columns for column in pair]
                parts.append(pa.table(flat, names=parts[0].column_names))
    if len(parts) == 1:
        raise PrixError(f"{folder} has no links: expected files such as el-en.tsv.")
    return pa.concat_tables(parts)


def _recognises(path: Path) -> bool:
    return (path / "entity").is_dir() and (path / "kg").is_dir()


def _sources(paths: Sequence[Path]) -> list[Source]:
    return [source for path in paths for source in _sources_of(path)]


def _sources_of(folder: Path) -> Iterator[Source]:
    """Yield the files of a folder with their roles, in a fixed order."""
    if not (folder / "relations.txt").is_file():
        raise PrixError(
            f"{folder} has entity/ and kg/ but no relations.txt, which names the relations by line."
        )
    lists = {path.stem: path for path in sorted((folder / "entity").glob("*.tsv"))}
    for name in lists:
        if normalise(name) is None:
            raise PrixError(
                f"{folder}/entity/{name}.tsv: {name} is not a language code such as en."
            )
        yield Source(lists[name], f"{folder.name}/entity/{name}.tsv", f"entities:{name}")
    yield Source(folder / "relations.txt", f"{folder.name}/relations.txt", "relations")
    for path in sorted((folder / "kg").glob("*.tsv")):
        name, _, split = path.stem.rpartition("-")
        if name not in lists or split not in SPLITS:
            raise PrixError(
                f"{path}: expected LL-train.tsv, LL-val.tsv or LL-test.tsv with LL one of "
                f"{', '.join(lists)}."
            )
        yield Source(path, f"{folder.name}/kg/{path.name}", f"facts:{name}:{split}")
    for path in sorted((folder / "seed_alignlinks").glob("*.tsv")):
        a, _, b = path.stem.partition("-")
        if a not in lists or b not in lists:
            raise PrixError(f"{path}: expected AA-BB.tsv with languages {', '.join(lists)}.")
        yield Source(path, f"{folder.name}/seed_alignlinks/{path.name}", f"links:{a}:{b}")


def _parser(sources: Sequence[Source], index: int, langs: tuple[str, ...] | None) -> Parser:
    source = sources[index]
    folder = source.path.parent if source.role == "relations" else source.path.parent.parent
    return FolderParser(folder, source.role, langs, source.limits)


DBP5L = Format(
    name="benchmark",
    title="benchmark folders with numbered entities in the shape of DBP-5L",
    whole_folders=True,
    recognises=_recognises,
    sources=_sources,
    chunks=line_chunks,
    parser=_parser,
    licence="CC BY-SA 3.0 and GFDL (DBpedia)",
)
