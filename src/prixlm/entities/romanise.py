"""Romanised names under the address that this room used before: see `prixlm.romanise`."""

from prixlm.romanise import reading_version, romanise

__all__ = ["reading_version", "romanise"]
