"""Names to unit vectors: the entity encoder (Sec. 2.2, similarity-based inference).

    encoder = EntityEncoder.load("encoder")
    vectors = encoder.encode(["Tallinn", "Таллинн"])        # (2, H), each of length 1

A name is read as `<s> name </s>` in both directions, and its vector is the last layer's state at
`<s>` (`first`), or the mean of the states of its real tokens (`mean`). Any Prix-LM, XLM-R or mBERT
folder can be an encoder; `mirror` makes a good one of it. A saved encoder is a Prix-LM folder that
`SentenceTransformer(folder)` loads too, with the same vectors.

Dimension letters: N names, B names in a pass, L its longest, H width.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from prixlm.errors import PrixError
from prixlm.files import write_atomically
from prixlm.lm.encoding import Batch
from prixlm.lm.model import SETTINGS, PrixLM
from prixlm.lm.token_cache import Ragged, encode_names, make_ragged
from prixlm.training.sampler import cut_batches
from prixlm.types import Array, Progress

POOLINGS = ("first", "mean")
_SETTINGS = "encoder.json"
_CHUNK = 1 << 15
"""Names that are tokenised, sorted by length and encoded together."""
_BUDGET = 1 << 13
"""Padded tokens in one pass through the model."""


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """How names are read: `encoder.json` in an encoder's folder."""

    pooling: str = "first"  # the state at <s>, or the mean of all states
    max_tokens: int = 25  # <s> and </s> included; longer names are cut

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise PrixError(f"pooling {self.pooling}: expected {' or '.join(POOLINGS)}.")
        if self.max_tokens < 3:
            raise PrixError(f"max_tokens {self.max_tokens}: expected 3 or more.")


