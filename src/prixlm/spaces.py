"""Linking, lexicon induction and probing with what there is: encoders and models in, tables out.

grids = evaluate_linking(hidden_tasks(kb, into="en"), [EncoderScorer(encoder), FuzzyScorer()])
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.complete import Completer
from prixlm.decode import exact_ranks
from prixlm.embed import EntityEncoder, Progress
from prixlm.errors import PrixError
from prixlm.facts import Query
from prixlm.grids import Grid
from prixlm.kb.store import KB
from prixlm.mirror import frequent_words
from prixlm.model import PrixLM
from prixlm.tasks.entity_linking import (
    Linker,
    LinkingTask,
    accuracy,
    read_hidden_links,
)
from prixlm.tasks.lexicon_induction import Dictionary, induce
from prixlm.tasks.probing import Probed, Prompts, probe

Array = np.ndarray[Any, Any]
_BATCH = 32


class Translation:
    """The decoder's own way: a name in another language, among the entities of a KB."""

    def __init__(self, model: PrixLM | Path, kb: KB, into: str, name: str = "translate") -> None:
        self.completer, self.into, self.name = Completer(model, kb), into, name

    def ranks(self, task: LinkingTask, lang: str) -> Array:
        """Exact ranks up to ten of the best right entity of every mention."""
        trie = self.completer.trie(self.into)
        first = self.completer.kb.entity_range(self.into).start
        row = np.repeat(np.arange(len(task.mentions)), np.diff(task.offsets))
        right = task.right + first
        known = trie.nodes_of(right) >= 0  # a name too long cannot be written
        row, right = row[known], right[known]
        others = [right[row == place] for place in range(len(task.mentions))]
        ranks = np.full(len(task.mentions), np.inf)
        for start in range(0, len(row), _BATCH):
            rows = row[start : start + _BATCH]
            asked = [Query(lang, task.mentions[place], None, self.into) for place in rows]
            found = exact_ranks(
                self.completer.model,
                trie,
                [self.completer.encode(query) for query in asked],
                right[start : start + _BATCH],
                most=10,
                exclude=[others[place] for place in rows],
            )
            for place, one in zip(rows, found, strict=True):
                ranks[place] = min(ranks[place], np.inf if one.rank is None else one.rank)
        return ranks


def hidden_tasks(
    kb: KB,
    into: str,
    langs: Sequence[str] | None = None,
    split: str = "test",
    most: int | None = None,
) -> dict[str, LinkingTask]:
    """The hidden links of a split, by the language of the mentions."""
    asked = [lang for lang in langs or kb.languages if lang != into]
    found = {}
    for lang in asked:
        try:
            found[lang] = read_hidden_links(kb, lang, into, split, most)
        except PrixError:
            if langs is not None or not kb.path("hidden_links").is_file():
                raise
    if not found:
        raise PrixError(f"{kb.folder} has no hidden links into {into}.")
    return found


def evaluate_linking(
    tasks: Mapping[str, LinkingTask],
    ways: Sequence[Linker],
    progress: Progress | None = None,
) -> list[Grid]:
    """Accuracy@1 and @5 of every way in every language; @1 also where the names differ."""
    differ = {lang: task.differ() for lang, task in tasks.items()}
    numbers = {lang: len(task.mentions) for lang, task in tasks.items()}
    apart = {lang: int(part.sum()) for lang, part in differ.items()}
    grids = [
        Grid("accuracy@1", {}, numbers),
        Grid("accuracy@5", {}, numbers),
        Grid("accuracy@1, names that differ", {}, apart),
    ]
    done = 0
    for way in ways:
        cells: list[dict[str, float]] = [{}, {}, {}]
        for lang, task in tasks.items():
            ranks = way.ranks(task, lang)
            cells[0][lang], cells[1][lang] = accuracy(ranks, 1), accuracy(ranks, 5)
            cells[2][lang] = accuracy(ranks[differ[lang]], 1)
            done += 1
            if progress is not None:
                progress("link", done, len(ways) * len(tasks))
        for grid, part in zip(grids, cells, strict=True):
            grid.rows[way.name] = part
    return grids


def evaluate_lexicons(
    encoders: Mapping[str, EntityEncoder],
    dictionaries: Mapping[str, tuple[Dictionary, str | None]],
    num_frequent: int = 50_000,
    progress: Progress | None = None,
) -> list[Grid]:
    """Accuracy (Hits@1) and MRR by encoder and pair of languages, both candidate sets.

    dictionaries: with the code of the target language, whose frequent words are candidates too.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    numbers: dict[str, dict[str, int]] = {}
    done = 0
    for row, encoder in encoders.items():
        for pair, (dictionary, lang) in dictionaries.items():
            words = frequent_words(lang, num_frequent) if lang is not None else ()
            induced = induce(encoder, dictionary, words)
            for name, parts in induced.figures.items():
                for subset, figures in parts.items():
                    where = f"among {name}" + ("" if subset == "all" else f", sources {subset}")
                    for metric, value in (("accuracy", figures.hits_1), ("MRR", figures.mrr)):
                        title = f"{metric} {where}"
                        found.setdefault(title, {}).setdefault(row, {})[pair] = value
                        numbers.setdefault(title, {})[pair] = figures.number
            done += 1
            if progress is not None:
                progress("induce", done, len(encoders) * len(dictionaries))
    return [Grid(title, rows, numbers[title]) for title, rows in found.items()]


def evaluate_probing(
    models: Mapping[str, PrixLM],
    prompts: Mapping[str, Prompts],
    progress: Progress | None = None,
) -> tuple[list[Grid], dict[str, dict[str, Probed]]]:
    """Both protocols by model and language, and what was found for each."""
    single, ranked = Grid("one-piece answers, best word"), Grid("candidate ranking")
    chance = {lang: _chance(part) for lang, part in prompts.items()}
    ranked.rows["chance"] = chance
    results: dict[str, dict[str, Probed]] = {}
    done = 0
    for row, model in models.items():
        for lang, part in prompts.items():
            found = probe(model, part, lang)
            results.setdefault(row, {})[lang] = found
            single.rows.setdefault(row, {})[lang] = found.single
            ranked.rows.setdefault(row, {})[lang] = found.ranked
            ranked.numbers[lang] = found.num_ranked
            done += 1
            if progress is not None:
                progress("probe", done, len(models) * len(prompts))
    _count_pieces(single, results)
    return [single, ranked], results


def _count_pieces(single: Grid, results: Mapping[str, Mapping[str, Probed]]) -> None:
    """How many answers are one piece: a column's number where all models agree."""
    for lang in single.columns():
        counts = {found[lang].num_single for found in results.values()}
        if len(counts) == 1:
            single.numbers[lang] = counts.pop()


def _chance(prompts: Prompts) -> float:
    """The expected share of right answers where one of the candidates is drawn."""
    sizes = [len({p.answer, *p.candidates}) for p in prompts.prompts if p.candidates]
    return float(np.mean([1 / size for size in sizes if size > 1] or [np.nan]))
