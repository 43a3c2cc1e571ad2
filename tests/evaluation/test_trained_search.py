"""Searched settings: what is tried, which run is kept, and that a stopped search resumes."""

import json
from pathlib import Path

import pytest

from prixlm import GraphConfig, PretrainConfig, PrixError
from prixlm.evaluation.trained import SearchSpace, search_seconds, search_settings

FIGURES = {"a": 0.2, "b": 0.5, "c": 0.4}


class Runs:
    """Trains nothing: a run leaves a file, and its figure is known beforehand."""

    def __init__(self, dies_at: str = "") -> None:
        self.dies_at, self.made = dies_at, list[str]()

    def __call__(self, settings: str, folder: Path) -> float:
        if settings == self.dies_at:
            raise KeyboardInterrupt
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model").write_text(settings)
        self.made.append(settings)
        return FIGURES[settings]


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_every_run_has_a_figure_and_the_best_one_is_kept(tmp_path: Path) -> None:
    assert search_settings(tmp_path, {name: name for name in FIGURES}, Runs()) == "b"
    tried = json.loads((tmp_path / "search.json").read_text())
    assert {name: one["valid_mrr"] for name, one in tried.items()} == FIGURES
    assert kept(tmp_path) == ["b"] and search_seconds(tmp_path) >= 0


def test_a_stopped_search_resumes_with_the_run_that_was_stopped(tmp_path: Path) -> None:
    names = {name: name for name in FIGURES}
    with pytest.raises(KeyboardInterrupt):
        search_settings(tmp_path, names, Runs(dies_at="c"))
    assert kept(tmp_path) == ["b"]
    runs = Runs()
    assert search_settings(tmp_path, names, runs) == "b" and runs.made == ["c"]


def test_the_best_of_a_smaller_space_is_made_again(tmp_path: Path) -> None:
    search_settings(tmp_path, {name: name for name in FIGURES}, Runs())
    runs = Runs()
    assert search_settings(tmp_path, {"a": "a", "c": "c"}, runs) == "c" and runs.made == ["c"]


def test_a_space_has_each_value_with_each() -> None:
    space = SearchSpace(batches=(64, 256), rates=(1e-3, 2e-3), epochs=(9, 30))
    singles = space.singles(PretrainConfig.preset("compact"))
    assert len(singles) == 8
    config = singles["batch-64-rate-0.001-epochs-30"]
    assert (config.batch, config.epochs, config.training.lr) == (64, 30, 1e-3)
    assert config.training.patience is None, "the rate decays to the end"
    graphs = space.graphs(GraphConfig(score="transe", langs=("el",)))
    assert len(graphs) == 8
    assert {(config.score, config.langs) for config in graphs.values()} == {("transe", ("el",))}
    with pytest.raises(PrixError, match="every list has a value"):
        SearchSpace(rates=())
