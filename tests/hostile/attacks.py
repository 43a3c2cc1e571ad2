"""Hostile text, the commands to try it on, and what must hold after each."""

import contextlib
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from prixlm.cli.app import app
from prixlm.untrusted import ESCAPED
from tests.helpers import FULL as FULL  # of the tests that import this module
from tests.helpers import Ran, count_tried, run_prixlm
from tests.helpers import budget as budget

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
    "hidden\u2060\u2063\u180e\u3164 a" + "".join(chr(0xE0100 + code) for code in b"obey"),
    "tags\U000e0041\U000e007f and\u061c a soft\u00ad hyphen",
]
"""Names that attack a terminal, a log, markup, a spreadsheet, a page, SQL, a path or a template."""
EVIL = NAMES[0] + NAMES[1] + NAMES[5] + NAMES[6]
"""Several of them in one, on one line."""
VALUES = [EVIL, "-1", "0", "nan", "inf", "1e400", "9" * 20, "", " ", ",", "/dev/null", "[/x]"]
"""Values that an option may be given by a script that passes on what it was given."""

_OBEYED = re.compile(f"(?!\n)(?:{ESCAPED})")
T = TypeVar("T")


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


def attack(*args: object, codes: tuple[int, ...] = (0, 2)) -> Ran:
    """Run a command in this process; an exception that is not ours, or a hang, fails the test."""
    count_tried()
    with at_most(60):
        ran = run_prixlm(*args)
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


WRONG: list[Any] = [
    None, [], {}, "x", -1, 10**400, 1.5, True, float("inf"), [1], [-1], {"a": 1}, [[1, 2, 3]],
    {"fi": "x"}, {"fi": [1]}, {"fi": 10**400}, {"a": {"fi": "x"}}, {"fi": {"a": {"b": 1}}}, EVIL,
]  # fmt: skip
"""Values of JSON for where another kind is expected."""
Place = tuple[Any, ...]


def places(values: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of every value in nested JSON, as the keys that lead to it."""
    yield place
    if isinstance(values, dict | list):
        for key in values if isinstance(values, dict) else range(len(values)):
            yield from places(values[key], (*place, key))


def put(values: Any, place: Place, value: Any) -> Any:
    """Return a copy of nested JSON with another value in one place."""
    if not place:
        return value
    copied = values.copy()
    copied[place[0]] = put(copied[place[0]] if len(place) > 1 else None, place[1:], value)
    return copied


def wrong_kinds(values: Any, number: int, salt: str) -> list[tuple[Place, Any]]:
    """Return a place of nested JSON and a value of another kind for it, `number` times."""
    every = [(place, wrong) for place in places(values) for wrong in WRONG]
    return draw(every, number, salt)


LIES: dict[str, Callable[[pa.ChunkedArray], pa.Array]] = {
    "text": lambda column: pa.array([str(value) for value in column.to_pylist()]),
    "numbers": lambda column: pa.array(range(len(column)), pa.int64()),
    "nulls": lambda column: pa.nulls(len(column), column.type),
    "no type": lambda column: pa.nulls(len(column)),
    "lists": lambda column: pa.array([[value] for value in column.to_pylist()]),
    "huge": lambda column: pa.array([2**31 - 1] * len(column), pa.int32()),
    "negative": lambda column: pa.array([-1] * len(column), pa.int32()),
    "zeros": lambda column: pa.array([0.0] * len(column)),
    "nan": lambda column: pa.array([float("nan")] * len(column)),
    "bytes": lambda column: pa.array([b"\xff\xfe"] * len(column)),
    "structs": lambda column: pa.array([{"a": 1}] * len(column)),
    "empty lists": lambda column: pa.array([[]] * len(column), pa.list_(pa.float32())),
    "nulls in lists": lambda column: pa.array([[None, 1]] * len(column), pa.list_(pa.float32())),
    "nan in lists": lambda column: pa.array(
        [[float("nan"), 1]] * len(column), pa.list_(pa.float32())
    ),
}
"""What a column of a table of others may have in place of what we write."""
HOW = [*LIES, "missing", "renamed", "twice"]


def lie(path: Path, column: str, how: str) -> None:
    """Replace a column of a table by one of another kind, leave it out or write it twice."""
    table = pq.read_table(path)
    place = table.column_names.index(column)
    if how == "missing":
        table = table.remove_column(place)
    elif how == "twice":
        table = table.append_column(column, table[column])
    elif how == "renamed":
        names = [name if name != column else "\x1b[31m" for name in table.column_names]
        table = table.rename_columns(names)
    else:
        table = table.set_column(place, column, LIES[how](table[column]))
    pq.write_table(table, path)


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
