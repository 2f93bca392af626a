"""
Classify graphs whose ends are far apart
========================================

A class for each graph of a list: attention along edges carries information one hop per layer. A mixer that sees all
nodes joins what is further apart.
"""

# %%
# Paths with coloured ends
# ------------------------
# A path with leaves, both of whose ends are red or blue. Is it the same colour? No node is near both ends.

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import networkx as nx

import longspan

choose = random.Random(0)


def path(length: int) -> dict:
    ends = choose.choice(["red", "blue"]), choose.choice(["red", "blue"])
    nodes = [ends[0], *["grey"] * (length - 2), ends[1], *["grey"] * length]
    edges = [[place, place + 1] for place in range(length - 1)]
    edges += [[leaf, choose.randrange(1, length - 1)] for leaf in range(length, 2 * length)]
    return {"nodes": nodes, "edges": edges, "label": "same" if ends[0] == ends[1] else "different"}


splits = {
    name: [path(choose.randint(8, 12)) for _ in range(number)]
    for name, number in {"train": 400, "validation": 100, "test": 200}.items()
}

# %%
# With and without a mixer that sees all nodes
# --------------------------------------------
# Both models have four layers. In one of them all read along edges. In the other, every second layer is ``linear``.

SETTINGS = {"dim": 32, "num_train_epochs": 12, "learning_rate": 3e-3, "seed": 0}
runs, folder = {}, tempfile.TemporaryDirectory()
for name, mixers in {"edges alone": ["graph"], "edges and all nodes": ["graph", "linear"]}.items():
    runs[name] = longspan.train(
        "graphs", data=splits, run=Path(folder.name, name.replace(" ", "_")), mixers=mixers, progress=False, **SETTINGS
    )
    print(f"{name:20} test accuracy {runs[name].scores['test'].accuracy:.2f}")

# %%
# Some of the graphs
# ------------------
# The title has what both models answer.

figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
some = splits["test"][:3]
answers = {name: [one.label for one in run.predict(some)] for name, run in runs.items()}
for number, (row, axis) in enumerate(zip(some, axes, strict=True)):
    graph = nx.Graph(map(tuple, row["edges"]))
    colours = [{"red": "C3", "blue": "C0", "grey": "lightgrey"}[row["nodes"][node]] for node in graph]
    nx.draw(graph, nx.kamada_kawai_layout(graph), axis, node_size=35, node_color=colours, edge_color="grey")
    told = "\n".join(f"{name}: {found[number]}" for name, found in answers.items())
    axis.set_title(f"{row['label']}\n{told}", fontsize=9)
plt.show()

# %%
# Take away: a mixer over all nodes, at linear cost, answers what layers of message passing do not see.
# The page :doc:`/graphs` has the format of files, and positions that tell nodes apart.
