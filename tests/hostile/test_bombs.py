"""Small files that expand or nest without end: a limit stops each, in memory that is stated.

The memory is the peak of a process of its own that imports the file, above that of one that
imports two facts: at most `MORE_MIB`, whatever the file expands to.
"""

import bz2
import gzip
import json
import lzma
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import PrixError, import_kb
from prixlm.importers import streams
from prixlm.importers.streams import SourceReader
from prixlm.kb.checks import check_table
from tests.helpers import count_tried, fact_row, make_proposals, run_python
from tests.hostile.attacks import FULL, attack, budget, draw

MORE_MIB = 420
"""As `docs/reference/limits.md` states it."""
LOWERED, SMALLER = 16 << 20, 36 << 20
"""The limit of expansion in `make test`, and what an archive expands to: to save time."""
ZEROS = b"\0"

MEASURE = r"""
import re, sys
from pathlib import Path
from prixlm import PrixError, import_kb
from prixlm.importers import streams
streams.FREE_EXPANSION = int(sys.argv[3])
try:
    kb = import_kb([Path(sys.argv[1])], Path(sys.argv[2]) / "kb", memory="256MiB")
    print(kb.manifest.account["rejected"])
except PrixError as error:
    print(error)
# Not ru_maxrss, which begins with the memory of the process that started this one.
print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def peak(path: Path, to: Path, free: int = LOWERED) -> tuple[int, str]:
    """Import a file in a process of its own; return its peak memory in MiB and what it said."""
    count_tried()
    to.mkdir(exist_ok=True)
    ran = run_python(MEASURE, path, to, free)
    assert ran.returncode == 0, ran.stderr
    *said, mib = ran.stdout.strip().split("\n")
    return int(mib), " ".join(said)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The peak of an import of two facts."""
    folder = tmp_path_factory.mktemp("usual")
    path = folder / "facts.tsv"
    path.write_text("lang\tsubject\trelation\tobject\nen\ta\tr\tb\nen\tb\tr\ta\n")
    return peak(path, folder)[0]


FACT = b"lang\tsubject\trelation\tobject\nen\ta\tr\tb\n"


