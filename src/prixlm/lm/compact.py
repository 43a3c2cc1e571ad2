"""`compact`: a small XLM-R of our own, from random weights, with a tokenizer made from the KB.

For machines without a GPU and for KBs that no base model has seen. The tokenizer is a unigram model
trained on the KB's names; bytes stand in for letters that it has never seen, so no name is unknown.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaForMaskedLM

from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.lm.encoding import ROLES, add_tokens, language_token
from prixlm.lm.model import PrixLM, Settings
from prixlm.lm.token_cache import name_batches

MOST_NAMES = 2_000_000
"""Names that a tokenizer is trained on at most: the trainer holds them all in memory."""

_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclass(frozen=True, kw_only=True)
class CompactConfig:
    """The size of a compact model."""

    vocab: int = 12_000  # pieces of the tokenizer
    width: int = 192
    layers: int = 3
    heads: int = 4
    positions: int = 128
    dropout: float = 0.1  # on layers; attention has none

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise PrixError(f"width {self.width} cannot be shared by {self.heads} heads.")
        if self.vocab < 600:
            raise PrixError(f"--vocab {self.vocab}: expected 600 or more (256 of them are bytes).")


def make_compact(kb: KB, config: CompactConfig, *, seed: int = 0) -> PrixLM:
    """A compact model with random weights and a tokenizer trained on the names of `kb`."""
    tokenizer = train_tokenizer(kb, config.vocab)
    add_tokens(tokenizer, kb.languages)
    torch.manual_seed(seed)
    backbone = XLMRobertaForMaskedLM(  # type: ignore[no-untyped-call]
        XLMRobertaConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=4 * config.width,
            max_position_embeddings=config.positions + 2,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=0.0,  # with it, a CPU's fused attention cannot be used
            type_vocab_size=1,
            bos_token_id=0,
            pad_token_id=1,
            eos_token_id=2,
        )
    )
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        extra_special_tokens=[*ROLES, *map(language_token, kb.languages)],
    )
    return PrixLM(backbone, wrapped, Settings(languages=tuple(kb.languages)))


def train_tokenizer(kb: KB, vocab: int) -> Tokenizer:
    """A unigram tokenizer with `vocab` pieces, bytes and special tokens included."""
    learned = Tokenizer(models.Unigram())
    learned.normalizer = normalizers.NFKC()
    learned.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab - len(_BYTES),
        special_tokens=_SPECIAL,
        unk_token="<unk>",
        show_progress=False,
    )
    learned.train_from_iterator(_names(kb, (vocab - len(_BYTES)) // 2), trainer)
    # The trainer knows nothing of byte fallback: the byte pieces are added with the lowest score.
    entries = [tuple(entry) for entry in json.loads(learned.to_str())["model"]["vocab"]]
    lowest = min(score for _, score in entries) - 10
    entries += [(byte, lowest) for byte in _BYTES]
    tokenizer = Tokenizer(models.Unigram(entries, unk_id=3, byte_fallback=True))
    tokenizer.normalizer = learned.normalizer
    tokenizer.pre_tokenizer = learned.pre_tokenizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer


def _names(kb: KB, most_letters: int) -> Iterator[str]:
    """The names that the tokenizer is trained on: all, or every n-th of a very large KB.

    A KB in many scripts has more letters than a small vocabulary has room for: the rarest are
    left out here, and bytes stand in for them.
    """
    counts: Counter[str] = Counter()
    for name in _normal_names(kb):
        counts.update(name)
    rare = [letter for letter, _ in counts.most_common()[most_letters:]]
    blank = dict.fromkeys(map(ord, rare), " ")
    for name in _normal_names(kb):
        yield name.translate(blank) if blank else name


def _normal_names(kb: KB) -> Iterator[str]:
    every = max(1, -(-kb.num_entities // MOST_NAMES))
    for names in name_batches(kb):
        yield from (unicodedata.normalize("NFKC", name) for name in names[::every])
