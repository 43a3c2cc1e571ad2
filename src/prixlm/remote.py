"""Folders and files of an object store: fetched once per machine, and written whole.

    KB("s3://bucket/kb")                                  # a copy in the cache of this machine
    with uploading("s3://bucket/answers.parquet") as temporary: ...
    with staged_folder("s3://bucket/results") as folder: ...      # uploaded when the block succeeds

A path with a scheme (s3, gs, abfs, hdfs, or `fsspec+NAME` for any file system of fsspec) is read
and written through Arrow's file systems; `AWS_ENDPOINT_URL` names an S3 server other than Amazon's.
KBs and models are mapped into memory, so they are copied to a cache on disk, `PRIXLM_CACHE` or
`~/.cache/prixlm`, under a hash of what the store lists: a folder that changes is fetched again. An
object gets its name when all of it has arrived. A broken connection is tried again for a minute.
"""

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import random
import re
import shutil
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
_PATIENCE = 60.0
"""Seconds of pauses in all after which a store that does not answer is given up."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 15.0
"""Seconds before the second try; each further pause is twice as long, up to the longest."""
_REFUSALS = re.compile(
    r"NO_SUCH_BUCKET|ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH"
    r"|INVALID_CLIENT_TOKEN_ID|MISSING_AUTHENTICATION_TOKEN|UNRECOGNIZED_CLIENT"
    r"|HTTP status 40[0134]|Bucket '.*' not found"
)
"""What Arrow says of requests that would be refused again."""
_REFUSED = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
_QUIET = 10.0
"""Seconds that a copy may take before a line says how far it is; then one a minute."""
_LONGEST_NAME = 255
"""Bytes of a file's name on the disks of Linux."""
_MOST_COPIED = 5 << 30
"""Bytes of the largest object that S3 copies in one request, as a move does."""
_SENDING = ".sending"
"""Ending of an object that is being uploaded; readers of a folder do not see it."""
_READ_FROM_END = (".parquet", ".zip")
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
    uri = uri_of(path).rstrip("/")
    store, root = _open(uri)
    files = _list(store, root, uri)
    return _copied(store, root, uri, files, _copy_of(uri, files))


def local_source(path: Path | str) -> Path:
    """Return a file or folder on this machine to read: `path` itself, or the copy of a remote one.

    For what prixlm did not write: dumps, questions, mentions.
    """
    if not is_remote(path):
        return Path(path)
    uri = uri_of(path).rstrip("/")
    store, name = _open(uri)
    info = _again(lambda: store.get_file_info(name), uri)
    if not info.is_file:
        return local_folder(path)
    files = [("", info.size, info.mtime_ns or 0)]
    return _copied(store, name, uri, files, _copy_of(uri, files))


def fetch_heads(path: Path | str, folder: Path, size: int) -> dict[Path, int]:
    """Copy the first `size` bytes of a remote file, or of each file of a folder; of some all.

    For a look at a dump. Returns the size that the store states, by the local path of each file. It
    is all of those that can be read from their end only (.parquet, .zip).
    """
    uri = uri_of(path).rstrip("/")
    store, root = _open(uri)
    info = _again(lambda: store.get_file_info(root), uri)
    files = [("", info.size, 0)] if info.is_file else _list(store, root, uri)
    home, sizes = folder / uri.rsplit("/", 1)[-1], {}
    for name, whole, _ in files:
        target = home / name if name else home
        wanted = whole if target.suffix.lower() in _READ_FROM_END else min(size, whole)
        _fetch(store, f"{root}/{name}" if name else root, wanted, target)
        sizes[target] = whole
    return sizes


def _copy_of(uri: str, files: list[tuple[str, int, int]]) -> Path:
    """Return where this machine's copy of a folder is, given what the store lists of it."""
    name = uri.rsplit("/", 1)[-1]
    _check_name(name, uri)
    digest = hashlib.sha256(json.dumps([uri, files]).encode()).hexdigest()[:24]
    return cache_folder() / "folders" / digest / name


