"""Folders and files of an object store: fetched once per machine, and written whole.

    KB("s3://bucket/kb")                                  # a copy in the cache of this machine
    with uploading("s3://bucket/answers.parquet") as temporary: ...
    with staged_folder("s3://bucket/results") as folder: ...      # uploaded when the block succeeds

A path with a scheme (s3, gs, abfs, hdfs, or `fsspec+NAME` for any file system of fsspec) is read
and written through Arrow's file systems; `AWS_ENDPOINT_URL` names an S3 server other than Amazon's.
KBs and models are mapped into memory, so they are copied to a cache on disk, `PRIXLM_CACHE` or
`~/.cache/prixlm`, under a hash of what the store lists: a folder that changes is fetched again. An
object gets its name when all of it has arrived. A broken connection is tried again.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prixlm.errors import PrixError

_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]+):(/+)")
_WITHOUT_HOST = ("fsspec+file", "fsspec+local")
_BLOCK = 8 << 20
_TRIES = 5
_FIRST_PAUSE = 0.2
"""Seconds before the second try; each further pause is twice as long."""
_MOST_COPIED = 5 << 30
"""Bytes of the largest object that S3 copies in one request, as a move does."""
_SENDING = ".sending"
"""Ending of an object that is being uploaded; readers of a folder do not see it."""
_LAST = ("manifest.json", "work.json", "table.json", "prixlm.json")
"""Files that make a folder what it is: uploaded last, and removed first when it is replaced."""
UPLOADING = "uploading.txt"
"""Object of a folder that is being uploaded: a command that finds it may replace what is there."""
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


def is_remote(path: Path | str) -> bool:
    """Tell whether a path names an object store. `Path` makes `s3:/` of `s3://`."""
    return _SCHEME.match(str(path)) is not None


def uri_of(path: Path | str) -> str:
    """Return the URI of a remote path.

    `Path` makes one slash of two and of three. So a file system of this machine always has three,
    and any other scheme two, unless a text has three: `hdfs:///x` is the default cluster's.
    """

    def restore(match: re.Match[str]) -> str:
        scheme, slashes = match.groups()
        return f"{scheme}:{'///' if scheme in _WITHOUT_HOST or slashes == '///' else '//'}"

    return _SCHEME.sub(restore, str(path))


def check_local(path: Path | str) -> None:
    """Refuse a remote address where a command writes to this machine only."""
    if is_remote(path):
        raise PrixError(
            f"{uri_of(path)}: this is written to a disk only. Name a local path, and copy it to "
            "the store when it is finished."
        )


def absolute(path: Path | str) -> Path:
    """Return a path that another process finds too; a remote one is as it is."""
    return Path(path) if is_remote(path) else Path(path).resolve()


def cache_folder() -> Path:
    """Return the folder of this machine's copies."""
    chosen = os.environ.get("PRIXLM_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "prixlm"


def local_folder(path: Path | str) -> Path:
    """Return a folder on this machine: `path` itself, or the copy of a remote folder."""
    if not is_remote(path):
        return Path(path)
    from prixlm.files import locked, whole_folder

    uri = uri_of(path).rstrip("/")
    store, root = _open(uri)
    files = _list(store, root, uri)
    copy = _copy_of(uri, files)
    if copy.is_dir():
        return copy
    # The lock is that of the parent: only one worker of a machine fetches, the others wait.
    with locked(copy.parent, wait=True):
        if not copy.is_dir():
            with whole_folder(copy) as temporary:
                for name, size, _ in files:
                    _fetch(store, f"{root}/{name}", size, temporary / name)
    return copy


def local_source(path: Path | str) -> Path:
    """Return a file or folder on this machine to read: `path` itself, or the copy of a remote one.

    For what prixlm did not write: dumps, questions, mentions.
    """
    if not is_remote(path):
        return Path(path)
    from prixlm.files import locked, whole_folder

    uri = uri_of(path).rstrip("/")
    store, name = _open(uri)
    info = _again(lambda: store.get_file_info(name), uri)
    if not info.is_file:
        return local_folder(path)
    copy = _copy_of(uri, [("", info.size, info.mtime_ns or 0)])
    _check_name(copy.name, uri)
    with locked(copy.parent.parent, wait=True):
        if not copy.parent.is_dir():
            with whole_folder(copy.parent) as temporary:
                _fetch(store, name, info.size, temporary / copy.name)
    return copy


def _copy_of(uri: str, files: list[tuple[str, int, int]]) -> Path:
    """Return where this machine's copy of a folder is, given what the store lists of it."""
    digest = hashlib.sha256(json.dumps([uri, files]).encode()).hexdigest()[:24]
    return cache_folder() / "folders" / digest / uri.rsplit("/", 1)[-1]


def fetch_file(path: Path | str, target: Path) -> None:
    """Copy a remote file to a local path."""
    uri = uri_of(path)
    store, name = _open(uri)
    _fetch(store, name, _info(store, name, uri).size, target)


def local_copy(path: Path) -> Path:
    """Return a file on this machine: `path` itself, or the copy of a remote file in the cache.

    For files that never change under one name: a copy that is there is not compared.
    """
    if not is_remote(path):
        return path
    digest = hashlib.sha256(uri_of(path).encode()).hexdigest()[:24]
    folder = cache_folder() / "files" / digest
    if not folder.is_dir():
        from prixlm.files import whole_folder

        with whole_folder(folder) as temporary:
            fetch_file(path, temporary / path.name)
    return folder / path.name


def list_names(path: Path | str) -> list[str]:
    """Return the names of the objects directly below a URI, sorted; none if it is not there."""
    import pyarrow.fs

    uri = uri_of(path)
    store, root = _open(uri)
    selector = pyarrow.fs.FileSelector(root, allow_not_found=True)
    found = _again(lambda: store.get_file_info(selector), uri)
    return sorted(info.base_name for info in found if info.is_file)


def remove_folder(path: Path | str) -> None:
    """Delete all objects below a URI."""
    uri = uri_of(path)
    store, root = _open(uri)
    with contextlib.suppress(FileNotFoundError):
        _again(lambda: store.delete_dir(root), uri)


def exists(path: Path | str) -> bool:
    """Tell whether a remote object is there."""
    uri = uri_of(path)
    store, name = _open(uri)
    info = _again(lambda: store.get_file_info(name), uri)
    return bool(info.type.name != "NotFound")


def upload(source: Path, path: Path | str) -> None:
    """Write a file to an object store; the object appears when it is whole."""
    uri = uri_of(path)
    store, name = _open(uri)
    size = source.stat().st_size
    # Arrow cannot abort an upload: a stream that is closed by an error makes an object of what it
    # has sent. So it is sent under another name, unless it is too large for the store to copy.
    sent = f"{name}.{uuid.uuid4().hex}{_SENDING}" if size <= _MOST_COPIED else name

    def send() -> None:
        with source.open("rb") as file, _create(store, sent) as stream:
            while block := file.read(_BLOCK):
                stream.write(block)

    try:
        _again(send, uri)
        found = _info(store, sent, uri).size
        if found != size:
            raise PrixError(f"{uri} has {found:,} bytes, expected {size:,}: try again.")
        if sent != name:
            _again(partial(_move, store, sent, name), uri)
    except BaseException:
        with contextlib.suppress(OSError):
            store.delete_file(sent)
        raise


def _create(store: Any, name: str) -> Any:
    """Open a new object for writing, in a new folder if the file system has folders."""
    try:
        return store.open_output_stream(name)
    except FileNotFoundError:
        store.create_dir(name.rpartition("/")[0])
        return store.open_output_stream(name)


def _move(store: Any, sent: str, name: str) -> None:
    """Give an object its name; a try whose answer was lost may have done so."""
    try:
        store.move(sent, name)
    except FileNotFoundError:
        if not store.get_file_info(name).is_file:
            raise


def mark(path: Path | str) -> None:
    """Write an empty object."""
    uri = uri_of(path)
    store, name = _open(uri)
    _again(lambda: _create(store, name).close(), uri)


@contextlib.contextmanager
def uploading(path: Path | str) -> Iterator[Path]:
    """Yield a temporary local path whose file is uploaded when the block succeeds."""
    uploads = cache_folder() / "uploads"
    uploads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=uploads) as folder:
        temporary = Path(folder) / Path(uri_of(path)).name
        yield temporary
        upload(temporary, path)


