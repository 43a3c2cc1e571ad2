"""Columns and texts that are mapped into memory."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prixlm.kb.mapped import MappedTexts, TextWriter, map_column

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def write(path: Path, batches: list[list[str]]) -> MappedTexts:
    with TextWriter(path) as writer:
        for batch in batches:
            writer.write(pa.array(batch, pa.string()))
    return MappedTexts(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(batches=st.lists(st.lists(TEXT, max_size=4), max_size=4), size=st.integers(1, 6))
def test_texts_come_back_as_they_were_written(
    batches: list[list[str]], size: int, tmp_path: Path
) -> None:
    plain = [text for batch in batches for text in batch]
    texts = write(tmp_path / "names", batches)
    assert [texts[row] for row in range(len(texts))] == plain
    rows = np.arange(len(plain))[::-1]
    assert texts.beginnings(rows, size) == [text[:size] for text in reversed(plain)]


def test_a_slice_of_an_array_is_written_without_its_neighbours(tmp_path: Path) -> None:
    whole = pa.array(["Turku", "Αθήνα", "తెలుగు", "Oulu"])
    with TextWriter(tmp_path / "names") as writer:
        writer.write(whole.slice(1, 2))
        writer.write(whole.slice(3, 1))
    texts = MappedTexts(tmp_path / "names")
    assert [texts[row] for row in range(len(texts))] == ["Αθήνα", "తెలుగు", "Oulu"]


def test_part_of_a_text_is_counted_in_bytes_and_ends_with_it(tmp_path: Path) -> None:
    texts = write(tmp_path / "names", [["Αθήνα", "Oulu"]])
    assert texts.encoded(0, 2, 4) == "θή".encode()
    assert texts.encoded(0, 8, 100) == "α".encode()


@pytest.mark.parametrize("numbers", [[], [3, -1, 7]])
def test_a_column_comes_back_as_it_was_written(numbers: list[int], tmp_path: Path) -> None:
    np.array(numbers, np.int32).tofile(tmp_path / "column")
    column = map_column(tmp_path / "column", np.int32)
    assert column.tolist() == numbers
    assert column.dtype == np.int32


def test_beginnings_agree_with_cutting_each_text(tmp_path: Path) -> None:
    texts = ["", "Turku", "Αθήνα", "a\nb", "東京" * 200, "x" * 300, "é" * 257, "\n", "💡" * 256]
    with TextWriter(tmp_path / "texts") as writer:
        writer.write(pa.array(texts))
    mapped = MappedTexts(tmp_path / "texts")
    whole = [text for text in texts if "\n" not in text]
    for chosen in (texts, whole, [], ["", ""], whole[::-1]):
        rows = np.array([texts.index(text) for text in chosen], np.int64)
        for size in (1, 4, 256):
            assert mapped.beginnings(rows, size) == [text[:size] for text in chosen]
    with TextWriter(tmp_path / "nothing") as writer:
        writer.write(pa.array(["", ""]))
    assert MappedTexts(tmp_path / "nothing").beginnings(np.array([0, 1]), 4) == ["", ""]
