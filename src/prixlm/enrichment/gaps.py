"""Gaps: facts that a KB may lack in a language, as questions worth asking.

    for gaps in GapFinder(kb).find("et"):
        ranker.best(gaps.queries, 5)

A question is a subject and a relation. There are two kinds:

- `elsewhere`: another language states an object of the relation for the same concept. The language
  has a name for that object, but does not state the fact.
- `usual`: similar entities have the relation. Entities are similar if they share a relation, as its
  subject or as its object. An entity without any fact is compared by its names instead. The share
  is counted over all languages together.

A relation that nearly always has one object (counted in the train facts) is never asked for a
second one. Known facts are evidence for other languages and are filtered from the answers in their
own language. If a concept has several names in a language, facts known under one name are known
under all of them.

A run writes its questions down once (`find_questions`): workers need no `GapFinder`.

Dimension letters: E entities of a KB, C concepts, R relations, S subjects of a block, N facts,
Q questions. Relation R + r is the inverse of relation r: the objects of r have it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array

from prixlm.arrays import (
    find_ranges,
    group_starts,
    is_in_sorted,
    join_pairs,
    pair_keys,
    ragged_offsets,
    ragged_ranges,
    split_keys,
)
from prixlm.engine.jobs import Shard
from prixlm.engine.parts import shard_size
from prixlm.engine.workspace import Workspace
from prixlm.errors import PrixError
from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB, SPLITS, rechunk
from prixlm.rankers.base import Queries
from prixlm.rankers.names import RelationGuesser
from prixlm.types import Array, Progress

KINDS = ("elsewhere", "usual")
ELSEWHERE, USUAL = range(len(KINDS))

_BLOCK_ROWS = 1 << 14
"""Facts and relations of the subjects of one block, at most: bounds the memory."""
_BLOCK_SUBJECTS = 1 << 12
"""Subjects of one block, at most."""
_MOST_BESIDE = 256
"""Relations whose counts beside others are kept."""

_GROUP_ROWS = 1 << 13
"""Rows of a row group of questions: 100 M questions have 12,208 groups."""
_QUESTION_SCHEMA = pa.schema(
    [
        ("subject", pa.int32()),
        ("relation", pa.int32()),
        ("expected", pa.float64()),
        ("kind", pa.int8()),
        ("by_name", pa.bool_()),
        ("known", pa.list_(pa.int32())),  # objects that are filtered
    ]
)

# A subject counts once, with the largest number of objects that a single language gives it.
_OBJECT_COUNTS = """
    WITH by_language AS (
        SELECT t.relation, s.concept, t.lang, count(DISTINCT o.concept) AS objects
        FROM triples t JOIN entities s ON s.id = t.subject JOIN entities o ON o.id = t.object
        WHERE t.split = 'train' GROUP BY ALL
    ), by_subject AS (
        SELECT relation, concept, max(objects) AS objects FROM by_language GROUP BY ALL
    )
    SELECT relation, count(*), count(*) FILTER (objects = 1) FROM by_subject GROUP BY relation
"""


@dataclass(frozen=True, kw_only=True)
class GapConfig:
    """Which questions are asked."""

    usual: float = 0.5  # ask for relations held by at least this share of similar entities
    shrink: float = 5.0  # pseudo-count that shrinks small shares towards 0
    one_object: float = 0.95  # share of subjects with one object from which a relation has one
    relations: tuple[int, ...] | None = None  # ids of the only relations asked for; None: all
    known: tuple[str, ...] = SPLITS  # splits whose facts are known

    def __post_init__(self) -> None:
        if not 0 < self.usual <= 1 or not 0 < self.one_object <= 1 or self.shrink < 0:
            raise PrixError(
                f"usual {self.usual}, one_object {self.one_object}, shrink {self.shrink}: expected "
                "shares above 0 and up to 1, and a shrink of 0 or more."
            )


@dataclass(frozen=True)
class Gaps:
    """Questions of one language, sorted by subject and relation."""

    queries: Queries  # the known objects are filtered
    expected: Array  # (Q,) share of similar entities with the relation; 1 if stated elsewhere
    kind: Array  # (Q,) index into KINDS
    by_name: Array  # (Q,) whether the subject has no fact, so that its names tell what is similar

    def select(self, rows: Array) -> "Gaps":
        """Return the questions at some positions."""
        columns = (self.expected[rows], self.kind[rows], self.by_name[rows])
        return Gaps(self.queries.select(rows), *columns)


def relations_of_one_object(kb: KB, share: float = 0.95) -> Array:
    """Return which relations have one object: (R,) bool.

    These are relations with one object for at least `share` of their subjects, counted per language
    in the train facts, so that a name variant in another language does not count as a second one.
    """
    num_subjects, num_single = _count_subjects(kb)
    return np.asarray((num_subjects > 0) & (num_single >= share * num_subjects))


def _count_subjects(kb: KB) -> tuple[Array, Array]:
    """Return the number of each relation's subjects, and of those with one object: (R,) each."""
    counts = np.zeros((2, kb.num_relations), np.int64)
    for relation, num_subjects, num_single in kb.query(_OBJECT_COUNTS).fetchall():
        counts[:, relation] = num_subjects, num_single
    return counts[0], counts[1]


