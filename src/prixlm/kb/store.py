"""The KB folder: Parquet tables and a manifest that is written last.

    entities.parquet        id, key, lang, name, concept       ordered by language, then key
    aliases.parquet         entity, name                       further names
    relations.parquet       id, key, name                      the name that every language may use
    relation_names.parquet  relation, lang, name               names in single languages
    triples.parquet         lang, subject, relation, object, split    ordered by subject
    links.parquet           a, b                               explicit pairs, a < b
    hidden_links.parquet    a, b, split                        only where a split hides some
    manifest.json           version, counts, sources, licence, what was left out and why
    rejects.tsv             the first rows that could not be imported, by reason

Ids are row numbers, so the entities of a language are one range of ids. Entities of one concept are
linked through it; `link_pairs` expands them to pairs when asked. No table is ever held whole:
`batches` streams columns, and look-ups go through DuckDB. This module alone knows the layout.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.files import quote_path, write_atomically
from prixlm.types import Entity

FORMAT = "prixlm-kb"
VERSION = 1
SPLITS = ("train", "valid", "test", "known")
"""What training may see, what chooses, what is reported; `known` facts are true, and are used by
the known-object filter only (inverses taken out of the test set, the authors' `filtered.txt`)."""

SCHEMAS = {
    "entities": pa.schema(
        [
            ("id", pa.int32()),
            ("key", pa.string()),
            ("lang", pa.string()),
            ("name", pa.string()),
            ("concept", pa.int32()),
        ]
    ),
    "aliases": pa.schema([("entity", pa.int32()), ("name", pa.string())]),
    "relations": pa.schema([("id", pa.int32()), ("key", pa.string()), ("name", pa.string())]),
    "relation_names": pa.schema(
        [("relation", pa.int32()), ("lang", pa.string()), ("name", pa.string())]
    ),
    "triples": pa.schema(
        [
            ("lang", pa.string()),
            ("subject", pa.int32()),
            ("relation", pa.int32()),
            ("object", pa.int32()),
            ("split", pa.string()),
        ]
    ),
    "links": pa.schema([("a", pa.int32()), ("b", pa.int32())]),
    "hidden_links": pa.schema([("a", pa.int32()), ("b", pa.int32()), ("split", pa.string())]),
}
_OPTIONAL = ("hidden_links",)
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a KB folder is: enough to refuse a wrong one and to repeat how it was made."""

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
        text = json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=1, sort_keys=True)
        write_atomically(folder / "manifest.json", text + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        path = folder / "manifest.json"
        try:
            values = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise PrixError(
                f"{folder} is not a KB folder: it has no manifest.json. "
                "Make one with `prixlm import SOURCE --to FOLDER`."
            ) from None
        except (OSError, ValueError) as error:
            raise PrixError(f"{path} cannot be read ({error}). Import the KB again.") from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise PrixError(f"{path}: not the manifest of a KB (format is not {FORMAT!r}).")
        if values.get("version") != VERSION:
            raise PrixError(
                f"{folder}: KB format version {values.get('version')}, this prixlm reads version "
                f"{VERSION}. Use the prixlm that wrote it ({values.get('tool')}) or import again."
            )
        missing = [f.name for f in dataclasses.fields(cls) if f.name not in values]
        if missing:
            raise PrixError(f"{path} lacks {', '.join(missing)}. Import the KB again.")
        return cls(**{f.name: values[f.name] for f in dataclasses.fields(cls)})


class KB:
    """An opened KB folder. Cheap to make: nothing but the manifest is read until it is needed."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        tables = [name for name in SCHEMAS if name not in _OPTIONAL]
        missing = [name for name in tables if not self.path(name).is_file()]
        if missing:
            raise PrixError(f"{self.folder}: {missing[0]}.parquet is missing. Import the KB again.")
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._starts: np.ndarray[Any, Any] | None = None

    def path(self, table: str) -> Path:
        """The file of a table, for tools that read Parquet themselves."""
        return self.folder / f"{table}.parquet"

    @property
    def languages(self) -> list[str]:
        return sorted(self.manifest.counts["entities"])

    @property
    def num_entities(self) -> int:
        return sum(self.manifest.counts["entities"].values())

    @property
    def num_relations(self) -> int:
        return int(self.manifest.counts["relations"])

    def num_triples(self, lang: str | None = None, split: str | None = None) -> int:
        counts = self.manifest.counts["triples"]
        return sum(
            number
            for language, splits in counts.items()
            for name, number in splits.items()
            if lang in (None, language) and split in (None, name)
        )

    def entity_range(self, lang: str) -> range:
        """The ids of a language's entities: they are consecutive."""
        counts = self.manifest.counts["entities"]
        if lang not in counts:
            raise PrixError(f"{self.folder} has no language {lang}; it has {', '.join(counts)}.")
        start = sum(number for language, number in counts.items() if language < lang)
        return range(start, start + counts[lang])

    def language_of(self, entities: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The place of each entity's language in `languages`."""
        if self._starts is None:
            self._starts = np.array([self.entity_range(lang).start for lang in self.languages])
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
        """Stream a table in its order, whole or for some languages and one split."""
        if langs is None and split is None:
            with pq.ParquetFile(self.path(table)) as file:
                yield from file.iter_batches(batch_rows, columns=columns)
            return
        tests = []
        if langs is not None:
            tests.append(f"lang IN ({_quoted(langs)})")
        if split is not None:
            tests.append(f"split = {_quoted([split])}")
        wanted = ", ".join(columns) if columns else "*"
        query = f"SELECT {wanted} FROM {table} WHERE {' AND '.join(tests)}"
        yield from self.stream(query, batch_rows)

    def entities(self, ids: Iterable[int]) -> list[Entity]:
        """The entities of these ids, in their order."""
        wanted = np.fromiter(ids, np.int32)
        outside = wanted[(wanted < 0) | (wanted >= self.num_entities)]
        if len(outside):
            raise PrixError(
                f"no entity {outside[0]}: {self.folder} has 0 to {self.num_entities - 1}."
            )
        if not len(wanted):
            return []
        low, high = wanted.min(), wanted.max()  # lets DuckDB pass over whole row groups
        rows = self.join_table(
            pa.table({"wanted": wanted, "place": np.arange(len(wanted))}),
            "SELECT id, lang, name, key, concept FROM asked JOIN entities ON id = wanted "
            f"WHERE id BETWEEN {low} AND {high} ORDER BY place",
        )
        return [Entity(**row) for row in rows.to_pylist()]

    def names(self, ids: Iterable[int]) -> list[str]:
        """The names of entities, in the order of their ids."""
        return [entity.name for entity in self.entities(ids)]

    def find(self, name: str, lang: str | None = None, *, aliases: bool = True) -> list[Entity]:
        """The entities of this name, those whose own name it is first."""
        own = "SELECT id, 0 AS how FROM entities WHERE name = $name"
        also = "SELECT entity, 1 FROM aliases WHERE name = $name" if aliases else ""
        found = f"{own} UNION ALL {also}" if also else own
        query = (
            f"SELECT e.id, e.lang, e.name, e.key, e.concept FROM "
            f"(SELECT id, min(how) AS how FROM ({found}) GROUP BY id) JOIN entities e USING (id) "
            "WHERE $lang IS NULL OR e.lang = $lang ORDER BY how, e.id"
        )
        rows = self._connect().execute(query, {"name": name, "lang": lang}).fetchall()
        return [Entity(*row) for row in rows]

    def find_key(self, key: str, lang: str | None = None) -> list[Entity]:
        """The entities of this key or IRI, one for each language that names it."""
        query = (
            "SELECT id, lang, name, key, concept FROM entities "
            "WHERE key = $key AND ($lang IS NULL OR lang = $lang) ORDER BY id"
        )
        rows = self._connect().execute(query, {"key": key, "lang": lang}).fetchall()
        return [Entity(*row) for row in rows]

    def concepts(self) -> np.ndarray[Any, Any]:
        """The concept of every entity, by id: four bytes each, in memory."""
        parts = [np.asarray(batch.column(0)) for batch in self.batches("entities", ["concept"])]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def aliases(self, entity: int) -> list[str]:
        query = "SELECT name FROM aliases WHERE entity = ? ORDER BY name"
        return [row[0] for row in self._connect().execute(query, [entity]).fetchall()]

    def relation_names(self, lang: str) -> list[str]:
        """Every relation's name by id: in `lang`, else the one that every language may use.

        That one is the English name, else that of the first language in alphabetical order, else
        it is made from the key.
        """
        query = (
            "SELECT coalesce(n.name, r.name) FROM relations r LEFT JOIN relation_names n "
            "ON n.relation = r.id AND n.lang = ? ORDER BY r.id"
        )
        return [row[0] for row in self._connect().execute(query, [lang]).fetchall()]

    def relation_keys(self) -> list[str]:
        query = "SELECT key FROM relations ORDER BY id"
        return [row[0] for row in self._connect().execute(query).fetchall()]

    def link_pairs(
        self, langs: Sequence[str] | None = None, *, explicit: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Pairs `a, b` of linked entities in different languages, a < b, streamed.

        All pairs of each concept, or only the `explicit` ones that the source states.
        """
        pairs = "links l" if explicit else "(SELECT x.id AS a, y.id AS b FROM entities x "
        if not explicit:
            pairs += "JOIN entities y ON x.concept = y.concept AND x.id < y.id) l"
        asked = (
            ""
            if langs is None
            else f"AND x.lang IN ({_quoted(langs)}) AND y.lang IN ({_quoted(langs)})"
        )
        query = (
            f"SELECT l.a, l.b FROM {pairs} JOIN entities x ON x.id = l.a "
            f"JOIN entities y ON y.id = l.b WHERE x.lang <> y.lang {asked} ORDER BY l.a, l.b"
        )
        yield from self._stream(query, BATCH_ROWS)

    @property
    def hides_links(self) -> bool:
        """Whether it is a split that hides some of its links, to be found again."""
        return self.path("hidden_links").is_file()

    def hidden_links(self, split: str = "test") -> pa.Table:
        """Pairs `a, b` in different languages whose link this split hides, a < b, in order."""
        if not self.hides_links:
            raise PrixError(
                f"{self.folder} hides no links: make a split that does with `prixlm split "
                "--hide-links 0.2`."
            )
        sql = "SELECT a, b FROM hidden_links WHERE split = $split ORDER BY a, b"
        return self.query(sql, {"split": split}).to_arrow_table()

    def query(self, sql: str, parameters: Any = None) -> duckdb.DuckDBPyRelation:
        """SQL over the tables (`entities`, `triples`, ...), for questions of one's own."""
        return self._connect().cursor().sql(sql, params=parameters)

    def stream(self, sql: str, batch_rows: int, parameters: Any = None) -> Iterator[pa.RecordBatch]:
        """The rows of a question of one's own, in batches of exactly so many (but the last)."""
        yield from rechunk(self._stream(sql, batch_rows, parameters), batch_rows)

    def join_table(self, asked: pa.Table, sql: str) -> pa.Table:
        """The rows that SQL finds for a table of one's own, which it calls `asked`."""
        with self._connect().cursor() as cursor:
            cursor.register("asked", asked)
            return cursor.sql(sql).to_arrow_table()

    def fingerprint(self) -> str:
        """A hash of the manifest: which KB a model or a split was made from."""
        return hashlib.sha256((self.folder / "manifest.json").read_bytes()).hexdigest()

    def _stream(
        self, query: str, batch_rows: int, parameters: Any = None
    ) -> Iterator[pa.RecordBatch]:
        with self._connect().cursor() as cursor:
            reader: Any = cursor.sql(query, params=parameters).to_arrow_reader(batch_rows)
            yield from reader

    def _connect(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = duckdb.connect()
            spill = f"{tempfile.gettempdir()}/prixlm-{os.getpid()}".replace("'", "''")
            self._connection.execute(f"SET temp_directory = '{spill}'")
            self._connection.execute("SET enable_progress_bar = false")
            for table in filter(lambda name: self.path(name).is_file(), SCHEMAS):
                path = quote_path(self.path(table))
                self._connection.execute(
                    f"CREATE VIEW {table} AS SELECT * FROM read_parquet({path})"
                )
        return self._connection


def rechunk(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly `rows` (but the last): DuckDB's sizes vary by chance."""
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


def _quoted(values: Iterable[str]) -> str:
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)
