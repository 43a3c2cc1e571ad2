"""`prixlm reproduce`: rows of the paper's tables from a shell."""

import json
from pathlib import Path
from typing import Any

import pytest

from prixlm import KB
from prixlm.evaluation.probing.prompts import Prompt
from prixlm.evaluation.reproduce_names import NamesConfig
from prixlm.reports.tables import ResultTable, write_tables
from tests.cli.conftest import succeed, succeed_json
from tests.helpers import run_prixlm


@pytest.fixture(scope="module")
def table(split: Path) -> Path:
    """A folder with two rows of the link-prediction table."""
    to = split.parent / "table"
    text = succeed("reproduce", "lp", "--kb", split, "--to", to, "--rows", "lookup, pairs")
    assert "links: pairs" in text and f"Written to {to}." in text
    return to


def test_rows_are_made_once_and_shown_again(split: Path, table: Path) -> None:
    before = (table / "rows" / "pairs.json").stat().st_mtime_ns
    rows = succeed_json("reproduce", "lp", "--kb", split, "--to", table, "--rows", "pairs")
    assert [row["title"] for row in rows] == ["links: pairs"] and rows[0]["max_rank"] == 1000
    assert (table / "rows" / "pairs.json").stat().st_mtime_ns == before
    assert "| links: lookup |" in (table / "table.md").read_text("utf-8"), "all rows there are"


def test_a_row_is_made_for_some_languages_first(split: Path, tmp_path: Path) -> None:
    config = tmp_path / "small.toml"
    lists = "graph_batches = [500]\ngraph_epochs = [1]\ngraph_regularisers = [0.05]\n"
    config.write_text(f"[graph]\nrank = 4\n[search]\nfacts = 20\n{lists}")
    options = ("--kb", split, "--to", tmp_path / "table", "--config", config)
    rows = ("--rows", "graph-single")
    [row] = succeed_json("reproduce", "lp", *options, *rows, "--langs", "et")
    assert row["title"] == "ComplEx, softmax, one language (ours)" and list(row["figures"]) == [
        "et"
    ]
    assert (tmp_path / "table" / "rows" / "graph-single" / "et.json").is_file()
    ran = run_prixlm("reproduce", "lp", *options, "--langs", "et")
    assert ran.returncode == 2 and "--langs requires --rows" in ran.stderr


def test_a_folder_of_other_settings_is_refused(split: Path, table: Path, tmp_path: Path) -> None:
    config = tmp_path / "table.toml"
    config.write_text("beyond = 50\n")
    options = ("--kb", split, "--to", table, "--config", config, "--rows", "pairs")
    ran = run_prixlm("reproduce", "lp", *options)
    assert ran.returncode == 2 and "was made with other config.beyond" in ran.stderr


def test_rows_by_jmacs_protocol_are_printed_and_written(toy_run: Path, tmp_path: Path) -> None:
    kb = tmp_path / "kb"
    succeed("split", toy_run / "kb", "--to", kb, "--test", 0.4, "--valid", 0.1)
    options = ("--kb", kb, "--to", tmp_path / "j", "--rows", "usual, lookup", "--langs", "en")
    text = succeed("reproduce", "jmac", *options, "--seed", 1)
    assert "links: lookup" in text and "± at most" in text
    rows = succeed_json("reproduce", "jmac", *options, "--seed", 1)
    assert list(rows[0]["figures"]) == ["en"] and rows[0]["title"] == "usual object"
    low, high = rows[1]["figures"]["en"]["all"]["intervals"]["mrr"]
    assert low <= rows[1]["figures"]["en"]["all"]["mrr"] <= high
    ran = run_prixlm("reproduce", "jmac", *options, "--seed", 2)
    assert ran.returncode == 2 and "was made with other config.seed" in ran.stderr
    settings = tmp_path / "jmac.toml"
    settings.write_text("seed = 1\n[graph]\nrank = 3\n")
    ran = run_prixlm("reproduce", "jmac", *options, "--config", settings)
    assert ran.returncode == 2 and "other config.graph.rank: name" in ran.stderr
    ran = run_prixlm("reproduce", "jmac", *options, "--links", tmp_path, "--seed", 1)
    assert ran.returncode == 2 and "leave out --seed, which draws them" in ran.stderr
    ran = run_prixlm("reproduce", "jmac", "--kb", kb, "--to", tmp_path / "l", "--links", tmp_path)
    assert ran.returncode == 2 and "has no links: expected files such as" in ran.stderr


