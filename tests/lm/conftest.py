"""Models on every family of bases, shared by the tests of this room."""

from pathlib import Path

import pytest

from prixlm import KB, import_kb
from prixlm.lm.model import PrixLM
from tests.conftest import FAMILIES


@pytest.fixture(scope="session", params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> str:
    """The family of the base model."""
    return str(request.param)


@pytest.fixture(scope="session")
def model(kind: str, families: dict[str, Path], shared_toy: KB) -> PrixLM:
    """A model of random weights for the toy KB; shared, so tests must not change it."""
    return PrixLM.from_base(families[kind], shared_toy.languages).eval()


@pytest.fixture(scope="session")
def many_letters(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Names in five scripts of the world KB: more letters than a small vocabulary has room for."""
    folder = tmp_path_factory.mktemp("letters") / "kb"
    return import_kb([], folder, format="world", langs=["fi", "te", "zh", "lo", "ka"])
