"""The estimate of the main job: its steps and costs, and no files."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prixlm import KB, GraphConfig
from prixlm.enrichment.budget import Costs, Plan
from prixlm.enrichment.estimate import estimate_job
from prixlm.enrichment.job import Given
from tests.enrichment.helpers import FUSION, PROPOSALS, QUICK


def everything_below(folder: Path) -> Iterator[tuple[str, int]]:
    for path in sorted(folder.rglob("*")):
        yield str(path), path.stat().st_mtime_ns


def test_an_estimate_writes_nothing(kb: KB, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, costs = GraphConfig(rank=4, epochs=2, batch=100), {"graph": Costs(seconds=100)}

    def plan(split: KB, whole: KB, effort: str, **options: Any) -> Plan:
        return Plan(effort=effort, graph=graph, costs=costs, notes=("A note.",))

    monkeypatch.setattr("prixlm.enrichment.estimate.make_plan", plan)
    before = list(everything_below(kb.folder))
    estimate = estimate_job([kb.folder], QUICK)
    assert list(estimate.costs) == ["split", "graph", "fit and ask", "names"]
    assert estimate.plan is not None and estimate.costs["names"].seconds > 0
    text = estimate.as_text()
    assert "graph of rank 4, 2 epochs, trained twice: about 2 min" in text
    unnamed = replace(QUICK, enrich=replace(QUICK.proposals, labels=False))
    without_names = estimate_job([kb.folder], unnamed, Given(reader=kb.folder))
    assert list(without_names.costs) == ["split", "graph", "fit and ask"]
    assert "reader takes" in without_names.as_text()
    asked = 80 + 2 * 20 + 2 * (FUSION.facts + PROPOSALS.tried)
    assert f"{asked:,} questions will be asked." in text and "A note." in text
    assert json.loads(json.dumps(estimate.as_dict()))["plan"]["graph"]["rank"] == 4
    assert list(everything_below(kb.folder)) == before


def test_the_estimate_of_a_dump_says_what_is_decided_later(files: list[Path]) -> None:
    before = list(everything_below(files[0].parent))
    quick, standard, thorough = (
        estimate_job(files, replace(QUICK, effort=effort))
        for effort in ("quick", "standard", "thorough")
    )
    assert list(quick.costs) == ["import"] and quick.plan is None
    assert list(standard.costs) == ["import", "train and ask"]
    total = sum(costs.seconds for costs in standard.costs.values())
    assert total == pytest.approx(3600) and "In all about 60 min." in standard.as_text()
    assert "Import the source first" in thorough.as_text()
    assert list(everything_below(files[0].parent)) == before
