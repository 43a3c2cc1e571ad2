"""What the tests of the commands share: a toy KB and a split of the world KB, with their models.

Everything here is made by the commands themselves, once for all tests.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TOY_FACTS, TOY_LINKS
from tests.helpers import run_prixlm

# Small enough for seconds, and trained until the model knows the toy KB by heart.
PRETRAIN = """\
base = "compact"
epochs = 60
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


def succeed(*args: object) -> str:
    """Run a command that must succeed; return what it printed."""
    ran = run_prixlm(*args)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def succeed_json(*args: object) -> Any:
    """Run a command that must succeed with `--json`; return the parsed result."""
    return json.loads(succeed(*args, "--json"))


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy KB (`kb`), a model that knows it (`model`) and its encoder."""
    folder = tmp_path_factory.mktemp("toy-run")
    (folder / "facts.tsv").write_text(TOY_FACTS, "utf-8")
    (folder / "links.tsv").write_text(TOY_LINKS, "utf-8")
    (folder / "run.toml").write_text(PRETRAIN, "utf-8")
    kb, model, encoder = folder / "kb", folder / "model", folder / "encoder"
    succeed("import", folder / "facts.tsv", folder / "links.tsv", "--to", kb)
    succeed("pretrain", kb, "--to", model, "--config", folder / "run.toml")
    sizes = ("--number", 64, "--batch", 16, "--epochs", 4)
    succeed("mirror", model, "--to", encoder, "--kb", kb, "--preset", "compact", *sizes)
    return folder


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split of the world KB in three languages, each of which lacks facts that others state."""
    folder = tmp_path_factory.mktemp("split-run")
    sample = ("--langs", "en,et,fi", "--max-triples", 7000)
    succeed("import", "--format", "world", *sample, "--to", folder / "kb")
    succeed("split", folder / "kb", "--to", folder / "split", "--test", 0.2, "--valid", 0.1)
    return folder / "split"


@pytest.fixture(scope="session")
def graph(split: Path) -> Path:
    """A graph embedding of the split."""
    succeed("graph", split, "--to", split.parent / "graph", "--rank", 8, "--epochs", 4)
    return split.parent / "graph"
