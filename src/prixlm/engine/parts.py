"""Where finished parts are: in a folder that all workers see, or in an object store.

Both keep the two promises that `jobs` is built on. A part has its name only when it is whole. And a
try is noted before it starts, so that one that ends its process counts too.
"""

import contextlib
import platform
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prixlm import remote
from prixlm.errors import PrixError
from prixlm.files import disk_errors, take_name

_TOKEN = "driver"
_BEGUN = "begun"
"""Name of the mark that a worker has received its task."""
_ROOM = 1 << 20
"""Bytes that a folder of parts must have room for."""


class PartsUnusable(PrixError):
    """No part can be written at all, whatever the shard: the folder is gone, or its disk full."""


_MAX_PARTS = 1 << 14
"""Parts of a job; more would take long to list, and to join."""


def shard_size(total: int, usual: int) -> int:
    """Return how many of `total` items a shard has: `usual`, or more if it were too many shards.

    It depends on the work alone, so that the bytes of parts do not depend on who makes them.
    """
    return max(usual, -(-total // _MAX_PARTS))


class Parts(Protocol):
    """What a worker knows about the place of the parts. Picklable.

    What keeps all parts from being written is `PartsUnusable`; any other error is that of one try.
    """

    def is_seen(self) -> bool:
        """Whether this machine sees what the driver has written there."""

    def has(self, part: str) -> bool:
        """Whether a part is there, whole."""

    def note_try(self, part: str) -> int:
        """Note that a part is tried, and return how often it was before."""

    def temporary(self, part: str) -> Path:
        """Return a new local path to write a part to."""

    def publish(self, temporary: Path, part: str) -> None:
        """Give a whole part its name."""

    def check(self) -> None:
        """Raise `PartsUnusable` if no part can be written; called after a try that has failed."""

    def note_begun(self) -> None:
        """Note that a worker has received its task."""

    def is_begun(self) -> bool:
        """Whether any worker has received its task."""


@dataclass(frozen=True)
class FolderParts:
    """Parts in a folder; temporary files of a run are in a folder of its own beside them."""

    folder: Path
    running: Path
    token: str

    @classmethod
    def start(cls, folder: Path, running: Path) -> "FolderParts":
        """Begin a run in the driver. running: an empty folder."""
        token = uuid.uuid4().hex
        (running / token).mkdir()
        (running / token / _TOKEN).write_text(token, "utf-8")
        return cls(folder.resolve(), (running / token).resolve(), token)

    def __str__(self) -> str:
        return str(self.folder)

    def is_seen(self) -> bool:
        """Whether this machine sees what the driver has written there."""
        try:
            return (self.running / _TOKEN).read_text("utf-8") == self.token
        except OSError:
            return False

    def has(self, part: str) -> bool:
        """Whether a part is there, whole."""
        return (self.folder / part).exists()

    def note_try(self, part: str) -> int:
        """Note that a part is tried, and return how often it was before."""
        # One byte per try. In a folder that the next driver has moved away, this fails.
        with self._usable(), (self.running / f"{part}.tries").open("ab") as file:
            before = file.tell()
            file.write(b".")
        return before

    def temporary(self, part: str) -> Path:
        """Return a new local path to write a part to."""
        return self.running / f"{part}.{uuid.uuid4().hex}"

    def publish(self, temporary: Path, part: str) -> None:
        """Give a whole part its name."""
        with disk_errors(self.folder / part):
            take_name(temporary, self.folder / part)

    def check(self) -> None:
        """Raise `PartsUnusable` if the folder is gone or has no room."""
        probe = self.temporary("room")
        with self._usable():
            try:
                probe.write_bytes(bytes(_ROOM))
            finally:
                probe.unlink(missing_ok=True)

    def note_begun(self) -> None:
        """Note that a worker has received its task."""
        with self._usable():
            (self.running / _BEGUN).touch()

    def is_begun(self) -> bool:
        """Whether any worker has received its task."""
        return (self.running / _BEGUN).exists()

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Turn an error of the folder into `PartsUnusable`."""
        try:
            with disk_errors(self.folder / _TOKEN):
                yield
        except PrixError as error:  # a full disk, or one that cannot be written
            raise PartsUnusable(error) from None
        except OSError as error:
            raise PartsUnusable(
                f"the folder of parts {self.folder} cannot be used on {platform.node()} any more "
                f"({error.strerror or error}): its disk is gone, or another run has begun there. "
                "Finished parts are kept; run the same command again."
            ) from error


@dataclass(frozen=True)
class StoreParts:
    """Parts as objects below a URI that has a hash of all their inputs in it.

    So a worker of another job cannot write here, and one of the same job writes the same bytes.
    """

    uri: str
    token: str

    @classmethod
    def start(cls, uri: str) -> "StoreParts":
        """Begin a run in the driver."""
        token = uuid.uuid4().hex
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(token)
            file.flush()
            remote.upload(Path(file.name), f"{uri}/running/{token}/{_TOKEN}")
        return cls(uri, token)

    def __str__(self) -> str:
        return self.uri

    def is_seen(self) -> bool:
        """Whether this machine sees what the driver has written there."""
        try:
            return remote.exists(f"{self.uri}/running/{self.token}/{_TOKEN}")
        except PrixError:
            return False

    def has(self, part: str) -> bool:
        """Whether a part is there, whole."""
        return remote.exists(f"{self.uri}/{part}")

    def note_try(self, part: str) -> int:
        """Note that a part is tried, and return how often it was before."""
        folder = f"{self.uri}/running/{self.token}/{part}.tries"
        before = len(remote.list_names(folder))
        remote.mark(f"{folder}/{uuid.uuid4().hex}")
        return before

    def temporary(self, part: str) -> Path:
        """Return a new local path to write a part to."""
        return remote.scratch_folder() / f"{uuid.uuid4().hex}-{part}"

    def publish(self, temporary: Path, part: str) -> None:
        """Give a whole part its name. A part in a store is a file, not a folder."""
        remote.upload(temporary, f"{self.uri}/{part}")

    def check(self) -> None:
        """Do nothing: a store that does not answer this machine may answer the others."""

    def note_begun(self) -> None:
        """Note that a worker has received its task."""
        remote.mark(f"{self.uri}/running/{self.token}/{_BEGUN}")

    def is_begun(self) -> bool:
        """Whether any worker has received its task."""
        return remote.exists(f"{self.uri}/running/{self.token}/{_BEGUN}")
