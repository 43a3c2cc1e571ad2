"""The HTTP routes of the reconciliation service.

Version 0.2 of the API is at `/reconcile` for all languages and at `/reconcile/LANG` for the
entities with a name in one language; version 1.0-draft is at `/reconcile/v1`. Both are the same
answers in two shapes. A query that cannot be read has no candidates; a batch without one that can
is refused. Pages of any site may read these answers (CORS), so nothing is written.
"""

import importlib.metadata
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, quote

import anyio
import anyio.to_thread
import orjson
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from prixlm.entities.matching import Matcher
from prixlm.reports.console import language_name
from prixlm.service.answering.concepts import NotFound
from prixlm.service.markup import clean, direction
from prixlm.service.reconcile.answers import MAX_NAME, STYLE_HASH, Answers, Asked, Snapshot
from prixlm.service.reconcile.queries import ConditionQuery, ExtendQuery, Query, Refused
from prixlm.service.schemas import MAX_ID

T = TypeVar("T")

BATCH_SIZE = 50
"""Queries of a batch, as the manifest says; four times as many are answered."""
MAX_BATCH = 4 * BATCH_SIZE
MAX_BODY = 1 << 20
MAX_AT_ONCE = 32
"""Requests that are answered or wait; more are told to come back."""
_WORKERS = 2
"""Threads that answer. Most of the time they hold Python's lock, so that more only take turns."""
_PREVIEW = {"width": 430, "height": 300}
_JSON = "application/json; charset=utf-8"
_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "Retry-After, Content-Language",
}
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Accept, Accept-Language, Authorization",
    "Access-Control-Max-Age": "86400",
}
_CALLBACK = re.compile(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*", re.ASCII)
_PREVIEW_POLICY = f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; frame-ancestors *"
_FEATURES = {
    "name": "Similarity of the spelling",
    "romanised": "Similarity in Latin letters",
    "exact": "Whether a name is the same",
    "encoder": "Similarity by the encoder",
    "type": "Whether the type fits",
    "properties": "Share of the properties that fit",
}


class Bench(Protocol):
    """The part of the workbench that reconciliation needs."""

    @property
    def opened(self) -> Snapshot: ...

    def matcher(self) -> Matcher: ...

    def reader_langs(self, ui: str | None = None, accepted: str = "") -> list[str]: ...


class _Route(APIRoute):
    """Answers with CORS headers, also where a request is refused."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response = await handle(request)
            except Refused as error:
                response = _refusal(error.status, str(error), error.headers)
            except NotFound as error:
                response = _refusal(404, str(error))
            except HTTPException as error:
                response = _refusal(error.status_code, str(error.detail))
            response.headers.update(_CORS)
            return response

        return answer


def _refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error in the words of the API, and in those of OpenRefine's services."""
    values = {"detail": message, "status": "error", "message": message}
    return Response(orjson.dumps(values), status, headers, _JSON)


class Gate:
    """Lets some requests run, some wait, and tells others to come back."""

    def __init__(self, most: int = MAX_AT_ONCE, workers: int = _WORKERS) -> None:
        self.most, self.workers = most, workers
        self._num = 0
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a thread of its own."""
        if self._num >= self.most:
            text = "the reconciliation service is busy: ask again in a moment."
            raise Refused(503, text, {"Retry-After": "2"})
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self.workers)
        self._num += 1
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._limiter)
        finally:
            self._num -= 1


@dataclass(frozen=True)
class Call:
    """A request, as all routes read it."""

    request: Request
    answers: Answers
    lang: str | None  # of the service; None: all languages
    langs: tuple[str, ...]  # to show names in

    @property
    def root(self) -> str:
        """Return the address of the service, without a slash at its end."""
        path = self.request.url.path
        root = re.match(r".*?/reconcile(/v1|/[a-z]{2,3})?(?=/|$)", path)
        assert root is not None
        return str(self.request.base_url).rstrip("/") + root[0].removeprefix(
            self.request.scope.get("root_path", "")
        )

    def text(self, name: str, default: str | None = None) -> str:
        """Return a parameter of the address."""
        value = self.request.query_params.get(name, default)
        if value is None:
            raise Refused(400, f"expected the parameter `{name}`.")
        most = MAX_ID if name == "id" else MAX_NAME
        if len(value) > most:
            raise Refused(400, f"`{name}` has more than {most:,} characters.")
        return value.strip()

    def number(self, name: str, default: int) -> int:
        """Return a parameter of the address that is a number of 0 or more."""
        value = self.text(name, str(default))
        if not re.fullmatch("[0-9]{1,6}", value):
            raise Refused(400, f"{name}={clean(value[:50])}: expected a number from 0 to 999999.")
        return int(value)


def make_router(bench: Bench, gate: Gate | None = None) -> APIRouter:
    """Return the routes of both versions. They stay out of `/openapi.json`: the specifications of
    the reconciliation API describe them."""
    gate = gate or Gate()
    router = APIRouter(route_class=_Route, include_in_schema=False)
    kept: dict[int, tuple[Any, Answers]] = {}  # the answers of the KB that is open now

    def find_answers() -> Answers:
        opened, matcher = bench.opened, bench.matcher()
        if matcher.lookup is not opened.lookup:  # the KB was opened again between the two
            raise Refused(503, "the KB has changed: ask again in a moment.", {"Retry-After": "1"})
        if kept.get(0, (None,))[0] is not matcher:
            kept[0] = (matcher, Answers(opened, matcher))
        return kept[0][1]

    def add(
        path: str, version: str, handle: Callable[[Call, bytes], Response], method: str
    ) -> None:
        async def route(request: Request) -> Response:
            body = await _read_body(request) if method == "POST" else b""
            return await gate.run(
                lambda: handle(_call(bench, find_answers(), request, version), body)
            )

        router.add_api_route(path, route, methods=[method])

    for root, version in (
        ("/reconcile/v1", "1.0"),
        ("/reconcile", "0.2"),
        ("/reconcile/{lang}", "0.2"),
    ):
        routes = _ROUTES_1 if version == "1.0" else _ROUTES_0
        for method, path, handle in routes:
            add(root + path, version, handle, method)
    router.add_api_route("/reconcile{path:path}", _preflight, methods=["OPTIONS"])
    return router


async def _preflight(request: Request) -> Response:
    return Response(status_code=204, headers=_PREFLIGHT)


def _call(bench: Bench, answers: Answers, request: Request, version: str) -> Call:
    lang = request.path_params.get("lang")
    if lang is not None and lang not in answers.lookup.languages:
        languages = ", ".join(answers.lookup.languages)
        raise Refused(404, f"no language {clean(lang[:40])!r}: the KB has {languages}.")
    langs = [lang] if lang is not None else []
    accepted = request.headers.get("accept-language", "")
    if version == "1.0" and accepted:
        langs = bench.reader_langs(None, accepted)
    return Call(request, answers, lang, tuple(langs))


async def _read_body(request: Request) -> bytes:
    """Return the body of a request, unless it is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise Refused(413, f"the body is larger than {MAX_BODY:,} bytes: send less at once.")
    return body


def _parse(text: str | bytes, what: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"{what} is not JSON: {error}.") from None


def _check_batch(size: int) -> None:
    if size > MAX_BATCH:
        raise Refused(413, f"{size} queries at once: expected at most {BATCH_SIZE}.")


def _explain(error: Exception) -> str:
    """Return what is wrong with a query, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return clean(f"{place}: {first['msg']}"[:200])
    return str(error)


def _read_all(queries: Iterable[Any], read: Callable[[Any], Asked]) -> list[Asked | None]:
    """Return the questions of a batch, None for those that cannot be read.

    A batch of which none can be read is refused.
    """
    asked: list[Asked | None] = []
    problem = None
    for query in queries:
        try:
            asked.append(read(query))
        except (ValidationError, ValueError) as error:
            asked.append(None)
            problem = problem or f"query {len(asked)}: {_explain(error)}."
    if problem is not None and not any(asked):
        raise Refused(400, problem)
    return asked


def _answer_all(answers: Answers, asked: Sequence[Asked | None]) -> list[list[dict[str, Any]]]:
    """Return the candidates of a batch; none where a question could not be read."""
    readable = [one for one in asked if one is not None]
    found = iter(answers.match(readable))
    return [[] if one is None else next(found) for one in asked]


def _json(values: Any, call: Call | None = None) -> Response:
    response = Response(orjson.dumps(values), media_type=_JSON)
    if call is not None and call.langs:
        response.headers["Content-Language"] = call.langs[0]
        response.headers["Vary"] = "Accept-Language"
    return response


def _json_0(call: Call, values: Any) -> Response:
    """Return JSON, or a call of the function that `callback` names."""
    callback = call.request.query_params.get("callback")
    if callback is None or call.request.method != "GET":
        return _json(values)
    if len(callback) > 100 or not _CALLBACK.fullmatch(callback):
        raise Refused(400, "callback: expected the name of a JavaScript function.")
    # The comment keeps the answer from being read as something else than a script.
    script = f"/**/{callback}({orjson.dumps(values).decode()});"
    script = script.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    headers = {"X-Content-Type-Options": "nosniff"}
    return Response(script, headers=headers, media_type="text/javascript; charset=utf-8")


# --- version 0.2 ----------------------------------------------------------------------------------


def _get_0(call: Call, _: bytes) -> Response:
    parameters = call.request.query_params
    return _reconcile_0(call, parameters.get("queries"), parameters.get("extend"))


def _post_0(call: Call, body: bytes) -> Response:
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "expected a form (application/x-www-form-urlencoded) with `queries`.")
    try:
        form = parse_qs(body.decode("utf-8"), max_num_fields=10)
    except (UnicodeDecodeError, ValueError):
        raise Refused(400, "the form cannot be read: expected `queries` or `extend`.") from None
    return _reconcile_0(call, *(form.get(name, [None])[0] for name in ("queries", "extend")))


def _reconcile_0(call: Call, queries: str | None, extend: str | None) -> Response:
    if queries is not None:
        batch = _parse(queries, "`queries`")
        if not isinstance(batch, dict):
            raise Refused(400, "`queries` is not an object of queries by their names.")
        _check_batch(len(batch))

        def read(query: Any) -> Asked:
            return call.answers.read_query(Query.model_validate(query), call.lang)

        results = _answer_all(call.answers, _read_all(batch.values(), read))
        for candidates in results:
            for candidate in candidates:
                del candidate["lang"]
        answered = zip(batch, results, strict=True)
        return _json_0(call, {name: {"result": result} for name, result in answered})
    if extend is not None:
        columns, rows = call.answers.extend(_read_extend(_parse(extend, "`extend`")), call.langs)
        ids = [column["id"] for column in columns]
        values = {
            entity: {
                pid: [_without(value, "lang") for value in cells]
                for pid, cells in zip(ids, row, strict=True)
            }
            for entity, row in rows
        }
        meta = [_without(column, "lang") for column in columns]
        return _json_0(call, {"meta": meta, "rows": values})
    return _json_0(call, _manifest_0(call))


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _read_extend(values: Any) -> ExtendQuery:
    try:
        query = ExtendQuery.model_validate(values)
    except ValidationError as error:
        status = 413 if error.errors()[0]["type"] == "too_long" else 400
        raise Refused(status, f"data extension: {_explain(error)}.") from None
    return query


def _manifest_0(call: Call) -> dict[str, Any]:
    root, suffix = call.root, _token(call, "?")
    view = f"{call.request.base_url}entity?id={{{{id}}}}"
    if call.answers.space.startswith("http:"):
        view = "https://www.wikidata.org/wiki/{{id}}"
    return {
        "versions": ["0.2"],
        "name": _title(call),
        "identifierSpace": call.answers.space,
        "schemaSpace": _schema_space(call.answers.space),
        "serviceVersion": importlib.metadata.version("prixlm"),
        "defaultTypes": [],
        "view": {"url": view},
        "preview": {"url": f"{root}/preview?id={{{{id}}}}{_token(call, '&')}"} | _PREVIEW,
        "suggest": {
            kind: {
                "service_url": root,
                "service_path": f"/suggest/{kind}{suffix}",
                "flyout_service_url": root,
                "flyout_service_path": f"/flyout/{kind}?id=${{id}}{_token(call, '&')}",
            }
            for kind in ("entity", "property", "type")
        },
        "extend": {
            "propose_properties": {
                "service_url": root,
                "service_path": f"/extend/propose{suffix}",
            },
            "property_settings": [
                {
                    "name": setting["id"],
                    "label": setting["name"],
                    "help_text": setting["helpText"],
                    **_without(setting, "id", "name", "helpText"),
                }
                for setting in _SETTINGS
            ],
        },
        "batchSize": BATCH_SIZE,
    }


_SETTINGS: list[dict[str, Any]] = [
    {
        "id": "limit",
        "name": "Limit",
        "type": "number",
        "default": 0,
        "helpText": "Maximum number of values per row (0 for no limit)",
    },
    {
        "id": "content",
        "name": "Content",
        "type": "select",
        "default": "entity",
        "helpText": "What a cell holds",
        "choices": [
            {"value": "entity", "name": "the entity, reconciled"},
            {"value": "name", "name": "its name"},
            {"value": "id", "name": "its id"},
        ],
    },
]


def _title(call: Call) -> str:
    languages = call.answers.lookup.languages
    where = f" ({language_name(call.lang)})" if call.lang else ""
    if not call.lang:
        named = ", ".join(map(language_name, languages[:3]))
        where = f" ({named})" if len(languages) <= 3 else f" ({len(languages)} languages)"
    return f"Prix-LM KB {call.answers.opened.kb.fingerprint()[:6]}{where}"


def _schema_space(space: str) -> str:
    return "http://www.wikidata.org/prop/direct/" if space.startswith("http:") else f"{space}schema"


def _token(call: Call, mark: str) -> str:
    """Return the token of the address, so that the addresses of the manifest have it too."""
    token = call.request.query_params.get("token")
    return "" if token is None else f"{mark}token={quote(token, safe='')}"


def _suggest(call: Call, kind: str) -> list[dict[str, Any]]:
    prefix, cursor = call.text("prefix", ""), min(call.number("cursor", 0), 1000)
    if kind == "entity":
        return call.answers.suggest_entities(prefix, cursor, call.lang, call.langs)
    if kind == "property":
        return call.answers.suggest_properties(prefix, cursor, call.langs)
    return call.answers.suggest_types(prefix, cursor, call.langs)


def _suggest_0(kind: str) -> Callable[[Call, bytes], Response]:
    def answer(call: Call, _: bytes) -> Response:
        found = [_without(item, "lang") for item in _suggest(call, kind)]
        return _json_0(call, {"result": found})

    return answer


def _flyout_0(kind: str) -> Callable[[Call, bytes], Response]:
    def answer(call: Call, _: bytes) -> Response:
        text = call.text("id")
        return _json_0(call, {"id": text, "html": call.answers.flyout(kind, text, call.langs)})

    return answer


def _preview(call: Call, _: bytes) -> Response:
    page = call.answers.preview(call.text("id"), call.langs)
    headers = {"Content-Security-Policy": _PREVIEW_POLICY}
    return Response(page, headers=headers, media_type="text/html; charset=utf-8")


def _propose(call: Call, _: bytes) -> Response:
    text, limit = call.text("type", ""), call.number("limit", 0)
    type_ = call.answers.read_type(text) if text else None
    ids = call.answers.popular(type_)[: limit or 100]
    properties = [call.answers.describe_property(pid, call.langs) for pid in ids]
    if call.request.url.path.startswith(f"{_PREFIX_1}/"):
        properties = [_with_direction(item) for item in properties]
    else:
        properties = [_without(item, "lang") for item in properties]
    values: dict[str, Any] = {"properties": properties}
    values |= ({"type": text} if text else {}) | ({"limit": limit} if limit else {})
    return _json_0(call, values)


# --- version 1.0-draft ----------------------------------------------------------------------------

_PREFIX_1 = "/reconcile/v1"


def _with_direction(values: dict[str, Any]) -> dict[str, Any]:
    """Return an object that has a language with its direction too."""
    return values | {"dir": direction(values["lang"])} if "lang" in values else values


def _manifest_1(call: Call, _: bytes) -> Response:
    view = f"{call.request.base_url}entity{{?id}}"
    if call.answers.space.startswith("http:"):
        view = "https://www.wikidata.org/wiki/{id}"
    values = {
        "versions": ["1.0-draft"],
        "name": _title(call),
        "lang": "en",
        "dir": "ltr",
        "serviceVersion": importlib.metadata.version("prixlm"),
        "view": {"url": view},
        "preview": _PREVIEW,
        "suggest": {"entity": True, "property": True, "type": True},
        "extend": {"proposeProperties": True, "propertySettings": _SETTINGS},
        "standardizedScore": True,
        "batchSize": BATCH_SIZE,
    }
    return _json(values, call)


def _read_json(call: Call, body: bytes) -> Any:
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "expected a body of the content type application/json.")
    return _parse(body, "the body")


def _reconcile_1(call: Call, body: bytes) -> Response:
    batch = _read_json(call, body)
    queries = batch.get("queries") if isinstance(batch, dict) else None
    if not isinstance(queries, list):
        raise Refused(400, "expected an object with `queries`, a list.")
    _check_batch(len(queries))

    def read(query: Any) -> Asked:
        return call.answers.read_conditions(ConditionQuery.model_validate(query), call.langs)

    results = []
    for candidates in _answer_all(call.answers, _read_all(queries, read)):
        for candidate in candidates:
            for feature in candidate["features"]:
                feature["name"] = _FEATURES[feature["id"]]
        results.append({"candidates": [_with_direction(item) for item in candidates]})
    return _json({"results": results}, call)


def _suggest_1(kind: str) -> Callable[[Call, bytes], Response]:
    def answer(call: Call, _: bytes) -> Response:
        return _json({"result": [_with_direction(item) for item in _suggest(call, kind)]}, call)

    return answer


def _extend_1(call: Call, body: bytes) -> Response:
    columns, rows = call.answers.extend(_read_extend(_read_json(call, body)), call.langs)
    values = [
        {
            "id": entity,
            "properties": [
                {"id": column["id"], "values": [_with_direction(value) for value in cells]}
                for column, cells in zip(columns, row, strict=True)
            ],
        }
        for entity, row in rows
    ]
    return _json({"meta": [_with_direction(column) for column in columns], "rows": values}, call)


_KINDS = ("entity", "property", "type")
_ROUTES_0 = [
    ("GET", "", _get_0),
    ("POST", "", _post_0),
    ("GET", "/preview", _preview),
    ("GET", "/extend/propose", _propose),
    *(("GET", f"/suggest/{kind}", _suggest_0(kind)) for kind in _KINDS),
    *(("GET", f"/flyout/{kind}", _flyout_0(kind)) for kind in _KINDS),
]
_ROUTES_1 = [
    ("GET", "", _manifest_1),
    # The drafts of version 1.0 have moved the queries from the root to routes of their own.
    *(("POST", path, _reconcile_1) for path in ("", "/reconcile", "/match")),
    ("GET", "/preview", _preview),
    ("GET", "/extend/propose", _propose),
    ("POST", "/extend", _extend_1),
    *(("GET", f"/suggest/{kind}", _suggest_1(kind)) for kind in _KINDS),
]
