"""The facets of the review page: links that narrow the queue and give it back."""

from starlette.testclient import TestClient

from tests.service.pages.helpers import read, total


def test_a_facet_narrows_the_queue_and_gives_it_back(client: TestClient) -> None:
    everything = read(client, "/review")
    assert total(everything) == 8
    (finnish,) = everything.links(href="lang=fi")
    narrowed = read(client, finnish)
    assert total(narrowed) == 2
    assert narrowed.links(**{"aria-current": "true", "href": "/review"})[:1] == ["/review"]
    band = read(client, "/review?lang=fi&min_confidence=0.95&max_confidence=0.99")
    assert total(band) == 1
    assert "/review?lang=fi" in band.links(**{"aria-current": "true"})


def test_a_chosen_value_stays_in_sight_when_nothing_is_left_of_it(client: TestClient) -> None:
    page = read(client, "/review?lang=te&table=labels&max_confidence=0.33")
    assert total(page) == 0
    assert "Nothing is left in this filter." in page.text
    assert "Telugu" in page.text and "0 to 33 %" in page.text
    assert "/review?table=labels&max_confidence=0.33" in page.links(**{"aria-current": "true"})
