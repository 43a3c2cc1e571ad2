"""Commands of QuickStatements, read back by the rules of the tool."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prixlm import PrixError
from prixlm.proposals.quickstatements import (
    command,
    label_cell,
    parse_reference,
    reference_cells,
    shorten,
)

PLACEHOLDER = "___QSTS3_PLACEHOLDER___"
# Text rich in what the tool gives a meaning to.
HOSTILE = st.lists(
    st.one_of(
        st.sampled_from(
            ['"', '"""', "“", "”", "|", "||", "\t", "\n", "\r", "\\", "/*", "*/", "*", "/",
             "\u2028", "\u202e", "\x00", "\x85", " ", "Q1", "-STATEMENT", PLACEHOLDER]
        ),
        st.text(max_size=4),
    ),
    max_size=12,
).map("".join)  # fmt: skip


def read_batch(text: str) -> list[tuple[list[str], str | None]]:
    """Return cells and summary of each command, as QuickStatements 3 splits a batch.

    Quoted texts and summaries are set aside over the whole batch, `||` and newlines then end a
    command, `|` and tabs a cell. “ and ” are quotation marks. The first `/*` of a command begins
    its summary.
    """
    aside: list[str] = []

    def set_aside(match: re.Match[str]) -> str:
        aside.append(match[0])
        return PLACEHOLDER

    quoted = r'("(?:"")?)(?:\\.|[^\\])*?\1|/\*.*?\*/'
    split = re.sub(quoted, set_aside, text, flags=re.DOTALL).replace("||", "\n").replace("|", "\t")
    commands = []
    for line in split.split("\n"):
        while PLACEHOLDER in line:
            line = line.replace(PLACEHOLDER, aside.pop(0), 1)
        if line.strip():
            match = re.fullmatch(r"(.*?)\s*/\*\s*(.*?)\s*\*/\s*", line)
            cells, summary = (match[1], match[2]) if match else (line, None)
            as_read = [cell.replace("“", '"').replace("”", '"') for cell in cells.split("\t")]
            commands.append(([cell.strip() for cell in as_read if cell.strip()], summary))
    return commands


@given(HOSTILE, HOSTILE)
def test_no_name_breaks_out_of_its_cell_or_its_line(name: str, other: str) -> None:
    cell = label_cell(name)
    if cell is None:
        return
    cells, last = ["Q42", "Let", cell], ["Q1", "P2", "Q3"]
    batch = command(cells, ["prixlm", other]) + command(last, [name])
    assert [line for line, _ in read_batch(batch)] == [cells, last]
    assert cell == f'"{" ".join(name.split())}"', "a name is left out rather than changed"


@given(st.lists(HOSTILE, min_size=1, max_size=3))
def test_no_name_breaks_out_of_the_summary(parts: list[str]) -> None:
    cells = ["Q33", "P36", "Q1757", "S248", "Q5"]
    line = command(cells, ["prixlm", *parts])
    assert line.splitlines(keepends=True) == [line] and line.count("\t") == 4
    assert [read for read, _ in read_batch(line * 2)] == [cells, cells]
    assert line.count("/*") == line.count("*/") == 1 and line.endswith(" */\n")
    # The second version of the tool looks for spaces alone before the summary.
    match = re.fullmatch(r"(.*?) */\* *(.*?) *\*/ *\n", line)
    assert match is not None and match[1].split("\t") == cells and len(match[2]) <= 300


def test_names_that_the_tool_would_misread_are_left_out() -> None:
    assert label_cell(" Douglas\n Adams ") == '"Douglas Adams"'
    assert label_cell("AC|DC */") == '"AC|DC */"'
    for name in ('5" disc', "„Postimees“", "a\\", "AC/*DC", "", " \t", "x" * 251, "a\x00b"):
        assert label_cell(name) is None, name


def test_a_reference_has_several_parts() -> None:
    date = "+2026-11-18T00:00:00Z/11"
    assert parse_reference(f"S854:https://a.org/x,y?q=1,2,S813:{date}") == [
        ("S854", '"https://a.org/x,y?q=1,2"'),
        ("S813", date),
    ]
    assert parse_reference('S248:Q36578,S227:"118529579",S1476:en:"A, title"') == [
        ("S248", "Q36578"),
        ("S227", '"118529579"'),
        ("S1476", 'en:"A, title"'),
    ]


def test_each_further_reference_begins_with_an_exclamation_mark() -> None:
    references = [
        "S854:https://a.org,S813:+2026-11-18T00:00:00Z/11",
        'S248:Q5,S304:"7"',
        "S143:Q328",
    ]
    assert reference_cells(references) == [
        *("S854", '"https://a.org"', "S813", "+2026-11-18T00:00:00Z/11"),
        *("!S248", "Q5", "S304", '"7"'),
        *("!S143", "Q328"),
    ]
    assert reference_cells([]) == []


@pytest.mark.parametrize(
    "reference",
    [
        "",
        "https://example.org",
        "S854:example.org",
        "S854:Q5",
        "P854:https://example.org",
        "S248:Q5,",
        "S248:Q5,Q6",
        "S248:q5",
        "S813:2026-11-18",
        'S854:https://example.org/"a',
        "S854:https://example.org/a\tb",
        "S854:https://example.org/a|b",
        "S854:https://web.archive.org/web/*/x",
        "S854:https://example.org/\\",
        'S304:" "',
        'S304:"a\nb"',
        'S304:"“a”"',
    ],
)
def test_a_malformed_reference_is_refused(reference: str) -> None:
    with pytest.raises(PrixError, match=r"--reference: .* is not a part of a reference"):
        parse_reference(reference)


def test_a_long_name_is_cut_in_a_summary() -> None:
    assert shorten("a" * 60) == "a" * 60
    assert shorten("a" * 61) == "a" * 59 + "…"
