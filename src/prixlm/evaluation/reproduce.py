"""The paper's link-prediction table (Sec. 3.2): every row, in one folder that can be resumed.

    results = reproduce_lp(KB("dbp5l"), "table", ReproduceConfig())

Each step writes its output into the folder and is skipped if that exists, so a run that was stopped
resumes, and a table can be finished over several days:

    models/, graph/, baselines/, fusion/    trained models (see `trained`)
    searched/                               models whose settings are searched (see `trained`)
    rows/KEY.json and KEY.parquet           a row's figures, and the rank of every fact
    rows/KEY.partial/LANG.parquet           the ranks of a language, while others are missing
    rows/KEY/LANG.json and LANG.parquet     the same of one language, where each has its own model
    unseen/keep, unseen/remove              splits with held-out concepts: their KB, models and rows
    table.json, table.md, table.png, checkpoints.json, checkpoints.png

Everything is trained on train alone, chosen and fitted on valid, and ranked on test.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.decoding.completer import Completer
from prixlm.errors import PrixError
from prixlm.evaluation.link_prediction import figures_by_language, rank_facts
from prixlm.evaluation.rows import (
    ALL_TITLE,
    UNSEEN_GRAPH,
    UNSEEN_NAMES,
    UNSEEN_ROWS,
    Made,
    UnseenRows,
    untrained,
)
from prixlm.evaluation.trained import (
    Run,
    SearchSpace,
    TrainedModels,
    check_stamp,
    search_seconds,
    search_settings,
    single_settings,
)
from prixlm.files import read_json, write_atomically
from prixlm.kb.split import SplitConfig, split_kb, unseen_triples
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND, figures
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import (
    METHOD,
    GraphConfig,
    GraphRanker,
    load_graph,
    train_graph,
)
from prixlm.rankers.fusion import FusionConfig
from prixlm.rankers.heldout import (
    UNSEEN_SUBSETS,
    read_facts,
    unseen_facts,
)
from prixlm.rankers.lm import ModelRanker
from prixlm.rankers.pykeen import (
    MODELS,
    BaselineConfig,
    check_installed,
    load_baseline,
    train_baseline,
)
from prixlm.rankers.suite import UNTRAINED, make_suite
from prixlm.reports.kept import Kept
from prixlm.reports.plots import plot_curves
from prixlm.reports.ranker_results import (
    ALL,
    RankerResult,
    plot_results,
    write_results,
)
from prixlm.reports.ranks import column_of, write_ranks
from prixlm.training.pretrain import PretrainConfig, pretrain
from prixlm.types import Progress

logger = logging.getLogger(__name__)

PARTS = (
    *("checkpoints", "unseen-paper", "unseen-keep", "unseen-remove"),
    *("unseen-names", "unseen-graph"),
)
"""Parts of the table that are not rows: a curve, the paper's table of unseen entities, two of our
own, and the rows of these two that need neither a model nor a graph, or no model."""
PAPER_SUBSETS = (*UNSEEN_SUBSETS, "unseen in links, too")
"""Of the paper's unseen facts: all, which end is unseen, and those that no link names either."""
_UNSEEN_LINKS: tuple[Literal["keep", "remove"], ...] = ("keep", "remove")
"""What happens to the links of held-out entities."""
_TITLES = {
    "all": ALL_TITLE,
    "all-propagate": "Prix-LM (All), with carried facts",
    "single": "Prix-LM (Single), epochs of All",
    "single-early": "Prix-LM (Single), early stop",
    "single-searched": "Prix-LM (Single), searched",
}
_NAMES = {"complex": "ComplEx", "transe": "TransE", "rotate": "RotatE"}
"""Our graph embeddings, by their score."""


_PYKEEN = tuple(f"{name.lower()}-" for name in MODELS)
_SEARCHES: tuple[Literal["beam", "exact"], ...] = ("beam", "exact")
_SETTINGS: dict[str, Callable[[str], BaselineConfig]] = {
    "default": lambda name: BaselineConfig.default(name),
    "openke": lambda name: BaselineConfig.openke(name),
    "tuned": lambda name: BaselineConfig.tuned(name),
}
"""Settings of PyKEEN's models, by the key of their rows."""
_SETTING_TITLES = {"default": "PyKEEN's five epochs", "openke": "OpenKE's rounds"}
_FUSED = {
    "fused-untrained": (False, False, "fused: links, rules and names"),
    "fused-graph": (False, True, "fused, without Prix-LM"),
    "fused-model": (True, False, "fused, without the graph"),
    "fused": (True, True, "fused"),
}
"""Fusions by the key of their rows: whether Prix-LM and the graph take part, and the title. What
training adds is the last one's lead over the first."""
_ON_REQUEST = ("-openke", "-searched", "-softmax", "graph-single")
"""Parts of the keys of rows that take hours to weeks: they are made only if they are named."""


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
    search: SearchSpace = field(default_factory=SearchSpace)  # of the searched rows

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


