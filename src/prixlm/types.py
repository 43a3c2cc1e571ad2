"""The paper's nouns as small frozen values, and the two type aliases that every room uses.

The values (entity, triple, link, query, answer) are for users and single questions. Code that
handles many facts works on arrays of ids.
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
"""Called with (stage, done, total) while work is done. A stage may carry a detail after a space."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A person, place or other object as one language names it.

    Entities of one concept mean the same in different languages.

    Example:
        >>> [entity] = prixlm.KB("kb").find("Suomi", "fi")
        >>> entity.name, entity.lang
        ('Suomi', 'fi')
    """

    id: int
    lang: str
    name: str
    key: str  # its id in the source: an IRI, `Q42`, `en:London`
    concept: int


@dataclass(frozen=True, slots=True)
class Triple:
    """A fact in one language, as entity and relation ids of a KB.

    Example:
        >>> kb = prixlm.KB("kb")
        >>> row = next(kb.batches("triples", langs=["fi"])).to_pylist()[0]
        >>> triple = prixlm.Triple(**row)
        >>> kb.names([triple.subject, triple.object])
        ['Helsinki', 'Suomi']
    """

    lang: str
    subject: int
    relation: int
    object: int
    split: str = "train"


@dataclass(frozen=True, slots=True)
class Link:
    """Two entities of different languages that mean the same.

    Example:
        >>> kb = prixlm.KB("kb")
        >>> row = next(kb.link_pairs(["en", "fi"])).to_pylist()[0]
        >>> kb.names([prixlm.Link(**row).a, prixlm.Link(**row).b])
        ['Finland', 'Suomi']
    """

    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Query:
    """A question: which object completes a subject and relation, or what is its name elsewhere?

    Example:
        >>> object_of_a_fact = prixlm.Query("en", "France", "capital")
        >>> japanese_name = prixlm.Query("en", "France", to="ja")
    """

    lang: str  # of the subject
    subject: str
    relation: str | None = None  # name or key; None asks for the name in another language
    to: str | None = None  # that other language
    description: str | None = None  # of the subject; None: as the KB describes the one of this name


@dataclass(frozen=True, slots=True)
class Answer:
    """An entity proposed as the answer to a query.

    Example:
        >>> completer = prixlm.Completer("model", "kb")
        >>> best = completer.complete("France", "capital", lang="en")[0]
        >>> best.rank, best.score < 0
        (1, True)
    """

    entity: int
    name: str
    score: float  # log-probability, or the ranker's own score
    rank: int  # from 1
    evidence: str = ""  # of a linked mention: the kinds that put it first, joined by commas


@dataclass(frozen=True, slots=True)
class Asked:
    """A query with its true answers and the model's answers."""

    query: Query
    truth: list[str]
    answers: list[Answer]

    @property
    def rank(self) -> int | None:
        """The rank of the first true answer; None if it is not among the answers."""
        right = (answer.rank for answer in self.answers if answer.name in self.truth)
        return next(right, None)
