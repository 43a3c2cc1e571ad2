"""Figures for people: tables for the terminal, plots for the eye.

Names from a KB are untrusted text: `shown` makes them safe for a terminal.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from babel import Locale
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from prixlm.kb.store import KB, SPLITS
from prixlm.reports.plots import read_metrics, smooth
from prixlm.types import Answer, Asked, Entity


def shown(text: str) -> str:
    """A name for the terminal: no markup of rich's, no control characters."""
    return escape("".join(c if c.isprintable() else " " for c in text))


def language_name(code: str) -> str:
    return str(Locale("en").languages.get("nb" if code == "no" else code, code))


def kb_figures(kb: KB) -> dict[str, Any]:
    """What `prixlm stats --json` prints."""
    counts = kb.manifest.counts
    return {
        "languages": kb.languages,
        "entities": counts["entities"],
        "linked": counts["linked"],
        "triples": {lang: counts["triples"].get(lang, {}) for lang in kb.languages},
        "relations": counts["relations"],
        "aliases": counts["aliases"],
        "links": counts["links"],
        "concepts": counts["concepts"],
        "split": kb.manifest.split,
        "account": kb.manifest.account,
        "sources": kb.manifest.sources,
        "licence": kb.manifest.licence,
        "tool": kb.manifest.tool,
    }


def kb_table(kb: KB) -> Table:
    """Languages with their entities and triples; a column for each split that there is."""
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
        numbers = [kb.num_triples(lang, split) for split in splits]
        entities = kb.manifest.counts["entities"][lang]
        cells = [f"{number:,}" for number in (entities, linked[lang], *numbers)]
        table.add_row(f"{lang}  {shown(language_name(lang))}", *cells)
    return table


def print_kb(console: Console, kb: KB) -> None:
    counts = kb.manifest.counts
    console.print(kb_table(kb))
    console.print(
        f"{counts['concepts']:,} concepts, {counts['relations']:,} relations, "
        f"{counts['links']:,} explicit links, {counts['aliases']:,} further names. "
        f"Licence of the data: {shown(kb.manifest.licence)}."
    )


def print_account(console: Console, kb: KB) -> None:
    """Where the rows that were read went, so that nothing is lost in silence."""
    account = kb.manifest.account
    imported = account["imported"]
    console.print(
        f"Read {account['read']:,} rows. Imported {sum(imported.values()):,} "
        f"({_listed(imported)}), rejected {sum(account['rejected'].values()):,}, "
        f"filtered {sum(account['filtered'].values()):,}."
    )
    for word in ("rejected", "filtered"):
        if account[word]:
            console.print(f"  {word}: {_listed(account[word])}")
    if "truncated or damaged archive" in account["rejected"]:
        console.print("  [bold]An archive is damaged[/bold]: only what stands before was read.")
    if account["rejected"]:
        console.print(f"  The first of each are in {shown(str(kb.folder / 'rejects.tsv'))}.")


def print_facts(console: Console, kb: KB, langs: list[str], number: int = 2) -> None:
    """A few facts of some languages, for the eye."""
    table = Table(title="Some of its facts", title_style="bold")
    for column in ("language", "subject", "relation", "object"):
        table.add_column(column)
    for lang in langs:
        if lang not in kb.languages:
            continue
        names = kb.relation_names(lang)
        rows = kb.query(
            "SELECT s.name, t.relation, o.name FROM (SELECT *, row_number() OVER "
            "(PARTITION BY relation ORDER BY md5(CAST(subject AS VARCHAR))) AS place FROM triples "
            "WHERE lang = $lang) t JOIN entities s ON s.id = t.subject "
            "JOIN entities o ON o.id = t.object WHERE place = 1 ORDER BY t.relation LIMIT $number",
            {"lang": lang, "number": number},
        ).fetchall()
        for subject, relation, object_ in rows:
            table.add_row(lang, shown(subject), shown(names[relation]), shown(object_))
    console.print(table)


def print_answers(console: Console, title: str, answers: Sequence[Answer]) -> None:
    """The answers to one query, best first."""
    table = Table(title=shown(title), title_style="bold", title_justify="left")
    table.add_column("", justify="right")
    table.add_column("answer")
    table.add_column("log-probability", justify="right")
    for answer in answers:
        table.add_row(str(answer.rank), shown(answer.name), f"{answer.score:.2f}")
    console.print(table)


