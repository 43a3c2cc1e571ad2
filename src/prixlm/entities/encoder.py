"""Encode names as unit vectors (Sec. 2.2, similarity-based inference).

    encoder = EntityEncoder.load("encoder")
    vectors = encoder.encode(["Tallinn", "Таллинн"])        # (2, H), each of length 1

A name is read as `<s> name </s>` in both directions. Its vector is the last layer's state at `<s>`
(pooling `first`), or the mean of the states of its tokens (pooling `mean`), scaled to unit length.
A decoder is read as it was pretrained, and its state at the end is taken (pooling `last`).
Any Prix-LM or base folder can be an encoder; `mirror` trains a good one. A saved encoder is
a Prix-LM folder that `SentenceTransformer(folder)` loads too, with the same vectors, unless it is
a decoder that is read in both directions or reads names after a space.

Dimension letters: N names, B names in one pass, L tokens of the longest of them, H width, T states.
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
from prixlm.files import read_json, write_atomically
from prixlm.lm.encoding import Batch
from prixlm.lm.model import SETTINGS, PrixLM
from prixlm.lm.token_cache import Ragged, make_ragged
from prixlm.remote import is_remote, local_folder
from prixlm.romanise import reading_version
from prixlm.training.sampler import cut_batches
from prixlm.types import Array, Progress

_POOLINGS = ("first", "mean", "last")
_SETTINGS = "encoder.json"
_CHUNK = 1 << 15
"""Names that are tokenised, sorted by length and encoded together."""
_BUDGET = 1 << 13
"""Most tokens in one pass through the model, padding included."""


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """How names are read: `encoder.json` in an encoder's folder."""

    pooling: str | None = None  # first (at <s>), mean, or last; None: last for decoders, else first
    max_tokens: int = 25  # of one name, <s> and </s> included; longer names are cut

    def __post_init__(self) -> None:
        if self.pooling is not None and self.pooling not in _POOLINGS:
            raise PrixError(f"pooling {self.pooling}: expected {', '.join(_POOLINGS)}.")
        if self.max_tokens < 3:
            raise PrixError(f"max_tokens {self.max_tokens}: expected 3 or more.")


