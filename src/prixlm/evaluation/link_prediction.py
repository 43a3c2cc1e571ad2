"""Link prediction (Sec. 3.2): rank the missing object of held-out facts among all entities.

    evaluation = evaluate_rankers(kb, EvaluateConfig(models=(Path("model"),)))
    print_tables(console, evaluation.tables())

`rank_facts` makes a table with a row per fact: the question, the true object, its rank and, if
wanted, the best answers. All figures are computed from that table: by language and subset, and by
relation. A `RankerResult` holds the figures of one ranker. It is saved as one JSON file, so that
`reproduce lp` can resume, and is shown as `ResultTable`s.
"""

import contextlib
import dataclasses
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.config import checked
from prixlm.decoding.completer import Completer
from prixlm.decoding.reader import Reader
from prixlm.engine.jobs import EngineConfig, Shard, ShardJob, made_by, make_parts
from prixlm.engine.overwriting import check_pages
from prixlm.engine.workspace import Workspace, open_workspace, partial_folder
from prixlm.errors import PrixError
from prixlm.files import alone, replacing, sketch, whole_folder, write_atomically
from prixlm.kb.checks import check_table, read_checked
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND, Figures, Interval, figures, rank_values
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import GraphRanker, load_graph
from prixlm.rankers.fusion import Fusion, FusionConfig
from prixlm.rankers.heldout import (
    SUBSETS,
    UNSEEN_SUBSETS,
    HeldOut,
    read_facts,
    unseen_facts,
)
from prixlm.rankers.links import LinkRanker, where_unstated
from prixlm.rankers.lm import ModelRanker, ReadingRanker
from prixlm.rankers.pykeen import load_baseline
from prixlm.rankers.suite import NAMES, UNTRAINED
from prixlm.remote import absolute, is_remote, local_folder, staged_folder
from prixlm.reports.comparing import difference_table
from prixlm.reports.plots import plot_tables
from prixlm.reports.tables import (
    ResultTable,
    name_rows,
    read_json,
    tables_from_json,
    tables_markdown,
)
from prixlm.types import Progress
from prixlm.untrusted import guard_formula

METRICS = {"hits_1": "Hits@1", "hits_3": "Hits@3", "hits_10": "Hits@10", "mrr": "MRR"}
"""Fields of `Figures` that are shown, and their titles."""
ALL = "all"
"""The subset of all facts."""
_HITS = 10
"""Ranks that Hits@10 needs. A ranker whose ranks end here has no mean reciprocal rank."""
_PART_FACTS = 2048
"""Facts that one ranker ranks for a part."""
_FUSION = "fusion"
_FOLDERS = ("models", "graphs", "baselines", "readers")
"""Fields of the config that name trained folders."""
_RESULT: dict[str, Any] = {
    "title": str,
    "figures": dict[str, dict[str, dict[str, Any]]],
    "how": str,
    "training_seconds": float | None,
    "ranking_seconds": float | None,
    "max_rank": int,  # not in files of version 0.1
}
_FIGURES: dict[str, Any] = {
    "number": int,
    **dict.fromkeys(("hits_1", "hits_3", "hits_10", "mrr", "slack"), float | None),
    "intervals": dict[str, list[float]],  # not in files of version 0.1
}
"""Kinds of the values of a result and of its figures in JSON."""
_OPTIONAL_RESULT = ("training_seconds", "ranking_seconds", "max_rank")
_RANKS = pa.schema(
    {
        "lang": pa.string(),
        **dict.fromkeys(("subject", "relation", "object"), pa.int32()),
        "rank": pa.float64(),
    }
)
"""Columns of every file of ranks. Beside them, there is a column of booleans for each subset."""


# Results: the figures of a ranker, and how they are saved and shown.


