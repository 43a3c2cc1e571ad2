"""Results that are kept while a table is being made."""

from pathlib import Path

import pytest

from prixlm.reports.kept import Kept


def test_a_value_is_computed_once_and_found_by_the_next_run(tmp_path: Path) -> None:
    path, calls = tmp_path / "new" / "parts.jsonl", []

    def measure() -> list[object]:
        calls.append(1)
        return [(0.5, 3), float("nan")]

    first = Kept(path).get(("row", "fi"), measure)
    again = Kept(path).get(("row", "fi"), measure)
    assert first[0] == again[0] == [0.5, 3] and again[1] != again[1] and len(calls) == 1
    assert Kept(path).get(("row", "te"), lambda: "ఉత్తరం") == "ఉత్తరం" and len(calls) == 1


def test_half_a_line_of_a_killed_run_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "parts.jsonl"
    Kept(path).get(("a",), lambda: 1)
    whole = path.read_bytes()
    path.write_bytes(whole + b'[["b"], 0.')
    kept = Kept(path)
    assert kept.get(("b",), lambda: 2) == 2 and kept.get(("a",), lambda: 3) == 1
    assert path.read_bytes() == whole + b'[["b"], 2]\n'
    kept.remove()
    assert not path.exists()
    kept.remove()


def test_without_a_file_nothing_is_kept() -> None:
    kept = Kept()
    assert [kept.get(("a",), lambda value=value: value) for value in (1, 2)] == [1, 2]
    kept.remove()


def test_a_value_that_fails_is_not_kept(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "parts.jsonl")
    with pytest.raises(ZeroDivisionError):
        kept.get(("a",), lambda: 1 / 0)
    assert Kept(tmp_path / "parts.jsonl").get(("a",), lambda: 1) == 1
