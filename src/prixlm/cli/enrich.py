"""The commands of the main job: `enrich` proposes facts, `review` and `export` pass them on.

`review` and `export` work without the `model` extra.
"""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from prixlm.cli.options import (
    Address,
    DryRun,
    Engine,
    GpusPerWorker,
    GraphOption,
    ImportFormat,
    Json,
    Langs,
    MinConfidence,
    ModelOption,
    Overwrite,
    ProposalsArgument,
    Workers,
    parse_codes,
    parse_engine,
)
from prixlm.cli.terminal import (
    console,
    print_json,
    print_lines,
    print_result,
    progress_bar,
)
from prixlm.errors import PrixError
from prixlm.remote import check_local, is_remote, local_folder, uri_of

_Sources = Annotated[
    list[Path] | None,
    typer.Argument(metavar="SOURCE...", help="Dumps, a KB folder, or a split."),
]
_Effort = Annotated[
    str | None,
    typer.Option(
        metavar="quick|standard|thorough",
        help="quick trains nothing; standard trains within --minutes; thorough takes --base. "
        "Default: standard, or quick with --model or --graph.",
    ),
]
_Minutes = Annotated[
    float | None, typer.Option(metavar="N", help="Time limit of standard; 60 if not given.")
]
_Base = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Base model of thorough; xlm-roberta-base if not given."),
]
_Encoder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Propose links with this encoder; the split withholds links."
    ),
]
_Usual = Annotated[
    float, typer.Option(help="Also ask for relations held by this share of similar entities.")
]


def enrich(
    sources: _Sources = None,
    into: Annotated[str, typer.Option(metavar="CODES", help="Languages to enrich.")] = "",
    to: Annotated[Path | None, typer.Option(metavar="WORK", help="The folder to work in.")] = None,
    effort: _Effort = None,
    minutes: _Minutes = None,
    base: _Base = None,
    format: ImportFormat = None,
    langs: Langs = None,
    model: ModelOption = None,
    graph: GraphOption = None,
    encoder: _Encoder = None,
    reader: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A decoder such as Gemma 3, asked in words; slow."),
    ] = None,
    min_confidence: MinConfidence = 0.5,
    relations: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these relations, by name or key.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the N most confident facts.")
    ] = None,
    usual: _Usual = 0.5,
    labels: Annotated[
        bool, typer.Option("--labels/--no-labels", help="Propose names for entities without one.")
    ] = True,
    written: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Write names for N entities of a language, those with most facts; 0: only take "
            "over. Default: 5,000, with --effort quick 1,000.",
        ),
    ] = None,
    links: Annotated[
        bool, typer.Option("--links", help="Propose links into --pivot; --encoder implies it.")
    ] = False,
    pivot: Annotated[
        str, typer.Option(metavar="CODE", help="Language that links are proposed into.")
    ] = "en",
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0.0,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Propose what a KB lacks in some languages: facts, names and links.

    Each with a confidence and its origin. An interrupted run resumes when the same command is run
    again.

    Example: [b]prixlm enrich dump.json.gz --into et,te --to work[/b]

    Example: [b]prixlm enrich --format world --into et --to work --effort quick[/b]
    """
    from prixlm.enrichment.gaps import GapConfig
    from prixlm.enrichment.job import WRITTEN, Given, JobConfig
    from prixlm.enrichment.run import EnrichConfig

    if not into:
        raise PrixError("--into is missing: name the languages to enrich, such as --into et,te.")
    codes = parse_codes(into)
    if "all" in codes:
        raise PrixError("--into all: name the languages to enrich, such as --into et,te.")
    effort = effort or ("quick" if model or graph else "standard")
    proposals = EnrichConfig(
        into=codes,
        min_confidence=min_confidence,
        relations=None if relations is None else tuple(r.strip() for r in relations.split(",")),
        limit=limit,
        labels=labels,
        written=WRITTEN.get(effort, 0) if written is None else written,
        links=links,
        pivot=pivot,
        missing=GapConfig(usual=usual),
    )
    config = JobConfig(
        into=codes,
        effort=effort,
        minutes=minutes,
        base=base,
        format=format,
        langs=None if langs is None else "all" if langs == "all" else parse_codes(langs),
        enrich=proposals,
    )
    given = Given(model=model, graph=graph, encoder=encoder, reader=reader)
    if dry_run:
        _print_costs(sources or [], config, given, as_json)
    elif to is None:
        raise PrixError("--to is missing: name the folder to work in.")
    else:
        where = parse_engine(engine, address, workers, gpus_per_worker)
        _run_job(sources or [], to, config, given, where, overwrite, as_json)


def _run_job(
    sources: list[Path],
    to: Path,
    config: Any,
    given: Any,
    engine: Any,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Run the job and print what was found, how far it can be believed, and what comes next."""
    from prixlm.enrichment.job import run_job
    from prixlm.enrichment.source import export_format
    from prixlm.reports.console import print_next_steps, print_proposals

    screen = console()
    with progress_bar(None if as_json else engine.describe()) as progress:

        def announce(line: str) -> None:
            if not as_json:
                print_lines(line.split("\n"))

        manifest = run_job(
            sources,
            to,
            config,
            given=given,
            overwrite=overwrite,
            announce=announce,
            engine=engine,
            progress=progress,
        )
    if as_json:
        print_json(manifest)
        return
    print_proposals(screen, local_folder(to) / "proposals", manifest)
    if is_remote(to):
        print_lines([f"Uploaded to {uri_of(to)}. Copy the folder to a disk to review it."])
        return
    tables = ("labels", "links")
    found = [sum(kinds.values()) for kinds in manifest["proposals"].values()]
    found += [
        part.get("names", part.get("links", 0))
        for name in tables
        for part in manifest.get(name, {}).values()
    ]
    if any(found):
        print_next_steps(screen, to, export_format(to))


