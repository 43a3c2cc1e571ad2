"""Measure the linker: on links that a split withholds, and on the pairs of DBP15K.

    fused = FusedLinking(kb, "en")                       # one more row of `evaluate xel`
    table = evaluate_dbp15k(Path("dbp15k/ja_en"))        # `prixlm evaluate align`

DBP15K (Sun et al., 2017) has two graphs and 15,000 links. 30 % of them are known, and the others
are asked for among the entities that they lead to, which is the usual protocol; figures among all
entities of the other graph stand beside them.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from prixlm.arrays import group_starts, random_positions
from prixlm.decoding.completer import Completer
from prixlm.entities.encoder import EntityEncoder
from prixlm.errors import PrixError
from prixlm.evaluation.entity_linking import Linker, LinkingTask, spelling_scorers
from prixlm.kb.store import KB
from prixlm.linking.evidence import KINDS
from prixlm.linking.graph import Facts
from prixlm.linking.linker import (
    MIN_CASES,
    Linked,
    LinkerConfig,
    LinkProblem,
    Links,
    link_sides,
)
from prixlm.linking.names import Names
from prixlm.linking.problems import kb_problem, withheld_links
from prixlm.metrics import (
    BEYOND,
    AtLevel,
    Interval,
    Reliability,
    at_levels,
    bootstrap_mean,
    bootstrap_ratio,
    calibration_interval,
    rank_values,
    reliability,
)
from prixlm.reports.tables import ResultTable
from prixlm.types import Array, Progress

LEVEL = 0.95
"""Confidence at which precision and recall are shown."""
TITLE = "linker"
_KNOWN = 0.3
"""Share of DBP15K's links that are known."""


@dataclass(frozen=True)
class Measured:
    """How the linker did on some links."""

    ranks: Array  # (Q,) of the right entity; infinity if it is no candidate
    confidence: Reliability  # of the first candidates
    at_level: AtLevel
    intervals: dict[str, Interval]  # of the calibration error, precision and recall

    @classmethod
    def of(cls, linked: Linked, links: Links, allowed: Array | None = None) -> "Measured":
        """Compare with links that the linker did not know.

        links: (Q,) entities of ours and of theirs. allowed: a mask over the entities of theirs.
        """
        left, right, share = linked.pairs.left, linked.pairs.right, linked.share
        size = int(max(left.max(initial=0), links[0].max())) + 1
        truth = np.full(size, -1)
        truth[links[0]] = links[1]
        kept = truth[left] >= 0
        if allowed is not None:
            kept &= allowed[right]
        left, right, share = left[kept], right[kept], share[kept]
        is_right = truth[left] == right
        best = np.full(size, -1.0)  # (entities,) the share of the right candidate
        best[left[is_right]] = share[is_right]
        higher = np.bincount(left, share > best[left], size)
        equal = np.bincount(left, (share == best[left]) & ~is_right, size)
        ranks = np.where(best >= 0, 1 + higher + equal / 2, np.inf)[links[0]]
        order = np.lexsort((right, -share, left))
        first = order[group_starts(left[order])]
        confidence, is_first_right = linked.confidence[kept][first], is_right[first]
        [level] = at_levels(confidence, is_first_right, len(links[0]), (LEVEL,))
        believed = reliability(confidence, is_first_right)
        is_sure = confidence >= LEVEL
        # Recall is of all links: those without a candidate have none that is right.
        found = np.zeros(len(links[0]))
        found[: int((is_sure & is_first_right).sum())] = 1
        intervals = {
            "ece": calibration_interval(confidence, is_first_right, believed),
            "precision": bootstrap_ratio((is_sure & is_first_right) * 1.0, is_sure * 1.0),
            "recall": bootstrap_mean(found),
        }
        return cls(ranks, believed, level, intervals)


