"""Backbones: how each family of transformers' models embeds, attends, and reads its head.

`PrixLM`, the kernels and the decoder know no family. They ask a `Backbone`, which runs
transformers' own modules with their weights:

    backbone = open_backbone(model)                        # a model of transformers, with its head
    states = backbone.embed(ids, positions)                # (N, H)
    turn = backbone.rotation(states, positions)            # rotary positions, or nothing
    q, k, v = backbone.project(0, states, turn)            # of layer 0: (N, heads * D) each
    states = backbone.finish(0, attended, states)          # output projection, feed-forward
    states = backbone.norm(states)                         # after the last layer
    logits = linear(backbone.transform(states), *backbone.decoder())

`Backbone.hidden` is transformers' own forward pass with our masks: the reference of all others.
To add a family, write a subclass and add its line to `BACKBONES`.

Dimension letters: B facts, L positions, N tokens, H width, h heads, g heads of keys, D size of a
head, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, linear
from transformers import (
    BertForMaskedLM,
    EuroBertForMaskedLM,
    Gemma3ForCausalLM,
    LlamaForCausalLM,
    ModernBertForMaskedLM,
    Qwen3ForCausalLM,
    XLMRobertaForMaskedLM,
)

Rotation = dict[str, tuple[Tensor, Tensor]]
"""Cosine and sine of rotary positions, (N, D) each, by kind of layer; empty without rotation."""

LayerCall = Callable[[int, Callable[[Tensor], Tensor], Tensor], Tensor]
"""Calls a function that uses the weights of a layer, given the layer's number and its states."""
_LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Kinds of rotary positions that depend on the length of the input, so that no cache is exact."""


class Backbone(ABC):
    """One model of transformers, as attention over real tokens needs it."""

    model_class: ClassVar[Any]  # transformers' class with the whole prediction head
    head: ClassVar[tuple[str, ...]]  # how the names of the head's weights begin
    is_decoder: ClassVar[bool] = False  # pretrained with a causal mask
    lora_targets: ClassVar[tuple[str, ...]]  # names of the linear layers that LoRA adapts

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.num_heads = int(self.config.num_attention_heads)
        self.num_key_heads = self.num_heads  # g
        if self.num_heads < 1:  # `check_config` refuses the config with this reason
            raise ValueError(f"{self.num_heads} attention heads, expected 1 or more")
        self.head_size = int(self.config.hidden_size) // self.num_heads
        self.scale = self.head_size**-0.5  # of attention logits
        # Weights that are divided among processes are gathered around it: `training/sharding.py`.
        self.call_layer: LayerCall = _call_plainly

    @classmethod
    def missing(cls, config: Any) -> str | None:
        """Return what a config asks for and we lack; None if all of it is here."""
        kinds = _rope_kinds(config)
        for kind in _LENGTH_DEPENDENT:
            if kind in kinds:
                return f"rotary positions of the kind {kind}, which change with the input's length"
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if getattr(config, name, None) is not None:
                return f"{name}, a bound on logits"
        return None

    @classmethod
    def reads_causally(cls, config: Any) -> bool:
        """Tell whether a base was pretrained to see what is before a token only."""
        return cls.is_decoder or bool(getattr(config, "is_decoder", False))

    @classmethod
    def after_resizing(cls, model: Any) -> None:
        """Complete transformers' resizing of the vocabulary, if it leaves something out."""
        del model  # most families need nothing

    @property
    def first_position(self) -> int:
        """The position id of the first token."""
        return 0

    @property
    @abstractmethod
    def layers(self) -> Sequence[Any]:
        """Transformers' modules of the layers."""

    def window(self, layer: int) -> int | None:
        """Return how far a layer sees: positions i and j with |i - j| below it; None for all."""
        return None

    @property
    def windows(self) -> list[int]:
        """The different windows of the layers, ascending."""
        windows = {self.window(layer) for layer in range(len(self.layers))}
        return sorted(window for window in windows if window is not None)

    @abstractmethod
    def dropout(self, layer: int) -> float:
        """Return the dropout of a layer's attention weights in training."""

    @property
    def drops(self) -> bool:
        """Whether training drops anything, so that two passes over the same input differ."""
        modules = (m for m in self.model.modules() if isinstance(m, nn.Dropout))
        rates = (self.dropout(layer) for layer in range(len(self.layers)))
        return any(rates) or any(module.p > 0 for module in modules)

    def set_dropout(self, share: float) -> None:
        """Drop this share of attention weights and of embedded tokens in training.

        It holds for the modules in memory; the config, which is saved, keeps its own.
        """
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = share
            elif hasattr(module, "attention_dropout"):
                module.attention_dropout = share

    @abstractmethod
    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed tokens at positions that count from 0: (N,) and (N,) to (N, H)."""

    def rotation(self, states: Tensor, positions: Tensor) -> Rotation:
        """Return the rotary positions of tokens. states: gives their type and device."""
        return {}

    @abstractmethod
    def project(
        self, layer: int, states: Tensor, rotation: Rotation, parts: str = "qkv"
    ) -> list[Tensor]:
        """Return queries, (N, h * D), keys and values, (N, g * D): those that `parts` names."""

    @abstractmethod
    def finish(self, layer: int, attended: Tensor, states: Tensor) -> Tensor:
        """Return a layer's states, (N, H), from what attention found, (N, h * D)."""

    def norm(self, states: Tensor) -> Tensor:
        """Apply what comes after the last layer."""
        return states

    @abstractmethod
    def hidden(self, ids: Tensor, positions: Tensor, masks: dict[int | None, Tensor]) -> Tensor:
        """Return the last states, (B, L, H), by transformers' own padded forward pass.

        positions: (L,) from 0. masks: (B, 1, L, L), true where i sees j, by a layer's window.
        """

    @abstractmethod
    def transform(self, states: Tensor) -> Tensor:
        """Apply the prediction head up to its projection."""

    def decoder(self) -> tuple[Tensor, Tensor | None]:
        """Return the projection's weight, (V, H), and its bias, (V,), if it has one."""
        decoder = self.model.get_output_embeddings()
        return decoder.weight, decoder.bias


