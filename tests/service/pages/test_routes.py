"""The pages: what they show, where their links lead, and that names stay text."""

import re
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from prixlm.kb.store import KB
from prixlm.proposals import quickstatements
from prixlm.proposals.marks import Marks, NewMark
from prixlm.service.workbench import Folders
from tests.service import served
from tests.service.pages.helpers import Parsed, open_client, read, total

ADDRESSES = (
    "/",
    "/?show=missing&all=1",
    "/?show=proposed",
    *(f"/review?id=fact-{number}" for number in range(6)),
    "/review?id=label-0",
    "/review?id=link-0",
    "/review?lang=fi&order=informative",
    "/review?state=rejected",
    "/review/card?id=fact-3",
    "/review/facets",
    "/review/sample?seed=5",
    "/entity?id=en:Helsinki",
    "/entity?id=en:Europe",
    "/search",
    "/search?q=broken",
    "/search/results?q=Langer",
    "/ask",
    "/ask?task=complete&name=Helsinki&relation=capital+of&lang=en",
    "/ask?task=translate&name=Cairo&from=en&to=ar",
    "/ask?task=link&mention=Helsinki%0ACairo",
    "/export",
    "/marks",
    "/marks?show=disagreements",
    "/entity?id=nothing",
    "/review?id=fact-99",
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_page_has_inline_script_or_style_or_anything_from_elsewhere(
    client: TestClient, address: str
) -> None:
    answer = client.get(address)
    assert answer.status_code in (200, 404)
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    page = Parsed(answer.text)
    for tag, attributes in page.tags:
        assert tag not in ("style", "iframe", "object")
        assert tag != "script" or (attributes.get("src") or "").startswith("/static/")
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
        for name in ("src", "action", "formaction", "srcset"):
            assert re.match("/(?!/)", attributes.get(name) or "/"), attributes
        assert re.match("(/(?!/)|#|https?://)", attributes.get("href") or "/"), attributes


@pytest.mark.parametrize("address", ADDRESSES)
def test_names_stay_text_and_change_no_direction(client: TestClient, address: str) -> None:
    text = client.get(address).text
    assert "<img" not in text
    assert "window.broken" not in "".join(re.findall("<script.*?</script>", text, re.DOTALL))
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08]", text)


def test_the_attacking_names_are_on_the_pages_that_were_looked_at(client: TestClient) -> None:
    assert served.SCRIPT in read(client, "/review?id=fact-3").text
    assert served.OVERRIDE.replace("\u202e", "\ufffd").replace("\u2066", "\ufffd") in (
        read(client, "/review?id=fact-4").text
    )
    assert served.LONG[:3_000] in read(client, "/review?id=fact-5").text
    assert served.SCRIPT in read(client, "/search?q=broken").text


@pytest.mark.parametrize(
    ("id", "lang", "direction", "words"),
    [
        ("fact-0", "ar", "rtl", ("القاهرة", "مصر", "Cairo", "Egypt")),
        ("fact-1", "te", "ltr", ("హైదరాబాదు", "భారత దేశము", "Hyderabad", "India")),
    ],
)
def test_a_statement_is_in_the_language_of_the_fact_and_in_the_reviewers(
    client: TestClient, id: str, lang: str, direction: str, words: tuple[str, ...]
) -> None:
    page = read(client, f"/review?id={id}", headers={"Accept-Language": "en"})
    statement = next(a for _, a in page.tags if a.get("id") == "statement")
    assert statement["dir"] == direction
    named = [a for tag, a in page.tags if tag == "bdi" and a.get("lang") == lang]
    assert named and all(attributes["dir"] == "auto" for attributes in named)
    assert all(word in page.text for word in words)


def test_what_is_known_tells_a_fact_from_one_that_points_to_it(client: TestClient) -> None:
    """Helsinki is located in Finland, not Finland in Helsinki."""
    text = client.get("/review?id=fact-2").text
    known = text.split('id="known-object"')[1]
    said = re.findall('<dt>(.*?)</dt><dd>.*?id=(.*?)"', known)
    assert [("←" in relation, id) for relation, id in said] == [
        (False, "en%3AEurope"),
        (True, "en%3AHelsinki"),
    ]


