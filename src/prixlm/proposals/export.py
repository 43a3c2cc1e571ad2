"""Export proposals to other tools: N-Triples, N-Quads, QuickStatements, TSV, Parquet.

    export("proposals", "facts.nt", ExportConfig(format="nt"))

- `nt`: facts, with the names of subject, relation and object as labels, so that the file can be
  imported again; proposed names as labels, proposed links as owl:sameAs.
- `nq`: the same in a named graph of the run. Confidence and origin of a fact are statements about
  it: RDF reification or, with `star`, triple terms (RDF 1.2). The graph has licence and tool.
- `quickstatements`: for Wikidata, where a statement holds in all languages. So only facts that no
  language states are written, each with its references, and confidence and origin in the summary.
  Proposed names become labels, but never in place of one that exists.
- `tsv`: language, subject, relation, object, confidence and origin; `prixlm import` reads it.
- `parquet`: the rows as they are.

The confidence is the fitted one, corrected by all marks of a review. Where a reviewer accepted a
proposal with another object or name, that one is written, without a confidence and without the
origin and ranks of what it replaces. Names and keys come from a KB and are untrusted text: every
format escapes them in its own way.

A new format is one function that writes `_Selection` to a file, and a line in `_WRITERS`.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyoxigraph as ox

from prixlm.engine.overwriting import check_new_file
from prixlm.errors import PrixError
from prixlm.files import disk_errors, parquet_rows, replacing, write_atomically, write_rows
from prixlm.kb.store import KB
from prixlm.proposals import quickstatements
from prixlm.proposals.confidence import corrected_confidence
from prixlm.proposals.marks import ACCEPTED, REJECTED, Replacement, read_verdicts
from prixlm.proposals.tables import FACT_SCHEMA, read_manifest, table_path
from prixlm.proposals.work import work_kb
from prixlm.types import Array
from prixlm.untrusted import OBEYED

VOCABULARY = "urn:prixlm:ns:"
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_XSD = "http://www.w3.org/2001/XMLSchema#"
_LABEL = ox.NamedNode("http://www.w3.org/2000/01/rdf-schema#label")
_SAME_AS = ox.NamedNode("http://www.w3.org/2002/07/owl#sameAs")
# Wikidata's ids, such as Q33 and P36.
_ITEM, _PROPERTY = (re.compile(rf"{letter}[1-9][0-9]*").fullmatch for letter in "QP")
# Keys that are IRIs already: others, such as `en:Foo`, only look like one.
_IRI = re.compile(r"(https?://|urn:)\S", re.IGNORECASE).match
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:").match
# Characters that no IRI may have, those that turn the direction of what follows among them (RFC
# 3987, 4.1).
_UNSAFE = re.compile(rf'[{OBEYED}\u200e\u200f <>"{{}}|^`\\]')
_LANG = re.compile(r"[a-z]{2,8}(-[a-z0-9]{1,8})*").fullmatch
_BATCH_ROWS = 1 << 14
_WIKIDATA_CODES = {"no": "nb", "egl": "eml"}
"""Languages whose labels have another code in Wikidata."""
_ABOUT_THE_PROPOSED = (
    "confidence", "model_score", "model_rank", "graph_rank", "runner_up", "runner_up_confidence",
    "similarity",
)  # fmt: skip
"""Columns that say nothing about what a reviewer put in place of the proposed object."""
_KINDS = {"usual": "usual for similar entities", "elsewhere": "another language has an answer"}


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Which proposals are written, and how.

    Example:
        >>> config = prixlm.ExportConfig(format="nq", min_confidence=0.8)
    """

    format: str  # nt, nq, quickstatements, tsv or parquet
    min_confidence: float = 0.0  # leave out proposals below it
    accepted: bool = False  # only proposals that a reviewer accepted
    star: bool = False  # N-Quads with triple terms instead of reification
    base: str = "urn:prixlm:"  # start of the IRI of a key that is not an IRI
    references: tuple[str, ...] = ()  # of QuickStatements, see `parse_reference`
    lang: str | None = None  # only this language
    kb: Path | None = None  # of QuickStatements: a newer KB, whose labels are not overwritten
    reference: InitVar[str | None] = None  # a single one, as in version 0.2

    def __post_init__(self, reference: str | None) -> None:
        if reference is not None:
            object.__setattr__(self, "references", (*self.references, reference))
        if self.format not in _WRITERS:
            raise PrixError(f"--format {self.format}: expected {', '.join(_WRITERS)}.")
        if not 0 <= self.min_confidence <= 1:
            raise PrixError(f"--min-confidence {self.min_confidence}: expected 0 to 1.")
        if self.star and self.format != "nq":
            raise PrixError("--star requires --format nq.")
        if self.format == "quickstatements" and not self.references:
            raise PrixError(
                "Wikidata requires a reference for each statement: pass --reference S854:URL (a "
                "page that states the facts) or --reference S248:Q1 (the item of a source)."
            )
        quickstatements.reference_cells(self.references)  # refuses a malformed one
        if not _SCHEME(self.base) or _UNSAFE.search(self.base):
            raise PrixError(f"--base {self.base}: expected the beginning of an IRI.")


