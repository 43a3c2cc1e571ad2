"""Several rankers' evidence as one score and a calibrated confidence.

    fusion = Fusion.fit(kb, [model, pairs, lookup, graph])      # on the valid facts, never on test
    ranked = fusion.best(queries, 10)
    fusion.confidence(ranked.score)                             # 0 to 1

The candidates of a query are what any ranker lists among its best. Each is described by numbers:
its score, rank and gaps with each ranker (missing where a ranker does not list it), how sure each
ranker is of its own first answer, and how often the things involved occur in train. From the valid
facts, gradient-boosted trees (scikit-learn) learn which candidates are true; isotonic regression,
on valid facts that the trees have not seen, turns their score into a probability.

Nothing of the test facts is read here: objects that only test knows count as false in fitting.
Saved with skops: no pickle.

Dimension letters: Q queries, N candidates of all queries, F features.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.errors import PrixError
from prixlm.heldout import HeldOut, read_facts
from prixlm.kb.disk import write_atomically
from prixlm.kb.merged import read_merged
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND
from prixlm.ranking import Queries, Ranked, Ranker, make_ranked, ranks_from_pairs

Array = np.ndarray[Any, Any]
_TREES, _SETTINGS = "fusion.skops", "fusion.json"
_TRUSTED = ["sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"]
"""What a saved fusion is made of, beyond what skops trusts by itself."""


@dataclass(frozen=True, kw_only=True)
class FusionConfig:
    """How evidence is gathered and fitted."""

    depth: int = 50  # answers of each ranker that become candidates
    facts: int = 2000  # valid facts of each language
    held_out: float = 0.25  # share of them that the confidence is fitted on
    iterations: int = 200  # trees
    rate: float = 0.08
    leaves: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.depth, self.facts, self.iterations) < 1 or self.leaves < 2:
            raise PrixError("depth, facts and iterations are 1 or more, and leaves 2 or more.")
        if not 0 < self.held_out < 1 or not self.rate > 0:
            raise PrixError("held_out is between 0 and 1, and rate above 0.")


@dataclass(frozen=True)
class Candidates:
    """What the rankers list for some queries."""

    owner: Array  # (N,) the query
    entity: Array  # (N,)
    features: Array  # (N, F)


class Fusion:
    """A ranker made of rankers."""

    def __init__(
        self, kb: KB, rankers: Sequence[Ranker], config: FusionConfig, trees: Any, isotonic: Any
    ) -> None:
        self.name = "fused"
        self.kb, self.rankers, self.config = kb, list(rankers), config
        self.trees, self.isotonic = trees, isotonic
        self.context = _Context(kb)

    @classmethod
    def fit(
        cls,
        kb: KB,
        rankers: Sequence[Ranker],
        config: FusionConfig | None = None,
        langs: Sequence[str] | None = None,
    ) -> "Fusion":
        """Learn from the valid facts of some languages, or of all that have any."""
        config = config or FusionConfig()
        langs = langs or [lang for lang in kb.languages if kb.num_triples(lang, "valid")]
        if not langs:
            raise PrixError(f"{kb.folder} has no valid triples: make some with `prixlm split`.")
        self = cls(kb, rankers, config, None, None)
        shown = ("train", "valid")
        parts = [read_facts(kb, lang, "valid", most=config.facts, hide=shown) for lang in langs]
        features, labels, groups = self._examples(parts)
        self._fit(features, labels, groups)
        return self

    def _examples(self, parts: Sequence[HeldOut]) -> tuple[Array, Array, Array]:
        """Features, whether it is the truth, and the number of the fact, of all candidates."""
        features, labels, groups, before = [], [], [], 0
        for part in parts:
            found = self.candidates(part.queries)
            features.append(found.features)
            labels.append(found.entity == part.objects[found.owner])
            groups.append(found.owner + before)
            before += len(part)
        return np.concatenate(features), np.concatenate(labels), np.concatenate(groups)

    def _fit(self, features: Array, labels: Array, groups: Array) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.isotonic import IsotonicRegression

        features[:, np.isnan(features).all(axis=0)] = 0  # scikit-learn cannot bin nothing at all
        generator = np.random.default_rng(self.config.seed)
        asked = np.unique(groups)
        later = generator.permutation(asked)[: round(len(asked) * self.config.held_out)]
        is_later = np.isin(groups, later)
        if labels[is_later].all() or not labels[is_later].any() or not labels[~is_later].any():
            raise PrixError(
                f"{len(asked)} valid facts with {int(labels.sum())} true answers among the "
                "candidates are too few to fit a fusion on."
            )
        self.trees = HistGradientBoostingClassifier(
            max_iter=self.config.iterations,
            learning_rate=self.config.rate,
            max_leaf_nodes=self.config.leaves,
            early_stopping=False,
            random_state=self.config.seed,
        ).fit(features[~is_later], labels[~is_later])
        self.isotonic = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(
            self.trees.decision_function(features[is_later]), labels[is_later]
        )

    def candidates(self, queries: Queries) -> Candidates:
        """All that any ranker lists, with their features."""
        lists = [ranker.best(queries, self.config.depth) for ranker in self.rankers]
        keys = [
            (one.owners().astype(np.int64) << 32) | one.entity.astype(np.int64) for one in lists
        ]
        union = np.unique(np.concatenate(keys))
        owner, entity = union >> 32, union & 0xFFFFFFFF
        columns = [self.context.features(queries, owner, entity)]
        for one, key in zip(lists, keys, strict=True):
            columns.append(_evidence(one, np.searchsorted(union, key), owner))
        return Candidates(owner, entity, np.concatenate(columns, axis=1))

    def scored(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Query, object and score of every candidate."""
        found = self.candidates(queries)
        if not len(found.owner):
            return found.owner, found.entity, np.zeros(0)
        return found.owner, found.entity, self.trees.decision_function(found.features)

    def confidence(self, scores: Array) -> Array:
        """Scores as probabilities that the fact holds."""
        return np.asarray(self.isotonic.predict(scores)) if len(scores) else np.zeros(0)

    def best(self, queries: Queries, k: int) -> Ranked:
        return make_ranked(len(queries), *self.scored(queries), k)

    def ranks(self, queries: Queries, objects: Array, beyond: int = BEYOND) -> Array:
        candidates = len(self.kb.entity_range(queries.lang))
        ranks = ranks_from_pairs(queries, *self.scored(queries), objects, candidates)
        return np.where(ranks > beyond, np.inf, ranks)

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
        config = FusionConfig(**settings["config"])
        return cls(kb, rankers, config, parts["trees"], parts["isotonic"])


