"""From any dump to a KB folder: `import_kb`.

Sources are cut into chunks, parsed in parallel and staged as Parquet parts in
`FOLDER.partial`; then the parts are merged (`merge.py`) and the finished folder is renamed into
place. A killed import leaves no half KB: run again, it takes up after the last whole part, and the
result is the same, byte for byte.
"""

import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from prixlm.errors import PrixError
from prixlm.files import check_target, disk_errors, locked, publish, write_atomically
from prixlm.importers import stage, streams
from prixlm.importers.dbp5l import FOLDERS
from prixlm.importers.dbpedia import DBPEDIA
from prixlm.importers.format import Account, Chunk, Format, Source
from prixlm.importers.join import Merge
from prixlm.importers.rdf import RDF
from prixlm.importers.stage import first_samples, parse_chunk, parsing, stage_source
from prixlm.importers.tables import AUTHORS, TABLES
from prixlm.importers.wikidata import WIKIDATA
from prixlm.importers.world import WORLD
from prixlm.kb.store import KB, Manifest
from prixlm.languages import PAPER_LANGUAGES, parse_languages
from prixlm.types import Progress

FORMATS = {f.name: f for f in (FOLDERS, AUTHORS, WIKIDATA, DBPEDIA, RDF, TABLES, WORLD)}
"""The format table, in the order in which a source is offered to them."""

JOINED_PER_SECOND = 700_000
BYTES_A_ROW = 60
"""What the joins do in a second, and what a row takes on disk on the way: `benchmarks/import.py`
on two cores. They are for estimates only."""

Langs = Sequence[str] | Literal["all"] | None


@dataclass(frozen=True)
class Plan:
    """What an import will read, resolved and checked."""

    format: Format
    sources: list[Source]
    langs: tuple[str, ...] | None
    max_triples: int | None
    seed: int
    licence: str

    def num_bytes(self) -> int:
        return sum(_size(source) for source in self.sources)


def import_kb(
    sources: Iterable[Path | str],
    to: Path | str,
    *,
    format: str | None = None,
    langs: Langs = None,
    max_triples: int | None = None,
    seed: int = 0,
    licence: str | None = None,
    overwrite: bool = False,
    strict: bool = False,
    memory: str = "1GiB",
    progress: Progress | None = None,
) -> KB:
    """Read dumps into a new KB folder `to`.

    langs: the languages to keep; None for all (the paper's 17 for the world KB).
    max_triples: keep a random sample of this size. strict: a bad row is an error.
    memory: what the joins may use; whatever needs more goes to disk.
    """
    to = Path(to)
    report = progress or (lambda _stage, _done, _total: None)
    plan = plan_import(
        sources, format=format, langs=langs, max_triples=max_triples, seed=seed, licence=licence
    )
    files = [source.path for source in plan.sources if source.path.exists()]
    work = check_target(to, files, overwrite)
    try:
        _import(plan, to, work, strict, memory, report)
    except _NoKB:
        shutil.rmtree(work, ignore_errors=True)  # there is nothing in it to go on from
        raise
    shutil.rmtree(work, ignore_errors=True)
    return KB(to)


class _NoKB(PrixError):
    """These sources give no KB, however often one tries."""


def _import(plan: Plan, to: Path, work: Path, strict: bool, memory: str, report: Progress) -> None:
    with disk_errors(work), locked(work):
        described = _describe(plan, report)
        _forget_other_work(work, described)
        account = _stage(plan, work / "parts", strict, report)
        merge = _merge(plan, work, account, memory, report)
        if strict:
            _check_strictly(plan, account)
        _nothing_is_an_error(plan, merge)
        _finish(plan, described, merge)
        publish(work / "kb", to)


def plan_import(
    sources: Iterable[Path | str],
    *,
    format: str | None = None,
    langs: Langs = None,
    max_triples: int | None = None,
    seed: int = 0,
    licence: str | None = None,
) -> Plan:
    """Find out what the sources are and which languages to keep; nothing is imported."""
    paths = [Path(source) for source in sources]
    if seed < 0:
        raise PrixError(f"--seed {seed}: expected 0 or more.")
    if max_triples is not None and max_triples < 1:
        raise PrixError(f"--max-triples {max_triples}: expected 1 or more.")
    chosen = _choose_format(paths, format)
    if langs == "all":
        kept = None
    elif langs is None:
        kept = tuple(sorted(PAPER_LANGUAGES)) if chosen is WORLD else None
    else:
        kept = parse_languages(langs)
    files = paths if chosen in (FOLDERS, AUTHORS, WORLD) else _expand_folders(paths, chosen)
    return Plan(chosen, chosen.sources(files), kept, max_triples, seed, licence or chosen.licence)


