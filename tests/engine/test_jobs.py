"""Jobs: every part once, whatever fails, and errors that name what failed."""

import dataclasses
import errno
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from prixlm import PrixError
from prixlm.engine import jobs
from prixlm.engine.jobs import EngineConfig, Shard, ShardJob, Task, Worker, make_parts, versions
from prixlm.engine.parts import FolderParts, PartsUnusable
from prixlm.engine.workspace import Workspace, open_workspace
from prixlm.errors import ShardsFailed
from prixlm.threads import describe_threads
from tests.engine.helpers import NUM_SHARDS, expected, squares, tried


def run(job: ShardJob, folder: Path, config: EngineConfig | None = None) -> list[str]:
    with open_workspace(folder / "work", {"job": job.name}) as work:
        return [part.read_text() for part in make_parts(job, work, config)]


def test_parts_come_in_the_order_of_the_shards_and_are_made_once(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    for _ in range(2):
        with open_workspace(tmp_path / "work", {}) as work:
            parts = make_parts(squares(tmp_path), work, progress=lambda *step: steps.append(step))
        assert [part.read_text() for part in parts] == expected()
    assert tried(tmp_path) == list(range(NUM_SHARDS))
    total = 2 * NUM_SHARDS
    assert steps[:2] == [("square", 2, total), ("square", 4, total)]
    assert steps[-2:] == [("square", total, total)] * 2, "all at once when nothing is missing"


def test_only_missing_parts_are_made(tmp_path: Path) -> None:
    run(squares(tmp_path), tmp_path)
    (tmp_path / "work" / "part-003.txt").unlink()
    (tmp_path / "log").unlink()
    assert run(squares(tmp_path), tmp_path) == expected()
    assert tried(tmp_path) == [3]


def test_a_shard_that_always_fails_is_named_and_the_others_are_finished(tmp_path: Path) -> None:
    for number in (2, 5):
        (tmp_path / f"fail-{number}").touch()
    with pytest.raises(ShardsFailed) as caught:
        run(squares(tmp_path), tmp_path)
    text = str(caught.value)
    assert "2 of 12 parts failed in 3 tries each: part-002.txt, part-005.txt." in text
    assert "ValueError: no square of 5 (helpers.py line" in text
    assert caught.value.code == 1
    assert tried(tmp_path) == sorted([*range(NUM_SHARDS), 2, 2, 5, 5])
    names = {path.name for path in (tmp_path / "work").glob("part-*")}
    assert names == {f"part-{i:03d}.txt" for i in range(NUM_SHARDS) if i not in (2, 5)}
    for number in (2, 5):
        (tmp_path / f"fail-{number}").unlink()
    assert run(squares(tmp_path), tmp_path) == expected(), "the same call tries them again"


def test_many_failures_are_one_line(tmp_path: Path) -> None:
    for number in range(NUM_SHARDS):
        (tmp_path / f"fail-{number}").touch()
    with pytest.raises(ShardsFailed, match=r"part-002\.txt and 9 others"):
        run(squares(tmp_path), tmp_path)


def test_an_error_that_the_user_can_fix_is_that_of_its_shard(tmp_path: Path) -> None:
    """It may be one machine's full scratch disk, or a store that did not answer one worker."""
    (tmp_path / "refuse-4").touch()
    (tmp_path / "full-6").touch()
    with pytest.raises(ShardsFailed, match=r"2 of 12 parts failed .*was on .*: OSError.*No space"):
        run(squares(tmp_path), tmp_path)
    assert tried(tmp_path) == sorted([*range(NUM_SHARDS), 4, 4, 6, 6])
    (tmp_path / "full-6").unlink()
    with pytest.raises(ShardsFailed, match=r"part-004\.txt.*: 4 is not to be squared\.$"):
        run(squares(tmp_path), tmp_path)


def test_a_place_of_parts_that_does_not_answer_for_a_while_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has, asked = FolderParts.has, []

    def sometimes(parts: FolderParts, part: str) -> bool:
        asked.append(part)
        if part == "part-007.txt" or (part == "part-003.txt" and asked.count(part) < 3):
            raise PrixError("the store does not answer.")
        return has(parts, part)

    monkeypatch.setattr(FolderParts, "has", sometimes)
    with pytest.raises(ShardsFailed, match=r"1 of 12 .*part-007\.txt.*: the store does not answer"):
        run(squares(tmp_path), tmp_path)
    assert asked.count("part-003.txt") == asked.count("part-007.txt") == 3


@pytest.mark.parametrize("when", ["a try is noted", "a try has failed"])
def test_a_full_disk_of_the_parts_ends_the_job_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    if when == "a try is noted":
        open_file = Path.open

        def open_unless_tries(path: Path, *rest: Any, **named: Any) -> Any:
            return full() if path.suffix == ".tries" else open_file(path, *rest, **named)

        monkeypatch.setattr(Path, "open", open_unless_tries)
    else:
        (tmp_path / "fail-0").touch()
        monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(PartsUnusable, match=r"the disk of .*work is full"):
        run(squares(tmp_path), tmp_path)


def test_half_a_part_is_never_seen(tmp_path: Path) -> None:
    (tmp_path / "fail-0").touch()
    with pytest.raises(ShardsFailed):
        run(squares(tmp_path), tmp_path)
    assert "half a par" not in [p.read_text() for p in (tmp_path / "work").iterdir() if p.is_file()]
    assert not (tmp_path / "work" / "running").exists()


def make_task(folder: Path) -> Task:
    job = squares()
    with open_workspace(folder / "work", {}) as work:
        return Task(job.load, jobs._start_run(work), versions(), 3)


def test_a_worker_that_outlives_its_driver_publishes_nothing(tmp_path: Path) -> None:
    old = Worker(make_task(tmp_path))
    make_task(tmp_path)  # the next run of the same work
    with pytest.raises(PartsUnusable, match="another run has begun there"):
        old.make(Shard("part-000.txt", 7))
    assert not (tmp_path / "work" / "part-000.txt").exists()


def test_a_worker_that_outlives_its_inputs_publishes_nothing(tmp_path: Path) -> None:
    old = Worker(make_task(tmp_path))
    with (
        open_workspace(tmp_path / "work", {"other": "inputs"}) as work,
        pytest.raises(PartsUnusable),
    ):
        old.make(Shard("part-000.txt", 7))
    assert [path.name for path in work.folder.iterdir() if "part" in path.name] == []


@pytest.mark.parametrize("name", ["prixlm", "numpy"])
def test_a_worker_of_another_version_is_refused(tmp_path: Path, name: str) -> None:
    task = dataclasses.replace(make_task(tmp_path), versions={**versions(), name: "0.0.1"})
    with pytest.raises(PrixError, match=rf"has {name} .*and the driver 0\.0\.1: install the same"):
        Worker(task)


def test_a_worker_that_does_not_see_the_folder_is_refused(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    [token] = (tmp_path / "work" / "running").glob("*/driver")
    token.write_text("of another machine's disk")
    with pytest.raises(PrixError, match=r"does not see .*work: write to a folder that all machine"):
        Worker(task)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "spark"}, "--engine spark: expected local or ray"),
        ({"workers": 0}, "--workers 0: expected 1 or more"),
        ({"address": "auto"}, "--address requires --engine ray"),
        ({"gpus_per_worker": -1.0}, "expected 0 or more"),
        ({"gpus_per_worker": 0.5, "workers": 2}, "whole GPUs"),
        ({"gpus_per_worker": 1.0}, "requires --workers"),
    ],
)
def test_a_wrong_engine_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(PrixError, match=message):
        EngineConfig(**values)  # type: ignore[arg-type]


