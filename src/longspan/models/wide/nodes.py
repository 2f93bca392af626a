"""Logistic regression on features of nodes and of their neighbours, and label propagation: `NodePart`."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.models.embeddings.nodes import feature_sums
from longspan.models.parts.losses import IGNORED
from longspan.models.wide.base import ScaledPart
from longspan.ops.propagation import propagate

#: Steps of label propagation.
STEPS = 50
#: Share of probabilities of propagated labels that is spread evenly over the classes.
_EVEN = 0.01


class NodePart(ScaledPart):
    """Two linear models and propagated labels of the nodes of graphs, in a weighted sum of logits.

    With node features X and the normalised adjacency matrix P of `ops.propagation`, the logits are

        s_0 (X W_0 + b_0) + s_1 (P^k X W_1 + b_1) + s_2 log F,   F ← a P F + (1 - a) F_0

    W_1 is that of a simplified graph convolution (Wu et al. 2019, https://arxiv.org/abs/1902.07153). F_0 has the known
    labels and, elsewhere, the probabilities of one of the linear models or nothing. That is label propagation (Zhou et
    al. 2003), or the smoothing of Correct and Smooth (Huang et al. 2021, https://arxiv.org/abs/2010.13993). Nothing
    here is learned by gradients. Cost: nonzero features and 50 times the edges, times the classes.

    Args:
        features: Number of features of a node, those of its position among them.
        classes: Number of classes.
    """

    weight: Tensor
    bias: Tensor
    shares: Tensor
    hops: Tensor
    retained: Tensor
    base: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        #: `(2, f, c)` and `(2, c)`: the models of own and of propagated features.
        self.register_buffer("weight", torch.empty(2, features, classes))
        self.register_buffer("bias", torch.empty(2, classes))
        #: Weights of own features, propagated features and propagated labels in the sum.
        self.register_buffer("shares", torch.empty(3))
        #: Steps k for features; share a for labels; the linear model in F_0, or 2 for none.
        self.register_buffer("hops", torch.empty((), dtype=torch.long))
        self.register_buffer("retained", torch.empty(()))
        self.register_buffer("base", torch.empty((), dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for tensor, value in ((self.hops, 1), (self.base, 2), (self.retained, 0.5)):
            nn.init.constant_(tensor, value)

    def forward(
        self,
        nodes: Int[Tensor, "b t"],
        columns: Int[Tensor, "b k"] | None,
        values: Float[Tensor, "b k"] | None,
        places: Float[Tensor, "b t p"] | None,
        edges: Int[Tensor, "3 m"],
        known: Int[Tensor, "b t"] | None = None,
        counts: Float[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return the logits in float32; see `LongspanForNodeClassification` for the arguments."""
        width = self.weight.shape[1] - (0 if places is None else places.shape[-1])
        row, source, target = edges
        source, target = row * nodes.shape[1] + source, row * nodes.shape[1] + target
        times = None if counts is None else counts.flatten()
        linear = []
        for weight in self.weight.float():
            found = feature_sums(nodes, columns, values, weight[:width])
            linear.append((found if places is None else found + places.float() @ weight[width:]).flatten(0, 1))
        own, passed = linear
        own = own + self.bias[0].float()
        passed = propagate(passed, source, target, int(self.hops), 0.0, times) + self.bias[1].float()
        labels = None if known is None else known.flatten()
        spread = spread_labels(labels, (own, passed), int(self.base), float(self.retained), source, target, times)
        total = torch.stack((own, passed, spread), -1) @ self.shares.float()
        return total.view(*nodes.shape, -1)


def spread_labels(
    known: Int[Tensor, " n"] | None,
    linear: tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]],
    base: int,
    retained: float,
    source: Int[Tensor, " m"],
    target: Int[Tensor, " m"],
    counts: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "n c"]:
    """Return the log-probabilities that labels have after they spread along edges.

    Args:
        known: Class of each node, -100 where it is not known.
        linear: Logits of the two linear models.
        base: The one of these whose probabilities nodes without a label have, or 2 for none.
        retained: Share of neighbours in each step.
        source: Where each edge begins.
        target: Where it ends.
        counts: How often each node counts for others.
    """
    start = torch.zeros_like(linear[0]) if base == 2 else linear[base].softmax(-1)
    if known is not None:
        given = known != IGNORED
        label = nn.functional.one_hot(known.where(given, 0), start.shape[1]).to(start.dtype)
        start = torch.where(given.unsqueeze(1), label, start)
    found = propagate(start, source, target, STEPS, 1 - retained, counts)
    total = found.sum(1, keepdim=True)
    even = 1 / start.shape[1]
    # Where no label arrives, all classes are alike.
    shares = torch.where(total > 0, found / total.clamp_min(torch.finfo(found.dtype).tiny), even)
    return ((1 - _EVEN) * shares + _EVEN * even).log()