def _copied(store: Any, root: str, uri: str, files: list[tuple[str, int, int]], copy: Path) -> Path:
    """Return the copy of a folder or file, after fetching it if this machine has none.

    Only one worker of a machine fetches, the others wait. What a broken fetch has received is kept
    beside the copy, in DIGEST.partial, and the next one resumes there.
    files: name below the root, size and time; the name of a single file is empty.
    """
    from prixlm.files import locked, take_name

    home = copy.parent.with_name(f"{copy.parent.name}.partial")
    if copy.exists():  # before any lock: a cache may be on a disk that is only read
        return copy
    with locked(home, wait=True):
        if not copy.exists():
            received = home / "content"
            progress = _Progress(uri, sum(size for _, size, _ in files))
            for name, size, changed in files:
                target = received / name if name else received
                # Without a time, what is there may be of another object of the same size.
                full_name = f"{root}/{name}" if name else root
                _fetch(store, full_name, size, target, progress, resume=bool(changed))
            copy.parent.mkdir(parents=True, exist_ok=True)
            take_name(received, copy)
        shutil.rmtree(home, ignore_errors=True)
    return copy


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
    uri = uri_of(path)
    digest = hashlib.sha256(uri.encode()).hexdigest()[:24]
    copy = cache_folder() / "files" / digest / path.name
    if not copy.exists():
        store, name = _open(uri)
        info = _info(store, name, uri)
        _copied(store, name, uri, [("", info.size, info.mtime_ns or 0)], copy)
    return copy


def scratch_folder() -> Path:
    """Return a folder of the cache for temporary files of this process.

    Those of processes that were killed are removed first: nobody holds their locks.
    """
    return _make_scratch(cache_folder() / "temporary", os.getpid())


@functools.cache
def _make_scratch(home: Path, _process: int) -> Path:
    from prixlm.files import locked

    folder = home / uuid.uuid4().hex
    lock = locked(folder, wait=True)
    lock.__enter__()
    atexit.register(_drop_scratch, folder, lock)
    for other in home.iterdir():
        if other != folder:
            with contextlib.suppress(PrixError, OSError), locked(other):
                shutil.rmtree(other, ignore_errors=True)
    return folder


def _drop_scratch(folder: Path, _lock: object) -> None:
    """Delete the folder at the end of the process, which has held the lock until then."""
    shutil.rmtree(folder, ignore_errors=True)


def list_names(path: Path | str) -> list[str]:
    """Return the names of the objects directly below a URI, sorted; none if it is not there."""
    import pyarrow.fs

    uri = uri_of(path)
    store, root = _open(uri)
    selector = pyarrow.fs.FileSelector(root, allow_not_found=True)
    found = _again(lambda: store.get_file_info(selector), uri)
    return sorted(info.base_name for info in found if info.is_file)


def remove_folder(path: Path | str) -> None:
    """Delete all objects below a URI; another command may be doing the same."""
    uri = uri_of(path)
    store, root = _open(uri)

    def remove() -> None:
        with contextlib.suppress(FileNotFoundError):
            store.delete_dir(root)

    _again(remove, uri)


def exists(path: Path | str) -> bool:
    """Tell whether a remote object is there."""
    uri = uri_of(path)
    store, name = _open(uri)

    def find() -> bool:
        # Of a file system with folders: the parent may be a file.
        with contextlib.suppress(NotADirectoryError):
            return bool(store.get_file_info(name).type.name != "NotFound")
        return False

    return _again(find, uri)


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
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
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
    from prixlm.files import locked, remove_path

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
        remove_path(copy)  # of a store without times, it may have the name of what was there before
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
        # Again: it asks Amazon for the region of a bucket, unless the environment states one.
        store, name = _again(lambda: pa.fs.FileSystem.from_uri(uri), uri)
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
    names = {name for name, _, _ in files}
    for name in names:
        _check_name(name, uri)
        above = next((other for other in _folders_of(name) if other in names), None)
        if above is not None:
            raise PrixError(
                f"{uri} has an object {above!r} and another one {name!r}: no disk can hold both a "
                "file and a folder of one name. Delete one, or name another folder."
            )
    return files


