"""The local engine: shards in this process, or in several that share the machine's cores."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from prixlm.engine.jobs import EngineConfig, Made, Shard, Task, Work, Worker, open_worker
from prixlm.errors import PrixError
from prixlm.threads import limited_threads

_READY, _MADE, _ERROR, _DIED = "ready", "made", "error", "died"
"""What a process reports: its state is loaded, a shard was tried, what the user has to fix."""
_EARLY = (
    "the worker processes ended before they had loaded their state. Either they were killed (check "
    "the memory), or the script needs `if __name__ == '__main__':` around its code."
)


def run_here(
    task: Task, work: Work | None, shards: Sequence[Shard], threads: int | None
) -> Iterator[Made]:
    """Make all parts in this process: the reference for all engines. threads: None for all."""
    worker = Worker(task, work)
    with limited_threads(threads) if threads else contextlib.nullcontext():
        for shard in shards:
            yield shard, worker.make(shard)


def run_in_processes(task: Task, shards: Sequence[Shard], config: EngineConfig) -> Iterator[Made]:
    """Make parts in several processes. One that dies is replaced, and its shard is tried again."""
    assert config.workers is not None
    payload = pickle.dumps(task)
    waiting = deque(shards)
    num_early = 0  # processes that died while they loaded, since the last one that did not
    processes: list[_Process] = []
    try:
        for number in range(min(config.workers, len(shards))):
            processes.append(_Process.start(payload, _devices(number, config)))
        while waiting or any(process.shard for process in processes):
            by_connection = {process.connection: process for process in processes}
            for connection in multiprocessing.connection.wait(list(by_connection)):
                assert isinstance(connection, Connection)
                process = by_connection[connection]
                kind, value = process.receive()
                if kind == _ERROR:
                    raise PrixError(value)
                if kind == _DIED:
                    num_early = 0 if process.is_ready else num_early + 1
                    if num_early == task.tries:
                        raise PrixError(_EARLY)
                    processes[processes.index(process)] = process.replace(payload)
                    continue
                if kind == _MADE and process.shard is not None:
                    made, process.shard = process.shard, None
                    yield made, value
                if process.shard is None and waiting:
                    process.shard = waiting.popleft()
                if process.shard is not None:
                    process.send(process.shard)
    finally:
        for process in processes:
            process.end()


@dataclass
class _Process:
    """A worker process, the pipe to it, and the shard that it is to make."""

    process: SpawnProcess
    connection: Connection
    devices: str | None
    shard: Shard | None = None
    is_ready: bool = False

    @classmethod
    def start(cls, payload: bytes, devices: str | None) -> "_Process":
        # Not fork: the threads of Arrow, DuckDB and torch do not survive it.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, payload, devices), daemon=True)
        process.start()
        theirs.close()  # so that the end of the process ends the pipe
        return cls(process, ours, devices)

    def receive(self) -> tuple[str, Any]:
        """Return what the process reports, also that it has died."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            return _DIED, None
        self.is_ready = True
        return kind, value

    def send(self, shard: Shard) -> None:
        """Give the process a shard. If it has died, `receive` says so."""
        with contextlib.suppress(OSError):
            self.connection.send(shard)

    def replace(self, payload: bytes) -> "_Process":
        """Return a new process that begins with the shard of this one."""
        self.end()
        successor = _Process.start(payload, self.devices)
        successor.shard = self.shard
        return successor

    def end(self) -> None:
        """Kill the process: what it has not published is of no use."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _devices(number: int, config: EngineConfig) -> str | None:
    """Return the GPUs of a worker, by number; None to leave the choice to torch."""
    count = int(config.gpus_per_worker)
    return ",".join(str(number * count + i) for i in range(count)) if count else None


def _serve(connection: Connection, payload: bytes, devices: str | None) -> None:
    """Run a worker process: load the state, then make the parts of the shards that arrive."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    use_one_thread()
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    try:
        worker = open_worker(payload)
        connection.send((_READY, None))
        with limited_threads(1):
            while True:
                connection.send((_MADE, worker.make(connection.recv())))
    except PrixError as error:
        connection.send((_ERROR, str(error)))


def use_one_thread() -> None:
    """Let this process compute with one thread; call it before torch or numpy are imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"


def end_with_parent() -> None:
    """End this process when its parent ends in any way."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch(sentinel: int = parent.sentinel) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
