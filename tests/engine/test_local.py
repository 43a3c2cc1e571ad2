"""Local processes: the parts of one process, also when workers die or the driver is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prixlm import PrixError
from prixlm.engine.jobs import EngineConfig, make_parts
from prixlm.engine.local import _devices
from prixlm.errors import ShardsFailed
from prixlm.files import open_workspace
from tests.engine.helpers import NUM_SHARDS, expected, squares, tried
from tests.engine.test_jobs import run

TWO = EngineConfig(workers=2)


def test_two_processes_make_the_parts_of_one(tmp_path: Path) -> None:
    assert run(squares(tmp_path, seconds=0.02), tmp_path, TWO) == expected()
    assert tried(tmp_path) == list(range(NUM_SHARDS))
    pids = {line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(pids) == 2 and str(os.getpid()) not in pids


def test_a_process_that_dies_is_replaced_and_its_shard_is_tried_again(tmp_path: Path) -> None:
    for number in (0, 7):
        (tmp_path / f"die-once-{number}").touch()
    assert run(squares(tmp_path), tmp_path, TWO) == expected()
    assert tried(tmp_path) == sorted([*range(NUM_SHARDS), 0, 7])


def test_a_shard_that_always_ends_its_process_is_named(tmp_path: Path) -> None:
    """As one that needs more memory than there is."""
    (tmp_path / "die-3").touch()
    with pytest.raises(ShardsFailed, match=r"part-003\.txt.* may be out of memory") as caught:
        run(squares(tmp_path), tmp_path, TWO)
    assert "1 of 12 parts failed" in str(caught.value)
    assert tried(tmp_path) == sorted([*range(NUM_SHARDS), 3, 3])


def test_an_error_that_the_user_can_fix_comes_from_the_worker(tmp_path: Path) -> None:
    (tmp_path / "refuse-0").touch()
    with pytest.raises(PrixError, match="0 is not to be squared"):
        run(squares(tmp_path), tmp_path, TWO)


def test_a_state_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(PrixError, match="cannot load its state: OSError: the model is not there"):
        run(squares(tmp_path), tmp_path, TWO)


def test_workers_have_one_thread_and_gpus_of_their_own() -> None:
    config = EngineConfig(workers=3, gpus_per_worker=2.0)
    assert [_devices(number, config) for number in range(2)] == ["0,1", "2,3"]
    assert _devices(1, TWO) is None


DRIVER = """
import sys
from pathlib import Path
from prixlm.engine.jobs import EngineConfig
from tests.engine.helpers import squares
from tests.engine.test_jobs import run
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    run(squares(folder, seconds=0.1), folder, EngineConfig(workers=2))
"""


def test_a_killed_driver_is_resumed_and_its_workers_end(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])}
    driver = subprocess.Popen(
        [sys.executable, str(tmp_path / "driver.py"), str(tmp_path)], env=environment
    )
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "work").glob("part-*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    pids = {int(line.split()[1]) for line in (tmp_path / "log").read_text().splitlines()}
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    made = len(list((tmp_path / "work").glob("part-*")))
    assert 3 <= made < NUM_SHARDS
    (tmp_path / "log").unlink()
    with open_workspace(tmp_path / "work", {"job": "square"}) as work:
        parts = make_parts(squares(tmp_path), work)
    assert [part.read_text() for part in parts] == expected()
    assert len(tried(tmp_path)) == NUM_SHARDS - made
