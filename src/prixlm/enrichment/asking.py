"""Ask any question of a KB with all evidence, as the run that made its proposals did.

    asker = Asker.open("work")                     # or the proposals folder and its inputs
    [asked] = asker.ask([("et", subject, relation)], k=5)
    asked.answers[0].entity, asked.answers[0].confidence
    asked.already                                  # objects that the language states

The rankers and the fitted confidence are those of `run`, so a proposal has the same confidence
here. As there, it is the fusion's confidence in the answer times the probability that the question
has an answer which the language lacks. `run` asks only for gaps; here that probability is

- 1 if another language states an object that this language can name but does not state;
- if an object is stated already (in this language, or one that it cannot name): the share of the
  relation's subjects that have several objects. This also holds where the relation nearly always
  has one object, this language states one, and another language states another one;
- otherwise that of `answerable`, from the share of similar entities that have the relation. Below
  the share from which `run` asks, nothing was learnt: it falls in proportion to the share.

Dimension letters: Q questions of one language, N answers of all questions.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np

from prixlm.config import from_dict
from prixlm.enrichment.answerable import Answerability
from prixlm.enrichment.gaps import ELSEWHERE, GapConfig, GapFinder, Gaps
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.proposals.tables import (
    ANSWERABLE_FILE,
    FUSION_FOLDER,
    find_proposals,
    read_manifest,
)
from prixlm.proposals.work import work_folders
from prixlm.rankers.base import Ranked
from prixlm.rankers.fusion import Explained, Fusion
from prixlm.rankers.suite import GRAPH_NAME, MODEL_NAME, READER_NAME, Suite, load_suite
from prixlm.types import Array, Progress

Question = tuple[str, int, int]
"""A language, a subject (an entity of that language) and a relation."""
Kind = Literal["elsewhere", "usual", "unusual", "further"]
"""Why there may be an answer: another language states one; similar entities have the relation, or
few of them do; there may be one beside what is stated already."""


@dataclass(frozen=True)
class Evidence:
    """What one ranker says about an answer."""

    ranker: str  # its name, as in the manifest
    rank: int | None  # among the candidates of the question, from 1; None: it has no score
    score: float | None


@dataclass(frozen=True)
class AskedAnswer:
    """One answer, and why."""

    entity: int
    confidence: float  # probability that the fact holds
    origin: list[str]  # languages that state the fact
    evidence: list[Evidence]  # one per ranker


@dataclass(frozen=True)
class Stated:
    """An object that the language states already."""

    entity: int
    langs: list[str]  # languages that state it


@dataclass(frozen=True)
class Asked:
    """The answers to one question."""

    lang: str
    subject: int
    relation: int
    kind: Kind
    answerable: float  # probability that there is an answer which the language does not state
    answers: list[AskedAnswer]  # best first
    already: list[Stated]


class Asker:
    """The rankers and the fitted confidence of a proposals folder. Threads may share one."""

    def __init__(
        self, kb: KB, suite: Suite, fusion: Fusion, answerable: Answerability, missing: GapConfig
    ) -> None:
        """Take what a run used: `open` reads it. missing: its settings, without the relations."""
        self.kb, self._suite, self._fusion, self._answerable = kb, suite, fusion, answerable
        self._gaps = GapFinder(kb, missing)
        self._lock = threading.Lock()  # rankers keep what they have counted

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        kb: Path | str | None = None,
        split: Path | str | None = None,
        model: Path | str | None = None,
        graph: Path | str | None = None,
        reader: Path | str | None = None,
        progress: Progress | None = None,
    ) -> "Asker":
        """Open a work folder, or a proposals folder and what its run was given.

        Folders that are not given are those of the work folder around the proposals.
        kb: the KB that was asked. split: its split, that the confidence was fitted on; by default
        the KB itself. model, graph, reader: those that answered, if the run used any.
        Refuses, with the reason, anything that would give another confidence.
        """
        proposals = find_proposals(Path(folder))
        manifest = read_manifest(proposals)
        for name in (f"{FUSION_FOLDER}/fusion.json", ANSWERABLE_FILE):
            if not (proposals / name).is_file():
                raise PrixError(
                    f"{proposals} lacks {name}, the fitted confidence: it was made by an older "
                    "prixlm. Run `prixlm enrich` again, to another folder."
                )
        missing = _gap_config(manifest, proposals)
        found = work_folders(proposals.parent)
        kb_folder = kb or found.get("kb")
        if kb_folder is None:
            raise PrixError(f"{proposals} is not in a work folder: name its KB.")
        asked_kb = _open_kb(kb_folder, manifest["kb"], "the KB of", proposals)
        split_folder = split or found.get("split") or kb_folder
        fitted_kb = _open_kb(
            split_folder, manifest["fitted_on_kb"], "the split that fitted", proposals
        )
        used: dict[str, Path | str | None] = {}
        answering = ((MODEL_NAME, "model", model), (GRAPH_NAME, "graph", graph))
        for name, key, given in (*answering, (READER_NAME, "reader", reader)):
            # What the run did not use cannot take part: the confidence is fitted without it.
            used[key] = (given or found.get(key)) if name in manifest["rankers"] else None
            if name in manifest["rankers"] and used[key] is None:
                raise PrixError(f"{proposals} was made with a {key} that is not there: name it.")
        suite = load_suite(
            asked_kb,
            used["model"],
            used["graph"],
            progress,
            missing.known,
            reader=used["reader"],
            split=fitted_kb,
        )
        if suite.identity != manifest["trained"]:
            given_names = " and ".join(str(value) for value in used.values() if value is not None)
            raise PrixError(
                f"{proposals} was made with another model or graph embedding, or another reader, "
                f"than {given_names}. Name those of the same run."
            )
        try:
            fusion = Fusion.load(fitted_kb, suite.rankers, proposals / FUSION_FOLDER)
            answerable = Answerability.load(proposals / ANSWERABLE_FILE)
            if len(answerable.rate) != asked_kb.num_relations:
                raise ValueError(f"{ANSWERABLE_FILE} has {len(answerable.rate)} relations")
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            raise PrixError(
                f"the fitted confidence in {proposals} cannot be read ({error!r}). Run "
                "`prixlm enrich` again, to another folder."
            ) from None
        return cls(asked_kb, suite, fusion.over(asked_kb, suite.rankers), answerable, missing)

    @property
    def rankers(self) -> list[str]:
        """The names of the rankers, in the order of each answer's evidence."""
        return [ranker.name for ranker in self._suite.rankers]

    def ask(self, questions: Sequence[Question], k: int = 5) -> list[Asked]:
        """Return the k best answers to each question that its language does not state yet."""
        if k < 1:
            raise PrixError(f"k {k}: expected 1 or more.")
        for question in questions:
            self._check(question)
        langs = sorted({lang for lang, _, _ in questions})
        asked: list[Asked | None] = [None] * len(questions)
        with self._lock:
            for lang in langs:
                rows = [row for row, question in enumerate(questions) if question[0] == lang]
                subject = np.array([questions[row][1] for row in rows], np.int64)
                relation = np.array([questions[row][2] for row in rows], np.int64)
                for row, answer in zip(rows, self._ask(lang, subject, relation, k), strict=True):
                    asked[row] = answer
        return [answer for answer in asked if answer is not None]

    def _check(self, question: Question) -> None:
        lang, subject, relation = question
        entities = self.kb.entity_range(lang)
        if subject not in entities:
            raise PrixError(
                f"no entity {subject} in {lang}: it has {entities.start} to {entities.stop - 1}."
            )
        if not 0 <= relation < self.kb.num_relations:
            raise PrixError(f"no relation {relation}: expected 0 to {self.kb.num_relations - 1}.")

    def _ask(self, lang: str, subject: Array, relation: Array, k: int) -> list[Asked]:
        """Answer questions of one language. subject, relation: (Q,)."""
        gaps = self._gaps.describe(lang, subject, relation)
        kind, answerable = self._judge(gaps)
        # Answers that are known under another name of the object are dropped below: ask for more.
        explained = self._fusion.explain(gaps.queries, k + self._fusion.config.depth)
        ranked = explained.ranked
        confidence = self._fusion.confidence(ranked.score) * answerable[ranked.owners()]
        lookup = self._suite.links["lookup"]
        origins = lookup.origins(gaps.queries, ranked)
        evidence = _evidence(explained)
        known = Ranked(gaps.queries.offset, gaps.queries.filtered, gaps.queries.filtered * 0.0)
        known_origins = lookup.origins(gaps.queries, known)
        asked = []
        for row in range(len(subject)):
            answers = [
                AskedAnswer(
                    int(ranked.entity[n]), round(float(confidence[n]), 6), origins[n], evidence[n]
                )
                for n in range(ranked.offset[row], ranked.offset[row + 1])
                if lang not in origins[n]
            ]
            already: dict[int, Stated] = {}  # by concept: it may have several names
            for n in range(known.offset[row], known.offset[row + 1]):
                entity = int(known.entity[n])
                concept = int(self._gaps.concept[entity])
                already.setdefault(concept, Stated(entity, known_origins[n]))
            asked.append(
                Asked(
                    lang,
                    int(subject[row]),
                    int(relation[row]),
                    kind[row],
                    round(float(answerable[row]), 6),
                    answers[:k],
                    list(already.values()),
                )
            )
        return asked

    def _judge(self, gaps: Gaps) -> tuple[list[Kind], Array]:
        """Return the kind of each question, and the probability that it has an answer: (Q,)."""
        queries = gaps.queries
        is_known = np.diff(queries.offset) > 0
        is_complete = is_known & self._gaps.has_one_object[queries.relation]
        is_elsewhere = (gaps.kind == ELSEWHERE) & ~is_complete
        is_further = ~is_elsewhere & self._gaps.is_stated(queries.subject, queries.relation)
        usual = self._gaps.config.usual
        is_usual = gaps.expected >= usual
        guessed = self._answerable.predict(replace(gaps, expected=gaps.expected.clip(usual)))
        guessed = np.where(is_usual, guessed, guessed * gaps.expected / max(usual, 1e-9))
        share = self._gaps.share_with_several[queries.relation]
        answerable = np.where(is_further, share, guessed)
        names = np.where(is_usual, "usual", "unusual")
        names = np.where(is_further, "further", np.where(is_elsewhere, "elsewhere", names))
        kinds: list[Kind] = names.tolist()
        return kinds, answerable


