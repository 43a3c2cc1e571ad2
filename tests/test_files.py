"""Files and folders that are whole or absent: kills, locks, damage, disk errors."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import PrixError, files
from prixlm.files import (
    damage_message,
    disk_errors,
    first_alone,
    locked,
    open_database,
    publish,
    quote_path,
    read_json,
    replacing,
    sketch,
    take_name,
    whole_folder,
    write_atomically,
    write_rows,
)
from tests.helpers import run_killed


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_block_that_succeeds_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and names(tmp_path) == ["a.tar.gz"]


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and names(tmp_path) == ["a"]
    with pytest.raises(FileNotFoundError), replacing(path):
        pass  # nothing was written
    assert path.read_text() == "old"


def test_the_data_is_on_disk_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("sync") or sync(fd))
    monkeypatch.setattr(Path, "replace", lambda a, b: calls.append("rename") or replace(a, b))
    write_atomically(tmp_path / "a", "text")
    assert calls == ["sync", "rename"]


def test_a_kill_between_write_and_rename_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, "old")
    run_killed(
        "from prixlm import files\n"
        "files._sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"files.write_atomically(Path({str(path)!r}), 'new')"
    )
    assert path.read_text() == "old"
    write_atomically(path, "newer")  # the leftover of the killed process is overwritten
    assert path.read_text() == "newer" and names(tmp_path) == ["a"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "deep" / "folder") as temporary:
        (temporary / "a").write_text("1")
        assert not (tmp_path / "deep" / "folder").exists()
    assert names(tmp_path / "deep") == ["folder"]
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "other") as temporary:
        (temporary / "a").write_text("1")
        raise ZeroDivisionError
    assert names(tmp_path) == ["deep"]


def test_of_two_processes_that_make_one_folder_the_first_to_finish_wins(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with whole_folder(folder) as slow:
        (slow / "who").write_text("slow")
        code = (
            "from pathlib import Path\nfrom prixlm.files import whole_folder\n"
            f"with whole_folder(Path({str(folder)!r})) as quick:\n"
            "    (quick / 'who').write_text('quick')"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
    assert (folder / "who").read_text() == "quick" and names(tmp_path) == ["folder"]


def test_of_two_threads_that_make_one_folder_the_first_to_finish_wins(tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    def make() -> None:
        with whole_folder(folder) as quick:
            (quick / "who").write_text("quick")

    with whole_folder(folder) as slow:
        (slow / "who").write_text("slow")
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        assert (slow / "who").read_text() == "slow", "one thread does not touch another's files"
    assert (folder / "who").read_text() == "quick" and names(tmp_path) == ["folder"]


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("x")
    with pytest.raises(OSError), whole_folder(tmp_path / "folder"):
        pass
    assert names(tmp_path) == ["folder"]


def test_a_published_folder_replaces_the_old_one_as_a_whole(tmp_path: Path) -> None:
    for name, file in (("kb", "old"), ("kb.partial/out", "new")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / file).write_text("x")
    publish(tmp_path / "kb.partial" / "out", tmp_path / "kb")
    assert names(tmp_path / "kb") == ["new"] and names(tmp_path / "kb.partial") == []


def test_a_kill_while_publishing_loses_neither_folder(tmp_path: Path) -> None:
    (tmp_path / "kb").mkdir()
    (tmp_path / "kb" / "old").touch()
    (tmp_path / "kb.partial" / "out").mkdir(parents=True)
    (tmp_path / "kb.partial" / "out" / "new").touch()
    run_killed(
        "from prixlm import files\n"
        "rename, calls = Path.rename, []\n"
        "def count(path, to):\n"
        "    calls.append(to)\n"
        "    if len(calls) == 2:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return rename(path, to)\n"
        "Path.rename = count\n"
        f"root = Path({str(tmp_path)!r})\n"
        "files.publish(root / 'kb.partial' / 'out', root / 'kb')"
    )
    assert names(tmp_path / "kb.partial") == ["kb.replaced", "out"]
    publish(tmp_path / "kb.partial" / "out", tmp_path / "kb")
    assert names(tmp_path / "kb") == ["new"] and names(tmp_path / "kb.partial") == []


def test_two_files_that_differ_in_size_or_at_an_end_have_two_sketches(tmp_path: Path) -> None:
    contents = [b"a" * 10, b"a" * 11, b"", b"b" + b"a" * (3 << 20), b"a" * (3 << 20) + b"b"]
    found = set()
    for number, content in enumerate(contents):
        (tmp_path / f"{number}").write_bytes(content)
        (tmp_path / "copy").write_bytes(content)
        assert sketch(tmp_path / f"{number}") == sketch(tmp_path / "copy")
        found.add(sketch(tmp_path / "copy"))
    assert len(found) == len(contents)


def test_the_first_works_alone_and_those_that_waited_go_on_together(tmp_path: Path) -> None:
    path, made = tmp_path / "lock", tmp_path / "made"
    together = threading.Barrier(2, timeout=20)
    found: list[bool] = []

    def late() -> None:
        with first_alone(path):
            found.append(made.exists())
            together.wait()  # passes only if both are inside

    with first_alone(path):
        threads = [threading.Thread(target=late) for _ in range(2)]
        for thread in threads:
            thread.start()
        threads[0].join(0.3)
        assert not found, "they wait"
        made.touch()
    for thread in threads:
        thread.join(30)
    assert found == [True, True]


def test_the_lock_of_a_folder_that_was_removed_meanwhile_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, calls = fcntl.flock, []

    def remove_first(file: object, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:  # the command that held the lock finishes between open and flock
            (tmp_path / "work" / "lock").unlink()
        flock(file, how)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with locked(tmp_path / "work"):
        assert len(calls) == 2 and names(tmp_path / "work") == ["lock"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "no"), "the disk of runs is full. Free some space"),
        (OSError(errno.EDQUOT, "no"), "the disk of runs is full"),
        (OSError(errno.EROFS, "Read-only file system"), "cannot write runs: Read-only file system"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot write runs: Permission"),
        (pa.ArrowInvalid("bad magic\nmore"), r"a Parquet file cannot be read \(bad magic\)"),
        (duckdb.IOException("No space left on device"), "the disk of runs is full"),
        (duckdb.OutOfMemoryException("failed\nmore"), "pass a larger --memory. failed"),
    ],
)
def test_an_error_of_the_disk_is_one_clear_line(error: Exception, message: str) -> None:
    with pytest.raises(PrixError, match=message) as found, disk_errors(Path("runs/kb")):
        raise error
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "error", [OSError(errno.EBADF, "x"), ValueError("x"), duckdb.BinderException("x"), PrixError()]
)
def test_any_other_error_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as found, disk_errors(Path("runs/kb")):
        raise error
    assert found.value is error


@pytest.mark.parametrize("memory", ["lots", "1", "1GB; DROP TABLE x", ""])
def test_a_memory_size_is_checked(memory: str, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="expected a size such as 800MB or 2GiB"):
        open_database(tmp_path, memory)


@pytest.mark.parametrize("name", ["it's", "a?b", "a*b", "[a]"])
def test_a_database_reads_files_of_any_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), folder / f"{name}.parquet")
    with open_database(folder, "100MB") as db:
        path = quote_path(folder / f"{name}.parquet")
        assert db.execute(f"SELECT sum(x) FROM {path}").fetchall() == [(3,)]


TABLE = pa.table({"name": ["a\tb", 'say "x",', None], "rank": [1, 2, 3]})


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".tsv", 'name\trank\na b\t1\nsay "x",\t2\n\t3\n'),
        (".csv", 'name,rank\n"a\tb",1\n"say ""x"",",2\n,3\n'),
        (".jsonl", '{"name":"a\\tb","rank":1}\n{"name":"say \\"x\\",","rank":2}\n{"rank":3}\n'),
    ],
)
def test_rows_are_written_in_the_format_of_the_ending(
    suffix: str, text: str, tmp_path: Path
) -> None:
    write_rows([TABLE.slice(0, 1), TABLE.slice(1)], TABLE.schema, tmp_path / f"out{suffix}")
    assert (tmp_path / f"out{suffix}").read_text() == text
    write_rows([TABLE], TABLE.schema, tmp_path / "out.txt", suffix)
    assert (tmp_path / "out.txt").read_text() == text


def test_rows_come_back_from_parquet_and_a_failure_leaves_no_file(tmp_path: Path) -> None:
    write_rows([TABLE], TABLE.schema, tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet") == TABLE

    def failing() -> object:
        yield TABLE
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_rows(failing(), TABLE.schema, tmp_path / "half.parquet")  # type: ignore[arg-type]
    assert names(tmp_path) == ["out.parquet"]


def test_a_result_of_many_parts_has_few_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_ROW_GROUP", 5)
    rows = pa.table({"number": list(range(13))})
    tables = [rows.slice(start, 2) for start in range(0, 13, 2)]
    write_rows(iter(tables), rows.schema, tmp_path / "out.parquet")
    found = pq.ParquetFile(tmp_path / "out.parquet")
    sizes = [found.metadata.row_group(index).num_rows for index in range(found.num_row_groups)]
    assert sizes == [6, 6, 1] and found.read() == rows
    write_rows([], rows.schema, tmp_path / "none.parquet")
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


def test_disk_errors_import_neither_duckdb_nor_arrow() -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom prixlm.files import disk_errors\n"
        "with disk_errors(Path('x')): pass\n"
        "print('duckdb' in sys.modules or 'pyarrow' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
    assert files.disk_errors is disk_errors


def test_the_first_folder_of_a_name_stays(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "temporary").mkdir()
        (tmp_path / "temporary" / "a").write_text(str(number))
        take_name(tmp_path / "temporary", tmp_path / "part")
        shutil.rmtree(tmp_path / "temporary", ignore_errors=True)
    assert (tmp_path / "part" / "a").read_text() == "1"


def test_json_is_read_or_a_value_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}
    for text in ("[" * 200_000, "{", "", "9" * 10_000):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"\w"):
            read_json(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="utf-8"):
        read_json(path)
    monkeypatch.setattr("prixlm.files._MAX_JSON", 3)
    path.write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"a\.json has more than"):
        read_json(path)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none")


def test_errors_of_reading_are_told_and_others_are_not() -> None:
    for error in (
        pa.ArrowInvalid("bad page\nmore"),
        OSError("thrift"),
        duckdb.IOException("no"),
        duckdb.Error("x"),
    ):
        message = damage_message(error)
        assert (
            message is not None
            and message.startswith("a file is damaged")
            and "more" not in (message)
        )
    for other in (OSError(errno.ENOENT, "x"), ValueError("x"), duckdb.BinderException("x")):
        assert damage_message(other) is None


def test_cells_that_a_spreadsheet_would_compute_are_guarded(tmp_path: Path) -> None:
    schema = pa.schema({"name": pa.string(), "score": pa.float64()})
    table = pa.table({"name": ["=1+1", "plain", None], "score": [-1.5, 2.0, None]}, schema=schema)
    for suffix in (".tsv", ".csv"):
        write_rows([table], schema, tmp_path / f"a{suffix}")
    assert (tmp_path / "a.tsv").read_text() == "name\tscore\n'=1+1\t-1.5\nplain\t2.0\n\t\n"
    assert (tmp_path / "a.csv").read_text() == 'name,score\n"\'=1+1",-1.5\n"plain",2\n,\n'