class GapFinder:
    """Finds the questions of any language of a KB; the counts are read once."""

    def __init__(self, kb: KB, config: GapConfig | None = None) -> None:
        self.kb, self.config = kb, config or GapConfig()
        self.concept = kb.concepts().astype(np.int64)  # (E,)
        self.has_one_object = relations_of_one_object(kb, self.config.one_object)
        self._num_concepts = int(self.concept.max(initial=-1)) + 1
        self._merged = read_merged(kb, self.config.known)
        # Rows of the merged graph that are not inverses, sorted by source: those of concept c are
        # forward[starts[c]:starts[c + 1]].
        self._forward = np.flatnonzero(self._merged.relation < kb.num_relations)
        sources = self._merged.source[self._forward]
        self._starts = np.searchsorted(sources, np.arange(self._num_concepts + 1))
        self._stated = _stated_pairs(kb, self.config.known)
        self._held = self._count_held()
        # (2R,) concepts with each relation or inverse.
        self._num_holders = np.bincount(self._held.indices, minlength=2 * kb.num_relations)
        self._share = self._count_shares()
        self._is_wanted = np.ones(kb.num_relations, bool)
        if self.config.relations is not None:
            self._is_wanted[:] = False
            self._is_wanted[list(self.config.relations)] = True
        self._twins: dict[str, tuple[Array, Array]] = {}  # by language
        self._is_named: dict[str, Array] = {}  # by language
        self._beside: dict[int, Array] = {}  # by relation, see `_count_beside`

    @cached_property
    def share_with_several(self) -> Array:
        """The share of each relation's subjects that have several objects, shrunk: (R,)."""
        num_subjects, num_single = _count_subjects(self.kb)
        return np.asarray((num_subjects - num_single) / (num_subjects + self.config.shrink))

    @cached_property
    def _guesser(self) -> RelationGuesser:
        """Tells by the names what an entity without facts may have. Made if there is such a one."""
        return RelationGuesser(self.kb, self.config.known)

    def _count_held(self) -> csr_array:
        """Return which relations, and inverses, each concept has: (C, 2R) sparse, ones."""
        pairs = np.unique(pair_keys(self._merged.source, self._merged.relation))
        shape = (self._num_concepts, 2 * self.kb.num_relations)
        return csr_array((np.ones(len(pairs), np.int64), split_keys(pairs)), shape=shape)

    def _count_shares(self) -> csr_array:
        """Return the share of concepts with relation q that have relation r too: (2R, R) sparse.

        Without shares below `usual`, and without r itself.
        """
        num_relations = self.kb.num_relations
        both = (self._held.T @ self._held[:, :num_relations]).tocoo()
        share = both.data / (self._num_holders + self.config.shrink)[both.row]
        kept = (share >= self.config.usual) & (both.row != both.col)
        row_column = (both.row[kept], both.col[kept])
        return csr_array((share[kept], row_column), shape=(2 * num_relations, num_relations))

    def find(self, lang: str) -> Iterator[Gaps]:
        """Yield all questions of a language, block by block of subjects."""
        for subjects in self.blocks(lang):
            gaps = self.find_block(lang, subjects)
            if len(gaps.queries):
                yield gaps

    def blocks(self, lang: str) -> list[range]:
        """Return the subjects of a language in blocks, whose questions fit into memory."""
        entities = self.kb.entity_range(lang)
        concepts = self.concept[entities.start : entities.stop]
        num_rows = (np.diff(self._starts) + np.diff(self._held.indptr))[concepts]
        return [entities[start:stop] for start, stop in _blocks(num_rows)]

    def describe(self, lang: str, subject: Array, relation: Array) -> Gaps:
        """Return any questions of a language in the given order, also those not worth asking.

        A question that another language answers is `elsewhere`. Every other one is `usual`, with
        the share of similar entities that have the relation, however small.
        subject, relation: (Q,) ids.
        """
        is_named = self._named_concepts(lang)
        entities = np.unique(subject)
        known = self._known_facts(lang, entities)
        elsewhere = self._stated_elsewhere(lang, entities, known, is_named)
        question = pair_keys(subject.astype(np.int64), relation.astype(np.int64))
        is_elsewhere = np.isin(question, elsewhere)
        concepts, relations = self.concept[subject].tolist(), relation.tolist()
        shares = [self._share_of(*pair) for pair in zip(concepts, relations, strict=True)]
        return Gaps(
            _make_queries(lang, question, known),
            np.where(is_elsewhere, 1.0, shares),
            np.where(is_elsewhere, ELSEWHERE, USUAL),
            self._has_no_fact(self.concept[subject]),
        )

    def is_stated(self, subject: Array, relation: Array) -> Array:
        """Return whether any language states an object of the relation: (Q,) bool."""
        keys = pair_keys(self.concept[subject], relation.astype(np.int64))
        return is_in_sorted(keys, self._stated)

    def _share_of(self, concept: int, relation: int) -> float:
        """Return the share of similar entities that have a relation, as `_count_shares` does."""
        held = self._held.indices[self._held.indptr[concept] : self._held.indptr[concept + 1]]
        if not len(held):
            return float(self._guesser.guess(np.array([concept]))[0, relation])
        held = held[held != relation]
        if not len(held):
            return 0.0
        both = self._count_beside(relation)
        share = both[held] / (self._num_holders[held] + self.config.shrink)
        return float(share.max())

    def _count_beside(self, relation: int) -> Array:
        """Return how many concepts with a relation have each relation or inverse: (2R,).

        It reads all that is held, so the counts of the last relations are kept.
        """
        if relation not in self._beside:
            if len(self._beside) == _MOST_BESIDE:
                del self._beside[next(iter(self._beside))]
            # The concepts that have the relation, then all relations of these.
            holders = self._held.indptr.searchsorted(
                np.flatnonzero(self._held.indices == relation), side="right"
            )
            position, _ = ragged_ranges(self._held.indptr[holders - 1], self._held.indptr[holders])
            both = np.bincount(self._held.indices[position], minlength=self._held.shape[1])
            self._beside[relation] = both
        return self._beside[relation]

    def _named_concepts(self, lang: str) -> Array:
        """Return whether a language has a name for each concept: (C,) bool."""
        if lang not in self._is_named:
            entities = self.kb.entity_range(lang)
            is_named = np.zeros(self._num_concepts, bool)
            is_named[self.concept[entities.start : entities.stop]] = True
            self._is_named[lang] = is_named
        return self._is_named[lang]

    def find_block(self, lang: str, block: range) -> Gaps:
        """Return the questions of a block of subjects."""
        subjects = np.arange(block.start, block.stop)  # (S,)
        is_named = self._named_concepts(lang)  # (C,)
        known = self._known_facts(lang, subjects)
        # Questions as sorted packed (subject, relation) keys; a question that another language
        # answers is not asked as a guess too.
        elsewhere = self._stated_elsewhere(lang, subjects, known, is_named)
        usual, share = self._usual_relations(subjects)
        is_new = ~np.isin(usual, elsewhere)
        usual, share = usual[is_new], share[is_new]

        question = np.concatenate([elsewhere, usual])
        kind = np.repeat([ELSEWHERE, USUAL], [len(elsewhere), len(usual)])
        expected = np.concatenate([np.ones(len(elsewhere)), share])
        # A relation that the subject is known to have is asked again only if it may have several
        # objects and another language states one that is not known.
        _, relation = split_keys(question)
        is_known = np.isin(question, known.pairs)
        is_complete = is_known & (self.has_one_object[relation] | (kind == USUAL))
        kept = np.flatnonzero(self._is_wanted[relation] & ~is_complete)
        order = kept[np.argsort(question[kept])]
        queries = _make_queries(lang, question[order], known)
        by_name = self._has_no_fact(self.concept[queries.subject])
        return Gaps(queries, expected[order], kind[order], by_name)

    def _stated_elsewhere(
        self, lang: str, subjects: Array, known: "_Facts", is_named: Array
    ) -> Array:
        """Return the questions that another language answers: (Q,) sorted packed keys."""
        concept = self.concept[subjects]
        position, owner = ragged_ranges(self._starts[concept], self._starts[concept + 1])
        rows = self._forward[position]
        facts = _Facts(subjects[owner], self._merged.relation[rows], self._merged.target[rows])
        facts = facts.take(self._is_stated_by_others(rows, lang) & is_named[facts.object])
        # Objects are concepts here: the language may know the object under another name.
        known_concepts = _Facts(known.subject, known.relation, self.concept[known.object])
        return np.unique(facts.take(~facts.is_in(known_concepts)).pairs)

    def _is_stated_by_others(self, rows: Array, lang: str) -> Array:
        """Return whether a language other than `lang` states a fact of the merged graph: (N,)."""
        starts, ends = self._merged.offset[rows], self._merged.offset[rows + 1]
        position, owner = ragged_ranges(starts, ends)
        is_own = self._merged.lang[position] == self.kb.languages.index(lang)
        num_own = np.bincount(owner[is_own], minlength=len(rows))  # 0 or 1
        return np.asarray(ends - starts > num_own)

    def _usual_relations(self, subjects: Array) -> tuple[Array, Array]:
        """Return questions for relations that similar entities have, and the largest share.

        (Q,) sorted packed keys, and (Q,) shares. Relations that the subject is known to have, in
        any language, are left out.
        """
        concept = self.concept[subjects]
        # Every relation that a subject has, then every relation that usually comes with that one;
        # of a subject that has none, those that its names let expect.
        position, holder = ragged_ranges(self._held.indptr[concept], self._held.indptr[concept + 1])
        held = self._held.indices[position].astype(np.int64)
        position, row = ragged_ranges(self._share.indptr[held], self._share.indptr[held + 1])
        guessed, by_name, factless = self._guess_by_names(concept)
        relation = np.concatenate([self._share.indices[position], guessed])
        share = np.concatenate([self._share.data[position], by_name])
        owner = np.concatenate([holder[row], factless])

        is_new = ~is_in_sorted(pair_keys(concept[owner], relation), self._stated)
        question, share = pair_keys(subjects[owner], relation)[is_new], share[is_new]
        # Several held relations may suggest the same question: the largest share counts.
        order = np.lexsort((-share, question))
        best = order[group_starts(question[order])]
        return question[best], share[best]

    def _has_no_fact(self, concept: Array) -> Array:
        """Return which concepts no fact is known of: (N,) bool."""
        return np.asarray(self._held.indptr[concept + 1] == self._held.indptr[concept])

    def _guess_by_names(self, concept: Array) -> tuple[Array, Array, Array]:
        """Return relations that the names of concepts without facts let expect.

        concept: (S,). Returns the relation, the share of similarly named concepts that have it, at
        least `usual`, and the row of the concept: (N,) each.
        """
        rows = np.flatnonzero(self._has_no_fact(concept))
        if not len(rows):
            return np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64)
        guess = self._guesser.guess(concept[rows])[:, : self.kb.num_relations].tocoo()
        kept = guess.data >= self.config.usual
        return guess.col[kept], guess.data[kept], rows[guess.row[kept]]

    def _known_facts(self, lang: str, subjects: Array) -> "_Facts":
        """Return what the language knows of some subjects, under all names.

        subjects: (S,) ids, sorted, each once.
        """
        if not len(subjects):
            return _Facts(subjects, subjects, subjects)
        known = _read_facts(self.kb, _one_of(subjects), self.config.known)
        names, twins = self._find_twins(lang)
        if not len(names):
            return known
        # Facts of the subjects' other names, which may not be subjects themselves.
        others = np.unique(twins[find_ranges(names, subjects)[0]])
        if len(others):
            theirs = _read_facts(self.kb, _one_of(others), self.config.known)
            row, name = join_pairs(theirs.subject, twins, names)
            renamed = _Facts(name, theirs.relation[row], theirs.object[row])
            known = known.union(renamed.take(is_in_sorted(name, subjects)))
        row, twin = join_pairs(known.object, names, twins)
        return known.union(_Facts(known.subject[row], known.relation[row], twin))

    def _find_twins(self, lang: str) -> tuple[Array, Array]:
        """Return all ordered pairs of entities of a language that are names of one concept.

        Two columns of ids, sorted by the first and then the second.
        """
        if lang not in self._twins:
            entities = self.kb.entity_range(lang)
            concept = self.concept[entities.start : entities.stop]
            shared = np.flatnonzero(np.bincount(concept)[concept] > 1)
            shared = shared[np.argsort(concept[shared], kind="stable")]
            groups = concept[shared]
            low = np.searchsorted(groups, groups)
            high = np.searchsorted(groups, groups, side="right")
            # Every entity of a group beside every entity of the same group.
            position, owner = ragged_ranges(low, high)
            name, twin = shared[owner] + entities.start, shared[position] + entities.start
            pairs = np.unique(pair_keys(name, twin)[name != twin])
            self._twins[lang] = split_keys(pairs)
        return self._twins[lang]


