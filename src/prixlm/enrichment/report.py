"""The report of an enrichment: one HTML page that needs no network; also as Markdown and JSON.

    write_report("report", Report(kb, "proposals", command="prixlm enrich ..."))

Names from a KB are untrusted text. The template escapes all of them (Jinja's autoescape), and
`dir="auto"` gives each the direction of its own letters, so that Arabic and Hebrew run right to
left.
"""

import base64
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prixlm.config import is_kind
from prixlm.engine.overwriting import check_pages
from prixlm.errors import PrixError
from prixlm.files import alone, parquet_rows, write_atomically
from prixlm.kb.coverage import count_coverage
from prixlm.kb.store import KB
from prixlm.metrics import Reliability
from prixlm.proposals.tables import read_manifest
from prixlm.reports.console import language_name
from prixlm.reports.plots import plot_reliability
from prixlm.reports.tables import ResultTable, plain, tables_markdown, tables_to_json

_NUM_RELATIONS = 15
"""Relations in the coverage table: those with most facts."""
_NUM_EXAMPLES = 6
"""Proposals of each language that are shown."""
_NUM_LANGUAGES = 4
"""Languages that are listed in a cell before `and 3 more`."""

# At most two proposals of a relation, so that the examples are not all alike.
_EXAMPLES = """
    WITH varied AS (
        SELECT * FROM {proposals}
        QUALIFY row_number() OVER (PARTITION BY lang, relation ORDER BY id) <= 2
    ), chosen AS (
        SELECT * FROM varied
        QUALIFY row_number() OVER (PARTITION BY lang ORDER BY id) <= $number
    )
    SELECT *, EXISTS (
        SELECT 1 FROM triples t WHERE t.subject = c.subject AND t.relation = c.relation
            AND t.object = c.object AND NOT list_contains($splits, t.split)
    ) AS is_right
    FROM chosen c ORDER BY id
"""
_HELD_OUT = "SELECT 1 FROM triples WHERE NOT list_contains($splits, split) LIMIT 1"


@dataclass(frozen=True)
class Report:
    """What a report shows."""

    kb: KB
    proposals: Path  # the folder
    title: str = "Enrichment of a knowledge base"
    introduction: str = ""
    findings: Sequence[str] = ()  # the results in a line each, at the top
    command: str = ""
    tables: Sequence[ResultTable] = ()  # such as Hits@k of All and Single
    # Calibration by method and language, for the reliability plot.
    reliability: Mapping[str, Mapping[str, Reliability]] = field(default_factory=dict)
    loss: Path | None = None  # plot of the pretraining loss
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds by step
    langs: tuple[str, ...] = ()  # of the coverage table; empty: the enriched languages


def write_report(to: Path | str, report: Report) -> Path:
    """Write `report.html`, `report.md` and `report.json` into a folder; return the page's path."""
    to = Path(to)
    check_pages(to / "report.json", [to / "report.html", to / "report.md"], _is_report)
    to.mkdir(parents=True, exist_ok=True)
    manifest = read_manifest(report.proposals)
    _check_manifest(manifest, report.proposals)
    content = _page_content(report, manifest)
    as_json = {
        "manifest": manifest,
        "findings": content["findings"],
        "coverage": content["coverage"],
        "tables": tables_to_json(report.tables),
        "examples": content["examples"],
        "timings": dict(report.timings),
        "command": report.command,
    }
    text = json.dumps(as_json, ensure_ascii=False, indent=1)
    with alone(to / "report.json"):
        # The data go first: after a kill in between, they tell that the folder is ours.
        write_atomically(to / "report.json", text + "\n")
        write_atomically(to / "report.md", _render_markdown(content, report.tables))
        write_atomically(to / "report.html", _render_page(content))
    return to / "report.html"


def _check_manifest(manifest: dict[str, Any], folder: Path) -> None:
    """Refuse a manifest without what the page shows: others may have written it."""
    config = manifest["config"]
    missing = config.get("missing")
    counts = [manifest.get("proposals"), manifest.get("labels", {}), manifest.get("links", {})]
    rankers, relations = manifest.get("rankers"), config.get("relations")
    is_right = (
        isinstance(missing, dict)
        and is_kind(missing.get("known"), list[str])
        and is_kind(config.get("min_confidence"), float)
        and is_kind(config.get("limit", ""), int | None)
        and is_kind(relations, list[str] | None)
        and is_kind(rankers, list[str])
        and is_kind(counts, list[dict[str, dict[str, Any]]])
        and all(is_kind(number, int) for number in _numbers(counts))
    )
    if not is_right:
        raise PrixError(
            f"the manifest of {folder} is not what `prixlm enrich` writes: make the proposals "
            "again."
        )


