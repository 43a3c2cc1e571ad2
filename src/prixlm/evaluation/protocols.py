"""Link prediction by the protocol of others: what JMAC may read (Tong et al., EMNLP 2022).

    reproduce_jmac(KB("dbp5l"), "jmac", rows=("pairs", "similar"))

Published figures on DBP-5L differ in what is trained on. JMAC completes one *target* language with
the others as *supporters*: it reads the target's train, the supporters' train and valid, and half
of the links, and filters with all splits of the target. So each language has a KB of its own here,
and its rows are made from that KB:

    LANG/kb                         the KB that may be read for a language
    LANG/graph                      our ComplEx, if `graph` or `fused` is asked for
    LANG/fusion-untrained, -graph   what combines links and rules, and those and the graph
    rows/KEY/LANG.json, .parquet    a row's figures, and the rank of every fact
    table.json, table.md

A row is saved language by language, so a run that was stopped resumes, and languages can follow one
another (`--langs`). The fusions are fitted on the target's valid facts, by which JMAC chooses its
epoch.

JMAC reads names as English word vectors, which no row here does, and the rows of names of the usual
table are left out. The half of the links is drawn with a seed, unless the folder of JMAC's own half
is named (`links_from`).
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prixlm.arrays import random_positions
from prixlm.errors import PrixError
from prixlm.evaluation.link_prediction import figures_by_language, rank_facts
from prixlm.evaluation.trained import TrainedModels, check_stamp
from prixlm.files import whole_folder
from prixlm.importers.dbp5l import read_links
from prixlm.kb.concepts import count_linked, number_concepts
from prixlm.kb.store import KB
from prixlm.kb.writer import write_table
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import GraphConfig, GraphRanker
from prixlm.rankers.fusion import Fusion, FusionConfig
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.suite import NAMES, UNTRAINED, make_suite
from prixlm.reports.ranker_results import RankerResult, describe_ranks, write_results
from prixlm.reports.ranks import write_ranks
from prixlm.types import Array, Progress

GRAPH, FUSED, FUSED_UNTRAINED = "graph", "fused", "fused-untrained"
_DEFAULT = (*(key for key in UNTRAINED if key not in NAMES), FUSED_UNTRAINED)
"""Rows that need no embedding to be trained: those that are made if none is named."""
JMAC_ROWS = (*_DEFAULT[:-1], GRAPH, FUSED_UNTRAINED, FUSED)
"""Rows that can be made, in their order."""
_ROWS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class JmacConfig:
    """Settings of the rows under JMAC's protocol."""

    links: float = 0.5  # share of the explicit links that may be read
    links_from: str | None = None  # a folder of the links that may be read, instead of a share
    seed: int = 0  # of the draw of these links
    graph: GraphConfig = field(default_factory=GraphConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)

    def __post_init__(self) -> None:
        if not 0 < self.links <= 1:
            raise PrixError(f"links {self.links}: expected a share above 0 and up to 1.")
        if self.seed < 0:
            raise PrixError(f"--seed {self.seed}: expected 0 or more.")

    def stamp(self) -> dict[str, Any]:
        """Return what the rows depend on; a folder of links counts by its files."""
        values: dict[str, Any] = dataclasses.asdict(self) | {"graph": self.graph.as_dict()}
        # None, as in tables that are older than these two settings.
        is_usual = self.fusion == FusionConfig()
        values["fusion"] = None if is_usual else json.dumps(dataclasses.asdict(self.fusion))
        if self.links_from is not None:
            digest = hashlib.sha256()
            for path in sorted(Path(self.links_from).glob("*.tsv")):
                digest.update(path.name.encode() + path.read_bytes())
            values["links_from"] = digest.hexdigest()
        return values


def support_kb(kb: KB, lang: str, to: Path, config: JmacConfig) -> KB:
    """Write the KB that may be read for a target language, or open it if it is there.

    Valid facts of all other languages become train facts. Concepts follow from the links that are
    drawn; the same links are drawn for every language.
    """
    if not to.is_dir():
        with whole_folder(to) as folder:
            _write_support(kb, lang, folder, config)
    return KB(to)


