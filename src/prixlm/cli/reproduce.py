"""`prixlm reproduce`: the paper's tables with every row; trains what is missing and resumes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prixlm.cli.evaluate import KBFolder, print_folder
from prixlm.cli.options import Checkpoints, Command, Json, parse_codes, parse_list, parse_points
from prixlm.cli.terminal import console, print_json, progress_bar
from prixlm.errors import PrixError
from prixlm.files import locked

if TYPE_CHECKING:
    from prixlm.evaluation.entity_linking import LinkingTask
    from prixlm.evaluation.probing.prompts import Prompts as LanguagePrompts
    from prixlm.reports.tables import ResultTable

AnyKB = Annotated[Path, typer.Option("--kb", metavar="KB", help="A KB folder with links.")]
Target = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of all models and tables.")]
Base = Annotated[
    str, typer.Option(metavar="NAME", help="compact, xlm-roberta-base, mBERT or a folder.")
]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings in TOML; they override --base.")
]
Words = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Mirror's words, one per line; the paper's: en_words_top_10k.txt."
    ),
]
Names = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Names of entities, for mentions in files.")
]
Queries = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="Mentions (XL-BEL: fi_*.txt; LR-XEL: *en-te_links); may be repeated."
    ),
]
Format = Annotated[
    str, typer.Option(metavar="xlbel|lrxel", help="With --names: the layout of the files.")
]
Prompts = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="BMLAMA's TSVs, named by language: en.tsv.")
]
Mlama = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="mLAMA's folder (mlama1.1), instead of TSVs.")
]
MlamaLangs = Annotated[
    str | None,
    typer.Option(
        "--langs", metavar="CODES", help="With --mlama: its languages; paper-probe: the paper's."
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        metavar="POINT",
        help="The checkpoint to ask: a step, as 150k, or a share of the run, as 0.75.",
    ),
]


def reproduce_lp(
    kb: KBFolder,
    to: Target,
    rows: Annotated[
        str | None,
        typer.Option(metavar="KEYS", help="Only these: pairs,graph,checkpoints,unseen-paper."),
    ] = None,
    langs: Annotated[
        str | None,
        typer.Option(
            metavar="CODES", help="Of rows with a model for each language: these languages only."
        ),
    ] = None,
    base: Base = "compact",
    config: Config = None,
    checkpoints: Checkpoints = None,
    as_json: Json = False,
) -> None:
    """The link-prediction table; run the same command again to resume.

    Example: [b]prixlm reproduce lp --kb dbp5l --to table[/b]
    """
    from prixlm.evaluation.reproduce import ReproduceConfig
    from prixlm.evaluation.reproduce import reproduce_lp as run
    from prixlm.kb.store import KB
    from prixlm.reports.console import print_tables
    from prixlm.reports.ranker_results import result_tables

    settings = _settings(ReproduceConfig, base, config, checkpoints)
    wanted = None if rows is None else parse_list(rows)
    source = KB(kb)
    with progress_bar() as progress, locked(to):
        codes = None if langs is None else parse_codes(langs)
        results = run(source, to, settings, wanted, progress, langs=codes)
    if as_json:
        print_json([result.to_json() for result in results])
        return
    if results:
        print_tables(console(), result_tables(results))
    print_folder(to)


def reproduce_xel(
    kb: AnyKB,
    to: Target,
    names: Names = None,
    queries: Queries = None,
    format: Format = "xlbel",
    words: Words = None,
    base: Base = "compact",
    config: Config = None,
    checkpoints: Checkpoints = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """The linking table, on withheld links; run the same command again to resume.

    Example: [b]prixlm reproduce xel --kb dbp5l --to table[/b]
    """
    from prixlm.evaluation.reproduce_names import NamesConfig
    from prixlm.evaluation.reproduce_names import reproduce_xel as run
    from prixlm.kb.store import KB

    files = _files(names, queries, format)
    settings = _settings(NamesConfig, base, config, checkpoints, words, linking_at=at)
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
            help="For each pair of languages (en-it) a *train* and a *test* file.",
        ),
    ],
    words: Words = None,
    base: Base = "compact",
    config: Config = None,
    checkpoints: Checkpoints = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """The lexicon-induction table; run the same command again to resume.

    Example: [b]prixlm reproduce bli --kb dbp5l --to table --dictionaries bli[/b]
    """
    from prixlm.evaluation.lexicons import read_folder
    from prixlm.evaluation.reproduce_names import NamesConfig
    from prixlm.evaluation.reproduce_names import reproduce_bli as run
    from prixlm.kb.store import KB

    settings = _settings(NamesConfig, base, config, checkpoints, words, linking_at=at)
    source, pairs = KB(kb), read_folder(dictionaries)
    with progress_bar() as progress, locked(to):
        tables = run(source, to, pairs, settings, progress)
    _show(tables, to, as_json)


def reproduce_probe(
    kb: AnyKB,
    to: Target,
    prompts: Prompts = None,
    mlama: Mlama = None,
    langs: MlamaLangs = None,
    base: Base = "compact",
    config: Config = None,
    checkpoints: Checkpoints = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """The probing table; run the same command again to resume.

    Example: [b]prixlm reproduce probe --kb dbp5l --to table --prompts bmlama53[/b]
    """
    from prixlm.evaluation.reproduce_names import NamesConfig
    from prixlm.evaluation.reproduce_names import reproduce_probe as run
    from prixlm.kb.store import KB

    asked = _prompts(prompts, mlama, langs)
    if asked is None:
        raise PrixError("name a folder of TSVs with --prompts, or mLAMA's with --mlama.")
    settings = _settings(NamesConfig, base, config, checkpoints, probing_at=at)
    source = KB(kb)
    with progress_bar() as progress, locked(to):
        tables = run(source, to, asked, settings, progress)
    _show(tables, to, as_json)


def reproduce_figure(
    kb: AnyKB,
    to: Target,
    prompts: Prompts = None,
    mlama: Mlama = None,
    langs: MlamaLangs = None,
    names: Names = None,
    queries: Queries = None,
    format: Format = "xlbel",
    facts: Annotated[
        int, typer.Option(metavar="N", help="Test facts of each language at each checkpoint.")
    ] = 200,
    words: Words = None,
    base: Base = "compact",
    config: Config = None,
    checkpoints: Checkpoints = None,
    as_json: Json = False,
) -> None:
    """The figure over checkpoints: link prediction, probing and linking in one picture.

    A task without data has no panel. Run the same command again to resume.

    Example: [b]prixlm reproduce figure --kb dbp5l --to table --prompts bmlama53[/b]
    """
    from prixlm.evaluation.figure import reproduce_figure as run
    from prixlm.evaluation.reproduce_names import NamesConfig
    from prixlm.kb.store import KB

    asked = _prompts(prompts, mlama, langs)
    files = _files(names, queries, format)
    settings = _settings(NamesConfig, base, config, checkpoints, words)
    source = KB(kb)
    with progress_bar() as progress, locked(to):
        tables = run(source, to, settings, asked, files, progress, facts=facts)
    _show(tables, to, as_json)


def reproduce_jmac(
    kb: KBFolder,
    to: Target,
    rows: Annotated[
        str | None,
        typer.Option(metavar="KEYS", help="Only these: pairs,graph,fused; default: no embedding."),
    ] = None,
    langs: Annotated[
        str | None, typer.Option(metavar="CODES", help="Target languages; default: all with tests.")
    ] = None,
    links: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="JMAC's own half: seed_train_pairs beside entity in its dataset.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the draw of half of the links; default 0.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings in TOML, such as [graph] rank.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Link prediction by JMAC's protocol: valid facts of other languages, half of the links.

    Run the same command again to resume; languages can follow one another.

    Example: [b]prixlm reproduce jmac --kb dbp5l --to jmac --seed 0[/b]
    """
    from prixlm.config import changed, read_config
    from prixlm.evaluation.protocols import JmacConfig
    from prixlm.evaluation.protocols import reproduce_jmac as run
    from prixlm.kb.store import KB
    from prixlm.reports.console import print_tables
    from prixlm.reports.ranker_results import result_tables

    wanted = None if rows is None else parse_list(rows)
    codes = None if langs is None else parse_codes(langs)
    if links is not None and seed is not None:
        raise PrixError("--links names the links: leave out --seed, which draws them.")
    given = {"seed": seed, "links_from": None if links is None else str(links)}
    settings = JmacConfig() if config is None else read_config(config, JmacConfig())
    source, settings = KB(kb), changed(settings, {"": given})
    with progress_bar() as progress, locked(to):
        results = run(source, to, settings, wanted, codes, progress)
    if as_json:
        print_json([result.to_json() for result in results])
        return
    print_tables(console(), result_tables(results))
    print_folder(to)


