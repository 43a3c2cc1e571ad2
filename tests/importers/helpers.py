"""Small KBs for the tests of importers, and ways to look at what an import made."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from prixlm import KB, import_kb

DATA = Path(__file__).parents[1] / "data"
TABLE_NAMES = ("entities", "aliases", "relations", "relation_names", "triples", "links")
LABEL = "<http://www.w3.org/2000/01/rdf-schema#label>"
SAME_AS = "<http://www.w3.org/2002/07/owl#sameAs>"


def triples_of(kb: KB, *columns: str) -> set[tuple[str, ...]]:
    """Return triples by names: language, subject, relation, object, and further columns."""
    wanted = ", ".join(["t.lang", "s.name", "r.name", "o.name", *columns])
    query = (
        f"SELECT {wanted} FROM triples t JOIN entities s ON s.id = t.subject "
        "JOIN relations r ON r.id = t.relation JOIN entities o ON o.id = t.object"
    )
    return set(kb.query(query).fetchall())


def names_of(kb: KB, lang: str) -> list[str]:
    """Return the names of a language's entities, sorted."""
    query = "SELECT name FROM entities WHERE lang = ? ORDER BY name"
    return [row[0] for row in kb.query(query, [lang]).fetchall()]


def concept_of(kb: KB, name: str, lang: str) -> set[tuple[str, str]]:
    """Return the names, with their languages, of the concept of the one entity `name`."""
    (entity,) = kb.find(name, lang)
    query = "SELECT lang, name FROM entities WHERE concept = ?"
    return set(kb.query(query, [entity.concept]).fetchall())


def rejects_of(kb: KB) -> list[tuple[str, str, int]]:
    """Return reason, source and line of each row of the rejects file."""
    rows = (kb.folder / "rejects.tsv").read_text("utf-8").split("\n")
    assert rows[0] == "reason\tsource\tline\ttext" and rows[-1] == ""
    cells = [row.split("\t") for row in rows[1:-1]]
    return [(reason, source, int(line)) for reason, source, line, _text in cells]


def bytes_of(kb: KB, *tables: str) -> dict[str, bytes]:
    """Return the bytes of some tables, or of all."""
    return {table: kb.path(table).read_bytes() for table in tables or TABLE_NAMES}


def import_text(folder: Path, name: str, text: str | bytes, **options: Any) -> KB:
    """Import one file with this content."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return import_kb([path], folder / f"{name} KB", **options)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def sums(kb: KB) -> tuple[int, int]:
    """Return the number of rows read, and of rows accounted for."""
    account = kb.manifest.account
    parts = [sum(account[part].values()) for part in ("imported", "rejected", "filtered")]
    return account["read"], sum(parts)


def write_dump(path: Path, num_entities: int = 600, seed: int = 0) -> Path:
    """N-Triples in three languages with labels, facts, links and a few bad lines."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(num_entities):
            for lang, word in (("en", "thing"), ("fi", "olio"), ("ja", "もの")):
                iri = f"<http://ex.org/{lang}/{number}>"
                label = "<http://www.w3.org/2000/01/rdf-schema#label>"
                file.write(f'{iri} {label} "{word} {number}"@{lang} .\n')
                other = f"<http://ex.org/{lang}/{rng.randrange(num_entities)}>"
                file.write(f"{iri} <http://ex.org/p/knowsWell{number % 7}> {other} .\n")
                if lang != "en":
                    same = "<http://www.w3.org/2002/07/owl#sameAs>"
                    file.write(f"{iri} {same} <http://ex.org/en/{number}> .\n")
            if number % 97 == 0:
                file.write("this is not RDF\n")
    return path


KILLED = """
import os, signal, sys, threading
from prixlm import import_kb
from prixlm.importers import stage, streams
streams.CHUNK_BYTES, stage.PART_CHUNKS = 20000, 2
if {processes}:
    stage._INLINE_BYTES = 0
calls = 0
def progress(name, done, total):
    global calls
    calls += name == {name!r}
    if calls > {number}:
        os.kill(os.getpid(), signal.SIGKILL)
if {seconds}:
    threading.Timer({seconds}, os.kill, (os.getpid(), signal.SIGKILL)).start()
import_kb([{dump!r}], {to!r}, progress=progress)
"""


def kill_import(dump: Path, to: Path, name: str, number: int, **more: object) -> None:
    """Start an import and kill it at the given call of its progress function."""
    code = KILLED.format(
        dump=str(dump),
        to=str(to),
        name=name,
        number=number,
        **{"seconds": 0, "processes": 0} | more,
    )
    command = [sys.executable, "-c", code]
    env = os.environ | {"PRIXLM_MARK": str(to)}
    with (to.parent / "stderr").open("w") as errors:  # no pipe: a worker that lives would hold it
        done = subprocess.run(command, stdout=errors, stderr=errors, env=env, check=False)
    assert done.returncode == -signal.SIGKILL, (to.parent / "stderr").read_text()
