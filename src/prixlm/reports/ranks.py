"""The ranks of single facts as files, and two such files compared fact by fact.

    write_ranks(table, Path("out/answers/lookup.parquet"))      # or .tsv, to be read by people
    tables = compare_ranks(Path("out/answers/lookup.parquet"), Path("out/answers/rules.parquet"))

A table of ranks has a row per held-out fact: language, subject, relation, object and rank. A column
of booleans for each subset tells which facts are in it. `evaluation.link_prediction` makes it.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.files import replacing
from prixlm.kb.checks import check_table, read_checked
from prixlm.kb.store import rechunk
from prixlm.metrics import rank_values
from prixlm.reports.comparing import difference_table
from prixlm.reports.ranker_results import ALL, METRICS
from prixlm.reports.tables import ResultTable, name_rows
from prixlm.untrusted import guard_formula

_GROUP_ROWS = 1 << 16
"""Rows of a row group, however the ranks were made."""
_RANKS = pa.schema(
    {
        "lang": pa.string(),
        **dict.fromkeys(("subject", "relation", "object"), pa.int32()),
        "rank": pa.float64(),
    }
)
"""Columns of every file of ranks. Beside them, there is a column of booleans for each subset."""


def column_of(subset: str) -> str:
    """Return the column of a table of ranks that tells which facts are in a subset."""
    return subset.replace(" ", "_")


def write_ranks(ranks: pa.Table | Iterator[pa.Table], path: Path) -> None:
    """Write ranks as Parquet, or as TSV with lists joined by ` | `.

    ranks: a table, or several that follow each other; one at a time is in memory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix not in (".parquet", ".tsv"):
        raise PrixError(f"{path}: expected a name that ends in .parquet or .tsv.")
    tables = iter([ranks]) if isinstance(ranks, pa.Table) else ranks
    first = next(tables)
    batches = (b for table in itertools.chain([first], tables) for b in table.to_batches())
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            with pq.ParquetWriter(temporary, first.schema, compression="zstd") as writer:
                for batch in rechunk(batches, _GROUP_ROWS):
                    writer.write_batch(batch, row_group_size=_GROUP_ROWS)
            return
        with temporary.open("w", encoding="utf-8") as file:
            file.write("\t".join(first.column_names) + "\n")
            for batch in batches:
                for row in batch.to_pylist():
                    file.write("\t".join(map(_cell, row.values())) + "\n")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " | ".join(_cell(item) for item in value)
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = " ".join(text.split())  # a tab or an end of line in a name would be a column or a row
    return guard_formula(text) if isinstance(value, str) else text


def compare_ranks(first: Path, second: Path) -> list[ResultTable]:
    """Compare two rows fact by fact: Hits@1, Hits@10 and MRR on all facts and on each subset.

    first, second: the ranks that `evaluate lp --to` or `reproduce lp` wrote as Parquet.
    """
    tables = [_read_ranks(path) for path in (first, second)]
    facts = [table.select(["subject", "relation", "object"]) for table in tables]
    if not facts[0].equals(facts[1]):
        raise PrixError(f"{first} and {second} have different facts, and cannot be compared.")
    # A list of ranks that ends earlier knows nothing beyond its limit; the other may.
    ranks = [table["rank"].to_numpy() for table in tables]
    lang = np.asarray(tables[0]["lang"].to_pylist())
    subsets = {
        name.replace("_", " "): tables[0][name].to_numpy()
        for name, kind in zip(tables[0].schema.names, tables[0].schema.types, strict=True)
        if pa.types.is_boolean(kind)
    }
    ours, theirs = name_rows([first, second])
    compared = []
    for subset, mask in subsets.items():
        for metric in ("hits_1", "hits_10", "mrr"):
            values = [rank_values(part)[metric] for part in ranks]
            pairs = {}
            for code in dict.fromkeys(lang.tolist()):
                rows = mask & (lang == code)
                pairs[code] = values[0][rows], values[1][rows]
            title = METRICS[metric] + ("" if subset == ALL else f", {subset}")
            compared.append(difference_table(title, ours, theirs, pairs))
    return compared


def _read_ranks(path: Path) -> pa.Table:
    remedy = (
        "It does not hold ranks: expected rows/KEY.parquet of `reproduce lp` or "
        "answers/ROW.parquet of `evaluate lp --to`."
    )
    check_table(path, _RANKS, remedy)
    subsets = [field for field in pq.read_schema(path) if pa.types.is_boolean(field.type)]
    table = read_checked(path, pa.schema([*_RANKS, *subsets]), remedy)
    if not (table["rank"].to_numpy() >= 1).all():
        raise PrixError(f"{path}: rank has some below 1 or not a number. {remedy}")
    return table