def _prompts(
    prompts: Path | None, mlama: Path | None, langs: str | None
) -> "dict[str, LanguagePrompts] | None":
    """Read the prompts of one of two layouts; None if neither is named."""
    if prompts is not None and mlama is not None:
        raise PrixError("name a folder of TSVs with --prompts, or mLAMA's with --mlama.")
    if langs is not None and mlama is None:
        raise PrixError("--langs requires --mlama.")
    from prixlm.evaluation.probing.prompts import read_bmlama_folder, read_mlama_folder

    if mlama is not None:
        return read_mlama_folder(mlama, None if langs is None else parse_codes(langs))
    return None if prompts is None else read_bmlama_folder(prompts)


def _files(names: Path | None, queries: list[Path] | None, format: str) -> "dict[str, LinkingTask]":
    """Read the files of a linking benchmark, if they are named."""
    if (names is None) != (not queries):
        raise PrixError("--names requires --queries, and --queries requires --names.")
    if names is None and format != "xlbel":
        raise PrixError("--format requires --names and --queries.")
    from prixlm.evaluation.entity_linking import read_tasks_by_language

    return {} if names is None else read_tasks_by_language(names, queries or [], format)


def _settings(
    kind: Any,
    base: str,
    config: Path | None,
    checkpoints: str | None,
    words: Path | None = None,
    **points: str | None,
) -> Any:
    """Return the settings of a table for a base model, with what a file and then flags set instead.

    words: a file for Mirror. points: settings that name a point of the run, as they were given.
    """
    from dataclasses import replace

    from prixlm.config import changed, read_config
    from prixlm.training.checkpoints import parse_point

    settings = kind.of_base(base)
    settings = settings if config is None else read_config(config, settings)
    given: dict[str, Any] = {
        name: parse_point(text) for name, text in points.items() if text is not None
    }
    for mirror in ("mirror", "mirror_others") if words is not None else ():
        given[mirror] = replace(getattr(settings, mirror), words=str(words))
    kept = {"training": {"checkpoints": parse_points(checkpoints)}}
    return replace(settings, pretrain=changed(settings.pretrain, kept), **given)


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
    "figure": reproduce_figure,
    "jmac": reproduce_jmac,
}
reproduce_app = typer.Typer(
    help="Make the paper's tables with every row; train what is missing.", no_args_is_help=True
)
for _name, _command in TABLES.items():
    reproduce_app.command(_name, cls=Command)(_command)
