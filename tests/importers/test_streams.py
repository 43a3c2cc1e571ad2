"""Bytes in: compressed or not, whole or damaged, in chunks of whole lines."""

import bz2
import gzip
import lzma
import random
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from prixlm.errors import PrixError
from prixlm.importers import streams
from prixlm.importers.format import Chunk, Source
from prixlm.importers.streams import head, line_chunks, plain_suffix

RANDOM = random.Random(0)
TEXT = "".join(f"line {n} ä {RANDOM.getrandbits(200)}\n" for n in range(60_000)).encode()


def pack(path: Path, data: bytes = TEXT) -> Path:
    match path.suffix:
        case ".gz":
            path.write_bytes(gzip.compress(data))
        case ".bz2":
            path.write_bytes(bz2.compress(data, 1))
        case ".xz":
            path.write_bytes(lzma.compress(data))
        case ".zst":
            path.write_bytes(pa.Codec("zstd").compress(data, asbytes=True))
        case ".zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("inner.nt", data)
        case _:
            path.write_bytes(data)
    return path


def chunks(path: Path) -> list[Chunk]:
    return list(line_chunks(Source(path, path.name), 3))


def joined(found: list[Chunk]) -> bytes:
    return b"".join(c.data for c in found if isinstance(c.data, bytes) and not c.broken)


SUFFIXES = (".nt", ".gz", ".bz2", ".xz", ".zst", ".zip")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_chunks_are_whole_lines_and_count_them(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack(tmp_path / f"a.nt{suffix}")
    monkeypatch.setattr(streams, "CHUNK_BYTES", 50_000)
    found = chunks(path)
    assert len(found) > 10
    assert joined(found) == TEXT
    line = 1
    for chunk in found:
        assert isinstance(chunk.data, bytes)
        assert chunk.source == 3 and chunk.line == line and chunk.data.endswith(b"\n")
        line += chunk.data.count(b"\n")
    assert 0 < found[-1].done <= path.stat().st_size


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("cores", [1, 2, 4])
def test_a_truncated_archive_gives_what_can_be_read_and_says_so(
    suffix: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    path = pack(tmp_path / f"a.nt{suffix}", TEXT)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    found = chunks(path)
    assert found[-1].broken == "truncated or damaged archive"
    assert (TEXT).startswith(joined(found))
    assert len(joined(found)) > len(TEXT) // 2


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_what_is_no_archive_at_all_is_one_broken_chunk(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.nt{suffix}"
    path.write_bytes(b"plain text, whatever the suffix says\n" * 100)
    (chunk,) = chunks(path)
    assert chunk.broken == "truncated or damaged archive"


def test_bytes_in_the_middle_of_an_archive_may_be_wrong(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.nt.gz", TEXT)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    found = chunks(path)
    assert found[-1].broken and len(joined(found)) > 1000


def test_a_zip_with_several_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", "x")
        archive.writestr("b", "y")
    with pytest.raises(PrixError, match="2 files in the archive, expected 1"):
        chunks(tmp_path / "a.zip")
    (tmp_path / "b.zip").write_bytes(b"x")
    with pytest.raises(PrixError, match="not a whole zip archive"):
        chunks(tmp_path / "b.zip")


def test_a_line_without_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(streams, "MAX_LINE_BYTES", 5000)
    path = pack(tmp_path / "a.nt", b"one\n" + b"x" * 20_000 + b"\nthree\n")
    found = chunks(path)
    assert [c.line for c in found if c.broken] == [2]
    assert joined(found) == b"one\nthree\n"
    assert found[-1].line == 3


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tsv", b"\xef\xbb\xbfen\tx\n")
    assert joined(chunks(path)) == head(path) == b"en\tx\n"


def test_the_last_line_needs_no_line_end_and_an_empty_file_has_no_chunk(tmp_path: Path) -> None:
    assert joined(chunks(pack(tmp_path / "a.nt", b"a\nb"))) == b"a\nb"
    assert chunks(pack(tmp_path / "b.nt", b"")) == []


def test_the_suffix_below_the_compression_tells_the_format() -> None:
    assert plain_suffix(Path("labels_lang=en.ttl.bz2")) == ".ttl"
    assert plain_suffix(Path("latest-all.json.gz")) == ".json"
    assert plain_suffix(Path("A.NT")) == ".nt"
