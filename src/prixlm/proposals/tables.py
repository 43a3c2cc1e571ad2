"""The proposals folder: its tables and manifest, and how the parts of a run become one table.

    PROPOSALS/proposals.parquet     facts (FACT_SCHEMA), by language, the most confident first
    PROPOSALS/labels.parquet        names for concepts that a language has no name for (--labels)
    PROPOSALS/links.parquet         links into another language (--encoder)
    PROPOSALS/fusion/               the fitted confidence of facts, to ask more; see `asking`
    PROPOSALS/answerable.json       the fitted probability that a guess has an answer at all
    PROPOSALS/manifest.json         written last: inputs, settings and counts
    PROPOSALS/timings.json          seconds; the only file that differs between two equal runs
    PROPOSALS/marks.db              reviewers' marks; see `marks`

This module alone knows the layout. It needs no model library, so proposals can be reviewed and
exported on a plain machine.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.config import is_kind
from prixlm.errors import PrixError
from prixlm.files import open_database, parquet_rows, read_json, write_atomically
from prixlm.kb.checks import check_table
from prixlm.kb.store import KB, rechunk
from prixlm.types import Array

if TYPE_CHECKING:
    import duckdb

FORMAT = "prixlm-proposals"
MARKS_FILE = "marks.db"
OLD_MARKS_FILE = "marks.json"
"""Marks of version 0.1, which `marks` imports."""
TABLE_FILES = {"facts": "proposals.parquet", "labels": "labels.parquet", "links": "links.parquet"}
"""The tables that can be marked, and their files."""
TABLES = tuple(TABLE_FILES)
FUSION_FOLDER, ANSWERABLE_FILE = "fusion", "answerable.json"
"""What a run fitted: `asking` gives the same confidence with it."""
GROUP_ROWS = 1 << 13
"""Rows of a row group: a page reads single rows, and decodes the whole group of each."""
_JOINED_PARTS = 512
"""Parts that one statement reads."""
_BATCH_ROWS = 1 << 16
_MANIFEST, _TIMINGS = "manifest.json", "timings.json"

FACT_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),  # row number, from 0
        ("lang", pa.string()),
        ("subject", pa.int32()),
        ("subject_key", pa.string()),
        ("subject_name", pa.string()),
        ("relation", pa.int32()),
        ("relation_key", pa.string()),
        ("relation_name", pa.string()),
        ("relation_is_named", pa.bool_()),  # False: the name is English or made from the key
        ("object", pa.int32()),
        ("object_key", pa.string()),
        ("object_name", pa.string()),
        ("confidence", pa.float64()),
        ("why", pa.string()),  # the kind of gap: elsewhere or usual, see `gaps`
        ("origin", pa.list_(pa.string())),  # languages that state this fact
        ("model_score", pa.float64()),  # log-probability; null without a model
        ("model_rank", pa.int32()),
        ("graph_rank", pa.int32()),
        ("runner_up", pa.string()),  # name of the next best object
        ("runner_up_confidence", pa.float64()),
    ]
)
# What a run writes: the same facts by ids alone. Keys and names are joined to all parts at once.
PART_SCHEMA = pa.schema(
    [
        field.with_type(pa.int32()) if field.name == "runner_up" else field
        for field in FACT_SCHEMA
        if field.name != "id" and not field.name.endswith(("_key", "_name", "_named"))
    ]
)
LABEL_SCHEMA = pa.schema(
    [
        ("lang", pa.string()),
        ("concept", pa.int32()),
        ("key", pa.string()),  # of the entity in one of the languages that name it
        ("name", pa.string()),
        ("confidence", pa.float64()),
        ("origin", pa.list_(pa.string())),  # languages that use it, or that it was written from
        ("source", pa.string()),  # name in one of these languages
        ("how", pa.string()),  # taken (over) or written (anew)
    ]
)
LINK_SCHEMA = pa.schema(
    [
        ("lang", pa.string()),
        ("entity", pa.int32()),
        ("key", pa.string()),
        ("name", pa.string()),
        ("other_lang", pa.string()),
        ("other", pa.int32()),
        ("other_key", pa.string()),
        ("other_name", pa.string()),
        ("confidence", pa.float64()),
        ("similarity", pa.float64()),  # of the two names' spelling, romanised or not: 0 to 1
        ("evidence", pa.list_(pa.string())),  # kinds that put the candidate first
    ]
)
_SCHEMAS = {"facts": FACT_SCHEMA, "labels": LABEL_SCHEMA, "links": LINK_SCHEMA}
_NULLABLE = {"model_score", "model_rank", "graph_rank", "runner_up", "runner_up_confidence"}
_NULLABLE |= {"source", "how", "similarity"}
_NEWER = {"source", "how", "evidence"}
"""Columns that proposals of older versions do not have."""
_SHARES = {"confidence", "runner_up_confidence"}
_KINDS: dict[str, Any] = {
    "tool": str,
    "licence": str,
    "kb": str,
    "sources": list[str],
    "config": dict[str, Any],
    "config.into": list[str],
    # What a page or an older run may leave out.
    "fitted_on_kb": str | None,
    "rankers": list[str] | None,
    "trained": str | None,
    "trials": list[Any] | None,
    "config.min_confidence": float | None,
    "config.missing": dict[str, Any] | None,
}
"""Kinds of the values of a manifest, by place."""
_REMEDY = "Run `prixlm enrich` again."

# The name of a relation is that of the language, else the general one of the KB.
_WITH_NAMES = """
    SELECT row_number() OVER (ORDER BY p.lang, p.confidence DESC, p.subject, p.relation, p.object)
        - 1 AS id,
        p.lang, p.subject, s.key AS subject_key, s.name AS subject_name,
        p.relation, r.key AS relation_key, coalesce(n.name, r.name) AS relation_name,
        n.name IS NOT NULL AS relation_is_named,
        p.object, o.key AS object_key, o.name AS object_name,
        p.confidence, p.why, p.origin, p.model_score, p.model_rank, p.graph_rank,
        u.name AS runner_up, p.runner_up_confidence
    FROM chosen p
    JOIN entities s ON s.id = p.subject JOIN entities o ON o.id = p.object
    JOIN relations r ON r.id = p.relation
    LEFT JOIN relation_names n ON n.relation = p.relation AND n.lang = p.lang
    LEFT JOIN entities u ON u.id = p.runner_up
    ORDER BY id