def _folders_of(name: str) -> Iterator[str]:
    """Yield the folders that a name is in: `a` and `a/b` of `a/b/c`."""
    end = name.find("/")
    while end >= 0:
        yield name[:end]
        end = name.find("/", end + 1)


def _check_name(name: str, uri: str) -> None:
    """Refuse an object whose name no disk can hold, or leads out of the folder it is copied to.

    Keys of a store are any text: `kb/../../.profile` and `kb//etc/passwd` are valid ones.
    """
    parts = name.split("/")
    longest = max(len(part.encode("utf-8", "surrogateescape")) for part in parts)
    if "\0" in name or longest > _LONGEST_NAME or any(part in ("", ".", "..") for part in parts):
        raise PrixError(
            f"{uri} has an object {name[:_LONGEST_NAME]!r}, which is not a name of a file in a "
            "folder. Nothing was fetched: prixlm did not write it. Delete it, or name another "
            "folder."
        )


def _info(store: Any, name: str, uri: str) -> Any:
    info = _again(lambda: store.get_file_info(name), uri)
    if not info.is_file:
        raise PrixError(f"{uri} is not there.")
    return info


class _Progress:
    """Says now and then how much of a long copy has arrived."""

    def __init__(self, uri: str, total: int) -> None:
        self._uri, self._total, self._done = uri, total, 0
        self._next = time.monotonic() + _QUIET

    def add(self, size: int) -> None:
        """Note that more bytes are there."""
        self._done += size
        if time.monotonic() >= self._next:
            done, total = self._done / 1e9, self._total / 1e9
            _log.warning("%s: %.2f of %.2f GB are on this machine", self._uri, done, total)
            self._next = time.monotonic() + 60


def _fetch(
    store: Any,
    name: str,
    size: int,
    target: Path,
    progress: _Progress | None = None,
    *,
    resume: bool = False,
) -> None:
    """Copy an object to a file; after a broken connection, from the byte that it broke at.

    resume: what is in the file already was received of the same object.
    """
    with _written_here(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("ab" if resume else "wb")
    with file:
        if file.tell() > size:
            file.truncate(0)
        if progress is not None:
            progress.add(file.tell())

        def receive() -> None:
            if file.tell() == size:
                return
            with store.open_input_file(name) as stream:
                stream.seek(file.tell())
                while block := stream.read(min(_BLOCK, size - file.tell())):
                    with _written_here(target):
                        file.write(block)
                    if progress is not None:
                        progress.add(len(block))

        _again(receive, name, file.tell)
        if file.tell() != size:
            raise PrixError(f"{name}: received {file.tell():,} bytes of {size:,}. Try again.")


@contextlib.contextmanager
def _written_here(target: Path) -> Iterator[None]:
    """Tell an error of this machine's disk from one of the store, which would be tried again."""
    try:
        yield
    except OSError as error:
        raise PrixError(
            f"cannot write {target.parent} ({error.strerror or error}). Copies of what is in a "
            "store go to the folder that PRIXLM_CACHE names."
        ) from None


def _again(
    action: Callable[[], Result], uri: str, position: Callable[[], int] = lambda: 0
) -> Result:
    """Call a function again if the connection breaks, with growing pauses, for about a minute.

    position: how far the action has come. A try that came further than the last one begins the
    minute again: a large file may break any number of times.
    """
    reached, waited, pause = position(), 0.0, _FIRST_PAUSE
    while True:
        try:
            return action()
        except OSError as error:
            reason = (str(error).splitlines() or [""])[0][:300]
            if position() > reached:
                reached, waited, pause = position(), 0.0, _FIRST_PAUSE
            is_refused = isinstance(error, _REFUSED) or _REFUSALS.search(reason) is not None
            if is_refused or waited >= _PATIENCE:
                raise PrixError(f"{uri} cannot be read or written ({reason}).") from None
            # Workers lose a store at the same moment, and must not all come back at the same one.
            # Not a choice that a result depends on, so without a seed.
            seconds = pause * random.SystemRandom().uniform(0.5, 1.5)
            _log.warning("%s: %s; trying again in %.1f s", uri, reason, seconds)
            time.sleep(seconds)
            waited += seconds
            pause = min(2 * pause, _LONGEST_PAUSE)
