"""How the pages show names and figures: safe text, short numbers, and the geometry of a chart.

Names come from a KB, so they are untrusted text of any length and script. `clean` makes a name
harmless in itself, Jinja's autoescape makes it harmless in HTML, and `<bdi dir="auto">` keeps its
direction from its surroundings.
"""

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from babel import Locale, UnknownLocaleError
from markupsafe import Markup, escape

from prixlm.service.schemas import EntityRef, Name, RelationRef, ReliabilityPoint
from prixlm.untrusted import ESCAPED

MAX_SHOWN = 240
"""Characters of a name in a list; its own page shows all of them."""
HEAT_STEPS = 9
"""Classes of colour in the heat map, above the empty one."""

_UNSAFE = re.compile(ESCAPED)
_SPACES = re.compile("[\t\n\x0b\x0c\r\x85\u2028\u2029]+")


def clean(text: str) -> str:
    """Return text on one line; control characters and direction overrides become U+FFFD."""
    # A soft hyphen only says where a word may be divided: names have some.
    return _UNSAFE.sub("\ufffd", _SPACES.sub(" ", text.replace("\u00ad", "")))


def shorten(text: str, length: int = MAX_SHOWN) -> str:
    """Return clean text of at most `length` characters."""
    text = clean(text)
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def as_sentence(text: str) -> str:
    """Return an error with a capital, unless it begins with the name of a parameter."""
    return text[:1].upper() + text[1:] if re.match("[a-z]+ ", text) else text


def show_name(named: Name | EntityRef | RelationRef, length: int = MAX_SHOWN) -> Markup:
    """Return a name as HTML that tells its language and keeps its direction to itself."""
    name = named if isinstance(named, Name) else named.name
    # An entity without a name is shown by its id, which is better than an empty link.
    text = name.text or (named.id if isinstance(named, EntityRef) else "(no name)")
    template = Markup('<bdi lang="{}" dir="auto">{}</bdi>')
    return template.format(escape(name.lang), shorten(text, length))


@functools.cache
def direction(lang: str) -> str:
    """Return `rtl` for a language that is written from right to left, else `ltr`."""
    try:
        return str(Locale.parse(lang.replace("-", "_")).text_direction)
    except (UnknownLocaleError, ValueError):
        return "ltr"


def show_count(number: int) -> str:
    """Return a number with its thousands set apart: 40,404."""
    return f"{number:,}"


def show_short(number: int) -> str:
    """Return a number in at most five characters: 940, 1.2k, 40k, 3.1M."""
    if number < 1_000:
        return str(number)
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        scaled = number / size
        if scaled < 9.95:
            return f"{scaled:.1f}{unit}"
        if scaled < 999.5:
            return f"{scaled:.0f}{unit}"
    return f"{number:.0e}"


def show_percent(share: float | None) -> str:
    """Return a share in percent; near 0 and 1 with a decimal, so that no doubt is rounded away."""
    if share is None:
        return "–"
    percent = 100 * share
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f} %" if 99 <= percent < 100 or 0 < percent < 1 else f"{percent:.0f} %"


def share_step(share: float) -> int:
    """Return the colour step of a share: 0 for none, else 1 to HEAT_STEPS."""
    return 0 if share <= 0 else max(1, min(HEAT_STEPS, math.ceil(share * HEAT_STEPS)))


def count_step(number: int, largest: int) -> int:
    """Return the colour step of a count on a logarithmic scale up to the largest one."""
    return share_step(math.log1p(number) / math.log1p(largest)) if number else 0


@dataclass(frozen=True)
class Dot:
    """A point of the reliability curve, in the units of its SVG (100 by 100, y down)."""

    x: float
    y: float
    radius: float
    title: str


def curve_dots(curve: Sequence[ReliabilityPoint]) -> list[Dot]:
    """Return where the points of a reliability curve lie; their area tells the count."""
    largest = max((point.count for point in curve), default=1)
    return [
        Dot(
            x=round(100 * point.confidence, 2),
            y=round(100 - 100 * point.right, 2),
            radius=round(1.2 + 2.2 * math.sqrt(point.count / max(largest, 1)), 2),
            title=f"confidence {show_percent(point.confidence)}: {show_percent(point.right)} of "
            f"{show_count(point.count)} are right",
        )
        for point in sorted(curve, key=lambda point: point.confidence)
    ]


def key_tail(key: str) -> str:
    """Return the part of an address that tells entities apart; other keys as they are."""
    scheme, _, rest = key.partition("://")
    tail = rest.rstrip("/").rpartition("/")[2] if scheme in ("http", "https") else key
    return shorten(unquote(tail) or key, 48)
