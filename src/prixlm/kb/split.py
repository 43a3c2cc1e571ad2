"""Train, valid and test: the paper's split (Sec. 3.2), held-out entities, facts of all languages.

A split is a KB folder whose triples are marked. Training reads `train` and nothing else.

- The paper's split: a random 10 % of each language's triples is the test set. A test triple
  (e1, r1, e2) with (e2, r2, e1) in train, for any r2, is redundant and leaves it.
- `unseen`: whole concepts are held out, in all languages. Every triple that touches one is a test
  triple. Their links are kept or removed.
- `by_concept`: a fact is held out in every language at once, so that no other language states it.
- `everywhere`: a share of the held-out facts is held out in every language, the others in one. A
  confidence that is fitted on both knows facts that can be carried over and facts that cannot.
- `new`: all facts of a share of the concepts are held out beside these. A confidence that is
  fitted on them too knows entities that were imported without a fact.
- `hide_links`: the links of whole concepts are withheld, and the triples stay as they are.
  (Half of single withheld links could be inferred through a third language.)
- `keep_split`: the split that the KB has stays, and `unseen` moves train facts out of it. With
  `hide_links` beside it, one model can be measured on the KB's own test facts, on unseen subjects
  and on withheld links.

A true triple that is neither trained on nor tested is marked `known`, because the filter of known
answers needs it.
"""

import logging
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

from prixlm.arrays import ragged_offsets
from prixlm.engine.overwriting import check_target
from prixlm.engine.workspace import open_workspace
from prixlm.errors import PrixError
from prixlm.files import open_database, parquet_rows, publish
from prixlm.kb.concepts import MAX_CONCEPT, ConceptPairs, count_linked
from prixlm.kb.store import FORMAT, KB, SPLITS, quote_texts
from prixlm.kb.writer import write_table
from prixlm.languages import parse_languages
from prixlm.types import Array

logger = logging.getLogger(__name__)

TRAIN, VALID, TEST, KNOWN = range(4)
"""Positions in `SPLITS`."""
_ROWS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """How to split a KB; the defaults are the paper's.

    Example:
        >>> config = prixlm.SplitConfig(test=0.2, valid=0.1, langs=("et",))
    """

    test: float = 0.1  # share of the triples (with by_concept, of the facts) to test on
    valid: float = 0.05  # share for choices; of the concepts, where whole concepts are held out
    unseen: float | None = None  # hold out this share of the concepts instead
    by_concept: bool = False  # hold out a fact in every language at once
    everywhere: float = 0.0  # hold out this share of the held-out facts in every language at once
    new: float = 0.0  # also hold out all facts of this share of the concepts
    hide_links: float | None = None  # withhold the links of this share of the linked concepts
    links: Literal["keep", "remove"] = "keep"  # the links of held-out entities
    langs: tuple[str, ...] | None = None  # test in these languages only
    keep_split: bool = False  # keep the split that the KB has, and hold out `unseen` beside it
    resplit: bool = False  # draw again in a KB that is split already
    seed: int = 0  # of the random draw

    def __post_init__(self) -> None:
        for name in ("test", "valid", "unseen", "hide_links", "everywhere", "new"):
            share = getattr(self, name)
            if share is not None and not 0 <= share < 1:
                flag = "--" + name.replace("_", "-")
                raise PrixError(f"{flag} {share}: expected a share of at least 0 and below 1.")
        if self.langs is not None:
            object.__setattr__(self, "langs", parse_languages(self.langs))
        if self.seed < 0:
            raise PrixError(f"--seed {self.seed}: expected 0 or more.")
        if self.unseen == 0:
            raise PrixError("--unseen 0 would hold out nothing: expected a share above 0.")
        if self.hide_links == 0:
            raise PrixError("--hide-links 0 would withhold nothing: expected a share above 0.")
        if self.keep_split and self.unseen is None:
            raise PrixError("--keep-split requires --unseen, which says what else to hold out.")
        if self.keep_split and self.resplit:
            raise PrixError("--keep-split and --resplit are opposites. Choose one.")
        is_redrawn = (self.unseen is not None and not self.keep_split) or self.by_concept
        if self.hide_links is not None and is_redrawn:
            raise PrixError(
                "--hide-links cannot be combined with --by-concept, and with --unseen only where "
                "--keep-split is given. Choose one."
            )
        if self.hide_links is not None and self.langs is not None:
            raise PrixError("--hide-links withholds links of all languages. Leave out --langs.")
        concepts = [share for share in (self.hide_links, self.unseen) if share is not None]
        held_out = self.valid + max(concepts, default=self.test)
        if held_out >= 1:
            raise PrixError(
                f"valid and test take {held_out:.0%}: nothing would be left for train. "
                "Pass smaller shares."
            )
        if (self.everywhere or self.new) and (self.by_concept or self.unseen or self.hide_links):
            raise PrixError(
                "--everywhere and --new cannot be combined with --by-concept, --unseen or "
                "--hide-links. Choose one."
            )
        if self.new and not self.test + self.valid:
            raise PrixError("--new requires a share for valid or test.")
        if self.unseen is not None and self.by_concept:
            raise PrixError("--unseen and --by-concept are different splits. Choose one.")
        if self.links not in ("keep", "remove"):
            raise PrixError(f"--unseen-links {self.links}: expected keep or remove.")
        if self.links == "remove" and self.unseen is None:
            raise PrixError("--unseen-links remove requires --unseen.")


