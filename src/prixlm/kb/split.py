"""Train, valid and test: the paper's split (Sec. 3.2), held-out entities, facts hidden everywhere.

A split is a KB folder whose triples are marked; training may see `train` and nothing else.

- The paper's: a random 10 % of each language's triples is the test set. A test triple
  (e1, r1, e2) with (e2, r2, e1) in train, for any r2, is redundant and leaves it.
- `unseen`: whole concepts are held out, in all languages; every triple that touches one is a test
  triple, and their links are kept or removed.
- `by_concept`: a fact is hidden in every language at once, so nothing can be carried over.
- `hide_links`: the links of whole concepts are hidden, to be found again; triples stay as they are.
  (Of single links half could be found through a third language.)

A true triple that is neither trained on nor tested is marked `known`: the known-object filter still
has to know it.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.files import check_target, disk_errors, locked, open_database, publish, quote_path
from prixlm.kb.concepts import count_linked
from prixlm.kb.store import KB, SPLITS
from prixlm.kb.writer import TableWriter
from prixlm.languages import parse_languages
from prixlm.types import Array

TRAIN, VALID, TEST, KNOWN = range(4)
_ROWS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """How to split a KB; the defaults are the paper's."""

    test: float = 0.1  # share of the triples (of the facts, by concept) that are tested
    valid: float = 0.05  # share for choosing; of the concepts, when entities are held out
    unseen: float | None = None  # hold out this share of the concepts instead
    by_concept: bool = False  # hide a fact in every language at once
    hide_links: float | None = None  # hide the links of this share of the linked concepts instead
    links: Literal["keep", "remove"] = "keep"  # of held-out entities
    langs: tuple[str, ...] | None = None  # test in these languages only
    resplit: bool = False  # split anew what is split already
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("test", "valid", "unseen", "hide_links"):
            share = getattr(self, name)
            if share is not None and not 0 <= share < 1:
                flag = "--" + name.replace("_", "-")
                raise PrixError(f"{flag} {share}: expected a share from 0 up to, not including, 1.")
        if self.langs is not None:
            object.__setattr__(self, "langs", parse_languages(self.langs))
        if self.seed < 0:
            raise PrixError(f"--seed {self.seed}: expected 0 or more.")
        if self.unseen == 0:
            raise PrixError("--unseen 0 would hold out nothing: expected a share above 0.")
        if self.hide_links == 0:
            raise PrixError("--hide-links 0 would hide nothing: expected a share above 0.")
        if self.hide_links is not None and (self.unseen is not None or self.by_concept):
            raise PrixError("--hide-links is a split of its own: leave out the other one.")
        if self.hide_links is not None and self.langs is not None:
            raise PrixError("--hide-links hides those of all languages: leave out --langs.")
        held_out = self.valid + next(
            share for share in (self.hide_links, self.unseen, self.test) if share is not None
        )
        if held_out >= 1:
            raise PrixError(f"valid and test take {held_out:.0%}: nothing would be left for train.")
        if self.unseen is not None and self.by_concept:
            raise PrixError("--unseen and --by-concept are two different splits: choose one.")
        if self.links not in ("keep", "remove"):
            raise PrixError(f"--unseen-links {self.links}: expected keep or remove.")
        if self.links == "remove" and self.unseen is None:
            raise PrixError("--unseen-links remove goes with --unseen.")


def split_kb(
    kb: KB,
    to: Path | str,
    config: SplitConfig | None = None,
    *,
    overwrite: bool = False,
    memory: str = "1GiB",
) -> KB:
    """Write a KB folder with the same facts, marked as train, valid and test."""
    config = config or SplitConfig()
    to = Path(to)
    work = check_target(to, [kb.folder], overwrite)
    _check(kb, config)
    with disk_errors(work), locked(work):
        for leftover in ("kb", "scratch"):
            shutil.rmtree(work / leftover, ignore_errors=True)
            (work / leftover).mkdir()
        out, scratch = work / "kb", work / "scratch"
        for table in ("aliases", "relations", "relation_names", "hidden_links"):
            if kb.path(table).is_file():
                shutil.copyfile(kb.path(table), out / f"{table}.parquet")
        concept, counts = kb.concepts(), dict(kb.manifest.counts)
        if config.hide_links is not None:
            counts |= _hide_links(kb, out, concept, config)
        else:
            held_out = _hold_out(int(concept.max(initial=-1)) + 1, config)
            _assign(kb, scratch / "assigned.parquet", _chooser(kb, concept, held_out, config))
            counts["triples"] = _write_triples(kb, scratch, out, concept, config, memory)
            is_removed = held_out is not None and config.links == "remove"
            alone = held_out[concept] != TRAIN if held_out is not None and is_removed else None
            counts |= _write_links(kb, out, concept, alone)
        origin = {"method": _method(config), "from": kb.fingerprint(), **asdict(config)}
        replaced(kb.manifest, counts=counts, split=origin).write(out)
        publish(out, to)
    shutil.rmtree(work, ignore_errors=True)
    return KB(to)


