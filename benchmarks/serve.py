"""Put load on `prixlm serve`: rates, latencies, errors and memory.

    python benchmarks/serve.py --work WORK --seconds 60            # search and reconcile
    python benchmarks/serve.py --names 1_000_000 --seconds 60      # the same on a generated KB
    python benchmarks/serve.py complete --kb KB --model MODEL      # one by one against batches

The server is a process of its own on a free port, and so is the client, which keeps a connection
for each of its users; both share the cores of this machine. A user asks, reads the answer and asks
the next question. One that is told to come back waits as long as `Retry-After` says. Any other
error fails the benchmark. The processor time of the server for an answer is given beside the clock:
others may use the cores too. Searches are of all kinds of `search.py`, a name typed in part or with
slips; a reconciliation is a batch of ten names with a slip each, as OpenRefine 3.6 sends them.
"""

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import numpy as np
import psutil

from prixlm import KB, import_kb
from prixlm.proposals.work import work_kb
from search import make_kinds, misspell, run_apart, write_kb

PARTS = ("search", "reconcile", "complete")
BATCH = 10
"""Names of a reconciliation."""
NUM_REQUESTS = 2000
"""Different requests of each part; users go through them in turn."""
_START_SECONDS = 900
_ANSWER_SECONDS = 60
_TOLD_TO_WAIT = (429, 503)
_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class Asked:
    """A request of a user."""

    method: str
    path: str
    body: bytes = b""

    def encode(self, host: str) -> bytes:
        """Return the bytes of the request."""
        lines = [
            f"{self.method} {self.path} HTTP/1.1",
            f"Host: {host}",
            "Accept-Encoding: identity",
        ]
        if self.body:
            lines += ["Content-Type: application/x-www-form-urlencoded"]
        lines += [f"Content-Length: {len(self.body)}", "", ""]
        return "\r\n".join(lines).encode() + self.body


# --- the server -----------------------------------------------------------------------------------


@contextlib.contextmanager
def running_server(*options: str) -> Iterator[tuple[str, psutil.Process]]:
    """Start `prixlm serve` on a free port of this machine; yield its address and process."""
    command = [sys.executable, "-m", "prixlm", "serve", *options, "--port", "0"]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            lines = []
            while (line := process.stdout.readline()) and not line.startswith("Ctrl-C"):
                lines.append(line.strip())
            opened = [line.removeprefix("Open ") for line in lines if line.startswith("Open ")]
            if not opened:
                log.seek(0)
                raise SystemExit(f"prixlm serve did not start: {log.read()}")
            yield opened[0].rstrip("/"), psutil.Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def private_mib(process: psutil.Process) -> float:
    """Return the memory of a process without the pages of mapped files."""
    held = process.memory_info()
    return float(held.rss - held.shared) / 2**20


class Memory:
    """The memory of a process, read twice a second in a thread."""

    def __init__(self, process: psutil.Process) -> None:
        self.process = process
        self.seconds: list[float] = []
        self.private: list[float] = []  # MiB without mapped files
        self.whole: list[float] = []  # MiB, mapped files included
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            with contextlib.suppress(psutil.NoSuchProcess):
                self.seconds.append(time.monotonic())
                self.whole.append(self.process.memory_info().rss / 2**20)
                self.private.append(private_mib(self.process))

    def describe(self) -> str:
        """Return how the memory went, in a sentence; growth is by least squares."""
        seconds, private = np.array(self.seconds), np.array(self.private)
        late = seconds >= (seconds[0] + seconds[-1]) / 2
        rate = 60 * np.polyfit(seconds[late] - seconds[0], private[late], 1)[0]
        minutes = (seconds[-1] - seconds[0]) / 60
        return (
            f"Memory over {minutes:.1f} minutes: {self.whole[0]:.0f} MiB at first, "
            f"{self.whole[-1]:.0f} at last, {max(self.whole):.0f} at most; without mapped files "
            f"{private[0]:.0f}, {private[-1]:.0f} and {private.max():.0f}, which grew by "
            f"{rate:+.2f} MiB a minute in the second half."
        )


# --- the client -----------------------------------------------------------------------------------


@dataclass
class Tally:
    """What the users of one measurement met."""

    seconds: list[float] = field(default_factory=list)  # of each answer
    statuses: Counter[str] = field(default_factory=Counter)

    @property
    def wrong(self) -> dict[str, int]:
        """What is neither an answer nor a request to come back later."""
        fine = {"200", *(str(status) for status in _TOLD_TO_WAIT)}
        return {status: count for status, count in self.statuses.items() if status not in fine}


