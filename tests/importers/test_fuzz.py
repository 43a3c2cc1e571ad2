"""No input breaks an importer: mutated lines of each format, and what hypothesis finds.

Lines of fixtures in the published formats are flipped, cut, doubled, mixed and stuffed with bytes
that hurt parsers, then parsed in chunks. For any input, every row is accounted for, staged text is
clean, and each row has the line that it came from. `make test-full` tries 100,000 lines a format.
"""

import itertools
import random
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.compute as pc
import pyoxigraph as ox
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from prixlm import KB, PrixError, import_kb
from prixlm.importers.format import STAGED, Chunk, Parsed, Parser, Source
from prixlm.importers.plan import FORMATS
from prixlm.importers.rdf import parse_statements
from prixlm.importers.stage import parse_chunk
from prixlm.languages import normalise
from prixlm.untrusted import printable
from tests.helpers import FULL, budget, count_tried

NUM_LINES = budget(10_000, 100_000)
"""How many mutated lines each format is given."""
CHUNK_LINES = 5_000 if FULL else 2_000
NUM_COMPARED = budget(5_000, 20_000)
"""How many lines our N-Triples reader and pyoxigraph are compared on."""
LANGS = (None, ("en", "fi", "ja"))

DATA = Path(__file__).parents[1] / "data"
NASTY = [
    *[b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xef\xbb\xbf"],
    *[b"\t", b"\t\t", b" ", b"  ", b"\r", b"\r\n", b"\n", b"\n\n", b"\x0b", b"\x0c", b"\x1b"],
    *[b'"', b"'", b'""', b"\\", b"\\u", b"\\u12G4", b"\\uD800", b"\\U0011FFFF", b"\\n", b"`"],
    *[b"<", b">", b"<>", b" .", b". ", b"@", b"@en", b"@zz", b"^^", b"#", b"_:b", b"<<", b"{"],
    *[b"}", b"%", b"%2", b"%FF", b"%41", b"%0A", b"%25", b":", b",", b";", b"/", b"=", b"0"],
    *[b"-1", b"1e9"],
    *[s.encode() for s in ("\u2028", "\x85", "\u00a0", "\u200f", "\u0301", "\U0001f600", "\uffff")],
]

FACTS_TSV = """\
lang\tsubject\trelation\tobject
en\tFinland\tcapital\tHelsinki
en\tFinland\tcurrency\tEuro
fi\tSuomi\tcapital\tHelsinki
ja\tフィンランド\tcapital\tヘルシンキ
te\tఫిన్లాండ్\tcapital\tహెల్సింకి
ar\tفنلندا\tcapital\tهلسنكي
nb\tVesterålen & "Øyene"\tligger i\tNordland
zh-hans\t芬兰\t首都\t赫尔辛基
"""
LINKS_TSV = """\
lang_a\tname_a\tlang_b\tname_b
en\tFinland\tfi\tSuomi
en\tFinland\tja\tフィンランド
te\tఫిన్లాండ్\tja\tフィンランド
ar\tفنلندا\ten\tFinland
"""
DESCRIBED_TSV = """\
lang\tname\tdescription
en\tFinland\tcountry in Northern Europe
fi\tSuomi\tvaltio Pohjois-Euroopassa
ja\tフィンランド\t北ヨーロッパの国
te\tఫిన్లాండ్\t
"""
FACTS_CSV = """\
lang,subject,relation,object
en,Finland,capital,Helsinki
en,"Helsinki, Finland",is in,Finland
en,"Dwayne ""The Rock"" Johnson",born in,Hayward
fi,Suomi,capital,Helsinki
ja,フィンランド,capital,ヘルシンキ
te,ఫిన్లాండ్,capital,హెల్సింకి
"""
TRIPLES_TXT = """\
Finland\tcapital\tHelsinki\ten
Suomi\tpääkaupunki\tHelsinki\tfi
フィンランド\t首都\tヘルシンキ\tja
Suomi\tvaluutta\tEuro\tfi
"""
ENTITIES_TXT = "Finland\ten\nHelsinki\ten\nSuomi\tfi\nHelsinki\tfi\nEuro\tfi\nヘルシンキ\tja\n"
BENCHMARK = {
    "b/entity/en.tsv": "http://dbpedia.org/resource/Finland\r\n"
    "http://dbpedia.org/resource/Helsinki\r\nhttp://dbpedia.org/resource/AC%2FDC\r\n",
    "b/entity/ja.tsv": "http://ja.dbpedia.org/resource/フィンランド\r\n"
    "http://ja.dbpedia.org/resource/ヘルシンキ\r\nhttp://ja.dbpedia.org/resource/2046_(映画)\r\n",
    "b/relations.txt": "http://dbpedia.org/ontology/capital\r\n"
    "http://dbpedia.org/property/country\r\nhttp://dbpedia.org/ontology/country\r\n",
    "b/kg/en-train.tsv": "0\t0\t1\r\n1\t1\t0\r\n",
    "b/kg/en-test.tsv": "1\t2\t0\r\n2\t1\t0\r\n",
    "b/kg/ja-val.tsv": "0\t0\t1\r\n2\t0\t1\r\n",
    "b/seed_alignlinks/en-ja.tsv": "0.0\t0.0\r\n1.0\t1.0\r\n",
}


def read_lines(*patterns: str) -> list[bytes]:
    """The lines of fixtures."""
    files = [file for pattern in patterns for file in sorted(DATA.glob(pattern))]
    assert files
    return [line for file in files for line in file.read_bytes().splitlines()]


@dataclass(frozen=True)
class Case:
    """A format, the files that make a source of it, and the one whose lines are mutated."""

    format: str
    target: str
    files: dict[str, str] = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)
    rows: str = "=="  # a line is a row; ">=": or several; "<=": a row can have several lines
    num_lines: int = NUM_LINES
    file_lines: int = CHUNK_LINES
    num_kept: int = 1  # how many lines at the beginning of a file stay as they are

    def pool(self) -> list[bytes]:
        return self.lines or self.files[self.target].encode().splitlines()

    def write(self, folder: Path, target: bytes | None = None) -> list[Path]:
        """Write the files, the target with other content if it is given; what to import."""
        content = {name: text.encode() for name, text in self.files.items()}
        content.setdefault(self.target, b"\n".join(self.lines))
        if target is not None:
            content[self.target] = target
        for name, data in content.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return sorted({folder / Path(name).parts[0] for name in content})


