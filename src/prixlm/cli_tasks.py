"""The commands of the paper's tasks: `evaluate` ranks with what there is, `reproduce` trains it.

As in `cli`: each command parses, makes one library call and prints.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from prixlm.errors import PrixError
from prixlm.terminal import console, print_json, progress_bar

evaluate_app = typer.Typer(help="One of the paper's tasks, on your data.", no_args_is_help=True)
reproduce_app = typer.Typer(
    help="The paper's tables, every row: trains what is missing, skips what is there.",
    no_args_is_help=True,
)
KBFolder = Annotated[
    Path, typer.Option("--kb", metavar="KB", help="A KB folder with test triples.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@evaluate_app.callback()
def _evaluate() -> None:
    """One of the paper's tasks, on your data."""


@reproduce_app.callback()
def _reproduce() -> None:
    """The paper's tables, every row."""


@evaluate_app.command("lp")
def evaluate_lp(
    kb: KBFolder,
    model: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="A Prix-LM; may be repeated.")
    ] = None,
    graph: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="A graph embedding of ours.")
    ] = None,
    baseline: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="One of PyKEEN's.")
    ] = None,
    fuse: Annotated[
        bool, typer.Option("--fuse", help="Also all of them together, fitted on valid facts.")
    ] = False,
    langs: Annotated[
        str | None, typer.Option(metavar="CODES", help="Languages; all with such facts if none.")
    ] = None,
    split: Annotated[str, typer.Option(help="test or valid.")] = "test",
    most: Annotated[
        int | None, typer.Option(metavar="N", help="A sample of N facts of each language.")
    ] = None,
    search: Annotated[
        str, typer.Option(help="beam (the paper's, Hits@10) or exact (MRR too) for a Prix-LM.")
    ] = "beam",
    by_name: Annotated[
        bool, typer.Option("--by-name", help="Rank names, as the released code does.")
    ] = False,
    relations: Annotated[
        int, typer.Option(metavar="N", help="Also the N most frequent relations, one by one.")
    ] = 0,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write table.md, .json, .png and every answer here."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Link prediction: the missing object of held-out facts, among all entities of a language.

    Facts carried along links, which need no model, are always rows.

    Example: [b]prixlm evaluate lp --kb split --model model --most 200[/b]
    """
    from prixlm.evaluation import EvaluateConfig, evaluate_rankers
    from prixlm.kb.store import KB
    from prixlm.languages import parse_languages
    from prixlm.results import print_rows, row_values

    config = EvaluateConfig(
        models=tuple(model or ()),
        graphs=tuple(graph or ()),
        baselines=tuple(baseline or ()),
        fuse=fuse,
        langs=parse_languages(langs.split(",")) if langs else None,
        split=split,
        most=most,
        search=search,
        by_name=by_name,
        relations=relations,
    )
    with progress_bar() as progress:
        rows, breakdown = evaluate_rankers(KB(kb), config, to, progress)
    if as_json:
        print_json({"rows": [row_values(row) for row in rows], "relations": breakdown})
        return
    screen = console()
    print_rows(screen, rows)
    print_rows(screen, rows, metrics=("mrr",), subsets=("no transfer", "no inverse"))
    for title, part in breakdown.items():
        _print_relations(screen, title, part)
    if to is not None:
        screen.print(f"Written to {to}.", markup=False)


def _print_relations(screen: Any, title: str, part: dict[str, dict[str, float | None]]) -> None:
    from rich.table import Table

    from prixlm.report import shown

    table = Table(title=shown(f"{title}, by relation"), title_style="bold")
    for name in ("relation", "facts", "Hits@1", "Hits@10", "MRR"):
        table.add_column(name, justify="left" if name == "relation" else "right")
    for relation, values in part.items():
        found = [values[key] for key in ("hits_1", "hits_10", "mrr")]
        shares = ["–" if value is None else f"{100 * value:.1f}" for value in found]
        table.add_row(shown(relation), f"{values['number']:,}", *shares)
    screen.print(table)


@reproduce_app.command("lp")
def reproduce_lp(
    kb: KBFolder,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where everything is written.")],
    rows: Annotated[
        str | None, typer.Option(metavar="KEYS", help="Some rows only, such as pairs,graph.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="compact, xlm-roberta-base, mBERT or a folder."),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings in TOML.")] = None,
    as_json: Json = False,
) -> None:
    """Every row of the link-prediction table; a run that was stopped goes on.

    Example: [b]prixlm reproduce lp --kb dbp5l --to table[/b]
    """
    import dataclasses

    from prixlm.configs import read_config
    from prixlm.kb.store import KB
    from prixlm.pretrain import PretrainConfig
    from prixlm.reproduce import ReproduceConfig
    from prixlm.reproduce import reproduce_lp as run
    from prixlm.results import print_rows, row_values

    settings = ReproduceConfig()
    if base not in (None, "compact"):
        paper = dataclasses.replace(PretrainConfig(), base=str(base))
        settings = dataclasses.replace(
            settings,
            pretrain=paper,
            propagate_epochs=paper.epochs,
            single_epochs=3 * paper.epochs,
            unseen_epochs=paper.epochs,
        )
    if config is not None:
        settings = read_config(config, settings)
    wanted = None if rows is None else [key for key in rows.split(",") if key]
    if wanted == []:
        raise PrixError("--rows names nothing: leave it out for all rows.")
    with progress_bar() as progress:
        found = run(KB(kb), to, settings, wanted, progress)
    if as_json:
        print_json([row_values(row) for row in found])
        return
    print_rows(console(), found)
    console().print(f"Written to {to}.", markup=False)
