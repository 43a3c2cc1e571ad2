"""The reconciliation service over HTTP: specifications, limits, hostile input, real clients."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from prixlm.service.app import create_app
from prixlm.service.reconcile import make_router, routes
from prixlm.service.reconcile.routes import Gate
from prixlm.service.workbench import Workbench
from tests.service.reconcile.conftest import HOSTILE

Validate = Callable[[str, str, Any], None]


def ask(client: TestClient, queries: object, root: str = "/reconcile") -> dict[str, Any]:
    """Return the results of a batch of version 0.2, by the names of the queries."""
    response = client.post(root, data={"queries": json.dumps(queries)})
    assert response.status_code == 200, response.text
    return {name: answer["result"] for name, answer in response.json().items()}


def ask_1(client: TestClient, queries: object, **headers: str) -> list[Any]:
    """Return the candidates of a batch of version 1.0."""
    response = client.post("/reconcile/v1/match", json={"queries": queries}, headers=headers)
    assert response.status_code == 200, response.text
    return [result["candidates"] for result in response.json()["results"]]


def name_is(text: str, **more: object) -> dict[str, object]:
    """Return a query of version 1.0 for a name."""
    return {"conditions": [{"matchType": "name", "propertyValue": text}], **more}


# Matching.


def test_an_exact_name_comes_first_in_every_script(client: TestClient) -> None:
    names = ["Stalker", "Солярис", "سولاريس", "Andrei Tarkovsky", HOSTILE]
    results = ask(client, {str(n): {"query": name} for n, name in enumerate(names)})
    assert [results[str(n)][0]["name"] for n in range(len(names))] == names


def test_an_identifier_finds_its_entity_with_full_score(client: TestClient) -> None:
    [stalker, *_] = ask(client, {"a": {"query": "Stalker"}})["a"]
    [found, *_] = ask(client, {"a": {"query": stalker["id"]}})["a"]
    assert (found["id"], found["score"], found["match"]) == (stalker["id"], 100, True)
    by_id = {"conditions": [{"matchType": "id", "propertyValue": stalker["id"]}]}
    [[found, *_]] = ask_1(client, [by_id])
    assert (found["id"], found["score"], found["match"]) == (stalker["id"], 100, True)


def test_namesakes_share_the_score_and_a_property_decides_between_them(client: TestClient) -> None:
    lem, tarkovsky = "Stanisław Lem", "Andrei Tarkovsky"
    results = ask(
        client,
        {
            "none": {"query": "Solaris"},
            "book": {"query": "Solaris", "properties": [{"pid": "author", "v": lem}]},
            "film": {"query": "Solaris", "properties": [{"pid": "director", "v": tarkovsky}]},
        },
    )
    first, second = results["none"][:2]
    assert not first["match"] and abs(first["score"] - second["score"]) < 1
    assert first["score"] + second["score"] <= 100
    book, film = results["book"][0], results["film"][0]
    assert book["id"] != film["id"]
    assert "Lem" in book["description"] and "Tarkovsky" in film["description"]
    assert {f["id"]: f["value"] for f in film["features"]}["properties"] == 100


@pytest.mark.parametrize(
    "value", ["Андрей Тарковский", "Andrei Tarkovskij", ["x", "andrei tarkovsky"]]
)
def test_a_property_value_may_be_text_in_any_language_or_a_list(
    client: TestClient, value: object
) -> None:
    query = {"query": "Solaris", "properties": [{"pid": "director", "v": value}]}
    [best, *_] = ask(client, {"a": query})["a"]
    assert {f["id"]: f["value"] for f in best["features"]}["properties"] > 90


def test_a_property_value_may_be_an_entity_and_the_name_may_be_missing(client: TestClient) -> None:
    [tarkovsky, *_] = ask(client, {"a": {"query": "Andrei Tarkovsky"}})["a"]
    properties = [{"pid": "director", "v": {"id": tarkovsky["id"]}}]
    found = ask(client, {"a": {"properties": properties}})["a"]
    assert {candidate["name"] for candidate in found} == {"Solaris", "Stalker"}
    assert len(found) == 2 and not any(candidate["match"] for candidate in found)
    assert [candidate["score"] for candidate in found] == [50, 50]


def test_a_type_filters_unless_it_only_should_fit(client: TestClient) -> None:
    [film, *_] = client.get("/reconcile/suggest/type", params={"prefix": "film"}).json()["result"]
    asked = {"query": "The Invincible", "type": film["id"]}
    results = ask(
        client,
        {
            "any": asked,
            "should": asked | {"type_strict": "should"},
            "all": {"query": "Solaris", "type": [film["id"], "nothing"], "type_strict": "all"},
            "unknown": {"query": "Solaris", "type": "nothing"},
        },
    )
    assert "The Invincible" not in [candidate["name"] for candidate in results["any"]]
    assert results["should"][0]["name"] == "The Invincible"
    assert {f["id"]: f["value"] for f in results["should"][0]["features"]}["type"] is False
    assert results["all"] == results["unknown"] == []


def test_the_service_of_a_language_shows_only_entities_with_a_name_in_it(
    client: TestClient,
) -> None:
    results = ask(client, {"a": {"query": "Солярис"}, "b": {"query": "Stalker"}}, "/reconcile/ar")
    assert results["a"][0]["name"] == "سولاريس"
    assert "Солярис" in results["a"][0]["description"]  # the name that matched
    assert "Stalker" not in [candidate["name"] for candidate in results["b"]]


def test_required_and_negative_conditions_of_version_1_filter(client: TestClient) -> None:
    def director(name: str, **more: object) -> dict[str, object]:
        condition = {"matchType": "property", "propertyId": "director", "propertyValue": name}
        return {"conditions": [{"matchType": "name", "propertyValue": "Solaris"}, condition | more]}

    mann, tarkovsky = "Michael Mann", "Andrei Tarkovsky"
    kept, dropped, negative = ask_1(
        client,
        [
            director(tarkovsky, required=True),
            director(mann, required=True),
            director(tarkovsky, required=True, matchQuantifier="none"),
        ],
    )
    assert kept[0]["name"] == "Solaris"
    assert all("Tarkovsky" in c["description"] for c in kept)
    assert {c["name"] for c in dropped} <= {"Heat"}
    assert "Solaris" in {c["name"] for c in negative}  # the book
    assert not any("Tarkovsky" in c["description"] for c in negative if c["name"] == "Solaris")


def test_version_1_speaks_the_language_of_the_reader_and_tells_its_direction(
    client: TestClient,
) -> None:
    response = client.post(
        "/reconcile/v1/match",
        json={"queries": [name_is("Солярис")]},
        headers={"Accept-Language": "ar-EG, en;q=0.5"},
    )
    [best, *_] = response.json()["results"][0]["candidates"]
    assert (best["name"], best["lang"], best["dir"]) == ("سولاريس", "ar", "rtl")
    assert response.headers["Content-Language"] == "ar"


# The specifications.


def test_both_manifests_are_valid(client: TestClient, validate: Validate) -> None:
    for root in ("/reconcile", "/reconcile/fi"):
        manifest = client.get(root).json()
        validate("0.2", "manifest", manifest)
        assert manifest["batchSize"] == routes.BATCH_SIZE
        assert manifest["preview"]["url"].startswith(f"http://testserver{root}/preview?id=")
    manifest = client.get("/reconcile/v1").json()
    validate("1.0-draft", "manifest", manifest)
    assert manifest["standardizedScore"] is True


@pytest.mark.parametrize("version", ["0.2", "1.0-draft"])
def test_the_valid_examples_are_answered_and_the_invalid_ones_refused(
    version: str, client: TestClient, specs: Path, validate: Validate
) -> None:
    def send(text: str) -> Any:
        if version == "0.2":
            return client.post("/reconcile", data={"queries": text})
        return client.post(
            "/reconcile/v1/match", content=text, headers={"Content-Type": "application/json"}
        )

    examples = specs / version / "examples" / "reconciliation-query-batch"
    valid, invalid = sorted(examples.glob("valid/*")), sorted(examples.glob("invalid/*"))
    assert len(valid) >= 4 and len(invalid) >= 3
    for path in valid:
        answer = send(path.read_text("utf-8"))
        assert answer.status_code == 200, (path.name, answer.text)
        validate(version, "reconciliation-result-batch", answer.json())
        asked = json.loads(path.read_text("utf-8"))
        if version == "0.2":
            assert list(answer.json()) == list(asked)
        else:
            assert len(answer.json()["results"]) == len(asked["queries"])
    for path in invalid:
        answer = send(path.read_text("utf-8"))
        assert answer.status_code == 400 and answer.json()["detail"], path.name


@pytest.mark.parametrize("version", ["0.2", "1.0-draft"])
def test_real_candidates_suggestions_and_extensions_are_valid(
    version: str, client: TestClient, specs: Path, validate: Validate
) -> None:
    if version == "0.2":
        root = "/reconcile"
        queries = {"a": {"query": "Solaris", "type": "x", "type_strict": "should"}}
        batch = client.post(root, data={"queries": json.dumps(queries)}).json()
        [best, *_] = batch["a"]["result"]
    else:
        root = "/reconcile/v1"
        batch = client.post(
            f"{root}/match", json={"queries": [name_is("Solaris", lang="en")]}
        ).json()
        [best, *_] = batch["results"][0]["candidates"]
    validate(version, "reconciliation-result-batch", batch)
    for kind, schema in {"entity": "entities", "property": "properties", "type": "types"}.items():
        for prefix in ("", "so", "film", "dir", "name"):
            found = client.get(f"{root}/suggest/{kind}", params={"prefix": prefix}).json()
            validate(version, f"suggest-{schema}-response", found)
    proposal = client.get(
        f"{root}/extend/propose", params={"type": best["type"][0]["id"], "limit": 3}
    )
    validate(version, "data-extension-property-proposal", proposal.json())
    assert len(proposal.json()["properties"]) == 3
    for path in sorted((specs / version / "examples" / "data-extension-query").glob("valid/*")):
        query = json.loads(path.read_text("utf-8"))
        query["ids"].append(best["id"])
        query["properties"] += [{"id": "director"}, {"id": "name:ar", "settings": {"limit": "1"}}]
        validate(version, "data-extension-query", query)
        validate(version, "data-extension-response", extend(client, version, query))


def extend(client: TestClient, version: str, query: object) -> Any:
    """Return the answer to a data extension query."""
    if version == "0.2":
        answer = client.post("/reconcile", data={"extend": json.dumps(query)})
    else:
        answer = client.post("/reconcile/v1/extend", json=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_data_extension_returns_entities_and_names(client: TestClient) -> None:
    [film, *_] = ask(client, {"a": {"query": "Солярис"}})["a"]
    query = {
        "ids": [film["id"], "nothing"],
        "properties": [
            {"id": "director"},
            {"id": "director", "settings": {"content": "name"}},
            {"id": "name:ar"},
            {"id": "unknown"},
        ],
    }
    in_english = client.post("/reconcile/en", data={"extend": json.dumps(query)}).json()
    row = in_english["rows"][film["id"]]
    assert row["name:ar"] == [{"str": "سولاريس"}] and row["unknown"] == []
    assert row["director"] == [{"str": "Andrei Tarkovsky"}]  # of two columns with one id the last
    assert in_english["rows"]["nothing"] == {"director": [], "name:ar": [], "unknown": []}
    query["properties"] = [{"id": "director"}]
    [[value]] = extend(client, "0.2", query)["rows"][film["id"]].values()
    assert set(value) == {"id", "name"}
    assert client.get("/reconcile/preview", params={"id": value["id"]}).status_code == 200


# Suggestions, flyouts and previews.


def test_suggestions_find_ids_beginnings_and_names_in_other_languages(client: TestClient) -> None:
    def suggest(kind: str, prefix: str, root: str = "/reconcile", cursor: int = 0) -> list[Any]:
        address = f"{root}/suggest/{kind}"
        answer = client.get(address, params={"prefix": prefix, "cursor": cursor})
        found: list[Any] = answer.json()["result"]
        return found

    [stalker, *_] = suggest("entity", "Stal")
    assert stalker["name"] == "Stalker" and stalker["notable"][0]["name"] == "film"
    assert suggest("entity", stalker["id"])[0] == stalker
    assert suggest("entity", "Stal", cursor=1)[:1] != [stalker]
    assert suggest("property", "direc")[0]["id"] == "director"
    assert suggest("property", "in arab")[0]["id"] == "name:ar"
    assert suggest("type", "film")[0]["id"] == suggest("type", "фильм")[0]["id"]
    assert len(suggest("type", "")) >= 3
    in_arabic = suggest("entity", stalker["id"], "/reconcile/ar")
    assert stalker["id"] not in [entity["id"] for entity in in_arabic]


def test_previews_and_flyouts_show_hostile_names_as_text(client: TestClient) -> None:
    [hostile, *_] = ask(client, {"a": {"query": HOSTILE}})["a"]
    page = client.get("/reconcile/preview", params={"id": hostile["id"]})
    assert "<script" not in page.text and "&lt;script&gt;" in page.text
    policy = page.headers["Content-Security-Policy"]
    assert "frame-ancestors *" in policy and "default-src 'none'" in policy
    assert "X-Frame-Options" not in page.headers
    flyout = client.get("/reconcile/flyout/entity", params={"id": hostile["id"]}).json()
    assert flyout["id"] == hostile["id"] and "<script" not in flyout["html"]
    for kind, text in {"property": "<b>", "type": hostile["type"][0]["id"]}.items():
        flyout = client.get(f"/reconcile/flyout/{kind}", params={"id": text}).json()
        assert "<b>" not in flyout["html"]
    assert client.get("/reconcile/preview", params={"id": "nothing"}).status_code == 404


# Requests that are wrong, too large or too many.


def test_a_bad_query_leaves_the_others_answered(client: TestClient) -> None:
    bad = {"b": {"limit": 3}, "c": 7, "d": {"query": "x", "properties": [{"pid": "director"}]}}
    results = ask(client, {"a": {"query": "Stalker"}} | bad)
    assert results["a"][0]["name"] == "Stalker"
    assert results["b"] == results["c"] == results["d"] == []
    good, other = ask_1(client, [name_is("Stalker"), {"limit": 1}])
    assert good[0]["name"] == "Stalker" and other == []


def test_limits_are_kept(client: TestClient) -> None:
    results = ask(client, {str(n): {"query": "Solaris", "limit": n} for n in (1, 2, 0, -4, 10**9)})
    assert [len(results[str(n)]) for n in (1, 2, 0, -4)] == [1, 2, 1, 1]
    assert len(results[str(10**9)]) <= 50
    empty, long = ask(client, {"a": {"query": "  "}, "b": {"query": "Solaris" * 9999}}).values()
    assert empty == [] and isinstance(long, list)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"data": {"queries": "{"}}, 400),
        ({"data": {"queries": "[]"}}, 400),
        ({"data": {"queries": "[" * 100_000}}, 400),
        ({"data": {"queries": json.dumps({str(n): {"query": "x"} for n in range(201)})}}, 413),
        ({"data": {"queries": "x" * (1 << 20)}}, 413),
        ({"data": {"extend": json.dumps({"ids": []})}}, 400),
        ({"data": {"extend": json.dumps({"ids": ["x"] * 1001, "properties": []})}}, 413),
        ({"json": {"queries": {}}}, 415),
        ({"content": b"queries=\xff", "headers": {"Content-Type": "x"}}, 415),
    ],
)
def test_bad_requests_are_refused_with_a_reason_that_other_sites_can_read(
    client: TestClient, request_: dict[str, Any], status: int
) -> None:
    answer = client.post("/reconcile", **request_)
    assert answer.status_code == status and answer.json()["detail"]
    assert answer.headers["Access-Control-Allow-Origin"] == "*"


def test_unknown_languages_and_missing_parameters_are_refused(client: TestClient) -> None:
    assert client.get("/reconcile/xx").status_code == 404
    assert client.get("/reconcile/preview").status_code == 400
    assert client.get("/reconcile/suggest/entity", params={"cursor": "x"}).status_code == 400
    assert client.post("/reconcile/v1/match", data={"queries": "{}"}).status_code == 415
    assert client.post("/reconcile/v1/extend", json=[]).status_code == 400


def test_other_sites_may_ask_and_preflight(client: TestClient) -> None:
    for path in ("/reconcile", "/reconcile/v1/match", "/reconcile/fi/suggest/entity"):
        answer = client.options(path, headers={"Origin": "http://example.org"})
        assert answer.status_code == 204
        assert "Content-Type" in answer.headers["Access-Control-Allow-Headers"]
        assert answer.headers["Access-Control-Allow-Origin"] == "*"


def test_refusals_of_the_guard_can_be_read_by_other_sites_here_and_nowhere_else(
    bench: Workbench,
) -> None:
    guarded = TestClient(create_app(bench), base_url="http://127.0.0.1")
    answer = guarded.post("/reconcile", content=b"x" * (2 << 20))
    assert answer.status_code == 413
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    preview = guarded.get("/reconcile/preview", params={"id": "en:Stalker"})
    assert preview.status_code == 200
    assert "frame-ancestors *" in preview.headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in guarded.get("/api/status").headers


def test_jsonp_takes_only_the_name_of_a_function(client: TestClient) -> None:
    answer = client.get("/reconcile", params={"callback": "jQuery1.cb_2"})
    assert answer.text.startswith("/**/jQuery1.cb_2({") and answer.text.endswith("});")
    assert answer.headers["Content-Type"].startswith("text/javascript")
    for callback in ("alert(1)//", "a b", "<x>", "a" * 101, "1a", "a..b", ""):
        answer = client.get("/reconcile", params={"callback": callback})
        assert answer.status_code == 400, callback
    assert client.get("/reconcile/v1", params={"callback": "f"}).text.startswith("{")


def test_a_token_of_the_address_is_in_all_addresses_of_the_manifest(client: TestClient) -> None:
    manifest = client.get("/reconcile", params={"token": "a&b"}).json()
    assert manifest["preview"]["url"].endswith("?id={{id}}&token=a%26b")
    assert manifest["suggest"]["entity"]["service_path"] == "/suggest/entity?token=a%26b"


def test_too_many_requests_at_once_are_told_when_to_come_back(bench: Workbench) -> None:
    async def fill() -> list[Any]:
        gate = Gate(most=2, workers=1)
        held = threading.Event()
        waiting = [asyncio.create_task(gate.run(held.wait)) for _ in range(2)]
        await asyncio.sleep(0.05)
        refused = await asyncio.gather(gate.run(held.wait), return_exceptions=True)
        held.set()
        await asyncio.gather(*waiting)
        return [*refused, await gate.run(lambda: "again")]

    refused, again = asyncio.run(fill())
    assert (refused.status, refused.headers) == (503, {"Retry-After": "2"})
    assert again == "again"

    app = FastAPI()
    app.include_router(make_router(bench, Gate(most=0)))
    answer = TestClient(app).get("/reconcile")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["query", "type", "limit", "properties", "pid", "v", "id", "type_strict"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), _JSON, max_size=3))
def test_no_batch_breaks_the_server(client: TestClient, batch: dict[str, Any]) -> None:
    answer = client.post("/reconcile", data={"queries": json.dumps(batch)})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 200:
        assert all(isinstance(value["result"], list) for value in answer.json().values())
        assert set(answer.json()) == set(batch)
    answer = client.post("/reconcile/v1/match", json={"queries": [*batch.values(), batch]})
    assert answer.status_code in (200, 400), answer.text


# A client that others wrote.


@pytest.fixture(scope="module")
def address(bench: Workbench) -> Iterator[str]:
    """The address of the service on a real server."""
    app = FastAPI()
    app.include_router(make_router(bench))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}/reconcile"
        server.should_exit = True
        thread.join()


@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_the_client_reconciler_reconciles_a_column(address: str) -> None:
    pandas = pytest.importorskip("pandas")
    reconciler = pytest.importorskip("reconciler")
    table = pandas.DataFrame(
        {
            "film": ["Stalker", "Солярис", "Heat", *(f"Stalke{n}" for n in range(20))],
            "by": ["Andrei Tarkovsky", "Андрей Тарковский", "Michael Mann", *[""] * 20],
        }
    )
    found = reconciler.reconcile(
        table["film"],
        property_mapping={"director": table["by"]},
        reconciliation_endpoint=f"{address}/en",
    )
    best = found.set_index("input_value")["name"].to_dict()
    assert [best["Stalker"], best["Солярис"], best["Heat"]] == ["Stalker", "Solaris", "Heat"]
    assert len(best) == 23
