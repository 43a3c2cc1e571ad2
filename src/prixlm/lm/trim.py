"""Vocabulary trimming: reduce a tokenizer to the pieces that a KB needs.

XLM-R has 250,002 pieces and the names of a KB use a fraction of them. The others cost memory, and
time in the output projection. These stay: every piece that occurs in the KB's names or in a text to
keep, every single character (so that new names can be spelled), bytes and special tokens. Names of
the KB are tokenised as before, because the best path keeps all its pieces and its score.

    kept = pieces_to_keep(kb, tokenizer, texts=["also these words"])
    small = trim_tokenizer(tokenizer, kept)        # new id i is old id kept[i]
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.lm.token_cache import encode_names, name_batches
from prixlm.types import Array, Progress

_WORD_START = "▁"  # of Unigram
_CONTINUATION = "##"  # of WordPiece
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def pieces_to_keep(
    kb: KB, tokenizer: Tokenizer, texts: Iterable[str] = (), progress: Progress | None = None
) -> Array:
    """Return the ids of the pieces that a KB and some texts need, ascending."""
    used = np.zeros(tokenizer.get_vocab_size(), bool)
    for done, names in enumerate(name_batches(kb)):
        _mark(used, tokenizer, names)
        if progress is not None:
            progress("trim", min((done + 1) * len(names), kb.num_entities), kb.num_entities)
    for text in texts:
        _mark(used, tokenizer, [text])
    for piece, piece_id in tokenizer.get_vocab().items():
        letters = piece.removeprefix(_WORD_START).removeprefix(_CONTINUATION)
        used[piece_id] |= len(letters) <= 1 or _BYTE.fullmatch(piece) is not None
    used[list(tokenizer.get_added_tokens_decoder())] = True
    model = json.loads(tokenizer.to_str())["model"]
    if model["type"] == "Unigram":
        # The cost of an unknown character is derived from the lowest score of the vocabulary: keep
        # that piece, or unknown characters would change the best path.
        used[int(np.argmin([score for _, score in model["vocab"]]))] = True
        used[model["unk_id"]] = True
    return np.flatnonzero(used)


def _mark(used: Array, tokenizer: Tokenizer, names: list[str]) -> None:
    """Set `used`, (V,), for every piece of the names."""
    for ids in encode_names(tokenizer, names):
        used[ids] = True


def trim_tokenizer(tokenizer: Tokenizer, kept: Array) -> Tokenizer:
    """Return a copy of a tokenizer with only the kept pieces, numbered in their old order.

    kept: (V',) old ids, ascending. New id i is old id `kept[i]`.
    """
    state = json.loads(tokenizer.to_str())
    new_id = {int(old): new for new, old in enumerate(kept)}
    model = state["model"]
    if model["type"] == "Unigram":
        # Added tokens may come after the model's own pieces, or among them.
        model["vocab"] = [entry for old, entry in enumerate(model["vocab"]) if old in new_id]
        model["unk_id"] = new_id[model["unk_id"]]
    elif model["type"] == "WordPiece":
        pieces = model["vocab"].items()
        model["vocab"] = {piece: new_id[old] for piece, old in pieces if old in new_id}
    else:
        raise PrixError(
            f"a {model['type']} tokenizer cannot be trimmed. Expected XLM-R's Unigram or BERT's "
            "WordPiece: leave out --trim."
        )
    for token in state["added_tokens"]:
        token["id"] = new_id[token["id"]]
    _renumber(state.get("post_processor"), new_id)
    return Tokenizer.from_str(json.dumps(state))


def _renumber(processor: dict[str, Any] | None, new_id: dict[int, int]) -> None:
    """Replace the ids in a post-processor: those of a template, or BERT's and RoBERTa's pairs."""
    if processor is None:
        return
    for inner in processor.get("processors", []):
        _renumber(inner, new_id)
    for token in processor.get("special_tokens", {}).values():
        token["ids"] = [new_id[old] for old in token["ids"]]
    for name in ("sep", "cls"):
        if name in processor:
            text, old = processor[name]
            processor[name] = [text, new_id[old]]
