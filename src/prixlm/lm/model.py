"""PrixLM: a multilingual encoder that reads a prefix in both directions and writes the object.

The backbone is transformers' own XLM-R or BERT with its whole prediction head; only the attention
mask and where the head is read are ours (Sec. 2.1). The printed mask M lets prefix positions see
the object, and so leaks it; ours is the prefix mask under which P(x_t | x_<t) is a probability:

- a prefix position attends to all prefix positions and nothing else
  (`[O]` stops at the prefix: it predicts the first object token);
- an object position attends to the prefix and to object positions j <= i;
- padding is never attended to.

Dimension letters: B facts, L positions, H width, V vocabulary, T predicted tokens.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    XLMRobertaForMaskedLM,
)
from transformers.utils import logging as transformers_logging

from prixlm.errors import PrixError
from prixlm.files import write_atomically
from prixlm.lm.card import model_card
from prixlm.lm.encoding import MBERT, XLMR, BaseTokens, Batch, FactEncoder, add_tokens
from prixlm.lm.kernels import Layout, linear_cross_entropy, packed_states, replace_dropout
from prixlm.lm.trim import trim_tokenizer
from prixlm.types import Array

SETTINGS = "prixlm.json"
_UNTRIMMED = "untrimmed-tokenizer.json"
_ARCHITECTURES: dict[str, tuple[Any, BaseTokens]] = {
    "xlm-roberta": (XLMRobertaForMaskedLM, XLMR),
    "bert": (BertForMaskedLM, MBERT),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a folder has to say beyond its config: `prixlm.json` beside it."""

    languages: tuple[str, ...]
    mask: str = "prefix"  # or "causal", where a loaded decoder was trained so
    trained: dict[str, Any] = field(default_factory=dict)  # what it was trained on


