"""The commands that ask a model: `complete` a fact, `translate` a name, `link` a mention.

Each takes one question, or a file of questions with `--out FILE`.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prixlm.cli.options import Address, Engine, GpusPerWorker, Json, Mask, Workers, parse_engine
from prixlm.cli.terminal import console, print_json, print_note, print_result, progress_bar
from prixlm.errors import PrixError
from prixlm.types import Array, Progress, Query

if TYPE_CHECKING:
    from prixlm.decoding.completer import Completer, SearchConfig
    from prixlm.engine.jobs import EngineConfig
    from prixlm.linking.mentions import MentionLinker

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")]
KBOption = Annotated[
    Path, typer.Option("--kb", metavar="KB", help="The KB whose entities are candidates.")
]
Number = Annotated[int, typer.Option("-k", help="Answers per query.")]
Exact = Annotated[bool, typer.Option("--exact", help="Prove the best answers; slower.")]
BeamSize = Annotated[int, typer.Option(help="Beam size (the paper's K).")]
NewOnly = Annotated[bool, typer.Option("--new-only", help="Leave out what the KB already states.")]
Description = Annotated[
    str | None,
    typer.Option(help="What the name means, for a model that reads descriptions."),
]
Candidates = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Only these names or keys, one per line.")
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
    subject: Annotated[str | None, typer.Option(help="A name, in the KB or new.")] = None,
    relation: Annotated[str | None, typer.Option(help="Name or key of a relation.")] = None,
    k: Number = 10,
    exact: Exact = False,
    beam: BeamSize = 50,
    new_only: NewOnly = False,
    description: Description = None,
    candidates: Candidates = None,
    mask: Mask = None,
    queries: Queries = None,
    out: Out = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0.0,
    as_json: Json = False,
) -> None:
    """Complete facts: find the object of a subject and a relation.

    Example: [b]prixlm complete model --kb world --lang et --subject Soome --relation capital[/b]

    Example: [b]prixlm complete model --kb world --queries facts.tsv --out answers.parquet[/b]
    """
    search = _search_config(k, exact, beam, new_only)
    request = _Request(model, kb, candidates, as_json, search, mask)
    flags = {"--lang": lang, "--subject": subject, "--relation": relation}
    if queries is not None:
        out = _check_file_options(flags, out)
        request.answer_file(queries, out, parse_engine(engine, address, workers, gpus_per_worker))
        return
    lang, subject, relation = _check_query_options(flags, out)
    request.answer(Query(lang, subject, relation, description=description))


def translate(
    model: Model,
    kb: KBOption,
    source: Annotated[
        str | None, typer.Option("--from", metavar="CODE", help="Language of the name.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="CODE", help="Language to translate into.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name, in the KB or new.")] = None,
    k: Number = 10,
    exact: Exact = False,
    beam: BeamSize = 50,
    new_only: NewOnly = False,
    description: Description = None,
    free: Annotated[
        bool, typer.Option("--free", help="Write a new name, whether the KB has it or not.")
    ] = False,
    candidates: Candidates = None,
    mask: Mask = None,
    queries: Queries = None,
    out: Out = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0.0,
    as_json: Json = False,
) -> None:
    """Translate names: find what an entity is called in another language.

    Example: [b]prixlm translate model --kb world --from en --to te --name Finland[/b]
    """
    if free:
        if queries is not None or candidates is not None or exact or new_only:
            raise PrixError("--free takes one name: leave out files, --exact and --new-only.")
        source, name, to = _check_query_options({"--from": source, "--name": name, "--to": to}, out)
        _write_freely(model, kb, Query(source, name, None, to, description), k, beam, as_json)
        return
    search = _search_config(k, exact, beam, new_only)
    request = _Request(model, kb, candidates, as_json, search, mask)
    flags = {"--from": source, "--name": name, "--to": to}
    if queries is not None:
        out = _check_file_options(flags, out)
        request.answer_file(queries, out, parse_engine(engine, address, workers, gpus_per_worker))
        return
    source, name, to = _check_query_options(flags, out)
    request.answer(Query(source, name, None, to, description))


def _write_freely(model: Path, kb: Path, query: Query, k: int, beam: int, as_json: bool) -> None:
    """Print names that no candidate restricts."""
    from prixlm.decoding.completer import Completer
    from prixlm.decoding.free import FreeWriter
    from prixlm.reports.console import print_answers
    from prixlm.types import Answer

    with progress_bar() as progress:
        completer = Completer(model, kb, progress)
    completer.encode(query)  # refuses a query that cannot be asked
    [names] = FreeWriter(completer).write([query], k, beam)
    if as_json:
        print_json([{"name": name, "score": score} for name, score in names])
        return
    answers = [Answer(-1, name, score, rank) for rank, (name, score) in enumerate(names, 1)]
    print_answers(console(), f"{query.subject} · {query.to}, written freely", answers)


def _search_config(k: int, exact: bool, beam: int, new_only: bool) -> "SearchConfig":
    from prixlm.decoding.completer import SearchConfig

    search: Any = "exact" if exact else "beam"
    return SearchConfig(k=k, search=search, beam=beam, new_only=new_only)


def _check_query_options(flags: dict[str, str | None], out: Path | None) -> list[str]:
    """Return the three values of a single query; refuse one that is not complete."""
    missing = [flag for flag, value in flags.items() if value is None]
    if missing:
        raise PrixError(f"{', '.join(missing)} is missing (or pass --queries FILE --out FILE).")
    if out is not None:
        raise PrixError("--out requires --queries: pass a file of queries, or leave out --out.")
    return [value for value in flags.values() if value is not None]


def _check_file_options(flags: dict[str, str | None], out: Path | None) -> Path:
    """Return the file of answers; refuse a single query beside a file of queries."""
    from prixlm.decoding.batch import check_out

    given = [flag for flag, value in flags.items() if value is not None]
    if out is None or given:
        raise PrixError(f"with --queries, pass --out FILE and leave out {', '.join(flags)}.")
    check_out(out)
    return out


@dataclass(frozen=True)
class _Request:
    """What `complete` and `translate` share: the model, the candidates and how to search."""

    model: Path
    kb: Path
    candidates: Path | None
    as_json: bool
    search: "SearchConfig"
    mask: str | None

    def answer(self, query: Query) -> None:
        """Answer one query and print the answers."""
        from prixlm.reports.console import print_answers

        with progress_bar() as progress:
            completer, candidates = self._open(progress)
        if query.description is not None and not completer.model.encoder.descriptions:
            print_note("the model reads no descriptions: it was asked with the name alone.")
        [answers] = completer.answer([query], self.search, candidates)
        if isinstance(answers, PrixError):
            raise answers
        _note_limits(completer, query)
        if self.as_json:
            print_json([dataclasses.asdict(answer) for answer in answers])
        else:
            print_answers(console(), f"{query.subject} · {query.relation or query.to}", answers)

    def answer_file(self, queries: Path, out: Path, engine: "EngineConfig") -> None:
        """Answer a file of queries and print the counts."""
        from prixlm.decoding.batch import answer_file

        with progress_bar(None if self.as_json else engine.describe()) as progress:
            completer, candidates = self._open(progress)
            counts = answer_file(
                completer,
                queries,
                out,
                self.search,
                candidates=candidates,
                engine=engine,
                progress=progress,
            )
        text = f"{counts['queries']:,} queries, {counts['errors']:,} with an error."
        print_result(counts, text, self.as_json)

    def _open(self, progress: Progress | None) -> "tuple[Completer, Array | None]":
        """Load the model with its KB, and the candidates if a file restricts them."""
        from prixlm.decoding.completer import Completer, read_candidates

        completer = Completer(self.model, self.kb, progress, mask=self.mask)
        if not completer.is_of_this_kb:
            print_note(
                f"the model was not trained on {self.kb} itself; one of a split of it is fine."
            )
        if self.candidates is None:
            return completer, None
        entities, num_unknown = read_candidates(completer.kb, self.candidates)
        if num_unknown:
            print_note(f"{num_unknown:,} lines of {self.candidates} are not entities of {self.kb}.")
        return completer, entities


def _note_limits(completer: "Completer", query: Query) -> None:
    """Tell that a subject is not in the KB, and that some names are too long to be answers."""
    if not completer.kb.find(query.subject, query.lang):
        similar = ", ".join(completer.suggest(query.subject, query.lang))
        print_note(f"{query.subject!r} is not in the KB; asked anyway. Similar names: {similar}.")
    num_too_long = completer.num_too_long(query.to or query.lang)
    if num_too_long:
        print_note(f"{num_too_long:,} names are too long for the model and cannot be answers.")


def link(
    kb: KBOption,
    encoder: Annotated[
        Path | None,
        typer.Argument(metavar="[ENCODER]", help="Further evidence: made by `prixlm mirror`."),
    ] = None,
    mention: Annotated[
        list[str] | None, typer.Option(help="A name in any language; may be repeated.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="CODE", help="Language of the mentions; kanji need it."),
    ] = None,
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="Only entities of this language.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Answers per mention.")] = 5,
    mentions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One mention per line; requires --out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Answers: .parquet, .tsv or .jsonl.")
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0.0,
    as_json: Json = False,
) -> None:
    """Link mentions to the entities of a KB, with a calibrated confidence.

    Example: [b]prixlm link --kb world --lang en --mention Soome[/b]

    Example: [b]prixlm link encoder --kb world --mentions names.txt --out linked.tsv[/b]
    """
    if (mention is None) == (mentions is None) or (mentions is None) != (out is None):
        raise PrixError("pass --mention TEXT, or --mentions FILE with --out FILE.")
    if k < 1:
        raise PrixError(f"-k {k}: expected 1 or more.")
    from prixlm.decoding.batch import check_out
    from prixlm.entities.linker import link_file, open_mentions
    from prixlm.kb.store import KB
    from prixlm.linking.mentions import MentionLinker

    opened = KB(kb)
    # Reading the names of a KB takes long: refuse wrong arguments before that.
    if lang is not None:
        opened.entity_range(lang)
    file = None
    if mentions is not None and out is not None:
        check_out(out)
        file = open_mentions(mentions)
    where = parse_engine(engine, address, workers, gpus_per_worker)
    is_short = mentions is None or as_json
    with progress_bar(None if is_short else where.describe()) as progress:
        linker = MentionLinker(
            opened, encoder=encoder, source=source, engine=where, progress=progress
        )
        if file is not None and out is not None:
            counts = link_file(linker, file, out, k, lang, progress, engine=where)
            empty = f" ({counts['empty']:,} of them empty)" if counts["empty"] else ""
            text = f"Linked {counts['mentions']:,} lines{empty}: {out}"
            print_result({**counts, "out": str(out)}, text, as_json)
            return
    _link(linker, mention or [], k, lang, as_json)


def _link(
    linker: "MentionLinker", mentions: list[str], k: int, lang: str | None, as_json: bool
) -> None:
    """Link the mentions of the command line and print the entities."""
    from prixlm.reports.console import print_linked

    linked = []
    for mention, answers in zip(mentions, linker.link(mentions, k, lang), strict=True):
        entities = linker.kb.entities([answer.entity for answer in answers])
        linked.append((mention, answers, entities))
    if not as_json:
        for mention, answers, entities in linked:
            print_linked(console(), mention, answers, entities)
        return
    print_json(
        [
            {
                "mention": mention,
                "answers": [
                    {
                        "rank": answer.rank,
                        "score": answer.score,
                        "evidence": answer.evidence,
                        **dataclasses.asdict(entity),
                    }
                    for answer, entity in zip(answers, entities, strict=True)
                ],
            }
            for mention, answers, entities in linked
        ]
    )
