"""Threads: as many as there are usable cores, and asleep while they wait."""

import logging
import os
import re
from pathlib import Path

import pytest

from prixlm.threads import describe_threads, limited_threads, share_cores, usable_cores
from tests.helpers import run_python


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 8),
        ({"cpu.max": "nonsense"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "0\n"}, 8),
    ],
)
@pytest.mark.usefixtures("eight_cores")
def test_the_quota_of_a_container_limits_the_cores(
    files: dict[str, str], cores: int, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("files", "own", "cores"),
    [
        ({"job/cpu.max": "max 100000", "job/step/cpu.max": "100000 100000"}, "0::/job/step", 1),
        ({"job/cpu.max": "200000 100000", "job/step/cpu.max": "max 100000"}, "0::/job/step", 2),
        ({"job/cpu.max": "200000 100000", "cpu.max": "100000 100000"}, "0::/job", 1),
        ({"other/cpu.max": "100000 100000"}, "0::/job", 8),
        ({"job/cpu.max": "100000 100000"}, "0::/../job", 8),
        ({"job/cpu.max": "100000 100000"}, "nonsense", 8),
        (
            {"cpu/job/cpu.cfs_quota_us": "300000", "cpu/job/cpu.cfs_period_us": "100000"},
            "5:memory:/job/x\n4:cpu,cpuacct:/job",
            3,
        ),
    ],
)
@pytest.mark.usefixtures("eight_cores")
def test_the_least_quota_of_the_groups_above_counts(
    files: dict[str, str], own: str, cores: int, tmp_path: Path
) -> None:
    """As of a job of Slurm, or of a container that sees the groups of its host."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own + "\n")
    assert usable_cores(tmp_path, tmp_path / "own") == cores


@pytest.mark.usefixtures("eight_cores")
def test_a_worker_uses_one_core_also_in_libraries_that_start_threads_themselves(
    tmp_path: Path,
) -> None:
    with limited_threads(1):
        assert usable_cores(tmp_path) == 1
        with limited_threads(3):
            assert usable_cores(tmp_path) == 3
        assert usable_cores(tmp_path) == 1
    assert usable_cores(tmp_path) == 8
    code = (
        "from prixlm.threads import usable_cores, use_one_thread; use_one_thread()\n"
        "import pyarrow; print(usable_cores(), pyarrow.cpu_count())"
    )
    assert run_python(code).stdout == "1 1\n"


def test_a_process_that_is_bound_to_one_core_uses_one() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from prixlm.threads import usable_cores; print(usable_cores())"
    )
    assert run_python(code).stdout == "1\n"


@pytest.mark.usefixtures("eight_cores")
def test_one_line_says_how_many_threads_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = usable_cores()
    ours = f"{cores} thread{'s' * (cores > 1)}: the cores that this process may use."
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert describe_threads() == ours
    monkeypatch.setenv("OMP_NUM_THREADS", str(cores))  # as `share_cores` does
    assert describe_threads() == ours
    monkeypatch.setenv("OMP_NUM_THREADS", "12")
    assert describe_threads() == "12 threads: OMP_NUM_THREADS."


@pytest.mark.usefixtures("eight_cores")
def test_what_the_user_has_set_is_kept_and_the_choice_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    chosen: dict[str, str] = {}
    share_cores(chosen)
    assert chosen["OMP_WAIT_POLICY"] == "PASSIVE" and int(chosen["OMP_NUM_THREADS"]) <= 8
    assert "usable cores: OMP_NUM_THREADS=" in caplog.text and "PASSIVE" in caplog.text
    own = {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "ACTIVE"}
    share_cores(own)
    assert own == {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "ACTIVE"}
    spinning = {"GOMP_SPINCOUNT": "1000"}
    share_cores(spinning)
    assert "OMP_WAIT_POLICY" not in spinning


def test_the_command_line_sets_it_before_torch_is_imported() -> None:
    code = (
        "import os, sys\n"
        "for name in ('OMP_NUM_THREADS', 'OMP_WAIT_POLICY'): os.environ.pop(name, None)\n"
        "import prixlm.cli.app as cli\n"
        "def show():\n"
        "    assert 'torch' not in sys.modules\n"
        "    print(os.environ['OMP_WAIT_POLICY'], os.environ['OMP_NUM_THREADS'])\n"
        "cli.app = show\n"
        "cli.main()"
    )
    assert run_python(code).stdout == f"PASSIVE {usable_cores()}\n"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no second thread")
def test_a_waiting_thread_sleeps_while_another_works() -> None:
    """Between products the second thread has nothing to do, and must not take processor time."""
    code = (
        "import os, time\n"
        "from prixlm.threads import share_cores\n"
        "os.environ.pop('OMP_NUM_THREADS', None); os.environ.pop('OMP_WAIT_POLICY', None)\n"
        "share_cores(os.environ)\n"
        "import torch\n"
        "torch.set_num_threads(2)\n"
        "a = torch.rand(256, 256)\n"
        "a @ a\n"
        "def alone(seconds):\n"
        "    end = time.thread_time() + seconds\n"
        "    while time.thread_time() < end: pass\n"
        "main, whole = time.thread_time(), time.process_time()\n"
        "for _ in range(300):\n"
        "    alone(0.001)\n"
        "    a @ a\n"
        "main, whole = time.thread_time() - main, time.process_time() - whole\n"
        "print((whole - main) / main)"
    )
    share = float(run_python(code).stdout)
    assert share < 0.4, "the waiting thread took as much time as the working one"


def test_threads_share_a_few_heaps() -> None:
    code = (
        "import ctypes, threading\n"
        "from prixlm.threads import share_heaps\n"
        "share_heaps(2)\n"
        "libc = ctypes.CDLL(None)\n"
        "barrier = threading.Barrier(12)\n"
        "def work():\n"
        "    libc.malloc(1000)\n"
        "    barrier.wait()\n"
        "threads = [threading.Thread(target=work) for _ in range(12)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "libc.malloc_stats()"
    )
    arenas = re.findall(r"^Arena \d+:", run_python(code).stderr, re.MULTILINE)
    if not arenas:
        pytest.skip("needs glibc")
    assert len(arenas) <= 2


def test_threads_are_limited_inside_the_block_only() -> None:
    code = (
        "import torch; from prixlm.threads import limited_threads\n"
        "torch.set_num_threads(3)\n"
        "with limited_threads(1): print(torch.get_num_threads())\n"
        "print(torch.get_num_threads())"
    )
    assert run_python(code).stdout.split() == ["1", "3"]