def split_kb(
    kb: KB,
    to: Path | str,
    config: SplitConfig | None = None,
    *,
    overwrite: bool = False,
    memory: str = "1GiB",
) -> KB:
    """Write a KB folder `to` with the facts of `kb`, marked as train, valid and test.

    memory: what the joins may use; larger ones spill to disk.

    Example:
        >>> config = prixlm.SplitConfig(test=0.2, valid=0.1)
        >>> split = prixlm.split_kb(prixlm.KB("world"), "split", config)
        >>> split.num_triples("et", "test") > 100
        True
    """
    config = config or SplitConfig()
    to = Path(to)
    work_folder = check_target(to, [kb.folder], overwrite, FORMAT)
    _check(kb, config)
    # A split takes seconds: it is not resumed, so its workspace has no stamp of its own.
    with open_workspace(work_folder, {}) as work:
        out, scratch = work.empty_folder("kb"), work.empty_folder("scratch")
        # Tables that no split changes.
        for table in ("aliases", "descriptions", "relations", "relation_names", "hidden_links"):
            if kb.path(table).is_file():
                shutil.copyfile(kb.path(table), out / f"{table}.parquet")
        concept, counts = kb.concepts(), dict(kb.manifest.counts)
        unlinked = np.zeros(len(concept), bool)  # entities that become concepts of their own
        if config.hide_links is None or config.unseen is not None:
            held_out = _hold_out_concepts(int(concept.max(initial=-1)) + 1, config)
            _assign(kb, scratch / "assigned.parquet", _chooser(kb, concept, held_out, config))
            counts["triples"] = _write_triples(kb, scratch, out, concept, config, memory)
            if held_out is not None and config.links == "remove":
                unlinked |= held_out[concept] != TRAIN
        else:
            shutil.copyfile(kb.path("triples"), out / "triples.parquet")
        if config.hide_links is not None:
            withheld = _choose_withheld(kb, concept, config)[concept]
            counts["hidden_links"] = _write_hidden_links(kb, out, withheld)
            unlinked |= withheld != TRAIN
        counts |= _write_links(kb, out, concept, unlinked)
        origin = {"method": _method(config), "from": kb.fingerprint(), **asdict(config)}
        replaced(kb.manifest, counts=counts, split=origin).write(out)
        publish(out, to)
        work.remove()
    return KB(to)


def known_objects(
    kb: KB, subjects: Array, relations: Array, *, splits: Sequence[str] = SPLITS
) -> tuple[Array, Array]:
    """Return the objects that a KB knows for each query (subject, relation): Sec. 3.2's filter.

    subjects, relations: (Q,) ids. Returns offsets, (Q + 1,), and objects: those of query i are
    objects[offsets[i]:offsets[i + 1]], in ascending order.
    """
    queries = pa.table(
        {
            "place": np.arange(len(subjects)),
            "subject": np.asarray(subjects, np.int32),
            "relation": np.asarray(relations, np.int32),
        }
    )
    # Triples are ordered by subject: the range lets DuckDB skip whole row groups.
    low, high = (int(subjects.min()), int(subjects.max())) if len(subjects) else (0, -1)
    rows = kb.join_table(
        queries,
        "SELECT place, object FROM asked JOIN triples t USING (subject, relation) "
        f"WHERE t.subject BETWEEN {low} AND {high} AND t.split IN ({quote_texts(splits)}) "
        "ORDER BY place, object",
    )
    counts = np.bincount(rows["place"].to_numpy(), minlength=len(subjects))
    return ragged_offsets(counts), rows["object"].to_numpy()


