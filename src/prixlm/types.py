"""The paper's nouns as small frozen values, and the two type aliases that every room uses.

The values (entity, triple, link, query, answer) are for people and for single questions; code that
handles many facts works on arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
else:
    Array = Any  # annotations only: importing this module must not import numpy

Progress = Callable[[str, int, int], None]
"""Reports progress as (stage, done, total). A stage may carry a detail after a space."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing as one language names it. Entities of one concept mean the same thing."""

    id: int
    lang: str
    name: str
    key: str
    concept: int


@dataclass(frozen=True, slots=True)
class Triple:
    """A fact in one language: entity and relation ids of a KB."""

    lang: str
    subject: int
    relation: int
    object: int
    split: str = "train"


@dataclass(frozen=True, slots=True)
class Link:
    """Two entities, of two languages, that mean the same."""

    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Query:
    """A question: the object of a subject and a relation, or a name in another language."""

    lang: str  # of the subject
    subject: str
    relation: str | None = None  # its name or key; None for a link
    to: str | None = None  # the language asked for, for a link


@dataclass(frozen=True, slots=True)
class Answer:
    """An entity that may complete a query."""

    entity: int
    name: str
    score: float  # the log-probability, or what the ranker states
    rank: int  # from 1


@dataclass(frozen=True, slots=True)
class Asked:
    """A query whose answer is known, and what the model says."""

    query: Query
    truth: list[str]
    answers: list[Answer]

    @property
    def rank(self) -> int | None:
        """The rank of the first right answer."""
        right = (answer.rank for answer in self.answers if answer.name in self.truth)
        return next(right, None)
