"""The commands that ask a model: `complete` a fact, `translate` a name.

As in `cli`: each command parses, makes one library call and prints.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from prixlm.cli.terminal import Json, console, print_json, progress_bar
from prixlm.errors import PrixError

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")]
KBOption = Annotated[Path, typer.Option("--kb", metavar="KB", help="Where candidates come from.")]
Number = Annotated[int, typer.Option("-k", help="Answers to a query.")]
Exact = Annotated[bool, typer.Option("--exact", help="The true best of all, not a beam's.")]
BeamSize = Annotated[int, typer.Option(help="Unfinished names a step (the paper's K).")]
NewOnly = Annotated[bool, typer.Option("--new-only", help="Hide what the KB already has.")]
Candidates = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Names or keys, one a line: only these.")
]
Queries = Annotated[
    Path | None, typer.Option(metavar="FILE", help="TSV, CSV or Parquet of queries; - is stdin.")
]
Out = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Answers: .parquet, .tsv, .csv or .jsonl.")
]


def complete(
    model: Model,
    kb: KBOption,
    lang: Annotated[str | None, typer.Option(metavar="CODE", help="Language.")] = None,
    subject: Annotated[str | None, typer.Option(help="A name, known to the KB or not.")] = None,
    relation: Annotated[str | None, typer.Option(help="A relation's name or key.")] = None,
    k: Number = 10,
    exact: Exact = False,
    beam: BeamSize = 50,
    new_only: NewOnly = False,
    candidates: Candidates = None,
    queries: Queries = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Complete facts: the missing object of a subject and a relation, or of a file of them.

    Example: [b]prixlm complete model --kb world --lang et --subject Soome --relation capital[/b]

    Example: [b]prixlm complete model --kb world --queries facts.tsv --out answers.parquet[/b]
    """
    _answer(
        model,
        kb,
        {"--lang": lang, "--subject": subject, "--relation": relation},
        {"k": k, "search": "exact" if exact else "beam", "beam": beam, "new_only": new_only},
        (candidates, queries, out, as_json),
    )


def translate(
    model: Model,
    kb: KBOption,
    source: Annotated[
        str | None, typer.Option("--from", metavar="CODE", help="The name's language.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="CODE", help="The language asked for.")] = None,
    name: Annotated[str | None, typer.Option(help="A name, known to the KB or not.")] = None,
    k: Number = 10,
    exact: Exact = False,
    beam: BeamSize = 50,
    new_only: NewOnly = False,
    candidates: Candidates = None,
    queries: Queries = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Find what a thing is called in another language, by name or for a file of names.

    Example: [b]prixlm translate model --kb world --from en --to te --name Finland[/b]
    """
    _answer(
        model,
        kb,
        {"--from": source, "--name": name, "--to": to},
        {"k": k, "search": "exact" if exact else "beam", "beam": beam, "new_only": new_only},
        (candidates, queries, out, as_json),
    )


def _answer(
    model: Path,
    kb: Path,
    asked: dict[str, str | None],
    settings: dict[str, Any],
    rest: tuple[Path | None, Path | None, Path | None, bool],
) -> None:
    """What `complete` and `translate` share: one query, or a file of them."""
    from prixlm.decoding.batch import answer_file, check_out
    from prixlm.decoding.completer import Completer, SearchConfig, read_candidates
    from prixlm.reports.console import print_answers

    candidates, queries, out, as_json = rest
    config = SearchConfig(**settings)
    missing = [flag for flag, value in asked.items() if value is None]
    if queries is None and missing:
        raise PrixError(f"{', '.join(missing)} is missing (or pass --queries FILE --out FILE).")
    if queries is None and out is not None:
        raise PrixError("--out goes with --queries: name a file of queries, or leave it out.")
    if queries is not None and (out is None or len(missing) < len(asked)):
        raise PrixError("with --queries, name --out and no query of your own.")
    if out is not None:
        check_out(out)
    with progress_bar() as progress:
        completer = Completer(model, kb, progress)
        if not completer.is_of_this_kb:
            _note(f"the model was not trained on {kb} itself; a split of it, or another, is fine.")
        chosen = None
        if candidates is not None:
            chosen, unknown = read_candidates(completer.kb, candidates)
            if unknown:
                _note(f"{unknown:,} lines of {candidates} are no entities of {kb}.")
        if queries is not None and out is not None:
            counts = answer_file(
                completer, queries, out, config, candidates=chosen, progress=progress
            )
            text = f"{counts['queries']:,} queries, {counts['errors']:,} with an error"
            _say(counts, text, as_json)
            return
    first, name, last = (str(value) for value in asked.values())
    if "--to" in asked:
        answers = completer.translate(name, lang=first, to=last, config=config, candidates=chosen)
    else:
        answers = completer.complete(name, last, lang=first, config=config, candidates=chosen)
    if not completer.kb.find(name, first):
        near = ", ".join(completer.suggest(name, first))
        _note(f"{name!r} is not in the KB; it was asked all the same. Names like it: {near}.")
    left_out = completer.num_too_long(last if "--to" in asked else first)
    if left_out:
        _note(f"{left_out:,} names are too long for the model and are no candidates.")
    if as_json:
        print_json([dataclasses.asdict(answer) for answer in answers])
    else:
        print_answers(console(), f"{name} · {last}", answers)


def _note(text: str) -> None:
    print(f"prixlm: {text}", file=sys.stderr)


def _say(figures: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(figures)
    else:
        console().print(text + ".", markup=False)
