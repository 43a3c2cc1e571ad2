"""The KB folder: Parquet tables and a manifest that is written last.

    entities.parquet        id, key, lang, name, concept       ordered by language, then key
    aliases.parquet         entity, name                       further names
    descriptions.parquet    entity, text                       only where a source has any
    relations.parquet       id, key, name                      the name that every language may use
    relation_names.parquet  relation, lang, name               names in single languages
    triples.parquet         lang, subject, relation, object, split    ordered by subject
    links.parquet           a, b                               explicit pairs, a < b
    hidden_links.parquet    a, b, split                        only in a split that withholds links
    manifest.json           version, counts, sources, licence, account of rejected and filtered rows
    rejects.tsv             the first rejected rows of each reason

Ids are row numbers, and entities are ordered by language: a language's entities are one range of
ids. Entities of one concept mean the same; `link_pairs` expands concepts to pairs on demand. No
table is held in memory as a whole: `batches` streams columns, and look-ups run in DuckDB. Only this
module knows the layout.
"""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.config import checked
from prixlm.engine.workspace import is_cached
from prixlm.errors import PrixError
from prixlm.files import parquet_rows, read_json, refuse_link, write_atomically
from prixlm.kb.checks import check_ids, check_table
from prixlm.kb.concepts import MAX_CONCEPT, ConceptPairs
from prixlm.remote import is_remote, local_folder
from prixlm.threads import usable_cores
from prixlm.types import Array, Entity

FORMAT = "prixlm-kb"
VERSION = 1
SPLITS = ("train", "valid", "test", "known")
"""Training reads `train`, choices are made on `valid`, figures are reported on `test`. Facts marked
`known` are true but neither trained on nor tested: only the filter of known answers uses them."""

