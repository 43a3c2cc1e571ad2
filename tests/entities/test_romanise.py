"""Romanise: names of any script in plain Latin letters."""

from hypothesis import given
from hypothesis import strategies as st

from prixlm.entities.romanise import romanise


def test_scripts_that_spell_sounds_are_read() -> None:
    names = ["Αθήνα", "Москва", "フランス", "서울", "Zürich", "Łódź", "Þingvellir"]
    readings = ["athina", "moskva", "furansu", "seoul", "zurich", "lodz", "thingvellir"]
    assert romanise(names) == readings


def test_chinese_characters_get_their_mandarin_reading_in_any_language() -> None:
    assert romanise(["東京"]) == ["dongjing"], "Japanese reads tokyo: the docstring says so"


def test_both_forms_of_an_accent_read_the_same() -> None:
    assert romanise(["e\u0301", "\u00e9", "E\u0301", "ＦＵＬＬ　width"]) == [
        "e",
        "e",
        "e",
        "full width",
    ]


def test_characters_without_letters_leave_nothing() -> None:
    assert romanise(["\u0301", "   ", ""]) == ["", "", ""]


@given(st.lists(st.text(st.characters(exclude_categories=[]))))
def test_any_text_becomes_plain_lower_case(names: list[str]) -> None:
    readings = romanise(names)
    assert len(readings) == len(names)
    for reading in readings:
        assert reading.isascii() and reading == reading.lower() == " ".join(reading.split())
    assert romanise(readings) == readings