DBPEDIA_LINES = read_lines("*_lang=*.ttl")
RDF_LINES = read_lines("sample.nt", "sample.nq")
COMMENT = "<http://www.w3.org/2000/01/rdf-schema#comment>"
COMMENT_LINES = [
    f'<http://example.org/id/Q33> {COMMENT} "country in\\nNorthern Europe"@en .'.encode(),
    f'<http://example.org/id/Q33> {COMMENT} "maa Pohjois-Euroopassa"@fi .'.encode(),
    f'<http://example.org/id/Q33> {COMMENT} "no language" .'.encode(),
]
AUTHORS = {"a/triples.txt": TRIPLES_TXT, "a/entities.txt": ENTITIES_TXT}
CASES = {
    "dbpedia": Case("dbpedia", "labels_lang=fi.nt", lines=DBPEDIA_LINES),
    "n-quads": Case("rdf", "sample.nq", lines=RDF_LINES),
    "comments": Case("rdf", "comments.nt", lines=COMMENT_LINES + RDF_LINES[:9]),
    "tsv facts": Case("table", "facts.tsv", {"facts.tsv": FACTS_TSV}),
    "tsv links": Case("table", "links.tsv", {"links.tsv": LINKS_TSV}),
    "tsv descriptions": Case("table", "d.tsv", {"d.tsv": DESCRIBED_TSV}, rows=">="),
    "csv facts": Case("table", "facts.csv", {"facts.csv": FACTS_CSV}, rows="<="),
    "authors' triples": Case("authors", "a/triples.txt", AUTHORS),
    "authors' entities": Case("authors", "a/entities.txt", AUTHORS),
    "benchmark facts": Case("benchmark", "b/kg/en-train.tsv", BENCHMARK),
    "benchmark links": Case("benchmark", "b/seed_alignlinks/en-ja.tsv", BENCHMARK),
    "wikidata": Case("wikidata", "w.json", lines=read_lines("wikidata-sample.json"), rows=">="),
}
FROM_FILES = {
    "turtle": Case("rdf", "s.ttl", {}, read_lines("sample.ttl"), "any", NUM_LINES, 200, 8),
    "trig": Case("rdf", "s.trig", {}, read_lines("sample.trig"), "any", NUM_LINES, 200, 9),
    "rdf/xml": Case("rdf", "s.rdf", {}, read_lines("sample.rdf"), "any", NUM_LINES, 20, 8),
    "benchmark entities": Case("benchmark", "b/entity/ja.tsv", BENCHMARK),
    "benchmark relations": Case("benchmark", "b/relations.txt", BENCHMARK),
}
"""These are parsed from their files: Turtle has no lines, and ids refer to the whole list."""
EVERY_LINE = [line for case in (CASES | FROM_FILES).values() for line in case.pool()]