_ID, _TEXT = pa.int32(), pa.string()
SCHEMAS = {
    "entities": pa.schema({"id": _ID, "key": _TEXT, "lang": _TEXT, "name": _TEXT, "concept": _ID}),
    "aliases": pa.schema({"entity": _ID, "name": _TEXT}),
    "descriptions": pa.schema({"entity": _ID, "text": _TEXT}),
    "relations": pa.schema({"id": _ID, "key": _TEXT, "name": _TEXT}),
    "relation_names": pa.schema({"relation": _ID, "lang": _TEXT, "name": _TEXT}),
    "triples": pa.schema(
        {"lang": _TEXT, "subject": _ID, "relation": _ID, "object": _ID, "split": _TEXT}
    ),
    "links": pa.schema({"a": _ID, "b": _ID}),
    "hidden_links": pa.schema({"a": _ID, "b": _ID, "split": _TEXT}),
}
_IDS = dict.fromkeys(("subject", "object", "entity", "a", "b", "concept"), "entities")
_IDS["relation"] = "relations"
"""The table that the ids of a column are row numbers of. Concepts are at most as many."""
_REMEDY = "Import the KB again."
# Short, with few parts: a code is shown as it is, also to agents, which a sentence could instruct.
CODE = "[a-z]{2,8}(-[a-z0-9]{1,8}){0,4}"
is_code = re.compile(CODE, re.IGNORECASE).fullmatch
_OPTIONAL = ("descriptions", "hidden_links")
BATCH_ROWS = 1 << 16
_FREE_PAIRS = 1 << 20
"""Pairs that the concepts of any KB may have; others as many as concepts of `MAX_CONCEPT`."""
_ENTITY = ", ".join(f"e.{f.name}" for f in dataclasses.fields(Entity))
"""The columns of an `Entity`, in its order, of a table `e`."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a KB folder holds and how it was made: enough to check it and to make it again."""

    counts: dict[str, Any]
    sources: list[dict[str, Any]]
    licence: str
    tool: str
    options: dict[str, Any] = field(default_factory=dict)
    account: dict[str, Any] = field(default_factory=dict)
    split: dict[str, Any] | None = None
    format: str = FORMAT
    version: int = VERSION

    def write(self, folder: Path) -> None:
        """Write manifest.json, which makes a folder of tables a KB: call it last."""
        text = json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=1, sort_keys=True)
        write_atomically(folder / "manifest.json", text + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read and check manifest.json; refuse a folder that is not a KB of this version."""
        path = folder / "manifest.json"
        try:
            values = read_json(path)
        except FileNotFoundError:
            raise PrixError(
                f"{folder} is not a KB folder: it has no manifest.json. "
                "Make one with `prixlm import SOURCE --to FOLDER`."
            ) from None
        except (OSError, ValueError) as error:
            raise PrixError(f"{path} cannot be read ({error}). Import the KB again.") from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise PrixError(
                f"{path}: not the manifest of a KB (expected format {FORMAT!r}). Name a KB folder."
            )
        if values.get("version") != VERSION:
            raise PrixError(
                f"{folder}: KB format version {values.get('version')}, this prixlm reads version "
                f"{VERSION}. Use the prixlm that wrote it ({values.get('tool')}), or import the KB "
                "again."
            )
        missing = [f.name for f in dataclasses.fields(cls) if f.name not in values]
        if missing:
            raise PrixError(f"{path} lacks {', '.join(missing)}. Import the KB again.")
        wrong = _find_wrong(values)
        if wrong is not None:
            raise PrixError(f"{path}: {wrong} is not what prixlm writes. Import the KB again.")
        return cls(**{f.name: values[f.name] for f in dataclasses.fields(cls)})


_SPLIT_KINDS: dict[str, Any] = {"from": str, "valid": float | None, "test": float | None}
"""Kinds of what is read from the account of a split."""


def _find_wrong(values: Mapping[str, Any]) -> str | None:
    """Return the first part of a manifest that is of another kind than we write; None if none is.

    A KB folder may come from anyone: what is read from it later is text and numbers as expected.
    """
    kinds = {"counts": dict, "sources": list, "licence": str, "tool": str, "options": dict}
    for name, kind in (kinds | {"account": dict, "split": dict | None}).items():
        if not isinstance(values[name], kind):
            return name
    counts, account = values["counts"], values["account"]
    for name in ("relations", "aliases", "links", "concepts"):
        if not _is_count(counts.get(name)):
            return f"counts.{name}"
    if not _is_count(counts.get("descriptions", 0)):  # not in a KB without any
        return "counts.descriptions"
    by_language = [counts.get(name) for name in ("entities", "linked")]
    triples = counts.get("triples")
    by_language += list(triples.values()) if isinstance(triples, dict) else [None]
    for part in by_language:
        if not isinstance(part, dict) or not all(map(_is_count, part.values())):
            return "counts by language"
    codes = counts["entities"].keys()
    if codes != counts["linked"].keys() or not all(map(is_code, {*codes, *counts["triples"]})):
        return "counts of a language"
    try:
        checked(values["split"] or {}, _SPLIT_KINDS, optional=_SPLIT_KINDS)
    except ValueError:
        return "split"
    for name in ("imported", "rejected", "filtered"):
        part = account.get(name, {})
        if not isinstance(part, dict) or not all(map(_is_count, part.values())):
            return f"account.{name}"
    return None if all(isinstance(source, dict) for source in values["sources"]) else "sources"


def _is_count(value: object) -> bool:
    # Ids are int32.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40


class KB:
    """An opened KB folder. Opening is cheap: only the manifest is read until more is needed.

    Threads may share one KB.

    kb = KB("world")
    [finland] = kb.find("Suomi", "fi")

    Example:
        >>> kb = prixlm.KB("kb")
        >>> kb.languages
        ['ar', 'en', 'fi', 'ja', 'te']
        >>> [entity.lang for entity in kb.find("Helsinki")]
        ['en', 'fi']
    """

    def __init__(self, folder: Path | str) -> None:
        self._source = folder
        self.folder = local_folder(folder)
        self.manifest = Manifest.read(self.folder)
        tables = [name for name in SCHEMAS if name not in _OPTIONAL]
        missing = [name for name in tables if not self.path(name).is_file()]
        if missing:
            raise PrixError(f"{self.folder}: {missing[0]}.parquet is missing. Import the KB again.")
        self._check_tables()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._connecting = threading.Lock()
        self._starts: Array | None = None

    def _check_tables(self) -> None:
        """Refuse tables that are not what we write: the folder may come from anyone."""
        sizes = {
            "entities": self.num_entities,
            "relations": self.num_relations,
            "triples": self.num_triples(),
            "descriptions": self.manifest.counts.get("descriptions", 0),
        }
        for table, schema in SCHEMAS.items():
            if table in _OPTIONAL and not self.path(table).is_file():
                continue
            bounds = self._bounds(table)
            rows = check_table(self.path(table), schema, _REMEDY, bounds=bounds)
            if rows != sizes.get(table, rows):
                raise PrixError(
                    f"{self.path(table)} has {rows:,} rows, and manifest.json states "
                    f"{sizes[table]:,}. {_REMEDY}"
                )

    def _bounds(self, table: str) -> dict[str, int]:
        """Return the columns of ids that a table has, each with the number of ids there are."""
        sizes = {"entities": self.num_entities, "relations": self.num_relations}
        names = SCHEMAS[table].names
        bounds = {name: sizes[_IDS[name]] for name in names if name in _IDS}
        return bounds | {"id": sizes[table]} if "id" in names else bounds

    def __reduce__(self) -> "tuple[type[KB], tuple[Path]]":
        """Pickle a KB as its folder, which another process opens again."""
        if is_remote(self._source):  # another machine fetches it for itself
            return KB, (Path(self._source),)
        return KB, (self.folder.resolve(),)

    def path(self, table: str) -> Path:
        """Return the file of a table, for tools that read Parquet themselves."""
        return self.folder / f"{table}.parquet"

    @property
    def languages(self) -> list[str]:
        """The codes of the KB's languages, sorted."""
        return sorted(self.manifest.counts["entities"])

    @property
    def num_entities(self) -> int:
        """Number of entities, in all languages."""
        return sum(self.manifest.counts["entities"].values())

    @property
    def num_relations(self) -> int:
        """Number of relations; they are shared by all languages."""
        return int(self.manifest.counts["relations"])

    def num_triples(self, lang: str | None = None, split: str | None = None) -> int:
        """Return the number of triples, of one language and one split if given."""
        counts = self.manifest.counts["triples"]
        return sum(
            count
            for language, splits in counts.items()
            for name, count in splits.items()
            if lang in (None, language) and split in (None, name)
        )

    def entity_range(self, lang: str) -> range:
        """Return the ids of a language's entities, which are consecutive."""
        counts = self.manifest.counts["entities"]
        if lang not in counts:
            raise PrixError(f"{self.folder} has no language {lang}; it has {', '.join(counts)}.")
        start = sum(count for language, count in counts.items() if language < lang)
        return range(start, start + counts[lang])

    def language_of(self, entities: Array) -> Array:
        """Return the index in `languages` of each entity's language."""
        if self._starts is None:
            self._starts = np.array([self.entity_range(lang).start for lang in self.languages])
        # The last language whose first entity is not after this one.
        return np.searchsorted(self._starts, entities, side="right") - 1

    def batches(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        *,
        langs: Sequence[str] | None = None,
        split: str | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table in order, of some languages and one split if given."""
        bounds = self._bounds(table)
        for batch in self._read(table, columns, langs, split, batch_rows):
            check_ids(self.path(table), batch, bounds, _REMEDY)
            yield batch

    def _read(
        self,
        table: str,
        columns: Sequence[str] | None,
        langs: Sequence[str] | None,
        split: str | None,
        batch_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        # Without a selection the file is read directly, in its own order.
        if langs is None and split is None:
            with pq.ParquetFile(self.path(table)) as file:
                yield from file.iter_batches(batch_rows, columns=columns)
            return
        tests = []
        if langs is not None:
            tests.append(f"lang IN ({quote_texts(langs)})")
        if split is not None:
            tests.append(f"split = {quote_texts([split])}")
        wanted = ", ".join(columns) if columns else "*"
        query = f"SELECT {wanted} FROM {table} WHERE {' AND '.join(tests)}"
        yield from self.stream(query, batch_rows)

    def entities(self, ids: Iterable[int]) -> list[Entity]:
        """Return the entities with these ids, in the order of `ids`."""
        wanted = np.fromiter(ids, np.int32)
        outside = wanted[(wanted < 0) | (wanted >= self.num_entities)]
        if len(outside):
            raise PrixError(
                f"no entity {outside[0]}: {self.folder} has 0 to {self.num_entities - 1}."
            )
        if not len(wanted):
            return []
        # The range lets DuckDB skip whole row groups by their statistics.
        low, high = wanted.min(), wanted.max()
        rows = self.join_table(
            pa.table({"wanted": wanted, "place": np.arange(len(wanted))}),
            f"SELECT {_ENTITY} FROM asked JOIN entities e ON e.id = wanted "
            f"WHERE e.id BETWEEN {low} AND {high} ORDER BY place",
        )
        return [Entity(**row) for row in rows.to_pylist()]

    def names(self, ids: Iterable[int]) -> list[str]:
        """Return the names of entities, in the order of `ids`."""
        return [entity.name for entity in self.entities(ids)]

    def find(self, name: str, lang: str | None = None) -> list[Entity]:
        """Return the entities with this name; those that have it as an alias come last."""
        return self._entities(
            f"SELECT {_ENTITY} FROM (SELECT id, min(is_alias) AS is_alias FROM "
            "(SELECT id, 0 AS is_alias FROM entities WHERE name = $name "
            "UNION ALL SELECT entity, 1 FROM aliases WHERE name = $name) GROUP BY id) "
            "JOIN entities e USING (id) WHERE $lang IS NULL OR e.lang = $lang "
            "ORDER BY is_alias, e.id",
            {"name": name, "lang": lang},
        )

    def find_key(self, key: str, lang: str | None = None) -> list[Entity]:
        """Return the entities with this key or IRI, one for each language that names it."""
        return self._entities(
            f"SELECT {_ENTITY} FROM entities e "
            "WHERE key = $key AND ($lang IS NULL OR lang = $lang) ORDER BY id",
            {"key": key, "lang": lang},
        )

    def concepts(self) -> Array:
        """Return the concept of every entity, (num_entities,) int32, by entity id."""
        parts = [np.asarray(batch.column(0)) for batch in self.batches("entities", ["concept"])]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def aliases(self, entity: int) -> list[str]:
        """Return the further names of an entity, sorted."""
        query = "SELECT name FROM aliases WHERE entity = ? ORDER BY name"
        return self._column(query, [entity])

    @property
    def has_descriptions(self) -> bool:
        """Whether any entity has a description."""
        return self.path("descriptions").is_file()

    def descriptions(self, ids: Iterable[int]) -> list[str]:
        """Return the descriptions of entities, in the order of `ids`; "" where there is none."""
        wanted = np.fromiter(ids, np.int32)
        if not self.has_descriptions or not len(wanted):
            return [""] * len(wanted)
        # The range lets DuckDB skip whole row groups by their statistics.
        low, high = wanted.min(), wanted.max()
        rows = self.join_table(
            pa.table({"wanted": wanted, "place": np.arange(len(wanted))}),
            "SELECT coalesce(d.text, '') AS text FROM asked LEFT JOIN (SELECT * FROM descriptions "
            f"WHERE entity BETWEEN {low} AND {high}) d ON d.entity = wanted ORDER BY place",
        )
        texts: list[str] = rows["text"].to_pylist()
        return texts

    def all_names(
        self,
        lang: str | None = None,
        *,
        start: int = 0,
        batch_rows: int = BATCH_ROWS,
        descriptions: bool = False,
    ) -> Iterator[tuple[Array, list[str]]]:
        """Yield entity ids and their names, own names and aliases, in batches.

        Ordered by entity; the own name comes first. start: number of rows to skip.
        descriptions: yield the description of an entity too, after its names.
        """
        described = ""
        if descriptions and self.has_descriptions:
            described = "UNION ALL SELECT entity, text, 2 FROM descriptions"
        within = "true"
        if lang is not None:
            ids = self.entity_range(lang)
            within = f"id BETWEEN {ids.start} AND {ids.stop - 1}"
        query = (
            "SELECT id, name FROM (SELECT id, name, 0 AS is_alias FROM entities "
            f"UNION ALL SELECT entity, name, 1 FROM aliases {described}) WHERE {within} "
            f"ORDER BY id, is_alias, name OFFSET {start}"
        )
        for batch in self.stream(query, batch_rows):
            check_ids(self.path("entities"), batch, self._bounds("entities"), _REMEDY)
            yield np.asarray(batch.column(0)), batch.column(1).to_pylist()

    def relation_names(self, lang: str) -> list[str]:
        """Return the name of every relation, by id: in `lang`, else its common name.

        The common name is the English one, else that of the first language in alphabetical order,
        else it is made from the key.
        """
        return self._column(
            "SELECT coalesce(n.name, r.name) FROM relations r LEFT JOIN relation_names n "
            "ON n.relation = r.id AND n.lang = ? ORDER BY r.id",
            [lang],
        )

    def relation_keys(self) -> list[str]:
        """Return the key of every relation, by id."""
        return self._column("SELECT key FROM relations ORDER BY id")

    def relation_counts(
        self, lang: str | None = None, splits: Sequence[str] = SPLITS
    ) -> dict[tuple[str, int], int]:
        """Return the number of triples by language and relation id."""
        # A null parameter means all languages.
        rows = self.query(
            f"SELECT lang, relation, count(*) FROM triples WHERE split IN ({quote_texts(splits)}) "
            "AND ($lang IS NULL OR lang = $lang) GROUP BY ALL ORDER BY ALL",
            {"lang": lang},
        ).fetchall()
        return {(language, relation): count for language, relation, count in rows}

    def link_pairs(
        self, langs: Sequence[str] | None = None, *, explicit: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield pairs `a, b` of linked entities in different languages, a < b, in order.

        explicit: only the pairs that the source states, instead of all pairs of each concept.
        """
        if not explicit:
            yield from self._concept_pairs(langs)
            return
        asked = ""
        if langs is not None:
            asked = f"AND x.lang IN ({quote_texts(langs)}) AND y.lang IN ({quote_texts(langs)})"
        query = (
            "SELECT l.a, l.b FROM links l JOIN entities x ON x.id = l.a "
            f"JOIN entities y ON y.id = l.b WHERE x.lang <> y.lang {asked} ORDER BY l.a, l.b"
        )
        yield from self._stream(query, BATCH_ROWS)

    def _concept_pairs(self, langs: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the pairs of all concepts, made on the fly; refuse more than ours can have."""
        languages, wanted = self.language_of(np.arange(self.num_entities)), None
        if langs is not None:
            asked = [number for number, lang in enumerate(self.languages) if lang in langs]
            wanted = np.isin(languages, asked)
        pairs = ConceptPairs(self.concepts(), languages, wanted)
        most = max(_FREE_PAIRS, MAX_CONCEPT // 2 * self.num_entities)
        if len(pairs) > most:
            raise PrixError(
                f"{self.folder}: its concepts have {len(pairs):,} pairs of entities, expected at "
                f"most {most:,}. {_REMEDY}"
            )
        for a, b in pairs.blocks():
            yield pa.record_batch({"a": a.astype(np.int32), "b": b.astype(np.int32)})

    @property
    def withholds_links(self) -> bool:
        """Whether this is a split that withholds links, as the answers of a test."""
        return self.path("hidden_links").is_file()

    def withheld_links(self, split: str = "test") -> pa.Table:
        """Return the pairs `a, b` whose link this split withholds, a < b, in order."""
        if not self.withholds_links:
            raise PrixError(
                f"{self.folder} withholds no links. Make a split that does with "
                "`prixlm split KB --hide-links 0.2 --to FOLDER`."
            )
        sql = "SELECT a, b FROM hidden_links WHERE split = $split ORDER BY a, b"
        return self.query(sql, {"split": split}).to_arrow_table()

    def query(self, sql: str, parameters: Any = None) -> duckdb.DuckDBPyRelation:
        """Run SQL over the tables (`entities`, `triples`, ...) and return its relation."""
        return self._connect().cursor().sql(sql, params=parameters)

    def stream(self, sql: str, batch_rows: int, parameters: Any = None) -> Iterator[pa.RecordBatch]:
        """Run SQL and yield its rows in batches of exactly `batch_rows`, except the last."""
        yield from rechunk(self._stream(sql, batch_rows, parameters), batch_rows)

    def join_table(self, asked: pa.Table, sql: str) -> pa.Table:
        """Run SQL that may read the table `asked` beside the KB's own tables."""
        with self._connect().cursor() as cursor:
            cursor.register("asked", asked)
            return cursor.sql(sql).to_arrow_table()

    def fingerprint(self) -> str:
        """Return a hash of the manifest: it tells which KB a model or a split was made from."""
        return hashlib.sha256((self.folder / "manifest.json").read_bytes()).hexdigest()

    def _entities(self, sql: str, parameters: Any) -> list[Entity]:
        return [Entity(*row) for row in self._rows(sql, parameters)]

    def _column(self, sql: str, parameters: Any = None) -> list[str]:
        return [row[0] for row in self._rows(sql, parameters)]

    def _rows(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        # A connection holds one result at a time, so every query has a cursor of its own.
        with self._connect().cursor() as cursor:
            return cursor.execute(sql, parameters).fetchall()

    def _stream(
        self, sql: str, batch_rows: int, parameters: Any = None
    ) -> Iterator[pa.RecordBatch]:
        with self._connect().cursor() as cursor:
            reader: Any = cursor.sql(sql, params=parameters).to_arrow_reader(batch_rows)
            yield from reader

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """Return the connection, opened at the first use, with a view for each table."""
        with self._connecting:
            if self._connection is None:
                self._connection = self._open_connection()
            return self._connection

    def _open_connection(self) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect()
        # The KB's own folder may be read-only, so large sorts spill elsewhere: into a new
        # folder, where nobody else has put links and no other connection spills.
        folder = tempfile.mkdtemp(prefix="prixlm-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        spill = folder.replace("'", "''")
        connection.execute(f"SET temp_directory = '{spill}'")
        connection.execute("SET enable_progress_bar = false")
        connection.execute(f"SET threads = {usable_cores()}")
        for table in filter(lambda name: self.path(name).is_file(), SCHEMAS):
            rows = parquet_rows(self.path(table))
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM {rows}")
        return connection


def inner_folder(kb: KB, name: str) -> Path:
    """Return a folder in that of a KB, for a cache; refuse a link in any part of `name`."""
    folder = kb.folder
    for part in name.split("/"):
        folder /= part
        refuse_link(folder)
    return folder


def cache_folder(kb: KB, name: str, stamp: Mapping[str, Any]) -> Path:
    """Return where an index of a KB is, or is to be built: the folder `name` of the KB.

    If that has no index with this stamp and cannot be written, it is in the user's cache folder.
    """
    folder = inner_folder(kb, name)
    if os.access(kb.folder, os.W_OK) or is_cached(folder, stamp):
        return folder
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "prixlm" / kb.fingerprint()[:16] / name


def rechunk(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of exactly `rows`, except the last.

    DuckDB's batches vary in size from run to run; what depends on them must not.
    """
    waiting: list[pa.RecordBatch] = []
    num_waiting = 0
    for batch in batches:
        waiting.append(batch)
        num_waiting += batch.num_rows
        while num_waiting >= rows:
            whole = pa.concat_batches(waiting)
            yield whole.slice(0, rows)
            waiting = [whole.slice(rows)]
            num_waiting -= rows
    if num_waiting:
        yield pa.concat_batches(waiting)


def quote_texts(values: Iterable[str]) -> str:
    """Return texts as SQL literals with commas between: `'en', 'fi'`."""
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)
