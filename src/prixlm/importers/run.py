"""From any dump to a KB folder: `import_kb`.

    kb = import_kb(["labels_lang=fi.ttl.bz2", "mappingbased-objects_lang=fi.ttl.bz2"], "fi")

Sources are cut into chunks, parsed in parallel, here or by the workers of an engine, and staged as
Parquet parts in `FOLDER.partial` (`stage.py`). The parts are joined into the tables of a KB
(`join.py`), and the finished folder is renamed into place. A killed import leaves no half KB: run
again, it resumes after the last finished part, and the result is the same, byte for byte.
"""

import hashlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prixlm.engine.jobs import EngineConfig, Shard, ShardJob, make_parts
from prixlm.engine.overwriting import check_target, kind_of
from prixlm.engine.workspace import Workspace, open_workspace
from prixlm.errors import PrixError
from prixlm.files import disk_errors, locked, publish, write_atomically
from prixlm.importers import stage, streams
from prixlm.importers.format import Account, Chunk, Limits
from prixlm.importers.join import Joins
from prixlm.importers.plan import Langs, Plan, plan_import, source_size
from prixlm.importers.resumed import drop_damaged_parts, drop_other_parts
from prixlm.importers.stage import (
    PartMaker,
    first_samples,
    parsing,
    part_name,
    read_account,
    stage_source,
)
from prixlm.kb.store import FORMAT, KB, Manifest
from prixlm.remote import (
    UPLOADING,
    absolute,
    fetch_file,
    is_remote,
    list_names,
    local_source,
    staged_folder,
    uri_of,
)
from prixlm.types import Progress
from prixlm.untrusted import guard_formula, printable


def import_kb(
    sources: Iterable[Path | str],
    to: Path | str,
    *,
    format: str | None = None,
    langs: Langs = None,
    max_triples: int | None = None,
    seed: int = 0,
    licence: str | None = None,
    max_name: int = Limits.name,
    max_line: int = Limits.line >> 20,
    descriptions: bool = True,
    overwrite: bool = False,
    strict: bool = False,
    memory: str = "1GiB",
    engine: EngineConfig | None = None,
    progress: Progress | None = None,
) -> KB:
    """Read dumps into a new KB folder `to`.

    format: a name of the format table; recognised from the sources by default.
    langs: the languages to keep; None for all (the paper's 17 for the world KB).
    max_triples: keep a random sample of this many triples, drawn with `seed`.
    licence: the licence of the data, instead of the format's default.
    max_name: the longest name or key, in characters; rows with a longer one are rejected.
    max_line: the longest line, or statement of RDF without lines, in MiB; longer ones are rejected.
    descriptions: keep the descriptions of entities; those of more than 2,000 characters never are.
    strict: stop at the first malformed row.
    memory: what the joins may use; larger ones spill to disk.
    engine: where the sources are parsed; the joins run in this process.

    Example:
        >>> langs = ["en", "et"]
        >>> kb = prixlm.import_kb([], "world", format="world", langs=langs, max_triples=5000)
        >>> kb.languages
        ['en', 'et']
        >>> kb = prixlm.import_kb(["facts.tsv", "links.tsv"], "kb")
        >>> kb.num_triples()
        13
    """
    to, paths = Path(to), [Path(source) for source in sources]
    report = progress or (lambda _stage, _done, _total: None)
    options: dict[str, Any] = {
        "format": format,
        "langs": langs,
        "max_triples": max_triples,
        "seed": seed,
        "licence": licence,
        "max_name": max_name,
        "max_line": max_line,
        "descriptions": descriptions,
    }
    if is_remote(to):
        running: Any = {"strict": strict, "memory": memory, "engine": engine, "progress": progress}
        make = partial(import_kb, paths, **options, **running)
        return _import_to_store(paths, to, options, overwrite, make)
    plan = plan_import(paths, **options)
    files = [source.path for source in plan.sources if source.path.exists()]
    work_folder = check_target(to, files, overwrite, FORMAT)
    # Hashing a large dump takes minutes: refuse a second import of the folder before it.
    with disk_errors(work_folder), locked(work_folder):
        described = _describe(plan, report)
    # Staged parts depend on the sources and options, and on how chunks are cut and grouped.
    stamp = {
        **described,
        "chunk_bytes": streams.CHUNK_BYTES,
        "part_chunks": stage.PART_CHUNKS,
        "parts": "folders",
    }
    with open_workspace(work_folder, stamp) as work:
        try:
            drop_damaged_parts(work.folder, len(plan.sources))
            if engine is None or engine == EngineConfig():
                account = _stage(plan, work, strict, report)
            else:
                load = partial(_load_parsing, [absolute(path) for path in paths], options)
                account = _stage_in_workers(plan, load, work, engine, strict, progress)
            joins = _join(plan, work, account, memory, report)
            if strict:
                _refuse_rejects(plan, account)
            _refuse_nothing(plan, joins)
        except _BadSources:
            work.remove()
            raise
        _finish(plan, described, joins)
        publish(joins.out, to)
        work.remove()
    return KB(to)


