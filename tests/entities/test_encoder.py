"""Names to vectors: pooling, cutting, saving, and the same vectors from sentence-transformers."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from prixlm import PrixError, PrixLM
from prixlm.entities.encoder import EncoderSettings, EntityEncoder, load_model

NAMES = ["Finland", "Suomi", "フィンランド", "ఫిన్లాండ్", "a", "", "Helsinki " * 12]


@pytest.mark.parametrize("base", ["xlmr", "mbert"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_vectors_equal_the_padded_pass_one_by_one(
    bases: dict[str, Path], base: str, pooling: str
) -> None:
    encoder = EntityEncoder.load(bases[base], EncoderSettings(pooling=pooling))
    vectors = encoder.encode(NAMES)
    for name, vector in zip(NAMES, vectors, strict=True):
        tokens = encoder.tokenise([name]).ids[: encoder.settings.max_tokens - 2].tolist()
        ids = torch.tensor([[*encoder.start, *tokens, encoder.end]])
        length = torch.tensor([ids.shape[1]])
        with torch.no_grad():
            states = encoder.model.hidden(ids, length, length)[0]
        state = states[0] if pooling == "first" else states.mean(0)
        torch.testing.assert_close(
            torch.from_numpy(vector), state / state.norm(), atol=1e-5, rtol=1e-4
        )


def test_a_name_has_the_same_vector_in_whatever_company(encoder: EntityEncoder) -> None:
    alone = np.concatenate([encoder.encode([name]) for name in NAMES])
    np.testing.assert_allclose(encoder.encode(NAMES), alone, atol=1e-6)


def test_long_lists_are_encoded_in_chunks_and_small_passes(
    encoder: EntityEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encoder.encode(NAMES * 3)
    monkeypatch.setattr("prixlm.entities.encoder._CHUNK", 4)
    monkeypatch.setattr("prixlm.entities.encoder._BUDGET", 30)
    steps: list[tuple[str, int, int]] = []
    vectors = encoder.encode(NAMES * 3, lambda *step: steps.append(step))
    np.testing.assert_allclose(vectors, whole, atol=1e-6)
    assert steps[0] == ("encode", 4, 21) and steps[-1] == ("encode", 21, 21)
    assert encoder.encode([]).shape == (0, encoder.width)


@pytest.mark.parametrize(
    ("base", "pooling"),
    [
        *itertools.product(["xlmr", "mbert", "modernbert", "eurobert"], ["first", "mean"]),
        *itertools.product(["gemma", "qwen", "llama"], ["last"]),
    ],
)
def test_sentence_transformers_gives_the_same_vectors(
    families: dict[str, Path], base: str, pooling: str, tmp_path: Path
) -> None:
    """A decoder is read causally there, so that only its last state has seen the name."""
    from sentence_transformers import SentenceTransformer

    settings = EncoderSettings(pooling=pooling, max_tokens=10)
    encoder = EntityEncoder.load(families[base], settings, spaced=False)
    assert encoder.is_read_by_others_alike
    encoder.save(tmp_path / "encoder")
    theirs = SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    np.testing.assert_allclose(theirs.encode(NAMES), encoder.encode(NAMES), atol=1e-5)


def test_a_decoder_that_is_read_in_both_directions_is_not_offered_to_others(
    families: dict[str, Path], tmp_path: Path
) -> None:
    encoder = EntityEncoder.load(families["gemma"], EncoderSettings(pooling="mean"))
    assert not encoder.is_read_by_others_alike
    encoder.save(tmp_path / "encoder")
    assert not (tmp_path / "encoder" / "modules.json").exists()
    again = EntityEncoder.load(tmp_path / "encoder")
    np.testing.assert_array_equal(again.encode(NAMES), encoder.encode(NAMES))
    # Without <bos>, a name begins with its first token.
    qwen = EntityEncoder.load(families["qwen"], EncoderSettings(pooling="last"))
    assert qwen.start == [] and np.isfinite(qwen.encode(["", *NAMES])).all()


def test_the_family_decides_which_state_stands_for_a_name(
    families: dict[str, Path], tmp_path: Path
) -> None:
    """The first state of a decoder was pretrained to see `<bos>` alone."""
    for kind, folder in families.items():
        encoder = EntityEncoder.load(folder)
        is_decoder = kind in ("gemma", "qwen", "llama")
        assert encoder.settings.pooling == ("last" if is_decoder else "first")
        assert encoder.is_read_by_others_alike != is_decoder, "others add no space"
    encoder = EntityEncoder.load(families["gemma"], EncoderSettings(pooling="first"))
    encoder.save(tmp_path / "encoder")
    assert EntityEncoder.load(tmp_path / "encoder").settings.pooling == "first"


@pytest.mark.parametrize("kind", ["gemma", "qwen", "llama", "xlmr"])
def test_a_base_reads_names_as_what_is_pretrained_on_it(
    kind: str, families: dict[str, Path], tmp_path: Path
) -> None:
    """So that a base and a Prix-LM can be compared: both after a space, if they are decoders."""
    pretrained = PrixLM.from_base(families[kind], ["en"], spaced=True)  # as `pretrain` begins
    pretrained.save(tmp_path / "model")
    after = EntityEncoder.load(tmp_path / "model")
    before = EntityEncoder.load(families[kind])
    np.testing.assert_allclose(before.encode(NAMES), after.encode(NAMES), atol=1e-6)
    plain = EntityEncoder.load(families[kind], spaced=False)
    is_decoder = kind != "xlmr"
    assert (np.abs(plain.encode(NAMES) - before.encode(NAMES)).max() > 1e-3) == is_decoder
    # A folder says itself how its names are read.
    plain.save(tmp_path / "plain")
    again = EntityEncoder.load(tmp_path / "plain")
    np.testing.assert_array_equal(again.encode(NAMES), plain.encode(NAMES))


def test_a_saved_encoder_is_the_same_and_still_a_prix_lm(
    encoder: EntityEncoder, tmp_path: Path
) -> None:
    before = encoder.fingerprint()
    encoder.save(tmp_path / "encoder")
    again = EntityEncoder.load(tmp_path / "encoder")
    assert again.fingerprint() == before == encoder.fingerprint()
    np.testing.assert_array_equal(again.encode(NAMES), encoder.encode(NAMES))
    assert isinstance(PrixLM.load(tmp_path / "encoder"), PrixLM)


def test_the_fingerprint_tells_weights_and_settings_apart(encoder: EntityEncoder) -> None:
    before = encoder.fingerprint()
    mean = EntityEncoder(encoder.model, EncoderSettings(pooling="mean"))
    assert mean.fingerprint() != before
    with torch.no_grad():
        encoder.model.backbone.get_input_embeddings().weight[7] += 1.0
    assert encoder.fingerprint() != before


def test_a_name_that_spells_a_special_token_is_text(encoder: EntityEncoder) -> None:
    ends, plain = encoder.encode(["a </s> b", "a b"])
    assert not np.allclose(ends, plain)
    assert encoder.end not in encoder.tokenise(["a </s> b"]).ids


def test_settings_that_make_no_sense_are_refused(tmp_path: Path, encoder: EntityEncoder) -> None:
    with pytest.raises(PrixError, match="pooling middle: expected first, mean, last"):
        EncoderSettings(pooling="middle")
    with pytest.raises(PrixError, match="max_tokens 2: expected 3 or more"):
        EncoderSettings(max_tokens=2)
    encoder.save(tmp_path / "e")
    (tmp_path / "e" / "encoder.json").write_text("{")
    with pytest.raises(PrixError, match="cannot be read"):
        EntityEncoder.load(tmp_path / "e")


def test_names_are_cut_to_the_positions_of_the_model(bases: dict[str, Path]) -> None:
    encoder = EntityEncoder.load(bases["xlmr"], EncoderSettings(max_tokens=10_000))
    assert encoder.settings.max_tokens == encoder.model.max_length
    assert np.isfinite(encoder.encode(["Helsinki " * 500])).all()


def test_a_causal_model_reads_names_in_both_directions(encoder: EntityEncoder) -> None:
    both = encoder.encode(NAMES)
    encoder.model.settings = dataclasses.replace(encoder.model.settings, mask="causal")
    np.testing.assert_array_equal(encoder.encode(NAMES), both)
    assert encoder.model.settings.mask == "causal", "the model is as it was"


def test_a_base_or_a_prix_lm_is_loaded_and_half_a_run_is_refused(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    base = load_model(bases["mbert"])
    assert base.settings.languages == () and not base.training
    base.save(tmp_path / "model")
    assert load_model(tmp_path / "model").settings == base.settings
    (tmp_path / "half" / "checkpoints").mkdir(parents=True)
    with pytest.raises(PrixError, match="half"):
        load_model(tmp_path / "half")
