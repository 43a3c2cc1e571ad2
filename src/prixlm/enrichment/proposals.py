"""A folder of proposals: its tables, its manifest, and how parts become one table with names.

    PROPOSALS/proposals.parquet     see SCHEMA; the most confident first, language by language
    PROPOSALS/labels.parquet        names of things that a language has none for, where asked for
    PROPOSALS/links.parquet         counterparts in another language, where there is an encoder
    PROPOSALS/manifest.json         written last: what it was made from, and counts
    PROPOSALS/timings.json          seconds of the run that ended it; all else is the same each time
    PROPOSALS/marks.json            what a reviewer said

This module alone knows the layout.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.files import open_database, quote_path, write_atomically
from prixlm.kb.store import KB, rechunk

FORMAT = "prixlm-proposals"
_ROWS = 1 << 16
_TIMINGS = "timings.json"

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),  # of the proposal, from 0
        ("lang", pa.string()),
        ("subject", pa.int32()),
        ("subject_key", pa.string()),
        ("subject_name", pa.string()),
        ("relation", pa.int32()),
        ("relation_key", pa.string()),
        ("relation_name", pa.string()),
        (
            "relation_is_named",
            pa.bool_(),
        ),  # in this language; else the name is English or the key's
        ("object", pa.int32()),
        ("object_key", pa.string()),
        ("object_name", pa.string()),
        ("confidence", pa.float64()),
        ("why", pa.string()),  # elsewhere: another language states one; usual: things like it do
        ("origin", pa.list_(pa.string())),  # languages that state this very fact
        ("model_score", pa.float64()),  # log-probability; null without a model
        ("model_rank", pa.int32()),
        ("graph_rank", pa.int32()),
        ("runner_up", pa.string()),  # the next best object
        ("runner_up_confidence", pa.float64()),
    ]
)
# The same with ids alone, as a run writes its parts.
PART = pa.schema(
    [
        ("lang", pa.string()),
        ("subject", pa.int32()),
        ("relation", pa.int32()),
        ("object", pa.int32()),
        ("confidence", pa.float64()),
        ("why", pa.string()),
        ("origin", pa.list_(pa.string())),
        ("model_score", pa.float64()),
        ("model_rank", pa.int32()),
        ("graph_rank", pa.int32()),
        ("runner_up", pa.int32()),
        ("runner_up_confidence", pa.float64()),
    ]
)
_JOINED = """
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


def join_parts(
    kb: KB, parts: Sequence[Path], out: Path, limit: int | None, work: Path
) -> dict[str, Any]:
    """All parts as one table with names, sorted; counts by language and reason."""
    scratch = work / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    counts: dict[str, Any] = {}
    with open_database(scratch, "1GiB") as db:
        for table in ("entities", "relations", "relation_names"):
            path = quote_path(kb.path(table))
            db.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet({path})")
        files = ", ".join(quote_path(path) for path in parts)
        source = f"read_parquet([{files}])" if parts else "empty"
        if not parts:
            db.register("empty", PART.empty_table())
        order = "ORDER BY confidence DESC, lang, subject, relation, object"
        best = "" if limit is None else f"{order} LIMIT {limit}"
        db.execute(f"CREATE TABLE chosen AS SELECT * FROM {source} {best}")
        reader: Any = db.sql(_JOINED).to_arrow_reader(_ROWS)
        with pq.ParquetWriter(out, SCHEMA, compression="zstd") as writer:
            for batch in rechunk(reader, _ROWS):
                writer.write_batch(batch.cast(SCHEMA) if batch.schema != SCHEMA else batch)
        found = db.execute("SELECT lang, why, count(*) FROM chosen GROUP BY ALL ORDER BY ALL")
        for lang, why, number in found.fetchall():
            counts.setdefault(lang, {})[why] = number
    shutil.rmtree(scratch)
    return counts


def write_timings(folder: Path, seconds: dict[str, float]) -> None:
    write_atomically(folder / _TIMINGS, json.dumps(seconds, indent=1) + "\n")


def read_timings(folder: Path | str) -> dict[str, float]:
    """Seconds by step; nothing where they were not kept."""
    path = Path(folder) / _TIMINGS
    try:
        found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return {str(step): float(seconds) for step, seconds in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PrixError(f"{path} cannot be read ({error}): remove it.") from None


def read_manifest(folder: Path | str) -> dict[str, Any]:
    """The manifest of some proposals; half a folder is none."""
    path = Path(folder) / "manifest.json"
    try:
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PrixError(
            f"{folder} has no proposals, or half of them ({error}): run `prixlm enrich` again."
        ) from None
    if (
        not isinstance(values, dict)
        or values.get("format") != FORMAT
        or not (Path(folder) / "proposals.parquet").is_file()
    ):
        raise PrixError(f"{folder} is no folder of proposals: make one with `prixlm enrich`.")
    for table in sorted(Path(folder).glob("*.parquet")):
        try:
            pq.read_metadata(table)
        except (OSError, pa.ArrowInvalid) as error:
            reason = str(error).splitlines()[0]
            raise PrixError(
                f"{table} cannot be read ({reason}): run `prixlm enrich` again."
            ) from None
    return values
