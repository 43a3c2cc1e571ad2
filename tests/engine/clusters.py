"""A Ray cluster of three nodes on this machine: what its tests do to it, and what they look at."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prixlm.engine.jobs import EngineConfig

ROOT = Path(__file__).parents[2]
_STORE = 100 << 20


@contextmanager
def started() -> Iterator[Any]:
    """Start a cluster of three nodes of one CPU: a head, and two others."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Workers import the tests; nodes inherit the environment of the one that starts them.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "object_store_memory": _STORE},
        )
        for _ in range(2):
            add_node(made)
        yield made
        made.shutdown()


def on(nodes: Any, workers: int | None = 3) -> EngineConfig:
    return EngineConfig(kind="ray", address=nodes.address, workers=workers)


def add_node(nodes: Any) -> None:
    nodes.add_node(num_cpus=1, object_store_memory=_STORE)


def kill_node(nodes: Any, number: int) -> None:
    """End a node and its workers at once, without a good-bye."""
    node = sorted(nodes.worker_nodes, key=lambda node: str(node.unique_id))[number]
    nodes.remove_node(node, allow_graceful=False)


def workers_of(nodes: Any) -> list[int]:
    """The processes of this cluster's actors that make parts, and of no other cluster's.

    They are children of its raylets, and Ray names them after their class.
    """
    raylets = {
        started.process.pid
        for node in nodes.list_all_nodes()
        for started in node.all_processes.get("raylet", [])
    }
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if parent in raylets and command.startswith(b"ray::MapWorker"):
            found.append(int(stat.parent.name))
    return sorted(found)
