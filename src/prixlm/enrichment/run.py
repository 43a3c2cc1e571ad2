"""The main job: propose facts that a KB lacks in a language, with confidence and origin.

    enrich(kb, "proposals", EnrichConfig(into=("et",)), model="model")

`gaps` says what to ask. The rankers answer (the model, facts carried along links, rules, a graph
embedding), and `fusion` makes one confidence of their answers, fitted on the valid facts and tried
on the test facts of a split (`trial`). The confidence of a guess is multiplied by the probability
that it has an answer at all (`answerable`). A known fact is never proposed, nor a second object of
a relation that has one.

Held-out facts are needed to fit the confidence, but not to ask: with a `Whole`, the proposals come
from rankers that read and were trained on everything that the KB states.

The result is a proposals folder (see `proposals`). The parts of a stopped run are kept in
PROPOSALS.partial: the same call resumes it and ends with the same bytes.

Dimension letters: Q questions, N answers of all questions, one question after another.
"""

import json
import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.arrays import rank_in_group
from prixlm.decoding.completer import Completer
from prixlm.engine.jobs import EngineConfig, ShardJob, made_by, make_parts
from prixlm.engine.overwriting import check_target
from prixlm.engine.workspace import Workspace, open_workspace
from prixlm.enrichment.answerable import Answerability
from prixlm.enrichment.gaps import (
    KINDS,
    GapConfig,
    GapFinder,
    Gaps,
    Questions,
    find_questions,
    relations_of_one_object,
)
from prixlm.enrichment.labels import LabelConfig, propose_language
from prixlm.enrichment.links import LinkConfig, propose_links
from prixlm.enrichment.trial import Trial, try_fusion
from prixlm.entities.encoder import EntityEncoder
from prixlm.errors import PrixError
from prixlm.files import publish, whole_folder
from prixlm.kb.store import KB
from prixlm.languages import parse_languages
from prixlm.proposals.marks import has_marks
from prixlm.proposals.tables import (
    ANSWERABLE_FILE,
    FORMAT,
    FUSION_FOLDER,
    LABEL_SCHEMA,
    join_parts,
    part_table,
    read_manifest,
    write_manifest,
    write_table,
    write_timings,
)
from prixlm.rankers.base import Queries, Ranked
from prixlm.rankers.fusion import FITTED_FILES, Fusion, FusionConfig, fitted_languages
from prixlm.rankers.suite import Suite, load_suite
from prixlm.remote import absolute
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)
_SHOWN_RELATIONS = 8
"""Relations that an error lists."""
_SUMMARY = "summary"
"""Metadata of a part of the labels: the figures of its language, as JSON."""
_MIN_ASKED = 1_000
"""Linked names that the confidence of written names is fitted on, at least."""
_MAX_TRANSLATED = 50_000
"""Names that a model translates as evidence for links: more would take hours on a CPU."""
_PART_QUESTIONS = 512
"""Questions of one part: all that a kill can lose. Parts of very many questions are larger."""


@dataclass(frozen=True, kw_only=True)
class EnrichConfig:
    """What is proposed.

    Example:
        >>> config = prixlm.EnrichConfig(into=("et", "fi"), min_confidence=0.8)
    """

    into: tuple[str, ...]  # languages to enrich
    min_confidence: float = 0.5  # leave out proposals below it
    relations: tuple[str, ...] | None = None  # names or keys of the relations; None: all
    limit: int | None = None  # keep this number of proposals, the most confident ones
    answers: int = 5  # most objects of a question
    labels: bool = False  # propose names for concepts that a language has no name for
    written: int = 5_000  # concepts of a language that names are written for, not taken over
    links: bool = False  # propose links into `pivot`; an encoder implies it
    pivot: str = "en"  # language that links are proposed into
    tried: int = 500  # test questions per language that the confidence is tried on; 0: none
    missing: GapConfig = field(default_factory=GapConfig)
    fusion: FusionConfig = field(default_factory=lambda: FusionConfig(together=True))

    def __post_init__(self) -> None:
        if not self.fusion.together:  # a question may lack several objects
            object.__setattr__(self, "fusion", replace(self.fusion, together=True))
        if not 0 <= self.min_confidence <= 1:
            raise PrixError(f"--min-confidence {self.min_confidence}: expected 0 to 1.")
        if self.limit is not None and self.limit < 1:
            raise PrixError(f"--limit {self.limit}: expected 1 or more.")
        if self.answers < 1:
            raise PrixError(f"answers {self.answers}: expected 1 or more.")
        if self.written < 0:
            raise PrixError(f"--written {self.written}: expected 0 or more.")
        if self.tried < 0:
            raise PrixError(f"tried {self.tried}: expected 0 or more.")
        object.__setattr__(self, "into", tuple(parse_languages(self.into)))


