"""The report of an enrichment: one HTML page that needs no network, and the same as Markdown, JSON.

    write_report("report", Report(kb, "proposals", command="prixlm enrich ..."))

Names from a KB are untrusted text: the template escapes all of them (Jinja's autoescape), and marks
their direction as that of their own letters, so that Arabic and Hebrew read right to left.
"""

import base64
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prixlm.enrichment.proposals import read_manifest
from prixlm.files import quote_path, write_atomically
from prixlm.kb.store import KB
from prixlm.metrics import Reliability
from prixlm.reports.console import language_name
from prixlm.reports.grids import Grid, grid_values, grids_markdown, plain
from prixlm.reports.plots import plot_reliability

_RELATIONS = 15
"""Relations on the heat map: those with most facts."""
_EXAMPLES = 6
"""Proposals of each language that are shown."""


@dataclass(frozen=True)
class Report:
    """What there is to tell."""

    kb: KB
    proposals: Path
    title: str = "Enrichment of a knowledge base"
    introduction: str = ""
    command: str = ""
    grids: Sequence[Grid] = ()  # tables of figures, such as Hits@k of All and Single
    # Calibration by method and language, for the reliability plot.
    reliability: Mapping[str, Mapping[str, Reliability]] = field(default_factory=dict)
    loss: Path | None = None  # a picture
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds by step
    langs: tuple[str, ...] = ()  # of the heat map; those that were enriched if none


def write_report(to: Path | str, report: Report) -> Path:
    """`report.html`, `report.md` and `report.json` in a folder; the page's path."""
    import jinja2

    to = Path(to)
    to.mkdir(parents=True, exist_ok=True)
    manifest = read_manifest(report.proposals)
    examples, judged = _examples(report, _known(manifest))
    coverage = _coverage(report, manifest)
    grids = list(report.grids)
    values = {
        "title": report.title,
        "introduction": report.introduction,
        "cards": _cards(report.kb, manifest),
        "coverage": coverage,
        "min_confidence": manifest["config"]["min_confidence"],
        "reliability": _picture(report.reliability),
        "tables": [_table(grid, first=place == 0) for place, grid in enumerate(grids)],
        "examples": examples,
        "judged": judged,
        "loss": None if report.loss is None else _data(report.loss.read_bytes()),
        "timings": [(name, f"{seconds:.0f}") for name, seconds in report.timings.items()],
        "command": report.command,
        "run": _run(manifest),
        "tool": manifest["tool"],
        "licence": manifest["licence"],
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("prixlm.enrichment", "templates"),
        autoescape=True,
        trim_blocks=True,
    )
    page = environment.get_template("report.html").render(values)
    write_atomically(to / "report.html", page)
    write_atomically(to / "report.md", _markdown(values, grids))
    told = {
        "manifest": manifest,
        "coverage": coverage,
        "tables": grid_values(grids),
        "examples": examples,
        "timings": dict(report.timings),
        "command": report.command,
    }
    write_atomically(to / "report.json", json.dumps(told, ensure_ascii=False, indent=1) + "\n")
    return to / "report.html"


def _known(manifest: dict[str, Any]) -> list[str]:
    """The splits that were no news to `enrich`; what others state was hidden from it."""
    known: list[str] = manifest["config"]["missing"]["known"]
    return known


def _cards(kb: KB, manifest: dict[str, Any]) -> list[tuple[str, str]]:
    cards = [
        ("languages", f"{len(kb.languages):,}"),
        ("facts known", f"{sum(kb.num_triples(split=split) for split in _known(manifest)):,}"),
    ]
    for lang, parts in manifest["proposals"].items():
        cards.append((f"proposals in {language_name(lang)}", f"{sum(parts.values()):,}"))
    for table, part, what in (("labels", "names", "names"), ("links", "links", "links")):
        for lang, counts in manifest.get(table, {}).items():
            cards.append((f"{what} in {language_name(lang)}", f"{counts[part]:,}"))
    return cards


def _run(manifest: dict[str, Any]) -> str:
    """What was asked of `enrich`."""
    config = manifest["config"]
    into = ", ".join(language_name(lang) for lang in config["into"])
    only = f", only {', '.join(config['relations'])}" if config["relations"] else ""
    most = f", the {config['limit']:,} most confident" if config["limit"] else ""
    evidence = ", ".join(manifest["rankers"])
    return (
        f"Proposed into {into}, from confidence {config['min_confidence']:g} on{only}{most}; "
        f"evidence: {evidence}."
    )


def _coverage(report: Report, manifest: dict[str, Any]) -> dict[str, Any] | None:
    """Of what could be said in a language, the share that is: before and after."""
    kb = report.kb
    langs = list(report.langs or manifest["config"]["into"])
    before = Counter(
        {
            (lang, relation): number
            for lang, relation, number in kb.query(
                "SELECT lang, relation, count(*) FROM triples "
                f"WHERE split IN {_tuple(_known(manifest))} GROUP BY ALL"
            ).fetchall()
        }
    )
    possible = _possible(kb, langs)
    source = quote_path(Path(report.proposals) / "proposals.parquet")
    query = f"SELECT lang, relation, count(*) FROM read_parquet({source}) GROUP BY ALL"
    added = Counter({(lang, part): number for lang, part, number in kb.query(query).fetchall()})
    total: Counter[int] = Counter()
    for (_, relation), number in possible.items():
        total[relation] += number
    names = kb.relation_names("en" if "en" in kb.languages else langs[0])
    rows = []
    for relation, _ in total.most_common(_RELATIONS):
        cells = []
        for lang in langs:
            whole = max(possible[lang, relation], before[lang, relation])
            first = before[lang, relation] / whole if whole else float("nan")
            then = min(1.0, first + added[lang, relation] / whole) if whole else float("nan")
            text = "–" if first != first else f"{first:.0%} → {then:.0%}"
            # Squared, so that the upper half of the scale can be told apart.
            shades = [0.0 if x != x else round(0.8 * x**2, 3) for x in (first, then)]
            cells.append({"text": text, "before": shades[0], "after": shades[1]})
        rows.append({"relation": names[relation], "cells": cells})
    return {"langs": langs, "rows": rows} if rows else None


