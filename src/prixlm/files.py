"""Files and folders that are whole or absent: atomic writes, locks, resumable work, full disks.

    with replacing(path) as temporary: ...          # one file
    with whole_folder(folder) as temporary: ...     # one folder
    with open_workspace(folder, stamp) as work:     # many parts, resumed after a kill
        part = work.make("part-0000001.parquet", write)

The rule behind all of them: write under a temporary name, flush to disk, rename. A rename is
atomic, so a killed process or a power cut leaves the old content or the new one, nothing between.
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
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from prixlm import remote
from prixlm.errors import PrixError
from prixlm.threads import usable_cores
from prixlm.untrusted import guard_formula

if TYPE_CHECKING:  # the parsing processes and `prixlm --help` do without them
    import duckdb
    import pyarrow as pa

STAMP = "stamp.json"
_MANIFEST = "manifest.json"
_KINDS = {
    "prixlm-kb": "a KB folder",
    "prixlm-proposals": "a proposals folder",
    "encoder.json": "an encoder folder",  # before the model: an encoder has its files too
    "prixlm.json": "a model folder",
    "graph.json": "a graph embedding",
    "report.json": "a report folder",
}
"""The kinds of folders that prixlm makes. A kind is the format in the folder's manifest.json or, of
folders without one, the file that is written last."""
_MAX_JSON = 256 << 20
"""Bytes of the largest JSON file that is read; ours have a few kB."""
_LOCK = "lock"
_PARTIAL = ".partial"
_RUNNING = "running"
_SIZES = "sizes.json"
_REPLACED = ".replaced"
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
    old = finished.parent / (to.name + _REPLACED)
    shutil.rmtree(old, ignore_errors=True)
    if to.exists():
        to.rename(old)
    finished.rename(to)
    shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True)
class Workspace:
    """A locked folder of finished parts, all made from the inputs that its stamp describes.

    The parts of a job towards a remote target are in the store, where any machine finds them; the
    folder then has copies.
    """

    folder: Path
    store: str | None = None  # URI of the parts; a hash of their inputs is in it

    def __str__(self) -> str:
        return self.store or str(self.folder)

    def finished(self) -> set[str]:
        """Return the names of all parts that are there."""
        if self.store is not None:
            return set(remote.list_names(self.store))
        return {path.name for path in self.folder.iterdir()}

    def fetch(self, part: str) -> Path:
        """Return the path of a finished part, after copying it from the store if it is there."""
        path = self.folder / part
        if self.store is not None and not path.exists():
            with replacing(path) as temporary:
                remote.fetch_file(f"{self.store}/{part}", temporary)
        return path

    def share(self, path: Path) -> Path:
        """Return where all machines find a file of this folder; `remote.local_copy` opens it."""
        if self.store is None:
            return path.resolve()
        shared = f"{self.store}/shared/{path.name}"
        if not remote.exists(shared):
            remote.upload(path, shared)
        return Path(shared)

    def make(self, name: str, write: Callable[[Path], object]) -> Path:
        """Return the part `name`, calling `write` with a temporary path if it is missing."""
        part = self.folder / name
        if not part.exists():
            with replacing(part) as temporary:
                write(temporary)
        return part

    def empty_folder(self, name: str) -> Path:
        """Return an empty folder `name`, for scratch files that are never resumed."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def start_run(self) -> Path:
        """Return an empty folder for temporary files of this run, and move that of the last away.

        It is renamed before it is deleted: a worker that outlived its driver on another machine
        finds its temporary files gone, and can publish nothing.
        """
        self.end_run()
        running = self.folder / _RUNNING
        running.mkdir()
        return running

    def end_run(self) -> None:
        """Remove the folder of temporary files, if there is one."""
        _end_run(self.folder / _RUNNING)

    def remove(self) -> None:
        """Delete the workspace: its result is published, or can never be made."""
        if self.store is not None:
            remote.remove_folder(self.store)
        # The lock goes last: a folder with content and no lock is taken for one of others.
        for path in self.folder.iterdir():
            if path.name != _LOCK:
                _remove(path)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def open_workspace(
    folder: Path, stamp: Mapping[str, Any], target: Path | None = None, *, wait: bool = False
) -> Iterator[Workspace]:
    """Lock a folder of resumable work, and empty it if it was made from other inputs.

    stamp: everything that the parts depend on, as JSON values.
    target: what is made; if it is remote, parts are kept beside it in the store.
    wait: for another process that works there, instead of an error.
    """
    with disk_errors(folder), locked(folder, wait=wait):
        if read_stamp(folder) != json.loads(json.dumps(stamp)):
            # The stamp goes first: a kill from here on leaves parts that nobody resumes.
            (folder / STAMP).unlink(missing_ok=True)
            _end_run(folder / _RUNNING)
            for path in folder.iterdir():
                if path.name != _LOCK:
                    _remove(path)
            write_atomically(folder / STAMP, json.dumps(stamp))
        store = None
        if target is not None and remote.is_remote(target):
            digest = hashlib.sha256(json.dumps(stamp, sort_keys=True).encode()).hexdigest()
            store = f"{remote.uri_of(target)}{_PARTIAL}/{digest[:24]}"
        yield Workspace(folder, store)


def _end_run(running: Path) -> None:
    """Delete the temporary files of a run so that none can be renamed from here on."""
    if running.exists():
        moved = running.with_name(f"{_RUNNING}.{uuid.uuid4().hex}")
        running.rename(moved)
        shutil.rmtree(moved, ignore_errors=True)


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


def read_stamp(folder: Path) -> Any:
    """Return the stamp of a workspace, or of a cache made in one; None if it has none."""
    try:
        return read_json(folder / STAMP)
    except (OSError, ValueError):  # absent or unreadable: the caller makes the folder again
        return None


