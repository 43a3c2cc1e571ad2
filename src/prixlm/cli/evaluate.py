"""`prixlm evaluate`: measure models on one of the paper's tasks, or on proposals."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prixlm.cli.options import (
    Address,
    Command,
    Engine,
    GpusPerWorker,
    GraphOption,
    Json,
    Mask,
    MinConfidence,
    ModelOption,
    Workers,
    parse_codes,
    parse_engine,
    parse_list,
)
from prixlm.cli.terminal import console, print_json, print_lines, print_note, progress_bar
from prixlm.errors import PrixError
from prixlm.remote import is_remote, staged_folder, uri_of

if TYPE_CHECKING:
    from prixlm.rankers.fusion import FusionConfig
    from prixlm.reports.kept import Kept
    from prixlm.reports.tables import ResultTable

KBFolder = Annotated[
    Path, typer.Option("--kb", metavar="KB", help="A KB folder with test triples.")
]
Encoders = Annotated[
    list[Path] | None,
    typer.Option("--encoder", metavar="FOLDER", help="An entity encoder; may be repeated."),
]
To = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Write the table here, as Markdown and JSON.")
]
FuseFacts = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Valid facts of each language that the confidence is fitted on."
    ),
]


def evaluate_lp(
    kb: KBFolder,
    model: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="A Prix-LM; may be repeated.")
    ] = None,
    graph: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="A graph embedding; may be repeated."),
    ] = None,
    baseline: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="A PyKEEN model; may be repeated.")
    ] = None,
    reader: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="A decoder, asked in words; may be repeated."),
    ] = None,
    open_world: Annotated[
        bool,
        typer.Option("--open-world", help="Each graph also ranks objects without facts."),
    ] = False,
    fuse: Annotated[
        bool, typer.Option("--fuse", help="Also a fusion of all of them, fitted on valid facts.")
    ] = False,
    fuse_facts: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --fuse: valid facts of each language; default 2,500."),
    ] = None,
    fuse_seed: Annotated[
        int, typer.Option(metavar="N", help="With --fuse: seed of its folds and trees.")
    ] = 0,
    without: Annotated[
        str | None,
        typer.Option(metavar="KEYS", help="Leave out rankers such as similar-names,paths."),
    ] = None,
    langs: Annotated[
        str | None, typer.Option(metavar="CODES", help="Languages; default: all with such facts.")
    ] = None,
    split: Annotated[str, typer.Option(help="test or valid.")] = "test",
    most: Annotated[
        int | None, typer.Option(metavar="N", help="A sample of N facts of each language.")
    ] = None,
    unseen: Annotated[
        bool,
        typer.Option("--unseen", help="Only facts with an entity that train lacks (the paper's)."),
    ] = False,
    subset: Annotated[
        str | None,
        typer.Option(
            metavar="KEYS",
            help="Only facts in all of these: no-transfer, no-inverse, seen, subject-unseen, "
            "object-unseen. --most draws from them.",
        ),
    ] = None,
    search: Annotated[
        str, typer.Option(help="beam (the paper's, Hits@10) or exact (MRR too) for a Prix-LM.")
    ] = "beam",
    beyond: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="With --search exact: the deepest rank of a Prix-LM; default 1,000."
        ),
    ] = None,
    by_name: Annotated[
        bool, typer.Option("--by-name", help="Rank names, as the paper's released code does.")
    ] = False,
    mask: Mask = None,
    relations: Annotated[
        int, typer.Option(metavar="N", help="Also figures of the N most frequent relations.")
    ] = 0,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write table.md, .json, .png and every answer here."),
    ] = None,
    answers: Annotated[
        int, typer.Option(metavar="N", help="With --to: best answers of each fact; 0 for none.")
    ] = 10,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0.0,
    as_json: Json = False,
) -> None:
    """Link prediction: rank the object of held-out facts among all entities of a language.

    Rankers that need no training, such as facts carried along links, are always rows. With --to, a
    stopped command resumes.

    Example: [b]prixlm evaluate lp --kb split --model model --most 200[/b]
    """
    from prixlm.evaluation.link_prediction import EvaluateConfig, evaluate_rankers
    from prixlm.kb.store import KB
    from prixlm.metrics import BEYOND
    from prixlm.rankers.fusion import FusionConfig
    from prixlm.reports.console import print_tables

    config = EvaluateConfig(
        models=tuple(model or ()),
        graphs=tuple(graph or ()),
        baselines=tuple(baseline or ()),
        readers=tuple(reader or ()),
        open_world=open_world,
        fuse=fuse,
        without=tuple(parse_list(without)) if without else (),
        langs=parse_codes(langs) if langs else None,
        split=split,
        most=most,
        unseen=unseen,
        subset=tuple(parse_list(subset)) if subset else (),
        search=search,
        by_name=by_name,
        mask=mask,
        relations=relations,
        answers=answers,
        beyond=BEYOND if beyond is None else beyond,
        fuse_facts=FusionConfig.facts if fuse_facts is None else fuse_facts,
        fuse_seed=fuse_seed,
    )
    where = parse_engine(engine, address, workers, gpus_per_worker)
    with progress_bar(None if as_json else where.describe()) as progress:
        evaluation = evaluate_rankers(KB(kb), config, to, progress, engine=where)
    if as_json:
        print_json(evaluation.to_json())
        return
    print_tables(console(), evaluation.tables())
    print_folder(to)


def evaluate_xel(
    encoder: Encoders = None,
    kb: Annotated[
        Path | None, typer.Option(metavar="KB", help="A split whose withheld links are asked for.")
    ] = None,
    into: Annotated[
        str, typer.Option(metavar="CODE", help="With --kb: the language of the entities.")
    ] = "en",
    langs: Annotated[
        str | None, typer.Option(metavar="CODES", help="With --kb: languages of the mentions.")
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="With --kb: a Prix-LM that translates mentions."),
    ] = None,
    names: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names of entities, instead of a KB.")
    ] = None,
    queries: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="With --names: mentions; may be repeated."),
    ] = None,
    format: Annotated[str, typer.Option(help="With --names: xlbel or lrxel.")] = "xlbel",
    split: Annotated[str, typer.Option(help="With --kb: test or valid.")] = "test",
    most: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --kb: a sample of N mentions of each language."),
    ] = None,
    linker: Annotated[
        bool, typer.Option("--linker", help="With --kb: the linker of `link` and `enrich`.")
    ] = False,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="--linker without each kind of evidence, too.")
    ] = False,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Entity linking: link mentions in one language to entities named in another.

    String similarity is always a row. With --to, a stopped command resumes.

    Example: [b]prixlm evaluate xel --kb split --encoder encoder --into en[/b]
    """
    if (kb is None) == (names is None) or (names is None) != (not queries):
        raise PrixError("name a KB that withholds links (--kb), or --names with --queries.")
    if names is not None and model:
        raise PrixError("--model translates into the names of a KB: leave it out with --names.")
    from prixlm.evaluation.alignment import FusedLinking, Unlinked, ablations, calibration_tables
    from prixlm.evaluation.entity_linking import (
        evaluate_linking_files,
        evaluate_withheld_links,
        spelling_scorers,
    )
    from prixlm.kb.store import KB
    from prixlm.linking.linker import LinkerConfig

    kept = _kept(to, "xel")
    fused: list[FusedLinking] = []
    unlinked: list[Unlinked] = []
    with progress_bar() as progress:
        if names is not None:
            mentions = queries or []
            tables = evaluate_linking_files(
                encoder or [], names, mentions, format, progress, kept=kept
            )
        else:
            assert kb is not None
            source = KB(kb)
            if linker or ablate:
                unlinked = [Unlinked(source, into, scorer) for scorer in spelling_scorers()]
                configs = ablations(LinkerConfig()) if ablate else [LinkerConfig()]
                fused = [FusedLinking(source, into, config) for config in configs]
                # With models, the linker is fitted on the valid links.
                if (encoder or model) and split == "test":
                    fused.append(FusedLinking.with_models(source, into, encoder, model))
            tables = evaluate_withheld_links(
                source,
                encoder or [],
                model or [],
                into=into,
                langs=parse_codes(langs) if langs else None,
                split=split,
                most=most,
                more=[*unlinked, *fused],
                progress=progress,
                kept=kept,
            )
    show_tables([*tables, *calibration_tables(fused)], "xel", to, as_json)
    kept.remove()


