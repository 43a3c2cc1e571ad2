"""Link mentions in any language to the entities of a KB with the nearest names (Sec. 2.2, 3.3).

    linker = EntityLinker(EntityEncoder.load("encoder"), KB("kb"))
    linker.link(["Helsingin kaupunki"], lang="en")

The first use encodes all names of the KB. The vectors and the index stay in the KB's folder.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.decoding.batch import check_out
from prixlm.engine.jobs import EngineConfig, Shard, ShardJob, made_by, make_parts
from prixlm.engine.parts import shard_size
from prixlm.engine.workspace import open_workspace, partial_folder
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import KINDS, build_vectors
from prixlm.errors import PrixError
from prixlm.files import disk_errors, write_rows
from prixlm.kb.store import KB
from prixlm.lm.trim import warn_of_another_kb, warn_of_reading
from prixlm.remote import is_remote, local_copy, local_source, uri_of
from prixlm.types import Answer, Progress

SCHEMA = pa.schema(
    [
        ("mention", pa.string()),
        ("rank", pa.int32()),  # null where the line is empty, and so has no answer
        ("name", pa.string()),
        ("lang", pa.string()),
        ("key", pa.string()),
        ("entity", pa.int64()),  # its id in the KB
        ("score", pa.float64()),  # a confidence, or the cosine of an encoder alone
        ("evidence", pa.string()),  # the kinds that put it first, joined by commas
    ]
)
_PART = 4096
"""Mentions that are encoded and looked up together: the most that a kill can lose."""
_SAMPLE = 1 << 16
"""Mentions of a file that a trimmed model's reading is checked with."""
_LINES = "mentions.parquet"


class EntityLinker:
    """An encoder, and a KB whose entities are the candidates.

    For one thread at a time: a server asks it through one `service.batching.Batcher`. Its `kb` may
    be shared by threads.

    Example:
        >>> linker = prixlm.EntityLinker("encoder", "kb")
        >>> [[answer]] = linker.link(["Finland"], k=1, lang="en")
        >>> answer.name
        'Finland'
    """

    def __init__(
        self,
        encoder: EntityEncoder | Path | str,
        kb: KB | Path | str,
        *,
        kind: str = "auto",
        progress: Progress | None = None,
    ) -> None:
        """Encode the names of the KB, if that was not done before. kind: of the index."""
        self.encoder = (
            encoder if isinstance(encoder, EntityEncoder) else EntityEncoder.load(encoder)
        )
        self.kb = kb if isinstance(kb, KB) else KB(kb)
        if kind not in ("auto", *KINDS):
            raise PrixError(f"kind {kind}: expected auto, {', '.join(KINDS)}.")
        if not self.kb.num_entities:
            raise PrixError(f"{self.kb.folder} has no entities to link to.")
        warn_of_another_kb(self.encoder.model, self.kb)
        self.kind = kind
        self._has_warned = False  # of mentions that a trimmed model reads unlike its base
        self.index = build_vectors(self.kb, self.encoder, progress=progress).index(kind)

    def link(
        self, mentions: Sequence[str], k: int = 5, lang: str | None = None
    ) -> list[list[Answer]]:
        """Return the k nearest entities of each mention, best first.

        lang: the language of the entities; all languages without it. Warns once of mentions that
        a trimmed model reads in other pieces than its base.
        """
        mentions = [mention.strip() for mention in mentions]
        if "" in mentions:
            raise PrixError(f"mention {mentions.index('') + 1} is empty: expected some text.")
        self.warn_of_reading(mentions)
        owners = None if lang is None else self.kb.entity_range(lang)
        nearest = self.index.search(self.encoder.encode(mentions), k, owners)
        # One look-up for the names of all answers; they are handed out in the same order below.
        names = iter(self.kb.names(nearest.entity[nearest.entity >= 0].tolist()))
        return [
            [
                Answer(int(entity), next(names), float(score), rank)
                for rank, (entity, score) in enumerate(zip(row, scores, strict=True), start=1)
                if entity >= 0  # -1 where there are fewer than k
            ]
            for row, scores in zip(nearest.entity, nearest.score, strict=True)
        ]

    def identity(self) -> dict[str, str]:
        """Return what the answers depend on beside the KB."""
        return {"encoder": self.encoder.fingerprint(), "kind": self.kind}

    def recipe(self) -> "Callable[[], Linking] | None":
        """Return a function that loads the same in another process; None without a folder."""
        if self.encoder.folder is None:
            return None
        return partial(_load_linker, self.encoder.folder, self.kb, self.kind)

    def warn_of_reading(self, mentions: Sequence[str]) -> None:
        """Warn once of mentions that a trimmed model reads in other pieces than its base."""
        if not self._has_warned:
            self._has_warned = warn_of_reading(self.encoder.model, mentions, "mentions")


class Linking(Protocol):
    """What links mentions to the entities of a KB."""

    kb: KB

    def link(self, mentions: Sequence[str], k: int, lang: str | None) -> list[list[Answer]]:
        """Return the best entities of each mention."""

    def identity(self) -> dict[str, str]:
        """Return what the answers depend on beside the KB."""

    def recipe(self) -> "Callable[[], Linking] | None":
        """Return a picklable function that loads the same elsewhere; None if nothing can."""

    def warn_of_reading(self, mentions: Sequence[str]) -> None:
        """Warn once of mentions that a trimmed model reads in other pieces than its base."""


def _load_linker(encoder: Path, kb: KB, kind: str) -> EntityLinker:
    linker = EntityLinker(encoder, kb, kind=kind)
    linker._has_warned = True  # the driver has warned of the whole file
    return linker


