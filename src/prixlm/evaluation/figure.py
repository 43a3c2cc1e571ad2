"""The paper's figure over checkpoints (Sec. 3.6): three panels in one picture.

    reproduce_figure(kb, "table", config, prompts, files)

Every checkpoint of Prix-LM (All), step 0 included, is asked as printed in the paper: Hits@1 of link
prediction, accuracy of the best word on answers of one piece, and accuracy of entity linking after
Mirror on words. A panel is drawn for each task that has data. The models are those of the tables in
the same folder. A checkpoint that is measured is not measured again.

    figure.png, figure.json, figure.md    the picture, and its points as tables
    figure/PANEL.json                     what is measured so far: every question, by step
    figure/settings.json                  what it was made with
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.decoding.completer import Completer
from prixlm.entities.encoder import load_model
from prixlm.errors import PrixError
from prixlm.evaluation.entity_linking import LinkingTask, evaluate_linking, withheld_tasks
from prixlm.evaluation.link_prediction import rank_facts
from prixlm.evaluation.probing.asking import probe
from prixlm.evaluation.probing.prompts import Prompts, describe_prompts
from prixlm.evaluation.reproduce_names import NamesConfig, NamesModels
from prixlm.evaluation.trained import Run, TrainedModels, check_stamp
from prixlm.files import read_json, write_atomically
from prixlm.kb.store import KB
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.lm import ModelRanker
from prixlm.reports.plots import plot_panels
from prixlm.reports.tables import ResultTable, write_tables
from prixlm.types import Array, Progress

_FACTS = 200
"""Test facts of each language that a checkpoint is asked for."""


@dataclass(frozen=True)
class Panel:
    """One panel: a task that every checkpoint is measured by."""

    name: str  # of its file
    title: str
    metric: str
    measure: Callable[[Run], dict[str, list[float]]]  # of every question, by language

    def points(self, run: Run, folder: Path) -> ResultTable:
        """Return a row for each checkpoint of a run; measure and keep the ones that are missing."""
        path = folder / f"{self.name}.json"
        # By step and language: 1 for each question that was answered, else 0. Earlier versions
        # kept the share, or null, which has no interval.
        measured: dict[str, dict[str, Any]] = read_json(path) if path.exists() else {}
        table = ResultTable(self.metric, subset=self.title)
        for step in run.steps:
            if str(step) not in measured:
                measured[str(step)] = self.measure(run.at_step(step))
                write_atomically(path, json.dumps(measured) + "\n")
            for lang, values in measured[str(step)].items():
                if isinstance(values, list):
                    table.add_questions(f"step {step}", lang, np.array(values, float))
                else:
                    table.add(f"step {step}", lang, math.nan if values is None else values)
        return table


def reproduce_figure(
    kb: KB,
    to: Path | str,
    config: NamesConfig | None = None,
    prompts: Mapping[str, Prompts] | None = None,
    files: Mapping[str, LinkingTask] | None = None,
    progress: Progress | None = None,
    *,
    facts: int = _FACTS,
) -> list[ResultTable]:
    """Measure every checkpoint of All, draw the picture, and return the points of its panels.

    prompts: of probing, by language. files: tasks of linking, by language; without them, those of
    the links that the KB withholds, if it does. facts: test facts of each language.
    """
    config, to = config or NamesConfig(), Path(to)
    if facts < 1:
        raise PrixError(f"--facts {facts}: expected 1 or more.")
    models = NamesModels(TrainedModels(kb, to, progress), config)
    tasks = files or (withheld_tasks(kb, config.into) if kb.withholds_links else {})
    panels = [
        *_link_prediction(kb, facts, progress),
        *_probing(prompts or {}),
        *_linking(models, tasks, progress),
    ]
    if not panels:
        raise PrixError(
            f"{kb.folder} has no test triples and withholds no links, and there are no prompts and "
            "no mentions: nothing can be measured."
        )
    inputs = {
        "prompts": {lang: describe_prompts(part) for lang, part in (prompts or {}).items()},
        "files": {lang: task.fingerprint() for lang, task in tasks.items()},
        "facts": facts,
    }
    digest = hashlib.sha256(json.dumps(inputs, ensure_ascii=False).encode()).hexdigest()
    stamp = {"KB": kb.fingerprint(), "settings": asdict(config), "files": digest}
    check_stamp(to / "figure" / "settings.json", stamp, to / "figure")
    run = models.all()
    tables = [panel.points(run, to / "figure") for panel in panels]
    write_tables(to, "figure", tables)
    plot_panels(tables, to / "figure.png")
    return tables


def _link_prediction(kb: KB, facts: int, progress: Progress | None) -> list[Panel]:
    langs = [lang for lang in kb.languages if kb.num_triples(lang, "test")]
    if not langs:
        return []
    asked = [read_facts(kb, lang, most=facts) for lang in langs]

    def measure(run: Run) -> dict[str, list[float]]:
        # A beam, as in the paper.
        ranker = ModelRanker(Completer(run.folder, kb, progress), search="beam")
        tables = {facts.queries.lang: rank_facts(kb, ranker, [facts]) for facts in asked}
        return {lang: _as_list(table["rank"].to_numpy() <= 1) for lang, table in tables.items()}

    return [Panel("lp", "link prediction", "Hits@1", measure)]


def _probing(prompts: Mapping[str, Prompts]) -> list[Panel]:
    def measure(run: Run) -> dict[str, list[float]]:
        model = load_model(run.folder)
        hits = {lang: probe(model, part, lang, rank=False).single for lang, part in prompts.items()}
        # In the order of the prompts.
        return {
            lang: _as_list(np.array([single[prompt] for prompt in sorted(single)], bool))
            for lang, single in hits.items()
        }

    title = "probing, one-piece answers"
    return [Panel("probe", title, "accuracy", measure)] if prompts else []


def _linking(
    models: NamesModels, tasks: Mapping[str, LinkingTask], progress: Progress | None
) -> list[Panel]:
    def measure(run: Run) -> dict[str, list[float]]:
        linker = models.scorer(run, "words", run.name)
        first = evaluate_linking(tasks, [linker], progress)[0]
        return {lang: _as_list(first.questions[run.name, lang]) for lang in first.columns()}

    title = "entity linking, Mirror on words"
    return [Panel("xel", title, "accuracy@1", measure)] if tasks else []


def _as_list(hits: Array) -> list[float]:
    """Return the values of questions, for JSON."""
    values: list[float] = hits.astype(float).tolist()
    return values
