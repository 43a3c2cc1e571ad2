"""The house rules that a machine can check: who imports whom, and what is public."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import prixlm
from prixlm.cli.app import app

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "prixlm"

# A room imports itself and the rooms to its left; rooms in one brace do not import each other.
RULE = (
    "root < kb < {importers, reports, lm} < {training, decoding} < entities < rankers "
    "< enrichment < evaluation < engine < service < demo < cli"
)
NO_TORCH_ROOMS = ("root", "kb", "importers", "reports")
NO_TORCH_MODULES = ("enrichment.proposals", "enrichment.review", "enrichment.export")


def room_of(module: str) -> str:
    if module in ("demo", "__main__"):
        return "demo" if module == "demo" else "cli"
    return module.split(".")[0] if "." in module else "root"


def levels() -> dict[str, int]:
    steps = [step.strip(" {}").split(", ") for step in RULE.split("<")]
    return {room: level for level, rooms in enumerate(steps) for room in rooms}


def modules() -> dict[str, Path]:
    paths = [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
    return {".".join(p.relative_to(SOURCE).with_suffix("").parts): p for p in sorted(paths)}


def imports_of(path: Path) -> set[str]:
    """Names of the modules that a file imports, at the top and inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("module", sorted(modules()))
def test_rooms_import_to_the_left_only(module: str) -> None:
    level, known = levels(), modules()
    room = room_of(module)
    for name in imports_of(known[module]):
        inner = name.removeprefix("prixlm.")
        if name.startswith("prixlm.") and inner in known and room_of(inner) != room:
            other = room_of(inner)
            assert level[other] < level[room], f"{module} ({room}) may not import {inner} ({other})"


def test_no_room_is_crowded() -> None:
    sizes = Counter(path.parent.name for path in modules().values())
    assert max(sizes.values()) <= 12, sizes.most_common(3)


def test_what_a_plain_machine_runs_never_imports_torch() -> None:
    plain = [m for m in modules() if room_of(m) in NO_TORCH_ROOMS or m in NO_TORCH_MODULES]
    code = (
        "import importlib, sys\n"
        "for name in ('torch', 'transformers', 'accelerate', 'sklearn', 'faiss'):\n"
        "    sys.modules[name] = None\n"
        f"for module in {plain!r}:\n"
        "    importlib.import_module('prixlm.' + module)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, typer.testing, prixlm.cli.app as cli\n"
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
