"""Write names of any script in plain Latin letters, to compare them across scripts.

    romanise(["Αθήνα", "Zürich"])              # ["athina", "zurich"]
    romanise(["東京", "北京"], ["ja", "zh"])    # ["tokyo", "beijing"]

Most letters are those of anyascii, one character at a time. Where the sound of a character depends
on its neighbours, a rule rewrites the name before: Greek digraphs, Hangul syllables, kana, the
unwritten vowels of Indic scripts, and the vowels that Thai and Lao write before their consonant.

Japanese words are read by a dictionary (fugashi and UniDic, the extra `[ja]`), which also knows the
original spelling of many loanwords. Without it, kana are read by rule and kanji as in Mandarin.
Arabic, Persian and Hebrew are read without the vowels that they do not write.

The readings are made for comparison, not for print: of two usual spellings the one was chosen that
finds more English names by linked names of the KBs (docs/results/names.md).
"""

import importlib.metadata
import importlib.util
import logging
import re
import threading
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

logger = logging.getLogger(__name__)

VERSION = 2
"""Version of the rules in this file; caches of readings name it."""
_MAX_WORDS = 1 << 16
"""Runs of kana and Hangul whose reading is kept in memory."""


def romanise(names: Sequence[str], langs: str | Sequence[str] | None = None) -> list[str]:
    """Return names in lower-case ASCII without accents, with single spaces.

    langs: one code, or the code of each name. It decides how Chinese characters are read. Without
    it, a name with kana is Japanese. A name of characters that have no Latin letters, such as rare
    symbols, becomes empty.
    """
    codes = [langs] * len(names) if langs is None or isinstance(langs, str) else langs
    return [_romanise(name, code) for name, code in zip(names, codes, strict=True)]


def reading_version() -> str:
    """Return what decides how names are read: this file's version and those of its data."""
    parts = [str(VERSION), "anyascii " + importlib.metadata.version("anyascii")]
    if has_dictionary():
        parts.append("unidic-lite " + importlib.metadata.version("unidic-lite"))
    return ", ".join(parts)


def has_dictionary() -> bool:
    """Tell whether Japanese is read by a dictionary: the extra `[ja]` is installed."""
    return all(importlib.util.find_spec(package) for package in ("fugashi", "unidic_lite"))


def _romanise(name: str, lang: str | None) -> str:
    if name.isascii():
        return " ".join(name.lower().split())
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", name).lower())
    if lang == "ja" or (lang is None and _KANA.search(text)):
        text = _read_japanese(text)
    for script, rules in _RULES:
        if script.search(text):
            for pattern, replacement in rules:
                text = pattern.sub(replacement, text)
    return " ".join(text.translate(_LETTERS).lower().split())


class _Letters(dict[int, str]):
    """The Latin letters of each character, each asked of anyascii once."""

    def __missing__(self, code: int) -> str:
        from anyascii import anyascii

        # Apostrophes stand for ejectives, soft signs and glottal stops: no spelling has them.
        letters = self[code] = anyascii(chr(code)).replace("'", "") if code > 127 else chr(code)
        return letters


_LETTERS = _Letters(
    (ord(letter), latin)
    for letters, latin in (
        ("・", " "),
        # Letters that stand for a vowel more often than not. anyascii leaves out alef.
        ("اأآىٱةא", "a"),
        ("إ", "i"),
        ("يیי", "i"),
        ("وו", "o"),
        ("ב", "b"),
        ("ש", "sh"),
        ("’ʼ׳", "'"),
    )
    for letter in letters
)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")


# --- Japanese -------------------------------------------------------------------------------------

