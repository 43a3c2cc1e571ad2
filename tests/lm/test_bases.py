"""Base models: which ones are accepted, and what is read from their config."""

import json
from pathlib import Path

import pytest
import torch
from transformers import XLMRobertaForMaskedLM
from transformers.utils import logging as transformers_logging

from prixlm import KB, PrixError
from prixlm.lm.bases import BACKBONES, load_base, no_progress_bars
from prixlm.lm.model import PrixLM


def test_a_causal_decoder_keeps_its_mask(
    bases: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    """The authors' checkpoint states in its config that its prefix is causal."""
    XLMRobertaForMaskedLM.from_pretrained(bases["xlmr"]).save_pretrained(tmp_path)
    for path in bases["xlmr"].glob("tokenizer*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"is_decoder": True}))
    model = PrixLM.from_base(tmp_path, shared_toy.languages)
    assert model.settings.mask == "causal"
    assert PrixLM.from_base(bases["xlmr"], shared_toy.languages).settings.mask == "prefix"


def test_a_base_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrixError, match=r"no model at .*nowhere.*Expected xlm-roberta-base"):
        load_base(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(PrixError, match=r"is a gpt2 model\. Expected .*: xlm-roberta or bert"):
        load_base(tmp_path)


def test_the_head_is_that_of_transformers(model: PrixLM) -> None:
    """The two parts of the head, transform and decoder, make transformers' logits."""
    backbone = model.backbone
    ids = torch.arange(10, 20)[None]
    with torch.no_grad():
        theirs = backbone(input_ids=ids).logits
        states = backbone.base_model(input_ids=ids).last_hidden_state
        torch.testing.assert_close(model.logits(states), theirs)
    assert model.decoder()[0] is backbone.get_input_embeddings().weight


def test_positions_start_where_the_base_was_pretrained_with_them(model: PrixLM) -> None:
    config = model.backbone.config
    first = BACKBONES[config.model_type].first_position(config)
    assert first == (2 if config.model_type == "xlm-roberta" else 0)
    assert model.max_length == config.max_position_embeddings - first


def test_progress_bars_are_restored() -> None:
    before = transformers_logging.is_progress_bar_enabled()
    with no_progress_bars():
        assert not transformers_logging.is_progress_bar_enabled()
    assert transformers_logging.is_progress_bar_enabled() == before
