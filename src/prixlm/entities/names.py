"""Search the names and aliases of a KB, in any script, from an index on disk.

    KB/names/HASH/   names, folded, romanised    texts of every name, by row
                     entities, concepts, ...     columns, by row
                     starts, words, readings     rows in the order of their text
                     grams/                      tantivy: n-grams of every name
                     stamp.json

    names = build_names(kb)
    names.search("helsinkki")                # for people, as they type
    names.candidates(["Αθήνα", "Turku"])     # for matching tables

A name is compared as *folded* text (NFKC, case folded, without invisible characters) and as its
*reading*, the name in Latin letters. Rows are numbered by how well known their concept is, so that
the smaller of two rows is the better known one everywhere. Exact names, beginnings of names and of
words are ranges of sorted tables: such a name is found however many others resemble it. Other
spellings are found by shared n-grams, then ranked by rapidfuzz.

A query is text, never a query language. An index is read-only and may be used by many threads.
"""

import bisect
import importlib.metadata
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.arrays import group_starts, rank_in_group
from prixlm.engine.workspace import (
    drop_oldest_caches,
    is_cached,
    open_workspace,
    partial_folder,
    seal,
)
from prixlm.errors import PrixError
from prixlm.files import open_database, parquet_rows, publish
from prixlm.kb.mapped import MappedTexts, TextWriter, map_column
from prixlm.kb.store import KB, cache_folder
from prixlm.romanise import reading_version, romanise
from prixlm.types import Array, Progress

How = Literal["exact", "prefix", "substring", "spelling", "romanised"]

VERSION = 2
MAX_CACHES = 2
MIN_SIMILARITY = 50.0
"""Least similarity, of 100, of another spelling that `search` shows."""

_ROWS = 1 << 14
_MEMORY = "1GiB"
_HEAP = 128_000_000
"""Bytes that tantivy fills before it writes a segment."""
_WORD_BYTES = 100
"""Bytes of a word's beginning and what follows it by which words are sorted."""
_NUM_SIMILAR = 500
"""Names with the most n-grams of a query that are compared by rapidfuzz."""
_MAX_GRAMS = 40
"""N-grams of a query that are looked up: the rarest, so that a long query takes no longer."""
_MAX_POSTINGS, _MIN_GRAMS = 100_000, 12
"""Names of all n-grams together beyond which common ones are left out of a search for similar
names, and how many stay all the same: a slip alone makes up to eight rare ones."""
MAX_TEXT = 256
"""Characters of a query or name that n-grams and rapidfuzz see."""
_SHORT = 12
"""Characters below which two typos may leave too few n-grams of three whole."""
_MAX_NAMES = 8
"""Names of one concept among the candidates of a query."""
_ROUNDING = 0.01
"""Added to an upper bound of a similarity, since similarities are rounded to float32."""
_READING, _PART = 0.95, 0.85
"""Weights of a similar reading, and of words of a name that are similar, beside a similar name."""

