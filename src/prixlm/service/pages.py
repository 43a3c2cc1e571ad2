"""The pages for people: overview, review, entity, search, ask, export and marks.

    app.include_router(make_router(workbench))

The server renders them with Jinja from the answers of the Workbench, which `/api` returns as JSON.
Everything can be read without JavaScript; marks and downloads need it. Cards and lists that change
in place are the same templates, served as fragments (`/review/card`). No page has inline script or
style: colours are classes, lengths are attributes of SVG.
"""

import hashlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlencode, urlsplit

import jinja2
import orjson
from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse

from prixlm.errors import PrixError
from prixlm.reports.console import language_name
from prixlm.service import markup
from prixlm.service.api import MAX_MENTIONS, reviewer_of
from prixlm.service.concepts import NotFound
from prixlm.service.schemas import (
    MAX_ID,
    MAX_TEXT,
    FacetsAnswer,
    FacetValue,
    Filter,
    Model,
    Name,
    Order,
    OverviewAnswer,
    OverviewCell,
    ProposalAnswer,
)
from prixlm.service.workbench import Unavailable, Workbench

PAGES = (
    ("/", "Overview"),
    ("/review", "Review"),
    ("/search", "Search"),
    ("/ask", "Ask"),
    ("/export", "Export"),
    ("/marks", "Marks"),
)
_ORDERS = (
    ("certain", "Most certain", "What is most likely right comes first"),
    ("informative", "Most informative", "What teaches the confidence most comes first"),
)
_VIEWS = (("stated", "Stated"), ("missing", "Missing"), ("proposed", "Proposed"))
_VIEW_TEXTS = {
    "stated": "The share of facts that a language states, out of all facts that any language "
    "states and that it has names for.",
    "missing": "How many facts other languages state that this language has names for and does "
    "not state.",
    "proposed": "How many facts are proposed.",
}
_TASKS = (
    ("complete", "Complete"),
    ("translate", "Translate"),
    ("link", "Link"),
)
_FORMATS = (
    ("nt", "N-Triples", "RDF, one statement a line"),
    ("nq", "N-Quads", "RDF with the confidence and origin of each fact"),
    ("quickstatements", "QuickStatements", "for Wikidata, with references"),
    ("tsv", "TSV", "a table of names"),
    ("parquet", "Parquet", "all columns, for programs"),
)
_REFERENCES = ("S248:Q36578", "S854:https://example.org/a,S813:+2026-11-18T00:00:00Z/11")
"""Examples of a reference of QuickStatements."""
_LINEAGE_TITLES = {
    "kb": "Fingerprint of the KB",
    "into": "Proposed for",
    "min_confidence": "Confidence from",
}
_TABLE_TITLES = {"facts": "Fact", "labels": "Label", "links": "Link"}
_VERDICT_TITLES = {
    "accept": "accepted",
    "reject": "rejected",
    "skip": "skipped",
    "open": "reopened",
}
_HOW_TITLES = {
    "id": "its id",
    "exact": "exact",
    "prefix": "begins like this",
    "substring": "contains it",
    "spelling": "similar spelling",
    "romanised": "similar sound",
}
_PROGRESS = ("accepted", "rejected", "disputed", "skipped")
_FACETS = (
    ("table", "Kind of proposal", "tables"),
    ("lang", "Language", "langs"),
    ("confidence", "Confidence, expected right", "confidence"),
    ("relation", "Relation", "relations"),
    ("kind", "Why it is proposed", "kinds"),
    ("state", "State", "states"),
)
_NUM_OPTIONS = 8
"""Options of a facet that are shown before `12 more`."""
_NUM_LOG = 100
_NUM_RESULTS = 30
_NUM_ANSWERS = 10
_MAX_BEHIND = 25
"""Points of similarity that a result may lie behind the best one."""
_MAX_PASTED = 2_000
"""Names in a pasted list; the page sends them in parts."""
_NUM_LINKS = 5
_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

View = Literal["stated", "missing", "proposed"]
Text = Annotated[str, Query(max_length=MAX_TEXT)]
Id = Annotated[str, Query(max_length=MAX_ID)]
Lang = Annotated[str, Query(max_length=40)]


