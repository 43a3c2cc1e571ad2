"""The JSON API over a real server, and with what schemathesis makes up from its description."""

import io
import json
from collections.abc import Iterator
from urllib.parse import quote

import hypothesis
import pyarrow.parquet as pq
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.testclient import TestClient

from prixlm.importers.format import Limits
from prixlm.service import api
from prixlm.service.api import reviewer_of
from prixlm.service.app import create_app
from prixlm.service.workbench import Workbench
from tests.helpers import budget
from tests.service import served

HOME = "http://127.0.0.1"
ANNA = {"X-Reviewer": "Anna"}


@pytest.fixture
def client(bench: Workbench) -> Iterator[TestClient]:
    with TestClient(create_app(bench), HOME) as client:
        yield client


def test_every_endpoint_answers(client: TestClient) -> None:
    for path in (
        "/api/status",
        "/api/overview?all=1",
        "/api/search?q=helsinki&lang=fi&limit=3",
        "/api/entity?id=en:Helsinki&lang=fi",
        "/api/gaps?id=en:Helsinki&lang=fi",
        "/api/relations?q=cap",
        "/api/translate?name=Cairo&from=en&to=ar",
        "/api/link?mention=Cairo",
        "/api/proposals?lang=en&min_confidence=0.5&limit=5&order=informative",
        "/api/proposals/fact-0?ui=fi",
        "/api/facets?table=facts",
        "/api/sample?seed=3",
        "/api/marks?limit=5",
        "/api/disagreements",
    ):
        answer = client.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        assert answer.headers["cache-control"] == "no-store"


def test_a_form_may_send_parameters_that_are_empty(client: TestClient) -> None:
    with_empty = client.get("/api/proposals?lang=&relation=&kind=&limit=3&subject=").json()
    assert with_empty == client.get("/api/proposals?limit=3").json()
    assert client.get("/api/search?q=Cairo&lang=").status_code == 200
    assert client.get("/api/proposals?langs=en").status_code == 422  # a slip is not ignored


def test_a_review_from_mark_to_export(client: TestClient) -> None:
    first = client.get("/api/proposals?limit=1").json()["proposals"][0]
    marked = client.post(
        "/api/marks", json={"id": first["id"], "verdict": "accept"}, headers=ANNA
    ).json()
    assert marked["marked"] == 1 and marked["open"] == 47
    detail = client.get(f"/api/proposals/{first['id']}").json()
    assert detail["proposal"]["state"] == "accepted" and detail["marks"][0]["reviewer"] == "Anna"
    count = client.get("/api/facets?lang=fi").json()["total"]
    bulk = {"filter": {"lang": "fi"}, "verdict": "reject", "expected": count}
    assert client.post("/api/marks/bulk", json=bulk, headers=ANNA).json()["marked"] == count == 2
    again = client.post("/api/marks/bulk", json=bulk, headers=ANNA)
    assert again.status_code == 409 and "now has 0 proposals" in again.json()["detail"]
    log = client.get("/api/marks").json()["marks"]
    assert [entry["verdict"] for entry in log] == ["reject", "reject", "accept"]
    assert client.post("/api/undo", json={}, headers=ANNA).json()["undone"] == 2
    assert client.post("/api/undo", json={}, headers={"X-Reviewer": "Bob"}).json()["undone"] == 0
    exported = client.post("/api/export", json={"format": "tsv", "accepted": True})
    assert exported.headers["content-disposition"] == 'attachment; filename="proposals.tsv"'
    assert len(exported.text.splitlines()) == 2 and first["value"]["text"] in exported.text


def test_an_export_in_every_format_is_a_download(client: TestClient) -> None:
    for name in ("nt", "nq", "tsv", "parquet"):
        answer = client.post("/api/export", json={"format": name})
        assert answer.status_code == 200 and len(answer.content) > 100, name
    assert pq.read_table(io.BytesIO(answer.content)).num_rows == 46
    refused = client.post("/api/export", json={"format": "nt", "star": True})
    assert refused.status_code == 400 and refused.json()["detail"] == "star requires format nq."


