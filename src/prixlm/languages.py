"""Languages: codes, spelt as in all sources and normalised to one; scripts; frequent words.

A KB names a language by its ISO 639-1 code if it has one and by its three-letter code otherwise
(`en`, `no`, `gsw`), as the paper does. Regional, script and spelling variants count as their
language: `zh-hans`, `pt-br` and `be-tarask` are `zh`, `pt` and `be`. A name in a variant is used
where the language itself has none.

    normalise("nb") == normalise("nob") == "no"
    normalise("commons") is None
    parse_languages(["paper-lp", "es"])     # the nine test languages of the paper, and Spanish
"""

import functools
import unicodedata
from collections.abc import Iterable

import langcodes
from babel.core import get_global
from langcodes.tag_parser import LanguageTagError

from prixlm.errors import PrixError

PAPER_LANGUAGES = (
    *("en", "es", "it", "de", "fr", "fi", "et", "hu", "ru"),
    *("tr", "ko", "ja", "zh", "th", "te", "lo", "mr"),
)
"""The 17 languages of the paper's appendix, in its order."""

# fmt: off
XLMR_LANGUAGES = (
    "af", "am", "ar", "as", "az", "be", "bg", "bn", "br", "bs", "ca", "cs", "cy", "da", "de", "el",
    "en", "eo", "es", "et", "eu", "fa", "fi", "fr", "fy", "ga", "gd", "gl", "gu", "ha", "he", "hi",
    "hr", "hu", "hy", "id", "is", "it", "ja", "jv", "ka", "kk", "km", "kn", "ko", "ku", "ky", "la",
    "lo", "lt", "lv", "mg", "mk", "ml", "mn", "mr", "ms", "my", "ne", "nl", "no", "om", "or", "pa",
    "pl", "ps", "pt", "ro", "ru", "sa", "sd", "si", "sk", "sl", "so", "sq", "sr", "su", "sv", "sw",
    "ta", "te", "th", "tl", "tr", "ug", "uk", "ur", "uz", "vi", "xh", "yi", "zh",
)
# fmt: on
"""The 93 languages that XLM-R was trained on; its 100 count some again in another script."""

LANGUAGE_SETS: dict[str, tuple[str, ...]] = {
    # Sec. 3.1: "87 languages which are represented both in DBpedia and in XLM-R". The paper does
    # not list them: of these 93, the ones that the imported release of DBpedia has.
    "paper": XLMR_LANGUAGES,
    "paper-named": PAPER_LANGUAGES,
    "paper-lp": ("en", "it", "de", "fr", "fi", "et", "tr", "hu", "ja"),  # Sec. 3.2, in its order
    "paper-probe": ("en", "it", "de", "fr", "fi", "et", "tr", "hu"),  # Sec. 3.5
}
"""Languages that go by one name wherever codes are expected."""

# Wikimedia's own codes, and those for which XLM-R's choice differs from the registry's.
# fmt: off
_OWN = {
    "nb": "no", "nob": "no", "tl": "tl", "fil": "tl", "sh": "sh", "hbs": "sh", "bh": "bh",
    "simple": "en", "als": "gsw", "bat-smg": "sgs", "be-x-old": "be", "cbk-zam": "cbk",
    "eml": "egl", "fiu-vro": "vro", "map-bms": "jv", "nds-nl": "nds", "roa-rup": "rup",
    "roa-tara": "nap", "zh-classical": "lzh", "zh-min-nan": "nan", "zh-yue": "yue",
    "sr-el": "sr", "sr-ec": "sr",
}
# fmt: on
_WORDFREQ_CODES = {"no": "nb", "tl": "fil"}
"""Languages that wordfreq names differently from Wikipedia."""
_LONGEST_CODE = 35
"""Characters of a code: the length that BCP 47 recommends to allow for (RFC 5646, 4.4.1)."""
_NO_LANGUAGE = {None, "mul", "und", "zxx", "mis"}

# The first word of a letter's Unicode name, and the script that it stands for.
# fmt: off
_LETTERS = {
    "LATIN": "Latn", "CYRILLIC": "Cyrl", "GREEK": "Grek", "ARABIC": "Arab", "HEBREW": "Hebr",
    "DEVANAGARI": "Deva", "CJK": "Hani", "HIRAGANA": "Hira", "KATAKANA": "Kana",
    "HANGUL": "Hang", "THAI": "Thai", "LAO": "Laoo", "TELUGU": "Telu", "ARMENIAN": "Armn",
    "GEORGIAN": "Geor", "BENGALI": "Beng", "TAMIL": "Taml",
}
# fmt: on


def normalise(code: str) -> str | None:
    """Return the KB's code of the language that a source calls `code`; None if it is unknown."""
    # Codes come from dumps and from clients of the server: what is kept of them is bounded.
    return _normalise(code) if len(code) <= _LONGEST_CODE else None


@functools.lru_cache(maxsize=4096)
def _normalise(code: str) -> str | None:
    # Own codes first: the registry knows `als`, but as another language than Wikimedia does.
    code = code.strip().lower().replace("_", "-")
    if code in _OWN:
        return _OWN[code]
    try:
        language = langcodes.Language.get(langcodes.standardize_tag(code, macro=True))
    except LanguageTagError:
        return None
    if language.language in _NO_LANGUAGE or not language.is_valid():
        return None
    assert language.language is not None
    known = _OWN.get(language.language, language.language)
    return known if known.isalpha() else None


def parse_languages(codes: Iterable[str]) -> tuple[str, ...]:
    """Return the asked languages, normalised, sorted and without repeats; refuse unknown ones.

    A name of `LANGUAGE_SETS` stands for all of its languages.
    """
    expanded = [lang for code in codes for lang in LANGUAGE_SETS.get(code, (code,))]
    languages = {code: normalise(code) for code in expanded}
    if not languages:
        raise PrixError("no language given: expected codes such as en,fi,zh.")
    unknown = sorted(code for code, language in languages.items() if language is None)
    if unknown:
        raise PrixError(
            f"unknown language {', '.join(unknown)}: expected codes such as en, fi or zh "
            "(ISO 639-1, or three letters where a language has no two), or one of "
            f"{', '.join(LANGUAGE_SETS)}."
        )
    return tuple(sorted({language for language in languages.values() if language}))


@functools.cache
def script_of_language(language: str) -> str:
    """Return the four-letter code of a language's usual script; "" if CLDR does not know it."""
    likely: str = get_global("likely_subtags").get(language, "")
    script = next((part for part in likely.split("_") if len(part) == 4), "")
    return {"Hans": "Hani", "Hant": "Hani", "Kore": "Hang"}.get(script, script)


def script_of_text(text: str) -> str:
    """Return the script of the first letter of `text`; "" without a letter of a known script."""
    for character in text:
        if character.isalpha():
            return _LETTERS.get(unicodedata.name(character, "").split(" ")[0].split("-")[0], "")
    return ""


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