class ReviewQuery(Filter):
    """A filter, an order and a proposal: the address of a place in the queue."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    order: Order = "certain"
    id: str | None = Field(default=None, max_length=40)
    seed: int = Field(default=0, ge=0, le=2**31)

    @property
    def filter(self) -> Filter:
        """The filter alone."""
        return Filter(**{name: getattr(self, name) for name in Filter.model_fields})


class LinkList(Model):
    """A pasted list of names."""

    mentions: list[Annotated[str, Field(max_length=MAX_TEXT)]] = Field(max_length=MAX_MENTIONS)
    lang: str | None = Field(None, max_length=40)


class AskQuery(Model):
    """A question as the forms send it; what is empty was not asked."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    task: Literal["complete", "translate", "link"] = "complete"
    subject: str = Field("", max_length=MAX_ID)
    name: str = Field("", max_length=MAX_TEXT)
    relation: str = Field("", max_length=MAX_ID)
    lang: str = Field("", max_length=40)
    source: str = Field("", max_length=40, alias="from")
    to: str = Field("", max_length=40)
    mention: str = Field("", max_length=20 * MAX_TEXT)


@dataclass(frozen=True)
class HeatCell:
    """A cell of the heat map as it is shown."""

    step: int
    text: str
    label: str
    proposed: int
    address: str | None
    empty: bool


@dataclass(frozen=True)
class Option:
    """One value of a facet."""

    title: str
    count: int
    expected: float | None
    address: str
    is_chosen: bool
    is_removable: bool  # chosen, and not the default


@dataclass(frozen=True)
class FacetGroup:
    """A facet with its values, and how many of them are shown at first."""

    key: str
    title: str
    options: list[Option]
    visible: int
    is_open: bool


