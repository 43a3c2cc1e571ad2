"""Measure how reliable proposals and their confidence are, on held-out facts.

    trials = try_enrichment(kb, ["et", "te"], model="model")
    judged = judge_enrichment(kb, ["et", "te"], "judged")

There are two measures:

- `try_enrichment` asks the questions (subject and relation) of the test facts, as `enrich` asks
  them, and compares the answers with the test facts. It compares three methods, each with its own
  confidence that is fitted on the valid facts: facts carried along links, the model, and the fusion
  of everything. Facts that another language states can be carried over without learning, so the
  results are also given on subsets (see `enrichment.trial`). Every question has an answer here.
- `judge_enrichment` runs `enrich` without the test facts and compares all that it proposes with
  them (`judge_proposals`). These include answers to questions that may have none. A proposal that
  the KB does not state counts as wrong. A KB is not complete, so this is a lower bound. The
  confidence says whether a fact is true, and is compared with whether the KB states it; so a second
  calibration is of the probability that it would (`StatedHere`).

Every figure but average precision has a 95 % interval: questions are drawn again.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prixlm.arrays import pair_keys
from prixlm.enrichment.answerable import StatedHere
from prixlm.enrichment.gaps import KINDS, USUAL, GapConfig
from prixlm.enrichment.run import EnrichConfig, enrich
from prixlm.enrichment.trial import (
    LEVELS,
    NOTE,
    Trial,
    figures_at,
    intervals_at,
    reliability_curves,
    try_fusion,
)
from prixlm.errors import PrixError
from prixlm.files import write_atomically
from prixlm.kb.store import KB, SPLITS, quote_texts
from prixlm.metrics import (
    AtLevel,
    Interval,
    Reliability,
    at_levels,
    calibration_interval,
    reliability,
)
from prixlm.proposals.tables import read_manifest
from prixlm.rankers.fusion import Fusion, FusionConfig, fitted_languages
from prixlm.rankers.suite import load_suite
from prixlm.remote import check_local
from prixlm.reports.plots import plot_reliability
from prixlm.reports.tables import ResultTable
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)
HERE = "ECE here"
_HERE_NOTE = (
    "ECE here: of the confidence times the share of what other languages answer that valid facts "
    "of this one state, too, by relation, as if the KB lacked as many facts as are held out."
)


def try_enrichment(
    kb: KB,
    langs: Sequence[str],
    model: Path | str | None = None,
    graph: Path | str | None = None,
    *,
    config: FusionConfig | None = None,
    most: int | None = None,
    progress: Progress | None = None,
) -> list[Trial]:
    """Try every method in every language.

    most: test questions sampled per language; None: all.
    """
    missing = [lang for lang in langs if not kb.num_triples(lang, "test")]
    if missing:
        raise PrixError(f"{kb.folder} has no test triples in {missing[0]}: make a split of it.")
    if most is not None and most < 1:
        raise PrixError(f"--most {most}: expected 1 or more.")
    # Links and rules read train alone, so nothing has seen the test facts.
    suite = load_suite(kb, model, graph, progress)
    # A question may have several right answers, so they are fitted together, as in `enrich`.
    config = replace(config or FusionConfig(), together=True)
    fitted = fitted_languages(kb, langs)
    trials: list[Trial] = []
    methods = suite.selections()
    for index, (method, rankers) in enumerate(methods.items()):
        try:
            fusion = Fusion.fit(kb, rankers, config, fitted, progress)
        except PrixError as error:  # a model that is hardly ever right has no confidence
            logger.warning("%s is left out: %s", method, error)
            continue
        for done, lang in enumerate(langs, start=1):
            trials += try_fusion(fusion, kb, lang, method=method, most=most)
            if progress is not None:
                progress("try", index * len(langs) + done, len(methods) * len(langs))
    if not trials:
        raise PrixError(
            f"no method could be fitted on the valid facts of {kb.folder}: see the warnings above."
        )
    return trials


def write_trials(trials: Sequence[Trial], to: Path) -> None:
    """Write trials.json and the plot reliability.png into a folder."""
    to.mkdir(parents=True, exist_ok=True)
    values = []
    for trial in trials:
        fields = trial.as_dict()
        # The keys of the file are older than the names of the fields.
        values.append({"way": fields.pop("method"), "hidden": fields.pop("held_out")} | fields)
    text = json.dumps(values, ensure_ascii=False, indent=1)
    write_atomically(to / "trials.json", text + "\n")
    plot_reliability(reliability_curves(trials), to / "reliability.png")


@dataclass(frozen=True)
class Judged:
    """Proposals of one kind in one language, against the facts that the run did not know."""

    lang: str
    kind: str  # `all`, why the question was asked, or whether a language states the answer
    held_out: int  # facts of the language that the run did not know
    reliability: Reliability
    here: Reliability  # of the probability that the language's own KB states the fact
    levels: list[AtLevel]
    intervals: dict[str, Interval] = field(default_factory=dict)  # by column of the table


def judge_enrichment(
    kb: KB,
    langs: Sequence[str],
    to: Path | str,
    model: Path | str | None = None,
    graph: Path | str | None = None,
    *,
    min_confidence: float = 0.5,
    fusion: FusionConfig | None = None,
    progress: Progress | None = None,
) -> list[Judged]:
    """Propose facts to `to`/proposals as if nobody knew the test facts, and judge the proposals.

    A stopped run resumes; finished proposals with the same settings are not made again.
    """
    to = Path(to)
    check_local(to)
    missing = [lang for lang in langs if not kb.num_triples(lang, "test")]
    if missing:
        raise PrixError(f"{kb.folder} has no test triples in {missing[0]}: make a split of it.")
    known = tuple(split for split in SPLITS if split != "test")
    config = EnrichConfig(
        into=tuple(langs), min_confidence=min_confidence, tried=0, missing=GapConfig(known=known)
    )
    if fusion is not None:
        config = replace(config, fusion=fusion)
    folder = to / "proposals"
    if folder.exists():
        _check_judged(folder, kb, config)
    else:
        to.mkdir(parents=True, exist_ok=True)
        enrich(kb, folder, config, model=model, graph=graph, progress=progress)
    return judge_proposals(kb, folder, known)


def _check_judged(folder: Path, kb: KB, config: EnrichConfig) -> None:
    """Refuse proposals of another KB, or with other settings."""
    manifest = read_manifest(folder)
    settings = json.loads(json.dumps(asdict(config)))  # tuples become lists, as in the file
    if manifest["kb"] != kb.fingerprint() or manifest["config"] != settings:
        raise PrixError(f"{folder} was made with another KB or other settings: name another --to.")


def judge_proposals(kb: KB, folder: Path | str, known: Sequence[str]) -> list[Judged]:
    """Compare the proposals of a run that knew the splits `known` with all other facts."""
    splits = quote_texts(known)
    asked = pq.read_table(
        Path(folder) / "proposals.parquet",
        columns=["lang", "subject", "relation", "object", "confidence", "why", "origin"],
    )
    # A proposal is right if a split that the run did not know states it.
    rows = kb.join_table(
        asked,
        "SELECT a.lang, a.why, a.subject, a.relation, a.confidence, len(a.origin) > 0 AS is_stated,"
        " t.subject IS NOT NULL AS is_right FROM asked a "
        "LEFT JOIN triples t ON t.subject = a.subject AND t.relation = a.relation "
        f"AND t.object = a.object AND t.split NOT IN ({splits})",
    )
    facts = kb.query(
        f"SELECT lang, subject, relation FROM triples WHERE split NOT IN ({splits})"
    ).to_arrow_table()
    langs = sorted(set(rows["lang"].to_pylist()))
    stated_here = StatedHere.fit(kb, langs)
    found = []
    for lang in langs:
        mine, held_out = (table.filter(pc.equal(table["lang"], lang)) for table in (rows, facts))
        # Learnt for a KB that lacks as much as valid has; this one is known to lack the test facts.
        lacks = len(held_out) / max(1, kb.num_triples(lang, "valid"))
        share = np.minimum(1.0, lacks * stated_here.share[lang])
        found += _judge_language(lang, mine, held_out, share)
    return found


def _judge_language(lang: str, rows: pa.Table, facts: pa.Table, share: Array) -> list[Judged]:
    """Judge the proposals of a language, `rows`, by kind.

    facts: those that could be found. share: (R,) of what other languages answer that this one
    states.
    """
    # (N,) each: kind and confidence of every proposal, and whether it is right.
    why, is_stated = np.array(rows["why"].to_pylist(), str), rows["is_stated"].to_numpy()
    confidence, right = (rows[name].to_numpy() for name in ("confidence", "is_right"))
    is_usual = why == KINDS[USUAL]  # its confidence has the probability of an answer here already
    here = confidence * np.where(is_usual, 1.0, share[rows["relation"].to_numpy()])
    kinds = {"all": np.ones(len(rows), bool)}
    kinds |= {kind: why == kind for kind in sorted(set(why))}
    kinds |= {"answer stated": is_stated, "answer unstated": ~is_stated}
    # The questions of proposals and facts, numbered: a question may have only one of them.
    keys = [
        pair_keys(table["relation"].to_numpy().astype(np.int64), table["subject"].to_numpy())
        for table in (rows, facts)
    ]
    distinct, question = np.unique(np.concatenate(keys), return_inverse=True)
    owner, asked = np.split(question.reshape(-1), [len(rows)])
    groups = [(owner[one], confidence[one], right[one]) for one in kinds.values()]
    at_level = intervals_at(groups, np.bincount(asked, minlength=len(distinct)))
    judged = []
    for (kind, chosen), intervals in zip(kinds.items(), at_level, strict=True):
        believed = reliability(confidence[chosen], right[chosen])
        levels = at_levels(confidence[chosen], right[chosen], len(facts), LEVELS)
        stated = reliability(here[chosen], right[chosen])
        intervals["ECE"] = calibration_interval(confidence[chosen], right[chosen], believed)
        intervals[HERE] = calibration_interval(here[chosen], right[chosen], stated)
        judged.append(Judged(lang, kind, len(facts), believed, stated, levels, intervals))
    return judged


def judged_tables(judged: Sequence[Judged]) -> list[ResultTable]:
    """Return a table for each language: a row per kind of question, a column per figure."""
    tables: dict[str, ResultTable] = {}
    for part in judged:
        subset = f"{part.lang}, against {part.held_out:,} held-out facts"
        new = ResultTable("proposals", subset=subset, has_mean=False, notes=[NOTE, _HERE_NOTE])
        table = tables.setdefault(part.lang, new)
        row = f"{part.kind} ({part.reliability.number:,})"
        errors = {"ECE": part.reliability.ece, HERE: part.here.ece}
        for name, value in (errors | figures_at(part.levels)).items():
            table.add(row, name, value, interval=part.intervals.get(name))
    return list(tables.values())