def mutate(line: bytes, random_: random.Random) -> bytes:
    """Return `line` after one of the accidents that happen to dumps, or an invented one."""
    chance, size = random_.random, len(line)
    kind = int(chance() * 10)
    a, b = sorted((int(chance() * (size + 1)), int(chance() * (size + 1))))
    match kind:
        case 0 if size:
            flipped = bytearray(line)
            flipped[min(a, size - 1)] ^= 1 << int(chance() * 8)
            return bytes(flipped)
        case 1:
            return line[:a] + line[b:]
        case 2:
            return line[:b] + line[a:]
        case 3:
            return line[:a]
        case 4:
            return line[:a] + EVERY_LINE[int(chance() * len(EVERY_LINE))][a:]
        case 5 if chance() < 0.02:
            return line[:a] + NASTY[int(chance() * len(NASTY))] * 3000 + line[a:]
        case 6 if chance() < 0.02:
            return line[:a] + line[a : a + 9] * 2000 + line[a:]
        case 7:
            return EVERY_LINE[int(chance() * len(EVERY_LINE))] if chance() < 0.2 else line
    return line[:a] + NASTY[int(chance() * len(NASTY))] + line[a:]


def mutated_lines(pool: list[bytes], num_lines: int, seed: int) -> list[bytes]:
    """Lines from `pool`, one in four as it is, the others changed once, twice or three times."""
    random_ = random.Random(seed)
    lines = []
    for line in random_.choices(pool, k=num_lines):
        for _ in range(int(random_.random() * 4)):
            line = mutate(line, random_)
        lines.append(line)
    return lines


def mutated_document(case: Case, num_lines: int, seed: int) -> list[bytes]:
    """The lines of a file again and again, in their order, after `num_kept`; one in two changed."""
    random_ = random.Random(seed)
    body = itertools.islice(itertools.cycle(case.pool()[case.num_kept :]), num_lines)
    changed = [mutate(line, random_) if random_.random() < 0.5 else line for line in body]
    return case.pool()[: case.num_kept] + changed


