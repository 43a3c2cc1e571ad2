"""Link prediction (Sec. 3.2): rank the missing object of held-out facts among all entities.

    evaluation = evaluate_rankers(kb, EvaluateConfig(models=(Path("model"),)))
    print_tables(console, evaluation.tables())

`rank_facts` makes a table with a row per fact: the question, the true object, its rank and, if
wanted, the best answers. All figures are computed from that table: by language and subset, and by
relation. They are kept and shown as `reports.ranker_results`, and the ranks as `reports.ranks`.
"""

import contextlib
import dataclasses
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.decoding.completer import Completer
from prixlm.decoding.reader import Reader
from prixlm.engine.jobs import EngineConfig, Shard, ShardJob, made_by, make_parts
from prixlm.engine.overwriting import check_pages
from prixlm.engine.parts import shard_size
from prixlm.engine.workspace import Workspace, open_workspace, partial_folder
from prixlm.errors import PrixError
from prixlm.files import alone, sketch, whole_folder, write_atomically
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND, Figures, figures
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import GraphRanker, load_graph
from prixlm.rankers.fusion import Fusion, FusionConfig
from prixlm.rankers.heldout import (
    CHOICES,
    SUBSETS,
    UNSEEN_SUBSETS,
    HeldOut,
    read_facts,
    unseen_facts,
)
from prixlm.rankers.links import LinkRanker, where_unstated
from prixlm.rankers.lm import ModelRanker, ReadingRanker
from prixlm.rankers.names import OpenWorldRanker
from prixlm.rankers.pykeen import load_baseline
from prixlm.rankers.suite import UNTRAINED, WHERE_UNSTATED
from prixlm.remote import absolute, is_remote, local_folder, staged_folder
from prixlm.reports.ranker_results import (
    ALL,
    HITS_DEPTH,
    METRICS,
    RankerResult,
    describe_ranks,
    figures_to_json,
    plot_results,
    result_tables,
    write_results,
)
from prixlm.reports.ranks import column_of, write_ranks
from prixlm.reports.tables import ResultTable
from prixlm.types import Progress

