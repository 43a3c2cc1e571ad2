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

from prixlm import (
    KB,
    Completer,
    EngineConfig,
    EnrichConfig,
    EntityEncoder,
    JobConfig,
    PrixError,
    PrixLM,
    SplitConfig,
    import_kb,
    remote,
    run_job,
    split_kb,
)
from prixlm.cli.evaluate import show_tables
from prixlm.decoding.batch import answer_file
from prixlm.decoding.completer import SearchConfig
from prixlm.errors import Stopped
from prixlm.evaluation.link_prediction import EvaluateConfig, evaluate_rankers
from prixlm.reports.tables import ResultTable
from tests.decoding.conftest import trained  # noqa: F401  # a fixture, for this room too
from tests.enrichment.helpers import FUSION, write_countries
from tests.helpers import run_prixlm

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
    monkeypatch.setattr(remote, "_PATIENCE", 0.1)
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
    for path in ("fsspec+file:///a/b", "fsspec+local:///a/b", "hdfs:///x", "hdfs://host:8020/x"):
        assert remote.uri_of(path) == path
    assert remote.uri_of(Path("fsspec+file:///a/b") / "c") == "fsspec+file:///a/b/c"
    assert remote.uri_of(Path("hdfs://host:8020/x")) == "hdfs://host:8020/x"
    assert remote.absolute("kb") == Path.cwd() / "kb"
    assert str(remote.absolute("s3://bucket/kb")) == "s3:/bucket/kb"


def test_a_local_folder_stays_where_it_is(tmp_path: Path) -> None:
    assert remote.local_folder(tmp_path) == tmp_path


def test_a_folder_of_this_machine_may_be_named_as_one_of_a_store(
    shared_toy: KB, tmp_path: Path
) -> None:
    uri = put_folder(shared_toy.folder, f"fsspec+file://{tmp_path}/store/kb")
    assert (tmp_path / "store" / "kb" / "manifest.json").is_file()
    assert KB(Path(uri)).fingerprint() == shared_toy.fingerprint()


def test_an_unknown_scheme_is_one_line() -> None:
    with pytest.raises(PrixError, match=r"ftq://x/y cannot be opened .*expected s3://BUCKET/NAME"):
        remote.local_folder("ftq://x/y")


