"""Link prediction by the protocol of others: what JMAC may read (Tong et al., EMNLP 2022).

    reproduce_jmac(KB("dbp5l"), "jmac", rows=("pairs", "similar"))

Published figures on DBP-5L differ in what is trained on. JMAC completes one *target* language with
the others as *supporters*: it reads the target's train, the supporters' train and valid, and half
of the links, and filters with all splits of the target. So each language has a KB of its own here,
and its rows are made from that KB:

    LANG/kb                         the KB that may be read for a language
    LANG/graph                      our ComplEx, if the row `graph` is asked for
    rows/KEY.json, KEY.parquet      a row's figures, and the rank of every fact
    table.json, table.md

Two things differ from JMAC. The half of the links is drawn with a seed, because ours is not the
file that JMAC was trained with. And JMAC reads names as English word vectors, which no row here
does, while the rows of names of the usual table are left out.
"""

import dataclasses
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
from prixlm.kb.concepts import count_linked, number_concepts
from prixlm.kb.store import KB
from prixlm.kb.writer import write_table
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import GraphConfig, GraphRanker
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.suite import NAMES, UNTRAINED
from prixlm.reports.ranker_results import RankerResult, describe_ranks, write_results
from prixlm.reports.ranks import write_ranks
from prixlm.types import Progress

GRAPH = "graph"
JMAC_ROWS = (*(key for key in UNTRAINED if key not in NAMES), GRAPH)
"""Rows that can be made, in their order; all but the last need no training."""
_ROWS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class JmacConfig:
    """Settings of the rows under JMAC's protocol."""

    links: float = 0.5  # share of the explicit links that may be read
    seed: int = 0  # of the draw of these links
    graph: GraphConfig = field(default_factory=GraphConfig)

    def __post_init__(self) -> None:
        if not 0 < self.links <= 1:
            raise PrixError(f"links {self.links}: expected a share above 0 and up to 1.")
        if self.seed < 0:
            raise PrixError(f"--seed {self.seed}: expected 0 or more.")


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
    # (links, 2) the explicit links, and which of them may be read.
    links = pq.read_table(kb.path("links"))
    kept = links.filter(pa.array(random_positions(len(links), config.seed) < config.links))
    a, b = (kept[name].to_numpy() for name in ("a", "b"))
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
        "links": len(kept),
        "concepts": int(concept.max(initial=-1)) + 1,
        "linked": count_linked(concept, kb.manifest.counts["entities"]),
        "triples": triples,
    }
    settings = dataclasses.asdict(config)
    origin = {"method": "jmac", "from": kb.fingerprint(), "target": lang}
    origin |= {name: settings[name] for name in ("links", "seed")}
    dataclasses.replace(kb.manifest, counts=counts, split=origin).write(out)


def reproduce_jmac(
    kb: KB,
    to: Path | str,
    config: JmacConfig | None = None,
    rows: Sequence[str] | None = None,
    langs: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> list[RankerResult]:
    """Make rows under JMAC's protocol, or what is missing of them; return them.

    rows: all that need no training, if None. langs: target languages; all with test facts, if None.
    """
    to, config = Path(to), config or JmacConfig()
    wanted = list(rows) if rows is not None else [key for key in JMAC_ROWS if key != GRAPH]
    unknown = [key for key in wanted if key not in JMAC_ROWS]
    if unknown or not wanted:
        raise PrixError(f"--rows {', '.join(unknown)}: expected some of {', '.join(JMAC_ROWS)}.")
    codes = list(langs or (lang for lang in kb.languages if kb.num_triples(lang, "test")))
    if not codes or not kb.manifest.counts["links"]:
        raise PrixError(
            f"{kb.folder} has no test triples or no explicit links, of which half could be read: "
            "name a KB with both."
        )
    settings = dataclasses.asdict(config) | {"langs": codes}
    check_stamp(to / "jmac.json", {"kb": kb.fingerprint(), "config": settings}, to)
    supported = {lang: support_kb(kb, lang, to / lang / "kb", config) for lang in codes}
    results = [
        _row(key, supported, to, config, progress, (done, len(wanted)))
        for done, key in enumerate(wanted)
    ]
    finished = [to / "rows" / f"{key}.json" for key in JMAC_ROWS]
    write_results(to, {"": [RankerResult.load(path) for path in finished if path.exists()]})
    return results


def _row(
    key: str,
    supported: dict[str, KB],
    to: Path,
    config: JmacConfig,
    progress: Progress | None,
    place: tuple[int, int],
) -> RankerResult:
    """Return a row, from its file or made now: every language with its own KB."""
    path = to / "rows" / f"{key}.json"
    if path.exists():
        return RankerResult.load(path)
    tables, name, seconds, max_rank = [], "", None, 0
    for done, (lang, kb) in enumerate(supported.items(), start=1):
        ranker, spent = _make(key, kb, to / lang, config, progress)
        name, max_rank = ranker.name, ranker.max_rank
        seconds = spent if seconds is None or spent is None else seconds + spent
        tables.append(rank_facts(kb, ranker, [read_facts(kb, lang)], beyond=max_rank))
        if progress is not None:
            number, total = place
            progress("rank", number * len(supported) + done, total * len(supported))
    table = pa.concat_tables(tables)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_ranks(table, path.with_suffix(".parquet"))
    found = figures_by_language(table, max_rank)
    result = RankerResult(name, found, describe_ranks(max_rank), seconds, None, max_rank)
    result.save(path)
    return result


def _make(
    key: str, kb: KB, folder: Path, config: JmacConfig, progress: Progress | None
) -> tuple[Ranker, float | None]:
    """Return a ranker of one language's KB, and the seconds of its training."""
    if key != GRAPH:
        return UNTRAINED[key](kb, ("train",)), None
    model, seconds = TrainedModels(kb, folder, progress).graph(config.graph)
    return GraphRanker(kb, model, name="ComplEx, merged graph (ours)"), seconds