@dataclass(frozen=True)
class _Facts:
    """Facts as three columns of ids: (N,) each."""

    subject: Array
    relation: Array
    object: Array

    @property
    def pairs(self) -> Array:
        """Packed (subject, relation) keys: (N,)."""
        return pair_keys(self.subject, self.relation)

    def take(self, rows: Array) -> "_Facts":
        """Return the facts at some positions or under a mask."""
        return _Facts(self.subject[rows], self.relation[rows], self.object[rows])

    def union(self, other: "_Facts") -> "_Facts":
        """Return the facts of both, each once, sorted by subject, relation and object."""
        columns = zip(
            (self.subject, self.relation, self.object),
            (other.subject, other.relation, other.object),
            strict=True,
        )
        facts = _Facts(*(np.concatenate(both) for both in columns))
        facts = facts.take(np.lexsort((facts.object, facts.relation, facts.subject)))
        return facts.take(group_starts(facts.subject, facts.relation, facts.object))

    def is_in(self, other: "_Facts") -> Array:
        """Return which facts are among the other ones: (N,) bool."""
        # Three ids do not fit one int64, so (subject, relation) pairs are numbered first.
        pairs = np.concatenate([self.pairs, other.pairs])
        _, pair_number = np.unique(pairs, return_inverse=True)
        keys = pair_keys(pair_number, np.concatenate([self.object, other.object]))
        return np.isin(keys[: len(self.subject)], keys[len(self.subject) :])