# --- BERT: learned positions, norms after each part -----------------------------------------------


class BertBackbone(Backbone):
    """MBERT, LaBSE and the small multilingual E5."""

    model_class: ClassVar[Any] = BertForMaskedLM
    head = ("cls.",)
    lora_targets = ("query", "key", "value", "dense")

    @property
    def layers(self) -> Sequence[Any]:
        """Transformers' modules of the layers."""
        return cast(Sequence[Any], self.model.base_model.encoder.layer)

    def dropout(self, layer: int) -> float:
        """Return the dropout of a layer's attention weights in training."""
        return float(self.layers[layer].attention.self.dropout.p)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed tokens at positions that count from 0: (N,) and (N,) to (N, H)."""
        states = self.model.base_model.embeddings(
            input_ids=ids[None],
            position_ids=(positions + self.first_position)[None],
            token_type_ids=torch.zeros_like(ids[None]),
        )
        return cast(Tensor, states[0])

    def project(
        self, layer: int, states: Tensor, rotation: Rotation, parts: str = "qkv"
    ) -> list[Tensor]:
        """Return queries, keys and values: those that `parts` names."""
        attention = self.layers[layer].attention.self
        modules = {"q": attention.query, "k": attention.key, "v": attention.value}
        return _project_at_once(states, [modules[part] for part in parts])

    def finish(self, layer: int, attended: Tensor, states: Tensor) -> Tensor:
        """Return a layer's states from what attention found."""
        module = self.layers[layer]
        mixed = module.attention.output(attended, states)
        return cast(Tensor, module.feed_forward_chunk(mixed))

    def hidden(self, ids: Tensor, positions: Tensor, masks: dict[int | None, Tensor]) -> Tensor:
        """Return the last states, (B, L, H), by transformers' own padded forward pass."""
        output = self.model.base_model(
            input_ids=ids,
            attention_mask=masks[None],
            position_ids=(positions + self.first_position).expand(ids.shape[0], -1),
            token_type_ids=torch.zeros_like(ids),
        )
        return cast(Tensor, output.last_hidden_state)

    def transform(self, states: Tensor) -> Tensor:
        """Apply the prediction head up to its projection: dense, GELU, norm."""
        return cast(Tensor, self.model.cls.predictions.transform(states))