@dataclass(frozen=True, kw_only=True)
class Whole:
    """Everything that is known, as the evidence for the proposals themselves."""

    kb: KB  # the same entities as the split's, with all known facts as train facts
    model: Path | str | None = None  # trained on it; None: the one trained on the split
    graph: Path | str | None = None  # trained on it; None: the one trained on the split


def enrich(
    kb: KB,
    to: Path | str,
    config: EnrichConfig,
    *,
    model: Path | str | None = None,
    graph: Path | str | None = None,
    encoder: Path | str | None = None,
    reader: Path | str | None = None,
    whole: Whole | None = None,
    overwrite: bool = False,
    engine: EngineConfig | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Propose what a KB lacks in some languages, write a proposals folder, return its manifest.

    kb: a split, whose valid facts the confidence is fitted on.
    model, graph: folders of a Prix-LM and a graph embedding trained on this KB, as evidence.
        If `kb` withholds links, its translations are evidence for new ones too.
    encoder: folder of an entity encoder; links into `config.pivot` are proposed with it.
    reader: folder of a decoder that is asked in words, as evidence.
    whole: the KB that `kb` is a split of, and models trained on it; the questions are asked there.
    overwrite: replace a proposals folder without marks.
    engine: where the questions are asked, and names encoded. The confidence is fitted once, in
        this process.

    Example:
        >>> config = prixlm.EnrichConfig(into=("et",), relations=("capital",), min_confidence=0.1)
        >>> manifest = prixlm.enrich(prixlm.KB("split"), "proposals", config, graph="graph")
        >>> list(manifest["proposals"])
        ['et']
    """
    to = Path(to)
    sources = [kb.folder] if whole is None else [kb.folder, whole.kb.folder]
    work = check_target(to, sources, overwrite, FORMAT)
    _check_replaced(to)
    _check_kb(kb, config)
    if config.links or encoder is not None:
        _check_languages(kb, (config.pivot,))  # before facts and labels take their hours
    asked_kb = kb if whole is None else whole.kb
    missing = _gap_config(asked_kb, config)
    entity_encoder = None if encoder is None else _load_encoder(kb, encoder)
    # Only the confidence is fitted with rankers that know the train facts alone.
    fitted = load_suite(kb, model, graph, progress, reader=reader)
    suite = _asked_suite(kb, fitted, config, model, graph, reader, whole, progress)
    started = time.monotonic()
    # Parts of other settings, of another KB or of other models are not resumed.
    inputs = _inputs(kb, asked_kb, fitted, suite)
    stamp = {"config": asdict(config), "inputs": inputs, "made by": made_by(engine)}
    with open_workspace(work, stamp) as workspace:
        fusion = _fit_fusion(kb, fitted, config, workspace, progress)
        trials = _try(kb, fusion, config, workspace, progress)
        answerable = _fit_answerable(kb, config, workspace)
        finder = partial(GapFinder, asked_kb, missing)
        questions = find_questions(workspace, config.into, finder, progress)
        run = _Run(
            config,
            relations_of_one_object(asked_kb, missing.one_object),
            suite,
            fusion.over(asked_kb, suite.rankers),
            answerable,
            questions,
            inputs,
        )
        load = partial(
            _load_run,
            kb,
            replace(config, missing=missing),
            _absolute(model),
            _absolute(graph),
            _absolute(reader),
            None
            if whole is None
            else replace(whole, model=_absolute(whole.model), graph=_absolute(whole.graph)),
            workspace.folder.resolve(),
        )
        job = ShardJob("enrich", questions.shards(_PART_QUESTIONS), load, run, inputs)
        parts = make_parts(job, workspace, engine, progress)
        out, scratch = workspace.empty_folder("out"), workspace.empty_folder("scratch")
        counts = join_parts(asked_kb, parts, out / "proposals.parquet", config.limit, scratch)
        manifest = _manifest(kb, asked_kb, config, suite, counts) | {"trials": trials}
        if config.labels:
            manifest["labels"] = _write_labels(asked_kb, config, workspace, out, progress)
        if config.links or entity_encoder is not None:
            translating = _translating_model(kb, config, model)
            evidence = (entity_encoder, translating)
            manifest["links"] = _write_links(kb, config, evidence, out, progress, engine)
        _keep_fitted(workspace, out)
        write_manifest(out, manifest)
        write_timings(out, {"enrich": time.monotonic() - started})
        publish(out, to)
        workspace.remove()
    return read_manifest(to)


def _asked_suite(
    kb: KB,
    fitted: Suite,
    config: EnrichConfig,
    model: Path | str | None,
    graph: Path | str | None,
    reader: Path | str | None,
    whole: Whole | None,
    progress: Progress | None,
) -> Suite:
    """Return the rankers that answer the questions: they may know everything that is stated."""
    known = config.missing.known
    if whole is None:
        return fitted.reading(kb, known)
    return load_suite(
        whole.kb,
        whole.model or model,
        whole.graph or graph,
        progress,
        known,
        reader=reader,
        split=kb,
    )


def _check_replaced(to: Path) -> None:
    """Refuse to replace anything but proposals, or proposals that a person has marked."""
    if to.exists():
        read_manifest(to)
        if has_marks(to):
            raise PrixError(
                f"{to} has the marks of a review: name another folder, or export the proposals and "
                "delete the folder."
            )


def _check_kb(kb: KB, config: EnrichConfig) -> None:
    """Refuse a KB without the languages or without valid facts; warn if it has few links."""
    _check_languages(kb, config.into)
    if not kb.num_triples(split="valid"):
        raise PrixError(
            f"{kb.folder} has no valid triples to fit a confidence on, of {kb.num_triples():,} in "
            "all: make a split with `prixlm split`, and train on the split. A KB of a few hundred "
            "triples is too small."
        )
    linked = kb.manifest.counts["linked"]
    if not any(linked.values()):
        logger.warning(
            "%s has no links between its languages: no fact can be carried over, so only relations "
            "that similar entities have are asked for",
            kb.folder,
        )
    for lang in config.into:
        if any(linked.values()) and not linked.get(lang):
            logger.warning("%s has no links of %s: no fact can be carried over", kb.folder, lang)
        if not kb.num_triples(lang):
            logger.warning(
                "%s has no facts in %s: only facts that other languages state are asked for",
                kb.folder,
                lang,
            )


def _check_languages(kb: KB, langs: Sequence[str]) -> None:
    """Refuse a KB without some languages."""
    unknown = sorted(set(langs) - set(kb.languages))
    if unknown:
        raise PrixError(
            f"{kb.folder} has no {', '.join(unknown)}; it has {', '.join(kb.languages)}."
        )


def _gap_config(kb: KB, config: EnrichConfig) -> GapConfig:
    """Return the settings of the gaps with the relations' names or keys resolved to ids."""
    if config.relations is None:
        return config.missing
    ids: dict[str, set[int]] = {}  # by name and by key
    for names in (kb.relation_keys(), *(kb.relation_names(lang) for lang in config.into)):
        for relation, name in enumerate(names):
            ids.setdefault(name.casefold(), set()).add(relation)
    unknown = [name for name in config.relations if name.casefold() not in ids]
    if unknown:
        examples = ", ".join(kb.relation_names(config.into[0])[:_SHOWN_RELATIONS])
        raise PrixError(
            f"{kb.folder} has no relation {unknown[0]!r}; it has {kb.num_relations:,}, such as "
            f"{examples}."
        )
    wanted = sorted(set().union(*(ids[name.casefold()] for name in config.relations)))
    # A relation without a train fact is asked for all the same: others may carry over its facts.
    rows = kb.query("SELECT DISTINCT relation FROM triples WHERE split = 'train'").fetchall()
    untrained = sorted(set(wanted) - {relation for (relation,) in rows})
    if untrained:
        keys = kb.relation_keys()
        logger.warning(
            "no train fact has the relation %s: nothing can be learnt about it",
            ", ".join(keys[relation] for relation in untrained),
        )
    return replace(config.missing, relations=tuple(wanted))


def _load_encoder(kb: KB, folder: Path | str) -> EntityEncoder:
    encoder = EntityEncoder.load(folder)
    encoder.model.settings.lineage.check_unseen_facts(kb, "the encoder")
    return encoder


def _fit_fusion(
    kb: KB, suite: Suite, config: EnrichConfig, workspace: Workspace, progress: Progress | None
) -> Fusion:
    """Fit the confidence on the valid facts, or load what an interrupted run has fitted."""
    folder = workspace.folder / FUSION_FOLDER
    if not folder.is_dir():
        langs = fitted_languages(kb, config.into)
        with whole_folder(folder) as temporary:
            Fusion.fit(kb, suite.rankers, config.fusion, langs, progress).save(temporary)
    return Fusion.load(kb, suite.rankers, folder)


def _try(
    kb: KB, fusion: Fusion, config: EnrichConfig, workspace: Workspace, progress: Progress | None
) -> list[dict[str, Any]]:
    """Try the confidence on the test facts of each language that has any."""

    def write(path: Path) -> None:
        trials: list[Trial] = []
        langs = [lang for lang in config.into if config.tried and kb.num_triples(lang, "test")]
        for done, lang in enumerate(langs, start=1):
            trials += try_fusion(fusion, kb, lang, most=config.tried, answers=config.answers)
            if progress is not None:
                progress("try the confidence", done, len(langs))
        path.write_text(json.dumps([trial.as_dict() for trial in trials]), "utf-8")

    values: list[dict[str, Any]] = json.loads(
        workspace.make("trials.json", write).read_text("utf-8")
    )
    return values


def _fit_answerable(kb: KB, config: EnrichConfig, workspace: Workspace) -> Answerability:
    def write(path: Path) -> None:
        Answerability.fit(kb, fitted_languages(kb, config.into), config.missing).save(path)

    return Answerability.load(workspace.make(ANSWERABLE_FILE, write))


def _keep_fitted(workspace: Workspace, out: Path) -> None:
    """Copy what was fitted to the result, but for its seconds: equal runs have equal bytes."""
    (out / FUSION_FOLDER).mkdir()
    names = [*(f"{FUSION_FOLDER}/{name}" for name in FITTED_FILES), ANSWERABLE_FILE]
    for name in names:
        shutil.copyfile(workspace.folder / name, out / name)


def _inputs(kb: KB, asked_kb: KB, fitted: Suite, suite: Suite) -> dict[str, str]:
    """Return what tells KBs and trained models from others."""
    return {
        "KB": kb.fingerprint(),
        "whole KB": asked_kb.fingerprint(),
        "models": fitted.identity,
        "models of the whole KB": suite.identity,
    }


def _absolute(path: Path | str | None) -> Path | None:
    """Return a path that another process finds too."""
    return None if path is None else absolute(path)


def _load_run(
    kb: KB,
    config: EnrichConfig,
    model: Path | None,
    graph: Path | None,
    reader: Path | None,
    whole: Whole | None,
    fitted_in: Path,
) -> "_Run":
    """Load in a worker what asks the questions, with the confidence that the driver has fitted."""
    asked_kb = kb if whole is None else whole.kb
    fitted = load_suite(kb, model, graph, reader=reader)
    suite = _asked_suite(kb, fitted, config, model, graph, reader, whole, None)
    fusion = Fusion.load(kb, fitted.rankers, fitted_in / FUSION_FOLDER)
    return _Run(
        config,
        relations_of_one_object(asked_kb, config.missing.one_object),
        suite,
        fusion.over(asked_kb, suite.rankers),
        Answerability.load(fitted_in / ANSWERABLE_FILE),
        Questions(fitted_in, config.into),
        _inputs(kb, asked_kb, fitted, suite),
    )


@dataclass(frozen=True)
class _Run:
    """All that is needed to turn questions into proposals."""

    config: EnrichConfig
    has_one_object: Array  # (R,) of each relation
    suite: Suite
    fusion: Fusion
    answerable: Answerability
    questions: Questions
    loaded_from: dict[str, str]

    def inputs(self) -> dict[str, str]:
        """Return what tells KBs and models from others."""
        return self.loaded_from

    def __call__(self, value: tuple[str, range], path: Path) -> None:
        """Ask the questions of a shard and write the proposals."""
        pq.write_table(self._propose(self.questions.read(*value)), path)

    def _propose(self, gaps: Gaps) -> pa.Table:
        """Return the proposals for some questions, as ids (PART_SCHEMA)."""
        queries = gaps.queries
        # One answer more than are proposed, as the runner-up of the last one.
        explained = self.fusion.explain(queries, self.config.answers + 1)
        ranked, owner = explained.ranked, explained.ranked.owners()
        confidence = self.fusion.confidence(ranked.score) * self.answerable.predict(gaps)[owner]
        has_one_object = self.has_one_object[queries.relation]
        # (N,) how many answers of its question may be proposed.
        limit = np.where(has_one_object, 1, self.config.answers)[owner]
        is_proposed = (rank_in_group(owner) < limit) & (confidence >= self.config.min_confidence)
        rows, origins = self._new_answers(queries, ranked, np.flatnonzero(is_proposed))

        # The runner-up is the next answer of the same question.
        following = np.minimum(rows + 1, len(owner) - 1)
        has_next = (rows + 1 < len(owner)) & (owner[following] == owner[rows])
        columns = {
            "lang": np.full(len(rows), queries.lang),
            "subject": queries.subject[owner[rows]],
            "relation": queries.relation[owner[rows]],
            "object": ranked.entity[rows],
            "confidence": np.round(confidence[rows], 6),
            "why": np.array(KINDS)[gaps.kind[owner[rows]]],
            "origin": pa.array(origins, pa.list_(pa.string())),
            "model_score": explained.score(self.suite.model)[rows],
            "model_rank": explained.rank(self.suite.model)[rows],
            "graph_rank": explained.rank(self.suite.graph)[rows],
            "runner_up": np.where(has_next, ranked.entity[following], -1),
            "runner_up_confidence": np.where(has_next, np.round(confidence[following], 6), np.nan),
        }
        return part_table(columns)

    def _new_answers(
        self, queries: Queries, ranked: Ranked, rows: Array
    ) -> tuple[Array, list[list[str]]]:
        """Return the answers that their own language does not state, and who states them.

        rows: positions in `ranked`. A concept may have two entities in a language; a fact about one
        of them is known of the other.
        """
        asked = queries.select(ranked.owners()[rows])
        answers = Ranked(np.arange(len(rows) + 1), ranked.entity[rows], ranked.score[rows])
        origins = self.suite.links["lookup"].origins(asked, answers)
        is_new = np.array([queries.lang not in langs for langs in origins], bool)
        return rows[is_new], [langs for langs in origins if queries.lang not in langs]


def count_questions(kb: KB, config: EnrichConfig) -> int:
    """Return how many questions will be asked, those that fit and try the confidence too."""
    gaps = GapFinder(kb, config.missing)
    asked = sum(len(block.queries) for lang in config.into for block in gaps.find(lang))
    return asked + len(config.into) * (config.fusion.facts + config.tried)


def num_asked(config: EnrichConfig) -> int:
    """Return how many named concepts the confidence of written names is fitted on, at most.

    About as many as names are written for.
    """
    return min(LabelConfig().asked, max(_MIN_ASKED, config.written))


def _write_labels(
    kb: KB, config: EnrichConfig, workspace: Workspace, out: Path, progress: Progress | None
) -> dict[str, Any]:
    """Write the label proposals, one language after another; return their summary."""
    settings = LabelConfig(
        min_confidence=config.min_confidence, written=config.written, asked=num_asked(config)
    )
    parts = []
    for lang in config.into:

        def write(path: Path, lang: str = lang) -> None:
            table, summary = propose_language(kb, lang, settings, progress)
            metadata = {_SUMMARY: json.dumps(summary)}
            pq.write_table(table.replace_schema_metadata(metadata), path)

        parts.append(pq.read_table(workspace.make(f"labels-{lang}.parquet", write)))
    write_table(out, "labels", pa.concat_tables([part.cast(LABEL_SCHEMA) for part in parts]))
    return {
        lang: json.loads(part.schema.metadata[_SUMMARY.encode()])
        for lang, part in zip(config.into, parts, strict=True)
    }


def _translating_model(kb: KB, config: EnrichConfig, model: Path | str | None) -> Completer | None:
    """Return the model whose translations are evidence for links; None, with a line, if it cannot.

    It was trained on the known links, so only withheld links can tell how far to trust it. Those of
    a compact model, which has read nothing but the KB, add nothing, and fitting on the withheld
    links alone costs a point: docs/results/links.md.
    """
    if model is None:
        return None
    langs = {*config.into, config.pivot}
    num_names = sum(len(kb.entity_range(lang)) for lang in langs)
    if not kb.withholds_links:
        logger.info("links without the model's translations: %s withholds no links", kb.folder)
        return None
    if num_names > _MAX_TRANSLATED:
        logger.warning(
            "links without the model's translations: %d names of %s are too many to translate, "
            "expected %d or fewer",
            *(num_names, ", ".join(sorted(langs)), _MAX_TRANSLATED),
        )
        return None
    completer = Completer(model, kb)
    lineage = completer.model.settings.lineage
    if lineage.base == "compact":
        logger.info("links without the model's translations: a compact model's add nothing")
        return None
    lineage.check_unseen_links(kb, "the model")
    return completer


def _write_links(
    kb: KB,
    config: EnrichConfig,
    evidence: tuple[EntityEncoder | None, Completer | None],
    out: Path,
    progress: Progress | None,
    engine: EngineConfig | None,
) -> dict[str, Any]:
    """Write the link proposals; return their summary."""
    settings, (encoder, model) = LinkConfig(min_confidence=config.min_confidence), evidence
    table, summary = propose_links(
        kb, config.into, config.pivot, settings, encoder, progress, model, engine
    )
    write_table(out, "links", table)
    return summary


def _manifest(
    kb: KB, asked_kb: KB, config: EnrichConfig, suite: Suite, counts: dict[str, Any]
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": 1,
        "tool": f"prixlm {version('prixlm')}",
        "kb": asked_kb.fingerprint(),
        "fitted_on_kb": kb.fingerprint(),
        "licence": kb.manifest.licence,
        "sources": [str(source["name"]) for source in kb.manifest.sources],
        "rankers": [ranker.name for ranker in suite.rankers],
        "trained": suite.identity,
        "config": asdict(config),
        "proposals": counts,
        "fitted_on": fitted_languages(kb, config.into),
    }
