"""The fusion: several rankers' evidence as one score and one calibrated confidence.

    fusion = Fusion.fit(kb, suite.rankers)              # on the valid facts, never on test
    ranked = fusion.best(queries, 10)
    fusion.confidence(ranked.score)                     # 0 to 1

The candidates of a query are all objects that any ranker lists among its best. Each is described by
named features (see `features`): the score, rank and gaps of each ranker, how often the entities
occur in train, and the *record* of each ranker, which is how often it is right on the relation. On
the valid facts, calibrated trees (see `calibrated`) learn which candidates are true.

Nothing is fitted on test facts. Asked one fact at a time (link prediction), objects that only test
knows count as wrong. Asked for all objects of a question together (`enrich`, which never proposes
what the KB states), known test objects are filtered, like everything that is known.

Dimension letters: Q queries, N candidates of all queries, K rankers, F features, R relations.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.arrays import pair_keys
from prixlm.config import checked, from_dict
from prixlm.errors import PrixError
from prixlm.files import read_json, write_atomically
from prixlm.kb.store import KB
from prixlm.rankers.base import PairRanker, Pairs, Queries, Ranked, Ranker, make_ranked
from prixlm.rankers.calibrated import CalibratedTrees, TreeConfig
from prixlm.rankers.features import CandidateFinder, Candidates, View, num_features
from prixlm.rankers.heldout import Questions, read_facts
from prixlm.types import Array, Progress

_TREES, _SETTINGS, _SECONDS = "fusion.skops", "fusion.json", "seconds.json"
_KINDS = {"kb": str, "rankers": list[str], "config": dict[str, Any], "record": dict[str, Any]}
"""Kinds of the settings."""
FITTED_FILES = (_TREES, _SETTINGS)
"""All that `load` needs: the same bytes whenever they are fitted on the same facts."""
_RECORD_FOLDS = 10
"""Folds of the valid facts: the record that describes a question is counted in the other folds."""
_MANY = 4000
"""Questions from which on four folds are enough to calibrate on, instead of ten."""
_ENOUGH = 200
"""Valid facts that the languages themselves need; with fewer, all languages are fitted on."""
_CHUNK = 512
"""Queries whose candidates are found at once."""


@dataclass(frozen=True, kw_only=True)
class FusionConfig:
    """How evidence is gathered and fitted."""

    depth: int = 20  # answers of each ranker that become candidates
    facts: int = 2500  # valid facts sampled per language
    parts: int | None = None  # folds that the confidence is calibrated with; None: 10, or 4 if many
    iterations: int = 300  # number of trees
    rate: float = 0.05  # learning rate of the trees
    leaves: int = 12  # most leaves of a tree
    shrink: float = 20.0  # facts with which a relation's own record weighs as much as the overall
    smallest: int = 200  # fewest candidates in a leaf; with few, trees memorise single facts
    l2: float = 1.0  # regularises the leaves of the trees
    together: bool = False  # ask for all valid objects of a question at once, as `enrich` does
    seed: int = 0  # of the folds and the trees

    def __post_init__(self) -> None:
        if min(self.depth, self.facts, self.iterations, self.smallest) < 1 or self.leaves < 2:
            raise PrixError("depth, facts, iterations, smallest are 1 or more, leaves 2 or more.")
        if (self.parts is not None and self.parts < 2) or not self.rate > 0 or self.l2 < 0:
            raise PrixError("parts are 2 or more, rate is above 0, and l2 is 0 or more.")

    @property
    def trees(self) -> TreeConfig:
        """How the trees are grown."""
        return TreeConfig(
            iterations=self.iterations,
            rate=self.rate,
            leaves=self.leaves,
            smallest=self.smallest,
            l2=self.l2,
            seed=self.seed,
        )


def fitted_languages(kb: KB, langs: Sequence[str]) -> list[str]:
    """Return the languages whose valid facts a confidence is fitted on.

    These are `langs` themselves, or all languages if `langs` have too few valid facts.
    """
    num_valid = {lang: kb.num_triples(lang, "valid") for lang in kb.languages}
    chosen = [lang for lang in langs if num_valid.get(lang)]
    if sum(num_valid[lang] for lang in chosen) >= _ENOUGH:
        return chosen
    return [lang for lang, number in num_valid.items() if number]


@dataclass(frozen=True)
class Record:
    """How often each ranker's first answer was right on valid facts, by relation."""

    facts: Array  # (R,)
    right: Array  # (R, K)

    @classmethod
    def count(cls, relation: Array, right: Array, num_relations: int) -> "Record":
        """Count by relation. relation: (Q,). right: (Q, K) whether each ranker was right."""
        facts = np.bincount(relation, minlength=num_relations).astype(float)
        columns = [np.bincount(relation, column, num_relations) for column in right.T]
        return cls(facts, np.stack(columns, axis=1))

    def shares(self, relation: Array, shrink: float) -> Array:
        """Return the share right of each ranker on some relations: (Q, K).

        Shares of relations with few facts are shrunk towards the overall share, which counts as
        `shrink` facts.
        """
        overall = self.right.sum(axis=0) / max(1.0, self.facts.sum())
        facts, right = self.facts[relation][:, None], self.right[relation]
        return np.asarray((right + shrink * overall) / (facts + shrink))


