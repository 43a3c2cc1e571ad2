"""Measure how reliable proposals and their confidence are, on held-out facts.

    trials = try_enrichment(kb, ["et", "te"], model="model")
    judged = judge_proposals(kb, "proposals", known=("train", "valid"))

There are two measures:

- `try_enrichment` asks the questions (subject and relation) of the test facts, as `enrich` asks
  them, and compares the answers with the test facts. It compares three methods, each with its own
  confidence that is fitted on the valid facts: facts carried along links, the model, and the fusion
  of everything. Facts that another language states can be carried over without learning, so the
  results are also given on the facts that no other language states (`no transfer`). Every question
  has an answer here.
- `judge_proposals` takes what a run proposed while the test facts were held out. These include
  answers to questions that may have none. A proposal that the KB does not state counts as wrong. A
  KB is not complete, so this is a lower bound.
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
from prixlm.kb.store import KB, quote_texts
from prixlm.metrics import AtLevel, Reliability, at_levels, average_precision, reliability
from prixlm.rankers.fusion import Fusion, FusionConfig, fitted_languages
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.suite import load_suite
from prixlm.reports.plots import plot_reliability
from prixlm.reports.tables import ResultTable
from prixlm.types import Progress

logger = logging.getLogger(__name__)
SUBSETS = ("all", "no transfer")
LEVELS = (0.5, 0.8, 0.95)
FUSED = "fused"
"""The method that uses everything, and that `enrich` uses."""
_NOTE = "P.8 and R.8: precision and recall of proposals with a confidence of 0.8 or more."


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
    """Try every method in every language.

    most: test questions sampled per language; None: all.
    """
    missing = [lang for lang in langs if not kb.num_triples(lang, "test")]
    if missing:
        raise PrixError(f"{kb.folder} has no test triples in {missing[0]}: make a split of it.")
    if most is not None and most < 1:
        raise PrixError(f"--most {most}: expected 1 or more.")
    # Links and rules read train alone, so nothing has seen the test facts.
    suite = load_suite(kb, model, graph, progress)
    # A question may have several right answers, so they are fitted together, as in `enrich`.
    config = replace(config or FusionConfig(), together=True)
    fitted = fitted_languages(kb, langs)
    trials: list[Trial] = []
    methods = suite.selections()
    for index, (method, rankers) in enumerate(methods.items()):
        try:
            fusion = Fusion.fit(kb, rankers, config, fitted, progress)
        except PrixError as error:  # a model that is hardly ever right has no confidence
            logger.warning("%s is left out: %s", method, error)
            continue
        for done, lang in enumerate(langs, start=1):
            trials += _try_fusion(fusion, kb, lang, method, most)
            if progress is not None:
                progress("try", index * len(langs) + done, len(methods) * len(langs))
    if not trials:
        raise PrixError(
            f"no method could be fitted on the valid facts of {kb.folder}: see the warnings above."
        )
    return trials


def _try_fusion(
    fusion: Fusion, kb: KB, lang: str, method: str, most: int | None, answers: int = 5
) -> list[Trial]:
    """Answer the questions of a language's test facts; return a trial per subset."""
    # `enrich` filters what the KB knows; the test facts are what is asked for.
    known = ("train", "valid", "known")
    facts = read_facts(kb, lang, "test", most=most, filtered=known, by_question=True)
    asked = facts.questions()
    single = relations_of_one_object(kb)[asked.queries.relation]
    ranked = fusion.best(asked.queries, answers)
    owner = ranked.owners()
    rank = np.arange(len(owner)) - ranked.offset[owner]  # (N,) from 0, within its question
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
        new = ResultTable("confidence", subset=subset, has_mean=False, notes=[_NOTE])
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
        for name, value in (figures | _figures_at(trial.levels)).items():
            table.add(trial.method, name, value)
    return list(tables.values())


def _figures_at(levels: Sequence[AtLevel]) -> dict[str, float]:
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


def write_trials(trials: Sequence[Trial], to: Path) -> None:
    """Write trials.json and the plot reliability.png into a folder."""
    to.mkdir(parents=True, exist_ok=True)
    values = []
    for trial in trials:
        fields = asdict(trial)
        # The keys of the file are older than the names of the fields.
        fields = {"way": fields.pop("method"), "hidden": fields.pop("held_out")} | fields
        values.append(_without_nan(fields))
    text = json.dumps(values, ensure_ascii=False, indent=1)
    write_atomically(to / "trials.json", text + "\n")
    plot_reliability(reliability_curves(trials), to / "reliability.png")


def _without_nan(value: Any) -> Any:
    """Return a JSON value with null for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and value != value else value


@dataclass(frozen=True)
class Judged:
    """Proposals of one kind in one language, against the facts that the run did not know."""

    lang: str
    why: str  # the kind: `all`, or why the question was asked
    held_out: int  # facts of the language that the run did not know
    reliability: Reliability
    levels: list[AtLevel]


def judge_proposals(kb: KB, folder: Path | str, known: Sequence[str]) -> list[Judged]:
    """Compare the proposals of a run that knew the splits `known` with all other facts."""
    splits = quote_texts(known)
    asked = pq.read_table(
        Path(folder) / "proposals.parquet",
        columns=["lang", "subject", "relation", "object", "confidence", "why"],
    )
    # A proposal is right if a split that the run did not know states it.
    rows = kb.join_table(
        asked,
        "SELECT a.lang, a.why, a.confidence, t.subject IS NOT NULL AS is_right FROM asked a "
        "LEFT JOIN triples t ON t.subject = a.subject AND t.relation = a.relation "
        f"AND t.object = a.object AND t.split NOT IN ({splits})",
    )
    held_out = dict(
        kb.query(
            f"SELECT lang, count(*) FROM triples WHERE split NOT IN ({splits}) GROUP BY lang"
        ).fetchall()
    )
    # (N,) each: the language, kind and confidence of every proposal, and whether it is right.
    lang, why = (np.array(rows[name].to_pylist(), str) for name in ("lang", "why"))
    confidence, right = (rows[name].to_numpy() for name in ("confidence", "is_right"))
    judged = []
    for code in sorted(set(lang)):
        number = held_out.get(code, 0)
        for kind in ("all", *sorted(set(why))):
            chosen = (lang == code) & ((why == kind) | (kind == "all"))
            believed = reliability(confidence[chosen], right[chosen])
            levels = at_levels(confidence[chosen], right[chosen], number, LEVELS)
            judged.append(Judged(code, kind, number, believed, levels))
    return judged


def judged_tables(judged: Sequence[Judged]) -> list[ResultTable]:
    """Return a table for each language: a row per kind of question, a column per figure."""
    tables: dict[str, ResultTable] = {}
    for part in judged:
        subset = f"{part.lang}, against {part.held_out:,} held-out facts"
        new = ResultTable("proposals", subset=subset, has_mean=False, notes=[_NOTE])
        table = tables.setdefault(part.lang, new)
        row = f"{part.why} ({part.reliability.number:,})"
        for name, value in ({"ECE": part.reliability.ece} | _figures_at(part.levels)).items():
            table.add(row, name, value)
    return list(tables.values())
