"""Link mentions in any language to the entities of a KB with the nearest names (Sec. 2.2, 3.3).

    linker = EntityLinker(EntityEncoder.load("encoder"), KB("kb"))
    linker.link(["Helsingin kaupunki"], lang="en")

The first use encodes all names of the KB. The vectors and the index stay in the KB's folder.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from prixlm.decoding.batch import check_out
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import KINDS, build_vectors
from prixlm.errors import PrixError
from prixlm.files import disk_errors, write_rows
from prixlm.kb.store import KB
from prixlm.lm.trim import warn_of_another_kb, warn_of_reading
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
    ]
)
_PART = 4096
"""Mentions that are encoded and looked up together."""


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

    def warn_of_reading(self, mentions: Sequence[str]) -> None:
        """Warn once of mentions that a trimmed model reads in other pieces than its base."""
        if not self._has_warned:
            self._has_warned = warn_of_reading(self.encoder.model, mentions, "mentions")


class Linking(Protocol):
    """What links mentions to the entities of a KB."""

    kb: KB

    def link(self, mentions: Sequence[str], k: int, lang: str | None) -> list[list[Answer]]:
        """Return the best entities of each mention."""

    def warn_of_reading(self, mentions: Sequence[str]) -> None:
        """Warn once of mentions that a trimmed model reads in other pieces than its base."""


def link_file(
    linker: Linking,
    mentions: Path,
    out: Path,
    k: int = 5,
    lang: str | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Link every line of a file; return the number of `mentions` and how many were `empty`.

    The file `out` appears only when all lines are linked.
    """
    check_out(out)
    lines = read_mentions(mentions)
    linker.warn_of_reading(lines)  # with the share of the whole file

    def tables() -> Iterator[pa.Table]:
        for start in range(0, len(lines), _PART):
            yield _link_lines(linker, lines[start : start + _PART], k, lang)
            if progress is not None:
                progress("link", min(start + _PART, len(lines)), len(lines))

    with disk_errors(out):  # `out` takes its name when the last table is written
        write_rows(tables(), SCHEMA, out, new=True)
    return {"mentions": len(lines), "empty": sum(not line for line in lines)}


def read_mentions(mentions: Path) -> list[str]:
    """Return the lines of a file, without white space around them."""
    try:
        lines = mentions.read_text("utf-8-sig").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"--mentions {mentions} cannot be read as text: {error}.") from None
    if not any(map(str.strip, lines)):
        raise PrixError(f"--mentions {mentions} is empty: expected one mention per line.")
    return [line.strip() for line in lines]


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
            cells = {"mention": line, "rank": answer.rank, "name": entity.name, "lang": entity.lang}
            rows.append(cells | {"key": entity.key, "entity": entity.id, "score": answer.score})
    return pa.Table.from_pylist(rows, schema=SCHEMA)