def known_objects(
    kb: KB, subjects: Array, relations: Array, *, splits: Sequence[str] = SPLITS
) -> tuple[Array, Array]:
    """The objects that a KB, in whatever split, knows for each query: the filter of Sec. 3.2.

    Returns offsets (one more than there are queries) and objects: those of query i stand from
    offsets[i] to offsets[i + 1], in ascending order.
    """
    queries = pa.table(
        {
            "place": np.arange(len(subjects)),
            "subject": np.asarray(subjects, np.int32),
            "relation": np.asarray(relations, np.int32),
        }
    )
    low, high = (int(subjects.min()), int(subjects.max())) if len(subjects) else (0, -1)
    rows = kb.join_table(
        queries,
        "SELECT place, object FROM asked JOIN triples t USING (subject, relation) "
        f"WHERE t.subject BETWEEN {low} AND {high} AND t.split IN {tuple(splits)} "
        "ORDER BY place, object",
    )
    counts = np.bincount(rows["place"].to_numpy(), minlength=len(subjects))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return offsets, rows["object"].to_numpy()


def unseen_triples(kb: KB, *, split: str = "test", links: bool = True) -> pa.Table:
    """The test triples whose subject or object training never saw, with which of them it was.

    An entity is seen in a train triple or, where `links` count, when it is linked to another.
    """
    linked = (
        "UNION SELECT id FROM entities WHERE concept IN "
        "(SELECT concept FROM entities GROUP BY concept HAVING count(*) > 1)"
    )
    return kb.query(
        "WITH seen AS (SELECT subject AS id FROM triples WHERE split = 'train' "
        "UNION SELECT object FROM triples WHERE split = 'train' "
        f"{linked if links else ''}) "
        "SELECT t.lang, t.subject, t.relation, t.object, s.id IS NULL AS subject_unseen, "
        "o.id IS NULL AS object_unseen FROM triples t LEFT JOIN seen s ON s.id = t.subject "
        "LEFT JOIN seen o ON o.id = t.object WHERE t.split = $split AND (s.id IS NULL OR o.id IS "
        "NULL) ORDER BY t.subject, t.relation, t.object",
        {"split": split},
    ).to_arrow_table()


def _check(kb: KB, config: SplitConfig) -> None:
    asked = parse_languages(config.langs) if config.langs is not None else ()
    missing = sorted(set(asked) - set(kb.languages))
    if missing:
        raise PrixError(
            f"{kb.folder} has no {', '.join(missing)}; its languages are {', '.join(kb.languages)}."
        )
    if config.hide_links is not None:
        if kb.hides_links:
            raise PrixError(f"{kb.folder} hides links already: hide those of what it was made of.")
        return
    if kb.num_triples() == 0:
        raise PrixError(f"{kb.folder} has no triples: there is nothing to split.")
    if kb.num_triples(split="train") < kb.num_triples() and not config.resplit:
        found = ", ".join(f"{s} {kb.num_triples(split=s):,}" for s in SPLITS)
        raise PrixError(f"{kb.folder} is split already ({found}). Pass --resplit to draw it anew.")


def _method(config: SplitConfig) -> str:
    if config.unseen is not None:
        return "unseen"
    if config.hide_links is not None:
        return "hidden-links"
    return "by-concept" if config.by_concept else "random"


def _hold_out(num_concepts: int, config: SplitConfig) -> Array | None:
    """Which concepts are held out, as the split of the triples that touch them."""
    if config.unseen is None:
        return None
    drawn = np.random.default_rng(config.seed).random(num_concepts)
    limits = [config.unseen, config.unseen + config.valid]
    return np.array([TEST, VALID, TRAIN], np.int8)[np.searchsorted(limits, drawn, side="right")]


