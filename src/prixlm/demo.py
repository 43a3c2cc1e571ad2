"""The demo: the main job on the embedded world KB, in a few minutes on two cores.

    DEMO/kb         the world KB
    DEMO/split      the same, with 30 % of the Estonian, Telugu and Lao facts hidden
    DEMO/model      a small Prix-LM (All) of the split; DEMO/single/LANG are Prix-LM (Single)
    DEMO/encoder    its Mirror variant
    DEMO/proposals  what the three languages lack, with confidence and origin
    DEMO/facts.nq   the proposals as N-Quads;  DEMO/facts.tsv  as a table
    DEMO/report     a page with all of it

Every step is a library call that a command makes too. A demo that was stopped goes on where it was,
and a finished one is made anew.
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
from prixlm.enrichment.export import ExportConfig, export_proposals
from prixlm.enrichment.gaps import MissingConfig
from prixlm.enrichment.proposals import read_manifest
from prixlm.enrichment.report import Report, write_report
from prixlm.enrichment.run import EnrichConfig, enrich
from prixlm.entities.linker import EntityLinker
from prixlm.entities.mirror import MirrorConfig, mirror_tune
from prixlm.errors import PrixError
from prixlm.evaluation.proposals import (
    Trial,
    judge_proposals,
    judged_grids,
    reliability_curves,
    trial_grids,
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
from prixlm.reports.grids import Grid
from prixlm.training.pretrain import PretrainConfig, pretrain
from prixlm.types import Answer, Asked, Entity, Progress, Query

_Question = tuple[Query, list[str], list[str]]
"""What is asked, what is true, and what else is true but was trained on."""
_FOLDERS = ("report", "proposals", "encoder", "single", "model", "split", "kb")
INTO = ("et", "te", "lo")
"""The languages that are thin, and are enriched."""
LANGUAGES = (*INTO, "th", "ja", "ru")
"""Those whose names are asked for."""
_KNOWN = ("train", "valid")
"""What is not hidden."""
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
_NAMES = """
    SELECT a.name, list(DISTINCT b.name), NULL
    FROM entities a JOIN entities b ON b.concept = a.concept
    WHERE a.lang = 'en' AND b.lang = $lang GROUP BY a.name, a.concept
    ORDER BY md5(CAST(a.concept AS VARCHAR)) LIMIT $number