@pytest.mark.parametrize("path", ["/api/marks", "/api/marks/bulk", "/api/undo", "/api/export"])
def test_what_a_form_of_another_site_could_send_is_refused(client: TestClient, path: str) -> None:
    body = json.dumps({"id": "fact-0", "verdict": "accept"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = client.post(path, content=body, headers={"Content-Type": kind})
        assert answer.status_code == 403
    assert client.post(path, content=body).status_code == 403
    other = {"Origin": "http://evil.example"}
    assert client.post(path, json={}, headers=other).status_code == 403
    assert client.get("/api/marks").json()["marks"] == []


def test_the_reviewer_comes_from_a_header_or_a_cookie() -> None:
    assert reviewer_of(None, None) == reviewer_of("  ", None) == "reviewer"
    assert reviewer_of(None, "%CE%91%CE%BD%CE%BD%CE%B1") == "Αννα"
    assert reviewer_of("Bob", "Anna") == "Bob"
    assert reviewer_of("a\x00b%E2%80%AEc\nd", None) == "abc d"
    raw = "Ünï".encode().decode("latin-1")  # as a program sends it and HTTP reads it
    assert reviewer_of(raw, None) == reviewer_of("%C3%9Cn%C3%AF", None) == "Ünï"
    assert reviewer_of("J\xf6rg", None) == "Jörg"
    assert len(reviewer_of("x" * 600, None)) == api.MAX_REVIEWER


def test_names_that_attack_are_text(client: TestClient) -> None:
    answer = client.get("/api/proposals/fact-3")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["proposal"]["subject"]["name"]["text"] == served.SCRIPT
    long = client.get("/api/proposals/fact-5").json()
    assert long["proposal"]["value"]["text"] == served.LONG


def test_the_reader_is_answered_in_the_language_of_the_browser(client: TestClient) -> None:
    def name(**headers: str) -> str:
        answer = client.get("/api/entity?id=en:Egypt", headers=headers)
        return str(answer.json()["entity"]["name"]["text"])

    assert name() == "Egypt" and name(**{"Accept-Language": "ar-EG, en;q=0.5"}) == "مصر"
    assert name(**{"Accept-Language": "zz"}) == "Egypt"


def test_mentions_are_linked_in_one_request_up_to_a_limit(client: TestClient) -> None:
    body = {"mentions": ["Cairo", "Helsinki"], "limit": 1}
    answers = client.post("/api/link", json=body).json()
    assert [one["mention"] for one in answers] == ["Cairo", "Helsinki"]
    too_many = {"mentions": ["Cairo"] * (api.MAX_MENTIONS + 1)}
    assert client.post("/api/link", json=too_many).status_code == 422


NUM_EXAMPLES = budget(6, 60)


def test_schemathesis_finds_no_answer_outside_the_description(bench: Workbench) -> None:
    """Made-up requests to every endpoint: no failure, and answers as they are described."""
    bench.questions.link(["Cairo"])  # fits the matcher, which may take longer than a request should
    host = {"Host": "127.0.0.1"}
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", create_app(bench), headers=host)
    operations = [found.ok() for found in schema.include(path_regex="^/api").get_all_operations()]
    assert len(operations) >= 20
    for operation in operations:

        @hypothesis.settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            # A schema cannot say that `star` needs the format `nq`: such requests are refused with
            # 400, which that check takes for a mistake.
            case.call_and_validate(headers=host, excluded_checks=[positive_data_acceptance])

        check()


@pytest.mark.parametrize("name", ["علی\u200cرضا", "👨\u200d👩", "\ue000", "\u0378x"])
def test_a_reviewer_of_any_script_can_mark(client: TestClient, name: str) -> None:
    headers = {"X-Reviewer": quote(name)}
    body = {"id": "fact-0", "verdict": "accept"}
    assert client.post("/api/marks", json=body, headers=headers).status_code == 200


def test_an_entity_with_a_long_key_is_found_by_it(client: TestClient) -> None:
    id = f"en:{served.LONG}"
    for path in ("/api/entity", "/api/gaps", "/entity", "/reconcile/preview"):
        assert client.get(path, params={"id": id}).status_code == 200, path
    for path in ("/api/proposals", "/review"):
        assert client.get(path, params={"subject": id}).status_code == 200, path
    mark = {"id": "fact-4", "verdict": "accept", "replacement": {"entity": id}}
    assert client.post("/api/marks", json=mark).status_code == 200


def test_a_name_as_long_as_an_import_takes_can_be_searched(client: TestClient) -> None:
    for path, key in (("/api/search", "q"), ("/search", "q"), ("/api/link", "mention")):
        for name in ("名" * Limits.name, "🇫" * Limits.name):
            assert client.get(path, params={key: name}).status_code == 200, path
