"""What the tests of probing share: a model whose vocabulary has whole words."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaForMaskedLM


@pytest.fixture
def wordy(tmp_path: Path) -> Path:
    """A tiny XLM-R with some words among its pieces."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = ["▁", *"abcdefghijklmnopqrstuvwxyz.RIP", "▁Rome", "▁Paris", "▁is", "▁it", "▁the"]
    vocab = [(p, 0.0) for p in special] + [(p, -9.0 if len(p) == 1 else -2.0) for p in pieces]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(special)
    config = XLMRobertaConfig(
        vocab_size=len(vocab), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=60, type_vocab_size=1,
        pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    XLMRobertaForMaskedLM(config).save_pretrained(tmp_path / "wordy")
    words = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **words)
    whole.save_pretrained(tmp_path / "wordy")
    return tmp_path / "wordy"
