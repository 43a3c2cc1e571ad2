"""The paper's link-prediction table, every row, by one call (Sec. 3.2).

    reproduce_lp(KB("dbp5l"), "table", ReproduceConfig())

Each step writes its output into the folder and is skipped when that is there, so a run that was
stopped goes on, and a folder can be finished over several days:

    models/   Prix-LM: all, all-propagate, single/LANG, single-early/LANG     graph/   our ComplEx
    baselines/MODEL-HOW/LANG or merged     fusion/     unseen/   the held-out-entity splits
    rows/KEY.json and KEY.parquet          a row's figures, and the rank of every fact
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
from typing import Any

import numpy as np

from prixlm.config import differing
from prixlm.decoding.completer import Completer
from prixlm.errors import PrixError
from prixlm.evaluation.link_prediction import figures_by_language, rank_facts, write_ranks
from prixlm.files import write_atomically
from prixlm.kb.split import SplitConfig, split_kb, unseen_triples
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND
from prixlm.rankers.base import PerLanguage, Ranker
from prixlm.rankers.complex import METHOD, GraphConfig, GraphRanker, train_graph
from prixlm.rankers.fusion import Fusion, FusionConfig
from prixlm.rankers.heldout import HeldOut, read_facts
from prixlm.rankers.links import Transfer
from prixlm.rankers.lm import ModelRanker
from prixlm.rankers.pykeen import (
    MODELS,
    BaselineConfig,
    check_installed,
    load_baseline,
    train_baseline,
)
from prixlm.rankers.rules import Rules
from prixlm.reports.plots import plot_curves
from prixlm.reports.tables import Row, load_row, plot_rows, save_row, write_table
from prixlm.training.checkpoints import checkpoint_folder, checkpoint_steps, training_seconds
from prixlm.training.pretrain import PretrainConfig, pretrain
from prixlm.types import Progress

logger = logging.getLogger(__name__)

PARTS = ("checkpoints", "unseen-keep", "unseen-remove")
"""What belongs to the table and is no row of it: a curve, and two tables of their own."""
UNSEEN_SUBSETS = ("all", "only the subject unseen", "the object unseen")


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    """What the table is made of; the defaults are for DBP-5L on two cores."""

    pretrain: PretrainConfig = field(default_factory=lambda: PretrainConfig.preset("compact"))
    propagate_epochs: int = 6  # of All with carried facts: about as many facts in all
    single_epochs: int = 30  # at most, of Single with early stopping
    patience: int = 3  # validations without a better one before Single stops
    graph: GraphConfig = field(default_factory=GraphConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    beyond: int = 100  # up to here Prix-LM's exact ranks are found; those beyond count as 0
    curve_facts: int = 200  # test facts of each language at each checkpoint
    unseen: float = 0.05  # share of the concepts held out in the unseen-entities table
    unseen_epochs: int = 3
    unseen_graph_epochs: int = 5  # of ComplEx there, which cannot answer

    def __post_init__(self) -> None:
        counts = (self.propagate_epochs, self.single_epochs, self.patience, self.beyond)
        epochs = (self.unseen_epochs, self.unseen_graph_epochs)
        if min(*counts, *epochs, self.curve_facts) < 1 or not 0 < self.unseen < 1:
            raise PrixError("counts are 1 or more, and unseen is a share between 0 and 1.")

    @classmethod
    def of_base(cls, base: str) -> "ReproduceConfig":
        """The settings for a model to start from: the paper's, unless it is `compact`."""
        if base == "compact":
            return cls()
        paper = dataclasses.replace(PretrainConfig(), base=base)
        return cls(
            pretrain=paper,
            propagate_epochs=paper.epochs,
            single_epochs=3 * paper.epochs,
            unseen_epochs=paper.epochs,
        )


Made = tuple[Ranker, float | None]
"""A ranker, and the seconds its training took."""


