"""README and docs: code blocks run, names exist, pages stay short, and the site needs no network.

The README's commands run in a folder like a checkout, the tutorial's in a folder within it. A block
that is too slow for a test is marked above its fence: `<!-- not run: 3 minutes -->`.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import typer

from prixlm import import_kb
from prixlm.cli.app import app
from prixlm.importers import plan

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README, TUTORIAL = ROOT / "README.md", DOCS / "tutorial.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
LONG = {"CHANGELOG.md", "log.md", "results"}
"""Pages that may be longer than 15 kB: what grows, and everything below `results`."""

_BLOCK = re.compile(r"(<!-- not run: .+? -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(
    r"(?:^|[\s(])((?:src/prixlm|tests|benchmarks|examples|docs)/[\w./-]+\w"
    r"|(?:[a-z]+/)?[a-z_]+\.py)(?=$|[\s),.:;])"
)
_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    is_run: bool


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = _BLOCK.finditer(page.read_text("utf-8"))
    return [Block(match[2], match[3], match[1] is None) for match in found]


def commands(text: str) -> list[str]:
    """Return the shell commands of a block, with continued lines joined."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line.strip()]


def run_command(line: str, folder: Path) -> None:
    """Run one shell line: `prixlm` in this process, where torch is imported once, else bash."""
    if line.startswith("prixlm serve "):
        visit_server(shlex.split(line)[2:], folder)
        return
    if line.startswith("prixlm ") and not set(line) & set("|>&;"):
        app(shlex.split(line)[1:], standalone_mode=False)
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = ["bash", "-euo", "pipefail", "-c", line]
    done = subprocess.run(
        script, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{line}\n{done.stderr}"


def visit_server(arguments: list[str], folder: Path) -> None:
    """Start the server on a free port, open the page that it names, and end it with Ctrl-C."""
    command = [sys.executable, "-m", "prixlm", "serve", *arguments, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            lines = iter(server.stdout.readline, "")
            address = next(line.split()[1] for line in lines if line.startswith("Open "))
            with urllib.request.urlopen(address, timeout=60) as page:
                assert b"prixlm" in page.read()
        finally:
            server.send_signal(signal.SIGINT)
    assert server.returncode == 0


def run_page(page: Path, folder: Path) -> None:
    """Run the shell and Python blocks of a page, in order, in one folder and one namespace."""
    namespace: dict[str, Any] = {}
    for block in blocks(page):
        if block.language == "shell" and block.is_run:
            for line in commands(block.text):
                run_command(line, folder)
        elif block.language == "python" and block.is_run:
            exec(compile(block.text, str(page), "exec"), namespace)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new working folder with the examples of a checkout.

    Fusions have few trees and names are learnt from few examples: these tests check text, not
    figures.
    """
    import prixlm.enrichment.run as run

    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setattr(
        run, "FusionConfig", partial(run.FusionConfig, facts=600, iterations=40, parts=2)
    )
    few = partial(run.LabelConfig, fitted=2000, learnt=500, asked=400, sources=3)
    monkeypatch.setattr(run, "LabelConfig", few)
    return tmp_path


def test_the_tutorial_runs(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workplace / "try"
    folder.mkdir()
    monkeypatch.chdir(folder)
    run_page(TUTORIAL, folder)


def test_the_commands_of_the_readme_run(workplace: Path) -> None:
    shell = [block for block in blocks(README) if block.language == "shell" and block.is_run]
    lines = [line for block in shell for line in commands(block.text)]
    assert 0 < sum(line.startswith("prixlm") for line in lines) <= 5
    for line in lines:
        if not line.startswith("pip install"):  # the environment of the tests has it installed
            run_command(line, workplace)


def test_the_python_of_the_readme_runs(workplace: Path) -> None:
    python = [block for block in blocks(README) if block.language == "python"]
    assert python
    for block in python:
        exec(compile(block.text, str(README), "exec"), {})


def test_the_format_of_contributing_imports_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = [block for block in blocks(ROOT / "CONTRIBUTING.md") if block.language == "python"]
    namespace: dict[str, Any] = {"__name__": "semicolon"}
    exec(compile(block.text, "CONTRIBUTING.md", "exec"), namespace)
    monkeypatch.setitem(plan.FORMATS, "semicolon", namespace["SEMICOLON"])
    source = tmp_path / "facts.semicolon"
    source.write_text("Finland;capital;Helsinki\nonly one cell\n", "utf-8")
    kb = import_kb([source], tmp_path / "kb", format="semicolon")
    assert kb.num_triples("en") == 1
    assert kb.manifest.account["rejected"] == {"expected subject;relation;object": 1}


def test_the_readme_and_the_pages_are_short() -> None:
    assert README.stat().st_size <= 8000
    for page in PAGES:
        if not {page.name, page.parent.name} & LONG:
            assert page.stat().st_size <= 15_000, page


def code_of(page: Path) -> Iterator[str]:
    """Yield the lines of code of a page: fenced and indented blocks, and inline code."""
    text = page.read_text("utf-8")
    for block in _BLOCK.finditer(text):
        yield from commands(block[3])
    without = _BLOCK.sub("", text)
    indented = "\n".join(line for line in without.splitlines() if line.startswith("    "))
    yield from commands(indented)
    yield from _INLINE.findall(without)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_and_link_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    for code in _INLINE.findall(text):
        for name in _PATH.findall(code):
            places = [ROOT / name, ROOT / "src" / "prixlm" / name]
            assert any(place.exists() for place in places), f"{page.name} names {name}"
    for target in _LINK.findall(text):
        is_generated = page in PAGES and (
            "reference/" in target or "settings/" in target or "api/" in target or "cli/" in target
        )
        is_root_page = target.rpartition("/")[2] in (
            *("changelog.md", "contributing.md", "security.md"),
        )
        if not is_generated and not is_root_page:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_name_of_the_paper_map_is_in_its_file() -> None:
    for row in (DOCS / "paper-map.md").read_text("utf-8").splitlines():
        path = None
        for code in _INLINE.findall(row.rpartition(" | ")[2]):
            if code.endswith(".py"):
                path = ROOT / "src" / "prixlm" / code
            elif path is not None:
                name = code.rpartition(".")[2]
                pattern = rf"(?:def|class) {name}\b|^ +{name}:"
                assert re.search(pattern, path.read_text("utf-8"), re.MULTILINE), code


@cache
def options_of_commands() -> dict[str, set[str]]:
    """Return the options of every command, by its full name without `prixlm`."""
    known: dict[str, set[str]] = {}

    def visit(group: Any, before: str) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                visit(command, f"{before}{name} ")
            else:
                flags = (f for p in command.params for f in (*p.opts, *p.secondary_opts))
                known[before + name] = {flag for flag in flags if flag.startswith("-")}

    visit(typer.main.get_command(app), "")
    return known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_and_option_that_a_page_names_exists(page: Path) -> None:
    known = options_of_commands()
    groups = {name.split()[0] for name in known if " " in name}
    for line in code_of(page):
        match = re.match(r"(?:\$ |\S+ .*-m )?prixlm ([a-z]+)(?: ([a-z]+)\b)?(.*)", line)
        if match is None or (match[1] in groups and match[2] is None):
            continue
        name = f"{match[1]} {match[2]}" if match[1] in groups else match[1]
        assert name in known, f"{page.name}: {line}"
        for flag in re.findall(r"(?<=\s)--?[a-z][a-z-]*", match[3]):
            assert flag in known[name] | {"--help"}, f"{page.name}: {line}"


def test_the_reference_has_every_command_and_the_meaning_of_every_setting() -> None:
    sys.path.insert(0, str(DOCS))
    from _generate import cli, settings

    reference = dict(cli.pages())
    for name in options_of_commands():
        assert f"[`prixlm {name}`]" in reference["reference/cli/index.md"]
        assert any(f"## prixlm {name} {{" in text for text in reference.values())
    for path, text in settings.pages():
        assert "|  |" not in text, f"{path}: a setting without a meaning"
        assert len(text.encode()) <= 15_000


def test_the_site_builds_strictly_and_asks_no_other_host(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text("utf-8")
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text):
            assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", tag), f"{page.name}: {tag}"
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text("utf-8"))


def test_the_version_is_the_same_everywhere() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert version is not None
    assert f"\nversion: {version[1]}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"## [{version[1]}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
