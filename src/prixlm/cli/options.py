"""Options that several commands share, declared once so that their help texts agree.

An option of one command only is declared in the signature of that command.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from prixlm.errors import PrixError

if TYPE_CHECKING:
    from prixlm.engine.jobs import EngineConfig

MOST = 2**31 - 1
"""The largest whole number that an option may have: arrays and generators take no larger ones."""


class Command(TyperCommand):
    """A command that refuses whole numbers which nothing behind it could hold."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options, and check their numbers."""
        rest = super().parse_args(ctx, args)
        for name, value in ctx.params.items():
            if isinstance(value, int) and not isinstance(value, bool):
                least = 0 if name == "seed" else -MOST
                if not least <= value <= MOST:
                    option = f"--{name.replace('_', '-')}"
                    raise PrixError(f"{option} {value}: expected a number from {least} to {MOST}.")
        return rest


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what it would take, and write nothing.")
]
Overwrite = Annotated[bool, typer.Option(help="Replace the folder if it exists.")]
Langs = Annotated[
    str | None,
    typer.Option(
        metavar="CODES", help="Languages, such as [i]en,fi,zh[/i]; [i]all[/i]; or [i]paper[/i]."
    ),
]
ImportFormat = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="wikidata, dbpedia, rdf, table, benchmark, authors or world; "
        "recognised from the files if not given.",
    ),
]
Memory = Annotated[
    str, typer.Option(metavar="SIZE", help="Memory limit of the joins; they spill to disk.")
]
MinConfidence = Annotated[float, typer.Option(help="Lowest confidence, from 0 to 1.")]

KBArgument = Annotated[Path, typer.Argument(metavar="KB", help="A KB folder.")]
ProposalsArgument = Annotated[
    Path, typer.Argument(metavar="PROPOSALS", help="A folder made by `prixlm enrich`.")
]
ModelOption = Annotated[
    Path | None, typer.Option("--model", metavar="FOLDER", help="A Prix-LM trained on this KB.")
]
Mask = Annotated[
    str | None,
    typer.Option(
        metavar="prefix|causal|released",
        help="Read the model with another mask; released: as the authors' code.",
    ),
]
GraphOption = Annotated[
    Path | None,
    typer.Option("--graph", metavar="FOLDER", help="A graph embedding of this KB."),
]

Engine = Annotated[
    str, typer.Option(metavar="NAME", help="Where it runs: local or ray (see --address).")
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="The Ray cluster, or [i]auto[/i] on one of its machines; without it, Ray is started "
        "here.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Worker processes, of one thread each. Not given: one process with all threads; "
        "on Ray, one per CPU."
    ),
]
GpusPerWorker = Annotated[float, typer.Option(help="GPUs of each worker.")]

# Training: a flag that is not given leaves the value of the preset or of the TOML file.
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings in TOML; flags override them."),
]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training data.")]
LearningRate = Annotated[float | None, typer.Option("--lr", help="Highest learning rate.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the run.")]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        metavar="POINTS", help="Checkpoints to keep: shares of the run or steps, as 0,20k,150k,1."
    ),
]


def parse_list(text: str) -> list[str]:
    """Return the values of a comma-separated option, without empty ones."""
    return [value.strip() for value in text.split(",") if value.strip()]


def parse_codes(langs: str) -> tuple[str, ...]:
    """Return the language codes of a comma-separated option; refuse unknown codes."""
    from prixlm.languages import parse_languages

    return parse_languages(parse_list(langs))


def parse_points(points: str | None) -> tuple[float, ...] | None:
    """Return the points of a run that an option names; None if it was not given."""
    from prixlm.training.checkpoints import parse_point

    return None if points is None else tuple(map(parse_point, parse_list(points)))


def parse_engine(
    engine: str, address: str | None, workers: int | None, gpus_per_worker: float = 0.0
) -> "EngineConfig":
    """Return where a command runs."""
    from prixlm.engine.jobs import EngineConfig

    kind: Any = engine  # the config refuses any other word
    return EngineConfig(
        kind=kind, address=address, workers=workers, gpus_per_worker=gpus_per_worker
    )