class FusedLinking:
    """The linker as a row of entity linking. It reads the train facts and the links of a split."""

    def __init__(
        self,
        kb: KB,
        into: str,
        config: LinkerConfig | None = None,
        *,
        encoder: EntityEncoder | None = None,
        model: Completer | None = None,
    ) -> None:
        self.kb, self.into, self.config = kb, into, config or LinkerConfig()
        self.encoder, self.model = encoder, model
        more = {"encoder": encoder, "decoder": model}
        self.name = row_title(self.config, [kind for kind, one in more.items() if one])
        self.measured: dict[str, Measured] = {}  # by language

    @classmethod
    def with_models(
        cls, kb: KB, into: str, encoders: Sequence[Path] | None, models: Sequence[Path] | None
    ) -> "FusedLinking":
        """Return the linker with the first encoder and the first model as further evidence."""
        return cls(
            kb,
            into,
            encoder=EntityEncoder.load(encoders[0]) if encoders else None,
            model=Completer(models[0], kb) if models else None,
        )

    def check(self, tasks: Mapping[str, LinkingTask]) -> None:
        """Refuse tasks that are not made of the KB's links."""
        if any(task.entities is None for task in tasks.values()):
            raise PrixError("the linker needs the links of a KB: pass --kb.")
        for lang in tasks:
            number, kind = self._cases(lang)
            if number < MIN_CASES:
                raise PrixError(
                    f"{self.kb.folder} has {number} {kind} links from {lang} into {self.into}, and "
                    f"the linker is fitted on {MIN_CASES} or more: leave {lang} out with --langs."
                )

    def _cases(self, lang: str) -> tuple[int, str]:
        """Return how many links the confidence can be fitted on, and of which kind."""
        if self.encoder is not None or self.model is not None:
            return len(withheld_links(self.kb, lang, self.into, "valid")[0]), "withheld valid"
        ours, theirs = (self.kb.entity_range(code) for code in (lang, self.into))
        concept = self.kb.concepts()
        linked = np.isin(concept[ours.start : ours.stop], concept[theirs.start : theirs.stop])
        return int(linked.sum()), "known"

    def ranks(self, task: LinkingTask, lang: str) -> Array:
        """Return (Q,) the rank of the right entity of every mention; infinity without one."""
        assert task.entities is not None, "checked before"
        problem = kb_problem(
            self.kb,
            lang,
            self.into,
            splits=("train",),
            encoder=self.encoder,
            model=self.model,
        )
        linked = link_sides(problem, self.config)
        asked = task.entities - self.kb.entity_range(lang).start
        # Of several right entities, any counts: each is asked for alone, and the best rank stays.
        ranks = np.full(len(asked), np.inf)
        for place in range(int(np.diff(task.offsets).max())):
            at = task.offsets[:-1] + place
            has = np.flatnonzero(at < task.offsets[1:])
            measured = Measured.of(linked, (asked[has], task.right[at[has]]))
            ranks[has] = np.minimum(ranks[has], measured.ranks)
            if place == 0:
                self.measured[lang] = measured
        return ranks


class Unlinked:
    """A method that compares names, among the entities that no known link leads to.

    The linker leaves out what is linked already. This row says how much that alone is worth.
    """

    def __init__(self, kb: KB, into: str, scorer: Linker) -> None:
        self.kb, self.into, self.scorer = kb, into, scorer
        self.name = f"{scorer.name}, among the unlinked"

    def check(self, tasks: Mapping[str, LinkingTask]) -> None:
        """Refuse what the method itself refuses."""
        self.scorer.check(tasks)

    def ranks(self, task: LinkingTask, lang: str) -> Array:
        """Return (Q,) the rank of the right entity of every mention."""
        concept = self.kb.concepts()
        ours, theirs = self.kb.entity_range(lang), self.kb.entity_range(self.into)
        linked = np.isin(concept[theirs.start : theirs.stop], concept[ours.start : ours.stop])
        kept = np.flatnonzero(~linked[task.owner] | np.isin(task.owner, task.right))
        names = [task.names[row] for row in kept.tolist()]
        return self.scorer.ranks(replace(task, names=names, owner=task.owner[kept]), lang)


