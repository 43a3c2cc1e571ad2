"""Copies of what is in a store: connections that break at any byte, two that fetch, kills."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs
import pytest

from prixlm import PrixError, remote
from prixlm.errors import Stopped
from tests.test_remote import cache, folder_bytes  # noqa: F401  # a fixture, used by all


class Breaking:
    """The file system of this machine, whose streams break after so many bytes."""

    def __init__(self, after: int) -> None:
        self._files = pyarrow.fs.LocalFileSystem()
        self.after = after
        self.served = 0
        self.waits: threading.Event | None = None  # for which the first stream waits

    def get_file_info(self, what: object) -> object:
        return self._files.get_file_info(what)

    @contextlib.contextmanager
    def open_input_file(self, name: str) -> Iterator["Breaking._Stream"]:
        if self.waits is not None:
            waits, self.waits = self.waits, None
            assert waits.wait(30)
        with self._files.open_input_file(name) as stream:
            yield Breaking._Stream(self, stream)

    class _Stream:
        def __init__(self, store: "Breaking", stream: pyarrow.NativeFile) -> None:
            self._store, self._stream, self._left = store, stream, store.after
            self.seek = stream.seek

        def read(self, size: int) -> bytes:
            if not self._left:
                raise OSError("curlCode: 56, Failure when receiving data from the peer")
            block: bytes = self._stream.read(min(size, self._left))
            self._left -= len(block)
            self._store.served += len(block)
            return block


@pytest.fixture
def breaking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Breaking:
    """A store `test://`, which is `tmp_path`, whose streams break after 1,000 bytes."""
    store = Breaking(1000)
    name = "test://"
    monkeypatch.setattr(remote, "_open", lambda uri: (store, str(tmp_path / uri[len(name) :])))
    return store


def test_a_large_file_may_break_any_number_of_times(
    breaking: Breaking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only tries without a byte of progress count."""
    monkeypatch.setattr(remote, "_PATIENCE", 0.001)
    (tmp_path / "dump").write_bytes(os.urandom(20_500))
    slept: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", slept.append)
    copy = remote.local_source("test://dump")
    assert copy.read_bytes() == (tmp_path / "dump").read_bytes()
    assert len(slept) == 20 and max(slept) <= 1.5 * 0.01, "each pause is the first of its minute"


def test_what_a_failed_fetch_has_received_is_not_fetched_again(
    breaking: Breaking,
    tmp_path: Path,
    cache: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "kb").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "kb" / name).write_bytes(os.urandom(900))
    (tmp_path / "kb" / "b").write_bytes(os.urandom(1500))

    def stop(_: float) -> None:
        raise Stopped("stopped by Ctrl-C", 2)

    with monkeypatch.context() as patch:
        patch.setattr(remote.time, "sleep", stop)
        with pytest.raises(Stopped):
            remote.local_folder("test://kb")
    assert breaking.served == 900 + 1000
    copy = remote.local_folder("test://kb")
    assert folder_bytes(copy) == folder_bytes(tmp_path / "kb")
    assert breaking.served == 900 + 1500 + 900
    assert [path.name for path in (cache / "folders").glob("*.partial")] == []


def test_a_copy_that_is_there_needs_no_lock_and_a_fetch_waits_for_no_other_one(
    breaking: Breaking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slow", "quick"):
        (tmp_path / name).write_text(name)
    breaking.waits = go_on = threading.Event()
    slow = threading.Thread(target=remote.local_source, args=("test://slow",))
    slow.start()
    while breaking.waits is not None:
        time.sleep(0.01)
    assert remote.local_source("test://quick").read_text() == "quick"
    go_on.set()
    slow.join()
    monkeypatch.setattr("prixlm.files.locked", None)
    assert remote.local_source("test://slow").read_text() == "slow"


def test_a_store_that_does_not_answer_is_asked_for_a_minute_and_one_that_refuses_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "_PATIENCE", 60.0)
    monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.2)
    slept: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", slept.append)

    class FileSystem:
        message = "When resolving region for bucket 'b': AWS Error NETWORK_CONNECTION"

        @classmethod
        def from_uri(cls, _: str) -> None:
            raise OSError(cls.message)

    monkeypatch.setattr(pyarrow.fs, "FileSystem", FileSystem)
    with pytest.raises(PrixError, match=r"^s3://b/x cannot be read or written \(When resolving"):
        remote.local_folder("s3://b/x")
    first = slept.copy()
    assert 60 <= sum(first) <= 60 + 22.5 and len(first) >= 8
    with pytest.raises(PrixError):
        remote.local_folder("s3://b/x")
    assert slept[len(first) :] != first, "machines that lost a store together come back apart"
    slept.clear()
    FileSystem.message = "AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation"
    with pytest.raises(PrixError, match="NO_SUCH_BUCKET"):
        remote.local_folder("s3://b/x")
    assert slept == []


def test_a_folder_that_is_gone_may_be_removed(tmp_path: Path) -> None:
    """Two drivers with one target: the slower one finds the parts gone."""
    uri = f"fsspec+file://{tmp_path}/parts"
    remote.mark(f"{uri}/a")
    for _ in range(2):
        remote.remove_folder(uri)
    assert remote.list_names(uri) == []


def test_temporary_files_of_killed_processes_are_removed_and_those_of_others_stay(
    cache: Path,  # noqa: F811
) -> None:
    code = (
        "import sys, time; from prixlm.remote import scratch_folder; "
        "(scratch_folder() / 'x').touch(); print('ready', flush=True); time.sleep(60)"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)
    ]
    for process in started:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    killed, alive = started
    killed.kill()
    killed.communicate()
    assert len(list(cache.glob("temporary/*/x"))) == 2
    own = remote.scratch_folder()
    assert own == remote.scratch_folder() and len(list(cache.glob("temporary/*/x"))) == 1
    alive.terminate()
    alive.communicate()
