"""Folders that are there whole or not at all: atomic writes, locks, full disks, scratch space."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
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
    old = finished.parent / "replaced"
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

    path = str(scratch / "scratch.duckdb")
    db = duckdb.connect(path if "?" not in path else ":memory:")  # which takes `?` for options
    db.execute(f"SET memory_limit = '{memory}'")
    spill = str(scratch / "spill").replace("'", "''")
    db.execute(f"SET temp_directory = '{spill}'")
    db.execute("SET preserve_insertion_order = false")
    db.execute("SET enable_progress_bar = false")
    return db


def quote_path(path: Path) -> str:
    """A path as a string of SQL, where `*`, `?` and `[` stand for themselves."""
    plain = re.sub(r"([*?\[])", r"[\1]", str(path))
    return "'" + plain.replace("'", "''") + "'"


def check_target(to: Path, sources: Iterable[Path], overwrite: bool) -> Path:
    """Refuse to write over anything but a KB; the folder in which the work is done.

    A folder that is there is replaced only when asked, and only if it is a KB and holds no source.
    """
    place = to.resolve()
    if to.is_symlink() or place.exists():
        if not overwrite:
            raise PrixError(f"{to} is already there. Pass --overwrite, or name another folder.")
        if to.is_symlink() or not (place / "manifest.json").is_file():
            raise PrixError(f"{to} is there and is not a KB folder: it is not replaced.")
    for source in sources:
        if source.resolve().is_relative_to(place):
            raise PrixError(f"{to} holds the source {source}: write to another folder.")
    work = place.with_name(place.name + ".partial")
    if work.exists() and not (work / "lock").is_file():
        raise PrixError(f"{work} is in the way, and it is not ours: move it, or write elsewhere.")
    return work


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write in the place of another: it takes its name at the end, or is removed."""
    work = path.with_name(path.name + ".tmp")
    try:
        yield work
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)


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
    import pyarrow

    advice = "Free some space (or write to another disk) and run the same command again."
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise PrixError(f"the disk of {folder.parent} is full. {advice}") from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR):
            raise PrixError(f"cannot write {folder.parent}: {error.strerror}.") from None
        raise
    except pyarrow.ArrowInvalid as error:
        text = str(error).splitlines()[0]
        raise PrixError(f"a Parquet file cannot be read ({text}). Import the KB again.") from None
    except duckdb.Error as error:
        text = str(error).splitlines()[0]
        if "no space" in text.lower() or "disk space" in text.lower():
            raise PrixError(f"the disk of {folder.parent} is full. {advice}") from None
        if isinstance(error, duckdb.OutOfMemoryException):
            raise PrixError(
                f"the joins ran out of memory: pass a larger --memory. {text}"
            ) from None
        raise
