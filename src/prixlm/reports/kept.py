"""Results of a table that is being made, so that a run that was stopped resumes.

    kept = Kept(folder / "xel-parts.jsonl")
    value = kept.get(("Prix-LM (All)", "fi"), lambda: measure("fi"))

A result is one line of JSON, written when it is known: a language that is measured is not measured
again. The file is removed when the table is written.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prixlm.config import is_kind
from prixlm.files import append_line, parse_json, write_atomically


def _read(line: str) -> tuple[tuple[str, ...], Any] | None:
    """Return key and value of a line; None for half a line, which a kill leaves, or another one."""
    try:
        values = parse_json(line, "a line")
    except ValueError:
        return None
    if not is_kind(values, list[Any]) or len(values) != 2 or not is_kind(values[0], list[str]):
        return None
    return tuple(values[0]), values[1]


class Kept:
    """Values by key, in a file or, without one, not at all."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.values: dict[tuple[str, ...], Any] = {}
        if path is not None and path.exists():
            for line in path.read_text("utf-8", "replace").splitlines():
                kept = _read(line)
                if kept is not None:
                    self.values[kept[0]] = kept[1]
            # Without half a line at the end, which the next value would be appended to.
            rows = (json.dumps([key, value]) for key, value in self.values.items())
            write_atomically(path, "".join(f"{row}\n" for row in rows))

    def get(self, key: Sequence[str], compute: Callable[[], Any]) -> Any:
        """Return the value of a key, which is computed and written if it is not known.

        The value consists of JSON values; tuples become lists.
        """
        if self.path is None:
            return compute()
        if tuple(key) not in self.values:
            value = compute()
            self.values[tuple(key)] = json.loads(json.dumps(value))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, json.dumps([list(key), value]))
        return self.values[tuple(key)]

    def remove(self) -> None:
        """Delete the file."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
