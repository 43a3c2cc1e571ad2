"""Base models: which ones are accepted, and what is read from their config."""

import io
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, XLMRobertaForMaskedLM
from transformers.utils import logging as transformers_logging

from prixlm import KB, PrixError
from prixlm.lm.backbones import open_backbone
from prixlm.lm.bases import base_fingerprint, load_base, no_progress_bars
from prixlm.lm.model import PrixLM
from tests.conftest import FAMILIES
from tests.helpers import run_python

WEIGHTS = "model.safetensors"
EMBEDDINGS = "roberta.embeddings.word_embeddings.weight"


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
    with pytest.raises(PrixError, match=r"is a gpt2 model\. Expected .*: xlm-roberta, .* or euro"):
        load_base(tmp_path)
    for kind, hint in (("gemma3", "save its `language_model` alone"), ("mt5", "cross-attention")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(PrixError, match=hint):
            load_base(tmp_path)


def test_the_head_is_that_of_transformers(model: PrixLM) -> None:
    """The two parts of the head, transform and decoder, make transformers' logits."""
    backbone = model.backbone
    ids = torch.arange(10, 20)[None]
    with torch.no_grad():
        theirs = backbone(input_ids=ids).logits
        states = backbone.base_model(input_ids=ids).last_hidden_state
        torch.testing.assert_close(model.logits(states), theirs)
    is_tied = model.decoder()[0] is backbone.get_input_embeddings().weight
    assert is_tied == backbone.config.tie_word_embeddings


def test_positions_start_where_the_base_was_pretrained_with_them(model: PrixLM) -> None:
    config = model.backbone.config
    first = model.kind.first_position
    assert first == (2 if config.model_type == "xlm-roberta" else 0)
    assert model.max_length == config.max_position_embeddings - first


def test_progress_bars_are_restored() -> None:
    before = transformers_logging.is_progress_bar_enabled()
    with no_progress_bars():
        assert not transformers_logging.is_progress_bar_enabled()
    assert transformers_logging.is_progress_bar_enabled() == before


def copy_base(base: Path, to: Path, **config: object) -> Path:
    """Copy a base and change its config."""
    shutil.copytree(base, to)
    values = json.loads((to / "config.json").read_text("utf-8"))
    (to / "config.json").write_text(json.dumps(values | config), "utf-8")
    return to


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_base_without_a_head_gets_the_one_of_the_seed(
    kind: str, families: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A tied projection alone is no head: the embeddings have it."""
    base = copy_base(families[kind], tmp_path / "base")
    AutoModel.from_pretrained(base).save_pretrained(base)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    heads = []
    for seed in (3, 3, 4):
        model, _, _ = load_base(base, seed=seed)
        backbone = open_backbone(model)
        states = backbone.transform(torch.arange(32.0)[None])
        heads.append(torch.nn.functional.linear(states, *backbone.decoder()))
    is_drawn = kind not in ("gemma", "qwen")
    assert torch.equal(heads[0], heads[1]) and torch.equal(heads[0], heads[2]) != is_drawn
    assert torch.equal(torch.rand(3), expected), "the caller's random state is left alone"
    assert ("has no prediction head" in caplog.text and "seed 3" in caplog.text) == is_drawn


def test_a_base_that_lacks_other_weights_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    base = copy_base(bases["xlmr"], tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    name = "roberta.encoder.layer.1.output.dense.weight"
    save_file({key: value for key, value in weights.items() if key != name}, base / WEIGHTS)
    with pytest.raises(PrixError, match=f"base lacks 1 of its weights, such as {name}"):
        load_base(base)
    save_file(weights | {name: torch.zeros(3, 3)}, base / WEIGHTS)
    with pytest.raises(PrixError, match=f"{name} .* does not fit config.json"):
        load_base(base)
    (base / WEIGHTS).write_bytes(b"half of a file")
    with pytest.raises(PrixError, match=r"model\.safetensors cannot be read"):
        load_base(base)


def test_a_base_in_several_files_is_read_whole(bases: dict[str, Path], tmp_path: Path) -> None:
    base = copy_base(bases["xlmr"], tmp_path / "base")
    whole = XLMRobertaForMaskedLM.from_pretrained(base)
    (base / WEIGHTS).unlink()
    whole.save_pretrained(base, max_shard_size="20KB")
    assert not (base / WEIGHTS).exists() and len(list(base.glob("*.safetensors"))) > 2
    model, _, _ = load_base(base)
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_base_without_tokenizer_json_is_one_line_with_the_remedy(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    """The files of XLM-R and mBERT from before 2020 have a vocabulary and no tokenizer.json."""
    base = copy_base(bases["mbert"], tmp_path / "base")
    vocabulary = AutoTokenizer.from_pretrained(base).get_vocab()
    (base / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    (base / "tokenizer.json").unlink()
    (base / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with pytest.raises(PrixError, match=r"has no tokenizer\.json") as refused:
        load_base(base)
    assert "\n" not in str(refused.value)
    run_remedy(str(refused.value))
    _, tokenizer, _ = load_base(base)
    assert tokenizer.get_vocab() == vocabulary
    (base / "tokenizer.json").write_text("{}")
    with pytest.raises(PrixError, match=r"the tokenizer of .* cannot be read"):
        load_base(base)


def test_the_remedy_for_a_missing_tokenizer_json_works_for_a_decoder(
    families: dict[str, Path], tmp_path: Path
) -> None:
    """Qwen's first files have its pieces and its merges apart."""
    base = copy_base(families["qwen"], tmp_path / "base")
    state = json.loads((base / "tokenizer.json").read_text("utf-8"))["model"]
    vocabulary = AutoTokenizer.from_pretrained(base).get_vocab()
    (base / "vocab.json").write_text(json.dumps(state["vocab"]), "utf-8")
    merges = [" ".join(pair) for pair in state["merges"]]
    (base / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), "utf-8")
    (base / "tokenizer.json").unlink()
    words = {"eos_token": "<|end_of_text|>", "tokenizer_class": "Qwen2Tokenizer"}
    words |= {"pad_token": "<|end_of_text|>", "unk_token": "<|end_of_text|>", "bos_token": None}
    (base / "tokenizer_config.json").write_text(json.dumps(words))
    with pytest.raises(PrixError, match=r"has no tokenizer\.json") as refused:
        load_base(base)
    run_remedy(str(refused.value))
    _, tokenizer, _ = load_base(base)
    assert vocabulary.items() <= tokenizer.get_vocab().items()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("xlmr", "sentencepiece.bpe.model"),
        ("gemma", "tokenizer.model"),
        ("llama", "tokenizer.model"),
    ],
)
def test_a_sentencepiece_model_alone_needs_a_package_to_be_converted(
    kind: str, name: str, families: dict[str, Path], tmp_path: Path
) -> None:
    base = copy_base(families[kind], tmp_path / "base")
    (base / "tokenizer.json").unlink()
    with pytest.raises(PrixError) as refused:
        load_base(base)
    assert "pip install" not in str(refused.value), "nothing to convert"
    (base / name).write_bytes(b"pieces")
    with pytest.raises(
        PrixError, match=r"no tokenizer\.json.* `pip install sentencepiece protobuf`"
    ):
        load_base(base)


