"""Names that a language may take over."""

from pathlib import Path

import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.enrichment.labels import LabelConfig, LabelRule, propose_labels


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """German takes over French names of people and never those of cities; so for 600 things."""
    folder = tmp_path_factory.mktemp("labels")
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    lines = []
    for number in range(600):
        name = f"Person {number}" if number % 2 else f"Ville {number}"
        thing = f"<http://x/{number}>"
        lines.append(f'{thing} {label} "{name}"@fr .')
        if number % 2:
            lines.append(f'{thing} {label} "{name}"@it .')
        else:
            lines.append(f'{thing} {label} "Città {number}"@it .')
        lines.append(f'{thing} {label} "Человек {number}"@ru .')
        if number % 3:
            own = name if number % 2 else f"Stadt {number}"
            lines.append(f'{thing} {label} "{own}"@de .')
        lines.append(f"{thing} <http://x/r> <http://x/{(number + 1) % 600}> .")
    source = folder / "facts.nt"
    source.write_text("\n".join(lines) + "\n", "utf-8")
    return import_kb([source], folder / "kb", format="rdf")


def test_names_that_the_others_share_are_taken_over(kb: KB) -> None:
    table = propose_labels(kb, "de", LabelConfig(min_confidence=0.8))
    found = {row["key"]: row for row in table.to_pylist()}
    wanted = {f"http://x/{n}" for n in range(600) if n % 2 and n % 3 == 0}
    assert set(found) == wanted, "people without a German name, and no city"
    row = found["http://x/3"]
    assert row["name"] == "Person 3" and row["origin"] == ["fr", "it"] and row["lang"] == "de"


def test_a_name_in_another_script_is_not_proposed(kb: KB) -> None:
    names = propose_labels(kb, "de", LabelConfig(min_confidence=0.0))["name"].to_pylist()
    assert names and not any("Человек" in name for name in names)


def test_the_confidence_is_tried_on_things_that_it_was_not_learnt_from(kb: KB) -> None:
    rule = LabelRule(kb, "de")
    assert rule.reliability is not None and rule.reliability.number == 100
    assert rule.reliability.ece < 0.05


def test_small_batches_change_nothing(kb: KB, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = propose_labels(kb, "de").to_pylist()
    monkeypatch.setattr("prixlm.enrichment.labels._ROWS", 7)
    assert propose_labels(kb, "de").to_pylist() == whole


def test_too_little_to_learn_from_is_said(toy: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="too few to learn from"):
        propose_labels(toy, "fi")
    with pytest.raises(PrixError, match="has no language xx"):
        propose_labels(toy, "xx")
    with pytest.raises(PrixError, match="expected 0 to 1"):
        LabelConfig(min_confidence=2)
