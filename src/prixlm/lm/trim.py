"""Vocabulary trimming: reduce a tokenizer to the pieces that a KB needs.

XLM-R has 250,002 pieces and the names of a KB use a fraction of them. The others cost memory, and
time in the output projection. These stay: every piece that occurs in the KB's names and aliases, in
the frequent words of its languages or in a text to keep, alone or after a space, every single
character (so that new names can be spelled), bytes and special tokens. Such text is tokenised as
before: a unigram's best path keeps all its pieces and its score, and a tokenizer that merges pairs
keeps every merge on the way to a kept piece (`merge_closure`). Any other text that lost a piece is
read in other pieces than by the base. A trimmed model keeps its base's tokenizer, so that this can
be told.

    kept = pieces_to_keep(kb, tokenizer, texts=["also these words"])
    small = trim_tokenizer(tokenizer, kept)        # new id i is old id kept[i]
    check_reading(model, words, "words")           # refuses if too many are read differently
"""

import json
import logging
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.languages import frequent_words
from prixlm.lm.descriptions import description_batches
from prixlm.lm.token_cache import encode_names, name_batches, word_space
from prixlm.romanise import Reading, read_names
from prixlm.types import Array, Progress

if TYPE_CHECKING:
    from prixlm.lm.model import PrixLM

logger = logging.getLogger(__name__)
NUM_WORDS = 50_000
"""Frequent words of each language whose pieces are kept: as many as are candidates of a lexicon."""
MAX_DIFFERENT = 0.05
"""Largest share of texts that a trimmed model may read in other pieces than its base, where a
figure or an encoder depends on them."""
_SAMPLE = 10_000
"""Names of a KB that stand for all of them."""

_WORD_START = "▁"  # of Unigram
_CONTINUATION = "##"  # of WordPiece
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def pieces_to_keep(
    kb: KB,
    tokenizer: Tokenizer,
    texts: Iterable[str] = (),
    progress: Progress | None = None,
    *,
    num_words: int = NUM_WORDS,
    descriptions: bool = False,
    reading: Reading = "script",
    spaced: bool = True,
) -> Array:
    """Return the ids of the pieces that a KB and some texts need, ascending.

    num_words: frequent words of each of its languages whose pieces are kept, too.
    descriptions: keep the pieces of the KB's descriptions, too.
    reading: how the model reads names.
    spaced: keep the pieces that names, words and texts have after a space, too.
    """
    used = np.zeros(tokenizer.get_vocab_size(), bool)
    space = word_space(tokenizer) if spaced else ""

    def mark(names: list[str]) -> None:
        _mark(used, tokenizer, names)
        if space:  # other pieces, for a tokenizer that does not add the space itself
            _mark(used, tokenizer, [space + name for name in names])

    for done, names in enumerate(name_batches(kb, reading)):
        mark(names)
        if progress is not None:
            progress("trim", min((done + 1) * len(names), kb.num_entities), kb.num_entities)
    for batch in kb.batches("aliases", ["name"]):
        mark(read_names(batch.column(0).to_pylist(), reading))
    for described in description_batches(kb) if descriptions else ():
        mark(described)
    for lang in kb.languages if num_words else ():
        with suppress(PrixError):  # wordfreq does not have every language
            mark(read_names(frequent_words(lang, num_words), reading, lang))
    # A text may be a row of a table, such as a prompt and its answer: its cells count, too.
    cells = dict.fromkeys(cell for text in texts for cell in (text, *text.split("\t")))
    mark(read_names(list(cells), reading))
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
    if model["type"] == "BPE":
        used[merge_closure(tokenizer, np.flatnonzero(used))] = True
    return np.flatnonzero(used)


def merge_closure(tokenizer: Tokenizer, pieces: Array) -> Array:
    """Return the pieces that occur while a BPE tokenizer merges these ones from single characters.

    BPE merges the pair of the lowest rank first, wherever it is. What happens inside a piece of a
    text does not depend on what is around it, because no merge crossed its ends. So a text is
    merged as before if the merges of its pieces alone are kept, in their order: a merge that is
    left out was never the next one.
    """
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    pairs = (_pair(merge) for merge in model["merges"])
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    names = {number: piece for piece, number in vocabulary.items()}
    found = {int(piece) for piece in pieces if int(piece) in names}
    for piece in list(found):
        symbols = list(names[piece])
        if names[piece] in symbols or _BYTE.fullmatch(names[piece]):
            continue
        while len(symbols) > 1:
            found.update(vocabulary[s] for s in symbols if s in vocabulary)
            best = min(
                (ranks.get(pair, len(ranks)) for pair in pairwise(symbols)), default=len(ranks)
            )
            if best == len(ranks):  # a piece that no merge makes, such as a whole word of Llama 3
                break
            symbols = _merge(symbols, ranks, best)
        found.update(vocabulary[s] for s in symbols if s in vocabulary)
    return np.array(sorted(found), np.int64)


