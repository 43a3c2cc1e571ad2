"""The columns of all proposals, against the rows of the tables."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm.proposals import columns as columns_module
from prixlm.proposals.columns import RowReader, read_columns
from prixlm.proposals.tables import FACT_SCHEMA, TABLES
from tests.helpers import fact_row, label_row, link_row, make_proposals


def test_every_place_has_the_values_of_its_row(tmp_path: Path) -> None:
    facts = [
        fact_row(0, confidence=0.5, lang="te", relation=7, why="usual"),
        fact_row(1, confidence=0.9, lang="et", relation=2),
        fact_row(2, confidence=0.5, lang="te", relation=7, why="usual"),
    ]
    labels = [label_row(lang="ar", concept=4, confidence=0.6)]
    links = [link_row(lang="et", entity=5, confidence=c) for c in (0.1, 0.8)]
    rows = {"facts": facts, "labels": labels, "links": links}
    columns = read_columns(make_proposals(tmp_path / "p", facts, labels, links))
    assert columns.row.tolist() == [1, 0, 2, 0, 1, 0], "by falling confidence, then by row"
    for place, (table, number) in enumerate(zip(columns.table, columns.row, strict=True)):
        row = rows[TABLES[table]][number]
        assert columns.place[TABLES[table]][number] == place
        assert columns.confidence[place] == row["confidence"]
        assert columns.langs[columns.lang[place]] == row["lang"]
        assert columns.relation[place] == row.get("relation", -1)
        subject = row.get("subject", row.get("concept", row.get("entity")))
        assert columns.subject[place] == subject
        kind = columns.kind[place]
        assert (None if kind < 0 else columns.kinds[kind]) == row.get("why")
        values = [table, columns.lang[place], columns.relation[place], kind]
        assert columns.cells[columns.cell[place]].tolist() == values
    assert len(columns.cells) == 4, "two facts and the two links are alike"


def test_a_folder_without_labels_and_links_has_none(tmp_path: Path) -> None:
    columns = read_columns(make_proposals(tmp_path / "p", [fact_row(0)]))
    assert columns.slices == {"facts": slice(0, 1), "labels": slice(1, 1), "links": slice(1, 1)}
    assert columns.langs == ["fi"] and len(columns.place["labels"]) == 0


def test_rows_are_read_from_any_group_and_few_groups_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [fact_row(number) for number in range(9)]
    path = tmp_path / "facts.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=FACT_SCHEMA), path, row_group_size=4)
    monkeypatch.setattr(columns_module, "_CACHED_BYTES", 1)
    reader = RowReader(path)
    for numbers in ([8, 0, 3, 4, 3], [1], [8]):
        assert reader.read(np.array(numbers)) == [rows[number] for number in numbers]
        assert len(reader._groups) == 1, "the last one, though it is larger than allowed"
