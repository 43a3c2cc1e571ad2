"""Proposals as a reviewer sees them: the queue, each with its evidence, and what marks do to them.

review = Review(folder, manifest, Concepts(lookup))
review.page(Filter(lang="et"))
review.mark("Anna", MarkRequest(id="fact-12", verdict="accept"))
"""

import os
import re
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from prixlm.entities.names import NameIndex
from prixlm.errors import PrixError
from prixlm.proposals import marks as stored
from prixlm.proposals.export import ExportConfig, export
from prixlm.proposals.facets import Facets
from prixlm.proposals.marks import STATES, TABLES, Entry, Marks, NewMark
from prixlm.proposals.queue import Place, Places, Queue, Selection, format_id, parse_id
from prixlm.reports.console import language_name
from prixlm.service.answering.concepts import Concepts, NotFound, Proposed
from prixlm.service.schemas import (
    BulkRequest,
    Completion,
    Disagreement,
    DisagreementAnswer,
    EntityRef,
    Evidence,
    ExportRequest,
    FacetsAnswer,
    FacetValue,
    Filter,
    LogAnswer,
    MarkAnswer,
    MarkEntry,
    MarkRequest,
    Name,
    Order,
    ProposalAnswer,
    ProposalPage,
    ProposalRef,
    State,
    StatedBy,
    Table,
    UndoAnswer,
)

_NUM_LANGUAGES = 3
"""Languages that a sentence names before `and 3 more languages`."""
TITLES = {
    "Prix-LM": "Language model",
    "graph": "Graph embedding",
    "links: lookup": "Stated in another language",
    "links: pairs": "Related in another language",
    "rules: paths": "Follows from other facts",
    "rules: similar": "Usual for similar entities",
    "names: similar": "Usual for similar names",
    "names: shared": "Named like the subject or what it is related to",
    "names: new objects": "Named like other objects of the relation",
    "spelling": "Similarity of the two names",
}
"""Rankers in plain words, by their name in the manifest."""
_NUM_SHOWN = 10
"""Proposals that a sample, or the answer to a mark, shows."""
_NUM_PROPOSED = 100
"""Proposals of an entity page."""
_NUM_DISAGREEMENTS = 50
_SUFFIXES = {"quickstatements": "txt"}
_TABLE_TITLES = {"facts": "Facts", "labels": "Names", "links": "Links"}
_KIND_TITLES = {"elsewhere": "Stated elsewhere", "usual": "Usual for similar entities"}
_OPTION = re.compile(r"--([a-z][a-z-]*)")
_ORDINALS = {1: "first", 2: "second", 3: "third"}


def describe_evidence(ranker: str, rank: int | None, score: float | None) -> Evidence:
    """Return what a ranker says, with its name in plain words."""
    return Evidence(ranker=ranker, title=TITLES.get(ranker, ranker), rank=rank, score=score)


def language_list(codes: Sequence[str]) -> str:
    """Return languages as the beginning of a sentence: `French, Spanish and 3 more languages`."""
    names = [language_name(code) for code in codes]
    more = len(names) - _NUM_LANGUAGES
    if more > 1:
        return f"{', '.join(names[:_NUM_LANGUAGES])} and {more} more languages"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


