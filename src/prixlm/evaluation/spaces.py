"""Linking, lexicon induction and probing with what there is: encoders and models in, tables out.

grids = evaluate_linking(hidden_tasks(kb, into="en"), [EncoderScorer(encoder), FuzzyScorer()])
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from prixlm.decoding.completer import Completer
from prixlm.decoding.search import exact_ranks
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.mirror import frequent_words
from prixlm.entities.spelling import TITLE
from prixlm.errors import PrixError
from prixlm.evaluation.entity_linking import (
    Linker,
    LinkingTask,
    accuracy,
    read_hidden_links,
    read_names,
)
from prixlm.evaluation.lexicons import Dictionary, induce, induce_by_spelling
from prixlm.evaluation.probing import Probed, Prompts, probe, share
from prixlm.kb.store import KB
from prixlm.lm.model import PrixLM
from prixlm.reports.grids import Grid
from prixlm.types import Array, Progress, Query

logger = logging.getLogger(__name__)
_BATCH = 32


class Translation:
    """The decoder's own way: a name in another language, among the entities of a KB."""

    def __init__(self, model: PrixLM | Path, kb: KB, into: str, name: str = "translate") -> None:
        self.completer, self.into, self.name = Completer(model, kb), into, name

    def ranks(self, task: LinkingTask, lang: str) -> Array:
        """Exact ranks up to ten of the best right entity of every mention."""
        for code in (lang, self.into):
            self.completer.check_language(code)
        trie = self.completer.trie(self.into)
        right = task.right + self.completer.kb.entity_range(self.into).start
        prefixes = [self._prefix(mention, lang, trie.height) for mention in task.mentions]
        row = np.repeat(np.arange(len(task.mentions)), np.diff(task.offsets))
        asked = np.array([prefixes[place] is not None for place in row], bool)
        asked &= trie.nodes_of(right) >= 0  # a name too long cannot be written
        left = len(task.mentions) - len(np.unique(row[asked]))
        if left:
            logger.warning(
                "%s: %d mentions or names are too long or have no tokens, and count as wrong",
                lang,
                left,
            )
        ranks = np.full(len(task.mentions), np.inf)
        for batch in (_BATCH, 1):  # alone it may fit into memory
            places = np.flatnonzero(asked)
            for start in range(0, len(places), batch):
                some = places[start : start + batch]
                found = exact_ranks(
                    self.completer.model,
                    trie,
                    [prefixes[place] or [] for place in row[some]],
                    right[some],
                    most=10,
                    exclude=[right[task.offsets[p] : task.offsets[p + 1]] for p in row[some]],
                )
                for place, one in zip(some, found, strict=True):
                    asked[place] = not one.complete
                    rank = np.inf if one.rank is None else one.rank
                    ranks[row[place]] = min(ranks[row[place]], rank)
        if asked.any():
            logger.warning("%s: %d ranks need more memory than there is", lang, asked.sum())
        return ranks

    def _prefix(self, mention: str, lang: str, height: int) -> list[int] | None:
        """What the model reads of a mention; nothing where there is none, or no room for it."""
        try:
            prefix = self.completer.encode(Query(lang, mention, None, self.into))
        except PrixError:
            return None
        return prefix if len(prefix) + height <= self.completer.model.max_length else None


def hidden_tasks(
    kb: KB,
    into: str,
    langs: Sequence[str] | None = None,
    split: str = "test",
    most: int | None = None,
) -> dict[str, LinkingTask]:
    """The hidden links of a split, by the language of the mentions."""
    if split not in ("test", "valid"):
        raise PrixError(f"--split {split}: expected test or valid.")
    if most is not None and most < 1:
        raise PrixError(f"--most {most}: expected 1 or more.")
    kb.entity_range(into)  # refuses a language that is not there
    hidden = kb.hidden_links(split)
    number = kb.language_of(np.stack([column.to_numpy() for column in hidden.columns]))
    target = kb.languages.index(into)
    linked = {kb.languages[i] for i in np.unique(number[:, (number == target).any(axis=0)])}
    asked = [lang for lang in langs or kb.languages if lang != into]
    without = sorted(set(asked) - linked)
    if without:
        logger.warning("no hidden links into %s from %s", into, ", ".join(without))
    names = read_names(kb, into)
    found = {
        lang: read_hidden_links(kb, lang, into, split, most, names)
        for lang in asked
        if lang in linked
    }
    if not found:
        raise PrixError(f"{kb.folder} has no hidden links into {into}.")
    return found


