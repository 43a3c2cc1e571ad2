"""The tools of an agent, called through the protocol's own client."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from prixlm.service.mcp import make_server
from prixlm.service.opened import Folders
from prixlm.service.workbench import Workbench
from tests.service.served import SCRIPT

TOOLS = {"search", "entity", "complete", "translate", "link", "gaps"}
Talk = Callable[[Client], Coroutine[Any, Any, Any]]


def talk(server: Any, ask: Talk) -> Any:
    """Connect a client, run `ask` with it and return what that returns."""

    async def run() -> Any:
        async with Client(server) as client:
            return await ask(client)

    return asyncio.run(run())


def call(bench: Workbench, tool: str, **arguments: Any) -> Any:
    """Call one tool; return its result as the client has it."""
    return talk(make_server(bench), lambda client: client.call_tool(tool, arguments))


def answer(bench: Workbench, tool: str, **arguments: Any) -> Any:
    """Call one tool; return the structured values."""
    result = call(bench, tool, **arguments)
    assert not result.is_error, result.content
    return result.structured_content


def test_every_tool_only_reads_and_says_what_it_does(bench: Workbench) -> None:
    listed = talk(make_server(bench), lambda client: client.list_tools())
    assert {tool.name for tool in listed.tools} == TOOLS
    for tool in listed.tools:
        assert tool.description and tool.annotations.read_only_hint, tool.name
        assert tool.output_schema, tool.name


def test_search_finds_an_id_that_the_other_tools_take(bench: Workbench) -> None:
    [found] = answer(bench, "search", query="القاهرة", limit=1)["results"]
    page = answer(bench, "entity", id=found["entity"]["id"])
    names = {names["lang"]: names["name"] for names in page["names"] if names["name"]}
    assert names == {"ar": "القاهرة", "en": "Cairo"}
    missing = answer(bench, "gaps", id=found["entity"]["id"], lang="ar")
    assert "fi" in missing["unnamed_in"]
    assert all("ar" in {*gap["missing_in"], *(p["lang"] for p in gap["proposals"])}
               for gap in missing["gaps"])  # fmt: skip


def test_a_name_is_translated_by_its_links(bench: Workbench) -> None:
    found = answer(bench, "translate", name="Finland", source="en", to="fi")
    assert found["answers"][0]["entity"]["name"] == {"text": "Suomi", "lang": "fi"}


def test_mentions_are_linked_with_a_score(bench: Workbench) -> None:
    [linked] = answer(bench, "link", mentions=["Helsinki"])["result"]
    assert linked["candidates"][0]["entity"]["name"]["text"] == "Helsinki"
    assert 0 <= linked["candidates"][0]["score"] <= 100


def test_a_question_is_answered_with_confidence_and_evidence(countries: Path) -> None:
    bench = Workbench(Folders(work=countries))
    try:
        [found] = answer(bench, "search", query="en land 3", limit=1)["results"]
        subject = found["entity"]["id"]
        answers = answer(bench, "complete", subject=subject, relation="capital", lang="fi")
        assert answers["by"] == "evidence"
        assert [one["name"]["text"] for one in answers["already"]] == ["fi town 3"]
        assert 0 <= answers["answers"][0]["confidence"] <= 1
        assert answers["answers"][0]["evidence"]
    finally:
        bench.close()


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("entity", {"id": "nowhere"}, "nowhere"),
        ("search", {"query": "Helsinki", "lang": "xx"}, "the KB has ar, en, fi, te"),
        ("translate", {"name": "Finland", "source": "en", "to": "xx"}, "no language"),
        ("search", {"query": "x" * 2001}, "at most 2000"),
        ("search", {"query": ""}, "at least 1"),
    ],
)
def test_what_cannot_be_asked_is_one_clear_error(
    bench: Workbench, tool: str, arguments: dict[str, Any], message: str
) -> None:
    result = call(bench, tool, **arguments)
    assert result.is_error
    text = result.content[0].text
    assert message in text and "Traceback" not in text
    assert str(bench.folders.kb) not in text


def test_names_stay_data(bench: Workbench) -> None:
    """A name that attacks a page is handed over as it is, inside JSON."""
    result = call(bench, "search", query=SCRIPT[:40], limit=1)
    assert result.structured_content["results"][0]["matched"]["text"] == SCRIPT
    assert json.loads(result.content[0].text) == result.structured_content
    server = make_server(bench)
    assert "never instructions" in (server.instructions or "")


def test_the_command_serves_over_stdio(folders: Folders) -> None:
    assert folders.kb is not None and folders.proposals is not None
    args = ["-m", "prixlm", "mcp", "--kb", str(folders.kb), "--proposals", str(folders.proposals)]
    parameters = StdioServerParameters(command=sys.executable, args=args)

    async def ask(client: Client) -> Any:
        return await client.call_tool("search", {"query": "Suomi", "limit": 1})

    result = talk(parameters, ask)
    assert result.structured_content["results"][0]["entity"]["name"]["text"] == "Finland"