_INVISIBLE = re.compile(  # Unicode's Default_Ignorable_Code_Point: marks of direction, joiners, ...
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
# Not \W: `re` does not count the vowel signs of Indic scripts as letters, but they end no word.
_WORD = re.compile(r"(?<=[\s!-/:-@\[-`{-~¡-¿،؛؟।‐-⁞、-〿・])[^\s!-/:-@\[-`{-~¡-¿،؛؟।‐-⁞、-〿・]")

_NAMES = """
WITH facts AS (
    SELECT e.concept, count(*) AS num_facts
    FROM (SELECT subject AS id FROM triples UNION ALL SELECT object FROM triples)
    JOIN entities e USING (id) GROUP BY e.concept
)
SELECT e.id, e.concept, n.is_alias, n.name
FROM (
    SELECT id, name, false AS is_alias FROM entities
    UNION ALL SELECT entity, name, true FROM aliases
) n JOIN entities e USING (id) LEFT JOIN facts f ON f.concept = e.concept
ORDER BY coalesce(f.num_facts, 0) DESC, e.concept, e.id, n.is_alias, n.name
"""


class NameHit(NamedTuple):
    """A concept that was found, by the name that matched best."""

    entity: int
    concept: int
    lang: str
    name: str
    is_alias: bool
    how: How
    score: float  # similarity of the spelling, 0 to 100
    romanised: float  # the same of the readings
    reading: str = ""  # the name in Latin letters; empty if it is not at hand


def fold(text: str) -> str:
    """Return text as it is compared: NFKC, case folded, single spaces, no invisible characters."""
    text = text.encode("utf-8", "ignore").decode()  # a query may hold half a surrogate pair
    visible = _INVISIBLE.sub("", text)
    folded = _fold_case(visible)
    return folded if folded else _fold_case(text)


def _fold_case(text: str) -> str:
    # Case folding may leave text that is not normal: `ΐ` becomes three characters.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split())


class _Sorted:
    """Rows in the order of their texts, or of the words in them."""

    def __init__(self, texts: MappedTexts, path: Path) -> None:
        self.texts = texts
        self.rows = map_column(path.with_suffix(".rows"), np.int32)
        self.places = map_column(path.with_suffix(".places"), np.int32)  # byte of each word

    def begins_with(self, text: str) -> tuple[Array, Array]:
        """Return the rows whose text is this one, and the rows whose text goes on after it."""
        wanted = text.encode()
        key = wanted[:_WORD_BYTES] if len(self.places) else wanted

        def beginning(place: int, size: int = len(key)) -> bytes:
            start = int(self.places[place]) if len(self.places) else 0
            return self.texts.encoded(int(self.rows[place]), start, size)

        def whole(place: int) -> bytes:
            return self.texts.encoded(int(self.rows[place]))

        places = range(len(self.rows))
        first = bisect.bisect_left(places, key, key=beginning)
        last = bisect.bisect_right(places, key, lo=first, key=beginning)
        if len(key) < len(wanted):  # sorted by fewer bytes than the query has
            within = [i for i in range(first, last) if beginning(i, len(wanted)) == wanted]
            return self.rows[:0], self.rows[within]
        if len(self.places):
            return self.rows[:0], self.rows[first:last]
        middle = bisect.bisect_right(places, wanted, lo=first, hi=last, key=whole)
        return self.rows[first:middle], self.rows[middle:last]


class NameIndex:
    """All names of a KB, searchable. Make it with `build_names`."""

    def __init__(self, kb: KB, folder: Path) -> None:
        self.kb, self.folder = kb, folder
        self._langs = [lang for lang in kb.languages if kb.entity_range(lang)]
        self._lang_starts = [kb.entity_range(lang).start for lang in self._langs]
        self._names = MappedTexts(folder / "names")
        self._folded = MappedTexts(folder / "folded")
        self._readings = MappedTexts(folder / "romanised")  # empty where it is the folded text
        self._entities = map_column(folder / "entities.column", np.int32)
        self._concepts = map_column(folder / "concepts.column", np.int32)
        self._is_alias = map_column(folder / "is_alias.column", np.bool_)
        self._starts = _Sorted(self._folded, folder / "starts")
        self._words = _Sorted(self._folded, folder / "words")
        self._reading_starts = _Sorted(self._readings, folder / "readings")
        self._searcher, self._schema = _open_grams(folder / "grams")

    def __len__(self) -> int:
        return len(self._entities)

    def search(self, query: str, k: int = 10, lang: str | None = None) -> list[NameHit]:
        """Return at most `k` concepts for what a person typed, the best first.

        Exact names come first, then names that read exactly so in Latin letters, names that begin
        with the query, names with a word that does, names that contain it, and other spellings.
        Better known concepts come first within each of these.
        lang: search only the names in this language.
        """
        asked = _Query(self.kb, query, lang)
        best: dict[int, tuple[int, How]] = {}  # by concept
        # Fewer than k concepts were found before each kind of match, so twice as many suffice.
        for how, rows in self._tiers(asked, 2 * k) if asked.text else ():
            for row, concept in zip(rows, self._concepts[rows].tolist(), strict=True):
                best.setdefault(concept, (int(row), how))
            if len(best) >= k:
                break
        return [self._describe(asked, row, how) for row, how in list(best.values())[:k]]

    def candidates(
        self, queries: Sequence[str], k: int = 50, lang: str | None = None
    ) -> list[list[NameHit]]:
        """Return the names most like each query, of at most `k` concepts, the best first.

        Exact names come first, own names before aliases, then names by their similarity in spelling
        or reading. A concept may be there with several names, so that the caller can leave one out.
        """
        asked = [_Query(self.kb, query, lang) for query in queries]
        return [self._candidates(query, k) if query.text else [] for query in asked]

    def _candidates(self, asked: "_Query", k: int) -> list[NameHit]:
        exact = np.concatenate(self._exact(asked, k))
        found = _Compared(self, asked, np.concatenate([exact, self._sharing_any(asked)]))
        return found.describe(found.best_concepts(exact, k))

    def _tiers(self, asked: "_Query", k: int) -> Iterator[tuple[How, Array]]:
        """Yield rows from the best kind of match to the worst; a later kind costs more."""
        for rows in self._exact(asked, k):
            yield "exact", rows
        exact, longer = self._reading_starts.begins_with(asked.reading)
        if asked.reading != asked.text:
            exact = np.concatenate([self._starts.begins_with(asked.reading)[0], exact])
        yield "romanised", self._best_known(exact, k, asked)
        yield "prefix", self._best_known(self._starts.begins_with(asked.text)[1], k, asked)
        yield "prefix", self._best_known(self._words.begins_with(asked.text)[1], k, asked)
        yield "substring", self._containing(asked)
        begins = self._best_known(longer, k, asked)
        found = _Compared(self, asked, np.concatenate([begins, self._sharing_any(asked)]))
        best = found.best(begins)
        for place in np.lexsort((found.rows, -best)).tolist():
            if best[place] < MIN_SIMILARITY:
                return
            yield found.how(place), found.rows[place : place + 1]

    def _exact(self, asked: "_Query", k: int) -> list[Array]:
        """Return the rows with exactly this text: own names, then aliases."""
        rows, _ = self._starts.begins_with(asked.text)
        is_alias = self._is_alias[rows]
        return [self._best_known(part, k, asked) for part in (rows[~is_alias], rows[is_alias])]

    def _best_known(self, rows: Array, k: int, asked: "_Query") -> Array:
        """Return the best known `k` concepts among rows: the first row of each, in order."""
        if asked.ids is not None:
            entities = self._entities[rows]
            rows = rows[(entities >= asked.ids.start) & (entities < asked.ids.stop)]
        # A concept may have many names, so a few times as many rows as concepts are sorted.
        size = 4 * k
        while True:
            first = np.sort(np.partition(rows, size)[:size] if size < len(rows) else rows)
            # Rows of a concept are consecutive numbers, so they are adjacent here.
            distinct = first[group_starts(self._concepts[first])]
            if len(distinct) >= k or size >= len(rows):
                return np.asarray(distinct[:k])
            size *= 8

    def _containing(self, asked: "_Query") -> Array:
        """Return rows whose text contains the query, the best known first."""
        import tantivy

        grams = _grams(asked.short, min(3, len(asked.text)))
        rarest = self._rarest("folded", grams)
        if len(rarest) < min(len(grams), _MAX_GRAMS):
            return np.zeros(0, np.int32)
        must = [(tantivy.Occur.Must, self._term("folded", gram)) for gram in rarest]
        rows = self._find(tantivy.Query.boolean_query([*must, *self._in_language(asked)]), True)
        wanted = asked.text.encode()
        kept = [row for row in rows if wanted in self._folded.encoded(row)]
        return np.array(kept, np.int64)

    def _sharing_any(self, asked: "_Query") -> Array:
        """Return the rows that share the most n-grams with a query, in spelling or reading."""
        rows = self._sharing("folded", asked.text, asked)
        rows += self._sharing("romanised", asked.reading, asked)
        if asked.reading != asked.text:
            rows += self._sharing("folded", asked.reading, asked)
        return np.array(rows, np.int64)

    def _sharing(self, field: str, text: str, asked: "_Query") -> list[int]:
        """Return the rows that share the most n-grams with a text, rare ones counting more."""
        import tantivy

        padded = f" {text[:MAX_TEXT]} "
        sizes = (3,) if len(text) >= _SHORT else (2, 3) if len(text) > 2 else (1, 2, 3)
        grams = self._rarest(field, set().union(*(_grams(padded, size) for size in sizes)))
        num_names = np.cumsum([self._searcher.doc_freq(field, gram) for gram in grams])
        grams = grams[: max(_MIN_GRAMS, int(np.searchsorted(num_names, _MAX_POSTINGS)))]
        any_gram = tantivy.Query.boolean_query(
            [(tantivy.Occur.Should, self._term(field, gram)) for gram in grams]
        )
        within = self._in_language(asked)
        if within:
            any_gram = tantivy.Query.boolean_query([(tantivy.Occur.Must, any_gram), *within])
        return self._find(any_gram, False)

    def _rarest(self, field: str, grams: set[str]) -> list[str]:
        """Return the n-grams that some name has; the rarest of them if they are many."""
        counts = {gram: self._searcher.doc_freq(field, gram) for gram in grams}
        known = [gram for gram, count in counts.items() if count]
        return sorted(known, key=lambda gram: (counts[gram], gram))[:_MAX_GRAMS]

    def _term(self, field: str, gram: str) -> Any:
        import tantivy

        return tantivy.Query.term_query(self._schema, field, gram, index_option="freq")

    def _in_language(self, asked: "_Query") -> list[tuple[Any, Any]]:
        import tantivy

        if asked.lang is None:
            return []
        term = tantivy.Query.term_query(self._schema, "lang", asked.lang, index_option="basic")
        return [(tantivy.Occur.Must, tantivy.Query.const_score_query(term, 0.0))]

    def _find(self, query: Any, by_row: bool) -> list[int]:
        """Return the rows that a query finds: in order of rows, else the best by BM25."""
        import tantivy

        field, order = ("row", tantivy.Order.Asc) if by_row else (None, tantivy.Order.Desc)
        found = self._searcher.search(
            query, _NUM_SIMILAR, count=False, order_by_field=field, order=order
        )
        addresses = [address for _, address in found.hits]
        return [int(row or 0) for row in self._searcher.fast_field_values("row", addresses)]

    def lang_of(self, entity: int) -> str:
        """Return the language of an entity."""
        return self._langs[bisect.bisect(self._lang_starts, entity) - 1]

    def _describe(self, asked: "_Query", row: int, how: How) -> NameHit:
        from rapidfuzz import fuzz

        entity = int(self._entities[row])
        [text] = self._folded.beginnings(np.array([row]), MAX_TEXT)
        [reading] = self._readings.beginnings(np.array([row]), MAX_TEXT)
        return NameHit(
            entity=entity,
            concept=int(self._concepts[row]),
            lang=self.lang_of(entity),
            name=self._names[row],
            is_alias=bool(self._is_alias[row]),
            how=how,
            score=fuzz.ratio(asked.short, text),
            romanised=fuzz.ratio(asked.short_reading, reading or text),
        )


class _Query:
    """A query in the forms in which names are compared."""

    def __init__(self, kb: KB, query: str, lang: str | None) -> None:
        self.text = fold(query)
        self.reading = _read([self.text], lang)[0]
        self.short = self.text[:MAX_TEXT]
        self.short_reading = self.reading[:MAX_TEXT]
        self.lang = lang
        self.ids = None if lang is None else kb.entity_range(lang)


class _Compared:
    """Rows of an index beside a query: their texts, readings and similarities.

    Dimension letters: R distinct rows.
    """

    def __init__(self, index: NameIndex, asked: _Query, rows: Array) -> None:
        self.index, self.asked = index, asked
        ordered = np.sort(rows)
        self.rows = ordered[group_starts(ordered)]  # (R,)
        self.texts = index._folded.beginnings(self.rows, MAX_TEXT)
        kept = index._readings.beginnings(self.rows, MAX_TEXT)
        self.readings = [reading or text for reading, text in zip(kept, self.texts, strict=True)]
        self.spelled = _ratios(asked.short, self.texts)  # (R,)
        if asked.short_reading != asked.short:
            self.read = _ratios(asked.short_reading, self.readings)  # (R,)
        else:  # half of all names are their own reading
            self.read = self.spelled.copy()
            others = [place for place, reading in enumerate(kept) if reading]
            self.read[others] = _ratios(asked.short_reading, [kept[place] for place in others])
        # As float32 throughout, so that the same names tie however they were compared.
        spelled, read = self.spelled.astype(np.float32), self.read.astype(np.float32)
        self._whole = np.maximum(spelled, _READING * read)

    def best(self, begins: Array) -> Array:
        """Return the similarity by which rows are ranked, (R,): whole, or some of the words.

        begins: rows whose reading begins with the query's, whose words are thus the same.
        """
        best = self._with_parts(self._whole, np.ones(len(self.rows), bool))
        is_begun = np.isin(self.rows, begins)
        return np.maximum(best, np.where(is_begun, np.float32(100 * _PART), 0))

    def best_concepts(self, exact: Array, k: int) -> Array:
        """Return the places of the names of the best `k` concepts, best first, a few of each.

        exact: rows that come first, in this order.
        The words of a name take most of the time, and few names need them: those that may be
        among the best, and the further names of these concepts.
        """
        if not len(self.rows):
            return self.rows
        # Rows of a concept are consecutive numbers, so they are one group here.
        starts = group_starts(self.index._concepts[self.rows])
        group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(self.rows)))
        by_group = np.sort(np.maximum.reduceat(self._whole, starts))
        is_near = self._most >= (by_group[-k] if k <= len(by_group) else 0)
        best = self._with_parts(self._whole, is_near)
        best[np.searchsorted(self.rows, exact)] = 1000 + np.arange(len(exact), 0, -1)
        is_best = np.zeros(len(starts), bool)
        is_best[np.argsort(-np.maximum.reduceat(best, starts), kind="stable")[:k]] = True
        best = self._with_parts(best, ~is_near & is_best[group])
        places = np.flatnonzero(is_best[group])
        places = places[np.argsort(-best[places], kind="stable")]
        # Of each concept the first few names: count within its group, then restore the order.
        by_concept = np.argsort(group[places], kind="stable")
        is_kept = rank_in_group(group[places[by_concept]]) < _MAX_NAMES
        return places[np.sort(by_concept[is_kept])]

    @cached_property
    def _most(self) -> Array:
        """An upper bound of the similarity by words, (R,).

        The longest common subsequence of the query, Q letters, and some words is at most that of
        the query and the whole name, L letters. So the ratio 2 L / (Q + length of the words) is
        at most 2 L / (Q + L).
        """
        size = len(self.asked.short_reading)
        sizes = np.fromiter(map(len, self.readings), np.int64, len(self.readings))
        common = self.read * (size + sizes) / 200
        return np.asarray(_PART * 200 * common / (size + common) + _ROUNDING)

    def _with_parts(self, best: Array, is_asked: Array) -> Array:
        """Return the similarity by words where it is larger and asked for, (R,)."""
        places = np.flatnonzero(is_asked & (self._most > best))
        parts = _part_ratios(self.asked.short_reading, [self.readings[p] for p in places.tolist()])
        better = best.copy()
        better[places] = np.maximum(best[places], _PART * parts)
        return better

    def how(self, place: int) -> How:
        """Return how a row matches."""
        text = self.asked.text
        if self.texts[place] == text[:MAX_TEXT] and (
            len(text) < MAX_TEXT or self.index._folded[int(self.rows[place])] == text
        ):
            return "exact"
        return "spelling" if self.spelled[place] >= self.read[place] else "romanised"

    def describe(self, places: Array) -> list[NameHit]:
        """Return the names of some rows."""
        index, rows = self.index, self.rows[places]
        columns = zip(
            places.tolist(),
            rows.tolist(),
            index._entities[rows].tolist(),
            index._concepts[rows].tolist(),
            index._is_alias[rows].tolist(),
            self.spelled[places].tolist(),
            self.read[places].tolist(),
            strict=True,
        )
        hits = []
        for place, row, entity, concept, is_alias, spelled, read in columns:
            name, reading, how = index._names[row], self.readings[place], self.how(place)
            # A reading in other letters stands for none, and a longer one is cut.
            if not reading.isascii() or max(len(reading), len(name)) >= MAX_TEXT:
                reading = ""
            lang = index.lang_of(entity)
            hits.append(NameHit(entity, concept, lang, name, is_alias, how, spelled, read, reading))
        return hits


