"""What the overview page shows: figures, progress of the review, the heat map and the lineage."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prixlm.reports.console import language_name
from prixlm.service import markup
from prixlm.service.pages.facets import ReviewQuery
from prixlm.service.schemas import OverviewAnswer, OverviewCell

_VIEWS = (("stated", "Stated"), ("missing", "Missing"), ("proposed", "Proposed"))
_VIEW_TEXTS = {
    "stated": "The share of facts that a language states, out of all facts that any language "
    "states and that it has names for.",
    "missing": "How many facts other languages state that this language has names for and does "
    "not state.",
    "proposed": "How many facts are proposed.",
}
_LINEAGE_TITLES = {
    "kb": "Fingerprint of the KB",
    "into": "Proposed for",
    "min_confidence": "Confidence from",
}
_PROGRESS = ("accepted", "rejected", "disputed", "skipped")

View = Literal["stated", "missing", "proposed"]


@dataclass(frozen=True)
class HeatCell:
    """A cell of the heat map as it is shown."""

    step: int
    text: str
    label: str
    proposed: int
    address: str | None
    empty: bool


def overview_values(answer: OverviewAnswer, show: View, all: bool) -> dict[str, Any]:
    """Return the values of the template. show: what the colours mean; all: every relation."""
    order = _heat_order(answer)
    return {
        "overview": answer,
        "langs": [answer.langs[column] for column in order],
        "figures": _figures(answer),
        "progress": _progress(answer),
        "rows": _heat_rows(answer, show, order),
        "views": _VIEWS,
        "view_text": _VIEW_TEXTS[show],
        "show": show,
        "all": 1 if all else None,
        "scale": ("0 %", "100 %") if show == "stated" else ("none", "most"),
        "steps": markup.HEAT_STEPS,
        "trials": [(trial, markup.curve_dots(trial.curve)) for trial in answer.trials],
        "lineage": list(_lineage_lines(answer.lineage)),
    }


def _figures(overview: OverviewAnswer) -> list[tuple[str, int]]:
    """Return the counts of the KB with their titles."""
    of_proposals = ("proposals", *_PROGRESS, "open")
    counts = overview.counts.items()
    # Languages that share keys have no explicit links: a 0 would look like a fault.
    left_out = (*of_proposals, *(["links"] if not overview.counts.get("links") else []))
    return [(name.replace("_", " "), count) for name, count in counts if name not in left_out]


def _progress(overview: OverviewAnswer) -> dict[str, Any] | None:
    """Return how far the review is, as counts and as parts of a bar of 100."""
    counts = overview.counts
    total = counts.get("proposals", 0)
    if not total:
        return None
    parts, start = [], 0.0
    for key in _PROGRESS:
        width = 100 * counts.get(key, 0) / total
        if width:
            # A few marks among thousands should still be seen.
            width = max(width, 0.4)
            parts.append({"key": key, "start": round(start, 2), "width": round(width, 2)})
            start += width
    numbers = {key: counts.get(key, 0) for key in (*_PROGRESS, "open")}
    return {"total": total, "parts": parts, **numbers}


def _heat_order(overview: OverviewAnswer) -> list[int]:
    """Return the columns of the heat map in order: first the languages with proposals."""
    columns = range(len(overview.langs))
    return sorted(columns, key=lambda i: not any(row.cells[i].proposed for row in overview.rows))


def _heat_rows(overview: OverviewAnswer, show: View, order: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows of the heat map, coloured by what is to be shown."""
    cells = [cell for row in overview.rows for cell in row.cells]
    largest = max((getattr(cell, show) for cell in cells), default=0)
    rows = []
    for row in overview.rows:
        shown = []
        for column in order:
            lang, cell, address = overview.langs[column], row.cells[column], None
            if cell.proposed:
                place = ReviewQuery(table="facts", lang=lang, relation=row.relation.key)
                address = place.address()
            title = f"{markup.shorten(row.relation.name.text, 60)}, {language_name(lang)}"
            shown.append(_heat_cell(cell, show, largest, title, address))
        rows.append({"relation": row.relation, "cells": shown})
    return rows


def _heat_cell(
    cell: OverviewCell, show: View, largest: int, title: str, address: str | None
) -> HeatCell:
    statable = cell.stated + cell.missing
    share = cell.stated / statable if statable else 0.0
    if show == "stated":
        step, text = markup.share_step(share), markup.show_percent(share)
    else:
        number = getattr(cell, show)
        step = markup.count_step(number, largest)
        text = markup.show_short(number) if show == "missing" else ""
    numbers = ((cell.stated, "stated"), (cell.missing, "missing"), (cell.proposed, "proposed"))
    label = ", ".join(f"{markup.show_count(number)} {word}" for number, word in numbers)
    return HeatCell(
        step=step,
        text=text,
        label=f"{title}: {label}",
        proposed=cell.proposed,
        address=address,
        empty=not (statable or cell.proposed),
    )


def _lineage_lines(lineage: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a run was made of as lines of text."""
    for key, value in lineage.items():
        text = _plain_text(value)
        if text:
            yield _LINEAGE_TITLES.get(key) or key.replace("_", " ").capitalize(), text


def _plain_text(value: Any) -> str:
    """Return a value of a manifest for people: without quotes, brackets and what is not set."""
    if isinstance(value, Mapping):
        pairs = ((key.replace("_", " "), _plain_text(one)) for key, one in value.items())
        return "; ".join(f"{key} {text}" for key, text in pairs if text)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_plain_text(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
