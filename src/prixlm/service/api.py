"""The JSON API: `/api`, described by `/api/openapi.json`. The pages use it, and so may others.

Every endpoint parses, calls the workbench once and returns its answer. They are plain functions, so
FastAPI runs them in threads and the event loop stays free.
"""

from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Cookie, Depends, Header, HTTPException, Path, Query, Request
from fastapi.responses import FileResponse
from pydantic import Field, model_validator
from starlette.background import BackgroundTask

from prixlm.service import schemas
from prixlm.service.schemas import EXAMPLES, MAX_ID, MAX_TEXT, ErrorAnswer, Filter, Order
from prixlm.service.security import is_json
from prixlm.service.workbench import Workbench

MAX_REVIEWER = 60
"""Characters of a reviewer's name."""
MAX_PAGE = 200
"""Proposals, results or log lines of one answer."""
MAX_MENTIONS = 100
"""Mentions of one request."""

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The question makes no sense."},
    401: {"model": ErrorAnswer, "description": "The token is missing or wrong."},
    403: {"model": ErrorAnswer, "description": "A write from another site, or not as JSON."},
    404: {"model": ErrorAnswer, "description": "No such entity, relation or proposal."},
    422: {"model": ErrorAnswer, "description": "A parameter has the wrong form."},
    503: {"model": ErrorAnswer, "description": "Busy, or the KB is being replaced."},
}


def _need_json(request: Request) -> None:
    """Refuse what a form of another site could send, before the body is looked at."""
    if not is_json(request.headers):
        raise HTTPException(403, "expected a body of the content type application/json.")


_WRITE_ERRORS = _ERRORS | {
    409: {"model": ErrorAnswer, "description": "The proposals have changed since."},
    413: {"model": ErrorAnswer, "description": "The body is too large."},
}


def _shows(model: type[schemas.Model]) -> dict[int | str, dict[str, Any]]:
    """Return the description of a good answer by its example."""
    return {200: {"content": {"application/json": {"example": EXAMPLES[model]}}}}


def _writes(model: type[schemas.Model] | None = None) -> dict[str, Any]:
    """Return the options of a route that takes JSON."""
    shown = {} if model is None else _shows(model)
    return {"responses": _WRITE_ERRORS | shown, "dependencies": [Depends(_need_json)]}


_Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
_Lang = Annotated[
    str | None, Query(max_length=40, description="A language code of the KB.", examples=["fi"])
]
_Ui = Annotated[
    str | None,
    Query(
        max_length=40,
        description="Language of the reader; else Accept-Language, else en.",
        examples=["en"],
    ),
]
_Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
_Id = Annotated[
    str, Query(min_length=1, max_length=MAX_ID, description="Id of an entity.", examples=["Q33"])
]


class _Parameters(Filter):
    """A filter as query parameters; an empty one is one that was not given, as forms send it."""

    ui: str | None = Field(default=None, max_length=40, description="Language of the reader.")

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if value != ""}
        return values

    def filter(self) -> Filter:
        """Return the filter alone."""
        return Filter(**{name: getattr(self, name) for name in Filter.model_fields})


class _QueueParameters(_Parameters):
    order: Order = "certain"
    after: str | None = Field(default=None, max_length=40, description="`next` of the page before.")
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)


class _ProposalParameters(_Parameters):
    order: Order = "certain"


class _SampleParameters(_Parameters):
    seed: int = Field(default=0, ge=0, lt=2**32)


class LinkRequest(schemas.Model):
    """Mentions to link."""

    mentions: list[_Text] = Field(min_length=1, max_length=MAX_MENTIONS, examples=[["Helsingfors"]])
    lang: str | None = Field(default=None, max_length=40, description="Only entities named in it.")
    limit: int = Field(default=5, ge=1, le=50)


def make_router(bench: Workbench) -> APIRouter:
    """Return the routes of `/api` over a workbench."""
    router = APIRouter(prefix="/api", responses=_ERRORS)
    _add_kb(router, bench)
    _add_questions(router, bench)
    _add_queue(router, bench)
    _add_marks(router, bench)
    return router


def reviewer_of(header: str | None, cookie: str | None) -> str:
    """Return the reviewer's name from a header or cookie, which may be percent-encoded.

    Characters that do not show are left out, as the joiners of an emoji: marks have none of them.
    """
    text = header or cookie or ""
    with suppress(UnicodeError):  # raw UTF-8, which HTTP reads as Latin-1
        text = text.encode("latin-1").decode("utf-8")
    words = unquote(text).split()
    name = " ".join("".join(filter(str.isprintable, word)) for word in words)
    return name[:MAX_REVIEWER].strip() or "reviewer"


