"""Tiny settings of any configuration of transformers."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from longspan.errors.hints import matches
from longspan.models import LongspanConfig

LAYERS = 3
"""Layers of a tiny model, where its layers are all alike; a hybrid has more, so that each kind is there."""
VOCABULARY = 40
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
"""Numbers of special tokens; others are drawn from 3 on."""
WIDTH, HEADS = 32, 4

#: Values by the name of a setting, for all configurations that have it as a number.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim", "lru_width"), WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "linear_num_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("linear_head_dim", "attention_head_size", "v_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "query_pre_attn_scalar"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "adapter_rank"), 8),
    "linear_num_value_heads": HEADS,
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "d_inner", "dff", "feed_forward_size"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "moe_intermediate_size"), 48),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size"), 24),
    "moe_shared_expert_intermediate_size": 24,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "first_k_dense_replace", "num_dense_layers"), 1),
    # States, and chunks that are shorter than the rows and do not divide them.
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state"), 8),
    **dict.fromkeys(("mamba_n_heads", "n_mamba_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 8),
    **dict.fromkeys(("n_groups", "mamba_n_groups", "mamba_ngroups"), 2),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank"), 4),
    "mamba_d_ssm": 64,
    **dict.fromkeys(("chunk_size", "mamba_chunk_size", "block_size"), 8),
    # Windows that are shorter than the rows.
    **dict.fromkeys(("sliding_window", "attention_window_size", "window_size", "local_attention"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "context_length"), 128),
    **dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings"), 128),
    "vocab_size": VOCABULARY,
    "type_vocab_size": 2,
    "cls_token_id": 1,
    **dict.fromkeys(("sep_token_id", "forced_eos_token_id"), 2),
    # Of the order of 1 / sqrt(width), so that every part of the model has an influence that can be measured.
    **dict.fromkeys(("initializer_range", "init_std"), 0.15),
}

#: Names of the number of layers.
DEPTHS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks", "encoder_layers", "decoder_layers"),
    "num_decoder_layers",
)
#: Parts of the names of rates of dropout and of noise.
NOISE = ("dropout", "pdrop", "layerdrop", "jitter")

#: What else a type needs, by its name: sizes that depend on each other.
OF_TYPES: dict[str, dict[str, Any]] = {
    **{
        name: {"num_key_value_heads": HEADS} for name in ("bailing_hybrid", "deepseek_v2", "deepseek_v3", "kimi_linear")
    },
    "bamba": {"attn_layer_indices": [1]},
    # Rows of the checks are long enough for sparse attention.
    **{name: {"block_size": 1, "num_random_blocks": 1} for name in ("big_bird", "bigbird_pegasus")},
    "funnel": {"block_sizes": [1, 1], "block_repeats": None, "num_decoder_layers": 1},
    "gpt_neo": {
        "num_layers": 2,
        "attention_types": [[["global", "local"], 1]],
        "attention_layers": ["global", "local"],
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "mamba2": {"num_heads": 8},
    **{name: {"attention_window": 8} for name in ("led", "longformer")},
    "lfm2": {
        "num_hidden_layers": 3,
        "full_attn_idxs": [1],
        "layer_types": ["conv", "full_attention", "conv"],
        "block_multiple_of": 8,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "reformer": {
        "hash_seed": 0,
        "axial_pos_shape": [8, 16],
        "axial_pos_embds_dim": [16, 16],
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "num_hidden_layers": 2,
        "attn_layers": ["local", "lsh"],
    },
    "rwkv": {"attention_hidden_size": WIDTH},
    # Its cache has room for widths that are multiples of 64.
    "xlstm": {"hidden_size": 128},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "n_mamba_heads": 2,
        "num_key_value_heads": HEADS,
        "attention_head_dim": 16,
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_key_value_heads": HEADS,
    },
}


def tiny(config: PreTrainedConfig, causal: bool) -> PreTrainedConfig:
    """Return a configuration of the same class with small sizes, and with each kind of layer that `config` has.

    Args:
        config: the configuration.
        causal: whether the model is to be a decoder, where the class can be either.
    """
    given = config.to_dict()
    if isinstance(config, LongspanConfig):
        return _tiny_longspan(config, causal)
    own = OF_TYPES.get(config.model_type, {})
    changes = {name: value for name, value in SIZES.items() if matches(given.get(name), float)}
    changes |= _without_noise(given)
    kinds, depth = _layers(given)
    changes |= {name: depth for name in DEPTHS if matches(given.get(name), float)} | kinds
    if causal and "is_decoder" in given:
        changes["is_decoder"] = True
    kept = {name: value for name, value in given.items() if name in _KEPT}
    return type(config)(**{**kept, **changes, **SPECIAL, **own})


def _tiny_longspan(config: LongspanConfig, causal: bool) -> LongspanConfig:
    """Return the same model, mixers and options included, with small sizes."""
    given = config.to_dict()
    depth = max(2, len(config.mixers or ()))
    sizes = {"dim": WIDTH, "depth": depth, "heads": HEADS, "vocab_size": VOCABULARY, "embedding_dim": None}
    embeddings = dict(given["embeddings"] or {})
    if embeddings.get("ngrams"):
        embeddings["ngram_buckets"] = 64
    parts = {"embeddings": embeddings, "causal": causal or config.causal}
    special = {name: value for name, value in SPECIAL.items() if given.get(name) is not None}
    return LongspanConfig(**{**given, **sizes, **_without_noise(given), **parts, **special})


#: Settings that are not sizes, and that a tiny configuration takes over from the given one.
_KEPT = {"hidden_act", "tie_word_embeddings", "position_embedding_type"}


def _without_noise(given: Mapping[str, Any]) -> dict[str, float]:
    return {name: 0.0 for name, value in given.items() if matches(value, float) and any(map(name.count, NOISE))}


def _layers(given: Mapping[str, Any]) -> tuple[dict[str, list[Any]], int]:
    """Return settings that list a kind for each layer, shortened, and the number of layers."""
    depth = next((given[name] for name in DEPTHS if matches(given.get(name), float)), None)
    lists = {name: value for name, value in given.items() if isinstance(value, list) and value and len(value) == depth}
    rows = list(zip(*lists.values(), strict=True)) if lists else []
    hashable = [row for row in rows if all(isinstance(cell, str | int | float | bool) for cell in row)]
    chosen = list(dict.fromkeys(hashable))
    if not chosen:
        return {}, LAYERS
    # One more of the first kind: a layer after each.
    chosen = [*chosen, *chosen[:1] * max(1, LAYERS - len(chosen))]
    return {name: [row[place] for row in chosen] for place, name in enumerate(lists)}, len(chosen)
