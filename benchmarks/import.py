"""Compare the import with its peers in one run: `python benchmarks/import.py [--sizes 1,3,10]`.

N-Triples are generated: labels, facts and sameAs links in four languages. The whole import (parse,
join, write) is timed beside `rdflib.Graph().parse` and pyoxigraph's iteration, which only parse.
rdflib reads the first million lines at most: it keeps the graph in memory, and its rate does not
rise with size. The answers are compared first, on a small file. Then Wikidata's JSON is imported,
plain and as bz2, and once more with a description in each language, kept and not. Peak memory is
the resident memory of all processes together, where shared pages count once for each process.
"""

import argparse
import bz2
import contextlib
import json
import multiprocessing
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyoxigraph
import rdflib

from prixlm import KB, import_kb
from prixlm.languages import PAPER_LANGUAGES

LANGS = {"en": "Some thing", "fi": "Jokin olio", "el": "Κάποιο πράγμα", "ja": "あるもの"}
LABEL = "<http://www.w3.org/2000/01/rdf-schema#label>"
SAME_AS = "<http://www.w3.org/2002/07/owl#sameAs>"


def iri(lang: str, number: int) -> str:
    """Return the IRI of a generated entity."""
    return f"<http://example.org/{lang}/{LANGS[lang].replace(' ', '_')}_{number}>"


