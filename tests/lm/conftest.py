"""Models on the two kinds of base, shared by the tests of this room."""

from pathlib import Path

import pytest

from prixlm import KB, import_kb
from prixlm.lm.model import PrixLM


@pytest.fixture(scope="session", params=["xlmr", "mbert"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of base model."""
    return str(request.param)


@pytest.fixture(scope="session")
def model(kind: str, bases: dict[str, Path], shared_toy: KB) -> PrixLM:
    """A model of random weights for the toy KB; shared, so tests must not change it."""
    return PrixLM.from_base(bases[kind], shared_toy.languages).eval()


@pytest.fixture(scope="session")
def many_letters(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Names in five scripts of the world KB: more letters than a small vocabulary has room for."""
    folder = tmp_path_factory.mktemp("letters") / "kb"
    return import_kb([], folder, format="world", langs=["fi", "te", "zh", "lo", "ka"])
