"""Base models: the architectures of transformers that a Prix-LM can be built on.

A new architecture is one `Backbone` in `BACKBONES`, and its special tokens in `lm/encoding.py`.

A base is data: its config, its weights in safetensors and its `tokenizer.json`. Nothing else of a
folder is read, so that loading one cannot run code: neither the Python that a config's `auto_map`
names, nor a pickle.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM, PreTrainedTokenizerFast, XLMRobertaForMaskedLM
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from prixlm.errors import PrixError
from prixlm.files import read_json
from prixlm.lm.encoding import MBERT, XLMR, BaseTokens
from prixlm.lm.trim import trim_tokenizer
from prixlm.lm.weights import check_config, check_vocabulary, read_weights
from prixlm.types import Array

logger = logging.getLogger(__name__)
_CONFIG, _TOKENIZER = "config.json", "tokenizer.json"
_WEIGHTS, _WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Backbone:
    """How a Prix-LM reads one architecture."""

    model_class: Any  # transformers' class with the whole prediction head
    tokens: BaseTokens
    head: str  # how the names of the head's weights begin
    first_position: Callable[[Any], int]  # config to the position id of the first token
    transform: Callable[[Any, Tensor], Tensor]  # the head before its projection: dense, GELU, norm
    decoder: Callable[[Any], nn.Linear]  # the projection onto the vocabulary


def _transform_xlmr(model: Any, states: Tensor) -> Tensor:
    head = model.lm_head
    return cast(Tensor, head.layer_norm(nn.functional.gelu(head.dense(states))))


BACKBONES = {
    "xlm-roberta": Backbone(
        model_class=XLMRobertaForMaskedLM,
        tokens=XLMR,
        head="lm_head.",
        first_position=lambda config: int(config.pad_token_id) + 1,  # as it was pretrained
        transform=_transform_xlmr,
        decoder=lambda model: model.lm_head.decoder,
    ),
    "bert": Backbone(
        model_class=BertForMaskedLM,
        tokens=MBERT,
        head="cls.",
        first_position=lambda config: 0,
        transform=lambda model, states: model.cls.predictions.transform(states),
        decoder=lambda model: model.cls.predictions.decoder,
    ),
}
"""By transformers' `model_type`."""


def load_base(base: str | Path, *, seed: int = 0) -> tuple[Any, PreTrainedTokenizerFast, bool]:
    """Load a base from the hub or a folder.

    Returns the model with its prediction head, its tokenizer, and whether it is a causal decoder.
    seed: of the head, if the base has none.
    """
    config = _read_config(base)
    # As a decoder, transformers would apply its own causal mask on top of ours.
    causal, config.is_decoder = bool(config.is_decoder), False
    tokenizer = _read_tokenizer(base)
    model = _read_model(base, config, seed)
    check_vocabulary(tokenizer, model.get_input_embeddings().num_embeddings, base)
    return model, tokenizer, causal


def base_fingerprint(base: str | Path) -> str:
    """Return a hash of the config, weights and tokenizer of a base, wherever it is stored."""
    digest = hashlib.sha256()
    for path in (_find(base, _CONFIG), *_find_weights(base), _find(base, _TOKENIZER)):
        if path is not None:
            status = path.stat()
            digest.update(_file_hash(path, status.st_size, status.st_mtime_ns))
    return digest.hexdigest()


def _read_config(base: str | Path) -> Any:
    """Return the config of a base; refuse an architecture that is not in `BACKBONES`."""
    try:
        values = dict(read_json(Path(cast(str, cached_file(base, _CONFIG)))))
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).split("\n")[0]
        raise PrixError(
            f"no model at {base}: {reason}. Expected xlm-roberta-base, "
            "bert-base-multilingual-cased, or a folder in their format."
        ) from None
    # A model that is saved from this one must not name the code either.
    has_code = values.pop("auto_map", None) is not None
    kind = values.get("model_type")
    if kind not in BACKBONES:
        code = " with code of its own, which prixlm never runs" if has_code else ""
        raise PrixError(
            f"{base} is a {kind} model{code}. Expected an architecture that Prix-LM is built on: "
            f"{' or '.join(BACKBONES)}."
        )
    try:
        return BACKBONES[kind].model_class.config_class.from_dict(values)
    except Exception as error:  # transformers checks the kinds of values with its own exceptions
        reason = str(error).split("\n")[0]
        raise PrixError(
            f"{_CONFIG} of {base} cannot be read: {reason}. Download it again."
        ) from None


