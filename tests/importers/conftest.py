"""Fixtures for the tests of importers."""

import pytest

from prixlm.importers import stage, streams


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the import that is killed, so that what it staged is taken up."""
    monkeypatch.setattr(streams, "CHUNK_BYTES", 20000)
    monkeypatch.setattr(stage, "PART_CHUNKS", 2)
