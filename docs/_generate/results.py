"""The tables of the results pages, from the JSON files of `docs/results/data`.

    python docs/_generate/results.py                           # write the tables into the pages
    python docs/_generate/results.py add NAME RUN.json --command "prixlm ..." --layout LAYOUT.json
    python docs/_generate/results.py adopt docs/results/x.md   # tables without a JSON file get one

A page names the files of a table, and what is between the two marks is written by this script:

    <!-- table: names-linking -->
    ...
    <!-- end of table -->

A file has the command, the commit and the time of its figures, and where they come from:

- `run`: the JSON of `prixlm evaluate --to` or `prixlm reproduce`, as it was written, and a layout
  (or the table itself, where a command writes none);
- `transcribed`: a table of a page that was written before runs kept their JSON. Its commit and time
  are those of the commit that brought the figures into the page. `questions` has the numbers of
  questions that its figures are means of, and so bounds their intervals (`_bound_rows`);
- `published`: figures of others, with their source;
- `view`: rows and columns of other files.

`tests/test_results.py` compares pages and files. Nobody edits these tables by hand.
"""

import argparse
import json
import math
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "results"
DATA = PAGES / "data"
SOURCES = ("run", "transcribed", "published", "view")
END = "<!-- end of table -->"
MEAN = "mean"
WIDEST = "± at most"
BOUND = "± at most, by bound"
_MARKED = re.compile(
    r"^<!-- table: (?P<names>[\w -]+?)(?P<best>; best)? -->\n(?P<body>.*?)^<!-- end of table -->$",
    re.MULTILINE | re.DOTALL,
)
_TABLE = re.compile(r"^\|.*\|\n\|[ :|-]+\|\n(?:\|.*\|(?:\n|\Z))+", re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")
_FIGURE = re.compile(r"–|-?\d+(?:[.,]\d+)*")
_COUNT = re.compile(r"\d[\d,]*|\b(?:n|found)\b")
_COMMAND = re.compile(r"`((?:prixlm|python|make) [^`]+)`")


@dataclass(frozen=True)
class Grid:
    """The texts of a table: its header, and rows that begin with their names."""

    columns: list[str]
    rows: list[list[str]]
    rule: str = ""  # the line below the header, if it is not the usual one

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rule = self.rule or "| " + " | ".join("---" for _ in self.columns) + " |"
        lines = [_line(self.columns), rule, *map(_line, self.rows)]
        return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# From files to tables.


def read(name: str) -> dict[str, Any]:
    """Return the values of a data file."""
    values: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    return values


def grid_of(values: Mapping[str, Any]) -> Grid:
    """Return the table of a data file."""
    if "table" in values:
        table = values["table"]
        bounds = _bound_rows(table, values["questions"]) if "questions" in values else []
        return Grid(table["columns"], table["rows"] + bounds, table.get("rule", ""))
    return _view_grid(values) if values["source"] == "view" else _run_grid(values)


def _run_grid(values: Mapping[str, Any]) -> Grid:
    """Lay the tables of a run out.

    The layout has by column the cells that it shows, each by table and column. The last row has the
    largest half of an interval in each column.
    """
    layout = values["layout"]
    tables = {table["title"]: table for table in values["tables"]}
    cells: dict[str, list[tuple[str, str]]] = {
        name: [(title, column) for title, column in parts]
        for name, parts in layout["columns"].items()
    }
    named = layout.get("rows") or {row: row for table in tables.values() for row in table["rows"]}
    rows = []
    for row, shown in named.items():
        texts = [
            " / ".join(_percent(_value(tables.get(t), row, c)) for t, c in parts)
            for parts in cells.values()
        ]
        rows.append([shown, *texts])
    widest = [
        " / ".join(_widest(tables.get(title), column, named) for title, column in parts)
        for parts in cells.values()
    ]
    if any(_NUMBER.search(text) for text in widest):
        rows.append([WIDEST, *widest])
    return Grid([layout["head"], *cells], rows)


# Intervals of figures whose questions were not kept.


def bound(percent: float, questions: float) -> float:
    """Return what half of a 95 % interval of a mean of values between 0 and 1 is at most, in %.

    For x in [0, 1] x² <= x, so a mean p has a variance of at most p·(1 - p) per question: that of
    Hits and accuracy, and more than that of reciprocal ranks. A figure is rounded to 0.1, so p is
    moved by half of that towards 50 %, where the variance is largest.
    """
    toward = percent + 0.05 if percent < 50 else percent - 0.05
    share = min(max(toward / 100, 0.0), 1.0)
    return 196 * math.sqrt(share * (1 - share) / questions)


def _bound_rows(table: Mapping[str, Any], questions: Mapping[str, Any]) -> list[list[str]]:
    """Return the widest bound of each column, as a row; one for each value of the column `by`.

    questions: by column the number of questions of each figure, written like a cell: `1,017 (218)`
    for `29.1 (34.9)`. `n` is the row's own number (`rows`), `found` how many answers a precision is
    of. The bound of a `mean` is the mean of those of the columns before it.
    """
    columns, rows = table["columns"], table["rows"]
    numbers = questions.get("rows", [0] * len(rows))
    by = columns.index(questions["by"]) if "by" in questions else None
    groups: dict[str, list[dict[str, list[float]]]] = {}
    for row, number in zip(rows, numbers, strict=True):
        halves: dict[str, list[float]] = {}
        for column, counts in questions["columns"].items():
            cell = row[columns.index(column)]
            means = [sum(one) / len(one) for one in zip(*halves.values(), strict=False)]
            halves[column] = means if counts == MEAN else _bounds(cell, counts, number)
        groups.setdefault("" if by is None else row[by], []).append(halves)
    bounded = []
    for name, members in groups.items():
        texts = {columns[0]: BOUND} | ({} if by is None else {columns[by]: name})
        for column, counts in questions["columns"].items():
            widest = [max(places) for places in zip(*(one[column] for one in members), strict=True)]
            texts[column] = _filled(counts if counts != MEAN else "n", widest)
        bounded.append([texts.get(column, "") for column in columns])
    return bounded


def _bounds(cell: str, counts: str, number: float) -> list[float]:
    """Return the bound of each figure of a cell; 0 where there is none."""
    figures = [_first(text) for text in _FIGURE.findall(cell)]
    halves = []
    for place, count in enumerate(_COUNT.findall(counts)):
        figure = figures[place] if place < len(figures) else None
        if figure is None:
            halves.append(0.0)
            continue
        asked = number if count in ("n", "found") else float(count.replace(",", ""))
        if count == "found":  # right answers are recall · n, of which the precision is a share
            recall = figures[place + 1] or 0.0
            asked = asked * recall / figure if figure else 0.0
        halves.append(bound(figure, asked) if asked else 0.0)
    return halves


def _filled(counts: str, halves: Sequence[float]) -> str:
    """Return `counts` with a bound in the place of each number, rounded up; – for 0."""
    left = iter(halves)

    def text(match: re.Match[str]) -> str:
        # Less 1e-9, or 2.0 becomes 2.1 by the error of its product.
        tenths = math.ceil(10 * next(left) - 1e-9)
        return f"{tenths / 10:.1f}" if tenths > 0 else "–"

    return _COUNT.sub(text, counts)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _value(table: Mapping[str, Any] | None, row: str, column: str) -> float | None:
    """Return a value; None if it was not measured. The column `mean` is that of all others."""
    cells: dict[str, float | None] = (table or {"rows": {}})["rows"].get(row, {})
    values = list(cells.values()) if column == MEAN else [cells.get(column)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _widest(table: Mapping[str, Any] | None, column: str, rows: Mapping[str, str]) -> str:
    """Return the largest half of an interval in a column; the mean's is that of `ResultTable`."""
    widest = 0.0
    for row in rows:
        cells = (table or {}).get("intervals", {}).get(row, {})
        halves = {name: (high - low) / 2 for name, (low, high) in cells.items()}
        if column != MEAN:
            widest = max(widest, halves.get(column, 0.0))
        elif halves:
            independent = sum(half**2 for half in halves.values()) ** 0.5
            total = sum(halves.values()) if (table or {}).get("parallel") else independent
            widest = max(widest, total / len(halves))
    return _percent(widest or None)


def _view_grid(values: Mapping[str, Any]) -> Grid:
    """Return some rows of other files, under the names that the view gives them."""
    grids = {name: grid_of(read(name)) for name in values["of"]}
    first = next(iter(grids.values()))
    columns = values.get("columns") or first.columns[1:]
    rows = []
    for name, row, shown in values["rows"]:
        grid = grids[name]
        [found] = [cells for cells in grid.rows if cells[0] == row]
        rows.append([shown, *(_cell(grid, found, column) for column in columns)])
    return Grid([values.get("head", first.columns[0]), *columns], rows)


def _cell(grid: Grid, cells: Sequence[str], column: str) -> str:
    """Return a cell of a row; files may add the number of questions to a column's name."""
    bare = [name.partition(" (")[0] for name in grid.columns]
    return cells[bare.index(column.partition(" (")[0])]


def table_of(names: Sequence[str], *, best: bool = False) -> str:
    """Return the Markdown of the tables of some files, joined, and of where they come from.

    best: set the highest first figure of every column in bold.
    """
    files = {name: read(name) for name in names}
    grids = [grid_of(values) for values in files.values()]
    columns = grids[0].columns
    for name, grid in zip(names, grids, strict=True):
        assert len(grid.columns) == len(columns), f"{name}: other columns than {names[0]}"
    every = [row for grid in grids for row in grid.rows]
    rows = [row for row in every if row[0] not in (WIDEST, BOUND)]
    rows = _with_best(rows) if best else rows
    # One line of intervals for all rows that were measured with them: the widest of each column.
    widest = [row for row in every if row[0] == WIDEST]
    if len(widest) > 1:
        widest = [[WIDEST, *map(_wider, zip(*(row[1:] for row in widest), strict=True))]]
    bounded = [row for row in every if row[0] == BOUND]
    text = Grid(columns, rows + widest + bounded, grids[0].rule).markdown()
    return text + "\n" + " ".join(_origin(name, values) for name, values in files.items()) + "\n"


def _wider(texts: Sequence[str]) -> str:
    """Return the largest of each part: `1.0 / 2.0` and `1.5 / 0.5` are `1.5 / 2.0`."""
    parts = zip(*(text.split(" / ") for text in texts), strict=True)
    return " / ".join(max(part, key=lambda text: _first(text) or -1.0) for part in parts)


def _first(text: str) -> float | None:
    number = _NUMBER.search(text)
    return None if number is None else float(number[0].replace(",", ""))


def _with_best(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    plain = [[row[0], *(cell.replace("**", "") for cell in row[1:])] for row in rows]
    for column in range(1, len(plain[0])):
        values = [_first(row[column]) for row in plain]
        highest = max((value for value in values if value is not None), default=None)
        for row, value in zip(plain, values, strict=True):
            if value is not None and value == highest:
                row[column] = f"**{row[column]}**"
    return plain


def _origin(name: str, values: Mapping[str, Any]) -> str:
    """Return one sentence on where a table comes from, with a link to its file."""
    source, link = values["source"], f"[Data](data/{name}.json)"
    if source == "view":
        links = [f"[{number}](data/{one}.json)" for number, one in enumerate(values["of"], start=1)]
        return f"*Rows of other tables: data {', '.join(links)}.*"
    if source == "published":
        return f"*{link}: published by others.*"
    how = "measured at" if source == "run" else "transcribed, written in"
    remark = ", with a remark" if "remark" in values else ""
    return f"*{link}: {how} commit {values['commit'][:7]}, {values['time'][:10]}{remark}.*"


def marked_tables(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield every marked part of a page, and what it should hold."""
    for match in _MARKED.finditer(text):
        yield match, "\n" + table_of(match["names"].split(), best=bool(match["best"])) + "\n"


def refreshed(text: str) -> str:
    """Return a page with the tables of the files."""
    for match, body in reversed(list(marked_tables(text))):
        text = text[: match.start("body")] + body + text[match.end("body") :]
    return text


def unmarked_tables(text: str) -> list[re.Match[str]]:
    """Return the tables of figures that no mark surrounds."""
    inside = [match.span() for match in _MARKED.finditer(text)]
    return [
        table
        for table in _TABLE.finditer(text)
        if _has_figures(table[0]) and not any(start <= table.start() < end for start, end in inside)
    ]


def _has_figures(table: str) -> bool:
    """Tell whether a third of the cells after the first column are figures."""
    cells = [cell for row in _grid(table).rows for cell in row[1:] if cell]
    figures = [cell for cell in cells if re.fullmatch(r"[\W\d_]*\d[\W\d_smhinGiBMk]*", cell)]
    return len(figures) * 3 >= max(1, len(cells))


def _grid(table: str) -> Grid:
    head, rule, *rows = table.strip().split("\n")

    def cells(line: str) -> list[str]:
        return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]

    usual = "| " + " | ".join("---" for _ in cells(head)) + " |"
    return Grid(cells(head), [cells(row) for row in rows], "" if rule == usual else rule)


# From pages to files: tables that were written before there were any.


def adopt(page: Path) -> list[str]:
    """Give every table of figures of a page a file, and mark it; return the names of the files."""
    text = page.read_text("utf-8")
    found = unmarked_tables(text)
    names: list[str] = []
    for table in found:
        names.append(_new_name(page, text[: table.start()], names))
    for name, table in reversed(list(zip(names, found, strict=True))):
        grid = _grid(table[0])
        written = [_written_by(row) for row in table[0].strip().split("\n")[2:]]
        time, commit = max(written)
        values: dict[str, Any] = {
            "command": _command_before(text[: table.start()]),
            "commit": commit,
            "time": time,
            "source": "transcribed",
            "table": {"columns": grid.columns, "rows": grid.rows},
        }
        if grid.rule:
            values["table"]["rule"] = grid.rule
        if len(set(written)) > 1:  # rows that were measured at different times
            values["row_commits"] = [one[:7] for _, one in written]
        write(name, values)
        marked = f"<!-- table: {name} -->\n{END}\n"
        text = text[: table.start()] + marked + text[table.end() :]
    page.write_text(refreshed(text), "utf-8")
    return names


def write(name: str, values: Mapping[str, Any]) -> None:
    """Write a data file."""
    DATA.mkdir(exist_ok=True)
    text = json.dumps(values, ensure_ascii=False, indent=1)
    # Rows of a table are one line each, so that a difference can be read.
    text = re.sub(r"\[\n\s+((?:\"[^\n]*\",?\n\s+)+)\]", _one_line, text)
    (DATA / f"{name}.json").write_text(text + "\n", "utf-8")


def _one_line(match: re.Match[str]) -> str:
    return "[" + " ".join(part.strip() for part in match[1].strip().split("\n")) + "]"


def _new_name(page: Path, before: str, taken: Sequence[str]) -> str:
    """Return a name for a file: the page and the heading above the table."""
    heading = (re.findall(r"^#+ (.+)$", before, re.MULTILINE) or [page.stem])[-1]
    short = re.sub(r"^results:? ", "", heading.lower())
    words = re.sub(r"[^a-z0-9]+", "-", f"{page.stem} {short}".lower()).strip("-").split("-")
    base = "-".join(dict.fromkeys(words))
    names = [base, *(f"{base}-{number}" for number in range(2, 100))]
    return next(n for n in names if n not in taken and not (DATA / f"{n}.json").exists())


def _command_before(before: str) -> list[str]:
    """Return the commands nearest above a table: an indented block, or code in a sentence."""
    block: list[str] = []
    for line in reversed(before.split("\n")):
        if re.match(r"    (?:prixlm|python|make) ", line):
            block.insert(0, line.strip())
        elif block:
            return block
        elif found := _COMMAND.findall(line):
            return list(found)
    return block


def _written_by(row: str) -> tuple[str, str]:
    """Return the time and the commit that first wrote the figures of a row, whatever its name."""
    figures = "|" + row.strip("|").partition("|")[2] + "|"
    found = _git("log", "-m", "--format=%cI %H", "--reverse", f"-S{figures}", "--", "docs", "*.md")
    assert found, f"no commit has this row yet, so it has none to name: {row}"
    time, _, commit = found.partition("\n")[0].partition(" ")
    return time, commit


def _git(*arguments: str) -> str:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout


# From runs to files.


def add(
    name: str,
    runs: Sequence[Path],
    command: Sequence[str],
    layout: Path,
    commit: str = "HEAD",
    remark: str = "",
) -> None:
    """Keep the JSON of a run as a data file, with its commit and time.

    runs: several, if each has some of the columns. commit: what was run.
    """
    newest = max(path.stat().st_mtime for path in runs)
    values: dict[str, Any] = {
        "command": list(command),
        "commit": _git("rev-parse", commit).strip(),
        "time": datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds"),
        "source": "run",
    }
    if remark:
        values["remark"] = remark
    values["layout"] = json.loads(layout.read_text("utf-8"))
    values["tables"] = join_tables([_read_run(path) for path in runs])
    write(name, values)


def _read_run(path: Path) -> list[dict[str, Any]]:
    """Return the tables of a run as JSON values; link prediction keeps its figures by row."""
    values = json.loads(path.read_text("utf-8"))
    if isinstance(values, list):
        return values
    from prixlm.reports.ranker_results import read_run

    return [table.to_json() for table in read_run(path)]


def join_tables(runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the tables of several runs by title, with the columns of all of them."""
    joined: dict[str, dict[str, Any]] = {}
    for table in (table for run in runs for table in run):
        kept = joined.setdefault(table["title"], {**table, "rows": {}, "intervals": {}})
        kept["numbers"] = kept["numbers"] | table["numbers"]
        for part in ("rows", "intervals"):
            for row, cells in table.get(part, {}).items():
                kept[part][row] = kept[part].get(row, {}) | cells
    return list(joined.values())


def main() -> None:
    """Write the tables of all pages, add a run, or adopt the tables of a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    actions = parser.add_subparsers(dest="action")
    adopting = actions.add_parser("adopt")
    adopting.add_argument("pages", type=Path, nargs="+")
    adding = actions.add_parser("add")
    adding.add_argument("name")
    adding.add_argument("runs", type=Path, nargs="+")
    adding.add_argument("--command", action="append", required=True)
    adding.add_argument("--layout", type=Path, required=True)
    adding.add_argument("--commit", default="HEAD")
    adding.add_argument("--remark", default="")
    options = parser.parse_args()
    if options.action == "adopt":
        for page in options.pages:
            print(page, *adopt(page))
    elif options.action == "add":
        made = options.command, options.layout, options.commit, options.remark
        add(options.name, options.runs, *made)
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text("utf-8")
        if (new := refreshed(text)) != text:
            page.write_text(new, "utf-8")
            print(f"{page.relative_to(ROOT)}: tables written")


if __name__ == "__main__":
    main()
