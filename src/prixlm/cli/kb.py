"""The commands that make a KB and look at it: `import`, `stats`, `split`.

As in `cli`: each command parses, makes one library call and prints.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from prixlm.cli.terminal import Json, console, print_json, progress_bar
from prixlm.errors import PrixError

Overwrite = Annotated[bool, typer.Option(help="Replace the folder if it is there.")]
Langs = Annotated[
    str | None,
    typer.Option(metavar="CODES", help="Languages, such as [i]en,fi,zh[/i], or [i]all[/i]."),
]
Memory = Annotated[
    str, typer.Option(metavar="SIZE", help="Memory for the joins; more goes to disk.")
]


def import_(
    sources: Annotated[
        list[Path] | None, typer.Argument(metavar="SOURCE...", help="Dump files or folders.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The KB folder to make.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="wikidata, dbpedia, rdf, table, benchmark, authors or world; else recognised.",
        ),
    ] = None,
    langs: Langs = None,
    max_triples: Annotated[
        int | None, typer.Option(metavar="N", help="Keep a random sample of N triples.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    licence: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The licence of the data, if not stated.")
    ] = None,
    strict: Annotated[bool, typer.Option(help="Stop at the first bad row.")] = False,
    dry_run: Annotated[
        bool, typer.Option(help="Say what would be read, how long it takes and how big it gets.")
    ] = False,
    overwrite: Overwrite = False,
    memory: Memory = "1GiB",
    as_json: Json = False,
) -> None:
    """Make a KB folder from dumps of DBpedia, Wikidata, RDF, tables, or the embedded world KB.

    Example: [b]prixlm import --format world --to world[/b]

    Example: [b]prixlm import labels_lang=fi.ttl.bz2 mappingbased-objects_lang=fi.ttl.bz2 --to
    fi[/b]
    """
    from prixlm.importers.run import estimate_import, import_kb, plan_import

    chosen: Any = langs if langs in (None, "all") else codes(langs)
    if dry_run:
        plan = plan_import(sources or [], format=format, langs=chosen, max_triples=max_triples)
        estimate = estimate_import(plan)
        if as_json:
            print_json(estimate.as_dict())
        else:
            console().print(estimate.as_text(), markup=False, highlight=False)
        return
    if to is None:
        raise PrixError("--to is missing: name the KB folder to make.")
    with progress_bar() as progress:
        kb = import_kb(
            sources or [],
            to,
            format=format,
            langs=chosen,
            max_triples=max_triples,
            seed=seed,
            licence=licence,
            overwrite=overwrite,
            strict=strict,
            memory=memory,
            progress=progress,
        )
    _print_stats(kb.folder, as_json, account=True)


def stats(
    kb: Annotated[Path, typer.Argument(metavar="KB", help="A KB folder.")],
    as_json: Json = False,
) -> None:
    """Show the languages, entities, relations, triples and links of a KB.

    Example: [b]prixlm stats world[/b]
    """
    _print_stats(kb, as_json, account=False)


def split(
    kb: Annotated[Path, typer.Argument(metavar="KB", help="A KB folder.")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder of the split to make.")],
    test: Annotated[float, typer.Option(help="Share of the triples that are tested.")] = 0.1,
    valid: Annotated[float, typer.Option(help="Share for validation.")] = 0.05,
    unseen: Annotated[
        float | None,
        typer.Option(help="Hold out this share of all entities, in all languages, instead."),
    ] = None,
    unseen_links: Annotated[
        str, typer.Option(metavar="keep|remove", help="The links of held-out entities.")
    ] = "keep",
    by_concept: Annotated[
        bool, typer.Option(help="Hide a fact in every language at once.")
    ] = False,
    hide_links: Annotated[
        float | None,
        typer.Option(help="Hide the links of this share of the linked concepts instead."),
    ] = None,
    langs: Langs = None,
    resplit: Annotated[bool, typer.Option(help="Split anew a KB that is split already.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
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
        hide_links=hide_links,
        links=unseen_links,  # type: ignore[arg-type]  # the config refuses any other word
        langs=None if langs in (None, "all") else codes(langs),
        resplit=resplit,
        seed=seed,
    )
    made = split_kb(KB(kb), to, config, overwrite=overwrite, memory=memory)
    _print_stats(made.folder, as_json, account=False)


def codes(langs: str | None) -> tuple[str, ...]:
    """Language codes, given with commas."""
    from prixlm.languages import parse_languages

    return parse_languages(code for code in (langs or "").split(",") if code.strip())


def _print_stats(folder: Path, as_json: bool, account: bool) -> None:
    from prixlm.kb.store import KB
    from prixlm.reports.console import kb_figures, print_account, print_kb

    kb = KB(folder)
    if as_json:
        print_json(kb_figures(kb))
        return
    print_kb(console(), kb)
    if account:
        print_account(console(), kb)
