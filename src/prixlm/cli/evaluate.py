"""`prixlm evaluate`: one of the paper's tasks, or the main job, with what there is.

As in `cli`: each command parses, makes one library call and prints.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from prixlm.cli.terminal import Json, console, print_json, progress_bar
from prixlm.errors import PrixError

evaluate_app = typer.Typer(help="One of the paper's tasks, on your data.", no_args_is_help=True)
KBFolder = Annotated[
    Path, typer.Option("--kb", metavar="KB", help="A KB folder with test triples.")
]


@evaluate_app.callback()
def _evaluate() -> None:
    """One of the paper's tasks, on your data."""


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
    from prixlm.evaluation.rank import EvaluateConfig, evaluate_rankers
    from prixlm.kb.store import KB
    from prixlm.languages import parse_languages
    from prixlm.reports.tables import print_rows, row_values

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


Folders = Annotated[
    list[Path] | None, typer.Option(metavar="FOLDER", help="An entity encoder; may be repeated.")
]
To = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Write the table here, as Markdown and JSON.")
]


@evaluate_app.command("xel")
def evaluate_xel(
    encoder: Folders = None,
    kb: Annotated[
        Path | None,
        typer.Option(metavar="KB", help="A split whose hidden links are to be found."),
    ] = None,
    into: Annotated[
        str, typer.Option(metavar="CODE", help="The entities' language, in a KB.")
    ] = "en",
    langs: Annotated[
        str | None, typer.Option(metavar="CODES", help="Languages of the mentions, in a KB.")
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="A Prix-LM whose decoder translates, in a KB."),
    ] = None,
    names: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names of entities, instead of a KB.")
    ] = None,
    queries: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Mentions, with --names; may be repeated."),
    ] = None,
    format: Annotated[str, typer.Option(help="Of the files: xlbel or lrxel.")] = "xlbel",
    split: Annotated[str, typer.Option(help="Of the hidden links: test or valid.")] = "test",
    most: Annotated[
        int | None, typer.Option(metavar="N", help="A sample of N mentions a language, in a KB.")
    ] = None,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Entity linking: mentions in one language, entities named in another. String similarity is
    always a row.

    Example: [b]prixlm evaluate xel --kb split --encoder encoder --into en[/b]
    """
    if (kb is None) == (names is None) or (names is None) != (not queries):
        raise PrixError("name a KB whose links are hidden, or --names with --queries.")
    if names is not None and model:
        raise PrixError("--model translates into the names of a KB: leave it out with --names.")
    from prixlm.entities.encoder import EntityEncoder
    from prixlm.evaluation.entity_linking import EncoderScorer, FuzzyScorer, read_tasks
    from prixlm.evaluation.spaces import Translation, check_hidden, evaluate_linking, hidden_tasks
    from prixlm.kb.store import KB
    from prixlm.languages import parse_languages

    with progress_bar() as progress:
        found = {title: EntityEncoder.load(x) for title, x in _titled(encoder or []).items()}
        ways: list[Any] = [FuzzyScorer()]
        ways += [EncoderScorer(one, title) for title, one in found.items()]
        if kb is not None:
            source = KB(kb)
            asked = parse_languages(langs.split(",")) if langs else None
            tasks = hidden_tasks(source, into, asked, split, most)
            for title, one in found.items():
                check_hidden(source, one.model, title)
            for title, folder in _titled(model or []).items():
                ways.append(Translation(folder, source, into, f"translate {title}"))
                check_hidden(source, ways[-1].completer.model, title)
        else:
            assert names is not None
            tasks = read_tasks(names, _titled(queries or []), format)
        grids = evaluate_linking(tasks, ways, progress)
    show_grids(grids, "xel", to, as_json)


@evaluate_app.command("bli")
def evaluate_bli(
    train: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="A dictionary to learn from; may be repeated."),
    ],
    test: Annotated[
        list[Path], typer.Option(metavar="FILE", help="Its test dictionary, in the same order.")
    ],
    encoder: Folders = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="CODES", help="Target languages, for frequent words as candidates."),
    ] = None,
    frequent: Annotated[int, typer.Option(help="So many frequent words.")] = 50_000,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Bilingual lexicon induction: translations of words, by VecMap and CSLS. String similarity is
    always a row.

    Example: [b]prixlm evaluate bli --encoder encoder --train en-it.train --test en-it.test[/b]
    """
    if frequent < 0:
        raise PrixError(f"--frequent {frequent}: expected 0 or more.")
    codes = target.split(",") if target else [None] * len(train)
    if not encoder:
        raise PrixError("name an encoder: --encoder FOLDER, made with `prixlm mirror`.")
    if not len(train) == len(test) == len(codes):
        raise PrixError(
            f"{len(train)} files to learn from, {len(test)} to test and {len(codes)} target "
            "languages: expected as many of each."
        )
    from prixlm.entities.encoder import EntityEncoder
    from prixlm.evaluation.lexicons import read_dictionaries
    from prixlm.evaluation.spaces import evaluate_lexicons

    titles = _titled(test)
    dictionaries = {
        title: (read_dictionaries(a, b), code)
        for (title, b), a, code in zip(titles.items(), train, codes, strict=True)
    }
    with progress_bar() as progress:
        encoders = {title: EntityEncoder.load(path) for title, path in _titled(encoder).items()}
        grids = evaluate_lexicons(encoders, dictionaries, frequent, progress)
    show_grids(grids, "bli", to, as_json)


