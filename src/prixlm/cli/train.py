"""The commands that train: `pretrain` a Prix-LM, `mirror` an encoder, `graph` a graph embedding.

All three resume: run the same command again after a stop.
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from prixlm.cli.options import (
    Checkpoints,
    ConfigFile,
    DryRun,
    Epochs,
    Json,
    KBArgument,
    LearningRate,
    Seed,
    parse_codes,
    parse_points,
)
from prixlm.cli.terminal import console, print_json, print_result, progress_bar
from prixlm.errors import PrixError
from prixlm.threads import describe_threads

# Options that need more than one line in a signature.
_Target = Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="The folder to make.")]
_Base = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="compact, xlm-roberta-base or another base: a name or a folder."
    ),
]
_PretrainPreset = Annotated[
    str | None,
    typer.Option("--preset", help="compact (two cores), demo (minutes) or paper (other bases)."),
]
_SingleLangs = Annotated[
    str | None,
    typer.Option("--langs", metavar="CODES", help="Prix-LM (Single): triples of these, no links."),
]
_Propagate = Annotated[
    bool | None, typer.Option("--propagate", help="Also train on facts carried over along links.")
]
_Trim = Annotated[
    bool | None, typer.Option("--trim", help="Keep only the vocabulary that the KB needs.")
]
_Reading = Annotated[
    str | None,
    typer.Option(
        metavar="script|romanised|both",
        help="How names are read: in their script, in Latin letters, or both.",
    ),
]
_Keep = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --trim: text whose vocabulary is kept too."),
]
_Descriptions = Annotated[
    int | None,
    typer.Option(metavar="N", help="Read N tokens of the subject's description after its name."),
]
_Prefix = Annotated[
    str | None,
    typer.Option(
        metavar="own|both", help="How a decoder reads the question: causally, or both directions."
    ),
]
_Adapt = Annotated[
    str | None,
    typer.Option(metavar="full|lora", help="Train all weights, or LoRA's small matrices (peft)."),
]
_LoraRank = Annotated[
    int | None, typer.Option(metavar="N", help="With --adapt lora: rank of the matrices.")
]
_Recompute = Annotated[
    bool | None,
    typer.Option("--recompute", help="Compute layers twice: less memory (gradient checkpointing)."),
]
_Shard = Annotated[
    bool | None,
    typer.Option("--shard", help="Under torchrun: divide the model among the processes (FSDP)."),
]
_Patience = Annotated[
    int | None, typer.Option(help="Stop after this many validations without improvement.")
]
_SaveEvery = Annotated[
    int | None,
    typer.Option(metavar="N", help="Updates between the states that a stopped run resumes from."),
]
_ValidateEvery = Annotated[
    int | None, typer.Option(metavar="N", help="Updates between measurements of the valid loss.")
]
_Precision = Annotated[
    str | None,
    typer.Option(
        metavar="auto|no|bf16|fp16",
        help="auto: bf16 on a GPU that supports it. fp16: with loss scaling, for other GPUs.",
    ),
]
_Tracker = Annotated[list[str] | None, typer.Option(metavar="NAME", help="tensorboard or wandb.")]
_MirrorModel = Annotated[
    str, typer.Argument(metavar="MODEL", help="A Prix-LM or a base: a folder or a name.")
]
_LinkedKB = Annotated[
    Path | None, typer.Option("--kb", metavar="KB", help="The KB whose links are positive pairs.")
]
_Positives = Annotated[
    str | None, typer.Option(help="words (as in the paper) or links; links if a KB is given.")
]
_Words = Annotated[
    Path | None, typer.Option(metavar="FILE", help="One word per line, instead of frequent words.")
]


def pretrain(
    kb: KBArgument,
    to: _Target = None,
    base: _Base = None,
    preset: _PretrainPreset = None,
    config: ConfigFile = None,
    langs: _SingleLangs = None,
    propagate: _Propagate = None,
    epochs: Epochs = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="At most N updates.")] = None,
    batch: Annotated[int | None, typer.Option(help="Facts per update.")] = None,
    lr: LearningRate = None,
    width: Annotated[int | None, typer.Option(help="Width of a compact model.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of a compact model.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary of a compact model.")] = None,
    reading: _Reading = None,
    trim: _Trim = None,
    keep: _Keep = None,
    descriptions: _Descriptions = None,
    prefix: _Prefix = None,
    adapt: _Adapt = None,
    lora_rank: _LoraRank = None,
    recompute: _Recompute = None,
    shard: _Shard = None,
    patience: _Patience = None,
    precision: _Precision = None,
    checkpoints: Checkpoints = None,
    save_every: _SaveEvery = None,
    validate_every: _ValidateEvery = None,
    tracker: _Tracker = None,
    seed: Seed = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Pretrain a Prix-LM on the train facts of a KB.

    An interrupted run resumes when the same command is run again.

    Example: [b]prixlm pretrain world --to model --preset demo[/b]

    Example: [b]prixlm pretrain kb --base xlm-roberta-base --trim --to model[/b]
    """
    from prixlm.config import changed
    from prixlm.training.pretrain import PretrainConfig

    codes = None if langs is None else parse_codes(langs)
    kept_text = None if keep is None else str(keep)
    preset = preset or ("compact" if base in (None, "compact") else "paper")
    # Later ones win: the preset, then the file, then the flags that are given (not None).
    settings = changed(
        _with_file(PretrainConfig.preset(preset), config),
        {
            "": {
                "base": base,
                "epochs": epochs,
                "steps": steps,
                "batch": batch,
                "reading": reading,
                "trim": trim,
                "keep": kept_text,
                "descriptions": descriptions,
                "prefix": prefix,
                "adapt": adapt,
                "lora_rank": lora_rank,
                "recompute": recompute,
                "shard": shard,
            },
            "supply": {"langs": codes, "propagate": propagate, "seed": seed},
            "training": {
                "lr": lr,
                "patience": patience,
                "precision": precision,
                "checkpoints": parse_points(checkpoints),
                "save_every": save_every,
                "validate_every": validate_every,
                "trackers": tuple(tracker) if tracker else None,
                "seed": seed,
            },
            "compact": {"width": width, "layers": layers, "vocab": vocab},
        },
    )
    if dry_run:
        from prixlm.training.estimate import estimate_pretrain

        _print_estimate(estimate_pretrain, kb, settings, as_json)
    else:
        _pretrain(kb, _required(to), settings, as_json)


