"""What the reconciliation service knows: entities, types and properties of one opened KB.

    answers = Answers(workbench.opened, workbench.matcher())
    answers.match([answers.read_query(Query(query="Suomi"), lang=None)])

It knows both versions of a query, and no HTTP. Properties are the relations of the KB, by key,
`name:LANG`, the names in a language, and `description`, what descriptions name. Types are explained
in `entities/evidence.py`; their ids are those of their entity, or `has:KEY` and `value:KEY` of a
relation.
"""

import functools
import hashlib
import html
import itertools
import re
import time
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from prixlm.entities.evidence import MOST_VALUES, Property, Type, Value
from prixlm.entities.matching import Candidate, Matcher, Question
from prixlm.entities.names import NameIndex, fold
from prixlm.kb.lookup import Lookup
from prixlm.kb.store import KB
from prixlm.languages import normalise
from prixlm.reports.console import language_name
from prixlm.service.answering.concepts import Concepts, NotFound
from prixlm.service.markup import clean, direction, shorten
from prixlm.service.reconcile.queries import (
    ConditionQuery,
    EntityValue,
    ExtendProperty,
    ExtendQuery,
    Query,
    Refused,
)
from prixlm.service.schemas import MAX_TEXT, Name

T = TypeVar("T")

MAX_NAME = MAX_TEXT
"""Characters of a name that are compared."""
NUM_SUGGESTED = 20
_DESCRIPTION = "description"
"""The id of the property that is not a relation."""
_MAX_DESCRIPTION = 250
"""Characters of a description in a list of candidates, as in Wikidata; the preview has it all."""
_NUM_TYPES = 5
"""Types that a candidate is shown with."""
MAX_ANSWER, _VALUE = 10_000_000, 100
"""Characters of the values in an answer of data extension; a value counts as some more."""
_SECONDS = 30.0
"""Of one answer of data extension. The server has refused the request by then, but it cannot stop
the thread that answers it."""
STYLE = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:8px;color:#1d1d1f;background:#fff}"
    "h1{font-size:17px;margin:0 0 4px}p,dl{margin:4px 0}dd{margin:0}"
    "dt{color:#5a5a60;font-size:12px}"
)
STYLE_HASH = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
"""Of the style of previews: their policy allows this style and nothing else."""


class Snapshot(Protocol):
    """The opened KB, as `workbench.Opened` has it."""

    kb: KB
    lookup: Lookup
    concepts: Concepts
    names: NameIndex


@dataclass(frozen=True)
class Asked:
    """A question as the service answers it."""

    question: Question
    limit: int
    langs: tuple[str, ...]  # to show names in; empty: that of the name that matched


