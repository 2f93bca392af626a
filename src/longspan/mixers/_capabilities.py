"""What a class of mixers can do, read by models, training and tools."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Capabilities:
    """What a class of mixers can do.

    Attributes:
        causal: there is a form in which no position sees a later one, chosen by the option `causal`.
        streaming: that form continues from a state: `init_state`, `step`, `reset`.
        context: x may attend to another sequence instead of itself (cross attention).
        weights: cross attention has a weight for each position of the context and each of x (`context_weights`).
        packing: one row may hold several documents (`document_ids`).
        structure: class of the `structure` that `forward` takes, such as `longspan.mixers.graph.Edges`; None for none.
        counts: `mix` and `mix_context` take masks of counts (`longspan.ops.counts`); without it, counts scale the
            inputs.
        looks: it shows how it reads a row (`look`), and reproduces its outputs from that.
    """

    causal: bool = False
    streaming: bool = False
    context: bool = False
    weights: bool = False
    packing: bool = True
    structure: type | None = None
    counts: bool = False
    looks: bool = False
