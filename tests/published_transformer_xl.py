"""Transformer-XL with a language modelling head, written from Dai et al. 2019 over the published names of its weights.

Slow and plain: every pair of positions, float64, nothing of longspan. It stands for the two code bases that wrote
checkpoints, which differ in where the memory starts and in the order of the head's cluster columns.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """The settings of a model, by the names that both code bases use."""

    cutoffs: list[int] = field(default_factory=lambda: [20, 35])
    div_val: int = 1
    d_embed: int = 16
    tie_word_embeddings: bool = True
    tie_projs: list[bool] = field(default_factory=lambda: [False, True, True])
    untie_r: bool = True
    mem_len: int = 6
    clamp_len: int = 0
    same_length: bool = False
    batch: int = 1
    segment: int = 4
    vocab_size: int = 50
    d_model: int = 16
    n_head: int = 2
    d_inner: int = 24
    n_layer: int = 2

    @property
    def bounds(self) -> list[int]:
        return [0, *self.cutoffs, self.vocab_size]

    @property
    def settings(self) -> dict[str, object]:
        """What a config.json says."""
        names = ["cutoffs", "div_val", "d_embed", "tie_word_embeddings", "tie_projs", "untie_r", "mem_len", "clamp_len",
                 "same_length", "vocab_size", "d_model", "n_head", "d_inner", "n_layer"]  # fmt: skip
        fixed = {"model_type": "transfo-xl", "d_head": self.d_model // self.n_head, "pre_lnorm": False, "attn_type": 0}
        return {name: getattr(self, name) for name in names} | fixed


def random_weights(shape: Shape, layout: str, seed: int = 0) -> dict[str, Tensor]:
    """Return float32 weights as `state_dict` gives them, tied ones as the same tensor under two names.

    `layout` is "transformers" or "authors".
    """
    generator = torch.Generator().manual_seed(seed)

    def make(*size: int) -> Tensor:
        return torch.randn(size, generator=generator) * shape.d_model**-0.5

    d, weights = shape.d_model, {}
    widths = [shape.d_embed // shape.div_val**i for i in range(len(shape.cutoffs) + 1)]
    sizes = [end - start for start, end in zip(shape.bounds, shape.bounds[1:], strict=False)]
    tables = [(shape.vocab_size, shape.d_embed)] if shape.div_val == 1 else list(zip(sizes, widths, strict=True))
    projected = shape.div_val > 1 or shape.d_embed != d
    for i, size in enumerate(tables):
        weights[f"word_emb.emb_layers.{i}.weight"] = make(*size)
        if projected:
            weights[f"word_emb.emb_projs.{i}"] = make(d, size[1])
    weights["pos_emb.inv_freq"] = 1 / 10000 ** (torch.arange(0.0, d, 2.0) / d)
    shared = {name: make(shape.n_head, d // shape.n_head) for name in ("r_w_bias", "r_r_bias")}
    if not shape.untie_r:
        weights |= shared
    for layer in range(shape.n_layer):
        own = f"layers.{layer}."
        if layout == "transformers":
            for name, bias in shared.items():
                weights[f"{own}dec_attn.{name}"] = make(*bias.shape) if shape.untie_r else bias
        weights[own + "dec_attn.qkv_net.weight"] = make(3 * d, d)
        weights[own + "dec_attn.o_net.weight"] = make(d, d)
        weights[own + "dec_attn.r_net.weight"] = make(d, d)
        weights[own + "pos_ff.CoreNet.0.weight"] = make(shape.d_inner, d)
        weights[own + "pos_ff.CoreNet.0.bias"] = make(shape.d_inner)
        weights[own + "pos_ff.CoreNet.3.weight"] = make(d, shape.d_inner)
        weights[own + "pos_ff.CoreNet.3.bias"] = make(d)
        for part in ("dec_attn", "pos_ff"):
            weights[f"{own}{part}.layer_norm.weight"] = 1 + make(d)
            weights[f"{own}{part}.layer_norm.bias"] = make(d)
    if layout == "transformers":
        weights = {f"transformer.{name}": tensor for name, tensor in weights.items()}
    start = "transformer." if layout == "transformers" else ""
    if shape.cutoffs:
        weights["crit.cluster_weight"] = make(len(shape.cutoffs), shape.d_embed)
        weights["crit.cluster_bias"] = make(len(shape.cutoffs))
    for i, size in enumerate(tables):
        table = weights[f"{start}word_emb.emb_layers.{i}.weight"]
        weights[f"crit.out_layers.{i}.weight"] = table if shape.tie_word_embeddings else make(*size)
        weights[f"crit.out_layers.{i}.bias"] = make(size[0])
    if projected:
        for i, width in enumerate(widths if shape.div_val > 1 else [shape.d_embed] * len(widths)):
            projection = weights[f"{start}word_emb.emb_projs.{i if shape.div_val > 1 else 0}"]
            weights[f"crit.out_projs.{i}"] = projection if shape.tie_projs[i] else make(d, width)
    return weights


def start(shape: Shape, layout: str) -> list[Tensor]:
    """Return each layer's memory, (batch, positions, d_model), before the first token."""
    length = shape.mem_len if layout == "transformers" else 0
    return [torch.zeros(shape.batch, length, shape.d_model, dtype=torch.float64) for _ in range(shape.n_layer)]


