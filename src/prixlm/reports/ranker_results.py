"""The figures of a ranker as a row of a table: saved as JSON, shown as tables, read again.

    result = RankerResult("lookup", figures, "exact")       # figures by language, then subset
    result.save(Path("out/rows/lookup.json"))               # so that a table resumes
    write_results(Path("out"), {"": [result]})              # out/table.json and out/table.md
    tables = read_run(Path("out"))                          # of this or any other task

Link prediction makes these rows; ranks of single facts are in `ranks`.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prixlm.config import checked
from prixlm.errors import PrixError
from prixlm.files import write_atomically
from prixlm.metrics import BEYOND, Figures, Interval
from prixlm.reports.plots import plot_tables
from prixlm.reports.tables import ResultTable, read_json, tables_from_json, tables_markdown

METRICS = {"hits_1": "Hits@1", "hits_3": "Hits@3", "hits_10": "Hits@10", "mrr": "MRR"}
"""Fields of `Figures` that are shown, and their titles."""
ALL = "all"
"""The subset of all facts."""
HITS_DEPTH = 10
"""Ranks that Hits@10 needs. A ranker whose ranks end here has no mean reciprocal rank."""
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
        is_known = metric != "mrr" or self.max_rank > HITS_DEPTH
        return float(getattr(self.figures[lang][subset], metric)) if is_known else float("nan")

    def interval(self, lang: str, subset: str, metric: str) -> Interval | None:
        """Return the interval of one figure; None if the figure or its interval is not known."""
        is_known = metric != "mrr" or self.max_rank > HITS_DEPTH
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
            lang: {subset: figures_to_json(part) for subset, part in parts.items()}
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


def figures_to_json(part: Figures) -> dict[str, Any]:
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