"""


def part_table(columns: Mapping[str, Any]) -> pa.Table:
    """Return the proposals of a part, given their columns as arrays; NaN becomes null."""
    arrays = [_to_column(columns[field.name], field.type) for field in PART_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=PART_SCHEMA)


def _to_column(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    # Floats may be NaN, and an integer column cannot hold NaN under its nulls.
    is_null = np.isnan(values) if values.dtype.kind == "f" else None
    if is_null is not None and pa.types.is_integer(kind):
        values = np.where(is_null, 0, values).astype(np.int64)
    return pa.array(values, mask=is_null).cast(kind)


def join_parts(
    kb: KB, parts: Sequence[Path], out: Path, limit: int | None, scratch: Path
) -> dict[str, Any]:
    """Write all parts as one sorted table with names; return counts by language and kind.

    limit: keep this number of proposals, the most confident ones.
    scratch: an empty folder for what DuckDB cannot hold in memory.
    """
    counts: dict[str, Any] = {}
    with open_database(scratch, "1GiB") as db:
        for table in ("entities", "relations", "relation_names"):
            db.execute(f"CREATE VIEW {table} AS SELECT * FROM {parquet_rows(kb.path(table))}")
        _create_chosen(db, parts, limit)
        reader: Any = db.sql(_WITH_NAMES).to_arrow_reader(_BATCH_ROWS)
        with pq.ParquetWriter(out, FACT_SCHEMA, compression="zstd") as writer:
            # DuckDB's batches vary in size, and the bytes of a Parquet file depend on them.
            for batch in rechunk(reader, _BATCH_ROWS):
                writer.write_batch(batch.cast(FACT_SCHEMA), row_group_size=GROUP_ROWS)
        rows = db.execute("SELECT lang, why, count(*) FROM chosen GROUP BY ALL ORDER BY ALL")
        for lang, why, number in rows.fetchall():
            counts.setdefault(lang, {})[why] = number
    return counts


def _create_chosen(
    db: "duckdb.DuckDBPyConnection", parts: Sequence[Path], limit: int | None
) -> None:
    """Create the table `chosen`: the rows of all parts, or the most confident ones."""
    db.register("empty", PART_SCHEMA.empty_table())
    db.execute("CREATE TABLE chosen AS SELECT * FROM empty")
    # Some at a time: the list of all paths would be a statement of megabytes.
    for start in range(0, len(parts), _JOINED_PARTS):
        some = parquet_rows(*parts[start : start + _JOINED_PARTS])
        db.execute(f"INSERT INTO chosen SELECT * FROM {some}")
    # All columns take part in the order, so that equal confidences are cut the same way each time.
    if limit is not None:
        best = f"ORDER BY confidence DESC, lang, subject, relation, object LIMIT {limit}"
        db.execute(f"CREATE OR REPLACE TABLE chosen AS SELECT * FROM chosen {best}")


def write_table(folder: Path, table: str, rows: pa.Table) -> None:
    """Write the rows of labels or links; `join_parts` writes the facts."""
    path = table_path(folder, table)
    pq.write_table(rows, path, compression="zstd", row_group_size=GROUP_ROWS)


def table_path(folder: Path, table: str) -> Path:
    """Return the file of a table, which a run without labels or links does not write."""
    return folder / TABLE_FILES[table]


def find_proposals(folder: Path) -> Path:
    """Return the proposals folder itself, given it or the work folder that holds it."""
    nested = folder / "proposals"
    is_work = not (folder / _MANIFEST).is_file() and (nested / _MANIFEST).is_file()
    return nested if is_work else folder


def write_manifest(folder: Path, values: dict[str, Any]) -> None:
    """Write the manifest, which makes the folder complete."""
    text = json.dumps(values, ensure_ascii=False, indent=1)
    write_atomically(folder / _MANIFEST, text + "\n")


def read_manifest(folder: Path | str) -> dict[str, Any]:
    """Return the manifest of a proposals folder; refuse an incomplete or damaged folder."""
    folder = Path(folder)
    try:
        values: dict[str, Any] = read_json(folder / _MANIFEST)
    except (OSError, ValueError) as error:
        raise PrixError(
            f"{folder} is not a complete proposals folder ({error}): run `prixlm enrich` again."
        ) from None
    if (
        not isinstance(values, dict)
        or values.get("format") != FORMAT
        or not (folder / "proposals.parquet").is_file()
    ):
        raise PrixError(f"{folder} is not a proposals folder: make one with `prixlm enrich`.")
    wrong = _find_wrong(values)
    if wrong is not None:
        raise PrixError(
            f"{folder / _MANIFEST}: {wrong} is not what `prixlm enrich` writes: run it again."
        )
    for table, schema in _SCHEMAS.items():
        path = table_path(folder, table)
        if path.is_file():
            check_table(path, schema, _REMEDY, nullable=_NULLABLE, optional=_NEWER, shares=_SHARES)
    return values


def check_confidence(path: Path, confidence: Array) -> None:
    """Refuse confidences that are none; a footer says nothing of NaN."""
    if not ((confidence >= 0) & (confidence <= 1)).all():
        raise PrixError(f"{path}: confidence has values that are not from 0 to 1. {_REMEDY}")


def check_ids(folder: Path, num_entities: int, num_relations: int, num_concepts: int) -> None:
    """Refuse tables with ids that the KB does not have, before anything is looked up by them."""
    bounds = dict.fromkeys(("subject", "object", "entity", "other"), num_entities)
    bounds |= {"relation": num_relations, "concept": num_concepts}
    for table, schema in _SCHEMAS.items():
        path = table_path(folder, table)
        if path.is_file():
            check_table(path, schema, _REMEDY, nullable=_NULLABLE, optional=_NEWER, bounds=bounds)


def _find_wrong(values: dict[str, Any]) -> str | None:
    """Return a part of a manifest that is of another kind than we write; None if none is."""
    for place, kind in _KINDS.items():
        value: Any = values
        for name in place.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if not is_kind(value, kind):
            return place
    return None


def write_timings(folder: Path, seconds: dict[str, float]) -> None:
    """Write the seconds of each step."""
    write_atomically(folder / _TIMINGS, json.dumps(seconds, indent=1) + "\n")


def read_timings(folder: Path | str) -> dict[str, float]:
    """Return the seconds of each step; empty if the folder has none."""
    path = Path(folder) / _TIMINGS
    try:
        values = read_json(path) if path.is_file() else {}
        return {str(step): float(seconds) for step, seconds in values.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PrixError(f"{path} cannot be read ({error}): delete it.") from None
