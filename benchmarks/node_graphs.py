"""Write generated graphs for the recipe `nodes`, whose classes features and edges show in different ways.

    python benchmarks/node_graphs.py FOLDER [--seed 0]

`web.npz`: 183 pages with links, mostly to pages of other classes; words show the class.
`weak.npz`: 2,700 papers with 40 weak features, 819 of them labelled; citations mostly within a class.
`pages.npz`: 2,277 pages; links follow topics and go to popular classes, words show topics more than classes.
"""

import argparse
from pathlib import Path

import numpy as np

Graph = tuple[np.ndarray, set[tuple[int, int]], np.ndarray, int, int]
"""Features, edges, classes, and where training and validation nodes end in a random order."""


def words(random: np.random.Generator, count: int, shares: list[np.ndarray]) -> np.ndarray:
    """Whether each page, one of `shares` for its words, has each word."""
    return np.stack([random.multinomial(count, share) > 0 for share in shares]).astype(float)


def web(random: np.random.Generator) -> Graph:
    count, size = 183, 700
    labels = random.choice(5, count, p=[0.1, 0.55, 0.12, 0.13, 0.1])
    classes, common = random.dirichlet(np.full(size, 0.1), 5), random.dirichlet(np.full(size, 0.1))
    features = words(random, 90, [0.16 * classes[label] + 0.84 * common for label in labels])
    edges, hubs = set(), random.choice(count, 12, replace=False)
    for page in range(count):
        for _ in range(1 + random.integers(2)):
            other = random.choice(hubs) if random.random() < 0.4 else random.integers(count)
            for _ in range(6):
                if labels[other] != labels[page]:
                    break
                other = random.integers(count)
            edges.add((page, int(other)))
    return features, edges, labels, 87, 146


def weak(random: np.random.Generator) -> Graph:
    count = 2700
    labels = random.integers(0, 7, count)
    features = random.normal(size=(count, 40)) + 0.12 * random.normal(size=(7, 40))[labels]
    alike, edges = [np.flatnonzero(labels == label) for label in range(7)], set()
    for paper in range(count):
        for _ in range(2):
            near = random.random() < 0.62
            edges.add((paper, int(random.choice(alike[labels[paper]]) if near else random.integers(count))))
    return features, edges, labels, 819, 1600


def pages(random: np.random.Generator) -> Graph:
    count, size, topics = 2277, 1500, 30
    labels, topic = random.integers(0, 5, count), random.integers(0, topics, count)
    of_topics, of_classes = (random.dirichlet(np.full(size, 0.05), kinds) for kinds in (topics, 5))
    common = random.dirichlet(np.full(size, 0.2))
    mixed = zip(labels, topic, strict=True)
    features = words(random, 25, [0.12 * of_classes[a] + 0.5 * of_topics[b] + 0.38 * common for a, b in mixed])
    alike, popular, edges = [np.flatnonzero(topic == number) for number in range(topics)], (1 + labels) ** 2.0, set()
    for page in range(count):
        for _ in range(random.poisson(2 + 3 * labels[page])):
            pool = alike[topic[page]] if random.random() < 0.7 else np.arange(count)
            shares = popular[pool] * np.where(labels[pool] == labels[page], 0.7, 1)
            edges.add((page, int(random.choice(pool, p=shares / shares.sum()))))
    return features, edges, labels, 1092, 1821


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for kind in (web, weak, pages):
        random = np.random.default_rng(given.seed)
        features, edges, labels, train, validation = kind(random)
        rows, columns = np.nonzero(features)
        order = random.permutation(len(labels))
        nodes = dict(zip(("train", "valid", "test"), np.split(order, (train, validation)), strict=True))
        values = {"feature_value": features[rows, columns].astype(np.float32), "shape": np.array(features.shape)}
        links = np.array(sorted(edge for edge in edges if edge[0] != edge[1]))
        places = {"feature_row": rows, "feature_col": columns, "edges": links}
        np.savez(given.folder / f"{kind.__name__}.npz", label=labels, **values, **places, **nodes)


if __name__ == "__main__":
    main()
