"""Link prediction with what there is: models, graph embeddings, links, and all of them together.

rows, by_relation = evaluate_rankers(kb, EvaluateConfig(models=(Path("model"),)))
"""

import dataclasses
import json
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from prixlm.errors import PrixError
from prixlm.evaluation.link_prediction import (
    figures_by_language,
    figures_by_relation,
    rank_facts,
    write_ranks,
)
from prixlm.files import write_atomically
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND
from prixlm.rankers.base import Ranker
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.links import Transfer
from prixlm.rankers.lm import ModelRanker
from prixlm.rankers.rules import Rules
from prixlm.reports.tables import Row, plot_rows, write_table
from prixlm.types import Progress


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """What is ranked, and how."""

    models: tuple[Path, ...] = ()
    graphs: tuple[Path, ...] = ()
    baselines: tuple[Path, ...] = ()
    fuse: bool = False
    langs: tuple[str, ...] | None = None  # those with facts of the split if none
    split: str = "test"
    most: int | None = None  # facts of each language; all if none
    search: str = "beam"  # of a Prix-LM: beam or exact
    by_name: bool = False
    relations: int = 0  # how many are told apart
    answers: int = 10  # that are written out for each fact

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


def evaluate_rankers(
    kb: KB, config: EvaluateConfig, to: Path | None = None, progress: Progress | None = None
) -> tuple[list[Row], dict[str, dict[str, dict[str, float | None]]]]:
    """The rows of the table, and by row the figures of the most frequent relations.

    to: a folder for the table as Markdown, JSON and a picture, and every answer as Parquet.
    """
    langs = config.langs or tuple(
        lang for lang in kb.languages if kb.num_triples(lang, config.split)
    )
    if not langs:
        raise PrixError(
            f"{kb.folder} has no {config.split} triples: make some with `prixlm split`."
        )
    rankers = _number_names(_rankers(kb, config, progress))
    facts = [read_facts(kb, lang, config.split, most=config.most) for lang in langs]
    rows, breakdown = [], {}
    for ranker in rankers:
        is_beam = config.search == "beam" and ranker.name.startswith("Prix-LM")
        beyond = 10 if is_beam else BEYOND
        started = time.monotonic()
        answers = 0 if to is None else config.answers
        table = rank_facts(kb, ranker, facts, answers=answers, beyond=beyond)
        seconds = time.monotonic() - started
        how = "beam K = 50, to rank 10" if is_beam else "exact"
        how += ", by name" if config.by_name and ranker.name.startswith("Prix-LM") else ""
        if isinstance(ranker, ModelRanker) and not ranker.completer.is_of_this_kb:
            how += ", trained on another KB"
        rows.append(Row(ranker.name, figures_by_language(table, beyond), how, None, seconds))
        by_relation = figures_by_relation(table, beyond)
        parts = {name: dataclasses.asdict(part) for name, part in by_relation.items()}
        if is_beam:  # it does not know the ranks that it does not find
            parts = {name: part | {"mrr": None} for name, part in parts.items()}
        if config.relations:
            breakdown[ranker.name] = dict(list(parts.items())[: config.relations])
        if to is not None:
            name = re.sub(r"\W+", "-", ranker.name).strip("-").lower()
            for ending in (".parquet", ".tsv"):
                write_ranks(table, to / "answers" / f"{name}{ending}")
            (to / "relations").mkdir(exist_ok=True)
            text = json.dumps(parts, ensure_ascii=False, indent=1)
            write_atomically(to / "relations" / f"{name}.json", text + "\n")
    if to is not None:
        write_table(to, {"": rows})
        plot_rows(rows, to / "table.png")
    return rows, breakdown


def _number_names(rankers: list[Ranker]) -> list[Ranker]:
    """Two of one name would be one row."""
    seen: Counter[str] = Counter()
    for ranker in rankers:
        seen[ranker.name] += 1
        if seen[ranker.name] > 1:
            ranker.name = f"{ranker.name} ({seen[ranker.name]})"
    return rankers


def _rankers(kb: KB, config: EvaluateConfig, progress: Progress | None) -> list[Ranker]:
    from prixlm.decoding.completer import Completer
    from prixlm.rankers.complex import GraphRanker, load_graph
    from prixlm.rankers.fusion import Fusion
    from prixlm.rankers.pykeen import load_baseline

    search = cast(Literal["beam", "exact"], config.search)
    models: list[Ranker] = [
        ModelRanker(
            Completer(folder, kb, progress),
            search=search,
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
    links: list[Ranker] = [Transfer(kb, "direct"), Transfer(kb, "lookup"), Transfer(kb)]
    rules: list[Ranker] = [Rules(kb, "paths"), Rules(kb)]
    together = [*links, *rules, *models, *graphs, *others]
    fused: list[Ranker] = [Fusion.fit(kb, together, langs=config.langs)] if config.fuse else []
    return [Transfer(kb, "usual"), *together, *fused]