def _evidence(ranked: Ranked, rows: Array, owner: Array) -> Array:
    """A ranker's view of all candidates: (N, 6); missing where it does not list one.

    rows: where its answers stand among the candidates.
    """
    num_queries = len(ranked.offset) - 1
    listed = np.diff(ranked.offset)
    own = ranked.owners()
    rank = np.arange(len(own)) - ranked.offset[own]
    first = np.full(num_queries, np.nan)
    first[listed > 0] = ranked.score[ranked.offset[:-1][listed > 0]]
    second = np.full(num_queries, np.nan)
    second[listed > 1] = ranked.score[ranked.offset[:-1][listed > 1] + 1]
    weight = np.exp(np.minimum(0, ranked.score - first[own]))
    total = np.bincount(own, weight, num_queries)
    following = np.append(ranked.score[1:], np.nan)
    following[ranked.offset[1:][listed > 0] - 1] = np.nan
    table = np.full((len(owner), 6), np.nan)
    table[rows, 0] = ranked.score
    table[rows, 1] = rank
    table[rows, 2] = first[own] - ranked.score
    table[rows, 3] = np.log(weight / total[own])
    table[rows, 4] = ranked.score - following
    table[:, 5] = (first - second)[owner]
    return table


class _Context:
    """How often the things of a query and a candidate occur in train, in all languages."""

    def __init__(self, kb: KB) -> None:
        self.concept = kb.concepts().astype(np.int64)
        self.num_relations = kb.num_relations
        merged = read_merged(kb)
        forward = merged.relation < kb.num_relations
        relation = merged.relation[forward]
        subject, object_ = merged.source[forward], merged.target[forward]
        self.degree = np.bincount(merged.source, minlength=int(self.concept.max(initial=-1)) + 1)
        self.size = np.bincount(self.concept)
        self.triples = np.bincount(relation, minlength=kb.num_relations)
        asked = np.unique((relation << 32) | subject) >> 32
        self.subjects = np.bincount(asked, minlength=kb.num_relations)
        self.objects, self.uses = np.unique((relation << 32) | object_, return_counts=True)
        self.own_subjects, self.own_counts = np.unique(
            (relation << 32) | subject, return_counts=True
        )

    def features(self, queries: Queries, owner: Array, entity: Array) -> Array:
        relation = queries.relation.astype(np.int64)
        subject, candidate = self.concept[queries.subject], self.concept[entity]
        per_subject = self.triples[relation] / np.maximum(1, self.subjects[relation])
        known = _count(self.own_subjects, self.own_counts, (relation << 32) | subject)
        of_query = [self.degree[subject], self.size[subject], self.triples[relation], known]
        columns = [np.log1p(column)[owner] for column in of_query]
        columns.append(np.log(np.maximum(1, per_subject))[owner])
        uses = _count(self.objects, self.uses, (relation[owner] << 32) | candidate)
        columns += [np.log1p(uses), np.log1p(self.degree[candidate]), self.size[candidate]]
        columns.append((subject[owner] == candidate).astype(float))
        return np.stack(columns, axis=1).astype(float)


def _count(keys: Array, counts: Array, asked: Array) -> Array:
    """The count of each asked key, 0 where there is none."""
    if not len(keys):
        return np.zeros(len(asked))
    place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[place] == asked, counts[place], 0)