_ReviewerHeader = Annotated[
    str | None,
    Header(
        alias="X-Reviewer",
        max_length=600,
        description=f"Name of the reviewer, percent-encoded; {MAX_REVIEWER} characters count.",
    ),
]
_ReviewerCookie = Annotated[str | None, Cookie(alias="reviewer", max_length=600)]


def _langs(bench: Workbench, request: Request, ui: str | None) -> list[str]:
    return bench.reader_langs(ui, request.headers.get("accept-language", ""))


def _add_kb(router: APIRouter, bench: Workbench) -> None:
    """Add what reads the KB."""

    @router.get(
        "/status", summary="What this server offers", responses=_shows(schemas.StatusAnswer)
    )
    def status() -> schemas.StatusAnswer:
        return bench.status()

    @router.get("/overview", summary="What is stated, missing and proposed")
    def overview(
        request: Request,
        ui: _Ui = None,
        all: Annotated[bool, Query(description="All relations, not the largest.")] = False,
    ) -> schemas.OverviewAnswer:
        return bench.overview(_langs(bench, request, ui), all)

    @router.get(
        "/search",
        summary="Find entities by a name, an alias or an id",
        responses=_shows(schemas.SearchAnswer),
    )
    def search(
        request: Request,
        q: Annotated[str, Query(max_length=MAX_TEXT, examples=["Helsinki"])],
        lang: _Lang = None,
        limit: _Limit = 10,
        ui: _Ui = None,
    ) -> schemas.SearchAnswer:
        return bench.search(q, lang or None, limit, _langs(bench, request, ui))

    @router.get("/entity", summary="An entity in all its languages")
    def entity(
        request: Request, id: _Id, lang: _Lang = None, ui: _Ui = None
    ) -> schemas.EntityAnswer:
        bench.opened.concepts.check_lang(lang or None)
        return bench.entity(id, _langs(bench, request, lang or ui))

    @router.get("/gaps", summary="Relations of an entity that a language lacks")
    def gaps(request: Request, id: _Id, lang: _Lang = None, ui: _Ui = None) -> schemas.GapsAnswer:
        return bench.gaps(id, lang or None, _langs(bench, request, ui))

    @router.get("/relations", summary="Suggest relations")
    def relations(
        request: Request,
        q: Annotated[str, Query(max_length=MAX_TEXT, examples=["cap"])] = "",
        lang: _Lang = None,
        limit: _Limit = 20,
        ui: _Ui = None,
    ) -> schemas.RelationsAnswer:
        bench.opened.concepts.check_lang(lang or None)
        return bench.relations(q, _langs(bench, request, lang or ui), limit)


def _add_questions(router: APIRouter, bench: Workbench) -> None:
    """Add what asks the models."""

    @router.get(
        "/complete",
        summary="Objects of a subject and a relation",
        responses=_shows(schemas.CompletionAnswer),
    )
    def complete(
        request: Request,
        relation: Annotated[
            str, Query(min_length=1, max_length=MAX_ID, description="Key or name.")
        ],
        lang: _Lang = None,
        subject: Annotated[
            str | None, Query(max_length=MAX_ID, description="Id of an entity.")
        ] = None,
        name: Annotated[
            str | None,
            Query(max_length=MAX_TEXT, description="A name instead, in the KB or new."),
        ] = None,
        limit: Annotated[int, Query(ge=1, le=50)] = 10,
        ui: _Ui = None,
    ) -> schemas.CompletionAnswer:
        langs = _langs(bench, request, ui)
        return bench.questions.complete(
            relation, lang or None, subject or None, name or None, limit, langs
        )

    @router.get(
        "/translate",
        summary="The name of an entity in another language",
        responses=_shows(schemas.TranslationAnswer),
    )
    def translate(
        name: Annotated[str, Query(min_length=1, max_length=MAX_TEXT, examples=["London"])],
        from_: Annotated[str, Query(alias="from", max_length=40, examples=["en"])],
        to: Annotated[str, Query(max_length=40, examples=["es"])],
        limit: Annotated[int, Query(ge=1, le=50)] = 10,
    ) -> schemas.TranslationAnswer:
        return bench.questions.translate(name, from_, to, limit)

    @router.get(
        "/link", summary="Entities that a mention may mean", responses=_shows(schemas.LinkAnswer)
    )
    def link(
        request: Request,
        mention: Annotated[str, Query(min_length=1, max_length=MAX_TEXT)],
        lang: _Lang = None,
        limit: Annotated[int, Query(ge=1, le=50)] = 5,
        ui: _Ui = None,
    ) -> schemas.LinkAnswer:
        langs = _langs(bench, request, ui)
        return bench.questions.link([mention], lang or None, limit, langs)[0]

    @router.post("/link", summary="The same for many mentions", **_writes())
    def link_many(request: Request, body: LinkRequest, ui: _Ui = None) -> list[schemas.LinkAnswer]:
        langs = _langs(bench, request, ui)
        return bench.questions.link(body.mentions, body.lang or None, body.limit, langs)