def _pretrain(kb: Path, to: Path, settings: Any, as_json: bool) -> None:
    """Pretrain, and print the facts that were read and how the loss fell."""
    from prixlm.kb.store import KB
    from prixlm.reports.console import print_run
    from prixlm.reports.plots import read_metrics
    from prixlm.training.pretrain import pretrain

    is_quiet = as_json or not _is_main_process()
    with progress_bar(None if is_quiet else describe_threads()) as progress:
        model = pretrain(KB(kb), to, settings, progress)
    if not _is_main_process():
        return
    lineage = model.settings.lineage
    if as_json:
        metrics = read_metrics(to)
        print_json({"model": str(to), "trained": lineage.as_dict(), "metrics": metrics})
    else:
        print_run(console(), to, lineage.facts_by_language)


def mirror(
    model: _MirrorModel,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The encoder folder to make.")],
    kb: _LinkedKB = None,
    positives: _Positives = None,
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="Language of the words; default en.")
    ] = None,
    words: _Words = None,
    number: Annotated[
        int | None, typer.Option(help="Number of words, or of linked pairs per epoch.")
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="paper, original (Mirror-BERT's; --words names its list), or compact for small "
            "models."
        ),
    ] = "paper",
    config: ConfigFile = None,
    epochs: Epochs = None,
    batch: Annotated[int | None, typer.Option(help="Pairs per update.")] = None,
    lr: LearningRate = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="first (the state at <s>), mean or last; by default, last for decoders."),
    ] = None,
    space: Annotated[
        bool | None,
        typer.Option(help="Read names of a base that is a decoder after a space; default yes."),
    ] = None,
    precision: _Precision = None,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Train an entity encoder (Mirror-BERT): names of the same entity get similar vectors.

    An interrupted run resumes when the same command is run again.

    Example: [b]prixlm mirror model --to encoder --kb world --preset compact[/b]
    """
    from prixlm.config import changed
    from prixlm.entities.mirror import MirrorConfig
    from prixlm.entities.mirror import mirror as run
    from prixlm.kb.store import KB

    settings = MirrorConfig.preset(preset)
    if kb is not None:  # the default of a run with a KB; the file and the flags come after it
        settings = dataclasses.replace(settings, positives="links")
    settings = changed(
        _with_file(settings, config),
        {
            "": {
                "positives": positives,
                "lang": lang,
                "words": None if words is None else str(words),
                "number": number,
                "epochs": epochs,
                "batch": batch,
                "space": space,
            },
            "training": {"lr": lr, "precision": precision, "seed": seed},
            "encoder": {"pooling": pooling},
        },
    )
    if preset == "original" and settings.positives == "words" and settings.words is None:
        raise PrixError(
            "--preset original requires Mirror-BERT's words: pass --words en_words_top_10k.txt, "
            "from its repository, or leave out --preset for the frequent words of wordfreq."
        )
    with progress_bar() as progress:
        encoder = run(model, to, settings, None if kb is None else KB(kb), progress)
    print_result(
        {"encoder": str(to), "width": encoder.width, "positives": settings.positives},
        f"Trained an entity encoder with {encoder.width} dimensions on {settings.positives}: {to}",
        as_json,
    )


def graph(
    kb: KBArgument,
    to: _Target = None,
    rank: Annotated[
        int | None, typer.Option(help="Complex numbers per concept and relation; default 300.")
    ] = None,
    config: ConfigFile = None,
    epochs: Epochs = None,
    batch: Annotated[int | None, typer.Option(help="Triples per update.")] = None,
    lr: LearningRate = None,
    regulariser: Annotated[float | None, typer.Option(help="Weight of the nuclear 3-norm.")] = None,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="complex|transe|rotate",
            help="The product of ComplEx, or the distance of TransE or RotatE.",
        ),
    ] = None,
    langs: Annotated[
        str | None, typer.Option(metavar="CODES", help="Train on these languages; default: all.")
    ] = None,
    seed: Seed = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Train a graph embedding: ComplEx on the train facts of all languages at once.

    It uses no names. `enrich` and `evaluate` take it as further evidence. An interrupted run
    resumes when the same command is run again.

    Example: [b]prixlm graph split --to graph[/b]

    Example: [b]prixlm graph split --to graph --rank 100 --epochs 5[/b]
    """
    from prixlm.config import changed
    from prixlm.rankers.complex import GraphConfig

    flags: dict[str, Any] = {
        "rank": rank,
        "epochs": epochs,
        "batch": batch,
        "regulariser": regulariser,
        "score": score,
        "langs": parse_codes(langs) if langs else None,
    }
    settings = changed(
        _with_file(GraphConfig(), config), {"": flags, "training": {"lr": lr, "seed": seed}}
    )
    if dry_run:
        from prixlm.rankers.complex import estimate_graph

        _print_estimate(estimate_graph, kb, settings, as_json)
    else:
        _train_graph(kb, _required(to), settings, as_json)


