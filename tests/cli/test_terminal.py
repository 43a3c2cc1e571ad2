"""Results on stdout, notes on stderr, and a bar only where there is a terminal."""

import json

import pytest

from prixlm.cli.terminal import print_json, print_note, print_result, progress_bar
from tests.helpers import run_python


def test_json_keeps_every_script(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "ఫిన్లాండ్"})
    out = capsys.readouterr().out
    assert "ఫిన్లాండ్" in out and json.loads(out) == {"name": "ఫిన్లాండ్"}


def test_a_result_is_json_or_text_without_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_result({"n": 1}, "[bold]one[/bold]", as_json=False)
    assert capsys.readouterr().out == "[bold]one[/bold]\n"
    print_result({"n": 1}, "one", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"n": 1}


def test_a_note_does_not_mix_with_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    print_note("be careful.")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "prixlm: be careful.\n"


def test_there_is_no_bar_where_stderr_is_not_a_terminal() -> None:
    with progress_bar() as progress:
        assert progress is None


def test_a_note_waits_for_the_first_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("2 threads.") as progress:
        assert progress is not None and capsys.readouterr().err == "", "an error may come first"
        progress("read", 1, 2)
        progress("read", 2, 2)
    captured = capsys.readouterr()
    assert captured.err == "prixlm: 2 threads.\n" and captured.out == ""


def test_a_bar_shows_rate_and_detail_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any stream for a terminal then
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar() as progress:
        assert progress is not None
        progress("read", 500_000, 1_000_000)
        progress("train loss 3.10", 5, 10)
        progress("train loss 2.50", 10, 10)
    shown = capsys.readouterr().err
    assert "MB/s" in shown and "10/10  loss 2.50" in shown and "train" in shown


def test_what_was_chosen_is_printed_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from prixlm.cli.app import main; main()"
    assert "usable cores" not in run_python(code, "--version").stderr
    monkeypatch.setenv("PRIXLM_LOG", "info")
    assert "usable cores: OMP_NUM_THREADS=" in run_python(code, "--version").stderr
