"""Candidates, features and the order of candidates, with coefficients that are given."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prixlm import KB, import_kb
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.evidence import Property, Value
from prixlm.entities.linker import EntityLinker
from prixlm.entities.matching import (
    FEATURES,
    Candidate,
    Matcher,
    Question,
    compare_with_others,
    find_sole,
    lift_exact,
    softmax_with_none,
)
from prixlm.entities.matching_fit import read_default
from prixlm.entities.names import build_names
from prixlm.kb.lookup import build_lookup

FACTS = """\
lang\tsubject\trelation\tobject
en\tGeorgia\tcapital\tTbilisi
en\tGeorgia\tcontinent\tAsia
fi\tGeorgia\tcapital\tAtlanta
fi\tGeorgia\tcontinent\tPohjois-Amerikka
en\tEdward Heath\tcountry\tEngland
el\tΑθήνα\tcountry\tΕλλάδα
el\tΘεσσαλονίκη\tcountry\tΕλλάδα
en\tsuomi\tcountry\tFinland
fi\tSuomi\tcapital\tHelsinki
"""


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Two countries called Georgia that are not linked, and names in two scripts."""
    folder = tmp_path_factory.mktemp("matching")
    (folder / "facts.tsv").write_text(FACTS, "utf-8")
    return import_kb([folder / "facts.tsv"], folder / "kb")


@pytest.fixture(scope="module")
def matcher(kb: KB) -> Matcher:
    """A matcher with the default coefficients."""
    return Matcher(build_lookup(kb), build_names(kb), read_default())


def ask(matcher: Matcher, name: str, **more: object) -> list[Candidate]:
    """Return the candidates for a name."""
    [candidates] = matcher.match([Question(names=(name,), **more)])  # type: ignore[arg-type]
    return candidates


def property_of(matcher: Matcher, key: str, value: str, **more: object) -> Property:
    """Return what a question says of a relation."""
    relation = matcher.lookup.relation_keys.index(key)
    return Property(relation=relation, values=(Value(value),), **more)  # type: ignore[arg-type]


def test_an_exact_name_without_a_namesake_is_first_and_a_match(matcher: Matcher) -> None:
    for name in ("Tbilisi", "Αθήνα", "Edward Heath", "ΑΘΉΝΑ", "ｔｂｉｌｉｓｉ"):
        best, *others = ask(matcher, name)
        assert best.features["exact"] == 1 and best.match, name
        assert not any(candidate.match for candidate in others)


def test_names_are_found_in_other_letters_and_another_order(matcher: Matcher) -> None:
    assert ask(matcher, "Thessaloniki")[0].name == "Θεσσαλονίκη"
    assert ask(matcher, "Heath, Edward")[0].name == "Edward Heath"


def test_namesakes_share_the_probability_and_neither_is_a_match(matcher: Matcher) -> None:
    first, second, *_ = ask(matcher, "Georgia")
    assert {first.name, second.name} == {"Georgia"} and first.concept != second.concept
    assert first.probability == pytest.approx(second.probability)
    assert first.probability + second.probability <= 1 and not first.match


def test_a_name_with_the_same_capitals_wins_among_namesakes(matcher: Matcher) -> None:
    assert ask(matcher, "Suomi")[0].name == "Suomi"
    assert ask(matcher, "suomi")[0].name == "suomi"


def test_a_property_decides_between_namesakes(matcher: Matcher) -> None:
    for city in ("Atlanta", "Tbilisi"):
        best, *_ = ask(matcher, "Georgia", properties=(property_of(matcher, "capital", city),))
        [capital] = matcher.evidence.values_of(
            best.concept, matcher.lookup.relation_keys.index("capital")
        )
        assert matcher.lookup.name(matcher.lookup.entities_of(capital)[0]) == city
        assert best.features["properties"] == 1 and best.features["contradicted"] == 0


def test_a_question_for_a_language_has_only_entities_with_a_name_in_it(matcher: Matcher) -> None:
    greek = matcher.lookup.kb.entity_range("el")
    candidates = ask(matcher, "Athina", lang="el")
    assert candidates and all(candidate.entity in greek for candidate in candidates)


def test_an_identifier_comes_first_whatever_the_name(matcher: Matcher) -> None:
    concept = matcher.lookup.kb.find("Αθήνα")[0].concept
    best, *_ = ask(matcher, "Georgia", concept=concept)
    assert (best.concept, best.probability, best.match) == (concept, 1.0, True)


def test_required_properties_and_strict_types_drop_candidates(matcher: Matcher) -> None:
    required = property_of(matcher, "capital", "Atlanta", required=True)
    assert len(ask(matcher, "Georgia", properties=(required,))) == 1
    types = tuple(matcher.evidence.types_of(matcher.lookup.kb.find("Tbilisi")[0].concept))
    names = {candidate.name for candidate in ask(matcher, "Georgia", types=types, strict="any")}
    assert "Georgia" not in names
    assert ask(matcher, "Georgia", types=types, strict="should")[0].name == "Georgia"


