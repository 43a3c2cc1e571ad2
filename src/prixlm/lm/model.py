"""PrixLM: a multilingual model that reads a prefix in both directions and writes the object.

The backbone is a model of transformers with its whole prediction head (`lm/backbones.py`). Only the
attention mask, and the positions at which the head is read, are ours (Sec. 2.1). The mask M as the
paper prints it lets prefix positions see the object, and so leaks the answer. Ours is the prefix
mask under which P(x_t | x_<t) is a probability:

- a prefix position attends to all prefix positions and nothing else
  (`[O]` stops at the prefix: it predicts the first object token);
- an object position attends to the prefix and to object positions j <= i;
- padding is never attended to.

There are two other masks. A decoder's own is `causal`: every position attends to itself and to what
is before it. The authors' released inference, `released`, reads a checkpoint that is not a decoder
in both directions at every step, prefix and object so far; nothing can be trained with it. In a
layer with a sliding window, positions that are farther apart do not attend to each other either.

Dimension letters: B facts, L positions, H width, V vocabulary, T predicted tokens.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from prixlm.arrays import rank_in_group
from prixlm.config import checked
from prixlm.errors import PrixError
from prixlm.files import read_json, write_atomically
from prixlm.kb.store import KB
from prixlm.lm.backbones import Backbone, open_backbone
from prixlm.lm.bases import (
    has_tokens,
    load_base,
    no_progress_bars,
    resize_vocabulary,
    trim_base,
)
from prixlm.lm.card import model_card
from prixlm.lm.descriptions import MAX_TOKENS
from prixlm.lm.encoding import ROLES, Batch, FactEncoder, add_tokens, base_tokens, language_token
from prixlm.lm.kernels import Layout, Masks, linear_cross_entropy, packed_states, replace_dropout
from prixlm.lm.lineage import Lineage
from prixlm.lm.token_cache import TokenCache, build_tokens, word_space
from prixlm.remote import local_folder
from prixlm.romanise import READINGS, Reading, reading_version
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)
SETTINGS = "prixlm.json"
MASKS = ("prefix", "causal", "released")
"""Who sees whom: see above."""
ADAPTER = "trained.safetensors"
"""What was trained of an adapted model, in the folder of its checkpoint."""
_UNTRIMMED = "untrimmed-tokenizer.json"
_KINDS: dict[str, Any] = {
    "languages": list[str],
    "mask": str,
    "trained": dict[str, Any],
    "descriptions": int,
    "reading": str,
    "reading_version": str,
    "space": bool,
}
"""Kinds of the values of `prixlm.json`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a model folder states beside the config of its backbone: `prixlm.json`."""

    languages: tuple[str, ...]  # codes with a token such as [EN]
    mask: str = "prefix"  # causal for a decoder; or released, as the authors' inference reads
    lineage: Lineage = field(default_factory=Lineage)  # what it was trained on
    descriptions: int = 0  # tokens of the subject's description that it reads
    reading: Reading = "script"  # how it reads names: in their script, romanised, or both
    reading_version: str = ""  # of the romanised forms that it was trained on
    space: bool = False  # whether it reads a space before each name

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Settings":
        """Read what `as_dict` wrote."""
        checked(values, _KINDS, optional=_KINDS.keys() - {"languages", "mask", "trained"})
        lineage = Lineage.from_dict(values["trained"])
        reading = values.get("reading", "script")
        if reading not in READINGS:
            raise ValueError(f"reading {reading}: expected {', '.join(READINGS)}")
        if values["mask"] not in MASKS:
            raise ValueError(f"mask {values['mask']}: expected {', '.join(MASKS)}")
        if not 0 <= values.get("descriptions", 0) <= MAX_TOKENS:
            raise ValueError(f"descriptions {values['descriptions']}: expected 0 to {MAX_TOKENS}")
        return cls(
            languages=tuple(values["languages"]),
            mask=values["mask"],
            lineage=lineage,
            descriptions=values.get("descriptions", 0),
            reading=reading,
            reading_version=values.get("reading_version", ""),
            space=values.get("space", False),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `prixlm.json`; the lineage is called `trained` there."""
        languages = list(self.languages)
        values: dict[str, Any] = {"languages": languages, "mask": self.mask}
        values["trained"] = self.lineage.as_dict()
        # A model without them has the settings, and so the identity, that it always had.
        if self.descriptions:
            values["descriptions"] = self.descriptions
        if self.reading != "script":
            values |= {"reading": self.reading, "reading_version": self.reading_version}
        if self.space:
            values["space"] = True
        return values

    def warn_of_reading(self, folder: Path) -> None:
        """Warn if names are romanised otherwise here than where the model was trained."""
        if self.reading != "script" and self.reading_version != reading_version():
            logger.warning(
                "%s was trained on names that were romanised by %s; here it is %s. Install the "
                "same versions, or expect worse answers.",
                folder,
                self.reading_version,
                reading_version(),
            )