@dataclass(frozen=True)
class RankerResult:
    """The figures of one ranker: a row of the link-prediction table."""

    title: str
    figures: dict[str, dict[str, Figures]]  # by language, then subset
    how: str  # the search that gave the ranks, for people
    training_seconds: float | None = None  # None if nothing was trained
    ranking_seconds: float | None = None
    max_rank: int = BEYOND  # higher ranks are unknown and count as 0 in the MRR

    def value(self, lang: str, subset: str, metric: str) -> float:
        """Return one figure; NaN if there are no facts or the ranks end before it is known."""
        is_known = metric != "mrr" or self.max_rank > _HITS
        return float(getattr(self.figures[lang][subset], metric)) if is_known else float("nan")

    def interval(self, lang: str, subset: str, metric: str) -> Interval | None:
        """Return the interval of one figure; None if the figure or its interval is not known."""
        is_known = metric != "mrr" or self.max_rank > _HITS
        return self.figures[lang][subset].intervals.get(metric) if is_known else None

    @property
    def details(self) -> dict[str, str]:
        """How the ranks were found and how long training took, for the table."""
        seconds = self.training_seconds
        if seconds is None:
            training = "none"
        else:
            training = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        return {"ranks": self.how, "training": training}

    def to_json(self) -> dict[str, Any]:
        """Return the result for JSON, which has no NaN: figures without facts are null."""
        # asdict would keep NaN.
        figures = {
            lang: {subset: _figures_to_json(part) for subset, part in parts.items()}
            for lang, parts in self.figures.items()
        }
        return dataclasses.asdict(self) | {"figures": figures}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], path: Path) -> "RankerResult":
        """Read what `to_json` returned; `path` is for the error."""
        try:
            checked(values, _RESULT, optional=_OPTIONAL_RESULT)
            figures = {
                lang: {subset: _figures_from_json(part) for subset, part in parts.items()}
                for lang, parts in values["figures"].items()
            }
            result = cls(**{**values, "figures": figures})
        except (TypeError, ValueError) as error:
            raise PrixError(
                f"{path} is not a valid results row ({error}); delete it to recompute it."
            ) from None
        if "max_rank" not in values:  # version 0.1 wrote the limit into the text alone
            limit = re.search(r"to rank (\d{1,9})", result.how)
            return dataclasses.replace(result, max_rank=int(limit[1]) if limit else BEYOND)
        return result

    def save(self, path: Path) -> None:
        """Write the result as one JSON file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "RankerResult":
        """Read what `save` wrote."""
        return cls.from_json(read_json(path), path)


def _figures_to_json(part: Figures) -> dict[str, Any]:
    values = dataclasses.asdict(part)
    return {name: None if value != value else value for name, value in values.items()}


def _figures_from_json(values: Mapping[str, Any]) -> Figures:
    checked(values, _FIGURES, optional=("intervals",))
    known: dict[str, Any] = {
        name: float("nan") if value is None else value for name, value in values.items()
    }
    ends = known.pop("intervals", {})  # not in files of version 0.1
    return Figures(**known, intervals={name: Interval(*pair) for name, pair in ends.items()})


def describe_ranks(max_rank: int, search: str = "exact", *remarks: str) -> str:
    """Return how ranks were found, for a table: `beam K = 50, to rank 10`."""
    limit = [f"to rank {max_rank}"] if max_rank < BEYOND else []
    return ", ".join([search, *limit, *remarks])


def result_tables(
    results: Sequence[RankerResult],
    metrics: Sequence[str] = tuple(METRICS),
    subsets: Sequence[str] = (ALL,),
    *,
    with_details: bool = False,
) -> list[ResultTable]:
    """Return a table for each subset and metric: a row per ranker, a column per language."""
    tables = []
    for subset in subsets:
        for metric in metrics:
            table = ResultTable(METRICS[metric], subset="" if subset == ALL else subset)
            for result in results:
                for lang, parts in result.figures.items():
                    if subset not in parts:  # ours have all, those of others need not
                        continue
                    number, asked = parts[subset].number, (lang, subset, metric)
                    value, interval = result.value(*asked), result.interval(*asked)
                    table.add(result.title, lang, value, number, interval)
                if with_details:
                    table.details[result.title] = result.details
            tables.append(table)
    return tables


def write_results(to: Path, results: Mapping[str, Sequence[RankerResult]]) -> None:
    """Write results by section as table.md, with all subsets, and as table.json."""
    to.mkdir(parents=True, exist_ok=True)
    sections = []
    for title, rows in results.items():
        # The subsets that these rows have: those of unseen entities differ from the others.
        parts = (parts for row in rows for parts in row.figures.values())
        subsets = list(dict.fromkeys(subset for part in parts for subset in part))
        text = tables_markdown(result_tables(rows, subsets=subsets, with_details=True))
        sections.append((f"## {title}\n\n" if title else "") + text)
    values = {title or "rows": [row.to_json() for row in rows] for title, rows in results.items()}
    # The data go first: after a kill in between, they tell that the page is ours.
    write_atomically(to / "table.json", json.dumps(values, indent=1) + "\n")
    write_atomically(to / "table.md", "\n".join(sections))


def plot_results(results: Sequence[RankerResult], path: Path) -> None:
    """Draw the MRR of all facts and, below, of those that no other language states."""
    subsets = (ALL, "no transfer")
    plot_tables(result_tables(results, ("mrr",), subsets), path)


def read_result_tables(path: Path) -> list[ResultTable]:
    """Read the tables of any task: the JSON that `evaluate --to` or `reproduce` wrote.

    Link prediction is given as Hits@1 and Hits@10 over all facts.
    """
    # Link prediction saves results by section, all other tasks save a list of tables.
    values = read_json(path)
    if not isinstance(values, dict):
        return tables_from_json(values, path)
    return result_tables(_read_results(values, path), ("hits_1", "hits_10"))


def read_run(path: Path) -> list[ResultTable]:
    """Read all figures of one run of any task, to merge them with those of other seeds.

    path: the JSON of `evaluate --to` or `reproduce`, or the folder of link prediction.
    """
    path = path / "table.json" if path.is_dir() else path
    values = read_json(path)
    if not isinstance(values, dict):
        return tables_from_json(values, path)
    # Sections of one file differ in their subsets, so each has tables of its own.
    tables = []
    for title, rows in values.items():
        results = _read_results({title: rows}, path)
        subsets = dict.fromkeys(s for row in results for part in row.figures.values() for s in part)
        tables += result_tables(results, subsets=list(subsets))
    return tables


def _read_results(values: Mapping[str, Any], path: Path) -> list[RankerResult]:
    """Return the rows of all sections that have figures."""
    try:
        rows = [row for rows in values.values() for row in rows]
    except TypeError:
        raise PrixError(f"{path} does not hold results of link prediction.") from None
    results = [RankerResult.from_json(row, path) for row in rows]
    return [row for row in results if row.figures]


def compare_ranks(first: Path, second: Path) -> list[ResultTable]:
    """Compare two rows fact by fact: Hits@1, Hits@10 and MRR on all facts and on each subset.

    first, second: the ranks that `evaluate lp --to` or `reproduce lp` wrote as Parquet.
    """
    tables = [_read_ranks(path) for path in (first, second)]
    facts = [table.select(["subject", "relation", "object"]) for table in tables]
    if not facts[0].equals(facts[1]):
        raise PrixError(f"{first} and {second} have different facts, and cannot be compared.")
    # A list of ranks that ends earlier knows nothing beyond its limit; the other may.
    ranks = [table["rank"].to_numpy() for table in tables]
    lang = np.asarray(tables[0]["lang"].to_pylist())
    subsets = {
        name.replace("_", " "): tables[0][name].to_numpy()
        for name, kind in zip(tables[0].schema.names, tables[0].schema.types, strict=True)
        if pa.types.is_boolean(kind)
    }
    ours, theirs = name_rows([first, second])
    compared = []
    for subset, mask in subsets.items():
        for metric in ("hits_1", "hits_10", "mrr"):
            values = [rank_values(part)[metric] for part in ranks]
            pairs = {}
            for code in dict.fromkeys(lang.tolist()):
                rows = mask & (lang == code)
                pairs[code] = values[0][rows], values[1][rows]
            title = METRICS[metric] + ("" if subset == ALL else f", {subset}")
            compared.append(difference_table(title, ours, theirs, pairs))
    return compared


def _read_ranks(path: Path) -> pa.Table:
    remedy = (
        "It does not hold ranks: expected rows/KEY.parquet of `reproduce lp` or "
        "answers/ROW.parquet of `evaluate lp --to`."
    )
    check_table(path, _RANKS, remedy)
    subsets = [field for field in pq.read_schema(path) if pa.types.is_boolean(field.type)]
    table = read_checked(path, pa.schema([*_RANKS, *subsets]), remedy)
    if not (table["rank"].to_numpy() >= 1).all():
        raise PrixError(f"{path}: rank has some below 1 or not a number. {remedy}")
    return table


# Ranks: one row per fact, and the figures that are computed from them.


def rank_facts(
    kb: KB,
    ranker: Ranker,
    facts: Sequence[HeldOut],
    *,
    answers: int = 0,
    beyond: int = BEYOND,
) -> pa.Table:
    """Rank the object of every fact; with `answers`, also list that many best objects.

    Columns: lang, subject, relation, object (ids), their names, rank (infinity beyond `beyond`),
    one per subset, and lists: answer (ids), answer_name, score and, of facts carried along
    links, origin (the languages that state the fact).
    """
    parts = []
    for part in facts:  # one language each
        queries = part.queries
        relations = kb.relation_names(queries.lang)
        columns = {
            "lang": [queries.lang] * len(part),
            "subject": queries.subject.astype(np.int32),
            "relation": queries.relation.astype(np.int32),
            "object": part.objects.astype(np.int32),
            "subject_name": kb.names(queries.subject.tolist()),
            "relation_name": [relations[relation] for relation in queries.relation.tolist()],
            "object_name": kb.names(part.objects.tolist()),
            "rank": ranker.ranks(queries, part.objects, beyond),
        }
        columns |= {column_of(name): rows for name, rows in part.subsets.items()}
        table = pa.table(columns)
        for name, values in _answer_lists(kb, ranker, part, answers).items():
            table = table.append_column(name, values)
        parts.append(table)
    return pa.concat_tables(parts)


def _answer_lists(kb: KB, ranker: Ranker, facts: HeldOut, answers: int) -> dict[str, pa.Array]:
    """Return the columns of the best answers to each fact's question; none if none are wanted."""
    if not answers:
        return {}
    ranked = ranker.best(facts.queries, answers)
    # Flat columns, the answers of one question after those of another.
    values = {
        "answer": pa.array(ranked.entity.astype(np.int32)),
        "answer_name": pa.array(kb.names(ranked.entity.tolist()), pa.string()),  # also if none
        "score": pa.array(ranked.score.astype(np.float64)),
    }
    if isinstance(ranker, LinkRanker):
        origins = ranker.origins(facts.queries, ranked)
        values["origin"] = pa.array(origins, pa.list_(pa.string()))
    # (Q + 1,) cuts them into one list per question.
    offset = pa.array(ranked.offset.astype(np.int32))
    return {name: pa.ListArray.from_arrays(offset, flat) for name, flat in values.items()}


