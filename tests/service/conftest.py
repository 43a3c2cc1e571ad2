"""Servers for the tests of this room: on a small KB by hand, and on a finished work folder."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from prixlm import KB, EnrichConfig, JobConfig, run_job
from prixlm.service.opened import Folders
from prixlm.service.workbench import Workbench
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import pretrain
from tests.enrichment.helpers import FUSION, write_countries
from tests.service import served
from tests.training.helpers import TINY


@pytest.fixture(scope="session")
def served_kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """A KB in four scripts; tests do not change it."""
    return served.make_kb(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def served_proposals(served_kb: KB) -> Path:
    """Proposals for it, without marks; tests copy them."""
    return served.make_served_proposals(served_kb, served_kb.folder.parent / "proposals", 40)


@pytest.fixture
def folders(served_kb: KB, served_proposals: Path, tmp_path: Path) -> Folders:
    """The KB, and proposals that a test may mark."""
    own = shutil.copytree(served_proposals, tmp_path / "proposals")
    return Folders(kb=served_kb.folder, proposals=Path(own))


@pytest.fixture
def bench(folders: Folders) -> Iterator[Workbench]:
    """A workbench that a test has for itself."""
    made = Workbench(folders)
    yield made
    made.close()


@pytest.fixture(scope="session")
def countries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work folder of a run without a model; tests do not change it."""
    files = write_countries(tmp_path_factory.mktemp("countries"))
    folder = tmp_path_factory.mktemp("countries-work") / "work"
    proposals = EnrichConfig(into=("fi", "sv"), min_confidence=0.05, fusion=FUSION)
    run_job(files, folder, JobConfig(into=("fi", "sv"), effort="quick", enrich=proposals))
    return folder


@pytest.fixture(scope="session")
def toy_model(shared_toy: KB, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that knows the toy KB by heart."""
    training = TrainingConfig(lr=1e-2, log_every=100, checkpoints=(1.0,))
    compact = dataclasses.replace(TINY.compact, dropout=0.0)
    config = dataclasses.replace(TINY, epochs=60, training=training, compact=compact)
    folder = tmp_path_factory.mktemp("toy-model") / "model"
    pretrain(shared_toy, folder, config)
    return folder
