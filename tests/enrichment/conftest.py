"""Fixtures of this room: a split of the world KB with a model, and a small KB that lacks facts."""

from pathlib import Path

import pytest

from prixlm import KB, PretrainConfig, SplitConfig, import_kb, pretrain, split_kb
from prixlm.lm.compact import CompactConfig
from prixlm.training.loop import TrainingConfig
from prixlm.training.sampler import SupplyConfig
from tests.enrichment.helpers import write_countries


@pytest.fixture(scope="session")
def world_et_fi_en(tmp_path_factory: pytest.TempPathFactory) -> KB:
    folder = tmp_path_factory.mktemp("world-et-fi-en")
    return import_kb([], folder / "kb", format="world", langs=["et", "fi", "en"])


@pytest.fixture(scope="session")
def split(world_et_fi_en: KB) -> KB:
    """A tenth of the facts is valid and a fifth is test."""
    folder = world_et_fi_en.folder.parent / "split"
    return split_kb(world_et_fi_en, folder, SplitConfig(test=0.2, valid=0.1))


@pytest.fixture(scope="session")
def model(split: KB) -> Path:
    """A tiny Prix-LM that has learnt little: it is there to take part."""
    config = PretrainConfig(
        base="compact",
        epochs=1,
        batch=256,
        supply=SupplyConfig(max_links=1),
        training=TrainingConfig(lr=1e-3),
        compact=CompactConfig(vocab=600, width=16, layers=1, heads=2),
    )
    pretrain(split, split.folder.parent / "model", config)
    return split.folder.parent / "model"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_countries(tmp_path_factory.mktemp("countries"))


@pytest.fixture(scope="module")
def kb(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> KB:
    return import_kb(files, tmp_path_factory.mktemp("kb") / "kb")
