"""The guard: who may ask, from where, how much and how long; and what an answer never shows."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient

from prixlm import PrixError
from prixlm.service.security import (
    CONTENT_POLICY,
    Connection,
    Guard,
    Settings,
    status_of,
)
from prixlm.untrusted import SafeFormatter

TOKEN = "a-secret-of-many-letters"
HOME = "http://127.0.0.1:8000"


def make_app(**settings: Any) -> FastAPI:
    """A server with a route of each kind that the guard must treat."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/")
    def page() -> str:
        return "page"

    @app.post("/api/write")
    async def write(request: Request) -> int:
        return len(await request.body())

    @app.post("/reconcile")
    @app.get("/reconcile")
    @app.options("/reconcile")
    def reconcile() -> str:
        return "open"

    @app.get("/slow")
    def slow() -> str:
        time.sleep(0.6)
        return "late"

    @app.get("/stream")
    def stream() -> StreamingResponse:
        def parts() -> Any:
            for _ in range(4):
                time.sleep(0.1)
                yield b"x"

        return StreamingResponse(parts())

    @app.get("/broken")
    def broken() -> str:
        raise RuntimeError("secret of /home/me/kb\x1b[2J\nforged line")

    app.add_middleware(Guard, settings=Settings(**settings))
    return app


def make_client(**settings: Any) -> TestClient:
    return TestClient(make_app(**settings), HOME, follow_redirects=False)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LocalHost:1", "[::1]:8000"])
def test_this_machine_is_served_under_its_own_names(host: str) -> None:
    assert make_client().get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8000", "", "[::1", "a@b:c"]
)
def test_a_name_that_was_rebound_to_this_machine_is_refused(host: str) -> None:
    answer = make_client().get("/", headers={"Host": host})
    assert answer.status_code == 400 and "Host" in answer.json()["detail"]


def test_another_host_needs_a_token() -> None:
    with pytest.raises(PrixError, match="needs --token"):
        Settings(host="0.0.0.0")
    with pytest.raises(PrixError, match="16 printable"):
        Settings(host="0.0.0.0", token="short")
    assert Settings(host="192.0.2.1", token=TOKEN).hosts == {
        "192.0.2.1", "localhost", "127.0.0.1", "::1"
    }  # fmt: skip
    assert Settings(host="0.0.0.0", token=TOKEN).hosts is None


def test_without_the_token_nothing_is_answered() -> None:
    client = make_client(token=TOKEN)
    answer = client.get("/")
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert "token" in answer.json()["detail"] and TOKEN not in answer.text
    assert (
        client.get("/", headers={"Accept": "text/html"})
        .headers["content-type"]
        .startswith("text/plain")
    )
    for wrong in (TOKEN[:-1], TOKEN + "x", "", "ü" * 20):
        given = {"Authorization": f"Bearer {wrong}".encode()}
        assert client.get("/", headers=given).status_code == 401
        assert client.get("/", params={"token": wrong}).status_code == 401
    assert client.post("/api/write", json={}).status_code == 401


def test_the_token_is_taken_as_a_header() -> None:
    client = make_client(token=TOKEN)
    headers = {"Authorization": f"bearer {TOKEN}"}
    assert client.get("/", headers=headers).text == '"page"'
    assert client.post("/api/write", json=[], headers=headers).json() == 2


def test_the_token_in_an_address_becomes_a_cookie_and_leaves_the_address() -> None:
    client = make_client(token=TOKEN)
    answer = client.get("/", params={"token": TOKEN, "q": "a b"})
    assert answer.status_code == 303 and answer.headers["location"] == "/?q=a+b"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and TOKEN not in cookie
    assert client.get("/").text == '"page"'  # the client keeps its cookies
    # It is not a way to another site.
    answer = make_client(token=TOKEN).get(f"{HOME}//evil.example/?token={TOKEN}")
    assert answer.headers["location"] == "/evil.example/"
    # Nor to write: a token in an address may have been seen by others.
    other = make_client(token=TOKEN)
    assert other.post(f"/api/write?token={TOKEN}", json={}).status_code == 401


def test_a_reconciliation_client_may_keep_the_token_in_the_address() -> None:
    client = make_client(token=TOKEN)
    assert client.post(f"/reconcile?token={TOKEN}").text == '"open"'
    assert client.post("/reconcile").status_code == 401


def test_a_preflight_carries_no_token_and_is_answered() -> None:
    client = make_client(token=TOKEN)
    asked = {"Origin": "http://127.0.0.1:3333", "Access-Control-Request-Method": "POST"}
    assert client.options("/reconcile", headers=asked).status_code == 200
    assert client.options("/api/write", headers=asked).status_code == 401
    assert client.options("/reconcile").status_code == 401
    assert client.post("/reconcile", headers=asked).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": HOME},
    ],
)
def test_a_page_of_another_site_cannot_write(headers: dict[str, str]) -> None:
    client = make_client()
    assert client.post("/api/write", json={}, headers=headers).status_code == 403
    assert client.post("/reconcile", headers=headers).status_code == 200  # reads only


