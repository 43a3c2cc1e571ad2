"""Measure `prixlm complete --queries` on every engine: `python benchmarks/engine.py --work FOLDER`.

The same queries are answered by
    threads    one process with all threads, as without --workers
    local N    N local processes of one thread each
    ray N      Ray on this machine with N workers
The queries are the subjects and relations of DBP-5L's facts, test facts first, then what other
languages state of a subject's concept, and beyond these 252,426 other pairs of an entity and a
relation, drawn by a hash; all are different.
Each is a command of its own. Its start-up is the time for one part (256 queries), taken first, and
the rest is what the queries cost; likewise the processor time of all its processes. The SHA-256 of
the answers has to be the same for all workers.
Without --model, a compact model is trained for about a minute on a sample of the KB.

With --driver, ten answers are made up for each query at once, in one process of its own for each
size. What is left is what grows with the queries beside the model: reading them, cutting them into
parts, writing the parts and joining them.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm import KB, Completer, PretrainConfig, SearchConfig, import_kb, pretrain
from prixlm.decoding.batch import answer_file
from prixlm.threads import usable_cores
from prixlm.types import Answer, Query

DATA = Path(os.environ.get("PRIXLM_DATA", Path(__file__).parents[2] / "shared" / "data"))
PART = 256
MARK = "PRIXLM_BENCHMARK"
_GROWN_UP = 5.0
"""Seconds after which a process has the environment that it will have: it gets it with exec."""
ENGINES: dict[str, tuple[str, ...]] = {
    "threads": (),
    "local 1": ("--workers", "1"),
    "local 2": ("--workers", "2"),
    "ray 1": ("--engine", "ray", "--workers", "1"),
    "ray 2": ("--engine", "ray", "--workers", "2"),
}


def make_model(work: Path) -> Path:
    """Train a compact model on a sample of the triples; about a minute on two cores."""
    folder = work / "model"
    if not folder.exists():
        sample = import_kb([DATA / "dbp5l"], work / "sample", max_triples=5_000)
        config = dataclasses.replace(PretrainConfig.preset("compact"), epochs=1)
        pretrain(sample, folder, config)
    return folder


def write_queries(kb: KB, number: int, path: Path) -> None:
    """Write different questions: of test facts, other facts, other languages' facts, any pair."""
    keys = kb.relation_keys()
    # About twice as many pairs as can be missing, so that not all of them are sorted.
    share = max(1, kb.num_entities * len(keys) // (2 * number))
    rows = kb.query(
        """
        WITH stated AS (
            SELECT lang, subject, relation, min(CASE split WHEN 'test' THEN 0 ELSE 1 END) AS turn
            FROM triples GROUP BY ALL),
        elsewhere AS (
            SELECT ours.lang, ours.id AS subject, t.relation, 2 AS turn
            FROM triples t JOIN entities theirs ON theirs.id = t.subject
            JOIN entities ours ON ours.concept = theirs.concept
            WHERE ours.lang <> t.lang),
        pairs AS (
            SELECT e.lang, e.id AS subject, r.id AS relation, 3 AS turn
            FROM entities e CROSS JOIN relations r
            WHERE hash(e.id::BIGINT * 65536 + r.id) % $share = 0)
        SELECT lang, name, relation
        FROM (SELECT lang, subject, relation, min(turn) AS turn
              FROM (FROM stated UNION ALL FROM elsewhere UNION ALL FROM pairs) GROUP BY ALL) asked
        JOIN (SELECT id, name FROM entities) named ON named.id = asked.subject
        ORDER BY turn, hash(subject * 31 + relation), subject, relation LIMIT $number
        """,
        {"share": share, "number": number},
    ).fetchall()
    if len(rows) < number:
        raise SystemExit(f"{number:,} queries: the KB has {len(rows):,} different ones.")
    columns = {
        "lang": [lang for lang, _, _ in rows],
        "subject": [subject for _, subject, _ in rows],
        "relation": [keys[relation] for _, _, relation in rows],
    }
    pq.write_table(pa.table(columns), path)


class ProcessorTime:
    """Counts the processor seconds of all processes with a mark in their environment.

    Ray's processes are not children of the command, and a process that is killed is not counted by
    its parent: so all are looked at twice a second.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._seconds: dict[tuple[int, float], float] = {}  # by process number and time of birth
        self._others: set[tuple[int, float]] = set()
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):  # it has ended, or is one of the system
                    self._look_at(process)

    def _look_at(self, process: psutil.Process) -> None:
        born = process.create_time()
        key = (process.pid, born)
        if key in self._others:
            return
        if key not in self._seconds and process.environ().get(MARK) != self._mark:
            if time.time() - born > _GROWN_UP:
                self._others.add(key)
            return
        times = process.cpu_times()
        self._seconds[key] = times.user + times.system

    def end(self) -> float:
        """Return the sum."""
        self._stop.set()
        self._watcher.join()
        return sum(self._seconds.values())


def answer(
    model: Path, kb: KB, queries: Path, out: Path, options: Sequence[str]
) -> tuple[float, float]:
    """Run the command in a process of its own; return its seconds, and those of processors."""
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "prixlm", "complete", str(model), "--kb", str(kb.folder)]
    command += ["--queries", str(queries), "--out", str(out), *options]
    mark = uuid.uuid4().hex
    work, started = ProcessorTime(mark), time.perf_counter()
    environment = os.environ | {MARK: mark}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - started, work.end()


class _AtOnce(Completer):
    """Gives every query the same ten answers."""

    @cached_property
    def _answers(self) -> list[Answer]:
        entities = self.kb.entity_range("en")[:10]
        named = enumerate(zip(entities, self.kb.names(entities), strict=True))
        return [Answer(entity, name, -1.0 - rank, rank + 1) for rank, (entity, name) in named]

    def answer(self, queries: Sequence[Query], *_: Any) -> list[Any]:
        return [self._answers] * len(queries)


def _drive(model: Path, kb: Path, queries: Path, out: Path, sender: Connection) -> None:
    """Report the processor seconds and the peak memory of answering a file at once."""
    completer = _AtOnce(model, KB(kb))
    started, wall = time.process_time(), time.perf_counter()
    answer_file(completer, queries, out, SearchConfig())
    # Not `ru_maxrss`: a new process inherits that of the one that started it.
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    sender.send((time.process_time() - started, time.perf_counter() - wall, int(peak) / 1024))


def measure_driver(model: Path, kb: KB, sizes: Sequence[int], work: Path) -> None:
    """Print what the driver's work costs as the queries grow, each size in its own process."""
    print("| queries | s | processor s | µs a query | peak MiB | answers MB |")
    print("|---|---|---|---|---|---|")
    context, results = multiprocessing.get_context("spawn"), []
    for number in sizes:
        queries, out = work / f"queries-{number}.parquet", work / "driver.parquet"
        out.unlink(missing_ok=True)
        receiver, sender = context.Pipe()
        process = context.Process(target=_drive, args=(model, kb.folder, queries, out, sender))
        process.start()
        processor, wall, peak = receiver.recv()
        process.join()
        size = out.stat().st_size
        print(
            f"| {number:,} | {wall:.1f} | {processor:.1f} | {1e6 * processor / number:.0f} "
            f"| {peak:.0f} | {size / 1e6:.1f} |",
            flush=True,
        )
        results.append({"queries": number, "seconds": wall, "processor": processor, "peak": peak})
    (work / "driver.json").write_text(json.dumps(results, indent=1))


def main() -> None:
    """Answer files of each size on each engine, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for KB, model and answers")
    parser.add_argument("--model", type=Path, help="a Prix-LM of DBP-5L")
    parser.add_argument("--queries", default="20000", help="numbers of queries, comma-separated")
    parser.add_argument("--beam", help="beam size of all commands; default: prixlm's own")
    parser.add_argument("--driver", action="store_true", help="measure the driver alone")
    parser.add_argument("--engines", default=",".join(ENGINES), help="of: " + ", ".join(ENGINES))
    arguments = parser.parse_args()
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    folder = work / "kb"
    kb = KB(folder) if folder.exists() else import_kb([DATA / "dbp5l"], folder)
    model = arguments.model or make_model(work)
    sizes = [PART, *map(int, arguments.queries.split(","))]
    print(f"{usable_cores()} usable cores")
    for number in sizes:
        write_queries(kb, number, work / f"queries-{number}.parquet")
    if arguments.driver:
        measure_driver(model, kb, sizes[1:], work)
        return
    print(
        "| engine | queries | s | start-up s | its processor s | queries/s | processor ms a query "
        "| answers MB | SHA-256 |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    results = []
    beam = ("--beam", arguments.beam) if arguments.beam else ()
    answer(model, kb, work / f"queries-{PART}.parquet", work / "answers.parquet", beam)  # caches
    for name in arguments.engines.split(","):
        start, start_work = 0.0, 0.0
        options = (*ENGINES[name], *beam)
        for number in sizes:
            out = work / "answers.parquet"
            queries = work / f"queries-{number}.parquet"
            seconds, work_seconds = answer(model, kb, queries, out, options)
            digest = hashlib.sha256(out.read_bytes()).hexdigest()[:12]
            if number == PART:
                start, start_work = seconds, work_seconds
                continue
            # Beyond start-up.
            rate = (number - PART) / (seconds - start)
            each = 1000 * (work_seconds - start_work) / (number - PART)
            size = out.stat().st_size
            figures = (seconds, start, start_work, rate, each, size / 1e6)
            cells = [name, f"{number:,}", *(f"{figure:.1f}" for figure in figures), digest]
            print(f"| {' | '.join(cells)} |", flush=True)
            values = {"engine": name, "queries": number, "seconds": seconds, "start": start}
            values |= {"processor": work_seconds, "start_processor": start_work}
            results.append(
                values | {"rate": rate, "milliseconds": each, "bytes": size, "sha256": digest}
            )
            (work / "results.json").write_text(json.dumps(results, indent=1))
    by_size = {
        number: {
            r["sha256"] for r in results if r["queries"] == number and r["engine"] != "threads"
        }
        for number in sizes[1:]
    }
    assert all(len(digests) <= 1 for digests in by_size.values()), by_size


if __name__ == "__main__":
    main()
