"""
Find evidence in a meeting
==========================

Which turns of a meeting answer a question? The recipe ``evidence`` reads the whole meeting once and ranks its turns for
each question.
"""

# %%
# Meetings as JSON lines
# ----------------------
# A meeting is a list of turns. The first turn about a topic names it, and the turns that follow do not repeat the name.
# ``evidence`` lists the turns that answer.

import json
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import longspan

TOPICS = [
    "budget",
    "menu",
    "parking",
    "remote",
    "logo",
    "training",
    "printer",
    "holidays",
    "visitors",
    "garden",
    "website",
    "insurance",
]
TURNS = [
    "I think it is too expensive for us .",
    "We could ask for another offer next week .",
    "Marketing would like it in blue .",
    "That was the plan of last year , too .",
    "Who is going to write this down ?",
    "The customers did not complain about it .",
    "Let me check my notes .",
    "It depends on the team in the other building .",
    "Fine with me .",
    "We tried that and it did not work .",
]


def meeting(choose: random.Random, topics: int = 8) -> dict[str, object]:
    """Return a meeting about some topics, with a question about each of three."""
    parts, spans = [], {}
    for topic in choose.sample(TOPICS, topics):
        first = len(parts)
        parts.append(f"Next point , what do we do about the {topic} ?")
        parts += choose.choices(TURNS, k=choose.randint(2, 7))
        spans[topic] = list(range(first, len(parts)))
        # Somebody mentions another topic in passing.
        parts.append(f"Before I forget , thanks for the {choose.choice(TOPICS)} . Done here .")
    asked = choose.sample(sorted(spans), 3)
    questions = [{"question": f"What did they say about the {topic} ?", "evidence": spans[topic]} for topic in asked]
    return {"parts": parts, "questions": questions}


folder = tempfile.TemporaryDirectory()
choose = random.Random(0)
for split, number in (("train", 60), ("validation", 15), ("test", 30)):
    lines = [json.dumps(meeting(choose)) for _ in range(number)]
    Path(folder.name, f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

# %%
# Train
# -----
# An untrained model ranks like BM25. It learns that a topic continues until a turn closes it.

run = longspan.train(
    "evidence",
    data={split: Path(folder.name, f"{split}.jsonl") for split in ("train", "validation", "test")},
    run=Path(folder.name, "run"),
    dim=32,
    num_train_epochs=6,
    progress=False,
)

# %%
# Compare with BM25
# -----------------
# ``compare`` fits baselines to the same splits. ``bm25_smoothed`` averages BM25 over neighbouring turns.

comparison = longspan.compare(
    "evidence",
    run=Path(folder.name, "baselines"),
    baselines=["bm25_smoothed"],
    data={split: Path(folder.name, f"{split}.jsonl") for split in ("train", "validation", "test")},
)
bm25 = comparison.baselines[0].scores["test"]
ours = run.scores["test"]
for name, scores in (("longspan", ours), ("smoothed BM25", bm25)):
    print(f"{name:13} recall at a sixth {scores.recall_at_sixth:.2f}, average precision {scores.average_precision:.2f}")

# %%
# One question
# ------------
# ``predict`` gives each turn a probability for each question.

example = json.loads(Path(folder.name, "test.jsonl").read_text(encoding="utf-8").splitlines()[0])
found = run.predict([example])[0].questions[0]
probability = np.zeros(len(example["parts"]))
for part in found["parts"]:
    probability[part["part"]] = part["score"]

evidence = example["questions"][0]["evidence"]
figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5), layout="constrained")
top.axvspan(evidence[0] - 0.5, evidence[-1] + 0.5, color="tab:green", alpha=0.2, label="turns that answer")
word = example["questions"][0]["question"].split()[-2]
mentions = [number for number, part in enumerate(example["parts"]) if word in part]
top.bar(range(len(probability)), probability, color="tab:blue", label="probability")
top.plot(mentions, [1.05] * len(mentions), "v", color="tab:red", label=f'"{word}" occurs')
top.set(xlabel="turn", ylabel="probability", ylim=(0, 1.15), title=example["questions"][0]["question"])
top.legend(loc="center right")
names = ["recall at a sixth", "average precision"]
places = np.arange(2)
for shift, scores, name in ((-0.2, ours, "longspan"), (0.2, bm25, "smoothed BM25")):
    bars = bottom.barh(places + shift, [scores.recall_at_sixth, scores.average_precision], 0.38, label=name)
    bottom.bar_label(bars, fmt="%.2f", padding=3)
bottom.set_yticks(places, names)
bottom.set(xlim=(0, 1.45), xticks=np.arange(0, 1.1, 0.2), xlabel="score", title="90 questions about new meetings")
bottom.legend(loc="upper right")
plt.show()

# %%
# Take away: BM25 finds turns that contain the words of a question. The trained model also finds the turns after them.
# Real meetings are less regular: :doc:`/evidence` has scores on QMSum.
