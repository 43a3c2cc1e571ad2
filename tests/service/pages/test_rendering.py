"""Static files: only those of the package, sent once, and nothing from elsewhere."""

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from prixlm.service import pages

STATIC = Path(pages.__file__).parents[1] / "static"


@pytest.mark.parametrize(
    "address",
    ["/static/../pages.py", "/static/..%2fpages.py", "/static/%2e%2e/pages.py", "/static/none.js"],
)
def test_static_files_are_those_of_the_package(client: TestClient, address: str) -> None:
    assert client.get(address).status_code == 404


def test_a_static_file_is_sent_once(client: TestClient) -> None:
    first = client.get("/static/review.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = client.get("/static/review.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content


@pytest.mark.parametrize("file", sorted(STATIC.iterdir()), ids=lambda file: file.name)
def test_scripts_and_styles_need_nothing_from_elsewhere(client: TestClient, file: Path) -> None:
    text = file.read_text("utf-8")
    assert client.get(f"/static/{file.name}").text == text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import|eval\(", text)
    for module in re.findall(r'^import .* from "\./(.*)"', text, re.MULTILINE):
        assert (STATIC / module).is_file()