def evaluate_align(
    data: Annotated[
        list[Path],
        typer.Option(metavar="FOLDER", help="A pair of DBP15K, such as ja_en; may be repeated."),
    ],
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Also the linker without each kind of evidence.")
    ] = False,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Entity alignment: link the entities of two graphs, with 30 % of the links known.

    Example: [b]prixlm evaluate align --data dbp15k/ja_en --data dbp15k/fr_en[/b]
    """
    from prixlm.evaluation.alignment import evaluate_dbp15k

    with progress_bar() as progress:
        tables = evaluate_dbp15k(data, ablate=ablate, progress=progress)
    show_tables(tables, "align", to, as_json)


def evaluate_bli(
    train: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="A dictionary to learn from; may be repeated."),
    ],
    test: Annotated[
        list[Path], typer.Option(metavar="FILE", help="Its test dictionary, in the same order.")
    ],
    encoder: Encoders = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="CODES", help="Target languages, for frequent words as candidates."),
    ] = None,
    frequent: Annotated[int, typer.Option(help="Frequent words that are candidates.")] = 50_000,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Bilingual lexicon induction: translate words by VecMap and CSLS.

    String similarity and mapped character n-grams are always rows. With --to, a stopped command
    resumes.

    Example: [b]prixlm evaluate bli --encoder encoder --train en-it.train --test en-it.test[/b]
    """
    from prixlm.evaluation.lexicons import evaluate_dictionary_files

    codes, kept = parse_list(target) if target else None, _kept(to, "bli")
    with progress_bar() as progress:
        tables = evaluate_dictionary_files(
            encoder or [], train, test, codes, frequent, progress, kept=kept
        )
    show_tables(tables, "bli", to, as_json)
    kept.remove()


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
        str | None, typer.Option(metavar="CODES", help="With --mlama: languages of the folder.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(metavar="N", help="A sample of N prompts of each language.")
    ] = None,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Knowledge probing: fill the blank of prompts.

    With --to, a stopped command resumes: what is measured is kept there, by model and language.

    Example: [b]prixlm evaluate probe --model model --prompts en.tsv --prompts fi.tsv[/b]
    """
    if (mlama is None) == (not prompts):
        raise PrixError("name TSV files with --prompts, or a folder with --mlama.")
    from prixlm.evaluation.probing.prompts import read_bmlama_files, read_mlama_folder
    from prixlm.evaluation.probing.tables import evaluate_models

    if mlama is not None:
        asked = read_mlama_folder(mlama, parse_list(langs) if langs else None)
    else:
        asked = read_bmlama_files(prompts or [])
    kept = _kept(to, "probe")
    with progress_bar() as progress:
        tables, results = evaluate_models(model, asked, progress, most=most, kept=kept)
    show_tables(tables, "probe", to, as_json)
    kept.remove()
    for title, by_language in results.items():
        for lang, probed in by_language.items():
            for why, number in probed.problems.items():
                print_note(f"{title}, {lang}: {number} left out: {why}")


def evaluate_enrich(
    kb: KBFolder,
    langs: Annotated[str, typer.Option(metavar="CODES", help="Languages.")],
    model: ModelOption = None,
    graph: GraphOption = None,
    most: Annotated[
        int | None, typer.Option(metavar="N", help="A sample of N test questions of each language.")
    ] = None,
    fuse_facts: FuseFacts = None,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Reliability of proposals: ask for test facts as `enrich` would.

    Example: [b]prixlm evaluate enrich --kb split --model model --langs et,te[/b]
    """
    from prixlm.enrichment.trial import trial_tables
    from prixlm.evaluation.proposals import try_enrichment, write_trials
    from prixlm.kb.store import KB

    with progress_bar() as progress:
        codes = parse_codes(langs)
        trials = try_enrichment(
            KB(kb), codes, model, graph, config=_fusion(fuse_facts), most=most, progress=progress
        )
    if to is not None:
        with staged_folder(to) as folder:
            write_trials(trials, folder)
    show_tables(trial_tables(trials), "enrich", to, as_json)