def _print_costs(sources: list[Path], config: Any, given: Any, as_json: bool) -> None:
    """Print the steps of a job with their time, memory and disk; nothing is written."""
    from prixlm.enrichment.estimate import estimate_job

    with progress_bar() as progress:
        estimate = estimate_job(sources, config, given, progress)
    print_result(estimate.as_dict(), estimate.as_text(), as_json)


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
    reviewer: Annotated[
        str, typer.Option(metavar="NAME", help="Whose marks are read back.")
    ] = "sheet",
    as_json: Json = False,
) -> None:
    """Review proposals: write them as a TSV, mark `accept` or `reject`, and read it back.

    Example: [b]prixlm review proposals --to review.tsv[/b]

    Example: [b]prixlm review proposals --marks review.tsv[/b]
    """
    from dataclasses import asdict

    from prixlm.proposals.review import read_review, write_review
    from prixlm.proposals.tables import find_proposals

    folder = find_proposals(folder)
    if to is not None and marks is None:
        num_rows = write_review(folder, to, most)
        text = f"{num_rows:,} proposals: fill the column `mark` of {to} with accept or reject."
        print_result({"proposals": num_rows, "file": str(to)}, text, as_json)
    elif marks is not None and to is None:
        counts = read_review(folder, marks, reviewer)
        text = f"{counts.accepted:,} accepted, {counts.rejected:,} rejected, {counts.open:,} open."
        print_result(asdict(counts), text, as_json)
    else:
        raise PrixError("pass --to FILE to write a review, or --marks FILE to read one.")


def sample(
    folder: ProposalsArgument,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The proposals folder to write.")],
    number: Annotated[
        int, typer.Option(metavar="N", help="Facts to draw, in all languages.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="The same seed draws the same facts.")] = 0,
    as_json: Json = False,
) -> None:
    """Draw proposals at random, equally many of each language, to be marked by a person.

    The result is a proposals folder: [b]prixlm serve WORK --proposals WORK/sample[/b] shows it.

    Example: [b]prixlm sample work --number 200 --to work/sample[/b]
    """
    from prixlm.proposals.sample import draw_sample
    from prixlm.proposals.tables import find_proposals

    counts = draw_sample(find_proposals(folder), to, number, seed)
    drawn = ", ".join(f"{lang} {count:,}" for lang, count in counts.items())
    print_result(counts, f"{sum(counts.values()):,} proposals in {to}: {drawn}.", as_json)


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
    references: Annotated[
        list[str] | None,
        typer.Option(
            "--reference",
            metavar="S854:URL",
            help="Source of the statements, for QuickStatements; may be given several times.",
        ),
    ] = None,
    kb: Annotated[
        Path | None,
        typer.Option(
            "--kb",
            metavar="KB",
            help="For QuickStatements: a newer KB; labels that it has are left out.",
        ),
    ] = None,
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="Only proposals in this language.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write proposals for other tools. Rejected proposals are left out.

    Example: [b]prixlm export proposals --format nq --to facts.nq --min-confidence 0.8[/b]

    Example: [b]prixlm export work --format quickstatements --to batch.qs --reference S248:Q5[/b]
    """
    from prixlm.proposals.export import ExportConfig
    from prixlm.proposals.export import export as export_to_file
    from prixlm.proposals.tables import find_proposals

    config = ExportConfig(
        format=format,
        min_confidence=min_confidence,
        accepted=accepted,
        star=star,
        base=base,
        references=tuple(references or ()),
        lang=lang,
        kb=kb,
    )
    counts = export_to_file(find_proposals(folder), to, config)
    left_out = [f"{count:,} {why}" for why, count in counts.items() if why != "written" and count]
    others = f" ({', '.join(left_out)})" if left_out else ""
    print_result(counts, f"{counts['written']:,} facts in {to}{others}.", as_json)


def report(
    folder: ProposalsArgument,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the page is written.")],
    kb: Annotated[
        Path | None,
        typer.Option(
            "--kb", metavar="KB", help="The KB that was enriched, if not in a work folder."
        ),
    ] = None,
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

    Example: [b]prixlm report work --to page --title "Estonian, enriched"[/b]
    """
    from prixlm.enrichment.report import Report, write_report
    from prixlm.enrichment.trial import read_trials, reliability_curves, trial_tables
    from prixlm.evaluation.proposals import try_enrichment
    from prixlm.kb.store import KB
    from prixlm.proposals.tables import find_proposals, read_manifest, read_timings
    from prixlm.proposals.work import work_kb
    from prixlm.reports.ranker_results import read_result_tables

    if tried < 0:
        raise PrixError(f"--try {tried}: expected 0 or more.")
    check_local(to)  # --try takes long: refuse before it
    source = work_kb(folder) if kb is None else KB(kb)
    folder = find_proposals(folder)
    manifest = read_manifest(folder)
    # The KB that was asked or, to try the confidence, the split that it was fitted on.
    if source.fingerprint() not in (manifest["kb"], manifest.get("fitted_on_kb")):
        raise PrixError(f"{folder} has proposals for another KB than {source.folder}.")
    langs = manifest["config"]["into"]
    loss = None if model is None else model / "loss.png"
    read = [table for path in tables or [] for table in read_result_tables(path)]
    trials = read_trials(manifest, folder)
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