@needs_server
def test_objects_that_no_disk_can_hold_are_refused_in_one_line(
    store: Proxy, tmp_path: Path
) -> None:
    (tmp_path / "x").write_text("x")
    for name in ("a", "a/b"):
        remote.upload(tmp_path / "x", f"s3://bucket/both/{name}")
    with pytest.raises(PrixError, match=r"has an object 'a' and another one 'a/b': no disk"):
        remote.local_folder("s3://bucket/both")
    remote.upload(tmp_path / "x", f"s3://bucket/long/{'n' * 300}")
    with pytest.raises(PrixError, match="not a name of a file in a folder"):
        remote.local_folder("s3://bucket/long")
    with pytest.raises(PrixError, match="not a name of a file in a folder"):
        remote.local_source(f"s3://bucket/long/{'n' * 300}")


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
@pytest.mark.parametrize("size", [1 << 10, 12 << 20])
@pytest.mark.parametrize("most_copied", [1 << 30, 0])
def test_an_upload_that_is_stopped_in_the_middle_leaves_nothing(
    store: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, most_copied: int
) -> None:
    """As by Ctrl-C, which may come at any block; an object of the same name stays, or is gone."""

    class Interrupted(type(tmp_path)):  # type: ignore[misc]
        def open(self, *_: object) -> "Interrupted":
            self.blocks = [b"x" * size]
            return self

        def __enter__(self) -> "Interrupted":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self, _: int) -> bytes:
            if not self.blocks:
                raise Stopped("stopped by Ctrl-C", 2)
            return self.blocks.pop()

    (tmp_path / "out").write_bytes(b"x" * size * 2)
    monkeypatch.setattr(remote, "_MOST_COPIED", most_copied)
    uri = f"s3://bucket/stopped-{size}-{most_copied}"
    with pytest.raises(Stopped):
        remote.upload(Interrupted(tmp_path / "out"), f"{uri}/out.parquet")
    assert remote.list_names(uri) == []
    if most_copied:
        remote.upload(tmp_path / "out", f"{uri}/out.parquet")
        with pytest.raises(Stopped):
            remote.upload(Interrupted(tmp_path / "out"), f"{uri}/out.parquet")
        remote.fetch_file(f"{uri}/out.parquet", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == (tmp_path / "out").read_bytes()
        assert remote.list_names(uri) == ["out.parquet"]


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


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """The content of all files of a folder but its locks."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "lock" not in path.name]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@needs_server
def test_a_kb_is_imported_into_the_store(store: Proxy, tmp_path: Path, cache: Path) -> None:
    sources = write_countries(tmp_path / "countries")
    local = import_kb(sources, tmp_path / "kb", langs=["en", "fi"])
    far = import_kb(sources, "s3://bucket/imports/kb", langs=["en", "fi"])
    assert folder_bytes(far.folder) == folder_bytes(local.folder)
    remote.fetch_folder("s3://bucket/imports/kb", tmp_path / "copy")
    assert folder_bytes(tmp_path / "copy") == folder_bytes(local.folder)
    with pytest.raises(PrixError, match=r"s3://bucket/imports/kb is already there"):
        import_kb(sources, "s3://bucket/imports/kb")
    far = import_kb(sources, "s3://bucket/imports/kb", langs=["en", "fi", "sv"], overwrite=True)
    assert far.languages == ["en", "fi", "sv"]
    remote.upload(sources[0], "s3://bucket/others/facts.tsv")
    with pytest.raises(PrixError, match=r"s3://bucket/others is not a KB: name another folder"):
        import_kb(sources, "s3://bucket/others", overwrite=True)
    with pytest.raises(PrixError, match="s3://bucket is a whole bucket"):
        import_kb(sources, "s3://bucket", overwrite=True)
    assert remote.exists("s3://bucket/others/facts.tsv")


@needs_server
@pytest.mark.parametrize("workers", [None, 2])
def test_dumps_are_imported_from_the_store(
    store: Proxy, tmp_path: Path, workers: int | None
) -> None:
    """One by one and as a folder; each worker fetches them for itself, as on its own machine."""
    sources = write_countries(tmp_path / "countries")
    local = import_kb(sources, tmp_path / "local")
    uris = [f"s3://bucket/dumps-{workers}/{path.name}" for path in sources]
    for path, uri in zip(sources, uris, strict=True):
        remote.upload(path, uri)
    store.cut_after = 1 << 8
    engine = EngineConfig(workers=workers)
    for name, given in (("files", uris), ("folder", [uris[0].rpartition("/")[0]])):
        far = import_kb(given, tmp_path / name, engine=engine)
        assert far.fingerprint() == local.fingerprint()
    changed = sources[0].read_text("utf-8").replace("en coin 4", "en coin 44")
    sources[0].write_text(changed, "utf-8")
    remote.upload(sources[0], uris[0])
    far = import_kb(uris, tmp_path / "changed")
    assert far.fingerprint() == import_kb(sources, tmp_path / "as-changed").fingerprint()
    assert far.fingerprint() != local.fingerprint()
    with pytest.raises(PrixError, match=r"^s3://bucket/dumps-none/x\.tsv is empty or not there"):
        import_kb(["s3://bucket/dumps-none/x.tsv"], tmp_path / "none")
    assert not (tmp_path / "none").exists()


@needs_server
def test_mentions_are_read_from_the_store(
    store: Proxy, shared_toy: KB, tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "m.txt").write_text("Suomi\nRanska\n", "utf-8")
    remote.upload(tmp_path / "m.txt", "s3://bucket/mentions/m.txt")
    for name, mentions in (("here", tmp_path / "m.txt"), ("there", "s3://bucket/mentions/m.txt")):
        out = tmp_path / f"{name}.tsv"
        ran = run_prixlm("link", "--kb", shared_toy.folder, "--mentions", mentions, "--out", out)
        assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "here.tsv").read_bytes() == (tmp_path / "there.tsv").read_bytes()
    bad = "s3://bucket/mentions/none.txt"
    ran = run_prixlm(
        "link", "--kb", shared_toy.folder, "--mentions", bad, "--out", tmp_path / "x.tsv"
    )
    assert ran.returncode == 2 and ran.stderr.startswith("prixlm: ") and bad in ran.stderr
    assert ran.stderr.count("\n") == 1


@needs_server
def test_a_kb_whose_upload_failed_is_not_a_kb_and_is_not_imported_again(
    store: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, uri = write_countries(tmp_path / "countries"), "s3://bucket/broken/kb"
    sent: list[str] = []
    real = remote.upload

    def upload(source: Path, path: Path | str) -> None:
        if len(sent) == 3:
            raise PrixError("the network is gone")
        sent.append(source.name)
        real(source, path)

    with monkeypatch.context() as patch:
        patch.setattr(remote, "upload", upload)
        with pytest.raises(PrixError, match="the network is gone"):
            import_kb(sources, uri)
    names = remote.list_names(uri)
    assert len(names) == 3 and remote.UPLOADING in names and "manifest.json" not in names
    with pytest.raises(PrixError, match=r"is not a KB folder: it has no manifest.json"):
        KB(uri)
    with monkeypatch.context() as patch:
        patch.setattr("prixlm.importers.run._join", None)  # what is staged need not be joined again
        kb = import_kb(sources, uri)
    local = import_kb(sources, tmp_path / "kb")
    assert folder_bytes(kb.folder) == folder_bytes(local.folder)
    assert remote.UPLOADING not in remote.list_names(uri)


@needs_server
def test_a_folder_is_replaced_as_a_whole_and_what_tells_its_kind_comes_last(
    store: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, uri = tmp_path / "work", "s3://bucket/whole/work"
    for name in ("work.json", "kb/manifest.json", "kb/triples.parquet", "old.txt", "lock"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    remote.upload_folder(folder, uri)
    (folder / "old.txt").unlink()
    sent: list[str] = []
    real = remote.upload

    def upload(source: Path, path: Path | str) -> None:
        if source.is_relative_to(folder):
            if not sent:
                assert not remote.exists(f"{uri}/work.json"), "readers are turned away meanwhile"
                assert not remote.exists(f"{uri}/kb/manifest.json")
            sent.append(source.relative_to(folder).as_posix())
        real(source, path)

    monkeypatch.setattr(remote, "upload", upload)
    remote.upload_folder(folder, uri)
    assert sent == ["kb/triples.parquet", "kb/manifest.json", "work.json"]
    assert remote.list_names(uri) == ["work.json"], "neither the lock nor what was there before"


@needs_server
def test_a_job_works_in_the_store_and_resumes_from_there(
    store: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, uri = write_countries(tmp_path / "countries"), "s3://bucket/jobs/work"
    proposals = EnrichConfig(into=("fi",), labels=True, fusion=FUSION)
    config = JobConfig(into=("fi",), effort="quick", enrich=proposals)
    local = run_job(sources, tmp_path / "work", config)
    far = run_job(sources, uri, config)
    assert far["proposals"] == local["proposals"]
    here, there = (folder_bytes(f) for f in (tmp_path / "work", remote.local_folder(uri)))
    tables = [name for name in here if name.endswith(".parquet")]
    assert here.keys() == there.keys() and len(tables) > 5
    assert all(here[name] == there[name] for name in tables)
    # Another machine, with an empty cache: what is there is not made again.
    monkeypatch.setenv("PRIXLM_CACHE", str(tmp_path / "other"))
    with monkeypatch.context() as patch:
        patch.setattr("prixlm.enrichment.job.import_kb", None)
        assert run_job(sources, uri, config)["proposals"] == local["proposals"]


@needs_server
def test_results_are_written_to_the_store(
    store: Proxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kb = import_kb(write_countries(tmp_path / "countries"), tmp_path / "kb")
    split = split_kb(kb, tmp_path / "split", SplitConfig(test=0.1, valid=0.1))
    config = EvaluateConfig()
    evaluate_rankers(split, config, tmp_path / "results")
    evaluate_rankers(split, config, Path("s3://bucket/results/lp"), engine=EngineConfig(workers=1))
    there = folder_bytes(remote.local_folder("s3://bucket/results/lp"))
    assert there.keys() == folder_bytes(tmp_path / "results").keys() and "table.json" in there
    table = ResultTable("A table")
    table.add("a method", "en", 0.5)
    show_tables([table], "xel", Path("s3://bucket/results/xel"), False)
    assert "Written to s3://bucket/results/xel." in capsys.readouterr().out
    assert remote.list_names("s3://bucket/results/xel") == ["xel.json", "xel.md"]


@needs_server
def test_an_encoder_of_the_store_is_sent_to_workers_as_its_uri(
    store: Proxy,
    trained: PrixLM,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The folder of the cache is there on this machine only."""
    trained.save(tmp_path / "encoder")
    uri = put_folder(tmp_path / "encoder", "s3://bucket/sent/encoder")
    encoder = EntityEncoder.load(uri)
    assert encoder.folder is not None and remote.uri_of(encoder.folder) == uri
    assert EntityEncoder.load(encoder.folder).fingerprint() == encoder.fingerprint()