def figures_by_language(
    table: pa.Table, beyond: int = BEYOND, subsets: Sequence[str] = SUBSETS
) -> dict[str, dict[str, Figures]]:
    """Return the figures of a table of ranks by language and subset."""
    ranks, lang = table["rank"].to_numpy(), np.asarray(table["lang"].to_pylist())
    # (facts,) for each subset: which facts are in it.
    masks = {name: table[column_of(name)].to_numpy() for name in subsets}
    return {
        code: {name: figures(ranks[mask & (lang == code)], beyond) for name, mask in masks.items()}
        for code in dict.fromkeys(lang.tolist())
    }


def figures_by_relation(table: pa.Table, beyond: int = BEYOND) -> dict[str, Figures]:
    """Return figures by relation over all languages, the most frequent relation first."""
    ranks, relation = table["rank"].to_numpy(), table["relation"].to_numpy()
    names = dict(zip(relation.tolist(), table["relation_name"].to_pylist(), strict=True))
    # Relations of one name are kept apart by their ids. A stable sort keeps ties in id order.
    ids, counts = np.unique(relation, return_counts=True)
    order = ids[np.argsort(-counts, kind="stable")]
    return {
        f"{names[relation_id]} ({relation_id})": figures(ranks[relation == relation_id], beyond)
        for relation_id in order.tolist()
    }


