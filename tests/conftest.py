"""Fixtures for every room: a toy KB in several scripts, the world KB, tiny base models.

Hypothesis runs the profile `ci`, a tenth of the examples of `full`; `PRIXLM_TEST_FULL=1` (as
`make test-full` sets it) selects `full`, and a larger number multiplies its examples.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
# Two test processes with two threads each wait for each other most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from prixlm import KB, import_kb
from tests.helpers import FULL, TRIED, budget, left_behind

hypothesis.settings.register_profile("ci", max_examples=50, deadline=None)
hypothesis.settings.register_profile("full", max_examples=max(1, budget(50, 500)), deadline=None)
hypothesis.settings.load_profile("full" if FULL else "ci")

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("PRIXLM_DATA", Path(__file__).parents[2] / "shared" / "data"))

TOY_FACTS = """\
lang\tsubject\trelation\tobject
en\tFinland\tcapital\tHelsinki
en\tHelsinki\tcountry\tFinland
en\tFinland\tcurrency\tEuro
en\tFrance\tcapital\tParis
en\tFrance\tcurrency\tEuro
en\tParis\tcountry\tFrance
fi\tSuomi\tcapital\tHelsinki
fi\tHelsinki\tcountry\tSuomi
fi\tRanska\tcurrency\tEuro
ja\tフィンランド\tcapital\tヘルシンキ
ja\tフランス\tcapital\tパリ
te\tఫిన్లాండ్\tcapital\tహెల్సింకి
ar\tفنلندا\tcapital\tهلسنكي
"""
TOY_LINKS = """\
lang_a\tname_a\tlang_b\tname_b
en\tFinland\tfi\tSuomi
en\tFrance\tfi\tRanska
en\tFrance\tja\tフランス
en\tFinland\tja\tフィンランド
en\tHelsinki\tfi\tHelsinki
fi\tHelsinki\tja\tヘルシンキ
te\tఫిన్లాండ్\tja\tフィンランド
ar\tفنلندا\ten\tFinland
"""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass the counts of a process of xdist on to the one that prints them."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["tried"] = dict(TRIED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the counts of a process of xdist that has ended."""
    TRIED.update(getattr(node, "workeroutput", {}).get("tried", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many generated inputs each file tried, in `make test-full`."""
    if FULL and TRIED:
        terminalreporter.section("inputs tried")
        for name, number in sorted(TRIED.items()):
            terminalreporter.write_line(f"{number:>9,} {name}")


@pytest.fixture(scope="session", autouse=True)
def _no_sync() -> Iterator[None]:
    """Skip flushes to disk, a tenth of an import: they matter after a power cut only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture(scope="session")
def _in_the_root() -> set[str]:
    """What stood in the repository's root before the first test."""
    return {path.name for path in ROOT.iterdir()}


@pytest.fixture(autouse=True)
def _nothing_is_left_in_the_root(_in_the_root: set[str]) -> Iterator[None]:
    """Fail a test that writes into the checkout, such as a command with a relative `--to`.

    With several processes, it may be a test that runs beside this one.
    """
    yield
    new = left_behind(ROOT, _in_the_root)
    _in_the_root.update(new)  # reported once
    assert not new, f"left in the repository's root: {new}; run the command in tmp_path"


@pytest.fixture(scope="session")
def data() -> Path:
    """The benchmark data beside the project."""
    if not DATA.is_dir():
        pytest.skip(f"no benchmark data at {DATA} (PRIXLM_DATA may point to it)")
    return DATA


@pytest.fixture(scope="session")
def dbp5l(data: Path, tmp_path_factory: pytest.TempPathFactory) -> KB:
    """DBP-5L with its published split; it takes two seconds, so tests share it and do not write."""
    return import_kb([data / "dbp5l"], tmp_path_factory.mktemp("dbp5l") / "kb")


@pytest.fixture
def toy_files(tmp_path: Path) -> list[Path]:
    """The toy KB's sources: a table of facts and one of links."""
    files = [tmp_path / "facts.tsv", tmp_path / "links.tsv"]
    files[0].write_text(TOY_FACTS, "utf-8")
    files[1].write_text(TOY_LINKS, "utf-8")
    return files


@pytest.fixture
def toy(toy_files: list[Path], tmp_path: Path) -> KB:
    """A KB of 13 facts in five languages, imported again for each test."""
    return import_kb(toy_files, tmp_path / "toy")


@pytest.fixture(scope="session")
def shared_toy(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """The toy KB, imported once: for tests that do not write to it (token caches are no harm)."""
    folder = tmp_path_factory.mktemp("shared-toy")
    (folder / "facts.tsv").write_text(TOY_FACTS, "utf-8")
    (folder / "links.tsv").write_text(TOY_LINKS, "utf-8")
    return import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "toy")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """The embedded world KB in the paper's 17 languages; shared, so tests must not change it."""
    return import_kb([], tmp_path_factory.mktemp("world") / "kb", format="world")


_TEXTS = [*TOY_FACTS.replace("\t", "\n").split("\n"), "abcdefghijklmnopqrstuvwxyz"]


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    """Small tokenizers of the two kinds of base model, trained on the toy KB's names."""
    xlmr = Tokenizer(models.Unigram())
    xlmr.normalizer = normalizers.NFKC()
    xlmr.pre_tokenizer = pre_tokenizers.Metaspace()
    xlmr.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    xlmr.train_from_iterator(
        _TEXTS,
        trainers.UnigramTrainer(
            vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False
        ),
    )
    mbert = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    mbert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    mbert.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    mbert.train_from_iterator(
        _TEXTS,
        trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False),
    )
    return {"xlmr": xlmr, "mbert": mbert}


@pytest.fixture(scope="session")
def merging_tokenizers() -> dict[str, Tokenizer]:
    """Small tokenizers that merge pairs: of characters as Gemma's, of bytes as Llama's."""
    texts = [*_TEXTS, *(f"of {name} is {name}" for name in _TEXTS)]  # words after a space, too
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trained.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=560,
            special_tokens=[*special, *bytes_],
            initial_alphabet=["▁"],
            show_progress=False,
        ),
    )
    state = json.loads(trained.to_str())
    state["model"] |= {"byte_fallback": True, "fuse_unk": True}
    state["added_tokens"] = state["added_tokens"][: len(special)]  # bytes are ordinary pieces
    gemma = Tokenizer.from_str(json.dumps(state))
    gemma.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    llama = Tokenizer(models.BPE(ignore_merges=True))
    llama.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    llama.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]
    llama.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=480,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return {"gemma": gemma, "llama": llama}