def _write_support(kb: KB, lang: str, out: Path, config: JmacConfig) -> None:
    for name in ("aliases", "descriptions", "relations", "relation_names"):
        if kb.path(name).is_file():
            shutil.copyfile(kb.path(name), out / f"{name}.parquet")
    a, b = _links_to_read(kb, config)
    concept = number_concepts(kb.num_entities, [(a, b)])
    with write_table(out, "links") as table:
        table.write(a=a, b=b)
    with write_table(out, "entities") as table:
        start = 0
        for batch in kb.batches("entities", batch_rows=_ROWS):
            columns = {name: batch.column(name) for name in batch.schema.names}
            columns["concept"] = concept[start : start + batch.num_rows]
            table.write(**columns)
            start += batch.num_rows
    with write_table(out, "triples") as table:
        for batch in kb.batches("triples", batch_rows=_ROWS):
            columns = {name: batch.column(name) for name in batch.schema.names}
            is_support = pc.and_(
                pc.not_equal(columns["lang"], lang), pc.equal(columns["split"], "valid")
            )
            columns["split"] = pc.if_else(is_support, "train", columns["split"])
            table.write(**columns)
    written = pq.read_table(out / "triples.parquet", columns=["lang", "split"])
    grouped = written.group_by(["lang", "split"]).aggregate([([], "count_all")]).to_pylist()
    triples: dict[str, dict[str, int]] = {}
    for row in sorted(grouped, key=lambda row: (row["lang"], row["split"])):
        triples.setdefault(row["lang"], {})[row["split"]] = row["count_all"]
    counts: dict[str, Any] = kb.manifest.counts | {
        "links": len(a),
        "concepts": int(concept.max(initial=-1)) + 1,
        "linked": count_linked(concept, kb.manifest.counts["entities"]),
        "triples": triples,
    }
    settings = config.stamp()
    origin = {"method": "jmac", "from": kb.fingerprint(), "target": lang}
    origin |= {name: settings[name] for name in ("links", "seed")}
    if config.links_from is not None:
        origin["links_from"] = settings["links_from"]
    dataclasses.replace(kb.manifest, counts=counts, split=origin).write(out)


def _links_to_read(kb: KB, config: JmacConfig) -> tuple[Array, Array]:
    """Return the entities that the links connect which may be read: (links,) each."""
    if config.links_from is None:
        links = pq.read_table(kb.path("links"))
        kept = links.filter(pa.array(random_positions(len(links), config.seed) < config.links))
        return kept["a"].to_numpy(), kept["b"].to_numpy()
    named = read_links(Path(config.links_from))
    found = kb.join_table(
        named,
        "SELECT one.id AS a, other.id AS b FROM asked "
        "JOIN entities one ON one.lang = lang_a AND one.key = asked.a "
        "JOIN entities other ON other.lang = lang_b AND other.key = asked.b ORDER BY 1, 2",
    )
    if len(found) != len(named):
        raise PrixError(
            f"{config.links_from} has {len(named) - len(found):,} links of entities that "
            f"{kb.folder} does not have: import the KB from the same benchmark."
        )
    return found["a"].to_numpy(), found["b"].to_numpy()


