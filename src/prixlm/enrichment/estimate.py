"""What the main job will cost, step by step, before anything is written.

print(estimate_job([Path("dump.json.gz")], JobConfig(into=("et", "te"))).as_text())
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.enrichment.budget import (
    DEFAULT_MINUTES,
    Costs,
    Plan,
    costs_lines,
    make_plan,
    minutes_text,
)
from prixlm.enrichment.job import Given, JobConfig
from prixlm.enrichment.run import EnrichConfig, count_questions, num_asked
from prixlm.enrichment.source import check_languages, is_kb
from prixlm.importers.plan import estimate_sources
from prixlm.kb.store import KB, SCHEMAS
from prixlm.types import Progress

_SPLIT_PER_SECOND, _ASKED_PER_SECOND, _FITTING = 300_000, 1_000, 20.0
"""Triples that are split in a second, questions asked without a model in a
second, and the seconds that the confidence is fitted in."""
_SECONDS_A_NAME = 0.05
"""To write a name: 40 to 70 ms on one core, fitting included (docs/results/labels.md)."""
_TRAIN_AND_ASK = "train and ask"


@dataclass(frozen=True)
class JobEstimate:
    """The steps of a job and what they are expected to cost."""

    costs: dict[str, Costs]  # by step
    plan: Plan | None  # None: made after the import, when the KB is there
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the estimate for JSON."""
        return asdict(self)

    def as_text(self) -> str:
        """Return one line per step, then the total and the notes."""
        lines = costs_lines(self.costs, self.plan)
        if self.plan is not None or _TRAIN_AND_ASK in self.costs:  # the main step is estimated
            total = sum(costs.seconds for costs in self.costs.values())
            lines.append(f"In all {minutes_text(total)}.")
        return "\n".join([*lines, *self.notes])


def estimate_job(
    sources: Sequence[Path | str],
    config: JobConfig,
    given: Given | None = None,
    progress: Progress | None = None,
) -> JobEstimate:
    """Return the steps of a job with their time, memory and disk; write nothing."""
    paths, given = [Path(source) for source in sources], given or Given()
    if not is_kb(paths):
        return _estimate_dump(paths, config)
    kb = KB(paths[0])
    check_languages(kb, config.into)
    disk = sum(kb.path(table).stat().st_size for table in SCHEMAS if kb.path(table).is_file())
    num_questions = count_questions(kb, config.proposals)
    plan = make_plan(
        kb,
        kb,
        config.effort,
        minutes=config.minutes,
        base=config.base,
        num_questions=num_questions,
        has=given.names(),
        progress=progress,
    )
    seconds = kb.num_triples() / _SPLIT_PER_SECOND
    step = "everything" if kb.num_triples(split="valid") else "split"
    costs = {step: Costs(seconds=seconds, disk=disk)} | plan.costs
    costs["fit and ask"] = Costs(seconds=_FITTING + num_questions / _ASKED_PER_SECOND)
    if config.proposals.labels:
        costs["names"] = Costs(seconds=_count_names(kb, config.proposals) * _SECONDS_A_NAME)
    notes = [f"{num_questions:,} questions will be asked."]
    if given.reader is not None:
        notes.append("The reader takes about a second more for each, which is not counted here.")
    return JobEstimate(costs, plan, (*notes, *plan.notes))


def _estimate_dump(sources: Sequence[Path], config: JobConfig) -> JobEstimate:
    """Return what is known before the import: its costs, and the minutes of the rest."""
    estimate = estimate_sources(sources, format=config.format)
    read = Costs(seconds=estimate.seconds, disk=estimate.disk_bytes)
    limit = 60 * (config.minutes or DEFAULT_MINUTES)
    rest: dict[str, Costs] = {}
    note = "Asking takes seconds to minutes, depending on what is missing."
    if config.effort == "standard":
        rest = {_TRAIN_AND_ASK: Costs(seconds=max(0.0, limit - read.seconds))}
        note = "What is trained is decided after the import, within the minutes."
    elif config.effort == "thorough":
        note = "Import the source first (`prixlm import`) to estimate the training."
    return JobEstimate({"import": read} | rest, None, (note,))


def _count_names(kb: KB, config: EnrichConfig) -> int:
    """Return how many names are written at most: to fit the confidence, and as proposals."""
    concepts = kb.concepts()
    num_concepts = len(np.unique(concepts))
    total = 0
    for lang in config.into:
        ids = kb.entity_range(lang)
        named = len(np.unique(concepts[ids.start : ids.stop]))
        total += min(named, num_asked(config)) + min(num_concepts - named, config.written)
    return total
