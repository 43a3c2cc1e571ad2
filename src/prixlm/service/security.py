"""What every request passes first: host, token, origin, size, time; and what every answer carries.

    app.add_middleware(Guard, settings=Settings(token="..."))

The server listens on this machine only, unless it was given a token. A page of another site that
the user has open is kept out by three checks: the `Host` must be ours (DNS rebinding), a write must
come from our own pages (`Origin`) as JSON, and no answer may be read or framed elsewhere. The
reconciliation service is the exception, since OpenRefine's pages read it: see `OPEN_PATHS`.
"""

import asyncio
import hashlib
import hmac
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from prixlm.errors import PrixError
from prixlm.untrusted import printable

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

logger = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN_PATHS = "/reconcile"
"""Below it other sites may read the answers, and a token may be part of the address."""
CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": CONTENT_POLICY,
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_RETRY = {"Retry-After": "2"}
_LOGGED = 200
"""Characters of a path or a line of a traceback in the log."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Who may ask, and how much."""

    host: str = "127.0.0.1"  # address to listen on
    token: str | None = None  # asked of everyone; required unless `host` is this machine
    max_body: int = 1 << 20  # bytes
    max_bodies: int = 1 << 26  # bytes of all bodies that are still arriving
    max_query: int = 1 << 15  # bytes of the address after the `?`
    max_requests: int = 256  # handled or waiting at once
    seconds: float = 30.0  # until an answer begins
    hosts: frozenset[str] | None = field(init=False)  # names of this server; None: any

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.token:
            raise PrixError(
                f"--host {self.host} opens the server to other machines, which needs --token: pass "
                "a secret of 16 characters or more, or leave out --host."
            )
        if self.token is not None and (len(self.token) < 16 or not self.token.isprintable()):
            raise PrixError("--token: expected 16 printable characters or more.")
        # With a token, a server on all addresses may be known by any name: a page of another
        # site cannot send the cookie that holds the token.
        is_any = self.host in ("0.0.0.0", "::")
        names = None if is_any else frozenset({*LOOPBACK, self.host.lower()})
        object.__setattr__(self, "hosts", names)

    @property
    def cookie(self) -> str:
        """Name of the cookie: two servers on one machine do not overwrite each other's."""
        return f"prixlm_{self.session[:8]}"

    @property
    def session(self) -> str:
        """What the cookie holds: it shows that its owner knew the token."""
        return hashlib.sha256(f"prixlm session {self.token}".encode()).hexdigest()


