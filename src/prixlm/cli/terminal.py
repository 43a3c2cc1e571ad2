"""How a command speaks: results on stdout, as tables or JSON, and a progress bar on stderr."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prixlm.types import Progress

if TYPE_CHECKING:
    from rich.console import Console


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
"""The option that every command has."""


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=1))


def console() -> "Console":
    from rich.console import Console

    return Console(highlight=False)


@contextmanager
def progress_bar() -> Iterator["Progress | None"]:
    """A bar on stderr with rate and time left; nothing where stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=terminal) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            name, _, detail = stage.partition(" ")
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total, rate="")
            speed = bars.tasks[tasks[name]].speed or 0.0
            rate = f"{speed / 1e6:,.1f} MB/s" if name in ("hash", "read") else f"{done}/{total}"
            rate = f"{rate}  {detail}" if detail else rate
            bars.update(tasks[name], completed=done, total=max(total, 1), rate=rate)

        yield report