class Reproduction:
    """One folder, one KB: makes what is missing."""

    def __init__(
        self, kb: KB, to: Path, config: ReproduceConfig, progress: Progress | None = None
    ) -> None:
        self.kb, self.to, self.config, self.progress = kb, to, config, progress
        _check_folder(to, kb, config)
        self.langs = [lang for lang in kb.languages if kb.num_triples(lang, "test")]
        if not self.langs or not kb.num_triples(split="valid"):
            raise PrixError(
                f"{kb.folder} has no test or no valid triples: make some with `prixlm split`."
            )
        self.makers: dict[str, Callable[[], Made]] = {
            "usual": lambda: (Transfer(kb, "usual"), None),
            "direct": lambda: (Transfer(kb, "direct"), None),
            "lookup": lambda: (Transfer(kb, "lookup"), None),
            "pairs": lambda: (Transfer(kb), None),
            "paths": lambda: (Rules(kb, "paths"), None),
            "similar": lambda: (Rules(kb), None),
            "graph": self._graph,
        }
        for name in MODELS:
            for how in ("default", "tuned"):
                self.makers[f"{name.lower()}-{how}"] = partial(self._baselines, name, how)
            if name != "ComplEx":  # on the merged graph that is `graph`, trained as it should be
                self.makers[f"{name.lower()}-merged"] = partial(self._merged, name)
        for kind in ("single", "single-early", "all", "all-propagate"):
            for search in ("beam", "exact"):
                self.makers[f"{kind}-{search}"] = partial(self._prix, kind, search)
        self.makers["fused"] = self._fused

    def row(self, key: str) -> Row:
        """A row of the table, from its file or made now."""
        if key not in self.makers:
            raise PrixError(f"row {key}: expected one of {', '.join((*self.makers, *PARTS))}.")
        path = self.to / "rows" / f"{key}.json"
        if path.exists():
            return load_row(path)
        logger.info("row %s", key)
        ranker, training = self.makers[key]()
        how, beyond = "exact", BEYOND
        if key.endswith("-beam"):
            how, beyond = "beam K = 50, to rank 10", 10
        elif key.endswith("-exact"):
            how, beyond = f"exact, to rank {self.config.beyond}", self.config.beyond
        facts = [read_facts(self.kb, lang) for lang in self.langs]
        started = time.monotonic()
        table = rank_facts(self.kb, ranker, facts, beyond=beyond)
        seconds = time.monotonic() - started
        row = Row(ranker.name, figures_by_language(table, beyond), how, training, seconds)
        write_ranks(table, path.with_suffix(".parquet"))
        save_row(row, path)
        return row

    def _model(self, kind: str, lang: str | None = None) -> tuple[Path, float | None]:
        """The folder of a Prix-LM, pretrained now if it is not there."""
        folder = self.to / "models" / kind
        folder = folder / lang if lang else folder
        # A finished run is only looked at: that it is of this KB and these settings.
        pretrain(self.kb, folder, self._settings(kind, lang), self.progress)
        return folder, training_seconds(folder)

    def _settings(self, kind: str, lang: str | None) -> PretrainConfig:
        config = self.config.pretrain
        supply, training = config.supply, config.training
        if lang is not None:
            supply = dataclasses.replace(supply, langs=(lang,))
        epochs = config.epochs
        if kind == "all-propagate":
            supply = dataclasses.replace(supply, propagate=True)
            epochs = self.config.propagate_epochs
        if kind == "single-early":
            epochs = self.config.single_epochs
            every = max(1, self.kb.num_triples(lang, "train") * 2 // config.batch)
            training = dataclasses.replace(
                training, patience=self.config.patience, validate_every=every, checkpoints=(1.0,)
            )
        return dataclasses.replace(config, supply=supply, training=training, epochs=epochs)

    def _prix(self, kind: str, search: Any) -> Made:
        titles = {
            "all": "Prix-LM (All)",
            "all-propagate": "Prix-LM (All), with carried facts",
            "single": "Prix-LM (Single), epochs of All",
            "single-early": "Prix-LM (Single), early stop",
        }
        title = f"{titles[kind]}, {search}"
        options = {"search": search, "name": title, "progress": self.progress}
        if kind.startswith("all"):
            folder, seconds = self._model(kind)
            return ModelRanker(Completer(folder, self.kb, self.progress), **options), seconds
        models = {lang: self._model(kind, lang) for lang in self.langs}
        rankers = {
            lang: ModelRanker(Completer(folder, self.kb, self.progress), **options)
            for lang, (folder, _) in models.items()
        }
        return PerLanguage(title, rankers), sum(seconds or 0.0 for _, seconds in models.values())

    def _graph(self) -> Made:
        folder = self.to / "graph"
        model = train_graph(self.kb, folder, self.config.graph, self.progress)
        ranker = GraphRanker(self.kb, model, name="ComplEx, merged graph (ours)")
        return ranker, training_seconds(folder)

    def _baseline(self, folder: Path, config: BaselineConfig, lang: str | None) -> Made:
        if not (folder / "baseline.json").exists():
            train_baseline(self.kb, folder, config, lang, self.progress)
        settings = json.loads((folder / "baseline.json").read_text("utf-8"))
        return load_baseline(self.kb, folder), float(settings["seconds"])

    def _baselines(self, name: str, how: str) -> Made:
        config = BaselineConfig.default(name) if how == "default" else BaselineConfig.tuned(name)
        folder = self.to / "baselines" / f"{name.lower()}-{how}"
        made = {lang: self._baseline(folder / lang, config, lang) for lang in self.langs}
        title = f"{name}, {how}"
        rankers = {lang: ranker for lang, (ranker, _) in made.items()}
        return PerLanguage(title, rankers), sum(seconds or 0.0 for _, seconds in made.values())

    def _merged(self, name: str) -> Made:
        folder = self.to / "baselines" / f"{name.lower()}-merged"
        ranker, seconds = self._baseline(folder, BaselineConfig.tuned(name), None)
        ranker.name = f"{name}, merged graph"
        return ranker, seconds

    def _fused(self) -> Made:
        """The model, the links and the graph together; its training time is all of theirs."""
        model, first = self._prix("all-propagate", "exact")
        graph, second = self._graph()
        links = [Transfer(self.kb), Transfer(self.kb, "lookup")]
        rankers = [model, *links, Rules(self.kb, "paths"), Rules(self.kb), graph]
        folder = self.to / "fusion"
        if not (folder / "fusion.json").exists():
            langs = [lang for lang in self.langs if self.kb.num_triples(lang, "valid")]
            Fusion.fit(self.kb, rankers, self.config.fusion, langs, self.progress).save(folder)
        fusion = Fusion.load(self.kb, rankers, folder)
        return fusion, (first or 0.0) + (second or 0.0) + fusion.seconds

    def checkpoints(self) -> dict[str, list[tuple[int, float]]]:
        """Hits@10 by language at every kept checkpoint of All (the paper's figure)."""
        path = self.to / "checkpoints.json"
        if path.exists():
            found: dict[str, list[tuple[int, float]]] = json.loads(path.read_text("utf-8"))
            return found
        folder, _ = self._model("all")
        most = self.config.curve_facts
        facts = [read_facts(self.kb, lang, most=most) for lang in self.langs]
        curves: dict[str, list[tuple[int, float]]] = {lang: [] for lang in self.langs}
        for step in checkpoint_steps(folder):
            model = Completer(checkpoint_folder(folder, step), self.kb, self.progress)
            table = rank_facts(self.kb, ModelRanker(model, search="beam"), facts)
            for lang, parts in figures_by_language(table).items():
                curves[lang].append((step, 100 * parts["all"].hits_10))
        write_atomically(path, json.dumps(curves, indent=1) + "\n")
        return curves

    def unseen(self, links: Any) -> list[Row]:
        """Facts of held-out entities, their links kept or removed: the model and its rivals."""
        folder = self.to / "unseen" / links
        path = folder / "rows.json"
        if path.exists():
            return [load_row(folder / f"{key}.json") for key in json.loads(path.read_text("utf-8"))]
        if not (folder / "kb").is_dir():
            config = SplitConfig(unseen=self.config.unseen, links=links, resplit=True)
            split_kb(self.kb, folder / "kb", config)
        kb = KB(folder / "kb")
        facts = unseen_facts(kb, self.langs)
        if not facts:
            raise PrixError(f"no test fact of {kb.folder} has an unseen entity: hold out more.")
        made = self._unseen_rankers(kb, folder)
        rows = []
        for key, (ranker, seconds) in made.items():
            beyond = 10 if key == "model" else BEYOND
            how = "beam K = 50, to rank 10" if key == "model" else "exact"
            table = rank_facts(kb, ranker, facts, beyond=beyond)
            title = f"{ranker.name}, links {'kept' if links == 'keep' else 'removed'}"
            figures = figures_by_language(table, beyond, UNSEEN_SUBSETS)
            rows.append(Row(title, figures, how, seconds))
            write_ranks(table, folder / f"{key}.parquet")
            save_row(rows[-1], folder / f"{key}.json")
        write_atomically(path, json.dumps(list(made)) + "\n")
        return rows

    def _unseen_rankers(self, kb: KB, folder: Path) -> dict[str, Made]:
        """What can be asked of things that training has not seen, and what cannot answer."""
        config = dataclasses.replace(self.config.graph, epochs=self.config.unseen_graph_epochs)
        graph = train_graph(kb, folder / "graph", config, self.progress)
        settings = dataclasses.replace(self.config.pretrain, epochs=self.config.unseen_epochs)
        pretrain(kb, folder / "model", settings, self.progress)
        completer = Completer(folder / "model", kb, self.progress)
        model = ModelRanker(completer, search="beam", name="Prix-LM (All)", progress=self.progress)
        return {
            "usual": (Transfer(kb, "usual"), None),
            "pairs": (Transfer(kb), None),
            "graph": (GraphRanker(kb, graph), training_seconds(folder / "graph")),
            "model": (model, training_seconds(folder / "model")),
        }


def _check_folder(to: Path, kb: KB, config: ReproduceConfig) -> None:
    """One folder is one KB and one configuration: rows of others would stand beside each other."""
    path = to / "reproduce.json"
    mine = {"kb": kb.fingerprint(), "config": json.loads(json.dumps(dataclasses.asdict(config)))}
    mine["config"]["graph"]["method"] = METHOD
    if path.exists():
        other = json.loads(path.read_text("utf-8"))
        if other != mine:
            names = ", ".join(differing(other.get("config", {}), mine["config"]))
            what = "of another KB" if other.get("kb") != mine["kb"] else f"with other {names}"
            raise PrixError(f"{to} was made {what}: name another folder.")
        return
    to.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(mine, indent=1) + "\n")


