"""Measure the linking of mentions: `python benchmarks/link.py --names 1000000 --mentions 100000`.

Names are generated from the words of the embedded world KB, in all its languages (see `search.py`).
Mentions are names of the KB with a slip of the keyboard. Our linker romanises and indexes the
names, fits its confidence, and links all mentions, in its own process, with its own peak memory.

The peers are exact and have no index: each compares every mention with every name. They get a
sample, and the time for all is the product, which is printed with its factors. rapidfuzz's `cdist`
compares the romanised names, with the same threads; its best score is compared with ours first.
csv-reconcile answers from its own table, as its service does.
"""

import argparse
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prixlm import KB, import_kb
from prixlm.linking.mentions import MentionLinker
from search import misspell, peak_mib, run_apart, write_kb

_RAPIDFUZZ_MENTIONS = 40
_CSV_MENTIONS, _CSV_NAMES = 2, 50_000


def make_mentions(names: Sequence[str], number: int, seed: int = 1) -> tuple[list[int], list[str]]:
    """Return rows of names, and each name with one letter wrong."""
    rng = random.Random(seed)
    rows = [rng.randrange(len(names)) for _ in range(number)]
    return rows, [misspell(names[row], names[row], 1, rng) for row in rows]


def link(folder: Path, number: int, results: Any) -> None:
    """Link the mentions, and send times, accuracy and peak memory; then those of rapidfuzz."""
    before, started = peak_mib(), time.perf_counter()
    linker = MentionLinker(folder)
    made = time.perf_counter() - started
    rows, mentions = make_mentions(linker.texts, number)
    started = time.perf_counter()
    found = linker.candidates(mentions, 1)
    seconds = time.perf_counter() - started
    right = linker.side.owner[found.row] == linker.side.owner[np.array(rows)[found.mention]]
    sure = found.confidence >= 0.95
    report: dict[str, Any] = {
        "names": len(linker.texts),
        "mentions": number,
        "read, romanise, index and fit (s)": round(made, 1),
        "link (s)": round(seconds, 1),
        "mentions a second": round(number / seconds),
        "accuracy": round(float(right.sum()) / number, 4),
        "precision at 0.95": round(float(right[sure].mean()), 4),
        "recall at 0.95": round(float((right & sure).sum()) / number, 4),
        "peak (MiB)": peak_mib(),
        "peak before (MiB)": before,
    }
    report["rapidfuzz cdist"] = time_rapidfuzz(linker, mentions, number)
    results.put(report)


def time_rapidfuzz(linker: MentionLinker, mentions: Sequence[str], number: int) -> dict[str, Any]:
    """Time `cdist` of some mentions and all names, and compare its best score with our answer's."""
    from rapidfuzz import fuzz, process

    from prixlm.linking.names import Names, NameSide

    asked = NameSide(Names(list(mentions[:_RAPIDFUZZ_MENTIONS]), np.arange(_RAPIDFUZZ_MENTIONS)))
    started = time.perf_counter()
    best = np.zeros(len(asked), np.float32)
    for row, text in enumerate(asked.read):  # one row at a time: a million scores
        [scores] = process.cdist([text], linker.side.read, scorer=fuzz.ratio, workers=-1)
        best[row] = scores.max()
    seconds = time.perf_counter() - started
    found = linker.candidates(mentions[:_RAPIDFUZZ_MENTIONS], 10)
    ours = np.zeros(len(asked), np.float32)
    for mention, row in zip(found.mention.tolist(), found.row.tolist(), strict=True):
        score = fuzz.ratio(asked.read[mention], linker.side.read[row])
        ours[mention] = max(ours[mention], score)
    total = seconds / len(asked) * number
    return {
        "its most similar name is among our ten": round(float((ours >= best - 0.01).mean()), 3),
        "seconds": f"{seconds:.1f} / {len(asked)} x {number:,} = {total:,.0f}",
    }


def time_csv_reconcile(
    names: Sequence[str], mentions: Sequence[str], number: int
) -> dict[str, Any]:
    """Time csv-reconcile's own search on a part of the names and mentions."""
    import csv_reconcile_dice  # noqa: F401  registers its scorer
    from csv_reconcile import score, scorer

    some = list(names[:_CSV_NAMES])
    with tempfile.TemporaryDirectory() as scratch:
        db = sqlite3.connect(Path(scratch) / "names.db")
        db.row_factory = sqlite3.Row
        fields = scorer.getNormalizedFields()
        columns = ", ".join(("id TEXT PRIMARY KEY", "word TEXT", *(f"{f} TEXT" for f in fields)))
        db.execute(f"CREATE TABLE reconcile ({columns})")
        marks = ", ".join("?" * (2 + len(fields)))
        rows = [(str(i), name, *scorer.normalizeRow(name, ())) for i, name in enumerate(some)]
        db.executemany(f"INSERT INTO reconcile VALUES ({marks})", rows)
        started = time.perf_counter()
        score.reconcileStrings(db, list(mentions[:_CSV_MENTIONS]), limit=10)
        seconds = time.perf_counter() - started
    pairs = len(some) * _CSV_MENTIONS
    total = seconds / pairs * number * len(names)
    return {"seconds": f"{seconds:.2f} / {pairs:,} pairs x {number * len(names):,} = {total:,.0f}"}


def main() -> None:
    """Parse the arguments, make the KB, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", type=int, default=1_000_000)
    parser.add_argument("--mentions", type=int, default=100_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "kb"
        write_kb(folder, import_kb([], Path(scratch) / "world", format="world"), args.names)
        report = run_apart(link, folder, args.mentions)
        names = [name for _, texts in KB(folder).all_names() for name in texts]
        mentions = make_mentions(names, _CSV_MENTIONS)[1]
        report["csv-reconcile"] = time_csv_reconcile(names, mentions, args.mentions)
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
