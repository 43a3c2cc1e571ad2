"""What an import will read: the format table, recognition of sources, and estimates.

    plan = plan_import(["labels_lang=fi.ttl.bz2"])
    print(estimate_sources(["labels_lang=fi.ttl.bz2"]).as_text())

Nothing is written here; `run.py` carries a plan out.
"""

import itertools
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from prixlm.errors import PrixError
from prixlm.importers.dbp5l import DBP5L
from prixlm.importers.dbpedia import DBPEDIA
from prixlm.importers.format import Chunk, Format, LimitedParser, Limits, Parser, Source
from prixlm.importers.rdf import RDF
from prixlm.importers.stage import parse_chunk
from prixlm.importers.streams import CHUNK_BYTES
from prixlm.importers.tables import AUTHORS, TABLES
from prixlm.importers.wikidata import WIKIDATA
from prixlm.importers.world import WORLD
from prixlm.languages import parse_languages
from prixlm.remote import fetch_heads, is_remote, local_source
from prixlm.threads import usable_cores

FORMATS = {f.name: f for f in (DBP5L, AUTHORS, WIKIDATA, DBPEDIA, RDF, TABLES, WORLD)}
"""The format table. A source belongs to the first format that recognises it, so that special
formats come before general ones. To add a format, see `format.py`."""

_JOINED_PER_SECOND = 700_000
_BYTES_PER_ROW = 60
"""For estimates only: rows that the joins process in a second, and disk space of a row meanwhile,
from `benchmarks/import.py` on two cores."""

_HEAD_BYTES = 16 << 20
"""Bytes of a remote file that an estimate fetches: more than a chunk, also compressed."""

Langs = Sequence[str] | Literal["all"] | None


@dataclass(frozen=True)
class Plan:
    """What an import will read, resolved and checked."""

    format: Format
    sources: list[Source]
    langs: tuple[str, ...] | None  # None for all
    max_triples: int | None
    seed: int
    licence: str
    limits: Limits
    descriptions: bool = True

    def chunks(self, index: int, start: tuple[int, int] | None = None) -> Iterator[Chunk]:
        """Yield the chunks of a source. start: byte and line of a chunk with a `start`."""
        source = self.sources[index]
        if start is not None:
            source = replace(source, start=start)
        return self.format.chunks(source, index)

    def parser(self, index: int) -> Parser:
        """Return the parser of a source, within the limits of the import."""
        parser = self.format.parser(self.sources, index, self.langs)
        return LimitedParser(parser, self.limits, self.descriptions)

    def num_bytes(self) -> int:
        """Return the size of all sources on disk."""
        return sum(source_size(source) for source in self.sources)


def plan_import(
    sources: Iterable[Path | str],
    *,
    format: str | None = None,
    langs: Langs = None,
    max_triples: int | None = None,
    seed: int = 0,
    licence: str | None = None,
    max_name: int = Limits.name,
    max_line: int = Limits.line >> 20,
    descriptions: bool = True,
) -> Plan:
    """Find the format of the sources and the languages to keep; the options are `import_kb`'s."""
    paths = [local_source(source) for source in sources]
    if seed < 0:
        raise PrixError(f"--seed {seed}: expected 0 or more.")
    if max_triples is not None and max_triples < 1:
        raise PrixError(f"--max-triples {max_triples}: expected 1 or more.")
    if max_name < 1:
        raise PrixError(f"--max-name {max_name}: expected 1 character or more.")
    if max_line << 20 < CHUNK_BYTES:
        raise PrixError(f"--max-line {max_line}: expected {CHUNK_BYTES >> 20} MiB or more.")
    limits = Limits(name=max_name, line=max_line << 20)
    chosen = _choose_format(paths, format)
    if langs is None:
        langs = chosen.default_langs or "all"
    kept = None if langs == "all" else parse_languages(langs)
    files = _expand_folders(paths, chosen) if paths and not chosen.whole_folders else paths
    return Plan(
        chosen,
        [replace(source, limits=limits) for source in chosen.sources(files)],
        kept,
        max_triples,
        seed,
        licence or chosen.licence,
        limits,
        descriptions,
    )


@dataclass(frozen=True)
class Estimate:
    """What an import would read, and its time and disk space, estimated from the first chunks."""

    plan: Plan
    num_rows: int
    seconds: float
    disk_bytes: int
    sizes: tuple[int, ...]  # of the sources, in bytes

    def as_dict(self) -> dict[str, Any]:
        """Return the estimate for JSON."""
        return {
            "format": self.plan.format.name,
            "langs": self.plan.langs,
            "sources": [{"name": s.name, "size": size} for s, size in self._sized()],
            "rows": self.num_rows,
            "seconds": round(self.seconds, 1),
            "disk_bytes": self.disk_bytes,
        }

    def as_text(self) -> str:
        """Return the estimate as lines for the terminal."""
        plan = self.plan
        sizes = [f"  {s.name}  {size / 1e6:,.1f} MB" for s, size in self._sized()]
        langs = "every language" if plan.langs is None else ", ".join(plan.langs)
        return "\n".join(
            [
                f"Would read as {plan.format.name} ({plan.format.title}), {langs}:",
                *sizes,
                f"About {self.num_rows:,} rows, {self.seconds / 60:,.1f} minutes on this machine, "
                f"{self.disk_bytes / 1e9:,.2f} GB of disk during the import.",
            ]
        )

    def _sized(self) -> Iterator[tuple[Source, int]]:
        return zip(self.plan.sources, self.sizes, strict=True)


