"""Reading files, plain or compressed, as chunks of whole lines.

`.gz`, `.bz2`, `.xz`, `.zst` and one-file `.zip` (stored or deflated) are decompressed on the fly,
bz2 in several threads. (Not gz: zlib is fast enough, and rapidgzip does not report a missing end.)
A truncated or damaged archive gives every line before the damage, then one broken chunk that says
so; so does an archive that expands beyond all measure. A line beyond the source's limit is skipped,
never held.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self

import pyarrow as pa
import rapidgzip

from prixlm.errors import PrixError
from prixlm.importers.format import Chunk, Source
from prixlm.threads import usable_cores

CHUNK_BYTES = 8 << 20
MAX_EXPANSION = 1000
FREE_EXPANSION = 1 << 30
"""An archive may expand to this many times its size; this many bytes are allowed in any case. Dumps
expand 5 to 100 times, a bomb a million times."""
XZ_MEMORY = 256 << 20
"""Bytes that the dictionary of an .xz archive may take: `xz -9` asks for 64 MiB, a bomb for 4 GiB.
(zstd's own limit is 128 MiB; gz and bz2 need less than 4.)"""
_SMALL_READ = 1 << 16
_PARALLEL_BYTES = 1 << 20
"""Smallest bz2 file that is read in several threads. They hold blocks ahead, which of a bomb expand
to hundreds of MiB; bombs are small."""
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""`zipfile` decompresses the others (bz2, LZMA) without a limit: one read may expand to GiB."""
_DAMAGE = (
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
)
"""What the decompressors raise on damaged input."""
_BOM = b"\xef\xbb\xbf"


def plain_suffix(path: Path) -> str:
    """Return the suffix without compression: `.nt` for `labels.nt.bz2`."""
    return (
        Path(path.stem).suffix.lower()
        if path.suffix.lower() in _COMPRESSED
        else path.suffix.lower()
    )


class SourceReader:
    """Decompresses a file by its suffix. Damage ends it without an error: see `damage`.

    It reads in large blocks, for bz2 in several threads. When a block fails, the file is opened
    again and read serially in small ones, so that no byte before the damage is lost.
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        """start: the byte of a plain file to begin at."""
        self._path = path
        self._suffix = path.suffix.lower()
        assert not start or self._suffix not in _COMPRESSED
        self._served = start  # decompressed bytes given out so far, and those before the start
        self._serial = False  # reading in small blocks, after a first failure
        self._raw: IO[bytes] | None = None
        self._stream: Any = None
        self.damage: str | None = None  # what is wrong with the file, once it is known

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._stream, self._raw):
            if stream is not None:
                with contextlib.suppress(*_DAMAGE):
                    stream.close()
        self._stream = self._raw = None

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; b"" at the end or where the damage begins."""
        while self.damage is None:
            try:
                if self._stream is None:
                    self._stream = self._open()
                block: bytes = self._read_small() if self._serial else self._stream.read(size)
            except _DAMAGE as error:
                self._recover(error)
                continue
            if not block and not self._served and not self._serial and self._path.stat().st_size:
                # The parallel reader gives nothing for a file that is not an archive, and no error.
                self._recover(EOFError("nothing in the archive"))
                continue
            self._served += len(block)
            if self._suffix in _COMPRESSED and is_bomb(self._path, self._served):
                self.damage = describe_bomb()
                return b""
            return block
        return b""

    def _read_small(self) -> bytes:
        """Read what is decompressed already: a larger read that fails would lose it."""
        read = getattr(self._stream, "read1", self._stream.read)
        return bytes(read(_SMALL_READ))

    def served(self) -> int | None:
        """Return the place in a plain file of the next byte; None if it is compressed."""
        return None if self._suffix in _COMPRESSED else self._served

    def position(self) -> int:
        """Return how many bytes of the file on disk were read so far."""
        if isinstance(self._stream, rapidgzip.IndexedBzip2File):
            return int(self._stream.tell_compressed()) // 8
        return self._raw.tell() if self._raw is not None else 0

    def _open(self) -> Any:
        try:
            raw = self._raw = self._path.open("rb")
        except OSError as error:
            raise PrixError(f"cannot read {self._path}: {error.strerror}.") from None
        # The parallel reader loses what it had decompressed when it meets damage.
        cores = 1 if self._serial else usable_cores()
        match self._suffix:
            case ".gz":
                return gzip.GzipFile(fileobj=raw)
            case ".bz2" if cores >= 2 and self._path.stat().st_size >= _PARALLEL_BYTES:
                return rapidgzip.IndexedBzip2File(str(self._path), parallelization=cores)
            case ".bz2":
                return bz2.BZ2File(raw)
            case ".xz":
                return io.BufferedReader(_XzReader(raw), _SMALL_READ)
            case ".zst":
                return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
            case ".zip":
                return self._open_zip(raw)
        raw.seek(self._served)
        return raw

    def _open_zip(self, raw: IO[bytes]) -> IO[bytes]:
        try:
            archive = zipfile.ZipFile(raw)
        except zipfile.BadZipFile as error:
            raise PrixError(
                f"{self._path}: not a whole zip archive ({error}). Download it again."
            ) from None
        # Which of several files is meant cannot be known, and a reader reads one.
        members = [info for info in archive.infolist() if not info.is_dir()]
        if len(members) != 1:
            raise PrixError(
                f"{self._path}: {len(members)} files in the archive, expected 1. "
                "Unpack it and pass the folder."
            )
        if members[0].compress_type not in _ZIP_METHODS:
            raise PrixError(
                f"{self._path}: a zip method other than deflate, which is not read. "
                "Unpack it, or compress the file as .bz2 or .xz."
            )
        return archive.open(members[0])

    def _recover(self, error: BaseException) -> None:
        """Open the file again for small reads after a large one failed; else record the damage."""
        if self._serial or self._suffix not in _COMPRESSED:
            self.damage = str(error) or type(error).__name__
            return
        self.__exit__()
        self._serial = True
        skipped = 0
        try:
            self._stream = self._open()
            while skipped < self._served:
                skipped += len(self._stream.read(min(_SMALL_READ, self._served - skipped)))
        except _DAMAGE as again:
            self.damage = str(again) or type(again).__name__


class _XzReader(io.RawIOBase):
    """The content of an .xz file, one or several streams, decompressed in limited memory.

    `lzma.LZMAFile` has no limit: the dictionary is as large as the archive says.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._stream = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
        self._waiting = b""  # compressed bytes after the end of a stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; 0 at the end. Raises EOFError for a file that is cut."""
        while True:
            if self._stream.eof:
                # Streams may follow each other, with zeros in between to multiples of four bytes.
                self._waiting = (self._stream.unused_data + self._waiting).lstrip(b"\0")
                self._waiting = self._waiting or self._raw.read(_SMALL_READ).lstrip(b"\0")
                if not self._waiting:
                    return 0
                self._stream = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
            compressed = b""
            if self._stream.needs_input:
                compressed = self._waiting or self._raw.read(_SMALL_READ)
                self._waiting = b""
                if not compressed:
                    raise EOFError("the archive ends before its end marker")
            data = self._stream.decompress(compressed, max_length=len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)


