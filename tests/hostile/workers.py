"""What worker processes run in these tests: it is imported there, so it is small."""

import logging
from collections.abc import Callable
from pathlib import Path

EVIL = "\x1b]0;owned\x07\x1b[31m\u202e"


def log_evil(*_arguments: object) -> None:
    """Log hostile text, also through a handler that a library brought."""
    logging.getLogger("prixlm.kb").warning("%s is odd", EVIL)
    theirs = logging.getLogger("library")
    theirs.propagate, theirs.handlers = False, [logging.StreamHandler()]
    theirs.warning("%s of a library", EVIL)


def log_and_write(_number: int, path: Path) -> None:
    """Make a part, as a shard's work does."""
    log_evil()
    path.write_text("made\n")


def load_work() -> Callable[[int, Path], object]:
    """What a worker of the engine loads."""
    log_evil()
    return log_and_write