class Reproduction:
    """The table of one KB in one folder: makes rows that are missing."""

    def __init__(
        self, kb: KB, to: Path, config: ReproduceConfig, progress: Progress | None = None
    ) -> None:
        self.kb, self.to, self.config, self.progress = kb, to, config, progress
        # METHOD tells how the graph embedding is trained: another one would be another row.
        settings = dataclasses.asdict(config)
        settings["graph"] = config.graph.as_dict() | {"method": METHOD}
        del settings["search"]  # a run is named by its settings, so a space may change
        del settings["fusion"]["l2"]  # unknown to older tables; the fusion keeps it
        check_stamp(to / "reproduce.json", {"kb": kb.fingerprint(), "config": settings}, to)
        self.models = TrainedModels(kb, to, progress)
        self.langs = [lang for lang in kb.languages if kb.num_triples(lang, "test")]
        if not self.langs or not kb.num_triples(split="valid"):
            raise PrixError(
                f"{kb.folder} has no test or no valid triples: make some with `prixlm split`."
            )
        # In the order of the table. Those in `by_language` have a model for each language.
        self.makers: dict[str, Callable[..., Made]] = {
            key: partial(untrained, kb, key) for key in UNTRAINED
        }
        self.by_language: set[str] = set()
        self._add_graphs()
        for kind in ("single", "single-early", "single-searched"):
            for search in _SEARCHES:
                self._add_single(f"{kind}-{search}", partial(self._single, kind, search))
        for kind in ("all", "all-propagate"):
            for search in _SEARCHES:
                self.makers[f"{kind}-{search}"] = partial(self._all, kind, search)
        for name, (model, graph, title) in _FUSED.items():
            folder = name.replace("fused", "fusion")
            self.makers[name] = partial(
                self._fused, model=model, graph=graph, name=folder, title=title
            )

    def _add_single(self, key: str, make: Callable[[str], Made]) -> None:
        """Add a row with a model for each language."""
        self.makers[key] = make
        self.by_language.add(key)

    def _add_graphs(self) -> None:
        """Add the rows that learn from the graph alone."""
        self.makers["graph"] = self._graph
        self._add_single("graph-single", partial(self._searched_graph, "complex", "graph-single"))
        for name in MODELS:
            model = name.lower()
            for setting in _SETTINGS:
                self._add_single(f"{model}-{setting}", partial(self._baseline, name, setting))
            self._add_single(f"{model}-searched", partial(self._searched_baseline, name))
            if name == "ComplEx":  # with a softmax, these are `graph` and `graph-single`
                continue
            self.makers[f"{model}-merged"] = partial(self._merged, name)
            key = f"{model}-softmax"
            self._add_single(key, partial(self._searched_graph, model, key))
            self.makers[f"{key}-merged"] = partial(self._searched_graph, model, f"{key}-merged")

    @property
    def usual_keys(self) -> list[str]:
        """The rows that are made if none is named: those that take minutes to hours."""
        return [key for key in self.makers if not any(part in key for part in _ON_REQUEST)]

    def row(self, key: str, langs: Sequence[str] | None = None) -> RankerResult:
        """Return a row of the table, from its file or made now.

        langs: of a row with a model for each language, make these only.
        """
        if key not in self.makers:
            raise PrixError(f"row {key}: expected one of {', '.join((*self.makers, *PARTS))}.")
        path = self.to / "rows" / f"{key}.json"
        if path.exists():
            return RankerResult.load(path)
        if key in self.by_language:
            return self._row_by_language(key, langs or self.langs)
        if langs is not None:
            raise PrixError(f"row {key} has one model of all languages: leave out --langs.")
        logger.info("row %s", key)
        # The ranks are written first: a row that has a JSON file is complete.
        facts = [read_facts(self.kb, lang) for lang in self.langs]
        result = self.makers[key]().rank(self.kb, facts, path.with_suffix(".parquet"))
        result.save(path)
        return result

    def _row_by_language(self, key: str, langs: Sequence[str]) -> RankerResult:
        """Make the row of some languages, one after another, each with a file of its own."""
        unknown = sorted(set(langs) - set(self.langs))
        if unknown:
            raise PrixError(f"{self.kb.folder} has no test triples in {', '.join(unknown)}.")
        folder = self.to / "rows" / key
        for lang in langs:
            if not (folder / f"{lang}.json").exists():
                logger.info("row %s, %s", key, lang)
                made = self.makers[key](lang)
                facts = [read_facts(self.kb, lang)]
                made.rank(self.kb, facts, folder / f"{lang}.parquet").save(folder / f"{lang}.json")
        result = self._finished_part(key)
        assert result is not None
        if len(result.figures) == len(self.langs):
            parts = [pq.read_table(folder / f"{lang}.parquet") for lang in self.langs]
            write_ranks(pa.concat_tables(parts), folder.with_suffix(".parquet"))
            result.save(folder.with_suffix(".json"))
        return result

    def _finished_part(self, key: str) -> RankerResult | None:
        """Return the languages of a row that are finished, joined; None if none is."""
        paths = [self.to / "rows" / key / f"{lang}.json" for lang in self.langs]
        parts = [RankerResult.load(path) for path in paths if path.exists()]
        if not parts:
            return None
        return dataclasses.replace(
            parts[0],
            figures={lang: one for part in parts for lang, one in part.figures.items()},
            training_seconds=sum(part.training_seconds or 0.0 for part in parts),
            ranking_seconds=sum(part.ranking_seconds or 0.0 for part in parts),
        )

    def finished_rows(self) -> list[RankerResult]:
        """Return the rows that have a file, or files of some languages, in the table's order."""
        found = []
        for key in self.makers:
            is_whole = (self.to / "rows" / f"{key}.json").exists()
            result = self.row(key) if is_whole else self._finished_part(key)
            found += [] if result is None else [result]
        return found

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

    def _all(self, kind: str, search: Literal["beam", "exact"]) -> Made:
        """Return a Prix-LM of all languages."""
        return self._asked(self.models.prix_lm(kind, self._settings(kind, None)), kind, search)

    def _single(self, kind: str, search: Literal["beam", "exact"], lang: str) -> Made:
        """Return the Prix-LM of one language."""
        if kind != "single-searched":
            run = self.models.prix_lm(kind, self._settings(kind, lang), lang)
            return self._asked(run, kind, search)
        # Both searches share the model: it is searched by the exact one, which has an MRR.
        folder = self.models.searched(kind, lang)
        candidates = self.config.search.singles(self._settings(kind, lang))

        def measure(settings: PretrainConfig, to: Path) -> float:
            pretrain(self.kb, to, settings, self.progress)
            made = self._asked(Run(to.name, to), kind, "exact")
            return self._valid_mrr(made.ranker, [lang], self.config.beyond)

        best = search_settings(folder, candidates, measure)
        made = self._asked(Run(best, folder / best), kind, search)
        return dataclasses.replace(made, seconds=search_seconds(folder))

    def _asked(self, run: Run, kind: str, search: Literal["beam", "exact"]) -> Made:
        """Return a Prix-LM as a ranker that is searched by a beam, or exactly."""
        completer = Completer(run.folder, self.kb, self.progress)
        title = f"{_TITLES[kind]}, {search}"
        ranker = ModelRanker(completer, search=search, name=title, progress=self.progress)
        if search == "beam":
            return Made(ranker, run.seconds, f"beam K = {ranker.beam}")
        return Made(ranker, run.seconds, limit=self.config.beyond)

    def _valid_mrr(self, ranker: Ranker, langs: Sequence[str], beyond: int = BEYOND) -> float:
        """Return the MRR of a sample of valid facts, as a mean over languages."""
        found = []
        for lang in langs:
            facts = read_facts(self.kb, lang, "valid", most=self.config.search.facts)
            ranks = ranker.ranks(facts.queries, facts.objects, beyond)
            found.append(figures(ranks, beyond).mrr)
        return float(np.mean(found))

    def _searched_graph(self, score: str, key: str, lang: str | None = None) -> Made:
        """Return a graph embedding of ours, of one language or merged, with searched settings."""
        langs = None if lang is None else (lang,)
        base = dataclasses.replace(self.config.graph, score=score, langs=langs, relations=0.0)
        folder = self.models.searched(key, lang)
        title = f"{_NAMES[score]}, softmax, {'merged graph' if lang is None else 'one language'}"

        def measure(config: GraphConfig, to: Path) -> float:
            model = train_graph(self.kb, to, config, self.progress)
            return self._valid_mrr(GraphRanker(self.kb, model), langs or self.langs)

        best = search_settings(folder, self.config.search.graphs(base), measure)
        model = load_graph(folder / best, self.kb)
        return Made(GraphRanker(self.kb, model, name=f"{title} (ours)"), search_seconds(folder))

    def _searched_baseline(self, name: str, lang: str) -> Made:
        """Return a PyKEEN model of one language with searched settings."""
        folder = self.models.searched(f"{name.lower()}-searched", lang)
        grid = {_describe(config): config for config in BaselineConfig.grid(name)}

        def measure(config: BaselineConfig, to: Path) -> float:
            ranker = train_baseline(self.kb, to, config, lang, self.progress)
            return self._valid_mrr(ranker, [lang])

        best = search_settings(folder, grid, measure)
        ranker = load_baseline(self.kb, folder / best)
        ranker.name = f"{name}, searched"
        return Made(ranker, search_seconds(folder))

    def _graph(self) -> Made:
        model, seconds = self.models.graph(self.config.graph)
        return Made(GraphRanker(self.kb, model, name="ComplEx, merged graph (ours)"), seconds)

    def _baseline(self, name: str, setting: str, lang: str) -> Made:
        """Return a PyKEEN model of one language."""
        ranker, seconds = self.models.baseline(_SETTINGS[setting](name), setting, lang)
        ranker.name = f"{name}, {_SETTING_TITLES.get(setting, setting)}"
        return Made(ranker, seconds)

    def _merged(self, name: str) -> Made:
        """Return a PyKEEN model of the graph of all languages."""
        ranker, seconds = self.models.baseline(BaselineConfig.tuned(name), "merged")
        ranker.name = f"{name}, merged graph"
        return Made(ranker, seconds)

    def _fused(self, *, model: bool, graph: bool, name: str, title: str) -> Made:
        """Return links, rules and names together, with Prix-LM and the graph if they take part.

        Its training time is all of theirs.
        """
        made = {"model": self._all("all-propagate", "exact")} if model else {}
        made |= {"graph": self._graph()} if graph else {}
        trained = {name: one.ranker for name, one in made.items()}
        rankers = make_suite(self.kb, trained.get("model"), trained.get("graph")).rankers
        langs = [lang for lang in self.langs if self.kb.num_triples(lang, "valid")]
        # Languages without valid facts cannot be fitted, but are ranked.
        fusion = self.models.fusion(rankers, self.config.fusion, langs, name)
        fusion.name = title
        return Made(fusion, fusion.seconds + sum(one.seconds or 0.0 for one in made.values()))

    def checkpoints(self) -> dict[str, list[tuple[int, float]]]:
        """Return Hits@10 by language at every checkpoint of All (the paper's figure)."""
        path = self.to / "checkpoints.json"
        if path.exists():
            saved: dict[str, list[tuple[int, float]]] = read_json(path)
            return saved
        run = self.models.prix_lm("all", self._settings("all", None))
        most = self.config.curve_facts
        facts = [read_facts(self.kb, lang, most=most) for lang in self.langs]

        def measure(step: int) -> dict[str, float]:
            # A beam is enough for Hits@10, and fast enough for every checkpoint.
            model = Completer(run.at_step(step).folder, self.kb, self.progress)
            table = rank_facts(self.kb, ModelRanker(model, search="beam"), facts)
            return {lang: parts[ALL].hits_10 for lang, parts in figures_by_language(table).items()}

        # Each checkpoint is written when it is measured.
        kept = Kept(self.to / "checkpoints-parts.jsonl")
        curves: dict[str, list[tuple[int, float]]] = {lang: [] for lang in self.langs}
        for step in run.steps:
            for lang, value in kept.get((str(step),), partial(measure, step)).items():
                curves[lang].append((step, 100 * value))
        write_atomically(path, json.dumps(curves, indent=1) + "\n")
        kept.remove()
        return curves

    def unseen_paper(self) -> list[RankerResult]:
        """Return the figures of the finished rows on the test facts with an unseen entity.

        As in the paper (Sec. 3.6): the same split and models as in the table, whose ranks are read
        again, and the facts whose subject or object train lacks. Nothing, if there are none.
        """
        unseen = _unseen_ends(self.kb)
        if not len(unseen):
            return []
        self.row("all-beam")  # the paper's row
        results = []
        keys = ["subject", "relation", "object"]
        for key in self.makers:
            path = self.to / "rows" / f"{key}.json"
            ranked = path.with_suffix(".parquet")
            if not path.exists() or not ranked.exists():
                continue
            ranks = pq.read_table(ranked, columns=["lang", *keys, "rank"])
            table = ranks.join(unseen, keys, join_type="inner").sort_by("lang")
            row = RankerResult.load(path)
            figures = figures_by_language(table, row.max_rank, PAPER_SUBSETS)
            results.append(dataclasses.replace(row, figures=figures))
        return results

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
            makers = self._unseen_rows(TrainedModels(kb, folder, self.progress)).makers()
            for key in missing:
                logger.info("row %s, links %s", key, links)
                path = folder / f"{key}.parquet"
                result = makers[key]().rank(kb, facts, path, UNSEEN_SUBSETS)
                title = f"{result.title}, links {'kept' if links == 'keep' else 'removed'}"
                dataclasses.replace(result, title=title).save(folder / f"{key}.json")
        finished = (folder / f"{key}.json" for key in UNSEEN_ROWS)
        return [RankerResult.load(path) for path in finished if path.exists()]

    def _unseen_rows(self, models: TrainedModels) -> UnseenRows:
        """Return the rankers of a split; its models are its own: the table's know its entities."""
        config, kb = self.config, models.kb
        return UnseenRows(
            models=models,
            pretrain=dataclasses.replace(config.pretrain, epochs=config.unseen_epochs),
            graph=dataclasses.replace(config.graph, epochs=config.unseen_graph_epochs),
            fusion=config.fusion,
            langs=[lang for lang in self.langs if kb.num_triples(lang, "valid")],
        )


