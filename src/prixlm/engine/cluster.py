"""The Ray engine: shards on the actors of a pool, on one machine or many, with Ray Data.

Ray restarts actors that die and gives their shards to others. The bytes do not depend on it: parts
are renamed into place by `jobs.Worker`, which also bounds the tries of a shard.
"""

import contextlib
import logging
import os
import pickle
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from prixlm.engine.jobs import EngineConfig, Made, Shard, Task, open_worker
from prixlm.engine.local import use_one_thread
from prixlm.errors import PrixError
from prixlm.threads import limited_threads, usable_cores

_OBJECT_STORE = 100 << 20
"""Bytes of the object store of a Ray that we start: only numbers and short texts pass through."""
_PATIENCE = 5.0
"""Seconds that a cluster's port has to answer in."""


def run_on_ray(task: Task, shards: Sequence[Shard], config: EngineConfig) -> Iterator[Made]:
    """Make parts on a pool of actors, one shard a task."""
    with _connected(config) as ray:
        workers = min(config.workers or _count_workers(ray, config), len(shards))
        rows = [{"index": i, "shard": pickle.dumps(shard)} for i, shard in enumerate(shards)]
        # A block is what an actor takes at a time, and takes again when it has died.
        results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Actor,
            fn_constructor_args=(pickle.dumps(task),),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(
                min_size=1,
                max_size=workers,
                initial_size=workers,
                max_tasks_in_flight_per_actor=2,
            ),
            num_cpus=1,
            num_gpus=config.gpus_per_worker,
        )
        try:
            for row in results.iter_rows():
                if row["error"]:
                    raise PrixError(row["error"])
                yield shards[row["index"]], row["problem"] or None
        except ray.exceptions.RayError as error:
            text = (str(error).splitlines() or [""])[0][:300]
            raise PrixError(
                f"Ray stopped the job ({type(error).__name__}: {text}). Finished parts are kept; "
                "run the same command again."
            ) from error


class _Actor:
    """A worker on Ray. Errors are rows of its answers: an exception would end the whole job."""

    def __init__(self, payload: bytes) -> None:
        use_one_thread()
        self._error = ""
        try:
            self._worker = open_worker(payload)
        except PrixError as error:
            self._error = str(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        problem = None
        if not self._error:
            shard = pickle.loads(batch["shard"][0])  # noqa: S301  # from our own driver
            try:
                with limited_threads(1):  # it holds for a thread, and Ray may use another one
                    problem = self._worker.make(shard)
            except PrixError as error:
                self._error = str(error)
        return {
            "index": [int(batch["index"][0])],
            "problem": [problem or ""],
            "error": [self._error],
        }


@contextlib.contextmanager
def _connected(config: EngineConfig) -> Iterator[Any]:
    """Connect to the cluster, or start Ray on this machine, unless the caller has."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # the command prints its own errors
    import ray
    import ray.data
    import ray.exceptions

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if ray.is_initialized():
        yield ray
        return
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
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        if config.address is None:
            raise
        raise PrixError(_no_cluster(config.address, error)) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_port(address: str) -> None:
    """Refuse HOST:PORT where nobody listens: Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():  # such as `auto`, which Ray looks up itself
        return
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise PrixError(_no_cluster(address, error)) from None


def _no_cluster(address: str, error: Exception) -> str:
    reason = (str(error).splitlines() or [""])[0].rstrip(".")
    return (
        f"no Ray cluster at {address} ({reason}): start one with `ray start --head`, or leave out "
        "--address."
    )


def _count_workers(ray: Any, config: EngineConfig) -> int:
    """Return how many workers the cluster has room for."""
    resources = ray.cluster_resources()
    count = resources.get("CPU", 1)
    if config.gpus_per_worker:
        count = min(count, resources.get("GPU", 0) / config.gpus_per_worker)
    if count < 1:
        raise PrixError(
            f"the cluster has {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} "
            f"GPUs: not enough for a worker with {config.gpus_per_worker:g} GPUs."
        )
    return int(count)
