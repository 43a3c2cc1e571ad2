"""The paper's link-prediction table (Sec. 3.2): every row, in one folder that can be resumed.

    results = reproduce_lp(KB("dbp5l"), "table", ReproduceConfig())

Each step writes its output into the folder and is skipped if that exists, so a run that was stopped
resumes, and a table can be finished over several days:

    models/, graph/, baselines/, fusion/    trained models (see `trained`)
    rows/KEY.json and KEY.parquet           a row's figures, and the rank of every fact
    unseen/keep, unseen/remove              splits with held-out entities: their KB, models and rows
    table.json, table.md, table.png, checkpoints.json, checkpoints.png

Everything is trained on train alone, chosen and fitted on valid, and ranked on test.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from prixlm.decoding.completer import Completer
from prixlm.errors import PrixError
from prixlm.evaluation.link_prediction import (
    ALL,
    RankerResult,
    describe_ranks,
    figures_by_language,
    plot_results,
    rank_facts,
    write_ranks,
    write_results,
)
from prixlm.evaluation.trained import TrainedModels, check_stamp, single_settings
from prixlm.files import read_json, write_atomically
from prixlm.kb.split import SplitConfig, split_kb, unseen_triples
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND
from prixlm.rankers.base import PerLanguage, Ranker
from prixlm.rankers.complex import METHOD, GraphConfig, GraphRanker
from prixlm.rankers.fusion import FusionConfig
from prixlm.rankers.heldout import SUBSETS, HeldOut, read_facts
from prixlm.rankers.lm import ModelRanker
from prixlm.rankers.pykeen import MODELS, BaselineConfig, check_installed
from prixlm.rankers.suite import UNTRAINED, make_suite
from prixlm.reports.plots import plot_curves
from prixlm.training.pretrain import PretrainConfig
from prixlm.types import Progress

logger = logging.getLogger(__name__)

PARTS = ("checkpoints", "unseen-keep", "unseen-remove", "unseen-names")
"""Parts of the table that are not rows: a curve, two tables of their own, and the rows of these two
that need neither a model nor a graph."""
UNSEEN_SUBSETS = (ALL, "only the subject unseen", "the object unseen")
UNSEEN_NAMES = ("usual", "pairs", "similar-names", "shared-names", "new-objects", "fused")
UNSEEN_ROWS = (*UNSEEN_NAMES[:-1], "graph", "model", "fused")
"""Rows of the tables of unseen entities: without a model or a graph, and all in their order."""
_UNSEEN_LINKS: tuple[Literal["keep", "remove"], ...] = ("keep", "remove")
"""What happens to the links of held-out entities."""
_TITLES = {
    "all": "Prix-LM (All)",
    "all-propagate": "Prix-LM (All), with carried facts",
    "single": "Prix-LM (Single), epochs of All",
    "single-early": "Prix-LM (Single), early stop",
}


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    """Settings of the table; the defaults are for DBP-5L on two cores."""

    pretrain: PretrainConfig = field(default_factory=lambda: PretrainConfig.preset("compact"))
    propagate_epochs: int = 6  # of All with carried facts: about as many facts in all
    single_epochs: int = 30  # most epochs of Single with early stopping
    patience: int = 3  # validations without a better one before Single stops
    graph: GraphConfig = field(default_factory=GraphConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    beyond: int = 100  # Prix-LM's exact ranks are found up to here; higher ones count as 0
    curve_facts: int = 200  # test facts of each language at each checkpoint
    unseen: float = 0.05  # share of the concepts to test on in the unseen-entities table
    unseen_epochs: int = 3  # of Prix-LM there
    unseen_graph_epochs: int = 5  # of ComplEx there, which cannot answer

    def __post_init__(self) -> None:
        counts = (self.propagate_epochs, self.single_epochs, self.patience, self.beyond)
        epochs = (self.unseen_epochs, self.unseen_graph_epochs)
        if min(*counts, *epochs, self.curve_facts) < 1 or not 0 < self.unseen < 0.5:
            raise PrixError("counts are 1 or more, and unseen is a share between 0 and 0.5.")

    @classmethod
    def of_base(cls, base: str) -> "ReproduceConfig":
        """Return the settings for a base model: the paper's, unless it is `compact`."""
        if base == "compact":
            return cls()
        # All kinds of models train as long as the paper's, Single with early stop at most thrice.
        paper = dataclasses.replace(PretrainConfig(), base=base)
        return cls(
            pretrain=paper,
            propagate_epochs=paper.epochs,
            single_epochs=3 * paper.epochs,
            unseen_epochs=paper.epochs,
        )