def make_settings(
    languages: Sequence[str],
    reading: Reading,
    mask: str = "prefix",
    *,
    descriptions: int = 0,
    space: bool = False,
) -> Settings:
    """Return the settings of a model that is not trained yet."""
    return Settings(
        languages=tuple(languages),
        mask=mask,
        descriptions=descriptions,
        reading=reading,
        reading_version="" if reading == "script" else reading_version(),
        space=space,
    )


class Adapter(Protocol):
    """What is trained of a model whose other weights are frozen: see `training/lora.py`."""

    def sync(self) -> None:
        """Write trained rows of the embeddings into the frozen weights."""

    @property
    def trained_projection(self) -> tuple[Tensor, Tensor]:
        """The rows of the projection that are trained, (R,), and their parameter, (R, H)."""

    def merged_state(self) -> dict[str, Tensor]:
        """Return the weights of the backbone as a plain checkpoint has them."""

    def trained_state(self) -> dict[str, Tensor]:
        """Return all weights that are trained, by their name in the model."""

    def load_trained(self, state: dict[str, Tensor]) -> None:
        """Load what `trained_state` returned, in place."""

    def merge(self) -> None:
        """Make the model plain again, with the merged weights."""


class PrixLM(nn.Module):
    """A backbone with the prefix mask, and the encoder of its facts.

    model = PrixLM.load("model")

    Example:
        >>> model = prixlm.PrixLM.load("model")
        >>> model.settings.lineage.variant
        'All'
    """

    def __init__(
        self,
        backbone: Any,
        tokenizer: PreTrainedTokenizerFast,
        settings: Settings,
        untrimmed: Path | Tokenizer | None = None,
        *,
        roles: bool = True,
    ) -> None:
        """Wrap a model of transformers; `from_base` and `load` are the usual ways to make one.

        untrimmed: the tokenizer, or its file, from before the vocabulary was trimmed.
        roles: without role tokens, the model reads texts and no facts.
        """
        super().__init__()
        self._untrimmed = untrimmed
        replace_dropout(backbone)
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.settings = settings
        self.kind: Backbone = open_backbone(backbone)
        self.recompute = False  # whether training computes layers twice, to save memory
        self.adapter: Adapter | None = None  # what is trained, if not everything
        self.encoder = FactEncoder(
            tokenizer.backend_tokenizer,
            base_tokens(tokenizer, is_decoder=self.kind.is_decoder),
            _with_tokens(tokenizer, settings),
            settings.descriptions,
            # The other half is for the object: so long may a candidate be.
            longest=self.max_length // 2,
            reading=settings.reading,
            roles=roles,
            space=" " if settings.space else "",
        )
        # The token that ends a name: a search adds its probability to that of the name.
        self.end_of_name = self.encoder.id(ROLES[-1]) if roles else -1

    @classmethod
    def from_base(
        cls,
        base: str | Path,
        languages: Sequence[str],
        *,
        seed: int = 0,
        keep: Callable[[Tokenizer], Array] | None = None,
        descriptions: int = 0,
        reading: Reading = "script",
        prefix: str = "own",
        roles: bool = True,
        spaced: bool = False,
    ) -> "PrixLM":
        """Load a base model from the hub or a folder, and add role and language tokens.

        The embeddings of new tokens are drawn at random, with the mean and the standard deviation
        that the base's embeddings have in each dimension. (The library's default is the mean of the
        old ones, which makes all new tokens alike.)
        seed: of the new embeddings, and of the prediction head of a base without one.
        keep: returns the pieces to keep, if the vocabulary is trimmed (`trim.pieces_to_keep`).
        descriptions: tokens of a subject's description that the model reads after its name.
        prefix: `both` reads the prefix in both directions even if the base is a causal decoder.
        roles: add no tokens if false: the base as it is, which reads texts.
        spaced: read names as words in a sentence, if the base is a decoder whose tokenizer adds no
        space itself. A Prix-LM as base keeps its own way.
        """
        backbone, tokenizer, causal = load_base(base, seed=seed)
        # A base may itself be trimmed: what counts is how its own base reads.
        first = Path(base) / _UNTRIMMED
        untrimmed: Path | Tokenizer | None = first if first.exists() else None
        if keep is not None:
            untrimmed = untrimmed or Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
            tokenizer = trim_base(backbone, tokenizer, keep(tokenizer.backend_tokenizer))
        if roles:
            add_tokens(tokenizer.backend_tokenizer, languages, descriptions)
        # Some bases have more embeddings than pieces: new tokens then take the spare rows.
        old_size = backbone.get_input_embeddings().num_embeddings
        if len(tokenizer) > old_size:
            resize_vocabulary(backbone, len(tokenizer))
            ends = (backbone.get_input_embeddings(), backbone.get_output_embeddings())
            for weight in dict.fromkeys(end.weight for end in ends):  # one, if they are tied
                _draw_like(weight.data[:old_size], weight.data[old_size:], seed)
        mask = "causal" if causal else "prefix"
        is_decoder = open_backbone(backbone).is_decoder
        space = spaced and is_decoder and word_space(tokenizer.backend_tokenizer) != ""
        if (Path(base) / SETTINGS).is_file():  # a Prix-LM says how it was trained
            own = read_settings(Path(base))
            mask, space = own.mask, own.space
        if prefix == "both":
            mask = "prefix"
        settings = make_settings(languages, reading, mask, descriptions=descriptions, space=space)
        return cls(backbone, tokenizer, settings, untrimmed, roles=roles)

    @classmethod
    def load(cls, folder: str | Path) -> "PrixLM":
        """Load a model that `save` wrote."""
        folder = local_folder(folder)
        settings = read_settings(Path(folder))
        settings.warn_of_reading(Path(folder))
        backbone, tokenizer, _ = load_base(folder)
        untrimmed = Path(folder) / _UNTRIMMED
        return cls(backbone, tokenizer, settings, untrimmed if untrimmed.exists() else None)

    @classmethod
    def open(
        cls, folder: str | Path, languages: Sequence[str] = (), mask: str | None = None
    ) -> "PrixLM":
        """Load a model that `save` wrote, or a checkpoint in the layout that the authors released.

        Their checkpoint (`wzhouad/prix-lm`) has the role tokens and no settings of ours. It is read
        as their code reads it: causally if its config is a decoder, else in both directions at
        every step (mask `released`). It knows no list of languages, so those asked for are taken;
        it translates between languages that it has tokens for.
        languages: of such a checkpoint. mask: read a model with another mask than its own.
        """
        if mask is not None and mask not in MASKS:
            raise PrixError(f"mask {mask}: expected {', '.join(MASKS)}.")
        if _is_ours(folder) or not has_roles(folder):
            model = cls.load(folder)
        else:
            backbone, tokenizer, causal = load_base(folder)
            settings = make_settings(languages, "script", "causal" if causal else "released")
            logger.info("%s is in the authors' layout: mask %s", folder, mask or settings.mask)
            model = cls(backbone, tokenizer, settings)
        if mask is not None:
            model.settings = replace(model.settings, mask=mask)
        return model

    def save(self, folder: str | Path, state: dict[str, Tensor] | None = None) -> None:
        """Write safetensors, config, tokenizer, model card and, last of all, the settings.

        `AutoModel` and `AutoTokenizer` can load the folder. Of an adapted model, the merged weights
        are written, and beside them what was trained, so that training can resume exactly.
        state: the weights of the backbone, if the model itself does not hold them whole.
        """
        # The settings come last: a folder that has them is complete.
        settings = self.settings
        if self.adapter is not None:
            state = self.adapter.merged_state()
        with no_progress_bars():
            self.backbone.save_pretrained(folder, state_dict=state)
        if self.adapter is not None:
            save_file(self.adapter.trained_state(), str(Path(folder) / ADAPTER))
        self.tokenizer.save_pretrained(folder)
        if self.untrimmed is not None:
            write_atomically(Path(folder) / _UNTRIMMED, self.untrimmed.to_str())
        card = model_card(
            list(settings.languages),
            settings.mask,
            settings.lineage,
            settings.reading,
            is_decoder=self.kind.is_decoder,
            family=str(self.backbone.config.model_type),
            space=settings.space,
        )
        (Path(folder) / "README.md").write_text(card, "utf-8")
        text = json.dumps(settings.as_dict(), indent=1, ensure_ascii=False)
        write_atomically(Path(folder) / SETTINGS, text + "\n")

    @property
    def untrimmed(self) -> Tokenizer | None:
        """The base's tokenizer from before trimming, read on first use; None if not trimmed."""
        if isinstance(self._untrimmed, Path):
            try:
                self._untrimmed = Tokenizer.from_file(str(self._untrimmed))
            except Exception as error:  # the tokenizers library raises plain exceptions
                raise PrixError(
                    f"{self._untrimmed} cannot be read ({error}). Download the model again, or "
                    "train it again."
                ) from None
        return self._untrimmed

    @property
    def max_length(self) -> int:
        """The longest input that the model has positions for."""
        return int(self.backbone.config.max_position_embeddings) - self.kind.first_position

    def hidden(self, ids: Tensor, prefix: Tensor, length: Tensor) -> Tensor:
        """Return the last layer's states, (B, L, H), by transformers' own padded forward pass.

        ids: (B, L), prefix and length: (B,). Slow and readable; `target_states` is the fast pass.
        """
        masks = self.masks(prefix, length, ids.shape[1])
        return self.kind.hidden(ids, torch.arange(ids.shape[1], device=ids.device), masks)

    def masks(self, prefix: Tensor, length: Tensor, size: int, *, both_ways: bool = False) -> Masks:
        """Return who attends to whom in each kind of layer, (B, 1, L, L), by its window.

        both_ways: read the prefix in both directions even if the model is a causal decoder.
        """
        if self.settings.mask == "released":
            prefix = length
        causal = self.settings.mask == "causal" and not both_ways
        whole = attention_mask(prefix, length, size, causal=causal)
        masks: Masks = {None: whole}
        for window in self.kind.windows:
            masks[window] = whole if window >= size else _within(whole, window)
        return masks

    def target_states(self, batch: Batch, *, both_ways: bool = False) -> Tensor:
        """Return the states that predict the batch's targets, (T, H), computed without padding.

        both_ways: read the prefix in both directions even if the model is a causal decoder.
        """
        num_rows, size = batch.ids.shape
        # (N,) the cells of the padded (B, L) rectangle that hold real tokens.
        real = np.flatnonzero(np.arange(size) < batch.length[:, None])
        starts = np.cumsum(batch.length) - batch.length  # (B,) first real token of each row
        # (T,) number of each target within its row, and the most that a row has: Q.
        turn = rank_in_group(batch.row)
        most = int(turn.max(initial=0)) + 1
        ids, position, place, asking, at, prefix, length = (
            torch.from_numpy(np.ascontiguousarray(array)).to(self.backbone.device)
            for array in (
                batch.ids.reshape(-1)[real],
                real % size,
                real,
                batch.row * most + turn,  # (T,) cells of the (B, Q) rectangle of targets
                starts[batch.row] + batch.column,  # (T,) predicting tokens among the N real ones
                batch.prefix,
                batch.length,
            )
        )
        masks = self.masks(prefix, length, size, both_ways=both_ways)
        embedded = self.embed(ids, position)
        tokens, wanted = Layout(place, num_rows, size), Layout(asking, num_rows, most)
        recompute = self.recompute and self.training
        return packed_states(
            self.kind, embedded, position, tokens, wanted, at, masks, recompute=recompute
        )

    def loss(self, batch: Batch) -> Tensor:
        """Return the paper's loss: -log P(x_t | x_<t), summed over object tokens and `[EOS]`."""
        assert self.settings.mask != "released", "the released mask shows the object"
        states = self.transform(self.target_states(batch))
        target = torch.from_numpy(batch.target).to(states.device)
        trained = None if self.adapter is None else self.adapter.trained_projection
        return linear_cross_entropy(states, *self.decoder(), target, trained)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed tokens at positions that count from 0: (N,) and (N,) to (N, H)."""
        if self.adapter is not None:
            self.adapter.sync()
        return self.kind.embed(ids, positions)

    def transform(self, states: Tensor) -> Tensor:
        """Apply the prediction head up to its projection, such as dense, GELU, norm; (..., H)."""
        return self.kind.transform(states)

    def decoder(self) -> tuple[Tensor, Tensor | None]:
        """Return the projection's weight, (V, H), and its bias, (V,), if it has one."""
        return self.kind.decoder()

    def logits(self, states: Tensor) -> Tensor:
        """Apply the whole prediction head: (..., H) to (..., V)."""
        return nn.functional.linear(self.transform(states), *self.decoder())

    def log_probabilities(self, states: Tensor) -> Tensor:
        """Return log P of the token after each state: (..., H) to (..., V)."""
        return torch.log_softmax(self.logits(states), dim=-1)