_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa\u30fc]+")
_KANJI = re.compile("[\u3005\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_WRITTEN = re.compile(f"(?:{_KANA.pattern}|{_KANJI.pattern})+")
_LONG = re.compile("(?<=o)[ou]|(?<=u)u|(?<=a)a|(?<=i)i")
_SMALL = dict(zip("ァィゥェォャュョヮ", re.findall(r"\w+", "a i u e o ya yu yo wa"), strict=True))
_LOCK = threading.Lock()  # a tagger reads one text at a time


@lru_cache(maxsize=1)
def _japanese() -> Any:
    """Return a tagger with its dictionary; None, with a line in the log, if it is missing."""
    if not has_dictionary():
        logger.warning(
            "Japanese names: kanji are read as in Mandarin. pip install 'prixlm[ja]' adds a "
            "dictionary of their readings."
        )
        return None
    import fugashi
    import unidic_lite

    return fugashi.Tagger(f'-d "{unidic_lite.DICDIR}"')


def _read_japanese(text: str) -> str:
    tagger = _japanese()
    return text if tagger is None else _WRITTEN.sub(lambda run: _read_run(tagger, run[0]), text)


def _read_run(tagger: Any, text: str) -> str:
    """Read words of kanji and kana: in their original spelling if it is known, or by sound."""
    with _LOCK:
        words = [(word.surface, word.feature.lemma, word.feature.kana) for word in tagger(text)]
    read = []
    for surface, lemma, kana in words:
        has_kanji = _KANJI.search(surface)
        # UniDic writes a loanword's spelling after its lemma: バンド-band.
        spelling = (lemma or "").partition("-")[2]
        if spelling and spelling.isascii() and not has_kanji:
            read.append(spelling)
        elif has_kanji and kana and kana != "*":
            # English writes no long vowels: Tokyo, not Toukyou.
            read.append(_LONG.sub("", _read_kana(kana)))
        else:
            read.append(surface)
    return f" {' '.join(read)} "


@lru_cache(maxsize=_MAX_WORDS)
def _read_kana(kana: str) -> str:
    """Read kana by their letters; long vowels are not marked."""
    read, is_double = "", False
    for letter in kana:
        # Hiragana as katakana: the two blocks have the same order.
        letter = chr(ord(letter) + 96) if "\u3041" <= letter <= "\u3096" else letter
        if letter in _SMALL and read[-1:] in tuple("aiueo"):
            read = _with_small(read, _SMALL[letter])
        elif letter == "ッ":
            is_double = True
        elif letter != "ー":
            sound = _LETTERS[ord(letter)]
            if is_double and sound[:1] not in tuple("aiueo"):
                sound = ("t" if sound.startswith("ch") else sound[:1]) + sound
            read, is_double = read + sound, False
    return read


def _with_small(read: str, vowel: str) -> str:
    """Replace the last vowel by that of a small letter: キ ャ is kya, シ ャ sha, ウ ィ wi."""
    before, last = read[:-1], read[-1]
    if before[-1:] in ("", " ", *"aiueo") and last in "iu":
        return before + {"i": "y", "u": "w"}[last] + vowel[-1]
    return before + (vowel[-1] if before.endswith(("sh", "ch", "j")) else vowel)


# --- scripts whose letters depend on their neighbours ---------------------------------------------


def _characters(*ranges: tuple[int, int]) -> str:
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


# Blocks of Indic scripts have one layout, from Devanagari (0900) to Malayalam (0D00).
_NORTHERN = range(0x900, 0xB80, 0x80)  # Devanagari to Oriya: a word's last vowel is not read
_SOUTHERN = range(0xB80, 0xD80, 0x80)  # Tamil to Malayalam
_SINHALA = (0xD9A, 0xDC6)
_NUKTA = "".join(chr(block + 0x3C) for block in _NORTHERN)
_LETTER_N = _characters(*((block + 0x15, block + 0x39) for block in _NORTHERN))
_LETTER_S = _characters(*((block + 0x15, block + 0x39) for block in _SOUTHERN), _SINHALA)
# Vowel signs, and the virama that says that there is no vowel.
_SIGNS = _characters(
    *((block + 0x3E, block + 0x4D) for block in (*_NORTHERN, *_SOUTHERN)),
    *((block + 0x55, block + 0x57) for block in (*_NORTHERN, *_SOUTHERN)),
    (0xDCA, 0xDDF),
)
_ANUSVARA = "".join(chr(block + 2) for block in (*_NORTHERN, *_SOUTHERN))
_LABIALS = _characters(*((block + 0x2A, block + 0x2E) for block in (*_NORTHERN, *_SOUTHERN)))
_CONSONANT = f"[{_LETTER_N}][{_NUKTA}]?"

# Revised Romanisation of Korean, without changes across syllables.
_INITIALS, _VOWELS, _FINALS = (
    letters.split("-")
    for letters in (
        "g-kk-n-d-tt-r-m-b-pp-s-ss--j-jj-ch-k-t-p-h",
        "a-ae-ya-yae-eo-e-yeo-ye-o-wa-wae-oe-yo-u-wo-we-wi-yu-eu-ui-i",
        "-k-k-k-n-n-n-t-l-k-m-l-l-l-p-l-m-p-p-t-t-ng-t-t-k-t-p-t",
    )
)


@lru_cache(maxsize=_MAX_WORDS)
def _read_hangul(syllables: str) -> str:
    read, before = [], ""
    for syllable in syllables:
        initial, rest = divmod(ord(syllable) - 0xAC00, 588)
        vowel, final = divmod(rest, 28)
        first = "l" if before == "l" and _INITIALS[initial] == "r" else _INITIALS[initial]
        # An open syllable with `eu` is how a loanword's bare consonant is written: 스 in 아스마라.
        is_bare = bool(first) and _VOWELS[vowel] == "eu" and not final
        read.append(first + ("" if is_bare else _VOWELS[vowel]) + _FINALS[final])
        before = _FINALS[final]
    return "".join(read)


# By script: what its names contain, and what is rewritten in them before the letters, in order.
_SCRIPTS: list[tuple[str, list[tuple[str, str | Callable[[re.Match[str]], str]]]]] = [
    (
        "[α-ω]",  # Greek: two letters with one sound
        [
            ("μπ", "b"),
            ("ντ", "d"),
            ("γκ", "g"),
            ("γγ", "ng"),
            ("τζ", "j"),
            ("ο[υύ]", "ou"),
            ("(?<=[αε])[υύ](?=[αειουωβγδζλμνρ])", "v"),
            ("(?<=[αε])[υύ]", "f"),
        ],
    ),
    ("[ա-և]", [("ու", "u"), ("եւ", "ev")]),  # Armenian
    (
        f"[{_LETTER_N}{_LETTER_S}]",
        # Indic: a consonant without a vowel sign has an `a`. In the north it is silent at the end
        # of a word and before a consonant with a vowel sign, unless it is the first of the word.
        [
            (f"([{_LETTER_S}])(?![{_SIGNS}])", r"\1a"),
            (f"({_CONSONANT})(?=[{_LETTER_N}])(?!{_CONSONANT}[{_SIGNS}])", r"\1a"),
            (rf"(?<![^\s(-])({_CONSONANT})(?=[{_LETTER_N}{_ANUSVARA}])", r"\1a"),
            (f"[{_ANUSVARA}](?![{_LABIALS}])", "n"),
        ],
    ),
    (
        "[\u0e00-\u0eff]",
        # Thai and Lao: some vowels are written before their consonant, and a vowel at the beginning
        # of a syllable needs a silent letter.
        [
            ("([\u0e40-\u0e44])([\u0e01-\u0e2e])", r"\2\1"),
            ("([\u0ec0-\u0ec4])([\u0e81-\u0eae])", r"\2\1"),
            ("อ(?=[\u0e30-\u0e3a\u0e40-\u0e45])", ""),
            ("ອ(?=[\u0eb0-\u0ebb\u0ec0-\u0ec4])", ""),
        ],
    ),
    ("[가-힣]", [("[가-힣]+", lambda run: _read_hangul(run[0]))]),
    (_KANA.pattern, [(_KANA.pattern, lambda run: _read_kana(run[0]))]),
]
_RULES = [
    (re.compile(script), [(re.compile(pattern), by) for pattern, by in rules])
    for script, rules in _SCRIPTS
]
