"""The joins of an import: from staged rows to the tables of a KB, in DuckDB, spilling to disk.

Redirects are resolved, names become entities and aliases, facts become triples in every language
that names both ends, and links become concepts. All output is sorted, so the same rows give the
same bytes for any order, number of threads or memory limit. Rows that do not fit are counted in the
`Account`.

In the SQL, a *node* is a key that some language names; its number is the id of its first entity.
`pos` is the origin of a staged row: the source in the upper bits, the line in the lower ones.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prixlm.importers.format import FROM_KEY, REDIRECTED, Account, Format
from prixlm.importers.stage import BATCH_ROWS, StagedTables
from prixlm.kb.concepts import MAX_CONCEPT, count_linked, in_large_concepts, number_concepts
from prixlm.kb.store import SPLITS, quote_texts, rechunk
from prixlm.kb.writer import write_table
from prixlm.types import Array

logger = logging.getLogger(__name__)

_MAX_ROUNDS = 8  # each round doubles the length of the redirect chains that are resolved


@dataclass
class Joins:
    """The joins of one import, as a list of steps."""

    parts: Path  # folder of the staged parts
    scratch: Path  # empty folder for the database and intermediate files
    out: Path  # empty folder for the tables
    format: Format
    langs: tuple[str, ...] | None
    account: Account
    memory: str = "1GiB"
    max_triples: int | None = None
    seed: int = 0
    counts: dict[str, Any] = field(default_factory=dict)  # for the manifest

    def __post_init__(self) -> None:
        self.db = StagedTables(self.scratch, self.parts, self.memory, self.account)

    def steps(self) -> list[Callable[[], None]]:
        """Return the steps in the order in which they must run."""
        return [
            self.resolve_redirects,
            self.write_relations,
            self.collect_names,
            self.number_entities,
            self.join_facts,
            self.write_triples,
            self.join_links,
            self.join_concepts,
            self.write_links,
            self.write_entities,
            self.write_aliases,
            self.write_descriptions,
        ]

    def resolve_redirects(self) -> None:
        """Make the table `redirect`: each redirected key with its final target.

        Redirects in a circle are rejected.
        """
        self.db.run(
            "CREATE TABLE redirect AS SELECT key, min(target) AS target FROM redirects "
            "WHERE key <> target GROUP BY key"
        )
        # Every round replaces a target that is itself redirected by its own target.
        for _ in range(_MAX_ROUNDS):
            if not self.db.count("redirect a JOIN redirect b ON a.target = b.key"):
                break
            self.db.run(
                "CREATE TABLE followed AS SELECT a.key, coalesce(b.target, a.target) AS target "
                "FROM redirect a LEFT JOIN redirect b ON a.target = b.key"
            )
            self.db.run("DROP TABLE redirect")
            self.db.run("ALTER TABLE followed RENAME TO redirect")
        # What still leads to a redirected key after all rounds is in a circle, or leads into one.
        self.db.run(
            "CREATE TABLE circle AS SELECT key FROM redirect "
            "WHERE key = target OR target IN (SELECT key FROM redirect)"
        )
        self.db.run("DELETE FROM redirect WHERE key IN (SELECT key FROM circle)")
        # A redirect to itself is a circle too, unless the key has another redirect.
        lost = "redirects WHERE (key = target AND key NOT IN (SELECT key FROM redirect))"
        lost += " OR key IN (SELECT key FROM circle)"
        rejected = self.db.reject("redirect in a circle", lost, "redirects")
        kept = self.db.count("redirect")
        self.account.imported["redirects"] += kept
        self.account.filtered["duplicate"] += self.db.count("redirects") - kept - rejected
        self.has_redirects = kept > 0

    def write_relations(self) -> None:
        """Write the relations that facts use or the source declares, and their names.

        The table `relation` (key, id) stays, for the joins of facts.
        """
        # Ids follow the sorted keys, so that they do not depend on the order of the sources.
        self.db.run(
            "CREATE TABLE relation AS SELECT key, CAST(row_number() OVER (ORDER BY key) - 1 AS "
            "INTEGER) AS id FROM (SELECT relation AS key FROM facts "
            "UNION SELECT key FROM relations)"
        )
        names = self._relation_names()
        keys = [row[0] for row in self.db.run("SELECT key FROM relation ORDER BY id")]
        with write_table(self.out, "relations") as table:
            common = [
                _common_name(names.get(relation, {})) or self.format.relation_name(key)
                for relation, key in enumerate(keys)
            ]
            table.write(id=np.arange(len(keys)), key=pa.array(keys, pa.string()), name=common)
        with write_table(self.out, "relation_names") as table:
            rows = [
                (i, lang, name) for i in sorted(names) for lang, name in sorted(names[i].items())
            ]
            columns = zip(*rows, strict=True) if rows else ([], [], [])
            relation, lang, name = (list(column) for column in columns)
            table.write(relation=relation, lang=lang, name=name)
        self.counts["relations"] = len(keys)

    def _relation_names(self) -> dict[int, dict[str, str]]:
        """Return the best name of each relation in each language, and account for all names."""
        self.db.run(
            "CREATE TABLE relation_name AS SELECT r.id AS relation, n.* EXCLUDE (key) FROM "
            "(SELECT * FROM relations UNION ALL SELECT * FROM names) n JOIN relation r USING (key)"
        )
        # One row for each distinct name, the best of a relation and language first.
        rows = self.db.run(
            "SELECT relation, lang, name, count(*), min(rank), min(pos) FROM relation_name "
            "GROUP BY ALL ORDER BY relation, lang, min(rank), min(pos), name"
        )
        best: dict[int, dict[str, str]] = {}
        for relation, lang, name, count, _, _ in rows:
            if lang is not None and lang in best.get(relation, {}):
                self.account.filtered["further name of a relation"] += 1
            else:
                self.account.imported["relations"] += 1
                if lang is not None:
                    best.setdefault(relation, {})[lang] = name
            self.account.filtered["duplicate"] += count - 1
        return best

    def collect_names(self) -> None:
        """Make the views `name` (names of entities, moved along redirects) and `made`."""
        # A key that is a relation is not an entity, even if it has names.
        self.db.run("CREATE VIEW own AS SELECT * FROM names ANTI JOIN relation USING (key)")
        if self.has_redirects:
            self.db.run(
                "CREATE VIEW name AS SELECT coalesce(r.target, n.key) AS key, n.lang, n.name, "
                f"n.rank + if(r.key IS NULL, 0, {REDIRECTED}) AS rank, n.pos "
                "FROM own n LEFT JOIN redirect r USING (key)"
            )
        else:
            self.db.run("CREATE VIEW name AS SELECT * FROM own")
        self._name_keys()

    def _name_keys(self) -> None:
        """Make the view `made`: names made from the keys of the ends of facts and links.

        They rank below all other names.
        """
        made = self.scratch / "made.parquet"
        schema = pa.schema([("key", pa.string()), ("lang", pa.string()), ("name", pa.string())])
        with pq.ParquetWriter(made, schema) as writer:
            if self.format.names_from_keys is not None:
                columns = {"subject": "facts", "object": "facts", "a": "links", "b": "links"}
                # Redirected keys are replaced by their targets, as in all other joins.
                ends = " UNION ALL ".join(f"SELECT {c} AS key FROM {t}" for c, t in columns.items())
                query = (
                    f"SELECT DISTINCT coalesce(r.target, e.key) AS key FROM ({ends}) e "
                    "LEFT JOIN redirect r USING (key)"
                )
                for batch in self.db.stream(query):
                    writer.write_batch(self._names_of_keys(batch.column(0), schema))
        self.db.view("made", made)

    def _names_of_keys(self, keys: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
        """Return key, language and name of the keys that give a name in a wanted language."""
        assert self.format.names_from_keys is not None
        keys = keys.cast(pa.string())
        lang, name = self.format.names_from_keys(keys)
        good = pc.and_(lang.is_valid(), pc.fill_null(pc.not_equal(name, ""), False))
        if self.langs is not None:
            good = pc.and_(good, pc.is_in(lang, pa.array(self.langs, pa.string())))
        columns = [column.filter(good) for column in (keys, lang, name)]
        return pa.record_batch(columns, schema=schema)

    def number_entities(self) -> None:
        """Number the entities: of the names sorted by language and key, the first of each.

        Makes the views `entity` and `alias` and the table `node` (key, first entity of the key).
        """
        # `name` is the last criterion: rows of equal rank and position must have a fixed order too.
        query = (
            f"SELECT lang, key, name, rank FROM (SELECT lang, key, name, rank, pos FROM name "
            f"UNION ALL SELECT lang, key, name, {FROM_KEY}, NULL FROM made) "
            "ORDER BY lang, key, rank, pos, name"
        )
        entity, alias = self.scratch / "entity.parquet", self.scratch / "alias.parquet"
        entity_schema = pa.schema(
            [("id", pa.int32()), ("lang", pa.string()), ("key", pa.string()), ("name", pa.string())]
        )
        alias_schema = pa.schema([("entity", pa.int32()), ("name", pa.string())])
        before: tuple[Any, Any] = (None, None)  # language and key of the last row of a batch
        num_entities, num_named = 0, 0
        languages: Counter[str] = Counter()
        with (
            pq.ParquetWriter(entity, entity_schema) as entities,
            pq.ParquetWriter(alias, alias_schema) as aliases,
        ):
            for batch in self.db.stream(query):
                lang, key, name, rank = batch.columns
                # (rows,) where an entity begins; the running sum is the entity of each row.
                new = _differs(lang, before[0]) | _differs(key, before[1])
                ids = num_entities - 1 + np.cumsum(new)
                # A name made from the key names an entity that has no other; it is not an alias.
                made = np.asarray(rank) == FROM_KEY
                num_entities += int(new.sum())
                num_named += int((new & ~made).sum())
                # The first row of an entity is its own name, the others are aliases.
                mask, other = pa.array(new), pa.array(~new & ~made)
                own = [pa.array(ids[new], pa.int32()), *(c.filter(mask) for c in (lang, key, name))]
                entities.write_batch(pa.record_batch(own, schema=entity_schema))
                rest = [pa.array(ids, pa.int32()).filter(other), name.filter(other)]
                aliases.write_batch(pa.record_batch(rest, schema=alias_schema))
                for value in pc.value_counts(own[1]).to_pylist():
                    languages[value["values"]] += value["counts"]
                before = (lang[-1].as_py(), key[-1].as_py())
        self.num_entities = num_entities
        self.counts["entities"] = dict(sorted(languages.items()))
        self.account.imported["names"] += num_named
        self.db.view("entity", entity)
        self.db.view("alias", alias)
        self.db.run("CREATE TABLE node AS SELECT key, min(id) AS node FROM entity GROUP BY key")

    def join_facts(self) -> None:
        """Make the table `fact`: facts between nodes, each once, with its first split.

        Facts with an end that no language names are rejected.
        """
        # Languages and splits become small integers: `joined` is the largest table of an import.
        # A language that names no entity is -1; such a fact finds no entities later.
        subject, object_ = self._node_of("f.subject", "s"), self._node_of("f.object", "o")
        rank = " ".join(f"WHEN '{split}' THEN {i}" for i, split in enumerate(SPLITS))
        languages = self.counts["entities"]
        codes = " ".join(f"WHEN {quote_texts([code])} THEN {i}" for i, code in enumerate(languages))
        code = f"CASE f.lang {codes} ELSE -1 END" if codes else "-1"
        self.db.run(
            "CREATE TABLE joined AS SELECT s.node AS s, r.id AS r, o.node AS o, "
            f"if(f.lang IS NULL, NULL, CAST({code} AS SMALLINT)) AS lang, "
            f"CAST(CASE coalesce(f.split, 'train') {rank} END AS TINYINT) AS split, f.pos "
            f"FROM facts f JOIN relation r ON r.key = f.relation {subject} {object_}"
        )
        nameless = "joined WHERE s IS NULL OR o IS NULL"
        which = f"{subject} {object_} WHERE s.node IS NULL OR o.node IS NULL"
        self.db.reject("entity without a name", nameless, "facts", which)
        # The first split wins: a fact of train and test tests nothing, since training sees it.
        # `num_splits` counts the distinct splits of a fact as the bits that are set.
        self.db.run(
            "CREATE TABLE fact AS SELECT s, r, o, lang, min(split) AS split, min(pos) AS pos, "
            "count(*) AS num, bit_count(bit_or(1 << split)) AS num_splits "
            "FROM joined WHERE s IS NOT NULL AND o IS NOT NULL GROUP BY s, r, o, lang"
        )
        self.db.run("DROP TABLE joined")
        [(repeats, moved)] = self.db.run(
            "SELECT coalesce(sum(num - num_splits), 0), coalesce(sum(num_splits - 1), 0) FROM fact"
        )
        self.account.filtered["duplicate"] += int(repeats)
        self.account.filtered["stands in an earlier split too"] += int(moved)

    def write_triples(self) -> None:
        """Write a triple for each fact and each language that names both its ends."""
        languages = list(self.counts["entities"])
        # The language of an entity follows from its id: languages are ranges of ids.
        starts = np.cumsum([0, *self.counts["entities"].values()])[:-1]
        code = _range_of("e.id", starts.tolist()) if len(starts) else "0"
        # `member`: the entities of each node, at most one for each language.
        self.db.run(
            f"CREATE TABLE member AS SELECT n.node, e.id, CAST({code} AS SMALLINT) AS lang "
            "FROM entity e JOIN node n USING (key)"
        )
        # A fact without a language holds in all languages that name both ends.
        self.db.run(
            "CREATE TABLE triple AS SELECT s.id AS subject, f.r AS relation, o.id AS object, "
            "s.lang, f.split, f.rowid AS fact FROM fact f "
            "JOIN member s ON s.node = f.s JOIN member o ON o.node = f.o AND o.lang = s.lang "
            "WHERE f.lang IS NULL OR f.lang = s.lang"
        )
        keep = _sampler(self.db.count("triple"), self.max_triples, self.seed)
        # (num_facts,) facts that have a triple in some language, and those with a sampled one.
        num_facts = self.db.count("fact")
        reached, kept = np.zeros(num_facts, bool), np.zeros(num_facts, bool)
        counts = np.zeros((len(languages), len(SPLITS)), np.int64)
        query = "SELECT * FROM triple ORDER BY subject, relation, object"
        with write_table(self.out, "triples") as table:
            # Batches of a fixed size: the sample is drawn batch by batch.
            for batch in rechunk(self.db.stream(query), BATCH_ROWS):
                chosen = keep(batch.num_rows)
                column = {name: np.asarray(batch.column(name)) for name in batch.schema.names}
                reached[column.pop("fact")] = True
                kept[np.asarray(batch.column("fact"))[chosen]] = True
                column = {name: values[chosen] for name, values in column.items()}
                np.add.at(counts, (column["lang"], column["split"]), 1)
                for name, words in (("lang", languages), ("split", list(SPLITS))):
                    column[name] = pa.array(words, pa.string()).take(pa.array(column[name]))
                table.write(**column)
        self.counts["triples"] = {
            lang: {split: int(n) for split, n in sorted(zip(SPLITS, row, strict=True)) if n}
            for lang, row in zip(languages, counts, strict=True)
            if row.any()
        }
        if not reached.all():
            without = "fact WHERE rowid NOT IN (SELECT fact FROM triple)"
            ends = f"{self._node_of('f.subject', 's')} {self._node_of('f.object', 'o')}"
            which = f"{ends} WHERE (f.pos, s.node, o.node) IN (SELECT (pos, s, o) FROM {without})"
            self.db.reject("no language names both ends", without, "facts", which)
        self.account.imported["facts"] += int(kept.sum())
        self.account.filtered["sampled out"] += int(reached.sum() - kept.sum())
        self.db.run("DROP TABLE triple")
        self.db.run("DROP TABLE fact")

    def join_links(self) -> None:
        """Make the tables `link`, of explicit links between nodes, and `shared`.

        A link to a key that no language names (a Wikidata item, say) is not a link between
        entities. But two entities with a link to the same such key, a *hub*, mean the same: the
        table `shared` pairs each of them with the first.
        """
        a, b = self._node_of("l.a", "x"), self._node_of("l.b", "y")
        keys = ["l.a", "l.b"]
        if self.has_redirects:
            keys = ["coalesce(moved_x.target, l.a)", "coalesce(moved_y.target, l.b)"]
        # The node of each end is null where no language names its key.
        self.db.run(
            f"CREATE TABLE joined AS SELECT x.node AS a, y.node AS b, {keys[0]} AS key_a, "
            f"{keys[1]} AS key_b, l.pos FROM links l {a} {b}"
        )
        # `hub`: nameless keys with links to two nodes or more, and the first of these nodes.
        self.db.run(
            "CREATE TABLE hub AS SELECT key, min(node) AS node FROM ("
            "SELECT key_b AS key, a AS node FROM joined WHERE b IS NULL AND a IS NOT NULL "
            "UNION ALL SELECT key_a, b FROM joined WHERE a IS NULL AND b IS NOT NULL) "
            "GROUP BY key HAVING count(DISTINCT node) > 1"
        )
        on_hub = "(a IS NULL AND key_a IN (SELECT key FROM hub) AND b IS NOT NULL)"
        on_hub += " OR (b IS NULL AND key_b IN (SELECT key FROM hub) AND a IS NOT NULL)"
        self.db.run(
            "CREATE TABLE shared AS SELECT coalesce(j.a, j.b) AS a, h.node AS b, j.pos "
            "FROM joined j JOIN hub h ON h.key = if(j.a IS NULL, j.key_a, j.key_b) "
            "WHERE (j.a IS NULL) <> (j.b IS NULL)"
        )
        self.db.reject(
            "link to an entity that is not there",
            f"joined WHERE (a IS NULL OR b IS NULL) AND NOT ({on_hub})",
            "links",
        )
        to_itself = self.db.count("joined WHERE a = b")
        self.db.run(
            "CREATE TABLE link AS SELECT least(a, b) AS a, greatest(a, b) AS b, count(*) AS num, "
            "min(pos) AS pos FROM joined WHERE a <> b GROUP BY ALL"
        )
        # Links of the file that state a pair again, in either direction.
        [(repeats, distinct)] = self.db.run(
            "SELECT coalesce(sum(num), 0) - count(*), count(*) FROM link"
        )
        self.account.filtered["link to itself"] += to_itself
        self.account.filtered["duplicate"] += int(repeats)
        self.account.imported["links"] += int(distinct) + self.db.count("shared")
        self.db.run("DROP TABLE joined")

    def join_concepts(self) -> None:
        """Number the concepts of all entities: a key is one concept, and links join concepts.

        The links of a concept with more than `MAX_CONCEPT` entities are rejected, all of them: so
        the result does not depend on their order. If a key alone names more, each is a concept.
        """
        concepts = number_concepts(self.num_entities, self._pairs())
        large = in_large_concepts(concepts)
        if large.any():
            self._reject_links(large)
            concepts = number_concepts(self.num_entities, self._pairs())
            large = in_large_concepts(concepts)
        if large.any():
            logger.warning("%d names of keys with too many names are apart", large.sum())
            concepts = number_concepts(self.num_entities, self._pairs(large))
        self.concepts = concepts

    def _pairs(self, apart: Array | None = None) -> Iterator[tuple[Array, Array]]:
        """Yield the pairs that mean the same, but those of entities that are to be apart."""
        # Three reasons to mean the same: one key, an explicit link, a shared counterpart.
        same_key = "SELECT id AS a, node AS b FROM member WHERE id <> node"
        # A batch costs a pass over all entities, so their number must not grow with the KB.
        rows = max(1 << 20, self.num_entities // 32)
        for query in (same_key, "SELECT a, b FROM link", "SELECT a, b FROM shared"):
            for batch in self.db.stream(query, rows):
                a, b = np.asarray(batch.column("a")), np.asarray(batch.column("b"))
                kept = slice(None) if apart is None else ~apart[a]
                yield a[kept], b[kept]

    def _reject_links(self, large: Array) -> None:
        """Reject the links of some entities. large: (num_entities,) bool."""
        path = self.scratch / "large.parquet"
        pq.write_table(pa.table({"id": pa.array(np.flatnonzero(large), pa.int32())}), path)
        self.db.view("large", path)
        reason = f"link in a concept of more than {MAX_CONCEPT:,} names"
        # Both ends are of one concept, so either tells.
        for table in ("link", "shared"):
            rows = f"{table} WHERE a IN (SELECT id FROM large)"
            self.account.imported["links"] -= self.db.reject(reason, rows, "links")
            self.db.run(f"DELETE FROM {rows}")

    def write_links(self) -> None:
        """Write the explicit links."""
        with write_table(self.out, "links") as table:
            for batch in self.db.stream("SELECT a, b FROM link ORDER BY a, b"):
                table.write(a=batch.column("a"), b=batch.column("b"))
        self.counts["links"] = table.num_rows

    def write_entities(self) -> None:
        """Write the entities with their concepts."""
        concepts = self.concepts
        self.counts["concepts"] = int(concepts.max()) + 1 if len(concepts) else 0
        self.counts["linked"] = count_linked(concepts, self.counts["entities"])
        with write_table(self.out, "entities") as table:
            start = 0
            for batch in pq.ParquetFile(self.scratch / "entity.parquet").iter_batches(BATCH_ROWS):
                column = {name: batch.column(name) for name in batch.schema.names}
                end = start + batch.num_rows
                table.write(**column, concept=concepts[start:end])
                start = end

    def write_aliases(self) -> None:
        """Write the further names of entities, each once, without the entity's own."""
        query = (
            "SELECT DISTINCT a.entity, a.name FROM alias a JOIN entity e ON e.id = a.entity "
            "WHERE a.name <> e.name ORDER BY a.entity, a.name"
        )
        with write_table(self.out, "aliases") as table:
            for batch in self.db.stream(query):
                table.write(entity=batch.column("entity"), name=batch.column("name"))
        self.account.imported["names"] += table.num_rows
        self.account.filtered["duplicate"] += self.db.count("alias") - table.num_rows
        self.counts["aliases"] = table.num_rows

    def write_descriptions(self) -> None:
        """Write one description of each entity that has any; without any there is no table."""
        if not self.db.count("descriptions"):
            return
        # `described`: descriptions of entities. A language has an entity only if it names it.
        key, redirect = "d.key", ""
        if self.has_redirects:
            key, redirect = "coalesce(r.target, d.key)", "LEFT JOIN redirect r ON r.key = d.key"
        moved = f"if(r.key IS NULL, 0, {REDIRECTED})" if redirect else "0"
        self.db.run(
            f"CREATE TABLE described AS SELECT e.id, d.text, d.rank + {moved} AS rank, d.pos "
            f"FROM descriptions d {redirect} JOIN entity e ON e.key = {key} AND e.lang = d.lang"
        )
        num_described = self.db.count("described")
        unnamed = self.db.count("descriptions") - num_described
        self.account.filtered["description of what its language does not name"] += unnamed
        if not num_described:
            return
        before: Any = None  # the entity of the last row of a batch
        with write_table(self.out, "descriptions") as table:
            query = "SELECT id, text FROM described ORDER BY id, rank, pos, text"
            for batch in self.db.stream(query):
                first = pa.array(_differs(batch.column("id"), before))
                ids, texts = (batch.column(name).filter(first) for name in ("id", "text"))
                table.write(entity=ids, text=texts)
                before = batch.column("id")[-1].as_py()
        self.account.imported["descriptions"] += table.num_rows
        self.account.filtered["further description"] += num_described - table.num_rows
        self.counts["descriptions"] = table.num_rows
        self.db.run("DROP TABLE described")

    def _node_of(self, key: str, table: str) -> str:
        """Return SQL that joins the node of a key as `table`, along its redirect if it has one."""
        if not self.has_redirects:
            return f"LEFT JOIN node {table} ON {table}.key = {key}"
        moved = f"moved_{table}"
        return (
            f"LEFT JOIN redirect {moved} ON {moved}.key = {key} "
            f"LEFT JOIN node {table} ON {table}.key = coalesce({moved}.target, {key})"
        )


