"""Write names of any script in plain Latin letters, to compare them across scripts.

    romanise(["Αθήνα", "Zürich"])     # ["athina", "zurich"]

The letters are those of anyascii, one character at a time, without a dictionary. That serves
scripts that spell sounds. Chinese characters get their Mandarin reading in any language: Japanese
東京 becomes `dongjing`, so `tokyo` finds it only by another name of the same concept. Arabic and
Hebrew are read without the vowels that they do not write.
"""

import unicodedata
from collections.abc import Sequence


class _Letters(dict[int, str]):
    """The Latin letters of each character, each asked of anyascii once."""

    def __missing__(self, code: int) -> str:
        from anyascii import anyascii

        letters = self[code] = anyascii(chr(code))
        return letters


_LETTERS = _Letters()


def romanise(names: Sequence[str]) -> list[str]:
    """Return names in lower-case ASCII without accents, with single spaces.

    A name of characters that have no Latin letters, such as rare symbols, becomes empty.
    """
    return [
        " ".join(unicodedata.normalize("NFKC", name).translate(_LETTERS).lower().split())
        for name in names
    ]