_PART_FACTS = 2048
"""Facts that one ranker ranks for a part."""
_COUNTED = ("lang", "relation", "relation_name", "rank")
"""Columns that figures are computed from, beside those of the subsets."""
ReadRanks = Callable[[list[str] | None], Iterator[pa.Table]]
"""Yields the ranks of one ranker, part by part, some columns or all: answers may be many GB."""
_SECONDS = b"seconds"
"""Metadata of a part: how long its ranks took."""
_FUSION = "fusion"
_FOLDERS = ("models", "graphs", "baselines", "readers")
"""Fields of the config that name trained folders."""


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
    open_world: bool = False  # each graph also ranks objects without facts, by their names
    fuse: bool = False  # also evaluate a fusion of all of them
    without: tuple[str, ...] = ()  # rankers without training that are left out, by their keys
    langs: tuple[str, ...] | None = None  # None: all languages with facts in the split
    split: str = "test"  # test or valid
    most: int | None = None  # facts sampled per language; None: all
    unseen: bool = False  # only facts with an entity that no train triple has, as in the paper
    subset: tuple[str, ...] = ()  # only facts in all of these, keys of `CHOICES`; drawn from these
    search: str = "beam"  # of a Prix-LM: beam or exact
    by_name: bool = False  # a Prix-LM ranks names instead of entities
    mask: str | None = None  # read a Prix-LM with another mask than its own, such as released
    relations: int = 0  # most frequent relations that get figures of their own
    answers: int = 10  # answers per fact that are written to the output folder; 0: none
    beyond: int = BEYOND  # deepest rank of a Prix-LM's exact search; higher ones count as infinity
    fuse_facts: int = FusionConfig.facts  # valid facts per language that the fusion is fitted on
    fuse_seed: int = 0  # of the fusion's folds and trees

    def __post_init__(self) -> None:
        if self.split not in ("test", "valid"):
            raise PrixError(f"--split {self.split}: expected test or valid.")
        if self.search not in ("beam", "exact"):
            raise PrixError(f"--search {self.search}: expected beam or exact.")
        if (self.most is not None and self.most < 1) or self.relations < 0:
            raise PrixError("--most is 1 or more, and --relations 0 or more.")
        if self.answers < 0 or self.fuse_facts < 1:
            raise PrixError("--answers is 0 or more, and --fuse-facts 1 or more.")
        if self.fuse_seed < 0:
            raise PrixError(f"--fuse-seed {self.fuse_seed}: expected 0 or more.")
        if not HITS_DEPTH <= self.beyond <= BEYOND:
            raise PrixError(
                f"--beyond {self.beyond}: expected {HITS_DEPTH}, which Hits@10 needs, "
                f"to {BEYOND:,}."
            )
        unknown = [key for key in self.subset if key not in CHOICES]
        if unknown:
            raise PrixError(f"--subset {', '.join(unknown)}: expected {', '.join(CHOICES)}.")
        unknown = [key for key in self.without if key not in _OPTIONAL]
        if unknown:
            raise PrixError(f"--without {', '.join(unknown)}: expected {', '.join(_OPTIONAL)}.")
        if self.beyond != BEYOND and self.search != "exact":
            raise PrixError("--beyond is of --search exact: a beam finds ranks up to 10.")
        if self.open_world and not self.graphs:
            raise PrixError("--open-world requires --graph.")
        if self.fuse_facts != FusionConfig.facts and not self.fuse:
            raise PrixError("--fuse-facts requires --fuse.")
        if self.fuse_seed and not self.fuse:
            raise PrixError("--fuse-seed requires --fuse.")
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

    def add(self, result: RankerResult, by_relation: Mapping[str, Figures], most: int) -> None:
        """Add a row, and the figures of its `most` most frequent relations."""
        self.results.append(result)
        if most:
            self.relations[result.title] = dict(list(by_relation.items())[:most])

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
    values = figures_to_json(part)
    return values if max_rank > HITS_DEPTH else values | {"mrr": None}


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
    Finished parts lie in TO.partial, and the same call resumes from them.
    engine: where the facts are ranked.
    """
    if to is not None and is_remote(to):
        with staged_folder(to) as folder:
            return evaluate_rankers(kb, config, folder, progress, engine=engine)
    if to is None and engine is not None and engine != EngineConfig():
        raise PrixError("--engine and --workers require --to: finished parts are kept beside it.")
    langs = _languages(kb, config)
    if to is not None:
        check_pages(to / "table.json", [to / "table.md"], lambda values: isinstance(values, dict))
    facts = _read_facts(kb, config, langs)
    evaluation = Evaluation(unseen=config.unseen)
    subsets = list(facts[0].subsets)
    with contextlib.ExitStack() as stack:
        if to is not None:
            inputs = _inputs(kb, config)
            stamp = _stamp(config, inputs) | {"made by": made_by(engine)}
            work = stack.enter_context(open_workspace(partial_folder(to), stamp))
            rankers = _rankers(kb, config, progress, work.folder / _FUSION)
            is_here = engine is None or engine.is_here
            asked = [ranker for ranker, _ in rankers]
            ranking = _Ranking(kb, config.answers, asked, facts, inputs, is_here)
            tables = _rank_in_parts(ranking, config, work, engine, progress)
        else:
            rankers = _rankers(kb, config, progress)
            tables = _rank_here(kb, rankers, facts)
        if to is not None:  # not before the rankers are loaded: a folder would be left
            to.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(to / "table.json", wait=False))
        columns = [*_COUNTED, *map(column_of, subsets)]
        for (ranker, how), (ranked, seconds) in zip(rankers, tables, strict=True):
            table = pa.concat_tables(ranked(columns))
            by_language = figures_by_language(table, ranker.max_rank, subsets)
            result = RankerResult(ranker.name, by_language, how, None, seconds, ranker.max_rank)
            by_relation = figures_by_relation(table, ranker.max_rank)
            evaluation.add(result, by_relation, config.relations)
            if to is not None:
                _write_answers(to, result, ranked, by_relation)
        if to is not None:
            write_results(to, {"": evaluation.results})
            plot_results(evaluation.results, to / "table.png")
            work.remove()
    return evaluation


def _languages(kb: KB, config: EvaluateConfig) -> Sequence[str]:
    """Return the languages of a config, or all that have facts to rank."""
    langs = config.langs or tuple(
        lang for lang in kb.languages if kb.num_triples(lang, config.split)
    )
    if not langs:
        raise PrixError(
            f"{kb.folder} has no {config.split} triples: make some with `prixlm split`."
        )
    return langs


def _read_facts(kb: KB, config: EvaluateConfig, langs: Sequence[str]) -> list[HeldOut]:
    """Return the facts to rank, one language each."""
    split, most, within = config.split, config.most, config.subset
    if config.unseen:
        facts = unseen_facts(kb, langs, split, most=most, keep_subsets=True, within=within)
    else:
        read = [read_facts(kb, lang, split, most=most, within=within) for lang in langs]
        facts = [part for part in read if len(part)]
    if not facts and within:
        raise PrixError(f"no {split} fact of {kb.folder} is in {', '.join(within)}.")
    if not facts:
        raise PrixError(
            f"train has every entity of the {config.split} facts of {kb.folder}: draw the paper's "
            "split with `prixlm split KB --resplit --to SPLIT`, or leave out --unseen."
        )
    return facts


def _rank_here(
    kb: KB, rankers: Sequence[tuple[Ranker, str]], facts: Sequence[HeldOut]
) -> Iterator[tuple[ReadRanks, float | None]]:
    """Yield the ranks of each ranker, and the seconds that they took.

    Without lists of answers: these cost a second search, so they are made only to be written.
    """
    for ranker, _ in rankers:
        started = time.monotonic()
        table = rank_facts(kb, ranker, facts, beyond=ranker.max_rank)
        yield partial(_select, table), time.monotonic() - started


def _select(table: pa.Table, columns: list[str] | None = None) -> Iterator[pa.Table]:
    yield table if columns is None else table.select(columns)


def _read_tables(paths: Sequence[Path], columns: list[str] | None = None) -> Iterator[pa.Table]:
    for path in paths:
        yield pq.read_table(path, columns=columns).replace_schema_metadata(None)


def _seconds_of(paths: Sequence[Path]) -> float | None:
    """Return how long the ranks of parts took; None if other processes made some of them."""
    found = [(pq.read_schema(path).metadata or {}).get(_SECONDS) for path in paths]
    known = [float(seconds) for seconds in found if seconds is not None]
    return sum(known) if len(known) == len(found) else None


def _rank_in_parts(
    ranking: "_Ranking",
    config: EvaluateConfig,
    work: Workspace,
    engine: EngineConfig | None,
    progress: Progress | None,
) -> Iterator[tuple[ReadRanks, float | None]]:
    """Yield the ranks of each ranker, found part by part, and the seconds that they took.

    Seconds of workers are not counted: they rank several parts at once.
    """
    total = len(ranking.rankers) * sum(map(len, ranking.facts))
    size = shard_size(total, _PART_FACTS)
    shards: list[Shard] = []
    owner: list[int] = []  # the ranker of each shard
    for number in range(len(ranking.rankers)):
        for language, part in enumerate(ranking.facts):
            for start in range(0, len(part), size):
                rows = range(start, min(start + size, len(part)))
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
        own = [path for path, one in zip(paths, owner, strict=True) if one == number]
        yield partial(_read_tables, own), _seconds_of(own)


@dataclass(frozen=True)
class _Ranking:
    """Ranks slices of the facts: what a worker has loaded."""

    kb: KB
    answers: int
    rankers: Sequence[Ranker]
    facts: Sequence[HeldOut]  # one language each
    loaded_from: dict[str, str]
    is_timed: bool = False  # note in each part how long it took: not where its bytes are compared

    def inputs(self) -> dict[str, str]:
        """Return what tells the KB and trained folders from others."""
        return self.loaded_from

    def __call__(self, value: tuple[int, int, range], path: Path) -> None:
        """Write the ranks of some facts of a language by one ranker."""
        number, language, rows = value
        ranker, part = self.rankers[number], self.facts[language].select(np.asarray(rows))
        started = time.monotonic()
        table = rank_facts(self.kb, ranker, [part], answers=self.answers, beyond=ranker.max_rank)
        if self.is_timed:
            seconds = {_SECONDS: str(time.monotonic() - started).encode()}
            table = table.replace_schema_metadata(seconds)
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
    to: Path, result: RankerResult, ranked: ReadRanks, by_relation: Mapping[str, Figures]
) -> None:
    """Write every answer of a ranker, and its figures by relation."""
    # A file name of the title: `Prix-LM all (2)` becomes `prix-lm-all-2`.
    name = re.sub(r"\W+", "-", result.title).strip("-").lower()
    for ending in (".parquet", ".tsv"):
        write_ranks(ranked(None), to / "answers" / f"{name}{ending}")
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
    graphs: list[Ranker] = []
    for folder in config.graphs:
        graph = load_graph(folder, kb)
        graphs.append(GraphRanker(kb, graph, name=f"ComplEx {folder.name}"))
        if config.open_world:
            name = f"ComplEx {folder.name}: new objects"
            graphs.append(OpenWorldRanker(kb, graph, name=name))
    others: list[Ranker] = [load_baseline(kb, folder) for folder in config.baselines]
    readers = [
        ReadingRanker(kb, Reader(kb, folder), name=f"reader {folder.name}", progress=progress)
        for folder in config.readers
    ]
    for model in models:  # graphs and baselines were checked when they were loaded
        model.model.settings.lineage.check_tested_facts(kb, model.name)
    for reader in readers:
        reader.reader.lineage.check_tested_facts(kb, reader.name)
    untrained: dict[str, Ranker] = {
        key: make(kb, ("train",)) for key, make in UNTRAINED.items() if key not in config.without
    }
    usual = untrained.pop("usual")  # the reference: it says nothing about a subject
    trained = [*models, *graphs, *others, *readers]
    rankers = [usual, *untrained.values(), *trained]
    if config.fuse:
        lookup = untrained.get("lookup") or UNTRAINED["lookup"](kb, ("train",))
        for key in set(WHERE_UNSTATED) & set(untrained):  # as in `make_suite`
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
    asked = f", facts: {' and '.join(config.subset)}" if config.subset else ""
    return [(ranker, how[ranker.name] + asked) for ranker in rankers]


def _fuse(
    kb: KB,
    rankers: Sequence[Ranker],
    config: EvaluateConfig,
    folder: Path | None,
    progress: Progress | None,
) -> Fusion:
    """Fit a fusion of the rankers, or read it from a folder."""
    settings = FusionConfig(facts=config.fuse_facts, seed=config.fuse_seed)
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
