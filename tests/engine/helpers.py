"""Jobs without a model: squares of numbers, with shards that fail, die or wait on request."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from prixlm import PrixError
from prixlm.engine.jobs import Shard, ShardJob

NUM_SHARDS = 12


def square(folder: Path | None, seconds: float, number: int, path: Path) -> None:
    """Write a number's square. `folder`: files that say what happens to a number, and a log."""
    if folder is not None:
        with (folder / "log").open("a") as file:
            file.write(f"{number} {os.getpid()}\n")
        if (folder / f"fail-{number}").exists():
            path.write_text("half a par")
            raise ValueError(f"no square of {number}")
        if (folder / f"die-{number}").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if (folder / f"die-once-{number}").exists():
            (folder / f"die-once-{number}").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if (folder / f"refuse-{number}").exists():
            raise PrixError(f"{number} is not to be squared.")
    time.sleep(seconds)
    path.write_text(f"{number} {number * number}\n")


def load_squares(folder: Path | None = None, seconds: float = 0.0) -> Callable[[int, Path], object]:
    """What a worker loads; a file `broken` makes it fail."""
    if folder is not None and (folder / "broken").exists():
        raise OSError("the model is not there")
    return partial(square, folder, seconds)


def squares(folder: Path | None = None, number: int = NUM_SHARDS, seconds: float = 0.0) -> ShardJob:
    """A job that squares numbers."""
    shards = [Shard(f"part-{index:03d}.txt", index, 2) for index in range(number)]
    return ShardJob("square", shards, partial(load_squares, folder, seconds))


def expected(number: int = NUM_SHARDS) -> list[str]:
    return [f"{index} {index * index}\n" for index in range(number)]


def tried(folder: Path) -> list[int]:
    """The numbers that workers began to square, sorted."""
    return sorted(int(line.split()[0]) for line in (folder / "log").read_text().splitlines())
