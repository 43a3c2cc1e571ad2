"""The house rules that a machine can check: who imports whom, and what is public."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import prixlm
from prixlm.cli import app

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "prixlm"

# From the bottom up: a module imports only from the lines before its own.
LAYERS = [
    ["errors"],
    ["facts", "languages"],
    ["kb.disk", "kb.staging", "kb.concepts"],
    ["kb.streams", "kb.stage", "kb.store"],
    ["kb.rdf", "kb.wikidata", "kb.world", "kb.tables", "kb.scratch", "kb.writer"],
    ["kb.dbpedia", "kb.relations"],
    ["kb.folders", "kb.merge", "kb.merged", "kb.carried"],
    ["kb.importer", "kb.splits"],
    [
        "tokens",
        "report",
        "card",
        "configs",
        "terminal",
        "metrics",
        "alignment",
        "calibration",
        "spelling",
    ],
    ["encoding", "packed", "dropout", "crossentropy", "trim", "checkpoints", "trie", "grids"],
    ["model", "supply", "ranking"],
    ["compact", "training", "stepper", "transfer", "rules", "context", "embed"],
    ["tasks.probing"],
    [
        "pretrain",
        "walk",
        "scoring",
        "graph",
        "heldout",
        "mirror",
        "neighbours",
        "missing",
        "labels",
    ],
    ["counterparts", "chance"],
    ["estimate", "decode", "baselines", "fusion", "tasks.link_prediction"],
    ["complete", "tasks.entity_linking", "tasks.lexicon_induction"],
    ["queries", "model_ranking", "results"],
    ["link", "spaces", "evidence", "proposals"],
    ["enrich"],
    ["review", "trial"],
    ["export", "page"],
    ["demo"],
    ["evaluation", "reproduce", "reproduce_spaces"],
    ["cli_kb", "cli_answer", "cli_evaluate", "cli_entities", "cli_enrich"],
    ["cli_reproduce"],
    ["cli"],
    ["__main__"],
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
NEVER_TORCH = [module for module in LEVEL if module.startswith("kb.")] + [
    *("facts", "languages", "tokens", "encoding", "supply", "trim", "trie"),
    *(
        "metrics",
        "ranking",
        "transfer",
        "rules",
        "heldout",
        "alignment",
        "missing",
        "chance",
        "spelling",
    ),
]


def modules() -> dict[str, Path]:
    paths = [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
    return {".".join(p.relative_to(SOURCE).with_suffix("").parts): p for p in sorted(paths)}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_module_has_a_layer() -> None:
    assert set(modules()) == set(LEVEL)


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_go_downward_only(module: str) -> None:
    for name in imports_of(modules()[module]):
        inner = name.removeprefix("prixlm.")
        if name.startswith("prixlm.") and inner in LEVEL:
            assert LEVEL[inner] < LEVEL[module], f"{module} may not import {inner}"


@pytest.mark.parametrize("module", NEVER_TORCH)
def test_the_kb_never_imports_torch(module: str) -> None:
    tops = {name.split(".")[0] for name in imports_of(modules()[module])}
    assert not tops & {"torch", "transformers", "accelerate"}


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, typer.testing, prixlm.cli as cli\n"
        "result = typer.testing.CliRunner().invoke(cli.app, ['--help'])\n"
        "assert result.exit_code == 0, result.output\n"
        "print(*[m for m in ('torch', 'transformers', 'duckdb', 'pyarrow', 'numpy') "
        "if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_the_public_names_are_these() -> None:
    assert sorted(prixlm.__all__) == [
        "Answer",
        "Completer",
        "Entity",
        "KB",
        "Link",
        "PretrainConfig",
        "PrixError",
        "PrixLM",
        "Query",
        "SearchConfig",
        "SplitConfig",
        "Triple",
        "import_kb",
        "known_objects",
        "split_kb",
        "unseen_triples",
    ]
    for name in prixlm.__all__:
        assert getattr(prixlm, name) is not None
    with pytest.raises(AttributeError):
        _ = prixlm.nothing


def test_every_command_has_help_with_an_example_and_a_line_in_the_docs() -> None:
    docs = (ROOT / "docs" / "commands.md").read_text("utf-8")
    commands = [("", command) for command in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        inner = group.typer_instance.registered_commands
        commands += [(f"{group.name} ", command) for command in inner]
    assert {"evaluate ", "reproduce "} <= {group for group, _ in commands}
    for before, command in commands:
        assert command.callback is not None
        name = before + (command.name or command.callback.__name__)
        help_text = command.callback.__doc__ or ""
        assert f"Example: [b]prixlm {name}" in help_text, name
        assert f"`prixlm {name}" in docs, f"docs/commands.md has no line for {name}"