def _merge(symbols: list[str], ranks: dict[tuple[str, str], int], rank: int) -> list[str]:
    """Merge the pairs of one rank, from left to right."""
    merged: list[str] = []
    for symbol in symbols:
        if merged and ranks.get((merged[-1], symbol)) == rank:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


def _pair(merge: Any) -> tuple[str, str]:
    """Return a merge as two pieces; older files write them with a space between."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


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
    elif model["type"] == "BPE":
        pieces = model["vocab"].items()
        model["vocab"] = {piece: new_id[old] for piece, old in pieces if old in new_id}
        kept_pieces = model["vocab"].keys()
        merges = [_pair(merge) for merge in model["merges"]]
        # A merge needs its two halves and its result.
        model["merges"] = [
            [first, second]
            for first, second in merges
            if first in kept_pieces and second in kept_pieces and first + second in kept_pieces
        ]
    else:
        raise PrixError(
            f"a {model['type']} tokenizer cannot be trimmed. Expected Unigram, WordPiece or BPE: "
            "leave out --trim."
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


# --- reading --------------------------------------------------------------------------------------


def read_differently(model: "PrixLM", texts: Sequence[str], *, as_names: bool = True) -> list[str]:
    """Return the texts that a trimmed model reads in other pieces than its base; each once.

    as_names: with the space, if any, that the model reads before a name; else as they are.
    """
    before, now = model.untrimmed, model.encoder.tokenizer
    if before is None:
        return []
    distinct = list(dict.fromkeys(texts))
    # Compare pieces, not ids: trimming gives the kept pieces new ids.
    read = read_names(distinct, model.encoder.reading)
    space = model.encoder.space if as_names else ""
    pairs = zip(encode_names(now, read, space), encode_names(before, read, space), strict=True)
    return [
        text
        for text, (ids, old_ids) in zip(distinct, pairs, strict=True)
        if [now.id_to_token(i) for i in ids] != [before.id_to_token(i) for i in old_ids]
    ]


def check_reading(
    model: "PrixLM",
    texts: Sequence[str],
    what: str,
    most: float = MAX_DIFFERENT,
    *,
    as_names: bool = True,
) -> None:
    """Refuse texts of which a trimmed model reads more than a share in other pieces than its base.

    A smaller share is a warning. what: names the texts, such as "mentions"; most: the share.
    """
    different = read_differently(model, texts, as_names=as_names)
    if len(different) > most * len(set(texts)):
        raise PrixError(_describe(different, texts, what))
    if different:
        logger.warning("%s", _describe(different, texts, what))


def warn_of_reading(model: "PrixLM", texts: Sequence[str], what: str) -> bool:
    """Warn of texts that a trimmed model reads in other pieces than its base; tell if it did."""
    different = read_differently(model, texts)
    if different:
        logger.warning("%s", _describe(different, texts, what))
    return bool(different)


def warn_of_another_kb(model: "PrixLM", kb: KB) -> None:
    """Warn if a model was trimmed for another KB and reads names of this one differently."""
    is_own = model.settings.lineage.kb_fingerprint == kb.fingerprint()
    if not is_own and model.untrimmed is not None:
        warn_of_reading(model, sample_names(kb), f"names of {kb.folder}")


def sample_names(kb: KB) -> list[str]:
    """Return names of a KB to check a model's reading with: all, or evenly spaced ones."""
    count = min(kb.num_entities, _SAMPLE)
    return kb.names(np.linspace(0, kb.num_entities - 1, count).astype(int).tolist())


def _describe(different: list[str], texts: Sequence[str], what: str) -> str:
    total = len(set(texts))
    share = 100 * len(different) / total
    percent = f"{share:.0f}" if share >= 1 else f"{share:.1g}"
    return (
        f"the model's vocabulary was trimmed without the pieces of {len(different):,} of "
        f"{total:,} {what} ({percent} %), such as {different[0]!r}: it reads them in other pieces "
        "than its base. Pretrain with `--trim --keep FILE`, where the file has such text, or "
        "without --trim."
    )
