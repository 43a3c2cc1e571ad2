"""Random access to a KB: names, descriptions and facts of single entities, mapped into memory.

    KB/lookup/   names, keys, aliases and descriptions as text; concepts and facts as columns;
                 stamp.json

`KB` streams tables and joins them in DuckDB, which takes tens of milliseconds for any question. A
server is asked for a few entities at a time, thousands of times: here that takes microseconds, and
the memory is that of the pages that were touched. The files are built once, and again when the KB
changes; a KB on a disk that cannot be written has them in the user's cache folder.

    lookup = build_lookup(kb)
    lookup.name(3), lookup.entities_of(lookup.concept[3])

Dimension letters: E entities, C concepts, N facts, A aliases, D descriptions.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.arrays import ragged_offsets, ragged_ranges
from prixlm.engine.workspace import is_cached, open_workspace, partial_folder, seal
from prixlm.files import publish
from prixlm.kb.concepts import MAX_CONCEPT
from prixlm.kb.mapped import MappedTexts, TextWriter, map_column
from prixlm.kb.store import KB, cache_folder
from prixlm.types import Array, Entity, Progress

VERSION = 2
_BATCH_ROWS = 1 << 16
_MOST_FACTS = 1 << 16
"""Facts of one answer: a concept may have a thousand names, each with as many facts."""


@dataclass(frozen=True)
class Facts:
    """Facts as three columns of ids: (N,) each. A fact's language is that of its subject."""

    subject: Array
    relation: Array
    object: Array

    def __len__(self) -> int:
        return len(self.subject)