def export(folder: Path | str, to: Path | str, config: ExportConfig) -> dict[str, int]:
    """Write the proposals of a folder to a file; return how many were written, and left out.

    Rejected proposals are left out. A file `TO.licence.txt` is written beside it.

    Example:
        >>> counts = prixlm.export("proposals", "facts.nq", prixlm.ExportConfig(format="nq"))
        >>> counts["written"] > 0
        True
    """
    folder, to = Path(folder), Path(to)
    manifest = read_manifest(folder)
    check_new_file(to)
    into = manifest["config"]["into"]
    if config.lang is not None and config.lang not in into:
        raise PrixError(f"--lang {config.lang}: {folder} has proposals in {', '.join(into)}.")
    selection = _Selection(folder, manifest, config)
    with disk_errors(to):
        counts = _WRITERS[config.format](selection, to)
        write_atomically(to.with_name(to.name + ".licence.txt"), _licence_text(manifest))
    return selection.counts | counts


def _licence_text(manifest: dict[str, Any]) -> str:
    sources = ", ".join(manifest["sources"]) or "not stated"
    return (
        f"Proposals made by {manifest['tool']} from a knowledge base.\n"
        f"Licence of its data: {manifest['licence']}\nSources: {sources}\n"
        "They are proposals: each is as likely to hold as its confidence says.\n"
    )


