"""Parts in a folder and in an object store keep the same promises."""

import copy
import dataclasses
from pathlib import Path

import pytest

from prixlm import PrixError, remote
from prixlm.engine.jobs import EngineConfig, make_parts
from prixlm.engine.parts import FolderParts, Parts, StoreParts
from prixlm.engine.workspace import open_workspace, partial_folder
from prixlm.errors import ShardsFailed
from tests.engine.helpers import NUM_SHARDS, expected, squares, tried
from tests.test_remote import Proxy, cache, needs_server, store  # noqa: F401  # fixtures


def start(kind: str, folder: Path) -> Parts:
    if kind == "store":
        return StoreParts.start(f"s3://bucket/parts/{folder.name}")
    (folder / "running").mkdir()
    return FolderParts.start(folder, folder / "running")


@pytest.mark.parametrize("kind", ["folder", pytest.param("store", marks=needs_server)])
def test_a_part_has_its_name_when_it_is_whole_and_tries_are_counted(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "store":
        request.getfixturevalue("store")
    driver = start(kind, tmp_path)
    parts: Parts = copy.deepcopy(driver)  # as in a worker
    assert parts.is_seen() and not parts.has("a")
    assert [parts.note_try("a") for _ in range(3)] == [0, 1, 2] and parts.note_try("b") == 0
    first, second = parts.temporary("a"), parts.temporary("a")
    assert first != second
    first.write_text("whole")
    assert not parts.has("a")
    parts.publish(first, "a")
    assert parts.has("a")
    other = dataclasses.replace(
        parts, token="x", **({} if kind == "store" else {"running": tmp_path})
    )  # type: ignore[type-var]
    assert not other.is_seen()


@needs_server
@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_towards_the_store_keeps_its_parts_there(
    store: Proxy,  # noqa: F811
    tmp_path: Path,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped by a failing shard, and resumed on a machine with an empty cache."""
    target, config = Path(f"s3://bucket/jobs/{workers}.txt"), EngineConfig(workers=workers)
    (tmp_path / "fail-4").touch()
    store.cut_after = 3000
    with open_workspace(partial_folder(target), {"a": 1}, target) as work:
        with pytest.raises(ShardsFailed, match=r"part-004\.txt.*kept in s3://bucket/jobs"):
            make_parts(squares(tmp_path), work, config)
        assert len(work.finished()) == NUM_SHARDS - 1
    monkeypatch.setenv("PRIXLM_CACHE", str(tmp_path / "other machine"))
    (tmp_path / "fail-4").unlink()
    (tmp_path / "log").unlink()
    with open_workspace(partial_folder(target), {"a": 1}, target) as work:
        parts = make_parts(squares(tmp_path), work, config)
        assert [part.read_text() for part in parts] == expected()
        assert tried(tmp_path) == [4]
        work.remove()
        assert remote.list_names(f"{work.store}") == []
    with open_workspace(partial_folder(target), {"a": 2}, target) as work:
        assert work.finished() == set(), "of other inputs"


@needs_server
def test_a_store_that_is_not_there_is_not_seen(store: Proxy) -> None:  # noqa: F811
    assert not StoreParts("s3://nobucket/x", "t").is_seen()
    with pytest.raises(PrixError):
        StoreParts.start("s3://nobucket/x")
