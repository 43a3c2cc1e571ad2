"""The demo: facts and links of the embedded world KB are hidden, and most of them found again.

    DEMO/kb         the world KB
    DEMO/split      30 % of the Estonian, Telugu and Lao facts held out: half of them in one
                    language, half in every language at once
    DEMO/work       what `prixlm enrich` makes of the split: graph, model, proposals
    DEMO/names      the world KB in four languages (DEMO/few), with the links of 20 % of its
                    concepts withheld
    DEMO/encoder    an entity encoder trained on the other links, from random weights (DEMO/start)
    DEMO/facts.nq   the proposals as N-Quads;  DEMO/facts.tsv  as a table
    DEMO/report     a page with all of it

Every step is a library call that a command makes too. An interrupted demo resumes. A finished demo
is removed and made again.

Dimension letters: N answers of all questions.
"""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prixlm.arrays import pair_keys, rank_in_group
from prixlm.enrichment.budget import Plan
from prixlm.enrichment.gaps import GapConfig, relations_of_one_object
from prixlm.enrichment.job import Announce, JobConfig, open_job
from prixlm.enrichment.report import Report, write_report
from prixlm.enrichment.run import EnrichConfig
from prixlm.enrichment.trial import read_trials, reliability_curves, trial_tables
from prixlm.entities.encoder import EncoderSettings, EntityEncoder
from prixlm.entities.mirror import MirrorConfig, mirror
from prixlm.entities.spelling import SPELLINGS
from prixlm.errors import PrixError
from prixlm.evaluation.entity_linking import (
    EncoderScorer,
    FuzzyScorer,
    LinkingTask,
    withheld_tasks,
)
from prixlm.files import disk_errors, locked, read_json, whole_folder, write_atomically
from prixlm.importers.run import import_kb
from prixlm.kb.split import SplitConfig, known_objects, split_kb
from prixlm.kb.store import KB
from prixlm.lm.compact import CompactConfig
from prixlm.proposals.export import ExportConfig, export
from prixlm.rankers.base import Queries, Ranked
from prixlm.rankers.complex import GraphConfig
from prixlm.rankers.fusion import Fusion, FusionConfig, fitted_languages
from prixlm.rankers.heldout import HeldOut, Questions, read_facts
from prixlm.rankers.links import MergedLookup, UsualObjects
from prixlm.rankers.suite import load_suite
from prixlm.reports.console import language_name
from prixlm.reports.tables import ResultTable
from prixlm.training.pretrain import PretrainConfig, make_model
from prixlm.types import Array, Progress

INTO = ("et", "te", "lo")
"""Languages that the demo hides facts of and enriches."""
PIVOT = "en"
"""Language whose names are looked for."""
KNOWN = ("train", "valid")
"""Splits that the enrichment may use; the test facts are hidden."""
LEVEL = 0.8
"""Confidence from which a proposal counts."""
_TIMINGS = "timings.json"
_FOLDERS = ("report", "encoder", "start", "names", "few", "work", "split", "kb")
_NUM_EXAMPLES = 3
_INTRODUCTION = (
    "Facts of the world KB (countries, languages, currencies, cities; from CLDR and GeoNames) were "
    "hidden. Half of them were hidden in one language, where the other languages still state them. "
    "The other half were hidden in every language at once, where they have to be inferred; these "
    "were asked for by subject and relation. An answer is right if it is a hidden fact, and wrong "
    "if the KB does not state it. Facts whose inverse the KB still states do not count. Several "
    "kinds of evidence may rank the same fact first. Everything was trained in minutes."
)


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """How much the demo does."""

    langs: tuple[str, ...] | None = None  # languages of the KB; None: the paper's 17
    split: SplitConfig = field(
        default_factory=lambda: SplitConfig(test=0.3, valid=0.1, everywhere=0.5, langs=INTO)
    )
    withheld: float = 0.2  # share of the concepts whose links are withheld
    graph: GraphConfig = field(default_factory=lambda: GraphConfig(rank=64, epochs=3))
    pretrain: PretrainConfig = field(
        default_factory=lambda: replace(PretrainConfig.preset("demo"), epochs=1)
    )
    # Pieces of a letter or two: the encoder learns how scripts spell the same sound.
    letters: CompactConfig = field(
        default_factory=lambda: CompactConfig(vocab=700, width=128, layers=2)
    )
    mirror: MirrorConfig = field(
        default_factory=lambda: replace(
            MirrorConfig.preset("compact"),
            positives="links",
            number=20_000,
            temperature=0.05,
            encoder=EncoderSettings(pooling="mean"),
        )
    )
    fusion: FusionConfig = field(
        default_factory=lambda: FusionConfig(facts=400, depth=10, smallest=50, parts=4)
    )
    relations: tuple[str, ...] | None = None  # relations to enrich; None: all
    tried: int = 100  # test questions that the confidence is tried on, per language

    @property
    def job(self) -> JobConfig:
        """The settings of the main job, in which the test facts count as missing."""
        proposals = EnrichConfig(
            into=INTO,
            relations=self.relations,
            tried=self.tried,
            missing=GapConfig(known=KNOWN),
            fusion=self.fusion,
        )
        plan = Plan(effort="standard", graph=self.graph, model=self.pretrain)
        return JobConfig(into=INTO, enrich=proposals, plan=plan)


