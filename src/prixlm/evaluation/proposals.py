"""How far proposals can be believed, on held-out facts that nothing was fitted on.

    trials = try_enrichment(kb, ["et", "te"], model="model")
    judge_proposals(kb, "proposals")

Two looks at it:

- `try_enrichment` asks the questions (subject and relation) of the test facts, as `enrich` asks
  them, and compares the answers with the test facts. Three ways, each with a confidence of its own
  that is fitted on the valid facts: facts carried along links alone, the model alone, everything
  fused. Facts that stand in another language can be carried over without learning, so all is
  also given on those that stand in no other (`no transfer`). Here every question has an answer.
- `judge_proposals` takes what a run proposed with the test facts hidden, answers to questions that
  may have none included, and counts as wrong whatever the KB does not state. In a KB that is not
  complete that is too severe: it is a lower bound.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from prixlm.enrichment.gaps import relations_of_one_object
from prixlm.errors import PrixError
from prixlm.files import write_atomically
from prixlm.kb.store import KB
from prixlm.metrics import AtLevel, Reliability, at_levels, average_precision, reliability
from prixlm.rankers.base import Ranker
from prixlm.rankers.fusion import Fusion, FusionConfig, fitted_languages
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.links import Transfer
from prixlm.rankers.lm import ModelRanker
from prixlm.rankers.suite import Evidence, gather_evidence
from prixlm.reports.grids import Grid
from prixlm.types import Progress

logger = logging.getLogger(__name__)
SUBSETS = ("all", "no transfer")
LEVELS = (0.5, 0.8, 0.95)


@dataclass(frozen=True)
class Trial:
    """One way, in one language, on one subset of its test facts."""

    way: str
    lang: str
    subset: str
    hidden: int  # facts asked for
    right: float  # share of the questions whose best answer is right, whatever its confidence
    reliability: Reliability
    levels: list[AtLevel]
    average_precision: float  # over all levels: who is more precise for as much recall


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
    fusion: Fusion, kb: KB, lang: str, way: str = "fused", most: int | None = None, answers: int = 5
) -> list[Trial]:
    """The answers to the questions of a language's test facts, and how far they can be believed."""
    shown = ("train", "valid", "known")
    facts = read_facts(kb, lang, "test", most=most, hide=shown, by_question=True)
    asked = facts.questions()
    single = relations_of_one_object(kb)[asked.queries.relation]
    ranked = fusion.best(asked.queries, answers)
    owner = ranked.owners()
    place = np.arange(len(owner)) - ranked.offset[owner]
    kept = (place == 0) | ~single[owner]  # a relation of one object gets one proposal
    owner, entity, place = owner[kept], ranked.entity[kept], place[kept]
    confidence = fusion.confidence(ranked.score[kept])
    right = asked.is_right(owner, entity)
    trials = []
    for subset in SUBSETS:
        # A question belongs to a subset when all of its facts do.
        number = np.bincount(asked.owner, minlength=len(asked.queries))
        inside = np.bincount(asked.owner[facts.subsets[subset]], minlength=len(number))
        chosen = (inside == number)[owner]
        hidden = int(inside[inside == number].sum())
        best = chosen & (place == 0)
        sure, good = confidence[chosen], right[chosen]
        levels = at_levels(sure, good, hidden, LEVELS)
        area = average_precision(sure, good, hidden)
        first = float(right[best].sum() / max(1, (inside == number).sum()))
        found = reliability(confidence[best], right[best])
        trials.append(Trial(way, lang, subset, hidden, first, found, levels, area))
    return trials


@dataclass(frozen=True)
class Judged:
    """Proposals of one kind in one language, against the facts that were hidden from the run."""

    lang: str
    why: str
    hidden: int  # facts of the language that were hidden
    reliability: Reliability
    levels: list[AtLevel]