def test_a_question_without_a_name_finds_by_its_properties_and_never_matches(
    matcher: Matcher,
) -> None:
    question = Question(properties=(property_of(matcher, "country", "Ελλάδα"),))
    [candidates] = matcher.match([question])
    assert {candidate.name for candidate in candidates} == {"Αθήνα", "Θεσσαλονίκη"}
    assert [candidate.probability for candidate in candidates] == [0.5, 0.5]
    assert not any(candidate.match for candidate in candidates)


def test_without_a_threshold_only_exact_names_without_a_namesake_match(matcher: Matcher) -> None:
    cautious = Matcher(
        matcher.lookup,
        matcher.names,
        dataclasses.replace(matcher.coefficients, threshold=None),
    )
    assert ask(cautious, "Tbilisi")[0].match
    assert not ask(cautious, "Georgia")[0].match
    assert not ask(cautious, "Tbilissi")[0].match


def test_an_exact_name_without_a_namesake_matches_however_short(matcher: Matcher) -> None:
    """The regression alone is too cautious: it adds up similarities, and short names have few."""
    strict = dataclasses.replace(matcher.coefficients, threshold=0.999, none=(20.0, 0.0))
    for exact, wanted in ((None, False), (0.98, True)):
        own = dataclasses.replace(strict, exact=exact)
        asking = Matcher(matcher.lookup, matcher.names, own)
        [[best, *others]] = asking.match([Question(names=("Asia",))])
        assert best.match is wanted and best.features["exact"] == 1
        assert best.probability == pytest.approx(0.98) if wanted else best.probability < 0.5
        assert best.probability + sum(one.probability for one in others) <= 1 + 1e-9


def test_the_sole_exact_name_takes_its_share_from_the_others() -> None:
    features = np.zeros((5, len(FEATURES)))
    features[[0, 2, 3], FEATURES.index("exact")] = 1  # alone in question 0, twice in question 1
    owner = np.array([0, 0, 1, 1, 1])
    is_sole = find_sole(features, owner)
    assert is_sole.tolist() == [True, False, False, False, False]
    chances = np.array([0.4, 0.2, 0.4, 0.3, 0.1])
    lifted = lift_exact(chances, is_sole, owner, 0.95)
    assert lifted == pytest.approx([0.95, 0.2 * 0.05 / 0.6, 0.4, 0.3, 0.1])
    assert lift_exact(lifted, is_sole, owner, 0.5) == pytest.approx(lifted), "never lowered"
    features[0, FEATURES.index("contradicted")] = 0.5
    assert not find_sole(features, owner).any(), "a property speaks against it"


def test_questions_of_a_batch_do_not_influence_each_other(matcher: Matcher) -> None:
    names = ["Georgia", "Αθήνα", "Heath", "", "nothing at all", "Suomi"]
    questions = [Question(names=(name,) if name else ()) for name in names]
    together = matcher.match(questions)
    assert together == [matcher.match([question])[0] for question in questions]


def test_an_encoder_adds_candidates_and_a_feature(kb: KB, bases: dict[str, Path]) -> None:
    linker = EntityLinker(EntityEncoder.load(bases["xlmr"]), kb)
    matcher = Matcher(build_lookup(kb), build_names(kb), read_default(), linker=linker)
    plain = Matcher(matcher.lookup, matcher.names, matcher.coefficients)
    with_encoder, without = (ask(one, "Tbilisi") for one in (matcher, plain))
    assert with_encoder[0].features["encoder"] == pytest.approx(1, abs=1e-4)
    assert without[0].features["encoder"] == 0
    assert len(matcher.gather([Question(names=("qqqq",))])[0]) > len(
        plain.gather([Question(names=("qqqq",))])[0]
    )


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=9), st.floats(-50, 50))
def test_probabilities_follow_the_scores_and_add_up_to_at_most_one(
    scores: list[float], none: float
) -> None:
    chances = softmax_with_none(np.array(scores), none)
    assert (chances >= 0).all() and chances.sum() <= 1 + 1e-9
    assert (np.argsort(chances, kind="stable") == np.argsort(scores, kind="stable")).all() or len(
        set(np.round(chances, 12))
    ) < len(scores)


def test_the_gap_is_that_to_the_best_of_the_others() -> None:
    is_first, gap = compare_with_others(np.array([0.5, 0.9, 0.7]))
    assert is_first.tolist() == [False, True, False]
    assert gap == pytest.approx([-0.4, 0.2, -0.2])
    is_first, gap = compare_with_others(np.array([0.9, 0.9]))
    assert is_first.all() and gap.tolist() == [0, 0]
    assert compare_with_others(np.array([0.4]))[1].tolist() == [0.4]


def test_every_feature_has_a_default_weight() -> None:
    assert set(read_default().weights) == set(FEATURES)