def _make_queries(lang: str, question: Array, known: _Facts) -> Queries:
    """Return queries for packed (subject, relation) keys with the known objects filtered."""
    low = np.searchsorted(known.pairs, question)
    high = np.searchsorted(known.pairs, question, side="right")
    position, _ = ragged_ranges(low, high)
    offset = ragged_offsets(high - low)
    subject, relation = split_keys(question)
    return Queries(lang, subject, relation, offset, known.object[position])


def _blocks(num_rows: Array) -> Iterator[tuple[int, int]]:
    """Yield ranges of subjects that together have at most `_BLOCK_ROWS` rows, one at least."""
    ends = np.cumsum(num_rows)
    start = 0
    while start < len(num_rows):
        limit = (ends[start - 1] if start else 0) + _BLOCK_ROWS
        stop = max(start + 1, int(np.searchsorted(ends, limit, side="right")))
        stop = min(stop, start + _BLOCK_SUBJECTS)
        yield start, stop
        start = stop


def _stated_pairs(kb: KB, splits: Sequence[str]) -> Array:
    """Return packed (concept, relation) keys of all facts of any language, sorted, each once."""
    rows = kb.join_table(
        _split_table(splits),
        "SELECT DISTINCT s.concept, t.relation FROM triples t JOIN asked USING (split) "
        "JOIN entities s ON s.id = t.subject",
    )
    return np.sort(pair_keys(rows["concept"].to_numpy(), rows["relation"].to_numpy()))


