"""How commands talk: results on stdout as text or JSON, notes and a progress bar on stderr.

Everything that a command prints passes here last: what a terminal would obey is escaped, whatever
the code before has done with it. Only rich's own colours are obeyed.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prixlm.types import Progress
from prixlm.untrusted import ESCAPED, one_line, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

_BYTE_STAGES = ("hash", "read")
"""Stages that count bytes; all others count items."""
_LONGEST, _END = 2000, 300
"""Characters of a remark that are printed, and of its end if the middle is left out."""


# JSON's own escapes cover the controls below U+0020 and no others. Line ends are its own.
_JSON = re.compile(f"(?![\\n])(?:{ESCAPED})")


def print_json(value: Any) -> None:
    """Print a result for machines; what a terminal would obey is escaped as JSON does."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    print(_JSON.sub(lambda match: json.dumps(match[0])[1:-1], text))


def print_result(values: Any, text: str, as_json: bool) -> None:
    """Print a result as JSON or as text; names in the text are not read as markup."""
    if as_json:
        print_json(values)
    else:
        print_lines(text.split("\n"))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout as they are, without markup."""
    screen = console()
    for line in lines:
        screen.print(printable(line), markup=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print a remark on stderr, where it does not mix with the result.

    The middle of a long one is left out: its end says what to do.
    """
    text = one_line(text)
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - _END]} … {text[-_END:]}"
    print(f"prixlm: {text}", file=sys.stderr)


def console(*, stderr: bool = False) -> "Console":
    """Return a console that colours nothing on its own, and obeys no text that is printed."""
    from rich.console import Console

    made = Console(highlight=False, emoji=False, stderr=stderr)
    made.push_render_hook(_Escaping())  # type: ignore[arg-type]  # a protocol of one method
    return made


class _Escaping:
    """A hook of rich that escapes the text of everything printed, tables included."""

    def process_renderables(self, renderables: "list[Any]") -> "list[Any]":
        return [_Escaped(renderable) for renderable in renderables]


class _Escaped:
    """Something to print, whose segments of text are made printable; rich's controls stay."""

    def __init__(self, inner: "RenderableType") -> None:
        self._inner = inner

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> "Iterator[Segment]":
        from rich.segment import Segment

        for segment in console.render(self._inner, options):
            # rich ends lines in the text of a segment.
            text = "\n".join(map(printable, segment.text.split("\n")))
            if segment.control or text == segment.text:
                yield segment
            else:
                yield Segment(text, segment.style)


@contextmanager
def progress_bar(note: str | None = None) -> Iterator[Progress | None]:
    """Yield a callback that draws bars on stderr, or None if stderr is not a terminal.

    note: printed when the first stage begins, so that an error before that stays one line.
    """
    from rich import progress as bars

    waiting = [note] if note else []

    def begin(*_: object) -> None:
        if waiting:
            print_note(waiting.pop())

    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield begin if note else None
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
            begin()
            # "train loss 3.1" is the stage `train` with the detail `loss 3.1`.
            name, _, detail = stage.partition(" ")
            if name not in tasks:
                tasks[name] = display.add_task(name, total=total, rate="")
            speed = display.tasks[tasks[name]].speed or 0.0
            rate = f"{speed / 1e6:,.1f} MB/s" if name in _BYTE_STAGES else f"{done}/{total}"
            rate = f"{rate}  {detail}" if detail else rate
            display.update(tasks[name], completed=done, total=max(total, 1), rate=rate)

        yield report
