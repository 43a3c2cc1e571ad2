"""Concepts as people see them: ids, names in the right language, what is known of them.

A concept is one thing under its names in all languages. Its id in the API is the key of one of its
entities if that key means one concept in the whole KB, else `lang:key`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from prixlm.errors import PrixError
from prixlm.kb.lookup import Facts, Lookup
from prixlm.service.schemas import (
    EntityAnswer,
    EntityNames,
    EntityRef,
    FactGroup,
    KnownEntity,
    KnownFact,
    Name,
    ProposalRef,
    RelationRef,
    Statement,
)

MAX_STATEMENTS = 500
"""Statements of an entity page; a page of more cannot be read."""
_MAX_READ = 4_000
"""Facts of an entity that are looked at, in each direction: hubs have millions."""
_NUM_KNOWN = 6
"""Facts that are shown of a subject or object."""
_NUM_NAMES = 6
"""Names that are shown of a subject or object."""
_NUM_ABOUT = 3
"""Facts that tell namesakes apart."""
_MAX_ABOUT = 120
"""Characters of the words that tell namesakes apart."""
_WIKIDATA = re.compile("[QP][1-9][0-9]*").fullmatch
_ADDRESS = re.compile(r"https?://[^\s<>\"]+", re.IGNORECASE).fullmatch
_TYPES = re.compile(r"(^|.*[/#:])(P31|type|instance ?of|is ?a|subdivision kind)$", re.IGNORECASE)

# (is it the object, relation) -> the concept at the other end -> languages that state it
_Groups = Mapping[tuple[bool, int], Mapping[int, set[str]]]


class NotFound(PrixError):
    """What was asked for is not in the KB or among the proposals."""

    status = 404


def url_of(key: str) -> str | None:
    """Return the page of a key: the key itself if it is a web address, or Wikidata's."""
    if _WIKIDATA(key):
        return f"https://www.wikidata.org/wiki/{key}"
    return key if _ADDRESS(key) else None


@dataclass(frozen=True)
class Proposed:
    """Proposals that an entity page shows in place."""

    by_relation: Mapping[int, Sequence[ProposalRef]]
    by_lang: Mapping[str, Sequence[ProposalRef]]  # labels and links


NOTHING_PROPOSED = Proposed({}, {})


