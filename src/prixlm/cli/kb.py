"""The commands that make and inspect a KB folder: `import`, `stats`, `split`.

They work without the `model` extra.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from prixlm.cli.options import (
    Address,
    DryRun,
    Engine,
    ImportFormat,
    Json,
    KBArgument,
    Langs,
    Memory,
    Overwrite,
    Workers,
    parse_codes,
    parse_engine,
)
from prixlm.cli.terminal import console, print_json, print_lines, print_result, progress_bar
from prixlm.errors import PrixError

_Licence = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Licence of the data, instead of the format's default."),
]


def import_(
    sources: Annotated[
        list[Path] | None, typer.Argument(metavar="SOURCE...", help="Dump files or folders.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The KB folder to make.")
    ] = None,
    format: ImportFormat = None,
    langs: Langs = None,
    max_triples: Annotated[
        int | None, typer.Option(metavar="N", help="Keep a random sample of N triples.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    licence: _Licence = None,
    max_name: Annotated[
        int, typer.Option(metavar="N", help="Reject names and keys of more than N characters.")
    ] = 2000,
    max_line: Annotated[
        int, typer.Option(metavar="N", help="Reject lines and statements of more than N MiB.")
    ] = 16,
    descriptions: Annotated[
        bool, typer.Option(help="Keep the descriptions of entities, for pages and models.")
    ] = True,
    strict: Annotated[bool, typer.Option(help="Stop at the first malformed row.")] = False,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    memory: Memory = "1GiB",
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Make a KB folder from dumps of DBpedia, Wikidata, RDF, tables, or the embedded world KB.

    An interrupted import resumes when the same command is run again.

    Example: [b]prixlm import --format world --to world[/b]

    Example: [b]prixlm import labels_lang=fi.ttl.bz2 mappingbased-objects_lang=fi.ttl.bz2 --to
    fi[/b]
    """
    from prixlm.importers.plan import estimate_sources
    from prixlm.importers.run import import_kb

    chosen: Any = langs if langs in (None, "all") else parse_codes(langs)
    if dry_run:
        estimate = estimate_sources(
            sources or [],
            format=format,
            langs=chosen,
            max_triples=max_triples,
            max_name=max_name,
            max_line=max_line,
            descriptions=descriptions,
        )
        print_result(estimate.as_dict(), estimate.as_text(), as_json)
        return
    if to is None:
        raise PrixError("--to is missing: name the KB folder to make.")
    where = parse_engine(engine, address, workers)
    is_quiet = as_json or where.is_here
    with progress_bar(None if is_quiet else where.describe()) as progress:
        kb = import_kb(
            sources or [],
            to,
            format=format,
            langs=chosen,
            max_triples=max_triples,
            seed=seed,
            licence=licence,
            max_name=max_name,
            max_line=max_line,
            descriptions=descriptions,
            overwrite=overwrite,
            strict=strict,
            memory=memory,
            engine=where,
            progress=progress,
        )
    _print_stats(kb.folder, as_json, account=True)


def stats(
    kb: KBArgument,
    hashes: Annotated[
        bool, typer.Option("--hashes", help="Also the SHA-256 of every table's rows.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the languages, entities, relations, triples and links of a KB.

    Example: [b]prixlm stats world[/b]
    """
    _print_stats(kb, as_json, hashes=hashes)


def split(
    kb: KBArgument,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The split to make: a KB folder.")],
    test: Annotated[float, typer.Option(help="Share of the triples for testing.")] = 0.1,
    valid: Annotated[float, typer.Option(help="Share of the triples for validation.")] = 0.05,
    unseen: Annotated[
        float | None,
        typer.Option(help="Instead hold out this share of all entities, in all languages."),
    ] = None,
    unseen_links: Annotated[
        str,
        typer.Option(metavar="keep|remove", help="What happens to the links of these entities."),
    ] = "keep",
    by_concept: Annotated[
        bool, typer.Option(help="Hold out a fact in every language at once.")
    ] = False,
    everywhere: Annotated[
        float,
        typer.Option(help="Of the held-out facts, hold out this share in every language."),
    ] = 0.0,
    new: Annotated[
        float, typer.Option(help="Also hold out all facts of this share of the concepts.")
    ] = 0.0,
    hide_links: Annotated[
        float | None,
        typer.Option(help="Instead withhold the links of this share of the linked concepts."),
    ] = None,
    langs: Langs = None,
    keep_split: Annotated[
        bool,
        typer.Option(
            "--keep-split",
            help="Keep the split that the KB has, and hold out --unseen (and --hide-links) too.",
        ),
    ] = False,
    resplit: Annotated[
        bool, typer.Option(help="Ignore the split that the KB already has.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random draw.")] = 0,
    overwrite: Overwrite = False,
    memory: Memory = "1GiB",
    as_json: Json = False,
) -> None:
    """Mark the triples of a KB as train, valid and test, in a new folder.

    Example: [b]prixlm split world --to world-split --test 0.1[/b]
    """
    from prixlm.kb.split import SplitConfig, split_kb
    from prixlm.kb.store import KB

    config = SplitConfig(
        test=test,
        valid=valid,
        unseen=unseen,
        by_concept=by_concept,
        everywhere=everywhere,
        new=new,
        hide_links=hide_links,
        links=unseen_links,  # type: ignore[arg-type]  # the config refuses any other word
        langs=None if langs in (None, "all") else parse_codes(langs),
        keep_split=keep_split,
        resplit=resplit,
        seed=seed,
    )
    split_kb(KB(kb), to, config, overwrite=overwrite, memory=memory)
    _print_stats(to, as_json)


def _print_stats(
    folder: Path, as_json: bool, *, account: bool = False, hashes: bool = False
) -> None:
    """Print the counts of a KB and, after an import, where the rows that were read went."""
    from prixlm.kb.digests import table_hashes
    from prixlm.kb.store import KB
    from prixlm.reports.console import kb_figures, print_account, print_kb

    kb = KB(folder)
    found = table_hashes(kb) if hashes else {}
    if as_json:
        print_json(kb_figures(kb) | ({"hashes": found} if hashes else {}))
        return
    print_kb(console(), kb)
    print_lines(f"{digest}  {table}" for table, digest in found.items())
    if account:
        print_account(console(), kb)
