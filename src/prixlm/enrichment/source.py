"""The source of the main job: what tells it from another one, and whether a job can work from it.

    identity = identify([Path("dump.json.gz")], None, None)     # noted down in work.json
    check_folder(folder, sources, identity, made)               # refuses work from another source
    check_languages(kb, ("et", "te"))

A source is one KB folder, or the files of a dump.
"""

import hashlib
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from prixlm.errors import PrixError
from prixlm.files import read_json
from prixlm.importers.plan import plan_import
from prixlm.kb.store import FORMAT as KB_FORMAT
from prixlm.kb.store import KB
from prixlm.proposals.work import STATE_FILE, read_state
from prixlm.remote import exists, is_remote, local_folder

logger = logging.getLogger(__name__)
_MANIFEST = "manifest.json"
_EDGE = 1 << 16
"""Bytes at the start and the end of a file that tell one dump from another."""


def is_kb(sources: Sequence[Path]) -> bool:
    """Tell whether the source is a KB folder: one folder with the manifest of a KB."""
    if len(sources) != 1:
        return False
    [folder] = sources
    if is_remote(folder):
        # Not fetched unless it may be one: a dump may have a hundred gigabytes.
        if not exists(folder / _MANIFEST):
            return False
        folder = local_folder(folder)
    try:
        values = read_json(folder / _MANIFEST)
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.get("format") == KB_FORMAT


def identify(
    sources: Sequence[Path], format: str | None, langs: Sequence[str] | Literal["all"] | None
) -> dict[str, Any]:
    """Return what tells a source from another one: not its path, which may change.

    format, langs: how a dump is imported, as in `JobConfig`.
    """
    if is_kb(sources):
        if format is not None or langs is not None:
            raise PrixError("--format and --langs are for dumps, and the source is a KB folder.")
        return {"kb": KB(sources[0]).fingerprint()}
    for source in sources:
        if (source / STATE_FILE).is_file():
            raise PrixError(f"{source} is a work folder. Name a KB in it, such as {source / 'kb'}.")
    plan = plan_import(sources, format=format)  # refuses what cannot be read, too
    files = [
        {"name": source.path.name, "size": source.path.stat().st_size, "edges": _hash(source.path)}
        for source in sorted(plan.sources, key=lambda source: source.path.name)
        if source.path.is_file()
    ]
    chosen = ["all"] if langs == "all" else langs and list(langs)
    return {"format": plan.format.name, "files": files, "langs": chosen}


def _hash(path: Path) -> str:
    """Return a hash of the start and the end of a file: a dump may have a hundred gigabytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(_EDGE))
        file.seek(max(0, path.stat().st_size - _EDGE))
        digest.update(file.read(_EDGE))
    return digest.hexdigest()


def _describe(identity: dict[str, Any]) -> str:
    if "kb" in identity:
        return f"the KB {identity['kb'][:8]}"
    names = ", ".join(str(file.get("name")) for file in identity["files"][:3])
    langs = f", languages {', '.join(identity['langs'])}" if identity["langs"] else ""
    return f"{identity['format']} {names}".strip() + langs


def check_folder(
    folder: Path, sources: Sequence[Path], identity: dict[str, Any], made: Collection[str]
) -> None:
    """Refuse a folder of another source, or one that holds anything but a job's work.

    made: names of the folders that a job makes in it.
    """
    for source in sources:
        if source.resolve() == folder.resolve():
            raise PrixError(f"{folder} is the source. Name another folder to work in.")
    if folder.exists() and not folder.is_dir():
        raise PrixError(f"{folder} is a file: name a folder to work in.")
    state = read_state(folder)
    # What a kill leaves before the first state is written.
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if state is None and names - {"lock", f"{STATE_FILE}.tmp"}:
        raise PrixError(f"{folder} exists and is not a work folder: name another one.")
    # A folder in which nothing was made yet, because the source could not be read, is free.
    if state is not None and state["source"] != identity and names.intersection(made):
        raise PrixError(
            f"{folder} was made from another source ({_describe(state['source'])}; now "
            f"{_describe(identity)}). Name another folder."
        )


def check_languages(kb: KB, into: Sequence[str]) -> None:
    """Refuse languages that the KB lacks; say what a KB of one language allows."""
    missing = sorted(set(into) - set(kb.languages))
    imported = kb.manifest.options.get("langs")  # None for all
    if imported is not None and set(missing) - set(imported):
        raise PrixError(
            f"{kb.folder} was imported without {', '.join(sorted(set(missing) - set(imported)))}. "
            "Import the source again, in another folder."
        )
    if missing:
        raise PrixError(
            f"the source has no entity with a name in {', '.join(missing)}; it has "
            f"{', '.join(kb.languages)}. Facts are proposed between named entities: choose one of "
            "these, or add names in the language to the source."
        )
    if len(kb.languages) == 1:
        logger.warning(
            "the source has one language: no fact can be carried over from another. What similar "
            "entities have is asked for; --effort standard answers more of it."
        )


def export_format(folder: Path | str) -> str:
    """Return the export format that the source of a work folder calls for."""
    source = (read_state(Path(folder)) or {}).get("source", {})
    return "quickstatements" if source.get("format") == "wikidata" else "nq"
