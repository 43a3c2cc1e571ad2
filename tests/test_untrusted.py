"""Text from input: shown and not obeyed, by a terminal, a log or a spreadsheet."""

import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prixlm.untrusted import (
    SafeFormatter,
    guard_formula,
    one_line,
    printable,
    unguard_formula,
)

ATTACKS = [
    ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
    ("\x1b[31mred", r"\x1b[31mred"),
    ("\x9b2J", r"\x9b2J"),
    ("over\rwritten\b\b", r"over\rwritten\x08\x08"),
    ("two\nlines\u2028three", r"two\nlines\u2028three"),
    ("a\u202eexe.gpj\u2066", r"a\u202eexe.gpj\u2066"),
    ("\ud800", r"\ud800"),
    ("a\U000e0041\U000e007f", r"a\U000e0041\U000e007f"),
    ("a\u061cb\u00adc", r"a\u061cb\xadc"),
    ("a\u2060b\u2063c\u180ed", r"a\u2060b\u2063c\u180ed"),
    ("a\u3164b\uffa0c\u115f\u17b4", r"a\u3164b\uffa0c\u115f\u17b4"),
    ("a\U000e0148\U000e0149", r"a\U000e0148\U000e0149"),
    ("葛\U000e0100\U000e0101", "葛\U000e0100" + r"\U000e0101"),
    ("a\ufe00\ufe01\ufe02b", "a\ufe00" + r"\ufe01\ufe02b"),
    ("\ufe0fa \ufe0f", r"\ufe0fa \ufe0f"),
]


@pytest.mark.parametrize(("text", "shown"), ATTACKS)
def test_what_a_terminal_obeys_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    "name",
    [
        "می‌خواهم",
        "क्‍ष",
        "日本　東京",
        "a\u200fb",
        "naïve",
        "👩‍🚀",
        "葛\U000e0100飾区",
        "❤\ufe0f",
        "ᠮ\u180bᠣ",
    ],
)
def test_names_that_need_joiners_and_marks_stay_as_they_are(name: str) -> None:
    assert printable(name) == name


@given(st.text())
def test_no_text_keeps_a_control_or_an_override(text: str) -> None:
    shown = printable(text)
    shown.encode()
    for letter in shown:
        assert unicodedata.category(letter) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(letter) not in (
            *("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"),
        )
    assert printable(shown) == shown


def test_a_message_is_one_line() -> None:
    assert one_line(" first\n   second\r\nthird\x1b[0m\n") == r"first second third\x1b[0m"
    assert printable("x" * 500, 20) == "x" * 20


@given(st.text("'\"=+-@\t\r＝ab", max_size=6) | st.text())
def test_no_cell_is_a_formula_and_every_cell_comes_back(text: str) -> None:
    cell = guard_formula(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", '"', "＝", "＋", "－", "＠"))
    assert unguard_formula(cell) == text


def test_a_record_is_one_line_and_its_traceback_is_indented() -> None:
    try:
        raise ValueError("a\x1b[31m\nforged")
    except ValueError as error:
        kind = (type(error), error, None)
    record = logging.LogRecord("a", logging.ERROR, "", 0, "name %s", ("x\nforged",), kind)
    lines = SafeFormatter("prixlm: ").format(record).split("\n")
    assert lines[0] == r"prixlm: name x\nforged"
    assert all(line.startswith("    ") for line in lines[1:]) and r"\x1b[31m" in "".join(lines)
