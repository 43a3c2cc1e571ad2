"""The commands of the main job: `enrich` proposes, a person may `review`, `export` hands over.

As in `cli`: each command parses, makes one library call and prints.
"""

from pathlib import Path
from typing import Annotated

import typer

from prixlm.cli.terminal import Json, console, print_json, progress_bar
from prixlm.errors import PrixError

Folder = Annotated[Path, typer.Argument(metavar="PROPOSALS", help="A folder of `prixlm enrich`.")]


def enrich(
    kb: Annotated[
        Path, typer.Argument(metavar="KB", help="A split: its valid facts fit the confidence.")
    ],
    into: Annotated[str, typer.Option(metavar="CODES", help="Languages to enrich.")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder of proposals to make.")],
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A Prix-LM that was trained on this KB.")
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A graph embedding of this KB.")
    ] = None,
    min_confidence: Annotated[float, typer.Option(help="Least confidence, from 0 to 1.")] = 0.5,
    relations: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these, by name or key.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="The N most confident proposals.")
    ] = None,
    usual: Annotated[
        float,
        typer.Option(help="Also ask for relations that this share of things like the subject has."),
    ] = 0.5,
    labels: Annotated[
        bool, typer.Option("--labels", help="Also names for things that have none there.")
    ] = False,
    encoder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also links, by this encoder (the split hides some)."),
    ] = None,
    pivot: Annotated[str, typer.Option(metavar="CODE", help="Links into this language.")] = "en",
    overwrite: Annotated[bool, typer.Option(help="Replace a folder that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Propose the facts that a KB lacks in some languages, with confidence and origin.

    Example: [b]prixlm enrich split --model model --into et,te --to proposals[/b]
    """
    from prixlm.enrichment.gaps import MissingConfig
    from prixlm.enrichment.run import EnrichConfig
    from prixlm.enrichment.run import enrich as run
    from prixlm.kb.store import KB
    from prixlm.reports.console import print_proposals

    config = EnrichConfig(
        into=tuple(code.strip() for code in into.split(",") if code.strip()),
        min_confidence=min_confidence,
        relations=None if relations is None else tuple(r.strip() for r in relations.split(",")),
        limit=limit,
        labels=labels,
        pivot=pivot,
        missing=MissingConfig(usual=usual),
    )
    with progress_bar() as progress:
        manifest = run(
            KB(kb), to, config, model, graph, progress, encoder=encoder, overwrite=overwrite
        )
    if as_json:
        print_json(manifest)
        return
    print_proposals(console(), to, manifest)


def review(
    folder: Folder,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a TSV to mark in a spreadsheet.")
    ] = None,
    marks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read such a TSV back.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N facts, names and links.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge proposals: write them as a TSV, mark `accept` or `reject`, and read it back.

    Example: [b]prixlm review proposals --to review.tsv[/b]
    """
    from dataclasses import asdict

    if (to is None) == (marks is None):
        raise PrixError("pass --to FILE to write a review, or --marks FILE to read one.")
    from prixlm.enrichment.review import read_review, write_review

    if to is not None:
        number = write_review(folder, to, most)
        figures: dict[str, object] = {"proposals": number, "file": str(to)}
        text = f"{number:,} proposals: fill the column `mark` of {to} with accept or reject."
    else:
        assert marks is not None
        found = read_review(folder, marks)
        figures = asdict(found)
        text = f"{found.accepted:,} accepted, {found.rejected:,} rejected, {found.open:,} open."
    if as_json:
        print_json(figures)
    else:
        console().print(text, markup=False)


def export(
    folder: Folder,
    format: Annotated[str, typer.Option(help="nt, nq, quickstatements, tsv or parquet.")],
    to: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")],
    min_confidence: Annotated[float, typer.Option(help="Least confidence, from 0 to 1.")] = 0.0,
    accepted: Annotated[bool, typer.Option(help="Only what a reviewer accepted.")] = False,
    star: Annotated[bool, typer.Option(help="N-Quads with triple terms (RDF 1.2).")] = False,
    base: Annotated[
        str, typer.Option(metavar="IRI", help="Beginning of IRIs for keys that are none.")
    ] = "urn:prixlm:",
    reference: Annotated[
        str | None,
        typer.Option(metavar="S854:URL", help="Of QuickStatements: where statements are from."),
    ] = None,
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="Of one language: a file for each.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Hand proposals over to your tools; what a reviewer rejected is left out.

    Example: [b]prixlm export proposals --format nq --to facts.nq --min-confidence 0.8[/b]
    """
    from prixlm.enrichment.export import ExportConfig, export_proposals

    config = ExportConfig(
        format=format,
        min_confidence=min_confidence,
        accepted=accepted,
        star=star,
        base=base,
        reference=reference,
        lang=lang,
    )
    counts = export_proposals(folder, to, config)
    if as_json:
        print_json(counts)
        return
    rest = [f"{number:,} {why}" for why, number in counts.items() if why != "written" and number]
    text = f"{counts['written']:,} facts in {to}" + (f" ({', '.join(rest)})" if rest else "")
    console().print(text + ".", markup=False)


def report(
    folder: Folder,
    kb: Annotated[Path, typer.Option("--kb", metavar="KB", help="The KB that was enriched.")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the page is written.")],
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The model, for its loss and trials.")
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The graph embedding, for trials.")
    ] = None,
    tried: Annotated[
        int,
        typer.Option("--try", metavar="N", help="Try the confidence on N test facts a language."),
    ] = 0,
    tables: Annotated[
        list[Path] | None,
        typer.Option(
            "--table", metavar="FILE", help="JSON that `evaluate ... --to` wrote, as Hits@k."
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="Of the page.")] = "Enrichment of a knowledge base",
    as_json: Json = False,
) -> None:
    """Write the report of an enrichment: one HTML page that needs no network.

    Example: [b]prixlm report proposals --kb split --model model --to report --try 500[/b]
    """
    import shlex
    import sys

    from prixlm.enrichment.proposals import read_manifest, read_timings
    from prixlm.enrichment.report import Report, write_report
    from prixlm.evaluation.proposals import (
        reliability_curves,
        trial_grids,
        try_enrichment,
    )
    from prixlm.kb.store import KB
    from prixlm.reports.tables import read_tables

    if tried < 0:
        raise PrixError(f"--try {tried}: expected 0 or more.")
    manifest, source = read_manifest(folder), KB(kb)
    if manifest["kb"] != source.fingerprint():
        raise PrixError(f"{folder} has proposals for another KB than {kb}.")
    langs = manifest["config"]["into"]
    loss = None if model is None else model / "loss.png"
    grids = [grid for path in tables or [] for grid in read_tables(path)]
    with progress_bar() as progress:
        trials = (
            try_enrichment(source, langs, model, graph, most=tried, progress=progress)
            if tried
            else []
        )
    page = write_report(
        to,
        Report(
            source,
            folder,
            title=title,
            command="prixlm " + shlex.join(sys.argv[1:]),
            grids=[*grids, *trial_grids(trials)],
            reliability=reliability_curves(trials),
            timings=read_timings(folder),
            loss=loss if loss is not None and loss.is_file() else None,
        ),
    )
    if as_json:
        print_json({"report": str(page)})
    else:
        console().print(f"The report: {page}", markup=False)
