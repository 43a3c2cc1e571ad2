"""Plots are PNG files, whatever the names in them."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from prixlm.metrics import reliability
from prixlm.reports.plots import (
    plot_curves,
    plot_metrics,
    plot_reliability,
    plot_tables,
    read_metrics,
    smooth,
)
from prixlm.reports.tables import ResultTable

HOSTILE = "_a $x^2$ <b>"
PNG = b"\x89PNG"


def test_a_line_that_was_cut_off_is_skipped(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2.0}]


def test_the_loss_of_a_run_is_drawn_into_its_folder(tmp_path: Path) -> None:
    assert plot_metrics(tmp_path) is None, "nothing was logged yet"
    lines = [{"step": step, "loss": 3 - step} for step in (1, 2)]
    lines.append({"step": 2, "valid_loss": 1.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = plot_metrics(tmp_path)
    assert path == tmp_path / "loss.png" and path.read_bytes().startswith(PNG)


def test_the_running_mean_starts_at_the_first_value() -> None:
    assert smooth([2.0, 2.0, 2.0]) == pytest.approx([2.0, 2.0, 2.0])
    assert smooth([1.0, 0.0], share=0.5) == [1.0, 0.5]


def test_curves_and_tables_are_drawn_with_any_name(tmp_path: Path) -> None:
    plot_curves({HOSTILE: [(0, 1.0), (10, 2.0)]}, tmp_path / "c.png", "y", "title")
    tables = [ResultTable("MRR"), ResultTable("MRR", subset="no transfer")]
    for table in tables:
        table.add(HOSTILE, "en", 0.5)
        table.add(HOSTILE, "fi", float("nan"))
        table.add("other", "en", 0.25)
    plot_tables(tables, tmp_path / "t.png")
    for name in ("c.png", "t.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)


def test_reliability_is_drawn_also_where_there_are_no_answers() -> None:
    confidence = np.linspace(0, 1, 200)
    curves = {
        "fused": {"fi": reliability(confidence, confidence > 0.5)},
        "model": {"fi": reliability(confidence[:0], confidence[:0] > 0.5)},
    }
    picture = io.BytesIO()
    plot_reliability(curves, picture)
    assert picture.getvalue().startswith(PNG)
