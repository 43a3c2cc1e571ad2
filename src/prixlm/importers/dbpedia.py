"""DBpedia's dump files: labels, mapping-based objects, interlanguage links and redirects.

The predicates tell what a file holds, so any mixture of files and years works. IRIs are normalised
to one spelling, percent-encoded or not. The host of an IRI is its language, and an entity without a
label is named by its IRI. In files with English IRIs for other languages (`en_uris` in their name)
the language is that of the label.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc

from prixlm.importers.format import Format, Parsed, Parser, Source, clean_names, map_unique
from prixlm.importers.rdf import RDF, RdfParser, Statements, rdf_chunks, rdf_sources
from prixlm.importers.streams import head
from prixlm.languages import normalise

REDIRECTS_TO = "http://dbpedia.org/ontology/wikiPageRedirects"
_RESOURCE = r"^https?://(?:(?P<host>[a-z-]+)\.)?dbpedia\.org/resource/(?P<local>.+)$"
_LONGEST = 10_000  # characters of an IRI that is decoded
_NOT_IN_IRI = frozenset(map(ord, '<>"{}|^`\\%?#[]/')) | frozenset(range(0x21)) | {0x7F}


def decode_iri(iri: str) -> str:
    """Decode the percent-encoded letters of an IRI; encoded delimiters stay encoded."""
    # Each round may leave a new code: `%4%31` is `%41` is `A`. A hostile IRI has as many rounds as
    # letters, so one that is longer than any name stays as it is.
    while len(iri) <= _LONGEST and (decoded := _decode_once(iri)) != iri:
        iri = decoded
    return iri


def _decode_once(iri: str) -> str:
    # After each percent sign come two hex digits, unless it is a stray one.
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
    """Decode an array of IRIs, each distinct one once."""
    if not pc.any(pc.match_substring(iris, "%")).as_py():
        return iris
    return map_unique(iris, lambda iri: decode_iri(iri) if "%" in iri else iri)


def split_iris(iris: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return language and local part of resource IRIs; nulls for all others."""
    match = pc.extract_regex(iris, _RESOURCE)
    absent = pa.scalar(None, pa.string())  # a field of a null struct is not null by itself
    hosts, local = (
        pc.if_else(match.is_valid(), match.field(name), absent) for name in ("host", "local")
    )
    return map_unique(hosts, lambda host: normalise(host) if host else "en"), local


def names_from_iris(iris: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return language and name of resource IRIs: `.../resource/New_York` is "New York"."""
    language, local = split_iris(iris)
    names = pc.replace_substring(local, "_", " ")
    if pc.any(pc.match_substring(names, "%")).as_py():
        names = map_unique(names, lambda name: unquote_to_bytes(name).decode("utf-8", "replace"))
    return language, clean_names(names)


@dataclass(frozen=True)
class DBpediaParser(RdfParser):
    """Parses as `RdfParser`, with normalised IRIs, redirects, and languages told by the host."""

    english_iris: bool = False  # `en_uris` files: an English IRI has names in any language

    def stage_known(self, block: Statements, parsed: Parsed) -> Statements:
        """Stage labels, links and redirects, and return the other statements."""
        # First, so that both spellings of an IRI are the same key in all that follows.
        ends = ("subject", "predicate", "object")
        block = block._replace(**{end: decode_iris(getattr(block, end)) for end in ends})
        rest = super().stage_known(block, parsed)
        is_redirect = pc.and_(pc.equal(rest.predicate, REDIRECTS_TO), rest.object.is_valid())
        moved = rest.where(is_redirect)
        parsed.stage("redirects", key=moved.subject, target=moved.object, line=moved.line)
        return rest.where(pc.invert(is_redirect))

    def stage_links(self, block: Statements, parsed: Parsed) -> None:
        """Stage links between wanted languages."""
        asked = pc.and_(self._asked(block.subject), self._asked(block.object))
        super().stage_links(self._keep(block, asked, parsed), parsed)

    def stage_facts(self, block: Statements, parsed: Parsed) -> None:
        """Stage facts of wanted languages."""
        super().stage_facts(self._keep(block, self._asked(block.subject), parsed), parsed)

    def _asked(self, iris: pa.Array) -> pa.Array:
        """Return False where the host is a language that is not wanted."""
        if self.langs is None:
            return pa.array([True] * len(iris), pa.bool_())
        language, _ = split_iris(iris)
        # Other hosts (Wikidata, an ontology) are kept: two languages may link to the same item.
        known = pa.array([*self.langs, *(["en"] if self.english_iris else [])], pa.string())
        return pc.or_(language.is_null(), pc.is_in(language, known))

    def _keep(self, block: Statements, mask: pa.Array, parsed: Parsed) -> Statements:
        parsed.filter("language not asked for", len(block.line) - (pc.sum(mask).as_py() or 0))
        return block.where(mask)


def _parser(sources: Sequence[Source], index: int, langs: tuple[str, ...] | None) -> Parser:
    return DBpediaParser(langs, english_iris="en_uris" in sources[index].name)


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
    beside=(RDF.name,),  # an ontology, say
    names_from_keys=names_from_iris,
)
