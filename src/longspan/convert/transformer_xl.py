"""Converting the published weights and settings of Transformer-XL language models to those of longspan."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longspan.convert.weights import Source
from longspan.errors import UserError

#: Settings that change the computation: the only supported value, and what others mean.
_FIXED = {
    "pre_lnorm": (False, "layer normalisation before attention"),
    "attn_type": (0, "another kind of attention"),
    "ext_len": (0, "an extended context"),
    "layer_norm_epsilon": (1e-5, "another epsilon in layer normalisation"),
}

#: Weights of the authors' other kinds of attention.
_OTHER_ATTENTION = re.compile(r"r_emb|r_bias|layers\.\d+\.dec_attn\.(q|kv)_net\.weight")


@dataclass(frozen=True)
class TransformerXL:
    """A Transformer-XL language model, ready for `LongspanForCausalLM`.

    Attributes:
        config: Arguments of `LongspanConfig`.
        weights: The model's state dict, float32; tied weights are the same tensor under several names.
        layout: "transformers" or "authors", depending on who wrote the checkpoint.
    """

    config: dict[str, Any]
    weights: dict[str, Tensor]
    layout: str


def read_transformer_xl(tensors: Mapping[str, Tensor], settings: Mapping[str, Any], path: Path) -> TransformerXL:
    """Return the model with these published weights.

    Sizes come from the weights. What the weights do not show, and what affects only training, comes from `settings`;
    sizes given there must agree.

    Args:
        tensors: Weights by name, as transformers' `TransfoXLLMHeadModel` ("transformer.layers.0...") or the authors'
            `MemTransformerLM` ("layers.0...") names them.
        settings: The contents of config.json, or the authors' arguments, under the names of `TransfoXLConfig`.
        path: The weights file, for messages.

    Raises:
        UserError: weights or settings are missing, do not fit each other, or belong to another model or to an
            unsupported variant.
    """
    layout = "transformers" if any(name.startswith("transformer.") for name in tensors) else "authors"
    source = Source({name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}, path)
    if "word_emb.emb_layers.0.weight" not in source:
        raise UserError(
            f"expected a Transformer-XL language model, with word_emb.emb_layers.0.weight, in {str(path)!r}, got other "
            f"weights ({', '.join(sorted(tensors)[:3])}, ...); use another checkpoint."
        )
    _check_supported(source, settings)
    shape = _sizes(source, settings)
    options = _memory(settings, layout, path)
    weights = _embeddings(source, shape) | _blocks(source, shape)
    head, tied = _head(source, shape, settings, layout)
    source.left.discard("pos_emb.inv_freq")
    if source.left:
        raise UserError(
            f"expected only weights of a Transformer-XL language model in {str(path)!r}, got {min(source.left)} "
            f"({len(source.left)} such weights); remove them."
        )
    config = {
        "vocab_size": shape.bounds[-1],
        "dim": shape.d_model,
        "depth": shape.n_layer,
        "heads": shape.n_head,
        "feed_forward_dim": shape.d_inner,
        "mixers": ["relative"],
        "mixer_options": {"relative": options},
        "causal": True,
        "position": "none",
        "embedding_dim": shape.d_embed,
        "cutoffs": list(shape.bounds[1:-1]),
        "div_val": shape.div_val,
        "scale_embeddings": True,
        "norm": "post",
        "embedding_norm": False,
        "activation": "relu",
        "dropout": _setting(settings, "dropout", (int, float), 0.1),
        "feed_forward_dropout": True,
        "pad_token_id": None,
        **tied,
    }
    return TransformerXL(config, weights | head, layout)


@dataclass(frozen=True)
class _Sizes:
    """Sizes by published name; `bounds` are the first token of each cluster, followed by the size of the vocabulary."""

    d_model: int
    d_embed: int
    d_inner: int
    n_head: int
    n_layer: int
    div_val: int
    bounds: tuple[int, ...]
    projected: bool

    @property
    def widths(self) -> list[int]:
        return [self.d_embed // self.div_val**i for i in range(len(self.bounds) - 1)]

    @property
    def clusters(self) -> list[int]:
        """The number of tokens in each cluster."""
        return [end - start for start, end in itertools.pairwise(self.bounds)]


def _check_supported(source: Source, settings: Mapping[str, Any]) -> None:
    for name, (supported, meaning) in _FIXED.items():
        if settings.get(name, supported) != supported:
            raise UserError(
                f"expected a Transformer-XL with {name}={supported}, got {name}={settings[name]!r}, {meaning}, which "
                "is not supported; use another checkpoint."
            )
    if _setting(settings, "sample_softmax", (int,), -1) > 0:
        raise UserError(
            "expected a Transformer-XL with an adaptive or full softmax, sample_softmax=-1, got "
            f"sample_softmax={settings['sample_softmax']}, a sampled one, which is not supported; use another "
            "checkpoint."
        )
    other = min(filter(_OTHER_ATTENTION.match, source.tensors), default=None)
    if other:
        raise UserError(
            f"expected a Transformer-XL with attn_type=0, got weights of another kind of attention ({other}) in "
            f"{str(source.path)!r}, which is not supported; use another checkpoint."
        )


def _sizes(source: Source, settings: Mapping[str, Any]) -> _Sizes:
    tables = source.count("word_emb.emb_layers.{}.weight")
    rows = [source.shape(f"word_emb.emb_layers.{i}.weight", 2) for i in range(tables)]
    clusters = 1 + (source.shape("crit.cluster_weight", 2)[0] if "crit.cluster_weight" in source else 0)
    d_embed = rows[0][1]
    if tables > 1:
        bounds = list(itertools.accumulate((size for size, _ in rows), initial=0))
    elif clusters > 1:
        bounds = [0, *_cutoffs(settings, source.path), rows[0][0]]
    else:
        bounds = [0, rows[0][0]]
    if len(bounds) - 1 != clusters or sorted(set(bounds)) != bounds:
        raise UserError(
            "expected as many rows of crit.cluster_weight as cutoffs, increasing and below the size of the vocabulary, "
            f"got {clusters - 1} rows and the cutoffs {bounds[1:-1]} of {bounds[-1]} tokens in {str(source.path)!r}; "
            "use weights and settings of one model."
        )
    n_head, d_head = source.shape(_bias(source, "r_w_bias", 0), 2)
    d_model = source.shape("layers.0.dec_attn.o_net.weight", 2)[0]
    if n_head * d_head != d_model:
        raise UserError(
            f"expected a Transformer-XL with n_head * d_head = d_model, got {n_head} heads of width {d_head} and a "
            f"model width of {d_model}, which is not supported; use another checkpoint."
        )
    sizes = _Sizes(
        d_model=d_model,
        d_embed=d_embed,
        d_inner=source.shape("layers.0.pos_ff.CoreNet.0.weight", 2)[0],
        n_head=n_head,
        n_layer=source.count("layers.{}.dec_attn.qkv_net.weight"),
        div_val=_div_val(rows, source, settings, d_model),
        bounds=tuple(bounds),
        projected="word_emb.emb_projs.0" in source,
    )
    found = {name: getattr(sizes, name) for name in ("d_model", "d_embed", "d_inner", "n_head", "n_layer", "div_val")}
    found |= {"d_head": d_head, "vocab_size": bounds[-1], "n_token": bounds[-1], "cutoffs": bounds[1:-1]}
    for name, value in found.items():
        # With a single cluster, div_val does not affect sizes.
        unsaid = name == "div_val" and clusters == 1
        if name in settings and settings[name] != value and not unsaid:
            raise UserError(
                f"expected {name}={value} in the settings, according to the weights in {str(source.path)!r}, got "
                f"{settings[name]!r}; use weights and settings of one model."
            )
    return sizes


def _div_val(rows: Sequence[tuple[int, ...]], source: Source, settings: Mapping[str, Any], d_model: int) -> int:
    """Return by how much each cluster's vectors are narrower than the one's before."""
    d_embed = rows[0][1]
    if len(rows) == 1:
        # Narrowing by anything but 1 projects always, and with one cluster there is nothing to narrow.
        return 2 if "word_emb.emb_projs.0" in source and d_embed == d_model else 1
    given = settings.get("div_val")
    for div_val in [given] if isinstance(given, int) and given > 1 else range(2, d_embed + 1):
        if all(width == d_embed // div_val**i for i, (_, width) in enumerate(rows)):
            return div_val
    raise UserError(
        f"expected the width of each cluster's embeddings in {str(source.path)!r} to be the previous one's divided by "
        f"div_val{'' if given is None else f'={given}'}, got {[width for _, width in rows]}; use another file."
    )


def _cutoffs(settings: Mapping[str, Any], path: Path) -> list[int]:
    cutoffs = settings.get("cutoffs")
    if not isinstance(cutoffs, list) or not all(isinstance(cutoff, int) for cutoff in cutoffs):
        raise UserError(
            f"expected cutoffs in config.json next to {str(path)!r} to list the first token of each cluster but the "
            f"first, as the weights do not have them, got {cutoffs!r}; correct them."
        )
    return cutoffs


def _memory(settings: Mapping[str, Any], layout: str, path: Path) -> dict[str, Any]:
    """Return the options of the mixer."""
    missing = [name for name in ("mem_len", "clamp_len", "same_length") if name not in settings]
    if missing:
        raise UserError(
            f"expected {', '.join(missing)} in a config.json next to {str(path)!r}, as the weights do not have them, "
            'got none; write them there, like {"mem_len": 1600, "clamp_len": 1000, "same_length": true}.'
        )
    memory = _setting(settings, "mem_len", (int,), 0)
    same_length = _setting(settings, "same_length", (bool,), False)
    if memory < same_length:
        raise UserError(f"expected mem_len of at least 1 with same_length, got {memory}; correct it.")
    return {
        # A position counts itself among the mem_len that it sees.
        "memory": memory - 1 if same_length else memory,
        "same_length": same_length,
        "clamp": max(0, _setting(settings, "clamp_len", (int,), 0)),
        "start": "zeros" if layout == "transformers" else "empty",
    }


def _setting(settings: Mapping[str, Any], name: str, kinds: tuple[type, ...], default: Any) -> Any:
    value = settings.get(name, default)
    # bool is a kind of int in Python.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise UserError(f"{name} in the settings must be of type {kinds[-1].__name__}, got {value!r}; correct it.")
    return value


def _bias(source: Source, kind: str, layer: int) -> str:
    """Return the name of a layer's bias, which all layers may share."""
    own = f"layers.{layer}.dec_attn.{kind}"
    return kind if own not in source and kind in source else own


