"""Every endpoint of the server, asked with what no page would send."""

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from prixlm import import_kb
from prixlm.service import api, pages, reconcile
from prixlm.service.app import create_app
from prixlm.service.opened import Folders
from prixlm.service.workbench import Workbench
from prixlm.untrusted import ESCAPED
from tests.helpers import count_tried
from tests.hostile.attacks import EVIL, NAMES, SEED, VALUES, at_most, budget
from tests.hostile.conftest import House

HOME = "http://127.0.0.1"
_OBEYED = re.compile(f"(?![\n\r\t])(?:{ESCAPED})")
BODIES: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b"[" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b"9" * 50_000,
    b'{"id": 1e999}',
    b'{"id": NaN}',
    b"\xff\xfe\x00",
    b"{" + b'"a": 1,' * 20_000 + b'"a": 1}',
    json.dumps({"id": EVIL, "verdict": EVIL, "reviewer": EVIL, "name": EVIL}).encode(),
    json.dumps({"id": "fact-0", "verdict": "accept", "replacement": EVIL}).encode(),
    json.dumps({"id": [EVIL], "ids": EVIL, "queries": {EVIL: {"query": EVIL}}}).encode(),
    b"queries=" + quote(json.dumps({"q0": {"query": EVIL, "limit": 10**30}})).encode(),
    b"x" * ((1 << 20) + 1),
]


