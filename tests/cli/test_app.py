"""The commands as a user meets them: exit codes, one line for an error, JSON for machines."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prixlm import PrixError
from prixlm.cli.app import app
from prixlm.demo import DemoConfig, run_demo
from prixlm.entities.mirror import MirrorConfig
from prixlm.lm.compact import CompactConfig
from prixlm.rankers.fusion import FusionConfig
from prixlm.reports.console import shown
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import PretrainConfig
from prixlm.training.sampler import SupplyConfig


def run(*args: object, **options: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from prixlm.cli.app import main; main()", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_import_stats_and_split_from_a_shell(toy_files: list[Path], tmp_path: Path) -> None:
    made = run("import", *toy_files, "--to", tmp_path / "kb")
    assert made.returncode == 0 and made.stderr == ""
    assert "5 languages" in made.stdout and "Read 21 rows. Imported 21" in made.stdout
    stats = json.loads(run("stats", tmp_path / "kb", "--json").stdout)
    assert stats["entities"] == {"ar": 2, "en": 5, "fi": 4, "ja": 4, "te": 2}
    assert stats["triples"]["en"] == {"train": 6}
    assert stats["links"] == 8
    split = run("split", tmp_path / "kb", "--to", tmp_path / "s", "--test", "0.3", "--json")
    assert split.returncode == 0
    assert json.loads(split.stdout)["split"]["test"] == 0.3


def test_pretraining_from_a_shell_goes_on_after_it_is_done(
    toy_files: list[Path], tmp_path: Path
) -> None:
    run("import", *toy_files, "--to", tmp_path / "kb")
    options = ("--preset", "demo", "--epochs", "1", "--json")
    made = run("pretrain", tmp_path / "kb", "--to", tmp_path / "model", *options)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["metrics"][-1]["step"] == 1
    assert (tmp_path / "model" / "model.safetensors").is_file()
    again = run("pretrain", tmp_path / "kb", "--to", tmp_path / "model", *options)
    assert again.returncode == 0 and json.loads(again.stdout) == json.loads(made.stdout)
    other = run("pretrain", tmp_path / "kb", "--to", tmp_path / "model", "--preset", "demo")
    assert other.returncode == 2 and "checkpoint of another run" in other.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["stats", "nowhere"], "is not a KB folder"),
        (["import", "nowhere.nt", "--to", "kb"], "nowhere.nt: no such file or folder"),
        (["import", "--format", "world"], "--to is missing"),
        (["import", "--format", "world", "--to", "kb", "--langs", "fi,xx"], "unknown language xx"),
        (["import", "--format", "world", "--to", "kb", "--langs", "tlh"], "no names in tlh"),
        (["import", "--format", "world", "--to", "no/such/kb", "--langs", ","], "no language"),
        (["split", "nowhere", "--to", "s", "--test", "1.5"], "--test 1.5: expected a share"),
        (["import", "facts.tsv", "--to", "facts.tsv/kb"], "cannot write"),
    ],
)
def test_what_the_user_can_fix_is_one_line_and_exit_code_2(
    args: list[str], message: str, tmp_path: Path, toy_files: list[Path]
) -> None:
    result = run(*args, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_a_dry_run_prints_what_would_be_read(toy_files: list[Path]) -> None:
    text = run("import", *toy_files, "--dry-run").stdout
    assert "Would read as table" in text and "facts.tsv" in text and "minutes" in text
    assert json.loads(run("import", *toy_files, "--dry-run", "--json").stdout)["rows"] == 21


def test_the_demo_shows_languages_and_the_loss_falling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smaller than the real one, which takes minutes."""
    small = DemoConfig(
        pretrain=PretrainConfig(
            base="compact",
            epochs=1,
            batch=1024,
            supply=SupplyConfig(links="none"),
            compact=CompactConfig(vocab=1000, width=32, layers=1),
            training=TrainingConfig(lr=5e-3),
        ),
        single_epochs=1,
        mirror=MirrorConfig(positives="links", number=256, batch=64, epochs=1),
        fusion=FusionConfig(facts=60, depth=5, iterations=10, smallest=10),
        tried=20,
        asked=5,
        relations=("capital", "currency"),
    )
    monkeypatch.setattr("prixlm.demo.DemoConfig", lambda: small)
    monkeypatch.setenv("COLUMNS", "120")
    folder = tmp_path / "demo"
    result = CliRunner().invoke(app, ["demo", "--to", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for word in ("te  Telugu", "lo  Lao", "17 languages", "ja", "triples too long"):
        assert word in result.output
    first, last = re.findall(r"Training loss (\S+) → (\S+) nats", result.output)[0]
    assert float(last) < 0.9 * float(first)
    for title in ("Hidden facts, which it has not seen", "English names in other languages"):
        assert title in result.output
    assert "Of 15 asked" in result.output and "Of 30 asked" in result.output
    page = (folder / "report" / "report.html").read_text("utf-8")
    assert "<script" not in page and 'src="http' not in page and "Lao" in page
    for name in ("facts.nq", "facts.tsv", "report/report.md", "report/report.json"):
        assert (folder / name).stat().st_size > 100
    # One that was stopped goes on: nothing is imported again, and the proposals are the same.
    (folder / "report" / "report.html").unlink()
    proposals = (folder / "proposals" / "proposals.parquet").read_bytes()
    monkeypatch.setattr("prixlm.demo.import_kb", None)
    run_demo(folder)
    assert (folder / "proposals" / "proposals.parquet").read_bytes() == proposals


def test_the_demo_leaves_folders_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(PrixError, match="has a model that no demo made"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_version_and_the_help_are_printed() -> None:
    assert run("--version").stdout.startswith("prixlm ")
    assert "Usage" in run().stdout and "import" in run("--help").stdout
    wrong = run("import", "--nonsense")
    assert wrong.returncode == 2 and "No such option" in wrong.stderr


def test_an_interrupt_says_that_the_command_goes_on(tmp_path: Path) -> None:
    code = (
        "import prixlm.importers.run as i, os, signal, time\n"
        "i._merge = lambda *a: (os.kill(os.getpid(), signal.SIGINT), time.sleep(5))\n"
        "import sys; sys.argv = ['prixlm', 'import', '--format', 'world', '--to', 'kb']\n"
        "from prixlm.cli.app import main; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert result.returncode == 130
    assert result.stderr == "prixlm: interrupted; the same command goes on where it stopped.\n"


def test_names_from_a_kb_are_shown_without_markup_or_control_characters() -> None:
    assert shown("[bold]x\x1b[31m\n") == r"\[bold]x [31m "