def measure(
    address: str, requests: Sequence[bytes], num_users: int, seconds: float, results: Any
) -> None:
    """Let users ask for some seconds, and send what they met and how long it took in all."""
    tally = Tally()
    host = urlsplit(address)
    waiting = iter(_repeat(requests))

    async def run() -> float:
        started = time.perf_counter()
        until = started + seconds
        users = (_ask_on(host.hostname, host.port, waiting, until, tally) for _ in range(num_users))
        await asyncio.gather(*users)
        return time.perf_counter() - started

    results.put((tally, asyncio.run(run())))


def _repeat(requests: Sequence[bytes]) -> Iterator[bytes]:
    while True:
        yield from requests


async def _ask_on(
    host: str | None, port: int | None, waiting: Iterator[bytes], until: float, tally: Tally
) -> None:
    """Ask one question after the other on one connection, which is opened again if it breaks."""
    while time.perf_counter() < until:
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
        except OSError as error:
            tally.statuses[type(error).__name__] += 1
            await asyncio.sleep(0.1)
            continue
        try:
            while time.perf_counter() < until:
                await _ask(reader, writer, next(waiting), until, tally)
        except (OSError, EOFError, TimeoutError) as error:
            tally.statuses[type(error).__name__] += 1
        finally:
            writer.close()


async def _ask(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: bytes,
    until: float,
    tally: Tally,
) -> None:
    started = time.perf_counter()
    async with asyncio.timeout(_ANSWER_SECONDS):
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in head[1:] if line)
        await reader.readexactly(int(fields["content-length"]))
    status = int(head[0].split()[1])
    if status == 200:
        tally.seconds.append(time.perf_counter() - started)
    elif status in _TOLD_TO_WAIT and "retry-after" in fields:
        left = until - time.perf_counter()
        await asyncio.sleep(max(0.0, min(float(fields["retry-after"]), left)))
    elif status in _TOLD_TO_WAIT:
        tally.statuses[f"{status} without Retry-After"] += 1
        return
    tally.statuses[str(status)] += 1


# --- what is asked --------------------------------------------------------------------------------


def make_requests(part: str, kb: KB, seed: int = 0) -> list[Asked]:
    """Return different requests of a part, in a random order."""
    rng = random.Random(seed)
    if part == "complete":
        return _completions(kb, rng)
    number = NUM_REQUESTS * (BATCH if part == "reconcile" else 1)
    chosen = np.random.default_rng(seed).integers(0, kb.num_entities, number).tolist()
    entities = {entity.id: entity for entity in kb.entities(sorted(set(chosen)))}
    rows = [(entities[i].concept, entities[i].lang, entities[i].name) for i in chosen]
    if part == "reconcile":
        names = [misspell(name, name, 1, rng) for _, _, name in rows]  # letters of its own script
        return [_reconciliation(names[i : i + BATCH]) for i in range(0, len(names), BATCH)]
    kinds = make_kinds(rows, rng)
    del kinds["60 names in one query"]  # nobody types them
    asks = list(kinds.values())
    made = [asks[place % len(asks)](row) for place, row in enumerate(rows)]
    return [
        Asked("GET", "/api/search?" + urlencode({"q": query} | ({"lang": lang} if lang else {})))
        for query, lang in filter(None, made)
    ]


def _reconciliation(names: list[str]) -> Asked:
    queries = {f"q{place}": {"query": name} for place, name in enumerate(names)}
    return Asked("POST", "/reconcile", urlencode({"queries": json.dumps(queries)}).encode())


def _completions(kb: KB, rng: random.Random) -> list[Asked]:
    """Return questions whose subject and relation are those of facts."""
    sql = """
        SELECT DISTINCT triples.lang, entities.key, relations.key
        FROM triples
        JOIN entities ON subject = entities.id JOIN relations ON relation = relations.id
        ORDER BY ALL"""
    rows = kb.query(sql).fetchall()
    return [
        Asked(
            "GET",
            "/api/complete?" + urlencode({"lang": lang, "subject": subject, "relation": relation}),
        )
        for lang, subject, relation in rng.sample(rows, min(NUM_REQUESTS, len(rows)))
    ]


def warm_up(address: str, requests: Sequence[Asked]) -> int:
    """Ask until the server has loaded what it needs; return how many of 20 have an answer."""
    found = 0
    with httpx.Client(base_url=address, timeout=_ANSWER_SECONDS, trust_env=False) as client:
        for asked in requests[:20]:
            answer = _ask_patiently(client, asked)
            if answer.status_code != 200:
                raise SystemExit(f"{asked.path}: {answer.status_code} {answer.text[:300]}")
            found += has_answer(answer.json())
    return found