def evaluate_proposals(
    kb: KBFolder,
    langs: Annotated[str, typer.Option(metavar="CODES", help="Languages.")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="For the proposals and the table.")],
    model: ModelOption = None,
    graph: GraphOption = None,
    min_confidence: MinConfidence = 0.5,
    fuse_facts: FuseFacts = None,
    as_json: Json = False,
) -> None:
    """Proposals judged: run `enrich` without the test facts, and compare all it proposes with them.

    Questions that have no answer are asked too, and what the KB does not state counts as wrong.

    Example: [b]prixlm evaluate proposals --kb split --langs et,te --to judged[/b]
    """
    from prixlm.evaluation.proposals import judge_enrichment, judged_tables
    from prixlm.kb.store import KB

    with progress_bar() as progress:
        judged = judge_enrichment(
            KB(kb),
            parse_codes(langs),
            to,
            model,
            graph,
            min_confidence=min_confidence,
            fusion=_fusion(fuse_facts),
            progress=progress,
        )
    show_tables(judged_tables(judged), "proposals", to, as_json)


def evaluate_labels(
    kb: Annotated[Path, typer.Option("--kb", metavar="KB", help="A KB folder with links.")],
    langs: Annotated[str, typer.Option(metavar="CODES", help="Languages.")],
    split: Annotated[
        str, typer.Option(help="test, or valid to choose settings by another fifth.")
    ] = "test",
    examples: Annotated[
        int, typer.Option(metavar="N", help="Also N right and N wrong names of each language.")
    ] = 0,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Labels: withhold a fifth of a language's names, and propose them as `enrich` would.

    Example: [b]prixlm evaluate labels --kb kb --langs el,ja[/b]
    """
    from prixlm.evaluation.labels import evaluate_labels as evaluate
    from prixlm.kb.store import KB
    from prixlm.reports.console import print_label_examples

    with progress_bar() as progress:
        result = evaluate(KB(kb), parse_codes(langs), split=split, progress=progress)
    show_tables(result.tables(), "labels", to, as_json)
    if examples and not as_json:
        for trial in result.trials:
            print_label_examples(console(), trial.lang, *trial.examples(examples))


def evaluate_compare(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Two Parquet files of ranks, or one of another task's questions.",
        ),
    ],
    row: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With one file: the two rows; passed twice."),
    ] = None,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Compare two rows question by question: a difference only if its 95 % interval leaves out 0.

    Example: [b]prixlm evaluate compare table/rows/all-exact.parquet
    table/rows/single-exact.parquet[/b]

    Example: [b]prixlm evaluate compare out/bli.parquet --row encoder --row "character n-grams
    (cosine)"[/b]
    """
    if len(files) == 2 and not row:
        from prixlm.reports.ranks import compare_ranks

        tables = compare_ranks(*files)
    elif len(files) == 1 and len(row or ()) == 2:
        from prixlm.reports.comparing import differences, read_questions

        first, second = row or ("", "")
        tables = differences(read_questions(files[0]), first, second)
    else:
        raise PrixError("name two files of ranks, or one file of questions with two --row NAME.")
    show_tables(tables, "compared", to, as_json)


def evaluate_merge(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="JSON files of one command with several seeds."),
    ],
    to: To = None,
    as_json: Json = False,
) -> None:
    """Merge the tables of several seeds: the mean of every figure, and half of the range.

    Example: [b]prixlm evaluate merge seed-0/table.json seed-1/table.json seed-2/table.json[/b]
    """
    from prixlm.reports.comparing import merge_runs
    from prixlm.reports.ranker_results import read_run

    show_tables(merge_runs([read_run(path) for path in runs]), "merged", to, as_json)


