"""Jobs without a model: squares of numbers, with shards that fail, die or wait on request."""

import errno
import os
import shutil
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
        if (folder / f"full-{number}").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        if (folder / f"unmount-{number}").exists():
            shutil.rmtree(path.parent)
    time.sleep(seconds)
    path.write_text(f"{number} {number * number}\n")


def load_squares(folder: Path | None = None, seconds: float = 0.0) -> Callable[[int, Path], object]:
    """What a worker loads; files say that it fails, dies once, or dies in all but one worker."""
    if folder is not None:
        if (folder / "broken").exists():
            raise OSError("the model is not there")
        if (folder / "die-once-load").exists():
            (folder / "die-once-load").unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if (folder / "room-for-one").exists():
            try:
                (folder / "room-for-one").rename(folder / "room-for-none")
            except FileNotFoundError:
                os.kill(os.getpid(), signal.SIGKILL)
        elif (folder / "room-for-none").exists():
            os.kill(os.getpid(), signal.SIGKILL)
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


class OfOtherCode:
    """What a worker with other code cannot even read."""

    def __call__(self) -> Callable[[int, Path], object]:
        return load_squares()

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return _cannot_read, ()


def _cannot_read() -> object:
    raise AttributeError("no such class")
