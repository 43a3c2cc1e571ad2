"""The review queue: time and memory against plain Python over the same rows.

    python benchmarks/review_queue.py                       # 200,000 rows, with the peer
    python benchmarks/review_queue.py --rows 10_000_000     # without it: it would take minutes

Proposals are generated: facts of five languages and 500 relations, and a tenth as many labels. The
peer keeps a list of rows and filters, sorts and counts in Python; its answers are compared first.
Prints the milliseconds of the processor, so that a busy machine matters little, the ratio to the
peer, and the memory of the process.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prixlm.proposals.facets import FacetCount
from prixlm.proposals.marks import Marks, NewMark
from prixlm.proposals.queue import Place, Queue, Selection
from prixlm.proposals.tables import FACT_SCHEMA, FORMAT, GROUP_ROWS, LABEL_SCHEMA

LANGS = ["el", "et", "ja", "te", "yo"]
NUM_RELATIONS = 500
MAX_PEER_ROWS = 1_000_000
BATCH_ROWS = 1 << 16
FILTER = Selection(lang="ja", min_confidence=0.9)

Made = TypeVar("Made")


def peak_gib() -> float:
    """Return the most memory that this process has held."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 2**20


def make_proposals(folder: Path, num_facts: int) -> None:
    """Write a proposals folder, by language and falling confidence like a real one."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    lang = np.sort(generator.integers(0, len(LANGS), num_facts))
    confidence = np.round(generator.beta(4, 1, num_facts), 6)
    confidence = confidence[np.lexsort((-confidence, lang))]
    with pq.ParquetWriter(folder / "proposals.parquet", FACT_SCHEMA, compression="zstd") as out:
        for start in range(0, num_facts, BATCH_ROWS):
            rows = slice(start, min(num_facts, start + BATCH_ROWS))
            batch = fact_batch(generator, rows, lang[rows], confidence[rows])
            out.write_batch(batch, row_group_size=GROUP_ROWS)
    count = num_facts // 10
    labels = {
        "lang": pa.array(LANGS).take(pa.array(generator.integers(0, len(LANGS), count))),
        "concept": pa.array(np.arange(count), pa.int32()),
        "key": numbered("Q", np.arange(count)),
        "name": numbered("label ", np.arange(count)),
        "confidence": pa.array(np.round(generator.random(count), 6)),
        "origin": pa.array([["en"]] * count, pa.list_(pa.string())),
    }
    pq.write_table(pa.table(labels, schema=LABEL_SCHEMA), folder / "labels.parquet")
    manifest = {"format": FORMAT, "config": {"into": LANGS}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def fact_batch(
    generator: np.random.Generator, rows: slice, lang: np.ndarray, confidence: np.ndarray
) -> pa.RecordBatch:
    """Return a batch of facts with random ids."""
    ids = np.arange(rows.start, rows.stop)
    # A few relations have most facts.
    relation = (generator.random(len(ids)) ** 3 * NUM_RELATIONS).astype(np.int32)
    subject, object_ = (generator.integers(0, 1_000_000, len(ids)) for _ in range(2))
    usual = generator.random(len(ids)) < 0.2
    columns = {
        "id": ids,
        "lang": pa.array(LANGS).take(pa.array(lang)),
        "subject": subject,
        "subject_key": numbered("http://example.org/resource/", subject),
        "subject_name": numbered("subject ", subject),
        "relation": relation,
        "relation_key": numbered("http://example.org/ontology/", relation),
        "relation_name": numbered("relation ", relation),
        "relation_is_named": np.ones(len(ids), bool),
        "object": object_,
        "object_key": numbered("http://example.org/resource/", object_),
        "object_name": numbered("object ", object_),
        "confidence": confidence,
        "why": pa.array(["elsewhere", "usual"]).take(pa.array(usual.astype(np.int8))),
        "origin": pa.array([["en", "fr"]] * len(ids), pa.list_(pa.string())),
    }
    arrays = [
        pa.array(columns[field.name]).cast(field.type)
        if field.name in columns
        else pa.nulls(len(ids), field.type)
        for field in FACT_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=FACT_SCHEMA)


def numbered(word: str, numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(word, pa.array(numbers).cast(pa.string()), "")


class SlowQueue:
    """The same answers from a list of rows."""

    def __init__(self, folder: Path) -> None:
        self.rows = []
        for table, file in (("facts", "proposals"), ("labels", "labels")):
            names = ["lang", "confidence", *(["relation", "why"] if table == "facts" else [])]
            found = pq.read_table(folder / f"{file}.parquet", columns=names).to_pylist()
            self.rows += [row | {"place": Place(table, n)} for n, row in enumerate(found)]

    def passes(self, row: dict[str, object], selection: Selection, ignored: str = "") -> bool:
        confidence = row["confidence"]
        assert isinstance(confidence, float)
        return (ignored == "lang" or selection.lang in (None, row["lang"])) and (
            ignored == "confidence" or selection.min_confidence <= confidence
        )

    def select(self, selection: Selection) -> list[Place]:
        """Return the order `certain`."""
        found = [row for row in self.rows if self.passes(row, selection)]
        return [row["place"] for row in sorted(found, key=lambda row: -row["confidence"])]

    def informative(self, selection: Selection) -> list[Place]:
        """Return the order `informative`."""
        found = [row for row in self.rows if self.passes(row, selection)]
        found.sort(key=lambda row: (-row["confidence"], row["place"]))
        found.sort(key=lambda row: distance(row["confidence"]))
        turns: Counter[object] = Counter()
        keyed = []
        for row in found:
            group = row.get("relation", row["place"].table)
            keyed.append((turns[group], row["place"]))
            turns[group] += 1
        return [place for _, place in sorted(keyed, key=lambda pair: pair[0])]

    def facets(self, selection: Selection) -> tuple[Counter[object], ...]:
        """Count by language, relation and kind."""
        langs = (row["lang"] for row in self.rows if self.passes(row, selection, "lang"))
        found = [row for row in self.rows if self.passes(row, selection)]
        relations, kinds = (
            Counter(row[name] for row in found if name in row) for name in ("relation", "why")
        )
        return Counter(langs), relations, kinds


def distance(confidence: float) -> float:
    """Return how far a confidence is from 0.5, in log-odds as the queue measures it."""
    clipped = np.clip(confidence, 1e-4, 1 - 1e-4)
    return float(abs(np.log(clipped / (1 - clipped))))


def timed(work: Callable[[], Made], repeat: int = 3) -> tuple[Made, float]:
    """Return what `work` makes and the processor's milliseconds of its fastest run."""
    best = float("inf")
    for _ in range(repeat):
        started = time.process_time()
        made = work()
        best = min(best, (time.process_time() - started) * 1000)
    return made, best


