"""`compact`: a small XLM-R with random weights and a tokenizer trained on the names of a KB.

For machines without a GPU, and for languages that no base model has seen. The tokenizer is a
unigram model; it spells letters that it has not seen in bytes, so that no name is unknown.
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
from prixlm.lm.descriptions import description_batches
from prixlm.lm.encoding import add_tokens, special_tokens
from prixlm.lm.model import PrixLM, make_settings
from prixlm.lm.token_cache import name_batches
from prixlm.romanise import Reading

_MAX_NAMES = 2_000_000
"""Most names that a tokenizer is trained on: the trainer holds them all in memory."""
_MAX_TEXT = 250
"""Characters of a description that the tokenizer is trained on."""
_MOST_LAYERS, _MOST_WEIGHTS = 1000, 10**9
"""A setting above these is a mistake, or an attack on the memory of the machine."""
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclass(frozen=True, kw_only=True)
class CompactConfig:
    """The size of a compact model."""

    vocab: int = 12_000  # pieces of the tokenizer, 256 of them bytes
    width: int = 192  # of the hidden states
    layers: int = 3  # transformer layers
    heads: int = 4  # attention heads; must divide width
    positions: int = 128  # longest input, in tokens
    dropout: float = 0.1  # after attention and feed-forward; attention weights have none

    def __post_init__(self) -> None:
        if (
            min(self.width, self.layers, self.heads, self.positions) < 1
            or self.layers > _MOST_LAYERS
        ):
            raise PrixError(
                f"width {self.width}, layers {self.layers}, heads {self.heads}, positions "
                f"{self.positions}: expected 1 or more, and at most {_MOST_LAYERS} layers."
            )
        if not 0 <= self.dropout < 1:
            raise PrixError(f"dropout {self.dropout}: expected a share from 0 to below 1.")
        if self.width % self.heads:
            raise PrixError(
                f"width {self.width} cannot be divided among {self.heads} heads: choose a width "
                f"that is a multiple of {self.heads}."
            )
        if self.vocab < 600:
            raise PrixError(f"vocab {self.vocab}: expected 600 or more, because 256 are bytes.")
        weights = self.width * (self.vocab + self.positions + 12 * self.width * self.layers)
        if weights > _MOST_WEIGHTS:
            raise PrixError(
                f"vocab {self.vocab}, width {self.width}, layers {self.layers}, positions "
                f"{self.positions}: a model of {weights:.0e} weights, expected {_MOST_WEIGHTS:.0e} "
                "or fewer. Start from a base model instead."
            )


def make_compact(
    kb: KB,
    config: CompactConfig,
    *,
    seed: int = 0,
    descriptions: int = 0,
    reading: Reading = "script",
) -> PrixLM:
    """Return a compact model with random weights and a tokenizer trained on the names of `kb`.

    descriptions: tokens of a subject's description that the model reads after its name.
    reading: how it reads names.
    """
    # The tokenizer comes first: only the weights depend on the seed.
    tokenizer = train_tokenizer(kb, config.vocab, descriptions=descriptions > 0, reading=reading)
    add_tokens(tokenizer, kb.languages, descriptions)
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
            attention_probs_dropout_prob=0.0,  # a CPU's fused attention allows no dropout
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
        extra_special_tokens=special_tokens(kb.languages, descriptions),
    )
    settings = make_settings(kb.languages, reading, descriptions=descriptions)
    return PrixLM(backbone, wrapped, settings)


def train_tokenizer(
    kb: KB, vocab: int, *, descriptions: bool = False, reading: Reading = "script"
) -> Tokenizer:
    """Train a unigram tokenizer with `vocab` pieces, bytes and special tokens included.

    Training twice on the same names gives slightly different pieces: the trainer is not
    deterministic. descriptions: train on the descriptions of entities, too.
    """
    learned = Tokenizer(models.Unigram())
    learned.normalizer = normalizers.NFKC()
    learned.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab - len(_BYTES),
        special_tokens=_SPECIAL,
        unk_token="<unk>",
        show_progress=False,
    )
    letters = (vocab - len(_BYTES)) // 2
    learned.train_from_iterator(_names(kb, letters, descriptions, reading), trainer)
    # The trainer does not support byte fallback: add the byte pieces with the lowest score.
    entries = [tuple(entry) for entry in json.loads(learned.to_str())["model"]["vocab"]]
    # Ten below the lowest score, so that bytes are used for unknown letters alone.
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


def _names(kb: KB, max_letters: int, descriptions: bool, reading: Reading) -> Iterator[str]:
    """Yield the names to train on, with rare letters replaced by spaces.

    A KB in many scripts has more letters than a small vocabulary has room for. The rarest are left
    out here, and the tokenizer spells them in bytes.
    """
    # Two passes over the names, so that they are never all in memory: count, then yield.
    counts: Counter[str] = Counter()
    for name in _normal_names(kb, descriptions, reading):
        counts.update(name)
    rare = [letter for letter, _ in counts.most_common()[max_letters:]]
    blank = dict.fromkeys(map(ord, rare), " ")
    for name in _normal_names(kb, descriptions, reading):
        yield name.translate(blank) if blank else name


def _normal_names(kb: KB, descriptions: bool, reading: Reading) -> Iterator[str]:
    """Yield normalised names: all, or every n-th of a KB with more than `_MAX_NAMES`."""
    every = max(1, -(-kb.num_entities // _MAX_NAMES))
    for names in name_batches(kb, reading):
        yield from (unicodedata.normalize("NFKC", name) for name in names[::every])
    for texts in description_batches(kb) if descriptions else ():
        # A model reads the beginning of a description.
        yield from (unicodedata.normalize("NFKC", text[:_MAX_TEXT]) for text in texts[::every])
