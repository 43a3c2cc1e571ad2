"""What a command may overwrite: only what prixlm made, of the same kind, and only when asked.

    work = check_target(to, sources, overwrite, "prixlm-kb")     # a folder
    check_kind(to, "prixlm.json")                                # a folder that is resumed in place
    check_new_file(out)                                          # a file
    check_pages(data, pages, is_ours)                            # a table beside its pages

A person's files may lie anywhere that a command is told to write to. So every command asks here
before it works, and deletes nothing that it does not recognise. Whoever writes folders to an object
store stages them on a disk first, so a remote folder is refused here.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prixlm import remote
from prixlm.engine.workspace import partial_folder
from prixlm.errors import PrixError
from prixlm.files import LOCK, read_json

_MANIFEST = "manifest.json"
_KINDS = {
    "prixlm-kb": "a KB folder",
    "prixlm-proposals": "a proposals folder",
    "encoder.json": "an encoder folder",  # before the model: an encoder has its files too
    "prixlm.json": "a model folder",
    "graph.json": "a graph embedding",
    "report.json": "a report folder",
}
"""The kinds of folders that prixlm makes. A kind is the format in the folder's manifest.json or, of
folders without one, the file that is written last."""


def check_target(to: Path, sources: Iterable[Path], overwrite: bool, kind: str) -> Path:
    """Refuse to replace anything but a folder of the same kind; return the folder to work in.

    A folder is replaced only when asked, and only if it holds no source and no other result.
    kind: what will be written, a key of `_KINDS`.
    """
    remote.check_local(to)
    target = to.resolve()
    if to.is_symlink() or target.exists():
        if not overwrite:
            raise PrixError(f"{to} is already there. Pass --overwrite, or name another folder.")
        if to.is_symlink():
            raise PrixError(f"{to} is a link, so it is not replaced. Name the folder itself.")
        _check_found(to, kind_of(to), kind)
        _check_nested(to)
    for source in sources:
        if source.resolve().is_relative_to(target):
            raise PrixError(f"{to} holds the source {source}. Write to another folder.")
    work = partial_folder(target)
    _check_work_folder(work)
    return work


def check_new_file(out: Path) -> None:
    """Refuse to overwrite a file of results, or to work in a `.partial` folder that is not ours."""
    if remote.exists(out) if remote.is_remote(out) else out.exists():
        raise PrixError(f"{out} is already there. Move it, or name another file.")
    _check_work_folder(partial_folder(out))


def check_kind(to: Path, kind: str) -> None:
    """Refuse to write into a finished folder of another kind.

    For commands that resume in their own folder. kind: as in `check_target`.
    """
    remote.check_local(to)
    found = kind_of(to)
    if found is not None:
        _check_found(to, found, kind)


def check_pages(data: Path, pages: Iterable[Path], is_ours: Callable[[Any], bool]) -> None:
    """Refuse to overwrite a result's JSON file and pages unless prixlm wrote them.

    is_ours: tells it from the values of `data`; pages without it are the user's.
    """
    remote.check_local(data.parent)
    written = [path for path in (data, *pages) if path.exists()]
    try:
        if not written or is_ours(read_json(data)):
            return
    except (OSError, ValueError):
        pass
    raise PrixError(
        f"{written[-1]} was not written by prixlm, so it is not overwritten. Name another folder."
    )


def kind_of(folder: Path) -> str | None:
    """Return the kind of a folder, a key of `_KINDS`; None if prixlm did not make it."""
    try:
        values = read_json(folder / _MANIFEST)
    except (OSError, ValueError):
        values = None
    stated = values.get("format") if isinstance(values, dict) else None
    names = (kind for kind in _KINDS if kind == stated or (folder / kind).is_file())
    return next(names, None)


def _check_found(to: Path, found: str | None, kind: str) -> None:
    if found != kind:
        title = "a folder that prixlm did not make" if found is None else _KINDS[found]
        raise PrixError(
            f"{to}: found {title}, expected {_KINDS[kind]}. Only a folder of the same kind is "
            "replaced: name another folder."
        )


def _check_nested(to: Path) -> None:
    """Refuse a folder with a result inside: a review or a model would be deleted with it."""
    for name in (_MANIFEST, *_KINDS):
        for path in sorted(to.glob(f"*/**/{name}")):
            kind = kind_of(path.parent)
            if kind is not None:
                raise PrixError(
                    f"{to} holds {path.parent}, {_KINDS[kind]}, so it is not replaced. "
                    "Move that, or name another folder."
                )


def _check_work_folder(work: Path) -> None:
    # An empty folder is one that another command is making or removing at this moment.
    if work.exists() and not (work / LOCK).is_file() and _has_content(work):
        raise PrixError(
            f"{work} is in the way: prixlm works in this folder but did not make it. "
            "Move it, or name another target."
        )


def _has_content(folder: Path) -> bool:
    try:
        return any(path.name != LOCK for path in folder.iterdir())
    except FileNotFoundError:
        return False
    except NotADirectoryError:  # a file of others
        return True