def _ratios(query: str, texts: list[str]) -> Array:
    """Return how alike a query and each text are, 0 to 100, (N,)."""
    from rapidfuzz import fuzz, process

    return np.asarray(process.cdist([query], texts, scorer=fuzz.ratio, dtype=np.float64)[0])


def build_names(kb: KB, progress: Progress | None = None) -> NameIndex:
    """Open the name index of a KB, after building it if it is missing or out of date."""
    stamp = {"version": VERSION, "kb": kb.fingerprint(), "unicode": unicodedata.unidata_version}
    stamp |= {"tantivy": importlib.metadata.version("tantivy"), "reading": reading_version()}
    folder = cache_folder(kb, f"names/{kb.fingerprint()[:16]}", stamp)
    if not is_cached(folder, stamp):
        with open_workspace(partial_folder(folder), stamp, wait=True) as work:
            if is_cached(folder, stamp):  # another process has built it meanwhile
                work.remove()
            else:
                scratch = work.empty_folder("scratch")
                _write_rows(kb, work.folder, scratch, work.empty_folder("grams"), progress)
                _write_sorted(scratch, work.folder)
                shutil.rmtree(scratch)
                _share(work.folder)
                seal(work.folder)
                publish(work.folder, folder)
        drop_oldest_caches(folder.parent, MAX_CACHES)
    return NameIndex(kb, folder)


