"""How likely a question has an answer at all.

    chance = Chance.fit(kb, ["et"])
    chance.predict(questions)

What another language states has one. That things like the subject have a relation says less: of
things without one in the KB, many have none (an island has no neighbours). It is learnt where the
answer is known: the questions that would be asked if only train were known, and which of them the
valid facts answer. Two things tell them apart: the share of things like the subject that have the
relation, and how often such questions of the same relation have an answer.

Dimension letters: Q questions, R relations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prixlm.kb.store import KB
from prixlm.missing import KINDS, Missing, MissingConfig, MissingFacts

Array = np.ndarray[Any, Any]
_SHRINK = 10.0
"""So many questions of all relations count in the rate of each."""


@dataclass(frozen=True)
class Chance:
    """From a question that is guessed to the probability that the KB would state an answer."""

    rate: Array  # (R,) of the questions of a relation, the share that has an answer
    weights: Any  # scikit-learn's logistic regression, or None where the rate is all that is known

    @classmethod
    def fit(cls, kb: KB, langs: Sequence[str], config: MissingConfig | None = None) -> "Chance":
        """Learnt from the valid facts of some languages; without any, nothing is likely."""
        config = replace(config or MissingConfig(), known=("train",), relations=None)
        return cls._learn(*_cases(MissingFacts(kb, config), langs), kb.num_relations)

    @classmethod
    def _learn(
        cls, subject: Array, relation: Array, share: Array, stated: Array, size: int
    ) -> "Chance":
        from sklearn.linear_model import LogisticRegression

        rate = _rates(relation, stated, size)
        if not stated.any() or stated.all():
            return cls(rate, None)
        # A rate that counts the question itself would be too good: it is of the other half.
        half = (subject * 2654435761 >> 16) % 2 == 0
        others = np.where(
            half,
            _rates(relation[~half], stated[~half], size)[relation],
            _rates(relation[half], stated[half], size)[relation],
        )
        return cls(rate, LogisticRegression().fit(_features(share, others), stated))

    def predict(self, asked: Missing) -> Array:
        """(Q,); what another language states has an answer."""
        found = np.ones(len(asked.kind))
        guessed = asked.kind == KINDS.index("usual")
        rate = self.rate[asked.queries.relation[guessed]]
        if self.weights is not None and guessed.any():
            features = _features(asked.expected[guessed], rate)
            rate = self.weights.predict_proba(features)[:, 1]
        found[guessed] = rate
        return found


def _cases(before: MissingFacts, langs: Sequence[str]) -> tuple[Array, Array, Array, Array]:
    """Guessed questions (concept, relation, share), and whether a valid fact answers them, or one
    that was held out and is too easy to be tested."""
    size = before.kb.num_relations
    parts: list[tuple[Array, ...]] = [(np.zeros(0, int), np.zeros(0, int), np.zeros(0))]
    stated = [np.zeros(0, bool)]
    for lang in langs:
        valid = before.kb.query(
            "SELECT DISTINCT subject, relation FROM triples "
            "WHERE lang = $lang AND split IN ('valid', 'known')",
            {"lang": lang},
        ).to_arrow_table()
        keys = valid["subject"].to_numpy().astype(np.int64) * size + valid["relation"].to_numpy()
        for part in before.questions(lang):
            usual = part.kind == KINDS.index("usual")
            subject, relation = part.queries.subject[usual], part.queries.relation[usual]
            parts.append((before.concept[subject], relation, part.expected[usual]))
            stated.append(np.isin(subject * size + relation, keys))
    concept, relation, share = (np.concatenate(column) for column in zip(*parts, strict=True))
    return concept, relation, share, np.concatenate(stated)


def _rates(relation: Array, stated: Array, size: int) -> Array:
    """The share of each relation's questions that have an answer, drawn to that of all: (R,)."""
    mean = stated.mean() if len(stated) else 0.0
    number = np.bincount(relation, minlength=size)
    return np.asarray(
        (np.bincount(relation, stated, minlength=size) + _SHRINK * mean) / (number + _SHRINK)
    )


def _features(share: Array, rate: Array) -> Array:
    """Log-odds of both: (Q, 2)."""
    both = np.clip(np.stack([share, rate], axis=1), 1e-3, 1 - 1e-3)
    return np.asarray(np.log(both / (1 - both)))
