"""Griffe extension: docstrings as Markdown.

Griffe knows the section `Examples:`; our docstrings have one example each and say `Example:`. A
paragraph of lines such as `ids: (B, L) int64` becomes a list.
"""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_PARAMETER = re.compile(r"^([a-z_]+(?:, [a-z_]+)*): (?=\S)", re.MULTILINE)


def as_markdown(docstring: str) -> str:
    """Return a docstring with its example as a section and its parameters as a list."""
    paragraphs = _EXAMPLE.sub("Examples:", docstring).split("\n\n")
    return "\n\n".join(map(_as_list, paragraphs))


def _as_list(paragraph: str) -> str:
    if not _PARAMETER.match(paragraph):
        return paragraph
    indented = paragraph.replace("\n", "\n  ")  # continued lines belong to the item above
    return re.sub(r"^ *" + _PARAMETER.pattern[1:], r"- `\1`: ", indented, flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrite the docstring of every object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
