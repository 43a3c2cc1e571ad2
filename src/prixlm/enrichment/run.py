"""The main job: facts that a KB lacks in a language, each with a confidence and an origin.

    enrich(kb, "proposals", EnrichConfig(into=("et",)), model="model")

`missing` says what to ask, the rankers of `ranking` answer (the decoder, facts carried along links,
rules, a graph embedding when there is one), `fusion` makes one confidence of them, fitted on valid
facts. A question that may have no answer at all (a relation that things like the subject have)
counts with how likely it has one. What is known is never proposed, nor a second object of a
relation that has one.

What comes out is a folder of `proposals`. Parts of a run that was stopped lie in PROPOSALS.partial;
the same call goes on, and ends with the same bytes.
"""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.enrichment.answerable import Chance
from prixlm.enrichment.gaps import KINDS, Missing, MissingConfig, MissingFacts
from prixlm.enrichment.labels import SCHEMA as LABELS
from prixlm.enrichment.labels import LabelConfig, LabelRule
from prixlm.enrichment.links import SCHEMA as LINKS
from prixlm.enrichment.links import LinkConfig, LinkRule
from prixlm.enrichment.proposals import FORMAT, PART, join_parts, read_manifest, write_timings
from prixlm.entities.encoder import EntityEncoder
from prixlm.errors import PrixError
from prixlm.files import check_target, disk_errors, locked, publish, write_atomically
from prixlm.kb.store import KB
from prixlm.languages import parse_languages
from prixlm.rankers.base import Ranked
from prixlm.rankers.complex import GraphRanker
from prixlm.rankers.fusion import Fusion, FusionConfig, fitted_languages
from prixlm.rankers.links import Transfer
from prixlm.rankers.lm import ModelRanker
from prixlm.rankers.suite import Evidence, check_trained, gather_evidence
from prixlm.types import Progress

logger = logging.getLogger(__name__)
_SHOWN = 8
"""Relations that an error names."""
_PART = 512
"""Questions of one part: what a kill can lose."""


@dataclass(frozen=True, kw_only=True)
class EnrichConfig:
    """What is proposed."""

    into: tuple[str, ...]  # languages
    min_confidence: float = 0.5
    relations: tuple[str, ...] | None = None  # names or keys; all if none
    limit: int | None = None  # so many proposals, the most confident
    answers: int = 5  # most objects to a question
    labels: bool = False  # also names of things that have none in the language
    pivot: str = "en"  # the language that links are proposed into, with an encoder
    missing: MissingConfig = field(default_factory=MissingConfig)
    fusion: FusionConfig = field(default_factory=lambda: FusionConfig(together=True))

    def __post_init__(self) -> None:
        if not self.fusion.together:  # a question may have several objects that are missing
            object.__setattr__(self, "fusion", replace(self.fusion, together=True))
        if not 0 <= self.min_confidence <= 1:
            raise PrixError(f"--min-confidence {self.min_confidence}: expected 0 to 1.")
        if self.limit is not None and self.limit < 1:
            raise PrixError(f"--limit {self.limit}: expected 1 or more.")
        if self.answers < 1 or not self.into:
            raise PrixError("name a language at least, and ask for 1 answer or more.")
        object.__setattr__(self, "into", tuple(parse_languages(self.into)))


