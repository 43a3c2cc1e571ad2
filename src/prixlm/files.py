"""Files and folders that are whole or absent: atomic writes, locks, damage, full disks.

    with replacing(path) as temporary: ...          # one file
    with whole_folder(folder) as temporary: ...     # one folder
    with locked(folder): ...                        # one command at a time

The rule behind all of them: write under a temporary name, flush to disk, rename. A rename is
atomic, so a killed process or a power cut leaves the old content or the new one, nothing between.
Many parts that are resumed after a kill are in `engine.workspace`.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from prixlm import remote
from prixlm.errors import PrixError
from prixlm.threads import usable_cores
from prixlm.untrusted import guard_formula

if TYPE_CHECKING:  # the parsing processes and `prixlm --help` do without them
    import duckdb
    import pyarrow as pa

_MAX_JSON = 32 << 20
"""Bytes of the largest JSON file that is read, in up to 24 times as much memory. Ours have a few
kB, the counts of a large KB a few MiB."""
LOCK = "lock"
"""File whose lock a command holds while it works in a folder."""
REPLACED = ".replaced"
"""Ending of a folder that is moved away by `publish`; after a kill, it may be left."""
_SKETCHED = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_WRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR)


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that it is whole or absent, even after a power cut."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


@contextlib.contextmanager
def replacing(path: Path, *, new: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds.

    The temporary name is fixed, so that the next attempt overwrites what a killed one left. Its
    lock is held meanwhile: another process or thread that writes the same path waits.
    A remote path gets its object when all of it is uploaded.
    new: for a result that must not replace another one. Refuse to wait for another command, and to
    replace a file that appeared since.
    """
    if remote.is_remote(path):
        with remote.uploading(path) as temporary:
            yield temporary
        return
    temporary = path.with_name(path.name + ".tmp")
    with _claimed(temporary, path, wait=not new):
        try:
            os.utime(temporary, (0, 0))  # to tell an empty file from one that nobody wrote
            yield temporary
            status = temporary.stat()
            if not status.st_size and not status.st_mtime:
                raise FileNotFoundError(errno.ENOENT, "nothing was written", str(temporary))
            _sync(temporary)
            if new:
                _name_new(temporary, path)
            else:
                temporary.replace(path)
        except BaseException:
            # Not after success: the name may be that of the next writer's file by then.
            temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _claimed(temporary: Path, path: Path, wait: bool) -> Iterator[None]:
    """Hold the lock of a temporary file, which is created or emptied."""
    while True:
        if temporary.is_symlink():  # in a folder of others: what it names must not be written
            temporary.unlink()
        with _open_own(temporary) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise PrixError(
                    f"another command is writing {path}. Wait until it has finished, or name "
                    "another file."
                ) from None
            except OSError:  # a file system without locks
                pass
            # Whoever held the lock has renamed or removed the file: take that of the next one.
            if _is_at(file.fileno(), temporary):
                file.truncate(0)
                yield
                return