class Connection(H11Protocol):
    """A connection of uvicorn that is closed when the client keeps it waiting.

    uvicorn itself waits without limit for the first request, for the rest of a head, and for a
    client to read. A few hundred such clients would use up the files that a process may open.
    """

    head_seconds = 15.0  # until the head of a request is there
    unread_seconds = 60.0  # until the client reads more of an answer
    _head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.trailing_data[0]:  # the beginning of the next head
            self._watch_head()

    def _watch_head(self) -> None:
        """Wait for the head of a request, unless one is being answered."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering and self._head is not None:
            self._head.cancel()
            self._head = None
        elif not is_answering and self._head is None:
            self._head = self.loop.call_later(self.head_seconds, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._head, self._unread):
            if timer is not None:
                timer.cancel()


class Guard:
    """ASGI middleware around the whole server."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self._num_requests = 0  # being answered; late ones are in `_late`
        self._num_bytes = 0  # of bodies that are not complete
        self._late: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: dict[str, Any], receive: _Receive, send: _Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        send = _with_headers(scope["path"], send)
        refusal = self._refuse(scope)
        body: bytes | Response | None = b""
        if refusal is None and _has_body(scope):
            body = await self._read_body(receive)
        if body is None:
            return
        if isinstance(body, Response):
            refusal = body
        elif self._num_requests + len(self._late) >= self.settings.max_requests:
            refusal = refusal or _busy()
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        assert isinstance(body, bytes)
        self._num_requests += 1
        try:
            await self._answer(scope, receive, send, body)
        finally:
            self._num_requests -= 1

    async def _read_body(self, receive: _Receive) -> bytes | Response | None:
        """Return the body of a request, or why it is refused; None if the client has gone.

        Requests whose body is slow do not count as running: others are answered meanwhile.
        """
        settings, parts, size = self.settings, [], 0
        try:
            async with asyncio.timeout(settings.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    self._num_bytes += len(parts[-1])
                    if size > settings.max_body:
                        limit = f"{settings.max_body:,} bytes"
                        text = f"the body is larger than {limit}: send less at once."
                        return error_answer(413, text)
                    if self._num_bytes > settings.max_bodies:
                        return _busy()
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            return error_answer(408, "the body of the request did not arrive in time.")
        finally:
            self._num_bytes -= size

    async def _answer(
        self, scope: dict[str, Any], receive: _Receive, send: _Send, body: bytes
    ) -> None:
        """Run the application until it answers or the time is over."""
        call = _Call(receive, send, body)
        # A thread cannot be stopped, so a late answer is left to finish and then dropped.
        task = asyncio.create_task(self.app(scope, call.receive, call.send))
        began = asyncio.create_task(call.began.wait())
        late = f"no answer within {self.settings.seconds:g} seconds: ask again, or for less."
        try:
            await asyncio.wait(
                {task, began},
                timeout=self.settings.seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        except asyncio.CancelledError:  # the grace of a server that ends is over
            late = "the server is ending: ask again in a moment."
        finally:
            began.cancel()
        if not task.done() and not call.began.is_set():
            call.is_late = True
            self._late.add(task)
            task.add_done_callback(self._drop_late)
            await error_answer(503, late, _RETRY)(scope, receive, send)
            return
        try:
            await task
        except asyncio.CancelledError:
            logger.warning("%s broke off: the server ends", printable(scope["path"], _LOGGED))
        except Exception:
            logger.exception("%s %s failed", scope["method"], printable(scope["path"], _LOGGED))
            if not call.began.is_set():
                problem = "the server failed to answer; its log says why."
                await error_answer(500, problem)(scope, receive, send)

    def _drop_late(self, task: asyncio.Task[None]) -> None:
        self._late.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a late answer failed", exc_info=task.exception())

    def _refuse(self, scope: dict[str, Any]) -> Response | None:
        """Return why a request is refused before its body is read; None if it may pass."""
        headers = Headers(scope=scope)
        if not self._is_our_name(headers):
            return error_answer(
                400,
                "the Host of the request is not this server's name: use the address that "
                "`prixlm serve` printed.",
            )
        if len(scope["query_string"]) > self.settings.max_query:
            limit = f"{self.settings.max_query:,} bytes"
            return error_answer(414, f"the query is longer than {limit}: send it by POST.")
        return self._check_token(scope, headers) or _check_origin(scope, headers)

    def _is_our_name(self, headers: Headers) -> bool:
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            return False
        try:
            name = urlsplit(f"//{hosts[0]}").hostname
        except ValueError:
            return False
        return self.settings.hosts is None or name in self.settings.hosts

    def _check_token(self, scope: dict[str, Any], headers: Headers) -> Response | None:
        """Return None if the request knows the token, or a redirect that stores it as a cookie."""
        settings = self.settings
        if settings.token is None or _is_preflight(scope, headers):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_same(given.strip(), settings.token):
            return None
        cookies = cookie_parser(headers.get("cookie", ""))
        if _is_same(cookies.get(settings.cookie, ""), settings.session):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if any(name == "token" and _is_same(value, settings.token) for name, value in query):
            if scope["path"].startswith(OPEN_PATHS):
                return None
            if scope["method"] == "GET":
                return _store_token(scope, query, settings)
        return _ask_for_token(headers)


def _is_preflight(scope: dict[str, Any], headers: Headers) -> bool:
    """Tell whether a browser asks if another site may ask, which it does without the token."""
    is_open = scope["method"] == "OPTIONS" and scope["path"].startswith(OPEN_PATHS)
    return is_open and "access-control-request-method" in headers


def _store_token(
    scope: dict[str, Any], query: Iterable[tuple[str, str]], settings: Settings
) -> Response:
    """Redirect to the same address without the token, which a cookie holds from now on."""
    rest = urlencode([(name, value) for name, value in query if name != "token"])
    # One slash only: `//elsewhere` would be the address of another site.
    path = "/" + scope["raw_path"].decode("latin-1").lstrip("/\\")
    answer = RedirectResponse(path + ("?" + rest if rest else ""), 303)
    answer.set_cookie(settings.cookie, settings.session, httponly=True, samesite="strict", path="/")
    return answer


def _ask_for_token(headers: Headers) -> Response:
    text = (
        "this server needs a token: open the address that `prixlm serve` printed, which ends with "
        "?token=, or send `Authorization: Bearer TOKEN`."
    )
    challenge = {"WWW-Authenticate": "Bearer"}
    if "text/html" in headers.get("accept", ""):
        return PlainTextResponse(text, 401, challenge)
    return error_answer(401, text, challenge)


def _check_origin(scope: dict[str, Any], headers: Headers) -> Response | None:
    """Refuse a write that a page of another site could have sent."""
    if scope["method"] not in _WRITES or scope["path"].startswith(OPEN_PATHS):
        return None
    site = headers.get("sec-fetch-site", "same-origin")
    try:
        origins = {urlsplit(origin).netloc.lower() for origin in headers.getlist("origin")}
    except ValueError:
        origins = {""}
    if not origins <= {headers["host"].lower()} or site not in ("same-origin", "none"):
        return error_answer(403, "the request comes from a page of another site.")
    return None


def is_json(headers: Headers) -> bool:
    """Tell whether a request says that its body is JSON, which a form of another site cannot."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


class _Call:
    """One call of the application: replays the body, and drops what comes too late."""

    def __init__(self, receive: _Receive, send: _Send, body: bytes) -> None:
        self._receive, self._send = receive, send
        self._body: bytes | None = body
        self.began = asyncio.Event()
        self.is_late = False

    async def receive(self) -> _Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: _Message) -> None:
        if self.is_late:
            return
        self.began.set()
        await self._send(message)


def _has_body(scope: dict[str, Any]) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _with_headers(path: str, send: _Send) -> _Send:
    """Return a `send` that adds the headers of every answer; a route's own headers win."""
    others = "cross-origin" if path.startswith(OPEN_PATHS) else "same-origin"
    headers = {**_HEADERS, "cross-origin-resource-policy": others}
    if path.startswith(OPEN_PATHS):  # other sites read refusals there too
        headers["access-control-allow-origin"] = "*"
    if path.startswith("/api"):
        headers["cache-control"] = "no-store"

    async def send_with_headers(message: _Message) -> None:
        if message["type"] == "http.response.start":
            sent = MutableHeaders(scope=message)
            for name, value in headers.items():
                sent.setdefault(name, value)
        await send(message)

    return send_with_headers


def error_answer(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error as the schema `ErrorAnswer`."""
    return JSONResponse({"detail": detail}, status, headers)


def _busy() -> JSONResponse:
    return error_answer(503, "the server is busy: ask again in a moment.", _RETRY)


def status_of(error: PrixError) -> tuple[int, dict[str, str]]:
    """Return the HTTP status of an error, and its headers.

    Errors that are not the asker's mistake have a `status`, or a `retry_after` in seconds.
    """
    seconds = getattr(error, "retry_after", None)
    if seconds is not None:
        return 503, {"Retry-After": str(math.ceil(seconds))}
    status = getattr(error, "status", 400)
    return status, dict(_RETRY) if status == 503 else {}


def _is_same(given: str, wanted: str) -> bool:
    """Compare secrets in a time that does not tell how much of them agrees."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