@contextlib.contextmanager
def staged_folder(path: Path | str, key: Any = None, *, fetch: bool = True) -> Iterator[Path]:
    """Yield the folder to write: `path` itself, or a local one that is uploaded afterwards.

    If the block or the upload fails, the local folder is kept, and the next call with the same
    path and key resumes in it.
    key: JSON values that tell one result from another.
    fetch: begin with what the store has, unless there is a local folder.
    """
    if not is_remote(path):
        yield Path(path)
        return
    from prixlm.files import locked

    uri = uri_of(path).rstrip("/")
    store, root = _open(uri)
    if "/" not in root:
        raise PrixError(f"{uri} is a whole bucket: name a folder in it.")
    digest = hashlib.sha256(json.dumps([uri, key]).encode()).hexdigest()[:24]
    home = cache_folder() / "staged" / digest
    folder = home / uri.rsplit("/", 1)[-1]
    with locked(home):
        if fetch and not folder.exists():
            fetch_folder(uri, folder)
        yield folder
        upload_folder(folder, uri)
        copy = _copy_of(uri, _find(store, root, uri))  # so that it need not be fetched to be read
        copy.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(copy)


def fetch_folder(path: Path | str, folder: Path) -> None:
    """Copy all objects below a URI to a new local folder; nothing if there are none."""
    from prixlm.files import whole_folder

    uri = uri_of(path).rstrip("/")
    store, root = _open(uri)
    files = _find(store, root, uri)
    if files:
        with whole_folder(folder) as temporary:
            for name, size, _ in files:
                _fetch(store, f"{root}/{name}", size, temporary / name)


