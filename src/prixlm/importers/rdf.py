"""Any RDF: names by `rdfs:label` / `skos:prefLabel` / `skos:altLabel`, links by `owl:sameAs`.

Descriptions are `schema:description`, `dcterms:description`, `rdfs:comment`, `skos:definition` and
`dbo:abstract`, with a language tag. If an entity has several, the first in this order is kept.

N-Triples and N-Quads are read line by line, in parallel. Two regular expressions parse the ordinary
lines as arrays. Every other line (escapes, odd spacing) goes to pyoxigraph, which decides what is
malformed. Turtle, TriG and RDF/XML go through pyoxigraph's streaming parser and then, as N-Quads
lines, through the same code; their "line" is the number of the statement. What pyoxigraph reads
for one statement is limited, with the entities of RDF/XML counted as what they expand to.
"""

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyoxigraph as ox

from prixlm.errors import PrixError
from prixlm.importers.format import (
    ALIAS,
    LABEL,
    VARIANT,
    Chunk,
    Format,
    Limits,
    Parsed,
    Parser,
    Source,
    clean_names,
)
from prixlm.importers.streams import (
    CHUNK_BYTES,
    SourceReader,
    head,
    line_chunks,
    plain_suffix,
)
from prixlm.languages import normalise
from prixlm.types import Array

RDFS_LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
SKOS = "http://www.w3.org/2004/02/skos/core#"
OWL_SAME_AS = "http://www.w3.org/2002/07/owl#sameAs"
LABELS = {RDFS_LABEL: LABEL, SKOS + "prefLabel": LABEL, SKOS + "altLabel": ALIAS}
# Short texts first: an abstract has paragraphs. A text in a variant of the language comes after all
# texts in the language itself.
DESCRIPTIONS = {
    "http://schema.org/description": 0,
    "https://schema.org/description": 0,
    "http://purl.org/dc/terms/description": 1,
    "http://www.w3.org/2000/01/rdf-schema#comment": 2,
    SKOS + "definition": 3,
    "http://dbpedia.org/ontology/abstract": 4,
}
_IN_VARIANT = len(DESCRIPTIONS)  # added to the rank of a description in a variant

_IRI = r'[^\x00-\x20<>"{}|^`\\]+'
_START = rf"^<(?P<subject>{_IRI})> <(?P<predicate>{_IRI})> "
# At each byte only one continuation is possible, which keeps RE2 on its fast path.
_END = rf" (?:<{_IRI}> )?\.\r?\n?$"
_IRI_LINE = rf"{_START}<(?P<object>{_IRI})>{_END}"
_TEXT_LINE = rf'{_START}"(?P<text>[^"\\\r\n]*)"(?:@(?P<tag>[A-Za-z]+(?:-[A-Za-z0-9]+)*))?{_END}'
_NO_STATEMENT = re.compile(rb"[ \t\r\n]*(?:#.*)?\s*$", re.DOTALL)
_MARK = "\ufdd0"  # a noncharacter in the place of a byte that is not UTF-8
_DECLARATION = re.compile(rb"<!ENTITY([^<]*)")
_ENTITY = re.compile(rb"&([^;]*);")
_NOT_READ = b"the rest of the file was not read"
_SYNTAXES = {
    ".nt": ox.RdfFormat.N_TRIPLES,
    ".nq": ox.RdfFormat.N_QUADS,
    ".ttl": ox.RdfFormat.TURTLE,
    ".trig": ox.RdfFormat.TRIG,
    ".rdf": ox.RdfFormat.RDF_XML,
    ".owl": ox.RdfFormat.RDF_XML,
    ".xml": ox.RdfFormat.RDF_XML,
}


class Statements(NamedTuple):
    """Parsed statements as arrays of equal length; the object is an IRI or a text with its tag."""

    subject: pa.Array
    predicate: pa.Array
    object: pa.Array  # null where the object is a literal
    text: pa.Array  # null where the object is an IRI
    tag: pa.Array  # null where a literal has no language
    line: Array

    def where(self, mask: pa.Array) -> "Statements":
        """Return the statements where `mask` is true."""
        return Statements.of([c.filter(mask) for c in self[:5]], self.line[np.asarray(mask)])

    @staticmethod
    def of(columns: Sequence[pa.Array], line: Array) -> "Statements":
        """Return statements from the five columns and the lines."""
        subject, predicate, object_, text, tag = columns
        return Statements(subject, predicate, object_, text, tag, line)


