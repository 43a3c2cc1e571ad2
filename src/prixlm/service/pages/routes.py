"""The routes of the pages: overview, review, entity, search, ask, export and marks.

The server renders them with Jinja from the answers of the Workbench, which `/api` returns as JSON.
Everything can be read without JavaScript; marks and downloads need it. Cards and lists that change
in place are the same templates, served as fragments (`/review/card`). No page has inline script or
style: colours are classes, lengths are attributes of SVG.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse

from prixlm.errors import PrixError
from prixlm.service.answering.concepts import NotFound
from prixlm.service.api import MAX_MENTIONS, reviewer_of
from prixlm.service.pages.facets import ReviewQuery, facet_groups
from prixlm.service.pages.overview import View, overview_values
from prixlm.service.pages.rendering import make_environment, static_files
from prixlm.service.schemas import MAX_ID, MAX_TEXT, Filter, Model, Name, ProposalAnswer
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
_NUM_LOG = 100
_NUM_RESULTS = 30
_NUM_ANSWERS = 10
_MAX_BEHIND = 25
"""Points of similarity that a result may lie behind the best one."""
_MAX_PASTED = 2_000
"""Names in a pasted list; the page sends them in parts."""
_NUM_LINKS = 5

Text = Annotated[str, Query(max_length=MAX_TEXT)]
Id = Annotated[str, Query(max_length=MAX_ID)]
Lang = Annotated[str, Query(max_length=40)]


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


class Pages:
    """Renders the answers of a Workbench."""

    def __init__(self, workbench: Workbench) -> None:
        self.workbench = workbench
        self.templates = make_environment()

    def overview(self, request: Request, show: View = "stated", all: bool = False) -> Response:
        """Show what each language states, lacks and could gain."""
        answer = self.workbench.overview(self._langs(request), show_all=all)
        values = overview_values(answer, show, all)
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
        links = self.workbench.questions.link(names.mentions, names.lang, _NUM_LINKS, langs)
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
            "facet_groups": facet_groups(facets, query),
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
                    "completion": bench.questions.complete(
                        query.relation, lang, subject, name, _NUM_ANSWERS, langs
                    )
                }
            if query.task == "translate" and name and query.source and query.to:
                answer = bench.questions.translate(name, query.source, query.to, _NUM_ANSWERS)
                return {"translation": answer}
            if query.task == "link" and query.mention.strip():
                lines = (line.strip() for line in query.mention.splitlines())
                mentions = [line for line in lines if line][:MAX_MENTIONS]
                return {"links": bench.questions.link(mentions, lang, _NUM_LINKS, langs)}
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
    router.add_api_route("/static/{name}", static_files(), methods=["GET"], response_model=None)
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


def _reviewer(request: Request) -> str:
    return reviewer_of(request.headers.get("x-reviewer"), request.cookies.get("reviewer"))


def _place_values(query: ReviewQuery) -> dict[str, Any]:
    changed = query.filter.model_dump(exclude_defaults=True)
    return {
        "place": query,
        "filter": query.filter,
        "order": query.order,
        "is_filtered": bool(changed),
    }


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