class XlmrBackbone(BertBackbone):
    """XLM-R, Glot500, XLM-V and the larger multilingual E5."""

    model_class = XLMRobertaForMaskedLM
    head = ("lm_head.",)

    @classmethod
    def after_resizing(cls, model: Any) -> None:
        """Resize the second bias of an untied projection: nothing reads it, but it is saved."""
        head = model.lm_head
        if head.bias is not head.decoder.bias:
            head.bias = nn.Parameter(head.decoder.bias.detach().clone())

    @property
    def first_position(self) -> int:
        """The position id of the first token: the ones up to that of padding have no meaning."""
        return int(self.config.pad_token_id) + 1

    def transform(self, states: Tensor) -> Tensor:
        """Apply the prediction head up to its projection: dense, GELU, norm."""
        head = self.model.lm_head
        return cast(Tensor, head.layer_norm(gelu(head.dense(states))))


# --- rotary positions, norms before each part -----------------------------------------------------


class RotaryBackbone(Backbone):
    """What the families with rotary positions share."""

    @property
    def layers(self) -> Sequence[Any]:
        """Transformers' modules of the layers."""
        return cast(Sequence[Any], self.model.base_model.layers)

    def layer_type(self, layer: int) -> str:
        """Return the kind of a layer: with full attention, or with a sliding window."""
        types = getattr(self.config, "layer_types", None)
        return "full_attention" if types is None else str(types[layer])

    def window(self, layer: int) -> int | None:
        """Return how far a layer sees; None for all."""
        if self.layer_type(layer) != "sliding_attention":
            return None
        return int(self.config.sliding_window)

    def rotation(self, states: Tensor, positions: Tensor) -> Rotation:
        """Return the rotary positions of tokens, by kind of layer."""
        rotary, place = self.model.base_model.rotary_emb, positions[None]
        if not isinstance(rotary.rope_type, dict):  # one base for all layers
            cosine, sine = rotary(states, place)
            kinds = {self.layer_type(layer) for layer in range(len(self.layers))}
            return dict.fromkeys(kinds, (cosine[0], sine[0]))
        found = {kind: rotary(states, place, kind) for kind in sorted(set(self.config.layer_types))}
        return {kind: (cosine[0], sine[0]) for kind, (cosine, sine) in found.items()}

    def hidden(self, ids: Tensor, positions: Tensor, masks: dict[int | None, Tensor]) -> Tensor:
        """Return the last states, (B, L, H), by transformers' own padded forward pass."""
        mask: Any = masks[None]
        if getattr(self.config, "layer_types", None) is not None:
            # Both of transformers' masks are replaced: ours keeps the window of a sliding layer.
            layers = range(len(self.layers))
            mask = {self.layer_type(layer): masks[self.window(layer)] for layer in layers}
        output = self.model.base_model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions.expand(ids.shape[0], -1),
            **self._forward_options(),
        )
        return cast(Tensor, output.last_hidden_state)

    def _forward_options(self) -> dict[str, Any]:
        return {"use_cache": False}

    def _turn(self, layer: int, heads: Tensor, rotation: Rotation) -> Tensor:
        """Rotate the heads of tokens, (N, heads, D), to their positions; return (N, heads * D)."""
        cosine, sine = (part[:, None] for part in rotation[self.layer_type(layer)])
        first, second = heads.chunk(2, dim=-1)
        turned = heads * cosine + torch.cat([-second, first], dim=-1) * sine
        return turned.flatten(1)