def write_ranks(table: pa.Table, path: Path) -> None:
    """Write a table of ranks as Parquet, or as TSV with lists joined by ` | `."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix not in (".parquet", ".tsv"):
        raise PrixError(f"{path}: expected a name that ends in .parquet or .tsv.")
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            pq.write_table(table, temporary, compression="zstd")
            return
        lines = ["\t".join(table.column_names)]
        lines += ["\t".join(_cell(value) for value in row.values()) for row in table.to_pylist()]
        temporary.write_text("\n".join(lines) + "\n", "utf-8")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " | ".join(_cell(item) for item in value)
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = " ".join(text.split())  # a tab or an end of line in a name would be a column or a row
    return guard_formula(text) if isinstance(value, str) else text


def column_of(subset: str) -> str:
    """Return the column of a table of ranks that tells which facts are in a subset."""
    return subset.replace(" ", "_")


# Evaluation: all rankers of a command line.

_OPTIONAL = tuple(key for key in UNTRAINED if key != "usual")
"""Rankers without training that can be left out; the usual object is always a row."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Which rankers are evaluated, and on which facts."""

    models: tuple[Path, ...] = ()  # folders of Prix-LMs
    graphs: tuple[Path, ...] = ()  # folders of graph embeddings
    baselines: tuple[Path, ...] = ()  # folders of PyKEEN models
    readers: tuple[Path, ...] = ()  # folders of decoders that are asked in words
    fuse: bool = False  # also evaluate a fusion of all of them
    without: tuple[str, ...] = ()  # rankers without training that are left out, by their keys
    langs: tuple[str, ...] | None = None  # None: all languages with facts in the split
    split: str = "test"  # test or valid
    most: int | None = None  # facts sampled per language; None: all
    unseen: bool = False  # only facts with an entity that no train triple has, as in the paper
    search: str = "beam"  # of a Prix-LM: beam or exact
    by_name: bool = False  # a Prix-LM ranks names instead of entities
    mask: str | None = None  # read a Prix-LM with another mask than its own, such as released
    relations: int = 0  # most frequent relations that get figures of their own
    answers: int = 10  # answers per fact that are written to the output folder; 0: none
    beyond: int = BEYOND  # deepest rank of a Prix-LM's exact search; higher ones count as infinity
    fuse_facts: int = FusionConfig.facts  # valid facts per language that the fusion is fitted on

    def __post_init__(self) -> None:
        if self.split not in ("test", "valid"):
            raise PrixError(f"--split {self.split}: expected test or valid.")
        if self.search not in ("beam", "exact"):
            raise PrixError(f"--search {self.search}: expected beam or exact.")
        if (self.most is not None and self.most < 1) or self.relations < 0:
            raise PrixError("--most is 1 or more, and --relations 0 or more.")
        if self.answers < 0 or self.fuse_facts < 1:
            raise PrixError("--answers is 0 or more, and --fuse-facts 1 or more.")
        if not _HITS <= self.beyond <= BEYOND:
            raise PrixError(
                f"--beyond {self.beyond}: expected {_HITS}, which Hits@10 needs, to {BEYOND:,}."
            )
        unknown = [key for key in self.without if key not in _OPTIONAL]
        if unknown:
            raise PrixError(f"--without {', '.join(unknown)}: expected {', '.join(_OPTIONAL)}.")
        if self.beyond != BEYOND and self.search != "exact":
            raise PrixError("--beyond is of --search exact: a beam finds ranks up to 10.")
        if self.fuse_facts != FusionConfig.facts and not self.fuse:
            raise PrixError("--fuse-facts requires --fuse.")
        if self.fuse and self.split == "valid":
            raise PrixError("--fuse is fitted on valid facts: evaluate it on test.")
        if self.fuse and self.by_name:
            raise PrixError("--fuse ranks entities: leave out --by-name.")