def is_bomb(path: Path, served: int) -> bool:
    """Tell whether a file has expanded to more bytes than any dump does."""
    return served > FREE_EXPANSION and served > MAX_EXPANSION * path.stat().st_size


def describe_bomb() -> str:
    """Return what is wrong with a file for which `is_bomb` holds."""
    return f"expands to more than {MAX_EXPANSION:,} times its size; the rest was not read"


def head(path: Path, size: int = 1 << 16) -> bytes:
    """Return the first bytes of the decompressed file, cut after the last whole line if any."""
    data = b""
    with SourceReader(path) as reader:
        while len(data) < size and (block := reader.read(size - len(data))):
            data += block
    data = data.removeprefix(_BOM)
    # A file that is shorter than `size` is whole, even if its last line has no end.
    end = data.rfind(b"\n")
    return data[: end + 1] if end >= 0 and len(data) >= size - len(_BOM) else data


def line_chunks(source: Source, index: int) -> Iterator[Chunk]:
    """Yield the lines of a file in chunks of at most about `CHUNK_BYTES`.

    They begin at the source's start, which has to be that of a chunk.
    """
    start, line = source.start
    with SourceReader(source.path, start) as reader:
        yield from _cut_lines(reader, index, source.limits.line, line)


def _cut_lines(reader: SourceReader, index: int, longest: int, line: int) -> Iterator[Chunk]:
    """Yield chunks of whole lines; one of more than `longest` bytes is a broken chunk."""
    rest, first = b"", line == 1
    while block := reader.read(CHUNK_BYTES):
        rest += block
        if first:
            rest, first = rest.removeprefix(_BOM), False
        # Where a chunk ends depends on the bytes alone, never on the size of a read: a resumed
        # import must cut the same chunks.
        while len(rest) >= CHUNK_BYTES:
            end = rest.rfind(b"\n", 0, CHUNK_BYTES) + 1 or rest.find(b"\n") + 1
            # A bomb or a binary file may have no line ends: do not read it as one line.
            start = _start_of(rest, reader)
            if (end or len(rest)) > max(longest, CHUNK_BYTES):
                yield Chunk(index, line, rest[:1000], broken="line too long", start=start)
                line, rest = line + 1, rest[end:] if end else _skip_line(reader)
            elif end:
                yield Chunk(index, line, rest[:end], done=reader.position(), start=start)
                line, rest = line + rest.count(b"\n", 0, end), rest[end:]
            else:
                break
    # Of a damaged file, the last line may be cut: only whole lines are parsed.
    end = rest.rfind(b"\n") + 1 if reader.damage is not None else len(rest)
    if end:
        start = _start_of(rest, reader)
        yield Chunk(index, line, rest[:end], done=reader.position(), start=start)
    if reader.damage is not None:
        text = f"{reader.damage}; the last line read was: ".encode() + rest[end:][:200]
        line += rest.count(b"\n")
        yield Chunk(index, line, text, broken="truncated or damaged archive")


def _start_of(rest: bytes, reader: SourceReader) -> int | None:
    """Return the place in a plain file of what was read and not yet cut."""
    served = reader.served()
    return None if served is None else served - len(rest)


def _skip_line(reader: SourceReader) -> bytes:
    """Read past the next line end, and return what was read after it."""
    while block := reader.read(CHUNK_BYTES):
        _, newline, rest = block.partition(b"\n")
        if newline:
            return rest
    return b""