def _describe(config: BaselineConfig) -> str:
    """Return the settings of a PyKEEN model that a grid varies, as the name of a folder."""
    parts = {"epochs": config.epochs, "rate": config.lr, "margin": config.margin}
    if config.penalty is not None:
        parts["penalty"] = config.penalty
    return "-".join(f"{name}-{value:g}" for name, value in parts.items())


def _unseen_ends(kb: KB) -> pa.Table:
    """Return the test triples with an end that train lacks, and whether they are in each subset."""
    table = unseen_triples(kb, links=False)
    keys = ["subject", "relation", "object"]
    # Those that stay unseen if an entity of a link counts as seen: the model has read its name.
    nowhere = unseen_triples(kb, links=True).select(keys)
    nowhere = nowhere.append_column("nowhere", pa.array(np.ones(len(nowhere), bool)))
    table = table.select([*keys, "object_unseen"]).join(nowhere, keys)
    object_unseen = table["object_unseen"].to_numpy()
    in_no_link = table["nowhere"].fill_null(False).to_numpy()
    masks = (np.ones(len(table), bool), ~object_unseen, object_unseen, in_no_link)
    columns = {column_of(name): mask for name, mask in zip(PAPER_SUBSETS, masks, strict=True)}
    return pa.table({name: table[name] for name in keys} | columns)


