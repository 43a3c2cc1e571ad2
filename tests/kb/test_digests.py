"""Hashes of tables: the same rows give the same hash, and the benchmark of the docs is this one."""

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq

from prixlm import KB, SplitConfig, split_kb
from prixlm.kb.digests import hash_table, table_hashes
from prixlm.kb.split import unseen_triples

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "docs" / "results" / "benchmark.json"


def test_a_hash_is_of_the_rows_as_lines_of_json(shared_toy: KB) -> None:
    rows = pq.read_table(shared_toy.path("relations")).to_pylist()
    text = "".join(
        json.dumps([row["id"], row["key"], row["name"]], ensure_ascii=False) + "\n" for row in rows
    )
    assert rows and hash_table(shared_toy, "relations") == hashlib.sha256(text.encode()).hexdigest()


def test_a_hash_depends_on_the_rows_and_not_on_the_file(shared_toy: KB, tmp_path: Path) -> None:
    copy = tmp_path / "kb"
    shutil.copytree(shared_toy.folder, copy)
    before = table_hashes(KB(copy))
    table = pq.read_table(copy / "triples.parquet")
    pq.write_table(table, copy / "triples.parquet", compression="none", row_group_size=2)
    assert table_hashes(KB(copy)) == before == table_hashes(shared_toy)
    # One fact in the place of another: the manifest counts them.
    pq.write_table(table.take([1, *range(1, len(table))]), copy / "triples.parquet")
    after = table_hashes(KB(copy))
    assert [name for name in before if before[name] != after[name]] == ["triples"]


def test_the_benchmark_is_made_again_with_the_hashes_of_its_card(dbp5l: KB, tmp_path: Path) -> None:
    """As `prixlm split` makes it with the options of the card."""
    card = json.loads(BENCHMARK.read_text("utf-8"))
    options = card["options"]
    assert table_hashes(dbp5l) == card["source_hashes"], "DBP-5L itself is another one"
    found = split_kb(dbp5l, tmp_path / "bench", SplitConfig(**options))
    assert table_hashes(found) == card["hashes"]
    for split, expected in card["facts"].items():
        rows = unseen_triples(found, split=split, links=False)
        assert rows.num_rows == found.num_triples(split=split), "each has an unseen end"
        counts: dict[str, dict[str, int]] = {}
        for row in rows.to_pylist():
            which = "object" if row["object_unseen"] else "subject"
            of_language = counts.setdefault(row["lang"], {"subject": 0, "object": 0})
            of_language[which] += 1
        assert counts == expected
