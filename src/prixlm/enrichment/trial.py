"""How far a confidence can be believed: what it says about test facts, and whether they are true.

    trials = try_fusion(fusion, kb, "et")
    trial_tables(trials)

The questions (subject and relation) of a language's test facts are asked as `enrich` asks them, and
the answers are compared with the test facts. Every question has an answer here. Facts that another
language states can be carried over without learning, so the results are also given on subsets:

- by the truth, `no transfer`: the asked facts are stated in no other language. Where another
  language states a different object, that is a confident and wrong answer here, and nobody can know
  it in advance. So a confidence cannot be calibrated on this subset.
- by the answer, `answer stated` and `answer unstated`: whether another language states the best
  answer. This is known when a fact is proposed, so a confidence should hold on both.

Dimension letters: Q questions, N answers of all questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_type_hints

import numpy as np

from prixlm.arrays import rank_in_group
from prixlm.config import checked, is_kind
from prixlm.enrichment.gaps import relations_of_one_object
from prixlm.errors import PrixError
from prixlm.kb.store import KB, is_code
from prixlm.metrics import (
    AtLevel,
    Interval,
    Reliability,
    at_levels,
    auroc_interval,
    average_precision,
    bootstrap_mean,
    bootstrap_ratios,
    calibration_interval,
    reliability,
)
from prixlm.rankers.base import Ranked
from prixlm.rankers.fusion import Fusion
from prixlm.rankers.heldout import Questions, read_facts
from prixlm.rankers.links import MergedLookup
from prixlm.reports.tables import ResultTable
from prixlm.types import Array

_TITLES = {
    "all": "all facts",
    "no transfer": "no transfer facts",
    "answer stated": "best answer stated elsewhere: facts",
    "answer unstated": "best answer stated nowhere: facts",
}
SUBSETS = tuple(_TITLES)
_KINDS: dict[str, Any] = {
    "method": str,
    "lang": str,
    "subset": str,
    "held_out": int,
    "right": float,
    "reliability": dict[str, Any],
    "levels": list[dict[str, Any]],
    "average_precision": float,
    "intervals": dict[str, list[float]],
}
_MEASURED: dict[str, Any] = {
    "number": int,
    **dict.fromkeys(("ece", "brier", "auroc"), float),
    "bins": list[list[float]],
}
"""Kinds of the values of a trial and of its reliability in JSON, where NaN is null."""
LEVELS = (0.5, 0.8, 0.95)
_COLUMNS = {"right", "ECE", "Brier", "AUROC"} | {
    f"{figure}{level:g}".replace("0.", ".") for figure in "PR" for level in LEVELS
}
"""Figures that have an interval, as the table names them."""
FUSED = "fused"
"""The method that uses everything, and that `enrich` uses."""
NOTE = "P.8 and R.8: precision and recall of proposals with a confidence of 0.8 or more."


@dataclass(frozen=True)
class Trial:
    """The result of one method in one language, on one subset of its test facts."""

    method: str
    lang: str
    subset: str
    held_out: int  # facts asked for
    right: float  # share of the questions whose best answer is right, whatever its confidence
    reliability: Reliability
    levels: list[AtLevel]
    average_precision: float  # area under the curve of precision over recall
    # By column of the table; NaN ends where nothing was proposed. Not in files of version 0.1.
    intervals: dict[str, Interval] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON, which has no NaN: null in its place."""
        values: dict[str, Any] = _without_nan(asdict(self))
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Trial":
        """Read what `as_dict` returned; ValueError if it is something else."""
        fields = checked(_with_nan(values), _KINDS, optional=("intervals",))
        measured = checked(fields["reliability"], _MEASURED)
        levels = [checked(level, get_type_hints(AtLevel)) for level in fields["levels"]]
        bins = [tuple(part) for part in measured["bins"]]
        is_right = all(
            len(part) == 3
            and all(0 <= share <= 1 for share in part[:2])
            and is_kind(part[2], int)
            and part[2] > 0
            for part in bins
        )
        if (
            fields["subset"] not in SUBSETS
            or not is_code(fields["lang"])
            or not is_right
            or bool(bins) != (measured["number"] > 0)
        ):
            raise ValueError("a trial has a language, a subset or bins that prixlm does not write")
        intervals = fields.get("intervals", {})
        if not set(intervals) <= _COLUMNS or any(len(ends) != 2 for ends in intervals.values()):
            raise ValueError("a trial has intervals that prixlm does not write")
        try:
            own = {
                "reliability": Reliability(**measured | {"bins": bins}),
                "levels": [AtLevel(**level) for level in levels],
                "intervals": {name: Interval(*ends) for name, ends in intervals.items()},
            }
            return cls(**fields | own)
        except TypeError as error:  # a name that we do not write
            raise ValueError(str(error)) from None


