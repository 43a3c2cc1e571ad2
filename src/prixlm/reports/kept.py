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

from prixlm.files import append_line, write_atomically


class Kept:
    """Values by key, in a file or, without one, not at all."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.values: dict[tuple[str, ...], Any] = {}
        if path is not None and path.exists():
            lines = path.read_text("utf-8").splitlines()
            for line in lines:
                try:
                    key, value = json.loads(line)
                except ValueError:  # half a line: the run was killed while writing it
                    continue
                self.values[tuple(key)] = value
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