def split_lines(data: bytes) -> pa.Array:
    """Return the lines of `data`, with line ends, as a binary array that shares its memory."""
    # Arrow's layout of N binary values: N + 1 offsets into one buffer.
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")).astype(np.int32) + 1
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, np.int32(len(data)))
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)


def valid_text(lines: pa.Array, numbers: Array, parsed: Parsed) -> tuple[pa.Array, Array]:
    """Return the lines that are UTF-8, as strings, and their numbers; reject the others."""
    try:
        return lines.cast(pa.string()), numbers
    except pa.ArrowInvalid:
        good = np.ones(len(lines), bool)
        for index, line in enumerate(lines.to_pylist()):
            try:
                line.decode()
            except UnicodeDecodeError:
                good[index] = False
                parsed.reject("invalid UTF-8", int(numbers[index]), line)
        return lines.filter(pa.array(good)).cast(pa.string()), numbers[good]


def parse_statements(chunk: Chunk, parsed: Parsed) -> Statements:
    """Parse a chunk of N-Triples or N-Quads lines; reject malformed ones in `parsed`."""
    assert isinstance(chunk.data, bytes)
    raw = split_lines(chunk.data)
    parsed.read += len(raw)
    numbers = chunk.line + np.arange(len(raw), dtype=np.int64)
    lines, numbers = valid_text(raw, numbers, parsed)
    blocks = []
    # Each pattern takes the lines that match; the rest goes to the next, then to pyoxigraph.
    for pattern in (_IRI_LINE, _TEXT_LINE):
        match = pc.extract_regex(lines, pattern)
        block = _as_statements(match, numbers)
        blocks.append(block.where(match.is_valid()))
        missed = match.is_null()
        lines, numbers = lines.filter(missed), numbers[np.asarray(missed)]
    blocks.append(_parse_slowly(lines, numbers, parsed))
    columns = [pa.concat_arrays([block[i] for block in blocks]) for i in range(5)]
    return Statements.of(columns, np.concatenate([block.line for block in blocks]))


def _as_statements(match: pa.StructArray, line: Array) -> Statements:
    """Return a match as statements; groups that the pattern lacks, and empty tags, are null."""
    names = [field.name for field in match.type]
    absent = pa.nulls(len(match), pa.string())
    columns = [match.field(n) if n in names else absent for n in Statements._fields[:5]]
    if "tag" in names:
        columns[4] = pc.if_else(pc.equal(columns[4], ""), None, columns[4])
    return Statements.of(columns, line)


def _parse_slowly(lines: pa.Array, numbers: Array, parsed: Parsed) -> Statements:
    """Parse the lines that no pattern matched, one at a time, with pyoxigraph."""
    rows: list[tuple[str, str, str | None, str | None, str | None]] = []
    kept = []
    for line, number in zip(lines.to_pylist(), numbers.tolist(), strict=True):
        if _NO_STATEMENT.match(line.encode()):
            parsed.filter("comment or blank line")
            continue
        try:
            quads = list(ox.parse(line, format=ox.RdfFormat.N_QUADS, lenient=True))
        except (SyntaxError, ValueError):
            quads = []
        if len(quads) != 1:
            parsed.reject("malformed line", number, line)
            continue
        quad = quads[0]
        # pyoxigraph's lenient mode accepts empty IRIs, which name nothing.
        if "<>" in map(str, (quad.subject, quad.predicate, quad.object)):
            parsed.reject("malformed line", number, line)
            continue
        if not isinstance(quad.subject, ox.NamedNode):
            parsed.reject("blank node", number, line)
        elif isinstance(quad.object, ox.NamedNode):
            rows.append((quad.subject.value, quad.predicate.value, quad.object.value, None, None))
            kept.append(number)
        elif isinstance(quad.object, ox.Literal):
            text, tag = quad.object.value, quad.object.language
            rows.append((quad.subject.value, quad.predicate.value, None, text, tag))
            kept.append(number)
        else:
            parsed.reject("blank node", number, line)
    arrays = [pa.array([row[i] for row in rows], pa.string()) for i in range(5)]
    return Statements.of(arrays, np.array(kept, np.int64))


def stage_names(
    block: Statements, ranks: pa.Array, langs: tuple[str, ...] | None, parsed: Parsed
) -> None:
    """Stage label statements as names, in the language of their tag.

    ranks: (N,) int8, the rank of each name.
    """
    language, variant = _languages(block)
    names = clean_names(block.text)
    # (N,) why a row is not a name, the first reason that applies; null if none does.
    reasons = pc.case_when(
        pc.make_struct(
            block.text.is_null(), block.tag.is_null(), language.is_null(), pc.equal(names, "")
        ),
        "name is not a text",
        "name without a language",
        "unknown language code",
        "empty name",
    )
    _reject_rows(block, reasons, parsed)
    keep = _asked(reasons.is_null(), language, langs, parsed)  # no reason against it
    ranks = pc.if_else(
        pc.and_(pc.equal(ranks, LABEL), variant), pa.scalar(VARIANT, pa.int8()), ranks
    )
    parsed.stage(
        "names",
        key=block.subject.filter(keep),
        lang=language.filter(keep),
        name=names.filter(keep),
        rank=ranks.filter(keep),
        line=pa.array(block.line).filter(keep),
    )


