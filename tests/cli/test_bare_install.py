"""An installation without extras: import, split, review and export work; the rest says why not.

Everything runs in a process in which the packages of the extras cannot be imported.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm.errors import EXTRAS
from prixlm.proposals.tables import FACT_SCHEMA, FORMAT
from tests.helpers import Ran, run_python

ROOT = Path(__file__).parents[2]
BLOCKED = [package for packages in EXTRAS.values() for package in packages]
FORMATS = ("nt", "nq", "tsv", "parquet", "quickstatements")


def run_bare(*commands: list[object]) -> list[Ran]:
    """Run commands, one after the other, where no extra is installed."""
    code = (
        "import dataclasses, json, sys\n"
        f"for name in {BLOCKED!r}:\n"
        "    sys.modules[name] = None\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from tests.helpers import run_prixlm\n"
        "ran = [run_prixlm(*args) for args in json.loads(sys.argv[2])]\n"
        "print(json.dumps([dataclasses.asdict(one) for one in ran]))\n"
    )
    asked = json.dumps([list(map(str, command)) for command in commands])
    done = run_python(code, ROOT, asked)
    assert done.returncode == 0, done.stderr
    return [Ran(**values) for values in json.loads(done.stdout)]


def make_proposals(folder: Path) -> Path:
    """Write a folder of three proposals, as `prixlm enrich` would."""
    row = {
        "lang": "et",
        "relation": 0,
        "relation_key": "P36",
        "relation_name": "pealinn",
        "relation_is_named": True,
        "why": "elsewhere",
        "origin": [],
    }
    rows = [
        row
        | {
            "id": number,
            "subject": number,
            "subject_key": f"Q{1 + number}",
            "subject_name": f"riik {number}",
            "object": 10 + number,
            "object_key": f"Q{11 + number}",
            "object_name": f"linn {number}",
            "confidence": 0.9 - 0.1 * number,
        }
        for number in range(3)
    ]
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=FACT_SCHEMA), folder / "proposals.parquet")
    manifest = {
        "format": FORMAT,
        "tool": "prixlm test",
        "kb": "ab" * 32,
        "licence": "CC0",
        "sources": ["a.nt"],
        "config": {"into": ["et"]},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return folder


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The world KB in two languages, imported without extras."""
    folder = tmp_path_factory.mktemp("bare") / "world"
    command: list[object] = ["import", "--format", "world", "--langs", "en,et", "--to", folder]
    dry, made, stats = run_bare([*command, "--dry-run"], command, ["stats", folder, "--json"])
    assert dry.returncode == made.returncode == stats.returncode == 0, dry.stderr + made.stderr
    assert "et  Estonian" in made.stdout
    assert json.loads(stats.stdout)["entities"]["et"] > 1000
    return folder


def test_a_kb_is_split(kb: Path, tmp_path: Path) -> None:
    (ran,) = run_bare(["split", kb, "--to", tmp_path / "split", "--test", 0.2, "--json"])
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["triples"]["et"]["test"] > 100


def test_a_table_of_facts_is_imported(toy_files: list[Path], tmp_path: Path) -> None:
    (ran,) = run_bare(["import", *toy_files, "--to", tmp_path / "kb", "--json"])
    assert ran.returncode == 0 and json.loads(ran.stdout)["links"] == 8, ran.stderr


def test_proposals_are_reviewed_and_exported(tmp_path: Path) -> None:
    folder, sheet = make_proposals(tmp_path / "proposals"), tmp_path / "review.tsv"
    exports: list[list[object]] = [
        ["export", folder, "--format", format, "--to", tmp_path / f"facts.{format}"]
        for format in FORMATS
    ]
    exports[-1] += ["--reference", "S854:https://example.org/run"]
    ran = run_bare(["review", folder, "--to", sheet], *exports)
    assert [one.returncode for one in ran] == [0] * 6, [one.stderr for one in ran]
    for format in FORMATS:
        assert (tmp_path / f"facts.{format}").stat().st_size > 50
    head, *lines = sheet.read_text("utf-8").splitlines()
    sheet.write_text("\n".join([head, "accept" + lines[0], "reject" + lines[1], lines[2]]) + "\n")
    accepted = tmp_path / "accepted.tsv"
    marked, exported = run_bare(
        ["review", folder, "--marks", sheet, "--json"],
        ["export", folder, "--format", "tsv", "--to", accepted, "--accepted", "--json"],
    )
    assert json.loads(marked.stdout) == {"accepted": 1, "rejected": 1, "open": 1}
    assert json.loads(exported.stdout)["written"] == 1
    assert "linn 0" in accepted.read_text("utf-8")


def test_a_command_that_needs_an_extra_says_so_in_one_line(kb: Path, tmp_path: Path) -> None:
    folder = make_proposals(tmp_path / "proposals")
    commands: list[list[object]] = [
        ["pretrain", kb, "--to", tmp_path / "model"],
        ["pretrain", kb, "--dry-run"],
        ["mirror", tmp_path / "model", "--to", tmp_path / "encoder"],
        ["graph", kb, "--to", tmp_path / "graph"],
        [
            "complete",
            "m",
            "--kb",
            kb,
            "--lang",
            "et",
            "--subject",
            "Soome",
            "--relation",
            "capital",
        ],
        ["translate", "m", "--kb", kb, "--from", "en", "--to", "et", "--name", "Finland"],
        ["link", "encoder", "--kb", kb, "--mention", "Soome"],
        ["enrich", kb, "--into", "et", "--to", tmp_path / "proposed"],
        ["report", folder, "--kb", kb, "--to", tmp_path / "report"],
        ["evaluate", "lp", "--kb", kb],
        ["reproduce", "lp", "--kb", kb, "--to", tmp_path / "table"],
        ["demo", "--to", tmp_path / "demo"],
    ]
    for command, ran in zip(commands, run_bare(*commands), strict=True):
        expected = "prixlm: this needs the model extra: pip install 'prixlm[model]'"
        assert ran.stderr.startswith(expected), (command, ran.stderr)
        assert ran.stderr.count("\n") == 1 and ran.returncode == 2 and ran.stdout == ""


def test_help_of_every_command_needs_no_extra() -> None:
    names = ("--help", "import", "pretrain", "graph", "enrich", "export", "demo")
    commands: list[list[object]] = [[name, "--help"] for name in names[1:]]
    for ran in run_bare(["--help"], *commands):
        assert ran.returncode == 0 and "Usage" in ran.stdout, ran.stderr
