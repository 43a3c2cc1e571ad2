"""The file of marks: processes at once, a kill, a damaged file, a disk that cannot be written."""

import errno
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prixlm import PrixError
from prixlm.proposals import database
from prixlm.proposals.database import StorageError
from prixlm.proposals.marks import Marks, NewMark, read_verdicts
from tests.helpers import fact_row, make_proposals, run_python

ADD_UNTIL_KILLED = """
import sys
from prixlm.proposals.marks import Marks, NewMark
marks = Marks.open(sys.argv[1])
for number in range(int(sys.argv[2]), 10**6):
    marks.add(f"r{number}", [NewMark("facts", number % 5, "accept"), NewMark("facts", 0, "skip")])
    print(number, flush=True)
"""
ADD_IN_THREADS = """
import sys, threading
from prixlm.proposals.marks import Marks, NewMark
marks = Marks.open(sys.argv[1])
def work(thread):
    for number in range(25):
        marks.add(f"{sys.argv[2]} {thread}", [NewMark("facts", number % 5, "reject")])
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
# Files are read as another user: root may write what is read-only.
READ_AS_NOBODY = """
import os, sys
from pathlib import Path
from prixlm.errors import PrixError
from prixlm.proposals.marks import Marks, NewMark, read_verdicts
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
folder = Path(sys.argv[1])
assert not os.access(folder, os.W_OK)
print(read_verdicts(folder, "facts").rows.tolist())
marks = Marks.open(folder, read_only=True)
print(marks.version == marks.version, len(marks.log()) > 0)
try:
    Marks.open(folder).add("Anna", [NewMark("facts", 1, "accept")])
except PrixError as error:
    print(error)