def stage_descriptions(
    block: Statements, ranks: pa.Array, langs: tuple[str, ...] | None, parsed: Parsed
) -> None:
    """Stage literals as descriptions, in the language of their tag.

    ranks: (N,) int8, the rank of each predicate.
    """
    # Comments without a language are usual, in ontologies say, so they are not malformed.
    tagged = block.tag.is_valid()
    parsed.filter("description without a language", len(tagged) - (pc.sum(tagged).as_py() or 0))
    block, ranks = block.where(tagged), ranks.filter(tagged)
    language, variant = _languages(block)
    texts = clean_names(block.text)
    reasons = pc.case_when(
        pc.make_struct(language.is_null(), pc.equal(texts, "")),
        "unknown language code",
        "empty description",
    )
    _reject_rows(block, reasons, parsed)
    keep = _asked(reasons.is_null(), language, langs, parsed)
    ranks = pc.if_else(variant, pc.add(ranks, pa.scalar(_IN_VARIANT, pa.int8())), ranks)
    parsed.stage(
        "descriptions",
        key=block.subject.filter(keep),
        lang=language.filter(keep),
        text=texts.filter(keep),
        rank=ranks.filter(keep),
        line=pa.array(block.line).filter(keep),
    )


def _languages(block: Statements) -> tuple[pa.Array, pa.Array]:
    """Return the language of each text, null if unknown, and whether its tag is of a variant."""
    # A dump has few distinct tags: each is normalised once, then looked up by its index.
    tags = pc.fill_null(block.tag, "").dictionary_encode()
    codes = [normalise(tag) if tag else None for tag in tags.dictionary.to_pylist()]
    exact = [c == tag.lower() for c, tag in zip(codes, tags.dictionary.to_pylist(), strict=True)]
    language = pa.array(codes, pa.string()).take(tags.indices)
    return language, pc.invert(pa.array(exact, pa.bool_()).take(tags.indices))


def _asked(
    keep: pa.Array, language: pa.Array, langs: tuple[str, ...] | None, parsed: Parsed
) -> pa.Array:
    """Return which of the rows in `keep` are of a wanted language; count the others."""
    if langs is None:
        return keep
    asked = pc.is_in(language, pa.array(langs, pa.string()))
    parsed.filter("language not asked for", pc.sum(pc.and_(keep, pc.invert(asked))).as_py() or 0)
    return pc.and_(keep, asked)


def _reject_rows(block: Statements, reasons: pa.Array, parsed: Parsed) -> None:
    """Reject the statements that have a reason; null is none."""
    for reason in pc.unique(reasons.drop_null()).to_pylist():
        bad = np.asarray(pc.fill_null(pc.equal(reasons, reason), False))
        parsed.reject_rows(reason, bad, block.line, lambda row: _show(block, row))


def _show(block: Statements, row: int) -> str:
    """Return a statement as text for the rejects file."""
    text, tag = block.text[row].as_py(), block.tag[row].as_py()
    end = block.object[row].as_py() or (f'"{text}"@{tag}' if tag else f'"{text}"')
    return f"{block.subject[row]} {block.predicate[row]} {end}"


def _ranks(predicates: pa.Array, known: dict[str, int]) -> pa.Array:
    """Return the rank of each predicate, (N,) int8; null where it is not a known one."""
    places = pc.index_in(predicates, pa.array(list(known), pa.string()))
    return pa.array(list(known.values()), pa.int8()).take(places)