def _read_facts(kb: KB, subjects: str, splits: Sequence[str]) -> _Facts:
    """Return the facts of subjects that match an SQL condition, sorted."""
    rows = kb.join_table(
        _split_table(splits),
        "SELECT t.subject, t.relation, t.object FROM triples t JOIN asked USING (split) "
        f"WHERE t.subject {subjects} ORDER BY t.subject, t.relation, t.object",
    )
    columns = ("subject", "relation", "object")
    return _Facts(*(rows[name].to_numpy().astype(np.int64) for name in columns))


def _one_of(ids: Array) -> str:
    """Return the SQL condition for some ids, sorted, each once; a range reads fewest blocks."""
    first, last = int(ids[0]), int(ids[-1])
    if last - first + 1 == len(ids):
        return f"BETWEEN {first} AND {last}"
    return f"IN ({', '.join(map(str, ids.tolist()))})"


def _split_table(splits: Sequence[str]) -> pa.Table:
    return pa.table({"split": pa.array(list(splits), pa.string())})


# Questions on disk: found once, and read by any worker, a shard at a time.


@dataclass(frozen=True)
class Questions:
    """The questions of some languages, in a folder that all workers see."""

    folder: Path
    langs: tuple[str, ...]
    _files: dict[str, pq.ParquetFile] = field(default_factory=dict, compare=False)

    def shards(self, usual: int) -> list[Shard]:
        """Return the questions in shards of one language each: language and rows.

        usual: questions of a shard, unless that would be too many shards.
        """
        totals = {lang: self._file(lang).metadata.num_rows for lang in self.langs}
        size = shard_size(sum(totals.values()), usual)
        shards: list[Shard] = []
        for lang, total in totals.items():
            for start in range(0, total, size):
                rows = range(start, min(start + size, total))
                name = f"part-{len(shards):07d}.parquet"
                shards.append(Shard(name, (lang, rows), len(rows)))
        return shards

    def read(self, lang: str, rows: range) -> Gaps:
        """Return some questions of a language."""
        first, last = rows.start // _GROUP_ROWS, (rows.stop - 1) // _GROUP_ROWS
        table = self._file(lang).read_row_groups(list(range(first, last + 1)))
        table = table.slice(rows.start - first * _GROUP_ROWS, len(rows)).combine_chunks()
        known = table["known"].combine_chunks()
        counts = known.value_lengths().to_numpy(zero_copy_only=False)
        queries = Queries(
            lang,
            _ids(table["subject"]),
            _ids(table["relation"]),
            ragged_offsets(counts),
            _ids(known.flatten()),
        )
        expected, kind, by_name = (table[n].to_numpy() for n in ("expected", "kind", "by_name"))
        return Gaps(queries, expected, kind.astype(np.int64), by_name)

    def _file(self, lang: str) -> pq.ParquetFile:
        """Return the file of a language, opened once: the list of its row groups may be long."""
        if lang not in self._files:
            self._files[lang] = pq.ParquetFile(self.folder / _file_name(lang))
        return self._files[lang]