class LlamaBackbone(RotaryBackbone):
    """Llama, and what has its layers: Qwen 3, Gemma 3 and EuroBERT add to them."""

    model_class: ClassVar[Any] = LlamaForCausalLM
    head = ("lm_head.",)
    is_decoder = True
    lora_targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        attention = self.layers[0].self_attn
        self.num_key_heads = int(self.config.num_key_value_heads)
        self.head_size, self.scale = int(attention.head_dim), float(attention.scaling)
        self.embedding_dropout = 0.0  # these families have no module for it

    def dropout(self, layer: int) -> float:
        """Return the dropout of a layer's attention weights in training."""
        return float(self.layers[layer].self_attn.attention_dropout or 0.0)

    def set_dropout(self, share: float) -> None:
        """Drop this share of attention weights and of embedded tokens in training."""
        super().set_dropout(share)
        # A name has so few tokens that attention weights alone hardly tell two passes apart.
        self.embedding_dropout = share

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed tokens: (N,) to (N, H). Positions come in with each layer's rotation."""
        embedded = cast(Tensor, self.model.base_model.embed_tokens(ids))
        return dropout(embedded, self.embedding_dropout, self.model.training)

    def project(
        self, layer: int, states: Tensor, rotation: Rotation, parts: str = "qkv"
    ) -> list[Tensor]:
        """Return queries, keys and values: those that `parts` names."""
        module = self.layers[layer]
        attention = module.self_attn
        modules = {"q": attention.q_proj, "k": attention.k_proj, "v": attention.v_proj}
        norms = {name: getattr(attention, f"{name}_norm", None) for name in "qk"}
        projected = _project_at_once(
            module.input_layernorm(states), [modules[part] for part in parts]
        )
        for index, part in enumerate(parts):
            if part != "v":
                heads = projected[index].view(len(states), -1, self.head_size)
                norm = norms[part]  # over each head; Llama and EuroBERT have none
                heads = heads if norm is None else norm(heads)
                projected[index] = self._turn(layer, heads, rotation)
        return projected

    def finish(self, layer: int, attended: Tensor, states: Tensor) -> Tensor:
        """Return a layer's states from what attention found."""
        module = self.layers[layer]
        states = states + module.self_attn.o_proj(attended)
        return cast(Tensor, states + module.mlp(module.post_attention_layernorm(states)))

    def norm(self, states: Tensor) -> Tensor:
        """Apply the norm after the last layer."""
        return cast(Tensor, self.model.base_model.norm(states))

    def transform(self, states: Tensor) -> Tensor:
        """Return the states: the head is a projection alone."""
        return states


class QwenBackbone(LlamaBackbone):
    """Qwen 3: norms of queries and keys."""

    model_class = Qwen3ForCausalLM


class GemmaBackbone(LlamaBackbone):
    """Gemma 3: norms of queries and keys and after each part, windows, two bases of rotation."""

    model_class = Gemma3ForCausalLM

    @classmethod
    def reads_causally(cls, config: Any) -> bool:
        """Tell whether a base sees what is before a token only; EmbeddingGemma does not."""
        return not config.use_bidirectional_attention

    def finish(self, layer: int, attended: Tensor, states: Tensor) -> Tensor:
        """Return a layer's states from what attention found."""
        module = self.layers[layer]
        states = states + module.post_attention_layernorm(module.self_attn.o_proj(attended))
        fed = module.mlp(module.pre_feedforward_layernorm(states))
        return cast(Tensor, states + module.post_feedforward_layernorm(fed))


class EuroBertBackbone(LlamaBackbone):
    """EuroBERT: the layers of Llama, pretrained in both directions."""

    model_class = EuroBertForMaskedLM
    is_decoder = False