def _read_tokenizer(base: str | Path) -> PreTrainedTokenizerFast:
    if _find(base, _TOKENIZER) is None:
        remedy = f"from transformers import AutoTokenizer as A; {_converting(base)}"
        raise PrixError(f'{base} has no {_TOKENIZER}. Make one: `python -c "{remedy}"`.')
    try:
        with _quiet():  # it would print names of the folder as they are
            tokenizer = PreTrainedTokenizerFast.from_pretrained(base, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises plain exceptions
        reason = str(error).split("\n")[0]
        raise PrixError(
            f"the tokenizer of {base} cannot be read: {reason}. Download the model again."
        ) from None
    tokenizer.init_kwargs.pop("auto_map", None)  # as in the config
    return cast(PreTrainedTokenizerFast, tokenizer)


def _read_model(base: str | Path, config: Any, seed: int) -> Any:
    """Return the model of a base; a prediction head that it lacks is drawn with the seed."""
    weights = _read_weights(base)
    backbone = BACKBONES[config.model_type]
    check_config(config, backbone, weights, base)
    with _quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Without a path: from a folder, transformers would also read adapters and pickles.
        model, loading = backbone.model_class.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            dtype=torch.float32,
            attn_implementation="sdpa",  # a config could name one to download
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # refused below, in one line
            output_loading_info=True,
        )
    mismatched = sorted(str(entry[0]) for entry in loading["mismatched_keys"])
    if mismatched:
        raise PrixError(
            f"{mismatched[0]} of {base} does not fit {_CONFIG}. Expected the weights and the "
            "config of one model: download it again."
        )
    missing = sorted(loading["missing_keys"])
    lacking = [name for name in missing if not name.startswith(backbone.head)]
    if lacking:
        raise PrixError(
            f"{base} lacks {len(lacking)} of its weights, such as {lacking[0]}. "
            "Download the model again."
        )
    if missing:
        logger.warning(
            "%s has no prediction head: a random one is added (seed %d), which pretraining trains.",
            base,
            seed,
        )
    return model


def _read_weights(base: str | Path) -> dict[str, Tensor]:
    """Return the weights of a base, mapped into memory."""
    weights: dict[str, Tensor] = {}
    paths = _find_weights(base)
    if not paths:
        remedy = f"from transformers import AutoModelForMaskedLM as A; {_converting(base)}"
        raise PrixError(
            f"{base} has no {_WEIGHTS}, the only format of weights that prixlm reads. Convert "
            f'others: `python -c "{remedy}"`.'
        )
    for path in paths:
        weights |= read_weights(path)
    return weights


def _find_weights(base: str | Path) -> list[Path]:
    """Return the files of a base's weights: one, or those that an index lists; none if pickled."""
    whole = _find(base, _WEIGHTS)
    if whole is not None:
        return [whole]
    index = _find(base, _WEIGHTS_INDEX)
    if index is None:
        return []
    try:
        names = sorted(set(map(str, read_json(index)["weight_map"].values())))
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise PrixError(f"{index} cannot be read: {error}. Download the model again.") from None
    found = {name: _find(base, name) if Path(name).name == name else None for name in names}
    for name, path in found.items():
        if path is None:
            raise PrixError(f"{base} has no {name}, which {_WEIGHTS_INDEX} lists: download it.")
    return [path for path in found.values() if path is not None]


def _find(base: str | Path, name: str) -> Path | None:
    """Return the path of a base's file, after downloading it if need be; None if it has none."""
    if Path(base).is_dir():
        path = Path(base) / name
        return path if path.is_file() else None
    try:
        return Path(cast(str, cached_file(base, name)))
    except OSError:
        return None


def _converting(base: str | Path) -> str:
    """Return the Python that loads a base with transformers' class `A` and saves it."""
    to = str(base) if Path(base).is_dir() else Path(base).name
    return f"A.from_pretrained({str(base)!r}).save_pretrained({to!r})"


@lru_cache(maxsize=64)
def _file_hash(path: Path, size: int, changed: int) -> bytes:
    """Return a hash of a file. size, changed: a file that was written since is read again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def trim_base(model: Any, tokenizer: Any, kept: Array) -> PreTrainedTokenizerFast:
    """Reduce the vocabulary of a model to the kept pieces, in place; return its new tokenizer.

    kept: (V',) ids that stay, ascending. New id i is old id `kept[i]`.
    """
    rows = torch.from_numpy(kept)
    config = model.config
    assert config.pad_token_id < 2 and kept[config.pad_token_id] == config.pad_token_id
    embeddings, decoder = model.get_input_embeddings(), model.get_output_embeddings()
    weight, bias = embeddings.weight.data[rows].clone(), decoder.bias.data[rows].clone()
    # The library's resize drops the last rows, whichever they are: fill in the kept ones after it.
    model.resize_token_embeddings(len(kept), mean_resizing=False)
    model.get_input_embeddings().weight.data.copy_(weight)
    decoder = model.get_output_embeddings()
    decoder.weight.data.copy_(weight)
    decoder.bias.data.copy_(bias)
    for name in ("bos_token_id", "eos_token_id"):
        old = getattr(config, name, None)
        if old is not None:
            setattr(config, name, int(np.searchsorted(kept, old)))
    small = trim_tokenizer(tokenizer.backend_tokenizer, kept)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=small, **tokenizer.special_tokens_map
    )


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Turn off transformers' progress bars: the command line shows its own."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off transformers' report of missing weights, and its progress bars."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        with no_progress_bars():
            yield
    finally:
        transformers_logging.set_verbosity(before)
