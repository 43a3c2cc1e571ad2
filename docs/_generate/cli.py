"""CLI pages: every command with its help, its arguments and its options, from the typer app."""

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import typer

from prixlm.cli.app import app


def pages() -> Iterator[tuple[str, str]]:
    """Yield `reference/cli/FILE.md` for each file of `cli/` that has commands, and an index."""
    root = typer.main.get_command(app)
    sections: dict[str, dict[str, str]] = defaultdict(dict)
    index = []
    for name, command in _commands(root, "prixlm"):
        page = inspect.unwrap(command.callback).__module__.rpartition(".")[2]
        sections[page][name.removeprefix("prixlm ")] = _section(name, command)
        first = _plain(command.help or "").partition("\n\n")[0]
        index.append(f"| [`{name}`]({page}.md#{name.replace(' ', '-')}) | {first} |")
    for page, texts in sections.items():
        title = f"# Commands: {', '.join(texts)}\n\n"
        yield f"reference/cli/{page}.md", title + "\n\n".join(texts.values()) + "\n"
    yield "reference/cli/index.md", _INDEX + "\n".join(index) + "\n"


_INDEX = """# The commands

Every command has `--help` with an example, and `--json` for machines. Results go to stdout.
Progress goes to stderr, as a bar where that is a terminal.

| exit code | meaning |
| --- | --- |
| 0 | The command did its job. |
| 2 | You can fix it: one line on stderr says what was found, what was expected and what to do. |
| 130, 143 | Stopped by Ctrl-C or SIGTERM. The same command resumes the work. |

Bad rows in a dump do not fail an import. They are counted, and `--strict` makes the first one an
error.

| command | what it does |
| --- | --- |
"""


def _commands(group: Any, before: str) -> Iterator[tuple[str, Any]]:
    """Yield the full name and the click command of every command, also in groups."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before} {name}")
        else:
            yield f"{before} {name}", command


def _section(name: str, command: Any) -> str:
    """Return one command as Markdown: help, usage, and a table of its parameters."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join([name, *(_value(p) for p in arguments), "[OPTIONS]"])
    rows = [f"| {_flags(p)} | {_meaning(p)} |" for p in (*arguments, *options)]
    return "\n\n".join(
        [
            f"## {name} {{ #{name.replace(' ', '-')} }}",
            _plain(command.help or ""),
            f"    {usage}",
            "| argument or option | meaning |\n| --- | --- |\n" + "\n".join(rows),
        ]
    )


def _value(parameter: Any) -> str:
    """Return the placeholder of a value, such as FOLDER or N."""
    kinds = {int: "N", float: "NUMBER", str: "TEXT"}
    return parameter.metavar or kinds.get(parameter.type_descriptor.annotation, "VALUE")


def _flags(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_value(parameter)}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    value = "" if parameter.is_flag else f" <code>{_value(parameter).replace('|', '&#124;')}</code>"
    return names + value


def _meaning(parameter: Any) -> str:
    text = " ".join(_plain(parameter.help or "").split())
    if parameter.required:
        text += " Required."
    elif parameter.default is not None and not parameter.is_flag:
        text += f" Default: `{parameter.default}`."
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    """Return help text with rich's markup as Markdown: bold commands become code."""
    text = re.sub(r"\[b\](.*?)\[/b\]", lambda m: f"`{' '.join(m[1].split())}`", text, flags=re.S)
    return re.sub(r"\[/?[a-z]+\]", "", text).replace("\b", "").strip()
