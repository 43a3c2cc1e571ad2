"""An encoder of random weights for all tests of this room, and a base that reads letters."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaForMaskedLM

from prixlm.entities.encoder import EntityEncoder


@pytest.fixture
def encoder(bases: dict[str, Path]) -> EntityEncoder:
    """A tiny random XLM-R as an encoder; loaded for each test, which may change it."""
    return EntityEncoder.load(bases["xlmr"])


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random XLM-R whose pieces are letters.

    The tokenizers of `bases` are trained, and have other pieces each time: some tests of training
    need the same ones.
    """
    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    pieces = [*special.values(), *"▁abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=40,
        type_vocab_size=1,
    )
    folder = tmp_path_factory.mktemp("letters")
    XLMRobertaForMaskedLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return folder