def _import_to_store(
    sources: list[Path],
    to: Path,
    options: dict[str, Any],
    overwrite: bool,
    make: Callable[[Path], KB],
) -> KB:
    """Import into a local folder and upload it; a KB whose upload broke is not made again."""
    _check_store(to, overwrite)
    found = _files([local_source(source) for source in sources])
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in found]
    key = [version("prixlm"), files, {**options, "langs": list(options["langs"] or ())}]
    with staged_folder(to, key, fetch=False) as folder:
        if not folder.exists():
            make(folder)
    return KB(to)


def _check_store(to: Path, overwrite: bool) -> None:
    """Refuse to replace anything but a KB, and that only when asked."""
    names = list_names(to)
    if UPLOADING in names:  # of an upload that broke
        return
    if names and not overwrite:
        raise PrixError(f"{uri_of(to)} is already there. Pass --overwrite, or name another folder.")
    if names:
        with tempfile.TemporaryDirectory() as folder:
            if "manifest.json" in names:
                fetch_file(to / "manifest.json", Path(folder) / "manifest.json")
            if kind_of(Path(folder)) != FORMAT:
                raise PrixError(f"{uri_of(to)} is not a KB: name another folder.")


def _files(sources: list[Path]) -> list[Path]:
    """Return all files of the sources that are there; an import refuses the others."""
    found = [path for source in sources for path in (source, *sorted(source.rglob("*")))]
    return [path for path in found if path.is_file()]


class _BadSources(PrixError):
    """These sources never give a KB, so their staged parts are not worth keeping."""


def _describe(plan: Plan, report: Progress) -> dict[str, Any]:
    """Return everything the result depends on: sources with size and hash, and the options."""
    total, done = plan.num_bytes(), 0
    sources = []
    for source in plan.sources:
        entry: dict[str, Any] = {"name": source.name, "role": source.role}
        if source.path.is_file():
            # A hash, not the time of the file: a dump that is downloaded again is the same.
            digest = hashlib.sha256()
            with source.path.open("rb") as file:
                while block := file.read(1 << 22):
                    digest.update(block)
                    done += len(block)
                    report("hash", done, total)
            entry |= {"size": source_size(source), "sha256": digest.hexdigest()}
        sources.append(entry)
    options = {
        "format": plan.format.name,
        "langs": None if plan.langs is None else list(plan.langs),
        "max_triples": plan.max_triples,
        "seed": plan.seed,
        "max_name": plan.limits.name,
        "max_line": plan.limits.line,
    }
    if not plan.descriptions:  # else the manifest, and so the fingerprint, stays as it was
        options["descriptions"] = False
    tool = f"prixlm {version('prixlm')}"
    return {"sources": sources, "options": options, "licence": plan.licence, "tool": tool}


def _stage(plan: Plan, work: Workspace, strict: bool, report: Progress) -> Account:
    """Parse every source into staged parts; parts of an earlier attempt are not parsed again."""
    account, names = Account(), set[str]()
    total, done = plan.num_bytes(), 0
    with parsing(total, plan.format.in_processes) as parse:
        for index, source in enumerate(plan.sources):
            parser = plan.parser(index)
            chunks = _reporting(plan.chunks(index), report, done, total)
            parts = stage_source(index, parser, chunks, work, parse)
            for number, part in enumerate(parts):
                names.add(part_name(index, number))
                account.add(part.read, part.rejected, part.filtered, part.samples)
                account.samples = first_samples(account.samples)
                if strict:
                    _refuse_rejects(plan, account)
            done += source_size(source)
            report("read", done, total)
    drop_other_parts(work.folder, names)
    return account