def unseen_facts(kb: KB, langs: Sequence[str]) -> list[HeldOut]:
    """The test facts whose subject or object no train triple has, and those of either kind.

    They are told apart because a guess by frequency can only be right where the object is known.
    """
    table = unseen_triples(kb, links=False)
    keys = _keys(*(table[name].to_numpy() for name in ("subject", "relation", "object")))
    order = np.argsort(keys)
    known_object = ~table["object_unseen"].to_numpy(zero_copy_only=False)[order]
    found = []
    for lang in langs:
        if not kb.num_triples(lang, "test"):
            continue
        facts = read_facts(kb, lang)
        mine = _keys(facts.queries.subject, facts.queries.relation, facts.objects)
        rows = np.flatnonzero(np.isin(mine, keys))
        if len(rows):
            known = known_object[np.searchsorted(keys, mine[rows], sorter=order)]
            parts = (np.ones(len(rows), bool), known, ~known)
            subsets = dict(zip(UNSEEN_SUBSETS, parts, strict=True))
            found.append(dataclasses.replace(facts.select(rows), subsets=subsets))
    return found


def _keys(subject: Any, relation: Any, object_: Any) -> np.ndarray[Any, Any]:
    """One value for each fact: its three numbers."""
    parts = np.stack([np.asarray(x, np.int64) for x in (subject, relation, object_)], axis=1)
    return np.ascontiguousarray(parts).view([("", np.int64)] * 3).reshape(-1)


