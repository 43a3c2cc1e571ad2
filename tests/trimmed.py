"""A tiny XLM-R whose vocabulary was trimmed, for tests of several rooms."""

from collections.abc import Sequence
from pathlib import Path
from string import ascii_letters

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaForMaskedLM

from prixlm.lm.model import PrixLM


def save_trimmed(
    folder: Path, kept: Sequence[str], dropped: Sequence[str], languages: Sequence[str] = ()
) -> Path:
    """Save a model whose base has all these words as pieces, and which lost the dropped ones."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = [f"▁{word}" for word in (*kept, *dropped)]
    vocab = [(piece, 0.0) for piece in special]
    vocab += [(letter, -9.0) for letter in ("▁", *ascii_letters)]
    vocab += [(word, -2.0) for word in words]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(special)
    config = XLMRobertaConfig(
        vocab_size=len(vocab), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=60, type_vocab_size=1,
        pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    XLMRobertaForMaskedLM(config).save_pretrained(folder / "base")
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder / "base")
    ids = np.arange(len(vocab) - len(dropped))  # the dropped words come last
    PrixLM.from_base(folder / "base", languages, keep=lambda _: ids).save(folder / "model")
    return folder / "model"