def test_the_tables_on_names_are_shown(
    shared_toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands read the files, call the library and show its tables."""
    asked: dict[str, Any] = {}

    def fake(name: str) -> object:
        def make(kb: KB, to: Path, *args: object) -> list[ResultTable]:
            asked[name] = args
            table = ResultTable(f"accuracy of {name}")
            table.add("base", "fi", 0.5, 2)
            write_tables(to, name, [table])
            return [table]

        return make

    for name in ("xel", "bli", "probe"):
        path = f"prixlm.evaluation.reproduce_names.reproduce_{name}"
        monkeypatch.setattr(path, fake(name))
    names, mentions = tmp_path / "names", tmp_path / "fi_test.txt"
    names.write_text("1||heart\n")
    mentions.write_text("1||sydän\n")
    pair = tmp_path / "bli" / "en-fi"
    pair.mkdir(parents=True)
    for split in ("train", "test"):
        (pair / f"{split}.tsv").write_text("a\tb\n")
    (tmp_path / "fi.tsv").write_text("Prompt\tAns\tCandidate Ans\tSubject\n<mask>\ta\ta\tx\n")
    words = tmp_path / "words.txt"
    points = ("--checkpoints", "0,20k,150k,1", "--at", "150k")
    inputs = {
        "xel": ("--names", names, "--queries", mentions, "--words", words, *points),
        "bli": ("--dictionaries", tmp_path / "bli"),
        "probe": ("--prompts", tmp_path, "--at", "20k"),
    }
    for name, options in inputs.items():
        command = ("reproduce", name, "--kb", shared_toy.folder, "--to", tmp_path / "t", *options)
        text = succeed(*command)
        assert f"accuracy of {name} (%)" in text and "Written to" in text
        assert succeed_json(*command)[0]["rows"] == {"base": {"fi": 0.5}}
    assert [list(part) for args in asked.values() for part in args if isinstance(part, dict)] == [
        ["fi"],
        ["en-fi"],
        ["fi"],
    ]
    config = {
        name: next(x for x in args if isinstance(x, NamesConfig)) for name, args in asked.items()
    }
    assert config["xel"].linking_at == 150_000 and config["probe"].probing_at == 20_000
    assert config["xel"].pretrain.training.checkpoints == (0.0, 20_000.0, 150_000.0, 1.0)
    assert config["xel"].mirror.words == config["xel"].mirror_others.words == str(words)
    assert config["bli"] == NamesConfig()


def test_the_files_of_lrxel_and_mlama_are_read(
    shared_toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layouts of the files that the paper took: pbel_plus's, and mlama1.1's."""
    asked: dict[str, Any] = {}
    for name in ("xel", "probe"):
        path = f"prixlm.evaluation.reproduce_names.reproduce_{name}"
        monkeypatch.setattr(
            path, lambda kb, to, *args, name=name: asked.setdefault(name, args) and []
        )
    (tmp_path / "en_kb").write_text(
        "307 ||| Abraham Lincoln ||| PER\n8091 ||| Douglas Adams ||| PER\n"
    )
    line = "8091 ||| Douglas Adams ||| డగ్లస్ ఆడమ్స్ ||| PER\n"
    for lang in ("te", "lao"):
        (tmp_path / f"me_test_en-{lang}_links").write_text(line)
    command = ("reproduce", "xel", "--kb", shared_toy.folder, "--to", tmp_path / "t")
    queries = [
        x for lang in ("te", "lao") for x in ("--queries", tmp_path / f"me_test_en-{lang}_links")
    ]
    succeed(*command, "--format", "lrxel", "--names", tmp_path / "en_kb", *queries)
    tasks = next(part for part in asked["xel"] if isinstance(part, dict))
    assert list(tasks) == ["te", "lo"]
    assert tasks["te"].names == ["Abraham Lincoln", "Douglas Adams"]
    assert tasks["te"].mentions == ["డగ్లస్ ఆడమ్స్"] and tasks["te"].answers(0) == [1]
    for lang, template, place in (
        ("fi", "[X] on [Y]n pääkaupunki.", "Suomi"),
        ("en", "[X] in [Y] .", "Finland"),
    ):
        folder = tmp_path / "mlama1.1" / lang
        folder.mkdir(parents=True)
        (folder / "templates.jsonl").write_text(
            json.dumps({"relation": "P1376", "template": template}) + "\n"
        )
        row = {"sub_uri": "Q1757", "obj_uri": "Q33", "obj_label": place, "sub_label": "Helsinki"}
        rows = [
            row | {"uuid": "1", "lineid": 3},
            row | {"obj_label": "Ruotsi", "sub_label": "Tukholma"},
        ]
        (folder / "P1376.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("reproduce", "probe", "--kb", shared_toy.folder, "--to", tmp_path / "t")
    succeed(*command, "--mlama", tmp_path / "mlama1.1", "--langs", "fi")
    prompts = next(part for part in asked["probe"] if isinstance(part, dict))
    assert list(prompts) == ["fi"]
    assert prompts["fi"].prompts[0] == Prompt(
        "Helsinki on <mask>n pääkaupunki.", "Suomi", ("Suomi", "Ruotsi"), "P1376"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lp", "--rows", ","], "--rows names no row"),
        (["lp", "--rows", "all-wide"], "row all-wide: expected one of usual"),
        (["xel", "--names", "x"], "--names requires --queries"),
        (["bli", "--dictionaries", "x"], "no folder for a pair of languages"),
        (["bli", "--dictionaries", "x", "--at", "soon"], "checkpoint soon: expected a share"),
        (["xel", "--format", "lrxel"], "--format requires --names and --queries"),
        (["probe", "--prompts", "x"], r"x has no .tsv file"),
        (["probe", "--prompts", "x", "--mlama", "x"], "with --prompts, or mLAMA's with --mlama"),
        (["probe", "--mlama", "x"], "x has no LANG/templates.jsonl"),
        (["probe", "--prompts", "x", "--langs", "fi"], "--langs requires --mlama"),
        (["jmac", "--rows", "all"], "--rows all: expected some of usual, direct"),
    ],
)
def test_a_wrong_argument_is_one_line(
    args: list[str], message: str, split: Path, tmp_path: Path
) -> None:
    command, *options = args
    ran = run_prixlm("reproduce", command, "--kb", split, "--to", "t", *options, cwd=tmp_path)
    assert ran.returncode == 2 and ran.stdout == ""
    assert message in ran.stderr and len(ran.stderr.splitlines()) == 1, ran.stderr
