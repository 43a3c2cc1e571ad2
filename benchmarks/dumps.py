"""Small dumps of every format that `prixlm import` reads, cut into many parts, for `kills.py`.

    small_parts()
    sources = make_dumps(folder)

An import cuts a dump into parts of 512 MiB and parses small files without workers. Here parts have
256 KiB, so that dumps of a few MB go through parts, workers and resumed work as large ones do.
"""

import bz2
import gzip
import importlib
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from prixlm.importers import rdf, stage, streams, tables

_GENERATED = importlib.import_module("import")  # import.py, whose name is a keyword

_ITEMS, _LINES, _ENTITIES = 250, 24_000, 3_000
_ABOUT = "http://www.w3.org/2000/01/rdf-schema#label"
_SAME = "http://www.w3.org/2002/07/owl#sameAs"


def small_parts() -> None:
    """Cut dumps into parts of 256 KiB; call it in each process that imports."""
    for module in (rdf, streams, tables):
        vars(module)["CHUNK_BYTES"] = 1 << 16
    stage.PART_CHUNKS, stage._INLINE_BYTES, streams._PARALLEL_BYTES = 4, 0, 0


def make_dumps(folder: Path) -> dict[str, list[Path]]:
    """Return the sources of each format; write them if they are missing."""
    made = {}
    for name, write in _FORMATS.items():
        to = folder / name
        if not to.exists():
            partial = folder / f"{name}.partial"
            partial.mkdir(parents=True)
            write(partial)
            partial.rename(to)
        made[name] = sorted(to.iterdir())
    return made


def _wikidata(folder: Path) -> None:
    plain = folder / "items.json"
    _GENERATED.write_wikidata(plain, _ITEMS, described=True)
    with gzip.open(folder / "items.json.gz", "wb", 5) as file:
        file.write(plain.read_bytes())
    plain.unlink()


def _triples(folder: Path) -> None:
    _GENERATED.write_triples(folder / "facts.nt", _LINES)


def _dbpedia(folder: Path) -> None:
    """Write labels, facts and interlanguage links of two editions, as the Databus has them."""
    rng = random.Random(0)
    for lang, host, word in (("en", "dbpedia.org", "Thing"), ("fi", "fi.dbpedia.org", "Olio")):
        iris = [f"<http://{host}/resource/{word}_{number}>" for number in range(_ENTITIES)]
        lines: dict[str, list[str]] = {"labels": [], "mappingbased-objects": []}
        lines["interlanguage-links"] = []
        for number, iri in enumerate(iris):
            lines["labels"].append(f'{iri} <{_ABOUT}> "{word} {number}"@{lang} .')
            for _ in range(4):
                relation = f"<http://dbpedia.org/ontology/relation{rng.randrange(50)}>"
                fact = f"{iri} {relation} {iris[rng.randrange(_ENTITIES)]} ."
                lines["mappingbased-objects"].append(fact)
            other = f"<http://dbpedia.org/resource/Thing_{number}>"
            if lang != "en" and number % 3:
                lines["interlanguage-links"].append(f"{iri} <{_SAME}> {other} .")
        for kind, rows in lines.items():
            if rows:
                path = folder / f"{kind}_lang={lang}.ttl.bz2"
                path.write_bytes(bz2.compress(("\n".join(rows) + "\n").encode()))


def _rows() -> tuple[pa.Table, pa.Table]:
    """Return facts and links as tables."""
    rng = random.Random(1)
    facts: dict[str, list[str]] = {name: [] for name in ("lang", "subject", "relation", "object")}
    for number in range(6 * _ENTITIES):
        lang, word = ("en", "thing") if number % 2 else ("fi", "olio")
        ends = (f"{word} {number % _ENTITIES}", f"{word} {rng.randrange(_ENTITIES)}")
        row = (lang, ends[0], f"relation {rng.randrange(50)}", ends[1])
        for values, value in zip(facts.values(), row, strict=True):
            values.append(value)
    linked = range(0, _ENTITIES, 3)
    links = {
        "lang_a": ["en"] * len(linked),
        "name_a": [f"thing {number}" for number in linked],
        "lang_b": ["fi"] * len(linked),
        "name_b": [f"olio {number}" for number in linked],
    }
    return pa.table(facts), pa.table(links)


def _tsv(folder: Path) -> None:
    how = pacsv.WriteOptions(delimiter="\t", quoting_style="none")
    for name, table in zip(("facts", "links"), _rows(), strict=True):
        pacsv.write_csv(table, folder / f"{name}.tsv", how)


def _parquet(folder: Path) -> None:
    for name, table in zip(("facts", "links"), _rows(), strict=True):
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=4096)


_FORMATS: dict[str, Callable[[Path], None]] = {
    "wikidata": _wikidata,
    "triples": _triples,
    "dbpedia": _dbpedia,
    "tsv": _tsv,
    "parquet": _parquet,
}
