"""Counts over the KB and its proposals: what each language states, lacks and could gain."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prixlm.files import parquet_rows, read_json, write_atomically
from prixlm.kb.coverage import Coverage, count_coverage
from prixlm.proposals.tables import table_path
from prixlm.reports.console import language_name
from prixlm.service import schemas

if TYPE_CHECKING:
    from prixlm.service.opened import Opened

NUM_RELATIONS = 40
"""Relations of the overview: those with most facts."""


def read_coverage(opened: "Opened") -> Coverage:
    """Return the counts of facts, made at the first call."""
    return opened.once("coverage", lambda: _read_coverage(opened))


def describe_overview(
    opened: "Opened", langs: Sequence[str] = (), show_all: bool = False
) -> schemas.OverviewAnswer:
    """Return what is stated, missing and proposed by language and relation."""
    facts = read_coverage(opened)
    proposed = opened.once("proposed", lambda: _count_proposed(opened))
    relations = facts.relations()

    def cell(key: tuple[str, int]) -> schemas.OverviewCell:
        missing = max(0, facts.statable[key] - facts.stated[key])
        return schemas.OverviewCell(
            stated=facts.stated[key], missing=missing, proposed=proposed[key]
        )

    rows = [
        schemas.OverviewRow(
            relation=opened.concepts.relation(relation, langs),
            cells=[cell((lang, relation)) for lang in opened.kb.languages],
        )
        for relation in (relations if show_all else relations[:NUM_RELATIONS])
    ]
    folder = opened.folders.work or opened.kb.folder
    return schemas.OverviewAnswer(
        title=folder.resolve().name,
        langs=opened.kb.languages,
        names={lang: language_name(lang) for lang in opened.kb.languages},
        rows=rows,
        num_relations=opened.kb.num_relations,
        counts=_count(opened),
        trials=[
            trial for values in opened.manifest.get("trials") or () for trial in _trials(values)
        ],
        lineage=_lineage(opened),
        licence=opened.kb.manifest.licence,
    )


def _read_coverage(opened: "Opened") -> Coverage:
    """Return the counts of the overview, kept beside the look-up of the KB."""
    path = opened.lookup.folder / "coverage.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        return Coverage.from_json(read_json(path))
    coverage = count_coverage(opened.kb)
    with suppress(OSError):  # a disk that cannot be written: the next server counts again
        write_atomically(path, json.dumps(coverage.to_json()))
    return coverage


def _count_proposed(opened: "Opened") -> Counter[tuple[str, int]]:
    """Return the number of proposed facts by language and relation."""
    if opened.proposals is None:
        return Counter()
    proposed = parquet_rows(table_path(opened.proposals, "facts"))
    sql = f"SELECT lang, relation, count(*) FROM {proposed} GROUP BY ALL"
    rows = opened.kb.query(sql).fetchall()
    return Counter({(lang, relation): number for lang, relation, number in rows})


def _count(opened: "Opened") -> dict[str, int]:
    """Return the counts of the KB and of its proposals."""
    counts = {
        "languages": len(opened.kb.languages),
        "entities": opened.kb.num_entities,
        "concepts": opened.lookup.num_concepts,
        "facts": opened.kb.num_triples(),
        "links": int(opened.kb.manifest.counts["links"]),
        "relations": opened.kb.num_relations,
    }
    return counts | ({} if opened.review is None else opened.review.counts())


def _trials(values: dict[str, Any]) -> list[schemas.TrialAnswer]:
    """Return a trial of the manifest; none if it was on a subset, or without a result."""
    measured = values["reliability"]
    if values.get("subset", "all") != "all" or measured["ece"] is None:
        return []
    curve = [
        schemas.ReliabilityPoint(confidence=confidence, right=right, count=count)
        for confidence, right, count in measured["bins"]
    ]
    # JSON has no NaN: a precision of nothing is null in the manifest, and left out here.
    levels = [
        {
            name: level[source]
            for name, source in (
                ("confidence", "level"),
                ("precision", "precision"),
                ("recall", "recall"),
            )
            if level[source] is not None and math.isfinite(level[source])
        }
        for level in values["levels"]
    ]
    return [
        schemas.TrialAnswer(
            lang=values["lang"],
            facts=values["held_out"],
            error=measured["ece"],
            curve=curve,
            levels=levels,
        )
    ]


def _lineage(opened: "Opened") -> dict[str, Any]:
    """Return what the proposals, or else the KB, were made of."""
    manifest = opened.kb.manifest
    lineage: dict[str, Any] = {"kb": opened.kb.fingerprint(), "imported_by": manifest.tool}
    sources = [Path(str(source.get("name", ""))).name for source in manifest.sources]
    lineage["sources"] = [source for source in sources if source]
    if opened.manifest:
        config = opened.manifest.get("config", {})
        lineage |= {
            "proposed_by": opened.manifest.get("tool"),
            "rankers": opened.manifest.get("rankers", []),
            "into": config.get("into", []),
            "min_confidence": config.get("min_confidence"),
        }
    return lineage