"""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """How much the demo does."""

    pretrain: PretrainConfig = field(default_factory=lambda: PretrainConfig.preset("demo"))
    single_epochs: int = 8
    mirror: MirrorConfig = field(
        default_factory=lambda: replace(
            MirrorConfig.preset("compact"), positives="links", number=60_000
        )
    )
    fusion: FusionConfig = field(
        default_factory=lambda: FusionConfig(facts=400, depth=10, smallest=50, parts=4)
    )
    relations: tuple[str, ...] | None = None  # that are enriched; all if none
    asked: int = 25  # test facts and names of each language that are shown or counted
    tried: int = 150  # test facts of each language that the confidence is tried on


@dataclass(frozen=True)
class Demo:
    """What the demo found."""

    kb: KB
    model: PrixLM
    facts: list[Asked]
    names: list[Asked]
    linked: list[tuple[str, list[Answer], list[Entity]]]
    hits: list[Grid]
    manifest: dict[str, Any]
    trials: list[Trial]
    report: Path
    timings: dict[str, float]


def run_demo(to: Path, progress: Progress | None = None, config: DemoConfig | None = None) -> Demo:
    """All of it, step by step."""
    config = config or DemoConfig()
    to.mkdir(parents=True, exist_ok=True)
    clock = _Clock(to)
    if (to / "report" / "report.html").exists():
        clock.start_anew()
    with clock("import and split"):
        split = _make_split(to, progress)
    with clock("pretrain Prix-LM (All)"):
        model = pretrain(split, to / "model", config.pretrain, progress)
    with clock("pretrain Prix-LM (Single)"):
        singles = {lang: _single(split, to, lang, config, progress) for lang in INTO}
    with clock("complete and translate"):
        facts, names = ask_demo(split, model, progress, config.asked)
        hits = _hits(split, model, singles, config.tried)
    with clock("Mirror"):
        encoder = mirror_tune(to / "model", to / "encoder", config.mirror, split, progress)
    with clock("link"):
        linked = _link(EntityLinker(encoder, split, progress=progress))
    with clock("enrich"):
        manifest = _enrich(split, to, config, progress)
    with clock("try the confidence"):
        trials = try_enrichment(
            split, INTO, to / "model", config=config.fusion, most=config.tried, progress=progress
        )
    with clock("export"):
        for format, name in (("nq", "facts.nq"), ("tsv", "facts.tsv")):
            (to / name).unlink(missing_ok=True)
            export_proposals(to / "proposals", to / name, ExportConfig(format=format))
    report = Report(
        split,
        to / "proposals",
        title="Estonian, Telugu and Lao, enriched",
        introduction=(
            "The world KB (countries, languages, currencies, cities; from CLDR and GeoNames) with "
            "30 % of the Estonian, Telugu and Lao facts hidden, and what a small Prix-LM of two "
            "cores and a few minutes, the facts of the other languages, and both together "
            "propose in their place. All languages of this KB state the same facts, so carrying "
            "them over is nearly perfect here and proves little: the point is to see each step."
        ),
        command=f"prixlm demo --to {to.name}",
        grids=[
            *hits,
            *judged_grids(judge_proposals(split, to / "proposals", _KNOWN)),
            *trial_grids(trials),
        ],
        reliability=reliability_curves(trials),
        loss=to / "model" / "loss.png" if (to / "model" / "loss.png").exists() else None,
        timings=clock.seconds,
        langs=(*INTO, "en"),
    )
    page = write_report(to / "report", report)
    kb = KB(to / "kb")
    return Demo(kb, model, facts, names, linked, hits, manifest, trials, page, clock.seconds)


class _Clock:
    """Seconds by step, over all stretches of a demo that was stopped."""

    def __init__(self, to: Path) -> None:
        self.to, self.path = to, to / "timings.json"
        self.seconds: dict[str, float] = {}
        if self.path.exists():
            self.seconds = json.loads(self.path.read_text("utf-8"))
            return
        others = [name for name in _FOLDERS if (to / name).exists()]
        if others:  # they would be overwritten, or removed by the next demo
            raise PrixError(f"{to} has a {others[0]} that no demo made: name another folder.")
        write_atomically(self.path, "{}\n")

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.monotonic() - started
            write_atomically(self.path, json.dumps(self.seconds, indent=1) + "\n")

    def start_anew(self) -> None:
        for name in _FOLDERS:
            shutil.rmtree(self.to / name, ignore_errors=True)
        self.path.unlink(missing_ok=True)
        self.seconds = {}


def _make_split(to: Path, progress: Progress | None) -> KB:
    if not (to / "split").is_dir():
        kb = import_kb([], to / "kb", format="world", overwrite=True, progress=progress)
        split_kb(kb, to / "split", SplitConfig(test=0.3, valid=0.1, langs=INTO))
    return KB(to / "split")


def _single(kb: KB, to: Path, lang: str, config: DemoConfig, progress: Progress | None) -> PrixLM:
    supply = replace(config.pretrain.supply, langs=(lang,))
    settings = replace(config.pretrain, supply=supply, epochs=config.single_epochs)
    return pretrain(kb, to / "single" / lang, settings, progress)


def _hits(kb: KB, model: PrixLM, singles: dict[str, PrixLM], most: int) -> list[Grid]:
    """Hits@1 and @10 of All and Single on the same test facts."""
    grids = [Grid("Hits@1 on hidden facts"), Grid("Hits@10 on hidden facts")]
    for lang in INTO:
        facts = read_facts(kb, lang, most=most)
        for title, one in (("Prix-LM (All)", model), ("Prix-LM (Single)", singles[lang])):
            ranker = ModelRanker(Completer(one, kb), search="beam")
            found = figures(ranker.ranks(facts.queries, facts.objects), 10)
            for grid, value in zip(grids, (found.hits_1, found.hits_10), strict=True):
                grid.rows.setdefault(title, {})[lang] = value
                grid.numbers[lang] = len(facts)
    return grids


def _link(linker: EntityLinker) -> list[tuple[str, list[Answer], list[Entity]]]:
    """A few names of the thin languages, and the English entities that are nearest."""
    found = []
    for lang in INTO:
        (name,) = linker.kb.query(
            "SELECT name FROM entities WHERE lang = $lang AND key = 'territory/FI'", {"lang": lang}
        ).fetchall()[0]
        (answers,) = linker.link([name], 3, "en")
        found.append((name, answers, linker.kb.entities([one.entity for one in answers])))
    return found


def _enrich(kb: KB, to: Path, config: DemoConfig, progress: Progress | None) -> dict[str, Any]:
    """What is hidden is what is missing."""
    if (to / "proposals" / "manifest.json").exists():
        return read_manifest(to / "proposals")
    settings = EnrichConfig(
        into=INTO,
        relations=config.relations,
        missing=MissingConfig(known=_KNOWN),
        fusion=config.fusion,
    )
    return enrich(kb, to / "proposals", settings, to / "model", progress=progress)


def ask_demo(
    kb: KB, model: PrixLM, progress: Progress | None = None, number: int = 25
) -> tuple[list[Asked], list[Asked]]:
    """Test facts, which the model has not seen, completed; English names in other scripts.

    Other objects that the KB has for a fact's subject and relation are taken out of its answers.
    """
    completer = Completer(model, kb, progress)
    facts: list[_Question] = []
    names: list[_Question] = []
    for lang in LANGUAGES:
        asked = {"lang": lang, "number": number}
        relations = completer.relation_names(lang)
        for subject, relation, truth, others in completer.kb.query(_FACTS, asked).fetchall():
            facts.append((Query(lang, subject, relations[relation]), truth, others or []))
        for name, truth, _ in completer.kb.query(_NAMES, asked).fetchall():
            names.append((Query("en", name, None, lang), truth, []))
    return _ask(completer, facts, progress), _ask(completer, names, progress)


def _ask(completer: Completer, asked: list[_Question], progress: Progress | None) -> list[Asked]:
    found: list[Asked] = []
    for start in range(0, len(asked), 16):
        part = asked[start : start + 16]
        most = 10 + max(len(others) for _, _, others in part)
        answers = completer.answer([query for query, _, _ in part], SearchConfig(k=most))
        for (query, truth, others), one in zip(part, answers, strict=True):
            new = [] if isinstance(one, PrixError) else [a for a in one if a.name not in others]
            ranked = [replace(answer, rank=rank) for rank, answer in enumerate(new[:10], start=1)]
            found.append(Asked(query, truth, ranked))
        if progress is not None:
            progress("ask", len(found), len(asked))
    return found