@dataclass(frozen=True)
class Evaluation:
    """The results of all rankers, and their figures by relation."""

    results: list[RankerResult] = field(default_factory=list)
    # By ranker, then relation; the most frequent relations that the config asks for.
    relations: dict[str, dict[str, Figures]] = field(default_factory=dict)
    unseen: bool = False  # of facts with an unseen entity alone

    def tables(self) -> list[ResultTable]:
        """Return all figures of all facts, the MRR of the harder subsets, and the relations.

        Of unseen entities also all figures by which end is unseen: a guess by frequency can be
        right only about an object that train has.
        """
        tables = result_tables(self.results)
        tables += result_tables(self.results, ("mrr",), [name for name in SUBSETS if name != ALL])
        if self.unseen:
            ends = [name for name in UNSEEN_SUBSETS if name != ALL]
            tables += result_tables(self.results, subsets=ends)
        for result in self.results:
            table = ResultTable(f"{result.title}, by relation", has_mean=False)
            for relation, part in self.relations.get(result.title, {}).items():
                # Three figures fit 80 characters beside the name of a relation.
                for metric in ("hits_1", "hits_10", "mrr"):
                    value = _relation_to_json(part, result.max_rank)[metric]
                    interval = None if value is None else part.intervals.get(metric)
                    value = float("nan") if value is None else value
                    table.add(relation, METRICS[metric], value, interval=interval)
                table.details[relation] = {"facts": f"{part.number:,}"}
            tables += [table] if table.rows else []
        return tables

    def to_json(self) -> dict[str, Any]:
        """Return what `prixlm evaluate lp --json` prints."""
        limits = {result.title: result.max_rank for result in self.results}
        relations = {
            title: {name: _relation_to_json(part, limits[title]) for name, part in parts.items()}
            for title, parts in self.relations.items()
        }
        return {"rows": [result.to_json() for result in self.results], "relations": relations}