def _draw_like(old: Tensor, new: Tensor, seed: int) -> None:
    """Fill `new`, (N, H), at random, with the mean and spread of `old` in each dimension."""
    # Not the config's initializer_range: that is the spread from before the base was trained.
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(new.shape, generator=generator)
    new.copy_(old.mean(0) + old.std(0) * noise)


def attention_mask(prefix: Tensor, length: Tensor, size: int, *, causal: bool = False) -> Tensor:
    """Return who attends to whom, (B, 1, L, L): true where position i sees position j.

    prefix and length: (B,). Sec. 2.1, mask M, without its leak.
    """
    i = torch.arange(size, device=prefix.device)[:, None]
    j = torch.arange(size, device=prefix.device)
    before = j <= i  # (L, L)
    in_prefix = j < prefix[:, None, None]  # (B, 1, L)
    seen = before if causal else in_prefix | (before & (i >= prefix[:, None, None]))
    real = j < length[:, None, None]
    # A padded row sees the first token: a softmax over nothing would be not a number.
    return torch.where(i < length[:, None, None], seen & real, j == 0)[:, None]


def _within(mask: Tensor, window: int) -> Tensor:
    """Return a mask, (B, 1, L, L), without pairs of positions that are `window` or more apart."""
    i = torch.arange(mask.shape[-1], device=mask.device)
    # A padded row sees the first token however far it is: it has to see something.
    is_near = (i[:, None] - i).abs() < window
    sees_itself = mask.diagonal(dim1=-2, dim2=-1)[..., None]  # false in padded rows
    return torch.where(sees_itself, mask & is_near, mask)