@dataclass(frozen=True)
class Explained:
    """Answers, and what each ranker says about them."""

    ranked: Ranked
    rankers: list[Ranker]
    views: list[View]  # one per ranker, a row per answer

    def score(self, ranker: Ranker | None) -> Array:
        """Return a ranker's score of each answer, NaN where it has none: (N,)."""
        return self._view(ranker).score

    def rank(self, ranker: Ranker | None) -> Array:
        """Return a ranker's rank of each answer among the candidates, from 1, or NaN: (N,)."""
        rank = self._view(ranker).rank
        return np.where(rank < 0, np.nan, rank + 1)

    def _view(self, ranker: Ranker | None) -> View:
        """Return the view of a ranker; one without any score if it does not take part."""
        for other, view in zip(self.rankers, self.views, strict=True):
            if other is ranker:
                return view
        nothing = np.full(len(self.ranked.entity), np.nan)
        rank = np.full(len(nothing), -1)
        return View(score=nothing, rank=rank, margin=nothing, share=nothing, lead=nothing)


class Fusion(PairRanker):
    """A ranker made of rankers, with a confidence."""

    def __init__(
        self,
        kb: KB,
        finder: CandidateFinder,
        config: FusionConfig,
        model: CalibratedTrees,
        record: Record,
        seconds: float,
    ) -> None:
        """Take what was fitted: use `fit` or `load`. seconds: how long fitting took."""
        self.name, self.kb, self.finder, self.config = "fused", kb, finder, config
        self.model, self.record, self.seconds = model, record, seconds

    @property
    def rankers(self) -> list[Ranker]:
        """The rankers that are fused, in the order of their features."""
        return self.finder.rankers

    @classmethod
    def fit(
        cls,
        kb: KB,
        rankers: Sequence[Ranker],
        config: FusionConfig | None = None,
        langs: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> "Fusion":
        """Learn from the valid facts of some languages, or of all that have any."""
        config = config or FusionConfig()
        langs = langs or [lang for lang in kb.languages if kb.num_triples(lang, "valid")]
        if not langs:
            raise PrixError(f"{kb.folder} has no valid triples: make some with `prixlm split`.")
        started = time.monotonic()
        finder = CandidateFinder(kb, rankers, config.depth)
        questions = [_read_questions(kb, lang, config) for lang in langs]
        examples = _find_examples(finder, questions, progress)
        model, record = fit_examples(examples, config, kb.num_relations)
        return cls(kb, finder, config, model, record, time.monotonic() - started)

    def over(self, kb: KB, rankers: Sequence[Ranker]) -> "Fusion":
        """Return the same fusion over other rankers: of the same names, that know more facts."""
        names = [ranker.name for ranker in rankers]
        assert names == [ranker.name for ranker in self.rankers], "the features have an order"
        # Counts of more facts than the trees were fitted on would shift the confidence
        # (docs/log.md), so they stay those of the split, unless it numbers concepts differently.
        context = self.finder.context
        is_same = np.array_equal(context.concept, kb.concepts())
        finder = CandidateFinder(kb, rankers, self.config.depth, context if is_same else None)
        return Fusion(kb, finder, self.config, self.model, self.record, self.seconds)

    def scored(self, queries: Queries) -> Pairs:
        """Return query, entity and score of every candidate."""
        candidates = self.finder.find(queries)
        return candidates.owner, candidates.entity, self._score(queries, candidates)

    def explain(self, queries: Queries, k: int) -> Explained:
        """Return the k best objects of each query, with what every ranker says about them."""
        candidates = self.finder.find(queries)
        score = self._score(queries, candidates)
        # Rank row numbers in place of entities, to find the views of the answers again. Rows are
        # sorted as entities are, so ties are broken in the same way.
        rows = np.arange(len(score))
        ranked = make_ranked(len(queries), candidates.owner, rows, score, k)
        rows = ranked.entity
        return Explained(
            Ranked(ranked.offset, candidates.entity[rows], ranked.score),
            self.rankers,
            [view.select(rows) for view in candidates.views],
        )

    def _score(self, queries: Queries, candidates: Candidates) -> Array:
        shares = self.record.shares(queries.relation.astype(np.int64), self.config.shrink)
        features = np.concatenate([candidates.matrix(), shares[candidates.owner]], axis=1)
        return self.model.score(features)

    def confidence(self, scores: Array) -> Array:
        """Turn scores of this fusion into probabilities that the fact holds."""
        return self.model.calibrate(scores)

    def save(self, folder: Path | str) -> None:
        """Write the trees (skops, no pickle), the settings and the seconds (JSON) to a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save(folder / _TREES)
        settings = {
            "kb": self.kb.fingerprint(),
            "rankers": [ranker.name for ranker in self.rankers],
            "config": asdict(self.config),
            "record": {"facts": self.record.facts.tolist(), "right": self.record.right.tolist()},
        }
        write_atomically(folder / _SETTINGS, json.dumps(settings, indent=1) + "\n")
        write_atomically(folder / _SECONDS, json.dumps(self.seconds) + "\n")

    @classmethod
    def load(cls, kb: KB, rankers: Sequence[Ranker], folder: Path | str) -> "Fusion":
        """Read what `save` wrote, for the same rankers of the same KB.

        Without the file of the seconds, fitting counts as 0 seconds.
        """
        path, seconds = Path(folder) / _SETTINGS, Path(folder) / _SECONDS
        try:
            settings = checked(read_json(path), _KINDS)
            counts = checked(settings["record"], {"facts": list[float], "right": list[list[float]]})
        except (OSError, ValueError) as error:
            raise PrixError(f"{folder} is not a fusion: {error}.") from None
        names = [ranker.name for ranker in rankers]
        if settings["rankers"] != names or settings["kb"] != kb.fingerprint():
            raise PrixError(
                f"{folder} was fitted on {', '.join(settings['rankers'])} of another KB or other "
                f"rankers; given are {', '.join(names)} of {kb.folder}. Fit it again."
            )
        config = from_dict(FusionConfig(), settings["config"])
        facts, right = np.array(counts["facts"]), np.array(counts["right"])
        if facts.shape != (kb.num_relations,) or right.shape != (kb.num_relations, len(rankers)):
            raise PrixError(f"{path} has a record of other relations or rankers. Fit it again.")
        model = CalibratedTrees.load(Path(folder) / _TREES)
        # Those of the candidates, and the record of each ranker.
        expected = num_features(len(rankers)) + len(rankers)
        if model.trees.n_features_in_ != expected:
            raise PrixError(
                f"{Path(folder) / _TREES} reads {model.trees.n_features_in_} features, expected "
                f"{expected}. Fit it again."
            )
        return cls(
            kb,
            CandidateFinder(kb, rankers, config.depth),
            config,
            model,
            Record(facts, right),
            read_json(seconds) if seconds.is_file() else 0.0,
        )


@dataclass(frozen=True)
class Examples:
    """What a fusion is fitted on: the candidates of all questions, and which are true."""

    features: Array  # (N, F) without the records
    labels: Array  # (N,) whether the candidate is a true object
    owner: Array  # (N,) the query
    relation: Array  # (Q,)
    question: Array  # (Q,) key of concept and relation: the same in every language
    right: Array  # (Q, K) whether each ranker's first answer is true


def _read_questions(kb: KB, lang: str, config: FusionConfig) -> Questions:
    """Read the valid facts of a language as questions, without what counts as known."""
    # `enrich` never proposes what the KB states; so asked together, that is not a wrong answer.
    known = ("train", "known", "test") if config.together else ("train", "valid", "known")
    facts = read_facts(
        kb, lang, "valid", most=config.facts, filtered=known, by_question=config.together
    )
    return facts.questions() if config.together else facts.singly()


def _find_examples(
    finder: CandidateFinder, languages: Sequence[Questions], progress: Progress | None
) -> Examples:
    """Find the candidates of all questions, language by language."""
    num_queries = sum(len(questions.queries) for questions in languages)
    chunks: list[Examples] = []
    done = 0
    for questions in languages:
        # Candidates are described in chunks: the views of all rankers take much memory.
        for start in range(0, len(questions.queries), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(questions.queries)))
            queries = questions.queries.select(rows)
            candidates = finder.find(queries)
            labels = questions.is_right(candidates.owner + start, candidates.entity)
            relation = queries.relation.astype(np.int64)
            chunks.append(
                Examples(
                    features=candidates.matrix(),
                    labels=labels,
                    owner=candidates.owner + done,
                    relation=relation,
                    question=pair_keys(relation, finder.context.concept[queries.subject]),
                    right=_first_is_right(candidates, labels, len(queries)),
                )
            )
            done += len(queries)
            if progress is not None:
                progress("fit the confidence", done, num_queries)
    columns = [vars(chunk).values() for chunk in chunks]
    return Examples(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _first_is_right(candidates: Candidates, labels: Array, num_queries: int) -> Array:
    """Return whether the first candidate of each ranker is true: (Q, K)."""
    right = np.zeros((num_queries, len(candidates.views)))
    for number, view in enumerate(candidates.views):
        right[candidates.owner[labels & (view.rank == 0)], number] = 1
    return right


def fit_examples(
    examples: Examples, config: FusionConfig, num_relations: int
) -> tuple[CalibratedTrees, Record]:
    """Fit the trees, their probability, and the record of each ranker."""
    # 1. Cut the questions into folds. With ten, the trees that score a fold are nearly the final
    #    ones; where there are many questions, four are as good and faster.
    num_folds = config.parts or (10 if len(examples.question) < _MANY else 4)
    fold = _draw_folds(examples.question, num_folds, config.seed)
    candidate_fold = fold[examples.owner]
    _check_labels(examples, candidate_fold, num_folds)

    # 2. Describe the candidates by the records of the other folds, and fit on that. Every question
    #    is scored by trees, and described by records, that have not seen it.
    def features_without(number: int | None) -> Array:
        known = np.ones(len(fold), bool) if number is None else fold != number
        return _with_records(examples, known, config, num_relations)

    model = CalibratedTrees.cross_fit(
        features_without, examples.labels, candidate_fold, config.trees
    )
    # 3. The record that describes new queries counts all questions.
    return model, Record.count(examples.relation, examples.right, num_relations)


def _check_labels(examples: Examples, candidate_fold: Array, num_folds: int) -> None:
    """Refuse examples with a fold without which only true or only false candidates remain."""
    for number in range(num_folds):
        labels = examples.labels[candidate_fold != number]
        if labels.all() or not labels.any():
            raise PrixError(
                f"{len(np.unique(examples.question))} valid facts with "
                f"{int(examples.labels.sum())} true answers among the candidates are too few to "
                "fit a fusion on. Hold out more (`prixlm split --valid`), or take a larger KB."
            )


def _with_records(
    examples: Examples, known: Array, config: FusionConfig, num_relations: int
) -> Array:
    """Return the features with the rankers' records on each candidate's relation: (N, F + K).

    known: (Q,) the questions that records may count. Their own records are counted in ten folds,
    each without itself: counted without one question alone, the record would be lower exactly where
    the ranker is right on it, and trees would learn that.
    """

    def count(rows: Array) -> Record:
        return Record.count(examples.relation[rows], examples.right[rows], num_relations)

    shares = count(known).shares(examples.relation, config.shrink)
    fold = _draw_folds(examples.question, _RECORD_FOLDS, config.seed + 1)
    for number in range(_RECORD_FOLDS):
        rows = known & (fold == number)
        record = count(known & ~rows)
        shares[rows] = record.shares(examples.relation[rows], config.shrink)
    return np.concatenate([examples.features, shares[examples.owner]], axis=1)


def _draw_folds(groups: Array, number: int, seed: int) -> Array:
    """Draw a fold from 0 to `number` - 1 for each row; equal groups have the same: (N,)."""
    # A question that two languages ask must not be in two folds: trees would have seen its answer.
    distinct, group = np.unique(groups, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(distinct)) % number
    return np.asarray(fold[group.reshape(-1)])
