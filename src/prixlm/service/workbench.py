"""The workbench: a KB, its proposals and models, opened once and asked by many threads.

    bench = Workbench(Folders(work=Path("work")))
    bench.search("Helsinki")
    bench.mark("Anna", MarkRequest(id="fact-12", verdict="accept"))

Pages, the JSON API, the reconciliation service and MCP all stand on it; it knows no HTTP. A folder
that changes on disk is noticed within a second and opened again. Models are loaded when they are
first asked.
"""

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prixlm.entities.names import NameIndex
from prixlm.errors import PrixError
from prixlm.kb.lookup import Lookup
from prixlm.kb.store import KB
from prixlm.languages import normalise
from prixlm.service import schemas
from prixlm.service.answering.concepts import NOTHING_PROPOSED, NotFound
from prixlm.service.answering.overview import describe_overview, read_coverage
from prixlm.service.answering.questions import Questions
from prixlm.service.answering.reviewing import Review
from prixlm.service.opened import Folders as Folders
from prixlm.service.opened import Opened, stamp
from prixlm.service.schemas import Filter, MarkRequest, Order
from prixlm.types import Progress

if TYPE_CHECKING:  # these bring torch, which a server without a model does not need
    from prixlm.entities.matching import Matcher

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 0.5
"""Seconds between two looks at whether a folder has changed."""
_OPEN_SECONDS = 10.0
"""Seconds that a request waits for a folder to be opened."""


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
            read_coverage(opened)
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
        self.opened.concepts.check_lang(lang)
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
            description=opened.concepts.description(concept, langs),
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
        self.opened.concepts.check_lang(lang)
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
        return describe_overview(self.opened, langs, show_all)

    @property
    def questions(self) -> Questions:
        """What the models are asked through."""
        return Questions(self.opened)

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
        # Asked before the evidence: if it arrives in between, the page merely looks once more.
        is_pending = self.opened.is_loading()
        answer = self.review.proposal(text, asked, order, langs, reviewer, self.questions.about)
        is_pending = is_pending and answer.proposal.table == "facts"
        return answer.model_copy(update={"pending": is_pending})

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