def read_trials(manifest: Mapping[str, Any], where: object = "the proposals") -> list[Trial]:
    """Return the trials in the manifest of proposals, which others may have written.

    where: names the folder in the error.
    """
    try:
        return [Trial.from_dict(values) for values in manifest.get("trials") or ()]
    except ValueError as error:
        raise PrixError(
            f"the manifest of {where} has trials that `prixlm enrich` does not write ({error}): "
            "make the proposals again."
        ) from None


def try_fusion(
    fusion: Fusion,
    kb: KB,
    lang: str,
    *,
    method: str = FUSED,
    most: int | None = None,
    answers: int = 5,
) -> list[Trial]:
    """Answer the questions of a language's test facts; return a trial per subset.

    most: test questions sampled; None: all. answers: most objects of a question.
    """
    # `enrich` filters what the KB knows; the test facts are what is asked for.
    known = ("train", "valid", "known")
    facts = read_facts(kb, lang, "test", most=most, filtered=known, by_question=True)
    asked = facts.questions()
    single = relations_of_one_object(kb)[asked.queries.relation]
    ranked = fusion.best(asked.queries, answers)
    owner = ranked.owners()
    rank = rank_in_group(owner)  # (N,) from 0, within its question
    kept = (rank == 0) | ~single[owner]  # a relation of one object gets one proposal
    owner, entity, rank = owner[kept], ranked.entity[kept], rank[kept]
    confidence = fusion.confidence(ranked.score[kept])
    right = asked.is_right(owner, entity)
    # (Q,) facts of each question, and those of them in the subset below.
    num_facts = np.bincount(asked.owner, minlength=len(asked.queries))
    is_stated = _best_is_stated(kb, asked, ranked)
    trials = []
    for subset in SUBSETS:
        if subset in facts.subsets:  # a question is in a subset of facts if all of its facts are
            in_subset = np.bincount(asked.owner[facts.subsets[subset]], minlength=len(num_facts))
            is_inside = in_subset == num_facts
        else:
            is_inside = is_stated if subset == "answer stated" else ~is_stated
        chosen = is_inside[owner]
        held_out = int(num_facts[is_inside].sum())
        # Calibration is of the best answer to each question, precision and recall of all answers.
        first = chosen & (rank == 0)
        believed = reliability(confidence[first], right[first])
        is_first_right = np.bincount(owner[first], right[first], len(num_facts))[is_inside]
        # (N,) the number of each answer's question among those of the subset.
        place = np.cumsum(is_inside)[owner[chosen]] - 1
        intervals = {"right": bootstrap_mean(is_first_right)}
        intervals |= _of_first(confidence[first], right[first], believed)
        proposed = place, confidence[chosen], right[chosen]
        intervals |= intervals_at([proposed], num_facts[is_inside])[0]
        trials.append(
            Trial(
                method,
                lang,
                subset,
                held_out,
                float(is_first_right.sum() / max(1, is_inside.sum())),
                believed,
                at_levels(confidence[chosen], right[chosen], held_out, LEVELS),
                average_precision(confidence[chosen], right[chosen], held_out),
                {name: one for name, one in intervals.items() if one.low == one.low},
            )
        )
    return trials


def _of_first(confidence: Array, right: Array, believed: Reliability) -> dict[str, Interval]:
    """Return the intervals of calibration and separation of the best answers."""
    return {
        "ECE": calibration_interval(confidence, right, believed),
        "Brier": bootstrap_mean((confidence - right) ** 2),
        "AUROC": auroc_interval(confidence, right),
    }


