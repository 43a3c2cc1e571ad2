"""Remote targets: every command writes to an object store, or refuses its address in one line."""

from pathlib import Path

import pytest

from prixlm import KB
from tests.helpers import Ran, fact_row, make_proposals, run_prixlm
from tests.test_docs import options_of_commands

TO_STORES = {"import", "complete", "translate", "link", "enrich", "review", "export"} | {
    f"evaluate {task}"
    for task in ("lp", "xel", "align", "bli", "probe", "enrich", "labels", "compare", "merge")
}
"""Commands that write to object stores. Long ones are tried in tests/test_remote.py."""
TO_DISKS: dict[str, tuple[object, ...]] = {
    "split": ("KB",),
    "pretrain": ("KB",),
    "mirror": ("MODEL",),
    "graph": ("KB",),
    "sample": ("PROPOSALS",),
    "report": ("PROPOSALS", "--kb", "KB"),
    "demo": (),
    "evaluate proposals": ("--kb", "KB", "--langs", "en"),
    **{f"reproduce {table}": ("--kb", "KB") for table in ("lp", "xel", "jmac", "figure")},
    "reproduce bli": ("--kb", "KB", "--dictionaries", "FILES"),
    "reproduce probe": ("--kb", "KB", "--prompts", "FILES"),
}
"""Arguments of the commands that write to this machine only."""


@pytest.fixture(scope="module")
def proposals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A proposals folder with one fact."""
    return make_proposals(tmp_path_factory.mktemp("proposals") / "proposals", [fact_row(0)])


def test_every_command_with_a_target_is_in_one_of_the_lists() -> None:
    have_targets = {
        name for name, flags in options_of_commands().items() if {"--to", "--out"} & flags
    }
    assert have_targets == TO_STORES | set(TO_DISKS)


@pytest.mark.parametrize("command", TO_DISKS)
def test_a_command_that_writes_to_disks_refuses_a_store(
    command: str, shared_toy: KB, proposals: Path, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    (files / "en-fi").mkdir(parents=True)
    (files / "fi.tsv").write_text("Prompt\tAns\tCandidate Ans\tSubject\n<mask>\ta\ta\tx\n")
    for part in ("train", "test"):
        (files / "en-fi" / f"{part}.tsv").write_text("a\tb\n")
    known: dict[object, Path] = {
        "KB": shared_toy.folder,
        "PROPOSALS": proposals,
        "FILES": files,
    }
    arguments = [known.get(one, one) for one in TO_DISKS[command]]
    ran = run_prixlm(*command.split(), *arguments, "--to", "s3://bucket/x", cwd=tmp_path)
    assert ran == Ran(
        2,
        "",
        "prixlm: s3://bucket/x: this is written to a disk only. Name a local path, and copy it to "
        "the store when it is finished.\n",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


@pytest.mark.parametrize("command", [("review",), ("export", "--format", "nq")])
def test_a_file_of_proposals_may_be_written_to_a_store(
    command: tuple[str, ...],
    proposals: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRIXLM_CACHE", str(tmp_path / "cache"))
    here = tmp_path / "here"
    here.mkdir()
    for to in ("x", f"fsspec+file://{tmp_path}/store/x"):
        ran = run_prixlm(command[0], proposals, *command[1:], "--to", to, cwd=here)
        assert ran.returncode == 0, ran.stderr
    written = {path.name: path.read_bytes() for path in here.iterdir()}
    assert "x" in written
    stored = (tmp_path / "store").iterdir()
    assert {path.name: path.read_bytes() for path in stored} == written
    assert run_prixlm(command[0], proposals, *command[1:], "--to", to).returncode == 2, "not twice"