def _relation_to_json(part: Figures, max_rank: int) -> dict[str, Any]:
    """Return the figures of a relation; ranks that end at 10 have no MRR."""
    values = _figures_to_json(part)
    return values if max_rank > _HITS else values | {"mrr": None}


def evaluate_rankers(
    kb: KB,
    config: EvaluateConfig,
    to: Path | None = None,
    progress: Progress | None = None,
    *,
    engine: EngineConfig | None = None,
) -> Evaluation:
    """Rank the held-out facts of a KB with all rankers of a config.

    to: a folder for the table as Markdown, JSON and a picture, and all answers as Parquet and TSV.
    engine: where the facts are ranked. With workers, finished parts lie in TO.partial, and the same
    call resumes from them.
    """
    if to is not None and is_remote(to):
        with staged_folder(to) as folder:
            return evaluate_rankers(kb, config, folder, progress, engine=engine)
    in_parts = engine is not None and engine != EngineConfig()
    if in_parts and to is None:
        raise PrixError("--engine and --workers require --to: finished parts are kept beside it.")
    langs = config.langs or tuple(
        lang for lang in kb.languages if kb.num_triples(lang, config.split)
    )
    if not langs:
        raise PrixError(
            f"{kb.folder} has no {config.split} triples: make some with `prixlm split`."
        )
    if to is not None:
        check_pages(to / "table.json", [to / "table.md"], lambda values: isinstance(values, dict))
    facts = _read_facts(kb, config, langs)
    # Lists of answers cost a second search, so they are made only to be written.
    answers = 0 if to is None else config.answers
    evaluation = Evaluation(unseen=config.unseen)
    subsets = list(facts[0].subsets)
    with contextlib.ExitStack() as stack:
        if in_parts and to is not None:
            inputs = _inputs(kb, config)
            stamp = _stamp(config, inputs) | {"made by": made_by(engine)}
            work = stack.enter_context(open_workspace(partial_folder(to), stamp))
            rankers = _rankers(kb, config, progress, work.folder / _FUSION)
            ranking = _Ranking(kb, config.answers, [one for one, _ in rankers], facts, inputs)
            tables = _rank_in_parts(ranking, config, work, engine, progress)
        else:
            rankers = _rankers(kb, config, progress)
            tables = _rank_here(kb, rankers, facts, answers)
        if to is not None:  # not before the rankers are loaded: a folder would be left
            to.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(to / "table.json", wait=False))
        for (ranker, how), (table, seconds) in zip(rankers, tables, strict=True):
            by_language = figures_by_language(table, ranker.max_rank, subsets)
            result = RankerResult(ranker.name, by_language, how, None, seconds, ranker.max_rank)
            evaluation.results.append(result)
            by_relation = figures_by_relation(table, ranker.max_rank)
            if config.relations:
                most_frequent = dict(list(by_relation.items())[: config.relations])
                evaluation.relations[ranker.name] = most_frequent
            if to is not None:
                _write_answers(to, result, table, by_relation)
        if to is not None:
            write_results(to, {"": evaluation.results})
            plot_results(evaluation.results, to / "table.png")
        if in_parts:
            work.remove()
    return evaluation


