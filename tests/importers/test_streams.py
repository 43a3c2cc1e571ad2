"""Reading files: compressed or not, whole or damaged, in chunks of whole lines."""

import bisect
import bz2
import dataclasses
import functools
import gzip
import io
import lzma
import random
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from prixlm import PrixError
from prixlm.importers import streams
from prixlm.importers.format import Chunk, Limits, Source
from prixlm.importers.streams import SourceReader, head, line_chunks, plain_suffix
from tests.importers.helpers import (
    DATA,
    LABEL,
    bytes_of,
    import_text,
    rejects_of,
    write_dump,
)

RANDOM = random.Random(0)
TEXT = "".join(f"line {n} ä {RANDOM.getrandbits(200)}\n" for n in range(30_000)).encode()


@functools.cache
def compress(data: bytes, suffix: str) -> bytes:
    """Return `data` as an archive; kept, since compressing takes longer than reading."""
    match suffix:
        case ".gz":
            return gzip.compress(data, 1)
        case ".bz2":
            return bz2.compress(data, 1)  # blocks of 100 kB: a cut leaves whole ones
        case ".xz":
            return lzma.compress(data, preset=0)
        case ".zst":
            return bytes(pa.compress(data, codec="zstd", asbytes=True))
        case ".zip":
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("inner.nt", data)
            return packed.getvalue()
    return data


def pack(path: Path, data: bytes = TEXT) -> Path:
    path.write_bytes(compress(data, path.suffix))
    return path


def chunks(path: Path) -> list[Chunk]:
    return list(line_chunks(Source(path, path.name), 3))


def joined(found: list[Chunk]) -> bytes:
    return b"".join(c.data for c in found if isinstance(c.data, bytes) and not c.broken)


ARCHIVES = (".gz", ".bz2", ".xz", ".zst")
SUFFIXES = (".nt", *ARCHIVES, ".zip")


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


@pytest.mark.parametrize("suffix", ARCHIVES)
@pytest.mark.parametrize("cores", [1, 2, 4])
def test_a_truncated_archive_gives_what_can_be_read_and_says_so(
    suffix: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "usable_cores", lambda: cores)
    monkeypatch.setattr(streams, "_PARALLEL_BYTES", 0)
    path = pack(tmp_path / f"a.nt{suffix}", TEXT)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    found = chunks(path)
    assert found[-1].broken == "truncated or damaged archive"
    assert TEXT.startswith(joined(found))
    assert len(joined(found)) > len(TEXT) // 2


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_a_file_that_is_not_an_archive_at_all_is_one_broken_chunk(
    suffix: str, tmp_path: Path
) -> None:
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


def test_a_line_that_never_ends_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHUNK_BYTES", 1000)
    path = pack(tmp_path / "a.nt", b"one\n" + b"x" * 20_000 + b"\nthree\n")
    found = list(line_chunks(Source(path, "a", limits=Limits(line=5000)), 0))
    assert [(c.line, c.broken) for c in found if c.broken] == [(2, "line too long")]
    assert joined(found) == b"one\nthree\n"
    assert found[-1].line == 3


