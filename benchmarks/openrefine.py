"""Reconcile Greek names with the English part of DBP-5L in OpenRefine: accuracy and time.

    python benchmarks/openrefine.py --names 500

OpenRefine itself is the client (Debian's package, headless, on this machine, driven over its HTTP
API): it makes a project of Greek names, reconciles them with `prixlm serve`, takes the best
candidate of rows that score at least 50, adds two properties, and exports the rows. The KB has
English names and facts alone, so the server has never seen a Greek name; links of the whole KB say
who is right. The same OpenRefine then reconciles the same names with PyPI's `csv-reconcile`, once
as they are and once romanised by us. A third peer compares all romanised names with rapidfuzz.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rapidfuzz import fuzz, process

from prixlm import KB, import_kb
from prixlm.languages import script_of_text
from prixlm.metrics import reliability
from prixlm.romanise import romanise
from serve import running_server

DBP5L = Path(__file__).parents[2] / "shared" / "data" / "dbp5l"
SCORE = 50
"""Score from which the best candidate is taken by hand, as a person does with the facet."""
_START_SECONDS = 120
_STEP_SECONDS = 1800
_ALL_ROWS = {"facets": [], "mode": "row-based"}


@dataclass(frozen=True)
class Question:
    """A Greek name, and the keys of the English entities that it is linked to."""

    name: str
    right: frozenset[str]


@dataclass(frozen=True)
class Judged:
    """What OpenRefine knows of a cell."""

    best: str  # empty if there are no candidates
    score: float
    match: str  # empty if it is not matched


def choose_names(both: KB, number: int, seed: int) -> list[Question]:
    """Return Greek names of linked entities, each name once; both: Greek and English."""
    rows = both.query("""
        SELECT greek.name, list(DISTINCT english.key)
        FROM entities AS greek JOIN entities AS english USING (concept)
        WHERE greek.lang = 'el' AND english.lang = 'en'
        GROUP BY greek.name ORDER BY greek.name""").fetchall()
    chosen = random.Random(seed).sample(rows, min(number, len(rows)))
    return [Question(name, frozenset(map(plain, keys))) for name, keys in chosen]


def plain(key: str) -> str:
    """Return a key without the line number that tells entities with one IRI apart."""
    return re.sub(r"#\d+$", "", key)


# --- servers --------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], folder: Path, ready: str) -> Iterator[None]:
    """Run a server in a folder until the context ends; ready: an address that then answers."""
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(ready, trust_env=False).status_code == 200:
                    break
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{command[0]} did not start: {(folder / 'log').read_text()}")
            time.sleep(0.2)
        yield
    finally:
        # A script that starts Java does not hand on its signals: end the whole group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


@contextlib.contextmanager
def running_csv_reconcile(folder: Path, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Serve keys and names with csv-reconcile and its own scorer; yield the address."""
    folder.mkdir()
    lines = ["id\tname", *(f"{key}\t{name}" for key, name in rows)]
    (folder / "names.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    port = free_port()
    settings = [f'SERVER_NAME = "127.0.0.1:{port}"', 'CSVENCODING = "utf-8"']
    settings += [r'CSVKWARGS = {"delimiter": "\t", "quoting": 3}']
    (folder / "settings.py").write_text("\n".join(settings))
    tool = [sys.executable, "-m", "csv_reconcile"]
    init = [*tool, "init", "--config", "settings.py", "names.tsv", "id", "name"]
    subprocess.run(init, cwd=folder, check=True, capture_output=True)
    address = f"http://127.0.0.1:{port}/reconcile"
    with running([*tool, "serve"], folder, address):
        yield address


# --- OpenRefine -----------------------------------------------------------------------------------


class Project:
    """A project of one running OpenRefine, with the columns `row` and `name`."""

    def __init__(self, address: str, names: Sequence[str]) -> None:
        self.client = httpx.Client(base_url=address, timeout=120, trust_env=False)
        lines = ["row\tname", *(f"{row}\t{name}" for row, name in enumerate(names))]
        options = {"separator": "\t", "encoding": "UTF-8", "headerLines": 1, "processQuotes": False}
        made = self.client.post(
            "/command/core/create-project-from-upload",
            params={"csrf_token": self._token()},
            data={
                "project-name": "names",
                "format": "text/line-based/*sv",
                "options": json.dumps(options | {"guessCellValueTypes": False}),
            },
            files={"project-file": ("names.tsv", "\n".join(lines).encode(), "text/plain")},
        )
        self.number = made.headers["location"].partition("project=")[2]

    def _token(self) -> str:
        return str(self.client.get("/command/core/get-csrf-token").json()["token"])

    def run(self, command: str, **values: Any) -> float:
        """Run a command until its processes are done; return the seconds."""
        data = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
        started = time.perf_counter()
        answer = self.client.post(
            f"/command/core/{command}",
            params={"csrf_token": self._token(), "project": self.number},
            data=data,
        ).json()
        if answer["code"] not in ("ok", "pending"):
            raise SystemExit(f"OpenRefine: {command}: {answer}")
        while time.perf_counter() - started < _STEP_SECONDS:
            waiting = self.client.get(
                "/command/core/get-processes", params={"project": self.number}
            ).json()["processes"]
            if not waiting:
                return time.perf_counter() - started
            time.sleep(0.05)
        raise SystemExit(f"OpenRefine: {command} was not done after {_STEP_SECONDS} s.")

    def reconcile(self, service: str) -> float:
        """Reconcile the names with a service, as its dialog does; return the seconds."""
        manifest = httpx.get(service, timeout=300, trust_env=False).json()
        config = {
            "mode": "standard-service",
            "service": service,
            "identifierSpace": manifest["identifierSpace"],
            "schemaSpace": manifest["schemaSpace"],
            "type": None,
            "autoMatch": True,
            "columnDetails": [],
            "limit": 0,
        }
        return self.run("reconcile", columnName="name", engine=_ALL_ROWS, config=config)

    def take_best(self, score: float) -> float:
        """Match the rows whose best candidate has a score; return the seconds."""
        facet = {
            "type": "range",
            "name": "score",
            "columnName": "name",
            "expression": "cell.recon.best.score",
            "from": score,
            "to": 101,
            "selectNumeric": True,
            "selectNonNumeric": False,
            "selectBlank": False,
            "selectError": False,
        }
        engine = {"facets": [facet], "mode": "row-based"}
        return self.run("recon-match-best-candidates", columnName="name", engine=engine)

    def extend(self, service: str, properties: Sequence[dict[str, str]]) -> float:
        """Add a column for each property; return the seconds."""
        manifest = httpx.get(service, trust_env=False).json()
        return self.run(
            "extend-data",
            baseColumnName="name",
            endpoint=service,
            identifierSpace=manifest["identifierSpace"],
            schemaSpace=manifest["schemaSpace"],
            extension={"properties": list(properties)},
            columnInsertIndex="2",
            engine=_ALL_ROWS,
        )

    def export(self, **expressions: str) -> list[dict[str, Any]]:
        """Return the rows with the value of each expression."""
        fields = (f'"{name}": {{{{jsonize({text})}}}}' for name, text in expressions.items())
        answer = self.client.post(
            "/command/core/export-rows",
            data={
                "project": self.number,
                "format": "template",
                "engine": json.dumps(_ALL_ROWS),
                "template": "{" + ", ".join(fields) + "}",
                "prefix": "[",
                "separator": ",",
                "suffix": "]",
            },
        )
        rows: list[dict[str, Any]] = json.loads(answer.text)
        return rows

    def judged(self) -> list[Judged]:
        """Return the best candidate and the match of each row."""
        recon = 'cells["name"].recon'
        rows = self.export(
            row='cells["row"].value',
            best=f"{recon}.best.id",
            score=f"{recon}.best.score",
            match=f"{recon}.match.id",
        )
        assert [row["row"] for row in rows] == [str(place) for place in range(len(rows))]
        return [
            Judged(plain(row["best"] or ""), float(row["score"] or 0), plain(row["match"] or ""))
            for row in rows
        ]


# --- figures --------------------------------------------------------------------------------------


def describe(what: str, questions: Sequence[Question], rows: Sequence[Judged], took: float) -> None:
    """Print a row: how many are found first, and how many are matched and right."""
    right = [row.best in asked.right for asked, row in zip(questions, rows, strict=True)]
    greek = [script_of_text(asked.name) == "Grek" for asked in questions]
    of_greek = np.mean([fine for fine, is_greek in zip(right, greek, strict=True) if is_greek])
    matched = [
        row.match in asked.right for asked, row in zip(questions, rows, strict=True) if row.match
    ]
    shown = f"{len(matched)} | {np.mean(matched):.1%}" if matched else "0 | "
    print(f"| {what} | {np.mean(right):.1%} | {of_greek:.1%} | {shown} | {took:.1f} |", flush=True)


def describe_scores(what: str, questions: Sequence[Question], rows: Sequence[Judged]) -> None:
    """Print how scores and the share that is right agree, in five bands."""
    right = np.array([row.best in asked.right for asked, row in zip(questions, rows, strict=True)])
    score = np.array([row.score for row in rows]) / 100
    bands = np.minimum(4, (5 * score).astype(int))
    for band in sorted(set(bands.tolist())):
        chosen = bands == band
        print(
            f"| {what} | {20 * band} to {20 * band + 20} | {chosen.sum()} | "
            f"{score[chosen].mean():.1%} | {right[chosen].mean():.1%} |"
        )
    gap = reliability(score, right).ece
    print(f"| {what} | all | {len(rows)} | {score.mean():.1%} | {right.mean():.1%} |")
    print(f"\nCalibration error: {gap:.1%}\n")


def compare_all(questions: Sequence[Question], english: Sequence[tuple[str, str]]) -> list[Judged]:
    """Return the most similar of all names in Latin letters, by rapidfuzz."""
    names = romanise([name for _, name in english])
    asked = romanise([question.name for question in questions])
    found = (process.extractOne(name, names, scorer=fuzz.ratio) for name in asked)
    return [Judged(plain(english[place][0]), score, "") for _, score, place in found]


def check_values(kb: KB, project: Project, properties: Sequence[dict[str, str]]) -> tuple[int, int]:
    """Compare the added values with the facts of the KB; return matched rows and values."""
    stated: dict[tuple[str, str], set[str]] = defaultdict(set)
    facts = kb.query("""
        SELECT subjects.key, relations.key, objects.key FROM triples
        JOIN entities AS subjects ON subject = subjects.id
        JOIN entities AS objects ON object = objects.id
        JOIN relations ON relation = relations.id""").fetchall()
    for subject, relation, thing in facts:
        stated[subject, relation].add(thing)
    columns = {f"v{i}": f'cells["{p["name"]}"].recon.match.id' for i, p in enumerate(properties)}
    rows = project.export(row='cells["row"].value', match='cells["name"].recon.match.id', **columns)
    added: dict[tuple[str, str], set[str]] = defaultdict(set)
    owner, owners = None, set()
    for row in rows:
        if row["row"] is not None:  # further values of an entity are rows without a number
            owner = row["match"]
        if owner is None:
            assert all(row[name] is None for name in columns)
            continue
        owners.add(owner)
        for name, asked in zip(columns, properties, strict=True):
            if row[name] is not None:
                added[owner, asked["id"]].add(row[name])
    for owner in owners:
        for asked in properties:
            assert added[owner, asked["id"]] == stated[owner, asked["id"]], (owner, asked)
    return len(owners), sum(len(values) for values in added.values())


def ask_in_python(service: str, questions: Sequence[Question]) -> tuple[list[Judged], float]:
    """Reconcile the names with PyPI's `reconciler`; return the answers and the seconds."""
    import pandas as pd  # type: ignore[import-untyped]
    from reconciler import reconcile  # type: ignore[import-untyped]

    started = time.perf_counter()
    names = pd.Series([question.name for question in questions])
    frame = reconcile(names, reconciliation_endpoint=service)
    took = time.perf_counter() - started
    found = {row["input_value"]: row for row in frame.to_dict("records")}
    rows = []
    for question in questions:
        row = found[question.name]
        best = plain(row["id"]) if isinstance(row["id"], str) else ""  # NaN: nothing was found
        rows.append(Judged(best, float(row["score"]), best if row["match"] is True else ""))
    return rows, took


def run(scratch: Path, number: int, seed: int) -> None:
    """Make the KBs, start all servers in turn and print the tables."""
    kb = import_kb([DBP5L], scratch / "en", langs=["en"])
    questions = choose_names(import_kb([DBP5L], scratch / "both", langs=["el", "en"]), number, seed)
    english = kb.query("SELECT key, name FROM entities ORDER BY id").fetchall()
    names = [question.name for question in questions]
    num_greek = sum(script_of_text(name) == "Grek" for name in names)
    print(f"{len(names)} names, {num_greek} in Greek letters; {len(english):,} English entities.\n")
    port = free_port()
    (scratch / "refine").mkdir()
    command = ["openrefine", "-i", "127.0.0.1", "-p", str(port), "-m", "1024M"]
    command += ["-d", str(scratch / "refine"), "-x", "refine.headless=true"]
    refine = f"http://127.0.0.1:{port}"
    with running(command, scratch, f"{refine}/command/core/get-version"):
        print("| service | first is right | of those in Greek letters | matched | right | s |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        with running_server("--kb", str(kb.folder)) as (address, _):
            service = f"{address}/reconcile/en"
            project = Project(refine, names)
            took = project.reconcile(service)
            ours = project.judged()
            describe("prixlm", questions, ours, took)
            took = project.take_best(SCORE)
            describe(f"prixlm, and best above {SCORE}", questions, project.judged(), took)
            proposed = httpx.get(f"{service}/extend/propose", trust_env=False).json()["properties"]
            took = project.extend(service, proposed[:2])
            num_matched, num_values = check_values(kb, project, proposed[:2])
            rows, took_python = ask_in_python(service, questions)
            assert [row.best for row in rows] == [row.best for row in ours]
            describe("prixlm, asked by `reconciler`", questions, rows, took_python)
        for what, letters in (("as they are", list), ("romanised by us", romanise)):
            entities = zip(
                [key for key, _ in english], letters([n for _, n in english]), strict=True
            )
            with running_csv_reconcile(scratch / what, list(entities)) as service:
                project = Project(refine, letters(names))
                seconds = project.reconcile(service)
                peer = project.judged()
            describe(f"csv-reconcile, names {what}", questions, peer, seconds)
    started = time.perf_counter()
    compared = compare_all(questions, english)
    describe("rapidfuzz on romanised names", questions, compared, time.perf_counter() - started)
    print(
        f"\n{' and '.join(p['name'] for p in proposed[:2])} of {num_matched} matched entities: "
        f"{num_values} values in {took:.1f} s, all as the KB states them.\n"
    )
    print("| service | score | names | mean score | right |")
    print("| --- | --- | ---: | ---: | ---: |")
    describe_scores("prixlm", questions, ours)


def main() -> None:
    """Parse the arguments; say why if this cannot run here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if shutil.which("openrefine") is None:
        raise SystemExit("openrefine is not installed here: apt install openrefine.")
    if not DBP5L.is_dir():
        raise SystemExit("DBP-5L is not here: expected ../shared/data/dbp5l.")
    with tempfile.TemporaryDirectory() as temporary:
        run(Path(temporary), args.names, args.seed)


if __name__ == "__main__":
    main()
