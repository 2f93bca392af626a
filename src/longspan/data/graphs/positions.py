"""Features of where nodes are in a graph: return probabilities of random walks, eigenvectors of the Laplacian."""

import numpy as np
import torch

from longspan.errors import UserError
from longspan.machine.imports import require

MOST = 1e12
"""Products that return probabilities may take: those of tens of thousands of nodes."""
_BLOCK = 256


def walk_positions(edges: np.ndarray, nodes: int, steps: int) -> np.ndarray:
    """Return the probability that a random walk from each node is there again after 1 to `steps` steps, (n, steps).

    A walk leaves a node by any of its edges alike (Dwivedi et al. 2022, https://arxiv.org/abs/2110.07875). Loops are
    left out. Cost: steps·nodes·edges time.

    Raises:
        UserError: The graph is too large.
    """
    source, target = _without_loops(edges)
    if float(nodes) * len(source) * steps > MOST:
        raise UserError(
            f"expected a smaller graph for data.walk_positions, whose cost is nodes times edges, got {nodes:,} nodes; "
            "leave it out."
        )
    degree = np.bincount(source, minlength=nodes)
    share = torch.from_numpy((1 / np.maximum(degree, 1))[source])
    # Transposed: a column per node that walks start from.
    walk = torch.sparse_coo_tensor(
        torch.from_numpy(np.stack((target, source))), share, (nodes, nodes), check_invariants=False
    ).coalesce()
    found = np.zeros((nodes, steps), np.float32)
    for first in range(0, nodes, _BLOCK):
        own = torch.arange(first, min(first + _BLOCK, nodes))
        there = torch.zeros(nodes, len(own), dtype=torch.float64)
        there[own, torch.arange(len(own))] = 1
        for step in range(steps):
            there = walk @ there
            found[first : first + len(own), step] = there[own, torch.arange(len(own))].numpy()
    return found


def eigenvector_positions(edges: np.ndarray, nodes: int, count: int) -> np.ndarray:
    """Return eigenvectors of the symmetrically normalised Laplacian of the undirected graph, (n, count).

    They are the eigenvectors of the largest connected part with the smallest eigenvalues above 0. Nodes of other parts
    have zeros. Vectors are multiplied by the square root of the number of nodes in that part, so that entries are
    around 1. The sign makes the largest entry in size positive. Loops are left out.

    Raises:
        UserError: scipy is missing, or the largest part has too few nodes.
    """
    require("scipy", "data.eigenvector_positions")
    from scipy import sparse
    from scipy.sparse import csgraph, linalg

    source, target = _without_loops(edges)
    joined = sparse.coo_matrix((np.ones(len(source)), (source, target)), (nodes, nodes)).tocsr()
    joined = ((joined + joined.T) > 0).astype(np.float64)
    _, parts = csgraph.connected_components(joined, directed=False)
    largest = np.flatnonzero(parts == np.bincount(parts).argmax())
    if len(largest) < count + 2:
        raise UserError(
            f"expected at least {count + 2:,} connected nodes for data.eigenvector_positions={count}, got "
            f"{len(largest):,}; lower it."
        )
    laplacian = csgraph.laplacian(joined[largest][:, largest], normed=True)
    if len(largest) <= 500:
        _, vectors = np.linalg.eigh(laplacian.toarray())
        vectors = vectors[:, 1 : count + 1]
    else:
        # The largest eigenvalues of 2 - L, which are found fast; from a start that is the same each time.
        start = np.random.default_rng(0).standard_normal(len(largest))
        values, vectors = linalg.eigsh(2 * sparse.identity(len(largest)) - laplacian, count + 1, which="LA", v0=start)
        vectors = vectors[:, np.argsort(-values)[1:]]
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(0), np.arange(count)])
    found = np.zeros((nodes, count), np.float32)
    found[largest] = vectors * len(largest) ** 0.5
    return found


def _without_loops(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    source, target = edges
    others = source != target
    return source[others], target[others]
