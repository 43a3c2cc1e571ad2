"""Hostile text, the commands to try it on, and what must hold after each."""

import contextlib
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import typer

from prixlm.cli.app import app
from prixlm.untrusted import OBEYED
from tests.helpers import Ran, run_prixlm

FULL = bool(os.environ.get("PRIXLM_TEST_FULL"))
SEED = int(os.environ.get("PRIXLM_HOSTILE_SEED", "26"))

NAMES = [
    "\x1b]0;owned\x07title",
    "\x1b[31mred\x1b[0m",
    "\x1b[2J\x1b[Hcleared",
    "\x9b31mC1",
    "over\rwritten\b\b",
    "a\u202egpj.exe\u2066",
    "[red]markup[/red]",
    "[/nothing]",
    ":skull: emoji",
    "two\nlines\tand a tab",
    '=HYPERLINK("http://evil","x")',
    "+1",
    "-1+cmd|' /C calc'!A0",
    "@SUM(1)",
    "a||Q1\tP31\tQ5",
    '"quoted" \\',
    "<script>alert(1)</script>",
    "'; DROP TABLE entities; --",
    "../../etc/passwd",
    "{{7*7}} ${7*7} %s %n",
    "x" * 1500,
    "می‌خواهم",
    "\u200b",
    "\ufeffmark",
]
"""Names that attack a terminal, a log, markup, a spreadsheet, a page, SQL, a path or a template."""
EVIL = NAMES[0] + NAMES[1] + NAMES[5] + NAMES[6]
"""Several of them in one, on one line."""
VALUES = [EVIL, "-1", "0", "nan", "inf", "1e400", "9" * 20, "", " ", ",", "/dev/null", "[/x]"]
"""Values that an option may be given by a script that passes on what it was given."""

_OBEYED = re.compile(f"(?!\n)[{OBEYED}]")
T = TypeVar("T")


def budget(small: int, large: int) -> int:
    """Return how many inputs to try."""
    return large if FULL else small


def draw(items: list[T], number: int, salt: str) -> list[T]:
    """Return `number` of the items, the same ones for the same seed, in their order."""
    if number >= len(items):
        return items
    picked = random.Random(f"{SEED} {salt}").sample(range(len(items)), number)
    return [items[i] for i in sorted(picked)]


def commands() -> dict[str, Any]:
    """Return every command of the command line by its words, such as `evaluate lp`."""

    def walk(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from walk(command, f"{prefix}{name} ")
            else:
                yield f"{prefix}{name}", command

    return dict(walk(typer.main.get_command(app), ""))


def valued_options(command: Any) -> list[str]:
    """Return the options of a command that take a value."""
    return [
        option.opts[-1]
        for option in command.params
        if option.opts[-1].startswith("-") and not getattr(option, "is_flag", False)
    ]


def attack(*args: object, codes: tuple[int, ...] = (0, 2), cwd: Path | None = None) -> Ran:
    """Run a command in this process; an exception that is not ours, or a hang, fails the test."""
    with at_most(60):
        ran = run_prixlm(*args, cwd=cwd)
    assert_harmless(ran, codes)
    return ran


def assert_harmless(ran: Ran, codes: tuple[int, ...] = (0, 2)) -> None:
    """Assert that a command ended well or with one line, and that nothing it printed is obeyed."""
    for text in (ran.stdout, ran.stderr):
        found = _OBEYED.search(text)
        assert found is None, f"{found[0]!r} in {text[max(0, found.start() - 80) :][:200]!r}"
    assert "Traceback" not in ran.stderr, ran.stderr
    assert ran.returncode in codes, (ran.returncode, ran.stderr)
    if ran.returncode == 2:
        last = ran.stderr.rstrip("\n").split("\n")[-1]
        assert last.startswith("prixlm: ") and len(last) > len("prixlm: "), ran.stderr


def damage(path: Path, generator: random.Random) -> str:
    """Cut, flip, replace or empty some of a file; return what was done."""
    data = bytearray(path.read_bytes())
    kind = generator.choice(["cut", "flip", "noise", "deep", "empty", "text", "doubled"])
    if kind == "cut":
        data = data[: generator.randrange(len(data) + 1)]
    elif kind == "flip" and data:
        for _ in range(generator.randrange(1, 20)):
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    elif kind == "noise" and data:
        start = generator.randrange(len(data))
        data[start : start + 50] = generator.randbytes(50)
    elif kind == "deep":
        data = bytearray(b"[" * 100_000)
    elif kind == "empty":
        data = bytearray()
    elif kind == "text":
        data = bytearray(EVIL.encode())
    else:
        data += bytes(data)
    path.write_bytes(bytes(data))
    return kind


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Fail what takes longer: a hang is a failure, and must not stop the other tests."""

    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError(f"no end after {seconds} seconds")

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
