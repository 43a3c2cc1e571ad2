"""The command line: the table of commands, the global options, and how errors end.

Each command parses its options, makes one library call and prints. Results go to stdout (`--json`
prints them for machines), progress and notes go to stderr. An error that the user can fix is one
line on stderr and exit code 2. Commands import what they need when they run, so that
`prixlm --help` answers at once.
"""

import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from prixlm.cli import ask, demo, enrich, kb, serve, train
from prixlm.cli.evaluate import evaluate_app
from prixlm.cli.options import Command
from prixlm.cli.reproduce import reproduce_app
from prixlm.cli.terminal import print_note
from prixlm.errors import PrixError, Stopped, missing_extra
from prixlm.files import damage_message
from prixlm.threads import share_cores
from prixlm.untrusted import log_to_stderr

# The order is that of `prixlm --help`.
COMMANDS: dict[str, Callable[..., None]] = {
    "import": kb.import_,
    "stats": kb.stats,
    "split": kb.split,
    "pretrain": train.pretrain,
    "mirror": train.mirror,
    "graph": train.graph,
    "complete": ask.complete,
    "translate": ask.translate,
    "link": ask.link,
    "enrich": enrich.enrich,
    "review": enrich.review,
    "sample": enrich.sample,
    "export": enrich.export,
    "report": enrich.report,
    "serve": serve.serve,
    "mcp": serve.mcp,
    "demo": demo.demo,
}
GROUPS = {"evaluate": evaluate_app, "reproduce": reproduce_app}
_RESUME = "run the same command again to resume."

# typer has click as a dependency or inside, depending on its version: take the class from there.
_Refused: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class _Commands(TyperGroup):
    """The commands; an argument that cannot be parsed is an error like any other, in one line."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command and exit."""
        try:
            code = super().main(*args, **(extra | {"standalone_mode": False}))
        except _Refused as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed
                sys.exit(error.exit_code)
            context = getattr(error, "ctx", None)
            path = "prixlm" if context is None else context.command_path
            raise PrixError(f"{error.format_message()} See `{path} --help`.") from None
        if extra.get("standalone_mode") is False:
            return code
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    cls=_Commands,
    help="Build and complete multilingual knowledge bases with a language model (Prix-LM).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _name, _command in COMMANDS.items():
    app.command(_name, cls=Command)(_command)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


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


def main() -> None:
    """Run the command line; turn errors that the user can fix into one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names come in any script; a terminal that lacks a character gets a `?`.
            stream.reconfigure(errors="replace")
    log_to_stderr()
    share_cores(os.environ)  # before a command imports torch
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, _stop)
    try:
        app()
    except PrixError as error:
        _fail(str(error), error.code)
    except Stopped as stop:
        _fail(f"{stop}; {_RESUME}", 128 + stop.signal)
    except ModuleNotFoundError as error:
        hint = missing_extra(error)
        if hint is None:
            raise
        _fail(hint)
    except BrokenPipeError:
        # `prixlm stats | head` closes stdout early. Python flushes it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        damage = damage_message(error)
        if damage is not None:
            _fail(damage)
        if isinstance(error, OSError):
            _fail(f"{error.filename or 'the output'}: {error.strerror or error}.")
        if isinstance(error, RuntimeError) and "interrupt" in str(error).lower():
            _fail(f"interrupted; {_RESUME}", 130)  # DuckDB reports Ctrl-C in this way
        raise


def _stop(number: int, _frame: object) -> None:
    """Raise our own exception on Ctrl-C and SIGTERM: Typer would exit without a message."""
    raise Stopped("interrupted", number)


def _fail(message: str, code: int = 2) -> None:
    print_note(message)
    sys.exit(code)