class ModernBertBackbone(RotaryBackbone):
    """ModernBERT and mmBERT: windows, two bases of rotation, a head with a norm."""

    model_class = ModernBertForMaskedLM
    head = ("head.", "decoder.")
    lora_targets = ("Wqkv", "Wi", "Wo")

    def window(self, layer: int) -> int | None:
        """Return how far a layer sees; None for all. Its config has the last visible distance."""
        window = super().window(layer)
        return None if window is None else window + 1

    def dropout(self, layer: int) -> float:
        """Return the dropout of a layer's attention weights in training."""
        return float(self.layers[layer].attn.attention_dropout)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed tokens: (N,) to (N, H). Positions come in with each layer's rotation."""
        return cast(Tensor, self.model.base_model.embeddings(input_ids=ids))

    def project(
        self, layer: int, states: Tensor, rotation: Rotation, parts: str = "qkv"
    ) -> list[Tensor]:
        """Return queries, keys and values: those that `parts` names."""
        module = self.layers[layer]
        # One linear layer makes all three.
        joined, read = module.attn.Wqkv, module.attn_norm(states)
        width = self.num_heads * self.head_size
        if type(joined) is nn.Linear and len(parts) < 3:
            rows = ["qkv".index(part) for part in parts]
            first, last = rows[0] * width, (rows[-1] + 1) * width  # "q" and "kv" are contiguous
            bias = None if joined.bias is None else joined.bias[first:last]
            part_of_it = linear(read, joined.weight[first:last], bias)
            projected = list(torch.split(part_of_it, width, dim=-1))
        else:
            every = torch.split(joined(read), width, dim=-1)
            projected = [every["qkv".index(part)] for part in parts]
        for index, part in enumerate(parts):
            if part != "v":
                heads = projected[index].view(len(states), -1, self.head_size)
                projected[index] = self._turn(layer, heads, rotation)
        return projected

    def finish(self, layer: int, attended: Tensor, states: Tensor) -> Tensor:
        """Return a layer's states from what attention found."""
        module = self.layers[layer]
        states = states + module.attn.out_drop(module.attn.Wo(attended))
        return cast(Tensor, states + module.mlp(module.mlp_norm(states)))

    def norm(self, states: Tensor) -> Tensor:
        """Apply the norm after the last layer."""
        return cast(Tensor, self.model.base_model.final_norm(states))

    def transform(self, states: Tensor) -> Tensor:
        """Apply the prediction head up to its projection: dense, GELU, norm."""
        return cast(Tensor, self.model.head(states))

    def _forward_options(self) -> dict[str, Any]:
        return {}


BACKBONES: dict[str, type[Backbone]] = {
    "xlm-roberta": XlmrBackbone,
    "bert": BertBackbone,
    "gemma3_text": GemmaBackbone,
    "qwen3": QwenBackbone,
    "llama": LlamaBackbone,
    "modernbert": ModernBertBackbone,
    "eurobert": EuroBertBackbone,
}
"""By transformers' `model_type`."""


def open_backbone(model: Any) -> Backbone:
    """Return the backbone of a model of transformers."""
    return BACKBONES[model.config.model_type](model)


def _call_plainly(layer: int, run: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    del layer
    return run(states)


def _project_at_once(states: Tensor, modules: list[Any]) -> list[Tensor]:
    """Return several projections of the same states: one product is faster than several.

    An adapted module (LoRA) is more than its weight, so it is called.
    """
    if len(modules) == 1 or not all(type(module) is nn.Linear for module in modules):
        return [module(states) for module in modules]
    weight = torch.cat([module.weight for module in modules])
    has_bias = modules[0].bias is not None
    bias = torch.cat([module.bias for module in modules]) if has_bias else None
    sizes = [len(module.weight) for module in modules]
    return list(torch.split(linear(states, weight, bias), sizes, dim=-1))


def _rope_kinds(config: Any) -> set[str]:
    """Return the kinds of rotary positions that a config names, of all its layers."""
    values = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in values.values() if isinstance(value, dict)] or [values]
    return {str(value.get("rope_type")) for value in nested}