@pytest.mark.parametrize("length", [4999, 5000, 5001, 5002, 5999, 6000])
@pytest.mark.parametrize("small", [7, 100])
def test_how_long_a_line_may_be_does_not_depend_on_how_it_is_read(
    length: int, small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK_BYTES", 1000)
    path = pack(tmp_path / "a.nt", b"one\n" + b"x" * (length - 1) + b"\nthree\n")
    source = Source(path, "a", limits=Limits(line=5000))
    found = [list(line_chunks(source, 0))]
    read = SourceReader.read
    monkeypatch.setattr(SourceReader, "read", lambda self, size: read(self, min(size, small)))
    found.append(list(line_chunks(source, 0)))
    assert [bool(c.broken) for c in found[0]] == [bool(c.broken) for c in found[1]]
    assert joined(found[0]) == joined(found[1])
    assert any(c.broken for c in found[0]) == (length > 5000)


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_an_archive_that_expands_beyond_all_measure_is_not_read_to_its_end(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FREE_EXPANSION", 1 << 20)
    monkeypatch.setattr(streams, "MAX_EXPANSION", 20)
    monkeypatch.setattr(streams, "CHUNK_BYTES", 1 << 18)
    path = pack(tmp_path / f"a.nt{suffix}", b"same line\n" * 2_000_000)
    found = chunks(path)
    assert found[-1].broken == "truncated or damaged archive"
    assert b"expands to more than 20 times its size" in bytes(found[-1].data)
    assert 0 < len(joined(found)) < 5_000_000
    plain = chunks(pack(tmp_path / "a.nt", b"same line\n" * 200_000))
    assert not any(c.broken for c in plain)


def test_a_byte_order_mark_is_not_part_of_the_first_line(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tsv", b"\xef\xbb\xbfen\tx\n")
    assert joined(chunks(path)) == head(path) == b"en\tx\n"


def test_the_last_line_needs_no_line_end_and_an_empty_file_has_no_chunk(tmp_path: Path) -> None:
    assert joined(chunks(pack(tmp_path / "a.nt", b"a\nb"))) == b"a\nb"
    assert chunks(pack(tmp_path / "b.nt", b"")) == []


def test_the_suffix_below_the_compression_tells_the_format() -> None:
    assert plain_suffix(Path("labels_lang=en.ttl.bz2")) == ".ttl"
    assert plain_suffix(Path("latest-all.json.gz")) == ".json"
    assert plain_suffix(Path("A.NT")) == ".nt"


def test_chunks_do_not_depend_on_how_a_damaged_archive_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = compress(write_dump(tmp_path / "dump.nt", 3000).read_bytes(), ".bz2")
    (tmp_path / "dump.nt.bz2").write_bytes(packed[: len(packed) * 4 // 5])
    monkeypatch.setattr(streams, "CHUNK_BYTES", 30_000)
    monkeypatch.setattr(streams, "_PARALLEL_BYTES", 0)
    found = []
    for cores in (1, 2, 4):
        monkeypatch.setattr(streams, "usable_cores", lambda cores=cores: cores)
        source = Source(tmp_path / "dump.nt.bz2", "dump")
        found.append([(c.line, c.data) for c in streams.line_chunks(source, 0) if not c.broken])
    assert found[0] == found[1] == found[2] and len(found[0]) > 5


@pytest.mark.parametrize("suffix", ARCHIVES)
@pytest.mark.parametrize("name", ["facts.tsv", "labels_lang=fi.ttl", "sample.ttl", "sample.nq"])
def test_a_compressed_source_gives_the_bytes_of_the_plain_one(
    name: str, suffix: str, tmp_path: Path
) -> None:
    data = numbered_facts(7) if name == "facts.tsv" else (DATA / name).read_bytes()
    plain = import_text(tmp_path, name, data)
    packed = import_text(tmp_path, name + suffix, compress(data, suffix))
    assert bytes_of(packed) == bytes_of(plain)
    assert packed.manifest.account == plain.manifest.account


@functools.cache
def numbered_facts(number: int) -> bytes:
    """Facts that hardly compress, so that half an archive is about half of the facts."""
    names = (
        (i, i * 0x9E3779B97F4A7C15 % 2**64, i * 0xC2B2AE3D27D4EB4F % 2**64) for i in range(number)
    )
    return b"".join(b"en\t%d %x\tr\t%d %x\n" % (i, x, i, y) for i, x, y in names)


def decompress_prefix(data: bytes, suffix: str) -> bytes:
    """Return all that can be known of an archive that ends too early."""
    match suffix:
        case ".gz":
            return zlib.decompressobj(31).decompress(data)
        case ".bz2":
            return bz2.BZ2Decompressor().decompress(data)
        case ".xz":
            return lzma.LZMADecompressor().decompress(data)

    def read_zstd(size: int) -> bytes:
        """Return that many bytes; nothing if the archive does not have them."""
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            try:
                found = bytes(stream.read(size))
            except OSError:
                return b""
        return found if len(found) == size else b""

    sizes = range(1, 100 * len(data))
    size = bisect.bisect_left(sizes, True, key=lambda size: not read_zstd(size))
    return read_zstd(size)


@pytest.mark.parametrize("part", [0.3, 0.9])
@pytest.mark.parametrize("suffix", ARCHIVES)
def test_a_truncated_archive_gives_all_the_lines_before_the_damage(
    suffix: str, part: float, tmp_path: Path
) -> None:
    packed = compress(numbered_facts(12_000), suffix)
    cut = packed[: int(len(packed) * part)]
    num_known = decompress_prefix(cut, suffix).count(b"\n")
    kb = import_text(tmp_path, f"facts.tsv{suffix}", cut)
    assert kb.manifest.account["rejected"] == {"truncated or damaged archive": 1}
    num_facts = kb.manifest.account["imported"]["facts"]
    assert num_facts == kb.num_triples() > 0
    assert rejects_of(kb) == [("truncated or damaged archive", f"facts.tsv{suffix}", num_facts + 1)]
    whole = import_text(tmp_path, "facts.tsv", numbered_facts(num_facts))
    assert bytes_of(kb) == bytes_of(whole)
    assert num_facts == num_known


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_a_truncated_dump_of_dbpedia_is_still_read_as_lines(suffix: str, tmp_path: Path) -> None:
    names = [f"{i * 0x9E3779B97F4A7C15 % 2**64:x}" for i in range(6_000)]
    lines = [
        f'<http://fi.dbpedia.org/resource/N{i}> {LABEL} "{x}"@fi .' for i, x in enumerate(names)
    ]
    packed = compress("\n".join(lines).encode(), suffix)
    kb = import_text(tmp_path, f"labels_lang=fi.ttl{suffix}", packed[: len(packed) * 2 // 3])
    assert kb.manifest.account["rejected"] == {"truncated or damaged archive": 1}
    assert rejects_of(kb)[0][2] == kb.num_entities + 1


def test_reading_can_begin_at_any_chunk_of_a_plain_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a line that is too long, and with a byte order mark before the first one."""
    monkeypatch.setattr(streams, "CHUNK_BYTES", 300)
    lengths = [RANDOM.choice((1, 20, 100, 299, 300, 301, 650, 1600, 2000)) for _ in range(200)]
    path = tmp_path / "a.nt"
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(b"x" * length + b"\n" for length in lengths))
    source = Source(path, "a", limits=Limits(line=1500))
    found = list(line_chunks(source, 0))
    assert sum(bool(chunk.broken) for chunk in found) > 10
    for position, chunk in enumerate(found):
        assert chunk.start is not None
        later = dataclasses.replace(source, start=(chunk.start, chunk.line))
        again = list(line_chunks(later, 0))
        assert [dataclasses.replace(c, done=0) for c in again] == [
            dataclasses.replace(c, done=0) for c in found[position:]
        ]
    assert {chunk.start for chunk in line_chunks(Source(pack(tmp_path / "b.gz"), "b"), 0)} == {None}
