"""How many threads a command uses and how they wait: a busy machine costs its share, no more.

The threads of OpenMP meet at the end of every product. By default one that is early spins for about
a millisecond. Where other processes want the cores, it burns the time that the late one needs.
`share_cores` makes it sleep instead; OpenMP reads these settings once, when torch is imported.
"""

import contextlib
import ctypes
import logging
import os
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_LIMIT = "PRIXLM_THREADS"
"""Environment variable of worker processes: the cores that they may use. Not for users."""
_M_ARENA_MAX = -8  # of malloc.h
_log = logging.getLogger(__name__)


def share_cores(environment: MutableMapping[str, str]) -> None:
    """Set the number of threads and how they wait, unless the user has; log what was chosen.

    environment: `os.environ`, before torch is imported.
    """
    environment.setdefault("OMP_NUM_THREADS", str(usable_cores()))
    # Whoever sets how long threads spin has decided how they wait.
    if "GOMP_SPINCOUNT" not in environment:
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    chosen = (f"{name}={environment[name]}" for name in names if name in environment)
    _log.info("%d usable cores: %s", usable_cores(), " ".join(chosen))


def describe_threads() -> str:
    """Return one line that says how many threads this process computes with, and why."""
    number = os.environ.get("OMP_NUM_THREADS", "").strip() or str(usable_cores())
    # `share_cores` sets it too: as many as there are cores is what it would have chosen.
    is_ours = number == str(usable_cores())
    why = "the cores that this process may use" if is_ours else "OMP_NUM_THREADS"
    return f"{number} thread{'s' if number != '1' else ''}: {why}."


@contextlib.contextmanager
def limited_threads(number: int) -> Iterator[None]:
    """Compute with a number of threads inside the block, in torch, other libraries and our own.

    Sums of several threads may differ in their last bits from those of one.
    """
    torch: Any = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    limit_before = os.environ.get(_LIMIT)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ModuleNotFoundError):  # it comes with scikit-learn
            import threadpoolctl

            stack.enter_context(threadpoolctl.threadpool_limits(number))
        if torch is not None:
            torch.set_num_threads(number)
        os.environ[_LIMIT] = str(number)
        try:
            yield
        finally:
            os.environ.pop(_LIMIT)
            if limit_before is not None:
                os.environ[_LIMIT] = limit_before
            if torch is not None:
                torch.set_num_threads(before)


def share_heaps(most: int = 2) -> None:
    """Let all threads take memory from a few heaps; call it before they start.

    glibc gives up to eight heaps to each core. Each keeps what its threads once needed, so that the
    memory of a server with many threads grows until all of them had the largest request.
    """
    with contextlib.suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, most)


def use_one_thread() -> None:
    """Let this process compute with one thread; call it before torch or numpy are imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", _LIMIT):
        os.environ[name] = "1"
    import pyarrow

    pyarrow.set_cpu_count(1)


def usable_cores(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Return the cores that this process may use: its affinity, and its containers' quotas.

    In a worker of an engine: one, as long as all cores have workers.
    """
    limit = os.environ.get(_LIMIT, "")
    if limit.isdecimal():
        return max(1, int(limit))
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS
        cores = os.cpu_count() or 1
    quota = min(filter(None, map(_quota, _groups(cgroups, own))), default=None)
    # Of 1.5 cores, two threads can use all.
    return cores if quota is None else max(1, min(cores, -int(-quota // 1)))


def _groups(cgroups: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups and of all groups above them.

    own: lines as `0::/user.slice/job` (version 2) or `4:cpu,cpuacct:/job` (version 1). In a
    container, the group may be named as the host sees it; then only the root is there.
    """
    yield cgroups
    yield cgroups / "cpu"
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / "cpu" if controllers else cgroups
        parts = [part for part in group.split("/") if part]
        if ".." in parts:  # of a process that was moved out of its namespace
            continue
        for depth in range(1, len(parts) + 1):
            yield root.joinpath(*parts[:depth])


def _quota(group: Path) -> float | None:
    """Return the cores that the quota of a control group allows; None if it has no quota."""
    try:
        if (group / "cpu.max").is_file():  # version 2: "150000 100000", or "max 100000"
            quota, period = (group / "cpu.max").read_text().split()
        else:  # version 1: -1 is no quota
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((group / name).read_text().strip() for name in files)
        share = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return share if share > 0 else None