def _read_facts(kb: KB, config: EvaluateConfig, langs: Sequence[str]) -> list[HeldOut]:
    """Return the facts to rank, one language each."""
    if not config.unseen:
        return [read_facts(kb, lang, config.split, most=config.most) for lang in langs]
    facts = unseen_facts(kb, langs, config.split, most=config.most, keep_subsets=True)
    if not facts:
        raise PrixError(
            f"train has every entity of the {config.split} facts of {kb.folder}: draw the paper's "
            "split with `prixlm split KB --resplit --to SPLIT`, or leave out --unseen."
        )
    return facts


def _rank_here(
    kb: KB, rankers: Sequence[tuple[Ranker, str]], facts: Sequence[HeldOut], answers: int
) -> Iterator[tuple[pa.Table, float | None]]:
    """Yield the ranks of each ranker, and the seconds that they took."""
    for ranker, _ in rankers:
        started = time.monotonic()
        table = rank_facts(kb, ranker, facts, answers=answers, beyond=ranker.max_rank)
        yield table, time.monotonic() - started


def _rank_in_parts(
    ranking: "_Ranking",
    config: EvaluateConfig,
    work: Workspace,
    engine: EngineConfig | None,
    progress: Progress | None,
) -> Iterator[tuple[pa.Table, float | None]]:
    """Yield the ranks of each ranker, found in workers; seconds of workers are not counted."""
    shards: list[Shard] = []
    owner: list[int] = []  # the ranker of each shard
    for number in range(len(ranking.rankers)):
        for language, part in enumerate(ranking.facts):
            for start in range(0, len(part), _PART_FACTS):
                rows = range(start, min(start + _PART_FACTS, len(part)))
                name = f"part-{len(shards):07d}.parquet"
                shards.append(Shard(name, (number, language, rows), len(rows)))
                owner.append(number)
    langs = tuple(part.queries.lang for part in ranking.facts)
    folders = {name: tuple(map(absolute, getattr(config, name))) for name in _FOLDERS}
    resolved = dataclasses.replace(
        config,
        langs=langs,
        models=folders["models"],
        graphs=folders["graphs"],
        baselines=folders["baselines"],
        readers=folders["readers"],
    )
    load = partial(_load_ranking, ranking.kb, resolved, (work.folder / _FUSION).resolve())
    job = ShardJob("rank", shards, load, ranking, ranking.inputs())
    paths = make_parts(job, work, engine, progress)
    for number in range(len(ranking.rankers)):
        tables = [
            pq.read_table(path) for path, one in zip(paths, owner, strict=True) if one == number
        ]
        yield pa.concat_tables(tables), None


@dataclass(frozen=True)
class _Ranking:
    """Ranks slices of the facts: what a worker has loaded."""

    kb: KB
    answers: int
    rankers: Sequence[Ranker]
    facts: Sequence[HeldOut]  # one language each
    loaded_from: dict[str, str]

    def inputs(self) -> dict[str, str]:
        """Return what tells the KB and trained folders from others."""
        return self.loaded_from

    def __call__(self, value: tuple[int, int, range], path: Path) -> None:
        """Write the ranks of some facts of a language by one ranker."""
        number, language, rows = value
        ranker, part = self.rankers[number], self.facts[language].select(np.asarray(rows))
        table = rank_facts(self.kb, ranker, [part], answers=self.answers, beyond=ranker.max_rank)
        pq.write_table(table, path)


def _load_ranking(kb: KB, config: EvaluateConfig, fusion: Path) -> _Ranking:
    """Load in a worker all rankers and facts; a fusion was fitted by the driver."""
    rankers = [ranker for ranker, _ in _rankers(kb, config, None, fusion)]
    facts = _read_facts(kb, config, config.langs or ())
    return _Ranking(kb, config.answers, rankers, facts, _inputs(kb, config))


def _inputs(kb: KB, config: EvaluateConfig) -> dict[str, str]:
    """Return what tells the KB from others, and trained folders by their files.

    By content, not by time: a copy of a folder on another machine is the same.
    """
    found = {"KB": kb.fingerprint()}
    for name in _FOLDERS:
        for number, folder in enumerate(map(local_folder, getattr(config, name)), start=1):
            digest = hashlib.sha256()
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.suffix != ".lock":
                    digest.update(f"{path.relative_to(folder)} {sketch(path)}\n".encode())
            found[f"{name} {number}"] = digest.hexdigest()
    return found


