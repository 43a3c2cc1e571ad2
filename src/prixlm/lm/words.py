"""The frequent words of a language (wordfreq): Mirror's positives, and candidates of a lexicon."""

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
