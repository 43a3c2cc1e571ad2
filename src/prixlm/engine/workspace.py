"""Folders of work that can be resumed after a kill, and folders of finished results as caches.

    with open_workspace(partial_folder(target), stamp) as work:
        part = work.make("part-0000001.parquet", write)
        publish(work.folder, target)

A stamp says what everything in a folder was made from. Work with another stamp is thrown away, and
a cache with another one is not used.
"""

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prixlm import remote
from prixlm.files import (
    LOCK,
    REPLACED,
    disk_errors,
    locked,
    read_json,
    refuse_link,
    remove_path,
    replacing,
    write_atomically,
)

STAMP = "stamp.json"
_PARTIAL = ".partial"
_RUNNING = "running"
_SIZES = "sizes.json"


@dataclass(frozen=True)
class Workspace:
    """A locked folder of finished parts, all made from the inputs that its stamp describes.

    The parts of a job towards a remote target are in the store, where any machine finds them; the
    folder then has copies.
    """

    folder: Path
    store: str | None = None  # URI of the parts; a hash of their inputs is in it

    def __str__(self) -> str:
        return self.store or str(self.folder)

    def finished(self) -> set[str]:
        """Return the names of all parts that are there."""
        if self.store is not None:
            return set(remote.list_names(self.store))
        return {path.name for path in self.folder.iterdir()}

    def fetch(self, part: str) -> Path:
        """Return the path of a finished part, after copying it from the store if it is there."""
        path = self.folder / part
        if self.store is not None and not path.exists():
            with replacing(path) as temporary:
                remote.fetch_file(f"{self.store}/{part}", temporary)
        return path

    def share(self, path: Path) -> Path:
        """Return where all machines find a file of this folder; `remote.local_copy` opens it."""
        if self.store is None:
            return path.resolve()
        shared = f"{self.store}/shared/{path.name}"
        if not remote.exists(shared):
            remote.upload(path, shared)
        return Path(shared)

    def make(self, name: str, write: Callable[[Path], object]) -> Path:
        """Return the part `name`, calling `write` with a temporary path if it is missing."""
        part = self.folder / name
        if not part.exists():
            with replacing(part) as temporary:
                write(temporary)
        return part

    def empty_folder(self, name: str) -> Path:
        """Return an empty folder `name`, for scratch files that are never resumed."""
        folder = self.folder / name
        remove_path(folder)
        folder.mkdir(parents=True)
        return folder

    def start_run(self) -> Path:
        """Return an empty folder for temporary files of this run, and move that of the last away.

        It is renamed before it is deleted: a worker that outlived its driver on another machine
        finds its temporary files gone, and can publish nothing.
        """
        self.end_run()
        running = self.folder / _RUNNING
        running.mkdir()
        return running

    def end_run(self) -> None:
        """Remove the folder of temporary files, if there is one."""
        _end_run(self.folder / _RUNNING)

    def remove(self) -> None:
        """Delete the workspace: its result is published, or can never be made."""
        if self.store is not None:
            remote.remove_folder(self.store)
        # The lock goes last: a folder with content and no lock is taken for one of others.
        for path in self.folder.iterdir():
            if path.name != LOCK:
                remove_path(path)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def open_workspace(
    folder: Path, stamp: Mapping[str, Any], target: Path | None = None, *, wait: bool = False
) -> Iterator[Workspace]:
    """Lock a folder of resumable work, and empty it if it was made from other inputs.

    It is also emptied if it has links, which we never make: parts are written by name, so a link
    that someone else put there would be written through.
    stamp: everything that the parts depend on, as JSON values.
    target: what is made; if it is remote, parts are kept beside it in the store.
    wait: for another process that works there, instead of an error.
    """
    refuse_link(folder)
    with disk_errors(folder), locked(folder, wait=wait):
        if read_stamp(folder) != json.loads(json.dumps(stamp)) or _has_links(folder):
            # The stamp goes first: a kill from here on leaves parts that nobody resumes.
            (folder / STAMP).unlink(missing_ok=True)
            _end_run(folder / _RUNNING)
            for path in folder.iterdir():
                if path.name != LOCK:
                    remove_path(path)
            write_atomically(folder / STAMP, json.dumps(stamp))
        store = None
        if target is not None and remote.is_remote(target):
            digest = hashlib.sha256(json.dumps(stamp, sort_keys=True).encode()).hexdigest()
            store = f"{remote.uri_of(target)}{_PARTIAL}/{digest[:24]}"
        yield Workspace(folder, store)


def _has_links(folder: Path) -> bool:
    return any(path.is_symlink() for path in folder.rglob("*"))


def _end_run(running: Path) -> None:
    """Delete the temporary files of a run so that none can be renamed from here on."""
    if running.exists():
        moved = running.with_name(f"{_RUNNING}.{uuid.uuid4().hex}")
        running.rename(moved)
        shutil.rmtree(moved, ignore_errors=True)


def partial_folder(target: Path) -> Path:
    """Return the folder in which the work towards `target` is done: `TARGET.partial`.

    The work towards a remote target is done in the cache of this machine.
    """
    if remote.is_remote(target):
        return remote.work_folder(target)
    return target.with_name(target.name + _PARTIAL)


def read_stamp(folder: Path) -> Any:
    """Return the stamp of a workspace, or of a cache made in one; None if it has none."""
    try:
        return read_json(folder / STAMP)
    except (OSError, ValueError):  # absent or unreadable: the caller makes the folder again
        return None


def seal(folder: Path) -> None:
    """Write down the sizes of all files of a finished cache, for `is_cached`."""
    sizes = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }
    write_atomically(folder / _SIZES, json.dumps(sizes))


def _is_whole(folder: Path) -> bool:
    """Tell whether the files of a sealed cache are there in full; others are believed."""
    try:
        sizes = read_json(folder / _SIZES)
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except FileNotFoundError:
        return not (folder / _SIZES).exists()
    except (OSError, ValueError, AttributeError):
        return False


def is_cached(folder: Path, stamp: Mapping[str, Any]) -> bool:
    """Tell whether a cache with this stamp exists in full, and mark it as used."""
    if read_stamp(folder) != json.loads(json.dumps(stamp)) or not _is_whole(folder):
        return False
    with contextlib.suppress(OSError):  # a KB may lie on a disk that cannot be written
        (folder / STAMP).touch()
    return True


def drop_oldest_caches(parent: Path, keep: int) -> None:
    """Remove all but the `keep` caches below `parent` that were used last."""
    stamps = [
        path
        for path in parent.glob(f"*/{STAMP}")
        if not path.parent.name.endswith((_PARTIAL, REPLACED))
    ]
    # `is_cached` touches the stamp, so its time is that of the last use.
    for stamp in sorted(stamps, key=lambda path: path.lstat().st_mtime)[:-keep]:
        shutil.rmtree(stamp.parent, ignore_errors=True)
