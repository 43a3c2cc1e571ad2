"""A house built of hostile names: a KB, a split, models, an embedding and proposals."""

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import KB
from tests.conftest import TOY_FACTS, TOY_LINKS
from tests.helpers import fact_row, label_row, link_row, make_proposals, run_prixlm
from tests.hostile.attacks import EVIL, NAMES

PRETRAIN = """\
base = "compact"
epochs = 2
batch = 16
token_budget = 512
[supply]
max_links = 2
[compact]
vocab = 600
width = 32
layers = 2
heads = 4
dropout = 0.0
[training]
lr = 0.01
log_every = 20
checkpoints = [1.0]
"""
MIRROR = ("--preset", "compact", "--number", 32, "--batch", 16, "--epochs", 1)
GRAPH = ("--rank", 8, "--epochs", 1)


@dataclass(frozen=True)
class House:
    """Folders and files with hostile names in all of them."""

    folder: Path

    def __getattr__(self, name: str) -> Path:
        """Return a part: kb, split, model, encoder, graph, proposals; or a file: facts_tsv."""
        return self.folder / name.replace("_", ".")

    @property
    def evil(self) -> Path:
        """A path that does not exist, whose name attacks the terminal."""
        return self.folder / EVIL.replace("/", "|")[:100]


def run(*args: object) -> None:
    """Run a command that must succeed."""
    ran = run_prixlm(*args)
    assert ran.returncode == 0, ran.stderr


def spoil_kb(folder: Path) -> None:
    """Write raw attacks into the tables of a KB, as someone who shares one could.

    `attack 3` becomes the third attack; the manifest gets a licence that attacks too.
    """
    for table in ("entities", "relations", "relation_names", "aliases"):
        path = folder / f"{table}.parquet"
        rows = pq.read_table(path)
        for column in {"name", "key"} & set(rows.column_names):
            values = [_spoil(value) for value in rows[column].to_pylist()]
            position = rows.column_names.index(column)
            field = rows.schema.field(position)
            rows = rows.set_column(position, field, pa.array(values, field.type))
        pq.write_table(rows, path)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text("utf-8")) | {"licence": EVIL, "tool": EVIL}
    path.write_text(json.dumps(manifest), "utf-8")


def _spoil(text: str) -> str:
    for number in reversed(range(len(NAMES))):
        text = text.replace(f"attack {number}", NAMES[number])
    return text


def write_sources(folder: Path) -> list[Path]:
    """Write the toy KB's tables with further facts about `attack N` in two languages."""
    facts, links = [TOY_FACTS], [TOY_LINKS]
    for number in range(len(NAMES)):
        for lang in ("en", "fi"):
            facts.append(f"{lang}\t{lang} attack {number}\tcapital\t{lang} town attack {number}\n")
        facts.append(f"en\ten attack {number}\tattack {number % 8}\ten town attack {number}\n")
        links.append(f"en\ten attack {number}\tfi\tfi attack {number}\n")
    paths = [folder / "facts.tsv", folder / "links.tsv"]
    for path, lines in zip(paths, (facts, links), strict=True):
        path.write_text("".join(lines), "utf-8")
    return paths


def write_proposals(folder: Path, kb: KB) -> Path:
    """Write proposals of every table, each name and key an attack."""
    facts = [
        fact_row(
            number,
            object=50 + number,  # the KB has about a hundred entities
            subject_name=name,
            subject_key=name,
            relation_name=name,
            relation_key=name,
            object_name=name,
            object_key=f"http://example.org/{name}",
            confidence=0.9 - number / 100,
            why=name,
            origin=[name, "sv"],
            runner_up=name,
        )
        for number, name in enumerate(NAMES)
    ]
    labels = [label_row(lang="fi", name=name, key=name, origin=[name]) for name in NAMES]
    links = [link_row(lang="fi", name=n, key=n, other_name=n, other_key=n) for n in NAMES]
    make_proposals(folder, facts, labels, links)
    path = folder / "manifest.json"
    values = json.loads(path.read_text("utf-8"))
    values |= {"kb": kb.fingerprint(), "licence": EVIL, "sources": [EVIL], "tool": EVIL}
    config = {"min_confidence": 0.5, "missing": {"known": ["train"]}, "relations": [EVIL]}
    values["config"] |= config | {"limit": None}
    values |= {"proposals": {"fi": {EVIL: len(NAMES)}}, "rankers": [EVIL]}
    values |= {"labels": {"fi": {"names": 3}}, "links": {"fi": {"links": 3}}}
    path.write_text(json.dumps(values), "utf-8")
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder of the test's own: a hostile value may be a relative path."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    """The house; tests copy what they change."""
    folder = tmp_path_factory.mktemp("hostile")
    house = House(folder)
    (folder / "run.toml").write_text(PRETRAIN, "utf-8")
    (folder / "names.txt").write_text("\n".join(n.replace("\n", " ") for n in NAMES), "utf-8")
    queries = [f"en\t{' '.join(n.split())}\tcapital" for n in NAMES]
    (folder / "queries.tsv").write_text("lang\tsubject\trelation\n" + "\n".join(queries), "utf-8")
    run("import", *write_sources(folder), "--to", house.kb)
    spoil_kb(house.kb)
    run("split", house.kb, "--to", house.split, "--test", 0.2, "--valid", 0.1)
    run("pretrain", house.kb, "--to", house.model, "--config", house.run_toml)
    run("mirror", house.model, "--to", house.encoder, "--kb", house.kb, *MIRROR)
    run("graph", house.kb, "--to", house.graph, *GRAPH)
    write_proposals(house.proposals, KB(house.kb))
    return house
