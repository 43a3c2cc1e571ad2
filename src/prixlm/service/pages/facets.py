"""The facets of the review page: each value is a link that adds it to the filter, or removes it.

A `ReviewQuery` is the address of a place in the queue: `query.address(lang="fi")` is the same
queue in one language.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from pydantic import ConfigDict, Field

from prixlm.reports.console import language_name
from prixlm.service import markup
from prixlm.service.schemas import FacetsAnswer, FacetValue, Filter, Order

_FACETS = (
    ("table", "Kind of proposal", "tables"),
    ("lang", "Language", "langs"),
    ("confidence", "Confidence, expected right", "confidence"),
    ("relation", "Relation", "relations"),
    ("kind", "Why it is proposed", "kinds"),
    ("state", "State", "states"),
)
_NUM_OPTIONS = 8
"""Options of a facet that are shown before `12 more`."""


class ReviewQuery(Filter):
    """A filter, an order and a proposal: the address of a place in the queue."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    order: Order = "certain"
    id: str | None = Field(default=None, max_length=40)
    seed: int = Field(default=0, ge=0, le=2**31)

    @property
    def filter(self) -> Filter:
        """The filter alone."""
        return Filter(**{name: getattr(self, name) for name in Filter.model_fields})

    def address(self, **changes: Any) -> str:
        """Return the address of the queue with some values changed; defaults are left out."""
        values = self.model_dump(exclude_defaults=True, exclude={"id", "seed"}) | changes
        values = {key: value for key, value in values.items() if value is not None}
        return "/review" + (f"?{urlencode(values)}" if values else "")


@dataclass(frozen=True)
class Option:
    """One value of a facet."""

    title: str
    count: int
    expected: float | None
    address: str
    is_chosen: bool
    is_removable: bool  # chosen, and not the default


@dataclass(frozen=True)
class FacetGroup:
    """A facet with its values, and how many of them are shown at first."""

    key: str
    title: str
    options: list[Option]
    visible: int
    is_open: bool


def facet_groups(facets: FacetsAnswer, query: ReviewQuery) -> list[FacetGroup]:
    """Return the facets as links that add their value to the filter, or remove it."""
    groups = []
    for key, title, name in _FACETS:
        values: list[FacetValue] = getattr(facets, name)
        chosen = _chosen(key, query)
        if key == "state":
            everything = sum(value.count for value in values)
            values = [*values, FacetValue(value="all", title="All", count=everything)]
        # What was chosen stays in sight, also when nothing is left of it.
        if chosen and all(value.value != chosen for value in values):
            values = [_empty_value(key, chosen), *values]
        # A facet with one value cannot narrow the queue.
        if len(values) < 2 and not chosen:
            continue
        options = [_option(key, value, chosen, query) for value in values]
        visible = len(options) if len(options) <= _NUM_OPTIONS + 2 else _NUM_OPTIONS
        is_open = any(option.is_chosen for option in options[visible:])
        groups.append(FacetGroup(key, title, options, visible, is_open))
    return groups


def _chosen(key: str, query: ReviewQuery) -> str | None:
    """Return the value of a facet that the filter has."""
    if key != "confidence":
        value = getattr(query, key)
        return None if value is None else str(value)
    low, high = query.min_confidence, query.max_confidence
    return None if (low, high) == (0.0, 1.0) else f"{low:g}-{high:g}"


def _empty_value(key: str, value: str) -> FacetValue:
    """Return a chosen value that none of the proposals has."""
    title = value
    if key == "lang":
        title = language_name(value)
    elif key == "relation":
        title = markup.key_tail(value)
    elif key == "confidence":
        title = " to ".join(f"{100 * float(end):g}" for end in value.split("-")) + " %"
    elif key in ("state", "table"):
        title = value.capitalize()
    return FacetValue(value=value, title=title, count=0)


def _option(key: str, value: FacetValue, chosen: str | None, query: ReviewQuery) -> Option:
    is_chosen = value.value == chosen
    if key == "confidence":
        low, high = (None, None) if is_chosen else map(float, value.value.split("-"))
        changes: dict[str, Any] = {"min_confidence": low, "max_confidence": high}
    else:
        changes = {key: None if is_chosen else value.value}
    is_default = key == "state" and value.value == "open"
    return Option(
        title=value.title,
        count=value.count,
        expected=value.expected_precision if key == "confidence" else None,
        address=query.address(**changes),
        is_chosen=is_chosen,
        is_removable=is_chosen and not is_default,
    )