@dataclass(frozen=True)
class RdfParser:
    """Stages statements as names, descriptions, links and facts.

    RDF facts have no language: they hold in every language that names both ends.
    """

    langs: tuple[str, ...] | None

    def __call__(self, chunk: Chunk) -> Parsed:
        parsed = Parsed(chunk.source)
        block = parse_statements(chunk, parsed)
        rest = self.stage_known(block, parsed)
        self.stage_facts(rest, parsed)
        return parsed.check()

    def stage_known(self, block: Statements, parsed: Parsed) -> Statements:
        """Stage labels, descriptions and sameAs links; return the statements that are none."""
        rank = _ranks(block.predicate, LABELS)
        is_name = rank.is_valid()
        stage_names(block.where(is_name), rank.filter(is_name), self.langs, parsed)
        # A description that is an IRI (a page, an image) is a fact, as before.
        rank = _ranks(block.predicate, DESCRIPTIONS)
        is_text = pc.and_(rank.is_valid(), block.object.is_null())
        stage_descriptions(block.where(is_text), rank.filter(is_text), self.langs, parsed)
        # A sameAs with a literal is not a link; it is rejected with the facts.
        is_link = pc.and_(pc.equal(block.predicate, OWL_SAME_AS), block.object.is_valid())
        links = block.where(is_link)
        self.stage_links(links, parsed)
        return block.where(pc.invert(pc.or_(pc.or_(is_name, is_text), is_link)))

    def stage_links(self, block: Statements, parsed: Parsed) -> None:
        """Stage sameAs statements as links."""
        parsed.stage("links", a=block.subject, b=block.object, line=block.line)

    def stage_facts(self, block: Statements, parsed: Parsed) -> None:
        """Stage statements between IRIs as facts, and reject those with a literal."""
        literal = block.object.is_null()
        reasons = pc.if_else(literal, "object is a literal", pa.scalar(None, pa.string()))
        _reject_rows(block, reasons, parsed)
        block = block.where(pc.invert(literal))
        parsed.stage(
            "facts",
            subject=block.subject,
            relation=block.predicate,
            object=block.object,
            lang=pa.nulls(len(block.line), pa.string()),
            split=pa.nulls(len(block.line), pa.string()),
            line=block.line,
        )


def rdf_sources(paths: Sequence[Path]) -> list[Source]:
    """Return each file with its syntax as the role."""
    return [Source(path, path.name, syntax_of(path)) for path in paths]


def syntax_of(path: Path) -> str:
    """Return `lines`, or the suffix that names one of the other syntaxes.

    A `.ttl` file of plain lines, as DBpedia's are, is read as lines, which is faster.
    """
    suffix = plain_suffix(path)
    if suffix in (".nt", ".nq"):
        return "lines"
    if suffix == ".ttl" and _looks_like_lines(head(path)):
        return "lines"
    if suffix not in _SYNTAXES:
        raise PrixError(f"{path}: expected a file name that ends in {', '.join(_SYNTAXES)}.")
    return suffix


def _looks_like_lines(data: bytes) -> bool:
    # More lines are whole statements than are not: Turtle has prefixes and lists of objects.
    parsed = Parsed(0)
    block = parse_statements(Chunk(0, 1, data), parsed)
    return len(block.line) > parsed.rejected["malformed line"]


def rdf_chunks(source: Source, index: int) -> Iterator[Chunk]:
    """Yield a source as chunks of N-Triples or N-Quads lines, whatever its syntax."""
    if source.role == "lines":
        yield from line_chunks(source, index)
        return
    # The other syntaxes cannot be cut into chunks before they are parsed.
    with SourceReader(source.path) as reader:
        yield from _as_lines(reader, index, _SYNTAXES[source.role], source.limits)


def _as_lines(
    reader: SourceReader, index: int, syntax: ox.RdfFormat, limits: Limits
) -> Iterator[Chunk]:
    """Yield chunks of N-Quads lines from another syntax; a line is a statement."""
    lines: list[str] = []
    number, first, size = 0, 1, 0
    file = _TextReader(reader, syntax == ox.RdfFormat.RDF_XML, limits)
    for text in _statements_of(file, syntax):
        number += 1
        if isinstance(text, SyntaxError):
            # A line that is malformed too takes its place and its number.
            text = "malformed: " + " ".join(str(text).split())
        if not lines:
            first = number
        lines.append(text)
        size += len(text)
        if size >= CHUNK_BYTES:
            yield Chunk(index, first, _joined(lines), done=reader.position())
            lines, size = [], 0
    if lines:
        yield Chunk(index, first, _joined(lines), done=reader.position())
    if file.stopped:
        yield Chunk(index, number + 1, _NOT_READ, broken=file.stopped)
    elif reader.damage is not None:
        damage = reader.damage.encode()
        yield Chunk(index, number + 1, damage, broken="truncated or damaged archive")


