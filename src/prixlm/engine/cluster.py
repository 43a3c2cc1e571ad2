"""The Ray engine: shards on the actors of a pool, on one machine or many, with Ray Data.

Ray restarts actors that die and gives their shards to others. The bytes do not depend on it: parts
are renamed into place by `jobs.Worker`, which also bounds the tries of a shard.
"""

import contextlib
import importlib
import logging
import os
import re
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from prixlm.engine.jobs import (
    EngineConfig,
    Running,
    Shard,
    Task,
    check_versions,
    ended_message,
    open_worker,
)
from prixlm.errors import PrixError, Stopped
from prixlm.threads import limited_threads, usable_cores, use_one_thread
from prixlm.untrusted import log_to_stderr

_OBJECT_STORE = 100 << 20
"""Bytes of the object store of a Ray that we start: only numbers and short texts pass through."""
_PATIENCE = 5.0
"""Seconds that a cluster's port has to answer in."""
_SILENCE = 60.0
"""Seconds after which the command says that no worker has started."""
_LAST_STEP = 30.0
"""Seconds that a thread of Ray Data may still take after its executor was shut down."""
_log = logging.getLogger(__name__)


def run_on_ray(task: Task, shards: Sequence[Shard], config: EngineConfig) -> Running:
    """Make parts on a pool of actors, one shard a task."""
    with _connected(config) as ray:
        room = _check_room(ray, config)
        workers = min(config.workers or room, len(shards))
        _set_up_data(ray, task.tries * workers)
        # Beside each other, so that an actor can compare the versions before it reads the task.
        arguments = (task.versions, [ray.put((task, shards))])
        rows = [{"index": index} for index in range(len(shards))]
        # A block is what an actor takes at a time, and takes again when it has died.
        results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Actor,
            fn_constructor_args=arguments,
            batch_size=1,
            compute=_pool(ray, workers, min(config.workers or len(shards), len(shards))),
            num_cpus=1,
            num_gpus=config.gpus_per_worker,
        )
        try:
            # Closed here, so that the executor is shut down before the connection.
            with _watching(ray, task), contextlib.closing(iter(results.iter_rows())) as answers:
                for row in answers:
                    if row["error"]:
                        raise PrixError(row["error"])
                    yield shards[row["index"]], row["problem"] or None
        except (PrixError, Stopped):
            raise
        except Exception as error:  # Ray's errors have no common class
            raise PrixError(
                f"Ray stopped the job ({_reason(error)}). Finished parts are kept; run the same "
                "command again."
            ) from error


def _pool(ray: Any, workers: int, most: int) -> Any:
    """Return how many actors there are: at first, and at most, as machines join the cluster."""
    return ray.data.ActorPoolStrategy(
        min_size=1,  # machines may also leave
        max_size=most,
        initial_size=workers,
        # A second one would wait behind a long shard while other actors have nothing to do.
        max_tasks_in_flight_per_actor=1,
    )


def _set_up_data(ray: Any, init_deaths: int) -> None:
    """Set what Ray Data prints, and when it gives up.

    init_deaths: actors that may die while they load, one after another.
    """
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_consecutive_actor_init_deaths = init_deaths
    context.execution_no_progress_timeout_s = -1  # a shard may take longer than any limit of Ray's
    # Of shards in work by actors. Once all have one, Ray adds actors where machines have joined.
    context.autoscaling_config.actor_pool_util_upscaling_threshold = 1.0
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # the command prints its own errors


@contextlib.contextmanager
def _watching(ray: Any, task: Task) -> Iterator[None]:
    """Say once, after `_SILENCE` seconds, that no worker has started, and why."""
    ended = threading.Event()

    def watch() -> None:
        # Whatever fails here, the job itself reports.
        with contextlib.suppress(Exception):
            if not ended.wait(_SILENCE) and not task.parts.is_begun():
                _log.warning("%s", _describe_waiting(ray))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(_LAST_STEP)


def _describe_waiting(ray: Any) -> str:
    free, total = ray.available_resources(), ray.cluster_resources()
    counts = (
        f"{free.get(kind, 0):g} of {total[kind]:g} {kind}s"
        for kind in ("CPU", "GPU")
        if total.get(kind)
    )
    return (
        f"no worker has started after {_SILENCE:g} s: {' and '.join(counts)} of the cluster are "
        "free. Other jobs may hold the rest (`ray status`); waiting for them."
    )


