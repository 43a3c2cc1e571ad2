"""A finished tiny run that many tests read or copy."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from prixlm import KB
from prixlm.lm.compact import make_compact
from prixlm.training.pretrain import PretrainConfig, pretrain
from tests.training.helpers import TINY


@pytest.fixture(scope="session")
def tiny(shared_toy: KB, tmp_path_factory: pytest.TempPathFactory) -> PretrainConfig:
    """The tiny pretraining from a saved compact model: its tokenizer is trained once."""
    base = tmp_path_factory.mktemp("tiny") / "base"
    make_compact(shared_toy, TINY.compact).save(base)
    return dataclasses.replace(TINY, base=str(base))


@pytest.fixture(scope="session")
def tiny_run(
    shared_toy: KB, tiny: PretrainConfig, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a finished run of `tiny` on the shared toy KB; tests must not change it."""
    run = tmp_path_factory.mktemp("tiny-run") / "run"
    pretrain(shared_toy, run, tiny)
    return run


@pytest.fixture
def tiny_copy(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to change."""
    return shutil.copytree(tiny_run, tmp_path / "run")
