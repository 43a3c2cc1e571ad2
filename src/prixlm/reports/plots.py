"""Plots: the loss of a run, results by method or over checkpoints, reliability of a confidence.

Matplotlib is imported only when something is drawn, and without pyplot: no window, no global state.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from prixlm.config import is_kind
from prixlm.files import parse_json, replacing
from prixlm.metrics import Reliability
from prixlm.reports.tables import MEAN, ResultTable
from prixlm.untrusted import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def read_metrics(run: Path) -> list[dict[str, float]]:
    """Return the lines of a run's metrics.jsonl; a line that was cut off by a kill is skipped."""
    path = run / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [values for line in lines if (values := read_metric(line)) is not None]


def read_metric(line: str) -> dict[str, float] | None:
    """Return the figures of a line of metrics.jsonl, its step among them; None if it has none."""
    try:
        values = parse_json(line, "a line")
    except ValueError:
        return None
    if not isinstance(values, dict) or not is_kind(values.get("step"), int):
        return None
    is_whole = is_kind(values, dict[str, float]) and all(map(math.isfinite, values.values()))
    return values if is_whole else None


def plot_metrics(run: Path) -> Path | None:
    """Draw the losses of a run into its folder: loss.png."""
    metrics = read_metrics(run)
    # A line has the losses of one step or of one validation.
    train = [(line["step"], line["loss"]) for line in metrics if "loss" in line]
    valid = [(line["step"], line["valid_loss"]) for line in metrics if "valid_loss" in line]
    if not train:
        return None
    figure = _figure(7, 4)
    axes = figure.subplots()
    steps, losses = zip(*train, strict=True)
    axes.plot(steps, losses, color="0.8", linewidth=1)
    axes.plot(steps, smooth(losses), color="tab:blue", label="train, smoothed")
    if valid:
        axes.plot(*zip(*valid, strict=True), color="tab:red", marker="o", label="valid")
    axes.set(xlabel="step", ylabel="nats per object token", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    path = run / "loss.png"
    _save(figure, path, dpi=120)
    return path


def smooth(values: Sequence[float], share: float = 0.9) -> list[float]:
    """Return a running mean that starts at the first value."""
    mean, smoothed = values[0], []
    for value in values:
        mean = share * mean + (1 - share) * value
        smoothed.append(mean)
    return smoothed


def plot_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]], path: Path, ylabel: str, title: str
) -> None:
    """Draw results over checkpoints, a line per language.

    curves: (step, value) points by language.
    """
    figure = _figure(7, 4)
    axes = figure.subplots()
    for index, (name, points) in enumerate(curves.items()):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, marker="o", label=_label(name), color=_colour(index))
    axes.set(xlabel="step", ylabel=ylabel, title=title, ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center")
    _save(figure, path, dpi=120)


def plot_panels(tables: Sequence[ResultTable], path: Path) -> None:
    """Draw results over checkpoints, a panel per table; its rows are named `step 20000`."""
    # One colour per language in all panels.
    langs = list(dict.fromkeys(lang for table in tables for lang in table.columns()))
    figure = _figure(5 * len(tables), 4)
    panels = figure.subplots(1, len(tables), squeeze=False)[0]
    for axes, table in zip(panels, tables, strict=True):
        steps = [int(row.removeprefix("step ")) for row in table.rows]
        for lang in table.columns():
            values = [100 * table.values(row)[lang] for row in table.rows]
            colour = _colour(langs.index(lang))
            axes.plot(steps, values, marker="o", label=_label(lang), color=colour)
            cells = [row[lang] for row in table.rows.values() if lang in row]
            intervals = [cell.interval for cell in cells if cell.interval is not None]
            if len(intervals) == len(steps):  # results of earlier versions have none
                low, high = ([100 * end for end in ends] for ends in zip(*intervals, strict=True))
                axes.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.set(
            xlabel="step",
            ylabel=f"{_label(table.metric)} (%)",
            title=_label(table.subset),
            ylim=(0, None),
        )
        axes.locator_params(axis="x", nbins=5)  # six-digit steps would run into each other
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")  # its own: the tasks have different languages
    _save(figure, path, dpi=120)


def plot_tables(tables: Sequence[ResultTable], path: Path) -> None:
    """Draw result tables as bars: a panel per table, a group per column, a colour per method."""
    # One colour per method in all panels, also where a panel lacks one of them.
    methods = list(dict.fromkeys(method for table in tables for method in table.rows))
    figure = _figure(10, 3.4 * len(tables) + 0.22 * len(methods))
    panels = figure.subplots(len(tables), squeeze=False)[:, 0]
    width = 0.85 / max(1, len(methods))
    for axes, table in zip(panels, tables, strict=True):
        columns = [*table.columns(), MEAN]
        for index, method in enumerate(methods):
            if method not in table.rows:
                continue
            values = [*table.values(method).values(), table.mean(method)]
            lefts = [column + index * width for column in range(len(columns))]
            heights = [100 * value for value in values]
            axes.bar(lefts, heights, width, label=_label(method), color=_colour(index))
        # The middle of a group: half of its 0.85, less half a bar, as bars are centred on `lefts`.
        middles = [column + 0.425 - width / 2 for column in range(len(columns))]
        axes.set_xticks(middles, [_label(column) for column in columns])
        axes.set(ylabel=f"{_label(table.metric)} (%)", title=_label(table.title))
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    _save(figure, path, dpi=110)


def plot_reliability(
    curves: Mapping[str, Mapping[str, Reliability]], path: Path | IO[bytes]
) -> None:
    """Draw confidence against the share that is right: a panel per method, a line per language."""
    figure = _figure(3.6 * len(curves), 3.8)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (method, by_language) in zip(panels, curves.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="perfect calibration")
        for lang, reliability in by_language.items():
            if reliability.bins:
                xs, ys, _ = zip(*reliability.bins, strict=True)
                label = f"{_label(lang)} (ECE {reliability.ece:.3f})"
                axes.plot(xs, ys, marker="o", label=label)
        axes.set(xlabel="confidence", ylabel="share right", title=_label(method))
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    if isinstance(path, Path):
        _save(figure, path, dpi=110)
    else:
        figure.savefig(path, dpi=110)


def _figure(width: float, height: float) -> "Figure":
    """Return an empty figure of a size in inches that is drawn to a file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: "Figure", path: Path, dpi: int) -> None:
    """Write a figure as a whole; a link that is there is replaced, not written through."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=dpi)


def _label(text: str) -> str:
    """Escape a name for matplotlib: $...$ would be mathematics, a leading _ not in the legend.

    A letter that its font lacks gets a warning with that letter, which a terminal must not obey.
    """
    return printable(text).replace("$", r"\$").lstrip("_")


def _colour(index: int) -> Any:
    from matplotlib import colormaps

    return colormaps["tab20"](index % 20)
