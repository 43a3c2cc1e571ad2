"""Hashes of a KB's tables, to tell whether two people hold the same benchmark.

    table_hashes(KB("bench"))        # {"entities": "3f1c...", "triples": ...}

A hash is of the rows as text, not of the Parquet file, whose bytes may change with the version of
the library that writes it: a line of JSON for each row, in the order of the table, as UTF-8.
"""

import hashlib
import json

from prixlm.kb.store import KB, SCHEMAS


def table_hashes(kb: KB) -> dict[str, str]:
    """Return the SHA-256 of every table that the KB has, by name."""
    return {table: hash_table(kb, table) for table in SCHEMAS if kb.path(table).is_file()}


def hash_table(kb: KB, table: str) -> str:
    """Return the SHA-256 of one table's rows, in their order."""
    digest = hashlib.sha256()
    for batch in kb.batches(table, columns=list(SCHEMAS[table].names)):
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            digest.update(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()
