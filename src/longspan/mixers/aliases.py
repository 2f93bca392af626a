"""Names that people search for: each is a mixer with some of its options set."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Alias(NamedTuple):
    """The name of a mixer, and the options that differ from its defaults; options given by users override them."""

    mixer: str
    options: Mapping[str, Any]


ALIASES: Mapping[str, Alias] = {
    "cnn": Alias("convolution", {}),
    # The paper's choices are additive's defaults.
    "fastformer": Alias("additive", {}),
    "gru": Alias("recurrent", {"cell": "gru"}),
    "lstm": Alias("recurrent", {"cell": "lstm"}),
    "sru": Alias("recurrent", {"cell": "sru"}),
    # Published as a language model, with a memory.
    "transformer_xl": Alias("relative", {"causal": True}),
}

#: Other names of mixers, for suggestions only: these words do not name one.
MEANT: Mapping[str, str] = {
    "abc": "bounded_memory",
    "attention": "softmax",
    "bidirectional_lstm": "lstm",
    "bilstm": "lstm",
    "conv": "convolution",
    "delta_rule": "delta",
    "deltanet": "delta",
    "dot_product": "softmax",
    "full": "softmax",
    "gated_delta": "delta",
    "gated_deltanet": "delta",
    "gated_linear_attention": "gated_linear",
    "gated_slot_attention": "bounded_memory",
    "gat": "graph",
    "gla": "gated_linear",
    "gnn": "graph",
    "linear_attention": "linear",
    "linear_transformer": "linear",
    "lsh": "reformer",
    "mamba": "gated_linear",
    "mamba2": "gated_linear",
    "mha": "softmax",
    "multi_head_attention": "softmax",
    "retention": "gated_linear",
    "retnet": "gated_linear",
    "rnn": "recurrent",
    "self_attention": "softmax",
    "sliding_window": "local",
    "transformer": "softmax",
    "vanilla": "softmax",
    "window": "local",
    "xl": "transformer_xl",
}
