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


@contextlib.contextmanager
def limited_threads(number: int) -> Iterator[None]:
    """Compute with a number of threads inside the block, in torch and in other libraries.

    Sums of several threads may differ in their last bits from those of one.
    """
    torch: Any = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ModuleNotFoundError):  # it comes with scikit-learn
            import threadpoolctl

            stack.enter_context(threadpoolctl.threadpool_limits(number))
        if torch is not None:
            torch.set_num_threads(number)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(before)


def share_heaps(most: int = 2) -> None:
    """Let all threads take memory from a few heaps; call it before they start.

    glibc gives up to eight heaps to each core. Each keeps what its threads once needed, so that the
    memory of a server with many threads grows until all of them had the largest request.
    """
    with contextlib.suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, most)


def usable_cores(cgroups: Path = _CGROUPS) -> int:
    """Return the cores that this process may use: its affinity, and its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS
        cores = os.cpu_count() or 1
    quota = _quota(cgroups)
    # Of 1.5 cores, two threads can use all.
    return cores if quota is None else max(1, min(cores, -int(-quota // 1)))


def _quota(cgroups: Path) -> float | None:
    """Return the cores that the container's quota allows; None if there is no quota."""
    try:
        if (cgroups / "cpu.max").is_file():  # version 2: "150000 100000", or "max 100000"
            quota, period = (cgroups / "cpu.max").read_text().split()
        else:  # version 1: -1 is no quota
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((cgroups / "cpu" / name).read_text().strip() for name in files)
        share = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return share if share > 0 else None
