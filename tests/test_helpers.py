"""What the tests themselves rely on."""

import os
import subprocess
import sys
from pathlib import Path

from tests.helpers import left_behind

ROOT = Path(__file__).parents[1]


def test_what_is_new_in_a_folder_is_named_without_the_files_of_tools(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    for name in ("\x1b[31mnew", "[", ".pytest_cache", ".hypothesis", "nan"):
        (tmp_path / name).mkdir()
    assert left_behind(tmp_path, before) == ["\x1b[31mnew", "[", "nan"]


def test_a_test_that_writes_into_the_root_fails(tmp_path: Path) -> None:
    """In a copy of the checkout's tests with one test that does so."""
    (tmp_path / "tests").mkdir()
    for name in ("__init__.py", "conftest.py", "helpers.py"):
        (tmp_path / "tests" / name).write_bytes((ROOT / "tests" / name).read_bytes())
    (tmp_path / "tests" / "test_it.py").write_text(
        "from pathlib import Path\n\n"
        "def test_writes():\n    Path('[').mkdir()\n\n"
        "def test_writes_nothing():\n    pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"]
    # Without what tells the plugins of slipcover and xdist that this is one of their processes.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLIPCOVER_", "PYTEST_"))
    }
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert "left in the repository's root: ['[']" in done.stdout, done.stdout + done.stderr
    assert "2 passed, 1 error" in done.stdout
