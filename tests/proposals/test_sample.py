"""A sample of proposals: how many of each language, which ones, and that it can be reviewed."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from prixlm import PrixError
from prixlm.proposals.review import read_review, write_review
from prixlm.proposals.sample import draw_sample, share_evenly
from prixlm.proposals.tables import read_manifest
from tests.helpers import fact_row, label_row, make_proposals

SIZES = {"et": 5, "fi": 60, "te": 40}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Proposals in three languages, and one name."""
    langs = [lang for lang, size in SIZES.items() for _ in range(size)]
    rows = [
        fact_row(number, lang=lang, confidence=1 - number / 200)
        for number, lang in enumerate(langs)
    ]
    return make_proposals(tmp_path / "proposals", rows, [label_row()])


def test_languages_have_equal_shares_as_far_as_they_can() -> None:
    assert share_evenly(SIZES, 30) == {"et": 5, "fi": 13, "te": 12}
    assert share_evenly(SIZES, 2) == {"et": 1, "fi": 1, "te": 0}
    assert share_evenly(SIZES, 1000) == SIZES


def test_a_sample_is_a_folder_of_proposals(folder: Path, tmp_path: Path) -> None:
    assert draw_sample(folder, tmp_path / "sample", 30) == {"et": 5, "fi": 13, "te": 12}
    rows = pq.read_table(tmp_path / "sample" / "proposals.parquet")
    whole = pq.read_table(folder / "proposals.parquet")
    assert rows.schema.equals(whole.schema)
    assert rows["id"].to_pylist() == list(range(30))
    drawn = rows.drop_columns("id").to_pylist()
    known = whole.drop_columns("id").to_pylist()
    positions = [known.index(row) for row in drawn]
    assert positions == sorted(set(positions)), "each once, in the order of the whole"
    manifest = read_manifest(tmp_path / "sample")
    assert manifest["sample"] == {"drawn_from": 105, "seed": 0}
    assert manifest["proposals"]["fi"] == {"elsewhere": 13}
    assert not (tmp_path / "sample" / "labels.parquet").exists()


def test_the_seed_decides_what_is_drawn(folder: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        draw_sample(folder, tmp_path / name, 30, seed)
    a, b, c = ((tmp_path / name / "proposals.parquet").read_bytes() for name in ("a", "b", "c"))
    assert a == b != c


def test_marks_of_a_sample_stay_in_it(folder: Path, tmp_path: Path) -> None:
    draw_sample(folder, tmp_path / "sample", 6)
    sheet = tmp_path / "sheet.tsv"
    assert write_review(tmp_path / "sample", sheet) == 6
    lines = sheet.read_text("utf-8").splitlines()
    sheet.write_text("\n".join([lines[0], "accept" + lines[1], *lines[2:]]) + "\n", "utf-8")
    counts = read_review(tmp_path / "sample", sheet)
    assert (counts.accepted, counts.open) == (1, 5)
    assert not (folder / "marks.db").exists()


def test_what_cannot_be_drawn_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="--number 0: expected 1 or more"):
        draw_sample(folder, tmp_path / "sample", 0)
    with pytest.raises(PrixError, match="is already there"):
        draw_sample(folder, folder)
    nothing = make_proposals(tmp_path / "nothing", [])
    with pytest.raises(PrixError, match="has no proposed facts to draw from"):
        draw_sample(nothing, tmp_path / "sample")
    assert not (tmp_path / "sample").exists()
