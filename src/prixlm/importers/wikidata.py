"""Wikidata's JSON dump: an array with one entity per line, as in `latest-all.json.bz2`.

An item is a concept: its labels and aliases name it in many languages, its descriptions describe
it, and its statements of best rank whose object is an item are facts. A property's names are the
names of a relation. Each label, alias, description and statement is one row, and so is a line, or a
field of a line, without any of them.

`mul` is Wikidata's label for languages without their own. It names an entity in the wanted
languages that have no label of it and use the script of the text. If all languages are wanted, only
those count in which the entity has a description. `mul` aliases are not used.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from prixlm.importers.format import (
    ALIAS,
    LABEL,
    STAGED,
    VARIANT,
    Chunk,
    Format,
    Parsed,
    Parser,
    Source,
)
from prixlm.importers.streams import CHUNK_BYTES, head, line_chunks, plain_suffix
from prixlm.languages import normalise, script_of_language, script_of_text

# Reasons to reject a row:
MALFORMED_JSON, INVALID_UTF8 = "malformed JSON", "invalid UTF-8"
MALFORMED_ENTITY, MALFORMED_NAME = "malformed entity", "malformed name"
MALFORMED_STATEMENT, LITERAL = "malformed statement", "object is a literal"
UNKNOWN_LANGUAGE, EMPTY_NAME = "unknown language code", "empty name"
MALFORMED_DESCRIPTION, EMPTY_DESCRIPTION = "malformed description", "empty description"
# Reasons to filter a row:
BRACKET, OTHER_TYPE = "array bracket or blank line", "not an item or property"
NO_PARTS, NOT_ASKED = "entity without labels or statements", "language not asked for"
FOR_ALL, ABOUT_PROPERTY = "name for all languages (mul)", "statement about a property"
OF_PROPERTY = "description of a property"
NOT_BEST, NO_VALUE, NOT_ITEM = "not of best rank", "no value", "object is not an item"

_BRACKETS = (b"", b"[", b"]")
_is_item = re.compile(r"Q[1-9][0-9]*").fullmatch
_is_property = re.compile(r"P[1-9][0-9]*").fullmatch
_IDS = {"item": _is_item, "property": _is_property}
_is_entity = re.compile(r"[A-Z][1-9][0-9]*(-[A-Z][1-9][0-9]*)?").fullmatch  # also L7-F2, a form
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True)
class WikidataParser:
    """Parses chunks of lines; `langs` are the wanted languages, None for all."""

    langs: tuple[str, ...] | None

    def __call__(self, chunk: Chunk) -> Parsed:
        assert isinstance(chunk.data, bytes)
        rows = _Rows(chunk.source, self.langs)
        for line, text in enumerate(_lines(chunk.data), chunk.line):
            rows.add_line(line, text)
        return rows.stage()


class _Rows:
    """The rows of one chunk, collected in flat lists and staged at the end.

    Written for speed: flat lists of values instead of a tuple for each row, and `type(x) is`
    instead of `isinstance`, since JSON gives no subclasses.
    """

    def __init__(self, source: int, langs: tuple[str, ...] | None) -> None:
        self.parsed, self.langs = Parsed(source), langs
        self.names: list[Any] = []
        self.relations: list[Any] = []
        self.facts: list[Any] = []
        self.descriptions: list[Any] = []

        @functools.cache
        def language_of(code: str) -> str | None:
            """Return the language; "" if it is not wanted, None if it is unknown."""
            lang = normalise(code)
            return "" if lang and langs is not None and lang not in langs else lang

        self.language_of = language_of

    def stage(self) -> Parsed:
        """Stage the collected rows and return the result of the chunk."""
        staged = {
            "names": self.names,
            "relations": self.relations,
            "facts": self.facts,
            "descriptions": self.descriptions,
        }
        for table, rows in staged.items():
            columns = STAGED[table].names
            # Every len(columns)-th value belongs to the same column.
            self.parsed.stage(table, **{c: rows[i :: len(columns)] for i, c in enumerate(columns)})
        return self.parsed

    def reject(self, reason: str, line: int, *row: object) -> None:
        """Reject a row, shown as JSON."""
        try:
            text = orjson.dumps(row)
        except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes
            text = orjson.dumps(row[:-1])
        self.parsed.reject(reason, line, text)

    def add_line(self, line: int, text: bytes) -> None:
        """Add the rows of one line, stripped of its comma."""
        before = self.parsed.read
        try:
            if text in _BRACKETS:
                self.parsed.filter(BRACKET)
            else:
                self.add_entity(line, text, orjson.loads(text))
        except orjson.JSONDecodeError:
            self.parsed.reject(_json_error(text), line, text)
        self.parsed.read += self.parsed.read == before  # a line without rows counts as one

    def add_entity(self, line: int, text: bytes, entity: Any) -> None:
        """Add the names, descriptions and facts of an item or property."""
        fields = entity if type(entity) is dict else {}
        key, kind, before = fields.get("id"), fields.get("type"), self.parsed.read
        if type(key) is str and type(kind) is str and kind not in _IDS:
            self.parsed.filter(OTHER_TYPE)
            return
        if type(key) is not str or type(kind) is not str or not _IDS[kind](key):
            self.parsed.reject(MALFORMED_ENTITY, line, text)
            return
        # `mul` comes after all other labels: it names only languages that none of them names.
        labels = self.part(key, line, fields, "labels")
        names = self.names_of(key)
        first = len(names)
        for code, term in labels.items():
            if code != "mul":
                self.add_names(key, line, code, [term])
        texts = self.part(key, line, fields, "descriptions")
        if "mul" in labels:
            # The languages of the rows added since `first`: the second of each row's values.
            named = set(names[first + 1 :: len(STAGED["names"])])
            self.add_for_all(key, line, labels["mul"], named, texts)
        for code, terms in self.part(key, line, fields, "aliases").items():
            self.add_names(key, line, code, terms, ALIAS)
        self.add_descriptions(key, line, texts)
        for relation, group in self.part(key, line, fields, "claims").items():
            self.add_statements(key, line, relation, group)
        self.parsed.filter(NO_PARTS, self.parsed.read == before)

    def names_of(self, key: str) -> list[Any]:
        """Return the list that the names of an entity belong to."""
        return self.relations if key[0] == "P" else self.names

    def part(self, key: str, line: int, fields: dict[str, Any], name: str) -> dict[str, Any]:
        """Return a field that maps codes to values; PHP writes an empty one as `[]`."""
        values = fields.get(name, [])
        if type(values) is dict:
            return values
        if values != []:
            self.parsed.read += 1
            self.reject(MALFORMED_ENTITY, line, key, name, values)
        return {}

    def add_names(self, key: str, line: int, code: str, terms: Any, rank: int = LABEL) -> None:
        """Add the label or the aliases in one language."""
        lang = self.language_of(code)
        self.parsed.read += len(terms) if type(terms) is list else 1
        if type(terms) is not list:
            self.reject(MALFORMED_NAME, line, key, code, terms)
        elif lang == "" or code == "mul":
            self.parsed.filter(FOR_ALL if code == "mul" else NOT_ASKED, len(terms))
        else:
            names = self.names_of(key)
            own_rank = VARIANT if rank == LABEL and code != lang else rank
            for term in terms:
                if lang is None:
                    self.reject(UNKNOWN_LANGUAGE, line, key, code, term)
                elif name := _clean(term):
                    names += (key, lang, name, own_rank, line)
                else:
                    reason = EMPTY_NAME if name == "" else MALFORMED_NAME
                    self.reject(reason, line, key, code, term)

    def add_descriptions(self, key: str, line: int, texts: dict[str, Any]) -> None:
        """Add the descriptions of an item, one in each language; those of properties are not."""
        self.parsed.read += len(texts)
        if key[0] == "P":
            self.parsed.filter(OF_PROPERTY, len(texts))
            return
        num_other = 0  # an item may have hundreds, most of them in languages that nobody asked for
        for code, term in texts.items():
            lang = self.language_of(code)
            if lang == "":
                num_other += 1
            elif lang is None:
                self.reject(UNKNOWN_LANGUAGE, line, key, code, term)
            elif text := _clean(term):
                self.descriptions += (key, lang, text, LABEL if code == lang else VARIANT, line)
            else:
                reason = EMPTY_DESCRIPTION if text == "" else MALFORMED_DESCRIPTION
                self.reject(reason, line, key, code, term)
        self.parsed.filter(NOT_ASKED, num_other)

    def add_for_all(
        self, key: str, line: int, term: Any, named: set[str], texts: dict[str, Any]
    ) -> None:
        """Add the label `mul` as a name in each language that takes it.

        named: languages with a label of their own. texts: the descriptions, by language.
        """
        langs: Iterable[str] | None = self.langs
        if langs is None:
            langs = dict.fromkeys(lang for code in texts if (lang := self.language_of(code)))
        # Only languages of its script take the name: Russian does not use Latin letters.
        name = _clean(term)
        script = script_of_text(name or "")
        takers = [x for x in langs if x not in named and script == script_of_language(x) != ""]
        for lang in takers:
            self.names_of(key).extend((key, lang, name, VARIANT, line))
        self.parsed.read += max(1, len(takers))
        if not name:
            self.reject(EMPTY_NAME if name == "" else MALFORMED_NAME, line, key, "mul", term)
        elif not takers:
            self.parsed.filter(FOR_ALL)

    def add_statements(self, key: str, line: int, relation: str, group: Any) -> None:
        """Add the statements of an entity about one property; those of items are facts."""
        if type(group) is not list or not _is_property(relation):
            self.parsed.read += 1
            self.reject(MALFORMED_STATEMENT, line, key, relation, group)
            return
        self.parsed.read += len(group)
        if key[0] == "P":
            self.parsed.filter(ABOUT_PROPERTY, len(group))
            return
        # Wikidata's "truthy" rule: preferred statements if there are any, else normal ones.
        best = "normal"
        for statement in group:
            if type(statement) is dict and statement.get("rank") == "preferred":
                best = "preferred"
        # A statement of another shape than the published one must not end the import.
        for statement in group:
            try:
                object_, reason = _object_of(statement, relation, best)
            except (KeyError, TypeError):
                object_, reason = "", MALFORMED_STATEMENT
            if object_:
                self.facts += (key, relation, object_, None, "train", line)
            elif reason is LITERAL:  # half of all statements, so the sample must be cheap
                kind = statement["mainsnak"]["datavalue"]["type"]
                self.parsed.reject(LITERAL, line, f"{key} {relation}: {kind}")
            elif reason is MALFORMED_STATEMENT:
                self.reject(MALFORMED_STATEMENT, line, key, relation, statement)
            else:
                self.parsed.filter(reason)


def _object_of(statement: Any, relation: str, best: str) -> tuple[str, str]:
    """Return the item that is the object of a statement, or "" and the reason for none.

    Raises KeyError or TypeError if the statement does not have the published shape.
    """
    snak, rank = statement["mainsnak"], statement["rank"]
    kind = snak["snaktype"]
    if snak["property"] != relation or rank not in ("normal", "preferred", "deprecated"):
        return "", MALFORMED_STATEMENT
    if rank != best:
        return "", NOT_BEST
    if kind != "value":
        return "", NO_VALUE if kind in ("somevalue", "novalue") else MALFORMED_STATEMENT
    value, datatype = snak["datavalue"]["value"], snak["datavalue"]["type"]
    if datatype != "wikibase-entityid":
        return "", LITERAL if type(datatype) is str else MALFORMED_STATEMENT
    if "id" in value:
        object_ = value["id"]
    else:  # old dumps give the number only
        object_ = f"{'Q' if value['entity-type'] == 'item' else 'P'}{value['numeric-id']}"
    if _is_item(object_):
        return object_, ""
    return "", NOT_ITEM if _is_entity(object_) else MALFORMED_STATEMENT


def _clean(term: Any) -> str | None:
    """Return the name in a label or alias, on one line and stripped; None if it has no text."""
    text = term.get("value") if type(term) is dict else None
    if type(text) is not str:
        return None
    return (text if text.isprintable() else _CONTROLS.sub(" ", text)).strip()


def _lines(data: bytes) -> list[bytes]:
    return [line.strip(b", \t\r") for line in data.removesuffix(b"\n").split(b"\n")]


def _json_error(text: bytes) -> str:
    """Return why a line is not JSON."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return INVALID_UTF8
    return MALFORMED_JSON  # including lone surrogates, which orjson refuses


def _recognises(path: Path) -> bool:
    if plain_suffix(path) not in (".json", ".ndjson") or not path.is_file():
        return False
    entities = (line for line in _lines(head(path, CHUNK_BYTES)) if line not in _BRACKETS)
    try:
        entity = orjson.loads(next(entities, b""))
    except orjson.JSONDecodeError:
        return False
    return type(entity) is dict and "id" in entity and "type" in entity


def _parser(_sources: Sequence[Source], _index: int, langs: tuple[str, ...] | None) -> Parser:
    return WikidataParser(langs)


WIKIDATA = Format(
    name="wikidata",
    title="Wikidata's JSON dump",
    recognises=_recognises,
    chunks=line_chunks,
    parser=_parser,
    licence="CC0-1.0",
    in_processes=True,
)
