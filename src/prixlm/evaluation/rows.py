"""What makes a row of the link-prediction table: a ranker that is ready, and its ranks.

    made = Made(RelatedPairs(kb, ("train",)))
    result = made.rank(kb, facts, Path("table/rows/pairs.parquet"))

`UnseenRows` makes the rankers of the tables of unseen entities, whose models are of their own. The
rows of the main table are in `reproduce`.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.decoding.completer import Completer
from prixlm.evaluation.link_prediction import figures_by_language, rank_facts
from prixlm.evaluation.trained import TrainedModels
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import ComplEx, GraphConfig, GraphRanker
from prixlm.rankers.fusion import FusionConfig
from prixlm.rankers.heldout import SUBSETS, HeldOut
from prixlm.rankers.lm import ModelRanker
from prixlm.rankers.names import OpenWorldRanker
from prixlm.rankers.suite import UNTRAINED, make_suite
from prixlm.reports.ranker_results import RankerResult, describe_ranks
from prixlm.reports.ranks import write_ranks
from prixlm.training.pretrain import PretrainConfig

UNSEEN_NAMES = ("usual", "pairs", "similar-names", "shared-names", "new-objects", "fused")
UNSEEN_GRAPH = (*UNSEEN_NAMES, "graph", "open-world", "fused-graph")
UNSEEN_ROWS = (
    *(*UNSEEN_NAMES[:-1], "graph", "open-world", "model"),
    *("fused", "fused-graph", "fused-all"),
)
"""Rows of the tables of unseen entities: without a model or a graph, without a model, and all in
their order."""
_SECONDS = b"seconds"
"""Metadata of a file of ranks: how long they took."""
ALL_TITLE = "Prix-LM (All)"


@dataclass(frozen=True)
class Made:
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
        # Each language is written when it is ranked, so that a row can be resumed.
        parts = path.with_suffix(".partial")
        tables = [_rank_language(kb, self.ranker, part, max_rank, parts) for part in facts]
        table, ranking = pa.concat_tables(tables), sum(map(_seconds, tables))
        write_ranks(table.replace_schema_metadata(None), path)
        shutil.rmtree(parts)
        figures = figures_by_language(table, max_rank, subsets)
        how = describe_ranks(max_rank, self.search)
        return RankerResult(self.ranker.name, figures, how, self.seconds, ranking, max_rank)


def _rank_language(kb: KB, ranker: Ranker, facts: HeldOut, max_rank: int, folder: Path) -> pa.Table:
    """Rank the facts of one language, or read the ranks that an interrupted run wrote."""
    path = folder / f"{facts.queries.lang}.parquet"
    if not path.exists():
        # Ranking is timed alone: loading and training have happened before.
        started = time.monotonic()
        table = rank_facts(kb, ranker, [facts], beyond=max_rank)
        seconds = {_SECONDS: str(time.monotonic() - started).encode()}
        write_ranks(table.replace_schema_metadata(seconds), path)
    return pq.read_table(path)


def _seconds(table: pa.Table) -> float:
    """Return how long it took to rank the facts of a language."""
    return float((table.schema.metadata or {}).get(_SECONDS, b"0"))


def untrained(kb: KB, key: str) -> Made:
    """Return a ranker that needs no training."""
    return Made(UNTRAINED[key](kb, ("train",)))


@dataclass(frozen=True, kw_only=True)
class UnseenRows:
    """Rankers of a split with unseen entities: those that can answer, and ComplEx, which cannot."""

    models: TrainedModels
    pretrain: PretrainConfig
    graph: GraphConfig
    fusion: FusionConfig
    langs: Sequence[str]  # with valid facts: those of other concepts that train has not seen

    def makers(self) -> dict[str, Callable[[], Made]]:
        """Return what makes each row."""
        makers: dict[str, Callable[[], Made]] = {
            key: partial(untrained, self.models.kb, key) for key in UNTRAINED
        }
        makers |= {"graph": self._graph, "open-world": self._open_world, "model": self._prix_lm}
        fused = {"fused": self._fused, "fused-graph": self._fused_graph}
        return makers | fused | {"fused-all": self._fused_all}

    def _embedding(self) -> tuple[ComplEx, float | None]:
        return self.models.graph(self.graph)

    def _graph(self) -> Made:
        model, seconds = self._embedding()
        return Made(GraphRanker(self.models.kb, model), seconds)

    def _open_world(self) -> Made:
        model, seconds = self._embedding()
        return Made(OpenWorldRanker(self.models.kb, model), seconds)

    def _decoder(self) -> tuple[ModelRanker, float | None]:
        run, progress = self.models.unseen_prix_lm(self.pretrain), self.models.progress
        completer = Completer(run.folder, self.models.kb, progress)
        ranker = ModelRanker(completer, search="beam", name=ALL_TITLE, progress=progress)
        return ranker, run.seconds

    def _prix_lm(self) -> Made:
        model, seconds = self._decoder()
        return Made(model, seconds, f"beam K = {model.beam}")

    def _fused(self) -> Made:
        rankers = make_suite(self.models.kb).rankers
        fusion = self.models.fusion(rankers, self.fusion, self.langs)
        fusion.name = "fused: links, rules and names"
        return Made(fusion, fusion.seconds)

    def _fused_graph(self) -> Made:
        model, seconds = self._embedding()
        open_world = OpenWorldRanker(self.models.kb, model)
        rankers = make_suite(self.models.kb, open_world=open_world).rankers
        fusion = self.models.fusion(rankers, self.fusion, self.langs, "fusion-graph")
        fusion.name = "fused: links, rules, names and new objects by the graph"
        return Made(fusion, None if seconds is None else seconds + fusion.seconds)

    def _fused_all(self) -> Made:
        kb = self.models.kb
        model, of_graph = self._embedding()
        ranker, of_model = self._decoder()
        graph, open_world = GraphRanker(kb, model), OpenWorldRanker(kb, model)
        rankers = make_suite(kb, ranker, graph, open_world=open_world).rankers
        fusion = self.models.fusion(rankers, self.fusion, self.langs, "fusion-all")
        fusion.name = "fused: all of these"
        spent = (fusion.seconds, of_graph, of_model)
        return Made(fusion, None if None in spent else sum(filter(None, spent)))
