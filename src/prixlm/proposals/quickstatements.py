"""QuickStatements commands that the tool reads as what was meant, whatever a name contains.

    Q33 P36 Q1757 S854 "https://example.org/a" S813 +2026-11-18T00:00:00Z/11 !S248 Q5 /* why */
    Q42 Let "Douglas Adams" /* why */

Cells are separated by tabs. `S…` cells are the parts of a reference, `!S…` begins a further one.
The text in `/* */` at the end becomes the summary of the edit.

A name in quotation marks has no escape. QuickStatements 3 pairs quotation marks over the whole
batch, so an odd one, or a final backslash, swallows the next command. It turns “ and ” into ",
takes the first `/*` of a line for the summary, and removes the label if the name is empty.
QuickStatements 2 cuts a batch of one line at `||`. Names that a version would misread are left out
rather than changed.
"""

import re
from collections.abc import Iterable, Sequence

from prixlm.errors import PrixError

_CONTROL = r"\x00-\x1f\x7f-\x9f"
# What the tool puts in place of a quoted text while it splits a batch into commands.
_PLACEHOLDER = "QSTS3_PLACEHOLDER"
_MISREAD = re.compile(rf'["“”\\{_CONTROL}]|/\*|\|\||{_PLACEHOLDER}')
# Without `*` a summary cannot end early; without direction marks it shows in the order written.
_NOT_IN_SUMMARY = re.compile(
    rf'["“”\\|*{_CONTROL}\u200e\u200f\u202a-\u202e\u2066-\u2069]|{_PLACEHOLDER}'
)
_MAX_LABEL = 250
"""Characters of a Wikidata label."""
_MAX_NAME, _MAX_SUMMARY = 60, 300
"""Characters of a name in a summary, and of a summary: Wikidata cuts it at 500, links included."""
_NEXT_PART = re.compile(r",(?=S[1-9][0-9]*:)")  # not a comma in a URL
_PART = re.compile(
    r"(?P<property>S[1-9][0-9]*):(?:"
    r"(?P<plain>Q[1-9][0-9]*|[+-][0-9]{4,}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z/[0-9]{1,2})"
    r"|(?P<url>https?://[^\s|]+)"
    r'|(?P<lang>[a-z-]+:)?"(?P<text>[^"]*\S[^"]*)")'
).fullmatch
_URL_PROPERTY = "S854"


def parse_reference(text: str) -> list[tuple[str, str]]:
    """Return the cells of each part of a reference, such as `S854:URL,S813:DATE`.

    A value is an item, a date with precision, a URL, or a text in quotation marks, with a language
    in front for a title: `S1476:en:"Title"`.
    """
    parts = []
    for part in _NEXT_PART.split(text):
        match = _PART(part)
        value = match and (match["url"] or match["text"])
        if (
            match is None
            or (value and _MISREAD.search(value))
            or (match["property"] == _URL_PROPERTY and not match["url"])
        ):
            raise PrixError(
                f"--reference: {part!r} is not a part of a reference. Expected S854:URL, "
                'S248:Q1, S813:+2026-11-18T00:00:00Z/11 or S304:"text", with a comma between the '
                'parts of one reference; write \\ " | and /* in a URL as %5C %22 %7C and /%2A.'
            )
        cell = match["plain"] or f'{match["lang"] or ""}"{value}"'
        parts.append((match["property"], cell))
    return parts


def reference_cells(references: Iterable[str]) -> list[str]:
    """Return the cells of all references: each one after the first begins with `!S…`."""
    cells: list[str] = []
    for reference in references:
        (first, value), *others = parse_reference(reference)
        cells += [f"!{first}" if cells else first, value]
        cells += [cell for part in others for cell in part]
    return cells


def label_cell(name: str) -> str | None:
    """Return a name in quotation marks, on one line; None if the tool would misread it."""
    text = " ".join(name.split())
    if not text or len(text) > _MAX_LABEL or _MISREAD.search(text):
        return None
    return f'"{text}"'


def shorten(name: str) -> str:
    """Return a name for a summary, cut if it is long."""
    return name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…"


def command(cells: Sequence[str], summary: Sequence[str]) -> str:
    """Return a line: cells, then the parts of the summary without what could end it."""
    text = " ".join(_NOT_IN_SUMMARY.sub(" ", ", ".join(summary))[:_MAX_SUMMARY].split())
    # A space and not a tab: the second version of the tool would count an empty cell.
    return "\t".join(cells) + f" /* {text} */\n"
