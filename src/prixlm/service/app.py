"""The application: all routers over one workbench, behind the guard.

app = create_app(Workbench(Folders(work=Path("work"))), Settings())
"""

import errno
import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from prixlm.errors import PrixError
from prixlm.service import api, pages, reconcile
from prixlm.service.security import Guard, Settings, error_answer, status_of
from prixlm.service.workbench import Workbench

logger = logging.getLogger(__name__)

_DESCRIPTION = """\
Ask a multilingual knowledge base, and judge what was proposed for it. Text in a language comes with
its code. Every error has the form of `ErrorAnswer`; 503 tells in `Retry-After` when to ask again.
"""


def create_app(workbench: Workbench, settings: Settings | None = None) -> FastAPI:
    """Return the application of a server."""
    # FastAPI's own documentation pages load their scripts from a CDN: only the JSON is served.
    app = FastAPI(
        title="prixlm",
        version=workbench.version,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    app.state.workbench = workbench
    routers = [module.make_router(workbench) for module in (api, reconcile, pages)]
    for router in routers:
        app.include_router(router)
    _add_errors(app, workbench, routers)
    app.add_middleware(Guard, settings=settings or Settings())
    return app


def _add_errors(app: FastAPI, workbench: Workbench, routers: Sequence[APIRouter]) -> None:
    """Answer every error as an `ErrorAnswer`, without a path of this machine."""

    @app.exception_handler(PrixError)
    async def refuse(_request: Request, error: PrixError) -> JSONResponse:
        status, headers = status_of(error)
        return error_answer(status, workbench.hide_paths(str(error)), headers)

    @app.exception_handler(OSError)
    async def lack_files(_request: Request, error: OSError) -> JSONResponse:
        logger.error("a file cannot be read or written: %s", error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return error_answer(507, "the disk of the server is full.")
        text = "a file of the server is missing, perhaps because a folder is being replaced."
        return error_answer(503, text, {"Retry-After": "2"})

    @app.exception_handler(UnicodeDecodeError)
    @app.exception_handler(pa.ArrowInvalid)
    async def doubt_table(_request: Request, error: ValueError) -> JSONResponse:
        # The footer of a table of others is checked when it is opened; its pages, when they are
        # read.
        logger.error("a table cannot be read: %s", error)
        text = "a table of the proposals or the KB is damaged: make it again, or download it again."
        return error_answer(409, text)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        return error_answer(422, describe_errors(error.errors()))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers) if error.headers else {}
        if error.status_code == 405:
            headers["Allow"] = ", ".join(sorted(_allowed(routers, request)))
        return error_answer(error.status_code, str(error.detail), headers)


def _allowed(routers: Sequence[APIRouter], request: Request) -> set[str]:
    """Return the methods of an address; Starlette names only those of the first route of it."""
    return {
        method
        for router in routers
        for route in router.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


def describe_errors(errors: Sequence[Any]) -> str:
    """Return what is wrong with the parameters, in one line."""
    lines = []
    for error in errors[:5]:
        place = ".".join(str(part) for part in error["loc"] if part not in ("query", "body"))
        lines.append(f"{place[:100]}: {error['msg']}" if place else str(error["msg"]))
    return "; ".join(lines) + "."
