"""Base models: load a checkpoint that a Prix-LM can be built on (see `lm/backbones.py`).

A base is data: its config, its weights in safetensors and its `tokenizer.json`. Nothing else of a
folder is read, so that loading one cannot run code: neither the Python that a config's `auto_map`
names, nor a pickle.
"""

import hashlib
import logging
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from prixlm.errors import PrixError
from prixlm.files import read_json
from prixlm.lm.backbones import BACKBONES
from prixlm.lm.trim import trim_tokenizer
from prixlm.lm.weights import check_config, check_vocabulary, read_weights
from prixlm.types import Array

logger = logging.getLogger(__name__)
_CONFIG, _TOKENIZER = "config.json", "tokenizer.json"
_WEIGHTS, _WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
_SENTENCEPIECE = ("sentencepiece.bpe.model", "tokenizer.model")
_MOST_LAYERS = 1_000
_AS_IT_IS = re.compile(r"[^A-Za-z0-9 ._/:@+,=~-]+")  # characters of a name that are escaped in code
_HINTS = {
    "gemma3": " This one also reads images: save its `language_model` alone, a gemma3_text.",
    "qwen2": " Qwen 3 is the nearest.",
    "t5": " An encoder with a decoder of its own needs cross-attention, which prixlm lacks.",
    "mt5": " An encoder with a decoder of its own needs cross-attention, which prixlm lacks.",
    "mbart": " An encoder with a decoder of its own needs cross-attention, which prixlm lacks.",
}
"""What else to say of architectures that users may try."""


def load_base(base: str | Path, *, seed: int = 0) -> tuple[Any, PreTrainedTokenizerFast, bool]:
    """Load a base from the hub or a folder.

    Returns the model with its prediction head, its tokenizer, and whether it is a causal decoder.
    seed: of the head, if the base has none.
    """
    config = _read_config(base)
    causal = BACKBONES[config.model_type].reads_causally(config)
    # As a decoder, transformers would apply its own causal mask to XLM-R or BERT on top of ours.
    config.is_decoder = False
    tokenizer = _read_tokenizer(base)
    model = _read_model(base, config, seed)
    check_vocabulary(tokenizer, model.get_input_embeddings().num_embeddings, base)
    return model, tokenizer, causal


def has_tokens(base: str | Path, tokens: Sequence[str]) -> bool:
    """Tell whether the tokenizer of a base has all of these tokens; no if there is none."""
    path = _find(base, _TOKENIZER)
    if path is None:
        return False
    try:
        known = Tokenizer.from_file(str(path))
    except Exception:  # the tokenizers library raises plain exceptions
        return False
    return all(known.token_to_id(token) is not None for token in tokens)


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
            "bert-base-multilingual-cased, or a folder in the hub's format."
        ) from None
    # A model that is saved from this one must not name the code either.
    has_code = values.pop("auto_map", None) is not None
    kind = values.get("model_type")
    if kind not in BACKBONES:
        code = " with code of its own, which prixlm never runs" if has_code else ""
        *others, last = BACKBONES
        raise PrixError(
            f"{base} is a {kind} model{code}. Expected an architecture that Prix-LM is built on: "
            f"{', '.join(others)} or {last}.{_HINTS.get(str(kind), '')}"
        )
    backbone = BACKBONES[kind]
    # transformers makes a name for each label and each layer before anything can be compared with
    # the weights: a number of ten digits would fill the memory. A Prix-LM has no labels.
    for name in ("num_labels", "id2label", "label2id"):
        values.pop(name, None)
    num_layers = values.get("num_hidden_layers", 1)
    if type(num_layers) is not int or not 1 <= num_layers <= _MOST_LAYERS:
        raise PrixError(
            f"{_CONFIG} of {base} describes no model: {num_layers!r:.40} layers, expected 1 to "
            f"{_MOST_LAYERS:,}. Download it again."
        )
    try:
        with _quiet():  # it would print values of the config as they are
            config = backbone.model_class.config_class.from_dict(values)
    except Exception as error:  # transformers checks the kinds of values with its own exceptions
        reason = str(error).split("\n")[0]
        raise PrixError(
            f"{_CONFIG} of {base} cannot be read: {reason}. Download it again."
        ) from None
    missing = backbone.missing(config)
    if missing is not None:
        raise PrixError(f"{base} needs what prixlm does not have: {missing}. Choose another base.")
    return config


