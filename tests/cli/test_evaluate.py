"""`prixlm evaluate`: the tasks from a shell, as tables, JSON and files."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prixlm import KB, PrixError
from prixlm.rankers.fusion import FusionConfig
from tests.cli.conftest import succeed, succeed_json
from tests.helpers import run_prixlm


@pytest.fixture(scope="module")
def withholding(toy_run: Path) -> Path:
    """A split of the toy KB with most of its links withheld."""
    to = toy_run / "withholding"
    succeed("split", toy_run / "kb", "--to", to, "--hide-links", 0.9, "--valid", 0)
    return to


@pytest.fixture(scope="module")
def tested(toy_run: Path) -> Path:
    """A split of the toy KB with test facts."""
    to = toy_run / "tested"
    succeed("split", toy_run / "kb", "--to", to, "--test", 0.4, "--valid", 0.1)
    return to


def test_link_prediction_prints_tables_and_writes_them(
    tested: Path, toy_run: Path, tmp_path: Path
) -> None:
    ran = run_prixlm("evaluate", "lp", "--kb", tested, "--model", toy_run / "model")
    assert ran.returncode == 2 and "on the held out facts that it would be asked for" in ran.stderr
    model = tmp_path / "model"
    succeed("pretrain", tested, "--to", model, "--config", toy_run / "run.toml")
    options = ("evaluate", "lp", "--kb", tested, "--model", model, "--most", 5)
    text = succeed(*options, "--relations", 1, "--by-name", "--to", tmp_path / "out")
    assert "MRR (%)" in text and "by relation" in text and "MRR, no transfer (%)" in text
    assert "Prix-LM model" in text and f"Written to {tmp_path / 'out'}." in text
    assert (tmp_path / "out" / "table.json").is_file()
    values = succeed_json(*options, "--langs", "en", "--search", "exact", "--beyond", 20)
    how = next(row["how"] for row in values["rows"] if row["title"] == "Prix-LM model")
    assert how.startswith("exact, to rank 20")
    succeed(*options, "--langs", "en", "--answers", 0, "--to", tmp_path / "none")
    [head, *_] = (tmp_path / "none" / "answers" / "usual-object.tsv").read_text().split("\n")
    assert "answer" not in head and "rank" in head
    values = succeed_json(*options, "--langs", "en")
    assert list(values["rows"][0]["figures"]) == ["en"] and values["relations"] == {}
    row = next(row for row in values["rows"] if row["title"] == "Prix-LM model")
    assert row["max_rank"] == 10 and row["how"].startswith("beam K = 50, to rank 10")


def test_linking_is_evaluated_on_files_and_on_withheld_links(
    withholding: Path, bases: dict[str, Path], tmp_path: Path
) -> None:
    names, queries = tmp_path / "names", tmp_path / "fi"
    names.write_text("1||heart\n2||liver\n", "utf-8")
    queries.write_text("1||sydän\n2||liver\n9||x\n", "utf-8")
    files = ("--names", names, "--queries", queries)
    tables = succeed_json("evaluate", "xel", "--encoder", bases["xlmr"], *files)
    assert tables[0]["numbers"] == {"fi": 2}
    assert tables[0]["rows"]["string similarity (rapidfuzz)"]["fi"] >= 0.5
    assert tables[2]["numbers"] == {"fi": 1}, "one name is the mention itself"
    text = succeed("evaluate", "xel", "--kb", withholding, "--langs", "fi", "--to", tmp_path)
    assert "accuracy@1, names that differ (%)" in text and (tmp_path / "xel.md").is_file()


def test_a_model_that_saw_the_withheld_links_is_one_line(withholding: Path, toy_run: Path) -> None:
    options = ("evaluate", "xel", "--kb", withholding, "--encoder", toy_run / "encoder")
    ran = run_prixlm(*options)
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1
    assert "on the withheld links that it would be asked for" in ran.stderr


def test_lexicons_are_printed_and_written(bases: dict[str, Path], tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcdef" for b in "ghijk"))
    files = ("--train", words, "--test", words, "--to", tmp_path)
    text = succeed("evaluate", "bli", "--encoder", bases["xlmr"], *files)
    assert "accuracy among dictionary (%)" in text
    assert (tmp_path / "bli.md").exists() and (tmp_path / "bli.json").exists()


def test_rows_are_compared_and_seeds_are_merged(
    bases: dict[str, Path], tested: Path, tmp_path: Path
) -> None:
    words = tmp_path / "words"
    words.write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcdef" for b in "ghijk"))
    files = ("--train", words, "--test", words, "--to", tmp_path)
    succeed("evaluate", "bli", "--encoder", bases["xlmr"], *files)
    rows = ("--row", "xlmr", "--row", "string similarity (rapidfuzz)")
    [table, *_] = succeed_json("evaluate", "compare", tmp_path / "bli.parquet", *rows)
    assert table["title"] == "accuracy among dictionary"
    assert list(table["rows"]["words"]) == ["first", "second", "difference"]
    assert table["details"]["words"]["first is"] in ("higher", "lower", "no difference")
    text = succeed("evaluate", "merge", tmp_path / "bli.json", tmp_path / "bli.json")
    assert "accuracy among dictionary (%)" in text and "± at most" in text
    out = tmp_path / "lp"
    succeed("evaluate", "lp", "--kb", tested, "--langs", "en", "--most", 5, "--to", out)
    ranks = [out / "answers" / f"{name}.parquet" for name in ("links-lookup", "usual-object")]
    text = succeed("evaluate", "compare", *ranks)
    assert "MRR (%)" in text and "first: links-lookup.parquet" in text
    ran = run_prixlm("evaluate", "compare", ranks[0])
    assert ran.returncode == 2 and "two files of ranks, or one file of questions" in ran.stderr


def test_probing_prints_what_was_left_out(bases: dict[str, Path], tmp_path: Path) -> None:
    prompts = tmp_path / "en.tsv"
    lines = ["Prompt\tAns\tCandidate Ans\tSubject", "It is <mask>.\ta\ta, b\tx", "<mask>\ta\ta\tx"]
    prompts.write_text("\n".join(lines))
    ran = run_prixlm("evaluate", "probe", "--model", bases["xlmr"], "--prompts", prompts, "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)[2]["rows"]["chance"] == {"en": 0.5}
    assert "xlmr, en: 1 left out: no second candidate (not ranked)" in ran.stderr
    options = ("evaluate", "probe", "--model", bases["xlmr"], "--prompts", prompts)
    out = tmp_path / "out"
    [*_, ranked] = succeed_json(*options, "--most", 1, "--to", out)
    assert ranked["rows"]["chance"] in ({"en": 0.5}, {"en": None})
    assert {path.name for path in out.iterdir()} >= {"probe.md", "probe.json"}
    assert not (out / "probe-parts.jsonl").exists()


def test_proposals_are_tried_on_test_facts(
    split: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = FusionConfig(facts=100, iterations=10, smallest=5, depth=5)
    monkeypatch.setattr("prixlm.evaluation.proposals.FusionConfig", lambda: small)
    options = ("evaluate", "enrich", "--kb", split, "--langs", "et", "--most", 20)
    text = succeed(*options, "--to", tmp_path / "out")
    assert "confidence, et, all facts" in text and "fused" in text
    for name in ("enrich.json", "enrich.md", "trials.json", "reliability.png"):
        assert (tmp_path / "out" / name).is_file()


@pytest.mark.parametrize(
    ("task", "function", "setting"),
    [("enrich", "try_enrichment", "config"), ("proposals", "judge_enrichment", "fusion")],
)
def test_a_confidence_is_fitted_on_as_many_facts_as_asked(
    task: str, function: str, setting: str, split: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(*_: object, **settings: Any) -> None:
        raise PrixError(f"fitted on {settings[setting] and settings[setting].facts}")

    monkeypatch.setattr(f"prixlm.evaluation.proposals.{function}", show)
    command = ("evaluate", task, "--kb", split, "--langs", "et", "--to", split / "no")
    assert "fitted on None" in run_prixlm(*command).stderr
    assert "fitted on 7" in run_prixlm(*command, "--fuse-facts", 7).stderr
    assert "are 1 or more" in run_prixlm(*command, "--fuse-facts", 0).stderr


def test_proposals_are_judged_by_the_test_facts(
    split: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = partial(FusionConfig, facts=100, iterations=10, smallest=5, depth=5, parts=3)
    monkeypatch.setattr("prixlm.enrichment.run.FusionConfig", fast)
    command = ("evaluate", "proposals", "--kb", split, "--langs", "et", "--to", tmp_path / "out")
    text = succeed(*command)
    held_out = KB(split).num_triples("et", "test")
    assert f"proposals, et, against {held_out} held-out facts" in " ".join(text.split())
    for name in ("proposals.json", "proposals.md", "proposals/proposals.parquet"):
        assert (tmp_path / "out" / name).is_file()
    [table] = succeed_json(*command)
    assert any(row.startswith("answer unstated (") for row in table["rows"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lp", "--kb", "k", "--split", "train"], "expected test or valid"),
        (["lp", "--kb", "k", "--most", "0"], "--most is 1 or more"),
        (["lp", "--kb", "k", "--beyond", "50"], "--beyond is of --search exact"),
        (["lp", "--kb", "k", "--fuse-facts", "50"], "--fuse-facts requires --fuse"),
        (["lp", "--kb", "k", "--langs", "xx"], "unknown language xx"),
        (["xel"], "name a KB that withholds links"),
        (["xel", "--names", "x"], "--names with --queries"),
        (["xel", "--names", "x", "--queries", "y", "--model", "m"], "leave it out with --names"),
        (["xel", "--names", "x", "--queries", "y", "--format", "z"], "xlbel or lrxel"),
        (["bli", "--train", "x", "--test", "y"], "cannot be read as text"),
        (["bli", "--train", "x", "--test", "y", "--frequent", "-5"], "0 or more"),
        (["probe", "--model", "x"], "--prompts, or a folder"),
        (["probe", "--model", "x", "--prompts", "en.tsv"], "en.tsv cannot be read as TSV"),
        (["probe", "--model", "x", "--mlama", "y"], "expected mLAMA's layout"),
        (["enrich", "--kb", "k", "--langs", "et"], "is not a KB folder"),
        (["labels", "--kb", "k", "--langs", "et"], "is not a KB folder"),
    ],
)
def test_a_wrong_argument_is_one_line(args: list[str], message: str, tmp_path: Path) -> None:
    ran = run_prixlm("evaluate", *args, cwd=tmp_path)
    assert ran.returncode == 2 and ran.stdout == ""
    assert message in ran.stderr and len(ran.stderr.splitlines()) == 1, ran.stderr