def row_title(config: LinkerConfig, more: Sequence[str] = ()) -> str:
    """Return the title of the linker's row. more: kinds of evidence beside the usual ones."""
    title = f"{TITLE} with {', '.join(more)}" if more else TITLE
    return title if not config.without else f"{title} without {', '.join(config.without)}"


def ablations(config: LinkerConfig) -> list[LinkerConfig]:
    """Return the linker with all evidence, and without each kind that needs no model."""
    kinds = [kind for kind in KINDS if kind not in ("encoder", "decoder")]
    # The last one has no evidence from names at all.
    sets: list[tuple[str, ...]] = [(), *((kind,) for kind in kinds), tuple(kinds[:3])]
    return [replace(config, without=without) for without in sets]


def calibration_tables(linkers: Sequence[FusedLinking]) -> list[ResultTable]:
    """Return the calibration error, and precision and recall at 0.95, of linkers."""
    titles = ("calibration error", f"precision at {LEVEL}", f"recall at {LEVEL}")
    tables = [ResultTable(title) for title in titles] if linkers else []
    for linker in linkers:
        for lang, measured in linker.measured.items():
            at, number = measured.at_level, len(measured.ranks)
            values = measured.confidence.ece, at.precision, at.recall
            intervals = (measured.intervals[name] for name in ("ece", "precision", "recall"))
            for table, value, interval in zip(tables, values, intervals, strict=True):
                table.add(linker.name, lang, value, number, interval)
    return tables


@dataclass(frozen=True)
class Dbp15k:
    """A pair of DBP15K: a problem that knows 30 % of the links, and the others."""

    problem: LinkProblem
    asked: Links


def read_dbp15k(folder: Path, known: float = _KNOWN, seed: int = 0) -> Dbp15k:
    """Read `ent_ids_1`, `ent_ids_2`, `triples_1`, `triples_2` and `ref_ent_ids` of a folder."""
    texts: list[list[str]] = []
    number: dict[int, int] = {}  # of an entity in both graphs, by its id in the files
    for side in "12":
        rows = _read_rows(folder / f"ent_ids_{side}", 2)
        # The name of an IRI is its last part; DBpedia's names may have slashes themselves.
        texts.append([iri.split("/resource/")[-1].replace("_", " ") for _, iri in rows])
        for key, _ in rows:
            entity = _to_int(key, folder / f"ent_ids_{side}")
            if number.setdefault(entity, len(number)) != len(number) - 1:
                raise PrixError(f"{folder}: ent_ids_1 and _2 have entity {entity} twice.")
    triples = [_read_ids(folder / f"triples_{side}", 3) for side in "12"]
    pairs = _read_ids(folder / "ref_ent_ids", 2)
    try:
        subject, object_, ours, theirs = (
            np.array([number[key] for key in column.tolist()], np.int64)
            for column in (
                *(np.concatenate([table[:, place] for table in triples]) for place in (0, 2)),
                *pairs.T,
            )
        )
    except KeyError as error:
        raise PrixError(f"{folder}: entity {error} has no name in ent_ids_1 or _2.") from None
    sizes = [len(side) for side in texts]
    if (ours >= sizes[0]).any() or (theirs < sizes[0]).any():
        raise PrixError(
            f"{folder}: ref_ent_ids has links that do not lead from an entity of ent_ids_1 to one "
            "of ent_ids_2."
        )
    relation = np.concatenate([table[:, 1] for table in triples])
    is_known = random_positions(len(pairs), seed) < known
    concept = np.arange(len(number))
    concept[theirs[is_known]] = ours[is_known]
    ids = np.arange(sizes[0]), sizes[0] + np.arange(sizes[1])
    langs = folder.name.split("_")  # "ja_en": the languages of the two graphs
    codes: list[str | None] = [*langs] if len(langs) == 2 else [None, None]
    names = [
        Names(side, np.arange(len(side)), langs=lang)
        for side, lang in zip(texts, codes, strict=True)
    ]
    problem = LinkProblem(names[0], names[1], ids, concept, Facts(subject, relation, object_))
    return Dbp15k(problem, (ours[~is_known], theirs[~is_known] - sizes[0]))


