"""Questions to the KB's models: complete a fact, translate a name, link a mention.

    Questions(opened).complete("capital", "fi", subject="Q33")

Models are loaded when they are first asked.
"""

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from prixlm.errors import PrixError
from prixlm.reports.console import language_name
from prixlm.service import schemas
from prixlm.service.answering.concepts import NotFound
from prixlm.service.answering.reviewing import AskedRow, describe_evidence
from prixlm.types import Answer, Query

if TYPE_CHECKING:  # these bring torch, which a server without a model does not need
    from prixlm.enrichment import asking
    from prixlm.service.opened import Opened

logger = logging.getLogger(__name__)

_NUM_RIVALS = 8
"""Alternatives that are shown beside a proposed fact."""


class Questions:
    """Answers questions from folders as they were opened at one moment."""

    def __init__(self, opened: "Opened") -> None:
        self.opened = opened

    def complete(
        self,
        relation: str,
        lang: str | None = None,
        subject: str | None = None,
        name: str | None = None,
        limit: int = 10,
        langs: Sequence[str] = (),
    ) -> schemas.CompletionAnswer:
        """Return the objects of a subject and a relation, the most confident first.

        subject: the id of an entity; or else name: a name, which may be new to the KB.
        lang: of the answers; by default the reader's, if the subject has a name in it.
        """
        self.opened.concepts.check_lang(lang)
        opened = self.opened
        number = opened.lookup.find_relation(relation)
        if number is None:
            raise NotFound(f"no relation {relation[:100]!r}: expected a key or name of the KB.")
        entity, asked = self._find_subject(lang, subject, name, langs)
        asker = None if entity is None else opened.asker()
        completer = opened.completer()
        by: Literal["evidence", "model"] = "evidence"
        already: list[schemas.EntityRef] = []
        if asker is not None:
            assert entity is not None
            found = asker.ask_sync(((asked.lang, entity, number), limit))
            answers = self._completions(found)
            already = [opened.concepts.ref_of(one.entity) for one in found.already]
        elif completer is not None:
            by = "model"
            key = opened.lookup.relation_keys[number]
            # Of namesakes, the one that was chosen; a model without descriptions leaves it out.
            described = None if entity is None else opened.lookup.description(entity)
            query = Query(asked.lang, asked.text, key, description=described)
            scored = completer.ask_sync((query, limit))
            answers = [self._model_completion(entity, number, one) for one in scored]
        elif entity is None:
            raise NotFound(
                f"{asked.text[:100]!r} is not a name in {language_name(asked.lang)}: only a model "
                "can be asked about new names, so start the server with --model."
            )
        else:
            raise NotFound(
                "this server has nothing to complete facts with: start it with a work folder of "
                "`prixlm enrich`, or with --model."
            )
        return schemas.CompletionAnswer(
            lang=asked.lang,
            subject=asked,
            relation=opened.concepts.relation(number, [asked.lang, *langs]),
            answers=answers,
            by=by,
            already=already,
        )

    def _completions(self, found: "asking.Asked") -> list[schemas.Completion]:
        """Return the answers of all evidence, the most confident first."""
        return [
            schemas.Completion(
                entity=self.opened.concepts.ref_of(answer.entity),
                confidence=min(1.0, max(0.0, answer.confidence)),
                rank=rank,
                stated_in=list(answer.origin),
                evidence=[
                    describe_evidence(one.ranker, one.rank, one.score) for one in answer.evidence
                ],
            )
            for rank, answer in enumerate(found.answers, start=1)
        ]

    def _model_completion(
        self, entity: int | None, relation: int, answer: Answer
    ) -> schemas.Completion:
        """Return an answer of the model alone, whose score is not a confidence."""
        return schemas.Completion(
            entity=self.opened.concepts.ref_of(answer.entity),
            confidence=None,
            rank=answer.rank,
            stated_in=self._stated_in(entity, relation, answer.entity),
            evidence=[describe_evidence("Prix-LM", answer.rank, answer.score)],
        )

    def about(self, row: dict[str, Any]) -> AskedRow | None:
        """Return all evidence for a proposed fact and its rivals; None if it is not loaded."""
        opened = self.opened
        asker = opened.asker() if opened.is_made("asker") else None
        if asker is None:
            return None
        try:
            question = (row["lang"], row["subject"], row["relation"])
            found = asker.ask_sync((question, _NUM_RIVALS + 1))
        except PrixError as error:  # busy: the row itself says the most important
            logger.debug("no evidence for a proposal: %s", error)
            return None
        answers = self._completions(found)
        own = [found_one.entity == row["object"] for found_one in found.answers]
        rivals = [one for one, is_own in zip(answers, own, strict=True) if not is_own]
        evidence = [one.evidence for one, is_own in zip(answers, own, strict=True) if is_own]
        if not evidence:  # it was beaten by many: its own row must do
            return None
        return AskedRow(evidence[0], rivals[:_NUM_RIVALS])

    def _find_subject(
        self,
        lang: str | None,
        subject: str | None,
        name: str | None,
        langs: Sequence[str],
    ) -> tuple[int | None, schemas.Name]:
        """Return the entity that is asked about, if the KB has it, and its name."""
        if subject is not None:
            concept = self.opened.concepts.concept_of(subject)
            entity = self.opened.concepts.shown_entity(concept, [lang] if lang else langs)
            if lang not in (None, self.opened.lookup.lang(entity)):
                raise NotFound(f"{subject[:100]!r} has no name in {language_name(lang or '')}.")
            return entity, self.opened.concepts.name(entity)
        if not name or not name.strip():
            raise PrixError("the subject is missing: pass `subject`, an id, or `name`.")
        lang = lang or (langs[0] if langs else self.opened.kb.languages[0])
        found = self.opened.kb.find(name, lang)
        return (found[0].id if found else None), schemas.Name(text=name, lang=lang)

    def _stated_in(self, entity: int | None, relation: int, answer: int) -> list[str]:
        """Return the languages that state an answer already."""
        if entity is None:
            return []
        ends = (int(self.opened.lookup.concept[end]) for end in (entity, answer))
        subject, value = ends
        facts = self.opened.concepts.stated_by(subject, relation, value)
        return sorted(self.opened.lookup.lang(own) for own, _ in facts)

    def translate(
        self, name: str, source: str, to: str, limit: int = 10
    ) -> schemas.TranslationAnswer:
        """Return what a name is in another language: by links, then by the model."""
        opened = self.opened
        for lang in (source, to):
            self.opened.concepts.check_lang(lang)
        found: dict[int, float] = {}  # score by entity
        for entity in opened.kb.find(name, source):
            linked = opened.concepts.entity_in(entity.concept, to)
            if linked is not None:
                found[linked] = 1.0
        completer = opened.completer()
        if completer is not None and len(found) < limit and source != to:
            for answer in completer.ask_sync((Query(source, name, None, to), limit)):
                found.setdefault(answer.entity, math.exp(min(0.0, answer.score)))
        return schemas.TranslationAnswer(
            name=schemas.Name(text=name, lang=source),
            to=to,
            answers=[
                schemas.Translation(entity=opened.concepts.ref_of(entity), score=score, rank=rank)
                for rank, (entity, score) in enumerate(list(found.items())[:limit], start=1)
            ],
        )

    def link(
        self,
        mentions: Sequence[str],
        lang: str | None = None,
        limit: int = 5,
        langs: Sequence[str] = (),
    ) -> list[schemas.LinkAnswer]:
        """Return the concepts that mentions may mean. lang: only those with a name in it."""
        from prixlm.entities.matching import Question

        self.opened.concepts.check_lang(lang)
        opened = self.opened
        questions = [Question(names=(mention,), lang=lang) for mention in mentions]
        shown = [*([lang] if lang else []), *langs]
        return [
            schemas.LinkAnswer(
                mention=mention,
                candidates=[
                    schemas.LinkCandidate(
                        entity=opened.concepts.ref(found.concept, shown),
                        score=100.0 * min(1.0, max(0.0, found.probability)),
                        match=found.match,
                        features=found.features,
                    )
                    for found in candidates[:limit]
                ],
            )
            for mention, candidates in zip(mentions, opened.matcher().match(questions), strict=True)
        ]