def estimate_sources(sources: Iterable[Path | str], **options: Any) -> Estimate:
    """Plan an import and estimate it. Of files in a store, only the beginning is fetched.

    options: those of `plan_import`.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths: list[Path | str] = []
        sizes: dict[Path, int] = {}  # of those that are not all here
        for number, source in enumerate(sources):
            if is_remote(source):
                home = Path(folder) / str(number)
                sizes |= fetch_heads(source, home, _HEAD_BYTES)
                source = home / Path(source).name
            paths.append(source)
        return estimate_import(plan_import(paths, **options), sizes)


def estimate_import(plan: Plan, stated: Mapping[Path, int] | None = None) -> Estimate:
    """Parse the first chunk of each source and scale its figures up to the source's size.

    stated: the sizes of files of which only the beginning is here.
    """
    rows, seconds, disk = 0.0, 1.0, 0.0
    sizes = [(stated or {}).get(source.path, source_size(source)) for source in plan.sources]
    for index, (source, size) in enumerate(zip(plan.sources, sizes, strict=True)):
        parser = plan.parser(index)
        chunk = next(plan.format.chunks(source, index), None)
        if chunk is None:
            continue
        start = time.perf_counter()
        parsed = parse_chunk(parser, chunk)
        spent = time.perf_counter() - start
        # `done` bytes on disk gave these rows, so the whole file gives `scale` times as many.
        scale = max(1.0, size / chunk.done) if chunk.done else 1.0
        rows += parsed.read * scale
        seconds += (
            spent / max(2, usable_cores()) + parsed.num_staged() / _JOINED_PER_SECOND
        ) * scale
        disk += parsed.num_staged() * _BYTES_PER_ROW * scale
    return Estimate(plan, int(rows), seconds, int(disk), tuple(sizes))


def source_size(source: Source) -> int:
    """Return the size of a source on disk; 0 if it is not a file."""
    return source.path.stat().st_size if source.path.is_file() else 0


def _choose_format(paths: Sequence[Path], name: str | None) -> Format:
    """Return the format that was asked for, or the one that recognises all sources."""
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise PrixError(f"{missing}: no such file or folder.")
    if name is None:
        if not paths:
            raise PrixError("no source given. Name a file or folder, or pass --format world.")
        return _only_format({_recognise(path).name for path in paths}, "the sources")
    if name not in FORMATS:
        raise PrixError(f"unknown format {name}: expected one of {', '.join(FORMATS)}.")
    chosen = FORMATS[name]
    if chosen.needs_source and not paths:
        raise PrixError("no source given. Name a file or folder, or pass --format world.")
    if not chosen.needs_source and paths:
        raise PrixError(f"--format {name} reads no source. Leave out {paths[0]}.")
    wrong = next((path for path in paths if not chosen.recognises(path)), None)
    if chosen.whole_folders and wrong is not None:
        raise PrixError(f"{wrong}: not what {name} reads ({chosen.title}).")
    return chosen


def _only_format(names: set[str], where: str) -> Format:
    """Return the one format that reads all files of these formats, or refuse the mixture."""
    for name in names:
        if names <= {name, *FORMATS[name].beside}:
            return FORMATS[name]
    raise PrixError(
        f"{where} are of different formats ({', '.join(sorted(names))}). "
        "Import them one by one, or force one with --format."
    )


def _recognise(path: Path) -> Format:
    """Return the format of a file, or of all known files in a folder."""
    for candidate in FORMATS.values():
        if candidate.recognises(path):
            return candidate
    if path.is_dir():
        names = {_recognise(file).name for file in _files_in(path) if _is_known(file)}
        if names:
            return _only_format(names, f"the files in {path}")
    titles = "; ".join(f"{f.name}: {f.title}" for f in FORMATS.values())
    raise PrixError(f"{path}: not recognised. Looked for {titles}. Force one with --format.")


def _is_known(path: Path) -> bool:
    return any(candidate.recognises(path) for candidate in FORMATS.values())


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _expand_folders(paths: Sequence[Path], chosen: Format) -> list[Path]:
    """Replace folders by the files in them that some format knows; files that are named stay."""
    # A file that was named is read in any case; of a folder, unknown files (a README) are not.
    folders = {path for path in paths if path.is_dir()}
    nested = [_files_in(path) if path in folders else [path] for path in paths]
    files = list(itertools.chain.from_iterable(nested))
    kept = [f for f in files if f.parent not in folders or chosen.recognises(f) or _is_known(f)]
    if not kept:
        raise PrixError(f"{paths[0]}: no file in it that {chosen.name} reads ({chosen.title}).")
    return kept
