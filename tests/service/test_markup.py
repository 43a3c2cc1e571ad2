"""What the pages show of names and figures."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prixlm.service import markup
from prixlm.service.schemas import EntityRef, Name, ReliabilityPoint

BIDI_CONTROLS = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}


@given(st.text())
def test_clean_text_has_no_control_character_and_no_direction_override(text: str) -> None:
    cleaned = markup.clean(text)
    assert not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in cleaned)
    assert not any(unicodedata.bidirectional(letter) in BIDI_CONTROLS for letter in cleaned)
    assert markup.clean(cleaned) == cleaned


@pytest.mark.parametrize(
    "name", ["می‌خواهم", "क्‍ष", "a\u200fb", "Müller–Lüdenscheid", "東京", "👩‍🚀"]
)
def test_names_that_need_joiners_and_marks_stay_as_they_are(name: str) -> None:
    assert markup.clean(name) == name


def test_letters_that_nobody_sees_are_shown_or_left_out() -> None:
    assert markup.clean("a\U000e0041b\u061c") == "a\ufffdb\ufffd"
    assert markup.clean("Donau\u00addampf") == "Donaudampf"


def test_a_name_is_text_with_its_language_and_a_direction_of_its_own() -> None:
    shown = markup.show_name(Name(text='<b onclick="x">\u202eא&</b>', lang='he" onload="x'))
    assert shown == (
        '<bdi lang="he&#34; onload=&#34;x" dir="auto">'
        "&lt;b onclick=&#34;x&#34;&gt;\ufffdא&amp;&lt;/b&gt;</bdi>"
    )


def test_a_long_name_is_cut_and_a_missing_one_is_the_id() -> None:
    long = markup.show_name(Name(text="x" * 10_000, lang="en"), 50)
    assert "x" * 49 + "…<" in long and "x" * 50 not in long
    nameless = EntityRef(id="Q33", name=Name(text="", lang="en"), url=None)
    assert ">Q33<" in markup.show_name(nameless)


def test_an_error_begins_with_a_capital_but_a_parameter_keeps_its_name() -> None:
    assert markup.as_sentence("no entity 'x'.") == "No entity 'x'."
    assert markup.as_sentence("min_confidence: too large.") == "min_confidence: too large."


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "–"),
        (0.0, "0 %"),
        (0.0004, "< 0.1 %"),
        (0.004, "0.4 %"),
        (0.5, "50 %"),
        (0.987, "99 %"),
        (0.994, "99.4 %"),
        (0.9996, "> 99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_only_certainty_is_shown_as_certainty(share: float | None, text: str) -> None:
    assert markup.show_percent(share) == text


@given(st.integers(0, 10**11))
def test_a_short_number_is_short_and_near(number: int) -> None:
    text = markup.show_short(number)
    assert len(text) <= 5
    unit = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1)
    assert float(text.rstrip("kMG")) * unit == pytest.approx(number, rel=0.051)


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_is_never_lighter(a: float, b: float) -> None:
    steps = [markup.share_step(share) for share in sorted((a, b))]
    assert steps == sorted(steps) and set(steps) <= set(range(markup.HEAT_STEPS + 1))


def test_one_of_thousands_is_still_coloured() -> None:
    assert markup.count_step(0, 9000) == 0
    assert markup.count_step(1, 9000) >= 1
    assert markup.count_step(9000, 9000) == markup.HEAT_STEPS


@pytest.mark.parametrize(("lang", "expected"), [("ar", "rtl"), ("he", "rtl"), ("te", "ltr")])
def test_the_direction_of_a_language_is_known(lang: str, expected: str) -> None:
    assert markup.direction(lang) == expected
    assert markup.direction("no such") == "ltr"


def test_a_confidence_that_is_right_lies_on_the_diagonal() -> None:
    curve = [ReliabilityPoint(confidence=x, right=x, count=n) for x, n in ((0.9, 400), (0.1, 4))]
    dots = markup.curve_dots(curve)
    assert [(dot.x, dot.y) for dot in dots] == [(10, 90), (90, 10)]  # y grows downwards
    assert dots[0].radius < dots[1].radius
    assert dots[1].title == "confidence 90 %: 90 % of 400 are right"