def find_questions(
    workspace: Workspace,
    langs: Sequence[str],
    finder: Callable[[], GapFinder],
    progress: Progress | None = None,
) -> Questions:
    """Find the questions of some languages, or those that an interrupted run has found.

    finder: called if any are missing; it reads all facts.
    """
    made: list[GapFinder] = []
    for number, lang in enumerate(langs, start=1):

        def write(path: Path, lang: str = lang) -> None:
            if not made:
                made.append(finder())
            _write_questions(made[0], lang, path)

        workspace.make(_file_name(lang), write)
        if progress is not None:
            progress("find gaps", number, len(langs))
    return Questions(workspace.folder.resolve(), tuple(langs))


def _write_questions(gaps: GapFinder, lang: str, path: Path) -> None:
    """Write the questions of a language, block by block: all of them may not fit into memory."""
    with pq.ParquetWriter(path, _QUESTION_SCHEMA, compression="zstd") as writer:
        for batch in rechunk(_question_batches(gaps, lang), _GROUP_ROWS):
            writer.write_batch(batch, row_group_size=_GROUP_ROWS)


def _question_batches(gaps: GapFinder, lang: str) -> Iterator[pa.RecordBatch]:
    for found in gaps.find(lang):
        queries = found.queries
        offset, filtered = queries.offset.astype(np.int32), queries.filtered.astype(np.int32)
        columns = {
            "subject": queries.subject,
            "relation": queries.relation,
            "expected": found.expected,
            "kind": found.kind,
            "by_name": found.by_name,
            "known": pa.ListArray.from_arrays(offset, filtered),
        }
        yield pa.record_batch(columns, schema=_QUESTION_SCHEMA)


def _file_name(lang: str) -> str:
    return f"questions-{lang}.parquet"


def _ids(column: pa.Array | pa.ChunkedArray) -> Array:
    return np.asarray(column).astype(np.int64)
