"""Backbones: our masks against transformers' own, and the config shapes of known models."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModel, BertConfig, BertForMaskedLM, XLMRobertaConfig

from prixlm import KB, PrixError
from prixlm.lm.backbones import BACKBONES
from prixlm.lm.bases import load_base
from prixlm.lm.encoding import MBERT, XLMR, Batch
from prixlm.lm.model import PrixLM
from tests.conftest import FAMILIES, make_family
from tests.lm.helpers import batch_encoder, some_facts


def test_a_model_reads_as_transformers_does_with_its_own_masks(
    model: PrixLM, kind: str, families: dict[str, Path]
) -> None:
    """A causal decoder, or an encoder that reads all of a text, with the windows of its layers."""
    plain = AutoModel.from_pretrained(families[kind]).eval()
    generator = np.random.default_rng(0)
    length = np.array([17, 5, 12, 1])
    ids = generator.integers(10, len(model.tokenizer) - 9, (4, 17))
    padded = (np.arange(17) < length[:, None]).astype(np.int64)
    row, column = np.nonzero(padded)
    with torch.no_grad():
        ours = model.target_states(Batch(ids, length, length, row, column, column))
        theirs = plain(
            input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(padded)
        ).last_hidden_state
        inside = model.hidden(*map(torch.from_numpy, (ids, length, length)))
    if kind == "xlmr":  # it counts positions from the first token that is not padding
        assert model.kind.first_position == 2
    torch.testing.assert_close(ours, theirs[row, column], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(inside[row, column], theirs[row, column], rtol=1e-4, atol=1e-5)


def test_windows_hide_what_is_far(families: dict[str, Path], tmp_path: Path) -> None:
    """With the last layer's window alone, the first token changes nothing beyond it."""
    for kind, window in (("gemma", 4), ("modernbert", 5)):
        model = PrixLM.from_base(families[kind], ["en"], prefix="both").eval()
        assert model.kind.windows == [window]
        layer = next(i for i in range(2) if model.kind.window(i) == window)
        length = torch.tensor([12])
        mask = model.masks(length, length, 12)[window][0, 0]
        distance = (torch.arange(12)[:, None] - torch.arange(12)).abs()
        assert torch.equal(mask, distance < window), layer


def test_a_decoder_reads_the_prefix_as_asked(families: dict[str, Path], shared_toy: KB) -> None:
    for kind in FAMILIES:
        own = PrixLM.from_base(families[kind], shared_toy.languages)
        both = PrixLM.from_base(families[kind], shared_toy.languages, prefix="both")
        is_decoder = kind in ("gemma", "qwen", "llama")
        assert own.settings.mask == ("causal" if is_decoder else "prefix")
        assert both.settings.mask == "prefix"
        batch = batch_encoder(own.encoder, shared_toy).encode(some_facts(shared_toy, 8))
        with torch.no_grad():
            first, second = own.eval().loss(batch), both.eval().loss(batch)
        assert (first == second) == (not is_decoder)


def test_a_prix_lm_as_base_keeps_its_mask(families: dict[str, Path], tmp_path: Path) -> None:
    PrixLM.from_base(families["gemma"], ["en"], prefix="both").save(tmp_path / "both")
    assert PrixLM.from_base(tmp_path / "both", ["en"]).settings.mask == "prefix"
    PrixLM.from_base(families["gemma"], ["en"]).save(tmp_path / "own")
    assert PrixLM.from_base(tmp_path / "own", ["en"]).settings.mask == "causal"
    again = PrixLM.from_base(tmp_path / "own", ["en"], prefix="both")
    assert again.settings.mask == "prefix"


def test_a_gemma_that_was_pretrained_in_both_directions_reads_so(
    merging_tokenizers: dict[str, Tokenizer], tmp_path: Path
) -> None:
    """As EmbeddingGemma: its window counts half of what its config says."""
    base = make_family(
        "gemma", merging_tokenizers, tmp_path, use_bidirectional_attention=True, sliding_window=8
    )
    model = PrixLM.from_base(base, ["en"]).eval()
    assert model.settings.mask == "prefix" and model.kind.windows == [5]
    ids = torch.arange(20, 35)[None]
    length = torch.tensor([15])
    with torch.no_grad():
        theirs = AutoModel.from_pretrained(base).eval()(input_ids=ids).last_hidden_state
        torch.testing.assert_close(model.hidden(ids, length, length), theirs)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("kind", FAMILIES)
