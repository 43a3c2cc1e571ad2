"""Several rankers' evidence as one score and a calibrated confidence.

    fusion = Fusion.fit(kb, [model, pairs, lookup, graph])      # on the valid facts, never on test
    ranked = fusion.best(queries, 10)
    fusion.confidence(ranked.score)                             # 0 to 1

The candidates of a query are what any ranker lists among its best. Each is described by numbers:
its score, rank and gaps with each ranker (missing where a ranker has nothing to say of it), how
sure each ranker is of its first, how often each ranker is right on the relation, and how often the
things involved occur in train. From the valid facts, gradient-boosted trees (scikit-learn) learn
which candidates are true; isotonic regression turns their score into a probability, by what trees
from other valid facts say of each.

Nothing is fitted on test facts. One by one (link prediction), they are not read at all: objects
that only test knows count as false. Together (as `enrich` asks, which never proposes what the KB
states), they are left out of the candidates, as all that is known is.
Saved with skops: no pickle.

Dimension letters: Q queries, N candidates of all queries, F features.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.errors import PrixError
from prixlm.files import write_atomically
from prixlm.kb.store import KB
from prixlm.rankers.base import PairRanker, Queries, Ranked, Ranker, make_ranked
from prixlm.rankers.calibrated import fit_probability
from prixlm.rankers.features import NUM_FEATURES, Context
from prixlm.rankers.heldout import Questions, read_facts
from prixlm.types import Array, Progress

_TREES, _SETTINGS = "fusion.skops", "fusion.json"
_TRUSTED = ["sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"]
"""What a saved fusion is made of, beyond what skops trusts by itself."""
_FOLDS = 10
"""Parts of the valid facts: the record of a relation is counted in the others."""
_MANY = 4000
"""Questions from which on four parts are enough to fit a confidence on, instead of ten."""
_ENOUGH = 200
"""Valid facts of the languages themselves that a confidence is fitted on; else those of all."""
_ASKED = 512
"""Queries whose candidates are looked for at once."""
_CONTEXT, _VIEW = NUM_FEATURES, 5
"""Features of the context, and of each ranker."""


@dataclass(frozen=True, kw_only=True)
class FusionConfig:
    """How evidence is gathered and fitted."""

    depth: int = 20  # answers of each ranker that become candidates
    facts: int = 2500  # valid facts of each language
    parts: int | None = None  # of them: the confidence follows what trees of the others say
    iterations: int = 300  # trees
    rate: float = 0.05
    leaves: int = 12
    shrink: float = 20.0  # facts of a relation that its own record needs to count as much as all
    smallest: int = 200  # candidates in a leaf; with few it learns facts by heart
    together: bool = False  # ask for all valid objects of a question at once, as `enrich` does
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.depth, self.facts, self.iterations, self.smallest) < 1 or self.leaves < 2:
            raise PrixError("depth, facts, iterations, smallest are 1 or more, leaves 2 or more.")
        if (self.parts is not None and self.parts < 2) or not self.rate > 0:
            raise PrixError("parts are 2 or more, and rate is above 0.")


@dataclass(frozen=True)
class Candidates:
    """What the rankers list for some queries."""

    owner: Array  # (N,) the query
    entity: Array  # (N,)
    features: Array  # (N, F)


def fitted_languages(kb: KB, langs: Sequence[str]) -> list[str]:
    """The languages whose valid facts a confidence for some follows: these, or all if few are."""
    held = {lang: kb.num_triples(lang, "valid") for lang in kb.languages}
    own = [lang for lang in langs if held.get(lang)]
    return own if sum(held[lang] for lang in own) >= _ENOUGH else [x for x in held if held[x]]


class Fusion(PairRanker):
    """A ranker made of rankers."""

    def __init__(
        self,
        kb: KB,
        rankers: Sequence[Ranker],
        config: FusionConfig,
        record: "Record | None" = None,
    ) -> None:
        self.name = "fused"
        self.kb, self.rankers, self.config = kb, list(rankers), config
        self.trees: Any = None
        self.isotonic: Any = None
        self.seconds = 0.0  # of fitting
        self.record = record or Record.empty(kb.num_relations, len(self.rankers))
        self.context = Context(kb)

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
        self = cls(kb, rankers, config)
        # What a KB states, `enrich` never proposes: together, it is no wrong answer here either.
        shown = ("train", "known", "test") if config.together else ("train", "valid", "known")
        parts = [
            read_facts(
                kb, lang, "valid", most=config.facts, hide=shown, by_question=config.together
            )
            for lang in langs
        ]
        asked = [part.questions() if config.together else part.singly() for part in parts]
        self._fit(self._examples(asked, progress))
        self.seconds = time.monotonic() - started
        return self

    def _examples(
        self, parts: Sequence[Questions], progress: Progress | None = None
    ) -> "_Examples":
        """The candidates of all queries, language by language."""
        starts = np.cumsum([0, *(len(part.queries) for part in parts)])
        found = []
        for part, start in zip(parts, starts.tolist(), strict=False):
            some = []
            for first in range(0, len(part.queries), _ASKED):
                rows = np.arange(first, min(first + _ASKED, len(part.queries)))
                one = self.candidates(part.queries.select(rows))
                some.append(Candidates(one.owner + first, one.entity, one.features))
                if progress is not None:
                    progress("fit the confidence", start + int(rows[-1]) + 1, int(starts[-1]))
            columns = ("owner", "entity", "features")
            found.append(
                Candidates(*(np.concatenate([getattr(x, name) for x in some]) for name in columns))
            )
        labels = [
            part.is_right(one.owner, one.entity) for one, part in zip(found, parts, strict=True)
        ]
        relation = np.concatenate([part.queries.relation for part in parts]).astype(np.int64)
        subject = np.concatenate([part.queries.subject for part in parts])
        owner = np.concatenate(
            [one.owner + start for one, start in zip(found, starts, strict=False)]
        )
        features = np.concatenate([one.features for one in found])
        right = np.concatenate(labels)
        return _Examples(
            features,
            right,
            owner,
            relation,
            (relation << 32) | self.context.concept[subject],
            _first_right(features, owner, right, len(relation), len(self.rankers)),
        )

    def _fit(self, examples: "_Examples") -> None:
        labels, question = examples.labels, examples.question
        # Trees from nine tenths are most like the last ones; where there is much, fewer will do.
        parts = self.config.parts or (10 if len(question) < _MANY else 4)
        fold = _folds(question, parts, self.config.seed)
        rest = [fold != part for part in range(parts)]
        inside = [part[examples.owner] for part in rest]
        if any(labels[part].all() or not labels[part].any() for part in inside):
            raise PrixError(
                f"{len(np.unique(question))} valid facts with {int(labels.sum())} true answers "
                "among the candidates are too few to fit a fusion on."
            )
        # Every question is scored by trees, and described by records, that have not seen it: what
        # they say of it makes the probability.
        score = np.zeros(len(labels))
        for some, part in zip(rest, inside, strict=True):
            features = self._described(examples, some)
            score[~part] = self._grow(features[part], labels[part], features[~part])
        self.isotonic = fit_probability(score, labels)
        everything = np.ones(len(fold), bool)
        self._grow(self._described(examples, everything), labels, np.zeros((0, 1)))
        self.record = examples.count(everything, self.kb.num_relations)

    def _described(self, examples: "_Examples", some: Array) -> Array:
        """All features: those of the candidates, and the record of their relation: (N, F).

        The record is that of some queries. For these themselves it is counted in ten parts, each
        without its own: counted without one fact alone, it would be lower where that is a hit.
        """
        size, shrink = self.kb.num_relations, self.config.shrink
        shares = examples.count(some, size).shares(examples.relation, shrink)
        fold = _folds(examples.question, _FOLDS, self.config.seed + 1)
        for part in range(_FOLDS):
            own = some & (fold == part)
            record = examples.count(some & ~own, size)
            shares[own] = record.shares(examples.relation[own], shrink)
        return np.concatenate([examples.features, shares[examples.owner]], axis=1)

    def _grow(self, features: Array, labels: Array, others: Array) -> Array:
        """Trees from some candidates, kept; the scores that they give to others."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        nothing = np.isnan(features).all(axis=0)  # which scikit-learn cannot bin
        self.trees = HistGradientBoostingClassifier(
            max_iter=self.config.iterations,
            learning_rate=self.config.rate,
            max_leaf_nodes=self.config.leaves,
            min_samples_leaf=self.config.smallest,
            early_stopping=False,
            random_state=self.config.seed,
        ).fit(np.where(nothing, 0.0, features), labels)
        return np.asarray(self.trees.decision_function(others)) if len(others) else np.zeros(0)

    def candidates(self, queries: Queries) -> Candidates:
        """All that any ranker lists, with their features."""
        lists = [ranker.best(queries, self.config.depth) for ranker in self.rankers]
        keys = [
            (one.owners().astype(np.int64) << 32) | one.entity.astype(np.int64) for one in lists
        ]
        union = np.unique(np.concatenate(keys))
        owner, entity = union >> 32, union & 0xFFFFFFFF
        columns = [self.context.features(queries, owner, entity)]
        for ranker in self.rankers:
            score = ranker.scores(queries, owner, entity).astype(float)
            columns.append(_evidence(score, owner, len(queries)))
        return Candidates(owner, entity, np.concatenate(columns, axis=1))

    def scored(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Query, object and score of every candidate."""
        found = self.candidates(queries)
        if not len(found.owner):
            return found.owner, found.entity, np.zeros(0)
        shares = self.record.shares(queries.relation.astype(np.int64), self.config.shrink)
        features = np.concatenate([found.features, shares[found.owner]], axis=1)
        return found.owner, found.entity, self.trees.decision_function(features)

    def explain(self, queries: Queries, k: int) -> "Explained":
        """The best k of each query, with what every ranker has to say of them."""
        found = self.candidates(queries)
        shares = self.record.shares(queries.relation.astype(np.int64), self.config.shrink)
        features = np.concatenate([found.features, shares[found.owner]], axis=1)
        score = self.trees.decision_function(features) if len(found.owner) else np.zeros(0)
        # The row of each candidate goes the way of its entity, so its evidence is found again.
        ranked = make_ranked(len(queries), found.owner, np.arange(len(score)), score, k)
        rows = ranked.entity
        first = _CONTEXT + _VIEW * np.arange(len(self.rankers))
        return Explained(
            Ranked(ranked.offset, found.entity[rows], ranked.score),
            found.features[rows][:, first],
            np.rint(np.expm1(found.features[rows][:, first + 1])) + 1,
        )

    def confidence(self, scores: Array) -> Array:
        """Scores as probabilities that the fact holds."""
        return np.asarray(self.isotonic.predict(scores)) if len(scores) else np.zeros(0)

    def save(self, folder: Path | str) -> None:
        import skops.io

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        work = folder / (_TREES + ".writing")
        skops.io.dump({"trees": self.trees, "isotonic": self.isotonic}, work)
        work.replace(folder / _TREES)
        settings = {
            "kb": self.kb.fingerprint(),
            "rankers": [ranker.name for ranker in self.rankers],
            "config": asdict(self.config),
            "seconds": self.seconds,
            "record": {"facts": self.record.facts.tolist(), "right": self.record.right.tolist()},
        }
        write_atomically(folder / _SETTINGS, json.dumps(settings, indent=1) + "\n")

    @classmethod
    def load(cls, kb: KB, rankers: Sequence[Ranker], folder: Path | str) -> "Fusion":
        """What `save` wrote, for the same rankers of the same KB."""
        import skops.io

        path = Path(folder) / _SETTINGS
        try:
            settings = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise PrixError(f"{folder} is no fusion: {error}.") from None
        names = [ranker.name for ranker in rankers]
        if settings["rankers"] != names or settings["kb"] != kb.fingerprint():
            raise PrixError(
                f"{folder} was fitted on {', '.join(settings['rankers'])} of another KB or other "
                f"rankers; given are {', '.join(names)} of {kb.folder}. Fit it again."
            )
        parts = skops.io.load(Path(folder) / _TREES, trusted=_TRUSTED)
        counts = settings["record"]
        record = Record(np.array(counts["facts"]), np.array(counts["right"]))
        self = cls(kb, rankers, FusionConfig(**settings["config"]), record)
        self.trees, self.isotonic = parts["trees"], parts["isotonic"]
        self.seconds = settings["seconds"]
        return self


@dataclass(frozen=True)
class Explained:
    """Answers, and the evidence for them; NaN where a ranker has nothing to say."""

    ranked: Ranked
    score: Array  # (N, rankers)
    rank: Array  # (N, rankers) among the candidates of its query, from 1


@dataclass(frozen=True)
class Record:
    """How often each ranker's first answer was right on valid facts, by relation."""

    facts: Array  # (R,)
    right: Array  # (R, rankers)

    @classmethod
    def empty(cls, num_relations: int, num_rankers: int) -> "Record":
        return cls(np.zeros(num_relations), np.zeros((num_relations, num_rankers)))

    @classmethod
    def count(cls, relation: Array, right: Array, num_relations: int) -> "Record":
        """right: (facts, rankers), whether each was right."""
        facts = np.bincount(relation, minlength=num_relations).astype(float)
        columns = [np.bincount(relation, column, num_relations) for column in right.T]
        return cls(facts, np.stack(columns, axis=1))

    def shares(self, relation: Array, shrink: float) -> Array:
        """(Q, rankers): the share of a relation, drawn to that of all where there are few facts."""
        overall = self.right.sum(axis=0) / max(1.0, self.facts.sum())
        facts, right = self.facts[relation][:, None], self.right[relation]
        return np.asarray((right + shrink * overall) / (facts + shrink))


@dataclass(frozen=True)
class _Examples:
    """What a fusion is fitted on: the candidates of all queries."""

    features: Array  # (N, F) without the records of relations
    labels: Array  # (N,) whether it is a truth
    owner: Array  # (N,) the query
    relation: Array  # (Q,)
    question: Array  # (Q,) a thing and a relation: the same one in two languages has one number
    right: Array  # (Q, rankers) whether each ranker's first answer is a truth

    def count(self, some: Array, num_relations: int) -> Record:
        return Record.count(self.relation[some], self.right[some], num_relations)


def _folds(groups: Array, number: int, seed: int) -> Array:
    """A part for every group, drawn: (N,) from 0 to number - 1."""
    names, place = np.unique(groups, return_inverse=True)
    drawn = np.random.default_rng(seed).permutation(len(names)) % number
    return np.asarray(drawn[place.reshape(-1)])


def _first_right(
    features: Array, owner: Array, is_right: Array, number: int, num_rankers: int
) -> Array:
    """Whether each ranker has a truth first: (Q, rankers)."""
    right = np.zeros((number, num_rankers))
    for place in range(num_rankers):
        rank = features[:, _CONTEXT + place * _VIEW + 1]
        right[owner[is_right & (rank == 0)], place] = 1
    return right


def _evidence(score: Array, owner: Array, num_queries: int) -> Array:
    """A ranker's view of all candidates: (N, 5); missing where it has nothing to say of one.

    Its score; its place among them (of equal ones the lower id is first); how far it is above the
    best of the others; its share of the query's scores as exponents; and how far the query's first
    is above the second.
    """
    order = np.lexsort((-score, owner))
    starts = np.searchsorted(owner[order], np.arange(num_queries + 1))
    listed = np.diff(starts)
    first, second = np.full(num_queries, np.nan), np.full(num_queries, np.nan)
    first[listed > 0] = score[order[starts[:-1][listed > 0]]]
    second[listed > 1] = score[order[starts[:-1][listed > 1] + 1]]
    first[np.isinf(first)] = np.nan
    second[np.isinf(second)] = np.nan
    rank = np.empty(len(owner))
    rank[order] = np.arange(len(owner)) - starts[owner[order]]
    others = np.where(rank == 0, second[owner], first[owner])
    weight = np.exp(np.nan_to_num(score - first[owner], nan=-np.inf))
    total = np.bincount(owner, weight, num_queries)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.log(weight / total[owner])
    columns = [score, np.log1p(rank), score - others, share, (first - second)[owner]]
    table = np.stack(columns, axis=1)
    table[np.isinf(score), :4] = np.nan
    table[np.isinf(table)] = np.nan
    return table