def blocks(unit: bytes) -> list[bytes]:
    """Return a fact, then `unit` repeated, in blocks of a MiB: zeros beyond the real limit.

    Lines stop at the lowered limit also in `make test-full`: a GiB of them is a hundred million
    rows, which an import reads in minutes and in the memory of its joins.
    """
    block = unit * ((1 << 20) // len(unit))
    size = streams.FREE_EXPANSION + (64 << 20) if FULL and unit == ZEROS else SMALLER
    return [FACT, *([block] * (size >> 20))]


def gz(path: Path, unit: bytes) -> Path:
    with gzip.open(path.with_suffix(".tsv.gz"), "wb", 9) as file:
        file.writelines(blocks(unit))
    return path.with_suffix(".tsv.gz")


def bz(path: Path, unit: bytes) -> Path:
    with bz2.open(path.with_suffix(".tsv.bz2"), "wb") as file:
        file.writelines(blocks(unit))
    return path.with_suffix(".tsv.bz2")


def xz(path: Path, unit: bytes) -> Path:
    with lzma.open(path.with_suffix(".tsv.xz"), "wb", preset=1) as file:
        file.writelines(blocks(unit))
    return path.with_suffix(".tsv.xz")


def zst(path: Path, unit: bytes) -> Path:
    to = path.with_suffix(".tsv.zst")
    with pa.CompressedOutputStream(str(to), "zstd") as file:
        for block in blocks(unit):
            file.write(block)
    return to


def zipped(path: Path, unit: bytes) -> Path:
    to = path.with_suffix(".tsv.zip")
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a", "w") as file:
        for block in blocks(unit):
            file.write(block)
    return to


ARCHIVES: list[Callable[[Path, bytes], Path]] = [gz, bz, xz, zst, zipped]
SOME = ARCHIVES if FULL else [gz, xz, zst]


@pytest.mark.parametrize("unit", [ZEROS, b"en\ta\tr\tb\n"], ids=["one line", "equal lines"])
@pytest.mark.parametrize("pack", SOME, ids=lambda pack: str(pack.__name__))
def test_an_archive_that_expands_without_end_is_read_in_little_memory(
    pack: Callable[[Path, bytes], Path], unit: bytes, usual: int, tmp_path: Path
) -> None:
    if not FULL and (pack, unit) not in ((gz, ZEROS), (xz, b"en\ta\tr\tb\n"), (zst, ZEROS)):
        pytest.skip("in make test-full")
    free = streams.FREE_EXPANSION if FULL and unit == ZEROS else LOWERED
    path = pack(tmp_path / "bomb", unit)
    mib, said = peak(path, tmp_path / "to", free)
    assert mib < usual + MORE_MIB, said
    if unit != ZEROS and pack in (gz, zipped):
        assert said == "{}"  # deflate makes equal lines 515 times smaller: no bomb, and all is read
    else:
        assert "truncated or damaged archive" in said or "line too long" in said


def test_an_archive_with_a_vast_dictionary_is_refused_before_it_is_allocated(
    tmp_path: Path,
) -> None:
    """The size is one byte of the header: 40 asks for 4 GiB."""
    data = bytearray(lzma.compress(FACT * 100, preset=0))
    size = (data[12] + 1) * 4
    header = data[12 : 12 + size]
    place = bytes(header).index(b"\x21\x01") + 2
    header[place] = 40
    header[-4:] = struct.pack("<I", zlib.crc32(bytes(header[:-4])))
    data[12 : 12 + size] = header
    path = tmp_path / "facts.tsv.xz"
    path.write_bytes(bytes(data))
    with SourceReader(path) as reader:
        assert reader.read(1 << 20) == b""
        assert reader.damage is not None and "emory" in reader.damage


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_of_a_method_without_a_limit_is_refused(method: int, tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("facts.tsv", FACT)
    with pytest.raises(PrixError, match=r"facts\.tsv\.zip: .* Unpack it, or .* \.bz2 or \.xz"):
        import_kb([path], tmp_path / "kb")


@pytest.mark.parametrize("pieces", [1, 3])
def test_xz_streams_one_after_another_are_read_whole(pieces: int, tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv.xz"
    data = b"\0\0\0\0".join(lzma.compress(FACT * 5000) for _ in range(pieces))
    path.write_bytes(data)
    with SourceReader(path) as reader:
        found = b"".join(iter(lambda: reader.read(1 << 16), b""))
        assert found == FACT * 5000 * pieces and reader.damage is None
    path.write_bytes(data[:-20])
    with SourceReader(path) as reader:
        found = b"".join(iter(lambda: reader.read(1 << 16), b""))
        assert reader.damage is not None and (FACT * 5000 * pieces).startswith(found)


def laughs(depth: int) -> str:
    """Return RDF/XML with entities of entities."""
    entities = ['<!ENTITY e0 "ha">']
    entities += [f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, depth)]
    return (
        f'<?xml version="1.0"?><!DOCTYPE r [{"".join(entities)}]>'
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
        'xmlns:rdfs="http://www.w3.org/2000/01/rdf-schema#">'
        f'<rdf:Description rdf:about="http://a"><rdfs:label xml:lang="en">&e{depth - 1};'
        "</rdfs:label></rdf:Description></rdf:RDF>"
    )


def outside(_depth: int) -> str:
    """Return RDF/XML that asks for a file of this machine."""
    return (
        '<?xml version="1.0"?><!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
        'xmlns:rdfs="http://www.w3.org/2000/01/rdf-schema#"><rdf:Description rdf:about="http://a">'
        '<rdfs:label xml:lang="en">&x;</rdfs:label></rdf:Description></rdf:RDF>'
    )


def wikidata(value: str) -> str:
    """Return a dump of one entity with a value put in as it is."""
    label = '{"en": {"language": "en", "value": "a"}}'
    return f'[\n{{"type": "item", "id": "Q1", "labels": {label}, "claims": {value}}}\n]\n'


DEEP = 100_000
LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
FILES = {
    "laughs.rdf": laughs(12),
    "outside.rdf": outside(1),
    "deep.json": wikidata("[" * 500_000 + "]" * 500_000),
    "deep objects.json": wikidata('{"a":' * 200_000 + "1" + "}" * 200_000),
    "number.json": wikidata("9" * 1_000_000),
    "literal.ttl": f'<http://a> <{LABEL}> "{"x" * (20 << 20)}"@en .',
    "nested.ttl": f"<http://a> <http://b> {'[ <http://c> ' * DEEP}<http://d>{']' * DEEP} .",
    "list.ttl": f"<http://a> <http://b> {'(' * DEEP}{')' * DEEP} .",
    "line.nt": f'<http://a> <http://b> "{"x" * (18 << 20)}"@en .\n',
    "iri.nt": f"<http://{'a' * (9 << 20)}> <http://b> <http://c> .\n",
    "columns.tsv": "\t" * (9 << 20) + "\n",
    "quotes.csv": "lang,subject,relation,object\n" + '"' * (9 << 20) + "\n",
    "names.tsv": "lang\tsubject\trelation\tobject\n" + f"en\t{'n' * 2001}\tr\tb\n" * 2000,
}  # fmt: skip
SMALL = ["laughs.rdf", "deep.json", "literal.ttl", "nested.ttl"]
"""Tried in a process of its own in `make test`; pyoxigraph nests in C, so one may end it."""


@pytest.mark.parametrize("name", list(FILES) if FULL else SMALL)
def test_a_file_that_is_deep_or_long_is_read_in_little_memory(
    name: str, usual: int, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(FILES[name], "utf-8")
    mib, said = peak(path, tmp_path / "to")
    assert mib < usual + MORE_MIB, said


@pytest.mark.parametrize("name", [name for name in FILES if name not in (*SMALL, "list.ttl")])
def test_a_file_that_is_deep_or_long_is_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(FILES[name], "utf-8")
    attack("import", path, "--to", tmp_path / "kb")
    text = "".join(p.read_text("utf-8") for p in tmp_path.glob("kb/rejects.tsv"))
    assert "root:" not in text, "no file of this machine is read"


def test_a_parquet_file_of_one_long_text_many_times_is_cut(tmp_path: Path) -> None:
    number = 20_000
    column = pa.DictionaryArray.from_arrays(pa.array([0] * number, pa.int32()), ["x" * (1 << 20)])
    ends = pa.array(["a"] * number)
    path = tmp_path / "facts.parquet"
    table = {"lang": pa.array(["en"] * number), "subject": column, "relation": ends, "object": ends}
    pq.write_table(pa.table(table), path)
    assert path.stat().st_size < 4 << 20, "20 GiB of text"
    with pytest.raises(PrixError, match="name or key too long"):
        import_kb([path], tmp_path / "kb")


def write_parquet(path: Path, subjects: Iterable[pa.Array], **how: Any) -> Path:
    """Write facts with these subjects, a row group for each array, in less than a MiB."""
    writer = None
    for texts in subjects:
        ends = pa.array(["a"] * len(texts))
        columns = {"lang": pa.array(["en"] * len(texts)), "subject": texts}
        table = pa.table(columns | {"relation": ends, "object": ends})
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd", **how)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    assert path.stat().st_size < 1 << 20
    return path


def long_texts() -> Iterator[pa.Array]:
    """Yield a thousand texts of most of a MiB, no two of them equal."""
    for number in range(0, 1000, 10):
        yield pa.array([f"{'x' * (900 << 10)}{number + more}" for more in range(10)])


PLAIN = {"use_dictionary": False, "column_encoding": "PLAIN"}
SAME = pa.array([b"x" * (1 << 20)] * 8, pa.binary(1 << 20))
PARQUET: dict[str, Callable[[Path], Path]] = {
    "a long text": lambda path: write_parquet(path, [pa.array(["x" * (80 << 20)])]),
    "a text within the limit": lambda path: write_parquet(path, [pa.array(["x" * (60 << 20)])]),
    "long texts": lambda path: write_parquet(path, long_texts(), **PLAIN),
    "fixed length": lambda path: write_parquet(path, [SAME] * 100),
    "equal rows": lambda path: write_parquet(path, [pa.array(["a"] * 2_000_000)]),
}
SAYS = {
    "a long text": "of a column expand to 80 MiB, expected at most 64. Write it in smaller",
    "a text within the limit": "name or key too long",
    "long texts": "name or key too long",
    "fixed length": "name or key too long",
    "equal rows": "'truncated or damaged archive': 1",
}


@pytest.mark.parametrize("name", list(PARQUET) if FULL else ["a long text", "fixed length"])
def test_a_parquet_file_that_expands_is_read_in_little_memory(
    name: str, usual: int, tmp_path: Path
) -> None:
    path = PARQUET[name](tmp_path / "facts.parquet")
    mib, said = peak(path, tmp_path / "to")
    assert mib < usual + MORE_MIB, said
    assert SAYS[name] in said


def small_kb(folder: Path) -> Path:
    """Write a KB of three facts and return its folder."""
    folder.mkdir(exist_ok=True)
    (folder / "facts.tsv").write_bytes(FACT + b"en\tc\tr\ta\nfi\ta\tr\tb\n")
    return import_kb([folder / "facts.tsv"], folder / "kb").folder


def expand(path: Path, column: str, value: Any, rows: int, **how: Any) -> None:
    """Write a table again with `rows` equal rows, and one value in a column of all of them."""
    table = pq.read_table(path).slice(0, 1)
    table = pa.concat_tables([table] * rows).combine_chunks()
    place = table.column_names.index(column)
    field = table.schema.field(place)
    table = table.set_column(place, field, pa.array([value] * rows, field.type))
    pq.write_table(table, path, compression="zstd", **how)


@pytest.mark.parametrize("column", ["name", "key"])
def test_a_word_that_stands_for_many_texts_of_a_kb_is_refused(column: str, tmp_path: Path) -> None:
    """A table of 3 kB with one name of a MiB 300 times took 554 MiB when it was read."""
    path = small_kb(tmp_path) / "entities.parquet"
    expand(path, column, "x" * (1 << 20), 300)
    assert path.stat().st_size < 10_000
    manifest = path.parent / "manifest.json"
    values = json.loads(manifest.read_text("utf-8"))
    values["counts"] |= {"entities": {"en": 300}, "linked": {"en": 0}}
    manifest.write_text(json.dumps(values), "utf-8")
    ran = attack("stats", path.parent, codes=(2,))
    assert f"{column} expands from" in ran.stderr and "Import the KB again." in ran.stderr


@pytest.mark.parametrize("lists", [1, 2_000])
def test_lists_of_proposals_without_end_are_refused(lists: int, tmp_path: Path) -> None:
    """One row that names 4 million languages took 6 kB, and 516 MiB when it was exported."""
    make_proposals(tmp_path / "p", [fact_row(0)])
    path = tmp_path / "p" / "proposals.parquet"
    expand(path, "origin", ["en"] * (4_000_000 // lists), lists)
    assert path.stat().st_size < 100_000
    to = ("--format", "tsv", "--to", tmp_path / "out.tsv")
    ran = attack("export", tmp_path / "p", *to, codes=(2,))
    assert "4,000,000 values of origin in" in ran.stderr


def test_a_long_word_in_lists_of_proposals_is_refused(tmp_path: Path) -> None:
    make_proposals(tmp_path / "p", [fact_row(0)])
    path = tmp_path / "p" / "proposals.parquet"
    expand(path, "origin", ["x" * (1 << 16)] * 100, 100)
    to = ("--format", "tsv", "--to", tmp_path / "out.tsv")
    ran = attack("export", tmp_path / "p", *to, codes=(2,))
    assert "origin expands from" in ran.stderr


def test_long_names_that_are_few_are_read(tmp_path: Path) -> None:
    """`--max-name` allows names of any length; what counts is how many bytes all of them have."""
    path = tmp_path / "names.parquet"
    names = [f"name {number}" for number in range(100_000)]
    names[7] = "x" * 50_000
    schema = pa.schema({"name": pa.string(), "origin": pa.list_(pa.string())})
    table = pa.table({"name": names, "origin": [[name] for name in names]}, schema=schema)
    for how in ({}, {"use_dictionary": False}, {"data_page_version": "2.0"}):
        pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=8 << 20, **how)
        assert check_table(path, schema, "Again.") == len(names)


def share_pages(path: Path, groups: int) -> None:
    """Give a table row groups that all have the pages of its first one."""
    data, footer, first = path.read_bytes(), pq.read_metadata(path), pq.read_metadata(path)
    for _ in range(groups - 1):
        footer.append_row_groups(first)
    footer.write_metadata_file(path)
    pages = data[: len(data) - 8 - int.from_bytes(data[-8:-4], "little")]
    path.write_bytes(pages + path.read_bytes()[4:])


def test_row_groups_that_share_their_pages_are_refused(tmp_path: Path) -> None:
    """Each page was walked once for every row group that names it: the square of the size."""
    kb = small_kb(tmp_path)
    source, table = tmp_path / "facts.parquet", kb / "entities.parquet"
    names = [random.Random(number).randbytes(8).hex() for number in range(3000)]
    facts = {"lang": ["en"] * 3000, "subject": names, "relation": names, "object": names}
    pq.write_table(pa.table(facts), source)
    rows = pa.concat_tables([pq.read_table(table).slice(0, 1)] * 3000)
    rows = rows.set_column(rows.column_names.index("name"), "name", pa.array(names))
    pq.write_table(rows, table)
    for path in (source, table):
        share_pages(path, 128)
        assert pq.read_metadata(path).num_row_groups == 128
    for args in (("import", source, "--to", tmp_path / "new"), ("stats", kb)):
        ran = attack(*args, codes=(2,))
        assert "the header of a page is damaged" in ran.stderr


def test_json_that_is_too_deep_is_one_line_wherever_it_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "kb"
    folder.mkdir()
    for name in ("manifest.json", "prixlm.json", "encoder.json", "graph.json", "work.json"):
        (folder / name).write_text("[" * 200_000, "utf-8")
    ask = ("--lang", "en", "--subject", "a", "--relation", "b")
    for args in (
        ("stats", folder),
        ("split", folder, "--to", tmp_path / "s"),
        ("complete", folder, "--kb", folder, *ask),
        ("review", folder, "--to", tmp_path / "r.tsv"),
        ("report", folder, "--to", tmp_path / "page"),
        ("evaluate", "lp", "--kb", folder, "--graph", folder),
        ("import", "--format", "world", "--to", folder, "--overwrite"),
    ):
        attack(*args, codes=(2,))


def test_a_manifest_of_many_mib_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_bytes(FACT)
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    with (kb.folder / "manifest.json").open("r+b") as file:
        file.truncate(33 << 20)
    ran = attack("stats", kb.folder, codes=(2,))
    assert "manifest.json has more than 32 MiB" in ran.stderr


def test_a_manifest_with_other_kinds_of_values_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_bytes(FACT)
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    path = kb.folder / "manifest.json"
    values = json.loads(path.read_text("utf-8"))
    wrong = (None, [], {}, "x", -1, 10**30, 1.5, {"en": "x"}, {"../x": 1}, {"en": {"x": {}}})
    changed = [values | {key: value} for key in values for value in wrong]
    counts = values["counts"]
    changed += [values | {"counts": counts | {key: v}} for key in counts for v in wrong]
    for manifest in draw(changed, budget(40, 10**6), "manifests"):
        path.write_text(json.dumps(manifest), "utf-8")
        attack("stats", kb.folder)
