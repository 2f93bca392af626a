"""
Choose what to label next
=========================

``longspan suggest`` ranks documents without labels by how unsure a model is of them, copies last. Here, a topic is rare
and copies are frequent, so it finds more of the topic than a random draw. On balanced classes it saved few labels.
"""

# %%
# Documents with a rare topic
# ---------------------------
# Tickets of four topics. Three in a hundred are of "security", and few words tell it from "network". Copies are
# frequent.

import random
import tempfile
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt

import longspan

choose = random.Random(0)
TOPICS = {
    "billing": ["invoice", "refund", "charge", "price", "receipt", "discount"],
    "network": ["router", "port", "latency", "cable", "firewall", "proxy"],
    "printer": ["paper", "toner", "tray", "jam", "driver", "colour"],
    "security": ["breach", "firewall", "phishing", "port", "malware", "proxy"],
}
SHARES = [0.42, 0.3, 0.25, 0.03]
COMMON = ["please", "help", "with", "the", "my", "since", "monday", "again", "office", "thanks", "not", "working"]


def ticket() -> tuple[str, str]:
    """A ticket and its topic."""
    topic = choose.choices([*TOPICS], SHARES)[0]
    words = choose.choices(TOPICS[topic], k=2) + choose.choices(COMMON, k=8)
    choose.shuffle(words)
    return " ".join(words), topic


tickets = dict(ticket() for _ in range(2500))
texts = [*tickets]
pool, test = texts[:1000], texts[1000:2000]
pool += [f"{text.upper()}  " for text in pool[:200]]
tickets |= {text: tickets[text.strip().lower()] for text in pool[1000:]}
folder = tempfile.TemporaryDirectory()


def trained(labelled: list[str], name: str) -> longspan.TrainedRun:
    """A run trained on tickets that were labelled."""
    return longspan.train(
        "classify",
        data={"text": labelled, "label": [tickets[text] for text in labelled]},
        run=Path(folder.name, name),
        dim=16,
        depth=1,
        max_minutes=0,
        min_steps=0,
        num_train_epochs=1,
        progress=False,
    )


# %%
# Label in two rounds
# -------------------
# The first 60 labels are of tickets drawn at random. Then the model names the next 40; for comparison, 40 are drawn.

first = pool[:60]
run = trained(first, "first")
found = longspan.suggest(run.loaded, {"text": pool[60:]}, 40)
for one in found[:5]:
    print(f"{one.uncertainty:.2f}  {one.predicted:10} {one.columns['text']}")
suggested = [one.columns["text"] for one in found]
print("in capitals, copies of others:", sum(text.isupper() for text in suggested))

# %%
# Among the suggested tickets, the rare topic is frequent, as the model cannot tell it from others.

drawn = choose.sample(pool[60:1000], 40)
ways = {"first 60": first, "40 more at random": first + drawn, "40 more by suggest": first + suggested}
for name, labelled in [*ways.items()][1:]:
    print(name, dict(Counter(tickets[text] for text in labelled[60:])))

# %%
# Accuracy on tickets that nobody chose
# -------------------------------------

accuracies, recalls = {}, {}
for name, labelled in ways.items():
    run = trained(labelled, name.replace(" ", "-"))
    right = {text: one.label == tickets[text] for text, one in zip(test, run.predict(test), strict=True)}
    rare = [ok for text, ok in right.items() if tickets[text] == "security"]
    accuracies[name], recalls[name] = sum(right.values()) / len(right), sum(rare) / len(rare)
    print(f"{name}: accuracy {accuracies[name]:.3f}, recall of security {recalls[name]:.3f}")

figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
for axis, values, title in zip(axes, (accuracies, recalls), ("Accuracy", "Recall of the rare topic"), strict=True):
    axis.barh([*values], [*values.values()], color="tab:blue")
    axis.set(xlim=(0, 1), title=title)
    axis.invert_yaxis()
plt.show()

# %%
# Take away: where labels cost time, let the model choose them, after a first random draw. :doc:`/guides/labelling`
# walks through a list on the page of ``longspan serve``.
