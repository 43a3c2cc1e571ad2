"""The database file of marks: its schema, connections, and errors in plain words.

    database = MarksDatabase(folder, read_only=False)
    with database.writing() as db:
        db.execute("INSERT INTO ...")

SQLite in WAL mode with full synchronisation: what `writing` has committed survives a power cut,
and readers never wait. The file is created whole at the first write. What the tables mean is known
to `marks`.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from prixlm.errors import PrixError
from prixlm.files import replacing
from prixlm.proposals.tables import MARKS_FILE, OLD_MARKS_FILE, TABLES, table_path

_APPLICATION = int.from_bytes(b"PrxM")  # tells our databases from others
_BUSY_SECONDS = 20.0
"""Seconds that a write waits for another process; a server gives a request up after 30."""
_SCHEMA = f"""
    PRAGMA application_id = {_APPLICATION};
    PRAGMA user_version = 1;
    CREATE TABLE batches (
        batch INTEGER PRIMARY KEY,      -- from 1
        time TEXT NOT NULL,             -- UTC, ISO 8601
        reviewer TEXT NOT NULL,
        first INTEGER NOT NULL,         -- seq of its first mark, and one past its last
        stop INTEGER NOT NULL,
        bulk INTEGER NOT NULL,          -- 1: marked as a whole, not row by row
        undoes INTEGER UNIQUE,          -- the batch that this one takes back
        source TEXT UNIQUE              -- checksum of an imported file
    );
    CREATE TABLE marks (
        seq INTEGER PRIMARY KEY,        -- from 1
        batch INTEGER NOT NULL,
        tab INTEGER NOT NULL,           -- number of the table in TABLES
        row INTEGER NOT NULL,
        verdict INTEGER NOT NULL,       -- number in VERDICTS
        entity INTEGER, key TEXT, name TEXT   -- the replacement; no name: none
    );
    CREATE INDEX marks_by_row ON marks (tab, row);
    CREATE INDEX batches_by_reviewer ON batches (reviewer);
    CREATE TABLE proposals (stamp TEXT NOT NULL);   -- one row: the tables that were marked
"""
# The log is append-only for everyone, also for a person at the sqlite3 prompt.
_GUARDS = "".join(
    f"CREATE TRIGGER {table}_{action.lower()} BEFORE {action} ON {table} "
    "BEGIN SELECT RAISE(ABORT, 'marks are only appended'); END;"
    for table in ("batches", "marks", "proposals")
    for action in ("UPDATE", "DELETE")
)


class StorageError(PrixError):
    """The marks cannot be read or written. `status` is what a server answers."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Connection(sqlite3.Connection):
    """A connection that knows which files it was opened on."""

    files: tuple[object, ...] = ()


