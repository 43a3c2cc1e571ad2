"""Rows of a task's table: figures by language and subset, as files, tables and plots.

row = Row("links: pairs", figures_by_language(table), "exact")
save_row(row, Path("rows/pairs.json"))
print_rows(console, rows); markdown(rows); plot_rows(rows, Path("table.png"))
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from prixlm.errors import PrixError
from prixlm.files import write_atomically
from prixlm.metrics import Figures, mean_figures
from prixlm.reports.console import shown
from prixlm.reports.grids import Grid, read_grids
from prixlm.reports.plots import line_colour, plain_label

METRICS = {"hits_1": "Hits@1", "hits_3": "Hits@3", "hits_10": "Hits@10", "mrr": "MRR"}
MEAN = "mean"


@dataclass(frozen=True)
class Row:
    """One ranker's figures."""

    title: str
    figures: dict[str, dict[str, Figures]]  # by language and subset
    how: str  # which search gave the ranks, and on which facts
    training_seconds: float | None = None  # none where nothing is trained
    ranking_seconds: float | None = None

    def cell(self, lang: str, subset: str) -> Figures:
        """A language's figures, or the plain mean over languages, as the paper has it."""
        if lang == MEAN:
            return mean_figures([parts[subset] for parts in self.figures.values()])
        return self.figures[lang][subset]


def save_row(row: Row, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(row_values(row), indent=1) + "\n")


def row_values(row: Row) -> dict[str, Any]:
    """A row for JSON, which has no NaN: what there are no facts for is null."""
    values = dataclasses.asdict(row)
    for parts in values["figures"].values():
        for part in parts.values():
            part |= {key: None for key, value in part.items() if value != value}
    return values


def load_row(path: Path) -> Row:
    try:
        return _row(json.loads(path.read_text("utf-8")), path)
    except (OSError, ValueError) as error:
        raise PrixError(f"{path} is no row of a table ({error}): remove it.") from None


def _row(values: dict[str, Any], path: Path) -> Row:
    try:
        figures = {
            lang: {name: _figures(part) for name, part in parts.items()}
            for lang, parts in values["figures"].items()
        }
        return Row(**{**values, "figures": figures})
    except (TypeError, KeyError, AttributeError) as error:
        raise PrixError(f"{path} is no row of a table ({error}): remove it.") from None


def _figures(part: dict[str, Any]) -> Figures:
    values: dict[str, Any] = {
        key: float("nan") if value is None else value for key, value in part.items()
    }
    return Figures(**values)


def print_rows(
    console: Console,
    rows: Sequence[Row],
    metrics: Sequence[str] = tuple(METRICS),
    subsets: Sequence[str] = ("all",),
) -> None:
    """A table for each figure and subset: a line for each row, a column for each language."""
    for subset in subsets:
        for metric in metrics:
            title = METRICS[metric] if subset == "all" else f"{METRICS[metric]}, {subset}"
            table = Table(title=f"{title} (%)", title_style="bold")
            table.add_column("row")
            langs = [*_languages(rows), MEAN]
            for lang in langs:
                table.add_column(lang, justify="right", no_wrap=True)
            for row in rows:
                table.add_row(
                    shown(row.title), *(_percent(row, lang, subset, metric) for lang in langs)
                )
            console.print(table)


def markdown(rows: Sequence[Row], subsets: Sequence[str] = ("all",)) -> str:
    """The same as Markdown: Hits@1 / Hits@3 / Hits@10 / MRR in each cell."""
    langs = [*_languages(rows), MEAN]
    parts = []
    for subset in subsets:
        lines = [
            f"**{subset}** facts: {' / '.join(METRICS.values())} (%)",
            "",
            "| row | " + " | ".join(langs) + " | ranks | training |",
            "| --- |" + " --- |" * (len(langs) + 2),
        ]
        for row in rows:
            cells = [
                " / ".join(_percent(row, lang, subset, metric) for metric in METRICS)
                for lang in langs
            ]
            title = row.title.replace("|", "\\|")
            lines.append(f"| {title} | " + " | ".join(cells) + f" | {row.how} | {minutes(row)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def rows_as_grids(
    rows: Sequence[Row], metrics: Sequence[str] = ("hits_1", "hits_10")
) -> list[Grid]:
    """A table for each figure, over all facts."""
    return [
        Grid(
            METRICS[metric],
            {
                row.title: {
                    lang: getattr(parts["all"], metric) for lang, parts in row.figures.items()
                }
                for row in rows
            },
            {lang: parts["all"].number for row in rows for lang, parts in row.figures.items()},
        )
        for metric in metrics
    ]


def read_tables(path: Path) -> list[Grid]:
    """The tables of any evaluation: what `--to` of `evaluate` or `reproduce` wrote as JSON."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PrixError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(values, dict):
        return read_grids(path)
    rows = [_row(one, path) for part in values.values() for one in part]
    return rows_as_grids([row for row in rows if row.figures])


def write_table(to: Path, tables: Mapping[str, Sequence[Row]]) -> None:
    """Tables by title with all their rows' subsets, as Markdown and JSON: table.md, table.json."""
    to.mkdir(parents=True, exist_ok=True)
    parts = [
        (f"## {title}\n\n" if title else "") + markdown(rows, _subsets(rows))
        for title, rows in tables.items()
    ]
    write_atomically(to / "table.md", "\n".join(parts))
    values = {title or "rows": [row_values(row) for row in rows] for title, rows in tables.items()}
    write_atomically(to / "table.json", json.dumps(values, indent=1) + "\n")


def minutes(row: Row) -> str:
    if row.training_seconds is None:
        return "none"
    if row.training_seconds < 90:
        return f"{row.training_seconds:.0f} s"
    return f"{row.training_seconds / 60:.0f} min"


def plot_rows(rows: Sequence[Row], path: Path, metric: str = "mrr") -> None:
    """Bars by language, all facts and those that stand in no other language side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    langs = [*_languages(rows), MEAN]
    subsets = [name for name in ("all", "no transfer") if name in _subsets(rows)]
    figure = Figure(figsize=(10, 3.4 * len(subsets) + 0.22 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(subsets), squeeze=False)[:, 0]
    width = 0.85 / max(1, len(rows))
    for axes, subset in zip(panels, subsets, strict=True):
        for number, row in enumerate(rows):
            values = [100 * getattr(row.cell(lang, subset), metric) for lang in langs]
            places = [place + number * width for place in range(len(langs))]
            axes.bar(places, values, width, label=plain_label(row.title), color=line_colour(number))
        axes.set_xticks([place + 0.425 - width / 2 for place in range(len(langs))], langs)
        axes.set(ylabel=f"{METRICS[metric]} (%)", title=f"{subset} facts")
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(path, dpi=110)


def _languages(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(lang for row in rows for lang in row.figures))


def _subsets(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(s for row in rows for parts in row.figures.values() for s in parts))


def _percent(row: Row, lang: str, subset: str, metric: str) -> str:
    if lang != MEAN and lang not in row.figures:
        return "–"
    value = getattr(row.cell(lang, subset), metric)
    if value != value or (metric == "mrr" and row.how.startswith("beam")):
        return "–"  # a beam does not know the ranks that it does not find
    return f"{100 * value:.1f}"
