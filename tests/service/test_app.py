"""The application: all services behind one guard, and errors that tell what to do."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from prixlm import PrixError
from prixlm.proposals.marks import Marks, NewMark
from prixlm.service import workbench as module
from prixlm.service.answering.questions import Questions
from prixlm.service.app import create_app
from prixlm.service.batching import Busy
from prixlm.service.opened import Folders
from prixlm.service.security import Settings
from prixlm.service.workbench import Workbench


@pytest.fixture
def client(bench: Workbench) -> Iterator[TestClient]:
    with TestClient(create_app(bench), "http://127.0.0.1") as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/api/status", "/reconcile", "/review", "/search?q=a"])
def test_pages_api_and_reconciliation_are_served_together(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/nothing", "/api/nothing"])
def test_an_address_that_is_not_there_is_an_error_answer(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404 and answer.json() == {"detail": "Not Found"}


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/api/entity?id=../../etc/passwd",
        "/api/entity?id=/etc/passwd",
    ],
)
def test_no_path_of_a_request_reaches_the_file_system(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404 and "root:" not in answer.text


def test_the_description_needs_no_network_and_has_examples(client: TestClient) -> None:
    answer = client.get("/api/openapi.json")
    assert "cdn" not in answer.text.lower()
    described = answer.json()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], f"{method} {path}"
            assert {"422", "503"} <= operation["responses"].keys(), f"{method} {path}"
    example = described["paths"]["/api/search"]["get"]["responses"]["200"]["content"]
    assert example["application/json"]["example"]["results"]


def test_a_wrong_method_names_the_right_ones(client: TestClient) -> None:
    answer = client.put("/api/marks", json={})
    assert answer.status_code == 405 and answer.headers["allow"] == "GET, POST"


def test_a_wrong_parameter_is_one_line(client: TestClient) -> None:
    answer = client.get("/api/search", params={"q": "a", "limit": "many"})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("limit: Input should be a valid integer")


def test_an_error_shows_no_path_of_the_machine(
    client: TestClient, bench: Workbench, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PrixError(f"{folders.proposals}/marks.db is damaged: {folders.kb}/x.")

    monkeypatch.setattr(bench, "log", fail)
    answer = client.get("/api/marks")
    assert answer.status_code == 400
    assert answer.json() == {"detail": "the proposals/marks.db is damaged: the KB/x."}


def test_a_busy_model_tells_when_to_ask_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Busy("the queue is full.", 7)

    monkeypatch.setattr(Questions, "translate", fail)
    answer = client.get("/api/translate", params={"name": "a", "from": "en", "to": "fi"})
    assert answer.status_code == 503 and answer.headers["retry-after"] == "7"


def test_while_a_folder_is_replaced_the_server_asks_for_patience(
    client: TestClient, folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.0)
    assert folders.proposals is not None
    shutil.move(folders.proposals, tmp_path / "away")
    answer = client.get("/api/status")
    assert answer.status_code == 503 and "retry-after" in answer.headers
    assert str(tmp_path) not in answer.text
    shutil.move(tmp_path / "away", folders.proposals)
    assert client.get("/api/status").status_code == 200


@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOENT, 503), (errno.EIO, 503), (errno.ENOSPC, 507)]
)
def test_a_file_that_fails_is_not_a_mistake_of_the_server(
    client: TestClient, bench: Workbench, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/home/me/proposals.parquet")

    monkeypatch.setattr(bench, "log", fail)
    answer = client.get("/api/marks")
    assert answer.status_code == status and "/home" not in answer.text
    assert ("retry-after" in answer.headers) == (status == 503)


def test_marks_are_refused_where_nothing_can_be_written(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folders.proposals is not None
    Marks.open(folders.proposals).add("Anna", [NewMark("facts", 1, "accept")])
    monkeypatch.setattr("os.access", lambda path, _mode: path != folders.proposals)
    bench = Workbench(folders)
    client = TestClient(create_app(bench), "http://127.0.0.1")
    assert client.get("/review?id=fact-1").status_code == 200
    answer = client.post("/api/marks", json={"id": "fact-0", "verdict": "accept"})
    assert answer.status_code == 507 and "reading only" in answer.json()["detail"]
    assert [mark["id"] for mark in client.get("/api/marks").json()["marks"]] == ["fact-1"]
    bench.close()


def test_a_token_is_asked_of_all_services(bench: Workbench) -> None:
    client = TestClient(create_app(bench, Settings(token="x" * 16)), "http://127.0.0.1")
    for path in ("/", "/api/status", "/reconcile", "/static/style.css", "/api/openapi.json"):
        assert client.get(path).status_code == 401
