"""Folders that are there whole or not at all: atomic writes, locks, full disks, scratch space."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prixlm.errors import PrixError

if TYPE_CHECKING:  # the parsing processes do without it
    import duckdb


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all, also after a power cut."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def publish(finished: Path, to: Path) -> None:
    """Rename a finished folder into place; a folder that is there is replaced as a whole."""
    for path in finished.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    old = to.with_name(to.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if to.exists():
        to.rename(old)
    finished.rename(to)
    shutil.rmtree(old, ignore_errors=True)


def open_database(scratch: Path, memory: str) -> "duckdb.DuckDBPyConnection":
    """A DuckDB of limited memory that spills below `scratch`; order is what ORDER BY says."""
    if not re.fullmatch(r"\d+(\.\d+)? ?[KMGT]i?B", memory, re.IGNORECASE):
        raise PrixError(f"--memory {memory}: expected a size such as 800MB or 2GiB.")
    import duckdb

    db = duckdb.connect(str(scratch / "scratch.duckdb"))
    db.execute(f"SET memory_limit = '{memory}'")
    db.execute(f"SET temp_directory = {quote_path(scratch / 'spill')}")
    db.execute("SET preserve_insertion_order = false")
    db.execute("SET enable_progress_bar = false")
    return db


def quote_path(path: Path) -> str:
    """A path as a string of SQL."""
    return "'" + str(path).replace("'", "''") + "'"


@contextlib.contextmanager
def locked(work: Path) -> Iterator[None]:
    """Only one command at a time works towards one folder."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PrixError(
                f"another command that makes the same folder is running ({work})."
            ) from None
        yield


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """A full disk, or one that cannot be written, as one clear line."""
    import duckdb

    advice = "Free some space (or write to another disk) and run the same command again."
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise PrixError(f"the disk of {folder.parent} is full. {advice}") from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR):
            raise PrixError(f"cannot write {folder.parent}: {error.strerror}.") from None
        raise
    except duckdb.Error as error:
        text = str(error).splitlines()[0]
        if "no space" in text.lower() or "disk space" in text.lower():
            raise PrixError(f"the disk of {folder.parent} is full. {advice}") from None
        if isinstance(error, duckdb.OutOfMemoryException):
            raise PrixError(
                f"the joins ran out of memory: pass a larger --memory. {text}"
            ) from None
        raise