def log_probabilities(
    weights: dict[str, Tensor], shape: Shape, layout: str, ids: Tensor, memory: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return the log-probability of every next token, (batch, positions, vocabulary), and the memory after `ids`."""
    weights = {name.removeprefix("transformer."): tensor.double() for name, tensor in weights.items()}
    x, after = _embed(weights, shape, ids), []
    for layer in range(shape.n_layer):
        seen = torch.cat((memory[layer], x), 1)
        after.append(seen[:, max(0, seen.shape[1] - shape.mem_len) :])
        x = _layer(weights, shape, layer, x, seen)
    return _head(weights, shape, layout, x), after


def _embed(weights: dict[str, Tensor], shape: Shape, ids: Tensor) -> Tensor:
    x = torch.zeros(*ids.shape, shape.d_model, dtype=torch.float64)
    for row, column in torch.cartesian_prod(*(torch.arange(size) for size in ids.shape)).tolist():
        token, cluster = int(ids[row, column]), 0
        if shape.div_val > 1:
            cluster = sum(token >= cutoff for cutoff in shape.cutoffs)
            token -= shape.bounds[cluster]
        vector = weights[f"word_emb.emb_layers.{cluster}.weight"][token]
        projection = weights.get(f"word_emb.emb_projs.{cluster}")
        x[row, column] = vector if projection is None else projection @ vector
    return x * shape.d_model**0.5


def _layer(weights: dict[str, Tensor], shape: Shape, layer: int, x: Tensor, seen: Tensor) -> Tensor:
    def weight(name: str) -> Tensor:
        return weights[f"layers.{layer}.{name}"]

    def norm(name: str, y: Tensor) -> Tensor:
        centred = y - y.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * weight(f"{name}.layer_norm.weight") + weight(f"{name}.layer_norm.bias")

    d, heads = shape.d_model, shape.n_head
    query, key, value = (part.unflatten(0, (heads, -1)) for part in weight("dec_attn.qkv_net.weight").chunk(3))
    by_distance = weight("dec_attn.r_net.weight").unflatten(0, (heads, -1))
    u, v = (weights.get(name, weights.get(f"layers.{layer}.dec_attn.{name}")) for name in ("r_w_bias", "r_r_bias"))
    assert u is not None
    assert v is not None
    frequencies = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    mixed = torch.zeros_like(x)
    for i in range(x.shape[1]):
        at = seen.shape[1] - x.shape[1] + i
        # With same_length, a position sees mem_len positions, itself included.
        first = max(0, at - shape.mem_len + 1) if shape.same_length else 0
        keys = seen[:, first : at + 1]
        distances = torch.arange(at - first, -1, -1, dtype=torch.float64)
        if shape.clamp_len > 0:
            distances = distances.clamp(max=shape.clamp_len)
        angles = distances.outer(frequencies)
        encoded = torch.cat((angles.sin(), angles.cos()), 1)
        q = torch.einsum("hed,bd->bhe", query, x[:, i])
        scores = torch.einsum("bhe,hed,bjd->bhj", q + u, key, keys)
        scores = scores + torch.einsum("bhe,hed,jd->bhj", q + v, by_distance, encoded)
        attended = (scores * (heads / d) ** 0.5).softmax(-1)
        mixed[:, i] = torch.einsum("bhj,hed,bjd->bhe", attended, value, keys).flatten(1)
    x = norm("dec_attn", x + mixed @ weight("dec_attn.o_net.weight").T)
    hidden = (x @ weight("pos_ff.CoreNet.0.weight").T + weight("pos_ff.CoreNet.0.bias")).clamp_min(0)
    return norm("pos_ff", x + hidden @ weight("pos_ff.CoreNet.3.weight").T + weight("pos_ff.CoreNet.3.bias"))


def _head(weights: dict[str, Tensor], shape: Shape, layout: str, x: Tensor) -> Tensor:
    def logits(cluster: int, rows: Tensor, bias: Tensor) -> Tensor:
        projection = weights.get(f"crit.out_projs.{cluster}")
        return (x if projection is None else x @ projection) @ rows.T + bias

    bounds = list(zip(shape.bounds, shape.bounds[1:], strict=False))
    if shape.div_val == 1:
        rows = [weights["crit.out_layers.0.weight"][start:end] for start, end in bounds]
        biases = [weights["crit.out_layers.0.bias"][start:end] for start, end in bounds]
    else:
        rows = [weights[f"crit.out_layers.{i}.weight"] for i in range(len(bounds))]
        biases = [weights[f"crit.out_layers.{i}.bias"] for i in range(len(bounds))]
    if not shape.cutoffs:
        return logits(0, rows[0], biases[0]).log_softmax(-1)
    head = logits(
        0,
        torch.cat((rows[0], weights["crit.cluster_weight"])),
        torch.cat((biases[0], weights["crit.cluster_bias"])),
    ).log_softmax(-1)
    parts = [head[..., : shape.cutoffs[0]]]
    for i in range(1, len(bounds)):
        # transformers counts the clusters' columns from the first word on, the authors from the end.
        column = head[..., shape.cutoffs[0] + i - 1] if layout == "transformers" else head[..., -i]
        parts.append(column.unsqueeze(-1) + logits(i, rows[i], biases[i]).log_softmax(-1))
    return torch.cat(parts, -1)