def _differs(column: pa.Array, before: Any) -> Array:
    """Return where a value differs from the one above it; `before` is above the first."""
    new = np.ones(len(column), bool)
    new[0] = column[0].as_py() != before
    new[1:] = np.asarray(pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)))
    return new


def _range_of(value: str, starts: list[int], first: int = 0) -> str:
    """Return SQL for the number of the range that a value is in; ranges are numbered from `first`.

    A search by halves: DuckDB nests expressions 1,000 deep, and there are thousands of languages.
    """
    if len(starts) == 1:
        return str(first)
    half = len(starts) // 2
    low = _range_of(value, starts[:half], first)
    high = _range_of(value, starts[half:], first + half)
    return f"CASE WHEN {value} < {starts[half]} THEN {low} ELSE {high} END"


def _sampler(total: int, wanted: int | None, seed: int) -> Callable[[int], Array]:
    """Return a function that samples batches: `wanted` of `total` rows, all subsets equally likely.

    It takes the number of rows of a batch and returns a mask. No wanted number keeps all rows.
    """
    if wanted is None or wanted >= total:
        return lambda rows: np.ones(rows, bool)
    generator = np.random.default_rng(seed)
    left, needed = total, wanted

    def choose(rows: int) -> Array:
        nonlocal left, needed
        # How many of the wanted rows fall into this batch if all rows come in random order.
        here = int(generator.hypergeometric(needed, left - needed, rows))
        chosen = np.zeros(rows, bool)
        chosen[generator.choice(rows, here, replace=False)] = True
        left, needed = left - rows, needed - here
        return chosen

    return choose


def _common_name(names: dict[str, str]) -> str | None:
    """Return the name that every language may use: the English one, else the first language's."""
    return names.get("en") or (names[min(names)] if names else None)