class Answers:
    """Reads and describes entities, types and properties of one opened KB."""

    def __init__(self, opened: Snapshot, matcher: Matcher) -> None:
        self.opened, self.matcher = opened, matcher
        self.lookup, self.concepts = opened.lookup, opened.concepts
        self.evidence = matcher.evidence
        self.space = find_space(self.lookup)
        # Candidates recur from row to row of a table.
        self.about = functools.lru_cache(1 << 12)(self._about)
        self.types = functools.lru_cache(1 << 12)(self._types)
        self.popular = functools.lru_cache(1 << 8)(self._popular)

    # Reading.

    def find(self, text: str) -> int | None:
        """Return the concept with an id, or with an id within the service's space."""
        for key in dict.fromkeys((text, text.removeprefix(self.space))):
            try:
                return self.concepts.concept_of(key)
            except NotFound:
                continue
        return None

    def read_query(self, query: Query, lang: str | None) -> Asked:
        """Return a query of version 0.2 as a question; lang: of the service."""
        if query.query is None and not query.properties:
            raise ValueError("expected `query` or `properties`")
        properties = [self._property(p.pid, p.v) for p in query.properties]
        types = [query.type] if isinstance(query.type, str) else query.type or []
        text = (query.query or "")[:MAX_NAME].strip()
        question = Question(
            names=(text,) if text else (),
            lang=lang,
            concept=self.find(text) if text else None,
            types=tuple(self.read_type(type_) for type_ in types),
            strict=query.type_strict,
            properties=tuple(p for p in properties if p is not None),
        )
        return Asked(question, int(query.limit), (lang,) if lang else ())

    def read_conditions(self, query: ConditionQuery, langs: Sequence[str]) -> Asked:
        """Return a query of version 1.0 as a question; langs: to show names in."""
        names: list[str] = []
        ids: list[str] = []
        properties = []
        for condition in query.conditions:
            values = _texts(condition.propertyValue)
            if condition.matchType == "property":
                if condition.propertyId is None:
                    raise ValueError("expected a `propertyId`")
                asked = self._property(
                    condition.propertyId,
                    condition.propertyValue,
                    condition.matchQuantifier,
                    condition.required,
                )
                properties += [asked] if asked is not None else []
            elif condition.matchType == "id":
                ids += values
            else:
                names += [value[:MAX_NAME].strip() for value in values]
        names = [name for name in names if name]
        known = (self.find(text) for text in (*ids, *names[:1]))
        shown = langs or [lang for lang in (normalise(query.lang or "x"),) if lang]
        question = Question(
            names=tuple(names),
            concept=next((concept for concept in known if concept is not None), None),
            types=() if query.type is None else (self.read_type(query.type),),
            strict="any",
            properties=tuple(properties),
        )
        return Asked(question, int(query.limit), tuple(shown))

    def _property(
        self,
        pid: str,
        values: Any,
        quantifier: Literal["any", "all", "none"] = "any",
        required: bool = False,
    ) -> Property | None:
        """Return a property as evidence; one that the KB does not know says nothing."""
        read = []
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, EntityValue):
                read.append(Value(value.name or value.id, self.find(value.id)))
            elif (text := _text(value).strip()[:MAX_NAME]) != "":
                read.append(Value(text, self.find(text)))
        lang, relation = self.read_property(pid)
        is_known = lang is not None or relation is not None or pid == _DESCRIPTION
        if not is_known and not required:
            return None
        return Property(
            lang=lang,
            relation=relation,
            values=tuple(read),
            quantifier=quantifier,
            required=required,
        )

    def read_property(self, pid: str) -> tuple[str | None, int | None]:
        """Return the language of `name:LANG`, or the relation with this key or name."""
        kind, _, lang = pid.partition(":")
        if kind == "name" and lang in self.lookup.languages:
            return lang, None
        return None, self.lookup.find_relation(pid)

    def read_type(self, text: str) -> Type:
        """Return the type with an id; an unknown one is a type that nothing has."""
        kind, _, key = text.partition(":")
        if kind in ("has", "value"):
            relation = self.lookup.find_relation(key)
            if relation is not None:
                return Type("has" if kind == "has" else "value", relation)
        concept = self.find(text)
        return Type("entity", -1 if concept is None else concept)

    # Describing.

    def match(self, asked: Sequence[Asked]) -> list[list[dict[str, Any]]]:
        """Return the candidates of each question, in the shape of version 0.2."""
        most = max((one.limit for one in asked), default=1)
        found = self.matcher.match([one.question for one in asked], most)
        return [
            [self._candidate(one, candidate) for candidate in candidates[: one.limit]]
            for one, candidates in zip(asked, found, strict=True)
        ]

    def _candidate(self, asked: Asked, candidate: Candidate) -> dict[str, Any]:
        values = candidate.features
        has_matched = values["spelling"] + values["romanised"] > 0  # not by id or property alone
        entity = self.shown_entity(
            candidate.concept, asked.langs, candidate.entity if has_matched else None
        )
        name, lang = self.named(entity)
        langs = (lang,)
        about = self.about(candidate.concept, langs)
        # The name that matched, if it is not the one that is shown.
        matched = clean(candidate.name)
        if has_matched and fold(matched) != fold(name):
            about = f"{shorten(matched, 100)} · {about}" if about else shorten(matched, 100)
        return {
            "id": self.concepts.id_of(candidate.concept),
            "name": name,
            "description": about,
            "lang": lang,
            "score": round(100 * candidate.probability, 2),
            "match": candidate.match,
            "features": self._features(asked.question, candidate),
            "type": self.types(candidate.concept, langs),
        }

    def _features(self, question: Question, candidate: Candidate) -> list[dict[str, Any]]:
        values = candidate.features
        shown: dict[str, float | bool] = {
            "name": round(100 * values["spelling"], 2),
            "romanised": round(100 * values["romanised"], 2),
            "exact": values["exact"] > 0,
        }
        if self.matcher.vectors is not None:
            shown["encoder"] = round(100 * values["encoder"], 2)
        if question.types:
            shown["type"] = values["type"] > 0
        if question.properties:
            shown["properties"] = round(100 * values["properties"], 2)
        return [{"id": name, "value": value} for name, value in shown.items()]

    def shown_entity(self, concept: int, langs: Sequence[str], matched: int | None = None) -> int:
        """Return the entity whose name stands for a concept: in a language, or that matched."""
        if not langs and matched is not None:
            return matched
        return self.concepts.shown_entity(concept, langs)

    def named(self, entity: int) -> tuple[str, str]:
        """Return the name of an entity, never empty, and its language."""
        name = clean(self.lookup.name(entity)).strip() or self.lookup.key(entity)
        return name, self.lookup.lang(entity)

    def _about(self, concept: int, langs: tuple[str, ...]) -> str:
        """Return the description of a concept, or what its facts tell."""
        described = self.concepts.description(concept, langs)
        if described is not None:
            return shorten(described.text, _MAX_DESCRIPTION)
        return clean(self.concepts.about(concept, langs))

    def _types(self, concept: int, langs: tuple[str, ...]) -> list[dict[str, str]]:
        """Return the most frequent types of a concept."""
        counts = self.evidence.all_types
        types = sorted(
            self.evidence.types_of(concept), key=lambda type_: (-counts.get(type_, 0), type_)
        )
        return [self.describe_type(type_, langs) for type_ in types[:_NUM_TYPES]]

    def describe_type(self, type_: Type, langs: Sequence[str]) -> dict[str, str]:
        """Return id and name of a type."""
        if type_.kind == "entity":
            name, _ = self.named(self.concepts.shown_entity(type_.number, langs))
            return {"id": self.concepts.id_of(type_.number), "name": name}
        name = clean(self.lookup.relation_name(type_.number, langs)[0])
        words = "has" if type_.kind == "has" else "value of"
        key = self.lookup.relation_keys[type_.number]
        return {"id": f"{type_.kind}:{key}", "name": f"{words} {name}"}

    def describe_property(self, pid: str, langs: Sequence[str]) -> dict[str, str]:
        """Return id, name and language of a property; an unknown one is called by its id."""
        lang, relation = self.read_property(pid)
        if lang is not None:
            return {"id": pid, "name": f"name in {language_name(lang)}", "lang": "en"}
        if relation is None and pid == _DESCRIPTION:
            return {"id": pid, "name": "description", "lang": "en"}
        if relation is None:
            return {"id": pid, "name": clean(pid) or pid, "lang": "en"}
        name, named_in = self.lookup.relation_name(relation, langs)
        return {"id": pid, "name": clean(name), "lang": named_in}

    # Suggestions.

    def suggest_entities(
        self, prefix: str, cursor: int, lang: str | None, langs: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return entities for what was typed: the one with this id, then by name."""
        found: dict[int, int] = {}
        identified = self.find(prefix) if prefix else None
        if identified is not None and (lang is None or lang in self.concepts.langs_of(identified)):
            found[identified] = self.concepts.shown_entity(identified, langs)
        for hit in self.opened.names.search(prefix, cursor + NUM_SUGGESTED, lang):
            found.setdefault(hit.concept, hit.entity)
        suggested = []
        for concept, matched in itertools.islice(found.items(), cursor, cursor + NUM_SUGGESTED):
            name, shown = self.named(self.shown_entity(concept, langs, matched))
            about, types = self.about(concept, (shown,)), self.types(concept, (shown,))
            suggested.append(
                {
                    "id": self.concepts.id_of(concept),
                    "name": name,
                    "description": about,
                    "lang": shown,
                    "notable": types,
                }
            )
        return suggested

    def suggest_properties(
        self, prefix: str, cursor: int, langs: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return the properties whose name or key contains what was typed, best first."""
        ids = _matching(self._property_texts, prefix)[cursor : cursor + NUM_SUGGESTED]
        return [self.describe_property(pid, langs) for pid in ids]

    def suggest_types(self, prefix: str, cursor: int, langs: Sequence[str]) -> list[dict[str, Any]]:
        """Return the types whose name or key contains what was typed, best first."""
        if self.evidence.type_relation is None:
            found = _matching(self._type_texts, prefix)
        elif prefix:
            hits = self.opened.names.search(prefix, 10 * (cursor + NUM_SUGGESTED))
            concepts = [self.find(prefix), *(hit.concept for hit in hits)]
            asked = dict.fromkeys(Type("entity", c) for c in concepts if c is not None)
            found = [type_ for type_ in asked if type_ in self.evidence.all_types]
        else:
            found = list(self.evidence.all_types)
        shown = found[cursor : cursor + NUM_SUGGESTED]
        return [self.describe_type(type_, langs) for type_ in shown]

    @functools.cached_property
    def _property_texts(self) -> list[tuple[str, frozenset[str]]]:
        """The properties, those with most facts first, and the texts that find them."""
        keys = self.lookup.relation_keys
        relations = [(keys[r], self._relation_texts(r)) for r in self._relations]
        names = [
            (f"name:{lang}", frozenset({f"name:{lang}", fold(f"name in {language_name(lang)}")}))
            for lang in self.lookup.languages
        ]
        texts = [(_DESCRIPTION, frozenset({_DESCRIPTION}))]
        return [*relations, *names, *(texts if self.opened.kb.has_descriptions else [])]

    @functools.cached_property
    def _type_texts(self) -> list[tuple[Type, frozenset[str]]]:
        """The types of a KB without a type relation, and the texts that find them."""
        words = {"has": ("has", "has:"), "value": ("value of", "value:")}
        return [
            (
                type_,
                frozenset(
                    text
                    for name in self._relation_texts(type_.number)
                    for text in (name, *(f"{word} {name}" for word in words[type_.kind]))
                )
                | {fold(words[type_.kind][1] + self.lookup.relation_keys[type_.number])},
            )
            for type_ in self.evidence.all_types
        ]

    @functools.cached_property
    def _relations(self) -> list[int]:
        """All relations, those with most facts first."""
        counts = dict.fromkeys(range(len(self.lookup.relation_keys)), 0)
        for (_, relation), count in self.opened.kb.relation_counts().items():
            counts[relation] += count
        return sorted(counts, key=lambda relation: (-counts[relation], relation))

    def _relation_texts(self, relation: int) -> frozenset[str]:
        """Return key and names of a relation in all languages, as they are compared."""
        key = self.lookup.relation_keys[relation]
        names = (self.lookup.relation_name(relation, [lang])[0] for lang in self.lookup.languages)
        return frozenset(map(fold, (key, re.split("[/#:]", key)[-1], *names)))

    # Data extension.

    def _popular(self, type_: Type | None) -> list[str]:
        """Return the properties to offer for a type, those with most facts first."""
        names = [f"name:{lang}" for lang in self.lookup.languages]
        names += [_DESCRIPTION] if self.opened.kb.has_descriptions else []
        keys = self.lookup.relation_keys
        if type_ is None:
            return [*(keys[relation] for relation in self._relations), *names]
        return [*(keys[relation] for relation in self.evidence.relations_of(type_)), *names]

    def extend(self, query: ExtendQuery, langs: Sequence[str]) -> tuple[list[Any], list[Any]]:
        """Return the columns, and of each entity its id and the values of each column."""
        columns = []
        for asked in query.properties:
            described: dict[str, Any] = dict(self.describe_property(asked.id, langs))
            _, relation = self.read_property(asked.id)
            if relation is not None and self.evidence.type_relation is None:
                described["type"] = self.describe_type(Type("value", relation), langs)
            columns.append(described)
        rows = []
        size = 0
        end = time.monotonic() + _SECONDS
        for text in query.ids:
            concept = self.find(text)
            values: list[list[dict[str, str]]] = []
            for asked in query.properties:
                if time.monotonic() > end:
                    raise Refused(503, "no answer in time: ask for fewer ids or columns.")
                values.append([] if concept is None else self._values(concept, asked, langs))
                size += sum(_VALUE + sum(map(len, value.values())) for value in values[-1])
                if size > MAX_ANSWER:
                    raise Refused(
                        413, "the answer would be too large: ask for fewer ids, columns or values."
                    )
            rows.append((text, values))
        return columns, rows

    def _values(
        self, concept: int, asked: ExtendProperty, langs: Sequence[str]
    ) -> list[dict[str, str]]:
        lang, relation = self.read_property(asked.id)
        limit = min(_whole_number(asked.settings.get("limit"), 0) or MOST_VALUES, MOST_VALUES)
        values: list[dict[str, str]] = []
        if lang is not None:
            names = self.evidence.names(concept, lang)
            values = [{"str": clean(name), "lang": lang} for name in names]
        elif relation is None and asked.id == _DESCRIPTION:
            text = self.concepts.description(concept, langs)
            values = [] if text is None else [{"str": clean(text.text), "lang": text.lang}]
        elif relation is not None:
            for value in self.evidence.values_of(concept, relation)[:limit]:
                name, shown = self.named(self.concepts.shown_entity(value, langs))
                values.append({"id": self.concepts.id_of(value), "name": name, "lang": shown})
            content = asked.settings.get("content")
            if content == "name":
                values = [{"str": value["name"], "lang": value["lang"]} for value in values]
            elif content == "id":
                values = [{"str": value["id"]} for value in values]
        return values[:limit]

    # Previews.

    def preview(self, text: str, langs: Sequence[str]) -> str:
        """Return a small HTML page about an entity."""
        concept = self.concept(text)
        known = self.concepts.known(concept, langs)
        name, lang = self.named(self.concepts.shown_entity(concept, langs))
        names = ", ".join(
            f"{_bdi(other.text, other.lang)} ({html.escape(other.lang)})" for other in known.names
        )
        facts = "".join(
            f"<dt>{'← ' if fact.inverse else ''}"
            f"{_bdi(fact.relation.name.text, fact.relation.name.lang)}</dt>"
            f"<dd>{_bdi(fact.value.name.text, fact.value.name.lang)}</dd>"
            for fact in known.facts
        )
        return (
            f'<!doctype html><html lang="{html.escape(lang)}"><head><meta charset="utf-8">'
            f"<title>{html.escape(shorten(name))}</title><style>{STYLE}</style></head>"
            f"<body><h1>{_bdi(name, lang)}</h1>{_described(known.description)}"
            f"<p>{names}</p><dl>{facts}</dl>"
            f"<p>{html.escape(shorten(self.concepts.id_of(concept)))}</p></body></html>"
        )

    def concept(self, text: str) -> int:
        """Return the concept with an id; refuse what is not an id."""
        concept = self.find(text)
        if concept is None:
            raise Refused(404, f"no entity {clean(text[:100])!r}: expected an id of the KB.")
        return concept

    def flyout(self, kind: str, text: str, langs: Sequence[str]) -> str:
        """Return a few lines of HTML about an entity, a property or a type."""
        if kind == "entity":
            concept = self.concept(text)
            name, lang = self.named(self.concepts.shown_entity(concept, langs))
            about = self.about(concept, tuple(langs) or (lang,))
            described = self.concepts.description(concept, tuple(langs) or (lang,))
            if described is not None:
                return f"<p>{_bdi(name, lang)}</p>{_described(described)}"
        elif kind == "property":
            named = self.describe_property(text, langs)
            name, lang, about = named["name"], named["lang"], text
        else:
            type_ = self.read_type(text)
            count = self.evidence.all_types.get(type_)
            if count is None:
                raise Refused(404, f"no type {clean(text[:100])!r} in this KB.")
            name, lang, about = self.describe_type(type_, langs)["name"], "", f"{count:,} facts"
        return f"<p>{_bdi(name, lang)}</p><p>{html.escape(shorten(about))}</p>"


def find_space(lookup: Lookup) -> str:
    """Return the space of the identifiers: Wikidata's, or one that tells this KB from others."""
    keys = [lookup.key(entity) for entity in (0, lookup.kb.num_entities - 1) if lookup.keys]
    if keys and all(re.fullmatch("Q[1-9][0-9]*", key) for key in keys):
        return "http://www.wikidata.org/entity/"
    return f"urn:prixlm:{lookup.kb.fingerprint()[:16]}:"


def _matching(items: Iterable[tuple[T, frozenset[str]]], prefix: str) -> list[T]:
    """Return the items with a text that is, begins with or contains a prefix, in this order."""
    typed = fold(prefix)
    scored = []
    for rank, (item, texts) in enumerate(items):
        places = [text.find(typed) for text in texts if typed in text]
        if places:
            scored.append((typed not in texts, min(places) > 0, rank, item))
    return [item for *_, item in sorted(scored, key=lambda row: row[:3])]


def _bdi(text: str, lang: str) -> str:
    """Return text as HTML that keeps its direction to itself."""
    return f'<bdi lang="{html.escape(lang)}" dir="auto">{html.escape(shorten(text))}</bdi>'


def _described(text: Name | None) -> str:
    """Return a description as HTML, in the direction of its language; nothing without one."""
    if text is None:
        return ""
    lang, dir_ = html.escape(text.lang), direction(text.lang)
    return f'<p lang="{lang}" dir="{dir_}">{html.escape(clean(text.text))}</p>'


def _text(value: Any) -> str:
    """Return a value of a request as text, as it would be written."""
    if value is None:
        return ""
    if isinstance(value, EntityValue):
        return value.id
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _texts(values: Any) -> list[str]:
    return [_text(value) for value in (values if isinstance(values, list) else [values])]


def _whole_number(text: Any, default: int) -> int:
    """Return a number of a request; settings come as text, too."""
    try:
        return min(max(int(float(text)), 0), 10**6)
    except (TypeError, ValueError, OverflowError):
        return default
