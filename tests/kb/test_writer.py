"""Tables of a KB: the same bytes for the same rows, and no half file."""

from pathlib import Path

import numpy as np
import pytest

from prixlm.kb.writer import write_table


def test_the_same_rows_give_the_same_bytes_in_whatever_batches(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = {
        "lang": np.array(["en", "fi", "ja"])[np.sort(rng.integers(0, 3, 300_000))],
        **{name: rng.integers(0, 1000, 300_000) for name in ("subject", "relation", "object")},
        "split": np.array(["train", "test"])[rng.integers(0, 2, 300_000)],
    }
    files = []
    for step in (1000, 131_072, 300_000, 77_777):
        folder = tmp_path / str(step)
        folder.mkdir()
        with write_table(folder, "triples") as table:
            for start in range(0, 300_000, step):
                table.write(**{name: column[start : start + step] for name, column in rows.items()})
        assert table.num_rows == 300_000
        files.append((folder / "triples.parquet").read_bytes())
    assert all(file == files[0] for file in files)


def test_a_table_that_fails_half_way_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), write_table(tmp_path, "links") as table:
        table.write(a=[1], b=[2])
        raise ZeroDivisionError
    assert not (tmp_path / "links.parquet").exists()
