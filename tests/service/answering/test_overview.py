"""The counts of the overview: right, kept on disk, and made again when that file is damaged."""

import json

import pytest

from prixlm import KB
from prixlm.kb.coverage import count_coverage
from prixlm.service.answering import overview as module
from prixlm.service.opened import Folders
from prixlm.service.workbench import Workbench


def test_the_overview_counts_what_is_stated_missing_and_proposed(
    bench: Workbench, served_kb: KB
) -> None:
    overview = bench.overview(["en"])
    facts = count_coverage(served_kb)
    for row in overview.rows:
        number = served_kb.relation_keys().index(row.relation.key)
        for lang, cell in zip(overview.langs, row.cells, strict=True):
            assert cell.stated == facts.stated[lang, number]
            assert cell.missing == facts.statable[lang, number] - facts.stated[lang, number]
    proposed = {
        (row.relation.name.text, lang): cell.proposed
        for row in overview.rows
        for lang, cell in zip(overview.langs, row.cells, strict=True)
    }
    assert proposed["capital of", "fi"] == 1 and proposed["located in", "en"] == 41
    assert overview.counts["proposals"] == 48 == overview.counts["open"]
    assert overview.names["te"] == "Telugu" and overview.num_relations == 2
    [trial] = overview.trials
    assert (trial.lang, trial.facts, trial.error) == ("fi", 100, 0.03)
    assert trial.levels == [
        {"confidence": 0.5, "precision": 0.8, "recall": 0.7},
        {"confidence": 0.95, "recall": 0.0},
    ]


def test_the_counts_of_the_overview_are_kept_on_disk(
    bench: Workbench, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.overview()
    monkeypatch.setattr(module, "count_coverage", lambda _kb: pytest.fail("counted again"))
    assert Workbench(folders).overview() == first
    path = bench.opened.lookup.folder / "coverage.json"
    path.write_text("{", "utf-8")
    monkeypatch.undo()
    assert Workbench(folders).overview() == first  # a damaged file is made again
    json.loads(path.read_text("utf-8"))


def test_the_overview_shows_the_largest_relations_or_all(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NUM_RELATIONS", 1)
    assert len(bench.overview().rows) == 1 and len(bench.overview(show_all=True).rows) == 2