def unseen_triples(kb: KB, *, split: str = "test", links: bool = True) -> pa.Table:
    """Return the triples of a split whose subject or object training never saw.

    The columns `subject_unseen` and `object_unseen` tell which. An entity is seen if a train triple
    has it or, where `links` count, if it is linked to another entity.
    """
    # `seen`: entities of train triples, and linked ones if links count.
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
    """Refuse a split that this KB does not allow."""
    missing = sorted(set(config.langs or ()) - set(kb.languages))
    if missing:
        raise PrixError(
            f"{kb.folder} has no {', '.join(missing)}; its languages are {', '.join(kb.languages)}."
        )
    if config.hide_links is not None:
        if kb.withholds_links:
            raise PrixError(
                f"{kb.folder} withholds links already. Pass the KB that it was split from."
            )
        if config.unseen is None:
            return
    if kb.num_triples() == 0:
        raise PrixError(f"{kb.folder} has no triples: there is nothing to split.")
    is_split = kb.num_triples(split="train") < kb.num_triples()
    if is_split and not (config.resplit or config.keep_split):
        found = ", ".join(f"{s} {kb.num_triples(split=s):,}" for s in SPLITS)
        raise PrixError(
            f"{kb.folder} is split already ({found}). Pass --resplit to draw again, or "
            "--keep-split with --unseen to hold out more."
        )


def _method(config: SplitConfig) -> str:
    """Return the name of the split in the manifest."""
    if config.keep_split:
        return "kept"
    if config.unseen is not None:
        return "unseen"
    if config.hide_links is not None:
        return "hidden-links"
    if config.everywhere or config.new:
        return "mixed"
    return "by-concept" if config.by_concept else "random"


def _hold_out_concepts(num_concepts: int, config: SplitConfig) -> Array | None:
    """Return the split of each concept, (num_concepts,) int8; None if none is held out."""
    if config.unseen is None:
        return None
    return _by_share(
        np.random.default_rng(config.seed).random(num_concepts), config.unseen, config.valid
    )


def _by_share(drawn: Array, test: float, valid: float) -> Array:
    """Return the split of each row from a number drawn evenly from 0 to 1, as int8."""
    limits = [test, test + valid]
    return np.array([TEST, VALID, TRAIN], np.int8)[np.searchsorted(limits, drawn, side="right")]


Chooser = Callable[[pa.RecordBatch], Array]
"""Returns the split of each triple of a batch, as int8."""


def _chooser(kb: KB, concept: Array, held_out: Array | None, config: SplitConfig) -> Chooser:
    """Return the function that assigns triples to splits."""
    tested = pa.array(config.langs or kb.languages, pa.string())

    def only_tested(batch: pa.RecordBatch, splits: Array) -> Array:
        """Mark held-out triples of languages that are not tested as known: train lacks them too."""
        is_tested = np.asarray(pc.is_in(batch.column("lang"), tested))
        return np.where(is_tested | (splits == TRAIN), splits, KNOWN).astype(np.int8)

    if held_out is not None:

        def by_entity(batch: pa.RecordBatch) -> Array:
            ends = [held_out[concept[np.asarray(batch.column(c))]] for c in ("subject", "object")]
            chosen = only_tested(batch, np.maximum(*ends))  # TRAIN < VALID < TEST
            return _beside_present(batch, chosen) if config.keep_split else chosen

        return by_entity
    if config.by_concept:

        def by_fact(batch: pa.RecordBatch) -> Array:
            drawn = _draw(
                config.seed,
                concept[np.asarray(batch.column("subject"))],
                np.asarray(batch.column("relation")),
                concept[np.asarray(batch.column("object"))],
            )
            return only_tested(batch, _by_share(drawn, config.test, config.valid))

        return by_fact
    if config.everywhere or config.new:
        new = _draw_new(concept, config)

        def mixed(batch: pa.RecordBatch) -> Array:
            relation = np.asarray(batch.column("relation"))
            ends = [np.asarray(batch.column(name)) for name in ("subject", "object")]
            share = config.everywhere
            # A number for the fact, the same in every language, and one for the triple itself.
            of_fact = _draw(config.seed, concept[ends[0]], relation, concept[ends[1]])
            of_triple = _draw(config.seed + 1, ends[0], relation, ends[1])
            everywhere = _by_share(of_fact, share * config.test, share * config.valid)
            alone = _by_share(of_triple, (1 - share) * config.test, (1 - share) * config.valid)
            is_tested = np.asarray(pc.is_in(batch.column("lang"), tested))
            alone = np.where(is_tested, alone, TRAIN)
            chosen = np.where(everywhere == TRAIN, alone, everywhere)
            # A fact of a new concept is held out whatever was drawn for it: TRAIN < VALID < TEST.
            for end in ends if config.new else ():
                chosen = np.maximum(chosen, new[concept[end]])
            return only_tested(batch, chosen)

        return mixed
    return _RandomChooser(kb, config)