@dataclass(frozen=True)
class _Selection:
    """The proposals that are wanted, and counts of the facts among them."""

    folder: Path
    manifest: dict[str, Any]
    config: ExportConfig
    counts: dict[str, int] = field(
        default_factory=lambda: {"written": 0, "below the confidence": 0, "not accepted": 0}
    )

    def facts(self) -> Iterator[pa.Table]:
        """Yield the wanted facts in batches, and count all facts."""
        return (batch.table for batch in self._batches("facts"))

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the wanted rows of a table, if the folder has it; count all facts.

        Besides its columns a row has `accepted` and, where a reviewer replaced the object or the
        name, the proposed one: `instead_of` (a name) and `instead_of_key` (None for a label).
        """
        if not self.path(name).is_file():
            return
        for batch in self._batches(name):
            for place, row in enumerate(batch.table.to_pylist()):
                if not _LANG(row["lang"]):  # a part of commands and of literals
                    raise PrixError(
                        f"{self.path(name)}: {row['lang']!r:.60} is not the code of a language, "
                        "such as et. `prixlm enrich` did not write it: run it again."
                    )
                instead = batch.proposed.get(place, (None, None))
                row |= {"instead_of": instead[0], "instead_of_key": instead[1]}
                yield row | {"accepted": bool(batch.accepted[place])}

    def path(self, name: str) -> Path:
        """Return the file of a table."""
        return table_path(self.folder, name)

    def _batches(self, name: str) -> Iterator["_Batch"]:
        """Yield the wanted rows of a table, with the corrected confidence; count all facts."""
        config = self.config
        confidence = corrected_confidence(self.folder, name)
        verdicts = read_verdicts(self.folder, name)
        # (N,) bool over the rows of the whole table. A disputed proposal is still open.
        accepted, rejected = (np.zeros(len(confidence), bool) for _ in range(2))
        accepted[verdicts.where(ACCEPTED)] = True
        rejected[verdicts.where(REJECTED)] = True
        wanted = accepted if config.accepted else ~rejected
        # An accepted proposal is written whatever its confidence.
        confident = (confidence >= config.min_confidence) | accepted
        start = 0
        with pq.ParquetFile(self.path(name)) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                # Where this batch is in the arrays of the whole table.
                rows = slice(start, start + batch.num_rows)
                table = pa.Table.from_batches([batch])
                asked = np.ones(batch.num_rows, bool)
                if config.lang is not None:
                    asked = pc.equal(table["lang"], config.lang).to_numpy()
                column = table.schema.get_field_index("confidence")
                values = pa.array(confidence[rows], pa.float64())
                table = table.set_column(column, table.schema.field(column), values)
                kept = asked & wanted[rows] & confident[rows]
                numbers = np.flatnonzero(kept) + start
                table, proposed = _replace(
                    table.filter(pa.array(kept)), numbers, verdicts.replacements, name
                )
                if name == "facts":
                    below = asked & wanted[rows] & ~confident[rows]
                    self.counts["written"] += len(numbers)
                    self.counts["below the confidence"] += int(below.sum())
                    self.counts["not accepted"] += int((asked & ~wanted[rows]).sum())
                yield _Batch(table, accepted[numbers], proposed)
                start = rows.stop


@dataclass(frozen=True)
class _Batch:
    """Some wanted rows of a table."""

    table: pa.Table
    accepted: Array  # (rows,) bool
    proposed: dict[int, tuple[str, str | None]]  # name and key that were replaced, by place


def _replace(
    table: pa.Table, numbers: Array, replacements: dict[int, Replacement], name: str
) -> tuple[pa.Table, dict[int, tuple[str, str | None]]]:
    """Put what reviewers chose in place of what was proposed, and return that too, by place.

    numbers: (rows,) the rows' numbers in the whole table, by which the replacements go.
    """
    proposed: dict[int, tuple[str, str | None]] = {}
    places = np.flatnonzero(np.isin(numbers, list(replacements)))
    if not len(places):
        return table, proposed
    rows = table.to_pylist()
    for place in places.tolist():
        row, chosen = rows[place], replacements[int(numbers[place])]
        if name == "labels":
            proposed[place] = (row["name"], None)
            row["name"] = chosen.name
        else:
            if not chosen.key:
                raise PrixError(
                    f"row {numbers[place]} of the {name} was accepted as {chosen.name!r}, which is "
                    "not an entity of the KB: choose one, or take the mark back."
                )
            part = "object" if name == "facts" else "other"
            proposed[place] = (row[f"{part}_name"], row[f"{part}_key"])
            row |= {part: chosen.entity, f"{part}_key": chosen.key, f"{part}_name": chosen.name}
        row |= {column: None for column in _ABOUT_THE_PROPOSED if column in row}
        if "origin" in row:
            row["origin"] = []
    return pa.Table.from_pylist(rows, schema=table.schema), proposed


def _count_left_out(selection: _Selection) -> dict[str, int]:
    """Count the labels and links, for a format that holds facts only."""
    return {
        f"{name} (not in this format)": sum(1 for _ in selection.rows(name))
        for name in ("labels", "links")
    }


def _write_parquet(selection: _Selection, to: Path) -> dict[str, int]:
    with (
        replacing(to, new=True) as temporary,
        pq.ParquetWriter(temporary, FACT_SCHEMA, compression="zstd") as writer,
    ):
        for table in selection.facts():
            writer.write_table(table)
    return _count_left_out(selection)


def _write_tsv(selection: _Selection, to: Path) -> dict[str, int]:
    columns = ["lang", "subject_name", "relation_name", "object_name", "confidence", "why"]
    names = [*(column.removesuffix("_name") for column in columns), "origin"]
    schema = pa.schema([(name, pa.string()) for name in names])

    def tables() -> Iterator[pa.Table]:
        for table in selection.facts():
            arrays = [table[column].cast(pa.string()) for column in columns]
            origin = [" ".join(langs or ()) for langs in table["origin"].to_pylist()]
            arrays.append(pa.chunked_array([pa.array(origin, pa.string())]))
            yield pa.Table.from_arrays(arrays, schema=schema)

    write_rows(tables(), schema, to, ".tsv", new=True)
    return _count_left_out(selection)


def to_iri(key: str, base: str, kind: str = "entity") -> ox.NamedNode:
    """Return the IRI of a key: the key itself, Wikidata's, or one that starts with `base`."""
    if _ITEM(key):
        return ox.NamedNode(f"http://www.wikidata.org/entity/{key}")
    if _PROPERTY(key):
        return ox.NamedNode(f"http://www.wikidata.org/prop/direct/{key}")
    if _IRI(key):
        try:
            return ox.NamedNode(_UNSAFE.sub(lambda match: quote(match[0]), key))
        except ValueError:  # not an IRI even when escaped
            pass
    return ox.NamedNode(f"{base}{kind}:{quote(key, safe='/')}")


