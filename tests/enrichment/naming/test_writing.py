"""Names written by known words and by letters."""

import math

import pytest

from prixlm.enrichment.naming.vocabulary import Vocabulary
from prixlm.enrichment.naming.writing import (
    Accents,
    Casing,
    Examples,
    NameWriter,
    is_capital,
    split_name,
)
from tests.enrichment.naming.test_chunks import PAIRS, WORDS, spell

NAMES = [(f"{a} {b}", f"{spell(a)} {spell(b)}") for a, b in zip(WORDS, WORDS[7:], strict=False)]
NAMES += [(f"{word} island", f"остров {spell(word)}") for word in WORDS[:3]]
NAMES += [(f"{word} (film)", f"{spell(word)} (фильм)") for word in WORDS[20:40]]
NAMES += [("green tovari", "зелёный товари"), ("green gadiru", "зелёный гадиру")]


@pytest.fixture(scope="module")
def writer() -> NameWriter:
    return NameWriter.fit(NAMES, ("Cyrl",))


def test_a_name_is_cut_into_words_separators_and_a_qualifier() -> None:
    assert split_name("Jean-Luc Godard (1960 film)") == (
        ["Jean", "Luc", "Godard"],
        ["-", " "],
        " (1960 film)",
    )
    assert split_name("Elizabeth, New Jersey")[2] == ", New Jersey"
    assert split_name("(500) Days")[2] == "" and split_name("")[0] == [""]


def test_new_words_are_spelled_and_known_words_are_written_as_they_were(writer: NameWriter) -> None:
    answer = writer.write("Melonu Tovaru")[0]
    assert answer.text == "мелону товару" and answer.known == 0
    answer = writer.write("Green Tovaru")[0]
    assert answer.text == "зелёный товару" and answer.known == 0
    assert writer.write("Green Tovari")[0].known == pytest.approx(1 / 2)


def test_a_qualifier_is_translated(writer: NameWriter) -> None:
    assert writer.write("Melonu (film)")[0].text == "мелону (фильм)"
    assert writer.write("Melonu (opera)")[0].text == "мелону", "never seen, so left out"


def test_numbers_and_signs_stay(writer: NameWriter) -> None:
    assert writer.write("Melonu 1972")[0].text == "мелону 1972"
    assert writer.write("1972")[0].text == "1972"


@pytest.mark.parametrize("name", ["", " ", "🙂", "日本語", "日本 melonu", "x" * 400, "\u0301"])
def test_names_without_evidence_are_not_written(writer: NameWriter, name: str) -> None:
    assert all(answer.text.strip() for answer in writer.write(name))
    if name not in ("\u0301",):
        assert writer.write(name) == []


def test_a_letter_never_seen_is_read_without_its_accent(writer: NameWriter) -> None:
    assert writer.write("Melónu")[0].text == "мелону"


def test_a_writer_that_may_not_read_a_pair_does_not_know_its_words() -> None:
    examples = Examples(NAMES, ("Cyrl",))
    green = [row for row, (source, _) in enumerate(NAMES) if not source.startswith("green")]
    answers = NameWriter(examples, green).write("green melonu")
    assert answers and all("зелёный" not in answer.text for answer in answers)


def test_names_of_another_number_of_words_are_one_unit() -> None:
    pairs = [(f"{a} {b}", spell(a) + spell(b)) for a, b in zip(WORDS, WORDS[9:], strict=False)]
    writer = NameWriter.fit(pairs, ("Cyrl",))
    assert writer.write("melonu tovari")[0].text == "мелонутовари"


def test_too_few_words_teach_no_letters() -> None:
    writer = NameWriter.fit(PAIRS[:10], ("Cyrl",))
    assert writer.write("tovari") == []
    assert writer.write(PAIRS[0][0])[0].text == PAIRS[0][1]


def test_the_number_of_accents_of_a_word_is_learnt() -> None:
    accents = Accents(["μάριος", "πέτρος", "νίκος", "και", "το", "ροκ"])
    one, two, none = accents.probabilities(["γιώργα", "γιώργά", "γιωργα"])
    assert one > two and one > none
    without, accented = accents.probabilities(["νετς", "νέτς"])
    assert without > accented, "a word of one syllable has no accent"
    assert Accents(["дом"]).probabilities(["мир", "мйр"]) == [1, 1]


def test_numbers_of_a_qualifier_find_their_place() -> None:
    films = [
        (f"{a} (19{n:02} film)", f"{b} (фильм, 19{n:02})") for n, (a, b) in enumerate(PAIRS[:60])
    ]
    writer = NameWriter.fit(films, ("Cyrl",))
    assert writer.write("Melonu (2005 film)")[0].text == "мелону (фильм, 2005)"


def test_capitals_are_those_of_the_language() -> None:
    casing = Casing(["Πανεπιστήμιο του Λονδίνου", "Ομάδα FC Άρης", "Βασίλειο του Όμαν"])
    assert casing.variants("σχολή του μάντσεστερ")[0] == "Σχολή του Μάντσεστερ"
    assert casing.variants("σχολή του μάντσεστερ")[1] == "σχολή του μάντσεστερ"
    assert casing.variants("γιουνάιτεντ fc")[0] == "Γιουνάιτεντ FC"
    assert casing.variants("東京") == ["東京"], "a script without capitals has one variant"


def test_the_case_of_a_name_is_that_of_its_first_letter() -> None:
    assert is_capital("«Ωμέγα»") == 1 and is_capital("'s Gravenhage") == 0
    assert (
        math.isnan(is_capital("東京"))
        and math.isnan(is_capital("42"))
        and math.isnan(is_capital(""))
    )


def test_a_pattern_of_several_names_is_used(writer: NameWriter) -> None:
    assert "остров мелону" in [answer.text for answer in writer.write("Melonu Island")]


def test_words_in_another_order_teach_which_word_is_which() -> None:
    # "island" stands last and is written first.
    swapped = [(f"{word} island", f"остров {spell(word)}") for word in WORDS[:80]]
    writer = NameWriter.fit(swapped, ("Cyrl",))
    assert writer.write("Island")[0].text == "остров"
    assert writer.write("Melonu Island")[0].text == "остров мелону"


def test_a_known_word_is_preferred_to_another_spelling_of_its_sound() -> None:
    rare = [(word, spell(word).replace("е", "э")) for word in WORDS[::4] if "e" in word]
    examples = Examples([*PAIRS, *rare], ("Cyrl",))
    plain, knowing = (
        {answer.text: answer.probability for answer in writer.write("Melonu")}
        for writer in (
            NameWriter(examples),
            NameWriter(examples, vocabulary=Vocabulary({"мэлону": 1e-6})),
        )
    )
    gain = knowing["мэлону"] / knowing["мелону"] / (plain["мэлону"] / plain["мелону"])
    assert gain > 4


def test_any_text_has_a_log_probability_that_agrees_with_what_is_written(
    writer: NameWriter,
) -> None:
    for name in ("Melonu Tovaru", "Green Tovari", "Melonu Island"):
        for answer in writer.write(name):
            log = writer.log_probability(name, answer.text)
            assert math.log(answer.probability) - 1e-9 <= log <= 0
    good, bad = (writer.log_probability("Tovaru", text) for text in ("товару", "мелон"))
    assert bad < good <= 0
    for name in ("", "🙂", "日本", "x" * 400):
        assert -1000 < writer.log_probability(name, "товару") <= 0
        assert -1000 < writer.log_probability("Tovaru", name) <= 0
