"""DBpedia's dump files: labels, mapping-based objects, interlanguage links and redirects.

Which file is which follows from the predicates in it, so any mixture of files and years works. An
IRI is brought to one spelling (percent-encoded or not, they meet); its host is its language, and an
entity without a label is named by its IRI. With English IRIs in other languages' files (`en_uris`)
the language is that of the label.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc

from prixlm.kb.rdf import RDF, RdfParser, Statements, rdf_chunks, rdf_sources
from prixlm.kb.staging import Format, Parsed, Parser, Source
from prixlm.kb.streams import head
from prixlm.languages import normalise

REDIRECTS_TO = "http://dbpedia.org/ontology/wikiPageRedirects"
_RESOURCE = r"^https?://(?:(?P<host>[a-z-]+)\.)?dbpedia\.org/resource/(?P<local>.+)$"
_NOT_IN_IRI = frozenset(map(ord, '<>"{}|^`\\%')) | frozenset(range(0x21)) | {0x7F}


def map_unique(values: pa.Array, function: object) -> pa.Array:
    """Apply a Python function to each distinct string of `values`."""
    assert callable(function)
    encoded = values.dictionary_encode()
    mapped = [None if v is None else function(v) for v in encoded.dictionary.to_pylist()]
    return pa.array(mapped, pa.string()).take(encoded.indices)


def decode_iri(iri: str) -> str:
    """`iri` with percent-encoded letters as letters; encoded delimiters stay encoded."""
    pieces = iri.split("%")
    decoded = bytearray(pieces[0].encode())
    for piece in pieces[1:]:
        code = unquote_to_bytes("%" + piece[:2])
        if len(code) == 1 and code[0] not in _NOT_IN_IRI:
            decoded += code + piece[2:].encode()
        else:
            decoded += b"%" + piece[:2].upper().encode() + piece[2:].encode()
    try:
        return decoded.decode()
    except UnicodeDecodeError:
        return iri


def decode_iris(iris: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring(iris, "%")).as_py():
        return iris
    return map_unique(iris, lambda iri: decode_iri(iri) if "%" in iri else iri)


def split_iris(iris: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Language and local part of resource IRIs; nulls for all others."""
    match = pc.extract_regex(iris, _RESOURCE)
    hosts = match.field("host")
    return map_unique(hosts, lambda host: normalise(host) if host else "en"), match.field("local")


def names_from_iris(iris: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Language and name of resource IRIs: `.../resource/New_York_City` is "New York City"."""
    language, local = split_iris(iris)
    names = pc.replace_substring(local, "_", " ")
    if pc.any(pc.match_substring(names, "%")).as_py():
        names = map_unique(names, lambda name: unquote_to_bytes(name).decode("utf-8", "replace"))
    return language, pc.utf8_trim_whitespace(names)


@dataclass(frozen=True)
class DBpediaParser(RdfParser):
    """As any RDF, with IRIs in one spelling, redirects, and languages told by the host."""

    def stage_known(self, block: Statements, parsed: Parsed) -> Statements:
        ends = ("subject", "predicate", "object")
        block = block._replace(**{end: decode_iris(getattr(block, end)) for end in ends})
        rest = super().stage_known(block, parsed)
        is_redirect = pc.and_(pc.equal(rest.predicate, REDIRECTS_TO), rest.object.is_valid())
        moved = rest.where(is_redirect)
        parsed.stage("redirects", key=moved.subject, target=moved.object, line=moved.line)
        return rest.where(pc.invert(is_redirect))

    def stage_links(self, block: Statements, parsed: Parsed) -> None:
        asked = pc.and_(self._asked(block.subject), self._asked(block.object))
        super().stage_links(self._keep(block, asked, parsed), parsed)

    def stage_facts(self, block: Statements, parsed: Parsed) -> None:
        super().stage_facts(self._keep(block, self._asked(block.subject), parsed), parsed)

    def _asked(self, iris: pa.Array) -> pa.Array:
        """False where the host is a language nobody asked for (English IRIs can have any name)."""
        if self.langs is None:
            return pa.array([True] * len(iris), pa.bool_())
        language, _ = split_iris(iris)
        known = pa.array([*self.langs, "en"], pa.string())
        return pc.or_(language.is_null(), pc.is_in(language, known))

    def _keep(self, block: Statements, mask: pa.Array, parsed: Parsed) -> Statements:
        parsed.filter("language not asked for", len(block.line) - (pc.sum(mask).as_py() or 0))
        return block.where(mask)


def _parser(_sources: Sequence[Source], _index: int, langs: tuple[str, ...] | None) -> Parser:
    return DBpediaParser(langs)


def _recognises(path: Path) -> bool:
    return RDF.recognises(path) and b"dbpedia.org/resource/" in head(path)


DBPEDIA = Format(
    name="dbpedia",
    title="DBpedia dump files (labels, mapping-based objects, interlanguage links, redirects)",
    recognises=_recognises,
    sources=rdf_sources,
    chunks=rdf_chunks,
    parser=_parser,
    licence="CC BY-SA 3.0 and GFDL (DBpedia)",
    names_from_keys=names_from_iris,
)
