"""The commands of the entity space: `mirror` makes an encoder, `link` asks it.

As in `cli`: each command parses, makes one library call and prints.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from prixlm.cli.terminal import Json, console, print_json, progress_bar
from prixlm.errors import PrixError


def mirror(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A Prix-LM, XLM-R or mBERT: a folder, or a name.")
    ],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The encoder folder to make.")],
    kb: Annotated[
        Path | None, typer.Option(metavar="KB", help="Whose links are positives.")
    ] = None,
    positives: Annotated[
        str | None,
        typer.Option(help="words (the paper's) or links; links if a KB is named."),
    ] = None,
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="Language of the words; English if none.")
    ] = None,
    words: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A word a line, instead of frequent ones.")
    ] = None,
    number: Annotated[int | None, typer.Option(help="Words, or pairs of names an epoch.")] = None,
    preset: Annotated[str, typer.Option(help="paper, or compact: for small models.")] = "paper",
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings in TOML; flags come after.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Times over all pairs.")] = None,
    batch: Annotated[int | None, typer.Option(help="Pairs in one update.")] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate.")] = None,
    pooling: Annotated[str | None, typer.Option(help="first (the state at <s>) or mean.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    as_json: Json = False,
) -> None:
    """Make an entity encoder (Mirror-BERT): names of one thing come near each other.

    Example: [b]prixlm mirror model --to encoder --kb world --preset compact[/b]
    """
    from prixlm.config import read_config
    from prixlm.entities.mirror import MirrorConfig, mirror_tune
    from prixlm.kb.store import KB

    settings = MirrorConfig.preset(preset)
    if kb is not None:  # unless a file or a flag says otherwise
        settings = dataclasses.replace(settings, positives="links")
    if config is not None:
        settings = read_config(config, settings)
    asked = {"number": number, "epochs": epochs, "batch": batch, "lang": lang}
    asked |= {"positives": positives}
    asked |= {"words": None if words is None else str(words)}
    inner = {"lr": lr, "seed": seed}
    settings = dataclasses.replace(
        settings,
        training=dataclasses.replace(settings.training, **_given(inner)),  # type: ignore[arg-type]
        encoder=dataclasses.replace(settings.encoder, **_given({"pooling": pooling})),  # type: ignore[arg-type]
        **_given(asked),  # type: ignore[arg-type]
    )
    with progress_bar() as progress:
        encoder = mirror_tune(model, to, settings, None if kb is None else KB(kb), progress)
    figures = {"encoder": str(to), "width": encoder.width, "positives": settings.positives}
    if as_json:
        print_json(figures)
        return
    console().print(
        f"An entity encoder of {encoder.width} numbers a name, from {settings.positives}: {to}",
        markup=False,
    )


def _given(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def link(
    encoder: Annotated[
        Path, typer.Argument(metavar="ENCODER", help="A folder of `prixlm mirror`.")
    ],
    kb: Annotated[Path, typer.Option("--kb", metavar="KB", help="Whose entities are candidates.")],
    mention: Annotated[
        list[str] | None, typer.Option(help="A name in any language; may be repeated.")
    ] = None,
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="Entities of this language; all if none.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Answers to a mention.")] = 5,
    index: Annotated[str, typer.Option(help="auto (by size), exact, hnsw or ivf.")] = "auto",
    mentions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A mention a line, with --out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Answers: .parquet, .tsv or .jsonl.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Link mentions to entities: the nearest names of a KB, in one language or in all.

    Example: [b]prixlm link encoder --kb world --lang en --mention Soome[/b]
    """
    if (mention is None) == (mentions is None) or (mentions is None) != (out is None):
        raise PrixError("pass --mention TEXT, or --mentions FILE with --out FILE.")
    if k < 1:
        raise PrixError(f"-k {k}: expected 1 or more.")
    from prixlm.decoding.batch import check_out
    from prixlm.entities.linker import EntityLinker, link_file, read_mentions
    from prixlm.kb.store import KB
    from prixlm.reports.console import print_linked

    source = KB(kb)
    if lang is not None:
        source.entity_range(lang)  # all is refused that can be before the names are encoded
    if mentions is not None and out is not None:
        check_out(out)
        read_mentions(mentions)
    with progress_bar() as progress:
        linker = EntityLinker(encoder, source, kind=index, progress=progress)
        if mentions is not None and out is not None:
            counts = link_file(linker, mentions, out, k, lang, progress)
            if as_json:
                print_json({**counts, "out": str(out)})
                return
            empty = f" ({counts['empty']:,} of them empty)" if counts["empty"] else ""
            typer.echo(f"{counts['mentions']:,} lines{empty} linked: {out}")
            return
        asked = mention or []
        found = linker.link(asked, k, lang)
        entities = [linker.kb.entities([one.entity for one in row]) for row in found]
    if as_json:
        print_json(
            [
                {
                    "mention": text,
                    "answers": [
                        {"rank": one.rank, "score": one.score, **dataclasses.asdict(entity)}
                        for one, entity in zip(row, known, strict=True)
                    ],
                }
                for text, row, known in zip(asked, found, entities, strict=True)
            ]
        )
        return
    for text, row, known in zip(asked, found, entities, strict=True):
        print_linked(console(), text, row, known)