def test_one_line_says_what_was_chosen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "prixlm.engine")
    run(squares(), tmp_path, EngineConfig(workers=1))
    assert "square: 1 workers with one thread each" in caplog.text
    assert EngineConfig().describe() == describe_threads()
    assert EngineConfig(kind="ray", address="a:1").describe().startswith("Ray at a:1, one per CPU")


def test_a_part_may_be_a_folder(tmp_path: Path) -> None:
    def write(number: int, path: Path) -> None:
        path.mkdir()
        (path / "a").write_text(str(number))

    shards = [Shard(f"part-{number}", number) for number in range(3)]
    with open_workspace(tmp_path / "work", {}) as work:
        parts = make_parts(ShardJob("folders", shards, lambda: write), work)
        assert [(part / "a").read_text() for part in parts] == ["0", "1", "2"]
        assert make_parts(ShardJob("folders", shards, lambda: write), work) == parts


def test_parts_are_fetched_from_a_store_several_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, together = squares(), threading.Barrier(4, timeout=10)

    def fetch(_: Workspace, part: str) -> Path:
        together.wait()  # one alone would wait for ever
        return tmp_path / part

    monkeypatch.setattr(Workspace, "finished", lambda _: {shard.part for shard in job.shards})
    monkeypatch.setattr(Workspace, "fetch", fetch)
    assert NUM_SHARDS % 4 == 0
    parts = make_parts(job, Workspace(tmp_path, store="s3://bucket/parts"))
    assert [part.name for part in parts] == [shard.part for shard in job.shards]