_SIZE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 80,
}


@pytest.fixture(scope="session")
def bases(
    tokenizers: dict[str, Tokenizer], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Tiny random XLM-R and mBERT folders, saved in the hub's own format."""
    import torch
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        XLMRobertaConfig,
        XLMRobertaForMaskedLM,
    )

    found = {}
    for name, tokenizer in tokenizers.items():
        folder = tmp_path_factory.mktemp("bases") / name
        torch.manual_seed(0)
        if name == "xlmr":
            ends = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
            config = XLMRobertaConfig(
                vocab_size=tokenizer.get_vocab_size(), type_vocab_size=1, **ends, **_SIZE
            )
            XLMRobertaForMaskedLM(config).save_pretrained(folder)
            words = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
            words |= {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>"}
        else:
            config = BertConfig(vocab_size=tokenizer.get_vocab_size(), pad_token_id=0, **_SIZE)
            BertForMaskedLM(config).save_pretrained(folder)
            words = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
            words |= {"unk_token": "[UNK]"}
        _save_tokenizer(tokenizer, folder, words)
        found[name] = folder
    return found


FAMILIES = ["xlmr", "mbert", "gemma", "qwen", "llama", "modernbert", "eurobert"]
"""Every family of base models; `families` has a tiny folder of each."""
DECODERS = ["gemma", "qwen", "llama"]


@pytest.fixture(scope="session")
def families(
    bases: dict[str, Path],
    merging_tokenizers: dict[str, Tokenizer],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """Tiny random folders of every family, in the hub's own format.

    Windows are shorter than most facts, so that a test sees them. Layers with a window and layers
    without one take turns.
    """
    return bases | {
        name: make_family(name, merging_tokenizers, tmp_path_factory.mktemp("families") / name)
        for name in FAMILIES
        if name not in bases
    }


def make_family(
    name: str, tokenizers: dict[str, Tokenizer], folder: Path, **changes: object
) -> Path:
    """Save a tiny random model of a newer family. changes: to its config."""
    import torch
    from transformers import (
        EuroBertConfig,
        EuroBertForMaskedLM,
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        LlamaConfig,
        LlamaForCausalLM,
        ModernBertConfig,
        ModernBertForMaskedLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    layers = ["sliding_attention", "full_attention"]
    shared = {"num_key_value_heads": 2, "head_dim": 16}  # wider than width / heads, as Gemma's
    gemma = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    llama = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
    families: dict[str, tuple[Any, Any, str, dict[str, Any]]] = {
        "gemma": (
            Gemma3ForCausalLM,
            Gemma3TextConfig,
            "gemma",
            {**gemma, **shared, "sliding_window": 4, "layer_types": layers}
            | {"query_pre_attn_scalar": 8},
        ),
        "qwen": (
            Qwen3ForCausalLM,
            Qwen3Config,
            "llama",
            {**llama, **shared, "bos_token_id": None, "tie_word_embeddings": True},
        ),
        "llama": (
            LlamaForCausalLM,
            LlamaConfig,
            "llama",
            {**llama, "num_key_value_heads": 1, "tie_word_embeddings": False},
        ),
        "modernbert": (
            ModernBertForMaskedLM,
            ModernBertConfig,
            "gemma",
            {**gemma, "cls_token_id": 2, "sep_token_id": 1, "local_attention": 8}
            | {"layer_types": layers[::-1]},
        ),
        "eurobert": (
            EuroBertForMaskedLM,
            EuroBertConfig,
            "llama",
            {**llama, "pad_token_id": 1, "num_key_value_heads": 2, "mask_token_id": 2},
        ),
    }
    model_class, config_class, kind, values = families[name]
    tokenizer = tokenizers[kind]
    torch.manual_seed(0)
    config = config_class(
        **{"vocab_size": tokenizer.get_vocab_size(), **_SIZE, **values, **changes}
    )
    model = model_class(config)
    with torch.no_grad():  # norms of 0 or 1 would hide a norm that is left out
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn(weight.shape))
    model.save_pretrained(folder)
    words = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    words |= {"unk_token": "<unk>"}
    if kind == "llama":
        words = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    if name == "qwen":
        del words["bos_token"]
    _save_tokenizer(tokenizer, folder, words)
    return folder


def _save_tokenizer(tokenizer: Tokenizer, folder: Path, words: dict[str, str]) -> None:
    from transformers import PreTrainedTokenizerFast

    copy = Tokenizer.from_str(tokenizer.to_str())
    PreTrainedTokenizerFast(tokenizer_object=copy, **words).save_pretrained(folder)