@evaluate_app.command("probe")
def evaluate_probe(
    model: Annotated[
        list[Path],
        typer.Option(metavar="FOLDER", help="A Prix-LM, XLM-R or mBERT; may be repeated."),
    ],
    prompts: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="BMLAMA's TSV, named by its language: en.tsv."),
    ] = None,
    mlama: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="mLAMA's folder, instead of TSVs.")
    ] = None,
    langs: Annotated[
        str | None, typer.Option(metavar="CODES", help="Languages of mLAMA's folder.")
    ] = None,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Knowledge probing: prompts with a blank.

    Example: [b]prixlm evaluate probe --model model --prompts en.tsv --prompts fi.tsv[/b]
    """
    if (mlama is None) == (not prompts):
        raise PrixError("name TSV files with --prompts, or a folder with --mlama.")
    from prixlm.entities.encoder import load_model
    from prixlm.evaluation.probing import read_bmlama, read_mlama
    from prixlm.evaluation.spaces import evaluate_probing

    if mlama is not None:
        codes = (
            langs.split(",")
            if langs
            else sorted(p.parent.name for p in mlama.glob("*/templates.jsonl"))
        )
        if not codes:
            raise PrixError(f"{mlama} has no LANG/templates.jsonl: expected mLAMA's layout.")
        asked = {code: read_mlama(mlama, code) for code in codes}
    else:
        asked = {}
        for path in prompts or []:
            asked[once(asked, path.stem)] = read_bmlama(path)
    with progress_bar() as progress:
        models = {title: load_model(path) for title, path in _titled(model).items()}
        grids, found = evaluate_probing(models, asked, progress)
    show_grids(grids, "probe", to, as_json)
    for title, parts in found.items():
        for lang, part in parts.items():
            for why, number in part.problems.items():
                typer.echo(f"{title}, {lang}: {number} left out: {why}", err=True)


@evaluate_app.command("enrich")
def evaluate_enrich(
    kb: KBFolder,
    langs: Annotated[str, typer.Option(metavar="CODES", help="Languages.")],
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A Prix-LM trained on this KB.")
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A graph embedding of this KB.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(metavar="N", help="A sample of N test facts a language.")
    ] = None,
    to: To = None,
    as_json: Json = False,
) -> None:
    """How far proposals can be believed: test facts asked for as `enrich` would ask.

    Example: [b]prixlm evaluate enrich --kb split --model model --langs et,te[/b]
    """
    from prixlm.evaluation.proposals import (
        reliability_curves,
        save_trials,
        trial_grids,
        try_enrichment,
    )
    from prixlm.kb.store import KB
    from prixlm.languages import parse_languages
    from prixlm.reports.plots import plot_reliability

    if most is not None and most < 1:
        raise PrixError(f"--most {most}: expected 1 or more.")
    with progress_bar() as progress:
        codes = parse_languages(langs.split(","))
        trials = try_enrichment(KB(kb), codes, model, graph, most=most, progress=progress)
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
        save_trials(trials, to / "trials.json")
        plot_reliability(reliability_curves(trials), to / "reliability.png")
    show_grids(trial_grids(trials), "enrich", to, as_json)


def once(found: Any, name: str) -> str:
    if name in found:
        raise PrixError(f"two files of {name}: pass one for each language.")
    return name


def _titled(folders: list[Path]) -> dict[str, Path]:
    """Paths by the shortest end that tells them apart."""
    if len(set(folders)) < len(folders):
        raise PrixError(f"{max(folders, key=folders.count)} is given twice.")
    for parts in range(1, 1 + max((len(path.parts) for path in folders), default=1)):
        titles = {"/".join(path.parts[-parts:]): path for path in folders}
        if len(titles) == len(folders):
            break
    return titles


def show_grids(grids: Any, name: str, to: Path | None, as_json: bool) -> None:
    from prixlm.reports.grids import grid_values, print_grids, write_grids

    if to is not None:
        write_grids(to, name, grids)
    if as_json:
        print_json(grid_values(grids))
        return
    print_grids(console(), grids)
    if to is not None:
        console().print(f"Written to {to}.", markup=False)


def _print_relations(screen: Any, title: str, part: dict[str, dict[str, float | None]]) -> None:
    from rich.table import Table

    from prixlm.reports.console import shown

    table = Table(title=shown(f"{title}, by relation"), title_style="bold")
    for name in ("relation", "facts", "Hits@1", "Hits@10", "MRR"):
        table.add_column(name, justify="left" if name == "relation" else "right")
    for relation, values in part.items():
        found = [values[key] for key in ("hits_1", "hits_10", "mrr")]
        shares = ["–" if value is None else f"{100 * value:.1f}" for value in found]
        table.add_row(shown(relation), f"{values['number']:,}", *shares)
    screen.print(table)
