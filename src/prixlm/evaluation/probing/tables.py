"""Tables of probing by model and language: the best word, and the rank among candidates (Sec. 3.5).

    tables, results = evaluate_probing({"model": model}, {"en": read_bmlama("en.tsv")})

A model that has never seen a sentence (`compact`) knows names and facts, not prompts. Its figures
show how much of that knowledge survives when it is asked in words. They say nothing about the
paper's claim.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.entities.encoder import load_model
from prixlm.evaluation.probing.asking import Probed, probe
from prixlm.evaluation.probing.prompts import Prompts, describe_prompts, sample_prompts
from prixlm.lm.bases import base_fingerprint
from prixlm.lm.model import SETTINGS, PrixLM, read_settings
from prixlm.reports.kept import Kept
from prixlm.reports.tables import ResultTable, name_rows
from prixlm.types import Progress

CANDIDATE_RANKING = "candidate ranking"
COMPACT_NOTE = (
    "Compact models have never seen a sentence ({}): their figures show how much of their "
    "knowledge of names survives when they are asked in words that they cannot read, and say "
    "nothing about the paper's claim."
)
_VERSION = 1
"""Of how prompts are asked: values that an earlier call kept belong to it."""
Results = dict[str, dict[str, Probed]]
"""What models answered, by row and language."""


def evaluate_probing(
    models: Mapping[str, PrixLM | Path | str],
    prompts: Mapping[str, Prompts],
    progress: Progress | None = None,
    *,
    kept: Kept | None = None,
    identity: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[list[ResultTable], Results]:
    """Return tables of both protocols by model and language, and the answers behind them.

    Which answers are one piece depends on the tokenizer. So the best words are counted twice: on
    each model's own prompts, and on those whose answers are one piece for every model.
    models: by row; of a folder, the model is loaded when its row is measured, and then dropped.
    kept: what is measured so far. identity: by row and language, what a kept value belongs to, if
    the caller does not know that all are of the same models and prompts.
    """
    kept = kept or Kept()
    results: Results = {}
    for row, model in models.items():
        load = cache(partial(_opened, model))  # all values may be kept, and then none is loaded
        for lang, part in prompts.items():
            key = (row, lang) if identity is None else (identity[row][lang],)
            measure = partial(_probe, load, part, lang)
            results.setdefault(row, {})[lang] = Probed.from_json(kept.get(key, measure))
            if progress is not None:
                progress(f"probe {row}", len(results[row]), len(prompts))
    single = ResultTable("best word", subset="one-piece answers", parallel=True)
    ranked = ResultTable(CANDIDATE_RANKING, parallel=True)
    # The first row of the ranking: what a draw among the candidates would reach.
    for lang, part in prompts.items():
        ranked.add("chance", lang, _chance(part))
    for row, by_language in results.items():
        for lang, probed in by_language.items():
            _add(single, row, lang, probed.single)
            _add(ranked, row, lang, probed.ranked)
    for table in (single, ranked):
        _keep_common(table, results)
    single.notes.extend(_notes(models, results))
    return [single, _common(results), ranked, *_by_relation(results)], results


def _opened(model: PrixLM | Path | str) -> PrixLM:
    return model if isinstance(model, PrixLM) else load_model(model)


def _probe(load: Callable[[], PrixLM], prompts: Prompts, lang: str) -> dict[str, Any]:
    return asdict(probe(load(), prompts, lang))


def _add(table: ResultTable, row: str, lang: str, hits: Mapping[int, bool]) -> None:
    """Add the share of hits, in the order of the prompts."""
    table.add_questions(row, lang, np.array([hits[prompt] for prompt in sorted(hits)], bool))


def _keep_common(table: ResultTable, results: Results) -> None:
    """Forget the single answers of a language unless all models were asked the same prompts.

    Rows are compared question by question.
    """
    is_single = table.metric != CANDIDATE_RANKING
    for lang in next(iter(results.values()), {}):
        asked = {
            frozenset(by_language[lang].single if is_single else by_language[lang].ranked)
            for by_language in results.values()
        }
        for row in results if len(asked) > 1 else ():
            table.questions.pop((row, lang), None)


def evaluate_models(
    models: Sequence[Path],
    prompts: Mapping[str, Prompts],
    progress: Progress | None = None,
    *,
    most: int | None = None,
    kept: Kept | None = None,
) -> tuple[list[ResultTable], Results]:
    """Probe model folders, named by their paths, one after another.

    most: prompts sampled of each language. kept: what an earlier call measured, which is taken if
    it was of the same model and prompts.
    """
    named = name_rows(models)
    asked = {lang: sample_prompts(part, most) for lang, part in prompts.items()}
    identity = None
    if kept is not None:
        digests = {lang: _digest([lang, describe_prompts(part)]) for lang, part in asked.items()}
        identity = {
            title: {lang: _digest([_VERSION, model, most, digests[lang]]) for lang in asked}
            for title, model in ((title, _fingerprint(path)) for title, path in named.items())
        }
    return evaluate_probing(named, asked, progress, kept=kept, identity=identity)


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _fingerprint(model: Path) -> list[Any]:
    """Return what tells a model apart: its weights and tokenizer, and how it reads."""
    is_ours = (model / SETTINGS).is_file()
    return [base_fingerprint(model), read_settings(model).as_dict() if is_ours else None]


def _common(results: Results) -> ResultTable:
    """Count the best words on the prompts whose answers are one piece for every model."""
    table = ResultTable("best word", subset="answers of one piece for every model", parallel=True)
    for lang in next(iter(results.values()), {}):
        parts = {row: by_language[lang].single for row, by_language in results.items()}
        common = sorted(set.intersection(*map(set, parts.values())))
        for row, single in parts.items():
            _add(table, row, lang, {prompt: single[prompt] for prompt in common})
    return table


def _is_compact(model: PrixLM | Path | str) -> bool:
    if isinstance(model, PrixLM):
        return model.settings.lineage.base == "compact"
    folder = Path(model)
    return (folder / SETTINGS).is_file() and read_settings(folder).lineage.base == "compact"


def _notes(models: Mapping[str, PrixLM | Path | str], results: Results) -> list[str]:
    """Return what a reader has to know to compare the best words of models."""
    notes = []
    compact = [row for row, model in models.items() if _is_compact(model)]
    if compact:
        notes.append(COMPACT_NOTE.format(", ".join(compact)))
    sizes = {
        row: [probed.num_words for probed in by_language.values()]
        for row, by_language in results.items()
    }
    if len({tuple(numbers) for numbers in sizes.values()}) > 1:
        told = "; ".join(f"{row} {_range(numbers)}" for row, numbers in sizes.items())
        notes.append(f"Words that the best one is chosen from: {told}. Fewer make it easier.")
    return notes


def _range(numbers: Sequence[int]) -> str:
    """Return the smallest and the largest number: `1,000 to 1,200`."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _by_relation(results: Results) -> list[ResultTable]:
    """Return a table for each language whose prompts name their relations: a row per relation."""
    tables = []
    for lang in next(iter(results.values()), {}):
        table = ResultTable(f"{CANDIDATE_RANKING} by relation", subset=lang, parallel=True)
        for row, by_language in results.items():
            for relation, hits in by_language[lang].relations.items():
                table.add_questions(relation, row, np.array(hits, bool))
        if table.rows:
            tables.append(table)
    return tables


def _chance(prompts: Prompts) -> float:
    """Return the expected share of right answers if one of the candidates is drawn."""
    sizes = [len({p.answer, *p.candidates}) for p in prompts.prompts if p.candidates]
    return float(np.mean([1 / size for size in sizes if size > 1] or [np.nan]))