class Describer:
    """Turns rows of the proposals folder into what the API answers."""

    def __init__(self, concepts: Concepts) -> None:
        self.concepts = concepts
        self.lookup = concepts.lookup

    def ref(
        self,
        table: Table,
        number: int,
        row: dict[str, Any],
        confidence: float,
        state: State,
        langs: Sequence[str],
    ) -> ProposalRef:
        """Return a proposal in brief. langs: the languages to show, the best first."""
        lang: str = row["lang"]
        relation, value_id = None, None
        if table == "facts":
            subject = self.concepts.ref_of(row["subject"])
            relation = self.concepts.relation(row["relation"], [lang, *langs])
            value = Name(text=row["object_name"], lang=lang)
            value_id = self.concepts.id_of(int(self.lookup.concept[row["object"]]))
        elif table == "labels":
            subject = self.concepts.ref(row["concept"], langs)
            value = Name(text=row["name"], lang=lang)
        else:
            subject = self.concepts.ref_of(row["entity"])
            value = Name(text=row["other_name"], lang=row["other_lang"])
            value_id = self.concepts.id_of(int(self.lookup.concept[row["other"]]))
        return ProposalRef(
            id=format_id(table, number),
            table=table,
            lang=lang,
            subject=subject,
            relation=relation,
            value=value,
            value_id=value_id,
            confidence=min(1.0, max(0.0, confidence)),
            state=state,
        )

    def ends(self, table: Table, row: dict[str, Any]) -> tuple[int, int | None]:
        """Return the concepts that a proposal is about and, but for a label, leads to."""
        if table == "labels":
            return int(row["concept"]), None
        ends = ("subject", "object") if table == "facts" else ("entity", "other")
        subject, value = (int(self.lookup.concept[row[end]]) for end in ends)
        return subject, value

    def already(self, row: dict[str, Any]) -> list[EntityRef]:
        """Return the objects that the language states already."""
        facts = self.lookup.facts_of([row["subject"]])
        objects = facts.object[facts.relation == row["relation"]]
        return [self.concepts.ref_of(entity) for entity in objects[:_NUM_SHOWN].tolist()]

    def stated_by(self, row: dict[str, Any], langs: Sequence[str]) -> list[StatedBy]:
        """Return the languages that state a proposed fact, in their own words."""
        subject, value = (int(self.lookup.concept[row[end]]) for end in ("subject", "object"))
        answers = []
        for own_subject, own_object in self.concepts.stated_by(subject, row["relation"], value):
            lang = self.lookup.lang(own_subject)
            answers.append(
                StatedBy(
                    lang=lang,
                    subject=self.concepts.ref_of(own_subject),
                    relation=self.concepts.relation(row["relation"], [lang, *langs]),
                    object=self.concepts.ref_of(own_object),
                )
            )
        return answers

    def evidence(self, table: Table, row: dict[str, Any]) -> list[Evidence]:
        """Return what the row itself keeps of the evidence; an `Asker` knows all of it."""
        found = []
        if table == "facts":
            if row["model_rank"] is not None or row["model_score"] is not None:
                found.append(("Prix-LM", row["model_rank"], row["model_score"]))
            if row["graph_rank"] is not None:
                found.append(("graph", row["graph_rank"], None))
        elif table == "links":
            found.append(("spelling", None, row["similarity"]))
        return [describe_evidence(*said) for said in found]

    def explain(self, table: Table, row: dict[str, Any], evidence: Sequence[Evidence]) -> str:
        """Return why a proposal was made, in one or two sentences."""
        origin: list[str] = list(row.get("origin") or ())
        if table == "links":
            kinds: list[str] = list(row.get("evidence") or ())
            return f"It is the first candidate by {', '.join(kinds)}." if kinds else ""
        if table == "labels":
            if row.get("how") == "written" and origin:
                word = "name" if len(origin) == 1 else "names"
                return f"Written from the {word} in {language_list(origin)}, as linked names are."
            verb = "uses" if len(origin) == 1 else "use"
            use = f"{language_list(origin)} {verb} this name." if origin else ""
            return use or "The name was taken over from another language."
        if origin:
            verb = "states" if len(origin) == 1 else "state"
            sentences = [f"{language_list(origin)} {verb} it."]
        elif row["why"] == "elsewhere":
            sentences = ["Other languages state this relation of it, with another value."]
        else:
            sentences = ["No language states it, but similar entities usually have this relation."]
        ranks = {item.ranker: item.rank for item in evidence}
        for name, subject in (("graph", "graph"), ("Prix-LM", "language model")):
            rank = ranks.get(name)
            if rank in _ORDINALS and len(sentences) < 2:
                sentences.append(f"The {subject} ranks it {_ORDINALS[rank]}.")
        return " ".join(sentences)


class Conflict(PrixError):
    """What was asked for has changed since it was shown."""

    status = 409


@dataclass(frozen=True)
class AskedRow:
    """What is known beyond the row of a fact: all its evidence, and its rivals."""

    evidence: list[Evidence]
    alternatives: list[Completion]