def test_tied_and_untied_projections_are_kept(
    kind: str,
    is_tied: bool,
    families: dict[str, Path],
    merging_tokenizers: dict[str, Tokenizer],
    tmp_path: Path,
) -> None:
    base = tmp_path / "base"
    if kind in ("xlmr", "mbert"):
        shutil.copytree(families[kind], base)
        model, _, _ = load_base(base)
        model.config.tie_word_embeddings = is_tied
        if not is_tied:
            decoder = model.get_output_embeddings()
            decoder.weight = torch.nn.Parameter(decoder.weight.detach() + 0.1)
        model.save_pretrained(base)
    else:
        make_family(kind, merging_tokenizers, base, tie_word_embeddings=is_tied)
    model = PrixLM.from_base(base, ["en"]).eval()
    embeddings = model.backbone.get_input_embeddings().weight
    weight = model.decoder()[0]
    assert (weight is embeddings) == is_tied and len(weight) == len(embeddings)
    assert is_tied or not torch.equal(weight, embeddings)
    assert weight[-5:].std() > 0, "the rows of new tokens are drawn"
    model.save(tmp_path / "saved")
    again = PrixLM.load(tmp_path / "saved").eval()
    ids, length = torch.tensor([[7, 9, len(weight) - 1]]), torch.tensor([3])
    with torch.no_grad():
        logits = [m.logits(m.hidden(ids, length, length)) for m in (model, again)]
        theirs = model.backbone(input_ids=ids).logits
    assert torch.equal(*logits)
    torch.testing.assert_close(logits[0], theirs, rtol=1e-4, atol=1e-5)


# --- known models ---------------------------------------------------------------------------------

KNOWN = {
    "cis-lmu/glot500-base": ("xlm-roberta", 401_145, 514, 1),
    "facebook/xlm-v-base": ("xlm-roberta", 901_629, 514, 1),
    "intfloat/multilingual-e5-base": ("xlm-roberta", 250_002, 514, 1),
    "intfloat/multilingual-e5-small": ("bert", 250_037, 512, 0),
    "sentence-transformers/LaBSE": ("bert", 501_153, 512, 0),
}
"""Architecture, vocabulary, positions and padding, as the configs of these models have them."""


@pytest.mark.parametrize("name", KNOWN)
def test_known_models_load_as_what_they_are(
    name: str, bases: dict[str, Path], tokenizers: dict[str, Tokenizer], tmp_path: Path
) -> None:
    """The shapes of their configs, with narrow layers; encoders come without a head."""
    family, _, positions, padding = KNOWN[name]
    # E5's small model is a BERT with the tokenizer of XLM-R.
    uses_xlmr = family == "xlm-roberta" or "e5" in name
    tokens = bases["xlmr" if uses_xlmr else "mbert"]
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    size |= {"intermediate_size": 32, "max_position_embeddings": positions}
    spare = 7  # rows beyond the pieces of the tokenizer, as E5 and LaBSE have them
    vocabulary = tokenizers["xlmr" if uses_xlmr else "mbert"].get_vocab_size() + spare
    shared = {"vocab_size": vocabulary, "pad_token_id": padding, **size}
    if family == "bert":
        plain = BertForMaskedLM(BertConfig(**shared, type_vocab_size=2)).bert
    else:
        plain = AutoModel.from_config(XLMRobertaConfig(**shared, type_vocab_size=1))
    plain.save_pretrained(tmp_path)
    for path in tokens.glob("tokenizer*"):
        shutil.copy(path, tmp_path / path.name)
    model = PrixLM.from_base(tmp_path, ["en", "fi"]).eval()
    assert model.encoder.base == (XLMR if uses_xlmr else MBERT)
    assert model.max_length == 512 and model.settings.mask == "prefix"
    prefix = model.encoder.encode("Finland", "capital", None)
    ids, length = torch.tensor([prefix]), torch.tensor([len(prefix)])
    with torch.no_grad():
        torch.testing.assert_close(
            plain.eval()(input_ids=ids).last_hidden_state,
            model.hidden(ids, length, length),
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "of the kind dynamic"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ],
)
def test_what_a_base_needs_and_we_lack_is_named(
    changes: dict[str, object], reason: str, families: dict[str, Path], tmp_path: Path
) -> None:
    values = json.loads((families["llama"] / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(values | changes))
    with pytest.raises(PrixError, match=rf"needs what prixlm does not have: .*{reason}"):
        load_base(tmp_path)


def test_every_family_has_a_tiny_model_in_the_tests(families: dict[str, Path]) -> None:
    kinds = {json.loads((f / "config.json").read_text())["model_type"] for f in families.values()}
    assert kinds == set(BACKBONES) and list(families) == FAMILIES
