"""Ranks of single facts are written whole, and two files of them are compared fact by fact."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import PrixError
from prixlm.metrics import figures
from prixlm.reports.ranks import compare_ranks, write_ranks


def make_ranks(*ranks: float) -> pa.Table:
    """Ranks of English facts about Sweden; no other language states the first."""
    number = np.arange(len(ranks), dtype=np.int32)
    return pa.table(
        {
            "lang": ["en"] * len(ranks),
            "subject": number,
            "relation": number,
            "object": number,
            "subject_name": ["Sweden"] * len(ranks),
            "object_name": ["Stockholm", "=Norway", "a\tb"][: len(ranks)],
            "rank": np.array(ranks, np.float64),
            "all": [True] * len(ranks),
            "no_transfer": number == 0,
            "answer_name": [["Stockholm", "Oslo"]] * len(ranks),
        }
    )


def test_answers_are_written_out_with_their_ranks(tmp_path: Path) -> None:
    table = make_ranks(1, 3, np.inf)
    write_ranks(table, tmp_path / "ranks.parquet")
    assert pq.read_table(tmp_path / "ranks.parquet").equals(table)
    write_ranks(table, tmp_path / "ranks.tsv")
    head, *lines = (tmp_path / "ranks.tsv").read_text("utf-8").splitlines()
    rows = [dict(zip(head.split("\t"), line.split("\t"), strict=True)) for line in lines]
    assert [row["object_name"] for row in rows] == ["Stockholm", "'=Norway", "a b"]
    assert [row["rank"] for row in rows] == ["1", "3", "inf"]
    row = rows[0]
    assert row["subject_name"] == "Sweden" and row["rank"] == "1" and row["lang"] == "en"
    assert row["answer_name"] == "Stockholm | Oslo" and row["no_transfer"] == "True"
    with pytest.raises(PrixError, match=r"expected a name that ends in .parquet or .tsv"):
        write_ranks(table, tmp_path / "ranks.doc")


@pytest.mark.parametrize("ending", ["parquet", "tsv"])
def test_ranks_in_parts_have_the_bytes_of_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr("prixlm.reports.ranks._GROUP_ROWS", 2)
    table, waiting = make_ranks(1, 3, np.inf), []

    def parts() -> Iterator[pa.Table]:
        for start, length in ((0, 1), (1, 2)):
            waiting.append(start)
            yield table.slice(start, length)

    write_ranks(table, tmp_path / f"whole.{ending}")
    made = parts()
    assert not waiting
    write_ranks(made, tmp_path / f"parts.{ending}")
    whole = (tmp_path / f"whole.{ending}").read_bytes()
    assert (tmp_path / f"parts.{ending}").read_bytes() == whole
    if ending == "parquet":
        assert pq.read_metadata(tmp_path / "parts.parquet").num_row_groups == 2


def test_two_rows_are_compared_fact_by_fact(tmp_path: Path) -> None:
    ranks = {"lookup": (1, 3, np.inf), "usual": (2, 1, 4)}
    for name, own in ranks.items():
        write_ranks(make_ranks(*own), tmp_path / f"{name}.parquet")
    paths = tmp_path / "lookup.parquet", tmp_path / "usual.parquet"
    tables = {table.title: table for table in compare_ranks(*paths)}
    assert list(tables)[:4] == ["Hits@1", "Hits@10", "MRR", "Hits@1, no transfer"]
    found = {
        name: figures(np.array(own)).mrr
        for name, own in zip(("first", "second"), ranks.values(), strict=True)
    }
    row = tables["MRR"].values("en")
    assert row["first"] == pytest.approx(found["first"])
    assert row["difference"] == pytest.approx(found["first"] - found["second"])
    assert tables["MRR"].notes == ["first: lookup.parquet; second: usual.parquet."]
    write_ranks(make_ranks(1, 3), tmp_path / "some.parquet")
    with pytest.raises(PrixError, match="have different facts"):
        compare_ranks(paths[0], tmp_path / "some.parquet")
    (tmp_path / "bad.parquet").write_text("x")
    with pytest.raises(PrixError, match="does not hold ranks"):
        compare_ranks(paths[0], tmp_path / "bad.parquet")
