"""Averages of neighbours along the edges of a graph, repeated: `propagate`."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def propagate(
    x: Float[Tensor, "n d"],
    source: Int[Tensor, " k"],
    target: Int[Tensor, " k"],
    steps: int,
    teleport: float = 0.0,
    counts: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "n d"]:
    """Return x after a number of steps of propagation along the edges.

    A step is:

        x ← (1 - teleport) · D^(-1/2) A D^(-1/2) x + teleport · x_0

    A has a one for each edge from a source to a target. The left D counts the edges that end at each node, the right D
    those that begin there. Cost: steps·k·d time and memory. With `counts` (`ops.counts`), an edge to another node is
    there as often as its source counts.

    Without teleport, this is the feature propagation of simplified graph convolutions (Wu et al. 2019,
    https://arxiv.org/abs/1902.07153). With teleport, it is personalised PageRank, as in APPNP (Gasteiger et al. 2019,
    https://arxiv.org/abs/1810.05997).
    """
    ones = x.new_ones(len(source))
    times = ones if counts is None else torch.where(source == target, ones, counts.to(x.dtype)[source])
    ends = x.new_zeros(len(x)).index_add(0, target, times)
    begins = x.new_zeros(len(x)).index_add(0, source, ones)
    # Nodes that all edges have left receive nothing.
    weights = (times * (ends[target].clamp_min(torch.finfo(x.dtype).tiny) * begins[source]).rsqrt()).unsqueeze(1)
    found = x
    for _ in range(steps):
        passed = torch.zeros_like(x).index_add(0, target, weights * found[source])
        found = (1 - teleport) * passed + teleport * x
    return found


def propagate_naive(x: Tensor, source: Tensor, target: Tensor, steps: int, teleport: float = 0.0) -> Tensor:
    """Compute `propagate` with a dense matrix."""
    matrix = x.new_zeros(len(x), len(x)).index_put((target, source), x.new_ones(len(source)), accumulate=True)
    ends, begins = matrix.sum(1).clamp_min(1), matrix.sum(0).clamp_min(1)
    matrix = matrix / ends.sqrt().unsqueeze(1) / begins.sqrt()
    found = x
    for _ in range(steps):
        found = (1 - teleport) * matrix @ found + teleport * x
    return found
