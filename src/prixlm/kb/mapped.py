"""Columns of numbers and texts in files that are mapped into memory, to read single rows.

    with TextWriter(folder / "names") as writer:
        writer.write(pa.array(["Turku", "Αθήνα"]))
    texts = MappedTexts(folder / "names")
    texts[1]

Reading takes the memory of the pages that were touched, which processes share. Writing takes that
of one batch. A column of numbers is what `ndarray.tofile` writes. Texts are two files: all bytes in
UTF-8, and (N + 1) int64 offsets, so that row i is `bytes[offsets[i]:offsets[i + 1]]`.
"""

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prixlm.arrays import ragged_ranges
from prixlm.types import Array

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT, _OFFSETS = ".text", ".offsets"
_CHARACTER_BYTES = 4
"""Most bytes of a character in UTF-8."""
_LINE_FEED = 10


def map_column(path: Path, dtype: Any) -> Array:
    """Return a column of numbers, (N,)."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    # A plain view: every slice of a memmap object costs microseconds more.
    return np.memmap(path, dtype, "r").view(np.ndarray)


class MappedTexts:
    """Texts by row number."""

    def __init__(self, path: Path) -> None:
        self._offsets = map_column(path.with_suffix(_OFFSETS), np.int64)
        with path.with_suffix(_TEXT).open("rb") as file:
            size = file.seek(0, 2)
            self._data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        self._bytes = np.frombuffer(self._data, np.uint8)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:
        return self.encoded(row).decode()

    def encoded(self, row: int, start: int = 0, size: int | None = None) -> bytes:
        """Return a text in UTF-8, or `size` bytes of it from the byte `start`."""
        begin, end = int(self._offsets[row]) + start, int(self._offsets[row + 1])
        return self._data[begin : end if size is None else min(end, begin + size)]

    def beginnings(self, rows: Array, size: int) -> list[str]:
        """Return the first `size` characters of many texts."""
        begins = self._offsets[rows]
        ends = np.minimum(self._offsets[rows + 1], begins + _CHARACTER_BYTES * size)
        if not len(self._bytes):
            return [""] * len(rows)
        # All texts with a line feed after each, so that one call decodes and one call parts them.
        # The last character of a long text may be cut: it is beyond `size`.
        places, _ = ragged_ranges(begins, ends + 1)
        joined = self._bytes[np.minimum(places, len(self._bytes) - 1)]
        joined[np.cumsum(ends + 1 - begins) - 1] = _LINE_FEED
        texts = joined.tobytes().decode("utf-8", "ignore").split("\n")[:-1]
        if len(texts) != len(rows):  # a text has several lines itself
            spans = zip(begins.tolist(), ends.tolist(), strict=True)
            texts = [self._data[begin:end].decode("utf-8", "ignore") for begin, end in spans]
        if (ends - begins).max(initial=0) > size:
            texts = [text[:size] for text in texts]
        return texts


class TextWriter:
    """Writes texts batch by batch, for `MappedTexts`."""

    def __init__(self, path: Path) -> None:
        self._text = path.with_suffix(_TEXT).open("wb")
        self._offsets = path.with_suffix(_OFFSETS).open("wb")
        self._offsets.write(np.zeros(1, np.int64).tobytes())
        self._size = 0

    def write(self, texts: "pa.Array") -> None:
        """Add an array of strings without nulls."""
        import pyarrow as pa

        if not len(texts):
            return
        _, offsets, data = (binary := texts.cast(pa.large_binary())).buffers()
        # (len(texts) + 1,) where the texts begin in `data`, which may hold others before them.
        ends = np.frombuffer(offsets, np.int64)[binary.offset :][: len(binary) + 1]
        if data is not None:  # else all texts are empty
            self._text.write(memoryview(data)[ends[0] : ends[-1]])
        self._offsets.write((ends[1:] - ends[0] + self._size).tobytes())
        self._size += int(ends[-1] - ends[0])

    def __enter__(self) -> "TextWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._text.close()
        self._offsets.close()