def reproduce_lp(
    kb: KB,
    to: Path | str,
    config: ReproduceConfig | None = None,
    rows: Sequence[str] | None = None,
    progress: Progress | None = None,
    *,
    langs: Sequence[str] | None = None,
) -> list[RankerResult]:
    """Make the rows and parts that are asked for, or all usual ones, and write table and plot.

    langs: of rows with a model for each language, make these only; the others can follow.
    Returns the rows that were asked for or, if only parts were, those of the unseen entities.
    Refuses `unseen-paper` alone if train has every entity of test.
    """
    if rows is not None and not rows:
        raise PrixError("--rows names no row: leave it out for all rows.")
    to = Path(to)
    table = Reproduction(kb, to, config or ReproduceConfig(), progress)
    wanted = [*table.usual_keys, *PARTS] if rows is None else list(rows)
    if langs is not None and rows is None:
        raise PrixError("--langs requires --rows: name rows that have a model for each language.")
    if any(key.startswith(_PYKEEN) and "-softmax" not in key for key in wanted):
        check_installed()
    results = [table.row(key, langs) for key in wanted if key not in PARTS]
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
        keys = UNSEEN_GRAPH if "unseen-graph" in wanted else keys
        unseen += table.unseen(links, UNSEEN_ROWS if f"unseen-{links}" in wanted else keys)
    is_known = (to / "rows" / "all-beam.json").exists()
    paper = table.unseen_paper() if is_known or "unseen-paper" in wanted else []
    if rows is not None and "unseen-paper" in rows and not paper:
        raise PrixError(
            f"train has every entity of the test facts of {kb.folder}: draw the paper's split with "
            "`prixlm split KB --resplit --to SPLIT`, and name another folder for its table."
        )
    sections = {
        "Link prediction": finished,
        "Unseen entities, as in the paper": paper,
        "Unseen entities": unseen,
    }
    write_results(to, {title: part for title, part in sections.items() if part})
    if finished:
        plot_results(finished, to / "table.png")
    return results or (paper if "unseen-paper" in wanted else unseen)
