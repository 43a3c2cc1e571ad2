"""A random model far from uniform, and a small model that knows the toy KB by heart."""

import dataclasses
from pathlib import Path

import pytest
import torch

from prixlm import KB
from prixlm.decoding.completer import Completer
from prixlm.lm.model import PrixLM
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import pretrain
from tests.training.helpers import TINY


@pytest.fixture(scope="session", params=["xlmr"])
def model(request: pytest.FixtureRequest, families: dict[str, Path]) -> PrixLM:
    """A random model; shared, so tests must not change it.

    A test for every family and mask names them: `@pytest.mark.parametrize("model", READINGS,
    indirect=True)`. After a slash comes how the prefix is read, if not as the base reads it.
    """
    family, _, mask = str(request.param).partition("/")
    prefix = "both" if mask == "both" else "own"
    made = PrixLM.from_base(families[family], ["en", "fi"], prefix=prefix).eval()
    if mask == "released":
        made.settings = dataclasses.replace(made.settings, mask="released")
    with torch.no_grad():  # far from uniform, as a trained model is
        for parameter in made.backbone.parameters():
            parameter.mul_(4.0)
    return made


@pytest.fixture(scope="session")
def trained(shared_toy: KB, tmp_path_factory: pytest.TempPathFactory) -> PrixLM:
    """A model that was trained on the toy KB until it knows it."""
    training = TrainingConfig(lr=1e-2, log_every=100, checkpoints=(1.0,))
    compact = dataclasses.replace(TINY.compact, dropout=0.0)
    config = dataclasses.replace(TINY, epochs=60, training=training, compact=compact)
    return pretrain(shared_toy, tmp_path_factory.mktemp("trained") / "model", config)


@pytest.fixture
def completer(trained: PrixLM, shared_toy: KB) -> Completer:
    """A new completer of the trained model and the toy KB."""
    return Completer(trained, shared_toy)
