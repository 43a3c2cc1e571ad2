"""The demo: the main job on the embedded world KB, in a few minutes on two cores.

    DEMO/kb         the world KB
    DEMO/split      the same, with 30 % of the Estonian, Telugu and Lao facts held out
    DEMO/model      a small Prix-LM (All) of the split; DEMO/single/LANG are Prix-LM (Single)
    DEMO/encoder    its Mirror variant
    DEMO/proposals  facts that the three languages lack, with confidence and origin
    DEMO/facts.nq   the proposals as N-Quads;  DEMO/facts.tsv  as a table
    DEMO/report     a page with all of it

Every step is a library call that a command makes too. An interrupted demo resumes. A finished demo
is removed and made again.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prixlm.decoding.completer import Completer, SearchConfig
from prixlm.enrichment.export import ExportConfig, export
from prixlm.enrichment.gaps import GapConfig
from prixlm.enrichment.proposals import read_manifest
from prixlm.enrichment.report import Report, write_report
from prixlm.enrichment.run import EnrichConfig, enrich
from prixlm.entities.linker import EntityLinker
from prixlm.entities.mirror import MirrorConfig, mirror
from prixlm.errors import PrixError
from prixlm.evaluation.proposals import (
    Trial,
    judge_proposals,
    judged_tables,
    reliability_curves,
    trial_tables,
    try_enrichment,
)
from prixlm.files import write_atomically
from prixlm.importers.run import import_kb
from prixlm.kb.split import SplitConfig, split_kb
from prixlm.kb.store import KB
from prixlm.lm.model import PrixLM
from prixlm.metrics import figures
from prixlm.rankers.fusion import FusionConfig
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.lm import ModelRanker
from prixlm.reports.tables import ResultTable
from prixlm.training.pretrain import PretrainConfig, pretrain
from prixlm.types import Answer, Asked, Entity, Progress, Query

INTO = ("et", "te", "lo")
"""Languages with few facts, which the demo enriches."""
LANGUAGES = (*INTO, "th", "ja", "ru")
"""Languages that the demo translates English names into."""
KNOWN = ("train", "valid")
"""Splits that the enrichment may use; the test facts are held out."""
_FOLDERS = ("report", "proposals", "encoder", "single", "model", "split", "kb")
_BATCH = 16
"""Queries per call of the completer, so that the progress bar moves."""
_INTRODUCTION = (
    "The world KB (countries, languages, currencies, cities; from CLDR and GeoNames) with 30 % of "
    "the Estonian, Telugu and Lao facts held out, and the proposals for them. The proposals "
    "combine a small Prix-LM, trained for a few minutes on two cores, with the facts of the other "
    "languages. All languages of this KB state the same facts, so carrying facts over is nearly "
    "perfect here and proves little: the demo shows the steps."
)

# Questions whose answer is a test fact: subject name, relation, test objects, other objects. md5
# shuffles the questions, the same way every time.
_FACTS = """
    SELECT s.name, t.relation, list(DISTINCT o.name) FILTER (t.split = 'test'),
        list(DISTINCT o.name) FILTER (t.split <> 'test')
    FROM (
        SELECT DISTINCT subject, relation FROM triples WHERE lang = $lang AND split = 'test'
    ) asked JOIN triples t USING (subject, relation)
    JOIN entities s ON s.id = t.subject JOIN entities o ON o.id = t.object
    GROUP BY s.name, t.relation, t.subject
    ORDER BY md5(CAST(t.subject * 1000 + t.relation AS VARCHAR)) LIMIT $number
"""
# English names with the names of the same concept in another language, shuffled likewise.
_NAMES = """
    SELECT a.name, list(DISTINCT b.name)
    FROM entities a JOIN entities b ON b.concept = a.concept
    WHERE a.lang = 'en' AND b.lang = $lang GROUP BY a.name, a.concept
    ORDER BY md5(CAST(a.concept AS VARCHAR)) LIMIT $number
