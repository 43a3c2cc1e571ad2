"""The command `demo`: facts and names of the embedded world KB, hidden and found again."""

import dataclasses
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prixlm.cli.options import Json
from prixlm.cli.terminal import print_json, print_lines, print_note, progress_bar

if TYPE_CHECKING:
    from prixlm.demo import Demo

_To = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to write.")]


def demo(to: _To = Path("demo"), as_json: Json = False) -> None:
    """Hide facts and names of the embedded world KB, and find them again.

    It takes a few minutes on two cores. An interrupted demo resumes when the same command is run
    again.

    Example: [b]prixlm demo --to demo[/b]
    """
    from prixlm.demo import run_demo

    with progress_bar() as progress:
        result = run_demo(to, progress, announce=print_note)
    if as_json:
        _print_json(result)
    else:
        _print(result, to / "work")


def _print(result: "Demo", work: Path) -> None:
    """Print the results in plain lines, and last how to open the pages."""
    kb = result.kb
    lines = [
        f"The world KB: {kb.num_triples():,} facts in {len(kb.languages)} languages.",
        "",
        "Facts that were hidden, and came back:",
    ]
    for one in result.facts:
        lines += [f"  {one.sentence}", *_for_example(one.examples)]
    lines += ["", "Names across scripts:"]
    for found in result.names:
        lines += [f"  {found.sentence}", *_for_example(found.examples)]
    lines += [
        "",
        f"Took {sum(result.timings.values()):.0f} s. Open the report:",
        result.report.resolve().as_uri(),
        "Browse, ask and review what it made:",
        f"{_own_command()} serve {shlex.quote(str(work))}",
    ]
    print_lines(lines)


def _own_command() -> str:
    """Return how this shell calls prixlm: `make demo` does not put it on the path."""
    return "prixlm" if shutil.which("prixlm") else shlex.quote(sys.argv[0])


def _for_example(examples: list[str]) -> list[str]:
    return [f"    for example {'; '.join(examples)}"] if examples else []


def _print_json(result: "Demo") -> None:
    """Print everything for machines."""
    from prixlm.reports.tables import tables_to_json

    print_json(
        {
            "kb": str(result.kb.folder),
            "facts": [dataclasses.asdict(one) | {"text": one.sentence} for one in result.facts],
            "names": [dataclasses.asdict(one) | {"text": one.sentence} for one in result.names],
            "proposals": result.manifest,
            "tables": tables_to_json(result.tables),
            "timings": result.timings,
            "report": str(result.report),
            "page": result.report.resolve().as_uri(),
        }
    )