def test_a_queue_of_one_subject_tells_its_name(client: TestClient) -> None:
    text = read(client, "/review?subject=en%3ACairo", headers={"Accept-Language": "en"}).text
    assert "only of Cairo" in text


def test_a_queue_without_a_filter_ends_with_an_export(own: TestClient, proposals: Path) -> None:
    marks = Marks.open(proposals)
    for table, number in (("facts", 6), ("labels", 1), ("links", 1)):
        marks.add("Anna", [NewMark(table, row, "accept") for row in range(number)])
    page = read(own, "/review")
    assert "Every proposal is marked." in page.text
    assert "Nothing is left" not in page.text
    assert page.links(href="/export", **{"class": "button"})


def test_one_proposal_of_a_filter_is_counted_as_one(client: TestClient) -> None:
    text = read(client, "/review/sample?lang=te").text
    assert "1 proposal" in text and "1 proposals" not in text and "ten" not in text
    assert "Mark all 8 proposals" in read(client, "/review/sample").text


def test_the_card_alone_is_the_card_of_the_page(client: TestClient) -> None:
    address = "?lang=en&id=fact-3"
    card = client.get(f"/review/card{address}").text
    assert card.strip() in client.get(f"/review{address}").text
    assert "<html" not in card


def test_the_queue_can_be_walked_by_its_cards(client: TestClient) -> None:
    seen, id = [], ""
    while True:
        page = read(client, f"/review/card?lang=en{id and f'&id={id}'}")
        article = next(a for tag, a in page.tags if tag == "article")
        seen.append(article["data-id"])
        id = article["data-next"] or ""
        if not id:
            break
    assert seen == ["fact-3", "fact-4", "fact-5"]


def test_marks_show_on_the_card_in_the_log_and_as_disagreements(
    own: TestClient, proposals: Path
) -> None:
    marks = Marks.open(proposals)
    marks.add("Άννα", [NewMark("facts", 0, "accept")])
    marks.add("يوسف", [NewMark("facts", row, "reject") for row in range(3)])
    marks.add("<i>Eve", [NewMark("facts", 4, "skip")])
    marks.undo("<i>Eve")
    card = read(own, "/review?id=fact-0&state=all").text
    assert "Άννα" in card and "disputed" in card
    log = read(own, "/marks").text
    assert "3 at once" in log and "<i>Eve" in log and "undone" in log
    page = read(own, "/marks?show=disagreements")
    assert "Disagreements (1)" in page.text
    assert "/review?id=fact-0&state=all" in page.links()
    assert "1 disputed" in read(own, "/").text


def test_the_log_names_what_was_marked(own: TestClient, proposals: Path) -> None:
    marks = Marks.open(proposals)
    marks.add("Anna", [NewMark("labels", 0, "accept"), NewMark("facts", 0, "accept")])
    marks.add("Anna", [NewMark("facts", 1, "reject")])
    page = read(own, "/marks")
    assert "హైదరాబాదు" in page.text and "భారత దేశము" in page.text
    assert "Kairo" in page.text and "2 at once" in page.text
    assert "/review?id=fact-1&state=all" in page.links()


def test_a_reviewer_of_any_script_is_greeted(client: TestClient) -> None:
    client.cookies.set("reviewer", "%D9%8A%D9%88%D8%B3%D9%81")
    client.cookies.set("ui", "fi")
    page = read(client, "/review?id=fact-2")
    assert "يوسف" in page.text
    chosen = [a["value"] for tag, a in page.tags if tag == "option" and "selected" in a]
    assert chosen == ["fi"]


def test_an_entity_shows_all_languages_with_gaps_and_proposals(client: TestClient) -> None:
    page = read(client, "/entity?id=en:Cairo")
    assert "القاهرة" in page.text and "Kairo" in page.text
    assert "/review?id=label-0&state=all" in page.links()
    assert "/review?subject=en%3ACairo" in page.links()
    of_cairo = read(client, "/review?subject=en%3ACairo")
    assert total(of_cairo) == 2  # the Arabic fact and the Finnish label


