"""Linking (Sec. 2.2 and 3.3): a mention in any language, and the entities whose names are near.

    linker = EntityLinker(EntityEncoder.load("encoder"), KB("kb"))
    linker.link(["Helsingin kaupunki"], lang="en")

The first call encodes all names of the KB; the vectors and the index lie in the KB's folder after.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from prixlm.decoding.batch import check_out
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import KINDS, build_vectors
from prixlm.errors import PrixError
from prixlm.files import disk_errors, write_rows
from prixlm.kb.store import KB
from prixlm.types import Answer, Progress

SCHEMA = pa.schema(
    [
        ("mention", pa.string()),
        ("rank", pa.int32()),  # null where there is no answer: the line is empty
        ("name", pa.string()),
        ("lang", pa.string()),
        ("key", pa.string()),
        ("entity", pa.int64()),  # its id in the KB
        ("score", pa.float64()),  # the cosine
    ]
)
_PART = 4096


class EntityLinker:
    """An encoder, and a KB whose entities are the candidates."""

    def __init__(
        self,
        encoder: EntityEncoder | Path | str,
        kb: KB | Path | str,
        *,
        kind: str = "auto",
        progress: Progress | None = None,
    ) -> None:
        is_loaded = isinstance(encoder, EntityEncoder)
        self.encoder: EntityEncoder = encoder if is_loaded else EntityEncoder.load(encoder)  # type: ignore[arg-type,assignment]
        self.kb = kb if isinstance(kb, KB) else KB(kb)
        if kind not in ("auto", *KINDS):
            raise PrixError(f"--index {kind}: expected auto, {', '.join(KINDS)}.")
        if not self.kb.num_entities:
            raise PrixError(f"{self.kb.folder} has no entities: nothing can be linked to.")
        store = build_vectors(self.kb, self.encoder, progress=progress)
        self.index = store.index(kind)

    def link(
        self, mentions: Sequence[str], k: int = 5, lang: str | None = None
    ) -> list[list[Answer]]:
        """The k nearest entities of each mention, in one language or in all."""
        mentions = [mention.strip() for mention in mentions]
        if "" in mentions:
            place = mentions.index("") + 1
            raise PrixError(f"mention {place} is empty: there is nothing to link.")
        within = None if lang is None else self.kb.entity_range(lang)
        found = self.index.search(self.encoder.encode(mentions), k, within)
        known = found.entity >= 0
        names = iter(self.kb.names(found.entity[known].tolist()))
        return [
            [
                Answer(int(entity), next(names), float(score), rank)
                for rank, (entity, score) in enumerate(zip(row, scores, strict=True), start=1)
                if entity >= 0
            ]
            for row, scores in zip(found.entity, found.score, strict=True)
        ]


def link_file(
    linker: EntityLinker,
    mentions: Path,
    out: Path,
    k: int = 5,
    lang: str | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Link every line of a file; how many there were, and how many were empty.

    Nothing is written until all are there.
    """
    check_out(out)
    lines = read_mentions(mentions)

    def tables() -> Iterator[pa.Table]:
        for start in range(0, len(lines), _PART):
            yield _linked(linker, lines[start : start + _PART], k, lang)
            if progress is not None:
                progress("link", min(start + _PART, len(lines)), len(lines))

    with disk_errors(out):
        write_rows(tables(), SCHEMA, out)
    return {"mentions": len(lines), "empty": sum(not line for line in lines)}


def read_mentions(mentions: Path) -> list[str]:
    """The lines of a file, without the space around them."""
    try:
        lines = mentions.read_text("utf-8-sig").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"--mentions {mentions} cannot be read as text: {error}.") from None
    if not any(map(str.strip, lines)):
        raise PrixError(f"--mentions {mentions} is empty: expected a mention a line.")
    return [line.strip() for line in lines]


def _linked(linker: EntityLinker, lines: list[str], k: int, lang: str | None) -> pa.Table:
    """The answers to some lines; an empty one has a row without an answer."""
    asked = [line for line in lines if line]
    answers = linker.link(asked, k, lang)
    entities = iter(linker.kb.entities([one.entity for row in answers for one in row]))
    rest = iter(answers)
    rows: list[dict[str, object]] = []
    for line in lines:
        found = next(rest) if line else []
        if not found:
            rows.append({"mention": line})
        for one, entity in zip(found, itertools.islice(entities, len(found)), strict=True):
            values = {"mention": line, "rank": one.rank, "name": entity.name, "lang": entity.lang}
            rows.append(values | {"key": entity.key, "entity": entity.id, "score": one.score})
    return pa.Table.from_pylist(rows, schema=SCHEMA)