def upload_folder(folder: Path, path: Path | str) -> None:
    """Replace what is below a URI by a local folder.

    The file that says what the folder is comes last and goes first, so that no reader takes a half
    of it for the whole.
    """
    uri = uri_of(path).rstrip("/")
    paths = [found for found in sorted(folder.rglob("*")) if not _is_lock(found.name)]
    for found in paths:
        if found.is_symlink():  # what it leads to would be published
            raise PrixError(
                f"{found} is a link, so {uri} was not written: put the file itself there, or "
                "remove the link."
            )
    store, root = _open(uri)
    names = [found.relative_to(folder).as_posix() for found in paths if found.is_file()]
    # Of two files that tell the kind of a folder, the outer one is the last.
    names.sort(key=lambda name: (name.rsplit("/", 1)[-1] in _LAST, -name.count("/"), name))
    there = {name for name, _, _ in _find(store, root, uri)} - {UPLOADING}
    with tempfile.NamedTemporaryFile("w") as marker:
        marker.write("prixlm is uploading this folder, or was stopped while it did.\n")
        marker.flush()
        upload(Path(marker.name), f"{uri}/{UPLOADING}")
    for name in [name for name in reversed(names) if name in there] + sorted(there - set(names)):
        if name.rsplit("/", 1)[-1] in _LAST or name not in names:
            _again(partial(store.delete_file, f"{root}/{name}"), uri)
    for name in names:
        upload(folder / name, f"{uri}/{name}")
    _again(partial(store.delete_file, f"{root}/{UPLOADING}"), uri)


def _is_lock(name: str) -> bool:
    return name == "lock" or name.endswith(".lock")


def work_folder(path: Path | str) -> Path:
    """Return the local folder in which the work towards a remote path is done."""
    digest = hashlib.sha256(uri_of(path).encode()).hexdigest()[:24]
    return cache_folder() / "work" / f"{digest}.partial"


def _open(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, and the path in it."""
    import pyarrow as pa
    import pyarrow.fs

    try:
        store, name = pa.fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ImportError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise PrixError(f"{uri} cannot be opened ({reason}): expected s3://BUCKET/NAME.") from None
    return store, name.rstrip("/")


def _list(store: Any, root: str, uri: str) -> list[tuple[str, int, int]]:
    """Return name, size and time of all files of a folder, sorted; refuse one without any."""
    files = _find(store, root, uri)
    if not files:
        raise PrixError(f"{uri} is empty or not there.")
    return files


def _find(store: Any, root: str, uri: str) -> list[tuple[str, int, int]]:
    """Return name, size and time of all files below a path, sorted; refuse odd names.

    Whoever copies what is listed joins these names to a folder, so they are checked here.
    """
    import pyarrow.fs

    selector = pyarrow.fs.FileSelector(root, recursive=True, allow_not_found=True)
    found = _again(lambda: store.get_file_info(selector), uri)
    files = sorted(
        (info.path[len(root) + 1 :], info.size, info.mtime_ns or 0)
        for info in found
        if info.is_file and not _is_lock(info.base_name) and not info.path.endswith(_SENDING)
    )
    for name, _, _ in files:
        _check_name(name, uri)
    return files


def _check_name(name: str, uri: str) -> None:
    """Refuse an object whose name leads out of the folder that it is copied to.

    Keys of a store are any text: `kb/../../.profile` and `kb//etc/passwd` are valid ones.
    """
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise PrixError(
            f"{uri} has an object {name!r}, which is not a name of a file in a folder. Nothing was "
            "fetched: prixlm did not write it. Delete it, or name another folder."
        )


def _info(store: Any, name: str, uri: str) -> Any:
    info = _again(lambda: store.get_file_info(name), uri)
    if not info.is_file:
        raise PrixError(f"{uri} is not there.")
    return info


def _fetch(store: Any, name: str, size: int, target: Path) -> None:
    """Copy an object to a file; after a broken connection, from the byte that it broke at."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:

        def receive() -> None:
            with store.open_input_file(name) as stream:
                stream.seek(file.tell())
                while block := stream.read(min(_BLOCK, size - file.tell())):
                    file.write(block)

        _again(receive, name)
        if file.tell() != size:
            raise PrixError(f"{name}: received {file.tell():,} bytes of {size:,}. Try again.")


def _again(action: Callable[[], Result], uri: str) -> Result:
    """Call a function again if the connection breaks; a few times, with growing pauses."""
    pause = _FIRST_PAUSE
    for attempt in range(1, _TRIES + 1):
        try:
            return action()
        except OSError as error:
            reason = (str(error).splitlines() or [""])[0][:300]
            if isinstance(error, FileNotFoundError | PermissionError) or attempt == _TRIES:
                raise PrixError(f"{uri} cannot be read or written ({reason}).") from None
            _log.warning("%s: %s; try %d of %d", uri, reason, attempt + 1, _TRIES)
            time.sleep(pause)
            pause *= 2
    raise AssertionError("unreachable")
