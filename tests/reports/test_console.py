"""What the terminal shows, and that names cannot change it."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prixlm import KB, Answer, Entity, Query
from prixlm.reports.console import (
    language_name,
    print_account,
    print_answers,
    print_asked,
    print_facts,
    print_kb,
    print_linked,
    print_run,
    print_tables,
    proposal_sentences,
    shown,
    sparkline,
)
from prixlm.reports.tables import ResultTable
from prixlm.types import Asked


@pytest.fixture
def screen() -> Console:
    """A terminal that remembers what was printed."""
    return Console(record=True, width=100, highlight=False)


def test_names_are_shown_without_markup_or_control_characters() -> None:
    assert shown("[bold]x\x1b[31m\n") == r"\[bold]x [31m "


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
        "try --min-confidence 0.3."
    ]
    (nothing,) = proposal_sentences(manifest(**labels, links={"yo": {"links": 0}}))
    assert nothing.startswith("Proposed 30,125 labels for Yoruba and no facts or links.")
    (nothing,) = proposal_sentences(manifest(labels={"yo": {"names": 0}}))
    assert nothing.startswith("Proposed no facts or labels for Yoruba. No fact reached")


def test_facts_labels_and_links_are_counted_by_language() -> None:
    config = {"into": ["et", "te"], "min_confidence": 0.0}
    counts = {"et": {"elsewhere": 1000, "usual": 43}}
    found = manifest(config=config, proposals=counts, labels={"et": {"names": 2}})
    assert proposal_sentences(found | {"links": {"et": {"links": 5}}}) == [
        "Proposed 1,043 facts, 2 labels and 5 links for Estonian. "
        "Facts: 1,000 elsewhere, 43 usual.",
        "Proposed no facts for Telugu. No fact reached confidence 0.",
    ]


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