class EntityEncoder:
    """A model, and how its states become vectors."""

    def __init__(self, model: PrixLM, settings: EncoderSettings | None = None) -> None:
        self.model, self.settings = model, settings or EncoderSettings()
        longest = min(self.settings.max_tokens, model.max_length)
        self.settings = dataclasses.replace(self.settings, max_tokens=longest)
        base = model.encoder.base
        self.start, self.end, self.padding = (
            model.encoder.id(token) for token in (base.start, base.separator, base.padding)
        )

    @classmethod
    def load(cls, folder: Path | str, settings: EncoderSettings | None = None) -> "EntityEncoder":
        """An encoder that was saved, a Prix-LM, or a base model (a folder, or a name on the hub).

        settings: instead of those of the folder.
        """
        path = Path(folder)
        if settings is None and (path / _SETTINGS).exists():
            try:
                settings = EncoderSettings(**json.loads((path / _SETTINGS).read_text("utf-8")))
            except (OSError, ValueError, TypeError) as error:
                raise PrixError(f"{path / _SETTINGS} cannot be read: {error}.") from None
        return cls(load_model(folder), settings)

    def save(self, folder: Path | str) -> None:
        """A Prix-LM folder with what sentence-transformers needs beside it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = self.model.tokenizer.backend_tokenizer
        base, before = self.model.encoder.base, tokenizer.post_processor
        tokenizer.post_processor = TemplateProcessing(
            single=f"{base.start} $A {base.separator}",
            special_tokens=[(base.start, self.start), (base.separator, self.end)],
        )
        try:
            self.model.save(folder)
        finally:
            tokenizer.post_processor = before
        for name, values in _sentence_transformers(self.settings, self.width).items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_atomically(folder / name, json.dumps(values, indent=1) + "\n")
        write_atomically(folder / _SETTINGS, json.dumps(asdict(self.settings), indent=1) + "\n")

    @property
    def width(self) -> int:
        return int(self.model.backbone.config.hidden_size)

    def fingerprint(self) -> str:
        """A hash of weights, tokenizer and settings: which encoder some vectors come from."""
        found = hashlib.sha256(json.dumps(asdict(self.settings)).encode())
        tokenizer = json.loads(self.model.tokenizer.backend_tokenizer.to_str())
        tokenizer["post_processor"] = None  # it is not used here, and changes when it is saved
        found.update(json.dumps(tokenizer).encode())
        for name, value in self.model.backbone.base_model.state_dict().items():
            found.update(name.encode())
            found.update(memoryview(value.detach().cpu().contiguous().numpy()).cast("B"))
        return found.hexdigest()

    def encode(self, names: Sequence[str], progress: Progress | None = None) -> Array:
        """Unit vectors of names: (N, H) float32. An empty name is `<s> </s>`, like any other."""
        found = np.empty((len(names), self.width), np.float32)
        for start in range(0, len(names), _CHUNK):
            part = self.tokenise(list(names[start : start + _CHUNK]))
            found[start : start + len(part)] = self.encode_tokens(part)
            if progress is not None:
                progress("encode", start + len(part), len(names))
        return found

    def tokenise(self, names: list[str]) -> Ragged:
        """The pieces of names, without `<s>` and `</s>`."""
        return make_ragged(encode_names(self.model.encoder.tokenizer, names))

    @torch.inference_mode()
    def encode_tokens(self, names: Ragged) -> Array:
        """Unit vectors of names that are tokenised: (N, H), in passes of about equal length."""
        self.model.eval()
        found = np.empty((len(names), self.width), np.float32)
        lengths = self._lengths(names, np.arange(len(names)))
        for rows in cut_batches(lengths, _BUDGET):
            found[rows] = self.pool(names, rows).cpu().numpy()
        return found

    def pool(self, names: Ragged, rows: Array) -> Tensor:
        """The unit vectors of some rows, in their order, as one differentiable pass: (B, H)."""
        lengths = self._lengths(names, rows)
        ids = self._pad(names, rows, lengths)
        if self.settings.pooling == "first":
            row, column = np.arange(len(rows)), np.zeros(len(rows), np.int64)
        else:
            row, column = np.nonzero(np.arange(ids.shape[1]) < lengths[:, None])
        batch = Batch(ids, lengths, lengths, row, column, column)
        states = self.model.target_states(batch, both_ways=True)  # also of a causal decoder
        if self.settings.pooling == "mean":
            owner = torch.from_numpy(row).to(states.device)
            empty = states.new_zeros(len(rows), states.shape[1])
            states = empty.index_add(0, owner, states)  # its length does not matter: see below
        return torch.nn.functional.normalize(states, dim=1)

    def _lengths(self, names: Ragged, rows: Array) -> Array:
        return np.asarray(np.minimum(names.lengths(rows) + 2, self.settings.max_tokens))

    def _pad(self, names: Ragged, rows: Array, lengths: Array) -> Array:
        """`<s> name </s>`, padded right: (B, L)."""
        column = np.arange(int(lengths.max(initial=2)))
        place = names.offsets[rows][:, None] + column - 1
        inner = (column > 0) & (column < lengths[:, None] - 1)
        ids = np.full(inner.shape, self.padding, np.int64)
        ids[inner] = names.ids[place[inner]]
        ids[:, 0] = self.start
        ids[np.arange(len(rows)), lengths - 1] = self.end
        return ids


def load_model(folder: Path | str) -> PrixLM:
    """A Prix-LM, or a base model as it is (a folder, or a name on the hub), on the GPU if any."""
    path = Path(folder)
    is_ours = (path / SETTINGS).exists() or (path / "checkpoints").is_dir()
    model = PrixLM.load(path) if is_ours else PrixLM.from_base(folder, ())
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _sentence_transformers(settings: EncoderSettings, width: int) -> dict[str, Any]:
    """The files that make a folder a SentenceTransformer: read, pool, unit length."""
    parts = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{part}" if place else "",
            "type": f"sentence_transformers.models.{part}",
        }
        for place, part in enumerate(parts)
    ]
    pooling = {
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": settings.pooling == "first",
        "pooling_mode_mean_tokens": settings.pooling == "mean",
        "include_prompt": True,
    }
    return {
        "modules.json": modules,
        "sentence_bert_config.json": {
            "max_seq_length": settings.max_tokens,
            "do_lower_case": False,
        },
        "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
        "1_Pooling/config.json": pooling,
    }
