"""What the terminal shows, and that names cannot change it."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prixlm import KB, Answer, Entity, Query
from prixlm.metrics import Interval
from prixlm.reports.console import (
    language_name,
    print_account,
    print_answers,
    print_asked,
    print_facts,
    print_kb,
    print_linked,
    print_next_steps,
    print_proposals,
    print_run,
    print_tables,
    proposal_sentences,
    shown,
    sparkline,
    trial_sentences,
)
from prixlm.reports.tables import ResultTable
from prixlm.types import Asked
from tests.helpers import fact_row, label_row, link_row, make_proposals

TITLES = ("Facts", "Names", "Links")


@pytest.fixture
def screen() -> Console:
    """A terminal that remembers what was printed."""
    return Console(record=True, width=100, highlight=False)


def test_names_are_shown_without_markup_or_control_characters() -> None:
    assert shown("[bold]x\x1b[31m\n") == r"\[bold]x\x1b[31m\n"


def test_a_language_without_an_english_name_is_shown_by_its_code() -> None:
    assert language_name("te") == "Telugu" and language_name("no") == language_name("nb")
    assert language_name("x-klingon") == "x-klingon"


def test_a_kb_is_printed_by_language(toy: KB, screen: Console) -> None:
    print_kb(screen, toy)
    print_account(screen, toy)
    print_facts(screen, toy, ["te", "xx"])
    text = screen.export_text()
    assert "5 languages" in text and "te  Telugu" in text and "8 explicit links" in text
    assert "Read 21 rows. Imported 21" in text and "rejected 0" in text
    assert "హెల్సింకి" in text


def manifest(**changes: Any) -> dict[str, Any]:
    """The manifest of an enrichment, as far as it is printed."""
    config = {"into": ["yo"], "min_confidence": 0.5}
    return {"config": config, "proposals": {}} | changes


def test_a_run_without_facts_tells_what_it_proposed_and_what_to_try() -> None:
    labels = {"labels": {"yo": {"names": 30125}}}
    assert proposal_sentences(manifest(**labels)) == [
        "Proposed 30,125 labels for Yoruba and no facts. No fact reached confidence 0.5; "
        "try --min-confidence 0.3 --overwrite."
    ]
    (nothing,) = proposal_sentences(manifest(**labels, links={"yo": {"links": 0}}))
    assert nothing.startswith("Proposed 30,125 labels for Yoruba and no facts or links.")
    (nothing,) = proposal_sentences(manifest(labels={"yo": {"names": 0}}))
    assert nothing.startswith("Proposed no facts or labels for Yoruba. No fact reached")


def test_names_are_told_by_how_they_came_about() -> None:
    figures = {"names": 5, "taken": 2, "written": 3, "unnamed": 97, "unlike": 7, "written_for": 50}
    (text,) = proposal_sentences(manifest(labels={"yo": {**figures, "sources": ["en"]}}))
    assert "Proposed 5 labels for Yoruba" in text
    assert "Labels: 2 taken over, 3 written." in text
    assert "7 entities have no proposal because fewer languages name them" in text
    assert "written for 50 of 90 entities without one; --written takes more." in text
    why = "most names are taken over."
    (text,) = proposal_sentences(
        manifest(labels={"yo": {**figures, "sources": [], "why_none_written": why}})
    )
    assert text.endswith("No names were written: most names are taken over.")


def test_a_language_without_links_tells_why() -> None:
    links = {"yo": {"links": 0, "why": "it is the pivot; pass another --pivot."}}
    (text,) = proposal_sentences(manifest(links=links))
    assert text.startswith("Proposed no facts or links for Yoruba.")
    assert text.endswith("No links: it is the pivot; pass another --pivot.")


def test_facts_labels_and_links_are_counted_by_language() -> None:
    config = {"into": ["et", "te"], "min_confidence": 0.0}
    counts = {"et": {"elsewhere": 1000, "usual": 43}}
    found = manifest(config=config, proposals=counts, labels={"et": {"names": 2}})
    assert proposal_sentences(found | {"links": {"et": {"links": 5}}}) == [
        "Proposed 1,043 facts, 2 labels and 5 links for Estonian. "
        "Facts: 1,000 for questions that another language answers, 43 usual for similar entities.",
        "Proposed no facts for Telugu. No fact reached confidence 0.",
    ]


def trial(**changes: Any) -> dict[str, Any]:
    """A trial of a manifest, as far as it is printed."""
    levels = [
        {"level": 0.5, "precision": 0.876, "recall": 0.684},
        {"level": 0.8, "precision": 1.0, "recall": 0.53},
        {"level": 0.95, "precision": None, "recall": 0.0},
    ]
    values = {"lang": "et", "subset": "all", "held_out": 1160, "levels": levels}
    return values | {"reliability": {"ece": 0.039}} | changes


def test_a_trial_is_told_in_a_sentence() -> None:
    assert trial_sentences([trial(), trial(subset="no transfer")]) == [
        "Tried on 1,160 held-out facts of Estonian: at 0.5 or more, 88 % of the answers were right "
        "and 68 % of the facts were found; at 0.8 or more, 100 % of the answers were right and "
        "53 % of the facts were found. The confidence was off by 3.9 points on average."
    ]
    few = trial(lang="te", held_out=3, reliability={"ece": None}, levels=[])
    assert trial_sentences([few, trial(held_out=0)]) == [
        "Tried on 3 held-out facts of Telugu: none was proposed at 0.5 or more."
    ]
    assert trial_sentences([]) == []


def test_examples_of_every_kind_are_shown_from_the_surest_to_the_least_sure(
    tmp_path: Path, screen: Console
) -> None:
    finnish = [fact_row(n, confidence=0.99 - 0.01 * n) for n in range(40)]
    others = [fact_row(40, lang="te", subject_name="[b]te", origin=[])]
    others += [fact_row(41, lang="te", origin=["en", "sv", "da", "de", "fr"])]
    folder = make_proposals(tmp_path / "p", [*finnish, *others], [label_row()], [link_row()])
    found = manifest(config={"into": ["fi"], "min_confidence": 0.5}, trials=[trial()])
    print_proposals(screen, folder, found | {"proposals": {"fi": {"elsewhere": 40}}}, most=4)
    text = screen.export_text()
    shown_rows = [line for line in text.splitlines() if "aihe" in line and "fi " in line]
    assert [f"aihe {n} " in line for n, line in zip((0, 10, 20, 30), shown_rows, strict=True)] == (
        [True] * 4
    )
    assert "[b]te" in text and "–" in text, "a name is no markup; nobody states it"
    assert "en, sv, da, de +1" in text
    assert "Douglas Adams" in text and "Q42" in text and "Q7" not in text
    titles = [line.strip() for line in text.splitlines() if line.strip() in TITLES]
    assert titles == list(TITLES)
    assert (
        "Proposed 40 facts for Finnish. Facts: 40 for questions that another language answers."
        in text
    )
    assert "Tried on 1,160 held-out facts of Estonian" in text
    assert f"Written to {folder}." in text.replace("\n", "")


def test_a_folder_without_rows_shows_no_empty_table(tmp_path: Path, screen: Console) -> None:
    folder = make_proposals(tmp_path / "p", [])
    print_proposals(screen, folder, manifest())
    text = screen.export_text()
    assert "Proposed no facts for Yoruba" in text and "┏" not in text


def test_the_next_steps_are_commands_for_a_shell(tmp_path: Path, screen: Console) -> None:
    print_next_steps(screen, tmp_path / "my [b]work")
    lines = screen.export_text().splitlines()
    page = (tmp_path / "my [b]work" / "report" / "report.html").as_uri()
    assert lines[0] == f"Open {page}"
    commands = [shlex.split(line) for line in lines if line.startswith("  prixlm")]
    assert [command[1] for command in commands] == ["serve", "review", "export"]
    assert all(command[2] == str(tmp_path / "my [b]work") for command in commands)


def test_answers_and_links_are_tables(screen: Console) -> None:
    print_answers(screen, "France · capital", [Answer(3, "[b]Paris", -0.5, 1)])
    entity = Entity(3, "en", "Paris", "Q90", 1)
    print_linked(screen, "Pariisi", [Answer(3, "Paris", 0.987, 1)], [entity])
    text = screen.export_text()
    assert "[b]Paris" in text and "-0.50" in text
    assert "Q90" in text and "0.987" in text


def test_questions_are_shown_with_the_share_of_hits(screen: Console) -> None:
    query = Query("en", "France", "capital")
    answers = [Answer(1, "Lyon", -1.0, 1), Answer(2, "Paris", -2.0, 2)]
    asked = [Asked(query, ["Paris"], answers), Asked(query, ["Lyon"], answers)]
    print_asked(screen, "Questions", [*asked, Asked(query, ["Nice"], answers)], number=1)
    text = screen.export_text()
    assert text.count("France · capital") == 1, "one of each language is shown"
    assert (
        "3 questions: the right answer comes first in 33% and is among the best ten in 67%" in text
    )


def test_result_tables_fit_a_terminal_of_80_columns() -> None:
    screen = Console(record=True, width=80, highlight=False)
    table = ResultTable("[b]Hits@1", notes=["[i]a note"])
    for lang in ("ar", "de", "el", "en", "es", "fi", "fr", "ja"):
        table.add("a | $x$ [b]", lang, 0.123, 12_345)
    print_tables(screen, [table])
    text = screen.export_text()
    assert "[b]Hits@1 (%)" in text and "a | $x$ [b]" in text and "[i]a note" in text
    assert text.count("12.3") == 9 and all(len(line) <= 80 for line in text.splitlines())


def test_the_widest_interval_of_each_column_is_below_the_rows(screen: Console) -> None:
    table = ResultTable("accuracy")
    table.add("x", "fi", 0.5, 100, Interval(0.4, 0.6))
    table.add("y", "fi", 0.5, 100, Interval(0.45, 0.56))
    print_tables(screen, [table])
    text = screen.export_text()
    assert re.search(r"± at most +10\.0", text)


def test_a_sparkline_shows_a_curve_in_one_line() -> None:
    assert sparkline([1.0, 0.5, 0.0]) == "█▅▁" and sparkline([]) == ""
    assert len(sparkline(list(map(float, range(1000))))) == 40


def test_a_run_is_printed_with_its_losses(tmp_path: Path, screen: Console) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 3.0, "facts_per_second": 10}\n'
        '{"step": 2, "valid_loss": 1.0, "valid_nats_per_name": 4.0}\n'
        '{"step": 1200, "loss": 1.0, "facts_per_second": 1234}\n'
    )
    facts = {
        "triples": {"fi": 200},
        "links an epoch": {"fi": 10},
        "triples too long": {"fi": 3},
        "links too long": {},
    }
    print_run(screen, tmp_path, facts)
    text = screen.export_text()
    assert "fi  Finnish" in text and "3 (1.5%)" in text
    assert "Training loss 3.00 → 1.00 nats per object token" in text
    assert "1,200 steps, 1,234 facts/s." in text
    assert "Validation 4.00 → 4.00 nats per object name" in text