def _write_ntriples(selection: _Selection, to: Path) -> dict[str, int]:
    return _write_rdf(selection, to, ox.RdfFormat.N_TRIPLES)


def _write_nquads(selection: _Selection, to: Path) -> dict[str, int]:
    return _write_rdf(selection, to, ox.RdfFormat.N_QUADS)


def _write_rdf(selection: _Selection, to: Path, rdf_format: ox.RdfFormat) -> dict[str, int]:
    """Write row by row through pyoxigraph, which escapes all names."""
    config, base = selection.config, selection.config.base
    is_quads = rdf_format == ox.RdfFormat.N_QUADS
    # The same proposals give the same IRI, so two exports of one run are one graph.
    digest = hashlib.sha256((selection.folder / "manifest.json").read_bytes()).hexdigest()
    run = ox.NamedNode(f"urn:prixlm:run:{digest[:16]}")
    graph = run if is_quads else ox.DefaultGraph()
    counts = {"labels": 0, "links": 0}
    with replacing(to, new=True) as temporary, temporary.open("wb") as file:

        def write(triples: list[ox.Triple], about: str, row: dict[str, Any]) -> None:
            """Write triples and, in N-Quads, what is known of the first one."""
            quads = [ox.Quad(t.subject, t.predicate, t.object, graph) for t in triples]
            if is_quads:
                quads += _statement_quads(ox.BlankNode(about), triples[0], row, run, config)
            ox.serialize(quads, file, format=rdf_format)

        if is_quads:
            ox.serialize(_run_quads(run, selection.manifest), file, format=rdf_format)
        for row in selection.rows("facts"):
            write(_fact_triples(row, base), f"p{row['id']}", row)
        for name, to_triple in (("labels", _label_triple), ("links", _link_triple)):
            for row in selection.rows(name):
                write([to_triple(row, base)], f"{name}{counts[name]}", row)
                counts[name] += 1
    return counts


def _fact_triples(row: dict[str, Any], base: str) -> list[ox.Triple]:
    """Return the fact, then the names of its subject, relation and object as labels."""
    nodes = {
        "subject": to_iri(row["subject_key"], base),
        "relation": to_iri(row["relation_key"], base, "relation"),
        "object": to_iri(row["object_key"], base),
    }
    triples = [ox.Triple(*nodes.values())]
    for part, node in nodes.items():
        if part != "relation" or row["relation_is_named"]:  # else the name is of another language
            name = ox.Literal(row[f"{part}_name"], language=row["lang"])
            triples.append(ox.Triple(node, _LABEL, name))
    return triples