@contextlib.contextmanager
def alone(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Write a result of several files while nobody else does: those of two runs must not mix.

    path: the first of the files, whose folder exists. Its lock beside it is removed in the end.
    wait: for another command that writes it; if false, refuse.
    """
    lock = path.with_name(path.name + ".lock")
    with _claimed(lock, path, wait):
        try:
            yield
        finally:  # while it is held: whoever waits for it finds it gone, and makes the next one
            lock.unlink(missing_ok=True)


def _open_own(path: Path) -> IO[bytes]:
    """Open or create a file of our own; refuse a link, which may name a file of others."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, 0o666), "r+b")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PrixError(f"{path} is a link, so it is not written. Delete it.") from None
        raise


def append_line(path: Path, line: str) -> None:
    """Add a line to a file of our own and flush it to disk; refuse a link, as `_open_own` does."""
    with _open_own(path) as file:
        file.seek(0, os.SEEK_END)
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def refuse_link(folder: Path) -> None:
    """Refuse a link in the place of a folder of our own: it may lead to files of others."""
    if folder.is_symlink():
        raise PrixError(
            f"{folder} is a link, so nothing is written there. Delete it, or move the folder "
            "itself there."
        )


def remove_path(path: Path) -> None:
    """Delete a file, a link or a folder with all that is in it; no link is followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _name_new(temporary: Path, path: Path) -> None:
    """Give a finished file its name; refuse if another file has it."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise PrixError(
            f"{path} was written by another command meanwhile. Move it, or name another file."
        ) from None
    except OSError:  # a file system without hard links
        temporary.replace(path)
    else:
        temporary.unlink()


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a new temporary folder that takes the name `folder` when the block succeeds.

    For results that do not depend on who makes them: if two processes or threads make the same
    folder at once, the first to finish wins and the other result is dropped.
    """
    maker = f"{os.getpid()}-{threading.get_ident()}"
    temporary = folder.with_name(f"{folder.name}.{maker}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        take_name(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def take_name(temporary: Path, path: Path) -> None:
    """Flush a finished file or folder to disk and rename it to `path`.

    If `path` is a folder already, another process or thread was faster: the first one stays.
    """
    if not temporary.is_dir():
        _sync(temporary)
        temporary.replace(path)
        return
    _sync_files(temporary)
    try:
        temporary.rename(path)  # fails if `path` is a folder that is not empty
    except OSError:
        if not path.is_dir():
            raise


def publish(finished: Path, to: Path) -> None:
    """Rename a finished folder into place, replacing a folder that is there as a whole.

    Between the two renames `to` is absent; after a kill there, the old folder is beside `finished`.
    """
    _sync_files(finished)
    # A folder cannot be renamed onto one that is not empty, so the old one is moved away first.
    old = finished.parent / (to.name + REPLACED)
    remove_path(old)
    if to.exists():
        to.rename(old)
    finished.rename(to)
    shutil.rmtree(old, ignore_errors=True)


def read_json(path: Path) -> Any:
    """Return the values of a JSON file; ValueError for whatever is not one, however it fails.

    Python's parser ends with RecursionError in brackets that are too deep.
    """
    if path.stat().st_size > _MAX_JSON:
        raise ValueError(f"{path.name} has more than {_MAX_JSON >> 20} MiB")
    return parse_json(path.read_text("utf-8"), path.name)


def parse_json(text: str | bytes, what: str) -> Any:
    """Return the values of a JSON text; ValueError also where it is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{what} is nested too deep") from None


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Create a folder and hold its lock: only one command at a time works in it.

    wait: for another one that holds the lock, instead of an error.
    """
    remote.check_local(folder)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            opened = _open_own(folder / LOCK)
        except FileNotFoundError:  # another command has finished and removed the folder just now
            continue
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                raise PrixError(
                    f"another command is running in {folder}. Wait until it has finished."
                ) from None
            # The command that held the lock may have removed or renamed the folder since the file
            # was opened. Then this lock protects nothing: take that of the new folder.
            if _is_at(file.fileno(), folder / LOCK):
                yield
                return


@contextlib.contextmanager
def first_alone(path: Path) -> Iterator[None]:
    """Let the first process that comes work alone; those that come meanwhile wait, then all go on.

    For work whose result is kept: the first one makes it, and the others find it. There is no time
    limit, and a process that dies lets the others go on.
    """
    with _open_own(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # shared: all that waited go on together
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, a read-only disk or a broken Parquet file into one clear line.

    path: what is being written. The line names its parent, since `path` may be a temporary name.
    """
    try:
        yield
    except Exception as error:
        message = _disk_message(error, path.parent)
        if message is None:
            raise
        raise PrixError(message) from None


def _disk_message(error: Exception, folder: Path) -> str | None:
    """Return what to tell the user about an error of the disk; None for any other error."""
    # An error of DuckDB or Arrow can only come from a module that is already imported.
    duckdb, pyarrow = sys.modules.get("duckdb"), sys.modules.get("pyarrow")
    text = (str(error).splitlines() or [""])[0]
    full = (
        f"the disk of {folder} is full. "
        "Free some space (or write to another disk) and run the same command again."
    )
    if isinstance(error, OSError):
        if error.errno in _FULL:
            return full
        if error.errno in _NOT_WRITABLE:
            return f"cannot write {folder}: {error.strerror}."
    elif pyarrow is not None and isinstance(error, pyarrow.ArrowInvalid):
        return f"a Parquet file cannot be read ({text}). Import the KB again."
    elif duckdb is not None and isinstance(error, duckdb.Error):
        if "no space" in text.lower() or "disk space" in text.lower():
            return full
        if isinstance(error, duckdb.OutOfMemoryException):
            return f"the joins ran out of memory: pass a larger --memory. {text}"
    return None


def damage_message(error: BaseException) -> str | None:
    """Return what to tell the user about a file that no library can read; None for other errors.

    Where a file is opened, an error names it. This is for what shows only while it is read.
    """
    # These errors can only come from a module that is already imported.
    duckdb, pyarrow = sys.modules.get("duckdb"), sys.modules.get("pyarrow")
    known: list[type[BaseException]] = [UnicodeDecodeError, zipfile.BadZipFile]
    if pyarrow is not None:
        known += [pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowSerializationError]
        known += [pyarrow.ArrowIndexError]  # of a page that a flipped bit has damaged
    if duckdb is not None:
        known += [duckdb.IOException, duckdb.InvalidInputException, duckdb.SerializationException]
        known += [duckdb.ConversionException, duckdb.OutOfRangeException]
    is_damage = isinstance(error, tuple(known))
    # DuckDB raises its base class for pages that it cannot decode; Arrow an OSError without number.
    is_damage |= duckdb is not None and type(error) is duckdb.Error
    if is_damage or (isinstance(error, OSError) and error.errno is None):
        text = (str(error).splitlines() or [type(error).__name__])[0][:300]
        return f"a file is damaged or not what prixlm wrote ({text}). Make it again."
    return None


