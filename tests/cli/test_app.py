"""The command line as a whole: exit codes, one line for an error, help, missing extras."""

from pathlib import Path

import pytest

from prixlm.cli.app import COMMANDS, app
from prixlm.errors import EXTRAS, ShardsFailed
from tests.helpers import run_prixlm, run_python


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
        (["pretrain", "nowhere"], "--to is missing"),
        (["graph", "nowhere"], "--to is missing"),
        (["export", "nowhere", "--format", "tsv", "--to", "a.tsv"], "prixlm enrich"),
        (["review", "nowhere"], "pass --to FILE to write a review, or --marks FILE"),
    ],
)
def test_what_the_user_can_fix_is_one_line_and_exit_code_2(
    args: list[str], message: str, tmp_path: Path, toy_files: list[Path]
) -> None:
    result = run_prixlm(*args, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_parts_that_failed_are_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ShardsFailed("1 of 4 parts failed in 3 tries each: part-0000002.parquet.")

    monkeypatch.setattr("prixlm.cli.app.app", fail)
    result = run_prixlm()
    assert result.returncode == 1 and "part-0000002.parquet" in result.stderr


def test_the_version_and_the_help_are_printed() -> None:
    assert run_prixlm("--version").stdout.startswith("prixlm ")
    assert "Usage" in run_prixlm().stdout and "import" in run_prixlm("--help").stdout
    wrong = run_prixlm("import", "--nonsense")
    assert wrong.returncode == 2 and "No such option" in wrong.stderr


def test_python_m_prixlm_is_the_command_line() -> None:
    code = "import runpy, sys; sys.argv = ['prixlm', '--version']; runpy.run_module('prixlm')"
    assert run_python(code).stdout.startswith("prixlm ")


def test_every_command_of_the_table_is_in_the_help() -> None:
    text = run_prixlm("--help").stdout
    assert [command.name for command in app.registered_commands] == list(COMMANDS)
    assert all(f" {name} " in text for name in COMMANDS)


def test_an_interrupt_tells_how_to_resume(tmp_path: Path) -> None:
    code = (
        "import prixlm.importers.run as i, os, signal, time\n"
        "i._join = lambda *a: (os.kill(os.getpid(), signal.SIGINT), time.sleep(5))\n"
        "import sys; sys.argv = ['prixlm', 'import', '--format', 'world', '--to', 'kb']\n"
        "from prixlm.cli.app import main; main()"
    )
    result = run_python(code, cwd=tmp_path)
    assert result.returncode == 130
    assert result.stderr == "prixlm: interrupted; run the same command again to resume.\n"


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    code = (
        "import sys, prixlm.cli.app as cli\n"
        "def closed(*args): raise BrokenPipeError\n"
        "cli.app = closed\n"
        "cli.main()"
    )
    result = run_python(code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(("package", "extra"), [("sklearn.ensemble", "model"), ("wandb", "wandb")])
def test_a_missing_package_names_its_extra(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr("prixlm.cli.app.app", fail)
    result = run_prixlm()
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert f"this needs the {extra} extra: pip install 'prixlm[{extra}]'" in result.stderr


def test_a_package_of_no_extra_is_our_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'prixlm.nothing'", name="prixlm.nothing")

    monkeypatch.setattr("prixlm.cli.app.app", fail)
    with pytest.raises(ModuleNotFoundError):
        run_prixlm()
    assert "prixlm" not in {package for packages in EXTRAS.values() for package in packages}
