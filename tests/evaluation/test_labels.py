"""Names that are withheld and proposed again."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.evaluation.labels import (
    ENGLISH,
    FUSED,
    RULES,
    TAKEN,
    LabelResult,
    Rules,
    coverage_at,
    coverages_at,
    evaluate_labels,
)
from tests.enrichment.naming.test_chunks import SYLLABLES, spell


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """700 entities with an English, a German and a Russian name; one in ten is translated."""
    folder = tmp_path_factory.mktemp("labels")
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    generator = np.random.default_rng(0)
    lines = []
    for number in range(700):
        word = "".join(generator.choice(SYLLABLES, 3))
        entity = f"<http://x/{number}>"
        russian = spell(word).title() if number % 10 else f"Нечто {number}"
        names = {"en": word.title(), "de": word.title() + "n", "ru": russian}
        if number == 0:  # a language of three names
            names["et"] = word
        lines += [f'{entity} {label} "{name}"@{lang} .' for lang, name in names.items()]
        lines.append(f"{entity} <http://x/r> <http://x/{(number + 1) % 700}> .")
    (folder / "facts.nt").write_text("\n".join(lines) + "\n", "utf-8")
    return import_kb([folder / "facts.nt"], folder / "kb", format="rdf")


@pytest.fixture(scope="module")
def result(kb: KB) -> LabelResult:
    return evaluate_labels(kb, ["ru", "et"])


def test_withheld_names_are_written_and_the_baselines_stand_beside(result: LabelResult) -> None:
    [trial] = result.trials
    assert 100 < len(trial.answers[FUSED]) < 200
    assert trial.exact(TAKEN) == 0 and trial.character_error(TAKEN) > 0.9
    assert trial.exact(FUSED) > 0.8 and trial.character_error(FUSED) < 0.2
    assert trial.coverage(FUSED) > 0.6 and trial.exact(ENGLISH) > 0.7
    assert trial.reliability.ece < 0.15
    right, wrong = trial.examples(3)
    assert len(right) == 3 and all(answer.is_right for answer in right)
    assert not any(answer.is_right for answer in wrong)


def test_a_language_without_links_says_so(result: LabelResult) -> None:
    assert "too few to learn from" in result.failed["et"]
    tables = result.tables()
    assert tables[0].metric == "exact match"
    assert tables[0].rows.keys() == {TAKEN, RULES, ENGLISH, FUSED}
    assert any("et" in note for note in tables[0].notes)


def test_the_withheld_names_were_not_read(kb: KB, result: LabelResult) -> None:
    """A translation that nothing could know is never right."""
    [trial] = result.trials
    translated = [answer for answer in trial.answers[FUSED] if answer.own.startswith("Нечто")]
    assert translated and not any(answer.is_right for answer in translated)


def test_valid_and_test_ask_for_different_names(kb: KB, result: LabelResult) -> None:
    [valid] = evaluate_labels(kb, ["ru"], split="valid").trials
    asked = {answer.english for answer in result.trials[0].answers[FUSED]}
    assert not asked & {answer.english for answer in valid.answers[FUSED]}


def test_coverage_is_the_longest_sure_part() -> None:
    score = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
    right = np.array([True, True, False, True, False])
    assert coverage_at(score, right, 1.0) == pytest.approx(2 / 5)
    assert coverage_at(score, right, 0.75) == pytest.approx(4 / 5)
    assert coverage_at(np.full(5, 1.0), right, 0.9) == 0, "equal scores cannot be told apart"
    assert coverage_at(np.zeros(0), np.zeros(0, bool), 0.9) == 0
    none = np.array([2.0, -np.inf, -np.inf])  # two things without an answer: taken together
    assert coverage_at(none, np.array([True, True, False]), 0.9) == pytest.approx(1 / 3)


def test_coverages_of_resamples_equal_those_of_repeated_answers() -> None:
    generator = np.random.default_rng(0)
    score, right = generator.integers(0, 6, 40) / 6, generator.random(40) < 0.7
    weights = generator.multinomial(40, np.full(40, 1 / 40), 20)
    for row, found in zip(weights, coverages_at(score, right, 0.7, weights), strict=True):
        assert found == pytest.approx(
            coverage_at(np.repeat(score, row), np.repeat(right, row), 0.7)
        )


def test_every_figure_has_an_interval(result: LabelResult) -> None:
    for table in result.tables():
        for row in table.rows.values():
            cell = row["ru"]
            assert cell.interval is None or cell.interval.low <= cell.interval.high
        assert table.metric == "calibration error" or table.has_intervals()


def test_a_romanisation_is_turned_round() -> None:
    rules = Rules(["Афина", "Шуша"])
    assert rules.write("shina") == "Шина" and rules.write("") == ""


def test_bad_settings_are_refused(kb: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="expected test or valid"):
        evaluate_labels(kb, ["ru"], split="train")
    with pytest.raises(PrixError, match="has no xx"):
        evaluate_labels(kb, ["xx"])
