"""Local processes: the parts of one process, also when workers die or the driver is killed."""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from prixlm import PrixError
from prixlm.engine import jobs
from prixlm.engine.jobs import EngineConfig, make_parts
from prixlm.engine.local import _devices
from prixlm.engine.workspace import open_workspace
from prixlm.errors import ShardsFailed, Stopped
from tests.engine.helpers import NUM_SHARDS, OfOtherCode, expected, squares, tried
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


def test_an_error_that_the_user_can_fix_is_that_of_its_shard(tmp_path: Path) -> None:
    (tmp_path / "refuse-0").touch()
    with pytest.raises(ShardsFailed, match=r"part-000\.txt.*: 0 is not to be squared\.$"):
        run(squares(tmp_path), tmp_path, TWO)
    assert tried(tmp_path) == [0, 0, *range(NUM_SHARDS)]


def test_a_state_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(PrixError, match="cannot load its state: OSError: the model is not there"):
        run(squares(tmp_path), tmp_path, TWO)


def test_a_disk_that_is_gone_ends_the_job_with_one_line(tmp_path: Path) -> None:
    """The worker would otherwise be replaced and given the same shard for ever."""
    (tmp_path / "unmount-3").touch()
    with pytest.raises(PrixError, match=r"work cannot be used on .* its disk is gone, or .*again"):
        run(squares(tmp_path), tmp_path, TWO)


def test_a_worker_that_dies_while_it_loads_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "die-once-load").touch()
    assert run(squares(tmp_path), tmp_path, TWO) == expected()


def test_a_worker_without_room_is_let_go_if_another_one_works(tmp_path: Path) -> None:
    (tmp_path / "room-for-one").touch()
    config = EngineConfig(workers=3)
    assert run(squares(tmp_path, seconds=0.5), tmp_path, config) == expected()
    assert len({line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}) == 1


def test_workers_that_all_die_while_they_load_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "room-for-none").touch()
    with pytest.raises(PrixError, match="ended before they had loaded their state"):
        run(squares(tmp_path), tmp_path, TWO)


def test_versions_are_compared_before_the_task_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "versions", lambda: {"prixlm": "0.0.1"})
    job = dataclasses.replace(squares(), load=OfOtherCode())
    with pytest.raises(PrixError, match=r"has prixlm .*and the driver 0\.0\.1: install the same"):
        run(job, tmp_path, TWO)


def test_workers_end_when_the_progress_raises(tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise Stopped("interrupted", 2)

    with open_workspace(tmp_path / "work", {}) as work, pytest.raises(Stopped) as caught:
        make_parts(squares(tmp_path), work, TWO, stop)
    assert caught.value.signal == 2, "the traceback is held, and with it the frames"
    assert multiprocessing.active_children() == []


def test_workers_have_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(workers=2, gpus_per_worker=2.0)
    assert _devices(2, TWO) == [None, None]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)  # then nobody can tell how many there are
    assert _devices(2, config) == ["0,1", "2,3"]
    monkeypatch.setitem(sys.modules, "torch", mock.Mock(**{"cuda.device_count.return_value": 3}))
    with pytest.raises(PrixError, match=r"2 workers with 2 GPUs each need 4, .* may use 3"):
        _devices(2, config)


def test_workers_share_the_gpus_that_the_command_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(workers=2, gpus_per_worker=1.0)
    for given in ("4,5", "GPU-8932f937, GPU-a5f0c1d2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        assert _devices(2, config) == given.split(", " if ", " in given else ",")
    for given, number in (("4", 1), ("", 0), ("4,-1,5", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        with pytest.raises(PrixError, match=f"need 2, and this process may use {number}"):
            _devices(2, config)


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