@dataclass(frozen=True)
class Recovered:
    """Facts of one language that were hidden in the same way, and what came back."""

    lang: str
    everywhere: bool  # hidden in every language; else in this one only
    hidden: int
    right: int  # hidden facts that came back with a confidence of LEVEL or more
    wrong: int  # answers of such confidence that the KB does not state
    examples: list[str]  # right answers
    first: dict[str, int] = field(default_factory=dict)  # right ones ranked first, by evidence
    unasked: tuple[int, int] = (0, 0)  # right and wrong without being asked for each fact
    usual: int = 0  # right ones if every answer were the usual object of its relation

    @property
    def sentence(self) -> str:
        """The result in a line."""
        name = language_name(self.lang)
        where = "in every language: asked for" if self.everywhere else f"in {name} only: unasked"
        line = (
            f"{name}: {self.hidden:,} facts hidden {where}, {self.right:,} came back right at "
            f"{LEVEL:g} or more, {self.wrong:,} wrong."
        )
        if not self.everywhere:
            return f"{line} Evidence: other languages state them."
        first = ", ".join(f"{ranker} {number:,}" for ranker, number in self.first.items())
        right, wrong = self.unasked
        return (
            f"{line} Evidence that ranks them first: {first}. With the usual object of the "
            f"relation as often, {self.usual:,} would be right. Unasked, {right:,} came "
            f"back right, {wrong:,} wrong."
        )


@dataclass(frozen=True)
class FoundNames:
    """Names of one language whose links were withheld, looked for among the names of another."""

    lang: str
    asked: int  # names that are spelled differently there
    candidates: int  # names of the other language
    encoder: int  # found first by the encoder
    spelling: int  # found first by spelling the name in Latin letters
    examples: list[str]  # found by the encoder alone

    @property
    def sentence(self) -> str:
        """The result in a line."""
        return (
            f"{language_name(self.lang)}: {self.asked:,} names without a link, each looked for "
            f"among {self.candidates:,} {language_name(PIVOT)} names: the encoder finds "
            f"{self.encoder:,}, spelling them in Latin letters {self.spelling:,}."
        )


@dataclass(frozen=True)
class Demo:
    """The results of the demo, for printing."""

    kb: KB
    facts: list[Recovered]
    names: list[FoundNames]
    manifest: dict[str, Any]  # of the proposals
    report: Path
    timings: dict[str, float]  # seconds by step

    @property
    def tables(self) -> list[ResultTable]:
        """How far the confidence can be believed, on a sample of the hidden facts."""
        return trial_tables(read_trials(self.manifest))


def run_demo(
    to: Path,
    progress: Progress | None = None,
    config: DemoConfig | None = None,
    announce: Announce | None = None,
) -> Demo:
    """Run all steps in the folder `to`. announce: called with a line about each step."""
    # Without timings the folders are not ours, and the next demo would remove them.
    others = [name for name in _FOLDERS if (to / name).exists()]
    if others and not (to / _TIMINGS).exists():
        raise PrixError(
            f"{to} has a folder {others[0]} that was not made by a demo: name another folder."
        )
    with disk_errors(to), locked(to):
        return _run(to, progress, config or DemoConfig(), announce)


