"""Descriptions on pages, in the API, in reconciliation and for agents: shown whole, as text."""

import html
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from prixlm import KB, import_kb
from prixlm.service.app import create_app
from prixlm.service.mcp import _make_tools
from prixlm.service.workbench import Folders, Workbench

HOSTILE = '<img src=x onerror="alert(1)"> & \u202egnp'
LONG = "a very long description " * 60
ROWS = [
    ("en", "Paris", "capital of France"),
    ("ar", "باريس", "عاصمة فرنسا"),
    ("en", "France", LONG.strip()),
    ("en", "Troy", HOSTILE),
    ("fi", "Troija", ""),
]
FACTS = "lang\tsubject\trelation\tobject\nen\tFrance\tcapital\tParis\nen\tTroy\tnear\tParis\n"
LINKS = "lang_a\tname_a\tlang_b\tname_b\nen\tParis\tar\tباريس\nen\tTroy\tfi\tTroija\n"


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    folder = tmp_path_factory.mktemp("described")
    table = ["lang\tname\tdescription", *("\t".join(row) for row in ROWS)]
    files = {"facts.tsv": FACTS, "links.tsv": LINKS, "things.tsv": "\n".join(table) + "\n"}
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    return import_kb([folder / name for name in files], folder / "kb")


@pytest.fixture(scope="module")
def bench(kb: KB) -> Iterator[Workbench]:
    made = Workbench(Folders(kb=kb.folder))
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(bench: Workbench) -> Iterator[TestClient]:
    with TestClient(create_app(bench), "http://127.0.0.1") as made:
        yield made


def test_a_description_is_in_the_readers_language_else_in_another(bench: Workbench) -> None:
    concepts = bench.opened.concepts
    paris = concepts.concept_of("en:Paris")
    for langs, lang in ((["ar"], "ar"), (["fi"], "en"), ([], "en"), (["fi", "ar"], "ar")):
        found = concepts.description(paris, langs)
        assert found is not None and found.lang == lang
    troy = concepts.description(concepts.concept_of("fi:Troija"), ["fi"])
    assert troy is not None and (troy.text, troy.lang) == (HOSTILE, "en")


def test_the_entity_answer_has_every_language(bench: Workbench) -> None:
    answer = bench.entity("en:Paris", ["en"])
    assert answer.description is not None and answer.description.text == "capital of France"
    by_lang = {one.lang: one.description for one in answer.names}
    assert by_lang == {"ar": "عاصمة فرنسا", "en": "capital of France", "fi": None}
    assert bench.entity("en:France", ["en"]).description.text == LONG.strip()  # type: ignore[union-attr]


def test_the_page_shows_it_escaped_with_language_and_direction(client: TestClient) -> None:
    page = client.get("/entity?id=en:Troy").text
    shown = html.escape(HOSTILE.replace("\u202e", "\ufffd"), quote=False)
    assert shown in page.replace("&#34;", '"') and "<img src=x" not in page
    page = client.get("/entity?id=en:Paris&ui=ar").text
    assert 'lang="ar" dir="rtl"' in page and "عاصمة فرنسا" in page
    page = client.get("/entity?id=en:France").text
    assert f">{LONG.strip()}</p>" in page  # the style cuts it, the page does not


def test_search_results_show_it(client: TestClient) -> None:
    page = client.get("/search/results?q=Paris").text
    assert ">capital of France</p>" in page
    found = client.get("/api/search?q=Paris").json()["results"][0]
    assert found["description"] == {"text": "capital of France", "lang": "en"}


def test_reconciliation_shows_it(client: TestClient) -> None:
    queries = '{"q0": {"query": "France"}, "q1": {"query": "Troy"}}'
    answers = client.get("/reconcile", params={"queries": queries}).json()
    text = answers["q0"]["result"][0]["description"]
    assert text.startswith("a very long description") and len(text) <= 250
    assert answers["q1"]["result"][0]["description"] == HOSTILE.replace("\u202e", "\ufffd")
    preview = client.get("/reconcile/preview?id=en:France").text
    assert f'<p lang="en" dir="ltr">{LONG.strip()}</p>' in preview
    flyout = client.get("/reconcile/ar/flyout/entity?id=en:Paris").json()["html"]
    assert '<p lang="ar" dir="rtl">عاصمة فرنسا</p>' in flyout
    hostile = client.get("/reconcile/flyout/entity?id=en:Troy").json()["html"]
    assert "<img" not in hostile and "&lt;img" in hostile
    suggested = client.get("/reconcile/suggest/entity?prefix=Par").json()["result"][0]
    assert suggested["description"] == "capital of France"


def test_an_agent_reads_it(bench: Workbench) -> None:
    tools = {tool.__name__: tool for tool in _make_tools(bench)}
    assert tools["entity"]("en:Paris").description.text == "capital of France"


def test_the_review_card_shows_it_of_subject_and_object(bench: Workbench) -> None:
    concepts = bench.opened.concepts
    known = concepts.known(concepts.concept_of("en:Paris"), ["ar"])
    assert known.description is not None and known.description.text == "عاصمة فرنسا"


def test_the_card_of_a_proposal_describes_subject_and_object(
    served_kb: KB, folders: Folders
) -> None:
    with TestClient(create_app(Workbench(folders)), "http://127.0.0.1") as client:
        card = client.get("/review/card?id=fact-0").text
    assert 'lang="ar" dir="rtl"' in card and "دولة في شمال أفريقيا</p>" in card


def test_a_column_of_descriptions_decides_between_namesakes(tmp_path: Path) -> None:
    label, comment = (
        f"<http://www.w3.org/2000/01/rdf-schema#{name}>" for name in ("label", "comment")
    )
    lines = [
        f'<http://e.org/1> {label} "Paris"@en .\n<http://e.org/1> {comment} "prince of Troy"@en .',
        f'<http://e.org/2> {label} "Paris"@en .\n<http://e.org/2> {comment} "city in France"@en .',
    ]
    (tmp_path / "x.nt").write_text("\n".join(lines) + "\n")
    bench = Workbench(Folders(kb=import_kb([tmp_path / "x.nt"], tmp_path / "kb").folder))
    with TestClient(create_app(bench), "http://127.0.0.1") as client:
        for word, key in (("France", "http://e.org/2"), ("Troy", "http://e.org/1")):
            query = {"query": "Paris", "properties": [{"pid": "description", "v": word}]}
            asked = {"queries": json.dumps({"q": query})}
            [best, other] = client.get("/reconcile", params=asked).json()["q"]["result"]
            assert best["id"] == key and best["score"] > other["score"]
        extend = {"ids": ["http://e.org/1"], "properties": [{"id": "description"}]}
        rows = client.get("/reconcile", params={"extend": json.dumps(extend)}).json()["rows"]
        assert rows["http://e.org/1"]["description"] == [{"str": "prince of Troy"}]
        offered = client.get("/reconcile/suggest/property?prefix=descr").json()["result"]
        assert offered == [{"id": "description", "name": "description"}]