def _kept(to: Path | None, task: str) -> "Kept":
    """Return what an earlier call that was stopped has measured of a task; nothing without `to`."""
    from prixlm.reports.kept import Kept

    # An object store has no place for work that is not finished.
    return Kept(None if to is None or is_remote(to) else to / f"{task}-parts.jsonl")


def _fusion(facts: int | None) -> "FusionConfig | None":
    """Return the settings of a fusion that is fitted on so many facts; None for the usual ones."""
    from prixlm.rankers.fusion import FusionConfig

    return None if facts is None else FusionConfig(facts=facts)


def show_tables(tables: "Sequence[ResultTable]", name: str, to: Path | None, as_json: bool) -> None:
    """Print result tables, and write them to a folder if one is given."""
    from prixlm.reports.console import print_tables
    from prixlm.reports.tables import tables_to_json, write_tables

    # Printed first: a folder that cannot be written must not lose what took hours.
    if as_json:
        print_json(tables_to_json(tables))
    else:
        print_tables(console(), tables)
    if to is not None:
        with staged_folder(to) as folder:
            write_tables(folder, name, tables)
    if not as_json:
        print_folder(to)


def print_folder(to: Path | None) -> None:
    """Print where results were written."""
    if to is not None:
        print_lines([f"Written to {uri_of(to) if is_remote(to) else to}."])


# The order is that of `prixlm evaluate --help`. A new task is a function above and a line here.
TASKS: dict[str, Callable[..., None]] = {
    "lp": evaluate_lp,
    "xel": evaluate_xel,
    "align": evaluate_align,
    "bli": evaluate_bli,
    "probe": evaluate_probe,
    "enrich": evaluate_enrich,
    "proposals": evaluate_proposals,
    "labels": evaluate_labels,
    "compare": evaluate_compare,
    "merge": evaluate_merge,
}
evaluate_app = typer.Typer(
    help="Measure models on one of the paper's tasks, with your data.", no_args_is_help=True
)
for _name, _command in TASKS.items():
    evaluate_app.command(_name, cls=Command)(_command)
