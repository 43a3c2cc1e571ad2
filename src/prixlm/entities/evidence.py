"""What a KB states of candidates besides their names: types, and values of properties.

    evidence = Evidence(build_lookup(kb))
    evidence.types_of(concept)
    evidence.agreement(concept, Property(relation, ("Finland",)))      # 1.0, 0.0, or None: unknown

A type is an object of the KB's type relation (`P31`, `rdf:type`, or a relation named `instance of`
or `type` that enough subjects have). A KB without one has types all the same: what has a relation
(`has director`), and what is a value of one (`value of director`).

Where a KB states no value of a property, or no type, a description that names it speaks for the
candidate: *capital of France* agrees with the country France. One that does not name it says
nothing.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from rapidfuzz import fuzz, utils

from prixlm.kb.lookup import Lookup
from prixlm.languages import script_of_text
from prixlm.romanise import romanise
from prixlm.types import Array

_TYPE_KEY = re.compile(r"(?:.*[/:#])?P31|.*22-rdf-syntax-ns#type|rdf:type")
_TYPE_NAMES = ("instance of", "is a", "type")
_MIN_TYPED = 0.2
"""Share of the subjects that a relation must hold for to be the type relation: DBpedia's
`ontology/type` says what kind a company or a bridge is, and holds for few."""
_SAME_TEXT = 90
"""Similarity, of 100, from which two values count as the same text."""
_WITHOUT_SPACES = frozenset(
    {"Hani", "Hans", "Hant", "Jpan", "Hira", "Kana", "Thai", "Laoo", "Khmr", "Mymr"}
)
"""Scripts that are written without spaces between words."""
_MOST_FACTS = 1000
"""Facts of one entity that are read: some objects have millions."""
_MOST_SEARCHED = 1 << 16
"""Facts of one entity among which those of a relation are looked for."""
MOST_VALUES = 1000
"""Values of one property of one entity."""


@dataclass(frozen=True, order=True)
class Type:
    """A class of entities: `number` is a concept for `entity`, else a relation."""

    kind: Literal["entity", "has", "value"]
    number: int


@dataclass(frozen=True)
class Value:
    """A value that a property is compared with: text, or a concept of the KB."""

    text: str
    concept: int | None = None


@dataclass(frozen=True, kw_only=True)
class Property:
    """What a question says of the entity: values of a relation, or names in a language.

    With neither of them, it is what a description may name.
    """

    relation: int | None = None
    lang: str | None = None  # instead of a relation: compare the names in this language
    values: tuple[Value, ...]
    quantifier: Literal["any", "all", "none"] = "any"
    required: bool = False  # candidates that do not agree are dropped


class Evidence:
    """Types and property values of the concepts of one KB. Safe under threads."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.type_relation = _find_type_relation(lookup)
        # Objects recur in many questions (countries, occupations), so their names are kept, and
        # candidates recur from row to row of a table.
        self._texts_of = functools.lru_cache(1 << 12)(self._read_texts)
        self.types_of = functools.lru_cache(1 << 12)(self._read_types)
        self._descriptions_of = functools.lru_cache(1 << 12)(self._read_descriptions)

    def _read_types(self, concept: int) -> frozenset[Type]:
        entities = self.lookup.entities_of(concept)
        facts = self.lookup.facts_of(entities, _MOST_FACTS)
        if self.type_relation is not None:
            objects = facts.object[facts.relation == self.type_relation]
            return frozenset(Type("entity", c) for c in set(self.lookup.concept[objects].tolist()))
        values = self.lookup.facts_to(entities, _MOST_FACTS).relation
        has = {Type("has", relation) for relation in set(facts.relation.tolist())}
        return frozenset(has | {Type("value", relation) for relation in set(values.tolist())})

    @functools.cached_property
    def all_types(self) -> dict[Type, int]:
        """All types of the KB with their number of facts, most facts first."""
        kb = self.lookup.kb
        counts: dict[Type, int] = {}
        if self.type_relation is not None:
            rows = kb.query(
                "SELECT e.concept, count(*) FROM triples t JOIN entities e ON e.id = t.object "
                "WHERE t.relation = $relation GROUP BY ALL",
                {"relation": self.type_relation},
            ).fetchall()
            counts = {Type("entity", concept): count for concept, count in rows}
        else:
            for (_, relation), count in kb.relation_counts().items():
                for key in (Type("has", relation), Type("value", relation)):
                    counts[key] = counts.get(key, 0) + count
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def relations_of(self, type_: Type) -> list[int]:
        """Return the relations that entities of a type have, those that most have first."""
        # The subjects of a relation, its objects, or the subjects with one of some objects.
        column = "object" if type_.kind == "value" else "subject"
        test = "relation = $relation"
        asked: dict[str, Any] = {"relation": type_.number}
        if type_.kind == "entity":
            objects = self.lookup.entities_of(type_.number) if type_.number >= 0 else []
            test += " AND list_contains($objects, object)"
            asked = {"relation": self.type_relation, "objects": objects}
        rows = self.lookup.kb.query(
            f"SELECT relation, count(*) FROM triples WHERE subject IN (SELECT {column} "
            f"FROM triples WHERE {test} ORDER BY 1 LIMIT {_MOST_FACTS}) "
            "GROUP BY relation ORDER BY 2 DESC, 1",
            asked,
        ).fetchall()
        return [relation for relation, _ in rows]

    def values_of(self, concept: int, relation: int) -> list[int]:
        """Return the objects of a relation, as concepts, in the order of their first statement.

        At most `MOST_VALUES` of them: a hub may have millions.
        """
        facts = self.lookup.facts_of(self.lookup.entities_of(concept), _MOST_SEARCHED)
        objects = self.lookup.concept[facts.object[facts.relation == relation]]
        return list(dict.fromkeys(objects.tolist()))[:MOST_VALUES]

    def agreement(self, concept: int, asked: Property) -> float | None:
        """Return how well a concept agrees with a property, 0 to 1; None if the KB cannot tell."""
        known = self._known(concept, asked)
        if not asked.values:
            return None
        if not known:
            return self._described(concept, asked)
        scores = [max(self._same(value, *item) for item in known) for value in asked.values]
        if asked.quantifier == "none":
            return 1.0 - max(scores)
        return min(scores) if asked.quantifier == "all" else max(scores)

    def is_a(self, concept: int, type_: Type) -> bool:
        """Return whether a concept has a type or, if the KB states none, is described as one."""
        types = self.types_of(concept)
        if types or type_.kind != "entity" or type_.number < 0:
            return type_ in types
        if not self._descriptions_of(concept):
            return False
        return self._names_one(concept, self._texts_of(type_.number))

    def _described(self, concept: int, asked: Property) -> float | None:
        """Return what descriptions say of a property; None if they do not name its values."""
        if asked.lang is not None or not self._descriptions_of(concept):
            return None
        named = []
        for value in asked.values:
            texts = _prepare_text(value.text)
            texts += () if value.concept is None else self._texts_of(value.concept)
            named.append(self._names_one(concept, texts))
        if not (all if asked.quantifier == "all" else any)(named):
            return None
        return 0.0 if asked.quantifier == "none" else 1.0

    def _names_one(self, concept: int, texts: Sequence[str]) -> bool:
        descriptions = self._descriptions_of(concept)
        return any(_mentions(text, name) for text in descriptions for name in texts)

    def _read_descriptions(self, concept: int) -> tuple[str, ...]:
        texts = map(self.lookup.description, self.lookup.entities_of(concept))
        return tuple(utils.default_process(text) for text in texts if text)

    def subjects_of(self, asked: Property, concepts: Sequence[int]) -> Array:
        """Return concepts that state a relation to one of some concepts, sorted, at most 1000."""
        objects = [entity for concept in concepts for entity in self.lookup.entities_of(concept)]
        facts = self.lookup.facts_to(objects, _MOST_SEARCHED)
        found = facts.subject[facts.relation == asked.relation][:_MOST_FACTS]
        return np.unique(self.lookup.concept[found])

    def _known(self, concept: int, asked: Property) -> list[tuple[int | None, tuple[str, ...]]]:
        """Return the known values: each a concept (None for a name) and its prepared texts."""
        if asked.lang is not None:
            texts = self.names(concept, asked.lang)
            return [(None, _prepare(texts))] if texts else []
        if asked.relation is None:
            return []
        return [(value, self._texts_of(value)) for value in self.values_of(concept, asked.relation)]

    def names(self, concept: int, lang: str | None = None) -> list[str]:
        """Return names and aliases of a concept, of one language if given."""
        lookup = self.lookup
        entities = lookup.entities_of(concept)
        if lang is not None:
            entities = [entity for entity in entities if lookup.lang(entity) == lang]
        return [
            name for entity in entities for name in (lookup.name(entity), *lookup.aliases(entity))
        ]

    def _read_texts(self, concept: int) -> tuple[str, ...]:
        return _prepare(self.names(concept))

    @staticmethod
    def _same(value: Value, concept: int | None, texts: tuple[str, ...]) -> float:
        """Return how surely a value is one that the KB states, 0 to 1."""
        if value.concept is not None and concept is not None and value.concept == concept:
            return 1.0
        asked = _prepare_text(value.text)
        scores = [
            fuzz.ratio(text, known, score_cutoff=_SAME_TEXT) for text in asked for known in texts
        ]
        return max(scores, default=0.0) / 100


