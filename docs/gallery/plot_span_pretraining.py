"""
Pretrain an encoder and a decoder by masked spans
=================================================

Documents are many, summaries are few. The recipe ``masked-spans`` pretrains an encoder and a decoder on documents
alone, and ``start_from`` fine-tunes them on summaries.
"""

# %%
# Many meetings, few summaries
# ----------------------------
# In each meeting somebody wants something, and others come back to it.

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import longspan

choose = random.Random(0)
TOPICS = ("price", "colour", "battery", "case", "menu", "voice", "chip", "logo")
CHOICES = ("red", "large", "cheap", "round", "quiet", "new", "plain", "bright")
PEOPLE = ("Ann", "Bo", "Cem", "Dee")
FILLER = ("well", "so", "right", "maybe", "then", "yes", "we", "could", "look", "at", "that", "again")


def meeting() -> tuple[str, str]:
    """Return the turns of a meeting as lines, and its summary."""
    topic, wish = choose.choice(TOPICS), choose.choice(CHOICES)
    who, other = choose.sample(PEOPLE, 2)
    small = [f"{choose.choice(PEOPLE)}: {' '.join(choose.choices(FILLER, k=2))}" for _ in range(3)]
    said = [
        f"{who}: the {topic} must be {wish}.",
        f"{other}: {who} wants the {topic} to be {wish}?",
        f"{who}: yes, {wish}.",
    ]
    turns = [small[0], said[0], small[1], said[1], said[2], small[2]]
    return "\n".join(turns), f"{who} wants the {topic} to be {wish}."


documents = [meeting()[0] for _ in range(1200)]
pool, validation = [meeting() for _ in range(100)], [meeting() for _ in range(40)]
print(pool[0][0])
print("summary:", pool[0][1])

# %%
# Pretrain
# --------
# 15 % of the tokens are masked, in spans of three on average. The decoder writes them.

folder = tempfile.TemporaryDirectory()
shape = {"dim": 48, "depth": 1, "heads": 2, "feed_forward_dim": 96, "dropout": 0.0, "vocab_size": 340}
pretrained = longspan.train(
    "masked-spans",
    data=documents,
    run=Path(folder.name, "spans"),
    **shape,
    max_length=128,
    learning_rate=5e-3,
    warmup_steps=40,
    per_device_train_batch_size=16,
    num_train_epochs=8,
    eval_strategy="no",
    load_best_model_at_end=False,
    progress=False,
)
print(f"validation perplexity {pretrained.scores['validation'].perplexity:.1f}")

# %%
# Fine-tune
# ---------
# The same model is trained from scratch and from the pretrained run, on 20 to 100 summaries.

amounts = [20, 50, 100]
scores: dict[str, list[float]] = {"from scratch": [], "start_from": []}
for amount in amounts:
    for name in scores:
        start = {"start_from": pretrained.folder, "dropout": 0.0} if name == "start_from" else shape
        run = longspan.train(
            "summarisation",
            data={"train": pool[:amount], "validation": validation},
            run=Path(folder.name, f"{name} {amount}"),
            **start,
            learning_rate=3e-3,
            warmup_steps=10,
            beams=1,
            num_train_epochs=1,
            min_steps=50,
            eval_strategy="no",
            load_best_model_at_end=False,
            progress=False,
        )
        scores[name].append(run.scores["validation"].rouge_2)
    print(f"{amount} summaries, ROUGE-2: " + ", ".join(f"{name} {values[-1]:.0f}" for name, values in scores.items()))

# %%
# ROUGE by the number of summaries
# --------------------------------

figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
for (name, values), marker in zip(scores.items(), "so", strict=True):
    axes.plot(amounts, values, marker=marker, label=name)
axes.set(xlabel="summaries to train on", ylabel="ROUGE-2 on 40 new meetings", ylim=(0, 102))
axes.set_title("With and without 1,200 meetings that have no summary")
axes.legend(loc="lower right")
plt.show()

# %%
# Take away: with few summaries, start from an encoder and a decoder that are pretrained on text of the same kind.
# The page :doc:`/pretraining` has the keys of span masking, and what is copied.