class EntityEncoder:
    """A model, and how its states become vectors.

    Example:
        >>> encoder = prixlm.EntityEncoder.load("encoder")
        >>> encoder.encode(["Finland", "Suomi"]).shape
        (2, 128)
    """

    def __init__(self, model: PrixLM, settings: EncoderSettings | None = None) -> None:
        """Use a loaded model. Names are cut to the positions that it has.

        Without a pooling in the settings, it is `last` for a decoder and `first` for others.
        """
        settings = settings or EncoderSettings()
        longest = min(settings.max_tokens, model.max_length)
        # The first token of a decoder was pretrained to see nothing but itself.
        pooling = settings.pooling or ("last" if model.kind.is_decoder else "first")
        self.model = model
        self.settings = dataclasses.replace(settings, pooling=pooling, max_tokens=longest)
        self.folder: Path | None = None  # that it was loaded from, as it is; may be remote
        # (one or none) in front of a name, and the one after it
        self.start, self.end = model.encoder.start, model.encoder.id(model.encoder.base.end)
        self.padding = model.encoder.padding

    @classmethod
    def load(
        cls, folder: Path | str, settings: EncoderSettings | None = None, *, spaced: bool = True
    ) -> "EntityEncoder":
        """Load a saved encoder, a Prix-LM, or a base model (a folder, or a name on the hub).

        settings: replace those of the folder. spaced: read names of a base that is a decoder after
        a space, as `pretrain` does, so that it can be compared with what was made of it.
        """
        # Workers of other machines fetch a remote folder themselves.
        source = folder if is_remote(folder) else None
        folder = local_folder(folder) if is_remote(folder) else folder  # else perhaps a hub's name
        path, is_changed = Path(folder), settings is not None
        if settings is None and (path / _SETTINGS).exists():
            try:
                settings = EncoderSettings(**read_json(path / _SETTINGS))
            except (OSError, ValueError, TypeError) as error:
                raise PrixError(f"{path / _SETTINGS} cannot be read: {error}.") from None
        encoder = cls(load_model(folder, spaced=spaced), settings)
        if path.is_dir() and not is_changed:
            encoder.folder = path.resolve() if source is None else Path(source)
        return encoder

    def save(self, folder: Path | str) -> None:
        """Write a Prix-LM folder, and beside it the files that sentence-transformers needs."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = self.model.tokenizer.backend_tokenizer
        # The saved tokenizer adds <s> and </s> by itself; in this package, `_pad` does.
        base, before = self.model.encoder.base, tokenizer.post_processor
        tokenizer.post_processor = TemplateProcessing(
            single=f"{base.start or ''} $A {base.end}".strip(),
            special_tokens=[(name, self.model.encoder.id(name)) for name in base.names],
        )
        # Others pad batches, so that a tokenizer has to say with what.
        self.model.tokenizer.pad_token = base.padding
        try:
            self.model.save(folder)
        finally:
            tokenizer.post_processor = before
        if self.is_read_by_others_alike:
            for name, values in _sentence_transformers(self.settings, self.width).items():
                (folder / name).parent.mkdir(exist_ok=True)
                write_atomically(folder / name, json.dumps(values, indent=1) + "\n")
        write_atomically(folder / _SETTINGS, json.dumps(asdict(self.settings), indent=1) + "\n")

    @property
    def is_read_by_others_alike(self) -> bool:
        """Whether `SentenceTransformer` gives these vectors: it reads a decoder causally.

        And it reads a name as it is, without a space before it.
        """
        if self.model.settings.space:
            return False
        is_causal = self.model.settings.mask == "causal" and self.settings.pooling == "last"
        return is_causal if self.model.kind.is_decoder else self.settings.pooling != "last"

    @property
    def width(self) -> int:
        """Dimensions of a vector."""
        return int(self.model.backbone.config.hidden_size)

    def fingerprint(self) -> str:
        """Return a hash of weights, tokenizer and settings: it tells which encoder made vectors."""
        # All weights of the encoder, without the prediction head: vectors do not depend on it.
        digest = hashlib.sha256(json.dumps(asdict(self.settings)).encode())
        tokenizer = json.loads(self.model.tokenizer.backend_tokenizer.to_str())
        tokenizer["post_processor"] = None  # not used here, and another one in a saved encoder
        digest.update(json.dumps(tokenizer).encode())
        if self.model.settings.reading != "script":
            digest.update(f"{self.model.settings.reading} {reading_version()}".encode())
        if self.model.settings.space:
            digest.update(b"space")
        for name, value in self.model.backbone.base_model.state_dict().items():
            digest.update(name.encode())
            digest.update(memoryview(value.detach().cpu().contiguous().numpy()).cast("B"))
        return digest.hexdigest()

    def encode(
        self,
        names: Sequence[str],
        progress: Progress | None = None,
        *,
        langs: Sequence[str] | None = None,
    ) -> Array:
        """Return the unit vectors of names: (N, H) float32. An empty name is read as `<s> </s>`.

        langs: the language of each name, for a model that reads names romanised.
        """
        vectors = np.empty((len(names), self.width), np.float32)
        for start in range(0, len(names), _CHUNK):
            chunk = self.tokenise(
                list(names[start : start + _CHUNK]),
                None if langs is None else langs[start : start + _CHUNK],
            )
            vectors[start : start + len(chunk)] = self._encode_tokens(chunk)
            if progress is not None:
                progress("encode", start + len(chunk), len(names))
        return vectors

    def tokenise(self, names: list[str], langs: str | Sequence[str] | None = None) -> Ragged:
        """Return the tokens of names, without `<s>` and `</s>`."""
        return make_ragged(self.model.encoder.tokenise(names, langs))

    @torch.inference_mode()
    def _encode_tokens(self, names: Ragged) -> Array:
        """Return the unit vectors of tokenised names, (N, H), in passes of similar length."""
        self.model.eval()
        vectors = np.empty((len(names), self.width), np.float32)
        for rows in cut_batches(self._lengths(names, np.arange(len(names))), _BUDGET):
            vectors[rows] = self.pool(names, rows).cpu().numpy()
        return vectors

    def pool(self, names: Ragged, rows: Array) -> Tensor:
        """Return the unit vectors of these rows of `names`, as one differentiable pass: (B, H)."""
        lengths = self._lengths(names, rows)
        ids = self._pad(names, rows, lengths)
        # (T,) the positions whose states are needed: each name's <s> or </s>, or all of its tokens.
        if self.settings.pooling == "first":
            row, column = np.arange(len(rows)), np.zeros(len(rows), np.int64)
        elif self.settings.pooling == "last":
            row, column = np.arange(len(rows)), lengths - 1
        else:
            row, column = np.nonzero(np.arange(ids.shape[1]) < lengths[:, None])
        # A name is all prefix; the model returns the states (T, H) that would predict a target at
        # these positions. Targets are not needed here, so `column` stands in for them.
        batch = Batch(ids, lengths, lengths, row, column, column)
        # Only the last token of a causal decoder has seen the whole name.
        both_ways = self.settings.pooling != "last"
        states = self.model.target_states(batch, both_ways=both_ways)
        if self.settings.pooling == "mean":
            owner = torch.from_numpy(row).to(states.device)
            zeros = states.new_zeros(len(rows), states.shape[1])
            states = zeros.index_add(0, owner, states)  # a sum points where the mean does
        return torch.nn.functional.normalize(states, dim=1)

    def _lengths(self, names: Ragged, rows: Array) -> Array:
        """Return the tokens of each name with `<s>` and `</s>`, after the cut: (B,)."""
        around = len(self.start) + 1
        return np.asarray(np.minimum(names.lengths(rows) + around, self.settings.max_tokens))

    def _pad(self, names: Ragged, rows: Array, lengths: Array) -> Array:
        """Return `<s> name </s>`, padded right: (B, L)."""
        before = len(self.start)  # 1, or 0 for a base without <s>
        column = np.arange(int(lengths.max(initial=before + 1)))
        # Column c of a row holds the name's token c - before, for before <= c < length - 1.
        source = names.offsets[rows][:, None] + column - before
        is_inner = (column >= before) & (column < lengths[:, None] - 1)
        ids = np.full(is_inner.shape, self.padding, np.int64)
        ids[is_inner] = names.ids[source[is_inner]]
        ids[:, :before] = self.start
        ids[np.arange(len(rows)), lengths - 1] = self.end
        return ids


def load_model(folder: Path | str, *, spaced: bool = False) -> PrixLM:
    """Load a Prix-LM, or a base model (a folder, or a name on the hub), onto the GPU if any.

    spaced: of a base (see `PrixLM.from_base`); a Prix-LM says itself how it reads names.
    """
    path = Path(folder)
    is_ours = (path / SETTINGS).exists() or (path / "checkpoints").is_dir()
    model = PrixLM.load(path) if is_ours else PrixLM.from_base(folder, (), spaced=spaced)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _sentence_transformers(settings: EncoderSettings, width: int) -> dict[str, Any]:
    """Return the files that make a folder a SentenceTransformer: transformer, pooling, length 1."""
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{module}" if index else "",
            "type": f"sentence_transformers.models.{module}",
        }
        for index, module in enumerate(["Transformer", "Pooling", "Normalize"])
    ]
    pooling = {
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": settings.pooling == "first",
        "pooling_mode_mean_tokens": settings.pooling == "mean",
        "pooling_mode_lasttoken": settings.pooling == "last",
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