def _open_grams(folder: Path) -> tuple[Any, Any]:
    """Return tantivy's searcher and schema of a folder, which may be on a read-only disk."""
    import tantivy

    # tantivy opens no folder without a lock in it. It gets one with links to the files instead,
    # which may be removed as soon as the files are mapped into memory; tantivy may still be
    # removing its lock then.
    with tempfile.TemporaryDirectory(prefix="prixlm-", ignore_cleanup_errors=True) as links:
        for path in folder.resolve().iterdir():
            if path.suffix != ".lock":
                (Path(links) / path.name).symlink_to(path)
        try:
            index = tantivy.Index.open(links)
            index.config_reader("manual")  # the files never change: nothing to watch
            return index.searcher(), index.schema
        except ValueError as error:
            reason = (str(error).splitlines() or [""])[0][:200]
            raise PrixError(
                f"{folder.parent} is damaged ({reason}): delete it, and it is built again."
            ) from None


def _share(folder: Path) -> None:
    """Let all read tantivy's files who can read ours: it writes some for its own user alone."""
    mode = (folder / "entities.column").stat().st_mode
    for path in (folder / "grams").iterdir():
        path.chmod(mode)


def _read(folded: Sequence[str], langs: str | Sequence[str] | None) -> list[str]:
    """Return the readings of folded texts; a text without Latin letters stands for itself."""
    return [new or old for new, old in zip(romanise(folded, langs), folded, strict=True)]


