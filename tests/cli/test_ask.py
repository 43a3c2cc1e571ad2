"""`prixlm complete`, `translate` and `link`: one question, or a file of them."""

import json
from pathlib import Path

import pytest

from prixlm.threads import describe_threads
from tests.cli.conftest import succeed, succeed_json
from tests.helpers import run_prixlm

QUERIES = """\
lang\tsubject\trelation
en\tFrance\tcapital
en\tFrance\tno such relation
fi\tSuomi\tcapital
xx\tFrance\tcapital
ja\tフランス\tcapital
"""
CAPITAL = ("--lang", "en", "--subject", "France", "--relation", "capital")


def test_complete_finds_the_object(toy_run: Path) -> None:
    answers = succeed_json("complete", toy_run / "model", "--kb", toy_run / "kb", *CAPITAL)
    assert answers[0]["name"] == "Paris" and answers[0]["rank"] == 1
    shown = succeed("complete", toy_run / "model", "--kb", toy_run / "kb", *CAPITAL, "--exact")
    assert "France · capital" in shown and "Paris" in shown


def test_translate_writes_a_name_freely(toy_run: Path) -> None:
    query = ("--from", "en", "--to", "ja", "--name", "Finland", "--free", "-k", 2, "--json")
    shown = run_prixlm("translate", toy_run / "model", "--kb", toy_run / "kb", *query)
    assert shown.returncode == 0, shown.stderr
    names = json.loads(shown.stdout)
    assert len(names) <= 2 and all(name["score"] <= 0 for name in names)


def test_translate_asks_for_a_name_that_is_not_in_the_kb(toy_run: Path) -> None:
    query = ("--from", "en", "--to", "ja", "--name", "Finlnd", "-k", "1")
    shown = run_prixlm("translate", toy_run / "model", "--kb", toy_run / "kb", *query)
    assert "フィンランド" in shown.stdout
    assert "not in the KB" in shown.stderr and "Finland" in shown.stderr


def test_candidates_restrict_the_answers(toy_run: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("Euro\nHelsinki\nNobody\n", "utf-8")
    ran = run_prixlm(
        *("complete", toy_run / "model", "--kb", toy_run / "kb", *CAPITAL),
        *("--candidates", tmp_path / "names.txt", "--json"),
    )
    assert {answer["name"] for answer in json.loads(ran.stdout)} == {"Euro", "Helsinki"}
    assert "1 lines" in ran.stderr and "not entities" in ran.stderr


def test_a_file_of_queries_is_answered(toy_run: Path, tmp_path: Path) -> None:
    queries, out = tmp_path / "q.tsv", tmp_path / "a.jsonl"
    queries.write_text(QUERIES, "utf-8")
    files = ("--queries", queries, "--out", out)
    text = succeed("complete", toy_run / "model", "--kb", toy_run / "kb", *files)
    assert text == "5 queries, 2 with an error.\n"
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert next(row for row in rows if row["query"] == 0)["object"] == "Paris"


def test_a_command_that_takes_long_says_how_many_threads_it_uses(
    toy_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "q.tsv").write_text(QUERIES, "utf-8")
    asked = ("complete", toy_run / "model", "--kb", toy_run / "kb", "--queries", tmp_path / "q.tsv")
    for name, more in (("a", ()), ("b", ("--workers", 1)), ("c", ("--json",))):
        ran = run_prixlm(*asked, "--out", tmp_path / f"{name}.tsv", *more)
        assert ran.returncode == 0, ran.stderr
        notes = [line for line in ran.stderr.splitlines() if "thread" in line]
        assert [" thread" in line for line in notes] == ([] if name == "c" else [True])
        assert "thread" not in ran.stdout
    trained = ("pretrain", toy_run / "kb", "--preset", "demo", "--epochs", 1, "--width", 16)
    ran = run_prixlm(*trained, "--vocab", 600, "--to", tmp_path / "model")
    assert ran.stderr.startswith(f"prixlm: {describe_threads()}\n"), ran.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["complete", "--lang", "en"], "--subject, --relation is missing"),
        (["complete", *CAPITAL, "--out", "a.tsv"], "--out requires --queries"),
        (["complete", "--queries", "q.tsv"], "with --queries, pass --out FILE"),
        (["complete", *CAPITAL, "--queries", "q.tsv", "--out", "a.tsv"], "leave out --lang"),
        (["complete", *CAPITAL, "-k", "0"], "k 0: expected 1 or more"),
        (["translate", "--from", "en", "--name", "Finland"], "--to is missing"),
        (["translate", "--free", "--from", "en", "--name", "Finland"], "--to is missing"),
        (["translate", "--free", "--queries", "q.tsv", "--out", "a.tsv"], "--free takes one name"),
        (["translate", "--queries", "q.tsv", "--out", "a.xlsx"], "ends in .parquet"),
        (["link"], "pass --mention TEXT, or --mentions FILE with --out FILE"),
        (["link", "--mentions", "m.txt"], "pass --mention TEXT, or --mentions FILE"),
        (["link", "--mention", "x", "-k", "0"], "-k 0: expected 1 or more"),
        (["link", "--mention", "x", "--lang", "sv"], "no language sv"),
        (["link", "--mentions", "none.txt", "--out", "a.tsv"], "none.txt cannot be read"),
    ],
)
def test_a_wrong_question_is_one_line_before_anything_is_loaded(
    args: list[str], message: str, toy_run: Path, tmp_path: Path
) -> None:
    command, *options = args
    ran = run_prixlm(command, "no-model", "--kb", toy_run / "kb", *options, cwd=tmp_path)
    assert ran.returncode == 2 and message in ran.stderr and ran.stderr.count("\n") == 1


def test_link_finds_the_nearest_entities(toy_run: Path) -> None:
    command = ("link", toy_run / "encoder", "--kb", toy_run / "kb", "--lang", "en", "-k", 2)
    shown = succeed(*command, "--mention", "Finland")
    assert "Finland" in shown and "confidence" in shown
    linked = succeed_json(*command, "--mention", "Finland", "--mention", "Suomi")
    assert [row["mention"] for row in linked] == ["Finland", "Suomi"]
    best = linked[0]["answers"][0]
    assert best["name"] == "Finland" and best["lang"] == "en" and best["rank"] == 1
    assert "spelling" in best["evidence"]


def test_link_takes_a_file_of_mentions(toy_run: Path, tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("Finland\n\nSuomi\n", "utf-8")
    files = ("--mentions", tmp_path / "m.txt", "--out", tmp_path / "linked.tsv")
    text = succeed("link", toy_run / "encoder", "--kb", toy_run / "kb", *files)
    assert text == f"Linked 3 lines (1 of them empty): {tmp_path / 'linked.tsv'}\n"
    assert (tmp_path / "linked.tsv").read_text("utf-8").startswith("mention\trank\tname")
