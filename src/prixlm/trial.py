"""How far proposals can be believed, on held-out facts that nothing was fitted on.

    trials = try_enrichment(kb, ["et", "te"], model="model")

The test facts of a split are asked for as `enrich` would ask; the best answer to each, with its
confidence, is right or wrong. Three ways are compared, each with a confidence of its own, fitted on
the valid facts: facts carried along links alone, the model alone, and everything fused. Facts that
stand in another language can be carried over without learning, so all is also given on those that
stand in no other (`no transfer`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from prixlm.enrich import Evidence, gather_evidence
from prixlm.errors import PrixError
from prixlm.fusion import Fusion, FusionConfig
from prixlm.grids import Grid
from prixlm.heldout import read_facts
from prixlm.kb.disk import write_atomically
from prixlm.kb.store import KB
from prixlm.metrics import AtLevel, Reliability, at_levels, reliability
from prixlm.model_ranking import ModelRanker
from prixlm.ranking import Ranker
from prixlm.training import Progress
from prixlm.transfer import Transfer

Array = np.ndarray[Any, Any]
SUBSETS = ("all", "no transfer")
LEVELS = (0.5, 0.8, 0.95)


@dataclass(frozen=True)
class Trial:
    """One way, in one language, on one subset of its test facts."""

    way: str
    lang: str
    subset: str
    hidden: int  # facts asked for
    right: float  # share whose best answer is right, whatever its confidence
    reliability: Reliability
    levels: list[AtLevel]


def ways_of(evidence: Evidence) -> dict[str, list[Ranker]]:
    """What can be compared: links alone, the model alone, everything."""
    ways: dict[str, list[Ranker]] = {
        "transfer alone": [one for one in evidence.rankers if isinstance(one, Transfer)]
    }
    models: list[Ranker] = [one for one in evidence.rankers if isinstance(one, ModelRanker)]
    if models:
        ways["model alone"] = models
    ways["fused"] = evidence.rankers
    return ways


def try_fusion(
    fusion: Fusion, kb: KB, lang: str, way: str = "fused", most: int | None = None
) -> list[Trial]:
    """The best answers to the test facts of a language, and how far they can be believed."""
    facts = read_facts(kb, lang, "test", most=most)
    ranked = fusion.best(facts.queries, 1)
    owner = ranked.owners()
    confidence, right = np.zeros(len(facts)), np.zeros(len(facts), bool)
    confidence[owner] = fusion.confidence(ranked.score)  # no answer: no confidence
    right[owner] = ranked.entity == facts.objects[owner]
    trials = []
    for subset in SUBSETS:
        rows = facts.subsets[subset]
        sure, good = confidence[rows], right[rows]
        levels = at_levels(sure, good, int(rows.sum()), LEVELS)
        share = float(good.mean()) if len(good) else float("nan")
        found = reliability(sure, good)
        trials.append(Trial(way, lang, subset, int(rows.sum()), share, found, levels))
    return trials


def try_enrichment(
    kb: KB,
    langs: Sequence[str],
    model: Path | str | None = None,
    graph: Path | str | None = None,
    *,
    config: FusionConfig | None = None,
    most: int | None = None,
    progress: Progress | None = None,
) -> list[Trial]:
    """Every way in every language."""
    missing = [lang for lang in langs if not kb.num_triples(lang, "test")]
    if missing:
        raise PrixError(f"{kb.folder} has no test triples in {missing[0]}: make a split of it.")
    evidence = gather_evidence(kb, model, graph, progress)
    fitted = [lang for lang in langs if kb.num_triples(lang, "valid")] or None
    trials: list[Trial] = []
    ways = ways_of(evidence)
    for number, (way, rankers) in enumerate(ways.items()):
        fusion = Fusion.fit(kb, rankers, config, fitted)
        for place, lang in enumerate(langs):
            trials += try_fusion(fusion, kb, lang, way, most)
            if progress is not None:
                progress("try", number * len(langs) + place + 1, len(ways) * len(langs))
    return trials


def trial_grids(trials: Sequence[Trial]) -> list[Grid]:
    """For people: a table of shares for each subset, languages side by side."""
    grids = []
    for subset in SUBSETS:
        some = [one for one in trials if one.subset == subset]
        numbers = {one.lang: one.hidden for one in some}
        figures = [_figures(one) for one in some]
        for title in figures[0] if figures else ():
            grid = Grid(f"{subset} facts: {title}", {}, numbers)
            for one, values in zip(some, figures, strict=True):
                grid.rows.setdefault(one.way, {})[one.lang] = values[title]
            grids.append(grid)
    return grids


def _figures(one: Trial) -> dict[str, float]:
    """By title."""
    values = {
        "right, whatever the confidence": one.right,
        "calibration error (ECE)": one.reliability.ece,
        "Brier score": one.reliability.brier,
        "AUROC": one.reliability.auroc,
    }
    for part in one.levels:
        values[f"precision at {part.level}"] = part.precision
        values[f"recall at {part.level}"] = part.recall
    return values


def save_trials(trials: Sequence[Trial], path: Path) -> None:
    """As JSON, which has no NaN."""
    text = json.dumps([_plain(asdict(one)) for one in trials], ensure_ascii=False, indent=1)
    write_atomically(path, text + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and value != value else value


def plot_reliability(trials: Sequence[Trial], path: Path | IO[bytes]) -> None:
    """Confidence against the share that is right: a panel a way, a line a language."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ways = list(dict.fromkeys(one.way for one in trials))
    figure = Figure(figsize=(3.6 * len(ways), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(ways), squeeze=False)[0]
    for axes, way in zip(panels, ways, strict=True):
        axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="as it should be")
        for one in trials:
            if one.way == way and one.subset == "all" and one.reliability.bins:
                xs, ys, _ = zip(*one.reliability.bins, strict=True)
                axes.plot(xs, ys, marker="o", label=f"{one.lang} (ECE {one.reliability.ece:.3f})")
        axes.set(xlabel="confidence", ylabel="share right", title=way, xlim=(0, 1), ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
