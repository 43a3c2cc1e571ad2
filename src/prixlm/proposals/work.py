"""The work folder of `prixlm enrich`: its state file, and the KB that its proposals are for.

    WORK/work.json      source, plan, what was made, which folder is the KB
    WORK/proposals/     see `tables`

`enrichment.job` writes it. Reading it needs no model library.
"""

from pathlib import Path
from typing import Any

from prixlm.config import checked
from prixlm.errors import PrixError
from prixlm.files import read_json
from prixlm.kb.store import KB

FORMAT = "prixlm-work"
STATE_FILE = "work.json"
_KINDS: dict[str, Any] = {
    "version": int,
    "source": dict[str, Any],
    "kb": str,
    "split": str,
    "made": list[str],
    "seconds": dict[str, float],
    "proposed": dict[str, Any] | None,
}
"""Kinds of the values of a state."""
_NOT_YET = ("kb", "split", "made", "seconds", "proposed")
"""Those that a job adds as it goes on."""
_OF_KB = {"kb": str}
_OF_DUMP = {"format": str, "files": list[dict[str, Any]], "langs": list[str] | None}
"""Kinds of what tells the source from another one."""


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return the state of a work folder; None if it is not one. Refuse a damaged state."""
    try:
        values = read_json(folder / STATE_FILE)
    except (OSError, ValueError):
        return None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        return None
    try:
        checked(values, _KINDS, optional=_NOT_YET)
        checked(values["source"], _OF_KB if "kb" in values["source"] else _OF_DUMP)
        checked((values.get("proposed") or {}).get("given") or {}, {})
        if values["version"] != 1:
            raise ValueError(f"version is {values['version']}, expected 1")
    except ValueError as error:
        raise PrixError(
            f"{folder / STATE_FILE} is damaged ({error}), or was written by another version of "
            "prixlm. Name another folder."
        ) from None
    return values


def work_kb(folder: Path | str) -> KB:
    """Return the KB that a finished work folder has proposals for."""
    state = read_state(Path(folder))
    if state is None or not isinstance(state.get("kb"), str):
        raise PrixError(f"{folder} is not a work folder of `prixlm enrich`: name its KB with --kb.")
    return KB(_home(folder) / state["kb"])


def _home(folder: Path | str) -> Path:
    """Return what the names in a state are relative to.

    Absolute, since `.` joined to `s3://...` would be a place in the network: the state of a folder
    of others may say anything.
    """
    return Path(folder).absolute()


def work_folders(work: Path) -> dict[str, Path]:
    """Return what a work folder's proposals come from: kb, split, models.

    Those that it does not have are left out; all are if this is not a work folder.
    """
    state = read_state(work)
    if state is None:
        return {}
    given = (state.get("proposed") or {}).get("given") or {}
    made = state.get("made") or []
    names = {
        "kb": state.get("kb"),
        "split": state.get("split"),
        "model": "model" if "model" in made else given.get("model"),
        # Questions are asked with the embedding of everything that is known.
        "graph": "graph-all" if "graph-all" in made else given.get("graph"),
        "encoder": "encoder" if "encoder" in made else given.get("encoder"),
        "reader": given.get("reader"),  # no step makes one
    }
    return {key: _home(work) / name for key, name in names.items() if isinstance(name, str)}