def reproduce_jmac(
    kb: KB,
    to: Path | str,
    config: JmacConfig | None = None,
    rows: Sequence[str] | None = None,
    langs: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> list[RankerResult]:
    """Make rows under JMAC's protocol, or what is missing of them; return them.

    rows: all that need no embedding, if None. langs: target languages; all with test facts, if
    None. A row shows the languages that are finished, in this call or before.
    """
    to, config = Path(to), config or JmacConfig()
    wanted = _DEFAULT if rows is None else list(rows)
    unknown = [key for key in wanted if key not in JMAC_ROWS]
    if unknown or not wanted:
        raise PrixError(f"--rows {', '.join(unknown)}: expected some of {', '.join(JMAC_ROWS)}.")
    testable = [lang for lang in kb.languages if kb.num_triples(lang, "test")]
    codes = list(langs or testable)
    if not testable or not kb.manifest.counts["links"]:
        raise PrixError(
            f"{kb.folder} has no test triples or no explicit links, of which half could be read: "
            "name a KB with both."
        )
    if missing := sorted(set(codes) - set(testable)):
        raise PrixError(f"{kb.folder} has no test triples in {', '.join(missing)}.")
    check_stamp(to / "jmac.json", {"kb": kb.fingerprint(), "config": config.stamp()}, to)
    for done, lang in enumerate(codes):
        target = _Target(support_kb(kb, lang, to / lang / "kb", config), lang, to, config, progress)
        for number, key in enumerate(wanted, start=1):
            target.make(key)
            if progress is not None:
                progress("rank", done * len(wanted) + number, len(codes) * len(wanted))
    finished = {key: _finished(to / "rows" / key, testable) for key in JMAC_ROWS}
    write_results(to, {"": [row for row in finished.values() if row is not None]})
    return [row for key in wanted if (row := finished[key]) is not None]


def _finished(folder: Path, langs: Sequence[str]) -> RankerResult | None:
    """Return the languages of a row that are finished, as one row; None if none is."""
    paths = [folder / f"{lang}.json" for lang in langs]
    parts = [RankerResult.load(path) for path in paths if path.exists()]
    if not parts:
        return None
    seconds = [part.training_seconds for part in parts if part.training_seconds is not None]
    return dataclasses.replace(
        parts[0],
        figures={lang: one for part in parts for lang, one in part.figures.items()},
        training_seconds=sum(seconds) if seconds else None,
        max_rank=max(part.max_rank for part in parts),
    )


@dataclass(frozen=True)
class _Target:
    """The rows of one target language."""

    kb: KB
    lang: str
    to: Path
    config: JmacConfig
    progress: Progress | None

    def make(self, key: str) -> None:
        """Rank the test facts by a row's ranker, unless that is done."""
        path = self.to / "rows" / key / f"{self.lang}.json"
        if path.exists():
            return
        ranker, seconds = self._ranker(key)
        table = rank_facts(self.kb, ranker, [read_facts(self.kb, self.lang)])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_ranks(table, path.with_suffix(".parquet"))
        found = figures_by_language(table, ranker.max_rank)
        how = describe_ranks(ranker.max_rank)
        RankerResult(ranker.name, found, how, seconds, None, ranker.max_rank).save(path)

    def _ranker(self, key: str) -> tuple[Ranker, float | None]:
        """Return a ranker of the language's KB, and the seconds of its training."""
        if key in UNTRAINED:
            return UNTRAINED[key](self.kb, ("train",)), None
        if key == FUSED_UNTRAINED:
            fusion = self._fusion(None, key)
            fusion.name = "fused: links and rules"
            return fusion, fusion.seconds
        model, seconds = self._models.graph(self.config.graph)
        graph = GraphRanker(self.kb, model, name="ComplEx, merged graph (ours)")
        if key == GRAPH:
            return graph, seconds
        fusion = self._fusion(graph, "fused-graph")
        fusion.name = "fused: links, rules and the graph"
        return fusion, (seconds or 0.0) + fusion.seconds

    def _fusion(self, graph: Ranker | None, name: str) -> Fusion:
        """Return a fusion of links, rules and a graph, without names."""
        suite = make_suite(self.kb, None, graph)
        rules = {key: ranker for key, ranker in suite.rules.items() if key not in NAMES}
        rankers = dataclasses.replace(suite, rules=rules).rankers
        name = name.replace("fused", "fusion")
        return self._models.fusion(rankers, self.config.fusion, [self.lang], name)

    @property
    def _models(self) -> TrainedModels:
        return TrainedModels(self.kb, self.to / self.lang, self.progress)