def _grams(text: str, size: int) -> set[str]:
    return {text[start : start + size] for start in range(len(text) - size + 1)}


def _part_ratios(query: str, texts: list[str]) -> Array:
    """Return how alike the query is to as many words of each text, the most similar ones, (N,).

    It is 0 for a text that has no more words than the query.
    """
    size = query.count(" ") + 1
    runs: list[str] = []
    places, starts = [], []  # of the texts with more words, and where their runs begin
    for place, text in enumerate(texts):
        words = text.split(" ")
        if len(words) > size:  # else the whole name is as good
            places.append(place)
            starts.append(len(runs))
            last = len(words) - size
            runs += words if size == 1 else [" ".join(words[i : i + size]) for i in range(last + 1)]
    best = np.zeros(len(texts), np.float32)
    if runs:
        best[places] = np.maximum.reduceat(_ratios(query, runs).astype(np.float32), starts)
    return best


def _write_rows(
    kb: KB, folder: Path, scratch: Path, grams: Path, progress: Progress | None
) -> None:
    """Write all that is stored by row, the n-grams, and the unsorted tables into `scratch`."""
    [[num_aliases]] = kb.query("SELECT count(*) FROM aliases").fetchall()
    total, done = kb.num_entities + num_aliases, 0
    with ExitStack() as stack:
        columns = {
            name: stack.enter_context((folder / f"{name}.column").open("wb"))
            for name in ("entities", "concepts", "is_alias")
        }
        texts = {name: stack.enter_context(TextWriter(folder / name)) for name in _TEXTS}
        tables = {name: stack.enter_context(_table_writer(scratch, name)) for name in _TABLES}
        writer = stack.enter_context(_GramWriter(grams))
        for batch in kb.stream(_NAMES, _ROWS):
            if progress is not None:
                progress("names", done, total)
            ids, concepts, is_alias, names = batch.columns
            _write_column(columns["entities"], ids, np.int32)
            _write_column(columns["concepts"], concepts, np.int32)
            _write_column(columns["is_alias"], is_alias, np.bool_)
            langs = [kb.languages[i] for i in kb.language_of(np.asarray(ids))]
            plain = names.to_pylist()
            folded = [fold(name) for name in plain]
            # A reading that is the folded text is left out: half the names of a KB are ASCII.
            readings = [
                "" if reading == text else reading
                for reading, text in zip(_read(folded, langs), folded, strict=True)
            ]
            for name, values in zip(_TEXTS, (plain, folded, readings), strict=True):
                texts[name].write(pa.array(values, pa.string()))
            writer.write(done, langs, folded, readings)
            _write_unsorted(tables, done, folded, readings)
            done += len(plain)


