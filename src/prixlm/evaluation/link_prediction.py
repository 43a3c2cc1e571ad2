"""Link prediction (Sec. 3.2): rank the missing object of held-out facts among all entities.

    evaluation = evaluate_rankers(kb, EvaluateConfig(models=(Path("model"),)))
    print_tables(console, evaluation.tables())

`rank_facts` makes a table with a row per fact: the question, the true object, its rank and, if
wanted, the best answers. All figures are computed from that table: by language and subset, and by
relation. A `RankerResult` holds the figures of one ranker. It is saved as one JSON file, so that
`reproduce lp` can resume, and is shown as `ResultTable`s.
"""

import dataclasses
import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.decoding.completer import Completer
from prixlm.errors import PrixError
from prixlm.files import check_pages, replacing, write_atomically
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND, Figures, figures
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import GraphRanker, load_graph
from prixlm.rankers.fusion import Fusion
from prixlm.rankers.heldout import SUBSETS, HeldOut, read_facts
from prixlm.rankers.links import LinkRanker
from prixlm.rankers.lm import ModelRanker
from prixlm.rankers.pykeen import load_baseline
from prixlm.rankers.suite import UNTRAINED
from prixlm.reports.plots import plot_tables
from prixlm.reports.tables import ResultTable, read_json, tables_from_json, tables_markdown
from prixlm.types import Progress
from prixlm.untrusted import guard_formula

METRICS = {"hits_1": "Hits@1", "hits_3": "Hits@3", "hits_10": "Hits@10", "mrr": "MRR"}
"""Fields of `Figures` that are shown, and their titles."""
ALL = "all"
"""The subset of all facts."""
_HITS = 10
"""Ranks that Hits@10 needs. A ranker whose ranks end here has no mean reciprocal rank."""


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
            figures = {
                lang: {subset: _figures_from_json(part) for subset, part in parts.items()}
                for lang, parts in values["figures"].items()
            }
            result = cls(**{**values, "figures": figures})
        except (TypeError, KeyError, AttributeError) as error:
            raise PrixError(
                f"{path} is not a valid results row ({error}); delete it to recompute it."
            ) from None
        if "max_rank" not in values:  # version 0.1 wrote the limit into the text alone
            limit = re.search(r"to rank (\d+)", result.how)
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
    known: dict[str, Any] = {
        name: float("nan") if value is None else value for name, value in values.items()
    }
    return Figures(**known)


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
                    number = parts[subset].number
                    table.add(result.title, lang, result.value(lang, subset, metric), number)
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
    write_atomically(to / "table.md", "\n".join(sections))
    values = {title or "rows": [row.to_json() for row in rows] for title, rows in results.items()}
    write_atomically(to / "table.json", json.dumps(values, indent=1) + "\n")


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
    results = [RankerResult.from_json(row, path) for rows in values.values() for row in rows]
    return result_tables([row for row in results if row.figures], ("hits_1", "hits_10"))


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
        columns |= {_column(name): rows for name, rows in part.subsets.items()}
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
        "answer_name": pa.array(kb.names(ranked.entity.tolist())),
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
    masks = {name: table[_column(name)].to_numpy() for name in subsets}
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


def _column(subset: str) -> str:
    return subset.replace(" ", "_")


