"""Proposals into the user's tools: N-Triples, N-Quads, QuickStatements, TSV, Parquet.

    export_proposals("proposals", "facts.nt")

- `nt`: the facts, and the names of what they are about as labels, so that they can be imported;
  names that were proposed, as labels, and links that were, as owl:sameAs.
- `nq`: the same in a named graph for the run; what is known of a fact (confidence, origin) stands
  beside it, as an RDF statement about it or, with `star`, about a triple term (RDF 1.2); the run
  has its licence and tool.
- `quickstatements`: for Wikidata. A statement there holds in all languages, so only facts that no
  language states are new, each with a reference; and the names that a language lacks, as labels.
- `tsv`: lang, subject, relation, object and what is known of them; `prixlm import` reads it.
- `parquet`: the rows as they are.

The confidence is the fitted one, corrected by all marks of a review. Names and keys come from a KB
and are untrusted text: every format escapes them in its own way.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyoxigraph as ox

from prixlm.enrichment.proposals import SCHEMA, read_manifest
from prixlm.enrichment.review import corrected_confidence, read_marks
from prixlm.errors import PrixError
from prixlm.files import disk_errors, replacing, write_atomically, write_rows

FORMATS = {
    "nt": ".nt",
    "nq": ".nq",
    "quickstatements": ".qs",
    "tsv": ".tsv",
    "parquet": ".parquet",
}
VOCABULARY = "urn:prixlm:ns:"
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_LABEL = ox.NamedNode("http://www.w3.org/2000/01/rdf-schema#label")
_XSD = "http://www.w3.org/2001/XMLSchema#"
_ITEM, _PROPERTY = (re.compile(rf"{letter}[1-9][0-9]*").fullmatch for letter in "QP")
_REFERENCE = re.compile(r"(S854):(https?://[^\s\"|]+)|(S[1-9][0-9]*):(Q[1-9][0-9]*)").fullmatch
_IRI = re.compile(r"(https?://|urn:)\S", re.IGNORECASE).match
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:").match
_UNSAFE = re.compile(r'[\x00-\x20<>"{}|^`\\]')
_ROWS = 1 << 14
_WIKIDATA = {"no": "nb", "egl": "eml"}
"""Languages that Wikidata's labels call otherwise."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Which proposals, and how."""

    format: str
    min_confidence: float = 0.0
    accepted: bool = False  # only what a reviewer accepted
    star: bool = False  # N-Quads with triple terms instead of statements about statements
    base: str = "urn:prixlm:"  # of what has no IRI of its own
    reference: str | None = None  # of QuickStatements: S854:URL or S248:Q1
    lang: str | None = None  # of one language only

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise PrixError(f"--format {self.format}: expected {', '.join(FORMATS)}.")
        if not 0 <= self.min_confidence <= 1:
            raise PrixError(f"--min-confidence {self.min_confidence}: expected 0 to 1.")
        if self.star and self.format != "nq":
            raise PrixError("--star goes with --format nq.")
        if self.format == "quickstatements" and not _REFERENCE(self.reference or ""):
            raise PrixError(
                "Wikidata wants to know where a statement is from: pass --reference S854:URL (a "
                "page that describes your run) or --reference S248:Q1 (an item that it is in)."
            )
        if not _SCHEME(self.base) or _UNSAFE.search(self.base):
            raise PrixError(f"--base {self.base}: expected the beginning of an IRI.")


def export_proposals(folder: Path | str, out: Path | str, config: ExportConfig) -> dict[str, int]:
    """Write proposals that are not rejected; how many were written, and how many were not."""
    folder, out = Path(folder), Path(out)
    manifest = read_manifest(folder)
    if out.exists():
        raise PrixError(f"{out} is already there: move it, or name another file.")
    into = manifest["config"]["into"]
    if config.lang is not None and config.lang not in into:
        raise PrixError(f"--lang {config.lang}: {folder} has proposals in {', '.join(into)}.")
    counts = {"written": 0, "below the confidence": 0, "not accepted": 0}
    tables = _chosen(folder, "proposals", config, counts)
    with disk_errors(out):
        if config.format in ("tsv", "parquet"):
            _write_tables(tables, out, config)
            for name in ("labels", "links"):
                counts[f"{name} (not in this format)"] = sum(
                    1 for _ in _further(folder, name, config)
                )
        elif config.format == "quickstatements":
            counts |= _write_statements(tables, folder, out, config)
        else:
            counts |= _write_rdf(tables, folder, out, manifest, config)
        write_atomically(out.with_name(out.name + ".licence.txt"), _licence(manifest))
    return counts


def _licence(manifest: dict[str, Any]) -> str:
    sources = ", ".join(manifest["sources"]) or "not stated"
    return (
        f"Proposals made by {manifest['tool']} from a knowledge base.\n"
        f"Licence of its data: {manifest['licence']}\nSources: {sources}\n"
        "They are proposals: each is as likely to hold as its confidence says.\n"
    )