def test_a_table_of_an_entity_has_no_empty_column(client: TestClient) -> None:
    europe, cairo = (
        read(client, "/entity?id=en:Europe").text,
        read(client, "/entity?id=en:Cairo").text,
    )
    assert "Also called" not in europe and "Missing in" not in europe
    assert "Proposed" not in europe and "Proposed" in cairo


def test_names_far_less_similar_than_the_best_are_not_listed(client: TestClient) -> None:
    everything = client.get("/api/search?q=Finlnd").json()["results"]
    scores = [found["score"] for found in everything]
    assert scores[0] > 75 and min(scores) < scores[0] - 25
    shown = read(client, "/search?q=Finlnd").links(href="/entity")
    assert shown == ["/entity?id=en%3AFinland"]


def test_an_unknown_entity_can_be_searched_for(client: TestClient) -> None:
    page = Parsed(client.get("/entity?id=nothing").text)
    assert "/search?q=nothing" in page.links()
    translated = read(client, "/ask?task=translate&name=Cairoo&from=en&to=ar")
    assert "/search?q=Cairoo" in translated.links()


def test_the_example_of_a_reference_is_one_that_an_export_takes(client: TestClient) -> None:
    page = read(client, "/export")
    field = next(a for tag, a in page.tags if a.get("name") == "references")
    examples = (field["placeholder"] or "").splitlines()
    assert examples and quickstatements.reference_cells(examples)


def test_meaning_is_promised_only_with_an_encoder(client: TestClient) -> None:
    assert "by spelling and sound" in read(client, "/ask?task=link").text


def test_what_is_not_there_is_an_error_page_or_json_for_a_script(client: TestClient) -> None:
    page = client.get("/entity?id=nothing")
    assert page.status_code == 404
    assert "<h1>Not found</h1>" in page.text
    fragment = client.get("/review/card?id=fact-99", headers={"Sec-Fetch-Dest": "empty"})
    assert fragment.status_code == 404
    assert set(fragment.json()) == {"detail"}
    wrong = client.get("/review?min_confidence=7")
    assert wrong.status_code == 422
    assert "min_confidence" in Parsed(wrong.text).text


def test_a_pasted_list_becomes_a_table_of_entities(client: TestClient) -> None:
    body = {"mentions": ["Helsinki", "القاهرة", "qqqq zzzz"], "lang": None}
    answer = client.post("/ask/link", json=body, headers={"Origin": "http://127.0.0.1"})
    assert answer.status_code == 200
    page = Parsed(answer.text)
    assert "3 names" in page.text
    assert "/entity?id=en%3AHelsinki" in page.links()
    assert "/entity?id=en%3ACairo" in page.links()


def test_a_subject_may_be_named_in_any_language(client: TestClient) -> None:
    """This server has no evidence to answer with, but says so only of subjects that it found."""
    question = "/ask?task=complete&relation=capital+of&lang=en&name="
    assert "nothing to complete facts with" in read(client, f"{question}القاهرة").text
    assert "is not a name in English" in read(client, f"{question}Kairon").text


def test_without_proposals_the_kb_can_still_be_read(kb: KB) -> None:
    with open_client(Folders(kb=kb.folder)) as client:
        assert "started without proposals" in read(client, "/").text
        assert "nothing to export" in read(client, "/export").text
        assert "Helsinki" in read(client, "/entity?id=en:Helsinki").text
        assert client.get("/review").status_code == 404


def test_a_kb_that_is_gone_is_told_on_a_page(own: TestClient, proposals: Path) -> None:
    (proposals / "manifest.json").unlink()
    time.sleep(0.6)  # the server looks twice a second
    answer = own.get("/review")
    assert answer.status_code == 503
    assert "Retry-After" in answer.headers
    assert str(proposals) not in answer.text and "<h1>" in answer.text
