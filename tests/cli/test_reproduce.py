"""`prixlm reproduce`: rows of the paper's tables from a shell."""

from pathlib import Path

import pytest

from prixlm import KB
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


def test_a_folder_of_other_settings_is_refused(split: Path, table: Path, tmp_path: Path) -> None:
    config = tmp_path / "table.toml"
    config.write_text("beyond = 50\n")
    options = ("--kb", split, "--to", table, "--config", config, "--rows", "pairs")
    ran = run_prixlm("reproduce", "lp", *options)
    assert ran.returncode == 2 and "was made with other config.beyond" in ran.stderr


def test_the_tables_on_names_are_shown(
    shared_toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands read the files, call the library and show its tables."""
    asked: dict[str, object] = {}

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
    inputs = {
        "xel": ("--names", names, "--queries", mentions),
        "bli": ("--dictionaries", tmp_path / "bli"),
        "probe": ("--prompts", tmp_path),
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


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lp", "--rows", ","], "--rows names no row"),
        (["lp", "--rows", "all-wide"], "row all-wide: expected one of usual"),
        (["xel", "--names", "x"], "--names requires --queries"),
        (["bli", "--dictionaries", "x"], "no folder for a pair of languages"),
        (["probe", "--prompts", "x"], r"x has no .tsv file"),
    ],
)
def test_a_wrong_argument_is_one_line(
    args: list[str], message: str, split: Path, tmp_path: Path
) -> None:
    command, *options = args
    ran = run_prixlm("reproduce", command, "--kb", split, "--to", "t", *options, cwd=tmp_path)
    assert ran.returncode == 2 and ran.stdout == ""
    assert message in ran.stderr and len(ran.stderr.splitlines()) == 1, ran.stderr
