"""Neighbourhoods drawn at random around some nodes of a large graph: `Neighbourhoods`."""

import numpy as np

from longspan.data.graphs.graph import ranges


class Neighbourhoods:
    """Parts of a graph around nodes, as of GraphSAGE (Hamilton et al. 2017, https://arxiv.org/abs/1706.02216).

    Args:
        edges: (2, m), those of a `Graph`.
        nodes: Number of nodes.
        fanout: Number of edges drawn of those that end at a node, its loop besides.
        hops: Number of times.
    """

    def __init__(self, edges: np.ndarray, nodes: int, fanout: int, hops: int) -> None:
        self.edges = edges
        self.fanout = fanout
        self.hops = hops
        self.starts = np.searchsorted(edges[1], np.arange(nodes + 1))
        self._number = np.full(nodes, -1, np.int64)

    def around(self, seeds: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes, the seeds first, and the numbers of the edges that were drawn between them, in order."""
        seen, frontier, drawn = seeds, seeds, []
        known = np.zeros(len(self._number), bool)
        known[seeds] = True
        for _ in range(self.hops):
            places, begins = ranges(self.starts, frontier)
            drawn.append(self._some(places, begins, random))
            sources = np.unique(self.edges[0, drawn[-1]])
            frontier = sources[~known[sources]]
            known[frontier] = True
            seen = np.concatenate((seen, frontier))
        return seen, np.concatenate(drawn) if drawn else np.empty(0, np.int64)

    def part(self, seeds: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the nodes of a part, the seeds first, its edges (2, k) with numbers in it, in order, and which edges
        of the graph they are."""
        nodes, which = self.around(seeds, random)
        number = self._number
        number[nodes] = np.arange(len(nodes))
        source, target = number[self.edges[0, which]], number[self.edges[1, which]]
        order = np.lexsort((source, target))
        return nodes, np.stack((source[order], target[order])), which[order]

    def _some(self, places: np.ndarray, begins: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return at most `fanout` of the edges of each node, and its loop."""
        owner = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
        key = random.random(len(places))
        loop = self.edges[0, places] == self.edges[1, places]
        key[loop] = -1
        order = np.lexsort((key, owner))
        rank = np.arange(len(places)) - begins[:-1][owner[order]]
        has_loop = np.zeros(len(begins) - 1, bool)
        has_loop[owner[loop]] = True
        return places[order][rank < self.fanout + has_loop[owner[order]]]