@pytest.mark.parametrize("origins", [["http://[::1"], [HOME, "http://evil.example"]])
def test_an_origin_that_cannot_be_read_is_another_site(origins: list[str]) -> None:
    headers = [("Origin", origin) for origin in origins]
    assert make_client().post("/api/write", json={}, headers=headers).status_code == 403


@pytest.mark.parametrize("headers", [{}, {"Origin": HOME}, {"Sec-Fetch-Site": "same-origin"}])
def test_our_own_pages_and_programs_may_write(headers: dict[str, str]) -> None:
    assert make_client().post("/api/write", json={}, headers=headers).status_code == 200


def test_a_body_of_any_form_above_the_limit_is_refused() -> None:
    client = make_client(max_body=1000)
    headers = {"Content-Type": "application/json"}
    assert client.post("/api/write", content=b"x" * 1000, headers=headers).json() == 1000

    def chunks() -> Any:
        for _ in range(11):
            yield b"x" * 100

    for content in (b"x" * 1001, chunks()):
        answer = client.post("/api/write", content=content, headers=headers)
        assert answer.status_code == 413 and "1,000 bytes" in answer.json()["detail"]


def test_a_query_above_the_limit_is_refused() -> None:
    client = make_client(max_query=100)
    assert client.get("/?" + "a" * 100).status_code == 200
    assert client.get("/?" + "a" * 101).status_code == 414


def test_an_answer_that_takes_too_long_is_given_up_and_the_next_one_served() -> None:
    with make_client(seconds=0.2) as client:
        begin = time.monotonic()
        answer = client.get("/slow")
        assert answer.status_code == 503 and "Retry-After" in answer.headers
        assert time.monotonic() - begin < 0.55
        assert "0.2 seconds" in answer.json()["detail"]
        assert client.get("/").status_code == 200
        # Once it has begun, an answer may take its time: a slow client downloads an export.
        assert client.get("/stream").content == b"xxxx"


def test_a_body_that_never_arrives_is_given_up() -> None:
    async def run() -> int:
        statuses = []

        async def send(message: Any) -> None:
            statuses.append(message.get("status"))

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(60)
            return {}

        await make_app(seconds=0.1)(post_scope(b"1000"), receive, send)
        return int(statuses[0])

    assert asyncio.run(run()) == 408


def post_scope(length: bytes) -> dict[str, Any]:
    """A write of which the body is still to come."""
    return {
        "type": "http",
        "method": "POST",
        "path": "/api/write",
        "raw_path": b"/api/write",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"content-length", length),
        ],
    }


def test_more_requests_than_fit_are_told_to_come_back() -> None:
    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(make_app(max_requests=2))
        async with httpx.AsyncClient(transport=transport, base_url=HOME) as client:
            return await asyncio.gather(*(client.get("/slow") for _ in range(5)))

    answers = asyncio.run(run())
    assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503, 503]
    assert all("Retry-After" in answer.headers for answer in answers if answer.is_error)


@pytest.mark.parametrize(("max_bodies", "status"), [(1000, 200), (10, 503)])
def test_bodies_that_do_not_arrive_leave_room_for_other_requests(
    max_bodies: int, status: int
) -> None:
    app = make_app(max_requests=2, max_bodies=max_bodies)

    async def send(message: Any) -> None:
        pass

    def make_receive() -> Callable[[], Awaitable[dict[str, Any]]]:
        messages = [{"type": "http.request", "body": b"[1, ", "more_body": True}]

        async def receive() -> dict[str, Any]:
            if not messages:
                await asyncio.sleep(60)
            return messages.pop()

        return receive

    async def run() -> list[int]:
        slow = [
            asyncio.create_task(app(post_scope(b"1000"), make_receive(), send))  # type: ignore
            for _ in range(2)
        ]
        await asyncio.sleep(0.05)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOME) as client:
            answers = [await client.get("/"), await client.post("/api/write", json=[1, 2])]
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return [answer.status_code for answer in answers]

    assert asyncio.run(run()) == [200, status]