@dataclass(frozen=True)
class Estimate:
    """What an import would read and, from a look at the start of each source, what it takes."""

    plan: Plan
    num_rows: int
    seconds: float
    disk_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": self.plan.format.name,
            "langs": self.plan.langs,
            "sources": [{"name": s.name, "size": _size(s)} for s in self.plan.sources],
            "rows": self.num_rows,
            "seconds": round(self.seconds, 1),
            "disk_bytes": self.disk_bytes,
        }

    def as_text(self) -> str:
        plan = self.plan
        sizes = [f"  {s.name}  {_size(s) / 1e6:,.1f} MB" for s in plan.sources]
        langs = "every language" if plan.langs is None else ", ".join(plan.langs)
        return "\n".join(
            [
                f"Would read as {plan.format.name} ({plan.format.title}), {langs}:",
                *sizes,
                f"About {self.num_rows:,} rows, {self.seconds / 60:,.1f} minutes on this machine, "
                f"{self.disk_bytes / 1e9:,.2f} GB of disk while it works.",
            ]
        )


def estimate_import(plan: Plan) -> Estimate:
    """Parse the first chunk of each source and scale up by size; nothing is written."""
    rows, seconds, disk = 0.0, 1.0, 0.0
    for index, source in enumerate(plan.sources):
        parser = plan.format.parser(plan.sources, index, plan.langs)
        chunk = next(plan.format.chunks(source, index), None)
        if chunk is None:
            continue
        start = time.perf_counter()
        parsed = parse_chunk(parser, chunk)
        spent = time.perf_counter() - start
        scale = max(1.0, _size(source) / chunk.done) if chunk.done else 1.0
        rows += parsed.read * scale
        seconds += (
            spent / max(2, os.cpu_count() or 1) + parsed.num_staged() / JOINED_PER_SECOND
        ) * scale
        disk += parsed.num_staged() * BYTES_A_ROW * scale
    return Estimate(plan, int(rows), seconds, int(disk))


def _choose_format(paths: Sequence[Path], name: str | None) -> Format:
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise PrixError(f"{missing}: no such file or folder.")
    if name is not None and name not in FORMATS:
        raise PrixError(f"unknown format {name}: expected one of {', '.join(FORMATS)}.")
    if not paths and name != WORLD.name:
        raise PrixError("no source given. Name a file or folder, or pass --format world.")
    if name == WORLD.name and paths:
        raise PrixError(f"the world KB is made of no source; {paths[0]} would not be read.")
    if name is not None:
        chosen = FORMATS[name]
        wrong = next((path for path in paths if not chosen.recognises(path)), None)
        if chosen in (FOLDERS, AUTHORS) and wrong is not None:
            raise PrixError(f"{wrong}: not what {name} reads ({chosen.title}).")
        return chosen
    found = {_recognise(path).name for path in paths}
    if found == {DBPEDIA.name, RDF.name}:  # an ontology beside DBpedia's dumps
        return DBPEDIA
    if len(found) > 1:
        raise PrixError(
            f"the sources are of different formats ({', '.join(sorted(found))}). "
            "Import them one by one, or force one with --format."
        )
    return FORMATS[found.pop()]


def _recognise(path: Path) -> Format:
    for candidate in FORMATS.values():
        if candidate.recognises(path):
            return candidate
    if path.is_dir():
        names = {_recognise(file).name for file in _files_in(path) if _is_known(file)}
        if names == {DBPEDIA.name, RDF.name}:
            return DBPEDIA
        if len(names) == 1:
            return FORMATS[names.pop()]
        if names:
            raise PrixError(f"{path} holds several formats: {', '.join(sorted(names))}.")
    titles = "; ".join(f"{f.name}: {f.title}" for f in FORMATS.values())
    raise PrixError(f"{path}: not recognised. Looked for {titles}. Force one with --format.")


def _is_known(path: Path) -> bool:
    return any(candidate.recognises(path) for candidate in FORMATS.values())


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _expand_folders(paths: Sequence[Path], chosen: Format) -> list[Path]:
    nested = [_files_in(path) if path.is_dir() else [path] for path in paths]
    folders = {path for path in paths if path.is_dir()}
    files = list(itertools.chain.from_iterable(nested))
    kept = [f for f in files if f.parent not in folders or chosen.recognises(f) or _is_known(f)]
    if not kept:
        raise PrixError(f"{paths[0]}: no file in it that {chosen.name} reads ({chosen.title}).")
    return kept


def _size(source: Source) -> int:
    return source.path.stat().st_size if source.path.is_file() else 0


