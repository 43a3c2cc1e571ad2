"""Candidates of things, and what speaks for each."""

import math

import numpy as np
import pytest

from prixlm.enrichment.naming.candidates import (
    FEATURES,
    Kinds,
    Language,
    Lexicon,
    Namer,
    Thing,
    is_taken,
)
from prixlm.enrichment.naming.writing import NameWriter
from tests.enrichment.naming.test_chunks import WORDS, spell

PAIRS = [(word.title(), spell(word).title()) for word in WORDS]


def thing(*names: tuple[str, str], own: str | None = None, concept: int = 0) -> Thing:
    """A thing by pairs of a language and its name there."""
    by_name: dict[str, list[str]] = {}
    for lang, name in names:
        by_name.setdefault(name, []).append(lang)
    return Thing(concept, [(name, langs, name) for name, langs in by_name.items()], own)


@pytest.fixture(scope="module")
def namer() -> Namer:
    writer = NameWriter.fit(PAIRS, ("Cyrl",))
    lexicon = Lexicon(own for _, own in PAIRS)
    return Namer(("Cyrl",), {"sr": 0.5}, {"en": writer, "de": writer}, lexicon, Kinds([], []))


def column(candidates: object, name: str) -> np.ndarray:
    return candidates.features[:, FEATURES.index(name)]  # type: ignore[attr-defined]


def test_names_of_the_script_are_taken_and_others_are_written(namer: Namer) -> None:
    asked = thing(("en", "Tovari"), ("de", "Tovari"), ("sr", "Товари"), own="Товари")
    found = namer.candidates([asked], [[]])
    row = found.text.index("Товари")
    assert found.is_taken[row] and found.origin[row] == ["sr"] and found.is_right[row]
    assert column(found, "proposers")[row] == 2 and column(found, "best_rate")[row] == 0.5
    assert "Tovari" not in found.text, "of a script that the language does not use"


def test_a_written_name_says_where_it_comes_from(namer: Namer) -> None:
    found = namer.candidates([thing(("en", "Tovari"), ("de", "Tovaru"))], [[]])
    row = found.text.index("Товари")
    assert not found.is_taken[row]
    assert "en" in found.origin[row] and found.source[row] == "Tovari"


def test_both_capitalisations_are_candidates_and_share_their_place(namer: Namer) -> None:
    found = namer.candidates([thing(("en", "Tovari"))], [[]])
    rows = [found.text.index(text) for text in ("Товари", "товари")]
    places = column(found, "place")[rows]
    assert places[0] == places[1] == 0
    assert len(set(column(found, "lead")[rows])) == 1


def test_features_of_a_thing_do_not_depend_on_the_others(namer: Namer) -> None:
    things = [
        thing(("en", "Tovari"), ("sr", "Товари"), concept=1),
        thing(("de", "Gadiru"), concept=2),
        thing(("en", "日本"), concept=3),
        thing(("en", "Melonu"), ("de", "Melona"), concept=4),
    ]
    together = namer.candidates(things, [[]] * 4)
    for one in things:
        alone = namer.candidates([one], [[]])
        rows = np.flatnonzero(together.concept == one.concept)
        assert [together.text[row] for row in rows] == alone.text
        np.testing.assert_array_equal(together.features[rows], alone.features)


@pytest.mark.parametrize("name", ["🙂", "𐎠𐎡", "x", "1", "Ж日", "a日b", "  "])
def test_odd_names_give_finite_or_missing_features(namer: Namer, name: str) -> None:
    found = namer.candidates([thing(("en", name))], [[]])
    assert found.features.shape == (len(found.text), len(FEATURES) + 2)
    assert not np.isinf(found.features).any()


def test_ten_thousand_things_of_one_name_have_the_same_answer(namer: Namer) -> None:
    things = [thing(("en", "Melonu"), concept=number) for number in range(10_000)]
    found = namer.candidates(things, [[]] * len(things))
    per_thing = len(found.text) // len(things)
    assert len(set(found.text)) == per_thing and len(found.text) == 10_000 * per_thing


def test_no_things_have_no_candidates(namer: Namer) -> None:
    found = namer.candidates([], [])
    assert found.features.shape == (0, len(FEATURES) + 2) and found.text == []


def test_kinds_know_the_ending_and_the_capital_of_their_names() -> None:
    languages = [thing(("en", f"A{n}"), own=f"язык{n}ский") for n in range(30)]
    cities = [thing(("en", f"B{n}"), own=f"Город{n}") for n in range(30)]
    kinds = Kinds([[0]] * 30 + [[1]] * 30, languages + cities)
    assert kinds.endings([0], "татарский")[1] > 0.8 > kinds.endings([1], "татарский")[1]
    capital = kinds.features([[0], [1], []])[:, 2]
    assert capital[0] < 0.2 and capital[1] > 0.8 and math.isnan(capital[2])


def test_a_word_is_familiar_by_its_rarest_count() -> None:
    lexicon = Lexicon(["Новый Год", "Новый Дом"])
    assert lexicon.familiarity("новый") == (1.0, math.log1p(2))
    assert lexicon.familiarity("Новый мир") == (0.5, 0.0)
    assert all(map(math.isnan, lexicon.familiarity("—")))


def test_a_name_that_another_language_has_is_taken() -> None:
    assert is_taken(thing(("en", "Oslo"), own="Oslo"))
    assert not is_taken(thing(("en", "Oslo"), own="Осло"))


def test_the_frequency_of_words_tells_spellings_apart() -> None:
    writer = NameWriter.fit(PAIRS, ("Cyrl",))
    language = Language({"товари": 1e-5, "дом": 1e-3})
    lexicon = Lexicon([own for _, own in PAIRS], language)
    namer = Namer(("Cyrl",), {}, {"en": writer}, lexicon, Kinds([], []))
    found = namer.candidates([thing(("en", "Tovari"))], [[]])
    row = found.text.index("Товари")
    assert column(found, "frequency")[row] == pytest.approx(4)
    assert column(found, "frequency_lead")[row] == pytest.approx(4)
    others = [n for n, text in enumerate(found.text) if text.lower() != "товари"]
    assert (column(found, "frequency")[others] == 0).all()
    assert (column(found, "log_mean")[others] < column(found, "log_mean")[row]).all()


def test_a_language_without_known_words_has_no_frequencies(namer: Namer) -> None:
    found = namer.candidates([thing(("en", "Tovari"))], [[]])
    for name in ("frequency", "frequency_mean", "spelt_as_words"):
        assert np.isnan(column(found, name)).all()
    assert not np.isnan(column(found, "spelt_as_names")).any()


def test_words_of_japanese_are_told_by_their_script() -> None:
    lexicon = Lexicon([], Language({"ベトナム": 1e-5, "語": 1e-3}))
    assert lexicon.frequencies("ベトナム語") == pytest.approx((4, 5))
    assert lexicon.frequencies("ベトナン語")[0] == 0


def test_each_name_is_read_in_its_language() -> None:
    osaka = thing(("en", "Osaka"), ("ja", "大阪"), own="大阪")
    means = []
    for lang in ("ja", "zh"):
        kinds = Kinds([[0]], [osaka._replace(names=osaka.names[:1])], lang)
        namer = Namer(("Hani",), {}, {}, Lexicon([]), kinds, lang=lang)
        found = namer.candidates([osaka], [[0]])
        assert found.text == ["大阪"]
        means.append([column(found, name)[0] for name in ("sounds_like_mean", "kind_alike")])
    assert means[0] == [100, 1], "osaka in all languages"
    assert means[1][0] < 60 and means[1][1] < 0.6, "Mandarin reads it daban"
