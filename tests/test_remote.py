"""Object stores: folders fetched once, objects whole or absent, connections that break.

The server is moto's S3, on loopback, behind a proxy that cuts connections on request.
"""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs
import pytest

from prixlm import KB, Completer, PrixError, PrixLM, remote
from prixlm.decoding.batch import answer_file
from prixlm.decoding.completer import SearchConfig
from tests.decoding.conftest import trained  # noqa: F401  # a fixture, for this room too

PYTHON = os.environ.get("PRIXLM_MOTO", sys.executable)  # one that has moto
needs_server = pytest.mark.skipif(
    sys.executable == PYTHON and importlib.util.find_spec("moto") is None, reason="needs moto"
)


class Proxy:
    """Passes connections on to a port; `cut_after` ends the next one after that many bytes."""

    def __init__(self, port: int) -> None:
        self.target, self.cut_after, self.num_cut = port, 0, 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        passed = 0
        try:
            while data := source.recv(1 << 14):
                passed += len(data)
                if self.cut_after and passed > self.cut_after:
                    self.cut_after = 0
                    self.num_cut += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._server.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """An S3 server with an empty bucket, behind a proxy; the environment names it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PYTHON, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.1)
    proxy = Proxy(port)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        filesystem, _ = pyarrow.fs.FileSystem.from_uri("s3://bucket?allow_bucket_creation=true")
        filesystem.create_dir("bucket")
        yield proxy
    proxy.close()
    server.terminate()
    server.wait()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test, and short pauses."""
    monkeypatch.setenv("PRIXLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.01)
    return tmp_path / "cache"


def put_folder(folder: Path, uri: str) -> str:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            remote.upload(path, f"{uri}/{path.relative_to(folder)}")
    return uri


def test_a_path_with_a_scheme_is_remote() -> None:
    for path in ("s3://bucket/kb", Path("s3://bucket/kb"), "gs://b/k", "fsspec+memory://x"):
        assert remote.is_remote(path)
    for path in ("kb", "/a/b", "./s3:x", "c:/kb", "http"):
        assert not remote.is_remote(path)
    assert remote.uri_of(Path("s3://bucket/kb")) == "s3://bucket/kb"
    assert remote.absolute("kb") == Path.cwd() / "kb"
    assert str(remote.absolute("s3://bucket/kb")) == "s3:/bucket/kb"


def test_a_local_folder_stays_where_it_is(tmp_path: Path) -> None:
    assert remote.local_folder(tmp_path) == tmp_path


def test_an_unknown_scheme_is_one_line() -> None:
    with pytest.raises(PrixError, match=r"ftq://x/y cannot be opened .*expected s3://BUCKET/NAME"):
        remote.local_folder("ftq://x/y")


@needs_server
def test_a_kb_is_fetched_once_and_again_when_it_changes(
    store: Proxy, shared_toy: KB, cache: Path
) -> None:
    uri = put_folder(shared_toy.folder, "s3://bucket/once")
    kb = KB(uri)
    assert kb.folder.is_relative_to(cache) and kb.fingerprint() == shared_toy.fingerprint()
    assert kb.find("Suomi", "fi") == shared_toy.find("Suomi", "fi")
    (kb.folder / "mark").touch()
    assert (KB(Path(uri)).folder / "mark").exists(), "not fetched again"
    remote.upload(shared_toy.folder / "manifest.json", f"{uri}/more.json")
    assert not (KB(uri).folder / "mark").exists()


@needs_server
def test_a_connection_that_breaks_in_the_middle_is_taken_up_again(
    store: Proxy, tmp_path: Path, cache: Path
) -> None:
    big = tmp_path / "big" / "data.bin"
    big.parent.mkdir()
    big.write_bytes(os.urandom(3 << 20))
    store.cut_after = 1 << 20
    remote.upload(big, "s3://bucket/cut/data.bin")
    assert store.num_cut == 1
    store.cut_after = 1 << 20
    fetched = remote.local_folder("s3://bucket/cut")
    assert (fetched / "data.bin").read_bytes() == big.read_bytes() and store.num_cut == 2
    assert not list(cache.rglob("*.tmp"))


@needs_server
def test_answers_are_the_same_from_and_to_the_store(
    store: Proxy,
    trained: PrixLM,  # noqa: F811
    shared_toy: KB,
    tmp_path: Path,
) -> None:
    trained.save(tmp_path / "model")
    (tmp_path / "q.tsv").write_text("lang\tsubject\trelation\nen\tFrance\tcapital\nxx\tA\tb\n")
    model = put_folder(tmp_path / "model", "s3://bucket/answers/model")
    # Of the same name: errors among the answers show it.
    kb = put_folder(shared_toy.folder, f"s3://bucket/answers/{shared_toy.folder.name}")
    remote.upload(tmp_path / "q.tsv", "s3://bucket/answers/q.tsv")
    local, far = tmp_path / "a.parquet", Path("s3://bucket/answers/a.parquet")
    config = SearchConfig(k=2)
    answer_file(Completer(tmp_path / "model", shared_toy), tmp_path / "q.tsv", local, config)
    answer_file(Completer(model, kb), "s3://bucket/answers/q.tsv", far, config)
    remote.fetch_file(far, tmp_path / "copy.parquet")
    assert (tmp_path / "copy.parquet").read_bytes() == local.read_bytes()
    filesystem, name = pyarrow.fs.FileSystem.from_uri("s3://bucket/answers/a.parquet.partial")
    assert not filesystem.get_file_info(name).is_file, "the parts are removed"
    with pytest.raises(PrixError, match="is already there"):
        answer_file(Completer(model, kb), "s3://bucket/answers/q.tsv", far, config)


@needs_server
def test_what_is_not_there_is_one_line(store: Proxy) -> None:
    with pytest.raises(PrixError, match="s3://bucket/none is empty or not there"):
        KB("s3://bucket/none")
    assert not remote.exists("s3://bucket/none.parquet")
    with pytest.raises(PrixError, match=r"none\.tsv is not there"):
        remote.fetch_file("s3://bucket/none.tsv", Path("none"))