def _beside_present(batch: pa.RecordBatch, chosen: Array) -> Array:
    """Return the splits that triples have, with those `chosen` for what is train now, as int8.

    A valid fact becomes a test fact if it is chosen for test: a confidence that is fitted on valid
    facts must not have seen an entity that is unseen in the test. Nothing else is moved.
    """
    present = np.asarray(pc.index_in(batch.column("split"), pa.array(SPLITS, pa.string())))
    is_moved = (present == TRAIN) | ((present == VALID) & (chosen == TEST))
    return np.where(is_moved, chosen, present).astype(np.int8)


def _draw_new(concept: Array, config: SplitConfig) -> Array:
    """Return the split of each concept, TRAIN unless all of its facts are held out: int8.

    Valid and test have their shares of the new concepts, as of the triples.
    """
    share = config.new / max(config.test + config.valid, 1e-9)
    drawn = _draw(config.seed + 2, np.arange(int(concept.max(initial=-1)) + 1))
    return _by_share(drawn, share * config.test, share * config.valid)


class _RandomChooser:
    """Chooses exactly the asked share of each language's triples, every subset equally likely."""

    def __init__(self, kb: KB, config: SplitConfig) -> None:
        self.generator = np.random.default_rng(config.seed)
        self.left: dict[str, Array] = {}  # triples to come by language: of train, valid and test
        for lang in kb.languages:
            total = kb.num_triples(lang)
            is_tested = config.langs is None or lang in config.langs
            test = round(config.test * total) if is_tested else 0
            valid = round(config.valid * total) if is_tested else 0
            self.left[lang] = np.array([total - test - valid, valid, test])

    def __call__(self, batch: pa.RecordBatch) -> Array:
        splits = np.empty(batch.num_rows, np.int8)
        encoded = batch.column("lang").dictionary_encode()
        codes = np.asarray(encoded.indices)
        for code, lang in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(codes == code)
            # How many of these rows each split gets if the language's triples come in random order:
            # the totals are then exact, and no more than one batch is in memory.
            here = self.generator.multivariate_hypergeometric(self.left[lang], len(rows))
            self.left[lang] -= here
            splits[rows] = self.generator.permutation(np.repeat([TRAIN, VALID, TEST], here))
        return splits


