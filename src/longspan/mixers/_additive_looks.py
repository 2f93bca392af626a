"""What additive attention shows: the weights α of its global query and β of its global key."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longspan.mixers._looks import Look, gathered, there, time_constants, weights_after, weights_at
from longspan.ops.pooling import PrefixMean, prefix_softmax_mean, window_softmax_mean

if TYPE_CHECKING:
    from longspan.mixers.additive import Additive, AdditiveState
else:
    # Its module imports this one.
    Additive = AdditiveState = Any


def look_at_additive(
    mixer: Additive, x: Tensor, mask: Tensor | None, at: Tensor | None, state: AdditiveState | None = None
) -> Look:
    """Return α and β per head, as seen from `at`."""
    if not mixer.attends:
        return Look(at)
    rates = mixer.forgetting(x, mask)

    def more(look: Look, name: str, logits: Tensor, before: PrefixMean | None) -> Look:
        if before is None or at is None:
            return replace(look, weights={**look.weights, name: weights_at(logits, mask, at, rates, mixer.causal)})
        weights, carried = weights_after(before, logits, mask, at, rates)
        return replace(look, weights={**look.weights, name: weights}, carried={**look.carried, name: carried})

    look = Look(at, time_constants=time_constants(rates, mask), state=state)
    logits = mixer.logits(mixer.project(mixer.query, x), mixer.query_score)
    look = more(look, "alpha", logits, None if state is None else state.query)
    asked, met = _meetings(mixer, x, mask, look, at)
    *for_query, for_key = mixer.key_score.chunk(2 if mixer.interaction == "concat" else 1, 1)
    key_logits = mixer.logits(met.flatten(2), for_key)
    if for_query:
        key_logits = key_logits + mixer.logits(asked.flatten(2), *for_query)
    return more(look, "beta", key_logits, None if state is None else state.key)


def pool_additive(mixer: Additive, x: Tensor, mask: Tensor | None, look: Look, at: Tensor) -> Tensor:
    """Return the outputs at `at`, from the global query and the global key that α and β pool."""
    query = there(mixer.project(mixer.query, x), at)
    if not mixer.attends:
        return query
    asked, met = _meetings(mixer, x, mask, look, at)
    if mixer.interaction == "concat":
        met = torch.cat((asked.expand_as(met), met), -1)
    key = gathered(look, "beta", met).to(x.dtype)
    value = query if mixer.value is None else there(mixer.project(mixer.value, x), at)
    if mixer.interaction == "concat":
        used = torch.cat([*(part.flatten(1) for part in key.chunk(2, -1)), value], -1)
    else:
        used = key.flatten(1) * value if mixer.interaction == "product" else key.flatten(1) + value
    y: Tensor = mixer.output(used)
    return y + query if mixer.adds_query else y


def _meetings(mixer: Additive, x: Tensor, mask: Tensor | None, look: Look, at: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the global queries (b, t or 1, h, e), that at `at` pooled with α, and p_t or, with "concat", k_t.

    A global query of each position takes one pass; α is that of one position alone.
    """
    query, key = (mixer.split(mixer.project(projection, x)) for projection in (mixer.query, mixer.key))
    own = gathered(look, "alpha", query).to(x.dtype)
    if mixer.differs_by_position:
        logits, rates = mixer.logits(query.flatten(2), mixer.query_score), mixer.forgetting(x, mask)
        if mixer.causal or rates is None:
            before = None if look.state is None else look.state.query
            asked = prefix_softmax_mean(query, logits, mask, before, rates=rates)[0]
        else:
            asked = window_softmax_mean(query, logits, mask, rates)
        if at is not None:
            asked = asked.clone()
            asked[torch.arange(len(at), device=at.device), at] = own.to(asked.dtype)
    else:
        asked = own.unsqueeze(1)
    return asked, asked * key if mixer.interaction == "product" else asked + key if mixer.interaction == "add" else key
