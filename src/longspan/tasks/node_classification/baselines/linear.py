"""Linear models of features and propagated labels, summed: `Linear`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.errors import UserError
from longspan.machine.memory import memory_limit
from longspan.models.parts.losses import IGNORED
from longspan.models.wide.nodes import NodePart, spread_labels
from longspan.ops.propagation import propagate
from longspan.tasks.base.classes import ClassificationScores, best_scales, calibrated_loss
from longspan.tasks.base.linear import LinearFit, fit_linear
from longspan.tasks.base.task import Counted, Counts, Fitted, Prepared, Recipe
from longspan.tasks.node_classification.baselines._nodes import LabelledGraph

#: Steps of propagated features, one after the other, and shares of neighbours in propagated labels, that validation
#: chooses from.
HOPS, SHARES = (1, 2, 3, 4), (0.5, 0.8, 0.9, 0.95, 0.99)
#: Features that are propagated at once.
_COLUMNS = 64
NAMES = ("own features", "propagated features", "propagated labels")


class Linear(Counts[ClassificationScores]):
    """Logistic regression on own and on propagated features and label propagation, in a weighted sum.

    With `model.wide`, models contain it (`longspan.models.wide.nodes.NodePart`).
    """

    def count(self, recipe: Recipe, prepared: Prepared) -> Counted:
        part, _, _ = _fitted(LabelledGraph.prepared(prepared))

        def enter(model: PreTrainedModel) -> None:
            model.wide.load_state_dict(part.state_dict())

        return Counted({}, enter)

    def fit(self, recipe: Recipe) -> Fitted[ClassificationScores]:
        known = LabelledGraph.of(recipe)
        part, chosen, logits = _fitted(known)
        return Fitted(known.scores(logits), chosen, part.weight.numel() + part.bias.numel())


def _fitted(graph: LabelledGraph) -> tuple[NodePart, dict[str, Any], Tensor]:
    """Part fitted to the training nodes of a graph, what the validation nodes chose, and the logits of all nodes."""
    classes, count = len(graph.classes), len(graph.features)
    train, held_out = graph.nodes["train"], graph.nodes["validation"]
    labels, truth = graph.labels["train"], graph.labels["validation"]
    wanted = torch.cat((train, held_out))
    needed, memory = 6 * len(wanted) * graph.features.shape[1] * 4, memory_limit()
    if needed > memory:
        raise UserError(
            f"expected features of labelled nodes that fit in {memory / 2**30:.0f} GiB of memory, got "
            f"{len(wanted):,} nodes with {graph.features.shape[1]:,} features; set model.wide=false."
        )

    def fit(rows: Tensor) -> LinearFit:
        return fit_linear(rows[: len(train)], labels, rows[len(train) :], truth, classes)

    own = fit(graph.features[wanted])
    hops, passed = min(((hops, fit(rows)) for hops, rows in _propagated(graph, wanted)), key=lambda each: each[1].loss)
    part = NodePart(graph.features.shape[1], classes)
    part.weight.copy_(torch.stack((own.weight, passed.weight)))
    part.bias.copy_(torch.stack((own.bias, passed.bias)))
    part.hops.fill_(hops)
    given = torch.full((count,), IGNORED).index_put((train,), labels)
    linear = (
        graph.features @ own.weight + own.bias,
        propagate(graph.features @ passed.weight, graph.source, graph.target, hops) + passed.bias,
    )

    mixed = []
    for base in range(3):
        spread = [spread_labels(given, linear, base, share, graph.source, graph.target) for share in SHARES]
        share, best = min(zip(SHARES, spread, strict=True), key=lambda each: calibrated_loss(each[1][held_out], truth))
        every = torch.stack((*linear, best), 1)
        shares = _shares(every[held_out], truth)
        logits = (shares[:, None] * every).sum(1)
        mixed.append((calibrated_loss(logits[held_out], truth), base, share, shares, logits))
    _, base, share, shares, logits = min(mixed, key=lambda each: each[0])
    part.base.fill_(base)
    part.retained.fill_(share)
    part.shares.copy_(shares)
    chosen: dict[str, Any] = {
        name: round(float(weight), 3) for name, weight in zip(NAMES, part.shares, strict=True) if weight
    }
    return part, {**chosen, "hops": hops, "share of neighbours": share}, logits


def _shares(parts: Tensor, truth: Tensor) -> Tensor:
    """Weights of the logits of parts (n, k, c) in their sum, (k,)."""
    losses, factors = zip(*(calibrated_loss(logits, truth) for logits in parts.unbind(1)), strict=True)
    scaled = torch.tensor(factors)[:, None] * parts
    # The best comes first: the others have to add to it.
    order = sorted(range(len(losses)), key=lambda number: losses[number])
    scales = torch.ones(1)
    while len(order) > 1:
        scales = best_scales(scaled[:, order], truth)
        if bool((scales > 0).all()):
            break
        # What has nothing to add leaves its weight to the others.
        order = [number for number, scale in zip(order, scales.tolist(), strict=True) if scale] or order[:1]
        scales = torch.ones(1)
    return torch.zeros(len(losses)).index_put((torch.tensor(order),), scales) * torch.tensor(factors)


def _propagated(graph: LabelledGraph, wanted: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield features of some nodes after each number of `HOPS`, (m, f)."""
    parts = list(graph.features.split(_COLUMNS, 1))
    for hops in HOPS:
        parts = [propagate(some, graph.source, graph.target, 1) for some in parts]
        yield hops, torch.cat([some[wanted] for some in parts], 1)
