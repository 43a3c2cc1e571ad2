"""What the service answers: the JSON of `/api`, which the pages and MCP show too.

Every model is plain data with text as it stands in the KB; whoever shows it escapes it. Text in a
language comes as a `Name` with its language code, so that a page can set `lang` and `dir`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Table = Literal["facts", "labels", "links"]
Verdict = Literal["accept", "reject", "skip", "open"]
State = Literal["open", "skipped", "accepted", "rejected", "disputed", "all"]
Order = Literal["certain", "informative"]
Confidence = Annotated[float, Field(ge=0, le=1, description="Probability that it holds.")]

MAX_TEXT = 2_000
"""Characters of a name or query in a request: the longest name that an import takes by default."""
MAX_ID = 16_000
"""Characters of an id: a KB may have been imported with longer keys."""


class Model(BaseModel):
    """A frozen value; unknown fields in a request are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Name(Model):
    """Text in a language."""

    text: str
    lang: str = Field(description="Language code of the text, such as et.")


class EntityRef(Model):
    """A thing of the KB, by the id that `/api/entity` takes, under one of its names."""

    id: str = Field(description="Id of the concept: a key of the KB, such as Q33.")
    name: Name
    url: str | None = Field(
        default=None, description="Page of the source, if the key is an address."
    )


class RelationRef(Model):
    """A relation of the KB."""

    key: str
    name: Name


class Found(Model):
    """One result of a search."""

    entity: EntityRef
    matched: Name = Field(description="The name or alias that matched the query.")
    how: Literal["id", "exact", "prefix", "substring", "spelling", "romanised"]
    score: float = Field(ge=0, le=100, description="Similarity of the spelling, 0 to 100.")
    about: str = Field(default="", description="Its telling facts in a few words.")
    description: Name | None = Field(
        default=None, description="Its description in the reader's language, else in another."
    )


class SearchAnswer(Model):
    query: str
    results: list[Found]


class Statement(Model):
    """A fact of an entity page: one value of a relation, and who states it."""

    value: EntityRef
    langs: list[str] = Field(description="Languages that state it.")
    inverse: bool = Field(default=False, description="Whether the entity is the object.")


class ProposalRef(Model):
    """A proposal in brief."""

    id: str = Field(description="fact-12, label-3 or link-5.")
    table: Table
    lang: str
    subject: EntityRef
    relation: RelationRef | None = Field(description="Null for labels and links.")
    value: Name = Field(description="The proposed object, label or linked name.")
    value_id: str | None = Field(default=None, description="Id of the object's or linked concept.")
    confidence: Confidence
    state: State


class FactGroup(Model):
    """All that is stated, missing and proposed of one relation."""

    relation: RelationRef
    inverse: bool
    statements: list[Statement]
    missing_in: list[str] = Field(description="Languages that could state it and do not.")
    proposals: list[ProposalRef]


class EntityNames(Model):
    """What an entity is called in one language; without a name there is a gap."""

    lang: str
    name: str | None
    aliases: list[str]
    key: str | None
    url: str | None
    description: str | None = Field(default=None, description="As the source describes it.")
    proposed: list[ProposalRef] = Field(description="Proposed labels and links.")


class EntityAnswer(Model):
    """A thing in all its languages side by side."""

    entity: EntityRef
    description: Name | None = Field(
        default=None, description="Its description in the reader's language, else in another."
    )
    names: list[EntityNames]
    facts: list[FactGroup]
    num_facts: int
    truncated: bool = Field(description="Whether some facts were left out.")


class GapsAnswer(Model):
    """What an entity lacks in some language."""

    entity: EntityRef
    unnamed_in: list[str] = Field(description="Languages without a name for it.")
    gaps: list[FactGroup] = Field(description="Relations that a language lacks or could add.")


class RelationsAnswer(Model):
    """Relations that fit what was typed, the best first."""

    relations: list[RelationRef]


class Evidence(Model):
    """What one kind of evidence says about an answer."""

    ranker: str = Field(description="As in the manifest: lookup, rules, graph, Prix-LM, ...")
    title: str = Field(description="In plain words.")
    rank: int | None = Field(description="Its rank among the candidates, from 1.")
    score: float | None


class Completion(Model):
    """One answer to a question."""

    entity: EntityRef
    confidence: Confidence | None = Field(description="Null without a fitted confidence.")
    rank: int
    stated_in: list[str] = Field(description="Languages that state it already.")
    evidence: list[Evidence]


class CompletionAnswer(Model):
    lang: str
    subject: Name
    relation: RelationRef
    answers: list[Completion]
    by: Literal["evidence", "model"] = Field(
        description="All evidence with a fitted confidence, or the language model alone."
    )
    already: list[EntityRef] = Field(
        default_factory=list, description="Objects that the language states already."
    )


class Translation(Model):
    entity: EntityRef
    score: float
    rank: int


class TranslationAnswer(Model):
    name: Name
    to: str
    answers: list[Translation]