def _describe(plan: Plan, report: Progress) -> dict[str, Any]:
    """Everything the result depends on: sources with size and hash, and the options."""
    total, done = plan.num_bytes(), 0
    sources = []
    for source in plan.sources:
        entry: dict[str, Any] = {"name": source.name, "role": source.role}
        if source.path.is_file():
            digest = hashlib.sha256()
            with source.path.open("rb") as file:
                while block := file.read(1 << 22):
                    digest.update(block)
                    done += len(block)
                    report("hash", done, total)
            entry |= {"size": _size(source), "sha256": digest.hexdigest()}
        sources.append(entry)
    options = {
        "format": plan.format.name,
        "langs": None if plan.langs is None else list(plan.langs),
        "max_triples": plan.max_triples,
        "seed": plan.seed,
    }
    tool = f"prixlm {version('prixlm')}"
    return {"sources": sources, "options": options, "licence": plan.licence, "tool": tool}


def _forget_other_work(work: Path, described: dict[str, Any]) -> None:
    """Keep the staged parts of an earlier try only if it was the very same import."""
    ours = json.dumps([described, streams.CHUNK_BYTES, stage.PART_CHUNKS], sort_keys=True)
    plan = work / "plan.json"
    if not plan.exists() or plan.read_text("utf-8") != ours:
        plan.unlink(missing_ok=True)  # first: half of the parts are no import to go on from
        shutil.rmtree(work / "parts", ignore_errors=True)
        (work / "parts").mkdir(parents=True)
        write_atomically(plan, ours)
    for leftover in ("kb", "scratch"):
        shutil.rmtree(work / leftover, ignore_errors=True)
    (work / "scratch").mkdir()


def _stage(plan: Plan, parts: Path, strict: bool, report: Progress) -> Account:
    """Parse every source; what an earlier try has staged is not parsed again."""
    account = Account()
    total, done = plan.num_bytes(), 0
    with parsing(total, plan.format.in_processes) as parse:
        for index, source in enumerate(plan.sources):
            parser = plan.format.parser(plan.sources, index, plan.langs)
            chunks = _reporting(plan.format.chunks(source, index), report, done, total)
            for part in stage_source(index, parser, chunks, parts, parse):
                account.add(part.read, part.rejected, part.filtered, part.samples)
                account.samples = first_samples(account.samples)
                if strict:
                    _check_strictly(plan, account)
            done += _size(source)
            report("read", done, total)
    return account


def _reporting(chunks: Iterator[Chunk], report: Progress, done: int, total: int) -> Iterator[Chunk]:
    for chunk in chunks:
        report("read", done + chunk.done, total)
        yield chunk


def _check_strictly(plan: Plan, account: Account) -> None:
    """The first bad row is an error; that a KB has literals is no fault of it."""
    bad = [sample for sample in account.samples if sample.reason != "object is a literal"]
    if bad:
        first = min(bad, key=lambda sample: sample[1:])
        where = f"{plan.sources[first.source].name} line {first.line}"
        raise _NoKB(f"{where}: {first.reason}: {first.text} (import without --strict skips it)")


def _merge(plan: Plan, work: Path, account: Account, memory: str, report: Progress) -> Merge:
    merge = Merge(
        parts=work / "parts",
        work=work / "scratch",
        out=work / "kb",
        format=plan.format,
        langs=plan.langs,
        account=account,
        memory=memory,
        max_triples=plan.max_triples,
        seed=plan.seed,
    )
    steps = merge.steps()
    for number, (_name, step) in enumerate(steps):
        report("join", number, len(steps))
        step()
    report("join", len(steps), len(steps))
    merge.db.close()
    account.check()
    return merge


def _nothing_is_an_error(plan: Plan, merge: Merge) -> None:
    if merge.num_entities:
        return
    account = merge.account
    left_out = account.rejected + account.filtered
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in left_out.most_common(3))
    names = ", ".join(source.name for source in plan.sources[:3])
    asked = "" if plan.langs is None else f" in {', '.join(plan.langs)}"
    raise _NoKB(
        f"nothing to import in {names}: read {account.read:,} rows as {plan.format.name} and found "
        f"no named entity{asked} ({reasons or 'it is empty'}). Looked for {plan.format.title}."
    )


def _finish(plan: Plan, described: dict[str, Any], merge: Merge) -> None:
    """The rejects file, and then the manifest, which makes the folder a KB."""
    rows = ["reason\tsource\tline\ttext"]
    rows += [
        f"{sample.reason}\t{plan.sources[sample.source].name}\t{sample.line}\t{sample.text}"
        for sample in first_samples(merge.account.samples)
    ]
    write_atomically(merge.out / "rejects.tsv", "\n".join(rows) + "\n")
    Manifest(counts=merge.counts, account=merge.account.as_dict(), **described).write(merge.out)