def fresh(queue: Queue, work: Callable[[], Made]) -> Callable[[], Made]:
    """Return the work without remembered answers, as after a mark."""

    def run() -> Made:
        queue._cache.clear()
        queue._orders.clear()
        return work()

    return run


def measure(folder: Path, with_peer: bool) -> dict[str, dict[str, float]]:
    """Return the milliseconds of each step, and the ratio to the peer where there is one."""
    marks = Marks.open(folder)
    queue, opened = timed(lambda: Queue(folder, marks), repeat=1)
    results = {"open": {"ms": opened}}
    everything = Selection()
    peer, peer_opened = timed(lambda: SlowQueue(folder), repeat=1) if with_peer else (None, 0.0)
    if with_peer:
        results["open"]["peer"] = peer_opened
    for name, selection in (("all", everything), ("ja, 0.9 and more", FILTER)):
        places, ms = timed(fresh(queue, partial(queue.select, selection)))
        results[f"certain, {name}"] = {"ms": ms}
        informative, ms = timed(
            fresh(queue, partial(queue.select, selection, "informative")), repeat=1
        )
        results[f"informative, {name}"] = {"ms": ms}
        facets, ms = timed(fresh(queue, partial(queue.facets, selection)))
        results[f"facets, {name}"] = {"ms": ms}
        if peer is not None:
            slow, ms = timed(partial(peer.select, selection), repeat=1)
            assert places.head(len(places)) == slow
            results[f"certain, {name}"]["peer"] = ms
            slow, ms = timed(partial(peer.informative, selection), repeat=1)
            assert informative.head(len(informative)) == slow
            results[f"informative, {name}"]["peer"] = ms
            counts, ms = timed(partial(peer.facets, selection), repeat=1)
            found: list[dict[Any, FacetCount]] = [facets.langs, facets.relations, facets.kinds]
            for mine, theirs in zip(found, counts, strict=True):
                assert {value: one.count for value, one in mine.items()} == theirs
            results[f"facets, {name}"]["peer"] = ms
    return results | measure_marks(queue, marks)


def measure_marks(queue: Queue, marks: Marks) -> dict[str, dict[str, float]]:
    """Return the milliseconds of steps after one mark, with 200 marks before it."""
    generator = np.random.default_rng(1)
    rows = generator.choice(queue.num_rows("facts"), 220, replace=False).tolist()
    verdicts = np.where(generator.random(220) < 0.7, "accept", "reject").tolist()
    new_marks = [
        NewMark("facts", row, verdict) for row, verdict in zip(rows, verdicts, strict=True)
    ]
    marks.add("Anna", new_marks[:200])
    queue.refresh()
    queue.neighbours(FILTER, "informative", "facts", rows[0])
    seconds: dict[str, list[float]] = {}
    for new_mark in new_marks[200:]:
        steps: dict[str, Callable[[], object]] = {
            "add one mark": partial(marks.add, "Anna", [new_mark]),
            "refresh after it": queue.refresh,
            "refresh without marks": queue.refresh,
            "neighbours, certain": partial(
                queue.neighbours, Selection(), "certain", "facts", new_mark.row
            ),
            "neighbours, informative": partial(
                queue.neighbours, Selection(), "informative", "facts", new_mark.row
            ),
            "facets, all, after it": lambda: queue.facets(Selection()),
            "20 rows in a row": lambda: queue.rows("facts", range(1000, 1020)),
            "20 random rows": lambda: queue.rows(
                "facts", generator.integers(0, queue.num_rows("facts"), 20)
            ),
        }
        for name, step in steps.items():
            seconds.setdefault(name, []).append(timed(step, repeat=1)[1])
    return {name: {"ms": float(np.median(found))} for name, found in seconds.items()}


def main() -> None:
    """Generate, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "proposals")
        make_proposals(folder, args.rows)
        before = peak_gib()
        results = measure(folder, args.rows <= MAX_PEER_ROWS)
    for name, row in results.items():
        line = f"{name:32} {row['ms']:10.1f} ms"
        if "peer" in row:
            line += f"   peer {row['peer']:10.1f} ms, {row['peer'] / row['ms']:6.0f}x"
        print(line)
    print(f"memory: {before:.2f} GiB after generating, at most {peak_gib():.2f} GiB in all")


if __name__ == "__main__":
    main()
