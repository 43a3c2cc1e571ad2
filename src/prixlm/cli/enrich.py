"""The commands of the main job: `enrich` proposes facts, `review` and `export` pass them on.

`review` and `export` work without the `model` extra.
"""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from prixlm.cli.options import (
    GraphOption,
    Json,
    MinConfidence,
    ModelOption,
    Overwrite,
    ProposalsArgument,
    parse_codes,
)
from prixlm.cli.terminal import console, print_json, print_result, progress_bar
from prixlm.errors import PrixError

_Split = Annotated[
    Path,
    typer.Argument(metavar="KB", help="A split: the confidence is fitted on its valid facts."),
]
_Encoder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Also propose links with this encoder; the split withholds links."
    ),
]
_Usual = Annotated[
    float, typer.Option(help="Also ask for relations held by this share of similar entities.")
]


def enrich(
    kb: _Split,
    into: Annotated[str, typer.Option(metavar="CODES", help="Languages to enrich.")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder of proposals to make.")],
    model: ModelOption = None,
    graph: GraphOption = None,
    min_confidence: MinConfidence = 0.5,
    relations: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these relations, by name or key.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the N most confident proposals.")
    ] = None,
    usual: _Usual = 0.5,
    labels: Annotated[
        bool, typer.Option("--labels", help="Also propose names for entities without one.")
    ] = False,
    encoder: _Encoder = None,
    pivot: Annotated[
        str, typer.Option(metavar="CODE", help="Language that links are proposed into.")
    ] = "en",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Propose facts that a KB lacks in some languages, with confidence and origin.

    An interrupted run resumes when the same command is run again.

    Example: [b]prixlm enrich split --model model --into et,te --to proposals[/b]
    """
    from prixlm.enrichment.gaps import GapConfig
    from prixlm.enrichment.run import EnrichConfig
    from prixlm.enrichment.run import enrich as run
    from prixlm.kb.store import KB
    from prixlm.reports.console import print_proposals

    config = EnrichConfig(
        into=parse_codes(into),
        min_confidence=min_confidence,
        relations=None if relations is None else tuple(r.strip() for r in relations.split(",")),
        limit=limit,
        labels=labels,
        pivot=pivot,
        missing=GapConfig(usual=usual),
    )
    with progress_bar() as progress:
        manifest = run(
            KB(kb),
            to,
            config,
            model=model,
            graph=graph,
            encoder=encoder,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        print_json(manifest)
    else:
        print_proposals(console(), to, manifest)


def review(
    folder: ProposalsArgument,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a TSV to mark in a spreadsheet.")
    ] = None,
    marks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the marked TSV back.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N facts, names and links.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Review proposals: write them as a TSV, mark `accept` or `reject`, and read it back.

    Example: [b]prixlm review proposals --to review.tsv[/b]

    Example: [b]prixlm review proposals --marks review.tsv[/b]
    """
    from dataclasses import asdict

    from prixlm.enrichment.review import read_review, write_review

    if to is not None and marks is None:
        num_rows = write_review(folder, to, most)
        text = f"{num_rows:,} proposals: fill the column `mark` of {to} with accept or reject."
        print_result({"proposals": num_rows, "file": str(to)}, text, as_json)
    elif marks is not None and to is None:
        counts = read_review(folder, marks)
        text = f"{counts.accepted:,} accepted, {counts.rejected:,} rejected, {counts.open:,} open."
        print_result(asdict(counts), text, as_json)
    else:
        raise PrixError("pass --to FILE to write a review, or --marks FILE to read one.")


def export(
    folder: ProposalsArgument,
    format: Annotated[str, typer.Option(help="nt, nq, quickstatements, tsv or parquet.")],
    to: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")],
    min_confidence: MinConfidence = 0.0,
    accepted: Annotated[
        bool, typer.Option(help="Only proposals that a reviewer accepted.")
    ] = False,
    star: Annotated[bool, typer.Option(help="N-Quads with triple terms (RDF 1.2).")] = False,
    base: Annotated[
        str, typer.Option(metavar="IRI", help="Prefix of the IRIs made from other keys.")
    ] = "urn:prixlm:",
    reference: Annotated[
        str | None,
        typer.Option(metavar="S854:URL", help="Source of the statements, for QuickStatements."),
    ] = None,
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="Only proposals in this language.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write proposals for other tools. Rejected proposals are left out.

    Example: [b]prixlm export proposals --format nq --to facts.nq --min-confidence 0.8[/b]
    """
    from prixlm.enrichment.export import ExportConfig
    from prixlm.enrichment.export import export as export_to_file

    config = ExportConfig(
        format=format,
        min_confidence=min_confidence,
        accepted=accepted,
        star=star,
        base=base,
        reference=reference,
        lang=lang,
    )
    counts = export_to_file(folder, to, config)
    left_out = [f"{count:,} {why}" for why, count in counts.items() if why != "written" and count]
    others = f" ({', '.join(left_out)})" if left_out else ""
    print_result(counts, f"{counts['written']:,} facts in {to}{others}.", as_json)


def report(
    folder: ProposalsArgument,
    kb: Annotated[Path, typer.Option("--kb", metavar="KB", help="The KB that was enriched.")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the page is written.")],
    model: ModelOption = None,
    graph: GraphOption = None,
    tried: Annotated[
        int,
        typer.Option("--try", metavar="N", help="Test the confidence on N test facts a language."),
    ] = 0,
    tables: Annotated[
        list[Path] | None,
        typer.Option(
            "--table", metavar="FILE", help="A table in JSON, made by `evaluate ... --to`."
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = (
        "Enrichment of a knowledge base"
    ),
    as_json: Json = False,
) -> None:
    """Write the report of an enrichment: one HTML page that needs no network.

    Example: [b]prixlm report proposals --kb split --model model --to report --try 500[/b]
    """
    from prixlm.enrichment.proposals import read_manifest, read_timings
    from prixlm.enrichment.report import Report, write_report
    from prixlm.evaluation.link_prediction import read_result_tables
    from prixlm.evaluation.proposals import reliability_curves, trial_tables, try_enrichment
    from prixlm.kb.store import KB

    if tried < 0:
        raise PrixError(f"--try {tried}: expected 0 or more.")
    manifest, source = read_manifest(folder), KB(kb)
    if manifest["kb"] != source.fingerprint():
        raise PrixError(f"{folder} has proposals for another KB than {kb}.")
    langs = manifest["config"]["into"]
    loss = None if model is None else model / "loss.png"
    read = [table for path in tables or [] for table in read_result_tables(path)]
    trials = []
    if tried:
        with progress_bar() as progress:
            trials = try_enrichment(source, langs, model, graph, most=tried, progress=progress)
    page = write_report(
        to,
        Report(
            source,
            folder,
            title=title,
            command="prixlm " + shlex.join(sys.argv[1:]),
            tables=[*read, *trial_tables(trials)],
            reliability=reliability_curves(trials),
            timings=read_timings(folder),
            loss=loss if loss is not None and loss.is_file() else None,
        ),
    )
    print_result({"report": str(page)}, f"The report: {page}", as_json)