def _possible(kb: KB, langs: Sequence[str]) -> Counter[tuple[str, int]]:
    """Facts that any language states and a language has names for, by language and relation."""
    rows = kb.query(
        """
        WITH stated AS MATERIALIZED (
            SELECT DISTINCT s.concept AS a, t.relation, o.concept AS b
            FROM triples t JOIN entities s ON s.id = t.subject JOIN entities o ON o.id = t.object
        )
        SELECT x.lang, f.relation, count(DISTINCT (x.id, y.id))
        FROM stated f JOIN entities x ON x.concept = f.a AND list_contains($langs, x.lang)
        JOIN entities y ON y.concept = f.b AND y.lang = x.lang GROUP BY ALL
        """,
        {"langs": list(langs)},
    ).fetchall()
    return Counter({(lang, relation): number for lang, relation, number in rows})


def _tuple(values: Sequence[str]) -> str:
    return "(" + ", ".join(f"'{value}'" for value in values) + ")"


def _examples(report: Report, known: Sequence[str]) -> tuple[list[dict[str, str]], bool]:
    """Proposals of every language, spread over the relations; and whether they can be judged."""
    kb, splits = report.kb, _tuple(known)
    source = quote_path(Path(report.proposals) / "proposals.parquet")
    rows = kb.query(
        f"""
        WITH few AS (
            SELECT * FROM read_parquet({source})
            QUALIFY row_number() OVER (PARTITION BY lang, relation ORDER BY id) <= 2
        ), chosen AS (
            SELECT * FROM few
            QUALIFY row_number() OVER (PARTITION BY lang ORDER BY id) <= {_EXAMPLES}
        )
        SELECT *, EXISTS (
            SELECT 1 FROM triples t WHERE t.subject = c.subject AND t.relation = c.relation
                AND t.object = c.object AND t.split NOT IN {splits}
        ) AS is_right
        FROM chosen c ORDER BY id
        """
    ).to_arrow_table()
    query = f"SELECT 1 FROM triples WHERE split NOT IN {splits} LIMIT 1"
    return [_example(row) for row in rows.to_pylist()], bool(kb.query(query).fetchall())


def _example(row: dict[str, Any]) -> dict[str, str]:
    next_best = ""
    if row["runner_up"]:
        next_best = f"{row['runner_up']} ({row['runner_up_confidence']:.2f})"
    return {
        "lang": row["lang"],
        "subject": row["subject_name"],
        "relation": row["relation_name"],
        "object": row["object_name"],
        "confidence": f"{row['confidence']:.2f}",
        "origin": _languages(row["origin"]),
        "runner_up": next_best,
        "judged": "yes" if row["is_right"] else "no",
    }


def _languages(codes: Sequence[str], most: int = 4) -> str:
    """Some of them, and how many more."""
    if not codes:
        return "no language: the model and its rules"
    rest = f" and {len(codes) - most} more" if len(codes) > most else ""
    return ", ".join(codes[:most]) + rest


def _picture(reliability: Mapping[str, Mapping[str, Reliability]]) -> str | None:
    if not reliability:
        return None
    picture = io.BytesIO()
    plot_reliability(reliability, picture)
    return _data(picture.getvalue())


def _data(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def _table(grid: Grid, *, first: bool) -> dict[str, Any]:
    return {
        "heading": "Figures" if first else "",
        "caption": f"{grid.title} (%)",
        "note": " ".join(grid.notes),
        "heads": ["row", *grid.heads()],
        "rows": [[row, *grid.cells(row)] for row in grid.rows],
    }


def _markdown(values: dict[str, Any], grids: Sequence[Grid]) -> str:
    """The same for a terminal or a repository."""

    lines = [f"# {plain(values['title'])}", "", plain(values["introduction"]), ""]
    lines += [f"- {plain(name)}: {plain(value)}" for name, value in values["cards"]]
    coverage = values["coverage"]
    if coverage:
        lines += ["", "## What the languages state, before and after", ""]
        lines += ["| relation | " + " | ".join(coverage["langs"]) + " |"]
        lines += ["| --- |" + " ---: |" * len(coverage["langs"])]
        for row in coverage["rows"]:
            cells = " | ".join(cell["text"] for cell in row["cells"])
            lines.append(f"| {plain(row['relation'])} | {cells} |")
    if grids:
        lines += ["", "## Figures", "", grids_markdown(grids)]
    lines += ["## Some proposals", "", "| language | subject | relation | object | confidence |"]
    lines += ["| --- | --- | --- | --- | ---: |"]
    for row in values["examples"]:
        names = " | ".join(plain(row[name]) for name in ("lang", "subject", "relation", "object"))
        lines.append(f"| {names} | {row['confidence']} |")
    lines += ["", plain(values["run"])]
    lines += ["", f"Made by {plain(values['tool'])}: `{values['command'].replace('`', '')}`."]
    lines += [f"Licence of the data: {plain(values['licence'])}."]
    return "\n".join(lines) + "\n"
