"""The workbench: a KB, its proposals and models, opened once and asked by many threads.

    bench = Workbench(Folders(work=Path("work")))
    bench.search("Helsinki")
    bench.mark("Anna", MarkRequest(id="fact-12", verdict="accept"))

Pages, the JSON API, the reconciliation service and MCP all stand on it; it knows no HTTP. A folder
that changes on disk is noticed within a second and opened again. Models are loaded when they are
first asked.
"""

import json
import logging
import math
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prixlm.entities.names import NameIndex
from prixlm.errors import PrixError
from prixlm.files import quote_path, write_atomically
from prixlm.kb.coverage import Coverage, count_coverage
from prixlm.kb.lookup import Lookup
from prixlm.kb.store import KB
from prixlm.languages import normalise
from prixlm.proposals.tables import table_path
from prixlm.reports.console import language_name
from prixlm.service import schemas
from prixlm.service.concepts import NOTHING_PROPOSED, NotFound
from prixlm.service.opened import Folders as Folders
from prixlm.service.opened import Opened, stamp
from prixlm.service.reviewing import AskedRow, Review, describe_evidence
from prixlm.service.schemas import Filter, MarkRequest, Order
from prixlm.types import Answer, Progress, Query

if TYPE_CHECKING:  # these bring torch, which a server without a model does not need
    from prixlm.enrichment import asking
    from prixlm.entities.matching import Matcher

logger = logging.getLogger(__name__)

NUM_RELATIONS = 40
"""Relations of the overview: those with most facts."""
_CHECK_SECONDS = 0.5
"""Seconds between two looks at whether a folder has changed."""
_OPEN_SECONDS = 10.0
"""Seconds that a request waits for a folder to be opened."""
_NUM_RIVALS = 8
"""Alternatives that are shown beside a proposed fact."""


class Unavailable(PrixError):
    """A folder cannot be opened now, perhaps because it is being replaced."""

    retry_after = 2


