"""Opened folders: what belongs together, what is loaded once, and what a change looks like."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prixlm import KB, PrixError
from prixlm.service.opened import Folders, Opened, stamp
from tests.helpers import run_python


def test_a_work_folder_or_a_kb_is_needed_and_not_both(tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="or pass --kb KB"):
        Folders()
    with pytest.raises(PrixError, match="or pass --kb KB"):
        Folders(work=tmp_path, kb=tmp_path)


def test_a_kb_alone_can_be_opened(served_kb: KB) -> None:
    opened = Opened(Folders(kb=served_kb.folder))
    assert opened.review is None and not opened.has_evidence()
    assert opened.asker() is None and opened.completer() is None
    assert opened.names.search("Helsinki", 1)[0].name == "Helsinki"


def test_proposals_of_another_kb_are_refused(folders: Folders) -> None:
    assert folders.proposals is not None
    path = folders.proposals / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"kb": "ab" * 32}), "utf-8")
    with pytest.raises(PrixError, match="for another KB"):
        Opened(folders)


def test_a_work_folder_brings_its_kb_and_proposals(countries: Path) -> None:
    opened = Opened(Folders(work=countries))
    assert opened.proposals == countries / "proposals" and opened.has_evidence()
    assert opened.kb.fingerprint() == opened.manifest["kb"]


def test_a_work_folder_whose_run_is_not_finished_has_no_proposals(
    countries: Path, tmp_path: Path
) -> None:
    work = Path(shutil.copytree(countries, tmp_path / "work"))
    shutil.rmtree(work / "proposals")
    assert Opened(Folders(work=work)).review is None


def test_the_stamp_changes_with_each_manifest(folders: Folders) -> None:
    before = stamp(folders)
    assert before == stamp(folders)
    assert folders.proposals is not None
    (folders.proposals / "manifest.json").touch()
    assert stamp(folders) != before
    (folders.proposals / "manifest.json").unlink()
    assert None in stamp(folders)


def test_what_is_made_once_is_made_by_one_of_many_threads(served_kb: KB) -> None:
    opened = Opened(Folders(kb=served_kb.folder))
    made = []

    def make() -> int:
        time.sleep(0.05)
        made.append(1)
        return len(made)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: opened.once("x", make), range(8))) == [1] * 8
    assert opened.is_made("x") and not opened.is_made("y")


def test_one_slow_value_does_not_hold_up_the_others(served_kb: KB) -> None:
    opened = Opened(Folders(kb=served_kb.folder))
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(opened.once, "slow", lambda: time.sleep(0.5))
        time.sleep(0.05)
        begin = time.monotonic()
        assert opened.once("quick", lambda: 1) == 1
        assert time.monotonic() - begin < 0.3
        slow.result()


def test_evidence_that_cannot_be_loaded_is_left_out_with_a_reason(
    countries: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = Path(shutil.copytree(countries, tmp_path / "work"))
    (work / "proposals" / "answerable.json").write_text("{", "utf-8")
    opened = Opened(Folders(work=work))
    assert opened.has_evidence()  # as far as is known before it is loaded
    assert opened.asker() is None and not opened.has_evidence()
    assert "cannot be completed with all evidence" in caplog.text


def test_a_server_without_a_model_imports_no_torch(countries: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from prixlm.service.app import create_app\n"
        "from prixlm.service.workbench import Folders, Workbench\n"
        "bench = Workbench(Folders(work=Path(sys.argv[1])))\n"
        "create_app(bench)\n"
        "bench.warm_up()\n"
        "print(bench.overview().counts['proposals'], bench.status().offered.evidence)\n"
    )
    ran = run_python(code, countries)
    assert ran.returncode == 0, ran.stderr[-2000:]
    number, evidence = ran.stdout.split()
    assert int(number) > 0 and evidence == "False"