_TEXTS = ("names", "folded", "romanised")
_TABLES = ("starts", "words", "readings")
_SORTED_SCHEMA = pa.schema({"row": pa.int32(), "place": pa.int32(), "text": pa.binary()})


def _write_unsorted(
    tables: dict[str, pq.ParquetWriter], first: int, folded: list[str], readings: list[str]
) -> None:
    """Add the names of a batch to the tables that will be sorted. first: its first row."""
    columns: dict[str, list[tuple[int, int, bytes]]] = {name: [] for name in _TABLES}
    for row, (text, reading) in enumerate(zip(folded, readings, strict=True), first):
        encoded = text.encode()
        columns["starts"].append((row, 0, encoded))
        if reading:
            columns["readings"].append((row, 0, reading.encode()))
        for match in _WORD.finditer(text):
            place = match.start() if text.isascii() else len(text[: match.start()].encode())
            columns["words"].append((row, place, encoded[place : place + _WORD_BYTES]))
    for name, rows in columns.items():
        values = list(zip(*rows, strict=True)) or [(), (), ()]
        tables[name].write_table(
            pa.table(
                [pa.array(v, f.type) for v, f in zip(values, _SORTED_SCHEMA, strict=True)],
                schema=_SORTED_SCHEMA,
            )
        )


