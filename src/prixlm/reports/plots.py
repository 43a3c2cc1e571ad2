"""Plots: the loss of a run, results over checkpoints, and the reliability of a confidence."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from prixlm.metrics import Reliability


def read_metrics(run: Path) -> list[dict[str, float]]:
    """The lines of a run's metrics.jsonl."""
    path = run / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def plot_metrics(run: Path) -> Path | None:
    """Draw the losses of a run into its folder: loss.png."""
    metrics = read_metrics(run)
    train = [(line["step"], line["loss"]) for line in metrics if "loss" in line]
    valid = [(line["step"], line["valid_loss"]) for line in metrics if "valid_loss" in line]
    if not train:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
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
    figure.savefig(path, dpi=120)
    return path


def smooth(values: Sequence[float], share: float = 0.9) -> list[float]:
    """A running mean that starts at the first value."""
    smooth, found = values[0], []
    for value in values:
        smooth = share * smooth + (1 - share) * value
        found.append(smooth)
    return found


def plot_curves(
    curves: dict[str, list[tuple[float, float]]], path: Path, ylabel: str, title: str
) -> None:
    """Results over checkpoints: a line for each language."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (name, points) in enumerate(curves.items()):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, marker="o", label=plain_label(name), color=line_colour(number))
    axes.set(xlabel="step", ylabel=ylabel, title=title, ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center")
    figure.savefig(path, dpi=120)


def plot_reliability(
    curves: Mapping[str, Mapping[str, Reliability]], path: Path | IO[bytes]
) -> None:
    """Plot confidence against the share that is right: a panel per method, a line per language."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(curves), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (method, by_language) in zip(panels, curves.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="perfect calibration")
        for lang, reliability in by_language.items():
            if reliability.bins:
                xs, ys, _ = zip(*reliability.bins, strict=True)
                axes.plot(xs, ys, marker="o", label=f"{lang} (ECE {reliability.ece:.3f})")
        axes.set(xlabel="confidence", ylabel="share right", title=method, xlim=(0, 1), ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def plain_label(text: str) -> str:
    """For matplotlib, which reads $...$ as mathematics and _ as hidden."""
    return text.replace("$", r"\$").lstrip("_")


def line_colour(number: int) -> Any:
    from matplotlib import colormaps

    return colormaps["tab20"](number % 20)