def link_file(
    linker: Linking,
    mentions: "Path | MentionsFile",
    out: Path,
    k: int = 5,
    lang: str | None = None,
    progress: Progress | None = None,
    *,
    engine: EngineConfig | None = None,
) -> dict[str, int]:
    """Link every line of a file; return the number of `mentions` and how many were `empty`.

    The file `out` appears only when all lines are linked. Finished parts lie in OUT.partial until
    then; the same call resumes from them.
    """
    check_out(out)
    file = mentions if isinstance(mentions, MentionsFile) else open_mentions(mentions)
    linker.warn_of_reading(file.sample)  # with the share of the whole file

    size = shard_size(file.total, _PART)
    stamp = {
        "mentions": file.digest,
        "kb": linker.kb.fingerprint(),
        "linker": linker.identity(),
        "asked": [k, lang],
        "made by": made_by(engine),
    }
    with disk_errors(out), open_workspace(partial_folder(out), stamp, out) as work:
        rows = work.make(_LINES, partial(_write_lines, file, size))
        starts = range(0, file.total, size)
        shards = [
            Shard(f"part-{index:07d}.parquet", index, min(size, file.total - start))
            for index, start in enumerate(starts)
        ]
        recipe, shared = linker.recipe(), work.share(rows)
        load = None if recipe is None else partial(_load_linking, recipe, shared, k, lang)
        linking = _Linking(linker, rows, k, lang)
        job = ShardJob("link", shards, load, linking, linking.inputs())
        parts = make_parts(job, work, engine, progress)
        write_rows((pq.read_table(part) for part in parts), SCHEMA, out, new=True)
        work.remove()
    return {"mentions": file.total, "empty": file.empty}


@dataclass(frozen=True)
class _Linking:
    """Links the lines of a part: what a worker has loaded."""

    linker: Linking
    lines: Path  # a row group for each part
    k: int
    lang: str | None

    @cached_property
    def _file(self) -> pq.ParquetFile:
        """The file, opened once: the list of its row groups may be long."""
        return pq.ParquetFile(self.lines)

    def inputs(self) -> dict[str, str]:
        """Return what tells KB and linker from others."""
        return {"KB": self.linker.kb.fingerprint(), **self.linker.identity()}

    def __call__(self, index: int, path: Path) -> None:
        """Link the lines of one part and write the answers as Parquet."""
        lines = self._file.read_row_group(index)["mention"].to_pylist()
        pq.write_table(_link_lines(self.linker, lines, self.k, self.lang), path)


def _load_linking(make: Callable[[], Linking], lines: Path, k: int, lang: str | None) -> _Linking:
    return _Linking(make(), local_copy(lines), k, lang)


def _write_lines(file: "MentionsFile", size: int, path: Path) -> None:
    """Write the lines with a row group per part: workers read any of them."""
    schema, lines = pa.schema([("mention", pa.string())]), file.lines()
    with pq.ParquetWriter(path, schema) as writer:
        while part := list(itertools.islice(lines, size)):
            writer.write_table(pa.table({"mention": part}, schema=schema), size)


@dataclass(frozen=True)
class MentionsFile:
    """A file of mentions that was read once, line by line: it may be larger than memory."""

    path: Path
    total: int
    empty: int
    digest: str  # of the mentions
    sample: list[str]  # at most `_SAMPLE` of them, evenly spaced

    def lines(self) -> Iterator[str]:
        """Yield the mentions in their order."""
        return _read_lines(self.path)


def open_mentions(mentions: Path) -> MentionsFile:
    """Read a file of mentions, which may be in a store; refuse one that has none."""
    shown = uri_of(mentions) if is_remote(mentions) else mentions
    path = local_source(mentions)
    digest, total, empty = hashlib.sha256(), 0, 0
    sample: list[str] = []
    step = 1  # every so many lines are in the sample
    try:
        for line in _read_lines(path):
            digest.update(line.encode() + b"\n")
            if not total % step:
                sample.append(line)
            if len(sample) > _SAMPLE:
                sample, step = sample[::2], 2 * step
            total, empty = total + 1, empty + (not line)
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"--mentions {shown} cannot be read as text: {error}.") from None
    if total == empty:
        raise PrixError(f"--mentions {shown} is empty: expected one mention per line.")
    return MentionsFile(path, total, empty, digest.hexdigest(), sample)


def _read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file without white space around them; not the empty ones at its end."""
    waiting = 0  # empty lines: of the end, unless another line follows
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            if line == "\n":
                waiting += 1
                continue
            yield from itertools.repeat("", waiting)
            waiting = 0
            yield line.strip()


def _link_lines(linker: Linking, lines: list[str], k: int, lang: str | None) -> pa.Table:
    """Return the answers to some lines; an empty line gets a row without an answer."""
    # Empty lines are not asked, so answers and entities are taken one by one beside the lines.
    answers_by_line = linker.link([line for line in lines if line], k, lang)
    ids = [answer.entity for answers in answers_by_line for answer in answers]
    entities = iter(linker.kb.entities(ids))
    remaining = iter(answers_by_line)
    rows: list[dict[str, object]] = []
    for line in lines:
        answers = next(remaining) if line else []
        if not answers:
            rows.append({"mention": line})
        pairs = zip(answers, itertools.islice(entities, len(answers)), strict=True)
        for answer, entity in pairs:
            cells: dict[str, object] = {"mention": line, "rank": answer.rank}
            cells |= {"name": entity.name, "lang": entity.lang}
            cells |= {"key": entity.key, "entity": entity.id, "score": answer.score}
            rows.append(cells | {"evidence": answer.evidence})
    return pa.Table.from_pylist(rows, schema=SCHEMA)
