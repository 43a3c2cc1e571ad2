"""Measure the joins of an import: `python benchmarks/merge.py --work FOLDER --lines 10,30,100`.

Staged parts are generated as the parsers would write them, so that no dump has to be parsed:
    editions   one IRI for each language, links between languages, as DBpedia has: of 20 lines, four
               are labels, two links and 14 facts
    items      one key for all languages, as Wikidata has: an item with three labels (of eight
               languages) and five facts, each of which is a triple in 1.5 languages on average
A small file of the first kind is written as N-Triples too, and the import of it compared. Each size
is joined in a process of its own. Disk is the most that the staged parts, DuckDB's scratch files
and the KB took together; everything is deleted afterwards.
"""

import argparse
import json
import multiprocessing
import resource
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prixlm import import_kb
from prixlm.importers.format import STAGED, Account
from prixlm.importers.join import Joins
from prixlm.importers.plan import FORMATS

BLOCK = 4_000_000
"""Rows of a table that are generated at a time."""
EDITIONS = {"en": "Some_thing", "fi": "Jokin_olio", "el": "Κάποιο_πράγμα", "ja": "あるもの"}
SHARES = {"en": 0.9, "de": 0.5, "fr": 0.4, "ja": 0.35, "ru": 0.3, "ar": 0.25, "fi": 0.2, "te": 0.1}
"""Share of the items that each language names."""
RELATIONS = 300


def texts(prefix: str, numbers: np.ndarray) -> pa.Array:
    """Return the prefix with each of the numbers."""
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