class Concepts:
    """The concepts of one KB. `langs` is always the languages to show, the best first."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self._first = "en" if "en" in lookup.languages else lookup.languages[0]

    def check_lang(self, lang: str | None) -> None:
        """Refuse a language that the KB does not have."""
        languages = self.lookup.languages
        if lang is not None and lang not in languages:
            raise NotFound(f"no language {lang[:40]!r}: the KB has {', '.join(languages)}.")

    def concept_of(self, text: str) -> int:
        """Return the concept with an id; refuse what is not an id."""
        concepts = self._concepts_of_key(text)
        if len(concepts) == 1:
            return concepts.pop()
        lang, _, key = text.partition(":")
        if lang in self.lookup.languages:
            for entity in self.lookup.find_key(key, [lang]):
                return int(self.lookup.concept[entity])
        raise NotFound(f"no entity {text[:100]!r}: expected an id from /api/search, such as Q33.")

    def id_of(self, concept: int) -> str:
        """Return the id of a concept."""
        entities = self.lookup.entities_of(concept)
        # The key in the main language comes first: it is what people know.
        entities.sort(key=lambda entity: self.lookup.lang(entity) != self._first)
        for entity in entities:
            if self.lookup.has_clear_key[entity]:
                return self.lookup.key(entity)
        return f"{self.lookup.lang(entities[0])}:{self.lookup.key(entities[0])}"

    def _concepts_of_key(self, key: str) -> set[int]:
        return {int(self.lookup.concept[entity]) for entity in self.lookup.find_key(key)}

    def entity_in(self, concept: int, lang: str) -> int | None:
        """Return the entity of a concept in a language, if it has one."""
        for entity in self.lookup.entities_of(concept):
            if self.lookup.lang(entity) == lang:
                return entity
        return None

    def shown_entity(self, concept: int, langs: Sequence[str]) -> int:
        """Return the entity under whose name a concept is shown."""
        by_lang: dict[str, int] = {}
        entities = self.lookup.entities_of(concept)
        for entity in entities:
            by_lang.setdefault(self.lookup.lang(entity), entity)
        for lang in (*langs, self._first):
            if lang in by_lang:
                return by_lang[lang]
        return entities[0]

    def description(self, concept: int, langs: Sequence[str]) -> Name | None:
        """Return the description of a concept in the best language that has one."""
        by_lang = {
            self.lookup.lang(entity): text
            for entity in reversed(self.lookup.entities_of(concept))
            if (text := self.lookup.description(entity))
        }
        for lang in (*langs, self._first, *sorted(by_lang)):
            if lang in by_lang:
                return Name(text=by_lang[lang], lang=lang)
        return None

    def name(self, entity: int) -> Name:
        """Return the name of an entity with its language."""
        return Name(text=self.lookup.name(entity), lang=self.lookup.lang(entity))

    def ref(self, concept: int, langs: Sequence[str]) -> EntityRef:
        """Return a concept under its name in the best language."""
        return self.ref_of(self.shown_entity(concept, langs))

    def ref_of(self, entity: int) -> EntityRef:
        """Return the concept of an entity under that entity's name."""
        concept = int(self.lookup.concept[entity])
        url = url_of(self.lookup.key(entity))
        return EntityRef(id=self.id_of(concept), name=self.name(entity), url=url)

    def relation(self, relation: int, langs: Sequence[str]) -> RelationRef:
        """Return a relation under its name in the best language."""
        text, lang = self.lookup.relation_name(relation, langs)
        return RelationRef(key=self.lookup.relation_keys[relation], name=Name(text=text, lang=lang))

    def langs_of(self, concept: int) -> set[str]:
        """Return the languages that have a name for a concept."""
        return {self.lookup.lang(entity) for entity in self.lookup.entities_of(concept)}

    def stated_by(self, concept: int, relation: int, other: int) -> list[tuple[int, int]]:
        """Return subject and object of every fact that states this, one for each language."""
        facts = self.lookup.facts_of(self.lookup.entities_of(concept))
        pairs: dict[str, tuple[int, int]] = {}
        is_it = (facts.relation == relation) & (self.lookup.concept[facts.object] == other)
        for row in is_it.nonzero()[0].tolist():
            subject, value = int(facts.subject[row]), int(facts.object[row])
            pairs.setdefault(self.lookup.lang(subject), (subject, value))
        return list(pairs.values())

    def page(
        self, concept: int, langs: Sequence[str], proposed: Proposed = NOTHING_PROPOSED
    ) -> EntityAnswer:
        """Return a concept in all its languages, with its facts in both directions."""
        entities = self.lookup.entities_of(concept)
        groups = self._groups(entities, _MAX_READ)
        for relation in proposed.by_relation:
            groups.setdefault((False, relation), {})
        shown, room = [], MAX_STATEMENTS
        order = sorted(groups, key=lambda key: (key[0], -_num_langs(groups[key]), key[1]))
        for inverse, relation in order:
            values = groups[inverse, relation]
            group = self._group(concept, inverse, relation, values, room, langs)
            room -= len(group.statements)
            proposals = [] if inverse else list(proposed.by_relation.get(relation, ()))
            if group.statements or proposals:
                shown.append(group.model_copy(update={"proposals": proposals}))
        num_facts = self.lookup.num_facts_of(entities)
        num_shown = sum(len(value.langs) for group in shown for value in group.statements)
        return EntityAnswer(
            entity=self.ref(concept, langs),
            description=self.description(concept, langs),
            names=[self._names(lang, entities, proposed) for lang in self.lookup.languages],
            facts=shown,
            num_facts=num_facts,
            truncated=num_shown < num_facts,
        )

    def _names(self, lang: str, entities: Sequence[int], proposed: Proposed) -> EntityNames:
        own = [entity for entity in entities if self.lookup.lang(entity) == lang]
        names = [self.lookup.name(entity) for entity in own]
        aliases = [alias for entity in own for alias in self.lookup.aliases(entity)]
        key = self.lookup.key(own[0]) if own else None
        return EntityNames(
            lang=lang,
            name=names[0] if own else None,
            # A second entity of the language is another name of the same concept.
            aliases=list(dict.fromkeys([*names[1:], *aliases])),
            key=key,
            url=None if key is None else url_of(key),
            description=next(filter(None, map(self.lookup.description, own)), None),
            proposed=list(proposed.by_lang.get(lang, ())),
        )

    def _groups(
        self, entities: Sequence[int], most: int
    ) -> dict[tuple[bool, int], dict[int, set[str]]]:
        """Return the facts of a concept by direction, relation and the concept at the other end."""
        groups: dict[tuple[bool, int], dict[int, set[str]]] = defaultdict(dict)
        own = set(entities)
        for inverse in (False, True):
            facts = self._facts(entities, inverse, most)
            others = facts.subject if inverse else facts.object
            columns = zip(
                facts.relation.tolist(),
                others.tolist(),
                self.lookup.concept[others].tolist(),
                self.lookup.langs(facts.subject),
                strict=True,
            )
            for relation, other, concept, lang in columns:
                if not inverse or other not in own:  # a fact about itself is shown once
                    groups[inverse, relation].setdefault(concept, set()).add(lang)
        return dict(groups)

    def _facts(self, entities: Sequence[int], inverse: bool, most: int) -> Facts:
        return (self.lookup.facts_to if inverse else self.lookup.facts_of)(entities, most)

    def _group(
        self,
        concept: int,
        inverse: bool,
        relation: int,
        values: Mapping[int, set[str]],
        room: int,
        langs: Sequence[str],
    ) -> FactGroup:
        """Return the statements of a relation, those of most languages first."""
        order = sorted(values, key=lambda value: (-len(values[value]), value))
        named = self.langs_of(concept)
        missing: set[str] = set()
        statements = []
        for value in order[:room]:
            stated = values[value]
            missing |= (named & self.langs_of(value)) - stated
            ref = self.ref(value, langs)
            statements.append(Statement(value=ref, langs=sorted(stated), inverse=inverse))
        return FactGroup(
            relation=self.relation(relation, langs),
            inverse=inverse,
            statements=statements,
            missing_in=sorted(missing),
            proposals=[],
        )

    def known(
        self,
        concept: int,
        langs: Sequence[str],
        *,
        without: tuple[int, int] | None = None,
        without_to: tuple[int, int] | None = None,
    ) -> KnownEntity:
        """Return names and telling facts of a concept.

        without: relation and object of the fact in question, which would say nothing.
        without_to: relation and subject, if the concept is its object.
        """
        entities = self.lookup.entities_of(concept)
        first = {lang: place for place, lang in reversed(list(enumerate(langs)))}
        ordered = sorted(entities, key=lambda e: (first.get(self.lookup.lang(e), len(langs)), e))
        names = dict.fromkeys((self.lookup.name(e), self.lookup.lang(e)) for e in ordered)
        return KnownEntity(
            entity=self.ref(concept, langs),
            description=self.description(concept, langs),
            names=[Name(text=text, lang=lang) for text, lang in list(names)[:_NUM_NAMES]],
            facts=[
                KnownFact(
                    relation=self.relation(relation, langs),
                    value=self.ref(value, langs),
                    langs=stated,
                    inverse=inverse,
                )
                for inverse, relation, value, stated in islice(
                    self._telling_facts(entities, without, without_to), _NUM_KNOWN
                )
            ],
        )

    def _telling_facts(
        self,
        entities: Sequence[int],
        without: tuple[int, int] | None = None,
        without_to: tuple[int, int] | None = None,
    ) -> Iterator[tuple[bool, int, int, list[str]]]:
        """Yield the facts that tell a concept apart, one of each relation.

        A fact is whether the concept is its object, its relation, the other concept, and the
        languages that state it.

        A type says most; then relations with few values, such as a birthplace, stated by most
        languages. Facts in which it is the object come last.
        """
        groups = self._groups(entities, _MAX_READ // 20)
        for inverse, fact in ((False, without), (True, without_to)):
            if fact is not None:
                groups.get((inverse, fact[0]), {}).pop(fact[1], None)

        def order(key: tuple[bool, int]) -> tuple[bool, bool, int, int, int]:
            is_type = _TYPES.match(self.lookup.relation_keys[key[1]]) is not None
            return key[0], not is_type, len(groups[key]), -_num_langs(groups[key]), key[1]

        said: set[int] = set()  # concepts: a director who is the writer too is named once
        for inverse, relation in sorted(groups, key=order):
            values = groups[inverse, relation]
            new = [value for value in values if value not in said]
            if new:
                value = min(new, key=lambda value: (-len(values[value]), value))
                said.add(value)
                yield inverse, relation, value, sorted(values[value])

    def about(self, concept: int, langs: Sequence[str]) -> str:
        """Return a few words that tell a concept from its namesakes."""
        words = []
        facts = self._telling_facts(self.lookup.entities_of(concept))
        for inverse, relation, value, _ in islice(facts, _NUM_ABOUT):
            text = self.lookup.name(self.shown_entity(value, langs))
            if inverse or not _TYPES.match(self.lookup.relation_keys[relation]):
                name = self.lookup.relation_name(relation, langs)[0]
                text = f"{'← ' if inverse else ''}{name}: {text}"
            words.append(text)
        text = " · ".join(words)
        return text if len(text) <= _MAX_ABOUT else text[: _MAX_ABOUT - 1] + "…"


def _num_langs(values: Mapping[int, Iterable[str]]) -> int:
    return len({lang for langs in values.values() for lang in langs})
