"""The local engine: shards in this process, or in several that share the machine's cores."""

import contextlib
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Literal

from prixlm.engine.jobs import (
    EngineConfig,
    Running,
    Shard,
    Task,
    Work,
    Worker,
    check_versions,
    ended_message,
    open_worker,
)
from prixlm.errors import PrixError
from prixlm.threads import limited_threads, use_one_thread
from prixlm.untrusted import log_to_stderr

_Report = Literal["started", "ready", "made", "error", "died"]
"""What a process reports: it can receive its task, its state is loaded, a shard was tried, or what
the user has to fix. That it died is concluded from the end of its pipe."""
_EARLY = (
    "the worker processes ended before they had loaded their state. Either they were killed (check "
    "the memory), or the script needs `if __name__ == '__main__':` around its code."
)
_log = logging.getLogger(__name__)


def run_here(
    task: Task, work: Work | None, shards: Sequence[Shard], threads: int | None
) -> Running:
    """Make all parts in this process: the reference for all engines. threads: None for all."""
    worker = Worker(task, work)
    with limited_threads(threads) if threads else contextlib.nullcontext():
        for shard in shards:
            yield shard, worker.make(shard)


def run_in_processes(task: Task, shards: Sequence[Shard], config: EngineConfig) -> Running:
    """Make parts in several processes. One that dies is replaced, and its shard is tried again."""
    assert config.workers is not None
    waiting = deque(shards)
    num_early = 0  # processes that died while they loaded, since the last one that did not
    processes: list[_Process] = []
    try:
        for devices in _devices(min(config.workers, len(shards)), config):
            processes.append(_Process.start(devices))
        while waiting or any(process.shard for process in processes):
            for process in _reporting(processes):
                kind, value = process.receive()
                match kind:
                    case "started":
                        process.send(task.versions)
                        process.send(task)
                    case "ready":
                        process.is_ready, num_early = True, 0
                    case "made":
                        assert process.shard is not None
                        made, process.shard = process.shard, None
                        yield made, value
                    case "error":
                        raise PrixError(value)
                    case "died":
                        num_early = 0 if process.is_ready else num_early + 1
                        _replace(process, processes, waiting, num_early == task.tries)
                        num_early %= task.tries  # each worker that is let go costs as many
            for process in processes:
                if process.is_ready and process.shard is None and waiting:
                    process.shard = waiting.popleft()
                    process.send(process.shard)
    finally:
        for process in processes:
            process.end()


def _replace(
    dead: "_Process", processes: "list[_Process]", waiting: deque[Shard], is_hopeless: bool
) -> None:
    """Start a process in the place of a dead one. If that is hopeless, let the others do its work.

    waiting: its shard is put back there.
    """
    dead.end()
    if dead.shard is not None:
        waiting.appendleft(dead.shard)
    position = processes.index(dead)
    if not is_hopeless:
        processes[position] = _Process.start(dead.devices)
        return
    del processes[position]
    if not any(process.is_ready for process in processes):
        raise PrixError(_EARLY)
    _log.warning("a worker ended again and again while it loaded: %d go on", len(processes))


@dataclass
class _Process:
    """A worker process, the pipe to it, and the shard that it is to make."""

    process: SpawnProcess
    connection: Connection
    devices: str | None
    shard: Shard | None = None
    is_ready: bool = False

    @classmethod
    def start(cls, devices: str | None) -> "_Process":
        # Not fork: the threads of Arrow, DuckDB and torch do not survive it.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, devices), daemon=True)
        process.start()
        theirs.close()  # so that the end of the process ends the pipe
        return cls(process, ours, devices)

    def receive(self) -> tuple[_Report, Any]:
        """Return what the process reports, also that it has died."""
        try:
            report: tuple[_Report, Any] = self.connection.recv()
        except (EOFError, OSError):
            return "died", None
        return report

    def send(self, value: object) -> None:
        """Send the process something. If it has died, `receive` says so."""
        with contextlib.suppress(OSError):
            self.connection.send(value)

    def end(self) -> None:
        """Kill the process: what it has not published is of no use."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _reporting(processes: "Sequence[_Process]") -> "list[_Process]":
    """Wait until some processes have something to say, and return these."""
    by_connection = {process.connection: process for process in processes}
    ready = multiprocessing.connection.wait(list(by_connection))
    return [process for connection, process in by_connection.items() if connection in ready]


def _devices(num_workers: int, config: EngineConfig) -> list[str | None]:
    """Return the GPUs of each worker, as CUDA names them; None to leave the choice to torch."""
    count = int(config.gpus_per_worker)
    if not count:
        return [None] * num_workers
    needed, gpus = num_workers * count, _usable_gpus()
    if gpus is None:
        gpus = list(map(str, range(needed)))
    if len(gpus) < needed:
        raise PrixError(
            f"{num_workers} workers with {count} GPUs each need {needed}, and this process may use "
            f"{len(gpus)}: pass a smaller --workers, or leave out --gpus-per-worker."
        )
    return [",".join(gpus[start : start + count]) for start in range(0, needed, count)]


def _usable_gpus() -> list[str] | None:
    """Return the GPUs that this process may use; None if that cannot be told."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:  # as Slurm sets it: "4,5", or by UUID; CUDA stops at the first "-1"
        names = (name.strip() for name in chosen.split(","))
        return list(itertools.takewhile(lambda name: name and name != "-1", names))
    torch: Any = sys.modules.get("torch")
    return None if torch is None else list(map(str, range(torch.cuda.device_count())))


def _serve(connection: Connection, devices: str | None) -> None:
    """Run a worker process: load the state, then make the parts of the shards that arrive."""
    log_to_stderr()
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    use_one_thread()
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices

    def report(kind: _Report, value: object = None) -> None:
        connection.send((kind, value))

    try:
        report("started")
        check_versions(connection.recv())
        worker = open_worker(connection.recv())
        report("ready")
        with limited_threads(1):
            while True:
                report("made", worker.make(connection.recv()))
    except (EOFError, BrokenPipeError):  # the parent has ended
        os._exit(1)
    except Exception as error:
        # Reported, not raised: the parent would replace the process and meet the same error again.
        with contextlib.suppress(OSError):
            report("error", str(error) if isinstance(error, PrixError) else ended_message(error))


def end_with_parent() -> None:
    """End this process when its parent ends in any way."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch(sentinel: int = parent.sentinel) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