class PrixLM(nn.Module):
    """A backbone with the prefix mask, and the encoder of its facts."""

    def __init__(
        self,
        backbone: Any,
        tokenizer: PreTrainedTokenizerFast,
        settings: Settings,
        untrimmed: Path | Tokenizer | None = None,
    ) -> None:
        super().__init__()
        self._untrimmed = untrimmed
        replace_dropout(backbone)
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.settings = settings
        base = _ARCHITECTURES[backbone.config.model_type][1]
        self.encoder = FactEncoder(tokenizer.backend_tokenizer, base, settings.languages)

    @classmethod
    def from_base(
        cls,
        base: str | Path,
        languages: Sequence[str],
        *,
        seed: int = 0,
        keep: Callable[[Tokenizer], Array] | None = None,
    ) -> "PrixLM":
        """A base model from the hub or a folder, with role and language tokens added.

        The new tokens are drawn at random with the base's own spread (not set to the mean of the
        old ones, which is the library's default), the old ones are kept; all will be trained.
        keep: says which pieces stay, if the vocabulary is to be trimmed (`trim.pieces_to_keep`).
        """
        backbone, tokenizer, causal = _load_backbone(base)
        untrimmed = None
        if keep is not None:
            untrimmed = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
            tokenizer = _trim(backbone, tokenizer, keep(tokenizer.backend_tokenizer))
        add_tokens(tokenizer.backend_tokenizer, languages)
        old = backbone.get_input_embeddings().num_embeddings
        size = max(old, len(tokenizer))
        if size > old:
            backbone.resize_token_embeddings(size, mean_resizing=False)
            generator = torch.Generator().manual_seed(seed)
            weight = backbone.get_input_embeddings().weight.data
            weight[old:].normal_(0.0, backbone.config.initializer_range, generator=generator)
        settings = Settings(languages=tuple(languages), mask="causal" if causal else "prefix")
        return cls(backbone, tokenizer, settings, untrimmed)

    @classmethod
    def load(cls, folder: str | Path) -> "PrixLM":
        """A model that `save` wrote."""
        settings = _read_settings(Path(folder))
        backbone, tokenizer, _ = _load_backbone(folder)
        before = Path(folder) / _UNTRIMMED
        return cls(backbone, tokenizer, settings, before if before.exists() else None)

    def save(self, folder: str | Path) -> None:
        """Write safetensors, config, tokenizer, model card and settings (which come last).

        `AutoModel` and `AutoTokenizer` can load the folder.
        """
        settings = self.settings
        with _no_bars():
            self.backbone.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)
        if self.untrimmed is not None:
            write_atomically(Path(folder) / _UNTRIMMED, self.untrimmed.to_str())
        card = model_card(list(settings.languages), settings.mask, settings.trained)
        (Path(folder) / "README.md").write_text(card, "utf-8")
        text = json.dumps(asdict(settings), indent=1, ensure_ascii=False)
        write_atomically(Path(folder) / SETTINGS, text + "\n")

    @property
    def untrimmed(self) -> Tokenizer | None:
        """The base's own tokenizer, where the vocabulary was trimmed; read when it is asked for."""
        if isinstance(self._untrimmed, Path):
            self._untrimmed = Tokenizer.from_file(str(self._untrimmed))
        return self._untrimmed

    def hidden(self, ids: Tensor, prefix: Tensor, length: Tensor) -> Tensor:
        """The last layer's states: (B, L, H), by transformers' own forward pass."""
        mask = attention_mask(prefix, length, ids.shape[1], causal=self.settings.mask == "causal")
        first = self._first_position()
        places = torch.arange(first, first + ids.shape[1], device=ids.device)
        output = self.backbone.base_model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=places.expand(ids.shape[0], -1),
            token_type_ids=torch.zeros_like(ids),
        )
        return cast(Tensor, output.last_hidden_state)

    def target_states(self, batch: Batch, *, both_ways: bool = False) -> Tensor:
        """The states that predict the batch's targets: (T, H). Real tokens only: see `packed`.

        both_ways: the prefix is read in both directions, whatever the model was trained with.
        """
        device = self.backbone.device
        num_rows, size = batch.ids.shape
        real = np.flatnonzero(np.arange(size) < batch.length[:, None])
        first = np.cumsum(batch.length) - batch.length  # of each row among the real tokens
        turn = np.arange(len(batch.row)) - np.searchsorted(batch.row, batch.row)
        most = int(turn.max(initial=0)) + 1
        ids, column, place, asking, at, prefix, length = (
            torch.from_numpy(np.ascontiguousarray(array)).to(device)
            for array in (
                batch.ids.reshape(-1)[real],
                real % size,
                real,
                batch.row * most + turn,
                first[batch.row] + batch.column,
                batch.prefix,
                batch.length,
            )
        )
        causal = self.settings.mask == "causal" and not both_ways
        mask = attention_mask(prefix, length, size, causal=causal)
        embedded = self.embed(ids[None], column)[0]
        tokens, wanted = Layout(place, num_rows, size), Layout(asking, num_rows, most)
        encoder = self.backbone.base_model.encoder
        return packed_states(encoder, embedded, tokens, wanted, at, mask)

    def loss(self, batch: Batch) -> Tensor:
        """The sum over object tokens and `[EOS]` of -log P(x_t | x_<t): the paper's loss."""
        states = self.transform(self.target_states(batch))
        target = torch.from_numpy(batch.target).to(states.device)
        return linear_cross_entropy(states, *self.decoder(), target)

    def embed(self, ids: Tensor, places: Tensor) -> Tensor:
        """Embedded tokens at places that count from 0: (B, L) and (L,) to (B, L, H)."""
        states = self.backbone.base_model.embeddings(
            input_ids=ids,
            position_ids=(places + self._first_position()).expand(ids.shape[0], -1),
            token_type_ids=torch.zeros_like(ids),
        )
        return cast(Tensor, states)

    def logits(self, states: Tensor) -> Tensor:
        """The head, whole: (..., H) to (..., V)."""
        weight, bias = self.decoder()
        return nn.functional.linear(self.transform(states), weight, bias)

    def log_probabilities(self, states: Tensor) -> Tensor:
        """What follows each state: (..., H) to (..., V)."""
        return torch.log_softmax(self.logits(states), dim=-1)

    @property
    def max_length(self) -> int:
        """The longest input that there are positions for."""
        return int(self.backbone.config.max_position_embeddings) - self._first_position()

    def _first_position(self) -> int:
        """Positions count from the start whatever the padding; XLM-R's begin after its padding."""
        return int(self.backbone.config.pad_token_id) + 1 if self._is_roberta() else 0

    def _is_roberta(self) -> bool:
        return str(self.backbone.config.model_type) == "xlm-roberta"

    def transform(self, states: Tensor) -> Tensor:
        """The head before its projection: dense, GELU, norm."""
        if self._is_roberta():
            head = self.backbone.lm_head
            return cast(Tensor, head.layer_norm(nn.functional.gelu(head.dense(states))))
        return cast(Tensor, self.backbone.cls.predictions.transform(states))

    def decoder(self) -> tuple[Tensor, Tensor]:
        """Weight (V, H), tied to the embeddings, and bias of the projection."""
        is_roberta = self._is_roberta()
        head = self.backbone.lm_head if is_roberta else self.backbone.cls.predictions
        return head.decoder.weight, head.decoder.bias


