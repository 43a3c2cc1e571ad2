"""The figure over checkpoints: three panels, each checkpoint measured once."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError
from prixlm.entities.encoder import load_model
from prixlm.evaluation.entity_linking import LinkingTask
from prixlm.evaluation.figure import reproduce_figure
from prixlm.evaluation.probing.asking import probe
from prixlm.evaluation.probing.prompts import Prompt, Prompts
from prixlm.evaluation.trained import Run
from prixlm.training.checkpoints import checkpoint_steps
from tests.evaluation.conftest import TINY
from tests.evaluation.test_reproduce_names import CONFIG, PROMPTS

FILES = {"sv": LinkingTask(["a", "b"], np.arange(2), ["b"], np.array([0, 1]), np.array([1]))}


@pytest.fixture(scope="module")
def folder(numbered: KB, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The figure of the numbered KB with all panels, and a checkpoint at step 2."""
    to = tmp_path_factory.mktemp("figure")
    reproduce_figure(numbered, to, SETTINGS, PROMPTS, FILES, facts=5)
    return to


TRAINING = dataclasses.replace(TINY.training, checkpoints=(0.0, 2.0, 1.0))
SETTINGS = dataclasses.replace(
    CONFIG, pretrain=dataclasses.replace(TINY, epochs=2, training=TRAINING)
)


def test_every_checkpoint_is_a_point_of_three_panels(numbered: KB, folder: Path) -> None:
    tables = reproduce_figure(numbered, folder, SETTINGS, PROMPTS, FILES, facts=5)
    steps = checkpoint_steps(folder / "models" / "all")
    assert steps[:2] == [0, 2] and len(steps) == 3
    assert [(table.metric, table.subset, table.columns()) for table in tables] == [
        ("Hits@1", "link prediction", ["en", "fi"]),
        ("accuracy", "probing, one-piece answers", ["fi"]),
        ("accuracy@1", "entity linking, Mirror on words", ["sv"]),
    ]
    for table in tables:
        assert list(table.rows) == [f"step {step}" for step in steps]
    # Every point has the interval of its questions.
    for row in tables[0].rows.values():
        for cell in row.values():
            assert cell.number == 5 and cell.interval is not None
            assert cell.interval.low <= cell.value <= cell.interval.high
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "encoders" / "all-step-2-words" / "encoder.json").is_file()
    assert not list((folder / "encoders").glob("*-links"))


def test_a_panel_has_the_figures_of_its_task(numbered: KB, folder: Path) -> None:
    measured = json.loads((folder / "figure" / "probe.json").read_text())
    run = Run("all", folder / "models" / "all")
    for step, shares in measured.items():  # a value for each question
        model = load_model(run.at_step(int(step)).folder)
        probed = probe(model, PROMPTS["fi"], "fi")
        hits = probed.single
        assert shares["fi"] == [float(hits[prompt]) for prompt in sorted(hits)]
        assert not probe(model, PROMPTS["fi"], "fi", rank=False).ranked and probed.ranked


def test_a_measured_checkpoint_is_not_measured_again(
    numbered: KB, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "figure" / "lp.json"
    measured = json.loads(path.read_text())
    last = max(measured, key=int)
    measured["0"] = {"en": 0.25, "fi": 0.5}  # as if it had been measured so
    del measured[last]
    path.write_text(json.dumps(measured))
    for trains in ("pretrain", "mirror"):
        monkeypatch.setattr(f"prixlm.evaluation.trained.{trains}", lambda *_: None)
    tables = reproduce_figure(numbered, folder, SETTINGS, PROMPTS, FILES, facts=5)
    assert tables[0].values("step 0") == {"en": 0.25, "fi": 0.5}
    assert list(json.loads(path.read_text())) == [*measured, last]


def test_a_task_without_data_has_no_panel_and_other_data_are_refused(
    numbered: KB, folder: Path, toy: KB, tmp_path: Path
) -> None:
    with pytest.raises(PrixError, match="figure was made with other files"):
        reproduce_figure(numbered, folder, SETTINGS, PROMPTS, FILES, facts=6)
    more = {"fi": Prompts([*PROMPTS["fi"].prompts, Prompt("<mask> oli", "fi 2", ())])}
    with pytest.raises(PrixError, match="figure was made with other files"):
        reproduce_figure(numbered, folder, SETTINGS, more, FILES, facts=5)
    with pytest.raises(PrixError, match="nothing can be measured"):
        reproduce_figure(toy, tmp_path, SETTINGS)
    with pytest.raises(PrixError, match="--facts 0: expected 1 or more"):
        reproduce_figure(numbered, tmp_path, SETTINGS, facts=0)


def test_a_kb_that_withholds_links_needs_no_files_of_mentions(
    numbered_split: KB, tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, single="fi")
    tables = reproduce_figure(numbered_split, tmp_path, config, facts=3)
    assert [table.columns() for table in tables] == [["en", "fi"], ["fi"]]