def _label_triple(row: dict[str, Any], base: str) -> ox.Triple:
    name = ox.Literal(row["name"], language=row["lang"])
    return ox.Triple(to_iri(row["key"], base), _LABEL, name)


def _link_triple(row: dict[str, Any], base: str) -> ox.Triple:
    return ox.Triple(to_iri(row["key"], base), _SAME_AS, to_iri(row["other_key"], base))


def _statement_quads(
    about: ox.BlankNode,
    fact: ox.Triple,
    row: dict[str, Any],
    run: ox.NamedNode,
    config: ExportConfig,
) -> Iterator[ox.Quad]:
    """Yield what is known of a fact: confidence, language, origin, model score, runner-up.

    Of what a reviewer chose, the language and what was proposed instead.
    """
    if config.star:
        yield ox.Quad(about, ox.NamedNode(_RDF + "reifies"), fact, run)
    else:
        parts = {"subject": fact.subject, "predicate": fact.predicate, "object": fact.object}
        yield ox.Quad(about, ox.NamedNode(_RDF + "type"), ox.NamedNode(_RDF + "Statement"), run)
        for name, node in parts.items():
            yield ox.Quad(about, ox.NamedNode(_RDF + name), node, run)
    decimal = ox.NamedNode(_XSD + "decimal")
    values: list[tuple[str, ox.Literal | ox.NamedNode]] = [
        ("language", ox.Literal(row["lang"])),
        *(("statedIn", ox.Literal(lang)) for lang in row.get("origin") or ()),
    ]
    # A decimal has neither infinities nor NaN, which a table of others may hold.
    if row["confidence"] is not None and math.isfinite(row["confidence"]):
        confidence = ox.Literal(f"{row['confidence']:.6f}", datatype=decimal)
        values.insert(0, ("confidence", confidence))
    if row["instead_of_key"] is not None:
        values.append(("insteadOf", to_iri(row["instead_of_key"], config.base)))
    elif row["instead_of"] is not None:
        values.append(("insteadOf", ox.Literal(row["instead_of"], language=row["lang"])))
    if row.get("model_score") is not None and math.isfinite(row["model_score"]):
        values.append(("modelScore", ox.Literal(f"{row['model_score']:.4f}", datatype=decimal)))
    if row.get("runner_up"):
        values.append(("runnerUp", ox.Literal(row["runner_up"], language=row["lang"])))
    for name, value in values:
        yield ox.Quad(about, ox.NamedNode(VOCABULARY + name), value, run)


def _run_quads(run: ox.NamedNode, manifest: dict[str, Any]) -> list[ox.Quad]:
    """Return licence, tool and sources of the run, as statements about its graph."""
    about = [("license", manifest["licence"]), ("creator", manifest["tool"])]
    about += [("source", source) for source in manifest["sources"]]
    terms = "http://purl.org/dc/terms/"
    return [ox.Quad(run, ox.NamedNode(terms + name), ox.Literal(str(x))) for name, x in about]