def evaluate_dbp15k(
    folders: Sequence[Path],
    config: LinkerConfig | None = None,
    ablate: bool = False,
    progress: Progress | None = None,
) -> list[ResultTable]:
    """Return Hits@1, Hits@10 and MRR on the links that are not known, for each folder."""
    config = config or LinkerConfig()
    tables = []
    for folder in folders:
        data = read_dbp15k(folder)
        table = ResultTable("Hits and MRR", subset=folder.name, has_mean=False)
        task = spelling_task(data)
        for scorer in spelling_scorers():
            _add_ranks(table, scorer.name, scorer.ranks(task, folder.name))
        for settings in ablations(config) if ablate else [config]:
            started = time.monotonic()
            linked = link_sides(data.problem, settings, progress)
            seconds = time.monotonic() - started
            among = np.zeros(len(data.problem.ids[1]), bool)
            among[data.asked[1]] = True
            for title, allowed in (("", among), (", among all entities", None)):
                measured = Measured.of(linked, data.asked, allowed)
                row, number = row_title(settings) + title, len(measured.ranks)
                _add_ranks(table, row, measured.ranks)
                error, interval = measured.confidence.ece, measured.intervals["ece"]
                table.add(row, "calibration error", error, number, interval)
            table.notes.append(f"{row_title(settings)}: {seconds:.0f} seconds.")
        tables.append(table)
    return tables


def spelling_task(data: Dbp15k) -> LinkingTask:
    """Return the asked links as a task for methods that compare names alone.

    The candidates are the entities that the asked links lead to.
    """
    left, right = data.asked
    ours, theirs = data.problem.ours, data.problem.theirs
    our_labels, their_labels = group_starts(ours.owner), group_starts(theirs.owner)
    return LinkingTask(
        names=[theirs.texts[row] for row in their_labels[right].tolist()],
        owner=np.arange(len(right)),
        mentions=[ours.texts[row] for row in our_labels[left].tolist()],
        offsets=np.arange(len(right) + 1),
        right=np.arange(len(right)),
        into=theirs.langs if isinstance(theirs.langs, str) else None,
    )


def _add_ranks(table: ResultTable, row: str, ranks: Array) -> None:
    """Add Hits@1, Hits@10 and MRR of ranks, of which those beyond `BEYOND` count as 0."""
    values = rank_values(np.where(ranks > BEYOND, np.inf, ranks))
    for column, name in (("Hits@1", "hits_1"), ("Hits@10", "hits_10"), ("MRR", "mrr")):
        table.add_questions(row, column, values[name])


def _read_rows(path: Path, width: int) -> list[list[str]]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"{path} cannot be read as text: {error}.") from None
    rows = [line.split("\t") for line in lines if line.strip()]
    for place, row in enumerate(rows, start=1):
        if len(row) != width:
            raise PrixError(f"{path} line {place}: {len(row)} columns, expected {width}.")
    if not rows:
        raise PrixError(f"{path} is empty: expected {width} columns separated by tabs.")
    return rows


def _read_ids(path: Path, width: int) -> Array:
    return np.array([[_to_int(cell, path) for cell in row] for row in _read_rows(path, width)])


def _to_int(text: str, path: Path) -> int:
    # Ids are packed in pairs, and a number of thousands of digits is none for Python.
    if not re.fullmatch(r"\d{1,10}", text.strip(), re.ASCII) or int(text) >= 1 << 31:
        raise PrixError(f"{path}: {text[:60]!r} is not an id; expected a number below 2**31.")
    return int(text)
