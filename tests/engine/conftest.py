"""The Ray cluster of this room's tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.clusters import started


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A Ray cluster of three nodes on this machine."""
    with started() as made:
        yield made