class LinkCandidate(Model):
    entity: EntityRef
    score: float = Field(ge=0, le=100, description="Calibrated: 95 is right 95 times of 100.")
    match: bool
    features: dict[str, float]


class LinkAnswer(Model):
    mention: str
    candidates: list[LinkCandidate]


class OverviewCell(Model):
    """One language and relation of the heat map."""

    stated: int
    missing: int = Field(description="Facts of other languages that it could state.")
    proposed: int


class OverviewRow(Model):
    relation: RelationRef
    cells: list[OverviewCell] = Field(description="In the order of `langs`.")


class ReliabilityPoint(Model):
    confidence: float = Field(description="Mean confidence of a bin.")
    right: float = Field(description="Share of right answers in it.")
    count: int


class TrialAnswer(Model):
    """How far the confidence can be believed, on held-out facts."""

    lang: str
    facts: int
    error: float = Field(description="Expected calibration error, 0 to 1.")
    curve: list[ReliabilityPoint]
    levels: list[dict[str, float]] = Field(description="confidence, precision, recall.")


class OverviewAnswer(Model):
    title: str
    langs: list[str]
    names: dict[str, str] = Field(description="Language names by code.")
    rows: list[OverviewRow]
    num_relations: int = Field(description="Of the KB; rows are those with most facts.")
    counts: dict[str, int] = Field(description="entities, facts, links, proposals, marks, ...")
    trials: list[TrialAnswer]
    lineage: dict[str, Any] = Field(description="Tool, sources, rankers, settings.")
    licence: str


class Offered(Model):
    """What this server can do with the folders that it was given."""

    proposals: bool
    evidence: bool = Field(description="Whether `complete` has a fitted confidence.")
    model: bool
    encoder: bool


class StatusAnswer(Model):
    tool: str
    kb: str = Field(description="Fingerprint of the KB.")
    languages: list[str]
    offered: Offered


class ProposalPage(Model):
    """A page of the queue."""

    total: int = Field(description="Proposals that pass the filter.")
    proposals: list[ProposalRef]
    next: str | None = Field(description="Pass as `after` for the next page.")


class KnownFact(Model):
    """A fact that is known of the subject or object."""

    relation: RelationRef
    value: EntityRef
    langs: list[str]
    inverse: bool = Field(default=False, description="Whether the entity is the object.")


class KnownEntity(Model):
    """What a reviewer should know of the subject or object."""

    entity: EntityRef
    description: Name | None = Field(default=None, description="As the source describes it.")
    names: list[Name] = Field(description="In the reviewer's language, the fact's, then others.")
    facts: list[KnownFact]


class StatedBy(Model):
    """A language that states the proposed fact, in its own words."""

    lang: str
    subject: EntityRef
    relation: RelationRef
    object: EntityRef


class MarkEntry(Model):
    """One line of the log of marks."""

    seq: int
    batch: int
    time: str = Field(description="UTC, ISO 8601.")
    reviewer: str
    id: str
    verdict: Verdict
    replacement: str | None = Field(default=None, description="What was accepted instead.")
    undone: bool


class LogAnswer(Model):
    """A page of the log of marks, the newest first."""

    marks: list[MarkEntry]
    next: int | None = Field(description="Pass as `before` for older ones.")


class ProposalAnswer(Model):
    """A proposal with all that a reviewer needs to judge it."""

    proposal: ProposalRef
    original_confidence: Confidence = Field(description="Before the marks corrected it.")
    why: str = Field(description="elsewhere, usual, or empty for labels and links.")
    explanation: str = Field(description="Why it is proposed, in one or two plain sentences.")
    stated_by: list[StatedBy]
    evidence: list[Evidence]
    alternatives: list[Completion] = Field(description="Next best answers, best first.")
    subject: KnownEntity
    object: KnownEntity | None
    already: list[EntityRef] = Field(
        default_factory=list, description="Objects that the language states already."
    )
    marks: list[MarkEntry] = Field(description="By reviewer, the last of each.")
    pending: bool = Field(
        default=False,
        description="Models are still loading: more evidence and alternatives will follow.",
    )
    next: str | None = Field(default=None, description="The next open proposal of the filter.")
    previous: str | None = None


class FacetValue(Model):
    value: str
    title: str
    count: int
    expected_precision: float | None = Field(
        default=None, description="Mean confidence: the expected share that is right."
    )


class FacetsAnswer(Model):
    total: int
    expected_precision: float | None
    langs: list[FacetValue]
    relations: list[FacetValue]
    kinds: list[FacetValue]
    confidence: list[FacetValue]
    states: list[FacetValue]
    tables: list[FacetValue]


class Replacement(Model):
    """What is accepted instead of the proposed value: an entity, or the text of a label."""

    entity: str | None = Field(default=None, max_length=MAX_ID, description="Id of a concept.")
    text: str | None = Field(default=None, max_length=MAX_TEXT)


