"""Files and folders that are whole or absent: kills, other inputs, locks, disk errors."""

import errno
import fcntl
import json
import os
import shutil
import signal
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
    STAMP,
    check_kind,
    check_new_file,
    check_pages,
    check_target,
    damage_message,
    disk_errors,
    drop_oldest_caches,
    first_alone,
    is_cached,
    locked,
    open_database,
    open_workspace,
    partial_folder,
    publish,
    quote_path,
    read_json,
    read_stamp,
    replacing,
    seal,
    sketch,
    take_name,
    whole_folder,
    write_atomically,
    write_rows,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run_killed(code: str) -> None:
    """Run code that kills its own process."""
    code = f"import os, signal\nfrom pathlib import Path\nfrom prixlm import files\n{code}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr


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


def test_a_workspace_can_publish_itself(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for version in (1, 2):
        with open_workspace(partial_folder(cache), {"version": version}) as work:
            work.make("data", lambda path: path.write_text("x"))
            publish(work.folder, cache)
        assert is_cached(cache, {"version": version})
    assert names(tmp_path) == ["cache"]


def test_a_kill_while_publishing_loses_neither_folder(tmp_path: Path) -> None:
    (tmp_path / "kb").mkdir()
    (tmp_path / "kb" / "old").touch()
    (tmp_path / "kb.partial" / "out").mkdir(parents=True)
    (tmp_path / "kb.partial" / "out" / "new").touch()
    run_killed(
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


def test_a_part_is_made_once_and_resumed(tmp_path: Path) -> None:
    made = []

    def write(path: Path) -> None:
        made.append(path.name)
        path.write_text("x")

    for _ in range(2):
        with open_workspace(tmp_path / "work", {"seed": 1, "langs": ("en",)}) as work:
            assert work.make("part-1", write).read_text() == "x"
    assert made == ["part-1.tmp"]


def test_a_part_that_failed_is_made_again(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), open_workspace(tmp_path / "work", {}) as work:
        work.make("part", fail)
    with open_workspace(tmp_path / "work", {}) as work:
        assert names(work.folder) == ["lock", STAMP]
        assert work.make("part", lambda path: path.write_text("whole")).read_text() == "whole"


def test_a_killed_part_is_made_again(tmp_path: Path) -> None:
    run_killed(
        "def write(path):\n"
        "    path.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"with files.open_workspace(Path({str(tmp_path / 'work')!r}), {{}}) as work:\n"
        "    work.make('first', lambda path: path.write_text('kept'))\n"
        "    work.make('second', write)"
    )
    with open_workspace(tmp_path / "work", {}) as work:
        assert work.make("first", lambda path: path.write_text("again")).read_text() == "kept"
        assert work.make("second", lambda path: path.write_text("again")).read_text() == "again"


def test_two_files_that_differ_in_size_or_at_an_end_have_two_sketches(tmp_path: Path) -> None:
    contents = [b"a" * 10, b"a" * 11, b"", b"b" + b"a" * (3 << 20), b"a" * (3 << 20) + b"b"]
    found = set()
    for number, content in enumerate(contents):
        (tmp_path / f"{number}").write_bytes(content)
        (tmp_path / "copy").write_bytes(content)
        assert sketch(tmp_path / f"{number}") == sketch(tmp_path / "copy")
        found.add(sketch(tmp_path / "copy"))
    assert len(found) == len(contents)


def test_another_stamp_empties_the_folder(tmp_path: Path) -> None:
    with open_workspace(tmp_path, {"seed": 1}) as work:
        work.make("part", lambda path: path.write_text("x"))
        (work.empty_folder("scratch") / "file").touch()
    with open_workspace(tmp_path, {"seed": 2}) as work:
        assert names(work.folder) == ["lock", STAMP]
    (tmp_path / STAMP).write_text("{ broken")
    with open_workspace(tmp_path, {"seed": 2}) as work:
        assert names(work.folder) == ["lock", STAMP]
    assert read_stamp(tmp_path) == {"seed": 2}


def test_a_kill_while_emptying_leaves_nothing_to_resume(tmp_path: Path) -> None:
    with open_workspace(tmp_path, {"seed": 1}) as work:
        work.make("part", lambda path: path.write_text("x"))
    run_killed(
        "files._remove = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"with files.open_workspace(Path({str(tmp_path)!r}), {{'seed': 2}}):\n"
        "    pass"
    )
    with open_workspace(tmp_path, {"seed": 1}) as work:
        assert names(work.folder) == ["lock", STAMP]


def test_scratch_folders_start_empty_and_a_workspace_can_be_removed(tmp_path: Path) -> None:
    for _ in range(2):
        with open_workspace(tmp_path / "work", {}) as work:
            scratch = work.empty_folder("scratch")
            assert names(scratch) == []
            (scratch / "file").touch()
    with open_workspace(tmp_path / "work", {}) as work:
        work.remove()
    assert names(tmp_path) == []


def test_a_locked_folder_is_refused(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "work"),
        pytest.raises(PrixError, match=r"another command is running in .*work\. Wait"),
        open_workspace(tmp_path / "work", {}),
    ):
        pass
    with open_workspace(tmp_path / "work", {}):
        pass  # the lock is free again


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


def test_only_the_caches_that_were_used_last_are_kept(tmp_path: Path) -> None:
    for age, name in enumerate(["a", "b", "c", "d.partial", "e.replaced"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / STAMP).write_text(json.dumps({"name": name}))
        os.utime(tmp_path / name / STAMP, (age, age))
    assert is_cached(tmp_path / "a", {"name": "a"})  # used now
    assert not is_cached(tmp_path / "b", {"name": "a"})
    assert not is_cached(tmp_path / "nowhere", {})
    drop_oldest_caches(tmp_path, keep=2)
    assert names(tmp_path) == ["a", "c", "d.partial", "e.replaced"]


def test_a_target_is_replaced_only_when_asked_and_only_if_it_is_ours(tmp_path: Path) -> None:
    kb = tmp_path / "kb"
    assert check_target(kb, [], False, "prixlm-kb") == tmp_path.resolve() / "kb.partial"
    kb.mkdir()
    with pytest.raises(PrixError, match=r"is already there\. Pass --overwrite"):
        check_target(kb, [], False, "prixlm-kb")
    with pytest.raises(PrixError, match=r"kb: found a folder that prixlm did not make, expected a"):
        check_target(kb, [], True, "prixlm-kb")
    (kb / "manifest.json").write_text('{"format": "prixlm-kb"}')
    check_target(kb, [tmp_path / "dump.nt"], True, "prixlm-kb")
    with pytest.raises(PrixError, match="holds the source"):
        check_target(kb, [kb / "dump.nt"], True, "prixlm-kb")
    (tmp_path / "link").symlink_to(kb)
    with pytest.raises(PrixError, match="not replaced"):
        check_target(tmp_path / "link", [], True, "prixlm-kb")
    (tmp_path / "other.partial").mkdir()
    check_target(tmp_path / "other", [], False, "prixlm-kb")  # empty: perhaps made just now
    (tmp_path / "other.partial" / "thesis.txt").touch()
    with pytest.raises(PrixError, match="is in the way"):
        check_target(tmp_path / "other", [], False, "prixlm-kb")


MADE = {
    "prixlm-kb": ("manifest.json", '{"format": "prixlm-kb"}', "a KB folder"),
    "prixlm-proposals": ("manifest.json", '{"format": "prixlm-proposals"}', "a proposals folder"),
    "prixlm.json": ("prixlm.json", "{}", "a model folder"),
    "encoder.json": ("encoder.json", "{}", "an encoder folder"),
    "graph.json": ("graph.json", "{}", "a graph embedding"),
    "report.json": ("report.json", "{}", "a report folder"),
}


@pytest.mark.parametrize("found", MADE)
@pytest.mark.parametrize("expected", MADE)
def test_a_folder_is_replaced_only_by_one_of_its_kind(
    found: str, expected: str, tmp_path: Path
) -> None:
    name, text, title = MADE[found]
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / name).write_text(text)
    if found == expected:
        check_target(tmp_path / "made", [], True, expected)
        return
    message = f"made: found {title}, expected {MADE[expected][2]}"
    with pytest.raises(PrixError, match=message):
        check_target(tmp_path / "made", [], True, expected)
    with pytest.raises(PrixError, match=message):
        check_kind(tmp_path / "made", expected)


def test_an_encoder_is_not_taken_for_the_model_it_contains(tmp_path: Path) -> None:
    for name in ("prixlm.json", "encoder.json"):
        (tmp_path / name).write_text("{}")
    check_kind(tmp_path, "encoder.json")
    with pytest.raises(PrixError, match="found an encoder folder, expected a model folder"):
        check_kind(tmp_path, "prixlm.json")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": "parquet"}'])
def test_a_manifest_that_is_not_ours_protects_its_folder(text: str, tmp_path: Path) -> None:
    (tmp_path / "kb").mkdir()
    (tmp_path / "kb" / "manifest.json").write_text(text)
    with pytest.raises(PrixError, match="found a folder that prixlm did not make"):
        check_target(tmp_path / "kb", [], True, "prixlm-kb")


def test_a_folder_that_holds_other_results_is_not_replaced(tmp_path: Path) -> None:
    proposals = tmp_path / "kb" / "mine" / "proposals"
    proposals.mkdir(parents=True)
    (tmp_path / "kb" / "manifest.json").write_text('{"format": "prixlm-kb"}')
    check_target(tmp_path / "kb", [], True, "prixlm-kb")
    (proposals / "manifest.json").write_text('{"format": "prixlm-proposals"}')
    with pytest.raises(PrixError, match=r"kb holds .*mine/proposals, a proposals folder"):
        check_target(tmp_path / "kb", [], True, "prixlm-kb")


def test_pages_are_overwritten_only_if_the_data_beside_them_is_ours(tmp_path: Path) -> None:
    data, page = tmp_path / "table.json", tmp_path / "table.md"

    def is_ours(values: object) -> bool:
        return isinstance(values, list)

    check_pages(data, [page], is_ours)
    page.write_text("# My notes")
    for text in (None, "no JSON", "{}"):
        if text is not None:
            data.write_text(text)
        with pytest.raises(PrixError, match=r"table\.(md|json) was not written by prixlm"):
            check_pages(data, [page], is_ours)
    data.write_text("[]")
    check_pages(data, [page], is_ours)


def test_a_file_of_results_is_not_overwritten(tmp_path: Path) -> None:
    check_new_file(tmp_path / "out.tsv")
    (tmp_path / "out.tsv").touch()
    with pytest.raises(PrixError, match=r"out\.tsv is already there\. Move it"):
        check_new_file(tmp_path / "out.tsv")
    (tmp_path / "other.tsv.partial").mkdir()
    (tmp_path / "other.tsv.partial" / "thesis.txt").touch()
    with pytest.raises(PrixError, match=r"other\.tsv\.partial is in the way"):
        check_new_file(tmp_path / "other.tsv")


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


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(PrixError, match=r"cannot write .*file"),
        open_workspace(tmp_path / "file" / "work", {}),
    ):
        pass


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