def _ask_patiently(client: httpx.Client, asked: Asked) -> httpx.Response:
    form = {"Content-Type": "application/x-www-form-urlencoded"} if asked.body else {}
    until = time.monotonic() + _START_SECONDS
    while True:
        answer = client.request(asked.method, asked.path, content=asked.body, headers=form)
        if answer.status_code not in _TOLD_TO_WAIT or time.monotonic() > until:
            return answer
        time.sleep(1)


def has_answer(answer: dict[str, Any]) -> bool:
    """Tell whether anything was found."""
    return bool(
        answer.get("results")
        or answer.get("answers")
        or any(isinstance(value, dict) and value.get("result") for value in answer.values())
    )


# --- the table ------------------------------------------------------------------------------------


def run_part(
    address: str,
    process: psutil.Process,
    requests: Sequence[Asked],
    clients: Sequence[int],
    seconds: float,
) -> None:
    """Measure one part with each number of users, and print a row for each."""
    part = urlsplit(requests[0].path).path
    found = warm_up(address, requests)
    assert found >= 10, f"{part}: only {found} of 20 requests have an answer"
    host = urlsplit(address).netloc
    sent = [asked.encode(host) for asked in requests]
    rates: dict[int, float] = {}
    for num_users in clients:
        before = process.cpu_times()
        tally, took = run_apart(measure, address, sent, num_users, seconds)
        after = process.cpu_times()
        core = after.user + after.system - before.user - before.system
        sent = sent[len(tally.seconds) % len(sent) :] + sent[: len(tally.seconds) % len(sent)]
        rates[num_users] = len(tally.seconds) / took
        p50, p95, p99 = 1000 * np.percentile(tally.seconds or [np.nan], [50, 95, 99])
        told = sum(tally.statuses[str(status)] for status in _TOLD_TO_WAIT)
        print(
            f"| {part} | {num_users} | {rates[num_users]:,.1f} | {p50:,.1f} | {p95:,.1f} | "
            f"{p99:,.1f} | {1000 * core / max(1, len(tally.seconds)):,.1f} | {told:,} | "
            f"{sum(tally.wrong.values())} | {private_mib(process):,.0f} |",
            flush=True,
        )
        if tally.wrong:
            raise SystemExit(f"{part} with {num_users} users: errors {tally.wrong}")
    if part == "/api/complete" and len(rates) > 1:
        one, *others = rates.values()
        print(f"\nCompletion: {max(others) / one:.1f} times the rate of one by one.")


def run(options: list[str], kb: KB, args: argparse.Namespace) -> None:
    """Start the server, measure all parts and print what it held."""
    print(f"\n{kb.num_entities:,} entities in {len(kb.languages)} languages.\n")
    with running_server(*options) as (address, process):
        requests = [make_requests(part, kb) for part in args.parts]
        for asked in requests:  # loading is not part of the memory that must stay flat
            warm_up(address, asked)
        print(
            "| address | users | answers/s | p50 ms | p95 ms | p99 ms | core ms an answer | "
            "told to wait | errors | MiB |"
        )
        print("| --- |" + 9 * " ---: |", flush=True)
        with Memory(process) as memory:
            for asked in requests:
                run_part(address, process, asked, args.clients, args.seconds)
        print(f"\n{memory.describe()}")


def numbers(text: str) -> list[int]:
    """Parse `1,16,64`."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Parse the arguments and measure one KB."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}")
    parser.add_argument("--work", type=Path, help="a work folder of `prixlm enrich`")
    parser.add_argument("--kb", type=Path, help="a KB instead")
    parser.add_argument("--model", type=Path, help="with --kb")
    parser.add_argument("--names", type=int, default=1_000_000, help="of a generated KB otherwise")
    parser.add_argument("--clients", type=numbers, default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row")
    args = parser.parse_args()
    args.parts = args.parts or ["search", "reconcile"]
    if not set(args.parts) <= set(PARTS):
        parser.error(f"PART is one of {', '.join(PARTS)}")
    if args.work is not None:
        run([str(args.work)], work_kb(args.work), args)
    elif args.kb is not None:
        model = [] if args.model is None else ["--model", str(args.model)]
        run(["--kb", str(args.kb), *model], KB(args.kb), args)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "kb"
            world = import_kb([], Path(temporary) / "world", format="world")
            write_kb(folder, world, args.names)
            run(["--kb", str(folder)], KB(folder), args)


if __name__ == "__main__":
    main()
