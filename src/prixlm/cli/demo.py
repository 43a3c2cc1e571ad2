"""The command `demo`: the main job on the embedded world KB, from import to a report."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prixlm.cli.options import Json
from prixlm.cli.terminal import console, print_json, progress_bar

if TYPE_CHECKING:
    from prixlm.demo import Demo

_To = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to write.")]


def demo(to: _To = Path("demo"), as_json: Json = False) -> None:
    """Run the main job on the embedded world KB, from import to a report.

    It takes a few minutes on two cores. An interrupted demo resumes when the same command is run
    again.

    Example: [b]prixlm demo --to demo[/b]
    """
    from prixlm.demo import run_demo

    with progress_bar() as progress:
        result = run_demo(to, progress)
    if as_json:
        _print_json(to, result)
    else:
        _print(to, result)


def _print(to: Path, result: "Demo") -> None:
    """Print each step's result, in the order of the steps."""
    from prixlm.demo import LANGUAGES
    from prixlm.reports import console as reports

    screen = console()
    reports.print_kb(screen, result.kb)
    reports.print_account(screen, result.kb)
    reports.print_facts(screen, result.kb, list(LANGUAGES))
    reports.print_run(screen, to / "model", result.model.settings.lineage.facts_by_language)
    reports.print_asked(screen, "Held-out facts, completed", result.facts)
    reports.print_asked(screen, "English names, translated (trained links)", result.names)
    for mention, answers, entities in result.linked:
        reports.print_linked(screen, mention, answers, entities)
    reports.print_proposals(screen, to / "proposals", result.manifest, most=3)
    reports.print_tables(screen, result.tables)
    seconds = sum(result.timings.values())
    screen.print(f"Took {seconds:.0f} s. The report: {result.report}", markup=False, soft_wrap=True)


def _print_json(to: Path, result: "Demo") -> None:
    """Print everything for machines."""
    from prixlm.reports.plots import read_metrics
    from prixlm.reports.tables import tables_to_json

    print_json(
        {
            "kb": str(result.kb.folder),
            "trained": result.model.settings.lineage.as_dict(),
            "metrics": read_metrics(to / "model"),
            "facts": [dataclasses.asdict(asked) | {"rank": asked.rank} for asked in result.facts],
            "names": [dataclasses.asdict(asked) | {"rank": asked.rank} for asked in result.names],
            "proposals": result.manifest,
            "tables": tables_to_json(result.tables),
            "timings": result.timings,
            "report": str(result.report),
        }
    )
