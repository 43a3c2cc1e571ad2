"""Work is resumed after a kill and thrown away for other inputs; caches are used whole."""

import json
import os
from pathlib import Path

import pytest

from prixlm import PrixError
from prixlm.engine.workspace import (
    STAMP,
    drop_oldest_caches,
    is_cached,
    open_workspace,
    partial_folder,
    read_stamp,
    seal,
)
from prixlm.files import locked, publish, take_name, write_atomically
from tests.helpers import run_killed


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_workspace_can_publish_itself(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for version in (1, 2):
        with open_workspace(partial_folder(cache), {"version": version}) as work:
            work.make("data", lambda path: path.write_text("x"))
            publish(work.folder, cache)
        assert is_cached(cache, {"version": version})
    assert names(tmp_path) == ["cache"]


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
        "from prixlm.engine import workspace\n"
        "def write(path):\n"
        "    path.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"with workspace.open_workspace(Path({str(tmp_path / 'work')!r}), {{}}) as work:\n"
        "    work.make('first', lambda path: path.write_text('kept'))\n"
        "    work.make('second', write)"
    )
    with open_workspace(tmp_path / "work", {}) as work:
        assert work.make("first", lambda path: path.write_text("again")).read_text() == "kept"
        assert work.make("second", lambda path: path.write_text("again")).read_text() == "again"


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
        "from prixlm.engine import workspace\n"
        "workspace.remove_path = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"with workspace.open_workspace(Path({str(tmp_path)!r}), {{'seed': 2}}):\n"
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


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(PrixError, match=r"cannot write .*file"),
        open_workspace(tmp_path / "file" / "work", {}),
    ):
        pass


def test_a_run_moves_the_temporary_files_of_the_last_away(tmp_path: Path) -> None:
    """So that a worker of the last run, wherever it is, cannot rename them into place."""
    with open_workspace(tmp_path / "work", {}) as work:
        old = work.start_run() / "part.tmp"
        old.write_text("late")
        assert not any(work.start_run().iterdir())
        with pytest.raises(FileNotFoundError):
            take_name(old, work.folder / "part")


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