def mutated_chunks(case: Case, seed: int) -> Iterator[Chunk]:
    """`num_lines` lines and more (mutations break lines), in chunks with consecutive numbers."""
    first = 2  # the first line can be a header
    for number in range(case.num_lines // CHUNK_LINES):
        lines = mutated_lines(case.pool(), CHUNK_LINES, seed + number)
        data = b"\n".join(lines) + b"\n"
        yield Chunk(0, first, data)
        first += data.count(b"\n")


def check_staged(parsed: Parsed, first: int, num_lines: int) -> None:
    """Rows add up; strings are UTF-8 and names are not empty; lines are those of the chunk."""
    parsed.check()
    for table, batches in parsed.tables.items():
        for batch in batches:
            batch.validate(full=True)
            assert batch.schema == STAGED[table]
            lines = batch.column("line")
            assert first <= pc.min(lines).as_py() <= pc.max(lines).as_py() < first + num_lines
            optional = ("lang", "split", "name") if table == "relations" else ("lang", "split")
            for name in batch.schema.names:
                column = batch.column(name)
                assert name in optional or column.null_count == 0, f"{table}.{name} is null"
                if name in ("name", "lang", "split", "text"):
                    assert not pc.any(pc.equal(column, "")).as_py(), f"{table}.{name} is empty"
    for sample in parsed.samples:
        assert first <= sample.line < first + num_lines
        assert sample.text == printable(sample.text)
        sample.text.encode()


def check_rows(case: Case, parsed: Parsed, num_lines: int) -> None:
    assert case.rows != "==" or parsed.read == num_lines
    assert case.rows != ">=" or parsed.read >= num_lines
    assert case.rows != "<=" or parsed.read <= num_lines


def make_parser(case: Case, folder: Path, langs: tuple[str, ...] | None = None) -> Parser:
    """The parser of the target of a case, whose files are written to `folder`."""
    sources = find_sources(case, folder)
    index = next(i for i, s in enumerate(sources) if s.path == folder / case.target)
    return FORMATS[case.format].parser(sources, index, langs)


def find_sources(case: Case, folder: Path, target: bytes | None = None) -> list[Source]:
    return FORMATS[case.format].sources(case.write(folder, target))


@pytest.mark.parametrize("name", CASES)
def test_mutated_lines_never_break_the_parser(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    parsers = [make_parser(case, tmp_path, langs) for langs in LANGS]
    num_staged = 0
    for number, chunk in enumerate(mutated_chunks(case, seed=1)):
        assert isinstance(chunk.data, bytes)
        parsed = parsers[number % len(parsers)](chunk)
        num_lines = chunk.data.count(b"\n")
        check_staged(parsed, chunk.line, num_lines)
        check_rows(case, parsed, num_lines)
        count_tried(num_lines)
        num_staged += parsed.num_staged()
    assert num_staged > case.num_lines // 10  # the mutations leave something to import


@pytest.mark.parametrize("name", FROM_FILES)
def test_mutated_files_never_break_the_parser(name: str, tmp_path: Path) -> None:
    case = FROM_FILES[name]
    chosen = FORMATS[case.format]
    num_staged = 0
    for number in range(case.num_lines // case.file_lines):
        data = b"\n".join(mutated_document(case, case.file_lines, number)) + b"\n"
        folder = tmp_path / str(number)
        sources = find_sources(case, folder, data)
        index = next(i for i, s in enumerate(sources) if s.path == folder / case.target)
        parser = chosen.parser(sources, index, LANGS[number % len(LANGS)])
        count_tried(case.file_lines)
        read = 0
        for chunk in chosen.chunks(sources[index], index):
            parsed = parse_chunk(parser, chunk)
            check_staged(parsed, chunk.line, len(data))
            read, num_staged = read + parsed.read, num_staged + parsed.num_staged()
        assert case.rows != "==" or read == data.count(b"\n")
    assert num_staged > case.num_lines // 20


@pytest.mark.parametrize("name", ["tsv facts", "authors' triples"])
def test_a_staged_row_carries_the_line_that_it_came_from(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    parser = make_parser(case, tmp_path)
    places = (0, 1, 2, 3) if name == "tsv facts" else (3, 0, 1, 2)
    for chunk in mutated_chunks(case, seed=100):
        assert isinstance(chunk.data, bytes)
        lines = chunk.data.split(b"\n")
        for batch in parser(chunk).tables["facts"]:
            for row in batch.to_pylist():
                cells = lines[row["line"] - chunk.line].decode().split("\t")
                lang, *names = (cells[place] for place in places)
                assert normalise(squeeze(lang)) == row["lang"]
                found = [row["subject"], f":{row['relation']}", row["object"]]
                found = [text.partition(":")[2] for text in found]
                assert [squeeze(text) for text in found] == [squeeze(text) for text in names]


def squeeze(text: str) -> str:
    return "".join(c for c in text if not c.isspace() and unicodedata.category(c) != "Cc")


Row = tuple[str, str, str | None, str | None, str | None]


def parse_with_pyoxigraph(line: str) -> Row | None:
    """Subject, predicate, object, text and tag; None for what is not one statement between IRIs."""
    try:
        quads = list(ox.parse(line, format=ox.RdfFormat.N_QUADS, lenient=True))
    except (SyntaxError, ValueError):
        return None
    if len(quads) != 1 or not isinstance(quads[0].subject, ox.NamedNode):
        return None
    subject, predicate, object_ = quads[0].subject.value, quads[0].predicate.value, quads[0].object
    if isinstance(object_, ox.NamedNode):
        return subject, predicate, object_.value, None, None
    if isinstance(object_, ox.Literal):
        return subject, predicate, None, object_.value, lower(object_.language)
    return None


def lower(text: str | None) -> str | None:
    return text if text is None else text.lower()


def parse_with_prixlm(lines: list[bytes]) -> dict[int, Row]:
    """What our reader finds on each line, counted from 0."""
    block = parse_statements(Chunk(0, 0, b"\n".join(lines) + b"\n"), Parsed(0))
    *columns, tags = (column.to_pylist() for column in block[:5])
    rows = zip(*columns, map(lower, tags), strict=True)
    return dict(zip(block.line.tolist(), rows, strict=True))


@pytest.mark.parametrize("name", ["dbpedia", "n-quads"])
def test_statements_are_those_that_pyoxigraph_reads(name: str) -> None:
    pool = CASES[name].pool()
    lines = mutated_lines(pool, NUM_COMPARED // 2, seed=7) + pool
    lines = b"\n".join(lines).split(b"\n")  # mutations break lines
    found = parse_with_prixlm(lines)
    num_found = 0
    for number, line in enumerate(lines):
        try:
            expected = parse_with_pyoxigraph(line.decode() + "\n")
        except UnicodeDecodeError:
            expected = None
        if expected is None or "" not in expected[:3]:  # what becomes of `<>` is another matter
            assert found.get(number) == expected, line
            num_found += expected is not None
    assert NUM_COMPARED // 10 < num_found <= len(found)


# Each piece alone is ordinary; the order is not.
PIECES = st.sampled_from(
    [
        *["<http://a.org/x>", "<http://a.org/%C3%A4>", "<ä>", "<>", '"text"', '"a\\"b"', '""', " "],
        *["@en", "@en-GB", "@a-", "@EN-x-1234567890", "^^<http://t>", ".", " .", "\t", "\r", "\n"],
        *["_:b", "#", '"', "\\", "\\u00e4", "\u00a0", "\x00", "\ufeff", " <http://g> "],
        "<http://www.w3.org/2000/01/rdf-schema#label> ",
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=60))
@example('<a> <b> "x"@en <g> .')
@example("<a> <b> <c> .\r")
@example('<a> <b> "x"@en-GB .\r\n')
def test_a_line_of_pieces_is_read_as_pyoxigraph_reads_it(text: str) -> None:
    line = text.partition("\n")[0]
    expected = parse_with_pyoxigraph(line + "\n")
    assume(expected is None or "" not in expected[:3])
    assert parse_with_prixlm([line.encode()]) == ({0: expected} if expected else {})


@pytest.fixture(scope="module")
def parsers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Parser]:
    folder = tmp_path_factory.mktemp("parsers")
    return {name: make_parser(case, folder) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_arbitrary_bytes_never_break_a_parser(
    name: str, parsers: dict[str, Parser], data: st.DataObject
) -> None:
    words = st.sampled_from([*NASTY, *CASES[name].pool(), b"en", b"\tx\ty\t", b"1\t1\t1"])
    texts = st.binary(max_size=80) | st.lists(words, max_size=8).map(b"".join)
    content = data.draw(texts)
    assume(content)
    num_lines = content.count(b"\n") + (not content.endswith(b"\n"))
    parsed = parsers[name](Chunk(0, 50, content))
    check_staged(parsed, 50, num_lines)
    check_rows(CASES[name], parsed, num_lines)


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1)
NAMES = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(names=st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=1, max_size=40))
def test_names_come_back_from_a_table_as_they_were(
    names: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    rows = ["lang\tsubject\trelation\tobject", *("en\t" + "\t".join(row) for row in names)]
    (tmp_path / "facts.tsv").write_text("\n".join(rows) + "\n", "utf-8")
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb", overwrite=True)
    assert kb.manifest.account["rejected"] == {}
    found = kb.query(
        "SELECT s.name, r.name, o.name FROM triples JOIN entities s ON s.id = subject "
        "JOIN relations r ON r.id = relation JOIN entities o ON o.id = object"
    ).fetchall()
    assert sorted(found) == sorted(set(names))
    some = names[0][0]
    assert [entity.name for entity in kb.find(some, "en")] == [some]


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize("name", [*CASES, *FROM_FILES])
def test_a_mutated_file_gives_a_whole_kb_or_a_clear_error(
    name: str, seed: int, tmp_path: Path
) -> None:
    case = (CASES | FROM_FILES)[name]
    paths = case.write(tmp_path, b"\n".join(mutated_document(case, 200, seed)))
    try:
        import_kb(paths, tmp_path / "kb", langs=LANGS[seed % 2])
    except PrixError as error:
        assert re.match(r"\S", str(error)) and "\n" not in str(error)
        assert not (tmp_path / "kb").exists()
        return
    account = KB(tmp_path / "kb").manifest.account
    parts = [account[part] for part in ("imported", "rejected", "filtered")]
    assert account["read"] == sum(sum(part.values()) for part in parts) > 0
    assert sum(account["imported"].values()) > 0
    rejects = (tmp_path / "kb" / "rejects.tsv").read_text("utf-8").split("\n")
    assert all(row.count("\t") == 3 for row in rejects[:-1])
    assert {row.split("\t")[0] for row in rejects[1:-1]} <= set(account["rejected"])