class MarkRequest(Model):
    id: str = Field(max_length=40, examples=["fact-12"])
    verdict: Verdict
    replacement: Replacement | None = None


class Filter(Model):
    """Which proposals; the same names are query parameters of the queue."""

    table: Table | None = None
    lang: str | None = Field(default=None, max_length=40)
    relation: str | None = Field(default=None, max_length=MAX_ID, description="Key of a relation.")
    kind: str | None = Field(default=None, max_length=40, description="elsewhere or usual.")
    min_confidence: float = Field(default=0.0, ge=0, le=1)
    max_confidence: float = Field(default=1.0, ge=0, le=1)
    state: State = "open"
    subject: str | None = Field(default=None, max_length=MAX_ID, description="Id of a concept.")


class BulkRequest(Model):
    """Mark all proposals of a filter; refused if their number has changed since it was shown."""

    filter: Filter
    verdict: Literal["accept", "reject"]
    expected: int = Field(ge=0, description="The count that was shown.")


class MarkAnswer(Model):
    batch: int
    marked: int
    proposals: list[ProposalRef] = Field(description="The marked ones, at most 10.")
    open: int = Field(description="Proposals still open, in all tables.")


class UndoRequest(Model):
    """An empty object: the reviewer says whose mark it is."""


class UndoAnswer(Model):
    undone: int = Field(description="Marks that were taken back; 0 if there were none.")
    ids: list[str] = Field(description="Their proposals, at most 10.")
    open: int


class Disagreement(Model):
    proposal: ProposalRef
    marks: list[MarkEntry]


class DisagreementAnswer(Model):
    total: int
    disagreements: list[Disagreement]


class ExportRequest(Model):
    """The options of `prixlm export`."""

    format: Literal["nt", "nq", "quickstatements", "tsv", "parquet"]
    min_confidence: float = Field(default=0.0, ge=0, le=1)
    accepted: bool = False
    star: bool = False
    base: str = Field(default="urn:prixlm:", max_length=MAX_TEXT)
    references: list[Annotated[str, Field(max_length=MAX_TEXT)]] = Field(default=[], max_length=10)
    lang: str | None = Field(default=None, max_length=40)


class ErrorAnswer(Model):
    """Every error: what was found, what was expected, what to do."""

    detail: str


_FINLAND = {
    "id": "Q33",
    "name": {"text": "Soome", "lang": "et"},
    "url": "https://www.wikidata.org/wiki/Q33",
}
_CAPITAL = {"key": "P36", "name": {"text": "capital", "lang": "en"}}
_HELSINKI = {
    "id": "Q1757",
    "name": {"text": "Helsingi", "lang": "et"},
    "url": "https://www.wikidata.org/wiki/Q1757",
}
_FACT = {
    "id": "fact-12",
    "table": "facts",
    "lang": "et",
    "subject": _FINLAND,
    "relation": _CAPITAL,
    "value": _HELSINKI["name"],
    "value_id": "Q1757",
    "confidence": 0.97,
    "state": "open",
}
_GRAPH = {"ranker": "graph", "title": "Graph embedding", "rank": 1, "score": 8.25}
EXAMPLES: dict[type[Model], dict[str, Any]] = {
    StatusAnswer: {
        "tool": "prixlm 0.4.0",
        "kb": "9f2c" * 16,
        "languages": ["en", "et", "fi"],
        "offered": {"proposals": True, "evidence": True, "model": False, "encoder": False},
    },
    SearchAnswer: {
        "query": "soome",
        "results": [
            {
                "entity": _FINLAND,
                "matched": {"text": "Soome", "lang": "et"},
                "how": "exact",
                "score": 100.0,
                "about": "country · capital: Helsingi",
            }
        ],
    },
    ProposalPage: {"total": 40404, "proposals": [_FACT], "next": "fact-12"},
    CompletionAnswer: {
        "lang": "et",
        "subject": _FINLAND["name"],
        "relation": _CAPITAL,
        "answers": [
            {
                "entity": _HELSINKI,
                "confidence": 0.97,
                "rank": 1,
                "stated_in": ["en", "fi"],
                "evidence": [_GRAPH],
            }
        ],
        "by": "evidence",
    },
    TranslationAnswer: {
        "name": {"text": "Finland", "lang": "en"},
        "to": "et",
        "answers": [{"entity": _FINLAND, "score": 1.0, "rank": 1}],
    },
    LinkAnswer: {
        "mention": "Helsingfors",
        "candidates": [
            {"entity": _HELSINKI, "score": 96.5, "match": True, "features": {"spelling": 0.64}}
        ],
    },
    MarkAnswer: {
        "batch": 7,
        "marked": 1,
        "proposals": [_FACT | {"state": "accepted"}],
        "open": 40403,
    },
    UndoAnswer: {"undone": 1, "ids": ["fact-12"], "open": 40404},
    ErrorAnswer: {"detail": "no entity 'Q0': expected an id from /api/search, such as Q33."},
}
"""Answers as the OpenAPI description shows them."""
