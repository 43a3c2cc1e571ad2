"""`prixlm reproduce`: the paper's tables, every row; trains what is missing, skips what is there.

As in `cli`: each command parses, makes one library call and prints.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from prixlm.cli.evaluate import KBFolder, once, show_grids
from prixlm.cli.terminal import Json, console, print_json, progress_bar
from prixlm.errors import PrixError

reproduce_app = typer.Typer(
    help="The paper's tables, every row: trains what is missing, skips what is there.",
    no_args_is_help=True,
)


Target = Annotated[Path, typer.Option(metavar="FOLDER", help="Where everything is written.")]
Base = Annotated[
    str, typer.Option(metavar="NAME", help="compact, xlm-roberta-base, mBERT or a folder.")
]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings in TOML; they come after --base.")
]


@reproduce_app.callback()
def _reproduce() -> None:
    """The paper's tables, every row."""


@reproduce_app.command("lp")
def reproduce_lp(
    kb: KBFolder,
    to: Target,
    rows: Annotated[
        str | None,
        typer.Option(metavar="KEYS", help="Some only: pairs,graph,checkpoints,unseen-keep."),
    ] = None,
    base: Base = "compact",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Every row of the link-prediction table; a run that was stopped goes on.

    Example: [b]prixlm reproduce lp --kb dbp5l --to table[/b]
    """
    from prixlm.evaluation.reproduce import ReproduceConfig
    from prixlm.evaluation.reproduce import reproduce_lp as run
    from prixlm.kb.store import KB
    from prixlm.reports.tables import print_rows, row_values

    settings = _settings(ReproduceConfig, base, config)
    wanted = None if rows is None else [key for key in rows.split(",") if key]
    if wanted == []:
        raise PrixError("--rows names nothing: leave it out for all rows.")
    with progress_bar() as progress:
        found = run(KB(kb), to, settings, wanted, progress)
    if as_json:
        print_json([row_values(row) for row in found])
        return
    if found:
        print_rows(console(), found)
    console().print(f"Written to {to}.", markup=False)


@reproduce_app.command("xel")
def reproduce_xel(
    kb: Annotated[Path, typer.Option("--kb", metavar="KB", help="A KB folder with links.")],
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
    """Every row of the linking table, on links that are hidden first; goes on after a stop.

    Example: [b]prixlm reproduce xel --kb dbp5l --to table[/b]
    """
    if (names is None) != (not queries):
        raise PrixError("--names goes with --queries.")
    from prixlm.evaluation.entity_linking import read_tasks
    from prixlm.evaluation.reproduce_names import SpacesConfig
    from prixlm.evaluation.reproduce_names import reproduce_xel as run
    from prixlm.kb.store import KB

    paths: dict[str, Path | str] = {}
    for path in queries or []:
        paths[once(paths, path.name.split("_")[0].split(".")[0])] = path
    files = read_tasks(names, paths) if names is not None else {}
    with progress_bar() as progress:
        grids = run(KB(kb), to, _settings(SpacesConfig, base, config), files, progress)
    _show_reproduced(grids, to, as_json)


@reproduce_app.command("bli")
def reproduce_bli(
    kb: Annotated[Path, typer.Option("--kb", metavar="KB", help="A KB folder.")],
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
    """Every row of the lexicon-induction table; goes on after a stop.

    Example: [b]prixlm reproduce bli --kb dbp5l --to table --dictionaries bli[/b]
    """
    from prixlm.evaluation.lexicons import read_folder
    from prixlm.evaluation.reproduce_names import SpacesConfig
    from prixlm.evaluation.reproduce_names import reproduce_bli as run
    from prixlm.kb.store import KB

    with progress_bar() as progress:
        grids = run(
            KB(kb), to, read_folder(dictionaries), _settings(SpacesConfig, base, config), progress
        )
    _show_reproduced(grids, to, as_json)


@reproduce_app.command("probe")
def reproduce_probe(
    kb: Annotated[Path, typer.Option("--kb", metavar="KB", help="A KB folder.")],
    to: Target,
    prompts: Annotated[
        Path, typer.Option(metavar="FOLDER", help="BMLAMA's TSVs, named by language: en.tsv.")
    ],
    base: Base = "compact",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Every row of the probing table; goes on after a stop.

    Example: [b]prixlm reproduce probe --kb dbp5l --to table --prompts bmlama53[/b]
    """
    from prixlm.evaluation.probing import read_bmlama
    from prixlm.evaluation.reproduce_names import SpacesConfig
    from prixlm.evaluation.reproduce_names import reproduce_probe as run
    from prixlm.kb.store import KB

    files = sorted(prompts.glob("*.tsv"))
    if not files:
        raise PrixError(f"{prompts} has no .tsv file: expected one for each language, en.tsv.")
    asked = {path.stem: read_bmlama(path) for path in files}
    with progress_bar() as progress:
        grids = run(KB(kb), to, asked, _settings(SpacesConfig, base, config), progress)
    _show_reproduced(grids, to, as_json)


def _settings(kind: Any, base: str, config: Path | None) -> Any:
    """The settings of a table for a model to start from, and what a file says otherwise."""
    from prixlm.config import read_config

    settings = kind.of_base(base)
    return settings if config is None else read_config(config, settings)


def _show_reproduced(grids: Any, to: Path, as_json: bool) -> None:
    show_grids(grids, "", None, as_json)
    if not as_json:
        console().print(f"Written to {to}.", markup=False)