def enrich(
    kb: KB,
    to: Path | str,
    config: EnrichConfig,
    model: Path | str | None = None,
    graph: Path | str | None = None,
    progress: Progress | None = None,
    *,
    encoder: Path | str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Propose what is missing, and write it down; the manifest of the proposals."""
    to = Path(to)
    work = check_target(to, [kb.folder], overwrite)
    _check_old(to)
    missing = MissingFacts(kb, _with_relations(kb, config))
    _check(kb, config)
    # All that is known is evidence; the confidence is fitted with train alone.
    evidence = gather_evidence(kb, model, graph, progress, config.missing.known)
    started = time.monotonic()
    with disk_errors(work), locked(work):
        _check_stamp(work, kb, config, evidence)
        fusion = _fit(kb, evidence, config, work, progress)
        chance = _chance(kb, config, work)
        run = _Run(missing, fusion, chance, evidence, config)
        parts = list(_parts(run, work, progress))
        out = work / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        counts = join_parts(kb, parts, out / "proposals.parquet", config.limit, work)
        more = _labels(kb, config, out) | _links(kb, config, encoder, out, progress)
        manifest = _manifest(kb, config, evidence, counts) | more
        write_atomically(
            out / "manifest.json", json.dumps(manifest, ensure_ascii=False, indent=1) + "\n"
        )
        write_timings(out, {"enrich": time.monotonic() - started})
        publish(out, to)
    shutil.rmtree(work, ignore_errors=True)
    return read_manifest(to)


def _check_old(to: Path) -> None:
    """Only proposals are replaced, and never the work of a reviewer."""
    if to.exists():
        read_manifest(to)
        if (to / "marks.json").exists():
            raise PrixError(
                f"{to} has the marks of a review: name another folder, or export them and remove "
                "marks.json."
            )


def _check(kb: KB, config: EnrichConfig) -> None:
    if not any(kb.manifest.counts["linked"].values()):
        logger.warning(
            "%s has no links between its languages: no fact can be carried over, and only "
            "relations that things like the subject usually have are asked for",
            kb.folder,
        )
    linked = kb.manifest.counts["linked"]
    for lang in config.into:
        if any(linked.values()) and lang in kb.languages and not linked.get(lang):
            logger.warning("%s has no links of %s: no fact can be carried over", kb.folder, lang)
        if lang in kb.languages and not kb.num_triples(lang):
            logger.warning(
                "%s has no triple in %s: only what others state is asked", kb.folder, lang
            )
    missing = sorted(set(config.into) - set(kb.languages))
    if missing:
        raise PrixError(
            f"{kb.folder} has no {', '.join(missing)}; it has {', '.join(kb.languages)}."
        )
    if not kb.num_triples(split="valid"):
        raise PrixError(
            f"{kb.folder} has no valid triples to fit a confidence on: make some with `prixlm "
            "split`, and pretrain on the split."
        )


def _with_relations(kb: KB, config: EnrichConfig) -> MissingConfig:
    """Relations by name or key, as numbers."""
    if config.relations is None:
        return config.missing
    names: dict[str, set[int]] = {}
    for found in (kb.relation_keys(), *(kb.relation_names(lang) for lang in config.into)):
        for number, name in enumerate(found):
            names.setdefault(name.casefold(), set()).add(number)
    unknown = [name for name in config.relations if name.casefold() not in names]
    if unknown:
        some = ", ".join(kb.relation_names(config.into[0])[:_SHOWN])
        raise PrixError(
            f"no relation {unknown[0]!r} in {kb.folder}; it has {kb.num_relations:,}, such as "
            f"{some}."
        )
    wanted = sorted(set().union(*(names[name.casefold()] for name in config.relations)))
    stated = kb.query("SELECT DISTINCT relation FROM triples WHERE split = 'train'").fetchall()
    never = sorted(set(wanted) - {relation for (relation,) in stated})
    if never:
        logger.warning(
            "%s: no train fact has it, and nothing can be learnt of it",
            ", ".join(kb.relation_keys()[relation] for relation in never),
        )
    return replace(config.missing, relations=tuple(wanted))


def _check_stamp(work: Path, kb: KB, config: EnrichConfig, evidence: Evidence) -> None:
    """Parts of another question are thrown away."""
    digest = hashlib.sha256(json.dumps(asdict(config)).encode())
    digest.update(kb.fingerprint().encode())
    digest.update(evidence.identity.encode())
    stamp = work / "stamp"
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        for part in work.glob("part-*"):
            part.unlink()
        shutil.rmtree(work / "fusion", ignore_errors=True)
        (work / "chance.json").unlink(missing_ok=True)
        write_atomically(stamp, digest.hexdigest())


def _fit(
    kb: KB, evidence: Evidence, config: EnrichConfig, work: Path, progress: Progress | None
) -> Fusion:
    """Fitted on the valid facts of the languages, or of all where these have few."""
    folder = work / "fusion"
    if not (folder / "fusion.json").exists():
        rankers = evidence.reading(kb, ("train",)).rankers
        langs = fitted_languages(kb, config.into)
        Fusion.fit(kb, rankers, config.fusion, langs, progress).save(folder)
    return Fusion.load(kb, evidence.rankers, folder)


def _chance(kb: KB, config: EnrichConfig, work: Path) -> Chance:
    path = work / "chance.json"
    if not path.exists():
        Chance.fit(kb, fitted_languages(kb, config.into), config.missing).save(path)
    return Chance.load(path)


@dataclass(frozen=True)
class _Run:
    """What asks, what answers, and what says how sure that is."""

    missing: MissingFacts
    fusion: Fusion
    chance: Chance
    evidence: Evidence
    config: EnrichConfig


def _parts(run: _Run, work: Path, progress: Progress | None) -> Iterator[Path]:
    """A file for every so many questions, made now or found."""
    missing, config = run.missing, run.config
    number = 0
    for place, lang in enumerate(config.into):
        own = missing.kb.entity_range(lang)
        for block in missing.questions(lang):
            for start in range(0, len(block.queries), _PART):
                rows = np.arange(start, min(start + _PART, len(block.queries)))
                path = work / f"part-{number:07d}.parquet"
                number += 1
                if not path.exists():
                    some = Missing(
                        block.queries.select(rows), block.expected[rows], block.kind[rows]
                    )
                    table = _propose(run, some)
                    pq.write_table(table, path.with_suffix(".tmp"))
                    path.with_suffix(".tmp").rename(path)
                yield path
            if progress is not None:
                last = int(block.queries.subject[-1]) - own.start + 1
                progress("enrich", place * 1000 + 1000 * last // len(own), 1000 * len(config.into))


def _propose(run: _Run, asked: Missing) -> pa.Table:
    """The proposals for some questions."""
    queries, config, evidence = asked.queries, run.config, run.evidence
    found = run.fusion.explain(queries, config.answers + 1)
    owner, ranked = found.ranked.owners(), found.ranked
    confidence = run.fusion.confidence(ranked.score) * run.chance.predict(asked)[owner]
    place = np.arange(len(owner)) - ranked.offset[owner]
    # A relation of one object gets one proposal; the next best is said beside each.
    most = np.where(run.missing.single[queries.relation], 1, config.answers)[owner]
    kept = np.flatnonzero((place < most) & (confidence >= config.min_confidence))
    after = np.minimum(kept + 1, len(owner) - 1)
    has_next = (kept + 1 < len(owner)) & (owner[after] == owner[kept])
    lookup = next(r for r in evidence.rankers if isinstance(r, Transfer) and r.rule == "lookup")
    chosen = queries.select(owner[kept])
    origins = lookup.origins(
        chosen, Ranked(np.arange(len(kept) + 1), ranked.entity[kept], ranked.score[kept])
    )
    # A concept may have two entities in a language: what it states of one is known of the other.
    new = np.array([queries.lang not in part for part in origins], bool)
    kept, after, has_next = kept[new], after[new], has_next[new]
    chosen = chosen.select(np.flatnonzero(new))
    origins = [part for part in origins if queries.lang not in part]
    model, graph = evidence.place(ModelRanker), evidence.place(GraphRanker)
    nothing = np.full(len(kept), np.nan)
    columns = {
        "lang": np.full(len(kept), queries.lang),
        "subject": chosen.subject,
        "relation": chosen.relation,
        "object": ranked.entity[kept],
        "confidence": np.round(confidence[kept], 6),
        "why": np.array(KINDS)[asked.kind[owner[kept]]],
        "origin": pa.array(origins, pa.list_(pa.string())),
        "model_score": nothing if model is None else found.score[kept, model],
        "model_rank": nothing if model is None else found.rank[kept, model],
        "graph_rank": nothing if graph is None else found.rank[kept, graph],
        "runner_up": np.where(has_next, ranked.entity[after], -1),
        "runner_up_confidence": np.where(has_next, np.round(confidence[after], 6), np.nan),
    }
    arrays = [_column(columns[f.name], f.type) for f in PART]
    return pa.Table.from_arrays(arrays, schema=PART)


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    missing = np.isnan(values) if values.dtype.kind == "f" else None
    if missing is not None and pa.types.is_integer(kind):
        values = np.where(missing, 0, values).astype(np.int64)
    array = pa.array(values, mask=missing)
    return array if array.type == kind else array.cast(kind)


def _labels(kb: KB, config: EnrichConfig, out: Path) -> dict[str, Any]:
    """Names that languages may take over; their number by language, or why there are none."""
    if not config.labels:
        return {}
    found, tables = {}, []
    for lang in config.into:
        try:
            rule = LabelRule(kb, lang, LabelConfig(min_confidence=config.min_confidence))
        except PrixError as error:  # of a language in a script of its own there is nothing to learn
            logger.warning("no names for %s: %s", lang, error)
            found[lang] = {"names": 0, "why": str(error)}
            continue
        tables.append(pa.concat_tables([LABELS.empty_table(), *rule.proposals()]))
        assert rule.reliability is not None
        found[lang] = {"names": tables[-1].num_rows, "ece": round(rule.reliability.ece, 4)}
    order = [("lang", "ascending"), ("confidence", "descending"), ("concept", "ascending")]
    table = pa.concat_tables([LABELS.empty_table(), *tables]).sort_by(order)
    pq.write_table(table, out / "labels.parquet", compression="zstd")
    return {"labels": found}


def _links(
    kb: KB,
    config: EnrichConfig,
    encoder: Path | str | None,
    out: Path,
    progress: Progress | None,
) -> dict[str, Any]:
    """Counterparts in the pivot language; their number by language."""
    if encoder is None:
        return {}
    found, tables = {}, []
    settings = LinkConfig(min_confidence=config.min_confidence)
    loaded = EntityEncoder.load(encoder)
    check_trained(kb, loaded.model.settings.trained, "encoder")
    for lang in config.into:
        if lang == config.pivot:
            continue
        try:
            rule = LinkRule(kb, loaded, lang, config.pivot, settings, progress)
        except PrixError as error:
            logger.warning("no links for %s: %s", lang, error)
            found[lang] = {"links": 0, "why": str(error)}
            continue
        tables.append(rule.proposals())
        found[lang] = {"links": tables[-1].num_rows}
    table = pa.concat_tables([LINKS.empty_table(), *tables])
    pq.write_table(table, out / "links.parquet", compression="zstd")
    return {"links": found}


def _manifest(
    kb: KB, config: EnrichConfig, evidence: Evidence, counts: dict[str, Any]
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": 1,
        "tool": f"prixlm {version('prixlm')}",
        "kb": kb.fingerprint(),
        "licence": kb.manifest.licence,
        "sources": [str(source["name"]) for source in kb.manifest.sources],
        "rankers": [ranker.name for ranker in evidence.rankers],
        "trained": evidence.identity,
        "config": asdict(config),
        "proposals": counts,
        "fitted_on": fitted_languages(kb, config.into),
    }