@dataclass(frozen=True)
class _Made:
    """A ranker that is ready, and how it was made."""

    ranker: Ranker
    seconds: float | None = None  # of training; None if nothing was trained
    search: str = "exact"
    limit: int = BEYOND  # ranks are looked for up to here

    def rank(
        self, kb: KB, facts: Sequence[HeldOut], path: Path, subsets: Sequence[str] = SUBSETS
    ) -> RankerResult:
        """Rank facts; write the rank of each to `path` and return the figures."""
        max_rank = min(self.limit, self.ranker.max_rank)
        started = time.monotonic()
        # Ranking is timed alone: loading and training have happened before.
        table = rank_facts(kb, self.ranker, facts, beyond=max_rank)
        ranking = time.monotonic() - started
        write_ranks(table, path)
        figures = figures_by_language(table, max_rank, subsets)
        how = describe_ranks(max_rank, self.search)
        return RankerResult(self.ranker.name, figures, how, self.seconds, ranking, max_rank)


class Reproduction:
    """The table of one KB in one folder: makes rows that are missing."""

    def __init__(
        self, kb: KB, to: Path, config: ReproduceConfig, progress: Progress | None = None
    ) -> None:
        self.kb, self.to, self.config, self.progress = kb, to, config, progress
        # METHOD tells how the graph embedding is trained: another one would be another row.
        settings = dataclasses.asdict(config)
        settings["graph"]["method"] = METHOD
        check_stamp(to / "reproduce.json", {"kb": kb.fingerprint(), "config": settings}, to)
        self.models = TrainedModels(kb, to, progress)
        self.langs = [lang for lang in kb.languages if kb.num_triples(lang, "test")]
        if not self.langs or not kb.num_triples(split="valid"):
            raise PrixError(
                f"{kb.folder} has no test or no valid triples: make some with `prixlm split`."
            )
        self.makers: dict[str, Callable[[], _Made]] = {
            key: partial(_untrained, kb, key) for key in UNTRAINED
        }
        self.makers["graph"] = self._graph
        for name in MODELS:
            for setting in ("default", "tuned"):
                self.makers[f"{name.lower()}-{setting}"] = partial(self._baselines, name, setting)
            if name != "ComplEx":  # on the merged graph that is `graph`, trained as it should be
                self.makers[f"{name.lower()}-merged"] = partial(self._merged, name)
        for kind in ("single", "single-early", "all", "all-propagate"):
            for search in ("beam", "exact"):
                self.makers[f"{kind}-{search}"] = partial(self._prix_lm, kind, search)
        self.makers["fused"] = self._fused

    def row(self, key: str) -> RankerResult:
        """Return a row of the table, from its file or made now."""
        if key not in self.makers:
            raise PrixError(f"row {key}: expected one of {', '.join((*self.makers, *PARTS))}.")
        path = self.to / "rows" / f"{key}.json"
        if path.exists():
            return RankerResult.load(path)
        logger.info("row %s", key)
        # The ranks are written first: a row that has a JSON file is complete.
        facts = [read_facts(self.kb, lang) for lang in self.langs]
        result = self.makers[key]().rank(self.kb, facts, path.with_suffix(".parquet"))
        result.save(path)
        return result

    def finished_rows(self) -> list[RankerResult]:
        """Return the rows that have a file, in the order of the table."""
        return [self.row(key) for key in self.makers if (self.to / "rows" / f"{key}.json").exists()]

    def _settings(self, kind: str, lang: str | None) -> PretrainConfig:
        """Return the settings of one kind of Prix-LM."""
        settings = self.config.pretrain
        if lang is not None:
            settings = single_settings(settings, lang)
        if kind == "all-propagate":
            supply = dataclasses.replace(settings.supply, propagate=True)
            epochs = self.config.propagate_epochs
            return dataclasses.replace(settings, supply=supply, epochs=epochs)
        if kind == "single-early":
            # About every two epochs of the language's triples.
            every = max(1, self.kb.num_triples(lang, "train") * 2 // settings.batch)
            training = dataclasses.replace(
                settings.training,
                patience=self.config.patience,
                validate_every=every,
                checkpoints=(1.0,),
            )
            epochs = self.config.single_epochs
            return dataclasses.replace(settings, training=training, epochs=epochs)
        return settings

    def _prix_lm(self, kind: str, search: Literal["beam", "exact"]) -> _Made:
        title = f"{_TITLES[kind]}, {search}"
        is_single = kind.startswith("single")
        langs = self.langs if is_single else [None]
        runs = [self.models.prix_lm(kind, self._settings(kind, lang), lang) for lang in langs]
        rankers = [
            ModelRanker(
                Completer(run.folder, self.kb, self.progress),
                search=search,
                name=title,
                progress=self.progress,
            )
            for run in runs
        ]
        ranker: Ranker = rankers[0]
        if is_single:
            ranker = PerLanguage(title, dict(zip(self.langs, rankers, strict=True)))
        seconds = sum(run.seconds or 0.0 for run in runs)
        if search == "beam":
            return _Made(ranker, seconds, f"beam K = {rankers[0].beam}")
        return _Made(ranker, seconds, limit=self.config.beyond)

    def _graph(self) -> _Made:
        model, seconds = self.models.graph(self.config.graph)
        return _Made(GraphRanker(self.kb, model, name="ComplEx, merged graph (ours)"), seconds)

    def _baselines(self, name: str, setting: str) -> _Made:
        """Return a PyKEEN model per language."""
        make = BaselineConfig.default if setting == "default" else BaselineConfig.tuned
        trained = {lang: self.models.baseline(make(name), setting, lang) for lang in self.langs}
        rankers = {lang: ranker for lang, (ranker, _) in trained.items()}
        seconds = sum(seconds for _, seconds in trained.values())
        return _Made(PerLanguage(f"{name}, {setting}", rankers), seconds)

    def _merged(self, name: str) -> _Made:
        """Return a PyKEEN model of the graph of all languages."""
        ranker, seconds = self.models.baseline(BaselineConfig.tuned(name), "merged")
        ranker.name = f"{name}, merged graph"
        return _Made(ranker, seconds)

    def _fused(self) -> _Made:
        """Return the model, links, rules and graph together; its training time is all of theirs."""
        model, graph = self._prix_lm("all-propagate", "exact"), self._graph()
        rankers = make_suite(self.kb, model.ranker, graph.ranker).rankers
        langs = [lang for lang in self.langs if self.kb.num_triples(lang, "valid")]
        # Languages without valid facts cannot be fitted, but are ranked.
        fusion = self.models.fusion(rankers, self.config.fusion, langs)
        return _Made(fusion, (model.seconds or 0.0) + (graph.seconds or 0.0) + fusion.seconds)

    def checkpoints(self) -> dict[str, list[tuple[int, float]]]:
        """Return Hits@10 by language at every checkpoint of All (the paper's figure)."""
        path = self.to / "checkpoints.json"
        if path.exists():
            saved: dict[str, list[tuple[int, float]]] = read_json(path)
            return saved
        run = self.models.prix_lm("all", self._settings("all", None))
        most = self.config.curve_facts
        facts = [read_facts(self.kb, lang, most=most) for lang in self.langs]
        curves: dict[str, list[tuple[int, float]]] = {lang: [] for lang in self.langs}
        for step in run.steps:
            # A beam is enough for Hits@10, and fast enough for every checkpoint.
            model = Completer(run.at_step(step).folder, self.kb, self.progress)
            table = rank_facts(self.kb, ModelRanker(model, search="beam"), facts)
            for lang, parts in figures_by_language(table).items():
                curves[lang].append((step, 100 * parts[ALL].hits_10))
        write_atomically(path, json.dumps(curves, indent=1) + "\n")
        return curves

    def unseen(
        self, links: Literal["keep", "remove"], keys: Sequence[str] = UNSEEN_ROWS
    ) -> list[RankerResult]:
        """Rank facts of held-out entities whose links are kept or removed.

        Makes the rows `keys` that are missing, and returns all that are finished.
        """
        folder = self.to / "unseen" / links
        missing = [key for key in keys if not (folder / f"{key}.json").exists()]
        if missing:
            if not (folder / "kb").is_dir():
                # As many concepts to fit the fusion on as to test on.
                share = self.config.unseen
                config = SplitConfig(unseen=share, valid=share, links=links, resplit=True)
                split_kb(self.kb, folder / "kb", config)
            kb = KB(folder / "kb")
            facts = unseen_facts(kb, self.langs)
            if not facts:
                raise PrixError(
                    f"no test fact of {kb.folder} has an unseen entity: set a larger `unseen`."
                )
            # The models of this split are its own: those of the table have seen its entities.
            makers = self._unseen_makers(TrainedModels(kb, folder, self.progress))
            for key in missing:
                logger.info("row %s, links %s", key, links)
                path = folder / f"{key}.parquet"
                result = makers[key]().rank(kb, facts, path, UNSEEN_SUBSETS)
                title = f"{result.title}, links {'kept' if links == 'keep' else 'removed'}"
                dataclasses.replace(result, title=title).save(folder / f"{key}.json")
        finished = (folder / f"{key}.json" for key in UNSEEN_ROWS)
        return [RankerResult.load(path) for path in finished if path.exists()]

    def _unseen_makers(self, models: TrainedModels) -> dict[str, Callable[[], _Made]]:
        """Return what makes each row: rankers that can answer, and ComplEx, which cannot."""
        kb = models.kb

        def graph() -> _Made:
            config = dataclasses.replace(self.config.graph, epochs=self.config.unseen_graph_epochs)
            model, seconds = models.graph(config)
            return _Made(GraphRanker(kb, model), seconds)

        def prix_lm() -> _Made:
            settings = dataclasses.replace(self.config.pretrain, epochs=self.config.unseen_epochs)
            run = models.unseen_prix_lm(settings)
            completer = Completer(run.folder, kb, self.progress)
            title = _TITLES["all"]
            model = ModelRanker(completer, search="beam", name=title, progress=self.progress)
            return _Made(model, run.seconds, f"beam K = {model.beam}")

        def fused() -> _Made:
            # Fitted on the valid facts: those of other concepts that train has not seen either.
            rankers = make_suite(kb).rankers
            langs = [lang for lang in self.langs if kb.num_triples(lang, "valid")]
            fusion = models.fusion(rankers, self.config.fusion, langs)
            fusion.name = "fused: links, rules and names"
            return _Made(fusion, fusion.seconds)

        makers: dict[str, Callable[[], _Made]] = {
            key: partial(_untrained, kb, key) for key in UNTRAINED
        }
        return makers | {"graph": graph, "model": prix_lm, "fused": fused}


def _untrained(kb: KB, key: str) -> _Made:
    """Return a ranker that needs no training."""
    return _Made(UNTRAINED[key](kb, ("train",)))


def unseen_facts(kb: KB, langs: Sequence[str]) -> list[HeldOut]:
    """Return the test facts whose subject or object is in no train triple, with their subsets.

    A guess by frequency can only be right if the object is known, so the subsets tell which end is
    unseen.
    """
    table = unseen_triples(kb, links=False)
    names = ("subject", "relation", "object", "object_unseen")
    columns = [table[name].to_pylist() for name in names]
    object_unseen = {tuple(triple): unseen for *triple, unseen in zip(*columns, strict=True)}
    unseen_by_language = []
    for lang in langs:
        if not kb.num_triples(lang, "test"):
            continue
        facts = read_facts(kb, lang)
        arrays = (facts.queries.subject, facts.queries.relation, facts.objects)
        triples = list(zip(*(array.tolist() for array in arrays), strict=True))
        rows = [row for row, triple in enumerate(triples) if triple in object_unseen]
        if rows:
            unseen = np.array([object_unseen[triples[row]] for row in rows], bool)
            # (rows,) for each of UNSEEN_SUBSETS.
            masks = (np.ones(len(rows), bool), ~unseen, unseen)
            subsets = dict(zip(UNSEEN_SUBSETS, masks, strict=True))
            chosen = facts.select(np.array(rows))
            unseen_by_language.append(dataclasses.replace(chosen, subsets=subsets))
    return unseen_by_language


def reproduce_lp(
    kb: KB,
    to: Path | str,
    config: ReproduceConfig | None = None,
    rows: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> list[RankerResult]:
    """Make the rows and parts that are asked for, or all, and write the table with a plot.

    Returns the rows that were asked for or, if only parts were, those of the unseen entities.
    """
    if rows is not None and not rows:
        raise PrixError("--rows names no row: leave it out for all rows.")
    to = Path(to)
    table = Reproduction(kb, to, config or ReproduceConfig(), progress)
    wanted = [*table.makers, *PARTS] if rows is None else list(rows)
    if any(key.startswith(tuple(name.lower() for name in MODELS)) for key in wanted):
        check_installed()
    results = [table.row(key) for key in wanted if key not in PARTS]
    # The table shows all that is finished, not only what was asked for in this call.
    if "checkpoints" in wanted:
        plot_curves(
            table.checkpoints(),
            to / "checkpoints.png",
            "Hits@10 (%)",
            "Link prediction over checkpoints",
        )
    finished = table.finished_rows()
    # In the order of the table, from their files or made now.
    unseen: list[RankerResult] = []
    for links in _UNSEEN_LINKS:
        keys: Sequence[str] = UNSEEN_NAMES if "unseen-names" in wanted else ()
        unseen += table.unseen(links, UNSEEN_ROWS if f"unseen-{links}" in wanted else keys)
    sections = {"Link prediction": finished, "Unseen entities": unseen}
    write_results(to, {title: part for title, part in sections.items() if part})
    if finished:
        plot_results(finished, to / "table.png")
    return results or unseen