Chooser = Callable[[pa.RecordBatch], Array]


def _chooser(kb: KB, concept: Array, held_out: Array | None, config: SplitConfig) -> Chooser:
    """A function from triples to their splits."""
    asked = pa.array(config.langs or kb.languages, pa.string())

    def elsewhere_known(batch: pa.RecordBatch, splits: Array) -> Array:
        """What is hidden, but not asked for in this language, must not be trained on either."""
        is_asked = np.asarray(pc.is_in(batch.column("lang"), asked))
        return np.where(is_asked | (splits == TRAIN), splits, KNOWN).astype(np.int8)

    if held_out is not None:

        def by_entity(batch: pa.RecordBatch) -> Array:
            ends = [held_out[concept[np.asarray(batch.column(c))]] for c in ("subject", "object")]
            return elsewhere_known(batch, np.maximum(*ends))

        return by_entity
    if config.by_concept:

        def by_fact(batch: pa.RecordBatch) -> Array:
            drawn = _draw(
                config.seed,
                concept[np.asarray(batch.column("subject"))],
                np.asarray(batch.column("relation")),
                concept[np.asarray(batch.column("object"))],
            )
            limits = [config.test, config.test + config.valid]
            splits = np.array([TEST, VALID, TRAIN])[np.searchsorted(limits, drawn, side="right")]
            return elsewhere_known(batch, splits)

        return by_fact
    return _RandomChooser(kb, config)


class _RandomChooser:
    """Exactly the asked share of each language's triples, each set of them equally likely."""

    def __init__(self, kb: KB, config: SplitConfig) -> None:
        self.generator = np.random.default_rng(config.seed)
        self.left: dict[str, Array] = {}
        for lang in kb.languages:
            number = kb.num_triples(lang)
            asked = config.langs is None or lang in config.langs
            test = round(config.test * number) if asked else 0
            valid = round(config.valid * number) if asked else 0
            self.left[lang] = np.array([number - test - valid, valid, test])

    def __call__(self, batch: pa.RecordBatch) -> Array:
        splits = np.empty(batch.num_rows, np.int8)
        encoded = batch.column("lang").dictionary_encode()
        codes = np.asarray(encoded.indices)
        for code, lang in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(codes == code)
            here = self.generator.multivariate_hypergeometric(self.left[lang], len(rows))
            self.left[lang] -= here
            splits[rows] = self.generator.permutation(np.repeat([TRAIN, VALID, TEST], here))
        return splits