def _add_queue(router: APIRouter, bench: Workbench) -> None:
    """Add what reads the proposals."""

    @router.get(
        "/proposals", summary="The queue, page by page", responses=_shows(schemas.ProposalPage)
    )
    def proposals(
        request: Request,
        asked: Annotated[_QueueParameters, Query()],
        x_reviewer: _ReviewerHeader = None,
        reviewer: _ReviewerCookie = None,
    ) -> schemas.ProposalPage:
        langs = _langs(bench, request, asked.ui)
        name = reviewer_of(x_reviewer, reviewer)
        return bench.proposals(
            asked.filter(), asked.order, asked.after, asked.limit, langs, reviewer=name
        )

    @router.get("/proposals/{id}", summary="A proposal with its evidence")
    def proposal(
        request: Request,
        id: Annotated[str, Path(max_length=40, examples=["fact-12"])],
        asked: Annotated[_ProposalParameters, Query()],
        x_reviewer: _ReviewerHeader = None,
        reviewer: _ReviewerCookie = None,
    ) -> schemas.ProposalAnswer:
        langs = _langs(bench, request, asked.ui)
        name = reviewer_of(x_reviewer, reviewer)
        return bench.proposal(id, asked.filter(), asked.order, langs, reviewer=name)

    @router.get("/facets", summary="How many proposals there are of each kind")
    def facets(request: Request, asked: Annotated[_Parameters, Query()]) -> schemas.FacetsAnswer:
        return bench.facets(asked.filter(), _langs(bench, request, asked.ui))

    @router.get(
        "/sample", summary="Ten proposals at random", responses=_shows(schemas.ProposalPage)
    )
    def sample(
        request: Request, asked: Annotated[_SampleParameters, Query()]
    ) -> schemas.ProposalPage:
        return bench.sample(asked.filter(), asked.seed, _langs(bench, request, asked.ui))

    @router.get("/marks", summary="The log of marks, the newest first")
    def marks(
        limit: _Limit = 50,
        before: Annotated[int | None, Query(ge=1, lt=2**62, description="Older than this.")] = None,
    ) -> schemas.LogAnswer:
        return bench.log(limit, before)

    @router.get("/disagreements", summary="Proposals that reviewers judge differently")
    def disagreements(
        request: Request, limit: _Limit = 50, ui: _Ui = None
    ) -> schemas.DisagreementAnswer:
        return bench.disagreements(limit, _langs(bench, request, ui))


def _add_marks(router: APIRouter, bench: Workbench) -> None:
    """Add what writes marks, and the export."""

    @router.post("/marks", summary="Mark a proposal", **_writes(schemas.MarkAnswer))
    def mark(
        request: Request,
        body: schemas.MarkRequest,
        x_reviewer: _ReviewerHeader = None,
        reviewer: _ReviewerCookie = None,
    ) -> schemas.MarkAnswer:
        langs = _langs(bench, request, None)
        return bench.mark(reviewer_of(x_reviewer, reviewer), body, langs)

    @router.post("/marks/bulk", summary="Mark all of a filter", **_writes(schemas.MarkAnswer))
    def bulk(
        request: Request,
        body: schemas.BulkRequest,
        x_reviewer: _ReviewerHeader = None,
        reviewer: _ReviewerCookie = None,
    ) -> schemas.MarkAnswer:
        langs = _langs(bench, request, None)
        return bench.bulk(reviewer_of(x_reviewer, reviewer), body, langs)

    @router.post("/undo", summary="Take back the last mark", **_writes(schemas.UndoAnswer))
    def undo(
        _body: schemas.UndoRequest,
        x_reviewer: _ReviewerHeader = None,
        reviewer: _ReviewerCookie = None,
    ) -> schemas.UndoAnswer:
        return bench.undo(reviewer_of(x_reviewer, reviewer))

    @router.post(
        "/export",
        summary="Download proposals for other tools",
        response_class=FileResponse,
        dependencies=[Depends(_need_json)],
        responses=_WRITE_ERRORS
        | {200: {"content": {"application/octet-stream": {}}, "description": "The file."}},
    )
    def export(body: schemas.ExportRequest) -> FileResponse:
        file, remove = bench.export(body)
        return FileResponse(
            file,
            media_type="application/octet-stream",
            filename=file.name,
            background=BackgroundTask(remove),
        )