def print_proposals(
    console: Console, folder: Path, manifest: dict[str, Any], most: int = 5
) -> None:
    """How many there are, and the first of each language."""
    import pyarrow.parquet as pq

    shown_of: Counter[str] = Counter()
    table = Table(title="Proposals", title_style="bold", title_justify="left")
    for column in ("language", "subject", "relation", "object", "confidence", "stated in"):
        table.add_column(column, justify="right" if column == "confidence" else "left")
    with pq.ParquetFile(folder / "proposals.parquet") as file:
        for batch in file.iter_batches(1 << 12):
            for row in batch.to_pylist():
                shown_of[row["lang"]] += 1
                if shown_of[row["lang"]] <= most:
                    names = (
                        shown(row[f"{part}_name"]) for part in ("subject", "relation", "object")
                    )
                    stated = ", ".join(row["origin"]) or "–"
                    table.add_row(row["lang"], *names, f"{row['confidence']:.2f}", stated)
    if not shown_of:
        console.print("Nothing is proposed: no question has an answer that is sure enough.")
    else:
        console.print(table)
    for lang, parts in manifest["proposals"].items():
        told = ", ".join(f"{number:,} {why}" for why, number in parts.items())
        console.print(f"{lang}: {sum(parts.values()):,} proposals ({told}).", markup=False)
    console.print(f"Written to {folder}.", markup=False)


def print_linked(
    console: Console, mention: str, answers: Sequence[Answer], entities: Sequence[Entity]
) -> None:
    """The nearest entities of one mention, with their languages and keys."""
    table = Table(title=shown(mention), title_style="bold", title_justify="left")
    for column in ("", "entity", "language", "key", "similarity"):
        table.add_column(column, justify="right" if column in ("", "similarity") else "left")
    for answer, entity in zip(answers, entities, strict=True):
        cells = (shown(entity.name), entity.lang, shown(entity.key))
        table.add_row(str(answer.rank), *cells, f"{answer.score:.3f}")
    console.print(table)


def print_asked(console: Console, title: str, asked: Sequence[Asked], number: int = 2) -> None:
    """A few questions of each language with the model's best answers and the truth, and the hits
    of all of them."""
    table = Table(title=title, title_style="bold", title_justify="left")
    for column in ("language", "question", "best answers", "truth", "rank"):
        table.add_column(column, justify="right" if column == "rank" else "left")
    counts: Counter[str] = Counter()
    for one in asked:
        query = one.query
        lang = query.to or query.lang
        counts[lang] += 1
        if counts[lang] <= number:
            what = query.relation or language_name(query.to or "")
            names = dict.fromkeys(answer.name for answer in one.answers)  # names can collide
            best = ", ".join(list(names)[:3])
            table.add_row(
                lang,
                shown(f"{query.subject} · {what}"),
                shown(best),
                shown(", ".join(one.truth[:3])),
                str(one.rank or "–"),
            )
    console.print(table)
    ranks = [one.rank for one in asked]
    hits = [
        sum(r is not None and r <= most for r in ranks) / max(1, len(ranks)) for most in (1, 10)
    ]
    console.print(
        f"Of {len(ranks):,} asked, {hits[0]:.0%} have the truth first and {hits[1]:.0%} "
        "among the best ten."
    )


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """A curve in one line of a terminal."""
    if not values:
        return ""
    step = max(1, len(values) / width)
    picked = [values[int(i * step)] for i in range(min(width, len(values)))]
    low, high = min(picked), max(picked)
    bars = "▁▂▃▄▅▆▇█"
    return "".join(bars[round((v - low) / ((high - low) or 1) * 7)] for v in picked)


def print_run(console: Console, run: Path, trained: dict[str, Any]) -> None:
    """What a pretraining read, what the length rule left out, and how its loss fell."""
    table = Table(title="Facts it learnt from", title_style="bold", show_footer=True)
    columns = ("triples", "links_an_epoch", "triples_too_long", "links_too_long")
    table.add_column("language", footer="all", no_wrap=True)
    for column in columns:
        total = sum(trained[column].values())
        table.add_column(column.replace("_", " "), footer=f"{total:,}", justify="right")
    for lang in sorted(set(trained["triples"]) | set(trained["links_an_epoch"])):
        cells = []
        for column, whole in zip(columns, (None, None, *columns[:2]), strict=True):
            number = trained[column].get(lang, 0)
            share = number / max(1, trained[whole].get(lang, 0)) if whole else 0
            cells.append(f"{number:,}" + (f" ({share:.1%})" if share else ""))
        table.add_row(f"{lang}  {shown(language_name(lang))}", *cells)
    console.print(table)
    metrics = read_metrics(run)
    train = [line for line in metrics if "loss" in line]
    valid = [line for line in metrics if "valid_loss" in line]
    if train:
        first, last = train[0]["loss"], train[-1]["loss"]
        curve = sparkline(smooth([line["loss"] for line in train]))
        console.print(f"Training loss {first:.2f} → {last:.2f} nats per object token  {curve}")
        rate = train[-1]["facts_per_second"]
        console.print(f"{int(train[-1]['step']):,} steps, {rate:,.0f} facts/s.")
    if valid:
        values = [line["valid_nats_per_name"] for line in valid]
        console.print(
            f"Validation {values[0]:.2f} → {values[-1]:.2f} nats per object name"
            f"  {sparkline(values)}"
        )
    console.print(f"The model is in {shown(str(run))}; loss.png there shows the curve.")


def _listed(counts: dict[str, int]) -> str:
    return "; ".join(f"{shown(name)}: {number:,}" for name, number in counts.items()) or "none"