class Pages:
    """Renders the answers of a Workbench."""

    def __init__(self, workbench: Workbench) -> None:
        self.workbench = workbench
        self.templates = _environment()

    def overview(self, request: Request, show: View = "stated", all: bool = False) -> Response:
        """Show what each language states, lacks and could gain."""
        answer = self.workbench.overview(self._langs(request), show_all=all)
        order = _heat_order(answer)
        values = {
            "overview": answer,
            "langs": [answer.langs[column] for column in order],
            "figures": _figures(answer),
            "progress": _progress(answer),
            "rows": _heat_rows(answer, show, order),
            "views": _VIEWS,
            "view_text": _VIEW_TEXTS[show],
            "show": show,
            "all": 1 if all else None,
            "scale": ("0 %", "100 %") if show == "stated" else ("none", "most"),
            "steps": markup.HEAT_STEPS,
            "trials": [(trial, markup.curve_dots(trial.curve)) for trial in answer.trials],
            "lineage": list(_lineage_lines(answer.lineage)),
        }
        return self._render(request, "overview.html", values)

    def review(self, request: Request, query: Annotated[ReviewQuery, Query()]) -> Response:
        """Show the queue with one proposal of it."""
        self._need_proposals()
        values = self._queue_values(request, query) | self._card_values(request, query)
        return self._render(request, "review.html", values)

    def review_card(self, request: Request, query: Annotated[ReviewQuery, Query()]) -> Response:
        """Show one proposal, by its id or the first of the queue: a fragment of the page."""
        return self._render(request, "card.html", self._card_values(request, query))

    def review_facets(self, request: Request, query: Annotated[ReviewQuery, Query()]) -> Response:
        """Show the counts of the queue: two fragments of the page."""
        return self._render(request, "counts.html", self._queue_values(request, query))

    def review_sample(self, request: Request, query: Annotated[ReviewQuery, Query()]) -> Response:
        """Show what would be marked by `mark all`: the body of its dialog."""
        langs = self._langs(request)
        facets = self.workbench.facets(query.filter, langs)
        sample = self.workbench.sample(query.filter, query.seed, langs).proposals
        wrong = facets.total * (1 - (facets.expected_precision or 0.0))
        values = {
            "facets": facets,
            "num_wrong": round(wrong),
            "sample": sample,
            "is_all": len(sample) == facets.total,
        }
        return self._render(request, "sample.html", values)

    def entity(self, request: Request, id: Id) -> Response:
        """Show a thing in all its languages."""
        answer = self.workbench.entity(id, self._langs(request))
        named = [proposal for names in answer.names for proposal in names.proposed]
        proposals = named + [proposal for facts in answer.facts for proposal in facts.proposals]
        values = {
            "answer": answer,
            "direct": [facts for facts in answer.facts if not facts.inverse],
            "inverse": [facts for facts in answer.facts if facts.inverse],
            "num_proposals": sum(proposal.state == "open" for proposal in proposals),
        }
        return self._render(request, "entity.html", values)

    def search(self, request: Request, q: Text = "", lang: Lang = "") -> Response:
        """Show the search form with its results."""
        return self._render(request, "search.html", self._search_values(request, q, lang))

    def search_results(self, request: Request, q: Text = "", lang: Lang = "") -> Response:
        """Show the results of a search: a fragment of the page."""
        return self._render(request, "results.html", self._search_values(request, q, lang))

    def ask(self, request: Request, query: Annotated[AskQuery, Query()]) -> Response:
        """Show the forms for questions, with the answers to one that was asked."""
        values = self._answer_values(self._answers(request, query))
        ui = self._langs(request)[0]
        source = query.source or ui
        others = [code for code in self.workbench.status().languages if code != source]
        name = query.name
        if query.subject and not name:
            name = self.workbench.entity(query.subject, self._langs(request)).entity.name.text
        asked = query.model_copy(
            update={
                "name": name,
                "lang": query.lang or ("" if query.task == "link" else ui),
                "source": source,
                "to": query.to or (others[0] if others else source),
            }
        )
        values |= {"task": query.task, "tasks": _TASKS, "asked": asked}
        return self._render(
            request, "ask.html", values | {"max_pasted": _MAX_PASTED, "part": MAX_MENTIONS}
        )

    def ask_link(self, request: Request, names: LinkList) -> Response:
        """Show the entities that a pasted list of names means: a fragment of the page."""
        langs = self._langs(request)
        links = self.workbench.link(names.mentions, names.lang, _NUM_LINKS, langs)
        return self._render(request, "answers.html", self._answer_values({"links": links}))

    def export(self, request: Request) -> Response:
        """Show the export form."""
        values: dict[str, Any] = {"formats": _FORMATS, "references": _REFERENCES}
        if self.workbench.status().offered.proposals:
            counts = {one.value: one.count for one in self.workbench.facets(Filter()).states}
            values |= {
                "accepted": counts.get("accepted", 0),
                "rejected": counts.get("rejected", 0),
                "still_open": counts.get("open", 0),
                "licence": self.workbench.overview().licence,
            }
        return self._render(request, "export.html", values)

    def marks(
        self,
        request: Request,
        show: Literal["log", "disagreements"] = "log",
        before: Annotated[int | None, Query(ge=0, lt=2**62)] = None,
    ) -> Response:
        """Show the log of marks, or what reviewers disagree on."""
        self._need_proposals()
        langs, review = self._langs(request), self.workbench.review
        batches = self.workbench.batches(_NUM_LOG, before)
        marked = review.refs([review.place(mark.id) for mark, _ in batches], langs)
        values = {
            "show_disagreements": show == "disagreements",
            "disagreements": self.workbench.disagreements(_NUM_LOG, langs),
            "log": [(*batch, ref) for batch, ref in zip(batches, marked, strict=True)],
            "before": batches[-1][0].batch if len(batches) == _NUM_LOG else None,
        }
        return self._render(request, "marks.html", values)

    def error(
        self, request: Request, status: int, problem: str, headers: Mapping[str, str]
    ) -> Response:
        """Return an error as a page."""
        heading = "Not found" if status == 404 else "This did not work"
        wanted = request.query_params.get("id", "") if request.url.path == "/entity" else ""
        values = {"heading": heading, "problem": problem, "wanted": wanted[:MAX_TEXT]}
        return self._render(request, "error.html", values, status, headers)

    def _need_proposals(self) -> None:
        if not self.workbench.status().offered.proposals:
            raise NotFound(
                "this server was started without proposals: make them with `prixlm enrich` and "
                "start `prixlm serve` with that folder."
            )

    def _queue_values(self, request: Request, query: ReviewQuery) -> dict[str, Any]:
        bench, langs = self.workbench, self._langs(request)
        facets = bench.facets(query.filter, langs)
        subject = None
        if query.subject is not None:
            subject = bench.opened.concepts.ref(bench.concept_of(query.subject), langs)
        return {
            "facets": facets,
            "subject": subject,
            "facet_groups": _facet_groups(facets, query),
            "orders": _ORDERS,
            **_place_values(query),
        }

    def _card_values(self, request: Request, query: ReviewQuery) -> dict[str, Any]:
        """Return what a card shows: the proposal asked for, or the first of the queue."""
        id, answer, langs, reviewer = query.id, None, self._langs(request), _reviewer(request)
        if id is None:
            page = self.workbench.proposals(
                query.filter, query.order, None, 1, langs, reviewer=reviewer
            )
            id = page.proposals[0].id if page.proposals else None
        if id is not None:
            answer = self.workbench.proposal(
                id, query.filter, query.order, langs, reviewer=reviewer
            )
        return {
            "answer": answer,
            "empty_text": "Nothing is left in this filter."
            if query.filter != Filter()
            else "Every proposal is marked.",
            "in_my_words": _names_in(answer, langs[0]) if answer else [],
            "was_corrected": answer is not None and _was_corrected(answer),
            **_place_values(query),
        }

    def _search_values(self, request: Request, q: str, lang: str) -> dict[str, Any]:
        found = []
        if q.strip():
            langs = self._langs(request)
            found = self.workbench.search(q, lang or None, _NUM_RESULTS, langs).results
            best = max((one.score for one in found), default=0.0)
            # Names that are merely similar are noise beside one that is much more so.
            found = [
                one
                for one in found
                if one.how not in ("spelling", "romanised") or one.score >= best - _MAX_BEHIND
            ]
        return {"query": q, "lang": lang, "results": found, "how_titles": _HOW_TITLES}

    def _answers(self, request: Request, query: AskQuery) -> dict[str, Any]:
        """Return the answers to a question, or what is wrong with it."""
        bench, langs = self.workbench, self._langs(request)
        lang, name = query.lang or None, query.name or None
        try:
            if query.task == "complete" and query.relation and (query.subject or name):
                subject = query.subject or self._find_exactly(name, langs)
                name = None if subject else name
                return {
                    "completion": bench.complete(
                        query.relation, lang, subject, name, _NUM_ANSWERS, langs
                    )
                }
            if query.task == "translate" and name and query.source and query.to:
                answer = bench.translate(name, query.source, query.to, _NUM_ANSWERS)
                return {"translation": answer}
            if query.task == "link" and query.mention.strip():
                lines = (line.strip() for line in query.mention.splitlines())
                mentions = [line for line in lines if line][:MAX_MENTIONS]
                return {"links": bench.link(mentions, lang, _NUM_LINKS, langs)}
        except PrixError as error:
            return {"problem": bench.hide_paths(str(error))}
        return {}

    def _find_exactly(self, name: str | None, langs: Sequence[str]) -> str | None:
        """Return the id of what is called like this in any language; None if nothing is."""
        found = self.workbench.search(name or "", None, 1, langs).results
        return found[0].entity.id if found and found[0].how in ("id", "exact") else None

    @staticmethod
    def _answer_values(found: Mapping[str, Any]) -> dict[str, Any]:
        links = found.get("links")
        matched = [one for one in links or [] if one.candidates and one.candidates[0].match]
        empty = dict.fromkeys(("problem", "completion", "translation", "links"))
        return {**empty, **found, "num_matched": len(matched)}

    def _langs(self, request: Request) -> list[str]:
        """Return the reviewer's language (address, cookie or browser), then another one."""
        ui = request.query_params.get("ui") or request.cookies.get("ui")
        accepted = request.headers.get("accept-language", "")
        return self.workbench.reader_langs(ui, accepted)

    def _render(
        self,
        request: Request,
        template: str,
        values: Mapping[str, Any],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        try:
            state, langs = self.workbench.status(), self._langs(request)
            common = {"languages": state.languages, "offered": state.offered, "ui": langs[0]}
        except Unavailable:  # the page that tells so still has a header
            common = {"languages": [], "offered": None, "ui": "en"}
        text = self.templates.get_template(template).render(
            pages=PAGES,
            here="/" + request.url.path.split("/")[1],
            reviewer=_reviewer(request),
            table_titles=_TABLE_TITLES,
            verdict_titles=_VERDICT_TITLES,
            **common,
            **values,
        )
        # The text holds counts that the next mark changes.
        headers = {"Cache-Control": "no-store", **(headers or {})}
        return HTMLResponse(text, status, headers)


def make_router(workbench: Workbench) -> APIRouter:
    """Return the routes of all pages and of their static files."""
    pages = Pages(workbench)
    router = APIRouter(route_class=_route_class(pages), include_in_schema=False)
    for path, endpoint in (
        ("/", pages.overview),
        ("/review", pages.review),
        ("/review/card", pages.review_card),
        ("/review/facets", pages.review_facets),
        ("/review/sample", pages.review_sample),
        ("/entity", pages.entity),
        ("/search", pages.search),
        ("/search/results", pages.search_results),
        ("/ask", pages.ask),
        ("/export", pages.export),
        ("/marks", pages.marks),
    ):
        router.add_api_route(path, endpoint, methods=["GET"], response_model=None)
    router.add_api_route("/ask/link", pages.ask_link, methods=["POST"], response_model=None)
    router.add_api_route("/static/{name}", _static_files(), methods=["GET"], response_model=None)
    return router


def _route_class(pages: Pages) -> type[APIRoute]:
    """Return a kind of route whose errors are pages."""

    class PageRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handle_with_error_page(request: Request) -> Response:
                try:
                    return await handle(request)
                except (PrixError, RequestValidationError, HTTPException) as error:
                    handlers = request.app.exception_handlers
                    answer_error = next(
                        handlers[kind] for kind in type(error).__mro__ if kind in handlers
                    )
                    answer: JSONResponse = await answer_error(request, error)
                    # A script that asked for a fragment reads JSON, as from /api.
                    if request.headers.get("sec-fetch-dest", "document") != "document":
                        return answer
                    detail = orjson.loads(answer.body)["detail"]
                    wait = answer.headers.get("retry-after")
                    headers = {"Retry-After": wait} if wait else {}
                    return pages.error(request, answer.status_code, detail, headers)

            return handle_with_error_page

    return PageRoute


def _static_files() -> Callable[[Request, str], Response]:
    """Return the endpoint of the static files, which are few and stay in memory.

    A name that is not among them is not found: no path of a request reaches the file system.
    """
    files = {}
    for file in (resources.files("prixlm.service") / "static").iterdir():
        content = file.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        files[file.name] = (content, etag, _MEDIA_TYPES[file.name.rpartition(".")[2]])

    def read_static(request: Request, name: str) -> Response:
        if name not in files:
            raise NotFound("this server has no such file.")
        content, etag, media_type = files[name]
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return read_static


def _environment() -> jinja2.Environment:
    """Return the templates with the filters that they use."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("prixlm.service", "templates"),
        autoescape=True,
        auto_reload=False,  # an update of the package must not mix with the code that runs
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clean": markup.clean,
        "count": markup.show_count,
        "direction": markup.direction,
        "entity_url": lambda id: f"/entity?{urlencode({'id': id})}",
        "key_tail": _key_tail,
        "language": language_name,
        "name": markup.show_name,
        "percent": markup.show_percent,
        "query": _query_string,
        "refine": _refine,
        "sentence": markup.as_sentence,
        "short": markup.show_short,
        "shorten": markup.shorten,
        "when": lambda time: datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M"),
    }
    environment.tests["web_address"] = lambda url: urlsplit(url).scheme in ("http", "https")
    return environment


def _reviewer(request: Request) -> str:
    return reviewer_of(request.headers.get("x-reviewer"), request.cookies.get("reviewer"))


def _query_string(values: Mapping[str, Any]) -> str:
    return urlencode({key: value for key, value in values.items() if value not in (None, "")})


def _address(query: ReviewQuery, **changes: Any) -> str:
    """Return the address of the queue with some values changed; defaults are left out."""
    values = query.model_dump(exclude_defaults=True, exclude={"id", "seed"}) | changes
    values = {key: value for key, value in values.items() if value is not None}
    return "/review" + (f"?{urlencode(values)}" if values else "")


@jinja2.pass_context
def _refine(context: jinja2.runtime.Context, changes: Mapping[str, Any]) -> str:
    return _address(context["place"], **changes)


def _place_values(query: ReviewQuery) -> dict[str, Any]:
    changed = query.filter.model_dump(exclude_defaults=True)
    return {
        "place": query,
        "filter": query.filter,
        "order": query.order,
        "is_filtered": bool(changed),
    }


def _key_tail(key: str) -> str:
    """Return the part of an address that tells entities apart; other keys as they are."""
    scheme, _, rest = key.partition("://")
    tail = rest.rstrip("/").rpartition("/")[2] if scheme in ("http", "https") else key
    return markup.shorten(unquote(tail) or key, 48)


def _figures(overview: OverviewAnswer) -> list[tuple[str, int]]:
    """Return the counts of the KB with their titles."""
    of_proposals = ("proposals", *_PROGRESS, "open")
    counts = overview.counts.items()
    # Languages that share keys have no explicit links: a 0 would look like a fault.
    left_out = (*of_proposals, *(["links"] if not overview.counts.get("links") else []))
    return [(name.replace("_", " "), count) for name, count in counts if name not in left_out]


def _progress(overview: OverviewAnswer) -> dict[str, Any] | None:
    """Return how far the review is, as counts and as parts of a bar of 100."""
    counts = overview.counts
    total = counts.get("proposals", 0)
    if not total:
        return None
    parts, start = [], 0.0
    for key in _PROGRESS:
        width = 100 * counts.get(key, 0) / total
        if width:
            # A few marks among thousands should still be seen.
            width = max(width, 0.4)
            parts.append({"key": key, "start": round(start, 2), "width": round(width, 2)})
            start += width
    numbers = {key: counts.get(key, 0) for key in (*_PROGRESS, "open")}
    return {"total": total, "parts": parts, **numbers}


def _heat_order(overview: OverviewAnswer) -> list[int]:
    """Return the columns of the heat map in order: first the languages with proposals."""
    columns = range(len(overview.langs))
    return sorted(columns, key=lambda i: not any(row.cells[i].proposed for row in overview.rows))


def _heat_rows(overview: OverviewAnswer, show: View, order: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows of the heat map, coloured by what is to be shown."""
    cells = [cell for row in overview.rows for cell in row.cells]
    largest = max((getattr(cell, show) for cell in cells), default=0)
    rows = []
    for row in overview.rows:
        shown = []
        for column in order:
            lang, cell, address = overview.langs[column], row.cells[column], None
            if cell.proposed:
                place = ReviewQuery(table="facts", lang=lang, relation=row.relation.key)
                address = _address(place)
            title = f"{markup.shorten(row.relation.name.text, 60)}, {language_name(lang)}"
            shown.append(_heat_cell(cell, show, largest, title, address))
        rows.append({"relation": row.relation, "cells": shown})
    return rows


def _heat_cell(
    cell: OverviewCell, show: View, largest: int, title: str, address: str | None
) -> HeatCell:
    statable = cell.stated + cell.missing
    share = cell.stated / statable if statable else 0.0
    if show == "stated":
        step, text = markup.share_step(share), markup.show_percent(share)
    else:
        number = getattr(cell, show)
        step = markup.count_step(number, largest)
        text = markup.show_short(number) if show == "missing" else ""
    numbers = ((cell.stated, "stated"), (cell.missing, "missing"), (cell.proposed, "proposed"))
    label = ", ".join(f"{markup.show_count(number)} {word}" for number, word in numbers)
    return HeatCell(
        step=step,
        text=text,
        label=f"{title}: {label}",
        proposed=cell.proposed,
        address=address,
        empty=not (statable or cell.proposed),
    )


def _lineage_lines(lineage: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a run was made of as lines of text."""
    for key, value in lineage.items():
        text = _plain_text(value)
        if text:
            yield _LINEAGE_TITLES.get(key) or key.replace("_", " ").capitalize(), text


def _plain_text(value: Any) -> str:
    """Return a value of a manifest for people: without quotes, brackets and what is not set."""
    if isinstance(value, Mapping):
        pairs = ((key.replace("_", " "), _plain_text(one)) for key, one in value.items())
        return "; ".join(f"{key} {text}" for key, text in pairs if text)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_plain_text(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _facet_groups(facets: FacetsAnswer, query: ReviewQuery) -> list[FacetGroup]:
    """Return the facets as links that add their value to the filter, or remove it."""
    groups = []
    for key, title, name in _FACETS:
        values: list[FacetValue] = getattr(facets, name)
        chosen = _chosen(key, query)
        if key == "state":
            everything = sum(value.count for value in values)
            values = [*values, FacetValue(value="all", title="All", count=everything)]
        # What was chosen stays in sight, also when nothing is left of it.
        if chosen and all(value.value != chosen for value in values):
            values = [_empty_value(key, chosen), *values]
        # A facet with one value cannot narrow the queue.
        if len(values) < 2 and not chosen:
            continue
        options = [_option(key, value, chosen, query) for value in values]
        visible = len(options) if len(options) <= _NUM_OPTIONS + 2 else _NUM_OPTIONS
        is_open = any(option.is_chosen for option in options[visible:])
        groups.append(FacetGroup(key, title, options, visible, is_open))
    return groups


def _chosen(key: str, query: ReviewQuery) -> str | None:
    """Return the value of a facet that the filter has."""
    if key != "confidence":
        value = getattr(query, key)
        return None if value is None else str(value)
    low, high = query.min_confidence, query.max_confidence
    return None if (low, high) == (0.0, 1.0) else f"{low:g}-{high:g}"


def _empty_value(key: str, value: str) -> FacetValue:
    """Return a chosen value that none of the proposals has."""
    title = value
    if key == "lang":
        title = language_name(value)
    elif key == "relation":
        title = _key_tail(value)
    elif key == "confidence":
        title = " to ".join(f"{100 * float(end):g}" for end in value.split("-")) + " %"
    elif key in ("state", "table"):
        title = value.capitalize()
    return FacetValue(value=value, title=title, count=0)


def _option(key: str, value: FacetValue, chosen: str | None, query: ReviewQuery) -> Option:
    is_chosen = value.value == chosen
    if key == "confidence":
        low, high = (None, None) if is_chosen else map(float, value.value.split("-"))
        changes: dict[str, Any] = {"min_confidence": low, "max_confidence": high}
    else:
        changes = {key: None if is_chosen else value.value}
    is_default = key == "state" and value.value == "open"
    return Option(
        title=value.title,
        count=value.count,
        expected=value.expected_precision if key == "confidence" else None,
        address=_address(query, **changes),
        is_chosen=is_chosen,
        is_removable=is_chosen and not is_default,
    )


def _names_in(answer: ProposalAnswer, lang: str) -> list[Name]:
    """Return subject and object in the reviewer's language, if that differs from the fact's."""
    if lang == answer.proposal.lang:
        return []
    known = [thing for thing in (answer.subject, answer.object) if thing is not None]
    names = [next((name for name in one.names if name.lang == lang), None) for one in known]
    return [name for name in names if name is not None]


def _was_corrected(answer: ProposalAnswer) -> bool:
    """Tell whether marks changed the confidence so far that it shows."""
    return abs(answer.original_confidence - answer.proposal.confidence) >= 0.005