def _chosen(
    folder: Path, name: str, config: ExportConfig, counts: dict[str, int]
) -> Iterator[pa.Table]:
    """The rows of a table that are wanted, some at a time."""
    marks = read_marks(folder, name)
    corrected = corrected_confidence(folder, name)
    accepted, rejected = np.zeros(len(corrected), bool), np.zeros(len(corrected), bool)
    for place, mark in marks.items():
        (accepted if mark else rejected)[place] = True
    start = 0
    with pq.ParquetFile(folder / f"{name}.parquet") as file:
        for batch in file.iter_batches(_ROWS):
            rows = slice(start, start + batch.num_rows)
            start = rows.stop
            table = pa.Table.from_batches([batch])
            column = table.schema.get_field_index("confidence")
            sure = pa.array(corrected[rows], pa.float64())
            table = table.set_column(column, table.schema.field(column), sure)
            asked = np.ones(len(sure), bool)
            if config.lang is not None:
                asked = pc.equal(table["lang"], config.lang).to_numpy()
            # What a reviewer accepted is not too unsure.
            enough = (corrected[rows] >= config.min_confidence) | accepted[rows]
            wanted = accepted[rows] if config.accepted else ~rejected[rows]
            counts["below the confidence"] += int((asked & wanted & ~enough).sum())
            counts["not accepted"] += int((asked & ~wanted).sum())
            table = table.filter(pa.array(asked & enough & wanted))
            counts["written"] += table.num_rows
            yield table


_TSV = ["lang", "subject_name", "relation_name", "object_name", "confidence", "why", "origin"]


def _write_tables(tables: Iterator[pa.Table], out: Path, config: ExportConfig) -> None:
    if config.format == "parquet":
        with (
            replacing(out) as temporary,
            pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer,
        ):
            for table in tables:
                writer.write_table(table)
        return
    names = [name.removesuffix("_name") for name in _TSV]
    schema = pa.schema([(name, pa.string()) for name in names])

    def rows() -> Iterator[pa.Table]:
        for table in tables:
            origin = pa.array([" ".join(part) for part in table["origin"].to_pylist()], pa.string())
            columns = [table[name].cast(pa.string()) for name in _TSV[:-1]]
            yield pa.Table.from_arrays([*columns, pa.chunked_array([origin])], schema=schema)

    write_rows(rows(), schema, out, ".tsv")


def to_iri(key: str, base: str, kind: str = "entity") -> ox.NamedNode:
    """A key as an IRI: its own, Wikidata's, or one below `base`."""
    if _ITEM(key):
        return ox.NamedNode(f"http://www.wikidata.org/entity/{key}")
    if _PROPERTY(key):
        return ox.NamedNode(f"http://www.wikidata.org/prop/direct/{key}")
    if _IRI(key):
        try:
            return ox.NamedNode(_UNSAFE.sub(lambda found: quote(found[0]), key))
        except ValueError:  # something else is wrong with it
            pass
    return ox.NamedNode(f"{base}{kind}:{quote(key, safe='/')}")


def _further(folder: Path, name: str, config: ExportConfig) -> Iterator[dict[str, Any]]:
    """The labels or links that are wanted."""
    if (folder / f"{name}.parquet").is_file():
        for table in _chosen(folder, name, config, Counter()):
            yield from table.to_pylist()


def _write_rdf(
    tables: Iterator[pa.Table],
    folder: Path,
    out: Path,
    manifest: dict[str, Any],
    config: ExportConfig,
) -> dict[str, int]:
    """Quad by quad through pyoxigraph, which knows how to escape."""
    is_quads = config.format == "nq"
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    run = ox.NamedNode(f"urn:prixlm:run:{digest[:16]}")
    kind = ox.RdfFormat.N_QUADS if is_quads else ox.RdfFormat.N_TRIPLES
    with replacing(out) as temporary, temporary.open("wb") as file:
        if is_quads:
            ox.serialize(_about_run(run, manifest), file, format=kind)
        for table in tables:
            for row in table.to_pylist():
                if is_quads:
                    ox.serialize(_facts(row, run, config), file, format=kind)
                else:
                    ox.serialize(_triples(row, config), file, format=kind)
        counts = {"labels": 0, "links": 0}
        graph = run if is_quads else ox.DefaultGraph()
        for name in counts:
            for row in _further(folder, name, config):
                triple = _label(row, config) if name == "labels" else _link(row, config)
                quads = [ox.Quad(triple.subject, triple.predicate, triple.object, graph)]
                if is_quads:
                    about = ox.BlankNode(f"{name}{counts[name]}")
                    quads += _about(about, triple, row, run, config)
                ox.serialize(quads, file, format=kind)
                counts[name] += 1
    return counts


def _label(row: dict[str, Any], config: ExportConfig) -> ox.Triple:
    name = ox.Literal(row["name"], language=row["lang"])
    return ox.Triple(to_iri(row["key"], config.base), _LABEL, name)


def _link(row: dict[str, Any], config: ExportConfig) -> ox.Triple:
    same = ox.NamedNode("http://www.w3.org/2002/07/owl#sameAs")
    return ox.Triple(to_iri(row["key"], config.base), same, to_iri(row["other_key"], config.base))


