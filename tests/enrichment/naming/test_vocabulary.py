"""Known words of a language, and how its words are spelt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prixlm.enrichment.naming.vocabulary import Sounds, Spelling, Vocabulary, skeleton

WORDS = st.text("αβγ", min_size=1, max_size=5)


@given(st.sets(WORDS), st.sets(WORDS), st.text("αβγ", max_size=5))
def test_words_and_prefixes_agree_with_a_set(words: set[str], names: set[str], asked: str) -> None:
    vocabulary = Vocabulary(dict.fromkeys(words, 1e-05)).with_names(names)
    known = words | names
    assert bool(vocabulary) == bool(known)
    assert (asked in vocabulary) == (asked in known)
    assert vocabulary.has_prefix(asked) == any(word.startswith(asked) for word in known)


def test_frequencies_are_on_the_zipf_scale_and_names_have_none() -> None:
    vocabulary = Vocabulary({"και": 1e-2, "σπάνιο": 1e-8}).with_names(["αθήνα"])
    assert vocabulary.frequency("και") == pytest.approx(7)
    assert vocabulary.frequency("σπάνιο") == pytest.approx(1)
    assert vocabulary.frequency("αθήνα") == vocabulary.frequency("άγνωστο") == 0
    assert vocabulary.most_frequent(1) == ["και"] and len(vocabulary) == 2


def test_a_word_like_those_of_the_language_is_more_probable() -> None:
    spelling = Spelling(["λόγος", "νόμος", "δρόμος", "τόπος", "κόσμος"])
    assert spelling.log_probability("τρόμος") > spelling.log_probability("σομόρτ")
    assert spelling.log_probability("τρόμος") > spelling.log_probability("τρομός")


@pytest.mark.parametrize("word", ["", "x", "日本", "🙂", "ό" * 500])
def test_odd_words_have_a_finite_probability(word: str) -> None:
    for words in ([], ["λόγος"]):
        assert -100 < Spelling(words).log_probability(word) <= 0


def test_a_known_word_is_found_by_its_sound() -> None:
    sounds = Sounds(["израиль", "камбоджа", "дом", "слово", "изгиб"])
    assert [word for word, _ in sounds.near("Israel")] == ["израиль"]
    assert [word for word, _ in sounds.near("kambodscha")] == ["камбоджа"]
    assert sounds.near("church") == sounds.near("") == sounds.near("🙂") == sounds.near("aia") == []


def test_a_skeleton_keeps_the_classes_of_consonants() -> None:
    assert skeleton("israel") == skeleton("izrail") == "264"
    assert skeleton("hebron") == skeleton("khevron") == "165"
    assert skeleton("aeiouhwy 12") == ""


def test_japanese_words_are_found_by_their_japanese_sound() -> None:
    words = ["東京", "大阪", "富士"]
    assert Sounds(words, "ja").near("Osaka")[0][0] == "大阪"
    assert not Sounds(words, "zh").near("Osaka"), "Mandarin reads it daban"
    assert Sounds(["осака"]).near("大阪", "ja")[0][0] == "осака"
    assert not Sounds(["осака"]).near("大阪", "zh")