def _reason(error: Exception) -> str:
    """Return an error of Ray in one line. That of a task ends with its cause, after a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[-1 if 'ray::' in lines[0] else 0][:300]}"


class _Actor:
    """A worker on Ray. Errors are rows of its answers: an exception would end the whole job."""

    def __init__(self, expected: dict[str, str], task: Sequence[Any]) -> None:
        """task: a list with a reference to the task and all shards; Ray would resolve it itself."""
        import ray

        log_to_stderr()
        use_one_thread()
        self._error = ""
        try:
            check_versions(expected)
            received, self._shards = ray.get(task[0])
            self._worker = open_worker(received)
        except Exception as error:
            self._error = _error_text(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        problem, index = None, int(batch["index"][0])
        if not self._error:
            try:
                with limited_threads(1):  # it holds for a thread, and Ray may use another one
                    problem = self._worker.make(self._shards[index])
            except Exception as error:
                self._error = _error_text(error)
        return {"index": [index], "problem": [problem or ""], "error": [self._error]}


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, PrixError) else ended_message(error)


@contextlib.contextmanager
def _connected(config: EngineConfig) -> Iterator[Any]:
    """Connect to the cluster, or start Ray on this machine, unless the caller has."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a late thread of Ray would connect again
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # the command prints its own errors
    import ray
    import ray.data
    import ray.exceptions

    if ray.is_initialized():
        yield ray
        return
    # Ray reads that variable when it is imported, which may have been before.
    importlib.import_module("ray._private.auto_init_hook").__dict__["enable_auto_connect"] = False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if config.address is None:
        options |= {
            "address": "local",  # not one that happens to run on this machine
            "num_cpus": config.workers or usable_cores(),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE,
            "_node_ip_address": "127.0.0.1",
        }
    else:
        _check_port(config.address)
        options["address"] = config.address
    with contextlib.nullcontext() if config.address is not None else _own_token():
        try:
            with _own_signals():
                ray.init(**options)
        except Exception as error:  # a machine that is too busy to start it is a plain `Exception`
            raise PrixError(_not_connected(config.address, error)) from error
        try:
            yield ray
        finally:
            _wait_for_executors()
            ray.shutdown()


@contextlib.contextmanager
def _own_token() -> Iterator[None]:
    """Let only this command use the Ray that it starts, unless the user has chosen how.

    Ray listens on all addresses of the machine, and whoever it lets in can run code.
    """
    if "RAY_AUTH_MODE" in os.environ:
        yield
        return
    before = os.environ.get("RAY_AUTH_TOKEN")
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    _read_token_again()
    try:
        yield
    finally:
        del os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"]
        if before is not None:
            os.environ["RAY_AUTH_TOKEN"] = before
        _read_token_again()


def _read_token_again() -> None:
    """Let Ray read its mode and token from the environment, as it does only once in a process."""
    raylet: Any = importlib.import_module("ray._raylet")
    with contextlib.suppress(AttributeError):  # of versions without tokens
        loader = raylet.AuthenticationTokenLoader.instance()
        raylet.Config.initialize("")
        loader.reset_cache()


def _wait_for_executors() -> None:
    """Wait for Ray Data's threads.

    An executor that is shut down waits two seconds for its own thread. On a busy machine the thread
    outlives that, and where Ray was imported before this module it would call `ray.init` again.
    """
    for thread in threading.enumerate():
        if thread.name.startswith("StreamingExecutor-"):
            thread.join(_LAST_STEP)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handler of SIGTERM: Ray's own ends the process without a message."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _check_port(address: str) -> None:
    """Refuse HOST:PORT where nobody listens: Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():  # such as `auto`, which Ray looks up itself
        return
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise PrixError(_not_connected(address, error)) from None


def _not_connected(address: str | None, error: BaseException) -> str:
    """Return what to tell the user when Ray could not be started, or did not let us in."""
    while error.__cause__ is not None:  # Ray may say only that it failed to connect
        error = error.__cause__
    lines = str(error).splitlines() or [type(error).__name__]
    reason = lines[0].rstrip(".")
    if address is None:
        return (
            f"Ray did not start on this machine ({reason}). Run the same command again when it is "
            "less busy, or use --workers without --engine ray."
        )
    if reason.startswith("Version mismatch"):
        # Four lines: Ray and Python of the cluster, then those of this process.
        found = re.findall(r"(?:Ray|Python): *(\S+)", str(error))
        if len(found) == 4:
            return (
                f"the Ray cluster at {address} has Ray {found[0]} and Python {found[1]}, and this "
                f"machine Ray {found[2]} and Python {found[3]}: install the same versions on all "
                "machines."
            )
    if "AuthenticationError" in f"{type(error).__name__} {error}":  # or in a traceback of its text
        return (
            f"the Ray cluster at {address} refused this command: set RAY_AUTH_MODE=token and the "
            "cluster's RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH."
        )
    return (
        f"no Ray cluster at {address} ({reason}): start one with `ray start --head`, or leave out "
        "--address."
    )


def _check_room(ray: Any, config: EngineConfig) -> int:
    """Return how many workers the cluster has room for; refuse one that would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(_room_on(node, config.gpus_per_worker) for node in nodes)
    if not room:
        cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
        raise PrixError(
            f"the cluster has {cpus:g} CPUs and {gpus:g} GPUs on {len(nodes)} machines: not enough "
            f"on any for a worker with {config.gpus_per_worker:g} GPUs."
        )
    return room


def _room_on(node: dict[str, float], gpus_per_worker: float) -> int:
    """Return how many workers fit on a machine: each needs a CPU, and GPUs of this machine."""
    cpus, gpus = int(node.get("CPU", 0)), int(node.get("GPU", 0))
    if not gpus_per_worker:
        return cpus
    if gpus_per_worker < 1:  # a worker's part is on one GPU; 1 / 0.1 must be ten
        return min(cpus, gpus * int(1 / gpus_per_worker + 1e-9))
    return min(cpus, int(gpus // gpus_per_worker))
