"""`prixlm reproduce`: the paper's tables with every row; trains what is missing and resumes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prixlm.cli.evaluate import KBFolder, print_folder
from prixlm.cli.options import Json, parse_list
from prixlm.cli.terminal import console, print_json, progress_bar
from prixlm.errors import PrixError
from prixlm.files import locked

if TYPE_CHECKING:
    from prixlm.reports.tables import ResultTable

AnyKB = Annotated[Path, typer.Option("--kb", metavar="KB", help="A KB folder with links.")]
Target = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of all models and tables.")]
Base = Annotated[
    str, typer.Option(metavar="NAME", help="compact, xlm-roberta-base, mBERT or a folder.")
]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings in TOML; they override --base.")
]


def reproduce_lp(
    kb: KBFolder,
    to: Target,
    rows: Annotated[
        str | None,
        typer.Option(metavar="KEYS", help="Only these: pairs,graph,checkpoints,unseen-keep."),
    ] = None,
    base: Base = "compact",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """The link-prediction table; run the same command again to resume.

    Example: [b]prixlm reproduce lp --kb dbp5l --to table[/b]
    """
    from prixlm.evaluation.link_prediction import result_tables
    from prixlm.evaluation.reproduce import ReproduceConfig
    from prixlm.evaluation.reproduce import reproduce_lp as run
    from prixlm.kb.store import KB
    from prixlm.reports.console import print_tables

    settings = _settings(ReproduceConfig, base, config)
    wanted = None if rows is None else parse_list(rows)
    source = KB(kb)
    with progress_bar() as progress, locked(to):
        results = run(source, to, settings, wanted, progress)
    if as_json:
        print_json([result.to_json() for result in results])
        return
    if results:
        print_tables(console(), result_tables(results))
    print_folder(to)


def reproduce_xel(
    kb: AnyKB,
    to: Target,
    names: Annotated[
        Path | None, typer.Option(metavar="FILE", help="XL-BEL's names, for a table of files too.")
    ] = None,
    queries: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="XL-BEL's mentions (fi_*.txt); may be repeated."),
    ] = None,
    base: Base = "compact",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """The linking table, on withheld links; run the same command again to resume.

    Example: [b]prixlm reproduce xel --kb dbp5l --to table[/b]
    """
    if (names is None) != (not queries):
        raise PrixError("--names requires --queries, and --queries requires --names.")
    from prixlm.evaluation.entity_linking import read_tasks_by_language
    from prixlm.evaluation.reproduce_names import NamesConfig
    from prixlm.evaluation.reproduce_names import reproduce_xel as run
    from prixlm.kb.store import KB

    files = {} if names is None else read_tasks_by_language(names, queries or [])
    settings = _settings(NamesConfig, base, config)
    source = KB(kb)
    with progress_bar() as progress, locked(to):
        tables = run(source, to, settings, files, progress)
    _show(tables, to, as_json)


def reproduce_bli(
    kb: AnyKB,
    to: Target,
    dictionaries: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="A folder for each pair (en-it), with a *train* and a *test* file.",
        ),
    ],
    base: Base = "compact",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """The lexicon-induction table; run the same command again to resume.

    Example: [b]prixlm reproduce bli --kb dbp5l --to table --dictionaries bli[/b]
    """
    from prixlm.evaluation.lexicons import read_folder
    from prixlm.evaluation.reproduce_names import NamesConfig
    from prixlm.evaluation.reproduce_names import reproduce_bli as run
    from prixlm.kb.store import KB

    settings = _settings(NamesConfig, base, config)
    source, pairs = KB(kb), read_folder(dictionaries)
    with progress_bar() as progress, locked(to):
        tables = run(source, to, pairs, settings, progress)
    _show(tables, to, as_json)


def reproduce_probe(
    kb: AnyKB,
    to: Target,
    prompts: Annotated[
        Path, typer.Option(metavar="FOLDER", help="BMLAMA's TSVs, named by language: en.tsv.")
    ],
    base: Base = "compact",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """The probing table; run the same command again to resume.

    Example: [b]prixlm reproduce probe --kb dbp5l --to table --prompts bmlama53[/b]
    """
    from prixlm.evaluation.probing import read_bmlama_folder
    from prixlm.evaluation.reproduce_names import NamesConfig
    from prixlm.evaluation.reproduce_names import reproduce_probe as run
    from prixlm.kb.store import KB

    settings = _settings(NamesConfig, base, config)
    source, asked = KB(kb), read_bmlama_folder(prompts)
    with progress_bar() as progress, locked(to):
        tables = run(source, to, asked, settings, progress)
    _show(tables, to, as_json)


def _settings(kind: Any, base: str, config: Path | None) -> Any:
    """Return the settings of a table for a base model, with what a file sets instead."""
    from prixlm.config import read_config

    settings = kind.of_base(base)
    return settings if config is None else read_config(config, settings)


def _show(tables: "Sequence[ResultTable]", to: Path, as_json: bool) -> None:
    """Print tables that the library has written to a folder."""
    from prixlm.reports.console import print_tables
    from prixlm.reports.tables import tables_to_json

    if as_json:
        print_json(tables_to_json(tables))
        return
    print_tables(console(), tables)
    print_folder(to)


# The order is that of `prixlm reproduce --help`.
TABLES: dict[str, Callable[..., None]] = {
    "lp": reproduce_lp,
    "xel": reproduce_xel,
    "bli": reproduce_bli,
    "probe": reproduce_probe,
}
reproduce_app = typer.Typer(
    help="Make the paper's tables with every row; train what is missing.", no_args_is_help=True
)
for _name, _command in TABLES.items():
    reproduce_app.command(_name)(_command)