class Parts:
    """Writes staged parts, one table in each, and counts their rows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.num_rows, self.num_parts = folder, 0, 0

    def write(self, table: str, **columns: Any) -> None:
        """Write rows of a staged table; columns that are not given are null."""
        number = len(next(iter(columns.values())))
        columns["pos"] = np.arange(self.num_rows, self.num_rows + number)
        names = [name if name != "line" else "pos" for name in STAGED[table].names]
        arrays = []
        for name, kind in zip(names, STAGED[table].types, strict=True):
            value = columns.get(name)
            kind = pa.int64() if name == "pos" else kind
            arrays.append(pa.nulls(number, kind) if value is None else pa.array(value, kind))
        part = self.folder / f"00000-{self.num_parts:06d}"
        part.mkdir(parents=True)
        repeated = [name for name in names if name in ("relation", "lang", "split")]
        pq.write_table(
            pa.table(arrays, names),
            part / f"{table}.parquet",
            compression="lz4",
            use_dictionary=repeated,
            write_statistics=False,
        )
        self.num_rows += number
        self.num_parts += 1


def blocks(number: int) -> list[np.ndarray]:
    """Return the numbers from 0 in blocks."""
    return [np.arange(first, min(first + BLOCK, number)) for first in range(0, number, BLOCK)]


def write_facts(parts: Parts, ends: str, subjects: np.ndarray, size: int, rng: Any) -> None:
    """Write a fact of each subject; few entities are the objects of many facts."""
    objects = (size * rng.random(len(subjects)) ** 3).astype(np.int64)
    relations = (RELATIONS * rng.random(len(subjects)) ** 2).astype(np.int64)
    parts.write(
        "facts",
        subject=texts(ends, subjects),
        relation=texts("http://example.org/ontology/relation", relations),
        object=texts(ends, objects),
    )


def write_editions(parts: Parts, num_lines: int) -> None:
    """Generate parts like those of DBpedia's editions."""
    rng, size = np.random.default_rng(0), max(1, num_lines // 20)
    for lang, title in EDITIONS.items():
        prefix = f"http://example.org/{lang}/{title}_"
        for numbers in blocks(size):
            names = texts(f"{title.replace('_', ' ')} ", numbers)
            same = pa.array([lang]).take(pa.array(np.zeros(len(numbers), np.int8)))
            ranks = np.zeros(len(numbers), np.int8)
            parts.write("names", key=texts(prefix, numbers), lang=same, name=names, rank=ranks)
            linked = numbers[numbers % 3 > 0]
            if lang != "en" and len(linked):
                english = texts(f"http://example.org/en/{EDITIONS['en']}_", linked)
                parts.write("links", a=texts(prefix, linked), b=english)
        num_facts = (num_lines * 7 // 10) // len(EDITIONS)
        for numbers in blocks(num_facts):
            write_facts(parts, prefix, numbers % size, size, rng)


def write_items(parts: Parts, num_lines: int) -> None:
    """Generate parts like those of Wikidata."""
    rng, size = np.random.default_rng(0), max(1, num_lines // 8)
    for numbers in blocks(size):
        for lang, share in SHARES.items():
            named = numbers[rng.random(len(numbers)) < share]
            same = pa.array([lang]).take(pa.array(np.zeros(len(named), np.int8)))
            ranks = np.zeros(len(named), np.int8)
            names = texts(f"an item in {lang} ", named)
            parts.write("names", key=texts("Q", named), lang=same, name=names, rank=ranks)
    for numbers in blocks(5 * size):
        write_facts(parts, "Q", numbers % size, size, rng)


SHAPES = {"editions": write_editions, "items": write_items}


def folder_size(folder: Path) -> int:
    """Return the bytes that the files of a folder take on disk."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512 if path.is_file() else 0
        except FileNotFoundError:  # a scratch file that was deleted meanwhile
            continue
    return total


def join(work: Path, memory: str, num_rows: int) -> dict[str, Any]:
    """Run the joins on WORK/parts; return the seconds of each step, and what all took."""
    for name in ("scratch", "kb"):
        (work / name).mkdir()
    most, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(1.0):
            most[0] = max(most[0], folder_size(work))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    account = Account(read=num_rows)
    joins = Joins(
        parts=work / "parts",
        scratch=work / "scratch",
        out=work / "kb",
        format=FORMATS["rdf"],
        langs=None,
        account=account,
        memory=memory,
    )
    started, seconds = time.perf_counter(), {}
    for step in joins.steps():
        before = time.perf_counter()
        step()
        seconds[step.__name__] = round(time.perf_counter() - before, 1)
    joins.db.close()
    wall = time.perf_counter() - started
    stop.set()
    watcher.join()
    account.check()
    status = Path("/proc/self/status").read_text()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": wall,
        "processor": used.ru_utime + used.ru_stime,
        "mib": int(status.split("VmHWM:")[1].split()[0]) / 1024,
        "disk": max(most[0], folder_size(work)),
        "parts": folder_size(work / "parts"),
        "kb": folder_size(work / "kb"),
        "triples": sum(sum(n.values()) for n in joins.counts["triples"].values()),
        "entities": sum(joins.counts["entities"].values()),
        "steps": seconds,
    }


def join_apart(work: Path, memory: str, num_rows: int) -> dict[str, Any]:
    """Run the joins in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(join, (work, memory, num_rows))


def compare_answers(work: Path, num_lines: int = 20_000) -> None:
    """Check that the import of the same rows as N-Triples gives the same tables."""
    parts = Parts(work / "parts")
    write_editions(parts, num_lines)
    join(work, "1GiB", parts.num_rows)
    label, same = (
        "http://www.w3.org/2000/01/rdf-schema#label",
        "http://www.w3.org/2002/07/owl#sameAs",
    )
    with (work / "same.nt").open("w", encoding="utf-8") as file:
        for path in sorted((work / "parts").rglob("*.parquet")):
            for row in pq.read_table(path).to_pylist():
                if path.stem == "names":
                    file.write(f'<{row["key"]}> <{label}> "{row["name"]}"@{row["lang"]} .\n')
                elif path.stem == "links":
                    file.write(f"<{row['a']}> <{same}> <{row['b']}> .\n")
                else:
                    file.write(f"<{row['subject']}> <{row['relation']}> <{row['object']}> .\n")
    kb = import_kb([work / "same.nt"], work / "imported")
    for name in ("entities", "triples", "links", "relations"):
        ours, theirs = (folder / f"{name}.parquet" for folder in (work / "kb", kb.folder))
        assert ours.read_bytes() == theirs.read_bytes(), name
    print(f"{parts.num_rows:,} generated rows give the tables that the import of a file gives\n")
    shutil.rmtree(work)


def main() -> None:
    """Join each size of each shape, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for parts; it is emptied")
    parser.add_argument("--lines", default="1,3,10", help="millions of lines")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="of: " + ", ".join(SHAPES))
    parser.add_argument("--memory", default="1GiB", help="what DuckDB may use")
    args = parser.parse_args()
    compare_answers(args.work / "small")
    print(
        "| shape | lines | triples | s | processor s | peak MiB | parts MB | most disk MB | KB MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for shape in args.shapes.split(","):
        for millions in map(float, args.lines.split(",")):
            work = args.work / f"{shape}-{millions:g}"
            shutil.rmtree(work, ignore_errors=True)
            parts = Parts(work / "parts")
            SHAPES[shape](parts, int(millions * 1e6))
            found = join_apart(work, args.memory, parts.num_rows)
            sizes = [found[name] / 1e6 for name in ("parts", "disk", "kb")]
            figures = [found["seconds"], found["processor"], found["mib"], *sizes]
            cells = [
                f"{parts.num_rows:,}",
                f"{found['triples']:,}",
                *(f"{x:,.0f}" for x in figures),
            ]
            print(f"| {shape} | {' | '.join(cells)} |", flush=True)
            with (args.work / "results.jsonl").open("a") as file:
                row = {"shape": shape, "lines": parts.num_rows, "memory": args.memory, **found}
                file.write(json.dumps(row) + "\n")
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