class Workbench:
    """Answers questions about the opened folders, as the schemas of the API."""

    version = version("prixlm")

    def __init__(self, folders: Folders, progress: Progress | None = None) -> None:
        """Open the folders; refuse what cannot be opened."""
        self.folders = folders
        self._opened: Opened | None = Opened(folders, progress)
        self._checked = time.monotonic()
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._exports: Path | None = None  # folder of their files
        self._export_lock = threading.Lock()

    # The folders.

    @property
    def opened(self) -> Opened:
        """The folders as they are now; raise `Unavailable` while they cannot be opened."""
        opened = self._opened
        if opened is not None and time.monotonic() - self._checked < _CHECK_SECONDS:
            return opened
        if not self._lock.acquire(timeout=_OPEN_SECONDS):
            raise Unavailable("the KB has changed and is being opened: ask again in a moment.")
        try:
            opened = self._opened
            if time.monotonic() - self._checked < _CHECK_SECONDS:
                if opened is None:
                    raise Unavailable(str(self._problem))
                return opened
            self._checked = time.monotonic()
            if opened is not None and opened.stamp == stamp(self.folders):
                return opened
            return self._reopen()
        finally:
            self._lock.release()

    def _reopen(self) -> Opened:
        """Open the folders again; the old state is given up, since its files may be gone."""
        try:
            old, self._opened = self._opened, None
            if old is not None:
                old.close()
            self._opened = Opened(self.folders)
        except Exception as error:  # files that are half written can be wrong in any way
            text = str(error) if isinstance(error, PrixError) else "its files cannot be read."
            if not isinstance(error, PrixError | OSError):
                logger.exception("the folders cannot be opened")
            self._problem = f"the folders cannot be opened now: {self.hide_paths(text)}"
            logger.warning("%s", self._problem)
            raise Unavailable(self._problem) from None
        logger.info("the folders have changed and were opened again")
        self._checked = time.monotonic()
        return self._opened

    @property
    def kb(self) -> KB:
        """The KB."""
        return self.opened.kb

    @property
    def lookup(self) -> Lookup:
        """The look-up of the KB."""
        return self.opened.lookup

    @property
    def names(self) -> NameIndex:
        """The index of the KB's names."""
        return self.opened.names

    def matcher(self) -> "Matcher":
        """Return the matcher of the KB's names."""
        return self.opened.matcher()

    def warm_up(self) -> None:
        """Load what the first questions would wait for."""
        opened = self.opened
        try:
            opened.once("coverage", lambda: _read_coverage(opened))
            opened.asker()
            opened.matcher()
        except PrixError as error:
            logger.warning("%s", error)

    def hide_paths(self, text: str) -> str:
        """Return a message without the paths of this machine."""
        given = self.folders
        named = {
            "the proposals": given.proposals,
            "the KB": given.kb,
            "the model": given.model,
            "the encoder": given.encoder,
            "the graph": given.graph,
            "the work folder": given.work,
            "the temporary folder": Path(tempfile.gettempdir()),
        }
        folders = [(folder, word) for word, folder in named.items() if folder is not None]
        if given.work is not None:
            inner = (("kb", "the KB"), ("everything", "the KB"), ("proposals", "the proposals"))
            folders = [*((given.work / name, word) for name, word in inner), *folders]
        for folder, word in folders:
            for path in (folder.absolute(), folder.resolve(), folder):
                # A relative folder such as `kb` is a word of many messages; others are paths.
                if path.is_absolute() or len(path.parts) > 1:
                    text = text.replace(str(path), word)
        return text

    # Ids and languages.

    def concept_of(self, text: str) -> int:
        """Return the concept with an id."""
        return self.opened.concepts.concept_of(text)

    def id_of(self, concept: int) -> str:
        """Return the id of a concept."""
        return self.opened.concepts.id_of(concept)

    def reader_langs(self, ui: str | None = None, accepted: str = "") -> list[str]:
        """Return the languages to show things in: the reader's, then English or the first one.

        accepted: an `Accept-Language` header.
        """
        languages = self.opened.kb.languages
        asked = [ui] if ui else _parse_accepted(accepted)
        langs = [lang for lang in dict.fromkeys(asked) if lang in languages]
        fallback = "en" if "en" in languages else languages[0]
        return langs[:1] + [lang for lang in (fallback,) if lang not in langs[:1]]

    def check_lang(self, lang: str | None) -> None:
        """Refuse a language that the KB does not have."""
        languages = self.opened.kb.languages
        if lang is not None and lang not in languages:
            raise NotFound(f"no language {lang[:40]!r}: the KB has {', '.join(languages)}.")

    # The KB.

    def status(self) -> schemas.StatusAnswer:
        """Return what this server offers."""
        opened = self.opened
        return schemas.StatusAnswer(
            tool=f"prixlm {self.version}",
            kb=opened.kb.fingerprint(),
            languages=opened.kb.languages,
            offered=schemas.Offered(
                proposals=opened.review is not None,
                evidence=opened.has_evidence(),
                model=opened.model is not None,
                encoder=opened.encoder is not None,
            ),
        )

    def search(
        self, query: str, lang: str | None = None, limit: int = 10, langs: Sequence[str] = ()
    ) -> schemas.SearchAnswer:
        """Find concepts by a name, an alias or an id. lang: only names in this language."""
        self.check_lang(lang)
        opened = self.opened
        langs = [*([lang] if lang else []), *langs]
        # By concept: what was found by its id is not found again by its name.
        found: dict[int, schemas.Found] = {}
        with suppress(NotFound):
            concept = opened.concepts.concept_of(query.strip())
            entity = opened.concepts.shown_entity(concept, langs)
            name = opened.concepts.name(entity)
            found[concept] = self._found(opened, concept, name, "id", 100.0, langs)
        for hit in opened.names.search(query, limit, lang):
            if hit.concept not in found:
                name = schemas.Name(text=hit.name, lang=hit.lang)
                score = max(hit.score, hit.romanised)
                found[hit.concept] = self._found(opened, hit.concept, name, hit.how, score, langs)
        return schemas.SearchAnswer(query=query, results=list(found.values())[:limit])

    @staticmethod
    def _found(
        opened: Opened,
        concept: int,
        matched: schemas.Name,
        how: Any,
        score: float,
        langs: Sequence[str],
    ) -> schemas.Found:
        langs = langs or [matched.lang]
        return schemas.Found(
            entity=opened.concepts.ref(concept, langs),
            matched=matched,
            how=how,
            score=min(100.0, max(0.0, score)),
            about=opened.concepts.about(concept, langs),
        )

    def entity(self, text: str, langs: Sequence[str] = ()) -> schemas.EntityAnswer:
        """Return a concept in all its languages, with gaps and proposals in place."""
        opened = self.opened
        concept = opened.concepts.concept_of(text)
        proposed = NOTHING_PROPOSED
        if opened.review is not None:
            proposed = opened.review.proposed(concept, langs)
        return opened.concepts.page(concept, langs, proposed)

    def gaps(
        self, text: str, lang: str | None = None, langs: Sequence[str] = ()
    ) -> schemas.GapsAnswer:
        """Return the relations of a concept that some language, or one, lacks or could add."""
        self.check_lang(lang)
        page = self.entity(text, langs)

        def is_gap(group: schemas.FactGroup) -> bool:
            missing = {*group.missing_in, *(proposal.lang for proposal in group.proposals)}
            return not group.inverse and bool(missing if lang is None else lang in missing)

        return schemas.GapsAnswer(
            entity=page.entity,
            unnamed_in=[names.lang for names in page.names if names.name is None],
            gaps=[group for group in page.facts if is_gap(group)],
        )

    def relations(
        self, query: str = "", langs: Sequence[str] = (), limit: int = 20
    ) -> schemas.RelationsAnswer:
        """Suggest relations whose name or key contains the query, the best first."""
        opened, wanted = self.opened, query.strip().casefold()
        found = []
        for number, key in enumerate(opened.lookup.relation_keys):
            name = opened.lookup.relation_name(number, langs)[0].casefold()
            texts = (name, key.casefold())
            if any(wanted in text for text in texts):
                found.append((wanted not in texts, not name.startswith(wanted), name, number))
        numbers = [entry[-1] for entry in sorted(found)[:limit]]
        return schemas.RelationsAnswer(
            relations=[opened.concepts.relation(number, langs) for number in numbers]
        )

    def overview(self, langs: Sequence[str] = (), show_all: bool = False) -> schemas.OverviewAnswer:
        """Return what is stated, missing and proposed by language and relation."""
        opened = self.opened
        facts = opened.once("coverage", lambda: _read_coverage(opened))
        proposed = opened.once("proposed", lambda: _count_proposed(opened))
        relations = facts.relations()

        def cell(key: tuple[str, int]) -> schemas.OverviewCell:
            missing = max(0, facts.statable[key] - facts.stated[key])
            return schemas.OverviewCell(
                stated=facts.stated[key], missing=missing, proposed=proposed[key]
            )

        rows = [
            schemas.OverviewRow(
                relation=opened.concepts.relation(relation, langs),
                cells=[cell((lang, relation)) for lang in opened.kb.languages],
            )
            for relation in (relations if show_all else relations[:NUM_RELATIONS])
        ]
        folder = self.folders.work or opened.kb.folder
        return schemas.OverviewAnswer(
            title=folder.resolve().name,
            langs=opened.kb.languages,
            names={lang: language_name(lang) for lang in opened.kb.languages},
            rows=rows,
            num_relations=opened.kb.num_relations,
            counts=_count(opened),
            trials=[
                trial for values in opened.manifest.get("trials", ()) for trial in _trials(values)
            ],
            lineage=_lineage(opened),
            licence=opened.kb.manifest.licence,
        )

    # Questions.

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
        self.check_lang(lang)
        opened = self.opened
        number = opened.lookup.find_relation(relation)
        if number is None:
            raise NotFound(f"no relation {relation[:100]!r}: expected a key or name of the KB.")
        entity, asked = self._find_subject(opened, lang, subject, name, langs)
        asker = None if entity is None else opened.asker()
        completer = opened.completer()
        by: Literal["evidence", "model"] = "evidence"
        already: list[schemas.EntityRef] = []
        if asker is not None:
            assert entity is not None
            found = asker.ask_sync(((asked.lang, entity, number), limit))
            answers = self._completions(opened, found)
            already = [opened.concepts.ref_of(one.entity) for one in found.already]
        elif completer is not None:
            by = "model"
            key = opened.lookup.relation_keys[number]
            scored = completer.ask_sync((Query(asked.lang, asked.text, key), limit))
            answers = [self._model_completion(opened, entity, number, one) for one in scored]
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

    @staticmethod
    def _completions(opened: Opened, found: "asking.Asked") -> list[schemas.Completion]:
        """Return the answers of all evidence, the most confident first."""
        return [
            schemas.Completion(
                entity=opened.concepts.ref_of(answer.entity),
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
        self, opened: Opened, entity: int | None, relation: int, answer: Answer
    ) -> schemas.Completion:
        """Return an answer of the model alone, whose score is not a confidence."""
        return schemas.Completion(
            entity=opened.concepts.ref_of(answer.entity),
            confidence=None,
            rank=answer.rank,
            stated_in=self._stated_in(opened, entity, relation, answer.entity),
            evidence=[describe_evidence("Prix-LM", answer.rank, answer.score)],
        )

    def _ask_about(self, row: dict[str, Any]) -> AskedRow | None:
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
        answers = self._completions(opened, found)
        own = [found_one.entity == row["object"] for found_one in found.answers]
        rivals = [one for one, is_own in zip(answers, own, strict=True) if not is_own]
        evidence = [one.evidence for one, is_own in zip(answers, own, strict=True) if is_own]
        if not evidence:  # it was beaten by many: its own row must do
            return None
        return AskedRow(evidence[0], rivals[:_NUM_RIVALS])

    @staticmethod
    def _find_subject(
        opened: Opened,
        lang: str | None,
        subject: str | None,
        name: str | None,
        langs: Sequence[str],
    ) -> tuple[int | None, schemas.Name]:
        """Return the entity that is asked about, if the KB has it, and its name."""
        if subject is not None:
            concept = opened.concepts.concept_of(subject)
            entity = opened.concepts.shown_entity(concept, [lang] if lang else langs)
            if lang not in (None, opened.lookup.lang(entity)):
                raise NotFound(f"{subject[:100]!r} has no name in {language_name(lang or '')}.")
            return entity, opened.concepts.name(entity)
        if not name or not name.strip():
            raise PrixError("the subject is missing: pass `subject`, an id, or `name`.")
        lang = lang or (langs[0] if langs else opened.kb.languages[0])
        found = opened.kb.find(name, lang)
        return (found[0].id if found else None), schemas.Name(text=name, lang=lang)

    @staticmethod
    def _stated_in(opened: Opened, entity: int | None, relation: int, answer: int) -> list[str]:
        """Return the languages that state an answer already."""
        if entity is None:
            return []
        ends = (int(opened.lookup.concept[end]) for end in (entity, answer))
        subject, value = ends
        facts = opened.concepts.stated_by(subject, relation, value)
        return sorted(opened.lookup.lang(own) for own, _ in facts)

    def translate(
        self, name: str, source: str, to: str, limit: int = 10
    ) -> schemas.TranslationAnswer:
        """Return what a name is in another language: by links, then by the model."""
        opened = self.opened
        for lang in (source, to):
            self.check_lang(lang)
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

        self.check_lang(lang)
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

    def lacks(self) -> list[str]:
        """Return what the server cannot do with the folders that it was given, in sentences."""
        offered, lines = self.status().offered, []
        if not offered.proposals:
            lines.append("No proposals: there is nothing to review or export.")
        if not offered.evidence and not offered.model:
            lines.append("No model and no fitted evidence: facts cannot be completed.")
        elif not offered.model:
            lines.append("No model: Ask uses links, rules and the graph.")
        elif not offered.evidence:
            lines.append("No fitted evidence: answers of the model have no confidence.")
        if not offered.encoder:
            lines.append("No encoder: names are matched by their spelling alone.")
        return lines

    def close(self) -> None:
        """End the threads of the models and let go of the folders."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()
        if self._exports is not None:
            shutil.rmtree(self._exports, ignore_errors=True)

    # Proposals.

    @property
    def review(self) -> Review:
        """The proposals; refuse if there are none."""
        review = self.opened.review
        if review is None:
            raise NotFound(
                "this server has no proposals: start it with a work folder of `prixlm enrich`, or "
                "with --proposals."
            )
        return review

    def proposals(
        self,
        asked: Filter,
        order: Order = "certain",
        after: str | None = None,
        limit: int = 50,
        langs: Sequence[str] = (),
        reviewer: str | None = None,
    ) -> schemas.ProposalPage:
        """Return a page of the queue. after: the `next` of the page before."""
        return self.review.page(asked, order, after, limit, langs, reviewer)

    def proposal(
        self,
        text: str,
        asked: Filter,
        order: Order = "certain",
        langs: Sequence[str] = (),
        reviewer: str | None = None,
    ) -> schemas.ProposalAnswer:
        """Return a proposal with all that a reviewer needs to judge it."""
        return self.review.proposal(text, asked, order, langs, reviewer, self._ask_about)

    def sample(
        self, asked: Filter, seed: int = 0, langs: Sequence[str] = ()
    ) -> schemas.ProposalPage:
        """Return ten proposals of a filter at random."""
        return self.review.sample(asked, seed, langs)

    def facets(self, asked: Filter, langs: Sequence[str] = ()) -> schemas.FacetsAnswer:
        """Count the proposals of a filter by language, relation, kind, confidence and state."""
        return self.review.facets(asked, langs)

    def mark(
        self, reviewer: str, request: MarkRequest, langs: Sequence[str] = ()
    ) -> schemas.MarkAnswer:
        """Mark one proposal."""
        return self.review.mark(reviewer, request, langs)

    def bulk(
        self, reviewer: str, request: schemas.BulkRequest, langs: Sequence[str] = ()
    ) -> schemas.MarkAnswer:
        """Mark all proposals of a filter."""
        return self.review.bulk(reviewer, request, langs)

    def undo(self, reviewer: str) -> schemas.UndoAnswer:
        """Take back the reviewer's last marks."""
        return self.review.undo(reviewer)

    def log(self, limit: int = 50, before: int | None = None) -> schemas.LogAnswer:
        """Return the newest marks first."""
        return self.review.log(limit, before)

    def batches(
        self, limit: int = 50, before: int | None = None
    ) -> list[tuple[schemas.MarkEntry, int]]:
        """Return what was marked at once, the newest first: its first mark and their number."""
        return self.review.batches(limit, before)

    def disagreements(
        self, limit: int = 50, langs: Sequence[str] = ()
    ) -> schemas.DisagreementAnswer:
        """Return proposals that reviewers judge differently."""
        return self.review.disagreements(limit, langs)

    def export(self, request: schemas.ExportRequest) -> tuple[Path, Callable[[], None]]:
        """Write the proposals to a temporary file; return how to remove it too."""
        review = self.review
        with self._export_lock:
            # Whoever downloads a file may go away, or the server end, before it is removed.
            if self._exports is None:
                self._exports = Path(tempfile.mkdtemp(prefix="prixlm-"))
        return review.export(request, self._exports)


def _read_coverage(opened: Opened) -> Coverage:
    """Return the counts of the overview, kept beside the look-up of the KB."""
    path = opened.lookup.folder / "coverage.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        return Coverage.from_json(json.loads(path.read_text("utf-8")))
    coverage = count_coverage(opened.kb)
    with suppress(OSError):  # a disk that cannot be written: the next server counts again
        write_atomically(path, json.dumps(coverage.to_json()))
    return coverage


def _count_proposed(opened: Opened) -> Counter[tuple[str, int]]:
    """Return the number of proposed facts by language and relation."""
    if opened.proposals is None:
        return Counter()
    table = quote_path(table_path(opened.proposals, "facts"))
    sql = f"SELECT lang, relation, count(*) FROM read_parquet({table}) GROUP BY ALL"
    rows = opened.kb.query(sql).fetchall()
    return Counter({(lang, relation): number for lang, relation, number in rows})


def _count(opened: Opened) -> dict[str, int]:
    """Return the counts of the KB and of its proposals."""
    counts = {
        "languages": len(opened.kb.languages),
        "entities": opened.kb.num_entities,
        "concepts": opened.lookup.num_concepts,
        "facts": opened.kb.num_triples(),
        "links": int(opened.kb.manifest.counts["links"]),
        "relations": opened.kb.num_relations,
    }
    return counts | ({} if opened.review is None else opened.review.counts())


def _trials(values: dict[str, Any]) -> list[schemas.TrialAnswer]:
    """Return a trial of the manifest; none if it was on a subset, or without a result."""
    measured = values["reliability"]
    if values.get("subset", "all") != "all" or measured["ece"] is None:
        return []
    curve = [
        schemas.ReliabilityPoint(confidence=confidence, right=right, count=count)
        for confidence, right, count in measured["bins"]
    ]
    # JSON has no NaN: a precision of nothing is null in the manifest, and left out here.
    levels = [
        {
            name: level[source]
            for name, source in (
                ("confidence", "level"),
                ("precision", "precision"),
                ("recall", "recall"),
            )
            if level[source] is not None and math.isfinite(level[source])
        }
        for level in values["levels"]
    ]
    return [
        schemas.TrialAnswer(
            lang=values["lang"],
            facts=values["held_out"],
            error=measured["ece"],
            curve=curve,
            levels=levels,
        )
    ]


def _lineage(opened: Opened) -> dict[str, Any]:
    """Return what the proposals, or else the KB, were made of."""
    manifest = opened.kb.manifest
    lineage: dict[str, Any] = {"kb": opened.kb.fingerprint(), "imported_by": manifest.tool}
    sources = [Path(str(source.get("name", ""))).name for source in manifest.sources]
    lineage["sources"] = [source for source in sources if source]
    if opened.manifest:
        config = opened.manifest.get("config", {})
        lineage |= {
            "proposed_by": opened.manifest.get("tool"),
            "rankers": opened.manifest.get("rankers", []),
            "into": config.get("into", []),
            "min_confidence": config.get("min_confidence"),
        }
    return lineage


def _parse_accepted(header: str) -> list[str]:
    """Return the languages of an `Accept-Language` header, the wanted first."""
    wanted = []
    for place, part in enumerate(header[:1000].split(",")[:30]):
        tag, _, quality = part.partition(";")
        try:
            weight = float(quality.strip().removeprefix("q=")) if quality else 1.0
        except ValueError:
            weight = 0.0
        lang = normalise(tag) if tag.strip() else None
        if lang is not None and weight > 0:
            wanted.append((-weight, place, lang))
    return [lang for _, _, lang in sorted(wanted)]