def _run(
    to: Path, progress: Progress | None, config: DemoConfig, announce: Announce | None
) -> Demo:
    clock = _Clock(to, announce)
    if (to / "report" / "report.html").exists():
        clock.start_over()
    with clock("import and split", "Importing the world KB and hiding facts and links."):
        split, linked = _make_splits(to, config, progress)
    with open_job([split.folder], to / "work", config.job, None, announce, progress) as job:
        manifest = job.run()
        whole = job.everything(split)
    clock.add(job.state["seconds"])
    with clock("encoder", "Training the encoder on the links that were not withheld."):
        encoder = _train_encoder(linked, to, config, progress)
    with clock("judge", "Comparing with what was hidden."):
        facts = judge_facts(split, whole, to / "work", config.fusion, progress)
        names = judge_names(linked, encoder)
        _export(to)
    page = _write_report(whole, to, facts, names, manifest, clock.seconds)
    return Demo(KB(to / "kb"), facts, names, manifest, page, clock.seconds)


class _Clock:
    """Seconds by step, added up over all runs of an interrupted demo."""

    def __init__(self, to: Path, announce: Announce | None) -> None:
        self.to, self.path, self.announce = to, to / _TIMINGS, announce
        self.seconds: dict[str, float] = {}
        if self.path.exists():
            self.seconds = read_json(self.path)
            return
        self._write()

    @contextmanager
    def __call__(self, step: str, line: str) -> Iterator[None]:
        if self.announce is not None:
            self.announce(line)
        started = time.monotonic()
        try:
            yield
        finally:
            self.add({step: self.seconds.get(step, 0.0) + time.monotonic() - started})

    def add(self, seconds: dict[str, float]) -> None:
        """Note down how long some steps took in all runs."""
        self.seconds |= seconds
        self._write()

    def _write(self) -> None:
        write_atomically(self.path, json.dumps(self.seconds, indent=1) + "\n")

    def start_over(self) -> None:
        """Remove everything that a finished demo made."""
        for name in _FOLDERS:
            shutil.rmtree(self.to / name, ignore_errors=True)
        self.seconds = {}
        self._write()


def _make_splits(to: Path, config: DemoConfig, progress: Progress | None) -> tuple[KB, KB]:
    """Return the KB with hidden facts, and the KB with withheld links.

    They are two folders: facts are carried along all links, and four languages are enough to learn
    how names are spelled.
    """
    withheld = SplitConfig(hide_links=config.withheld, valid=0)
    languages = {"kb": config.langs, "few": (PIVOT, *INTO)}
    for name, langs in languages.items():
        if not (to / name).is_dir():
            import_kb([], to / name, format="world", langs=langs, progress=progress)
    for name, source, how in (("split", "kb", config.split), ("names", "few", withheld)):
        if not (to / name).is_dir():
            split_kb(KB(to / source), to / name, how)
    return KB(to / "split"), KB(to / "names")


def _train_encoder(
    linked: KB, to: Path, config: DemoConfig, progress: Progress | None
) -> EntityEncoder:
    """Train an encoder from random weights: the demo's model has seen the withheld links."""
    if not (to / "start").is_dir():
        with whole_folder(to / "start") as temporary:
            start = PretrainConfig(base="compact", compact=config.letters)
            make_model(linked, start).save(temporary)
    return mirror(to / "start", to / "encoder", config.mirror, linked, progress)


# --- facts ----------------------------------------------------------------------------------------


