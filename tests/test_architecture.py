"""The house rules that a machine can check: who imports whom, what is public, what has a test."""

import ast
import importlib.metadata
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import prixlm
from prixlm.cli.app import COMMANDS, GROUPS
from prixlm.errors import EXTRAS
from prixlm.importers.plan import FORMATS
from tests.helpers import run_python

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "prixlm"
TESTS = ROOT / "tests"

# A room imports itself and the rooms to its left; rooms in one brace do not import each other.
RULE = (
    "root < engine < kb < {importers, reports, lm, proposals} < {training, decoding} < entities "
    "< rankers < linking < enrichment < evaluation < service < demo < cli"
)
NO_TORCH_ROOMS = ("root", "engine", "kb", "importers", "reports", "proposals")
HEAVY = ("torch", "transformers", "duckdb", "pyarrow", "numpy")
NO_TEST_FILE = {
    "__main__": "one line; tests/cli/test_app.py runs it",
    "cli.demo": "tests/test_demo.py runs the command",
}
"""Modules without a test file of their name, and why."""


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
    """Return the modules that a file imports, at the top and inside functions."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            imported.add(node.module)
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    return imported


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
    """One file per KB format is the rule of `importers`, so formats do not count.

    Nor does `__main__`, which is `python -m prixlm` and holds nothing.
    """
    others = {format.parser.__module__.removeprefix("prixlm.") for format in FORMATS.values()}
    others.add("__main__")
    sizes = Counter(path.parent.name for name, path in modules().items() if name not in others)
    assert max(sizes.values()) <= 12, sizes.most_common(3)


def test_every_module_has_a_test_file_of_its_name() -> None:
    without = []
    for module, path in modules().items():
        inner = path.relative_to(SOURCE)
        test = TESTS / inner.parent / f"test_{inner.name}"
        if not test.is_file() and module not in NO_TEST_FILE:
            without.append(str(test.relative_to(ROOT)))
    assert not without, "write these, or add the module to NO_TEST_FILE with the reason"


def test_the_exceptions_to_that_rule_are_needed() -> None:
    assert set(NO_TEST_FILE) <= set(modules())
    for module in NO_TEST_FILE:
        inner = modules()[module].relative_to(SOURCE)
        assert not (TESTS / inner.parent / f"test_{inner.name}").is_file(), module


@pytest.mark.parametrize("name", ["Array", "Progress"])
def test_a_shared_type_is_defined_once(name: str) -> None:
    """In types.py, once for the type checker; all others import it."""
    pattern = re.compile(rf"^\s*{name}(: TypeAlias)? = ", re.MULTILINE)
    homes = [m for m, path in modules().items() if pattern.search(path.read_text("utf-8"))]
    assert homes == ["types"]


def test_sql_reads_parquet_by_one_function_alone() -> None:
    """DuckDB takes a folder `lang=fi` for a value of every row below, unless it is told not to."""
    pattern = re.compile(r"read_parquet\(|parquet_scan\(|from_parquet\(|FROM '", re.IGNORECASE)
    homes = [m for m, path in modules().items() if pattern.search(path.read_text("utf-8"))]
    assert homes == ["files"]


def test_what_a_plain_machine_runs_imports_no_extra() -> None:
    plain = [m for m in modules() if room_of(m) in NO_TORCH_ROOMS]
    blocked = [package for packages in EXTRAS.values() for package in packages]
    ran = run_python(
        "import importlib, sys\n"
        f"for name in {blocked!r}:\n"
        "    sys.modules[name] = None\n"
        f"for module in {plain!r}:\n"
        "    importlib.import_module('prixlm.' + module)\n"
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_the_extras_of_the_command_line_are_those_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    distributions = importlib.metadata.packages_distributions()
    for extra, packages in EXTRAS.items():
        wanted = {re.split(r"[>=<\[]", line)[0] for line in project["optional-dependencies"][extra]}
        for package in packages:
            if package in distributions:  # not every extra is installed for the tests
                names = {name.lower().replace("_", "-") for name in distributions[package]}
                assert names & wanted, f"{package} is not in the extra {extra}"
        assert len(packages) == len(wanted), f"{extra}: {sorted(wanted)}"


@pytest.mark.parametrize("args", [["--help"], ["export", "--help"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    ran = run_python(
        "import sys, typer.testing, prixlm.cli.app as cli\n"
        f"result = typer.testing.CliRunner().invoke(cli.app, {args!r})\n"
        "assert result.exit_code == 0, result.output\n"
        f"print(*[m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert ran.returncode == 0 and ran.stdout.split() == [], ran.stdout + ran.stderr


def test_import_prixlm_imports_nothing_heavy() -> None:
    ran = run_python(f"import sys, prixlm\nprint(*[m for m in {HEAVY!r} if m in sys.modules])")
    assert ran.returncode == 0 and ran.stdout.split() == [], ran.stdout + ran.stderr


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").is_file()


def test_every_command_has_help_with_an_example() -> None:
    commands = {name: command.__doc__ for name, command in COMMANDS.items()}
    for group, group_app in GROUPS.items():
        for command in group_app.registered_commands:
            assert command.callback is not None
            name = command.name or command.callback.__name__
            commands[f"{group} {name}"] = command.callback.__doc__
    assert {"import", "graph", "evaluate lp", "reproduce lp"} <= set(commands)
    for name, help_text in commands.items():
        assert f"Example: [b]prixlm {name}" in (help_text or ""), name


def test_names_are_imported_when_they_are_first_used() -> None:
    for name in prixlm.__all__:
        assert getattr(prixlm, name) is not None
    assert set(dir(prixlm)) == set(prixlm.__all__)
    with pytest.raises(AttributeError):
        _ = prixlm.nothing
