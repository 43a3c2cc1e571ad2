"""A browser without a screen: pages are read as tags and text."""

from html.parser import HTMLParser
from typing import Any

from starlette.testclient import TestClient

from prixlm.service.app import create_app
from prixlm.service.opened import Folders
from prixlm.service.workbench import Workbench


def open_client(folders: Folders) -> TestClient:
    app = create_app(Workbench(folders))
    return TestClient(app, "http://127.0.0.1", raise_server_exceptions=False)


class Parsed(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def links(self, **wanted: str) -> list[str]:
        """Return the addresses of links whose attributes contain these words."""
        return [
            str(attributes["href"])
            for tag, attributes in self.tags
            if tag == "a"
            and all(word in (attributes.get(name) or "") for name, word in wanted.items())
        ]


def read(client: TestClient, address: str, **options: Any) -> Parsed:
    answer = client.get(address, **options)
    assert answer.status_code == 200, answer.text
    return Parsed(answer.text)


def total(page: Parsed) -> int:
    return next(int(a["data-total"] or "") for _, a in page.tags if "data-total" in a)