def _stamp(config: EvaluateConfig, inputs: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that the parts depend on."""
    settings = {name: str(value) for name, value in dataclasses.asdict(config).items()}
    return {"config": settings, "inputs": inputs, "part": _PART_FACTS}


def _write_answers(
    to: Path, result: RankerResult, table: pa.Table, by_relation: Mapping[str, Figures]
) -> None:
    """Write every answer of a ranker, and its figures by relation."""
    # A file name of the title: `Prix-LM all (2)` becomes `prix-lm-all-2`.
    name = re.sub(r"\W+", "-", result.title).strip("-").lower()
    for ending in (".parquet", ".tsv"):
        write_ranks(table, to / "answers" / f"{name}{ending}")
    (to / "relations").mkdir(exist_ok=True)
    values = {key: _relation_to_json(part, result.max_rank) for key, part in by_relation.items()}
    text = json.dumps(values, ensure_ascii=False, indent=1)
    write_atomically(to / "relations" / f"{name}.json", text + "\n")


def _rankers(
    kb: KB, config: EvaluateConfig, progress: Progress | None, fusion: Path | None = None
) -> list[tuple[Ranker, str]]:
    """Return all rankers of a config, each with how its ranks are found.

    fusion: a folder that the fusion is read from, or written to if it is not there yet.
    """
    models = [
        ModelRanker(
            Completer(folder, kb, progress, mask=config.mask),
            search=config.search,  # type: ignore[arg-type]  # the config refuses any other word
            by_name=config.by_name,
            name=f"Prix-LM {folder.name}",
            progress=progress,
            beyond=config.beyond,
        )
        for folder in config.models
    ]
    graphs: list[Ranker] = [
        GraphRanker(kb, load_graph(folder, kb), name=f"ComplEx {folder.name}")
        for folder in config.graphs
    ]
    others: list[Ranker] = [load_baseline(kb, folder) for folder in config.baselines]
    others += [
        ReadingRanker(kb, Reader(kb, folder), name=f"reader {folder.name}", progress=progress)
        for folder in config.readers
    ]
    untrained: dict[str, Ranker] = {
        key: make(kb, ("train",)) for key, make in UNTRAINED.items() if key not in config.without
    }
    usual = untrained.pop("usual")  # the reference: it says nothing about a subject
    trained = [*models, *graphs, *others]
    rankers = [usual, *untrained.values(), *trained]
    if config.fuse:
        lookup = untrained.get("lookup") or UNTRAINED["lookup"](kb, ("train",))
        for key in set(NAMES) & set(untrained):  # as in `make_suite`
            untrained[key] = where_unstated(untrained[key], lookup)
        rankers.append(_fuse(kb, [*untrained.values(), *trained], config, fusion, progress))
    rankers = _number_names(rankers)
    how = {ranker.name: describe_ranks(ranker.max_rank) for ranker in rankers}
    for model in models:
        remarks = ["by name"] if config.by_name else []
        remarks += [] if config.mask is None else [f"mask {config.mask}"]
        remarks += [] if model.completer.is_of_this_kb else ["trained on another KB"]
        search = f"beam K = {model.beam}" if config.search == "beam" else "exact"
        how[model.name] = describe_ranks(model.max_rank, search, *remarks)
    return [(ranker, how[ranker.name]) for ranker in rankers]


def _fuse(
    kb: KB,
    rankers: Sequence[Ranker],
    config: EvaluateConfig,
    folder: Path | None,
    progress: Progress | None,
) -> Fusion:
    """Fit a fusion of the rankers, or read it from a folder."""
    settings = FusionConfig(facts=config.fuse_facts)
    if folder is None:
        return Fusion.fit(kb, rankers, settings, config.langs, progress)
    if not folder.is_dir():
        with whole_folder(folder) as temporary:
            Fusion.fit(kb, rankers, settings, config.langs, progress).save(temporary)
    return Fusion.load(kb, rankers, folder)


def _number_names(rankers: list[Ranker]) -> list[Ranker]:
    """Number rankers of one name, as each needs a row of its own."""
    seen: Counter[str] = Counter()
    for ranker in rankers:
        seen[ranker.name] += 1
        if seen[ranker.name] > 1:
            ranker.name = f"{ranker.name} ({seen[ranker.name]})"
    return rankers
