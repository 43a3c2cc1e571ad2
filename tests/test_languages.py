"""Language codes as Wikidata, DBpedia, CLDR and XLM-R spell them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prixlm import languages
from prixlm.errors import PrixError
from prixlm.languages import (
    LANGUAGE_SETS,
    PAPER_LANGUAGES,
    frequent_words,
    normalise,
    parse_languages,
    script_of_language,
    script_of_text,
    word_frequencies,
)


@pytest.mark.parametrize(
    ("code", "language"),
    [
        *[("en", "en"), ("EN", "en"), ("eng", "en"), ("en-GB", "en"), ("en_US", "en")],
        *[("nb", "no"), ("no", "no"), ("nob", "no"), ("nn", "nn"), ("simple", "en")],
        *[("zh-hans", "zh"), ("zh-Hant-TW", "zh"), ("cmn", "zh"), ("zh-yue", "yue")],
        *[("be-tarask", "be"), ("be-x-old", "be"), ("sr-ec", "sr"), ("sr-Latn", "sr")],
        *[("iw", "he"), ("als", "gsw"), ("fil", "tl"), ("tl", "tl"), ("deu", "de"), ("ger", "de")],
        *[("zh-classical", "lzh"), ("pt-br", "pt"), ("ckb", "ckb"), ("bat-smg", "sgs")],
        *[("mul", None), ("und", None), ("zz", None), ("commons", None), ("wikidata", None)],
        *[("", None), ("x-none", None), ("12", None), ("e n", None), ("zxx", None)],
    ],
)
def test_a_code_is_brought_to_one_spelling(code: str, language: str | None) -> None:
    assert normalise(code) == language


def test_asked_languages_are_sorted_and_an_unknown_one_is_an_error() -> None:
    assert parse_languages(["zh-hans", "fi", "zh", "nb"]) == ("fi", "no", "zh")
    with pytest.raises(PrixError, match="unknown language klingon, xx: expected codes such as"):
        parse_languages(["fi", "xx", "klingon"])


def test_the_papers_languages_go_by_one_name_and_are_all_known() -> None:
    for name, codes in LANGUAGE_SETS.items():
        assert normalise(name) is None, "a name of a set is not a language"
        assert len(set(codes)) == len(codes) and all(normalise(code) == code for code in codes)
        assert parse_languages([name]) == tuple(sorted(codes))
        assert set(codes) <= set(LANGUAGE_SETS["paper"]), "XLM-R has read all of them"
    sizes = {name: len(codes) for name, codes in LANGUAGE_SETS.items()}
    assert sizes == {"paper": 93, "paper-named": 17, "paper-lp": 9, "paper-probe": 8}
    assert set(LANGUAGE_SETS["paper-lp"]) <= set(PAPER_LANGUAGES)
    assert parse_languages(["paper-probe", "zh", "fi"]) == (
        *("de", "en", "et", "fi", "fr", "hu", "it", "tr", "zh"),
    )


def test_scripts_are_told_from_language_and_text() -> None:
    assert [script_of_language(lang) for lang in ("fi", "te", "zh", "ko")] == [
        *("Latn", "Telu", "Hani", "Hang")
    ]
    assert [script_of_text(t) for t in ("Åbo", "తెలుగు", "東京", "서울", "2001", "")] == [
        *("Latn", "Telu", "Hani", "Hang", "", "")
    ]


@given(st.text(max_size=12) | st.from_regex(r"[A-Za-z]{1,8}([-_][A-Za-z0-9]{1,8}){0,4}"))
def test_a_language_code_is_one_that_stays_or_none(code: str) -> None:
    lang = normalise(code)
    assert lang is None or (lang.isalpha() and lang.islower() and normalise(lang) == lang)


def test_no_language_at_all_is_an_error() -> None:
    with pytest.raises(PrixError, match="no language given"):
        parse_languages([])


def test_a_code_that_no_language_can_have_is_unknown_and_not_kept() -> None:
    assert normalise("en-" + "x" * 10_000) is None
    kept = languages._normalise.cache_info()
    assert kept.maxsize is not None and kept.currsize <= kept.maxsize
    before = languages._normalise.cache_info().currsize
    assert normalise("e" * 36) is None
    assert languages._normalise.cache_info().currsize == before


def test_frequent_words_come_from_wordfreq() -> None:
    words = frequent_words("fi", 50)
    assert len(words) == 50 and "ja" in words
    assert frequent_words("no", 50) == frequent_words("nb", 50)
    for lang in ("te", "lo", "mr"):  # for which wordfreq would give English or Hindi
        with pytest.raises(PrixError, match=f"wordfreq has no words of {lang}"):
            frequent_words(lang, 50)


def test_word_frequencies_are_shares_of_all_text_and_restore_the_final_sigma() -> None:
    words = word_frequencies("el")
    assert words["και"] > words["τους"] > words["στόουν"] > 0
    assert "τουσ" not in words and "τουσ" in frequent_words("el", 100)
    assert word_frequencies("no") == word_frequencies("nb")
    assert word_frequencies("te") == word_frequencies("xx") == {}
