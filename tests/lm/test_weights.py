"""Weights, config and tokenizer of one model, or one line that says what does not fit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from prixlm import PrixError
from prixlm.lm.bases import load_base
from prixlm.lm.weights import check_vocabulary, read_weights

WEIGHTS = "model.safetensors"
EMBEDDINGS = "roberta.embeddings.word_embeddings.weight"


@pytest.fixture
def base(bases: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the tiny XLM-R."""
    return Path(shutil.copytree(bases["xlmr"], tmp_path / "base"))


def change_config(base: Path, **values: Any) -> None:
    path = base / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


def refusal(base: Path) -> str:
    """Return why a base is refused, in one line."""
    with pytest.raises(PrixError) as refused:
        load_base(base)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_numbers_are_refused(base: Path, value: float) -> None:
    weights = {name: tensor.clone() for name, tensor in load_file(base / WEIGHTS).items()}
    weights[EMBEDDINGS][3, 3] = value
    save_file(weights, base / WEIGHTS)
    assert f"{EMBEDDINGS} has values that are not finite numbers" in refusal(base)


def test_large_weights_are_numbers(tmp_path: Path) -> None:
    save_file({"a": torch.full((4, 4), 3e38), "n": torch.tensor([1, 2])}, tmp_path / WEIGHTS)
    assert set(read_weights(tmp_path / WEIGHTS)) == {"a", "n"}


@pytest.mark.parametrize(
    "values",
    [
        torch.full((4, 4), float("nan"), dtype=torch.complex64),
        torch.zeros((4, 4), dtype=torch.complex64),
        torch.zeros((4, 4), dtype=torch.float8_e4m3fn),
        torch.zeros((4, 4), dtype=torch.int8),
    ],
    ids=lambda values: str(values.dtype),
)
def test_weights_of_kinds_that_are_not_read_are_refused(tmp_path: Path, values: Any) -> None:
    save_file({"a": values}, tmp_path / WEIGHTS)
    with pytest.raises(PrixError, match=r"a is \w+, expected float32, float16"):
        read_weights(tmp_path / WEIGHTS)


def test_numbers_that_float32_does_not_hold_are_refused(tmp_path: Path) -> None:
    """Weights are used as float32, where 1e300 is infinite."""
    save_file({"a": torch.full((2,), 1e300, dtype=torch.float64)}, tmp_path / WEIGHTS)
    with pytest.raises(PrixError, match="a has values that are not finite numbers"):
        read_weights(tmp_path / WEIGHTS)
    save_file({"a": torch.full((2,), 1e30, dtype=torch.float64)}, tmp_path / WEIGHTS)
    assert set(read_weights(tmp_path / WEIGHTS)) == {"a"}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_weights_that_are_cut_are_refused(base: Path, share: float) -> None:
    data = (base / WEIGHTS).read_bytes()
    (base / WEIGHTS).write_bytes(data[: int(share * len(data))])
    assert "cannot be read" in refusal(base)


LIES: list[dict[str, Any]] = [
    {"hidden_size": 64},
    {"hidden_size": 10**9},
    {"hidden_size": "wide"},
    {"hidden_size": -32},
    {"vocab_size": 10**9},
    {"vocab_size": 3},
    {"intermediate_size": 10**9},
    {"num_hidden_layers": 10**9},
    {"num_hidden_layers": 0},
    {"num_hidden_layers": -1},
    {"num_attention_heads": 0},
    {"num_attention_heads": 5},
    {"max_position_embeddings": 10**9},
    {"max_position_embeddings": 4},
    {"pad_token_id": 10**9},
    {"pad_token_id": None},
    {"pad_token_id": 78},
    {"type_vocab_size": 10**9},
    {"hidden_act": "no such function"},
    {"layer_norm_eps": "x"},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_config_that_lies_is_refused_before_anything_is_allocated(
    lie: dict[str, Any], base: Path
) -> None:
    change_config(base, **lie)
    assert "config.json" in refusal(base)


def test_a_config_may_not_ask_for_more_than_the_weights_have(base: Path) -> None:
    """Weights that lack a tensor would be drawn at random, in whatever size the config states."""
    weights = {name: tensor.clone() for name, tensor in load_file(base / WEIGHTS).items()}
    kept = {name: t for name, t in weights.items() if "intermediate" not in name}
    kept = {name: t for name, t in kept.items() if "output.dense" not in name}
    save_file(kept, base / WEIGHTS)
    change_config(base, intermediate_size=10**9)
    assert "describes a model of" in refusal(base)


@pytest.mark.parametrize("text", ["[" * 200_000, "[]", "null", "{", '{"model_type": 7}', "\x00"])
def test_a_config_that_is_none_is_refused(base: Path, text: str) -> None:
    (base / "config.json").write_text(text, "utf-8")
    refusal(base)


def test_a_tokenizer_of_another_size_is_refused(base: Path, bases: dict[str, Path]) -> None:
    path = base / "tokenizer.json"
    values = json.loads(path.read_text("utf-8"))
    values["model"]["vocab"] += [[f"piece{n}", -9.0] for n in range(500)]
    path.write_text(json.dumps(values), "utf-8")
    text = refusal(base)
    assert (
        "the tokenizer of" in text and "embeddings. Expected the tokenizer and the weights" in text
    )
    _, tokenizer, _ = load_base(bases["xlmr"])
    check_vocabulary(tokenizer, len(tokenizer), "here")
    with pytest.raises(PrixError, match="ids up to"):
        check_vocabulary(tokenizer, len(tokenizer) - 1, "here")