# Evaluation: all rankers of a command line.


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Which rankers are evaluated, and on which facts."""

    models: tuple[Path, ...] = ()  # folders of Prix-LMs
    graphs: tuple[Path, ...] = ()  # folders of graph embeddings
    baselines: tuple[Path, ...] = ()  # folders of PyKEEN models
    fuse: bool = False  # also evaluate a fusion of all of them
    langs: tuple[str, ...] | None = None  # None: all languages with facts in the split
    split: str = "test"  # test or valid
    most: int | None = None  # facts sampled per language; None: all
    search: str = "beam"  # of a Prix-LM: beam or exact
    by_name: bool = False  # a Prix-LM ranks names instead of entities
    relations: int = 0  # most frequent relations that get figures of their own
    answers: int = 10  # answers per fact that are written to the output folder

    def __post_init__(self) -> None:
        if self.split not in ("test", "valid"):
            raise PrixError(f"--split {self.split}: expected test or valid.")
        if self.search not in ("beam", "exact"):
            raise PrixError(f"--search {self.search}: expected beam or exact.")
        if (self.most is not None and self.most < 1) or self.relations < 0:
            raise PrixError("--most is 1 or more, and --relations 0 or more.")
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

    def tables(self) -> list[ResultTable]:
        """Return all figures of all facts, the MRR of the harder subsets, and the relations."""
        tables = result_tables(self.results)
        tables += result_tables(self.results, ("mrr",), [name for name in SUBSETS if name != ALL])
        for result in self.results:
            table = ResultTable(f"{result.title}, by relation", has_mean=False)
            for relation, part in self.relations.get(result.title, {}).items():
                # Three figures fit 80 characters beside the name of a relation.
                for metric in ("hits_1", "hits_10", "mrr"):
                    value = _relation_to_json(part, result.max_rank)[metric]
                    value = float("nan") if value is None else value
                    table.add(relation, METRICS[metric], value)
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
    kb: KB, config: EvaluateConfig, to: Path | None = None, progress: Progress | None = None
) -> Evaluation:
    """Rank the held-out facts of a KB with all rankers of a config.

    to: a folder for the table as Markdown, JSON and a picture, and all answers as Parquet and TSV.
    """
    langs = config.langs or tuple(
        lang for lang in kb.languages if kb.num_triples(lang, config.split)
    )
    if not langs:
        raise PrixError(
            f"{kb.folder} has no {config.split} triples: make some with `prixlm split`."
        )
    if to is not None:
        check_pages(to / "table.json", [to / "table.md"], lambda values: isinstance(values, dict))
    rankers = _rankers(kb, config, progress)
    facts = [read_facts(kb, lang, config.split, most=config.most) for lang in langs]
    evaluation = Evaluation()
    for ranker, how in rankers:
        started = time.monotonic()
        # Lists of answers cost a second search, so they are made only to be written.
        answers = 0 if to is None else config.answers
        table = rank_facts(kb, ranker, facts, answers=answers, beyond=ranker.max_rank)
        seconds = time.monotonic() - started
        by_language = figures_by_language(table, ranker.max_rank)
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
    return evaluation


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


def _rankers(kb: KB, config: EvaluateConfig, progress: Progress | None) -> list[tuple[Ranker, str]]:
    """Return all rankers of a config, each with how its ranks are found."""
    models = [
        ModelRanker(
            Completer(folder, kb, progress),
            search=config.search,  # type: ignore[arg-type]  # the config refuses any other word
            by_name=config.by_name,
            name=f"Prix-LM {folder.name}",
            progress=progress,
        )
        for folder in config.models
    ]
    graphs: list[Ranker] = [
        GraphRanker(kb, load_graph(folder, kb), name=f"ComplEx {folder.name}")
        for folder in config.graphs
    ]
    others: list[Ranker] = [load_baseline(kb, folder) for folder in config.baselines]
    untrained: dict[str, Ranker] = {key: make(kb, ("train",)) for key, make in UNTRAINED.items()}
    usual = untrained.pop("usual")  # the reference: it says nothing about a subject
    together = [*untrained.values(), *models, *graphs, *others]
    fused: list[Ranker] = [Fusion.fit(kb, together, langs=config.langs)] if config.fuse else []
    rankers = _number_names([usual, *together, *fused])
    how = {ranker.name: describe_ranks(ranker.max_rank) for ranker in rankers}
    for model in models:
        remarks = ["by name"] if config.by_name else []
        remarks += [] if model.completer.is_of_this_kb else ["trained on another KB"]
        search = f"beam K = {model.beam}" if config.search == "beam" else "exact"
        how[model.name] = describe_ranks(model.max_rank, search, *remarks)
    return [(ranker, how[ranker.name]) for ranker in rankers]


def _number_names(rankers: list[Ranker]) -> list[Ranker]:
    """Number rankers of one name, as each needs a row of its own."""
    seen: Counter[str] = Counter()
    for ranker in rankers:
        seen[ranker.name] += 1
        if seen[ranker.name] > 1:
            ranker.name = f"{ranker.name} ({seen[ranker.name]})"
    return rankers
