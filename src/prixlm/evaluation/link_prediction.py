"""Link prediction (Sec. 3.2): the missing object of held-out facts, ranked among all entities.

    table = rank_facts(kb, ranker, [read_facts(kb, "el")])
    figures_by_language(table)["el"]["all"].mrr

The record of a ranker is a table with a row for each fact: what was asked, the truth, its rank,
and the answers if they are wanted. All figures are counted from it: by language and subset, and by
relation.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND, Figures, figures
from prixlm.rankers.base import Ranker
from prixlm.rankers.heldout import SUBSETS, HeldOut
from prixlm.rankers.links import Transfer
from prixlm.types import Array


def rank_facts(
    kb: KB,
    ranker: Ranker,
    facts: Sequence[HeldOut],
    *,
    answers: int = 0,
    beyond: int = BEYOND,
) -> pa.Table:
    """The rank of every fact's object; with `answers`, also the best ones and their scores.

    Columns: lang, subject, relation, object (ids), their names, rank (infinity beyond `beyond`),
    one for each subset, and lists: answer (ids), answer_name, score and, of facts carried along
    links, origin (the languages that say so).
    """
    parts = []
    for part in facts:
        queries = part.queries
        columns = {
            "lang": [queries.lang] * len(part),
            "subject": queries.subject.astype(np.int32),
            "relation": queries.relation.astype(np.int32),
            "object": part.objects.astype(np.int32),
            "subject_name": kb.names(queries.subject.tolist()),
            "relation_name": _take(kb.relation_names(queries.lang), queries.relation),
            "object_name": kb.names(part.objects.tolist()),
            "rank": ranker.ranks(queries, part.objects, beyond),
        }
        columns |= {_column(name): rows for name, rows in part.subsets.items()}
        table = pa.table(columns)
        if answers:
            ranked = ranker.best(queries, answers)
            offset = pa.array(ranked.offset.astype(np.int32))
            lists = {
                "answer": pa.array(ranked.entity.astype(np.int32)),
                "answer_name": pa.array(kb.names(ranked.entity.tolist())),
                "score": pa.array(ranked.score.astype(np.float64)),
            }
            for name, values in lists.items():
                table = table.append_column(name, pa.ListArray.from_arrays(offset, values))
            if isinstance(ranker, Transfer):
                origins = pa.array(ranker.origins(queries, ranked), pa.list_(pa.string()))
                table = table.append_column("origin", pa.ListArray.from_arrays(offset, origins))
        parts.append(table)
    return pa.concat_tables(parts)


def figures_by_language(
    table: pa.Table, beyond: int = BEYOND, names: Sequence[str] = SUBSETS
) -> dict[str, dict[str, Figures]]:
    """Figures by language and subset."""
    ranks, lang = table["rank"].to_numpy(), np.asarray(table["lang"].to_pylist())
    subsets = {name: table[_column(name)].to_numpy() for name in names}
    return {
        code: {
            name: figures(ranks[rows & (lang == code)], beyond) for name, rows in subsets.items()
        }
        for code in dict.fromkeys(lang.tolist())
    }


def figures_by_relation(table: pa.Table, beyond: int = BEYOND) -> dict[str, Figures]:
    """Figures by relation name over all languages, the most frequent first."""
    ranks, relation = table["rank"].to_numpy(), table["relation"].to_numpy()
    names = dict(zip(relation.tolist(), table["relation_name"].to_pylist(), strict=True))
    found, counts = np.unique(relation, return_counts=True)
    order = found[np.argsort(-counts, kind="stable")]
    return {
        f"{names[number]} ({number})": figures(ranks[relation == number], beyond)
        for number in order.tolist()
    }


def write_ranks(table: pa.Table, path: Path) -> None:
    """Parquet, or for a spreadsheet TSV (lists joined by ` | `)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        work = path.with_name(path.name + ".writing")
        pq.write_table(table, work, compression="zstd")
        work.replace(path)
        return
    if path.suffix != ".tsv":
        raise PrixError(f"{path}: expected a name that ends in .parquet or .tsv.")
    rows = table.to_pylist()
    lines = ["\t".join(table.column_names)]
    lines += ["\t".join(_cell(value) for value in row.values()) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " | ".join(_cell(item) for item in value)
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return " ".join(text.split())  # a tab or an end of line in a name would be a column or a row


def _column(subset: str) -> str:
    return subset.replace(" ", "_")


def _take(names: list[str], places: Array) -> list[str]:
    return [names[place] for place in places.tolist()]