def cached_tokens(model: PrixLM, kb: KB, progress: Progress | None = None) -> TokenCache:
    """Return the names of a KB as a model reads them, tokenised once."""
    encoder = model.encoder
    return build_tokens(
        kb, encoder.tokenizer, progress, reading=encoder.reading, space=encoder.space
    )


def has_roles(folder: str | Path) -> bool:
    """Tell whether a checkpoint has the tokens of roles, as a Prix-LM has and a base has not."""
    return has_tokens(folder, ROLES)


def _is_ours(folder: str | Path) -> bool:
    path = Path(folder)
    return (path / SETTINGS).exists() or (path / "checkpoints").is_dir()


def _with_tokens(tokenizer: PreTrainedTokenizerFast, settings: Settings) -> tuple[str, ...]:
    """Return the languages that have a token: all of ours, perhaps not those of the authors."""
    if settings.mask == "prefix" or settings.lineage.kbs:
        return settings.languages
    known = tokenizer.get_vocab()
    return tuple(lang for lang in settings.languages if language_token(lang) in known)


def read_settings(folder: Path) -> Settings:
    """Read the settings of a model folder; refuse any other folder and say what it is."""
    try:
        return Settings.from_dict(read_json(folder / SETTINGS))
    except (OSError, ValueError, KeyError, TypeError) as error:
        if (folder / "checkpoints").is_dir():
            raise PrixError(
                f"{folder} is an unfinished run. Finish it with the same `prixlm pretrain` "
                "command, or pass one of the folders in its checkpoints."
            ) from None
        if not folder.is_dir():
            raise PrixError(
                f"there is no folder {folder}. Expected a folder that `prixlm pretrain` made."
            ) from None
        raise PrixError(
            f"{folder} is not a Prix-LM folder: {SETTINGS} cannot be read ({error}). "
            "Make one with `prixlm pretrain`."
        ) from None
