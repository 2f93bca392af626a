"""
Classify the nodes of a graph
=============================

A class for each node of a graph of networkx, from a few labelled nodes: attention along edges, compared with a model
that reads each node alone.
"""

# %%
# Friends who share a hobby
# -------------------------
# People of four groups, most of whose friends are of their own group. What they say about themselves tells little, and
# few have a label.

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import networkx as nx

import longspan

choose = random.Random(0)
GROUPS = ["chess", "climbing", "cooking", "choir"]
friends = nx.planted_partition_graph(4, 60, 0.08, 0.006, seed=0)
for person, facts in friends.nodes(data=True):
    group = person // 60
    # Interest in each hobby, from 0 to 1: a little more in one's own.
    facts["interests"] = [choose.random() + 0.35 * (number == group) for number in range(4)]
    facts["label"] = GROUPS[group]
    facts["split"] = ["train", "validation", "test"][min(2, (person % 60) // 8)]
print(friends)

# %%
# With and without edges
# ----------------------
# ``graph`` attends to a node's friends. For the other model, the same graph has edges from each node to itself only.

SETTINGS = {
    "dim": 32,
    "dropout": 0.3,
    "feature_dropout": 0.3,
    "num_train_epochs": 60,
    "learning_rate": 0.01,
    "seed": 0,
}
alone = nx.create_empty_copy(friends)
alone.add_edges_from((person, person) for person in friends)
runs, folder = {}, tempfile.TemporaryDirectory()
for name, graph in {"friends": friends, "alone": alone}.items():
    runs[name] = longspan.train("nodes", data=graph, run=Path(folder.name, name), progress=False, **SETTINGS)
    print(f"{name:8} test accuracy {runs[name].scores['test'].accuracy:.2f}")

# %%
# Where the errors are
# --------------------
# Black rings mark people whose group the model with edges gets wrong: most of their friends are of another group.

found = runs["friends"].predict(friends)
wrong = [one.node for one in found if one.label != friends.nodes[int(one.node)]["label"]]
place = nx.spring_layout(friends, seed=1)
figure, axes = plt.subplots(figsize=(7, 5.5), layout="constrained")
nx.draw_networkx_edges(friends, place, ax=axes, alpha=0.15)
for number, group in enumerate(GROUPS):
    people = [person for person in friends if person // 60 == number]
    nx.draw_networkx_nodes(friends, place, people, node_size=30, node_color=f"C{number}", label=group, ax=axes)
nx.draw_networkx_nodes(
    friends, place, [int(node) for node in wrong], node_size=70, node_color="none", edgecolors="black", ax=axes
)
axes.set(title=f"{len(wrong)} of {len(friends)} people in another group than predicted")
axes.legend()
axes.axis("off")
plt.show()

# %%
# Take away: where neighbours have something in common, edges say more than a node's own features.
# The page :doc:`/graphs` has other sources of graphs, large graphs and baselines.
