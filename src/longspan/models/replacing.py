"""Attention inside other people's models, replaced by mixers: `replace_attention`."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers.cache_utils import DynamicLayer
from transformers.pytorch_utils import Conv1D

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.base import Mixer
from longspan.mixers.looks import Pairwise

#: The rotary base of mixers.
_BASE = 10_000
_PARTS = ("query", "key", "value", "output")


@dataclass(frozen=True)
class Replaced:
    """One attention module that was replaced, or left.

    Attributes:
        name: Its name in the model.
        kind: Class of the module that was there.
        kept: Projections whose weights the mixer has.
        new: Other parameters of the mixer, which are to be trained.
        why: Why it was left; "" if it was replaced.
        lost: Parts of it that the mixer does not have.
    """

    name: str
    kind: str
    kept: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    why: str = ""
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Replacement:
    """Result of `replace_attention`.

    Attributes:
        mixer: Name of the mixer.
        modules: The attention modules of the model, in order.
    """

    mixer: str
    modules: list[Replaced]

    def __str__(self) -> str:
        told = []
        for one in self.modules:
            parts = {"kept": one.kept, "new": one.new, "lost": one.lost}
            said = "; ".join(f"{name}: {', '.join(values)}" for name, values in parts.items() if values)
            told.append(f"{one.name} ({one.kind}): {one.why or f'{self.mixer}; {said}'}")
        return "\n".join(told)


@dataclass(frozen=True)
class _Attention:
    """An attention module of one of the known kinds, in the terms of mixers.

    Attributes:
        name: Its name.
        module: It.
        width, heads: Sizes.
        weights: Weight and bias of the projections by name.
        causal: Whether no position sees a later one; None where the call decides.
        rotary: Base of its rotary positions; 0 for none.
        dropout: Dropout of its output, which stays.
        attention_dropout: Dropout of its weights, which mixers lack.
        dense: The module after it that projects the output, where it is not its own.
    """

    name: str
    module: nn.Module
    width: int
    heads: int
    weights: dict[str, tuple[Tensor, Tensor | None]]
    causal: bool | None
    rotary: float = 0.0
    dropout: nn.Module | None = None
    attention_dropout: float = 0.0
    dense: str = ""


def replace_attention(
    model: nn.Module,
    mixer: str,
    *,
    layers: Iterable[int] | None = None,
    causal: bool | None = None,
    **options: Any,
) -> Replacement:
    """Replace self-attention in a model by mixers, in place.

    It knows `nn.MultiheadAttention` (also in `nn.TransformerEncoder`) and the attention of transformers' BERT, RoBERTa,
    GPT-2, Llama and models with the same modules. Masks of padding and of later tokens are translated, and so are
    caches of generation; other masks, and cross attention that the mixer lacks, are refused when the model is called.

    A mixer that compares pairs keeps the projections of queries, keys, values and the output where their shapes are the
    same. `softmax` then computes the same function. For all other mixers they are a start, and the model must be
    fine-tuned.

    Args:
        model: The model.
        mixer: Name of a mixer, or its dotted path.
        layers: Numbers of the self-attention modules to replace, from 0; negative ones count from the last. By default
            all.
        causal: Whether positions see only themselves and earlier ones; by default as the module says, and not for
            `nn.MultiheadAttention`, which does not say.
        options: Options of the mixer. By default, it has the heads and biases of the attention, and rotary positions
            where that has.

    Returns:
        The modules with the weights that are kept and those that are new. `print` shows them.

    Raises:
        UserError: The model has no attention of a known kind, the mixer has no causal form or reads graphs, or sizes or
            positions do not fit. The model is then as it was.
    """
    found, left = _attentions(model)
    if not found:
        raise UserError(
            "expected a model with nn.MultiheadAttention or the attention of BERT, RoBERTa, GPT-2 or Llama, got a "
            f"{type(model).__name__} with none of them{_reasons(left)}; replace its modules by mixers yourself."
        )
    wanted = range(len(found)) if layers is None else [_index(number, len(found)) for number in layers]
    if mixers.load(mixer).capabilities.structure is not None:
        raise UserError(
            f"expected a mixer of sequences, got {mixer!r}, which reads the edges of graphs; choose another."
        )
    built = {number: _built(found[number], mixer, causal, options) for number in sorted({*wanted})}
    modules = []
    for number, attention in enumerate(found):
        kind = type(attention.module).__name__
        if number not in built:
            modules.append(Replaced(attention.name, kind, why="attention, as before"))
            continue
        own, said = built[number]
        parent, _, last = attention.name.rpartition(".")
        place = model.get_submodule(parent) if parent else model
        if place is model and not last:
            raise UserError("expected a model that contains attention, got the attention itself; build the mixer.")
        setattr(place, last, _wrapped(attention, own, layer=getattr(attention.module, "layer_idx", None)))
        if attention.dense:
            owner, _, name = attention.dense.rpartition(".")
            setattr(model.get_submodule(owner), name, nn.Identity())
        modules.append(replace(said, name=attention.name, kind=kind))
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            # Its fast path reads the weights of attention and would not call the mixers.
            module.use_nested_tensor = False
    return Replacement(mixer, [*modules, *left])


def _index(number: int, count: int) -> int:
    if not -count <= number < count:
        raise UserError(
            f"expected layers from 0 to {count - 1}, got {number}; the model has {count} of self-attention."
        )
    return number % count


def _reasons(left: list[Replaced]) -> str:
    return f" that it replaces ({left[0].name}: {left[0].why})" if left else ""


# What there is


def _attentions(model: nn.Module) -> tuple[list[_Attention], list[Replaced]]:
    """Attention modules of known kinds, and those that are left, with the reason."""
    found, left, modules = [], [], dict(model.named_modules())
    for name, module in modules.items():
        names = {part for part, _ in module.named_children()}
        parent = name.rpartition(".")[0]
        try:
            if isinstance(module, nn.MultiheadAttention):
                found.append(_of_torch(name, module))
            elif {"query", "key", "value"} <= names and isinstance(modules.get(f"{parent}.output.dense"), nn.Linear):
                found.append(_of_bert(name, module, f"{parent}.output.dense", modules[f"{parent}.output.dense"]))
            elif {"c_attn", "c_proj"} <= names and isinstance(module.c_attn, Conv1D):
                found.append(_of_gpt2(name, module))
            elif {"q_proj", "k_proj", "v_proj", "o_proj"} <= names:
                found.append(_of_llama(name, module))
        except UserError as reason:
            left.append(Replaced(name, type(module).__name__, why=str(reason)))
    return found, left


def _of_torch(name: str, module: nn.MultiheadAttention) -> _Attention:
    if not module._qkv_same_embed_dim:
        raise UserError("keys or values of another width")
    if module.bias_k is not None or module.add_zero_attn:
        raise UserError("added keys (add_bias_kv or add_zero_attn)")
    biases = [None] * 3 if module.in_proj_bias is None else [*module.in_proj_bias.chunk(3)]
    weights: dict[str, tuple[Tensor, Tensor | None]] = dict(
        zip(_PARTS, zip(module.in_proj_weight.chunk(3), biases, strict=True), strict=False)
    )
    weights["output"] = module.out_proj.weight, module.out_proj.bias
    return _Attention(name, module, module.embed_dim, module.num_heads, weights, None, attention_dropout=module.dropout)


def _of_bert(name: str, module: Any, dense: str, output: Any) -> _Attention:
    if "Cross" in type(module).__name__:
        raise UserError("cross attention")
    # Others with the same parts add positions of their own, such as RoFormer's.
    if not type(module).__name__.startswith(("Bert", "Roberta")):
        raise UserError("attention that may differ from that of BERT")
    if getattr(module, "position_embedding_type", "absolute") not in (None, "absolute"):
        raise UserError("relative positions")
    weights = {part: (getattr(module, part).weight, getattr(module, part).bias) for part in _PARTS[:3]}
    weights["output"] = output.weight, output.bias
    causal = bool(getattr(module, "is_causal", False))
    dropout = float(getattr(module.dropout, "p", module.dropout))
    heads = module.num_attention_heads
    return _Attention(name, module, output.out_features, heads, weights, causal, attention_dropout=dropout, dense=dense)


def _of_gpt2(name: str, module: Any) -> _Attention:
    if module.is_cross_attention:
        raise UserError("cross attention")
    parts = zip(module.c_attn.weight.T.chunk(3), module.c_attn.bias.chunk(3), strict=True)
    weights: dict[str, tuple[Tensor, Tensor | None]] = dict(zip(_PARTS, parts, strict=False))
    # Scores may have another scale in each layer.
    scale = module.scaling * module.head_dim**0.5
    weights["query"] = weights["query"][0] * scale, module.c_attn.bias.chunk(3)[0] * scale
    weights["output"] = module.c_proj.weight.T, module.c_proj.bias
    dropout = module.attn_dropout.p
    return _Attention(
        name, module, module.embed_dim, module.num_heads, weights, True, 0.0, module.resid_dropout, dropout
    )


def _of_llama(name: str, module: Any) -> _Attention:
    config = module.config
    # Others with the same parts order channels in another way, as Cohere does, or cap scores, as Gemma 2 does.
    if not type(module).__name__.startswith("Llama"):
        raise UserError("attention that may differ from that of Llama")
    if hasattr(module, "q_norm") or getattr(module, "sliding_window", None):
        raise UserError("norms of queries and keys, or a window")
    heads, width, dim = config.num_attention_heads, module.head_dim, config.hidden_size
    if heads * width != dim:
        raise UserError(f"heads of {width} channels, which are not the width {dim} together")
    rope = getattr(config, "rope_parameters", None) or {}
    kind, base = rope.get("rope_type", "default"), float(rope.get("rope_theta", _BASE))
    if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"rotary positions of the type {kind!r}")
    # Its rotary halves, l and l + e/2, are the channels 2l and 2l + 1 of mixers.
    order = torch.arange(width).view(2, -1).T.flatten()

    def rows(part: str, turned: bool) -> tuple[Tensor, Tensor | None]:
        layer, found = getattr(module, f"{part[0]}_proj"), []
        for values in (layer.weight, layer.bias):
            if values is not None and part != "output":
                values = values.unflatten(0, (-1, width))
                values = values.repeat_interleave(heads // values.shape[0], 0)
                values = (values[:, order.to(values.device)] if turned else values).flatten(0, 1)
            found.append(values)
        return found[0], found[1]

    weights = {part: rows(part, part in ("query", "key")) for part in _PARTS}
    weights["query"] = tuple(  # type: ignore[assignment]
        None if values is None else values * (module.scaling * width**0.5) for values in weights["query"]
    )
    return _Attention(name, module, dim, heads, weights, True, base, None, module.attention_dropout)


# What comes in its place


def _built(attention: _Attention, name: str, causal: bool | None, options: dict[str, Any]) -> tuple[Mixer, Replaced]:
    """The mixer for an attention module, with the weights that it can keep."""
    known = mixers.options(name)
    chosen: dict[str, Any] = {"heads": attention.heads} if "heads" in known else {}
    causal = attention.causal if causal is None else causal
    if attention.causal and not causal:
        raise UserError(f"expected causal attention to stay so in {attention.name!r}, got causal=False; leave it out.")
    if causal and not mixers.load(name).capabilities.causal:
        raise UserError(f"expected a mixer with a causal form for {attention.name!r}, got {name!r}; choose another.")
    if causal:
        chosen["causal"] = True
    if "bias" in known:
        chosen["bias"] = any(bias is not None for _, bias in attention.weights.values())
    lost = [f"attention dropout {attention.attention_dropout:g}"] if attention.attention_dropout else []
    if attention.rotary:
        if options.get("rotary", "rotary" in known) and attention.rotary != _BASE:
            raise UserError(
                f"expected rotary positions with the base {_BASE:,}, got {attention.rotary:,.0f} in "
                f"{attention.name!r}; choose a mixer without them, or rotary=False."
            )
        if "rotary" in known:
            chosen["rotary"] = True
        if not (chosen | options).get("rotary"):
            lost.append("rotary positions")
    own = mixers.build(name, attention.width, **chosen | options)
    first = attention.weights["value"][0]
    own = own.to(first.device, first.dtype)
    kept = []
    for part in _PARTS if isinstance(own, Pairwise) else ():
        layer, (weight, bias) = getattr(own, part, None), attention.weights[part]
        if not isinstance(layer, nn.Linear) or layer.weight.shape != weight.shape:
            continue
        with torch.no_grad():
            layer.weight.copy_(weight)
            if layer.bias is not None:
                layer.bias.zero_() if bias is None else layer.bias.copy_(bias)
            elif bias is not None:
                lost.append(f"bias of {part}")
        kept.append(part)
    new = dict.fromkeys(parameter.split(".")[0] for parameter, _ in own.named_parameters())
    said = Replaced("", "", tuple(kept), tuple(part for part in new if part not in kept), "", tuple(lost))
    return own.train(attention.module.training), said


def _wrapped(attention: _Attention, mixer: Mixer, layer: int | None) -> nn.Module:
    if isinstance(attention.module, nn.MultiheadAttention):
        return MixerForMultihead(mixer, batch_first=attention.module.batch_first, heads=attention.heads)
    return MixerForTransformers(mixer, attention.name, layer, attention.dropout)


def _check_mask(hidden: Tensor, real: Tensor | None, allowed: Tensor, causal: bool) -> None:
    """Raise UserError unless a mask (b, n, m) allows real positions, and earlier ones alone if causal."""
    if torch.compiler.is_compiling():
        return
    queries, keys = allowed.shape[-2:]
    expected = torch.ones(queries, keys, dtype=torch.bool, device=allowed.device)
    expected = expected.tril(keys - queries) if causal else expected
    if real is not None:
        # Padding may see everything or fewer than there are, but no other padding: that may be another text.
        expected = expected & real[:, None, :]
        free = allowed.all(-1, keepdim=True) | ~(allowed & ~expected).any(-1, keepdim=True)
        allowed = torch.where(~real[:, -queries:, None] & free, expected, allowed)
    if not bool((allowed == expected).all()):
        raise UserError(
            f"expected a mask of padding{' and of later positions' if causal else ' alone'}, which mixers can apply, "
            "got another one; for a causal mask, replace attention with causal=True, for packed rows give each text "
            "its own."
        )


def _check_positions(numbers: Tensor | None, real: Tensor | None) -> None:
    """Raise UserError unless positions follow each other, as mixers count them."""
    if numbers is None or torch.compiler.is_compiling():
        return
    steps = numbers.diff(dim=-1) != 1
    if real is not None:
        steps = steps & real[:, 1:] & real[:, :-1]
    if bool(steps.any()):
        raise UserError(
            "expected position_ids that follow each other, got others, as in packed rows; give each text a row."
        )


def _as_allowed(mask: Tensor) -> Tensor:
    """A mask as booleans, True where attention is allowed, from booleans of that meaning or from what is added."""
    if mask.dtype == torch.bool:
        return mask
    lowest = torch.finfo(mask.dtype).min / 2
    if not torch.compiler.is_compiling() and not bool(((mask == 0) | (mask < lowest)).all()):
        raise UserError(
            "expected a mask of positions, got numbers to add to scores, which mixers lack; leave them out."
        )
    return mask == 0


class MixerForMultihead(nn.Module):
    """A mixer with the arguments of `nn.MultiheadAttention`; it returns no weights.

    Args:
        mixer: The mixer.
        batch_first: Whether inputs are (b, t, d).
        heads: Number of heads.
    """

    #: Layers of `nn.TransformerEncoder` then do not take their fast path around this module.
    in_proj_bias = None

    def __init__(self, mixer: Mixer, *, batch_first: bool, heads: int) -> None:
        super().__init__()
        # Read before `in_proj_bias`, for the same reason.
        self._qkv_same_embed_dim = False
        self.mixer = mixer
        self.batch_first, self.num_heads, self.embed_dim = batch_first, heads, mixer.dim

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """As of `nn.MultiheadAttention`, with None in place of the weights.

        Raises:
            UserError: A mask that the mixer cannot apply, or a context that it cannot read.
        """
        alone = query.ndim == 2
        x, context = (
            one.unsqueeze(0) if alone else one if self.batch_first else one.transpose(0, 1) for one in (query, key)
        )
        real = None
        if key_padding_mask is not None:
            padding = key_padding_mask.unsqueeze(0) if alone else key_padding_mask
            real = ~padding if padding.dtype == torch.bool else _as_allowed(padding)
        if key is query and value is query:
            causal = self.mixer.causal
            if attn_mask is not None:
                allowed = ~attn_mask if attn_mask.dtype == torch.bool else _as_allowed(attn_mask)
                _check_mask(x, None, allowed if allowed.ndim == 3 else allowed[None], causal)
            elif is_causal and not causal:
                raise UserError("expected a mixer built with causal=True for is_causal=True, got another; build it so.")
            elif causal and not is_causal:
                raise UserError(
                    "expected is_causal=True or a causal mask for a causal mixer, got neither; give one, or replace "
                    "attention with causal=False."
                )
            y = self.mixer(x, real)
        else:
            if value is not key or attn_mask is not None:
                raise UserError(
                    "expected self-attention, or cross attention whose keys and values are one tensor, without a mask "
                    f"of pairs, got others; leave this module as it was ({type(self.mixer).__name__})."
                )
            y = self.mixer(x, context=context, context_mask=real)
        return (y[0] if alone else y if self.batch_first else y.transpose(0, 1)), None


class MixerForTransformers(nn.Module):
    """A mixer with the arguments of self-attention in transformers; it returns no weights.

    Args:
        mixer: The mixer.
        name: Name of the module, for messages.
        layer: Number of the layer in caches.
        dropout: Dropout of the output.
    """

    def __init__(self, mixer: Mixer, name: str, layer: int | None, dropout: nn.Module | None) -> None:
        super().__init__()
        self.mixer, self.name, self.layer_idx = mixer, name, layer
        self.dropout = nn.Identity() if dropout is None else dropout

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **given: Any,
    ) -> tuple[Tensor, None]:
        """Output of the mixer, and None in place of the weights.

        Raises:
            UserError: A mask that the mixer cannot apply, or a cache that it cannot continue.
        """
        for name in ("head_mask", "encoder_hidden_states", "cu_seq_lens_q"):
            if given.get(name) is not None:
                raise UserError(f"expected no {name} where a mixer replaces attention, got one; leave it out.")
        length, real = hidden_states.shape[1], None
        if attention_mask is not None and attention_mask.ndim == 2:
            real = attention_mask.bool()
        elif attention_mask is not None:
            allowed = _as_allowed(attention_mask)[:, 0]
            # The last position sees all real ones.
            real = allowed[:, -1]
            _check_mask(hidden_states, real, allowed, self.mixer.causal)
        if real is not None:
            real = real[:, -length:].expand(hidden_states.shape[0], -1)
        _check_positions(given.get("position_ids"), real)
        if past_key_values is None:
            return self.dropout(self.mixer(hidden_states, real)), None
        cached = self._cached(past_key_values)
        before = self.mixer.init_state(hidden_states.shape[0]) if cached.state is None else cached.state
        y, after = self.mixer.step(hidden_states, before, real)
        cached.advance(after, length)
        return self.dropout(y), None

    def _cached(self, cache: Any) -> "StateLayer":
        """This layer's part of a cache, which holds a state in place of keys and values."""
        cache = getattr(cache, "self_attention_cache", cache)
        if not (self.mixer.capabilities.streaming and self.mixer.causal) or self.layer_idx is None:
            raise UserError(
                f"expected use_cache=False with {type(self.mixer).__name__} in {self.name!r}, which does not stream, "
                "got a cache; set model.config.use_cache=False."
            )
        while len(cache.layers) <= self.layer_idx:
            cache.layers.append(DynamicLayer())
        layer = cache.layers[self.layer_idx]
        if not isinstance(layer, StateLayer):
            if type(layer) is not DynamicLayer or layer.get_seq_length():
                raise UserError(
                    f"expected an empty DynamicCache for {self.name!r}, got a {type(layer).__name__} of "
                    f"{layer.get_seq_length()} tokens; begin with an empty one, without cache_implementation."
                )
            cache.layers[self.layer_idx] = layer = StateLayer()
        return layer


class StateLayer(DynamicLayer):
    """The state of a mixer in a cache of transformers, in place of keys and values.

    Attributes:
        state: The state; None before the first token.
    """

    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.state: Any = None
        self._length = 0

    def advance(self, state: Any, tokens: int) -> None:
        """Take the state after some more tokens."""
        self.state, self.is_initialized = state, False
        self._length += tokens

    def get_seq_length(self) -> int:
        """Number of tokens that were read."""
        return self._length

    def reset(self) -> None:
        """Forget all tokens."""
        self.state, self._length = None, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to remove tokens, which a state cannot.

        Raises:
            UserError: Some are to be removed.
        """
        if tokens_to_remove:
            raise UserError("expected generation without going back over tokens, which the state of a mixer cannot.")

    def _select(self, pick: Any) -> None:
        self.state = tree_map(lambda one: pick(one) if isinstance(one, Tensor) else one, self.state)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the rows of beams."""
        self._select(lambda one: one.index_select(0, beam_idx.to(one.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        self._select(lambda one: one.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        self._select(lambda one: one[indices])
