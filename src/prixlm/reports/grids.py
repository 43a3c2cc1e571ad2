"""Tables of shares: a line for each way, a column for each language or pair.

For linking, lexicon induction and probing; link prediction has figures of its own (`results`).
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from prixlm.files import write_atomically
from prixlm.reports.console import shown

MEAN = "mean"


@dataclass(frozen=True)
class Grid:
    """Shares from 0 to 1 by row and column; NaN where nothing was asked."""

    title: str
    rows: dict[str, dict[str, float]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # what each column's share is of
    own_numbers: dict[str, dict[str, int]] = field(default_factory=dict)  # where rows differ in it
    notes: list[str] = field(default_factory=list)
    has_mean: bool = True  # columns are alike: languages, not figures

    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))

    def cells(self, row: str) -> list[str]:
        """In per cent, with their mean over the columns where there are several."""
        columns = self.columns()
        values = [self.rows[row].get(name, float("nan")) for name in columns]
        known = [value for value in values if value == value]
        mean = sum(known) / len(known) if len(known) == len(columns) else float("nan")
        own = self.own_numbers.get(row, {})
        shown = [_percent(v, own.get(name)) for name, v in zip(columns, values, strict=True)]
        return shown if len(columns) < 2 or not self.has_mean else [*shown, _percent(mean)]

    def heads(self) -> list[str]:
        columns = self.columns()
        named = [f"{c} ({self.numbers[c]:,})" if c in self.numbers else c for c in columns]
        return named if len(columns) < 2 or not self.has_mean else [*named, MEAN]


def _percent(value: float, number: int | None = None) -> str:
    text = "–" if value != value else f"{100 * value:.1f}"
    return text if number is None else f"{text} ({number:,})"


def print_grids(console: Console, grids: Sequence[Grid]) -> None:
    for grid in grids:
        console.print(f"[bold]{shown(grid.title)} (%)[/bold]")  # a table's own title is wrapped
        # Many columns have to fit in the 80 of a plain terminal.
        gap = 1 if len(grid.heads()) < 9 else 0
        table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
        table.add_column("row", min_width=14)
        for name in grid.heads():
            table.add_column(shown(name), justify="right", no_wrap=True)
        for row in grid.rows:
            table.add_row(shown(row), *grid.cells(row))
        console.print(table)
        for note in grid.notes:
            console.print(shown(note))
        console.print()


def grids_markdown(grids: Sequence[Grid]) -> str:
    parts = []
    for grid in grids:
        heads = [plain(name) for name in grid.heads()]
        lines = [
            f"**{plain(grid.title)}** (%)",
            "",
            "| row | " + " | ".join(heads) + " |",
            "| --- |" + " ---: |" * len(heads),
            *(f"| {plain(row)} | " + " | ".join(grid.cells(row)) + " |" for row in grid.rows),
        ]
        lines += [f"\n{plain(note)}" for note in grid.notes]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def plain(text: object) -> str:
    """Text in Markdown that is nothing but text."""
    escaped = " ".join(str(text).split()).replace("<", "&lt;")
    return re.sub(r"([|\[\]`*_!])", r"\\\1", escaped)


def grid_values(grids: Sequence[Grid]) -> list[dict[str, Any]]:
    """For JSON, which has no NaN."""
    found = [dataclasses.asdict(grid) for grid in grids]
    for grid in found:
        for row in grid["rows"].values():
            row |= {name: None for name, value in row.items() if value != value}
    return found


def write_grids(to: Path, name: str, grids: Sequence[Grid]) -> None:
    """`name.md` and `name.json` in a folder."""
    to.mkdir(parents=True, exist_ok=True)
    write_atomically(to / f"{name}.md", grids_markdown(grids))
    text = json.dumps(grid_values(grids), ensure_ascii=False, indent=1)
    write_atomically(to / f"{name}.json", text + "\n")


def read_grids(path: Path) -> list[Grid]:
    values = json.loads(path.read_text("utf-8"))
    nothing = float("nan")
    return [
        Grid(
            one["title"],
            {
                row: {c: nothing if v is None else v for c, v in cells.items()}
                for row, cells in one["rows"].items()
            },
            one["numbers"],
            one.get("own_numbers", {}),
            one.get("notes", []),
            one.get("has_mean", True),
        )
        for one in values
    ]