def seal(folder: Path) -> None:
    """Write down the sizes of all files of a finished cache, for `is_cached`."""
    sizes = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }
    write_atomically(folder / _SIZES, json.dumps(sizes))


def _is_whole(folder: Path) -> bool:
    """Tell whether the files of a sealed cache are there in full; others are believed."""
    try:
        sizes = read_json(folder / _SIZES)
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except FileNotFoundError:
        return not (folder / _SIZES).exists()
    except (OSError, ValueError, AttributeError):
        return False


def is_cached(folder: Path, stamp: Mapping[str, Any]) -> bool:
    """Tell whether a cache with this stamp exists in full, and mark it as used."""
    if read_stamp(folder) != json.loads(json.dumps(stamp)) or not _is_whole(folder):
        return False
    with contextlib.suppress(OSError):  # a KB may lie on a disk that cannot be written
        (folder / STAMP).touch()
    return True


def drop_oldest_caches(parent: Path, keep: int) -> None:
    """Remove all but the `keep` caches below `parent` that were used last."""
    stamps = [
        path
        for path in parent.glob(f"*/{STAMP}")
        if not path.parent.name.endswith((_PARTIAL, _REPLACED))
    ]
    # `is_cached` touches the stamp, so its time is that of the last use.
    for stamp in sorted(stamps, key=lambda path: path.stat().st_mtime)[:-keep]:
        shutil.rmtree(stamp.parent, ignore_errors=True)


def partial_folder(target: Path) -> Path:
    """Return the folder in which the work towards `target` is done: `TARGET.partial`.

    The work towards a remote target is done in the cache of this machine.
    """
    if remote.is_remote(target):
        return remote.work_folder(target)
    return target.with_name(target.name + _PARTIAL)


def check_target(to: Path, sources: Iterable[Path], overwrite: bool, kind: str) -> Path:
    """Refuse to replace anything but a folder of the same kind; return the folder to work in.

    A folder is replaced only when asked, and only if it holds no source and no other result.
    kind: what will be written, a key of `_KINDS`.
    """
    target = to.resolve()
    if to.is_symlink() or target.exists():
        if not overwrite:
            raise PrixError(f"{to} is already there. Pass --overwrite, or name another folder.")
        if to.is_symlink():
            raise PrixError(f"{to} is a link, so it is not replaced. Name the folder itself.")
        _check_found(to, kind_of(to), kind)
        _check_nested(to)
    for source in sources:
        if source.resolve().is_relative_to(target):
            raise PrixError(f"{to} holds the source {source}. Write to another folder.")
    work = partial_folder(target)
    _check_work_folder(work)
    return work


def check_kind(to: Path, kind: str) -> None:
    """Refuse to write into a finished folder of another kind.

    For commands that resume in their own folder. kind: as in `check_target`.
    """
    found = kind_of(to)
    if found is not None:
        _check_found(to, found, kind)


def kind_of(folder: Path) -> str | None:
    """Return the kind of a folder, a key of `_KINDS`; None if prixlm did not make it."""
    try:
        values = read_json(folder / _MANIFEST)
    except (OSError, ValueError):
        values = None
    stated = values.get("format") if isinstance(values, dict) else None
    names = (kind for kind in _KINDS if kind == stated or (folder / kind).is_file())
    return next(names, None)


def _check_found(to: Path, found: str | None, kind: str) -> None:
    if found != kind:
        title = "a folder that prixlm did not make" if found is None else _KINDS[found]
        raise PrixError(
            f"{to}: found {title}, expected {_KINDS[kind]}. Only a folder of the same kind is "
            "replaced: name another folder."
        )


def _check_nested(to: Path) -> None:
    """Refuse a folder with a result inside: a review or a model would be deleted with it."""
    for name in (_MANIFEST, *_KINDS):
        for path in sorted(to.glob(f"*/**/{name}")):
            kind = kind_of(path.parent)
            if kind is not None:
                raise PrixError(
                    f"{to} holds {path.parent}, {_KINDS[kind]}, so it is not replaced. "
                    "Move that, or name another folder."
                )


def check_pages(data: Path, pages: Iterable[Path], is_ours: Callable[[Any], bool]) -> None:
    """Refuse to overwrite a result's JSON file and pages unless prixlm wrote them.

    is_ours: tells it from the values of `data`; pages without it are the user's.
    """
    written = [path for path in (data, *pages) if path.exists()]
    try:
        if not written or is_ours(read_json(data)):
            return
    except (OSError, ValueError):
        pass
    raise PrixError(
        f"{written[-1]} was not written by prixlm, so it is not overwritten. Name another folder."
    )


def check_new_file(out: Path) -> None:
    """Refuse to overwrite a file of results, or to work in a `.partial` folder that is not ours."""
    if remote.exists(out) if remote.is_remote(out) else out.exists():
        raise PrixError(f"{out} is already there. Move it, or name another file.")
    _check_work_folder(partial_folder(out))


def _check_work_folder(work: Path) -> None:
    # An empty folder is one that another command is making or removing at this moment.
    if work.exists() and not (work / _LOCK).is_file() and _has_content(work):
        raise PrixError(
            f"{work} is in the way: prixlm works in this folder but did not make it. "
            "Move it, or name another target."
        )


def _has_content(folder: Path) -> bool:
    try:
        return any(path.name != _LOCK for path in folder.iterdir())
    except FileNotFoundError:
        return False
    except NotADirectoryError:  # a file of others
        return True


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Create a folder and hold its lock: only one command at a time works in it.

    wait: for another one that holds the lock, instead of an error.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            opened = _open_own(folder / _LOCK)
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
            if _is_at(file.fileno(), folder / _LOCK):
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


ROW_FORMATS = (".parquet", ".tsv", ".csv", ".jsonl")


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


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
