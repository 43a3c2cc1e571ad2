"""The paper's nouns as small frozen values: entity, triple, link, query, answer.

They are for people and for single questions; whatever handles many facts works on arrays.
"""

from dataclasses import dataclass


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