def judge_proposals(kb: KB, folder: Path | str, known: Sequence[str]) -> list[Judged]:
    """What a run proposed that knew the splits `known` only."""
    splits = ", ".join(f"'{split}'" for split in known)
    asked = pq.read_table(
        Path(folder) / "proposals.parquet",
        columns=["lang", "subject", "relation", "object", "confidence", "why"],
    )
    rows = kb.join_table(
        asked,
        "SELECT a.lang, a.why, a.confidence, t.subject IS NOT NULL AS is_right FROM asked a "
        "LEFT JOIN triples t ON t.subject = a.subject AND t.relation = a.relation "
        f"AND t.object = a.object AND t.split NOT IN ({splits})",
    )
    hidden = dict(
        kb.query(
            f"SELECT lang, count(*) FROM triples WHERE split NOT IN ({splits}) GROUP BY lang"
        ).fetchall()
    )
    lang, why = (np.array(rows[name].to_pylist(), str) for name in ("lang", "why"))
    sure, right = (rows[name].to_numpy() for name in ("confidence", "is_right"))
    found = []
    for code in sorted(set(lang)):
        for kind in ("all", *sorted(set(why))):
            part = (lang == code) & ((why == kind) | (kind == "all"))
            levels = at_levels(sure[part], right[part], hidden.get(code, 0), LEVELS)
            believed = reliability(sure[part], right[part])
            found.append(Judged(code, kind, hidden.get(code, 0), believed, levels))
    return found


def judged_grids(judged: Sequence[Judged]) -> list[Grid]:
    """For people: a table for each language, a line for each kind of question."""
    grids: dict[str, Grid] = {}
    for one in judged:
        title = f"{one.lang}: proposals against {one.hidden:,} hidden facts"
        grid = grids.setdefault(one.lang, Grid(title, has_mean=False, notes=[_NOTE]))
        row = f"{one.why} ({one.reliability.number:,})"
        grid.rows[row] = {"ECE": one.reliability.ece} | _at_levels(one.levels)
    return list(grids.values())


_NOTE = "P.8 and R.8: precision and recall of what has a confidence of 0.8 or more."


def _at_levels(levels: Sequence[AtLevel]) -> dict[str, float]:
    """By short names: a terminal has 80 columns."""
    values = {}
    for part in levels:
        level = f"{part.level:g}".removeprefix("0")
        values[f"P{level}"] = part.precision
        values[f"R{level}"] = part.recall
    return values


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
    config = replace(config or FusionConfig(), together=True)
    fitted = fitted_languages(kb, langs)
    trials: list[Trial] = []
    ways = ways_of(evidence)
    for number, (way, rankers) in enumerate(ways.items()):
        try:
            fusion = Fusion.fit(kb, rankers, config, fitted, progress)
        except PrixError as error:  # a model that is hardly ever right has no confidence
            logger.warning("%s is left out: %s", way, error)
            continue
        for place, lang in enumerate(langs):
            trials += try_fusion(fusion, kb, lang, way, most)
            if progress is not None:
                progress("try", number * len(langs) + place + 1, len(ways) * len(langs))
    if not trials:
        raise PrixError(f"nothing could be fitted on the valid facts of {kb.folder}: see above.")
    return trials


def trial_grids(trials: Sequence[Trial]) -> list[Grid]:
    """For people: a table for each language and subset, a line for each way."""
    grids: dict[tuple[str, str], Grid] = {}
    for one in trials:
        if not one.hidden:  # a KB whose languages state the same has none that no other states
            continue
        title = f"{one.lang}, {one.subset} facts ({one.hidden:,})"
        new = Grid(title, has_mean=False, notes=[_NOTE])
        grid = grids.setdefault((one.lang, one.subset), new)
        grid.notes.append(f"Average precision, {one.way}: {100 * one.average_precision:.1f}.")
        noise = one.reliability.noise
        if one.way == "fused" and noise == noise:
            chance = f"{100 * noise:.1f}"
            grid.notes.append(f"By chance, a perfect confidence would show an ECE of {chance}.")
        grid.rows[one.way] = {
            "right": one.right,
            "ECE": one.reliability.ece,
            "Brier": one.reliability.brier,
            "AUROC": one.reliability.auroc,
        } | _at_levels(one.levels)
    return [grids[key] for key in sorted(grids, key=lambda key: SUBSETS.index(key[1]))]


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


def reliability_curves(trials: Sequence[Trial]) -> dict[str, dict[str, Reliability]]:
    """Return the calibration on all test facts by method and language, for a plot."""
    curves: dict[str, dict[str, Reliability]] = {}
    for trial in trials:
        if trial.subset == "all":
            curves.setdefault(trial.way, {})[trial.lang] = trial.reliability
    return curves