def check_hidden(kb: KB, model: PrixLM, what: str) -> None:
    """Refuse what was trained on the links that a split hides; warn of what may have been."""
    trained = model.settings.trained
    seen = {trained.get("links_of_kb"), *trained.get("earlier_kbs", ())}
    if trained.get("links_an_epoch") or trained.get("triples_carried_along_links"):
        seen.add(trained.get("kb_fingerprint"))
    if (kb.manifest.split or {}).get("from") in seen:
        raise PrixError(
            f"{what} was trained on the KB that {kb.folder} is a split of, and so on the links "
            "that it would be asked for: train one on the split itself."
        )
    if seen - {None, kb.fingerprint()}:
        logger.warning("%s was trained on another KB, perhaps on the links asked for", what)


def evaluate_linking(
    tasks: Mapping[str, LinkingTask],
    ways: Iterable[Linker],
    progress: Progress | None = None,
) -> list[Grid]:
    """Accuracy@1 and @5 of every way in every language; @1 also where the names differ.

    Ways are asked one after another: they may be made when it is their turn.
    """
    differ = {lang: task.differ() for lang, task in tasks.items()}
    numbers = {lang: len(task.mentions) for lang, task in tasks.items()}
    apart = {lang: int(part.sum()) for lang, part in differ.items()}
    grids = [
        Grid("accuracy@1", {}, numbers),
        Grid("accuracy@5", {}, numbers),
        Grid("accuracy@1, names that differ", {}, apart),
    ]
    for way in ways:
        cells: list[dict[str, float]] = [{}, {}, {}]
        for lang, task in tasks.items():
            ranks = way.ranks(task, lang)
            cells[0][lang], cells[1][lang] = accuracy(ranks, 1), accuracy(ranks, 5)
            cells[2][lang] = accuracy(ranks[differ[lang]], 1)
            if progress is not None:
                progress(f"link {way.name}", len(cells[0]), len(tasks))
        for grid, part in zip(grids, cells, strict=True):
            grid.rows[way.name] = part
    return grids


def evaluate_lexicons(
    encoders: Mapping[str, EntityEncoder],
    dictionaries: Mapping[str, tuple[Dictionary, str | None]],
    num_frequent: int = 50_000,
    progress: Progress | None = None,
    *,
    spelling: bool = True,
) -> list[Grid]:
    """Accuracy (Hits@1) and MRR by encoder and pair of languages, both candidate sets.

    dictionaries: with the code of the target language, whose frequent words are candidates too.
    spelling: string similarity as the first row.
    """
    ways: dict[str, EntityEncoder | None] = {TITLE: None} if spelling else {}
    ways |= encoders
    found: dict[str, dict[str, dict[str, float]]] = {}
    numbers: dict[str, dict[str, int]] = {}
    candidates: dict[str, dict[str, int]] = {}
    done = 0
    for row, encoder in ways.items():
        for pair, (dictionary, lang) in dictionaries.items():
            frequent = _frequent(lang, num_frequent)
            if encoder is None:
                induced = induce_by_spelling(dictionary, frequent)
            else:
                induced = induce(encoder, dictionary, frequent)
            for name, number in induced.num_candidates.items():
                candidates.setdefault(name, {})[pair] = number
            for name, parts in induced.figures.items():
                for subset, figures in parts.items():
                    where = f"among {name}" + ("" if subset == "all" else f", sources {subset}")
                    for metric, value in (("accuracy", figures.hits_1), ("MRR", figures.mrr)):
                        title = f"{metric} {where}"
                        found.setdefault(title, {}).setdefault(row, {})[pair] = value
                        numbers.setdefault(title, {})[pair] = figures.number
            done += 1
            if progress is not None:
                progress("induce", done, len(ways) * len(dictionaries))
    notes = {
        name: "Candidates: " + ", ".join(f"{pair} {number:,}" for pair, number in part.items())
        for name, part in candidates.items()
    }
    grids = [Grid(title, rows, numbers[title]) for title, rows in found.items()]
    for grid in grids:
        grid.notes.extend(n for name, n in notes.items() if _is_among(grid.title, name))
    return grids


