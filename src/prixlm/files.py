"""Files and folders that are whole or not there: atomic writes, locks, resumable work, full disks.

with replacing(path) as temporary: ...        # one file
with whole_folder(folder) as temporary: ...   # one folder
with open_workspace(folder, stamp) as work:   # many parts, resumed after a kill
    part = work.make("part-0000001.parquet", write)
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from prixlm.errors import PrixError

if TYPE_CHECKING:  # the parsing processes and `prixlm --help` do without them
    import duckdb
    import pyarrow as pa

STAMP = "stamp.json"
_LOCK = "lock"


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that it is whole or not there, even after a power cut."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a new temporary folder that takes the name `folder` when the block succeeds.

    Two processes may make the same folder at once: the first to finish wins.
    """
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in filter(Path.is_file, temporary.rglob("*")):
            _sync(path)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish(finished: Path, to: Path) -> None:
    """Rename a finished folder into place, replacing a folder that is there as a whole."""
    for path in filter(Path.is_file, finished.rglob("*")):
        _sync(path)
    old = finished.parent / "replaced"
    shutil.rmtree(old, ignore_errors=True)
    if to.exists():
        to.rename(old)
    finished.rename(to)
    shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True)
class Workspace:
    """A locked folder of finished parts, all made from the inputs that its stamp describes."""

    folder: Path

    def make(self, name: str, write: Callable[[Path], object]) -> Path:
        """Return the part `name`, calling `write` with a temporary path if it is not there yet."""
        part = self.folder / name
        if not part.exists():
            with replacing(part) as temporary:
                write(temporary)
        return part


@contextlib.contextmanager
def open_workspace(
    folder: Path, stamp: Mapping[str, Any], keep: Iterable[str] = ()
) -> Iterator[Workspace]:
    """Lock a folder of resumable work, and empty it if it was made from other inputs.

    stamp: everything that the parts depend on, as JSON values.
    keep: names of files that stay in any case, such as spooled input.
    """
    with disk_errors(folder), locked(folder):
        if read_stamp(folder) != json.loads(json.dumps(stamp)):
            for path in folder.iterdir():
                if path.name not in (_LOCK, *keep):
                    _remove(path)
            write_atomically(folder / STAMP, json.dumps(stamp))
        yield Workspace(folder)


def read_stamp(folder: Path) -> Any:
    """Return the stamp of a workspace or of a cache that was made in one; None without one."""
    try:
        return json.loads((folder / STAMP).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def is_cached(folder: Path, stamp: Mapping[str, Any]) -> bool:
    """Tell whether a cache of this stamp is there, and mark it as used."""
    if read_stamp(folder) != json.loads(json.dumps(stamp)):
        return False
    with contextlib.suppress(OSError):  # a KB may lie on a disk that cannot be written
        (folder / STAMP).touch()
    return True


def drop_oldest_caches(parent: Path, keep: int) -> None:
    """Remove all but the `keep` caches below `parent` that were used last."""
    stamps = [
        path for path in parent.glob(f"*/{STAMP}") if not path.parent.name.endswith(".partial")
    ]
    for stamp in sorted(stamps, key=lambda path: path.stat().st_mtime)[:-keep]:
        shutil.rmtree(stamp.parent, ignore_errors=True)


def partial_folder(target: Path) -> Path:
    """Return the folder in which the work towards `target` is done: `TARGET.partial`."""
    return target.with_name(target.name + ".partial")


def check_target(to: Path, sources: Iterable[Path], overwrite: bool) -> Path:
    """Refuse to replace anything but a folder of ours; return the folder to work in.

    A folder is replaced only when asked, and only if it has a manifest and holds no source.
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
    work = partial_folder(place)
    if work.exists() and not (work / _LOCK).is_file():
        raise PrixError(f"{work} is in the way and is not ours: move it, or write elsewhere.")
    return work


@contextlib.contextmanager
def locked(work: Path) -> Iterator[None]:
    """Hold the lock of a folder: only one command at a time works towards it."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PrixError(
                f"another command that makes the same folder is running ({work})."
            ) from None
        yield


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a full or read-only disk into one clear line."""
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


def open_database(scratch: Path, memory: str) -> "duckdb.DuckDBPyConnection":
    """Open a DuckDB of limited memory that spills below `scratch`.

    Row order is undefined unless a query has an ORDER BY.
    """
    if not re.fullmatch(r"\d+(\.\d+)? ?[KMGT]i?B", memory, re.IGNORECASE):
        raise PrixError(f"--memory {memory}: expected a size such as 800MB or 2GiB.")
    import duckdb

    path = str(scratch / "scratch.duckdb")
    db = duckdb.connect(path if "?" not in path else ":memory:")  # DuckDB takes `?` for options
    db.execute(f"SET memory_limit = '{memory}'")
    spill = str(scratch / "spill").replace("'", "''")
    db.execute(f"SET temp_directory = '{spill}'")
    db.execute("SET preserve_insertion_order = false")
    db.execute("SET enable_progress_bar = false")
    return db


def quote_path(path: Path) -> str:
    """Quote a path for SQL, with `*`, `?` and `[` escaped."""
    plain = re.sub(r"([*?\[])", r"[\1]", str(path))
    return "'" + plain.replace("'", "''") + "'"


ROW_FORMATS = (".parquet", ".tsv", ".csv", ".jsonl")


def write_rows(
    tables: "Iterable[pa.Table]", schema: "pa.Schema", out: Path, suffix: str | None = None
) -> None:
    """Write tables as one Parquet, TSV, CSV or JSONL file, chosen by its ending or `suffix`."""
    import pyarrow.parquet as pq

    suffix = suffix or out.suffix
    with replacing(out) as temporary, temporary.open("wb") as file:
        if suffix == ".parquet":
            with pq.ParquetWriter(file, schema) as writer:
                for table in tables:
                    writer.write_table(table)
            return
        if suffix != ".jsonl":
            delimiter = "," if suffix == ".csv" else "\t"
            file.write((delimiter.join(schema.names) + "\n").encode())
        for table in tables:
            _write_text(table, file, suffix)


def _write_text(table: "pa.Table", file: IO[bytes], suffix: str) -> None:
    import orjson
    import pyarrow.csv as pacsv

    if suffix == ".jsonl":
        for row in table.to_pylist():
            kept = {name: value for name, value in row.items() if value is not None}
            file.write(orjson.dumps(kept) + b"\n")
    elif suffix == ".tsv":  # the format has no quotes: tabs and line ends become spaces
        for row in table.to_pylist():
            cells = (
                "" if value is None else " ".join(str(value).split()) for value in row.values()
            )
            file.write(("\t".join(cells) + "\n").encode())
    else:
        options = pacsv.WriteOptions(include_header=False, quoting_style="needed")
        pacsv.write_csv(table, file, options)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
