"""How likely a question has an answer at all.

    chance = Chance.fit(kb, ["et"])
    chance.predict(questions)

What another language states has one. That things like the subject have a relation says less: of
things without one in the KB, many have none (an island has no neighbours). It is learnt where the
answer is known: the questions that would be asked if only train were known, and which of them the
valid facts answer. Two things tell them apart: the share of things like the subject that have the
relation, and how often such questions of the same relation have an answer.

So it is a probability for a KB that lacks as large a share of its facts as was held out for
validation. How much a KB lacks that is known as a whole, nobody can tell from the KB.

Dimension letters: Q questions, R relations.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from prixlm.enrichment.gaps import KINDS, Missing, MissingConfig, MissingFacts
from prixlm.files import write_atomically
from prixlm.kb.store import KB
from prixlm.types import Array

_SHRINK = 10.0
"""So many questions of all relations count in the rate of each."""
_THINGS = 200_000
"""Things of a language that it is learnt from, at most about so many."""


@dataclass(frozen=True)
class Chance:
    """From a question that is guessed to the probability that the KB would state an answer."""

    rate: Array  # (R,) of the questions of a relation, the share that has an answer
    weights: Array  # (3,) of a logistic regression: of the share's and rate's log-odds, and of 1

    @classmethod
    def fit(cls, kb: KB, langs: Sequence[str], config: MissingConfig | None = None) -> "Chance":
        """Learnt from the held-out facts that `config` knows; without any, nothing is likely."""
        config = config or MissingConfig()
        before = MissingFacts(kb, replace(config, known=("train",), relations=None))
        weights = {"valid": 1.0, "known": _drawn_as_valid(kb)}
        answers = {split: weights.get(split, 0.0) for split in config.known if split != "train"}
        return cls._learn(*_cases(before, langs, answers), kb.num_relations)

    @classmethod
    def _learn(
        cls,
        concept: Array,
        relation: Array,
        share: Array,
        stated: Array,
        nothing: Array,
        size: int,
    ) -> "Chance":
        """stated and nothing: (Q,) how far a question counts as one with an answer, or without."""
        from sklearn.linear_model import LogisticRegression

        rate = _rates(relation, stated, nothing, size)
        if not stated.any():
            return cls(np.zeros(size), np.array([0.0, 1.0, 0.0]))
        # A rate that counts the question itself would tell what it is: it is of the other half.
        half = (concept * 2654435761 >> 16) % 2 == 0
        others = np.where(
            half,
            _rates(relation[~half], stated[~half], nothing[~half], size)[relation],
            _rates(relation[half], stated[half], nothing[half], size)[relation],
        )
        features = _features(share, others)
        both = np.concatenate([features, features])
        is_answered = np.arange(len(both)) < len(features)
        weight = np.concatenate([stated, nothing])
        if not weight[~is_answered].any():
            return cls(rate, np.array([0.0, 1.0, 0.0]))
        fitted = LogisticRegression().fit(both, is_answered, sample_weight=weight)
        return cls(rate, np.append(fitted.coef_[0], fitted.intercept_))

    def predict(self, asked: Missing) -> Array:
        """(Q,); what another language states has an answer."""
        found = np.ones(len(asked.kind))
        guessed = asked.kind == KINDS.index("usual")
        rate = self.rate[asked.queries.relation[guessed]]
        odds = _features(asked.expected[guessed], rate) @ self.weights[:2] + self.weights[2]
        found[guessed] = np.where(rate > 0, 1 / (1 + np.exp(-odds)), 0.0)
        return found

    def save(self, path: Path) -> None:
        values = {"rate": self.rate.tolist(), "weights": self.weights.tolist()}
        write_atomically(path, json.dumps(values) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Chance":
        values = json.loads(path.read_text("utf-8"))
        return cls(np.array(values["rate"]), np.array(values["weights"]))


def _drawn_as_valid(kb: KB) -> float:
    """Of facts that were held out and are too easy to be tested, the share drawn for valid."""
    split = kb.manifest.split or {}
    valid, test = float(split.get("valid") or 0.0), float(split.get("test") or 0.0)
    return valid / (valid + test) if valid + test else 1.0


def _cases(
    before: MissingFacts, langs: Sequence[str], answers: dict[str, float]
) -> tuple[Array, Array, Array, Array, Array]:
    """Guessed questions (concept, relation, share), and how far each counts as answered or not.

    answers: the splits that answer, and how far such an answer counts. What a split answers is no
    question without an answer, even where it does not count: it would not be asked.
    """
    size = before.kb.num_relations
    parts: list[tuple[Array, ...]] = [
        (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    ]
    for lang in langs:
        keys = {split: _answered(before.kb, lang, split) for split in answers}
        every = max(1, len(before.kb.entity_range(lang)) // _THINGS)
        for part in before.questions(lang):
            concept = before.concept[part.queries.subject]
            kept = part.kind == KINDS.index("usual")
            kept &= (concept * 2654435761 >> 8) % every == 0
            subject, relation = part.queries.subject[kept], part.queries.relation[kept]
            stated, nothing = np.zeros(len(subject)), np.ones(len(subject))
            for split, weight in answers.items():
                found = np.isin(subject * size + relation, keys[split])
                stated = np.maximum(stated, weight * found)
                nothing[found] = 0.0
            parts.append((concept[kept], relation, part.expected[kept], stated, nothing))
    concept, relation, share, stated, nothing = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    return concept, relation, share, stated, nothing


def _answered(kb: KB, lang: str, split: str) -> Array:
    """The subjects and relations of a split's facts, as one number each."""
    rows = kb.query(
        "SELECT DISTINCT subject, relation FROM triples WHERE lang = $lang AND split = $split",
        {"lang": lang, "split": split},
    ).to_arrow_table()
    subject, relation = (rows[name].to_numpy().astype(np.int64) for name in rows.column_names)
    return np.asarray(subject * kb.num_relations + relation)


def _rates(relation: Array, stated: Array, nothing: Array, size: int) -> Array:
    """The share of each relation's questions that have an answer, drawn to that of all: (R,)."""
    mean = (stated.sum() + 0.5) / ((stated + nothing).sum() + 1)
    number = np.bincount(relation, stated + nothing, minlength=size)
    return np.asarray(
        (np.bincount(relation, stated, minlength=size) + _SHRINK * mean) / (number + _SHRINK)
    )


def _features(share: Array, rate: Array) -> Array:
    """Log-odds of both: (Q, 2)."""
    both = np.clip(np.stack([share, rate], axis=1), 1e-3, 1 - 1e-3)
    return np.asarray(np.log(both / (1 - both)))
