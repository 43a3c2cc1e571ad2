"""How commands talk: results on stdout as text or JSON, notes and a progress bar on stderr."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prixlm.types import Progress

if TYPE_CHECKING:
    from rich.console import Console

_BYTE_STAGES = ("hash", "read")
"""Stages that count bytes; all others count items."""


def print_json(value: Any) -> None:
    """Print a result for machines."""
    print(json.dumps(value, ensure_ascii=False, indent=1))


def print_result(values: Any, text: str, as_json: bool) -> None:
    """Print a result as JSON or as text; names in the text are not read as markup."""
    if as_json:
        print_json(values)
    else:
        console().print(text, markup=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print a remark on stderr, where it does not mix with the result."""
    print(f"prixlm: {text}", file=sys.stderr)


def console() -> "Console":
    """Return a console for stdout that colours nothing on its own."""
    from rich.console import Console

    return Console(highlight=False)


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """Yield a callback that draws bars on stderr, or None if stderr is not a terminal."""
    from rich import progress as bars
    from rich.console import Console

    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield None
        return
    columns = (
        bars.TextColumn("{task.description:<8}"),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[rate]}"),
    )
    with bars.Progress(*columns, console=terminal) as display:
        tasks: dict[str, bars.TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            # "train loss 3.1" is the stage `train` with the detail `loss 3.1`.
            name, _, detail = stage.partition(" ")
            if name not in tasks:
                tasks[name] = display.add_task(name, total=total, rate="")
            speed = display.tasks[tasks[name]].speed or 0.0
            rate = f"{speed / 1e6:,.1f} MB/s" if name in _BYTE_STAGES else f"{done}/{total}"
            rate = f"{rate}  {detail}" if detail else rate
            display.update(tasks[name], completed=done, total=max(total, 1), rate=rate)

        yield report