def _numbers(counts: Sequence[dict[str, dict[str, Any]]]) -> Iterator[Any]:
    """Yield the counts of facts, names and links that the page shows."""
    for part, name in zip(counts, (None, "names", "links"), strict=True):
        for kinds in part.values():
            yield from kinds.values() if name is None else [kinds.get(name)]


def _is_report(values: Any) -> bool:
    """Tell whether these are the values of a `report.json`."""
    return isinstance(values, dict) and {"manifest", "coverage"} <= values.keys()


def _page_content(report: Report, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the template."""
    known = list(manifest["config"]["missing"]["known"])  # splits that the run could see
    return {
        "title": report.title,
        "introduction": report.introduction,
        "findings": list(report.findings),
        "cards": _cards(report.kb, manifest, known),
        "coverage": _coverage(report, manifest, known),
        "min_confidence": manifest["config"]["min_confidence"],
        "reliability": _reliability_image(report.reliability),
        "tables": [_table_content(table) for table in report.tables],
        "examples": _examples(report, known),
        "has_held_out": bool(report.kb.query(_HELD_OUT, {"splits": known}).fetchall()),
        "loss": None if report.loss is None else _image_data(report.loss.read_bytes()),
        "timings": [(step, f"{seconds:.0f}") for step, seconds in report.timings.items()],
        "command": report.command,
        "settings": _settings(manifest),
        "tool": manifest["tool"],
        "licence": manifest["licence"],
    }


def _render_page(content: dict[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("prixlm.enrichment", "templates"),
        autoescape=True,
        trim_blocks=True,
    )
    return environment.get_template("report.html").render(content)


def _cards(kb: KB, manifest: dict[str, Any], known: Sequence[str]) -> list[tuple[str, str]]:
    """Return the figures at the top of the page: label and number."""
    num_known = sum(kb.num_triples(split=split) for split in known)
    cards = [("languages", f"{len(kb.languages):,}"), ("known facts", f"{num_known:,}")]
    for lang, kinds in manifest["proposals"].items():
        cards.append((f"facts proposed in {language_name(lang)}", f"{sum(kinds.values()):,}"))
    for table, count in (("labels", "names"), ("links", "links")):
        for lang, counts in manifest.get(table, {}).items():
            cards.append((f"{count} proposed in {language_name(lang)}", f"{counts[count]:,}"))
    return cards


def _settings(manifest: dict[str, Any]) -> str:
    """Return the settings of the run in one sentence."""
    config = manifest["config"]
    into = ", ".join(language_name(lang) for lang in config["into"])
    relations = f", relations {', '.join(config['relations'])}" if config["relations"] else ""
    limit = f", the {config['limit']:,} most confident" if config["limit"] else ""
    return (
        f"Proposals in {into} with a confidence of {config['min_confidence']:g} or more"
        f"{relations}{limit}. Evidence: {', '.join(manifest['rankers'])}."
    )


def _coverage(
    report: Report, manifest: dict[str, Any], known: Sequence[str]
) -> dict[str, Any] | None:
    """Return the share of facts that each language states, before and after the enrichment.

    The whole is the facts of a relation that any language states and the language has names for.
    """
    kb, langs = report.kb, list(report.langs or manifest["config"]["into"])
    proposals = parquet_rows(Path(report.proposals) / "proposals.parquet")
    added_sql = f"SELECT lang, relation, count(*) FROM {proposals} GROUP BY ALL"
    added = Counter({(lang, relation): n for lang, relation, n in kb.query(added_sql).fetchall()})
    facts = count_coverage(kb, langs, known)
    names = kb.relation_names("en" if "en" in kb.languages else langs[0])
    rows = []
    for relation in facts.relations()[:_NUM_RELATIONS]:
        keys = [(lang, relation) for lang in langs]
        cells = [_coverage_cell(facts.stated[k], added[k], facts.statable[k]) for k in keys]
        rows.append({"relation": names[relation], "cells": cells})
    return {"langs": langs, "rows": rows} if rows else None


def _coverage_cell(before: int, added: int, statable: int) -> dict[str, Any]:
    """Return the text of a cell and its two shades, from 0 to 0.8."""
    whole = max(statable, before)
    if not whole:
        return {"text": "–", "before": 0.0, "after": 0.0}
    shares = (before / whole, min(1.0, before / whole + added / whole))
    # Squared, so that the upper half of the scale can be told apart.
    shades = [round(0.8 * share**2, 3) for share in shares]
    text = f"{shares[0]:.0%} → {shares[1]:.0%}"
    return {"text": text, "before": shades[0], "after": shades[1]}


def _examples(report: Report, known: Sequence[str]) -> list[dict[str, str]]:
    """Return proposals of every language, spread over the relations."""
    proposals = parquet_rows(Path(report.proposals) / "proposals.parquet")
    parameters = {"number": _NUM_EXAMPLES, "splits": list(known)}
    rows = report.kb.query(_EXAMPLES.format(proposals=proposals), parameters).to_arrow_table()
    return [_example(row) for row in rows.to_pylist()]


def _example(row: dict[str, Any]) -> dict[str, str]:
    """Return a proposal as the texts of a table row."""
    runner_up = ""
    if row["runner_up"] and row["runner_up_confidence"] is not None:
        runner_up = f"{row['runner_up']} ({row['runner_up_confidence']:.2f})"
    return {
        "lang": row["lang"],
        "subject": row["subject_name"],
        "relation": row["relation_name"],
        "object": row["object_name"],
        "confidence": f"{row['confidence']:.2f}",
        "origin": _language_list(row["origin"] or ()),
        "runner_up": runner_up,
        "judged": "yes" if row["is_right"] else "no",
    }


def _language_list(codes: Sequence[str]) -> str:
    if not codes:
        return "no language (inferred)"
    more = len(codes) - _NUM_LANGUAGES
    return ", ".join(codes[:_NUM_LANGUAGES]) + (f" and {more} more" if more > 0 else "")


def _reliability_image(curves: Mapping[str, Mapping[str, Reliability]]) -> str | None:
    if not curves:
        return None
    image = io.BytesIO()
    plot_reliability(curves, image)
    return _image_data(image.getvalue())


def _image_data(image: bytes) -> str:
    """Return a PNG as a data URL, so that the page is one file."""
    return "data:image/png;base64," + base64.b64encode(image).decode()


def _table_content(table: ResultTable) -> dict[str, Any]:
    return {
        "caption": f"{table.title} (%)",
        "note": " ".join(table.notes),
        "heads": ["method", *table.headers()],
        "rows": [[method, *table.cells(method)] for method in table.rows],
    }


def _render_markdown(content: dict[str, Any], tables: Sequence[ResultTable]) -> str:
    """Return the report as Markdown, for a terminal or a repository."""
    lines = [f"# {plain(content['title'])}", ""]
    if content["introduction"]:
        lines += [plain(content["introduction"]), ""]
    if content["findings"]:
        lines += [*(f"- {plain(line)}" for line in content["findings"]), ""]
    lines += [f"- {plain(name)}: {plain(value)}" for name, value in content["cards"]]
    coverage = content["coverage"]
    if coverage:
        rows = (
            [row["relation"], *(cell["text"] for cell in row["cells"])] for row in coverage["rows"]
        )
        lines += ["", "## Facts stated before and after", ""]
        lines += _markdown_table(["relation", *coverage["langs"]], rows, num_text=1)
    if tables:
        lines += ["", "## Results", "", tables_markdown(tables).rstrip("\n")]
    columns = ["lang", "subject", "relation", "object", "confidence"]
    rows = ([row[column] for column in columns] for row in content["examples"])
    lines += ["", "## Examples of proposals", ""]
    lines += _markdown_table(["language", *columns[1:]], rows, num_text=4)
    lines += ["", plain(content["settings"])]
    lines += ["", f"Made by {plain(content['tool'])}: `{content['command'].replace('`', '')}`."]
    lines += [f"Licence of the data: {plain(content['licence'])}."]
    return "\n".join(lines) + "\n"


def _markdown_table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], num_text: int
) -> list[str]:
    """Return the lines of a table whose columns after the first `num_text` are numbers."""
    rules = ["---"] * num_text + ["---:"] * (len(headers) - num_text)
    cells = [headers, rules, *([plain(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]