def test_a_body_that_breaks_off_is_not_taken_for_whole() -> None:
    sent: list[Any] = []
    messages = [
        {"type": "http.request", "body": b"[]", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return messages.pop(0)

    asyncio.run(make_app()(post_scope(b"1000"), receive, send))
    assert sent == []


@pytest.mark.parametrize(("path", "status"), [("/slow", 503), ("/stream", 200)])
def test_a_server_that_ends_says_so(path: str, status: int) -> None:
    """uvicorn cancels what is not answered when its grace is over."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def run() -> None:
        scope = post_scope(b"0") | {"method": "GET", "path": path, "raw_path": path.encode()}
        task = asyncio.create_task(make_app()(scope, receive, send))
        await asyncio.sleep(0.15)
        task.cancel()
        await task

    asyncio.run(run())
    assert sent[0]["status"] == status


def test_answers_that_are_late_still_take_their_place() -> None:
    async def run() -> list[int]:
        transport = httpx.ASGITransport(make_app(max_requests=2, seconds=0.1))
        async with httpx.AsyncClient(transport=transport, base_url=HOME) as client:
            late = await asyncio.gather(client.get("/slow"), client.get("/slow"))
            refused = await client.get("/")
            await asyncio.sleep(0.8)
            served = await client.get("/")
        return [answer.status_code for answer in (*late, refused, served)]

    assert asyncio.run(run()) == [503, 503, 503, 200]


class Hasty(Connection):
    """A connection that waits for a fraction of a second."""

    head_seconds = 0.3
    unread_seconds = 0.3


@pytest.fixture
def server() -> Iterator[uvicorn.Server]:
    """A real server whose connections are hasty."""
    app = make_app()

    @app.get("/large")
    def large() -> StreamingResponse:
        return StreamingResponse(b"x" * 65536 for _ in range(10_000))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        made = uvicorn.Server(uvicorn.Config(app, port=port, http=Hasty, log_config=None))
        thread = threading.Thread(target=made.run, kwargs={"sockets": [listening]})
        thread.start()
        yield made
        made.should_exit = True
        thread.join(20)


_HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize("sent", [b"", _HEAD, _HEAD + b"\r\n" + _HEAD])
def test_a_connection_without_a_whole_head_is_closed(server: uvicorn.Server, sent: bytes) -> None:
    address = ("127.0.0.1", server.config.port)
    with socket.create_connection(address, timeout=3) as connection:
        connection.sendall(sent)
        begin = time.monotonic()
        while connection.recv(65536):  # an answer to the first of two requests
            pass
        assert 0.2 < time.monotonic() - begin < 2


def test_a_connection_that_is_answered_stays_open(server: uvicorn.Server) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.config.port}") as client:
        for _ in range(3):
            assert client.get("/").status_code == 200
            time.sleep(0.2)
        assert client.get("/slow").status_code == 200  # longer than a head may take
        assert len(server.server_state.connections) == 1


def test_an_answer_that_nobody_reads_is_given_up(server: uvicorn.Server) -> None:
    address = ("127.0.0.1", server.config.port)
    with socket.create_connection(address) as connection:
        connection.sendall(_HEAD.replace(b"/ ", b"/large ") + b"\r\n")
        begin = time.monotonic()
        while not server.server_state.total_requests and not server.server_state.connections:
            time.sleep(0.01)
        while server.server_state.connections and time.monotonic() - begin < 5:
            time.sleep(0.05)
        assert 0.2 < time.monotonic() - begin < 5


def test_a_failure_shows_nothing_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    answer = make_client().get("/broken")
    assert answer.status_code == 500
    assert answer.json() == {"detail": "the server failed to answer; its log says why."}
    assert "RuntimeError" in caplog.text and answer.headers["x-content-type-options"] == "nosniff"


def test_a_name_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    make_client().get("/broken")
    formatter = SafeFormatter()
    text = "\n".join(formatter.format(record) for record in caplog.records)
    assert "\x1b" not in text and "\\x1b[2J" in text
    assert not any(line.startswith("forged") for line in text.split("\n"))
    record = logging.LogRecord("a", logging.WARNING, "", 0, "name %s", ("x\nERROR y\u202e",), None)
    assert formatter.format(record).endswith("WARNING name x\\nERROR y\\u202e")
    record = logging.LogRecord("a", logging.WARNING, "", 0, "x" * 10_000, (), None)
    assert SafeFormatter(limit=200).format(record).count("x") == 200


@pytest.mark.parametrize("path", ["/", "/nothing", "/broken"])
def test_every_answer_keeps_other_sites_out(path: str) -> None:
    headers = make_client().get(path).headers
    assert headers["content-security-policy"] == CONTENT_POLICY
    assert "frame-ancestors 'none'" in CONTENT_POLICY and "unsafe" not in CONTENT_POLICY
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    open_headers = make_client().get("/reconcile").headers
    assert open_headers["cross-origin-resource-policy"] == "cross-origin"


def test_a_route_may_have_a_policy_of_its_own() -> None:
    app = make_app()

    @app.get("/reconcile/preview")
    def preview() -> Any:
        return StreamingResponse([b""], headers={"Content-Security-Policy": "frame-ancestors *"})

    headers = TestClient(app, HOME).get("/reconcile/preview").headers
    assert headers.get_list("content-security-policy") == ["frame-ancestors *"]


def test_websockets_are_closed() -> None:
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), make_client().websocket_connect("/"):
        pass


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (lambda: PrixError("x"), 400),
        (lambda: _error("NotFound", status=404), 404),
        (lambda: _error("Busy", retry_after=0.5), 503),
        (lambda: _error("Replaced", status=503), 503),
        (lambda: _error("Full", status=507), 507),
    ],
)
def test_errors_have_a_status(make: Callable[[], PrixError], status: int) -> None:
    found, headers = status_of(make())
    assert found == status and (status == 503) == ("Retry-After" in headers)


def _error(name: str, **values: object) -> PrixError:
    error: PrixError = type(name, (PrixError,), values)("x")
    return error