class Lookup:
    """The mapped columns of one KB; see `build_lookup`. Safe under threads: nothing is written."""

    def __init__(self, kb: KB, folder: Path) -> None:
        self.kb, self.folder = kb, folder
        self.languages = kb.languages
        self._starts = [kb.entity_range(lang).start for lang in self.languages]
        self.concept = map_column(folder / "concept", np.int32)  # (E,)
        self.has_clear_key = map_column(folder / "has_clear_key", np.bool_)  # (E,)
        self._by_concept = map_column(folder / "by_concept", np.int32)  # (E,) entities, by concept
        self._concept_start = map_column(folder / "concept_start", np.int64)  # (C + 1,)
        self._subject = map_column(folder / "subject", np.int32)  # (N,) sorted
        self._relation = map_column(folder / "relation", np.int32)  # (N,)
        self._object = map_column(folder / "object", np.int32)  # (N,)
        self._by_object = map_column(folder / "by_object", np.int64)  # (N,) rows, by object
        self._object_sorted = map_column(folder / "object_sorted", np.int32)  # (N,)
        self._alias_entity = map_column(folder / "alias_entity", np.int32)  # (A,) sorted
        self.names, self.keys, self._aliases = (
            MappedTexts(folder / table) for table in ("names", "keys", "aliases")
        )
        self._described, self._descriptions = np.zeros(0, np.int32), None
        if kb.has_descriptions:
            self._described = map_column(folder / "described", np.int32)  # (D,) sorted
            self._descriptions = MappedTexts(folder / "descriptions")
        self.relation_keys = kb.relation_keys()
        rows = kb.query("SELECT name FROM relations ORDER BY id").fetchall()
        self._common_names: list[str] = [name for (name,) in rows]
        rows = kb.query("SELECT relation, lang, name FROM relation_names").fetchall()
        self._relation_names = {(relation, lang): name for relation, lang, name in rows}

    @property
    def num_concepts(self) -> int:
        """Number of concepts."""
        return len(self._concept_start) - 1

    @property
    def num_facts(self) -> int:
        """Number of facts, in all languages."""
        return len(self._subject)

    def lang(self, entity: int) -> str:
        """Return the language of an entity."""
        return self.languages[bisect_right(self._starts, entity) - 1]

    def langs(self, entities: Array) -> list[str]:
        """Return the language of each of some entities."""
        numbers = np.searchsorted(self._starts, entities, side="right") - 1
        return [self.languages[number] for number in numbers.tolist()]

    def name(self, entity: int) -> str:
        """Return the name of an entity."""
        return self.names[entity]

    def key(self, entity: int) -> str:
        """Return the key of an entity."""
        return self.keys[entity]

    def entity(self, number: int) -> Entity:
        """Return an entity by its id."""
        lang, concept = self.lang(number), int(self.concept[number])
        return Entity(number, lang, self.names[number], self.keys[number], concept)

    def entities_of(self, concept: int) -> list[int]:
        """Return the entities of a concept, sorted, so by language; at most `MAX_CONCEPT`.

        Only a KB that prixlm did not import has more.
        """
        low, high = self._concept_start[concept : concept + 2]
        high = min(high, low + MAX_CONCEPT)
        rows: list[int] = self._by_concept[low:high].tolist()
        return rows

    def aliases(self, entity: int) -> list[str]:
        """Return the further names of an entity, sorted."""
        low, high = np.searchsorted(self._alias_entity, [entity, entity + 1])
        return [self._aliases[row] for row in range(low, high)]

    def description(self, entity: int) -> str:
        """Return the description of an entity; "" if it has none."""
        row = int(np.searchsorted(self._described, entity))
        if self._descriptions is None or row == len(self._described):
            return ""
        return self._descriptions[row] if self._described[row] == entity else ""

    def texts(self, entity: int) -> list[str]:
        """Return all that is written of an entity: its name, its aliases, its description."""
        texts = [self.names[entity], *self.aliases(entity), self.description(entity)]
        return texts if texts[-1] else texts[:-1]

    def find_key(self, key: str, langs: Sequence[str] | None = None) -> list[int]:
        """Return the entities with a key, at most one for each language."""
        wanted = key.encode("utf-8", "replace")
        found = []
        for lang in self.languages if langs is None else langs:
            ids = self.kb.entity_range(lang)
            low, high = ids.start, ids.stop
            # The keys of a language are sorted by their bytes.
            while low < high:
                middle = (low + high) // 2
                if self.keys.encoded(middle) < wanted:
                    low = middle + 1
                else:
                    high = middle
            if low < ids.stop and self.keys.encoded(low) == wanted:
                found.append(low)
        return found

    def relation_name(self, relation: int, langs: Sequence[str]) -> tuple[str, str]:
        """Return the name of a relation and its language: the first of some that has one.

        The common name stands in, which is the English one or made from the key.
        """
        for lang in langs:
            if (relation, lang) in self._relation_names:
                return self._relation_names[relation, lang], lang
        return self._common_names[relation], "en"

    def find_relation(self, text: str) -> int | None:
        """Return the relation with this key or, without one, with this name in any language."""
        return self._relations.get(text)

    @cached_property
    def _relations(self) -> dict[str, int]:
        """Relations by text. Keys go before common names, and these before names in a language."""
        named = [(name, relation) for (relation, _), name in self._relation_names.items()]
        common, keys = (
            [(text, relation) for relation, text in enumerate(texts)]
            for texts in (self._common_names, self.relation_keys)
        )
        # The last entry of a text stays, so of equal names the first relation is the last entry.
        return dict([*sorted(named, reverse=True), *reversed(common), *keys])

    def facts_of(self, subjects: Sequence[int], most: int | None = None) -> Facts:
        """Return the facts with these subjects, of each at most the first `most`.

        With `most`, they are at most 65,536 in all: each then has an equal share of them.
        """
        rows = _rows_of(self._subject, subjects, most)
        return Facts(self._subject[rows], self._relation[rows], self._object[rows])

    def facts_to(self, objects: Sequence[int], most: int | None = None) -> Facts:
        """Return the facts with these objects, limited as those of `facts_of`."""
        rows = self._by_object[_rows_of(self._object_sorted, objects, most)]
        return Facts(self._subject[rows], self._relation[rows], self._object[rows])

    def num_facts_of(self, entities: Sequence[int]) -> int:
        """Return how many facts have one of these entities as subject or as object."""
        ids = np.asarray(entities, np.int64)
        return sum(
            int(np.subtract(*np.searchsorted(column, [ids + 1, ids])).sum())
            for column in (self._subject, self._object_sorted)
        )


def build_lookup(kb: KB, progress: Progress | None = None) -> Lookup:
    """Open the lookup of a KB, after building it if it is missing, out of date or damaged."""
    stamp = {"version": VERSION, "kb": kb.fingerprint()}
    folder = cache_folder(kb, "lookup", stamp)
    found = _open_lookup(kb, folder, stamp)
    if found is not None:
        return found
    with open_workspace(partial_folder(folder), stamp, wait=True) as work:
        found = _open_lookup(kb, folder, stamp)
        if found is not None:  # another worker of this machine has built it meanwhile
            work.remove()
            return found
        _write_texts(kb, work.folder, progress)
        _write_concepts(kb, work.folder)
        _write_facts(kb, work.folder)
        seal(work.folder)
        publish(work.folder, folder)
    return Lookup(kb, folder)


def _open_lookup(kb: KB, folder: Path, stamp: Mapping[str, Any]) -> Lookup | None:
    if is_cached(folder, stamp):
        with suppress(OSError, ValueError):  # a file of it is missing or cut
            return Lookup(kb, folder)
    return None


