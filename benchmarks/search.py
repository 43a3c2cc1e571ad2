"""Measure the search of names: `python benchmarks/search.py --names 1000000` or `--kb KB`.

Names are generated from the words of the embedded world KB, in all its languages; a fifth of them
are aliases. Every kind of query is timed on one core, with the share of queries whose own concept
is among the first ten. The peer is `rapidfuzz.process.extract` over all names, which is exact; its
best score is compared with ours first. Build and search run in processes of their own, so that each
has its own peak memory.
"""

import argparse
import functools
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from prixlm import KB, import_kb
from prixlm.entities.names import NameIndex, build_names, fold
from prixlm.kb.store import Manifest
from prixlm.kb.writer import write_table
from prixlm.romanise import romanise

_SPACELESS = ("ja", "zh", "th")
_ALIASES = 5
"""One name in this many is an alias."""
_LANGS_OF_A_CONCEPT = 4
_PEER_QUERIES = 20
_WITHOUT_ANSWER = ("like nothing", "60 names in one query")


def peak_mib() -> float:
    """The most memory that this process has held, mapped files included."""
    text = Path("/proc/self/status").read_text()
    return round(int(text.split("VmHWM:")[1].split()[0]) / 2**10)


def make_names(words: list[str], lang: str, count: int, rng: random.Random) -> list[str]:
    """Return names of one to four words, with the frequent words in many of them."""
    gap = "" if lang in _SPACELESS else " "
    names = []
    for _ in range(count):
        length = rng.choice((1, 2, 2, 2, 3, 3, 4))
        chosen = [words[int(len(words) * rng.random() ** 2)] for _ in range(length)]
        if rng.random() < 0.5:  # a word that is nowhere else: the halves of two
            one, other = rng.choice(words), rng.choice(words)
            chosen[0] = one[: (len(one) + 1) // 2] + other[len(other) // 2 :]
        names.append(gap.join(chosen))
    return names


def write_kb(folder: Path, world: KB, num_names: int, seed: int = 0) -> None:
    """Write a KB of generated names, four of each concept, and a few facts."""
    rng = random.Random(seed)
    langs = world.languages
    num_entities = (num_names - num_names // _ALIASES) // len(langs) * len(langs)
    each = num_entities // len(langs)
    folder.mkdir(parents=True)
    vocabulary = {}
    for lang in langs:
        names = next(world.batches("entities", ["name"], langs=[lang])).column(0).to_pylist()
        vocabulary[lang] = sorted({word for name in names for word in name.split()})
        rng.shuffle(vocabulary[lang])
    with write_table(folder, "entities") as table:
        for place, lang in enumerate(langs):
            first = place * each
            numbers = np.arange(each)
            table.write(
                id=first + numbers,
                key=[f"{lang}:{number}" for number in range(each)],
                lang=[lang] * each,
                name=make_names(vocabulary[lang], lang, each, rng),
                concept=numbers + each * (place // _LANGS_OF_A_CONCEPT),
            )
    owners = np.sort(np.array([rng.randrange(num_entities) for _ in range(num_names // _ALIASES)]))
    with write_table(folder, "aliases") as table:
        of_lang = [langs[owner // each] for owner in owners.tolist()]
        names = [make_names(vocabulary[lang], lang, 1, rng)[0] for lang in of_lang]
        table.write(entity=owners, name=names)
    generator = np.random.default_rng(seed)
    subjects = np.sort((num_entities * generator.random(num_entities) ** 3).astype(int))
    with write_table(folder, "triples") as table:
        table.write(
            lang=[langs[subject // each] for subject in subjects.tolist()],
            subject=subjects,
            relation=np.zeros(num_entities, int),
            object=subjects // each * each + generator.integers(0, each, num_entities),
            split=["train"] * num_entities,
        )
    with write_table(folder, "relations") as table:
        table.write(id=[0], key=["r"], name=["relation"])
    for name in ("relation_names", "links"):
        with write_table(folder, name):
            pass
    num_facts = np.bincount(subjects // each, minlength=len(langs)).tolist()
    num_groups = -(-len(langs) // _LANGS_OF_A_CONCEPT)
    counts: dict[str, Any] = {
        "entities": dict.fromkeys(langs, each),
        "triples": {lang: {"train": num} for lang, num in zip(langs, num_facts, strict=True)},
        "aliases": len(owners),
        "concepts": num_groups * each,
        "relations": 1,
        "links": 0,
        "linked": dict.fromkeys(langs, each),
    }
    Manifest(counts=counts, sources=[], licence="CC0", tool="benchmark").write(folder)


def misspell(text: str, letters: str, num_typos: int, rng: random.Random) -> str:
    """Return a text with letters dropped, added, replaced or swapped."""
    for _ in range(num_typos):
        at = rng.randrange(len(text))
        changed = rng.choice(
            (
                text[:at] + text[at + 1 :],
                text[:at] + rng.choice(letters) + text[at:],
                text[:at] + rng.choice(letters) + text[at + 1 :],
                text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :],
            )
        )
        text = changed if len(changed) > 1 else text
    return text


Row = tuple[int, str, str]  # concept, language, name
Ask = Callable[[Row], tuple[str, str | None] | None]  # query and language; None: no such query


def make_kinds(rows: list[Row], rng: random.Random) -> dict[str, Ask]:
    """Return how to make a query of each kind from a name."""
    letters = {lang: "".join({*"".join(n for _, k, n in rows if k == lang)}) for _, lang, _ in rows}

    def spelled(num_typos: int, within: bool = False) -> Ask:
        def ask(row: Row) -> tuple[str, str | None] | None:
            _, lang, name = row
            if len(name) < 4:
                return None
            return misspell(name, letters[lang], num_typos, rng), lang if within else None

        return ask

    def long(row: Row) -> tuple[str, str | None]:
        return " ".join(name for _, _, name in rng.sample(rows, 60)), None

    def reading(row: Row) -> tuple[str, str | None] | None:
        [read] = romanise([row[2]])
        return (read, None) if read and read != fold(row[2]) else None

    def middle(row: Row) -> tuple[str, str | None] | None:
        return (row[2][2:-1], None) if len(row[2]) > 6 else None

    return {
        "exact": lambda row: (row[2], None),
        "1 letter typed": lambda row: (row[2][:1], None),
        "2 letters typed": lambda row: (row[2][:2], None),
        "4 letters typed": lambda row: (row[2][:4], None),
        "last word": lambda row: (row[2].split()[-1], None),
        "substring": middle,
        "romanised": reading,
        "1 typo": spelled(1),
        "2 typos": spelled(2),
        "2 typos, in one language": spelled(2, within=True),
        "like nothing": lambda row: ("".join(rng.choices("qxzjkwvy", k=12)), None),
        "60 names in one query": long,
    }


class Times:
    """How long calls take by the clock, and how long the core worked: others may use it too."""

    def __init__(self) -> None:
        self.clock: list[float] = []
        self.core: list[float] = []

    def call(self, work: Callable[[], Any]) -> Any:
        """Time a call and return its result."""
        clock, core = time.perf_counter(), time.thread_time()
        result = work()
        self.core.append(time.thread_time() - core)
        self.clock.append(time.perf_counter() - clock)
        return result

    def __iadd__(self, other: "Times") -> "Times":
        self.clock += other.clock
        self.core += other.core
        return self

    def report(self) -> dict[str, float]:
        """Return the medians and the 95th percentiles, in milliseconds."""
        figures: dict[str, float] = {}
        for name, values in (("ms", self.clock), ("ms of the core", self.core)):
            p50, p95 = 1000 * np.percentile(values, [50, 95])
            figures |= {f"p50 {name}": round(p50, 1), f"p95 {name}": round(p95, 1)}
        return figures


def time_queries(names: NameIndex, rows: list[Row], number: int) -> dict[str, Any]:
    """Time each kind of query, and count those that find the concept they were made from."""
    rng = random.Random(1)
    report: dict[str, Any] = {}
    everything = Times()
    for kind, ask in make_kinds(rows, rng).items():
        times, found = Times(), 0
        for row in rng.sample(rows, min(number, len(rows))):
            asked = ask(row)
            if asked is None:
                continue
            hits = times.call(functools.partial(names.search, asked[0], 10, asked[1]))
            # A namesake is as right: most generated names of one word have some.
            found += any(h.concept == row[0] or fold(h.name) == fold(row[2]) for h in hits)
        report[kind] = times.report()
        if kind not in _WITHOUT_ANSWER:
            report[kind]["recall@10"] = round(found / len(times.clock), 3)
        everything += times
    times = Times()
    for _, _, name in rng.sample(rows, number):
        times.call(functools.partial(names.candidates, [misspell(name, "aeiou", 1, rng)]))
    return {"all kinds": everything.report(), **report, "candidates": times.report()}


def compare(names: NameIndex, rows: list[Row]) -> dict[str, Any]:
    """Ask the peer for the ten most similar of all names, and compare the best one with ours."""
    from rapidfuzz import fuzz, process

    texts = [fold(name) for _, _, name in rows]
    rng = random.Random(2)
    chosen = rng.sample([text for text in texts if len(text) > 5], _PEER_QUERIES)
    queries = [misspell(text, "aeiou", 1, rng) for text in chosen]
    ours, theirs = Times(), Times()
    as_good = 0
    for query in queries:  # in turn, so that noise meets both
        peer = functools.partial(process.extract, query, texts, scorer=fuzz.ratio, limit=10)
        best = theirs.call(peer)
        hits = ours.call(functools.partial(names.search, query, 10))
        as_good += max((hit.score for hit in hits), default=0.0) >= best[0][1] - 1e-6
    assert as_good >= 0.9 * len(queries), as_good
    ratio = sum(theirs.core) / sum(ours.core)
    report = {"best as similar": as_good / len(queries), "ratio": round(ratio, 1)}
    return report | {"ours": ours.report(), "rapidfuzz": theirs.report()}


def build(kb: Path, results: Any) -> None:
    """Build the index, and send the seconds, the disk space and the peak memory."""
    before = peak_mib()
    started = time.perf_counter()
    names = build_names(KB(kb))
    seconds = time.perf_counter() - started
    core = time.process_time()
    size = sum(path.stat().st_size for path in names.folder.rglob("*") if path.is_file())
    report = {"names": len(names), "seconds": round(seconds, 1), "seconds of cores": round(core, 1)}
    report |= {"MiB on disk": round(size / 2**20)}
    results.put(report | {"peak MiB": peak_mib(), "MiB at start": before})


def search(kb: Path, number: int, results: Any) -> None:
    """Search on one core, and send the times and the peak memory."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    names = build_names(KB(kb))
    names.search("warm up the imports")
    before = peak_mib()
    sample = np.random.default_rng(3).permutation(KB(kb).num_entities)[: 20 * number]
    rows = [(e.concept, e.lang, e.name) for e in KB(kb).entities(sample.tolist())]
    timed = time_queries(names, rows, number)
    # Memory is that of the search; the peer holds all names in memory after it.
    memory = {"MiB at start": before, "peak MiB": peak_mib()}
    everyone = [(e.concept, e.lang, e.name) for e in KB(kb).entities(range(KB(kb).num_entities))]
    results.put(timed | {"memory": memory, "peer": compare(names, everyone)})


def run_apart(task: Callable[..., None], *args: Any) -> Any:
    """Run a task in a new process, and return what it sends."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=task, args=(*args, results))
    process.start()
    report = results.get()
    process.join()
    return report


def main() -> None:
    """Parse the arguments, make the KB and print the figures of build and search."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", type=int, default=1_000_000)
    parser.add_argument("--kb", type=Path, help="measure this KB instead; its index is built again")
    parser.add_argument("--queries", type=int, default=200, help="of each kind")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        kb = Path(temporary) / "kb"
        if args.kb is None:
            world = import_kb([], Path(temporary) / "world", format="world")
            write_kb(kb, world, args.names)
        else:
            shutil.copytree(args.kb, kb, ignore=shutil.ignore_patterns("names", "tokens"))
        print("build", json.dumps(run_apart(build, kb)), flush=True)
        print(json.dumps(run_apart(search, kb, args.queries), indent=1))


if __name__ == "__main__":
    main()