def reproduce_lp(
    kb: KB,
    to: Path | str,
    config: ReproduceConfig | None = None,
    rows: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """The rows and parts that are asked for, or all; written as a table with a plot.

    Returns the rows, or where only parts are asked for, those of the unseen entities.
    """
    to = Path(to)
    work = Reproduction(kb, to, config or ReproduceConfig(), progress)
    wanted = [*work.makers, *PARTS] if rows is None else list(rows)
    if any(key.startswith(tuple(name.lower() for name in MODELS)) for key in wanted):
        check_installed()
    found = [work.row(key) for key in wanted if key not in PARTS]
    if "checkpoints" in wanted:
        plot_curves(
            {
                name: [(float(x), y) for x, y in points]
                for name, points in work.checkpoints().items()
            },
            to / "checkpoints.png",
            "Hits@10 (%)",
            "Link prediction over checkpoints",
        )
    made = [work.row(key) for key in work.makers if (to / "rows" / f"{key}.json").exists()]
    unseen = [
        row
        for links in ("keep", "remove")
        if f"unseen-{links}" in wanted or (to / "unseen" / links / "rows.json").exists()
        for row in work.unseen(links)
    ]
    tables = {"Link prediction": made, "Unseen entities": unseen}
    write_table(to, {title: part for title, part in tables.items() if part})
    if made:
        plot_rows(made, to / "table.png")
    return found or unseen
