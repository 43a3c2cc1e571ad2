"""A tiny pretraining, its losses, and runs in processes of their own."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prixlm.lm.compact import CompactConfig
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import PretrainConfig
from prixlm.training.sampler import SupplyConfig
from tests.helpers import Ran

TINY = PretrainConfig(
    base="compact",
    epochs=6,
    batch=16,
    token_budget=256,
    supply=SupplyConfig(max_links=2),
    compact=CompactConfig(vocab=600, width=32, layers=2, heads=4),
    training=TrainingConfig(lr=5e-3, save_every=4, validate_every=5, log_every=1),
)


def losses(run: Path) -> dict[int, float]:
    """The training losses of a run, by step."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def run_processes(
    target: Callable[..., None], *args: Any, environments: list[dict[str, str]] | None = None
) -> list[int | None]:
    """Call a function in new processes, one for each environment, and return their exit codes.

    They are forked from a server that has imported torch, so that each starts at once.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.helpers"])
    processes = [
        context.Process(target=_with_environment, args=(environment, target, *args))
        for environment in environments or [{}]
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
    return [process.exitcode for process in processes]


def run_torchrun(*args: object, timeout: float) -> Ran:
    """Run a module in two processes on this machine's CPUs, started by `torchrun` itself."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), "-m"]
    pipe = subprocess.PIPE
    env = os.environ | {"ACCELERATE_USE_CPU": "true"}
    command += map(str, args)
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its processes
            raise
    return Ran(process.returncode, out, err)


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def two_processes() -> list[dict[str, str]]:
    """The environments that `torchrun` gives to two processes on one machine's CPUs."""
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    shared |= {"LOCAL_WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    return [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]


def _with_environment(environment: dict[str, str], target: Callable[..., None], *args: Any) -> None:
    os.environ.update(environment)
    target(*args)