"""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """How much the demo does."""

    langs: tuple[str, ...] | None = None  # languages of the KB; None: the paper's 17
    pretrain: PretrainConfig = field(default_factory=lambda: PretrainConfig.preset("demo"))
    single_epochs: int = 8  # of each Prix-LM (Single)
    mirror: MirrorConfig = field(
        default_factory=lambda: replace(
            MirrorConfig.preset("compact"), positives="links", number=60_000
        )
    )
    fusion: FusionConfig = field(
        default_factory=lambda: FusionConfig(facts=400, depth=10, smallest=50, parts=4)
    )
    relations: tuple[str, ...] | None = None  # relations to enrich; None: all
    asked: int = 25  # test facts and names to ask for, per language
    tried: int = 150  # test facts to test the confidence on, per language


@dataclass(frozen=True)
class Demo:
    """The results of the demo, for printing."""

    kb: KB
    model: PrixLM
    facts: list[Asked]  # held-out facts, completed
    names: list[Asked]  # English names, translated
    linked: list[tuple[str, list[Answer], list[Entity]]]  # mentions with the nearest entities
    hits: list[ResultTable]
    manifest: dict[str, Any]  # of the proposals
    trials: list[Trial]
    report: Path
    timings: dict[str, float]  # seconds by step

    @property
    def tables(self) -> list[ResultTable]:
        """The result tables for a terminal: trials on all test facts, not on subsets."""
        return [*self.hits, *trial_tables([t for t in self.trials if t.subset == "all"])]


def run_demo(to: Path, progress: Progress | None = None, config: DemoConfig | None = None) -> Demo:
    """Run all steps in the folder `to`."""
    config = config or DemoConfig()
    to.mkdir(parents=True, exist_ok=True)
    clock = _Clock(to)
    if (to / "report" / "report.html").exists():
        clock.start_over()
    with clock("import and split"):
        split = _make_split(to, config, progress)
    with clock("pretrain Prix-LM (All)"):
        model = pretrain(split, to / "model", config.pretrain, progress)
    with clock("pretrain Prix-LM (Single)"):
        singles = {lang: _pretrain_single(split, to, lang, config, progress) for lang in INTO}
    with clock("complete and translate"):
        completer = Completer(model, split, progress)
        facts = ask_facts(completer, config.asked, progress)
        names = ask_names(completer, config.asked, progress)
        hits = _count_hits(completer, singles, config.tried)
    with clock("Mirror"):
        encoder = mirror(to / "model", to / "encoder", config.mirror, split, progress)
    with clock("link"):
        linked = _link(EntityLinker(encoder, split, progress=progress))
    with clock("enrich"):
        manifest = _enrich(split, to, config, progress)
    with clock("try the confidence"):
        trials = try_enrichment(
            split, INTO, to / "model", config=config.fusion, most=config.tried, progress=progress
        )
    with clock("export"):
        _export(to)
    page = _write_report(split, to, hits, trials, clock.seconds)
    kb = KB(to / "kb")
    return Demo(kb, model, facts, names, linked, hits, manifest, trials, page, clock.seconds)


class _Clock:
    """Seconds by step, added up over all runs of an interrupted demo."""

    def __init__(self, to: Path) -> None:
        self.to, self.path = to, to / "timings.json"
        self.seconds: dict[str, float] = {}
        if self.path.exists():
            self.seconds = json.loads(self.path.read_text("utf-8"))
            return
        # Without timings the folders are not ours, and the next demo would remove them.
        others = [name for name in _FOLDERS if (to / name).exists()]
        if others:
            raise PrixError(
                f"{to} has a folder {others[0]} that was not made by a demo: name another folder."
            )
        write_atomically(self.path, "{}\n")

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.monotonic() - started
            write_atomically(self.path, json.dumps(self.seconds, indent=1) + "\n")

    def start_over(self) -> None:
        """Remove everything that a finished demo made."""
        for name in _FOLDERS:
            shutil.rmtree(self.to / name, ignore_errors=True)
        self.path.unlink(missing_ok=True)
        self.seconds = {}


def _make_split(to: Path, config: DemoConfig, progress: Progress | None) -> KB:
    if not (to / "split").is_dir():
        kb = import_kb(
            [], to / "kb", format="world", langs=config.langs, overwrite=True, progress=progress
        )
        split_kb(kb, to / "split", SplitConfig(test=0.3, valid=0.1, langs=INTO))
    return KB(to / "split")


def _pretrain_single(
    kb: KB, to: Path, lang: str, config: DemoConfig, progress: Progress | None
) -> PrixLM:
    """Pretrain on the facts of one language, without links."""
    supply = replace(config.pretrain.supply, langs=(lang,))
    settings = replace(config.pretrain, supply=supply, epochs=config.single_epochs)
    return pretrain(kb, to / "single" / lang, settings, progress)


def ask_facts(completer: Completer, number: int, progress: Progress | None = None) -> list[Asked]:
    """Complete `number` test facts per language, which the model has not seen.

    Other objects that the KB states for the subject and relation are filtered out of the answers.
    """
    queries, truths, known = [], [], []
    for lang in _asked_languages(completer.kb):
        relations = completer.relation_names(lang)
        rows = completer.kb.query(_FACTS, {"lang": lang, "number": number}).fetchall()
        for subject, relation, objects, others in rows:
            queries.append(Query(lang, subject, relations[relation]))
            truths.append(objects)
            known.append(set(others or ()))
    return _ask(completer, queries, truths, known, progress)


def ask_names(completer: Completer, number: int, progress: Progress | None = None) -> list[Asked]:
    """Translate `number` English names into each language; the model was trained on the links."""
    queries, truths = [], []
    for lang in _asked_languages(completer.kb):
        rows = completer.kb.query(_NAMES, {"lang": lang, "number": number}).fetchall()
        for name, counterparts in rows:
            queries.append(Query("en", name, None, lang))
            truths.append(counterparts)
    return _ask(completer, queries, truths, [set() for _ in queries], progress)


def _asked_languages(kb: KB) -> list[str]:
    return [lang for lang in LANGUAGES if lang in kb.languages]


def _ask(
    completer: Completer,
    queries: list[Query],
    truths: list[list[str]],
    known: list[set[str]],
    progress: Progress | None,
) -> list[Asked]:
    """Return the ten best answers to each query that are not among its known ones."""
    asked: list[Asked] = []
    for start in range(0, len(queries), _BATCH):
        rows = range(start, min(start + _BATCH, len(queries)))
        # Enough answers that ten are left of each after filtering.
        config = SearchConfig(k=10 + max(len(known[row]) for row in rows))
        results = completer.answer([queries[row] for row in rows], config)
        for row, answers in zip(rows, results, strict=True):
            if isinstance(answers, PrixError):
                answers = []
            new = [answer for answer in answers if answer.name not in known[row]]
            ranked = [replace(answer, rank=rank) for rank, answer in enumerate(new[:10], start=1)]
            asked.append(Asked(queries[row], truths[row], ranked))
        if progress is not None:
            progress("ask", len(asked), len(queries))
    return asked


def _count_hits(completer: Completer, singles: dict[str, PrixLM], number: int) -> list[ResultTable]:
    """Compare Hits@1 and Hits@10 of All and Single on the same test facts."""
    kb = completer.kb
    tables = [ResultTable(metric, subset="held-out facts") for metric in ("Hits@1", "Hits@10")]
    for lang in INTO:
        facts = read_facts(kb, lang, most=number)
        completers = {
            "Prix-LM (All)": completer,
            "Prix-LM (Single)": Completer(singles[lang], kb),
        }
        for method, asked in completers.items():
            ranker = ModelRanker(asked, search="beam")
            results = figures(ranker.ranks(facts.queries, facts.objects), 10)
            for table, value in zip(tables, (results.hits_1, results.hits_10), strict=True):
                table.add(method, lang, value, len(facts))
    return tables


def _link(linker: EntityLinker) -> list[tuple[str, list[Answer], list[Entity]]]:
    """Link the names of Finland in the three languages to English entities."""
    linked = []
    for lang in INTO:
        [finland] = linker.kb.find_key("territory/FI", lang)
        [answers] = linker.link([finland.name], 3, "en")
        entities = linker.kb.entities([answer.entity for answer in answers])
        linked.append((finland.name, answers, entities))
    return linked


def _enrich(kb: KB, to: Path, config: DemoConfig, progress: Progress | None) -> dict[str, Any]:
    """Propose facts as if the test facts were missing from the KB."""
    if (to / "proposals" / "manifest.json").exists():
        return read_manifest(to / "proposals")
    settings = EnrichConfig(
        into=INTO,
        relations=config.relations,
        missing=GapConfig(known=KNOWN),
        fusion=config.fusion,
    )
    return enrich(kb, to / "proposals", settings, model=to / "model", progress=progress)


def _export(to: Path) -> None:
    for format, name in (("nq", "facts.nq"), ("tsv", "facts.tsv")):
        (to / name).unlink(missing_ok=True)
        export(to / "proposals", to / name, ExportConfig(format=format))


def _write_report(
    kb: KB,
    to: Path,
    hits: list[ResultTable],
    trials: list[Trial],
    timings: dict[str, float],
) -> Path:
    judged = judged_tables(judge_proposals(kb, to / "proposals", KNOWN))
    loss = to / "model" / "loss.png"
    report = Report(
        kb,
        to / "proposals",
        title="Estonian, Telugu and Lao, enriched",
        introduction=_INTRODUCTION,
        command=f"prixlm demo --to {to.name}",
        tables=[*hits, *judged, *trial_tables(trials)],
        reliability=reliability_curves(trials),
        loss=loss if loss.exists() else None,
        timings=timings,
        langs=(*INTO, "en"),
    )
    return write_report(to / "report", report)
