"""A model folder with Python code of its own: no command runs it, and none asks whether to."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prixlm import EntityEncoder, PrixError
from prixlm.entities.mirror import MirrorConfig, mirror
from tests.helpers import run_prixlm

CAPITAL = ("--lang", "en", "--subject", "France", "--relation", "capital")


@pytest.fixture
def hostile(toy_run: Path, tmp_path: Path) -> Path:
    """A Prix-LM folder of an unknown architecture, whose code leaves a mark."""
    folder = tmp_path / "hostile"
    shutil.copytree(toy_run / "model", folder, ignore=shutil.ignore_patterns("checkpoints"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    auto_map = {"AutoConfig": "code.Own", "AutoModel": "code.Own", "AutoTokenizer": "code.Own"}
    config |= {"model_type": "own-model", "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    mark = f"open({str(tmp_path / 'mark')!r}, 'w').close()\n"
    code = "from transformers import PreTrainedConfig\nclass Own(PreTrainedConfig):\n    pass\n"
    (folder / "code.py").write_text(mark + code)
    return folder


def test_complete_neither_runs_the_code_nor_asks(
    toy_run: Path, hostile: Path, tmp_path: Path
) -> None:
    command = ("complete", hostile, "--kb", toy_run / "kb", *CAPITAL)
    ran = subprocess.run(
        [sys.executable, "-m", "prixlm", *map(str, command)],
        input="y\n" * 9,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2 and ran.stdout == "", ran.stdout
    assert "code of its own, which prixlm never runs" in ran.stderr, ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("command", ["pretrain", "mirror", "link"])
def test_commands_that_load_a_base_or_an_encoder_do_not_run_it_either(
    command: str, toy_run: Path, hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda _question: "y")
    args = {
        "pretrain": (toy_run / "kb", "--base", hostile, "--to", tmp_path / "out"),
        "mirror": (hostile, "--to", tmp_path / "out", "--kb", toy_run / "kb"),
        "link": (hostile, "--kb", toy_run / "kb", "--mention", "Suomi"),
    }
    ran = run_prixlm(command, *args[command])
    assert ran.returncode == 2 and "code of its own, which prixlm never runs" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "mark").exists()


def test_the_loaders_of_the_encoder_and_of_mirror_refuse_it(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda _question: "y")
    (hostile / "encoder.json").write_text('{"pooling": "first", "max_tokens": 25}', "utf-8")
    with pytest.raises(PrixError, match="prixlm never runs"):
        EntityEncoder.load(hostile)
    with pytest.raises(PrixError, match="prixlm never runs"):
        mirror(hostile, tmp_path / "out", MirrorConfig())
    assert not (tmp_path / "mark").exists()