def attention_mask(prefix: Tensor, length: Tensor, size: int, *, causal: bool = False) -> Tensor:
    """Who may attend to whom: (B, 1, L, L), true where position i sees position j. Sec. 2.1, M."""
    i = torch.arange(size, device=prefix.device)[:, None]
    j = torch.arange(size, device=prefix.device)
    before = j <= i  # (L, L)
    in_prefix = j < prefix[:, None, None]  # (B, 1, L)
    seen = before if causal else in_prefix | (before & (i >= prefix[:, None, None]))
    real = j < length[:, None, None]
    # A padded row sees the first token only: a row that sees nothing would be not a number.
    return torch.where(i < length[:, None, None], seen & real, j == 0)[:, None]


def _read_settings(folder: Path) -> Settings:
    try:
        values = json.loads((folder / SETTINGS).read_text("utf-8"))
        return Settings(**(values | {"languages": tuple(values["languages"])}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        if (folder / "checkpoints").is_dir():
            raise PrixError(
                f"{folder} is a run that is not finished: give the same `prixlm pretrain` again, "
                "or pass one of the folders in its checkpoints."
            ) from None
        if not folder.is_dir():
            raise PrixError(
                f"there is no folder {folder}: name one that `prixlm pretrain` made."
            ) from None
        raise PrixError(
            f"{folder} is not a Prix-LM folder: {SETTINGS} cannot be read ({error}). "
            "Make one with `prixlm pretrain`, or pass a base model where one is asked for."
        ) from None


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without transformers' own progress bars: ours are the command line's."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _trim(backbone: Any, tokenizer: Any, kept: Array) -> PreTrainedTokenizerFast:
    """Only the kept pieces, in the tokenizer and on both sides of the model."""
    rows = torch.from_numpy(kept)
    config = backbone.config
    assert config.pad_token_id < 2 and kept[config.pad_token_id] == config.pad_token_id
    embeddings, decoder = backbone.get_input_embeddings(), backbone.get_output_embeddings()
    weight, bias = embeddings.weight.data[rows].clone(), decoder.bias.data[rows].clone()
    backbone.resize_token_embeddings(len(kept), mean_resizing=False)
    backbone.get_input_embeddings().weight.data.copy_(weight)
    decoder = backbone.get_output_embeddings()
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


def _load_backbone(base: str | Path) -> tuple[Any, PreTrainedTokenizerFast, bool]:
    """Model with its whole head, tokenizer, and whether it was trained as a causal decoder."""
    try:
        config = AutoConfig.from_pretrained(base)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise PrixError(
            f"no model at {base}: {reason}. Expected xlm-roberta-base, "
            "bert-base-multilingual-cased, or a folder in their format."
        ) from None
    if config.model_type not in _ARCHITECTURES:
        raise PrixError(
            f"{base} is a {config.model_type} model; Prix-LM is built on "
            f"{' or '.join(_ARCHITECTURES)}."
        )
    causal, config.is_decoder = bool(config.is_decoder), False
    kind = _ARCHITECTURES[config.model_type][0]
    with _no_bars():
        backbone = kind.from_pretrained(base, config=config, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    return backbone, tokenizer, causal
