"""The fit: questions that hide their name, calibration on held-out concepts, files."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, import_kb
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.evidence import Evidence
from prixlm.entities.linker import EntityLinker
from prixlm.entities.matching import FEATURES, Coefficients, Matcher
from prixlm.entities.matching_fit import (
    PRECISION,
    REMOVED,
    Asked,
    Sample,
    best_of_each,
    dump_coefficients,
    find_precision,
    find_threshold,
    fit_default,
    fit_matcher,
    fit_sample,
    load_coefficients,
    main,
    make_questions,
    make_sample,
    misspell,
    open_matcher,
    probabilities,
    read_default,
)
from prixlm.entities.names import build_names
from prixlm.kb.lookup import build_lookup
from prixlm.metrics import reliability
from prixlm.types import Array

WIKIDATA = Path(__file__).parents[1] / "data" / "wikidata-sample.json"
BLANK = Coefficients(dict.fromkeys(FEATURES, 0.0), (0.0, 0.0), None, "")


@pytest.fixture(scope="module")
def blank(world: KB) -> Matcher:
    """The world KB, before anything is fitted."""
    return Matcher(build_lookup(world), build_names(world), BLANK)


@pytest.fixture(scope="module")
def asked(blank: Matcher) -> list[Asked]:
    return make_questions(blank.evidence, 700, seed=1)


@pytest.fixture(scope="module")
def sample(blank: Matcher, asked: list[Asked]) -> Sample:
    return make_sample(blank, asked)


def test_scores_are_calibrated_on_concepts_that_were_not_fitted(sample: Sample) -> None:
    is_fitted = sample.concept % 2 == 0
    fitted = fit_sample(sample.take(is_fitted), "kb", None)
    held_out = sample.take(~is_fitted)
    parameters = np.append(fitted.read_weights(), fitted.none)
    chance, right = best_of_each(held_out, probabilities(held_out, parameters))
    found = reliability(chance, right)
    # A perfect confidence would show an error of about `noise` with so few answers.
    assert found.ece < 0.03 + 2 * found.noise, found
    assert found.auroc > 0.85
    assert fitted.threshold is not None
    matched = chance >= fitted.threshold
    # Enough of them that the share says something: its standard error is below 3 points.
    assert matched.sum() > 60 and right[matched].mean() > PRECISION - 0.05


def test_no_held_out_question_is_calibrated_on_itself(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[int]] = []

    def calibrate(part: Sample, scores: Array, none: Array) -> tuple[float, float]:
        assert len(scores) == len(part.right) and len(none) == len(part)
        asked.append(set(part.concept.tolist()))
        return 1.0, 0.0

    monkeypatch.setattr("prixlm.entities.matching_fit._calibrate", calibrate)
    fit_sample(sample, "kb", None)
    every = set(sample.concept.tolist())
    # Those of the folds; the last one is for questions that will come.
    left_out = [every - part for part in asked[:-1]]
    assert set().union(*left_out) == every and asked[-1] == every
    assert sum(map(len, left_out)) == len(every), "in one fold each"


def test_a_share_of_the_questions_has_no_right_answer(asked: list[Asked], sample: Sample) -> None:
    removed = np.array([one.is_removed for one in asked])
    assert removed.mean() == pytest.approx(REMOVED, abs=0.06)
    has_right = np.bincount(sample.owner, sample.right, len(sample)) > 0
    assert not has_right[removed].any() and has_right[~removed].mean() > 0.9


def test_a_hidden_name_is_not_its_own_candidate(blank: Matcher) -> None:
    [tokyo] = blank.lookup.kb.find("東京", "ja")
    question = Asked(tokyo.id, tokyo.name, tokyo.concept, tokyo.name, True, False)
    kept = make_sample(blank, [dataclasses.replace(question, is_hidden=False)])
    hidden = make_sample(blank, [question])
    removed = make_sample(blank, [dataclasses.replace(question, is_removed=True)])
    exact = FEATURES.index("exact")
    assert kept.features[kept.right, exact].tolist() == [1]
    own = hidden.features[hidden.right]
    # Chinese spells it the same way: the name of another language may be exact.
    assert len(own) == 1 and not removed.right.any()


def test_a_hidden_name_that_no_other_language_shares_is_not_exact(blank: Matcher) -> None:
    [finland] = blank.lookup.kb.find("Suomi", "fi")
    question = Asked(finland.id, finland.name, finland.concept, finland.name, True, False)
    hidden = make_sample(blank, [question])
    spelling = hidden.features[hidden.right, FEATURES.index("spelling")]
    assert (spelling < 1).all()


def test_a_kb_of_one_language_uses_the_default(shared_toy: KB) -> None:
    lookup, names = build_lookup(shared_toy), build_names(shared_toy)
    fitted = fit_matcher(lookup, names)
    assert fitted == dataclasses.replace(read_default(), kb=shared_toy.fingerprint())


def test_the_default_is_fitted_on_the_names_of_one_language_at_a_time(blank: Matcher) -> None:
    questions = make_questions(blank.evidence, 200, seed=0, within_one_language=True)
    lookup = blank.lookup
    for one in questions:
        assert one.within is not None
        assert (one.within == lookup.lang(one.entity)) == (not one.is_hidden)
    fitted = fit_default(lookup, blank.names, num_questions=200)
    assert fitted.weights["romanised"] > 0 and fitted.held_out["questions"] == 200


def test_aliases_are_asked_for_too(tmp_path: Path) -> None:
    lookup = build_lookup(import_kb([WIKIDATA], tmp_path / "kb"))
    questions = make_questions(Evidence(lookup), 1000, seed=0)
    aliases = [one for one in questions if one.name in lookup.aliases(one.entity)]
    own = [one for one in questions if one.name == lookup.name(one.entity)]
    assert aliases and own and len(aliases) + len(own) == len(questions)


def test_coefficients_are_kept_with_the_kb_and_fitted_again_for_another(
    shared_toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup, names = build_lookup(shared_toy), build_names(shared_toy)
    fits = []

    def fit(*_args: object, **_options: object) -> Coefficients:
        fits.append(1)
        return dataclasses.replace(BLANK, kb=shared_toy.fingerprint())

    monkeypatch.setattr("prixlm.entities.matching_fit.fit_matcher", fit)
    for _ in range(2):
        open_matcher(lookup, names, folder=tmp_path)
    assert len(fits) == 1
    path = tmp_path / "matching.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"kb": "other"}))
    open_matcher(lookup, names, folder=tmp_path)
    path.write_text("{")
    open_matcher(lookup, names, folder=tmp_path)
    assert len(fits) == 3
    open_matcher(lookup, names, folder=tmp_path / "absent")  # as on a read-only disk
    assert not (tmp_path / "absent").exists()


def test_an_encoder_s_cosine_is_fitted_and_does_not_see_the_hidden_name(
    blank: Matcher, asked: list[Asked], bases: dict[str, Path]
) -> None:
    linker = EntityLinker(EntityEncoder.load(bases["xlmr"]), blank.lookup.kb)
    matcher = Matcher(blank.lookup, blank.names, BLANK, blank.evidence, linker)
    hidden = [one for one in asked if one.is_hidden and one.is_removed][:20]
    sample = make_sample(matcher, hidden)
    assert not sample.right.any()
    assert sample.features[:, FEATURES.index("encoder")].max() > 0


def test_the_threshold_is_where_precision_is_surely_above_the_target() -> None:
    chance = np.linspace(1, 0, 200)
    right = np.arange(200) < 95
    threshold = find_threshold(chance, right, 0.95)
    assert threshold is not None
    matched = chance >= threshold
    # 95 of 100 are right, but such a share would often be found below a precision of 95 % too.
    assert matched.sum() == 97 and right[matched].mean() == 95 / 97
    assert find_threshold(chance, np.zeros(200, bool)) is None
    assert find_threshold(chance[:10], np.ones(10, bool)) is None  # too few to tell


def test_exact_names_are_trusted_only_where_enough_of_them_are_right() -> None:
    assert find_precision(np.ones(49, bool)) is None, "too few to tell"
    assert find_precision(np.arange(200) >= 2) == 0.99
    assert find_precision(np.arange(200) >= 9) is None, "0.955 may be 0.94"


def test_scores_suit_tables_with_and_without_missing_rows(sample: Sample) -> None:
    """The error of a table that lacks nothing and that of one that lacks a quarter are alike."""
    fitted = fit_sample(sample, "kb", None)
    parameters = np.append(fitted.read_weights(), fitted.none)
    gaps = []
    for part in (sample.take(~sample.removed), sample):
        chance, right = best_of_each(part, probabilities(part, parameters))
        gaps.append(right.mean() - chance.mean())
    assert -0.06 < gaps[1] < 0 < gaps[0] < 0.06, "too cautious for one, too sure for the other"


def test_coefficients_survive_their_file_and_bad_files_are_refused() -> None:
    default = read_default()
    assert load_coefficients(dump_coefficients(default)) == default
    for text in ("[]", "{}", '{"version": 1}', '{"version": 0}', "{"):
        with pytest.raises(ValueError):
            load_coefficients(text)


def test_the_default_says_how_it_did_on_held_out_concepts() -> None:
    default = read_default()
    assert default.threshold is not None and default.held_out["precision"] >= PRECISION
    # A quarter of its questions has no answer, twice as many as the scores are calibrated for.
    assert default.held_out["calibration_error"] < 0.05
    assert default.exact is not None and default.exact >= PRECISION
    assert default.weights["encoder"] == 0  # an encoder is fitted on its own KB only


def test_the_command_that_made_the_default_writes_such_a_file(
    blank: Matcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.entities.matching_fit.fit_default", lambda *_: BLANK)
    main([str(blank.lookup.kb.folder), str(tmp_path / "out.json")])
    assert load_coefficients((tmp_path / "out.json").read_text()) == BLANK


def test_a_misspelling_is_one_slip_away() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        slip = misspell("Helsinki", generator)
        assert abs(len(slip) - 8) <= 1 and slip[0] == "H"
    assert misspell("Oy", generator) == "Oy"


def test_the_same_seed_asks_the_same_questions(blank: Matcher) -> None:
    assert make_questions(blank.evidence, 50, seed=3) == make_questions(blank.evidence, 50, seed=3)