class MarksDatabase:
    """The database of a proposals folder, for several threads and processes at once.

    Each use takes a connection of its own from a pool. SQLite's locks order the processes.
    """

    def __init__(
        self,
        folder: Path,
        read_only: bool,
        check_values: Callable[[sqlite3.Connection], None],
        add_old: Callable[[sqlite3.Connection], None],
    ) -> None:
        """Remember a folder; nothing is opened yet.

        check_values: refuses, once a file, values that no mark has.
        add_old: adds the marks of `marks.json` to a copy for reading, unless it has them.
        """
        self.folder = folder
        self.read_only = read_only
        self.path, self.old = folder / MARKS_FILE, folder / OLD_MARKS_FILE
        self._check_values, self._add_old = check_values, add_old
        self._checked: object = None  # the file whose values were checked
        self._stamp = _stamp(folder)
        self._idle: list[_Connection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[_Connection]:
        """Yield a connection in a transaction: all statements see the same marks."""
        with _clear_errors(self.path):
            db = self._take() or self._connect()
            try:
                db.execute("BEGIN")
                yield db
            finally:
                self._give_back(db)

    @contextlib.contextmanager
    def writing(self) -> Iterator[_Connection]:
        """Yield a connection that holds the write lock; commit to disk at the end."""
        if self.read_only:
            raise StorageError(f"{self.folder}: the marks were opened for reading only.", 507)
        with _clear_errors(self.path):
            self._create()
            db = self._take(live=True) or self._connect_live()
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            finally:
                self._give_back(db)

    def _take(self, live: bool = False) -> _Connection | None:
        """Return an idle connection, if one is still on the files that are there now.

        live: only one on the database itself, not on a copy.
        """
        while True:
            with self._lock:
                usable = (db for db in reversed(self._idle) if _is_live(db) or not live)
                taken = next(usable, None)
                if taken is None:
                    return None
                self._idle.remove(taken)
            if taken.files == _identify(self.path, self.old, live=_is_live(taken)):
                return taken
            taken.close()

    def _give_back(self, db: _Connection) -> None:
        if db.in_transaction:
            db.execute("ROLLBACK")
        with self._lock:
            self._idle.append(db)

    def _connect(self) -> _Connection:
        """Open the database, or a copy in memory of marks that cannot be opened where they are."""
        if self.path.exists() and not (self.read_only and self.old.exists()):
            with contextlib.suppress(_NotWritable):
                return self._connect_live()
        return self._connect_copy()

    def _connect_live(self) -> _Connection:
        files = _identify(self.path, self.old, live=True)
        db = _connect(self.path, "ro" if self.read_only else "rw")
        try:
            db.execute("PRAGMA synchronous = FULL")
            self._check(db)
        except sqlite3.OperationalError as error:
            db.close()
            # WAL needs a file beside the database, which a read-only disk cannot have.
            if self.read_only and _code(error) in (
                sqlite3.SQLITE_CANTOPEN,
                sqlite3.SQLITE_READONLY,
            ):
                raise _NotWritable from None
            raise
        except BaseException:
            db.close()
            raise
        db.files = files
        return db

    def _connect_copy(self) -> _Connection:
        """Return a database in memory with the marks of the folder, for reading."""
        files = _identify(self.path, self.old, live=False)
        memory = _connect(None)
        if self.path.exists():
            self._copy_into(memory)
        else:
            memory.executescript(_SCHEMA)
        if self.old.exists():
            self._add_old(memory)
        memory.files = files
        return memory

    def _copy_into(self, memory: _Connection) -> None:
        try:
            with contextlib.closing(self._connect_live()) as db:
                db.backup(memory)
        except _NotWritable:
            # The log beside the database may hold marks that a killed process left there.
            with tempfile.TemporaryDirectory() as scratch:
                for name in (MARKS_FILE, f"{MARKS_FILE}-wal"):
                    if (self.folder / name).exists():
                        shutil.copyfile(self.folder / name, Path(scratch, name))
                with contextlib.closing(_connect(Path(scratch, MARKS_FILE), "rw")) as db:
                    self._check(db)
                    db.backup(memory)

    def _check(self, db: sqlite3.Connection) -> None:
        """Refuse a database that is not ours, or of other proposals."""
        if db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            raise sqlite3.DatabaseError("it is not a database of marks")
        if db.execute("PRAGMA user_version").fetchone()[0] != 1:
            raise PrixError(f"{self.path} was written by a newer prixlm: update prixlm.")
        # Before anything is asked: a folder of others may bring views that never end, or triggers.
        if _objects(db) not in (_our_objects(), _our_objects(guarded=False)):
            raise sqlite3.DatabaseError("its tables, views or triggers are not those of marks")
        if db.execute("SELECT stamp FROM proposals").fetchone() != (self._stamp,):
            raise StorageError(
                f"{self.path} holds marks of other proposals: move it back to its folder, or name "
                "the folder that these marks were made for.",
                503,
            )
        # Once a file, not for each connection: it reads all marks.
        file = _identify(self.path, self.old, live=True)
        if self._checked != file:
            self._check_values(db)
            self._checked = file

    def _create(self) -> None:
        """Create an empty database, whole or not at all; only one process does so."""
        if self.path.exists():
            return
        replaced = StorageError(
            f"{self.folder} was replaced while it was open: open it again.", 503
        )
        try:
            descriptor = os.open(self.folder, os.O_RDONLY)
        except FileNotFoundError:
            raise replaced from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if self.path.exists():
                return
            if _stamp(self.folder) != self._stamp:
                raise replaced
            with replacing(self.path) as temporary:
                temporary.unlink(missing_ok=True)
                with contextlib.closing(_connect(temporary, "rwc")) as db:
                    db.execute("PRAGMA journal_mode = WAL")
                    db.executescript(_SCHEMA)
                    db.execute("INSERT INTO proposals VALUES (?)", (self._stamp,))
                    db.executescript(_GUARDS)
                # The log of a database that was deleted would be taken for that of this one.
                for suffix in ("-wal", "-shm"):
                    self.path.with_name(f"{MARKS_FILE}{suffix}").unlink(missing_ok=True)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _objects(db: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Return kind, name and definition of all tables, indexes, views and triggers."""
    rows = db.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master").fetchall()
    return {
        (kind, name, " ".join(re.sub("--.*", "", sql).split()))
        for kind, name, sql in rows
        if not name.startswith("sqlite_stat")  # `ANALYZE` makes them
    }


@lru_cache(maxsize=2)
def _our_objects(*, guarded: bool = True) -> set[tuple[str, ...]]:
    """Return what `_objects` returns for a database that we made; a copy has no guards."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA + (_GUARDS if guarded else ""))
        return _objects(db)


class _NotWritable(Exception):
    """The database cannot be opened without writing beside it."""


def _connect(path: Path | None, mode: str = "") -> _Connection:
    """Open a database, or one in memory. Transactions are begun by hand."""
    if path is not None and path.is_symlink():  # SQLite would write what it leads to
        raise StorageError(f"{path} is a link, so it is not opened. Put the file itself here.", 503)
    name = ":memory:" if path is None else f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(
        name,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,  # one thread at a time: see `_take`
        factory=_Connection,
        uri=path is not None,
    )


def _is_live(db: _Connection) -> bool:
    return len(db.files) == 1


def _identify(path: Path, old: Path, *, live: bool) -> tuple[object, ...]:
    """Return what a connection depends on: the file, or for a copy the state of all files."""

    def stat(one: Path) -> tuple[int, ...] | None:
        try:
            found = one.stat()
        except FileNotFoundError:
            return None
        inode = (found.st_dev, found.st_ino)
        return inode if live else (*inode, found.st_size, found.st_mtime_ns)

    wal = path.with_name(f"{path.name}-wal")
    return (stat(path),) if live else (stat(path), stat(wal), stat(old))


@contextlib.contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Turn errors of the database and the disk into one clear line."""
    try:
        yield
    except sqlite3.Error as error:
        code = _code(error)
        status = 507
        if code == sqlite3.SQLITE_FULL:
            message = _full(path.parent)
        elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            status = 503
            message = f"{path} is in use by another command. Wait until it has finished."
        elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            message = f"cannot write {path}: make it and its folder writable."
        else:
            status = 500
            message = (
                f"{path} cannot be read ({error}): replace it by a copy of it, or move it away to "
                "begin the review again."
            )
        raise StorageError(message, status) from None
    except FileNotFoundError:  # `marks.json`, which another process has just imported
        raise
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"cannot write {path.parent}: {error.strerror}."
        raise StorageError(_full(path.parent) if is_full else text, 507) from None


def _full(folder: Path) -> str:
    return f"the disk of {folder} is full: free some space. No mark was added."


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary error code; 0 for our own errors."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _stamp(folder: Path) -> str:
    """Return a checksum of the tables' Parquet footers: row numbers mean nothing elsewhere.

    A footer holds the sizes and extreme values of every column, and equal runs write equal bytes.
    """
    checksum = hashlib.sha256()
    for table in TABLES:
        path = table_path(folder, table)
        if path.is_file():
            with path.open("rb") as file:
                # A Parquet file ends with the footer, its length in 4 bytes, and `PAR1`.
                file.seek(-8, os.SEEK_END)
                length = int.from_bytes(file.read(4), "little")
                file.seek(-8 - length, os.SEEK_END)
                checksum.update(f"{table} {length}\n".encode() + file.read(length))
    return checksum.hexdigest()
