"""Romanise: names of any script in plain Latin letters."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

import prixlm.romanise as module
from prixlm.romanise import has_dictionary, reading_version, romanise

NEEDS_DICTIONARY = pytest.mark.skipif(not has_dictionary(), reason="needs the extra [ja]")


@pytest.fixture
def no_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read Japanese as if the extra were not installed."""
    monkeypatch.setattr(module, "has_dictionary", lambda: False)
    monkeypatch.setattr(module, "_japanese", module._japanese.__wrapped__)


def test_scripts_that_spell_sounds_are_read() -> None:
    names = ["Αθήνα", "Москва", "서울", "Zürich", "Łódź", "Þingvellir", "Երևան", "თბილისი"]
    readings = ["athina", "moskva", "seoul", "zurich", "lodz", "thingvellir", "erevan", "tbilisi"]
    assert romanise(names) == readings


@pytest.mark.parametrize(
    ("name", "reading"),
    [
        ("Μπουένος", "bouenos"),  # two Greek letters, one sound
        ("Ευρώπη", "evropi"),
        ("Γκάνα", "gana"),
        ("भारत", "bharat"),  # an unwritten vowel, and one that is silent
        ("नेपाल", "nepal"),
        ("లండన్", "landan"),  # a nasal before a dental
        ("แอสมารา", "aesmara"),  # a vowel before its consonant, which is silent
        ("โตเกียว", "tokeiyw"),
        ("ບາມາໂກ", "bamako"),
        ("아스마라", "asmara"),  # a bare consonant of a loanword
        ("승", "seung"),  # the same vowel in a closed syllable
        ("달라스", "dallas"),
        ("באר שבע", "bar shb"),
    ],
)
def test_letters_depend_on_their_neighbours(name: str, reading: str) -> None:
    assert romanise([name]) == [reading]


def test_kana_are_read_by_rule(no_dictionary: None) -> None:
    kana = [
        "パーティー",
        "シェフ",
        "キャッチ",
        "ウィーン",
        "ヴィラ",
        "イェール",
        "とうきょう",
        "ッ",
    ]
    readings = ["pati", "shefu", "kyatchi", "win", "vira", "yeru", "toukyou", ""]
    assert romanise(kana, "ja") == readings


def test_kanji_are_read_as_in_mandarin_without_a_dictionary_and_it_is_logged(
    no_dictionary: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert romanise(["東京"], "ja") == ["dongjing"]
    assert "prixlm[ja]" in caplog.text
    assert "unidic" not in reading_version(), "a cache of these readings is another cache"


@NEEDS_DICTIONARY
def test_japanese_is_read_by_a_dictionary() -> None:
    names = ["東京", "大阪府", "パリ", "サンダーボール作戦"]
    assert romanise(names, "ja") == ["tokyo", "osaka fu", "paris", "thunder ball sakusen"]
    assert "unidic-lite" in reading_version()


@NEEDS_DICTIONARY
def test_the_language_decides_how_kanji_are_read() -> None:
    assert romanise(["東京", "東京", "北京"], ["ja", "zh", "zh"]) == [
        "tokyo",
        "dongjing",
        "beijing",
    ]
    assert romanise(["東京", "東京タワー"]) == ["dongjing", "tokyo tower"], "kana are Japanese"


def test_a_language_is_given_for_each_name() -> None:
    with pytest.raises(ValueError):
        romanise(["a", "b"], ["en"])


def test_both_forms_of_an_accent_read_the_same() -> None:
    names = ["e\u0301", "\u00e9", "E\u0301", "ＦＵＬＬ　width", "Ευ\u0301ρ", "Εύρ"]
    assert romanise(names) == ["e", "e", "e", "full width", "evr", "evr"]


def test_characters_without_letters_leave_nothing() -> None:
    assert romanise(["\u0301", "   ", "", "\u200b\u200d"]) == ["", "", "", ""]


@pytest.mark.parametrize("lang", [None, "ja", "zh", "el", "xx"])
def test_odd_names_are_read(lang: str | None) -> None:
    odd = [
        "7",
        "x",
        "一",
        "ー",
        "2001",
        "😀",
        "Pokémon ポケモン",
        "Αlpha 東京 서울",
        "\ud800",
        "\x00ト\x00",
    ]
    readings = romanise(odd, lang)
    assert all(reading.isascii() for reading in readings)
    assert readings[:2] == ["7", "x"] and readings[4] == "2001"
    assert readings[5] == ":grinning:" and readings[6].startswith("pokemon ")


@pytest.mark.parametrize("text", ["東", "ト", "α", "한", "ก", "భ", "a"])
def test_very_long_names_are_read(text: str) -> None:
    [reading] = romanise([text * 10_000], "ja")
    assert reading.isascii() and len(reading) >= 10_000


@given(
    st.lists(st.text(st.characters(exclude_categories=[]))),
    st.sampled_from([None, "ja", "ko", "th", "hi"]),
)
def test_any_text_becomes_plain_lower_case(names: list[str], lang: str | None) -> None:
    readings = romanise(names, lang)
    assert len(readings) == len(names)
    for reading in readings:
        assert reading.isascii() and reading == reading.lower() == " ".join(reading.split())
    assert romanise(readings, lang) == readings
    assert [romanise([name], lang)[0] for name in names] == readings, (
        "names do not depend on others"
    )
