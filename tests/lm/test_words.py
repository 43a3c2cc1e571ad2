"""The frequent words of a language."""

import pytest

from prixlm import PrixError
from prixlm.lm.words import frequent_words, word_frequencies


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