def _write_quickstatements(selection: _Selection, to: Path) -> dict[str, int]:
    """Write commands for QuickStatements: statements with references, then labels."""
    stated, again = "stated already", "the same statement for another language"
    existing, misread = "labels that exist", "names that QuickStatements would misread"
    counts = dict.fromkeys((stated, again, "labels", existing, misread), 0)
    references = quickstatements.reference_cells(selection.config.references)
    tool = str(selection.manifest["tool"])
    written: set[tuple[str, ...]] = set()
    with (
        replacing(to, new=True) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for row in selection.rows("facts"):
            keys = (row["subject_key"], row["relation_key"], row["object_key"])
            for key, is_right in zip(keys, (_ITEM, _PROPERTY, _ITEM), strict=True):
                _check_id(key, is_right(key))
            # A statement holds in all languages: Wikidata has it if one language states it.
            if row["origin"] or keys in written:
                counts[stated if row["origin"] else again] += 1
                continue
            written.add(keys)
            file.write(quickstatements.command([*keys, *references], [tool, *_origin(row)]))
        num_facts = len(written)
        # The command sets a label whether the item has one or not, so what has one is left out.
        taken = _named_items(selection)
        for row in selection.rows("labels"):
            _check_id(row["key"], _ITEM(row["key"]))
            item = (row["key"], _WIKIDATA_CODES.get(row["lang"], row["lang"]))
            cell = quickstatements.label_cell(row["name"])
            if item in taken or cell is None:
                counts[existing if item in taken else misread] += 1
                continue
            taken.add(item)
            cells = [item[0], f"L{item[1]}", cell]
            file.write(quickstatements.command(cells, [tool, *_origin(row)]))
            counts["labels"] += 1
    links = sum(1 for _ in selection.rows("links"))
    return counts | {"written": num_facts, "links (not in this format)": links}


def _origin(row: dict[str, Any]) -> list[str]:
    """Return where a fact or label comes from and how likely it is, for the summary of an edit."""
    if row["instead_of"] is not None:
        name, key = quickstatements.shorten(row["instead_of"]), row["instead_of_key"]
        return [f"chosen by a reviewer instead of {name}" + (f" ({key})" if key else "")]
    parts = [f"confidence {row['confidence']:.2f}"]
    if row["accepted"]:
        parts.append("accepted by a reviewer")
    if "why" in row:
        parts.append(_KINDS.get(row["why"], row["why"]))
        ranks = ((name, row[f"{name}_rank"]) for name in ("model", "graph"))
        parts += [f"{name} rank {rank}" for name, rank in ranks if rank is not None]
    elif row["origin"]:
        verb = "written from the name" if row.get("how") == "written" else "name"
        parts.append(f"{verb} in {' '.join(row['origin'])}")
    return parts


def _named_items(selection: _Selection) -> set[tuple[str, str]]:
    """Return the items, with Wikidata's language code, that have a name where one is proposed.

    Known are the names in the proposals themselves and in the KBs at hand. (A KB that withholds
    links proposes names for entities that it has under the same key.)
    """
    if not selection.path("labels").is_file():
        return set()
    with duckdb.connect() as db:
        for name in ("facts", "labels", "links"):
            if selection.path(name).is_file():
                table = parquet_rows(selection.path(name))
                db.execute(f"CREATE VIEW {name} AS SELECT * FROM {table}")
        known = ["SELECT lang, subject_key AS key FROM facts", "SELECT lang, object_key FROM facts"]
        if selection.path("links").is_file():
            known += ["SELECT lang, key FROM links", "SELECT other_lang, other_key FROM links"]
        for kb in _known_kbs(selection):
            entities = parquet_rows(kb.path("entities"))
            known.append(f"SELECT lang, key FROM {entities}")
        rows = db.execute(
            "SELECT DISTINCT key, lang FROM labels "
            f"SEMI JOIN ({' UNION ALL '.join(known)}) USING (lang, key)"
        ).fetchall()
    return {(key, _WIKIDATA_CODES.get(lang, lang)) for key, lang in rows}


def _known_kbs(selection: _Selection) -> list[KB]:
    """Return the KB that was named, and the enriched one if the proposals are in a work folder."""
    kbs = [] if selection.config.kb is None else [KB(selection.config.kb)]
    try:
        kb = work_kb(selection.folder.absolute().parent)
    except PrixError:  # proposals alone, or the KB was moved
        return kbs
    return [*kbs, kb] if kb.fingerprint() == selection.manifest["kb"] else kbs


def _check_id(key: str, is_right: object) -> None:
    if not is_right:
        raise PrixError(
            f"QuickStatements needs Wikidata ids, but this KB has {key!r}: import a Wikidata dump, "
            "or export another format."
        )


_WRITERS: dict[str, Callable[[_Selection, Path], dict[str, int]]] = {
    "nt": _write_ntriples,
    "nq": _write_nquads,
    "quickstatements": _write_quickstatements,
    "tsv": _write_tsv,
    "parquet": _write_parquet,
}
"""The export formats. Each writer returns counts to add to those of the facts."""