@pytest.fixture(scope="module")
def client(house: House, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server on the hostile KB, with proposals of its own."""
    folder = tmp_path_factory.mktemp("served")
    kb = Path(shutil.copytree(house.kb, folder / "kb"))
    proposals = Path(shutil.copytree(house.proposals, folder / "proposals"))
    bench = Workbench(Folders(kb=kb, proposals=proposals))
    bench.questions.link(["Cairo"])  # fits the matcher, which takes longer than a request
    with TestClient(create_app(bench), HOME) as client:
        yield client
    bench.close()


def routes(client: TestClient) -> list[tuple[str, str, list[str]]]:
    """Return method, path and names of parameters of every endpoint."""
    app: Any = client.app
    paths = app.openapi()["paths"].values()
    described = [operation for path in paths for operation in path.values()]
    pool = sorted({p["name"] for operation in described for p in operation.get("parameters", ())})
    found = [("GET", "/api/openapi.json", pool)]
    for module in (api, reconcile, pages):
        for route in module.make_router(app.state.workbench).routes:
            if isinstance(route, Mount):
                found.append(("GET", route.path + "/{path}", []))
            elif isinstance(route, Route):
                names = pool
                if isinstance(route, APIRoute):
                    names = sorted({*asked_for(route.dependant), *pool})
                found += [(method, route.path, names) for method in sorted(route.methods or ())]
    return found


def asked_for(dependant: Any) -> set[str]:
    """Return the names of the query parameters of an endpoint and of what it depends on."""
    names = {field.alias for field in dependant.query_params}
    return names.union(*map(asked_for, dependant.dependencies))


def check(answer: Any, what: str, house: House) -> None:
    """Assert that an answer is one of ours, and that nothing in it is obeyed."""
    count_tried()
    assert answer.status_code < 500 or answer.status_code == 503, (what, answer.text[:500])
    for name, value in answer.headers.items():
        assert not _OBEYED.search(value), (what, name, value)
    assert str(house.folder.parent) not in answer.text, (what, "a path of this machine")
    assert "Traceback" not in answer.text
    kind = answer.headers.get("content-type", "")
    if "html" in kind:
        assert not _OBEYED.search(answer.text), what
        assert "<script>alert(1)" not in answer.text, what
    elif "json" in kind and answer.text and "javascript" not in kind:
        json.loads(answer.text)


def test_there_are_endpoints_of_every_room(client: TestClient) -> None:
    found = {path for _, path, _ in routes(client)}
    app = Path(create_app.__code__.co_filename).read_text("utf-8")
    assert "for module in (api, reconcile, pages)" in app, "a new router: add it to `routes`"
    assert len(found) > 30 and {"/", "/api/marks", "/reconcile", "/api/search"} <= found


def test_every_endpoint_withstands_every_value(
    client: TestClient, house: House, caplog: pytest.LogCaptureFixture
) -> None:
    generator = random.Random(SEED)
    values = [*NAMES, *VALUES, "fact-0", "en:Finland", "x" * 9_000, "\x00", "en", "1"]
    for method, path, names in routes(client):
        for _ in range(budget(3, 60)):
            address = re.sub(
                r"\{[^}]*\}", lambda _m: quote(generator.choice(values)[:500], safe=""), path
            )
            chosen = generator.sample(names, generator.randint(0, min(4, len(names))))
            params = [(name, generator.choice(values)) for name in chosen]
            body = generator.choice(BODIES) if method in ("POST", "PUT", "PATCH", "DELETE") else b""
            kinds = ["application/json", "application/x-www-form-urlencoded", "text/plain", ""]
            headers = {
                "Content-Type": generator.choice(kinds),
                "X-Reviewer": quote(generator.choice(NAMES)[:50]),
                "Accept-Language": generator.choice(["en", "x" * 5000, ";;;q=", "te, *;q=nan"]),
            }
            answer = client.request(method, address, params=params, content=body, headers=headers)
            check(answer, f"{method} {address[:100]} {params!r:.300} {body[:60]!r}", house)
    failed = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert not failed, failed[:3]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:12]))
def test_every_write_withstands_every_body(
    body: bytes, client: TestClient, house: House, caplog: pytest.LogCaptureFixture
) -> None:
    for method, path, _ in routes(client):
        if method in ("POST", "PUT", "PATCH", "DELETE") and "{" not in path:
            headers = {"Content-Type": "application/json", "X-Reviewer": "Anna"}
            answer = client.request(method, path, content=body, headers=headers)
            check(answer, f"{method} {path} {body[:60]!r}", house)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("path", ["/static/../../etc/passwd", "/static/%2e%2e/%2e%2e/app.py",
                                  "/static/..%2f..%2fsecurity.py", "//evil.example/"])  # fmt: skip
def test_no_file_outside_is_served(path: str, client: TestClient, house: House) -> None:
    answer = client.get(path, follow_redirects=False)
    check(answer, path, house)
    assert "root:" not in answer.text and "import" not in answer.text
    assert "evil.example" not in answer.headers.get("location", "")


MESSAGES = [
    b"",
    b"not json",
    b"[" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b"\xff\xfe\x00",
    b"9" * 10_000,
    b'{"jsonrpc": "2.0", "id": "\x1b[31m", "method": "\x1b]0;owned\x07"}',
    b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "nope"}}',
]


def message(number: int, method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def test_an_agent_that_sends_garbage_still_gets_its_answers(house: House, tmp_path: Path) -> None:
    """Deep JSON, bytes that are not text, and unknown methods do not end `prixlm mcp`."""
    client = {"name": EVIL, "version": "1"}
    lines = [
        *MESSAGES,
        message(1, "initialize", protocolVersion="2025-03-26", capabilities={}, clientInfo=client),
        b'{"jsonrpc": "2.0", "method": "notifications/initialized"}',
        *MESSAGES,
        message(2, "tools/call", name="search", arguments={"query": EVIL, "limit": 10**30}),
        message(3, "tools/call", name="entity", arguments={"id": EVIL}),
    ]
    command = [sys.executable, "-m", "prixlm", "mcp", "--kb", str(house.kb)]
    pipe = subprocess.PIPE
    with (
        (tmp_path / "errors").open("wb") as errors,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors) as server,
        at_most(120),
    ):
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(b"\n".join(lines) + b"\n")
        server.stdin.flush()
        answers = {}
        for line in server.stdout:
            assert not _OBEYED.search(line.decode("utf-8").rstrip("\n"))
            answer = json.loads(line)
            answers[answer.get("id")] = answer
            if {1, 2, 3} <= answers.keys():
                break
        server.stdin.close()
        server.stdout.close()
    count_tried(len(lines))
    assert answers[1]["result"]["serverInfo"]["name"] == "prixlm"
    assert "no entity" in answers[3]["result"]["content"][0]["text"]
    printed = (tmp_path / "errors").read_text("utf-8")
    assert not _OBEYED.search(printed) and "Traceback" not in printed, printed


@pytest.mark.parametrize("path", ["/reconcile", "/reconcile/v1/extend"])
def test_an_extension_of_hubs_is_bounded(path: str, tmp_path: Path) -> None:
    """All values of a hub, 1,000 times 100 columns, took gigabytes."""
    rows = [f"en\thub\thas\tvalue {number}\n" for number in range(1500)]
    (tmp_path / "facts.tsv").write_text("lang\tsubject\trelation\tobject\n" + "".join(rows))
    import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    bench = Workbench(Folders(kb=tmp_path / "kb"))

    def extend(ids: list[str], number: int, **settings: object) -> Any:
        query = {"ids": ids, "properties": [{"id": "has", "settings": settings}] * number}
        given = {"json": query} if "v1" in path else {"data": {"extend": json.dumps(query)}}
        return client.post(path, **given)  # type: ignore[arg-type]

    with TestClient(create_app(bench), HOME) as client, at_most(60):
        hub = bench.search("hub").results[0].entity.id
        assert extend([hub], 1).text.count('"en:value ') == 1000
        assert extend([hub], 1, limit=10**6).text.count('"en:value ') == 1000
        assert extend([hub], 1, limit=3).text.count('"en:value ') == 3
        refused = extend([hub] * 1000, 100)
        assert refused.status_code == 413 and "too large" in refused.text
    bench.close()
    count_tried(8)
