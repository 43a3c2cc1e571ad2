"""The command line: each command parses, makes one library call and prints.

What the user can fix is one line on stderr and exit code 2. Results go to stdout, progress to
stderr, and `--json` prints results for machines. Nothing heavy is imported before it is needed, so
`prixlm --help` answers at once.
"""

import dataclasses
import io
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from prixlm.cli.ask import complete, translate
from prixlm.cli.enrich import enrich, export, report, review
from prixlm.cli.entities import link, mirror
from prixlm.cli.evaluate import evaluate_app
from prixlm.cli.kb import codes, import_, split, stats
from prixlm.cli.reproduce import reproduce_app
from prixlm.cli.terminal import Json, console, print_json, progress_bar
from prixlm.errors import PrixError, Stopped

app = typer.Typer(
    help="Build and complete multilingual knowledge bases with a language model (Prix-LM).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(f"prixlm {version_of('prixlm')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command("import")(import_)
app.command()(stats)
app.command()(split)


@app.command()
def pretrain(
    kb: Annotated[Path, typer.Argument(metavar="KB", help="A KB folder, split or not.")],
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The run and model folder to make.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="compact, xlm-roberta-base, bert-base-multilingual-cased, or a folder.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="compact (for two cores), demo (minutes) or paper (any other base)."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings in TOML; flags come after.")
    ] = None,
    langs: Annotated[
        str | None,
        typer.Option(metavar="CODES", help="Prix-LM (Single): these triples only, no links."),
    ] = None,
    propagate: Annotated[
        bool | None,
        typer.Option("--propagate", help="Train on facts that links carry over, too."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Times over all facts.")] = None,
    batch: Annotated[int | None, typer.Option(help="Facts in one update.")] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate.")] = None,
    width: Annotated[int | None, typer.Option(help="Of a compact model.")] = None,
    layers: Annotated[int | None, typer.Option(help="Of a compact model.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Pieces of a compact model.")] = None,
    trim: Annotated[
        bool | None, typer.Option("--trim", help="Keep only the pieces that the KB needs.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --trim: text to keep pieces of.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many validations without a better one.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="auto|no|bf16", help="auto: bf16 on a GPU that has it.")
    ] = None,
    tracker: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="tensorboard or wandb.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take, and write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Pretrain a Prix-LM on a KB; a run that was stopped goes on with the same command.

    Example: [b]prixlm pretrain world --to model --preset demo[/b]

    Example: [b]prixlm pretrain kb --base xlm-roberta-base --trim --to model[/b]
    """
    from prixlm.config import changed, read_config
    from prixlm.kb.store import KB
    from prixlm.reports.console import print_run
    from prixlm.reports.plots import read_metrics
    from prixlm.training.estimate import estimate_pretrain
    from prixlm.training.pretrain import PretrainConfig
    from prixlm.training.pretrain import pretrain as run

    preset = preset or ("compact" if base in (None, "compact") else "paper")
    settings = PretrainConfig.preset(preset)
    if config is not None:
        settings = read_config(config, settings)
    kept_text = None if keep is None else str(keep)
    trackers = tuple(tracker) if tracker else None
    flags: dict[str, dict[str, Any]] = {
        "": {"base": base, "epochs": epochs, "batch": batch, "trim": trim, "keep": kept_text},
        "supply": {
            "langs": None if langs is None else codes(langs),
            "propagate": propagate,
            "seed": seed,
        },
        "training": {
            "lr": lr,
            "patience": patience,
            "precision": precision,
            "trackers": trackers,
            "seed": seed,
        },
        "compact": {"width": width, "layers": layers, "vocab": vocab},
    }
    settings = changed(settings, flags)
    if dry_run:
        with progress_bar() as progress:
            estimate = estimate_pretrain(KB(kb), settings, progress)
        if as_json:
            print_json(estimate.as_dict())
        else:
            console().print(estimate.as_text(), markup=False)
        return
    if to is None:
        raise PrixError("--to is missing: name the model folder to make.")
    with progress_bar() as progress:
        model = run(KB(kb), to, settings, progress)
    if int(os.environ.get("RANK", "0")):  # `accelerate launch`: one process speaks
        return
    if as_json:
        print_json(
            {"model": str(to), "trained": model.settings.trained, "metrics": read_metrics(to)}
        )
    else:
        print_run(console(), to, model.settings.trained)


@app.command()
def demo(
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the demo writes.")] = Path(
        "demo"
    ),
    as_json: Json = False,
) -> None:
    """Run the main job on the embedded world KB, from import to a report.

    Example: [b]prixlm demo --to demo[/b]
    """
    from prixlm.demo import LANGUAGES, run_demo
    from prixlm.evaluation.proposals import trial_grids
    from prixlm.reports.console import (
        print_account,
        print_asked,
        print_facts,
        print_kb,
        print_linked,
        print_proposals,
        print_run,
    )
    from prixlm.reports.grids import grid_values, print_grids
    from prixlm.reports.plots import read_metrics

    with progress_bar() as progress:
        found = run_demo(to, progress)
    trained = found.model.settings.trained
    tried = trial_grids([one for one in found.trials if one.subset == "all"])
    if as_json:
        print_json(
            {
                "kb": str(found.kb.folder),
                "trained": trained,
                "metrics": read_metrics(to / "model"),
                "facts": [dataclasses.asdict(one) | {"rank": one.rank} for one in found.facts],
                "names": [dataclasses.asdict(one) | {"rank": one.rank} for one in found.names],
                "proposals": found.manifest,
                "tables": grid_values([*found.hits, *tried]),
                "timings": found.timings,
                "report": str(found.report),
            }
        )
        return
    screen = console()
    print_kb(screen, found.kb)
    print_account(screen, found.kb)
    print_facts(screen, found.kb, list(LANGUAGES))
    print_run(screen, to / "model", trained)
    print_asked(screen, "Hidden facts, which it has not seen", found.facts)
    print_asked(screen, "English names in other languages (links it was trained on)", found.names)
    for mention, answers, entities in found.linked:
        print_linked(screen, mention, answers, entities)
    print_proposals(screen, to / "proposals", found.manifest, most=3)
    print_grids(screen, [*found.hits, *tried])
    seconds = sum(found.timings.values())
    screen.print(f"Took {seconds:.0f} s. The report: {found.report}", markup=False)


for command in (complete, translate, mirror, link, enrich, review, export, report):
    app.command()(command)
app.add_typer(evaluate_app, name="evaluate")
app.add_typer(reproduce_app, name="reproduce")


def main() -> None:
    """The entry point: errors that the user can fix become one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # names in any script, on any terminal
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, _interrupt)
    try:
        app()
    except PrixError as error:
        _fail(str(error))
    except Stopped as stop:
        _fail(f"{stop}; the same command goes on where it stopped.", 128 + stop.signal)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `prixlm stats | head`
        sys.exit(0)
    except OSError as error:
        _fail(f"{error.filename or 'the output'}: {error.strerror or error}.")
    except RuntimeError as error:  # DuckDB's word for Ctrl-C
        if "interrupt" not in str(error).lower():
            raise
        _fail("interrupted; the same command goes on where it stopped.", 130)


def _interrupt(number: int, _frame: object) -> None:
    """Ctrl-C and SIGTERM as an exception of ours: Typer ends without a word on its own."""
    raise Stopped("interrupted", number)


def _fail(message: str, code: int = 2) -> None:
    print("prixlm: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)
