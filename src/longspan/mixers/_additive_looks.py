"""What additive attention shows: the weights α of its global query and β of its global key."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longspan.mixers._looks import Look, pooled, there, time_constants, weights_at
from longspan.ops.pooling import prefix_softmax_mean, window_softmax_mean

if TYPE_CHECKING:
    from longspan.mixers.additive import Additive
else:
    # Its module imports this one.
    Additive = Any


def look_at_additive(mixer: Additive, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
    """Return α and β per head, as seen from `at`."""
    if not mixer.attends:
        return Look(at)
    rates = mixer.forgetting(x, mask)
    logits = mixer.logits(mixer.project(mixer.query, x), mixer.query_score)
    alpha = weights_at(logits, mask, at, rates, mixer.causal)
    asked, met = _meetings(mixer, x, mask, alpha, at)
    *for_query, for_key = mixer.key_score.chunk(2 if mixer.interaction == "concat" else 1, 1)
    key_logits = mixer.logits(met.flatten(2), for_key)
    if for_query:
        key_logits = key_logits + mixer.logits(asked.flatten(2), *for_query)
    beta = weights_at(key_logits, mask, at, rates, mixer.causal)
    return Look(at, {"alpha": alpha, "beta": beta}, time_constants=time_constants(rates, mask))


def pool_additive(mixer: Additive, x: Tensor, mask: Tensor | None, look: Look, at: Tensor) -> Tensor:
    """Return the outputs at `at`, from the global query and the global key that α and β pool."""
    query = there(mixer.project(mixer.query, x), at)
    if not mixer.attends:
        return query
    asked, met = _meetings(mixer, x, mask, look.weights["alpha"], at)
    if mixer.interaction == "concat":
        met = torch.cat((asked.expand_as(met), met), -1)
    key = pooled(look.weights["beta"], met).to(x.dtype)
    value = query if mixer.value is None else there(mixer.project(mixer.value, x), at)
    if mixer.interaction == "concat":
        used = torch.cat([*(part.flatten(1) for part in key.chunk(2, -1)), value], -1)
    else:
        used = key.flatten(1) * value if mixer.interaction == "product" else key.flatten(1) + value
    y: Tensor = mixer.output(used)
    return y + query if mixer.adds_query else y


def _meetings(
    mixer: Additive, x: Tensor, mask: Tensor | None, alpha: Tensor, at: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the global queries (b, t or 1, h, e), that at `at` pooled with α, and p_t or, with "concat", k_t.

    A global query of each position takes one pass; α is that of one position alone.
    """
    query, key = (mixer.split(mixer.project(projection, x)) for projection in (mixer.query, mixer.key))
    own = pooled(alpha, query).to(x.dtype)
    if mixer.differs_by_position:
        logits, rates = mixer.logits(query.flatten(2), mixer.query_score), mixer.forgetting(x, mask)
        if mixer.causal or rates is None:
            asked = prefix_softmax_mean(query, logits, mask, rates=rates)[0]
        else:
            asked = window_softmax_mean(query, logits, mask, rates)
        if at is not None:
            asked = asked.clone()
            asked[torch.arange(len(at), device=at.device), at] = own.to(asked.dtype)
    else:
        asked = own.unsqueeze(1)
    return asked, asked * key if mixer.interaction == "product" else asked + key if mixer.interaction == "add" else key