"""


@pytest.fixture
def marked(folder: Path) -> Path:
    """The folder with marks on rows 0 and 2."""
    marks = Marks.open(folder)
    marks.add("Anna", [NewMark("facts", 0, "accept"), NewMark("facts", 2, "reject")])
    marks.close()
    return folder


def kill_while_marking(folder: Path, start: int, acknowledged: int) -> int:
    """Add marks in a process that is killed after some acknowledgements; return the last one."""
    command = [sys.executable, "-c", ADD_UNTIL_KILLED, str(folder), str(start)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = start - 1
        for line in process.stdout:
            last = int(line)
            if last - start + 1 == acknowledged:
                process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    return last


def test_a_kill_loses_no_acknowledged_mark(folder: Path) -> None:
    start = 0
    for acknowledged in (1, 7, 30, random.Random(3).randrange(2, 60)):
        last = kill_while_marking(folder, start, acknowledged)
        marks = Marks.open(folder)
        entries = marks.log(limit=10**6)
        found = {entry.reviewer for entry in entries}
        assert {f"r{number}" for number in range(last + 1)} <= found
        assert len(entries) == 2 * len(found), "a batch is there as a whole"
        start = len(found)
        marks.close()
    assert start >= 39


def test_processes_with_threads_lose_nothing(folder: Path) -> None:
    """They begin without a database, so that they also create it at once."""
    (folder / "marks.json").write_text('{"proposals": {"1": true}}')
    processes = [
        subprocess.Popen([sys.executable, "-c", ADD_IN_THREADS, str(folder), name])
        for name in ("left", "right")
    ]
    assert [process.wait() for process in processes] == [0, 0]
    marks = Marks.open(folder)
    entries = marks.log(limit=10**6)
    assert marks.version == len(entries) == 201, "the old marks were imported once"
    assert sorted(entry.seq for entry in entries) == list(range(1, 202))
    for name in ("left", "right"):
        assert sum(entry.reviewer.startswith(name) for entry in entries) == 100
    marks.close()


def test_first_marks_that_come_at_once_make_one_database(folder: Path) -> None:
    """A second database in the place of the first would lose its marks."""
    for _ in range(10):
        opened = [Marks.open(folder) for _ in range(8)]
        barrier = threading.Barrier(len(opened))

        def add(marks: Marks, barrier: threading.Barrier) -> None:
            barrier.wait()
            marks.add("Anna", [NewMark("facts", 0, "accept")])

        threads = [threading.Thread(target=add, args=(marks, barrier)) for marks in opened]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert opened[0].version == len(opened)
        for marks in opened:
            marks.close()
        (folder / "marks.db").unlink()


def test_marks_of_another_process_are_seen_at_once(folder: Path) -> None:
    here, there = Marks.open(folder), Marks.open(folder, read_only=True)
    for number in range(3):
        here.add("Anna", [NewMark("facts", number, "accept")])
        assert there.version == number + 1
        assert there.verdicts("facts").rows.tolist() == list(range(number + 1))
    with pytest.raises(PrixError, match="opened for reading only"):
        there.add("Anna", [NewMark("facts", 1, "accept")])
    here.close()
    there.close()


@pytest.mark.parametrize("left", ["a whole file", "a log that was not merged", "marks.json"])
def test_marks_on_a_read_only_disk_are_read(folder: Path, tmp_path: Path, left: str) -> None:
    if left == "a log that was not merged":
        kill_while_marking(folder, 0, 5)
        (folder / "marks.db-shm").unlink()
        assert (folder / "marks.db-wal").stat().st_size > 0
        rows = [0, 1, 2, 3, 4]
    elif left == "marks.json":
        (folder / "marks.json").write_text('{"proposals": {"1": true}}')
        rows = [1]
    else:
        marks = Marks.open(folder)
        marks.add("Anna", [NewMark("facts", 2, "accept")])
        marks.close()
        rows = [2]
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555)
    before = sorted(folder.iterdir())
    # pytest's folders are closed to others; a worker of xdist has one more of them.
    for parent in (tmp_path, *tmp_path.parents[:3]):
        if parent != Path(tempfile.gettempdir()):
            parent.chmod(parent.stat().st_mode | 0o055)
    ran = run_python(READ_AS_NOBODY, folder)
    folder.chmod(0o755)
    assert ran.returncode == 0, ran.stderr
    first, second, error = ran.stdout.splitlines()
    assert first == str(rows) and second == "True True"
    assert error.startswith("cannot write") and "\n" not in error
    assert sorted(folder.iterdir()) == before


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "text":
        path.write_text("not a database")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "overwritten":
        path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    else:
        path.unlink()
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE notes (text)")
        db.close()


@pytest.mark.parametrize("how", ["text", "empty", "cut", "overwritten", "another database"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_file_is_one_clear_error(marked: Path, how: str, read_only: bool) -> None:
    damage(marked / "marks.db", how)
    with pytest.raises(PrixError) as caught:
        Marks.open(marked, read_only=read_only).verdicts("facts")
    message = str(caught.value)
    assert "marks.db cannot be read (" in message and "move it away to begin the review" in message
    assert "\n" not in message


def test_marks_of_other_proposals_are_refused(marked: Path, tmp_path: Path) -> None:
    """A row number means nothing in another run."""
    rows = [fact_row(number, confidence=0.7 - number / 10) for number in range(5)]
    other = make_proposals(tmp_path / "other", rows)
    shutil.copy(marked / "marks.db", other)
    for read_only in (False, True):
        with pytest.raises(PrixError, match="holds marks of other proposals"):
            Marks.open(other, read_only=read_only)
    same = tmp_path / "same"
    shutil.copytree(marked, same)
    assert read_verdicts(same, "facts").rows.tolist() == [0, 2]


def test_a_newer_file_is_refused(marked: Path) -> None:
    db = sqlite3.connect(marked / "marks.db")
    db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(PrixError, match="written by a newer prixlm"):
        Marks.open(marked)


def test_a_folder_that_was_replaced_is_not_marked(folder: Path, tmp_path: Path) -> None:
    marks = Marks.open(folder)
    shutil.rmtree(folder)
    make_proposals(folder, [fact_row(number, confidence=0.4) for number in range(5)])
    with pytest.raises(PrixError, match="was replaced while it was open"):
        marks.add("Anna", [NewMark("facts", 0, "accept")])


def test_a_file_that_was_put_back_is_the_one_that_is_marked(marked: Path) -> None:
    """A connection to the file that was there before would lose the marks."""
    marks = Marks.open(marked)
    shutil.copy(marked / "marks.db", marked / "copy")
    marks.add("Anna", [NewMark("facts", 1, "accept")])
    for name in ("marks.db-wal", "marks.db-shm"):
        (marked / name).unlink()
    (marked / "copy").replace(marked / "marks.db")
    marks.add("Bo", [NewMark("facts", 4, "reject")])
    assert read_verdicts(marked, "facts").rows.tolist() == [0, 2, 4]
    marks.close()


def test_the_log_of_a_deleted_file_does_not_come_back(folder: Path) -> None:
    kill_while_marking(folder, 0, 3)
    assert (folder / "marks.db-wal").exists()
    (folder / "marks.db").unlink()
    marks = Marks.open(folder)
    marks.add("Anna", [NewMark("facts", 4, "accept")])
    assert [entry.reviewer for entry in marks.log()] == ["Anna"]
    marks.close()


def test_every_commit_is_synchronised(folder: Path) -> None:
    """FULL: on disk before the answer. In WAL mode NORMAL would lose marks in a power cut."""
    marks = Marks.open(folder)
    marks.add("Anna", [NewMark("facts", 4, "accept")])
    with marks._database.writing() as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    marks.close()


def test_threads_at_once_keep_no_more_connections_than_threads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identify = database._identify

    def identify_slowly(*args: Any, **options: Any) -> tuple[object, ...]:
        time.sleep(1e-3)  # a look at the disk, during which other threads run
        return identify(*args, **options)

    monkeypatch.setattr(database, "_identify", identify_slowly)
    marks = Marks.open(folder)
    marks.add("Anna", [NewMark("facts", 0, "accept")])
    begin = threading.Barrier(8)

    def read() -> None:
        begin.wait()
        for _ in range(20):
            _ = marks.version

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(marks._database._idle) <= 9
    marks.close()


@pytest.mark.parametrize(
    ("number", "problem"),
    [(errno.ENOSPC, "is full"), (errno.EROFS, "cannot write"), (errno.EACCES, "cannot write")],
)
def test_a_disk_that_takes_no_first_mark_is_one_clear_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, problem: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number), "marks.db.tmp")

    monkeypatch.setattr(database, "replacing", fail)
    with pytest.raises(StorageError, match=problem) as caught:
        Marks.open(folder).add("Anna", [NewMark("facts", 0, "accept")])
    assert caught.value.status == 507
    assert not (folder / "marks.db").exists()


def test_a_database_that_another_process_holds_is_read_but_not_marked(
    marked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.2)
    marks = Marks.open(marked)
    other = sqlite3.connect(marked / "marks.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for write in (lambda: marks.add("Bo", [NewMark("facts", 1, "skip")]), lambda: marks.undo("Bo")):
        with pytest.raises(StorageError, match="in use by another command") as caught:
            write()
        assert caught.value.status == 503
    assert marks.version == 1 and len(marks.log()) == 2, "readers never wait"
    other.execute("ROLLBACK")
    other.close()
    assert marks.add("Bo", [NewMark("facts", 1, "skip")]) == 2
    marks.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 4 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no disk may be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_that_fills_up_loses_no_mark_and_takes_more_later(
    folder: Path, small_disk: Path
) -> None:
    own = Path(shutil.copytree(folder, small_disk / "proposals"))
    marks = Marks.open(own)
    number = 0
    with pytest.raises(StorageError, match="is full: free some space") as caught:
        for number in range(10_000):
            if number == 5:
                free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
                (small_disk / "other").write_bytes(bytes(free))
            marks.add(f"r{number}", [NewMark("facts", 0, "accept")])
    assert caught.value.status == 507 and number >= 5
    assert [entry.reviewer for entry in marks.log(1)] == [f"r{number - 1}"]
    assert marks.version == number
    (small_disk / "other").unlink()
    assert marks.add("later", [NewMark("facts", 0, "reject")]) == number + 1
    marks.close()
    assert len(read_verdicts(own, "facts").rows) == 1


def test_a_folder_that_is_gone_is_one_clear_error(folder: Path) -> None:
    marks = Marks.open(folder)
    shutil.rmtree(folder)
    with pytest.raises(StorageError, match="was replaced") as caught:
        marks.add("Anna", [NewMark("facts", 0, "accept")])
    assert caught.value.status == 503
