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
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from prixlm.enrichment.trial import (
    LEVELS,
    NOTE,
    Trial,
    figures_at,
    reliability_curves,
    try_fusion,
)
from prixlm.errors import PrixError
from prixlm.files import write_atomically
from prixlm.kb.store import KB, quote_texts
from prixlm.metrics import AtLevel, Reliability, at_levels, reliability
from prixlm.rankers.fusion import Fusion, FusionConfig, fitted_languages
from prixlm.rankers.suite import load_suite
from prixlm.reports.plots import plot_reliability
from prixlm.reports.tables import ResultTable
from prixlm.types import Progress

logger = logging.getLogger(__name__)


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
            trials += try_fusion(fusion, kb, lang, method=method, most=most)
            if progress is not None:
                progress("try", index * len(langs) + done, len(methods) * len(langs))
    if not trials:
        raise PrixError(
            f"no method could be fitted on the valid facts of {kb.folder}: see the warnings above."
        )
    return trials


def write_trials(trials: Sequence[Trial], to: Path) -> None:
    """Write trials.json and the plot reliability.png into a folder."""
    to.mkdir(parents=True, exist_ok=True)
    values = []
    for trial in trials:
        fields = trial.as_dict()
        # The keys of the file are older than the names of the fields.
        values.append({"way": fields.pop("method"), "hidden": fields.pop("held_out")} | fields)
    text = json.dumps(values, ensure_ascii=False, indent=1)
    write_atomically(to / "trials.json", text + "\n")
    plot_reliability(reliability_curves(trials), to / "reliability.png")


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
        new = ResultTable("proposals", subset=subset, has_mean=False, notes=[NOTE])
        table = tables.setdefault(part.lang, new)
        row = f"{part.why} ({part.reliability.number:,})"
        for name, value in ({"ECE": part.reliability.ece} | figures_at(part.levels)).items():
            table.add(row, name, value)
    return list(tables.values())
