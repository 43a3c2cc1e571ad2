"""How far a confidence can be believed: what it says about test facts, and whether they are true.

    trials = try_fusion(fusion, kb, "et")
    trial_tables(trials)

The questions (subject and relation) of a language's test facts are asked as `enrich` asks them, and
the answers are compared with the test facts. Facts that another language states can be carried over
without learning, so the results are also given on the facts that no other language states (`no
transfer`). Every question has an answer here.

Dimension letters: Q questions, N answers of all questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from prixlm.arrays import rank_in_group
from prixlm.enrichment.gaps import relations_of_one_object
from prixlm.kb.store import KB
from prixlm.metrics import AtLevel, Reliability, at_levels, average_precision, reliability
from prixlm.rankers.fusion import Fusion
from prixlm.rankers.heldout import read_facts
from prixlm.reports.tables import ResultTable

SUBSETS = ("all", "no transfer")
LEVELS = (0.5, 0.8, 0.95)
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

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON, which has no NaN: null in its place."""
        values: dict[str, Any] = _without_nan(asdict(self))
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Trial":
        """Read what `as_dict` returned."""
        fields = _with_nan(dict(values))
        measured = fields["reliability"]
        bins = [tuple(part) for part in measured["bins"]]
        fields["reliability"] = Reliability(**measured | {"bins": bins})
        fields["levels"] = [AtLevel(**level) for level in fields["levels"]]
        return cls(**fields)


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
    trials = []
    for subset in SUBSETS:
        in_subset = np.bincount(asked.owner[facts.subsets[subset]], minlength=len(num_facts))
        is_inside = in_subset == num_facts  # a question is in a subset if all of its facts are
        chosen = is_inside[owner]
        held_out = int(num_facts[is_inside].sum())
        # Calibration is of the best answer to each question, precision and recall of all answers.
        first = chosen & (rank == 0)
        trials.append(
            Trial(
                method,
                lang,
                subset,
                held_out,
                float(right[first].sum() / max(1, is_inside.sum())),
                reliability(confidence[first], right[first]),
                at_levels(confidence[chosen], right[chosen], held_out, LEVELS),
                average_precision(confidence[chosen], right[chosen], held_out),
            )
        )
    return trials


def trial_tables(trials: Sequence[Trial]) -> list[ResultTable]:
    """Return a table for each subset and language: a row per method, a column per figure."""
    tables: dict[tuple[str, str], ResultTable] = {}
    # All subsets of all languages: the easier subset first, methods in their own order.
    for trial in sorted(trials, key=lambda trial: SUBSETS.index(trial.subset)):
        if not trial.held_out:  # in some KBs every fact is stated by another language, too
            continue
        subset = f"{trial.lang}, {trial.subset} facts ({trial.held_out:,})"
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
            table.add(trial.method, name, value)
    return list(tables.values())


def figures_at(levels: Sequence[AtLevel]) -> dict[str, float]:
    """Return precision and recall by short names, as a terminal has 80 columns."""
    values = {}
    for part in levels:
        # P.8 instead of P0.8.
        level = f"{part.level:g}".removeprefix("0")
        values[f"P{level}"] = part.precision
        values[f"R{level}"] = part.recall
    return values


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