def _triples(row: dict[str, Any], config: ExportConfig) -> Iterator[ox.Triple]:
    """The fact, and the names of its parts."""
    subject, relation, object_ = _parts(row, config)
    yield ox.Triple(subject, relation, object_)
    for node, name in ((subject, "subject"), (relation, "relation"), (object_, "object")):
        if name != "relation" or row["relation_is_named"]:  # else it is no name of this language
            yield ox.Triple(node, _LABEL, ox.Literal(row[f"{name}_name"], language=row["lang"]))


def _parts(
    row: dict[str, Any], config: ExportConfig
) -> tuple[ox.NamedNode, ox.NamedNode, ox.NamedNode]:
    return (
        to_iri(row["subject_key"], config.base),
        to_iri(row["relation_key"], config.base, "relation"),
        to_iri(row["object_key"], config.base),
    )


def _facts(row: dict[str, Any], run: ox.NamedNode, config: ExportConfig) -> Iterator[ox.Quad]:
    """A fact in the graph of its run, and what is known of it."""
    for triple in _triples(row, config):
        yield ox.Quad(triple.subject, triple.predicate, triple.object, run)
    fact = ox.Triple(*_parts(row, config))
    yield from _about(ox.BlankNode(f"p{row['id']}"), fact, row, run, config)


def _about(
    about: ox.BlankNode,
    fact: ox.Triple,
    row: dict[str, Any],
    run: ox.NamedNode,
    config: ExportConfig,
) -> Iterator[ox.Quad]:
    """A statement about a statement: confidence, language, origin, and what the model says."""
    if config.star:
        yield ox.Quad(about, ox.NamedNode(_RDF + "reifies"), fact, run)
    else:
        parts = {"subject": fact.subject, "predicate": fact.predicate, "object": fact.object}
        yield ox.Quad(about, ox.NamedNode(_RDF + "type"), ox.NamedNode(_RDF + "Statement"), run)
        for name, node in parts.items():
            yield ox.Quad(about, ox.NamedNode(_RDF + name), node, run)
    decimal = ox.NamedNode(_XSD + "decimal")
    known = [
        ("confidence", ox.Literal(f"{row['confidence']:.6f}", datatype=decimal)),
        ("language", ox.Literal(row["lang"])),
        *(("statedIn", ox.Literal(lang)) for lang in row.get("origin", ())),
    ]
    if row.get("model_score") is not None:
        known.append(("modelScore", ox.Literal(f"{row['model_score']:.4f}", datatype=decimal)))
    if row.get("runner_up"):
        known.append(("runnerUp", ox.Literal(row["runner_up"], language=row["lang"])))
    for name, value in known:
        yield ox.Quad(about, ox.NamedNode(VOCABULARY + name), value, run)


def _about_run(run: ox.NamedNode, manifest: dict[str, Any]) -> list[ox.Quad]:
    terms = "http://purl.org/dc/terms/"
    texts = {
        terms + "license": manifest["licence"],
        terms + "creator": manifest["tool"],
    }
    about = [(predicate, str(text)) for predicate, text in texts.items()]
    about += [(terms + "source", str(source)) for source in manifest["sources"]]
    return [ox.Quad(run, ox.NamedNode(p), ox.Literal(text)) for p, text in about]


def _source(config: ExportConfig) -> str:
    """The reference of a statement, as QuickStatements writes it."""
    found = _REFERENCE(config.reference or "")
    assert found is not None
    url, address, item, value = found.groups()
    return f'{url}\t"{address}"' if url else f"{item}\t{value}"


def _write_statements(
    tables: Iterator[pa.Table], folder: Path, out: Path, config: ExportConfig
) -> dict[str, int]:
    """QuickStatements, version 1: item, property, value and a reference; item, Lxx, name."""
    counts = {"written": 0, "stated already": 0, "labels": 0, "names with quotation marks": 0}
    source = _source(config)
    seen: set[tuple[str, str, str]] = set()
    with replacing(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        for table in tables:
            for row in table.to_pylist():
                keys = (row["subject_key"], row["relation_key"], row["object_key"])
                _check_ids(_ITEM(keys[0]) and _PROPERTY(keys[1]) and _ITEM(keys[2]), keys[0])
                if row["origin"] or keys in seen:  # a statement holds in every language
                    counts["stated already"] += 1
                    continue
                seen.add(keys)
                file.write("\t".join([*keys, source]) + "\n")
                counts["written"] += 1
        for row in _further(folder, "labels", config):
            _check_ids(_ITEM(row["key"]), row["key"])
            if '"' in row["name"]:  # which QuickStatements cannot write
                counts["names with quotation marks"] += 1
                continue
            name, lang = " ".join(row["name"].split()), _WIKIDATA.get(row["lang"], row["lang"])
            file.write(f'{row["key"]}\tL{lang}\t"{name}"\n')
            counts["labels"] += 1
    return counts


def _check_ids(is_right: object, key: str) -> None:
    if not is_right:
        raise PrixError(
            f"QuickStatements needs Wikidata's ids, and this KB has {key!r}: import Wikidata's "
            "dump, or export another format."
        )