def _draw(seed: int, *columns: Array) -> Array:
    """Return a number from 0 to 1 for each row that depends on its values and the seed alone.

    So a fact gets the same number in every language, and no table of facts has to be kept.
    """
    state = np.full(len(columns[0]), seed, np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            # The finaliser of SplitMix64 (Steele et al., 2014) after each value.
            state = (state ^ column.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
    # A float64 holds 53 bits exactly.
    return (state >> np.uint64(11)).astype(np.float64) / 2.0**53


def _assign(kb: KB, path: Path, choose: Chooser) -> None:
    """Write the triples with the splits that `choose` gives them, as numbers."""
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
    """Write all triples in their order, redundant ones of valid and test marked as known.

    A triple is redundant if train has its inverse, of any relation. With `by_concept`, an inverse
    in any language counts. A split that is kept says itself which triples it tests, and the
    inverses of facts that `unseen` moves are held out with them: none is redundant. Returns the
    number of triples by language and split.
    """
    counts: dict[str, dict[str, int]] = {}
    with open_database(scratch, memory) as db:
        assigned = parquet_rows(scratch / "assigned.parquet")
        db.execute(f"CREATE VIEW assigned AS SELECT * FROM {assigned}")
        # An inverse is compared by entity, or by concept if facts are held out in all languages.
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
        # Held-out triples (a, b) of which train has (b, a), with any relation.
        db.execute(
            f"CREATE TABLE redundant AS SELECT subject, relation, object FROM "
            f"(SELECT subject, relation, object, {ends} FROM assigned {join} "
            f"WHERE split IN ({VALID}, {TEST}) AND NOT {config.keep_split}) t "
            "SEMI JOIN trained i ON i.a = t.b AND i.b = t.a"
        )
        query = (
            "SELECT lang, subject, relation, object, CASE WHEN r.subject IS NULL THEN split "
            f"ELSE {KNOWN} END AS split FROM assigned a LEFT JOIN redundant r "
            "USING (subject, relation, object) ORDER BY a.subject, a.relation, a.object"
        )
        # Splits are written as words; the numbers are their positions in SPLITS.
        names = pa.array(SPLITS, pa.string())
        with write_table(out, "triples") as table:
            reader: Any = db.sql(query).to_arrow_reader(_ROWS)
            for batch in reader:
                columns = {name: batch.column(name) for name in batch.schema.names}
                columns["split"] = names.take(columns["split"].cast(pa.int8()))
                table.write(**columns)
        written = parquet_rows(out / "triples.parquet")
        found = db.execute(f"SELECT lang, split, count(*) FROM {written} GROUP BY ALL ORDER BY ALL")
        for lang, split, count in found.fetchall():
            counts.setdefault(lang, {})[split] = count
    return counts


def _choose_withheld(kb: KB, concept: Array, config: SplitConfig) -> Array:
    """Return the split of the links of each concept, TRAIN unless withheld: (concepts,) int8."""
    assert config.hide_links is not None
    # Entities sorted by concept; entities of one concept are adjacent and ordered by language.
    order = np.argsort(concept, kind="stable")
    language = kb.language_of(order)
    is_linked = np.zeros(int(concept.max(initial=-1)) + 1, bool)  # concepts of several languages
    differs = (np.diff(concept[order]) == 0) & (np.diff(language) != 0)
    is_linked[concept[order[1:][differs]]] = True
    # An import makes none of them. Half of a million names would be 10^11 answers.
    large = is_linked & (np.bincount(concept, minlength=len(is_linked)) > MAX_CONCEPT)
    if large.any():
        logger.warning(
            "%d concepts with more than %d names keep their links", large.sum(), MAX_CONCEPT
        )
        is_linked &= ~large
    linked = np.random.default_rng(config.seed).permutation(np.flatnonzero(is_linked))
    num_test, num_valid = (round(x * len(linked)) for x in (config.hide_links, config.valid))
    if not num_test:
        raise PrixError(
            f"{kb.folder} has {len(linked)} linked concepts: too few to withhold the links of "
            f"{config.hide_links:.0%} of them. Pass a larger --hide-links."
        )
    chosen = np.full(len(is_linked), TRAIN, np.int8)
    chosen[linked[:num_test]] = TEST
    chosen[linked[num_test : num_test + num_valid]] = VALID
    return chosen


def _write_hidden_links(kb: KB, out: Path, withheld: Array) -> int:
    """Write the links that concepts had, as answers of valid and test; return their number.

    withheld: (num_entities,) int8, the split of the links of each entity, TRAIN unless withheld.
    """
    with write_table(out, "hidden_links") as table:
        languages = kb.language_of(np.arange(len(withheld)))
        for a, b in ConceptPairs(kb.concepts(), languages, withheld != TRAIN).blocks():
            # Both ends of a pair are of one concept, so either gives its split.
            names = pa.array(SPLITS, pa.string()).take(pa.array(withheld[a]))
            table.write(a=a, b=b, split=names)
    return table.num_rows


def _write_links(kb: KB, out: Path, concept: Array, unlinked: Array) -> dict[str, Any]:
    """Write the entities and links of the split, and return the counts that changed.

    unlinked: (num_entities,) bool, entities that become concepts of their own.
    """
    if not unlinked.any():
        for table in ("entities", "links"):
            shutil.copyfile(kb.path(table), out / f"{table}.parquet")
        return {}
    # A label beyond all concepts for each unlinked entity, then the labels numbered from 0 in the
    # order of their first entities, as `number_concepts` does.
    labels = concept.astype(np.int64)
    labels[unlinked] = len(concept) + np.flatnonzero(unlinked)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int32)
    order[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    numbers = order[inverse]
    with write_table(out, "entities") as entities:
        start = 0
        for batch in kb.batches("entities", batch_rows=_ROWS):
            columns = {name: batch.column(name) for name in batch.schema.names}
            columns["concept"] = numbers[start : start + batch.num_rows]
            entities.write(**columns)
            start += batch.num_rows
    with write_table(out, "links") as links:
        for batch in kb.batches("links", batch_rows=_ROWS):
            a, b = np.asarray(batch.column("a")), np.asarray(batch.column("b"))
            kept = ~(unlinked[a] | unlinked[b])
            links.write(a=a[kept], b=b[kept])
    linked = count_linked(numbers, kb.manifest.counts["entities"])
    return {"links": links.num_rows, "concepts": len(first), "linked": linked}
