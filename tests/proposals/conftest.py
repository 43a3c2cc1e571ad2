"""Fixtures of this room: a folder of proposals."""

from pathlib import Path

import pytest

from tests.helpers import fact_row, make_proposals

TRICKY = 'Zürich "the\tcity"\n<b>=1+1</b> |\\ 東京 ✓'
"""A name with everything that a format must escape."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of five proposals, the second with a tricky name and key."""
    rows = [fact_row(number) for number in range(5)]
    rows[1] |= {"subject_name": TRICKY, "subject_key": "territory/a b<c>"}
    return make_proposals(tmp_path / "proposals", rows)
