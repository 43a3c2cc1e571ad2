"""Relations and their names: one for each language, and one that every language may use."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from prixlm.kb.scratch import Scratch
from prixlm.kb.staging import Account
from prixlm.kb.writer import TableWriter


def write_relations(
    db: Scratch, out: Path, account: Account, name_from_key: Callable[[str], str]
) -> int:
    """Write the relations that facts use or the source declares; how many there are.

    The scratch table `relation` (key, id) stays, for the joins of facts.
    """
    db.run(
        "CREATE TABLE relation AS SELECT key, CAST(row_number() OVER (ORDER BY key) - 1 AS "
        "INTEGER) AS id FROM (SELECT relation AS key FROM facts "
        "UNION SELECT key FROM relations)"
    )
    db.run(
        "CREATE TABLE relation_name AS SELECT r.id AS relation, n.* EXCLUDE (key) FROM "
        "(SELECT * FROM relations UNION ALL SELECT * FROM names) n JOIN relation r USING (key)"
    )
    rows = db.run(
        "SELECT relation, lang, name, count(*), min(rank), min(pos) FROM relation_name "
        "GROUP BY ALL ORDER BY relation, lang, min(rank), min(pos), name"
    )
    best: dict[int, dict[str, str]] = {}
    for relation, lang, name, count, _, _ in rows:
        if lang is not None and lang in best.get(relation, {}):
            account.filtered["further name of a relation"] += 1
        else:
            account.imported["relations"] += 1
            if lang is not None:
                best.setdefault(relation, {})[lang] = name
        account.filtered["duplicate"] += count - 1
    keys = [row[0] for row in db.run("SELECT key FROM relation ORDER BY id")]
    with TableWriter(out, "relations") as table:
        common = [_common_name(best.get(i, {})) or name_from_key(key) for i, key in enumerate(keys)]
        table.write(id=np.arange(len(keys)), key=pa.array(keys, pa.string()), name=common)
    with TableWriter(out, "relation_names") as table:
        named = [(i, lang, name) for i in sorted(best) for lang, name in sorted(best[i].items())]
        columns = zip(*named, strict=True) if named else ([], [], [])
        relation, lang, name = (list(column) for column in columns)
        table.write(relation=relation, lang=lang, name=name)
    return len(keys)


def _common_name(names: dict[str, str]) -> str | None:
    """The name that every language may use: the English one, else the first language's."""
    return names.get("en") or (names[min(names)] if names else None)
