"""Bytes in: any file, plain or compressed, as chunks of whole lines.

`.gz`, `.bz2`, `.xz`, `.zst` and one-file `.zip` are decompressed on the way, bz2 by several threads
(for gz, rapidgzip passed over a missing end in silence, and zlib is fast enough). An archive that
ends early or is damaged gives all that can be read of it, then one broken chunk that says so.
"""

import bz2
import contextlib
import gzip
import lzma
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self

import pyarrow as pa
import rapidgzip

from prixlm.errors import PrixError
from prixlm.importers.format import Chunk, Source

CHUNK_BYTES = 8 << 20
MAX_LINE_BYTES = 64 << 20
_SMALL_READ = 1 << 16
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_DAMAGE = (
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
)
_BOM = b"\xef\xbb\xbf"


def plain_suffix(path: Path) -> str:
    """The suffix that tells the format: `.nt` of `labels.nt.bz2`."""
    return (
        Path(path.stem).suffix.lower()
        if path.suffix.lower() in _COMPRESSED
        else path.suffix.lower()
    )


class SourceReader:
    """A decompressing reader that never raises on damage: `damage` says what was wrong."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._suffix = path.suffix.lower()
        self._served = 0
        self._serial = False
        self._raw: IO[bytes] | None = None
        self._stream: Any = None
        self.damage: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._stream, self._raw):
            if stream is not None:
                with contextlib.suppress(*_DAMAGE):
                    stream.close()
        self._stream = self._raw = None

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size` of them; b"" at the end or where the damage begins."""
        while self.damage is None:
            try:
                if self._stream is None:
                    self._stream = self._open()
                block: bytes = self._read_some() if self._serial else self._stream.read(size)
            except _DAMAGE as error:
                self._recover(error)
                continue
            if not block and not self._served and not self._serial and self._path.stat().st_size:
                self._recover(
                    EOFError("nothing in the archive")
                )  # the parallel readers say nothing
                continue
            self._served += len(block)
            return block
        return b""

    def _read_some(self) -> bytes:
        """What there is: a `read` that meets the damage would lose what comes before it."""
        read = getattr(self._stream, "read1", self._stream.read)
        return bytes(read(_SMALL_READ))

    def position(self) -> int:
        """How far into the file on disk the reader is, in bytes."""
        if isinstance(self._stream, rapidgzip.IndexedBzip2File):
            return int(self._stream.tell_compressed()) // 8
        return self._raw.tell() if self._raw is not None else 0

    def _open(self) -> Any:
        try:
            raw = self._raw = self._path.open("rb")
        except OSError as error:
            raise PrixError(f"cannot read {self._path}: {error.strerror}.") from None
        cores = 1 if self._serial else os.cpu_count() or 1
        match self._suffix:
            case ".gz":
                return gzip.GzipFile(fileobj=raw)
            case ".bz2" if cores >= 2:
                return rapidgzip.IndexedBzip2File(str(self._path), parallelization=cores)
            case ".bz2":
                return bz2.BZ2File(raw)
            case ".xz":
                return lzma.LZMAFile(raw)
            case ".zst":
                return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
            case ".zip":
                return self._open_zip(raw)
        return raw

    def _open_zip(self, raw: IO[bytes]) -> IO[bytes]:
        try:
            archive = zipfile.ZipFile(raw)
        except zipfile.BadZipFile as error:
            raise PrixError(f"{self._path}: not a whole zip archive ({error}).") from None
        members = [info for info in archive.infolist() if not info.is_dir()]
        if len(members) != 1:
            raise PrixError(
                f"{self._path}: {len(members)} files in the archive, expected 1. "
                "Unpack it and pass the folder."
            )
        return archive.open(members[0])

    def _recover(self, error: BaseException) -> None:
        """A large read that fails is tried again in small ones, to save what can be read."""
        if self._serial or self._suffix not in _COMPRESSED:
            self.damage = str(error) or type(error).__name__
            return
        self.__exit__()
        self._serial = True
        passed = 0
        try:
            self._stream = self._open()
            while passed < self._served:
                passed += len(self._stream.read(min(_SMALL_READ, self._served - passed)))
        except _DAMAGE as again:
            self.damage = str(again) or type(again).__name__


def open_source(path: Path) -> SourceReader:
    """A reader for `path` that decompresses by its suffix."""
    return SourceReader(path)


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of the (decompressed) file, cut after the last whole line if there is one."""
    data = b""
    with open_source(path) as reader:
        while len(data) < size and (block := reader.read(size - len(data))):
            data += block
    data = data.removeprefix(_BOM)
    end = data.rfind(b"\n")
    return data[: end + 1] if end >= 0 and len(data) >= size - len(_BOM) else data


def line_chunks(source: Source, index: int) -> Iterator[Chunk]:
    """The lines of a file in chunks of about `CHUNK_BYTES`; `line` counts from 1."""
    with open_source(source.path) as reader:
        yield from _cut_lines(reader, index)


def _cut_lines(reader: SourceReader, index: int) -> Iterator[Chunk]:
    line, rest, first = 1, b"", True
    while block := reader.read(CHUNK_BYTES):
        rest += block
        if first:
            rest, first = rest.removeprefix(_BOM), False
        # Where chunks end follows from the bytes alone, never from how many a read brought.
        while len(rest) >= CHUNK_BYTES:
            end = rest.rfind(b"\n", 0, CHUNK_BYTES) + 1 or rest.find(b"\n") + 1
            if not end:
                break
            yield Chunk(index, line, rest[:end], done=reader.position())
            line, rest = line + rest.count(b"\n", 0, end), rest[end:]
        if len(rest) > MAX_LINE_BYTES:
            yield Chunk(index, line, rest[:1000], broken="line too long")
            rest = _skip_line(reader)
            line += 1
    end = rest.rfind(b"\n") + 1 if reader.damage is not None else len(rest)
    if end:
        yield Chunk(index, line, rest[:end], done=reader.position())
    if reader.damage is not None:
        text = f"{reader.damage}; the last line read was: ".encode() + rest[end:][:200]
        line += rest.count(b"\n")
        yield Chunk(index, line, text, broken="truncated or damaged archive")


def _skip_line(reader: SourceReader) -> bytes:
    """Read past the next line end; what follows it."""
    while block := reader.read(CHUNK_BYTES):
        _, newline, rest = block.partition(b"\n")
        if newline:
            return rest
    return b""