class _TextReader:
    """Text for pyoxigraph, which ends where one statement would become too long.

    Bytes that are not UTF-8 are marked: pyoxigraph would stop at the first of them.
    """

    def __init__(self, reader: SourceReader, is_xml: bool, limits: Limits) -> None:
        self._reader = reader
        self._is_xml = is_xml
        self._limits = limits
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = b""  # the start of an entity declaration that is not complete
        self._ready = b""  # checked bytes that are not given out yet
        self._entities: dict[bytes, int] = {}  # bytes that each declared entity expands to
        self._longest = 0  # of the entities
        self._size = 0  # bytes given out for the current statement, with entities expanded
        self.stopped = ""  # why reading ended early

    def start_statement(self) -> None:
        """Count from 0 again: pyoxigraph has finished a statement."""
        self._size = 0

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes."""
        while not self._ready and not self.stopped:
            # A byte may become a mark of three bytes, and the decoder may hold back up to three.
            block = self._reader.read(max(1, size // 3 - 3))
            text = self._decoder.decode(block, final=not block)
            marked = re.sub("[\udc80-\udcff]", _MARK, text).encode()
            self._ready = self._check(marked, final=not block)
            if not block:
                break
        block, self._ready = self._ready[:size], self._ready[size:]
        return block

    def _check(self, block: bytes, final: bool) -> bytes:
        """Count a block, and return what may be given out of it and of what was held back."""
        data = self._held + block
        end = len(data) if final or not self._is_xml else _end_of_declarations(data)
        ready, self._held = data[:end], data[end:]
        for found in _DECLARATION.finditer(ready) if self._is_xml else ():
            self._declare(found[1])
            if self.stopped:  # pyoxigraph expands an entity where it is declared
                return ready[: found.start()]
        if len(self._held) > len(b"<!ENTITY") + self._limits.name:  # no need to wait for its end
            self.stopped = "XML entity too long"
        # Any `&` may be the longest entity.
        self._size += len(ready) + ready.count(b"&") * self._longest
        if self._size > self._limits.line:
            self.stopped = self.stopped or "statement too long"
        return ready

    def _declare(self, body: bytes) -> None:
        """Record the size of an entity: its text with the entities in it expanded."""
        name, value = (*body.strip(b" %\t\r\n").split(None, 1), b"", b"")[:2]
        inner = (self._entities.get(entity, self._longest) for entity in _ENTITY.findall(value))
        size = len(value) + sum(inner)
        self._entities[name] = max(size, self._entities.get(name, 0))
        self._longest = max(size, self._longest)
        if size > self._limits.name:
            self.stopped = "XML entity too long"


def _end_of_declarations(data: bytes) -> int:
    """Return where a declaration begins that may go on in the next block; else the length.

    pyoxigraph takes everything up to the next `<` as one, so only the last `<` can begin it.
    """
    start = data.rfind(b"<")
    is_open = start >= 0 and (
        data.startswith(b"<!ENTITY", start) or b"<!ENTITY".startswith(data[start:])
    )
    return start if is_open else len(data)


def _joined(lines: list[str]) -> bytes:
    """Return lines as a chunk has them, with a byte that is not UTF-8 for each mark."""
    return "\n".join(lines).encode().replace(_MARK.encode(), b"\xff")


def _statements_of(file: _TextReader, syntax: ox.RdfFormat) -> Iterator[str | SyntaxError]:
    """Yield the N-Quads lines of a file in another syntax, with its errors in between."""
    source = cast(IO[bytes], file)  # pyoxigraph only calls `read`
    quads = iter(ox.parse(source, format=syntax, lenient=True, base_iri="file:///"))
    while True:
        try:
            quad = next(quads)
        except StopIteration:
            return
        except MemoryError as error:
            # Not the machine's memory: pyoxigraph holds at most 16 MiB of Turtle at a time.
            if "buffer maximal size" not in str(error):
                raise
            file.stopped = "statement too long"
            return
        except SyntaxError as error:
            if file.stopped:  # the error is that of the missing rest
                return
            file.start_statement()
            yield error
            continue
        file.start_statement()
        # pyoxigraph labels anonymous nodes at random, which would change the rejects file.
        ends = (quad.subject, quad.object)
        subject, object_ = (t if isinstance(t, ox.NamedNode | ox.Literal) else "_:b" for t in ends)
        yield f"{subject} {quad.predicate} {object_} ."


def _parser(_sources: Sequence[Source], _index: int, langs: tuple[str, ...] | None) -> Parser:
    return RdfParser(langs)


RDF = Format(
    name="rdf",
    title="RDF with language-tagged labels (N-Triples, N-Quads, Turtle, TriG, RDF/XML)",
    recognises=lambda path: path.is_file() and plain_suffix(path) in _SYNTAXES,
    sources=rdf_sources,
    chunks=rdf_chunks,
    parser=_parser,
)