class Review:
    """The queue and the marks of one proposals folder. Threads may share it."""

    def __init__(self, folder: Path, concepts: Concepts, names: NameIndex) -> None:
        self.folder, self.concepts, self.names = folder, concepts, names
        self.describe = Describer(concepts)
        # On a disk that cannot be written, proposals and marks can still be looked at.
        self._marks = Marks.open(folder, read_only=not os.access(folder, os.W_OK))
        self._queue = Queue(folder, self._marks)
        self._bulk = threading.Lock()

    def close(self) -> None:
        """Close the connections to the marks that are not in use."""
        self._marks.close()

    @property
    def queue(self) -> Queue:
        """The queue, with the marks of all reviewers so far."""
        self._queue.refresh()
        return self._queue

    def counts(self) -> dict[str, int]:
        """Return the number of proposals, of all and by state."""
        states = self.queue.facets(Selection(state="all")).states
        counts = {"proposals": sum(number.count for number in states.values())}
        return counts | {state: states[state].count for state in STATES if state in states}

    def select(self, asked: Filter, reviewer: str | None = None) -> Selection:
        """Return a filter of the API with the ids of the KB."""
        subject = concepts = relation = None
        if asked.subject is not None:
            concept = self.concepts.concept_of(asked.subject)
            subject = frozenset(self.concepts.lookup.entities_of(concept))
            concepts = frozenset([concept])
        if asked.relation is not None:
            relation = self.concepts.lookup.find_relation(asked.relation)
            if relation is None:
                raise NotFound(f"no relation {asked.relation[:100]!r}: expected a key of the KB.")
        return Selection(
            table=asked.table,
            lang=asked.lang,
            relation=relation,
            kind=asked.kind,
            min_confidence=asked.min_confidence,
            max_confidence=asked.max_confidence,
            state=asked.state,
            subject=subject,
            concepts=concepts,
            reviewer=reviewer,
        )

    def place(self, text: str) -> Place:
        """Return the place of an id; refuse one that is not a proposal of this folder."""
        try:
            place = parse_id(text)
        except PrixError as error:
            raise NotFound(str(error)) from None
        if place.row >= self._queue.num_rows(place.table):
            raise NotFound(f"there is no proposal {text[:40]!r}.")
        return place

    def refs(self, places: Iterable[Place], langs: Sequence[str]) -> list[ProposalRef]:
        """Return proposals in brief, in the order of their places."""
        places = list(places)
        by_table: dict[str, list[int]] = defaultdict(list)
        for table, number in places:
            by_table[table].append(number)
        refs: dict[Place, ProposalRef] = {}
        for table, numbers in by_table.items():
            columns = (
                self._queue.rows(table, numbers),
                self._queue.confidence(table, numbers).tolist(),
                self._queue.states(table, numbers).tolist(),
            )
            for number, row, confidence, state in zip(numbers, *columns, strict=True):
                name = cast(State, STATES[state])
                of_table = cast(Table, table)
                ref = self.describe.ref(of_table, number, row, confidence, name, langs)
                refs[Place(table, number)] = ref
        return [refs[place] for place in places]

    def page(
        self,
        asked: Filter,
        order: Order = "certain",
        after: str | None = None,
        limit: int = 50,
        langs: Sequence[str] = (),
        reviewer: str | None = None,
    ) -> ProposalPage:
        """Return a page of the queue. after: the last id of the page before."""
        queue, selection = self.queue, self.select(asked, reviewer)
        places = queue.select(selection, order)
        start = 0
        if after is not None:
            table, row = self.place(after)
            # The last one may have been marked since, and so have left the filter.
            _, following = queue.neighbours(selection, order, table, row)
            start = len(places) if following is None else _find(places, following)
        shown = places.head(limit, start)
        has_more = start + limit < len(places)
        return ProposalPage(
            total=len(places),
            proposals=self.refs(shown, langs),
            next=format_id(*shown[-1]) if shown and has_more else None,
        )

    def sample(self, asked: Filter, seed: int = 0, langs: Sequence[str] = ()) -> ProposalPage:
        """Return ten proposals of a filter at random."""
        queue, selection = self.queue, self.select(asked)
        places = queue.sample(selection, _NUM_SHOWN, seed)
        shown = self.refs(places.head(_NUM_SHOWN), langs)
        return ProposalPage(total=queue.count(selection), proposals=shown, next=None)

    def proposal(
        self,
        text: str,
        asked: Filter,
        order: Order = "certain",
        langs: Sequence[str] = (),
        reviewer: str | None = None,
        ask: Callable[[dict[str, Any]], AskedRow | None] = lambda _row: None,
    ) -> ProposalAnswer:
        """Return a proposal with all that a reviewer needs to judge it.

        ask: returns what an `Asker` says about a fact, if there is one.
        """
        place = self.place(text)
        table = cast(Table, place.table)
        queue, selection = self.queue, self.select(asked, reviewer)
        [row] = queue.rows(table, [place.row])
        [ref] = self.refs([place], langs)
        said = ask(row) if table == "facts" else None
        evidence = self.describe.evidence(table, row) if said is None else said.evidence
        subject, value = self.describe.ends(table, row)
        shown = [*langs[:1], row["lang"], *langs[1:]]
        fact = (row["relation"], value) if table == "facts" and value is not None else None
        back = (row["relation"], subject) if table == "facts" else None
        before, after = queue.neighbours(selection, order, *place)
        return ProposalAnswer(
            proposal=ref,
            original_confidence=min(1.0, max(0.0, row["confidence"])),
            why=row.get("why") or "",
            explanation=self.describe.explain(table, row, evidence),
            stated_by=self.describe.stated_by(row, langs) if table == "facts" else [],
            evidence=evidence,
            alternatives=self._runner_up(row) if said is None else said.alternatives,
            subject=self.concepts.known(subject, shown, without=fact),
            object=None if value is None else self.concepts.known(value, shown, without_to=back),
            already=self.describe.already(row) if table == "facts" else [],
            marks=[mark_entry(entry) for entry in self._marks.last(table, place.row)],
            next=None if after is None else format_id(*after),
            previous=None if before is None else format_id(*before),
        )

    def _runner_up(self, row: dict[str, Any]) -> list[Completion]:
        """Return the next best answer, of which the row keeps the name only."""
        if not row.get("runner_up"):
            return []
        found = self.names.search(row["runner_up"], 1, row["lang"])
        return [
            Completion(
                entity=self.concepts.ref_of(hit.entity),
                confidence=min(1.0, max(0.0, row["runner_up_confidence"] or 0.0)),
                rank=2,
                stated_in=[],
                evidence=[],
            )
            for hit in found
            if hit.how == "exact"
        ]

    def facets(self, asked: Filter, langs: Sequence[str] = ()) -> FacetsAnswer:
        """Count the proposals of a filter by language, relation, kind, confidence and state."""
        found: Facets = self.queue.facets(self.select(asked))

        def values(counts: Any, title: Callable[[Any], str], key: Any = str) -> list[FacetValue]:
            return [
                FacetValue(
                    value=key(value),
                    title=title(value),
                    count=number.count,
                    expected_precision=number.expected_precision,
                )
                for value, number in counts.items()
            ]

        relations = dict(sorted(found.relations.items(), key=lambda item: -item[1].count))
        keys = self.concepts.lookup.relation_keys
        return FacetsAnswer(
            total=found.total.count,
            expected_precision=found.total.expected_precision if found.total.count else None,
            langs=values(found.langs, language_name),
            relations=values(
                relations,
                lambda relation: self.concepts.relation(relation, langs).name.text,
                lambda relation: keys[relation],
            ),
            kinds=values(found.kinds, lambda kind: _KIND_TITLES.get(kind, kind)),
            confidence=values(
                dict(sorted(found.confidence.items(), reverse=True)),
                lambda band: f"{100 * band[0]:g} to {100 * band[1]:g} %",
                lambda band: f"{band[0]:g}-{band[1]:g}",
            ),
            states=values(found.states, str.capitalize),
            tables=values(found.tables, lambda table: _TABLE_TITLES[table]),
        )

    def proposed(self, concept: int, langs: Sequence[str]) -> Proposed:
        """Return what is proposed of a concept, but not what was rejected."""
        entities = frozenset(self.concepts.lookup.entities_of(concept))
        about = Selection(state="all", subject=entities, concepts=frozenset([concept]))
        refs = self.refs(self.queue.select(about).head(_NUM_PROPOSED), langs)
        by_relation: dict[int, list[ProposalRef]] = defaultdict(list)
        by_lang: dict[str, list[ProposalRef]] = defaultdict(list)
        for ref in refs:
            if ref.state == "rejected":
                continue
            if ref.relation is None:
                by_lang[ref.lang if ref.table == "labels" else ref.value.lang].append(ref)
            else:
                relation = self.concepts.lookup.find_relation(ref.relation.key)
                assert relation is not None
                by_relation[relation].append(ref)
        return Proposed(by_relation, by_lang)

    def mark(self, reviewer: str, request: MarkRequest, langs: Sequence[str] = ()) -> MarkAnswer:
        """Mark one proposal; the mark is on disk when this returns."""
        place = self.place(request.id)
        replacement = None
        if request.replacement is not None:
            if request.verdict != "accept":
                raise PrixError("a replacement goes with the verdict accept only.")
            replacement = self._replacement(place, request)
        new = NewMark(place.table, place.row, request.verdict, replacement)
        return self._add(reviewer, [new], langs)

    def _replacement(self, place: Place, request: MarkRequest) -> stored.Replacement:
        """Return what is accepted instead: an entity of the fact's language, or a text."""
        given = request.replacement
        assert given is not None
        [row] = self._queue.rows(place.table, [place.row])
        if place.table == "labels":
            text = " ".join((given.text or "").split())
            if not text or given.entity is not None:
                raise PrixError("the replacement of a name is a text.")
            return stored.Replacement(None, row["key"], text)
        if given.entity is None or given.text is not None:
            raise PrixError("the replacement of a fact or a link is the id of an entity.")
        lang = row["lang"] if place.table == "facts" else row["other_lang"]
        entity = self.concepts.entity_in(self.concepts.concept_of(given.entity), lang)
        if entity is None:
            raise PrixError(f"{given.entity[:100]!r} has no name in {language_name(lang)}.")
        lookup = self.concepts.lookup
        return stored.Replacement(entity, lookup.key(entity), lookup.name(entity))

    def bulk(self, reviewer: str, request: BulkRequest, langs: Sequence[str] = ()) -> MarkAnswer:
        """Mark all proposals of a filter, if they are as many as were shown."""
        with self._bulk:
            places = self.queue.select(self.select(request.filter))
            if len(places) != request.expected:
                raise Conflict(
                    f"the filter now has {len(places):,} proposals, not {request.expected:,}: look "
                    "at them again."
                )
            marks = (NewMark(*places[n], request.verdict) for n in range(len(places)))
            shown = [NewMark(*place, request.verdict) for place in places.head(_NUM_SHOWN)]
            return self._add(reviewer, shown, langs, marks, len(places))

    def _add(
        self,
        reviewer: str,
        shown: list[NewMark],
        langs: Sequence[str],
        everything: Iterable[NewMark] | None = None,
        number: int = 1,
    ) -> MarkAnswer:
        is_bulk = everything is not None
        batch = self._marks.add(reviewer, shown if everything is None else everything, bulk=is_bulk)
        queue = self.queue
        return MarkAnswer(
            batch=batch,
            marked=number,
            proposals=self.refs((Place(mark.table, mark.row) for mark in shown), langs),
            open=queue.num_open,
        )

    def undo(self, reviewer: str) -> UndoAnswer:
        """Take back the reviewer's last batch of marks."""
        undone = self._marks.undo(reviewer, _NUM_SHOWN)
        ids = [format_id(entry.table, entry.row) for entry in undone.shown]
        return UndoAnswer(undone=undone.count, ids=ids, open=self.queue.num_open)

    def log(self, limit: int, before: int | None = None) -> LogAnswer:
        """Return the newest marks first. before: only those with a smaller `seq`."""
        marks = [mark_entry(entry) for entry in self._marks.log(limit, before)]
        return LogAnswer(marks=marks, next=marks[-1].seq if len(marks) == limit else None)

    def batches(self, limit: int, before: int | None = None) -> list[tuple[MarkEntry, int]]:
        """Return what was marked at once, the newest first: its first mark and their number."""
        found = self._marks.batches(limit, before)
        return [(mark_entry(entry), number) for entry, number in found]

    def disagreements(
        self, limit: int = _NUM_DISAGREEMENTS, langs: Sequence[str] = ()
    ) -> DisagreementAnswer:
        """Return proposals that reviewers judge differently."""
        found = [Place(*place) for place in self._marks.disagreements()]
        self._queue.refresh()
        shown = found[:limit]
        return DisagreementAnswer(
            total=len(found),
            disagreements=[
                Disagreement(
                    proposal=ref,
                    marks=[mark_entry(entry) for entry in self._marks.last(*place)],
                )
                for place, ref in zip(shown, self.refs(shown, langs), strict=True)
            ],
        )

    def export(
        self, request: ExportRequest, scratch: Path | None = None
    ) -> tuple[Path, Callable[[], None]]:
        """Write the proposals to a file of a temporary folder; return how to remove it too.

        scratch: where the folder is made; by default where temporary files are.
        """
        folder = Path(tempfile.mkdtemp(prefix="prixlm-export-", dir=scratch))
        file = folder / f"proposals.{_SUFFIXES.get(request.format, request.format)}"
        try:
            config = ExportConfig(
                **request.model_dump(exclude={"references"}),
                references=tuple(request.references),
                kb=self.concepts.lookup.kb.folder,
            )
            export(self.folder, file, config)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, PrixError):  # it names the options of the command line
                text = str(error).replace(str(self.folder), "this folder")
                raise PrixError(_OPTION.sub(lambda m: m[1].replace("-", "_"), text)) from None
            raise
        return file, lambda: shutil.rmtree(folder, ignore_errors=True)


def _find(places: Places, wanted: Place) -> int:
    is_it = (places.row == wanted.row) & (places.table == TABLES.index(wanted.table))
    return int(is_it.argmax())


def mark_entry(entry: Entry) -> MarkEntry:
    """Return a line of the log of marks as the API shows it."""
    return MarkEntry(
        seq=entry.seq,
        batch=entry.batch,
        time=entry.time,
        reviewer=entry.reviewer,
        id=format_id(entry.table, entry.row),
        verdict=cast(Any, entry.verdict),
        replacement=None if entry.replacement is None else entry.replacement.name,
        undone=entry.undone,
    )
