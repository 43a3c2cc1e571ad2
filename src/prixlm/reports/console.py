"""Text for the terminal: a KB, a run, answers, proposals and result tables.

Names from a KB are untrusted text: `shown` makes them safe for a terminal.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

from babel import Locale
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from prixlm.kb.store import KB, SPLITS
from prixlm.reports.plots import read_metrics, smooth
from prixlm.reports.tables import ResultTable
from prixlm.types import Answer, Asked, Entity
from prixlm.untrusted import printable

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 9
"""Columns from which a result table gives up the space between them to fit 80 characters."""


def shown(text: str) -> str:
    """Return a name for rich: what a terminal would obey is escaped, and so is markup."""
    return escape(printable(text))


def language_name(code: str) -> str:
    """Return the English name of a language, or its code if it has none."""
    return str(Locale("en").languages.get("nb" if code == "no" else code, code))


def kb_figures(kb: KB) -> dict[str, Any]:
    """Return what `prixlm stats --json` prints."""
    counts = kb.manifest.counts
    return {
        "languages": kb.languages,
        "entities": counts["entities"],
        "linked": counts["linked"],
        "triples": {lang: counts["triples"].get(lang, {}) for lang in kb.languages},
        "relations": counts["relations"],
        "aliases": counts["aliases"],
        "descriptions": counts.get("descriptions", 0),
        "links": counts["links"],
        "concepts": counts["concepts"],
        "split": kb.manifest.split,
        "account": kb.manifest.account,
        "sources": kb.manifest.sources,
        "licence": kb.manifest.licence,
        "tool": kb.manifest.tool,
    }


def print_kb(console: Console, kb: KB) -> None:
    """Print the languages of a KB with their counts, and the counts of the whole."""
    counts = kb.manifest.counts
    console.print(_kb_table(kb))
    described = f", {counts['descriptions']:,} descriptions" if kb.has_descriptions else ""
    console.print(
        f"{counts['concepts']:,} concepts, {counts['relations']:,} relations, "
        f"{counts['links']:,} explicit links, {counts['aliases']:,} further names{described}. "
        f"Licence of the data: {shown(kb.manifest.licence)}."
    )


def _kb_table(kb: KB) -> Table:
    """Return entities and triples by language, with a column per split that has triples."""
    # A KB that is not split has train triples only, and one column for them.
    splits = [s for s in SPLITS if kb.num_triples(split=s)] or ["train"]
    table = Table(title=shown(str(kb.folder)), title_style="bold", show_footer=True)
    table.add_column("language", footer=f"{len(kb.languages)} languages", no_wrap=True)
    table.add_column("entities", footer=f"{kb.num_entities:,}", justify="right")
    linked = kb.manifest.counts["linked"]
    table.add_column("linked", footer=f"{sum(linked.values()):,}", justify="right")
    for split in splits:
        header = "triples" if len(splits) == 1 else split
        table.add_column(header, footer=f"{kb.num_triples(split=split):,}", justify="right")
    for lang in kb.languages:
        triples = [kb.num_triples(lang, split) for split in splits]
        entities = kb.manifest.counts["entities"][lang]
        cells = [f"{count:,}" for count in (entities, linked[lang], *triples)]
        table.add_row(f"{lang}  {shown(language_name(lang))}", *cells)
    return table


def print_account(console: Console, kb: KB) -> None:
    """Print how many rows were read, imported, rejected and filtered, by reason."""
    account = kb.manifest.account
    imported = account["imported"]
    console.print(
        f"Read {account['read']:,} rows. Imported {sum(imported.values()):,} "
        f"({_listed(imported)}), rejected {sum(account['rejected'].values()):,}, "
        f"filtered {sum(account['filtered'].values()):,}.",
        markup=False,
    )
    for outcome in ("rejected", "filtered"):
        if account[outcome]:
            console.print(f"  {outcome}: {_listed(account[outcome])}", markup=False)
    if "truncated or damaged archive" in account["rejected"]:
        console.print("  [bold]An archive is damaged[/bold]: only the rows before that were read.")
    if account["rejected"]:
        console.print(f"  Samples of each reason: {shown(str(kb.folder / 'rejects.tsv'))}.")


def _listed(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{printable(name)}: {count:,}" for name, count in counts.items()) or "none"


def print_facts(console: Console, kb: KB, langs: Sequence[str], number: int = 2) -> None:
    """Print a few facts of each language, each with another relation."""
    table = Table(title="Some of its facts", title_style="bold")
    for column in ("language", "subject", "relation", "object"):
        table.add_column(column)
    for lang in langs:
        if lang not in kb.languages:
            continue
        names = kb.relation_names(lang)
        # The first fact of each relation; md5 shuffles the subjects, the same order every time.
        rows = kb.query(
            "SELECT s.name, t.relation, o.name FROM (SELECT *, row_number() OVER "
            "(PARTITION BY relation ORDER BY md5(CAST(subject AS VARCHAR))) AS rank FROM triples "
            "WHERE lang = $lang) t JOIN entities s ON s.id = t.subject "
            "JOIN entities o ON o.id = t.object WHERE rank = 1 ORDER BY t.relation LIMIT $number",
            {"lang": lang, "number": number},
        ).fetchall()
        for subject, relation, object_ in rows:
            table.add_row(lang, shown(subject), shown(names[relation]), shown(object_))
    console.print(table)


def print_answers(console: Console, title: str, answers: Sequence[Answer]) -> None:
    """Print the answers to one query, best first."""
    table = Table(title=shown(title), title_style="bold", title_justify="left")
    table.add_column("", justify="right")
    table.add_column("answer")
    table.add_column("log-probability", justify="right")
    for answer in answers:
        table.add_row(str(answer.rank), shown(answer.name), f"{answer.score:.2f}")
    console.print(table)


_TABLES = {
    "proposals": ("Facts", ("subject_name", "relation_name", "object_name"), "stated in"),
    "labels": ("Names", ("key", "source", "name", "how"), "from"),
    "links": ("Links", ("name", "other_lang", "other_name"), ""),
}
"""Tables of a proposals folder: title, columns to show, and the title of the origin."""


def print_proposals(
    console: Console, folder: Path, manifest: Mapping[str, Any], most: int = 5
) -> None:
    """Print examples of every kind of proposal, the counts of all, and how far to believe them.

    most: examples of each kind and language, from the surest to the least sure.
    """
    for name, (title, columns, origin) in _TABLES.items():
        path = folder / f"{name}.parquet"
        if path.is_file():
            _print_examples(console, path, title, columns, origin, most)
    for sentence in proposal_sentences(manifest):
        console.print(printable(sentence), markup=False, soft_wrap=True)
    for sentence in trial_sentences(manifest.get("trials") or ()):
        console.print(printable(sentence), markup=False, soft_wrap=True)
    console.print(printable(f"Written to {folder}."), markup=False, soft_wrap=True)


def _print_examples(
    console: Console, path: Path, title: str, columns: Sequence[str], origin: str, most: int
) -> None:
    """Print rows of each language at even distances, the first among them."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    # There may be millions of rows: the languages are read first, then the chosen rows alone.
    langs = pq.read_table(path, columns=["lang"])["lang"].combine_chunks()
    if not len(langs):
        return
    chosen: dict[int, None] = {}
    for lang in pc.unique(langs).to_pylist():
        rows = pc.indices_nonzero(pc.equal(langs, lang)).to_numpy()
        step = max(1, len(rows) / most)
        chosen |= {int(rows[int(i * step)]): None for i in range(min(most, len(rows)))}
    table = Table(title=title, title_style="bold", title_justify="left")
    for column in ("language", *columns):
        table.add_column(column.removesuffix("_name").replace("_", " "))
    table.add_column("confidence", justify="right")
    if origin:
        table.add_column(origin)
    seen = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(1 << 14):
            for row in [row - seen for row in chosen if seen <= row < seen + batch.num_rows]:
                values = {name: batch.column(name)[row].as_py() for name in batch.schema.names}
                cells = [shown(str(values.get(column, ""))) for column in columns]
                cells.append(f"{values['confidence']:.2f}")
                if origin:
                    cells.append(_short_list(values["origin"]))
                table.add_row(shown(values["lang"]), *cells)
            seen += batch.num_rows
    console.print(table)