def _is_among(title: str, name: str) -> bool:
    return title.split(" among ")[1].split(", sources")[0] == name


def _frequent(lang: str | None, number: int) -> list[str]:
    """The frequent words of a language; none where nobody has counted them."""
    if lang is None or not number:
        return []
    try:
        return frequent_words(lang, number)
    except PrixError as error:
        logger.warning("candidates of the dictionary only: %s", error)
        return []


COMPACT_NOTE = (
    "Compact models have never seen a sentence ({}): their figures say how much of what they know "
    "of names is left when they are asked in words that they cannot read, and nothing about the "
    "paper's claim."
)


def evaluate_probing(
    models: Mapping[str, PrixLM],
    prompts: Mapping[str, Prompts],
    progress: Progress | None = None,
) -> tuple[list[Grid], dict[str, dict[str, Probed]]]:
    """Both protocols by model and language, and what was found for each.

    Which answers are one piece is a matter of the tokenizer: beside each model's own, the best
    words are counted on the prompts whose answers are one piece for all of them.
    """
    results: dict[str, dict[str, Probed]] = {}
    for row, model in models.items():
        for lang, part in prompts.items():
            results.setdefault(row, {})[lang] = probe(model, part, lang)
            if progress is not None:
                progress(f"probe {row}", len(results[row]), len(prompts))
    single = Grid("one-piece answers, best word")
    common = Grid("answers of one piece for every model, best word")
    ranked = Grid("candidate ranking", {"chance": {c: _chance(p) for c, p in prompts.items()}})
    for row, parts in results.items():
        single.rows[row] = {lang: share(found.single.values()) for lang, found in parts.items()}
        single.own_numbers[row] = {lang: len(found.single) for lang, found in parts.items()}
        ranked.rows[row] = {lang: share(found.ranked.values()) for lang, found in parts.items()}
        ranked.own_numbers[row] = {lang: len(found.ranked) for lang, found in parts.items()}
    for lang in prompts:
        shared = set.intersection(*(set(parts[lang].single) for parts in results.values()))
        common.numbers[lang] = len(shared)
        for row, parts in results.items():
            hits = [parts[lang].single[place] for place in sorted(shared)]
            common.rows.setdefault(row, {})[lang] = share(hits)
    small = [
        row for row, model in models.items() if model.settings.trained.get("base") == "compact"
    ]
    if small:
        single.notes.append(COMPACT_NOTE.format(", ".join(small)))
    sizes = {
        row: {lang: one.num_words for lang, one in parts.items()} for row, parts in results.items()
    }
    if len({tuple(part.values()) for part in sizes.values()}) > 1:
        told = "; ".join(f"{row} {_range(part.values())}" for row, part in sizes.items())
        single.notes.append(f"The best word is one of: {told}. With fewer it is easier.")
    grids = [single, common, ranked]
    return grids + _by_relation(results), results


def _range(numbers: Iterable[int]) -> str:
    """The least and the most: `1,000 to 1,200`."""
    low, high = min(numbers := list(numbers)), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _by_relation(results: Mapping[str, Mapping[str, Probed]]) -> list[Grid]:
    """A table for each language whose prompts name their relations: a line for each relation."""
    grids = []
    for lang in next(iter(results.values()), {}):
        grid = Grid(f"candidate ranking by relation, {lang}")
        for row, parts in results.items():
            for relation, (value, number) in parts[lang].relations.items():
                grid.rows.setdefault(relation, {})[row] = value
                grid.own_numbers.setdefault(relation, {})[row] = number
        if grid.rows:
            grids.append(grid)
    return grids


def _chance(prompts: Prompts) -> float:
    """The expected share of right answers where one of the candidates is drawn."""
    sizes = [len({p.answer, *p.candidates}) for p in prompts.prompts if p.candidates]
    return float(np.mean([1 / size for size in sizes if size > 1] or [np.nan]))
