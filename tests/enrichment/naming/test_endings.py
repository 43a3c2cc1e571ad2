"""Other endings of a written name."""

import math

import pytest

from prixlm.enrichment.naming.endings import Endings
from prixlm.enrichment.naming.vocabulary import Vocabulary

LANGUAGES = ["удмуртский", "финский", "датский", "валлийский", "хинди", "тиви", "гонди"]
SCRIPTS = ["финская", "датская", "тайская", "новая тайская", "старая лаосская"]
NOTHING = Vocabulary({})
KNOWN = Vocabulary({"мадурский": 1e-7, "мадурская": 1e-7, "новый": 1e-4})


@pytest.fixture(scope="module")
def endings() -> Endings:
    kind = [[3]] * len(LANGUAGES) + [[5]] * len(SCRIPTS)
    return Endings(kind, LANGUAGES + SCRIPTS)


def test_the_ending_of_the_kind_is_added_or_put_in_place_of_another(endings: Endings) -> None:
    assert "мадурский" in endings.variants([3], "мадур", KNOWN)
    assert "мадурская" in endings.variants([5], "мадур", KNOWN)
    assert "мадурский" not in endings.variants([5], "мадур", KNOWN)
    assert "тувинская" in endings.variants([5], "тувиня", NOTHING), "very usual: need not be known"


def test_a_rare_ending_needs_a_known_word() -> None:
    names = ["карта"] * 3 + ["плов"] * 97
    endings = Endings([[1]] * 100, names)
    assert "мёта" not in endings.variants([1], "мёд", NOTHING)
    assert "марта" in endings.variants([1], "марф", Vocabulary({"марта": 1e-5}))


def test_the_first_word_agrees_with_its_noun(endings: Endings) -> None:
    found = endings.variants([5], "новый тайская", Vocabulary({"новая": 1e-4}))
    assert "новая тайская" not in found, "two names of several words are too few to learn from"
    kind, names = [[5]] * 3, ["новая тайская", "старая лаосская", "южная датская"]
    found = Endings(kind, names).variants([5], "новый тайская", Vocabulary({"новая": 1e-4}))
    assert "новая тайская" in found


@pytest.mark.parametrize("text", ["", " ", "🙂", "я", "12", "𐎠", "-"])
def test_odd_names_have_no_other_endings(endings: Endings, text: str) -> None:
    assert endings.variants([3], text, KNOWN) == []
    assert endings.variants([], text, KNOWN) == []
    assert Endings([], []).variants([3], text, KNOWN) == []
    assert Endings([[3]], [text]).variants([3], "мадур", KNOWN) == []


def test_a_kind_that_nothing_is_known_of_has_no_other_endings(endings: Endings) -> None:
    assert endings.variants([77], "мадур", KNOWN) == []


def test_agreeing_words_are_more_usual() -> None:
    names = ["новая рупия", "старая рупия", "малая лира", "новый динар", "старый манат"]
    endings = Endings([[1]] * 5, names)
    assert endings.agreement("непальская рупия") > endings.agreement("непальский рупия")
    assert math.isnan(endings.agreement("рупия")) and math.isnan(endings.agreement("🙂"))