def _draw(seed: int, *columns: Array) -> Array:
    """A number from 0 to 1 for each row that depends on its values and the seed alone."""
    state = np.full(len(columns[0]), seed, np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            # The finaliser of SplitMix64 (Steele et al., 2014) after each value.
            state = (state ^ column.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) / 2.0**53


def _assign(kb: KB, path: Path, choose: Chooser) -> None:
    with pq.ParquetFile(kb.path("triples")) as file:
        schema = file.schema_arrow.remove(file.schema_arrow.get_field_index("split"))
    schema = schema.append(pa.field("split", pa.int8()))
    with pq.ParquetWriter(path, schema) as writer:
        for batch in kb.batches("triples", batch_rows=_ROWS):
            columns = [batch.column(name) for name in schema.names[:-1]]
            splits = pa.array(choose(batch), pa.int8())
            writer.write_batch(pa.record_batch([*columns, splits], schema=schema))


def _write_triples(
    kb: KB, scratch: Path, out: Path, concept: Array, config: SplitConfig, memory: str
) -> dict[str, dict[str, int]]:
    """Take redundant triples out of valid and test, and write them all in their order.

    Where facts are hidden by concept, an inverse in any language makes a triple redundant.
    """
    counts: dict[str, dict[str, int]] = {}
    with open_database(scratch, memory) as db:
        db.execute(
            "CREATE VIEW assigned AS SELECT * FROM "
            f"read_parquet({quote_path(scratch / 'assigned.parquet')})"
        )
        if config.by_concept:
            db.register("entity", pa.table({"id": np.arange(len(concept)), "concept": concept}))
            ends = "x.concept AS a, y.concept AS b"
            join = "JOIN entity x ON x.id = subject JOIN entity y ON y.id = object"
        else:
            ends, join = "subject AS a, object AS b", ""
        db.execute(
            f"CREATE TABLE trained AS SELECT DISTINCT {ends} FROM assigned {join} "
            f"WHERE split = {TRAIN}"
        )
        db.execute(
            f"CREATE TABLE redundant AS SELECT subject, relation, object FROM "
            f"(SELECT subject, relation, object, {ends} FROM assigned {join} "
            f"WHERE split IN ({VALID}, {TEST})) t SEMI JOIN trained i ON i.a = t.b AND i.b = t.a"
        )
        query = (
            "SELECT lang, subject, relation, object, CASE WHEN r.subject IS NULL THEN split "
            f"ELSE {KNOWN} END AS split FROM assigned a LEFT JOIN redundant r "
            "USING (subject, relation, object) ORDER BY a.subject, a.relation, a.object"
        )
        names = pa.array(SPLITS, pa.string())
        with TableWriter(out, "triples") as table:
            reader: Any = db.sql(query).to_arrow_reader(_ROWS)
            for batch in reader:
                columns = {name: batch.column(name) for name in batch.schema.names}
                columns["split"] = names.take(columns["split"].cast(pa.int8()))
                table.write(**columns)
        written = f"read_parquet({quote_path(out / 'triples.parquet')})"
        found = db.execute(f"SELECT lang, split, count(*) FROM {written} GROUP BY ALL ORDER BY ALL")
        for lang, split, count in found.fetchall():
            counts.setdefault(lang, {})[split] = count
    return counts


def _hide_links(kb: KB, out: Path, concept: Array, config: SplitConfig) -> dict[str, Any]:
    """Some concepts fall apart; the links that they were are written down, to be found again."""
    assert config.hide_links is not None
    order = np.argsort(concept, kind="stable")
    language = kb.language_of(order)
    several = np.zeros(int(concept.max(initial=-1)) + 1, bool)  # of more than one language
    differs = (np.diff(concept[order]) == 0) & (np.diff(language) != 0)
    several[concept[order[1:][differs]]] = True
    linked = np.random.default_rng(config.seed).permutation(np.flatnonzero(several))
    num_test, num_valid = (round(x * len(linked)) for x in (config.hide_links, config.valid))
    if not num_test:
        raise PrixError(
            f"{kb.folder} has {len(linked)} linked concepts: too few to hide "
            f"{config.hide_links:.0%} of them."
        )
    chosen = np.full(len(several), TRAIN, np.int8)
    chosen[linked[:num_test]] = TEST
    chosen[linked[num_test : num_test + num_valid]] = VALID
    shutil.copyfile(kb.path("triples"), out / "triples.parquet")
    with TableWriter(out, "hidden_links") as table:
        for batch in kb.link_pairs():
            a, b = np.asarray(batch.column(0)), np.asarray(batch.column(1))
            splits = chosen[concept[a]]
            rows = splits != TRAIN
            names = pa.array(SPLITS, pa.string()).take(pa.array(splits[rows]))
            table.write(a=a[rows], b=b[rows], split=names)
    hidden = {"hidden_links": table.num_rows}
    return hidden | _write_links(kb, out, concept, chosen[concept] != TRAIN)


def _write_links(kb: KB, out: Path, concept: Array, alone: Array | None) -> dict[str, Any]:
    """The entities and links of the split; some entities stand alone now."""
    if alone is None:
        for table in ("entities", "links"):
            shutil.copyfile(kb.path(table), out / f"{table}.parquet")
        return {}
    labels = concept.astype(np.int64)
    labels[alone] = len(concept) + np.flatnonzero(alone)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int32)
    order[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    numbers = order[inverse]
    with TableWriter(out, "entities") as entities:
        start = 0
        for batch in kb.batches("entities", batch_rows=_ROWS):
            columns = {name: batch.column(name) for name in batch.schema.names}
            columns["concept"] = numbers[start : start + batch.num_rows]
            entities.write(**columns)
            start += batch.num_rows
    with TableWriter(out, "links") as links:
        for batch in kb.batches("links", batch_rows=_ROWS):
            a, b = np.asarray(batch.column("a")), np.asarray(batch.column("b"))
            kept = ~(alone[a] | alone[b])
            links.write(a=a[kept], b=b[kept])
    linked = count_linked(numbers, kb.manifest.counts["entities"])
    return {"links": links.num_rows, "concepts": len(first), "linked": linked}