def _write_texts(kb: KB, folder: Path, progress: Progress | None) -> None:
    done = 0
    with TextWriter(folder / "names") as names, TextWriter(folder / "keys") as keys:
        for batch in kb.batches("entities", ["name", "key"]):
            names.write(batch.column("name"))
            keys.write(batch.column("key"))
            done += batch.num_rows
            if progress is not None:
                progress("index names", done, kb.num_entities)
    with (
        TextWriter(folder / "aliases") as aliases,
        (folder / "alias_entity").open("wb") as entities,
    ):
        query = "SELECT entity, name FROM aliases ORDER BY entity, name"
        for batch in kb.stream(query, _BATCH_ROWS):
            entities.write(batch.column(0).to_numpy().astype(np.int32).tobytes())
            aliases.write(batch.column(1))
    if kb.has_descriptions:
        _write_descriptions(kb, folder)


def _write_descriptions(kb: KB, folder: Path) -> None:
    """Write the descriptions and their entities, (D,) each, in the order of the entities."""
    with (
        TextWriter(folder / "descriptions") as texts,
        (folder / "described").open("wb") as entities,
    ):
        for batch in kb.batches("descriptions", ["entity", "text"]):
            entities.write(batch.column("entity").to_numpy().astype(np.int32).tobytes())
            texts.write(batch.column("text"))


def _write_concepts(kb: KB, folder: Path) -> None:
    """Write the columns by entity and by concept; the arrays take about 20 bytes an entity."""
    concept = kb.concepts()
    _save(concept, folder / "concept", np.int32)
    _save(np.argsort(concept, kind="stable"), folder / "by_concept", np.int32)
    _save(ragged_offsets(np.bincount(concept)), folder / "concept_start", np.int64)
    # A key is clear if all entities with it, in any language, are of one concept.
    clear = np.ones(len(concept), np.bool_)
    rows = kb.query(
        "SELECT id FROM entities WHERE key IN "
        "(SELECT key FROM entities GROUP BY key HAVING min(concept) <> max(concept))"
    ).fetchnumpy()
    clear[rows["id"]] = False
    _save(clear, folder / "has_clear_key", np.bool_)


def _write_facts(kb: KB, folder: Path) -> None:
    """Write the facts by subject and by object; the arrays take about 32 bytes a fact."""
    names = ("subject", "relation", "object")
    parts: dict[str, list[Array]] = {name: [np.zeros(0, np.int32)] for name in names}
    for batch in kb.batches("triples", names):
        for name in names:
            parts[name].append(batch.column(name).to_numpy())
    columns = {name: np.concatenate(parts.pop(name)) for name in names}
    # The table is ordered by subject already, but only within a split of an older prixlm.
    if (np.diff(columns["subject"]) < 0).any():
        order = np.argsort(columns["subject"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
    by_object = np.argsort(columns["object"], kind="stable")
    for name, column in columns.items():
        _save(column, folder / name, np.int32)
    _save(by_object, folder / "by_object", np.int64)
    _save(columns["object"][by_object], folder / "object_sorted", np.int32)


def _rows_of(column: Array, ids: Sequence[int], most: int | None) -> Array:
    """Return the rows of a sorted column that hold one of some ids."""
    # Ids are whole numbers, so those of an id end where those of the next one would begin. The
    # type is the column's: otherwise searchsorted copies the whole column.
    wanted = np.asarray(ids, column.dtype)
    low, high = column.searchsorted(np.stack([wanted, wanted + 1]))
    if most is not None:
        counts = np.minimum(high - low, most)
        high = low + _fair_shares(counts, max(most, _MOST_FACTS))
    if len(wanted) == 1:
        return np.arange(low[0], high[0])
    rows, _ = ragged_ranges(low, high)
    return rows


def _fair_shares(counts: Array, most: int) -> Array:
    """Return how many rows of each to take, at most `most` in all: as many of each as can be."""
    if int(counts.sum()) <= most:
        return counts
    # (N,) what each of the larger ones gets if all rows of the smaller ones are taken.
    ordered = np.sort(counts)
    left = most - (np.cumsum(ordered) - ordered)
    share = left // np.arange(len(ordered), 0, -1)
    taken: Array = np.minimum(counts, share[np.argmax(ordered > share)])
    # What is left over, less than one row for each, goes to the first that have more.
    more = np.flatnonzero(counts > taken)[: most - int(taken.sum())]
    taken[more] += 1
    return taken


def _save(column: Array, path: Path, dtype: type) -> None:
    column.astype(dtype, copy=False).tofile(path)