def test_disk_errors_import_neither_duckdb_nor_arrow() -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom prixlm.files import disk_errors\n"
        "with disk_errors(Path('x')): pass\n"
        "print('duckdb' in sys.modules or 'pyarrow' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
    assert files.disk_errors is disk_errors


@pytest.mark.parametrize("damage", ["cut", "missing", "sizes"])
def test_a_sealed_cache_that_is_damaged_is_not_used(tmp_path: Path, damage: str) -> None:
    folder, stamp = tmp_path / "cache", {"kb": "x"}
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "column").write_bytes(b"1234")
    write_atomically(folder / STAMP, json.dumps(stamp))
    seal(folder)
    assert is_cached(folder, stamp)
    if damage == "cut":
        (folder / "inner" / "column").write_bytes(b"123")
    elif damage == "missing":
        (folder / "inner" / "column").unlink()
    else:
        (folder / "sizes.json").write_text("[1")
    assert not is_cached(folder, stamp)


def test_a_run_moves_the_temporary_files_of_the_last_away(tmp_path: Path) -> None:
    """So that a worker of the last run, wherever it is, cannot rename them into place."""
    with open_workspace(tmp_path / "work", {}) as work:
        old = work.start_run() / "part.tmp"
        old.write_text("late")
        assert not any(work.start_run().iterdir())
        with pytest.raises(FileNotFoundError):
            take_name(old, work.folder / "part")


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
