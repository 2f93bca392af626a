"""Additive attention in the order of the paper: `naive`, against which the mixer is checked."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longspan.mixers._naive import faded

if TYPE_CHECKING:
    from longspan.mixers.additive import Additive
else:
    # Its module imports this one.
    Additive = Any


def naive(
    mixer: Additive,
    x: Tensor,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Compute `mixer(x, mask, context=context, context_mask=context_mask)` in the paper's order, row by row and head by
    head (causal: prefix by prefix)."""
    source, source_mask = (x, mask) if context is None else (context, context_mask)
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = torch.arange(x.shape[1]) if mask is None else mask[row].nonzero().squeeze(1)
        known = source[row] if source_mask is None else source[row, source_mask[row]]
        if len(real) and len(known):
            y[row, real] = _naive_row(mixer, x[row, real], known, context is not None)
    return y


def _naive_row(mixer: Additive, x: Tensor, source: Tensor, across: bool) -> Tensor:
    """Compute one document (n, d) from the equations, its keys from `source` (m, d), another sequence if `across`."""
    prefixes = mixer.causal and not across

    def heads(tensor: Tensor) -> list[Tensor]:
        return list(tensor.chunk(mixer.heads, -1))

    fades = faded(mixer.forgetting, source)

    def mean(values: list[Tensor], scores: list[Tensor], whole: Tensor, scale: float) -> list[Tensor]:
        """Pool each head's values over all positions as (1, e), or over each prefix when causal, as (t, e)."""
        means = []
        for value, vector, fade in zip(values, scores, fades, strict=True):
            scored = value if vector.shape[0] == value.shape[1] else whole
            logits = (scored * vector).sum(-1) / scale
            if not prefixes and mixer.forgetting.kind != "none":
                # What lies between, in either order.
                means.append((logits - fade - fade.T).softmax(1) @ value)
            elif prefixes:
                ends = range(1, len(value) + 1)
                means.append(torch.stack([(logits[:n] - fade[n - 1, :n]).softmax(0) @ value[:n] for n in ends]))
            else:
                means.append(logits.softmax(0).unsqueeze(0) @ value)
        return means

    def project(linear: nn.Linear, tensor: Tensor) -> Tensor:
        return torch.cat([linear(tensor)] * (mixer.dim // mixer.projected), -1)

    def join(left: Tensor, right: Tensor) -> Tensor:
        return torch.cat((left.expand(len(right), -1), right), -1)

    def interact(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        known: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"product": torch.mul, "add": torch.add, "concat": join}
        operate = known[mixer.interaction]
        return [operate(*pair) for pair in zip(left, right, strict=True)]

    query = project(mixer.query, x)
    if not mixer.attends:
        return query
    scale = (mixer.dim / mixer.heads) ** 0.5
    key, value = project(mixer.key, source), query if mixer.value is None else project(mixer.value, x)
    asking = project(mixer.query, source) if across and mixer.causal else query
    global_query = mean(heads(asking), list(mixer.query_score), asking, scale)
    met = interact(global_query, heads(key))
    # All heads together: the whole vector, laid out as the score vectors are (global queries first, then keys).
    whole = join(torch.cat(global_query, -1), key) if mixer.interaction == "concat" else torch.cat(met, -1)
    global_key = mean(met, list(mixer.key_score), whole, scale)
    if mixer.interaction == "concat":
        width = mixer.dim // mixer.heads
        used = join(torch.cat([*(k[:, :width] for k in global_key), *(k[:, width:] for k in global_key)], -1), value)
    else:
        used = torch.cat(interact(global_key, heads(value)), -1)
    y: Tensor = mixer.output(used)
    return y + query if mixer.adds_query else y