def intervals_at(
    groups: Sequence[tuple[Array, Array, Array]], held_out: Array
) -> list[dict[str, Interval]]:
    """Return the intervals of precision and recall at each level, by their short names.

    Questions are drawn again, not answers: those of one question stand or fall together. groups:
    (N,) the question, the confidence and whether it is right of each answer; each group has
    intervals of its own, from the same draws. held_out: (Q,) facts of each question to be found.
    """
    known = np.repeat(held_out[:, None], len(LEVELS), axis=1)
    above, below = [], []
    for owner, confidence, right in groups:
        # (N, L) whether each answer is proposed at each level; (Q, L) counts by question.
        proposed = confidence[:, None] >= np.array(LEVELS)
        found = _by_question(proposed & right[:, None], owner, len(held_out))
        above += [found, found]
        below += [_by_question(proposed, owner, len(held_out)), known]
    ratios = bootstrap_ratios(np.hstack(above), np.hstack(below))
    names = [figure + short_level(level) for figure in "PR" for level in LEVELS]
    starts = range(0, len(ratios), len(names))
    return [dict(zip(names, ratios[start:], strict=False)) for start in starts]


def _by_question(answers: Array, owner: Array, number: int) -> Array:
    """Count the true answers of each question, (Q, L), from (N, L)."""
    return np.stack([np.bincount(owner, column, number) for column in answers.T], axis=1)


def _best_is_stated(kb: KB, asked: Questions, ranked: Ranked) -> Array:
    """Return whether another language's train states the best answer to each question: (Q,)."""
    has_answer = np.flatnonzero(np.diff(ranked.offset))
    best = ranked.offset[has_answer]
    # Each question with its first answer alone.
    first = Ranked(np.arange(len(best) + 1), ranked.entity[best], ranked.score[best])
    origins = MergedLookup(kb).origins(asked.queries.select(has_answer), first)
    is_stated = np.zeros(len(asked.queries), bool)
    is_stated[has_answer] = [bool(langs) for langs in origins]
    return is_stated


def trial_tables(trials: Sequence[Trial]) -> list[ResultTable]:
    """Return a table for each subset and language: a row per method, a column per figure."""
    tables: dict[tuple[str, str], ResultTable] = {}
    # All subsets of all languages: the easier subset first, methods in their own order.
    for trial in sorted(trials, key=lambda trial: SUBSETS.index(trial.subset)):
        if not trial.held_out:  # in some KBs every fact is stated by another language, too
            continue
        subset = f"{trial.lang}, {_TITLES[trial.subset]} ({trial.held_out:,})"
        new = ResultTable("confidence", subset=subset, has_mean=False, notes=[NOTE])
        table = tables.setdefault((trial.lang, trial.subset), new)
        area = f"{100 * trial.average_precision:.1f}"
        table.notes.append(f"Average precision, {trial.method}: {area}.")
        noise = trial.reliability.noise
        if trial.method == FUSED and noise == noise:
            table.notes.append(f"A perfect confidence would have an ECE of {100 * noise:.1f} here.")
        figures = {
            "right": trial.right,
            "ECE": trial.reliability.ece,
            "Brier": trial.reliability.brier,
            "AUROC": trial.reliability.auroc,
        }
        for name, value in (figures | figures_at(trial.levels)).items():
            table.add(trial.method, name, value, interval=trial.intervals.get(name))
    return list(tables.values())


def figures_at(levels: Sequence[AtLevel]) -> dict[str, float]:
    """Return precision and recall by short names, as a terminal has 80 columns."""
    values = {}
    for part in levels:
        level = short_level(part.level)
        values[f"P{level}"] = part.precision
        values[f"R{level}"] = part.recall
    return values


def short_level(level: float) -> str:
    """Return `.8` for 0.8."""
    return f"{level:g}".removeprefix("0")


def reliability_curves(trials: Sequence[Trial]) -> dict[str, dict[str, Reliability]]:
    """Return the calibration on all test facts by method and language, for a plot."""
    curves: dict[str, dict[str, Reliability]] = {}
    for trial in trials:
        if trial.subset == "all":
            curves.setdefault(trial.method, {})[trial.lang] = trial.reliability
    return curves


def _without_nan(value: Any) -> Any:
    """Return a JSON value with null for NaN."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and value != value else value


def _with_nan(value: Any) -> Any:
    """Return what `_without_nan` was given: no value of a trial is null otherwise."""
    if isinstance(value, dict):
        return {key: _with_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_nan(inner) for inner in value]
    return float("nan") if value is None else value