def write_triples(path: Path, num_lines: int, seed: int = 0) -> None:
    """Write a fifth labels, a tenth links, the rest facts: about five for an entity, as DBpedia."""
    rng = random.Random(seed)
    num_entities = max(1, num_lines // 20)
    with path.open("w", encoding="utf-8") as file:
        for count in range(num_lines):
            lang = ("en", "fi", "el", "ja")[count % 4]
            # Pass 0 labels every entity, pass 1 links most of them, the other passes state facts.
            number = (count // 4) % num_entities
            turn = (count // 4) // num_entities
            if turn == 0:
                line = f'{iri(lang, number)} {LABEL} "{LANGS[lang]} {number}"@{lang} .\n'
            elif turn == 1 and lang != "en" and number % 3:
                line = f"{iri(lang, number)} {SAME_AS} {iri('en', number)} .\n"
            else:
                other = int(num_entities * rng.random() ** 3)
                relation = f"<http://example.org/ontology/relation{int(300 * rng.random() ** 2)}>"
                line = f"{iri(lang, number)} {relation} {iri(lang, other)} .\n"
            file.write(line)


def write_wikidata(path: Path, num_items: int, seed: int = 0, described: bool = False) -> None:
    """Write items of about 10 kB in the published layout: labels, aliases, claims, sitelinks.

    described: each label comes with a description of three to seven random words, too.
    """
    rng = random.Random(seed)
    letters = "etaoinshrdlu"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(5_000)]
    codes = [*PAPER_LANGUAGES, "pt", "nl", "pl", "sv", "uk", "ar", "fa", "he", "cs"]
    with path.open("w", encoding="utf-8") as file:
        file.write("[\n")
        for number in range(1, num_items + 1):
            labels = {c: {"language": c, "value": f"item {number} in {c}"} for c in codes}
            aliases = {c: [{"language": c, "value": f"alias {number}"}] for c in codes[::3]}
            claims: dict[str, list[object]] = {}
            for place in range(10):
                target = rng.randrange(1, num_items + 1)
                value = {"entity-type": "item", "numeric-id": target, "id": f"Q{target}"}
                data = {"value": value, "type": "wikibase-entityid"}
                if place % 2:
                    data = {"value": {"time": "+2001-01-01T00:00:00Z"}, "type": "time"}
                claims.setdefault(f"P{place + 1}", []).append(
                    {
                        "mainsnak": {
                            "snaktype": "value",
                            "property": f"P{place + 1}",
                            "hash": f"{rng.getrandbits(160):040x}",
                            "datavalue": data,
                            "datatype": "wikibase-item",
                        },
                        "type": "statement",
                        "id": f"Q{number}${rng.getrandbits(128):032x}",
                        "rank": "normal",
                        "references": [{"hash": f"{rng.getrandbits(160):040x}", "snaks": {}}],
                    }
                )
            links = {f"{c}wiki": {"site": f"{c}wiki", "title": f"Item {number}"} for c in codes}
            item = {"type": "item", "id": f"Q{number}", "labels": labels, "aliases": aliases}
            if described:
                texts = {c: " ".join(rng.choices(words, k=rng.randint(3, 7))) for c in codes}
                values = {c: {"language": c, "value": text} for c, text in texts.items()}
                item["descriptions"] = values
            text = json.dumps({**item, "claims": claims, "sitelinks": links}, ensure_ascii=False)
            file.write(text + (",\n" if number < num_items else "\n"))
        file.write("]\n")


@contextlib.contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Yield a dict that gets the seconds and the peak MiB of this process and its children."""
    result = {"seconds": 0.0, "mib": 0.0}
    stop = threading.Event()
    own = psutil.Process()

    def watch() -> None:
        while not stop.wait(0.1):
            total = 0
            for process in [own, *own.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
            result["mib"] = max(result["mib"], total / 2**20)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    start = time.perf_counter()
    yield result
    result["seconds"] = time.perf_counter() - start
    stop.set()
    watcher.join()


def _measure(task: Callable[..., int], args: tuple[object, ...], results: object) -> None:
    with measured() as figures:
        rows = task(*args)
    results.put((rows, figures["seconds"], figures["mib"]))  # type: ignore[attr-defined]


def run_apart(task: Callable[..., int], *args: object) -> tuple[int, float, float]:
    """Run a task in a new process, and return its rows, seconds and peak MiB."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_measure, args=(task, args, results))
    process.start()
    figures: tuple[int, float, float] = results.get()
    process.join()
    return figures


def parse_with_rdflib(path: Path) -> int:
    """Parse N-Triples with rdflib, and return the number of triples."""
    return len(rdflib.Graph().parse(path, format="nt"))


def parse_with_pyoxigraph(path: Path) -> int:
    """Parse N-Triples with pyoxigraph, and return the number of triples."""
    with path.open("rb") as file:
        return sum(1 for _ in pyoxigraph.parse(file, format=pyoxigraph.RdfFormat.N_TRIPLES))


def import_whole(path: Path, to: Path, descriptions: bool = True) -> int:
    """Import a file, and return the number of rows read."""
    return int(import_kb([path], to, descriptions=descriptions).manifest.account["read"])


def compare_answers(folder: Path) -> None:
    """Check on a small file that our triples are rdflib's that are neither labels nor links."""
    path = folder / "small.nt"
    write_triples(path, 20_000)
    graph = rdflib.Graph().parse(path, format="nt")
    special = {LABEL.strip("<>"), SAME_AS.strip("<>")}
    theirs = {(str(s), str(p), str(o)) for s, p, o in graph if str(p) not in special}
    kb: KB = import_kb([path], folder / "small")
    ours = kb.query(
        "SELECT s.key, r.key, o.key FROM triples t JOIN entities s ON s.id = t.subject "
        "JOIN entities o ON o.id = t.object JOIN relations r ON r.id = t.relation"
    ).fetchall()
    assert set(ours) == theirs and len(ours) == len(theirs)
    print(f"answers equal: {len(theirs):,} triples of rdflib's are ours\n")


def print_row(name: str, rows: int, seconds: float, mib: float, more: str = "") -> None:
    """Print a row of a Markdown table."""
    print(f"| {name} | {rows:,} | {seconds:,.1f} | {rows / seconds:,.0f} | {mib:,.0f} | {more} |")


def benchmark_rdf(folder: Path, sizes: list[float]) -> None:
    """Time the import of N-Triples beside the parsers of rdflib and pyoxigraph."""
    compare_answers(folder)
    print(
        "| N-Triples | lines | s | lines/s | peak MiB | against rdflib |\n|---|---|---|---|---|---|"
    )
    rate = None
    for millions in sizes:
        path = folder / "bench.nt"
        write_triples(path, int(millions * 1_000_000))
        if rate is None:
            figures = run_apart(parse_with_rdflib, path)
            rate = figures[0] / figures[1]
            print_row("rdflib, parse alone", *figures, "1.0")
            print_row("pyoxigraph, iterate alone", *run_apart(parse_with_pyoxigraph, path))
        shutil.rmtree(folder / "kb", ignore_errors=True)
        figures = run_apart(import_whole, path, folder / "kb")
        print_row(
            f"prixlm import, {millions:g} M", *figures, f"{figures[0] / figures[1] / rate:.1f}"
        )
        path.unlink()
    print()


def benchmark_wikidata(folder: Path, num_items: int) -> None:
    """Time the import of Wikidata's JSON, plain and as bz2."""
    path = folder / "wikidata.json"
    write_wikidata(path, num_items)
    packed = folder / "wikidata.json.bz2"
    with path.open("rb") as source, bz2.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    size = path.stat().st_size / 1e6
    print("| Wikidata JSON | items | s | items/s | peak MiB | MB/s, unpacked |")
    print("|---|---|---|---|---|---|")
    for name, file in (("plain", path), ("bz2", packed)):
        shutil.rmtree(folder / "kb", ignore_errors=True)
        _, seconds, mib = run_apart(import_whole, file, folder / "kb")
        print_row(f"prixlm import, {name}", num_items, seconds, mib, f"{size / seconds:.0f}")


def benchmark_descriptions(folder: Path, num_items: int) -> None:
    """Time the import of items with and without descriptions, and weigh the KB."""
    print("\n| Wikidata JSON | items | s | items/s | peak MiB | MB of the KB |")
    print("|---|---|---|---|---|---|")
    path = folder / "described.json"
    for name, described, kept in (
        ("a dump without descriptions", False, True),
        ("with them, --no-descriptions", True, False),
        ("with them", True, True),
    ):
        write_wikidata(path, num_items, described=described)
        shutil.rmtree(folder / "kb", ignore_errors=True)
        _, seconds, mib = run_apart(import_whole, path, folder / "kb", kept)
        size = sum(file.stat().st_size for file in (folder / "kb").iterdir()) / 1e6
        print_row(name, num_items, seconds, mib, f"{size:.1f}")


def main() -> None:
    """Run all benchmarks, or that of descriptions alone."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="1,3,10", help="millions of lines")
    parser.add_argument("--items", type=int, default=30_000, help="Wikidata items")
    parser.add_argument("--only-descriptions", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if not args.only_descriptions:
            benchmark_rdf(Path(name), [float(size) for size in args.sizes.split(",")])
            benchmark_wikidata(Path(name), args.items)
        benchmark_descriptions(Path(name), args.items)


if __name__ == "__main__":
    main()
