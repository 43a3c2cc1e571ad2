"""What the benchmarks share: the machine's own rate, memory, and a model of XLM-R-base's shape."""

import ctypes
import gc
import time
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaForMaskedLM

DATA = Path(__file__).parents[2] / "shared" / "data"


class Machine:
    """The rate of a large product, measured between the work: a noisy machine slows both."""

    def __init__(self, size: int = 2048) -> None:
        self.factor = torch.randn(size, size)
        self.operations, self.seconds = 0.0, 0.0

    def measure(self) -> None:
        started = time.perf_counter()
        self.factor @ self.factor
        self.seconds += time.perf_counter() - started
        self.operations += 2.0 * float(len(self.factor)) ** 3

    @property
    def rate(self) -> float:
        return self.operations / self.seconds


def peak_gib() -> float:
    """The most memory that this process has held; what its parent had does not count."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 2**20


def reset_peak() -> None:
    """Forget the peak so far, so that `peak_gib` is that of what follows, in this process."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier work freed would count, too
    Path("/proc/self/clear_refs").write_text("5")


def save_base(folder: Path) -> None:
    """XLM-R-base with random weights and its real tokenizer, in the hub's format."""
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=250_002,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    XLMRobertaForMaskedLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    words = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    words |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    file = str(DATA / "xlmr" / "tokenizer.json")
    PreTrainedTokenizerFast(tokenizer_file=file, **words).save_pretrained(folder)  # type: ignore
