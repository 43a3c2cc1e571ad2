"""The overview page: its heat map leads to the queue, licence and reliability are told."""

import re
from pathlib import Path

from starlette.testclient import TestClient

from prixlm.service.opened import Folders
from tests.service.pages.helpers import open_client, read, total


def test_a_cell_of_the_heat_map_leads_to_its_queue(client: TestClient) -> None:
    page = read(client, "/")
    cells = {
        str(attributes["aria-label"]): str(attributes["href"])
        for tag, attributes in page.tags
        if tag == "a" and "proposed" in (attributes.get("aria-label") or "")
    }
    assert cells
    for label, address in cells.items():
        found = re.search(r"([\d,]+) proposed", label)
        assert found and total(read(client, address)) == int(found[1].replace(",", "")), label


def test_languages_with_proposals_come_first_in_the_heat_map(countries: Path) -> None:
    """With thirty languages, the cells to review would else be out of sight."""
    with open_client(Folders(work=countries)) as client:
        head, body = client.get("/").text.split("</thead>", 1)
    langs = re.findall(r'<th scope="col">(\w+)<small>', head)
    assert langs == ["fi", "sv", "en"]
    for row in body.split("</tbody>")[0].split("</tr>")[:-1]:
        for lang, cell in zip(langs, row.split("<td>")[1:], strict=True):
            assert "href" not in cell or f"lang={lang}&" in cell


def test_the_overview_tells_the_licence_and_draws_the_reliability(client: TestClient) -> None:
    page = read(client, "/")
    assert "Licence" in page.text and "Imported by" in page.text
    assert "Kb" not in page.text and "Min confidence" not in page.text
    dots = [attributes for tag, attributes in page.tags if tag == "circle"]
    assert ("20.0", "75.0") in [(dot["cx"], dot["cy"]) for dot in dots]