def _short_list(langs: Sequence[str], most: int = 4) -> str:
    """Return some languages and the number of the others."""
    others = f" +{len(langs) - most}" if len(langs) > most else ""
    return shown(", ".join(langs[:most])) + others if langs else "–"


def trial_sentences(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each language what its held-out facts say about the confidence."""
    sentences = []
    for trial in trials:
        if trial["subset"] != "all" or not trial["held_out"]:
            continue
        parts = [
            f"at {level['level']:g} or more, {100 * level['precision']:.0f} % of the answers were "
            f"right and {100 * level['recall']:.0f} % of the facts were found"
            for level in trial["levels"]
            if level["precision"] is not None
        ]
        name, number = language_name(trial["lang"]), trial["held_out"]
        sentence = f"Tried on {number:,} held-out facts of {name}"
        sentence += f": {'; '.join(parts)}." if parts else ": none was proposed at 0.5 or more."
        ece = trial["reliability"]["ece"]
        if ece is not None:
            sentence += f" The confidence was off by {100 * ece:.1f} points on average."
        sentences.append(sentence)
    return sentences


def print_next_steps(console: Console, work: Path, format: str = "nq") -> None:
    """Print the commands that follow an enrichment, and the page to open.

    format: of the export.
    """
    folder = quote(str(work))
    page = (work / "report" / "report.html").resolve().as_uri()
    suffix = {"quickstatements": "qs"}.get(format, format)
    lines = (
        f"Open {page}",
        "Next:",
        f"  prixlm serve {folder}",
        f"  prixlm review {folder} --to review.tsv",
        f"  prixlm export {folder} --format {format} --to facts.{suffix} --min-confidence 0.8"
        + (" --reference S854:URL" if format == "quickstatements" else ""),
    )
    for line in lines:
        console.print(printable(line), markup=False, soft_wrap=True)


_KINDS = {
    "elsewhere": "for questions that another language answers",
    "usual": "usual for similar entities",
}
"""What the kinds of proposed facts mean."""


def proposal_sentences(manifest: Mapping[str, Any]) -> list[str]:
    """Return for each language what was proposed and, if something was not, why and what to try."""
    threshold = manifest["config"]["min_confidence"]
    sentences = []
    for lang in manifest["config"]["into"]:
        kinds = manifest["proposals"].get(lang, {})
        counts = {"facts": sum(kinds.values())}
        # Labels and links are in the manifest only if they were asked for.
        for table, key in (("labels", "names"), ("links", "links")):
            if lang in manifest.get(table, {}):
                counts[table] = manifest[table][lang][key]
        some = [f"{count:,} {kind}" for kind, count in counts.items() if count]
        none = [kind for kind, count in counts.items() if not count]
        name = language_name(lang)
        if some:
            sentence = f"Proposed {_join(some)} for {name}"
            sentence += f" and no {_join(none, 'or')}." if none else "."
        else:
            sentence = f"Proposed no {_join(none, 'or')} for {name}."
        if counts["facts"]:
            parts = [f"{number:,} {_KINDS.get(kind, kind)}" for kind, number in kinds.items()]
            sentence += f" Facts: {', '.join(parts)}."
        else:
            sentence += f" No fact reached confidence {threshold:g}"
            # About 60 % of the threshold, rounded to a value that people would type.
            lower = f"; try --min-confidence {0.6 * threshold:.1g} --overwrite."
            sentence += lower if threshold else "."
        sentence += _label_sentence(manifest.get("labels", {}).get(lang, {}))
        links = manifest.get("links", {}).get(lang, {})
        if "why" in links:
            sentence += f" No links: {links['why']}"
        sentences.append(sentence)
    return sentences


def _label_sentence(labels: Mapping[str, Any]) -> str:
    """Return how the names of a language came about, or why there are none."""
    if "why" in labels:
        return f" No labels: {labels['why']}"
    if "written" not in labels:  # none were asked for
        return ""
    sentence = ""
    if labels["names"]:
        sentence = f" Labels: {labels['taken']:,} taken over, {labels['written']:,} written."
    asked = labels["unnamed"] - labels["unlike"]
    if labels["unlike"]:
        sentence += (
            f" {labels['unlike']:,} entities have no proposal because fewer languages name them "
            "than the entities it was learnt from."
        )
    if labels["sources"] and labels["written_for"] < asked:
        sentence += (
            f" Names were written for {labels['written_for']:,} of {asked:,} entities without one; "
            "--written takes more."
        )
    if "why_none_written" in labels:
        sentence += f" No names were written: {labels['why_none_written']}"
    return sentence


def _join(words: Sequence[str], last: str = "and") -> str:
    """Join words for a sentence: `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


class LabelAnswer(Protocol):
    """An answer of `evaluate labels`."""

    @property
    def english(self) -> str:
        """The source name."""

    @property
    def own(self) -> str:
        """The withheld name."""

    @property
    def text(self) -> str:
        """The proposed name."""

    @property
    def score(self) -> float:
        """Its confidence."""


def print_label_examples(
    console: Console, lang: str, right: Sequence[LabelAnswer], wrong: Sequence[LabelAnswer]
) -> None:
    """Print names that were proposed right and wrong."""
    for title, answers in (("right", right), ("wrong", wrong)):
        table = Table(
            title=f"{language_name(lang)}, {title}", title_style="bold", title_justify="left"
        )
        for column in ("source", "withheld", "proposed", "confidence"):
            table.add_column(column, justify="right" if column == "confidence" else "left")
        for answer in answers:
            cells = map(shown, (answer.english, answer.own, answer.text))
            table.add_row(*cells, f"{answer.score:.2f}")
        console.print(table)


def print_linked(
    console: Console, mention: str, answers: Sequence[Answer], entities: Sequence[Entity]
) -> None:
    """Print the nearest entities of one mention, with their languages, keys and evidence."""
    table = Table(title=shown(mention), title_style="bold", title_justify="left")
    for column in ("", "entity", "language", "key", "confidence", "first by"):
        table.add_column(column, justify="right" if column in ("", "confidence") else "left")
    for answer, entity in zip(answers, entities, strict=True):
        cells = map(shown, (entity.name, entity.lang, entity.key))
        table.add_row(str(answer.rank), *cells, f"{answer.score:.3f}", answer.evidence)
    console.print(table)


def print_asked(console: Console, title: str, asked: Sequence[Asked], number: int = 2) -> None:
    """Print `number` questions of each language with the best answers, and the hits of all."""
    table = Table(title=title, title_style="bold", title_justify="left")
    for column in ("language", "question", "best answers", "truth", "rank"):
        table.add_column(column, justify="right" if column == "rank" else "left")
    counts: Counter[str] = Counter()
    for question in asked:
        query = question.query
        lang = query.to or query.lang
        counts[lang] += 1
        if counts[lang] <= number:
            # A link asks for a name in a language, any other question for an object.
            relation = query.relation or language_name(query.to or "")
            names = dict.fromkeys(answer.name for answer in question.answers)  # names can collide
            table.add_row(
                shown(lang),
                shown(f"{query.subject} · {relation}"),
                shown(", ".join(list(names)[:3])),
                shown(", ".join(question.truth[:3])),
                str(question.rank or "–"),
            )
    console.print(table)
    ranks = [question.rank for question in asked]
    first, ten = (
        sum(rank is not None and rank <= k for rank in ranks) / max(1, len(ranks)) for k in (1, 10)
    )
    console.print(
        f"{len(ranks):,} questions: the right answer comes first in {first:.0%} and is among the "
        f"best ten in {ten:.0%}."
    )


def print_tables(console: Console, tables: Iterable[ResultTable]) -> None:
    """Print result tables, one below the other."""
    for result in tables:
        # A title of its own line: rich wraps a table's title to the table's width.
        console.print(f"[bold]{shown(result.title)} (%)[/bold]")
        # Numbers are below the columns, so that eight languages fit 80 characters.
        headers = result.header_parts()
        gap = 1 if len(headers) < _WIDE else 0
        table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
        table.add_column("row", min_width=14)
        has_numbers = any(number for _, number in headers)
        for name, number in headers:
            lines = f"{shown(name)}\n{number}" if has_numbers else shown(name)
            table.add_column(lines, justify="right", no_wrap=True)
        for method in result.rows:
            table.add_row(shown(method), *map(shown, result.cells(method)))
        if result.has_intervals():  # one line for all rows: ± in every cell would not fit
            table.add_section()
            table.add_row("± at most", *result.widest())
        console.print(table)
        for note in result.notes:
            console.print(shown(note))
        console.print()


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Draw a curve in one line of text."""
    if not values:
        return ""
    # At most `width` values, evenly spaced, as eighths between the lowest and the highest.
    step = max(1, len(values) / width)
    picked = [values[int(i * step)] for i in range(min(width, len(values)))]
    low, high = min(picked), max(picked)
    return "".join(_BARS[round((v - low) / ((high - low) or 1) * 7)] for v in picked)


def print_run(console: Console, run: Path, facts: Mapping[str, Mapping[str, int]]) -> None:
    """Print what a pretraining read, what the length rule left out, and how its loss fell.

    facts: counts by language under `triples` and `links an epoch`, then those of each kind that
    are too long, in the same order (`Lineage.facts_by_language`).
    """
    table = Table(title="Training facts", title_style="bold", show_footer=True)
    table.add_column("language", footer="all", no_wrap=True)
    for title, counts in facts.items():
        table.add_column(title, footer=f"{sum(counts.values()):,}", justify="right")
    triples, links, long_triples, long_links = facts.values()
    for lang in sorted({*triples, *links}):
        cells = [f"{counts.get(lang, 0):,}" for counts in (triples, links)]
        for too_long, counts in ((long_triples, triples), (long_links, links)):
            count = too_long.get(lang, 0)
            share = count / max(1, counts.get(lang, 0))
            cells.append(f"{count:,}" + (f" ({share:.1%})" if share else ""))
        table.add_row(f"{lang}  {shown(language_name(lang))}", *cells)
    console.print(table)
    _print_losses(console, run)
    console.print(f"The model is in {shown(str(run))}; loss.png shows the loss.")


def _print_losses(console: Console, run: Path) -> None:
    metrics = read_metrics(run)
    train = [line for line in metrics if {"loss", "facts_per_second"} <= line.keys()]
    valid = [line["valid_nats_per_name"] for line in metrics if "valid_nats_per_name" in line]
    if train:
        first, last = train[0]["loss"], train[-1]["loss"]
        curve = sparkline(smooth([line["loss"] for line in train]))
        console.print(f"Training loss {first:.2f} → {last:.2f} nats per object token  {curve}")
        rate = train[-1]["facts_per_second"]
        console.print(f"{int(train[-1]['step']):,} steps, {rate:,.0f} facts/s.")
    if valid:
        console.print(
            f"Validation {valid[0]:.2f} → {valid[-1]:.2f} nats per object name  {sparkline(valid)}"
        )
