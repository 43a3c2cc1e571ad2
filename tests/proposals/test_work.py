"""The work folder: its state, and the folders that it names."""

import json
from pathlib import Path

import pytest

from prixlm import KB, PrixError
from prixlm.proposals.work import read_state, work_folders, work_kb

SOURCE = {"format": "world", "files": [], "langs": None}


def write(folder: Path, **values: object) -> Path:
    state = {"format": "prixlm-work", "version": 1, "source": SOURCE} | values
    (folder / "work.json").write_text(json.dumps(state), "utf-8")
    return folder


def test_the_kb_of_a_work_folder_is_the_one_that_its_state_names(toy: KB) -> None:
    folder = write(toy.folder.parent, kb=toy.folder.name)
    assert work_kb(folder).fingerprint() == toy.fingerprint()


def test_other_folders_are_refused_and_have_no_state(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None and work_folders(tmp_path) == {}
    with pytest.raises(PrixError, match="is not a work folder"):
        work_kb(tmp_path)
    with pytest.raises(PrixError, match="is not a work folder"):
        work_kb(write(tmp_path))  # a run that has not come to its KB


@pytest.mark.parametrize("values", [{"version": 2}, {"source": {}}])
def test_a_damaged_state_is_refused(values: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="is damaged"):
        read_state(write(tmp_path, **values))


def test_folders_that_were_made_and_given_are_found(tmp_path: Path) -> None:
    proposed = {"given": {"model": "m", "encoder": "e", "reader": "r"}}
    write(tmp_path, kb="everything", split="kb", made=["graph", "graph-all"], proposed=proposed)
    assert work_folders(tmp_path) == {
        "kb": tmp_path / "everything",
        "split": tmp_path / "kb",
        "graph": tmp_path / "graph-all",
        "model": tmp_path / "m",
        "encoder": tmp_path / "e",
        "reader": tmp_path / "r",
    }