def _train_graph(kb: Path, to: Path, settings: Any, as_json: bool) -> None:
    """Train, and print what was made and the commands that use it."""
    from prixlm.kb.store import KB
    from prixlm.rankers.complex import train_graph
    from prixlm.reports.plots import read_metrics

    source = KB(kb)
    with progress_bar() as progress:
        model = train_graph(source, to, settings, progress)
    if not _is_main_process():
        return
    metrics = read_metrics(to)
    losses = [line["valid_loss"] for line in metrics if "valid_loss" in line]
    values = {
        "graph": str(to),
        "concepts": model.num_nodes,
        "relations": source.num_relations,
        "rank": settings.rank,
        "triples": sum(
            source.num_triples(lang, "train") for lang in settings.langs or source.languages
        ),
        "metrics": metrics,
    }
    fell = f"Validation loss {losses[0]:.2f} → {losses[-1]:.2f} nats per fact.\n" if losses else ""
    text = (
        f"Trained {type(model).__name__} of rank {values['rank']} on {values['triples']:,} "
        "triples: "
        f"{values['concepts']:,} concepts, {values['relations']:,} relations.\n"
        f"{fell}The graph embedding is in {to}. Use it with:\n"
        f"  prixlm enrich {quote(str(kb))} --into CODES --graph {quote(str(to))} --to proposals\n"
        f"  prixlm evaluate lp --kb {quote(str(kb))} --graph {quote(str(to))}"
    )
    print_result(values, text, as_json)


def _print_estimate(estimate: Callable[..., Any], kb: Path, settings: Any, as_json: bool) -> None:
    """Measure a sample of a run (`--dry-run`) and print what the run would take."""
    from prixlm.kb.store import KB

    if not _is_main_process():  # several processes that measure slow each other
        return
    with progress_bar() as progress:
        result = estimate(KB(kb), settings, progress)
    print_result(result.as_dict(), result.as_text(), as_json)


def _is_main_process() -> bool:
    """Tell whether this process prints: under `accelerate launch` only the first one does."""
    return os.environ.get("RANK", "0") == "0"


def _with_file(settings: Any, path: Path | None) -> Any:
    """Return settings with the values that a TOML file changes."""
    from prixlm.config import read_config

    return settings if path is None else read_config(path, settings)


def _required(to: Path | None) -> Path:
    """Return the folder to make. Only a dry run does without it, so Typer cannot require it."""
    if to is None:
        raise PrixError("--to is missing: name the folder to make.")
    return to