def _evidence(explained: Explained) -> list[list[Evidence]]:
    """Return what each ranker says about each answer: N lists of one entry per ranker."""

    def plain(value: Any) -> Any:
        return None if np.isnan(value) else value

    columns = [
        [
            Evidence(ranker.name, rank if rank is None else int(rank), plain(score))
            for rank, score in zip(
                map(plain, explained.rank(ranker).tolist()),
                explained.score(ranker).tolist(),
                strict=True,
            )
        ]
        for ranker in explained.rankers
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _open_kb(folder: Path | str, fingerprint: str, role: str, proposals: Path) -> KB:
    kb = KB(folder)
    if kb.fingerprint() != fingerprint:
        raise PrixError(
            f"{folder} is not {role} {proposals}: it is another KB or has changed since. Name the "
            "one that the proposals were made from, or run `prixlm enrich` again."
        )
    return kb


def _gap_config(manifest: dict[str, Any], proposals: Path) -> GapConfig:
    """Return the settings of a run's questions, for all relations.

    Refuses a manifest that does not say what the confidence was fitted on.
    """
    values = manifest["config"].get("missing")
    for name in ("fitted_on_kb", "rankers", "trained"):
        if manifest.get(name) is None or values is None:
            raise PrixError(
                f"the manifest of {proposals} does not say what its confidence was fitted on "
                f"({name if values is not None else 'config.missing'}). Run `prixlm enrich` again."
            )
    return from_dict(GapConfig(), dict(values) | {"relations": None})