def _stage_in_workers(
    plan: Plan,
    load: Callable[[], PartMaker],
    work: Workspace,
    engine: EngineConfig,
    strict: bool,
    progress: Progress | None,
) -> Account:
    """Parse every source into the same parts by the workers of an engine."""
    shards = []
    for index in range(len(plan.sources)):
        # Only reading tells how many chunks a source has; each is a whole number of lines.
        for number, (num_chunks, start) in enumerate(_cut_parts(plan.chunks(index))):
            value = (index, number, num_chunks, start)
            shards.append(Shard(part_name(index, number), value))
        if progress is not None:
            progress("count", index + 1, len(plan.sources))
    maker = _part_maker(plan)
    job = ShardJob("parse", shards, load, maker, maker.inputs())
    account = Account()
    for folder in make_parts(job, work, engine, progress):
        part = read_account(folder)
        account.add(part.read, part.rejected, part.filtered, part.samples)
        account.samples = first_samples(account.samples)
    if strict:
        _refuse_rejects(plan, account)
    drop_other_parts(work.folder, {shard.part for shard in shards})
    return account


def _cut_parts(chunks: Iterator[Chunk]) -> Iterator[tuple[int, tuple[int, int] | None]]:
    """Yield the number of chunks of each part, and the byte and line where it starts, if known."""
    for first in chunks:
        others = sum(1 for _ in itertools.islice(chunks, stage.PART_CHUNKS - 1))
        yield 1 + others, None if first.start is None else (first.start, first.line)


def _load_parsing(sources: list[Path], options: dict[str, Any]) -> PartMaker:
    """Make the plan again in a worker: formats hold functions that cannot be sent."""
    return _part_maker(plan_import(sources, **options))


def _part_maker(plan: Plan) -> PartMaker:
    return PartMaker(plan.chunks, plan.parser, [source.path for source in plan.sources])


def _reporting(chunks: Iterator[Chunk], report: Progress, done: int, total: int) -> Iterator[Chunk]:
    for chunk in chunks:
        report("read", done + chunk.done, total)
        yield chunk


def _join(plan: Plan, work: Workspace, account: Account, memory: str, report: Progress) -> Joins:
    """Join the staged parts into the tables of a KB, in the workspace's folder `kb`."""
    joins = Joins(
        parts=work.folder,
        scratch=work.empty_folder("scratch"),
        out=work.empty_folder("kb"),
        format=plan.format,
        langs=plan.langs,
        account=account,
        memory=memory,
        max_triples=plan.max_triples,
        seed=plan.seed,
    )
    steps = joins.steps()
    for number, step in enumerate(steps):
        report("join", number, len(steps))
        step()
    report("join", len(steps), len(steps))
    joins.db.close()
    account.check()
    return joins


def _refuse_rejects(plan: Plan, account: Account) -> None:
    """Raise for the first rejected row. Literals do not count: every RDF dump has some."""
    bad = [sample for sample in account.samples if sample.reason != "object is a literal"]
    if bad:
        first = min(bad, key=lambda sample: sample[1:])
        where = f"{plan.sources[first.source].name} line {first.line}"
        raise _BadSources(
            f"{where}: {first.reason}: {first.text}. Fix the line, or import without --strict."
        )


def _refuse_nothing(plan: Plan, joins: Joins) -> None:
    """Raise if the sources gave no entity, and tell where their rows went."""
    if joins.num_entities:
        return
    account = joins.account
    left_out = account.rejected + account.filtered
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in left_out.most_common(3))
    names = ", ".join(source.name for source in plan.sources[:3])
    asked = "" if plan.langs is None else f" in {', '.join(plan.langs)}"
    raise _BadSources(
        f"nothing to import in {names}: read {account.read:,} rows as {plan.format.name} and found "
        f"no named entity{asked} ({reasons or 'it is empty'}). Looked for {plan.format.title}."
    )


def _finish(plan: Plan, described: dict[str, Any], joins: Joins) -> None:
    """Write the rejects file and then the manifest, which makes the folder a KB."""
    # Samples of parsing and of the joins together, again at most NUM_SAMPLES of a reason.
    rows = ["reason\tsource\tline\ttext"]
    rows += [
        "\t".join(
            (
                sample.reason,
                guard_formula(printable(plan.sources[sample.source].name)),
                str(sample.line),
                guard_formula(sample.text),
            )
        )
        for sample in first_samples(joins.account.samples)
    ]
    write_atomically(joins.out / "rejects.tsv", "\n".join(rows) + "\n")
    Manifest(counts=joins.counts, account=joins.account.as_dict(), **described).write(joins.out)