def _mentions(text: str, name: str) -> bool:
    """Return whether a prepared text has a name in it; as whole words, if its script has words."""
    if name not in text:
        return False
    if script_of_text(name) in _WITHOUT_SPACES:
        return len(name) > 1
    return f" {name} " in f" {text} "


def _prepare(texts: Sequence[str]) -> tuple[str, ...]:
    """Return texts and their romanised forms, ready to compare, without repeats."""
    both = [utils.default_process(text) for text in (*texts, *romanise(texts))]
    return tuple(dict.fromkeys(text for text in both if text))


@functools.lru_cache(1 << 12)
def _prepare_text(text: str) -> tuple[str, ...]:
    return _prepare([text])


def _find_type_relation(lookup: Lookup) -> int | None:
    """Return the relation whose objects are types; None if the KB has none."""
    kb = lookup.kb
    names = [kb.relation_names(lang) for lang in ("en", *lookup.languages)]
    for number, key in enumerate(lookup.relation_keys):
        if _TYPE_KEY.fullmatch(key):
            return number
    candidates = [
        number
        for number in range(kb.num_relations)
        if any(column[number].lower() in _TYPE_NAMES for column in names)
    ]
    if not candidates:
        return None
    rows = kb.query(
        "SELECT relation, count(DISTINCT e.concept), "
        "(SELECT count(DISTINCT f.concept) FROM triples u JOIN entities f ON f.id = u.subject) "
        "FROM triples t JOIN entities e ON e.id = t.subject WHERE list_contains($asked, relation) "
        "GROUP BY relation ORDER BY 2 DESC, 1",
        {"asked": candidates},
    ).fetchall()
    # Aliases of one relation (`type`, `instance of`) compete: the one that most subjects have.
    for relation, typed, subjects in rows:
        if typed >= _MIN_TYPED * subjects:
            return int(relation)
    return None
