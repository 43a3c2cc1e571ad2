"""Models on every family of bases, shared by the tests of this room."""

from pathlib import Path

import pytest

from prixlm import KB, import_kb
from prixlm.lm.model import PrixLM
from tests.conftest import DECODERS, FAMILIES


@pytest.fixture(scope="session", params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> str:
    """The family of the base model."""
    return str(request.param)


@pytest.fixture(scope="session")
def model(kind: str, families: dict[str, Path], shared_toy: KB) -> PrixLM:
    """A model of random weights for the toy KB; shared, so tests must not change it."""
    return PrixLM.from_base(families[kind], shared_toy.languages).eval()


@pytest.fixture(scope="session", params=[*FAMILIES, *(f"{decoder} both" for decoder in DECODERS)])
def any_model(request: pytest.FixtureRequest, families: dict[str, Path], shared_toy: KB) -> PrixLM:
    """As `model`, and decoders that read the prefix in both directions; not to be changed."""
    kind, *both = str(request.param).split()
    prefix = "both" if both else "own"
    model = PrixLM.from_base(families[kind], shared_toy.languages, prefix=prefix).eval()
    assert (model.settings.mask == "causal") == (kind in DECODERS and not both)
    return model


@pytest.fixture(scope="session")
def many_letters(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Names in five scripts of the world KB: more letters than a small vocabulary has room for."""
    folder = tmp_path_factory.mktemp("letters") / "kb"
    return import_kb([], folder, format="world", langs=["fi", "te", "zh", "lo", "ka"])