def sketch(path: Path) -> str:
    """Return a hash of a file's size, its first and its last MiB: it tells two dumps apart at once.

    For copies of one file on several machines; what a result depends on is hashed as a whole.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_SKETCHED))
        file.seek(max(file.tell(), size - _SKETCHED))
        digest.update(file.read(_SKETCHED))
    return digest.hexdigest()


def open_database(scratch: Path, memory: str) -> "duckdb.DuckDBPyConnection":
    """Open a DuckDB database of limited memory that spills to files in `scratch`.

    Row order is undefined unless a query has an ORDER BY.
    """
    if not re.fullmatch(r"\d+(\.\d+)? ?[KMGT]i?B", memory, re.IGNORECASE):
        raise PrixError(f"--memory {memory}: expected a size such as 800MB or 2GiB.")
    import duckdb

    # A database in a file can spill its tables; DuckDB takes `?` in a name for options.
    path = str(scratch / "scratch.duckdb")
    db = duckdb.connect(path if "?" not in path else ":memory:")
    db.execute(f"SET memory_limit = '{memory}'")
    spill = str(scratch / "spill").replace("'", "''")
    db.execute(f"SET temp_directory = '{spill}'")
    db.execute("SET preserve_insertion_order = false")
    db.execute("SET enable_progress_bar = false")
    db.execute(f"SET threads = {usable_cores()}")
    return db


def quote_path(path: Path) -> str:
    """Quote a path for SQL, with `*`, `?` and `[` escaped."""
    plain = re.sub(r"([*?\[])", r"[\1]", str(path))
    return "'" + plain.replace("'", "''") + "'"


def parquet_rows(*paths: Path) -> str:
    """Return the rows of Parquet files as a table of SQL.

    Without this option, DuckDB puts `fi` into the column `lang` of every file below `lang=fi/`.
    """
    return f"read_parquet([{', '.join(map(quote_path, paths))}], hive_partitioning = false)"


ROW_FORMATS = (".parquet", ".tsv", ".csv", ".jsonl")
_ROW_GROUP = 1 << 16
"""Rows that a row group of a result has at least: readers go group by group."""


def write_rows(
    tables: "Iterable[pa.Table]",
    schema: "pa.Schema",
    out: Path,
    suffix: str | None = None,
    *,
    new: bool = False,
) -> None:
    """Write tables as one Parquet, TSV, CSV or JSONL file, chosen by its ending or `suffix`.

    They are written one by one, so that a result may be larger than memory. In TSV and CSV, an
    apostrophe stands before a text that a spreadsheet would compute (`guard_formula`).
    """
    import pyarrow.parquet as pq

    suffix = suffix or out.suffix
    with replacing(out, new=new) as temporary, temporary.open("wb") as file:
        if suffix == ".parquet":
            with pq.ParquetWriter(file, schema) as writer:
                for table in _merged(tables):
                    writer.write_table(table, max(1, table.num_rows))
            return
        if suffix != ".jsonl":
            delimiter = "," if suffix == ".csv" else "\t"
            file.write((delimiter.join(schema.names) + "\n").encode())
        for table in tables:
            _write_text(table, file, suffix)


def _merged(tables: "Iterable[pa.Table]") -> "Iterator[pa.Table]":
    """Join tables until they have the rows of a row group; which ones depends on them alone."""
    import pyarrow as pa

    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(part.num_rows for part in held) >= _ROW_GROUP:
            yield pa.concat_tables(held).combine_chunks()
            held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _write_text(table: "pa.Table", file: IO[bytes], suffix: str) -> None:
    import orjson
    import pyarrow.csv as pacsv

    if suffix == ".jsonl":
        for row in table.to_pylist():
            kept = {name: value for name, value in row.items() if value is not None}
            file.write(orjson.dumps(kept) + b"\n")
    elif suffix == ".tsv":  # the format has no quotes: tabs and line ends become spaces
        for row in table.to_pylist():
            cells = (_tsv_cell(value) for value in row.values())
            file.write(("\t".join(cells) + "\n").encode())
    else:
        options = pacsv.WriteOptions(include_header=False, quoting_style="needed")
        pacsv.write_csv(_guard_texts(table), file, options)


def _tsv_cell(value: object) -> str:
    if value is None:
        return ""
    text = " ".join(str(value).split())
    return guard_formula(text) if isinstance(value, str) else text


def _guard_texts(table: "pa.Table") -> "pa.Table":
    """Return a table whose texts no spreadsheet computes; its numbers stay as they are."""
    import pyarrow as pa

    for position, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            texts = table.column(position).to_pylist()
            cells = [None if text is None else guard_formula(text) for text in texts]
            table = table.set_column(position, field, pa.array(cells, field.type))
    return table


def _sync(path: Path) -> None:
    """Flush a file to disk: a rename may reach the disk before the data that it names."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_files(folder: Path) -> None:
    for path in filter(Path.is_file, folder.rglob("*")):
        _sync(path)


def _is_at(descriptor: int, path: Path) -> bool:
    """Tell whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