def judge_facts(
    split: KB, whole: KB, work: Path, config: FusionConfig, progress: Progress | None = None
) -> list[Recovered]:
    """Judge what came back of the test facts, by language and way of hiding.

    whole: what the enrichment knew, as train facts. work: the folder of the job. Facts that were
    hidden in one language are looked for among the proposals. Those hidden in every language are
    asked for: `enrich` lowers the confidence of a guess, as its question may have no answer.
    """
    asking = _Asking(split, whole, work, config, progress)
    rows = _read_proposals(split, work / "proposals")
    lookup = MergedLookup(whole)
    results = []
    for lang in INTO:
        facts = read_facts(split, lang, filtered=KNOWN)
        truths = Ranked(np.arange(len(facts) + 1), facts.objects, np.zeros(len(facts)))
        origins = lookup.origins(facts.queries, truths)
        is_stated = np.array([bool(langs) for langs in origins], bool)
        own = rows.filter(pc.equal(rows["lang"], lang))
        is_inferred = pc.equal(pc.list_value_length(own["origin"]), 0)
        results.append(_judge_carried(lang, int(is_stated.sum()), own, is_inferred))
        unasked = _count_right(own.filter(is_inferred))
        results.append(asking.judge(facts.select(np.flatnonzero(~is_stated)), unasked))
        if progress is not None:
            progress("judge", len(results) // 2, len(INTO))
    return results


def _read_proposals(split: KB, folder: Path) -> pa.Table:
    """Return the proposals of LEVEL or more, with the split that states each; null if none does."""
    table = pq.read_table(folder / "proposals.parquet", filters=[("confidence", ">=", LEVEL)])
    return split.join_table(
        table,
        "SELECT a.*, t.split FROM asked a LEFT JOIN triples t ON t.subject = a.subject "
        "AND t.relation = a.relation AND t.object = a.object ORDER BY a.id",
    )


def _count_right(proposals: pa.Table) -> tuple[int, int]:
    """Count right and wrong proposals. `known` facts have an inverse in train, and are neither."""
    right = pc.sum(pc.equal(proposals["split"], "test")).as_py() or 0
    return right, proposals["split"].null_count


def _judge_carried(lang: str, hidden: int, proposals: pa.Table, is_inferred: Any) -> Recovered:
    """Judge the proposals that other languages state."""
    carried = proposals.filter(pc.invert(is_inferred))
    right, wrong = _count_right(carried)
    examples: dict[str, str] = {}  # by relation, the surest first
    for row in carried.filter(pc.equal(carried["split"], "test")).to_pylist():
        names = [row[f"{part}_name"] for part in ("subject", "relation", "object")]
        examples.setdefault(names[1], _fact_text(names, row["confidence"]))
    return Recovered(
        lang=lang,
        everywhere=False,
        hidden=hidden,
        right=right,
        wrong=wrong,
        examples=list(examples.values())[:_NUM_EXAMPLES],
    )


class _Asking:
    """Asks for facts that no language states, with the evidence and confidence of the job."""

    def __init__(
        self, split: KB, whole: KB, work: Path, config: FusionConfig, progress: Progress | None
    ) -> None:
        self.split, self.usual = split, UsualObjects(whole)
        self.has_one_object = relations_of_one_object(whole)
        model, graphs = work / "model", (work / "graph", work / "graph-all")
        fitted = load_suite(split, model, graphs[0], progress)
        langs = fitted_languages(split, INTO)
        together = replace(config, together=True)
        fusion = Fusion.fit(split, fitted.rankers, together, langs, progress)
        # As in `enrich`: the rankers that answer may know all that is stated.
        self.suite = load_suite(whole, model, graphs[1], progress, split=split)
        self.fusion = fusion.over(whole, self.suite.rankers)

    def judge(self, facts: HeldOut, unasked: tuple[int, int]) -> Recovered:
        """Ask for facts that were hidden in every language.

        unasked: right and wrong proposals that `enrich` made of them by itself.
        """
        asked = facts.questions()
        explained = self.fusion.explain(asked.queries, EnrichConfig(into=INTO).answers)
        ranked, owner = explained.ranked, explained.ranked.owners()
        confidence = self.fusion.confidence(ranked.score)
        has_one_object = self.has_one_object[asked.queries.relation][owner]
        is_sure = (confidence >= LEVEL) & ((rank_in_group(owner) == 0) | ~has_one_object)
        is_right = is_sure & asked.is_right(owner, ranked.entity)
        is_wrong = is_sure & ~self._is_stated(asked.queries, owner, ranked.entity)
        suite = self.suite
        rules = [*suite.links.values(), *suite.rules.values()]
        by_rules = np.any([explained.rank(ranker) == 1 for ranker in rules], axis=0)
        first = {
            "rules": by_rules,
            "graph embedding": explained.rank(suite.graph) == 1,
            "Prix-LM": explained.rank(suite.model) == 1,
        }
        num_right, num_wrong = int(is_right.sum()), int(is_wrong.sum())
        return Recovered(
            lang=asked.queries.lang,
            everywhere=True,
            hidden=len(facts),
            right=num_right,
            wrong=num_wrong,
            first={name: int((mask & is_right).sum()) for name, mask in first.items()},
            unasked=unasked,
            usual=self._count_usual(asked, num_right + num_wrong),
            examples=self._examples(asked.queries, ranked, confidence, is_right),
        )

    def _is_stated(self, queries: Queries, owner: Array, entity: Array) -> Array:
        """Return whether the KB states an answer, hidden or not: (N,) bool."""
        offset, objects = known_objects(self.split, queries.subject, queries.relation)
        question = np.repeat(np.arange(len(queries)), np.diff(offset))
        return np.isin(pair_keys(owner, entity), pair_keys(question, objects))

    def _count_usual(self, asked: Questions, number: int) -> int:
        """Return how many of the `number` surest answers are right if all are usual objects."""
        best = self.usual.best(asked.queries, 1)
        surest = np.argsort(-best.score, kind="stable")[:number]
        return int(asked.is_right(best.owners(), best.entity)[surest].sum())

    def _examples(
        self, queries: Queries, ranked: Ranked, confidence: Array, is_right: Array
    ) -> list[str]:
        """Return right answers, the surest of each relation."""
        rows = np.flatnonzero(is_right)
        rows = rows[np.argsort(-confidence[rows], kind="stable")]
        relation = queries.relation[ranked.owners()[rows]]
        _, first = np.unique(relation, return_index=True)
        names = self.split.relation_names(queries.lang)
        texts = []
        for row in rows[np.sort(first)][:_NUM_EXAMPLES].tolist():
            question = ranked.owners()[row]
            subject, object_ = self.split.names(
                [int(queries.subject[question]), int(ranked.entity[row])]
            )
            relation_name = names[int(queries.relation[question])]
            texts.append(_fact_text([subject, relation_name, object_], confidence[row]))
        return texts


def _fact_text(names: Sequence[str], confidence: float) -> str:
    return f"{' · '.join(names)} ({confidence:.2f})"


# --- names ----------------------------------------------------------------------------------------


def judge_names(kb: KB, encoder: EntityEncoder) -> list[FoundNames]:
    """Look for the names whose links were withheld among those of PIVOT."""
    encoder.model.settings.lineage.check_unseen_links(kb, "the encoder")
    scorer, baseline = EncoderScorer(encoder), FuzzyScorer(SPELLINGS[1])
    results = []
    for lang, task in withheld_tasks(kb, PIVOT, INTO).items():
        differs = task.differ()  # Estonian names are often the English ones
        by_encoder, by_spelling = (
            (ranker.ranks(task, lang) == 1) & differs for ranker in (scorer, baseline)
        )
        results.append(
            FoundNames(
                lang=lang,
                asked=int(differs.sum()),
                candidates=len(task.names),
                encoder=int(by_encoder.sum()),
                spelling=int(by_spelling.sum()),
                examples=_name_examples(task, by_encoder & ~by_spelling),
            )
        )
    return results


def _name_examples(task: LinkingTask, chosen: Array) -> list[str]:
    names = dict(zip(task.owner.tolist(), task.names, strict=True))
    rows = np.flatnonzero(chosen)
    # Spread over the alphabet.
    rows = rows[np.linspace(0, len(rows) - 1, min(_NUM_EXAMPLES, len(rows))).astype(int)]
    return [f"{task.mentions[row]} → {names[task.answers(row)[0]]}" for row in rows.tolist()]


# --- the page -------------------------------------------------------------------------------------


def _export(to: Path) -> None:
    for format, name in (("nq", "facts.nq"), ("tsv", "facts.tsv")):
        (to / name).unlink(missing_ok=True)
        export(to / "work" / "proposals", to / name, ExportConfig(format=format))


def _write_report(
    kb: KB,
    to: Path,
    facts: Sequence[Recovered],
    names: Sequence[FoundNames],
    manifest: dict[str, Any],
    timings: dict[str, float],
) -> Path:
    trials = read_trials(manifest)
    loss = to / "work" / "model" / "loss.png"
    found = [f"{one.sentence} {'; '.join(one.examples)}".strip() for one in names]
    report = Report(
        kb,
        to / "work" / "proposals",
        title="Hidden facts and names, found again",
        introduction=_INTRODUCTION,
        findings=[*(one.sentence for one in facts), *found],
        command=f"prixlm demo --to {to.name}",
        tables=trial_tables(trials),
        reliability=reliability_curves(trials),
        loss=loss if loss.exists() else None,
        timings=timings,
        langs=(*INTO, PIVOT),
    )
    return write_report(to / "report", report)