def _embeddings(source: Source, sizes: _Sizes) -> dict[str, Tensor]:
    weights = {}
    for i, table in enumerate(_by_cluster(source, "word_emb.emb_layers.{}.weight", sizes, sizes.widths)):
        weights[f"longspan.embeddings.table.tables.{i}.weight"] = table
    if sizes.projected:
        for i, width in enumerate(sizes.widths if sizes.div_val > 1 else sizes.widths[:1]):
            projection = source.take(f"word_emb.emb_projs.{i}", sizes.d_model, width)
            weights[f"longspan.embeddings.table.projections.{i}.weight"] = projection
    return weights


def _by_cluster(source: Source, name: str, sizes: _Sizes, widths: Sequence[int] | None) -> list[Tensor]:
    """Return a weight of each cluster; with div_val=1 they are stored as one. Biases have no `widths`."""
    if sizes.div_val == 1:
        whole = source.take(name.format(0), sizes.bounds[-1], *(widths[:1] if widths else ()))
        # Copies: a file of weights cannot hold parts of a tensor.
        return [part.clone() for part in whole.split(sizes.clusters)]
    return [
        source.take(name.format(i), size, *((widths[i],) if widths else ())) for i, size in enumerate(sizes.clusters)
    ]


def _blocks(source: Source, sizes: _Sizes) -> dict[str, Tensor]:
    d, weights = sizes.d_model, {}
    for layer in range(sizes.n_layer):
        own, block = f"layers.{layer}.", f"longspan.backbone.blocks.{layer}."
        joined = source.take(own + "dec_attn.qkv_net.weight", 3 * d, d)
        for name, part in zip(("query", "key", "value"), joined.chunk(3), strict=True):
            weights[f"{block}mixer.{name}.weight"] = part.clone()
        weights[block + "mixer.distance.weight"] = source.take(own + "dec_attn.r_net.weight", d, d)
        weights[block + "mixer.output.weight"] = source.take(own + "dec_attn.o_net.weight", d, d)
        for kind, name in (("r_w_bias", "content_bias"), ("r_r_bias", "distance_bias")):
            bias = source.take(_bias(source, kind, layer), sizes.n_head, d // sizes.n_head)
            weights[f"{block}mixer.{name}"] = bias.clone()
            source.left.discard(kind)
        for theirs, ours, out, into in (("0", "0", sizes.d_inner, d), ("3", "2", d, sizes.d_inner)):
            weights[f"{block}feed_forward.{ours}.weight"] = source.take(
                f"{own}pos_ff.CoreNet.{theirs}.weight", out, into
            )
            weights[f"{block}feed_forward.{ours}.bias"] = source.take(f"{own}pos_ff.CoreNet.{theirs}.bias", out)
        for theirs, ours in (("dec_attn", "mixer_norm"), ("pos_ff", "feed_forward_norm")):
            for kind in ("weight", "bias"):
                weights[f"{block}{ours}.{kind}"] = source.take(f"{own}{theirs}.layer_norm.{kind}", d)
    return weights


def _head(
    source: Source, sizes: _Sizes, settings: Mapping[str, Any], layout: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights of the adaptive softmax, and which of them are tied to the embeddings."""
    weights = {}
    tables = range(1 if sizes.div_val == 1 else len(sizes.widths))
    tied = _tied_words(source, settings, layout, tables)
    if tied:
        for i in tables:
            source.left.discard(f"crit.out_layers.{i}.weight")
    name = "word_emb.emb_layers.{}.weight" if tied else "crit.out_layers.{}.weight"
    for i, table in enumerate(_by_cluster(source, name, sizes, sizes.widths)):
        weights[f"lm_head.outputs.{i}.weight"] = table
    for i, bias in enumerate(_by_cluster(source, "crit.out_layers.{}.bias", sizes, None)):
        weights[f"lm_head.outputs.{i}.bias"] = bias
    clusters = len(sizes.widths) - 1
    if clusters:
        weight = source.take("crit.cluster_weight", clusters, sizes.d_embed)
        bias = source.take("crit.cluster_bias", clusters)
        # The authors' PyTorch code has the last cluster's column first.
        order = torch.arange(clusters) if layout == "transformers" else torch.arange(clusters - 1, -1, -1)
        weights |= {"lm_head.clusters.weight": weight[order], "lm_head.clusters.bias": bias[order]}
    projections = [False] * (clusters + 1)
    if sizes.projected:
        projections = _tied_projections(source, sizes, settings, layout)
        for i, (width, is_tied) in enumerate(zip(sizes.widths, projections, strict=True)):
            theirs = f"word_emb.emb_projs.{i if sizes.div_val > 1 else 0}" if is_tied else f"crit.out_projs.{i}"
            weights[f"lm_head.projections.{i}.weight"] = source.take(theirs, sizes.d_model, width)
            source.left.discard(f"crit.out_projs.{i}")
    return weights, {"tie_word_embeddings": tied, "tie_projections": projections}


def _tied_words(source: Source, settings: Mapping[str, Any], layout: str, tables: range) -> bool:
    """Return whether the output weights are the word vectors: transformers ties them on loading, the authors before."""
    if layout == "transformers":
        return bool(_setting(settings, "tie_word_embeddings", (bool,), True))
    return all(_same(source, f"crit.out_layers.{i}.weight", f"word_emb.emb_layers.{i}.weight") for i in tables)


def _tied_projections(source: Source, sizes: _Sizes, settings: Mapping[str, Any], layout: str) -> list[bool]:
    number = len(sizes.widths)
    if layout == "transformers":
        shared = settings.get("proj_share_all_but_first", True)
        ties = settings.get("tie_projs", [False] + [shared] * (number - 1))
        if not isinstance(ties, list):
            raise UserError(f"tie_projs in the settings must list true or false per cluster, got {ties!r}; correct it.")
        return [bool(tie) for tie in (*ties, *[False] * number)][:number]
    embedded = (i if sizes.div_val > 1 else 0 for i in range(number))
    return [_same(source, f"crit.out_projs.{i}", f"word_emb.emb_projs.{j}") for i, j in enumerate(embedded)]


def _same(source: Source, one: str, other: str) -> bool:
    """Return whether two weights are equal, or the first is omitted because it would be."""
    return one not in source or (other in source and torch.equal(source.tensors[one], source.tensors[other]))