def _write_sorted(scratch: Path, folder: Path) -> None:
    """Sort each table by its text, then row, and keep its rows."""
    with open_database(scratch, _MEMORY) as db:
        for name in _TABLES:
            table = parquet_rows(scratch / f"{name}.parquet")
            query = f"SELECT row, place FROM {table} ORDER BY text, row, place"
            reader: Any = db.sql(query).to_arrow_reader(_ROWS)
            with (
                (folder / f"{name}.rows").open("wb") as rows,
                (folder / f"{name}.places").open("wb") as places,
            ):
                for batch in reader:
                    _write_column(rows, batch.column(0), np.int32)
                    if name == "words":
                        _write_column(places, batch.column(1), np.int32)


def _table_writer(scratch: Path, name: str) -> pq.ParquetWriter:
    return pq.ParquetWriter(scratch / f"{name}.parquet", _SORTED_SCHEMA, use_dictionary=False)


class _GramWriter:
    """Writes the n-grams of names, of one to three characters, by tantivy."""

    def __init__(self, folder: Path) -> None:
        import tantivy

        builder = tantivy.SchemaBuilder()
        for field in ("folded", "romanised"):
            builder.add_text_field(field, tokenizer_name="grams", index_option="freq")
        builder.add_text_field("lang", tokenizer_name="raw", index_option="basic")
        builder.add_integer_field("row", fast=True)
        self.schema = builder.build()
        index = tantivy.Index(self.schema, path=str(folder))
        tokenizer = tantivy.Tokenizer.ngram(1, 3)
        index.register_tokenizer("grams", tantivy.TextAnalyzerBuilder(tokenizer).build())
        self.writer = index.writer(heap_size=_HEAP, num_threads=1)

    def write(self, first: int, langs: list[str], folded: list[str], readings: list[str]) -> None:
        import tantivy

        for row, (lang, text, reading) in enumerate(zip(langs, folded, readings, strict=True)):
            # The spaces at both ends make n-grams of the first and the last letters.
            document = tantivy.Document(row=first + row, lang=lang, folded=f" {text} ")
            if reading:
                document.add_text("romanised", f" {reading} ")
            self.writer.add_document(document)

    def __enter__(self) -> "_GramWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.writer.commit()
        self.writer.wait_merging_threads()


def _write_column(file: IO[bytes], values: Any, dtype: Any) -> None:
    file.write(np.asarray(values.to_numpy(zero_copy_only=False), dtype).tobytes())
