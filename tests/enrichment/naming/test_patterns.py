"""What stands around a part of a name that is written by sound."""

import pytest

from prixlm.enrichment.naming.patterns import Patterns, find_patterns, pair_words


def test_what_is_left_of_two_names_is_a_pattern() -> None:
    found = find_patterns(
        ["tel", "aviv", "university"], ["πανεπιστήμιο", "του", "τελ", "αβίβ"], [" ", " ", " "]
    )
    assert (("", "university"), ("πανεπιστήμιο του ", "")) in found


def test_separators_of_the_language_are_kept() -> None:
    found = find_patterns(["kupa", "island"], ["остров", "купа", "х"], ["-", "/"])
    assert (("", "island"), ("остров-", "/х")) in found


def test_words_in_another_order_are_paired_by_their_sound() -> None:
    pairs = pair_words(["peso", "argentin"], ["аргентинский", "песо"])
    assert pairs == [("peso", "песо"), ("argentin", "аргентинский")]
    assert pair_words(["gulf", "oman"], ["оманский", "залив"]) == [
        ("gulf", "залив"),
        ("oman", "оманский"),
    ]


def test_words_in_the_same_order_are_left_to_the_order() -> None:
    assert pair_words(["new", "kupa"], ["новая", "купа"]) is None
    assert pair_words(["church"], ["дом"]) is None


def test_words_are_read_in_their_language() -> None:
    own = ["京都", "大学"]
    found = find_patterns(["kyoto", "university"], own, [" "], ("en", "ja"))
    assert (("", "university"), ("", " 大学")) in found
    assert not find_patterns(["kyoto", "university"], own, [" "], ("en", "zh"))
    pairs = pair_words(["universidad", "kyoto"], own, ("es", "ja"))
    assert pairs == [("universidad", "大学"), ("kyoto", "京都")]
    assert pair_words(["universidad", "kyoto"], own, ("es", "zh")) is None


def test_a_pattern_of_one_name_is_not_used() -> None:
    one = find_patterns(["kupa", "island"], ["остров", "купа"], [" "])
    two = find_patterns(["moro", "island"], ["остров", "моро"], [" "])
    assert Patterns([one]).around(["lana", "island"]) == []
    [around] = Patterns([one, two]).around(["lana", "island"])
    assert (around.start, around.end, around.before, around.after) == (0, 1, "остров ", "")
    assert around.probability == pytest.approx(2 / 4)
    assert Patterns([one, two]).around(["lana", "gulf"]) == []


@pytest.mark.parametrize("words", [[], [""], ["🙂"], ["𐎠"], ["1"], ["a"] * 40])
def test_odd_names_have_no_patterns(words: list[str]) -> None:
    separators = [" "] * max(0, len(words) - 1)
    nothing = (("", ""), ("", ""))
    assert all(pattern == nothing for pattern in find_patterns(words, words, separators))
    assert pair_words(words, words) is None
    assert Patterns([]).around(words) == []
