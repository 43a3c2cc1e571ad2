"""Frequent words of a language (wordfreq): Mirror's positives, entries of a lexicon, spelling."""

from prixlm.errors import PrixError

_WORDFREQ_CODES = {"no": "nb", "tl": "fil"}
"""Languages that wordfreq names differently from Wikipedia."""


def frequent_words(lang: str, count: int) -> list[str]:
    """Return the most frequent words of a language, the most frequent first."""
    import wordfreq

    known = wordfreq.available_languages()
    code = _WORDFREQ_CODES.get(lang, lang)
    if code not in known:  # wordfreq would answer with the words of a language that it finds near
        raise PrixError(
            f"wordfreq has no words of {lang}: pass a file of words, or one of "
            f"{', '.join(sorted(known))}."
        )
    return list(wordfreq.top_n_list(code, count))


def word_frequencies(lang: str) -> dict[str, float]:
    """Return the known words of a language in lower case, each with its share of all text.

    Empty for a language that wordfreq does not have.
    """
    import wordfreq

    code = _WORDFREQ_CODES.get(lang, lang)
    if code not in wordfreq.available_languages():
        return {}
    words = wordfreq.get_frequency_dict(code, "best")
    # wordfreq folds the Greek final sigma; lower-casing capitals restores it.
    return {
        word.upper().lower() if word.endswith("σ") else word: share for word, share in words.items()
    }