def _read_tokenizer(base: str | Path) -> PreTrainedTokenizerFast:
    if _find(base, _TOKENIZER) is None:
        command = f"Make one: `{_converting('AutoTokenizer', base)}`."
        if any(_find(base, name) for name in _SENTENCEPIECE):  # XLM-R, Gemma, Llama 2
            command += " It needs `pip install sentencepiece protobuf`."
        raise PrixError(f"{base} has no {_TOKENIZER}. {command}")
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
    with _quiet():  # as in `_read_config`
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
        kind = BACKBONES[_read_config(base).model_type].model_class.__name__
        raise PrixError(
            f"{base} has no {_WEIGHTS}, the only format of weights that prixlm reads. Convert "
            f"others: `{_converting(kind, base)}`."
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


def _converting(kind: str, base: str | Path) -> str:
    """Return the command that loads a base with a class of transformers, and saves it.

    A folder's name may hold what a shell runs, such as `$(...)`, or what an error escapes: in the
    command it is a Python string without either.
    """
    to = str(base) if Path(base).is_dir() else Path(base).name
    source, target = (_AS_IT_IS.sub(_escape, str(path)) for path in (base, to))
    code = f"from transformers import {kind} as A; "
    code += f'A.from_pretrained("{source}").save_pretrained("{target}")'
    return f"python -c {shlex.quote(code)}"


def _escape(match: re.Match[str]) -> str:
    return "".join(f"\\U{ord(character):08x}" for character in match[0])


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
    embeddings, decoder = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = decoder.weight is embeddings.weight
    weight = embeddings.weight.data[rows].clone()
    projection = weight if is_tied else decoder.weight.data[rows].clone()
    bias = None if decoder.bias is None else decoder.bias.data[rows].clone()
    # The library's resize drops the last rows, whichever they are: fill in the kept ones after it.
    resize_vocabulary(model, len(kept))
    model.get_input_embeddings().weight.data.copy_(weight)
    decoder = model.get_output_embeddings()
    decoder.weight.data.copy_(projection)
    if bias is not None:
        decoder.bias.data.copy_(bias)
    for holder in (config, getattr(model, "generation_config", None)):
        _renumber_tokens(holder, kept)
    # Transformers' embedding leaves the row of padding out of its gradient: it has moved, too.
    if embeddings.padding_idx is not None:
        model.get_input_embeddings().padding_idx = config.pad_token_id
    small = trim_tokenizer(tokenizer.backend_tokenizer, kept)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=small, **tokenizer.special_tokens_map
    )


def resize_vocabulary(model: Any, size: int) -> None:
    """Resize the embeddings and the projection of a model; new rows are not drawn yet."""
    model.resize_token_embeddings(size, mean_resizing=False)
    BACKBONES[model.config.model_type].after_resizing(model)


def _renumber_tokens(config: Any, kept: Array) -> None:
    """Replace the ids of special tokens in a config; one that is not kept becomes None."""

    def renumber(old: Any) -> Any:
        if isinstance(old, list):
            return [new for new in map(renumber, old) if new is not None] or None
        place = int(np.searchsorted(kept, old))
        return place if place < len(kept) and kept[place] == old else None

    for name in ("pad", "bos", "eos", "cls", "sep", "mask", "decoder_start"):
        old = getattr(config, f"{name}_token_id", None)
        if old is not None:
            setattr(config, f"{name}_token_id", renumber(old))


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