def test_pickled_weights_are_refused_with_the_remedy(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    base = copy_base(bases["xlmr"], tmp_path / "base")
    weights = load_file(base / WEIGHTS)
    torch.save(weights, base / "pytorch_model.bin")
    (base / WEIGHTS).unlink()
    with pytest.raises(PrixError, match=r"has no model\.safetensors") as refused:
        load_base(base)
    assert "\n" not in str(refused.value)
    run_remedy(str(refused.value))
    model, _, _ = load_base(base)
    assert torch.equal(model.roberta.embeddings.word_embeddings.weight, weights[EMBEDDINGS])


def run_remedy(message: str) -> None:
    """Run the Python that an error names."""
    [command] = re.findall(r"`(python -c [^`]+)`", message)
    *words, code = shlex.split(command)
    assert words == ["python", "-c"], message
    ran = run_python(code)
    assert ran.returncode == 0, ran.stderr


def leave_a_mark(base: Path, to: Path, model_type: str) -> Path:
    """Copy a base as one that brings Python code for its config, model and tokenizer."""
    code = f"open({str(to / 'mark')!r}, 'w').close()\n"
    auto_map = {name: f"code.{name}" for name in ("AutoConfig", "AutoModelForMaskedLM")}
    copy_base(base, to, model_type=model_type, auto_map=auto_map)
    (to / "code.py").write_text(code + "class AutoConfig:\n    pass\n")
    path = to / "tokenizer_config.json"
    settings = json.loads(path.read_text("utf-8"))
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["code.Own", "code.Own"]}}
    path.write_text(json.dumps(settings), "utf-8")
    return to


def test_code_in_a_folder_is_never_run(
    bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    unknown = leave_a_mark(bases["xlmr"], tmp_path / "unknown", "own-model")
    with pytest.raises(PrixError, match="is a own-model model with code of its own, which prixlm"):
        load_base(unknown)
    known = leave_a_mark(bases["xlmr"], tmp_path / "known", "xlm-roberta")
    PrixLM.from_base(known, ("en",)).save(tmp_path / "saved")
    assert not list(tmp_path.rglob("mark"))
    for name in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in (tmp_path / "saved" / name).read_text("utf-8")


def test_a_base_is_known_by_its_content(bases: dict[str, Path], tmp_path: Path) -> None:
    copy = copy_base(bases["xlmr"], tmp_path / "copy")
    shutil.copyfile(bases["xlmr"] / "config.json", copy / "config.json")
    (copy / "README.md").write_text("another card")
    assert base_fingerprint(str(copy)) == base_fingerprint(bases["xlmr"])
    assert base_fingerprint(bases["mbert"]) != base_fingerprint(bases["xlmr"])
    weights = load_file(copy / WEIGHTS)
    weights[EMBEDDINGS][5, 5] += 1
    save_file(weights, copy / WEIGHTS)
    assert base_fingerprint(copy) != base_fingerprint(bases["xlmr"])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_processes_share_the_weights_of_a_folder(
    model: PrixLM, shared_toy: KB, tmp_path: Path
) -> None:
    """Weights are mapped from their file: many workers, and their driver, hold them once."""
    model.save(tmp_path / "model")
    loaded = PrixLM.load(tmp_path / "model")
    ranges = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(tmp_path / "model" / WEIGHTS))
    ]
    matrices = {name: p for name, p in loaded.named_parameters() if p.dim() > 1}
    assert matrices  # the bias of a head may be a copy, which transformers ties anew
    for name, parameter in matrices.items():
        assert any(start <= parameter.data_ptr() < end for start, end in ranges), name
