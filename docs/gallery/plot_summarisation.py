"""
Summarise meetings and compare with extracts
============================================

The recipe ``summarisation`` trains an encoder that reads whole documents, and a decoder that can copy their words.
Here it answers questions about short meetings.
"""

# %%
# Meetings with questions
# -----------------------
# A document may be a list of turns. Each of its questions has a summary.

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import longspan

TOPICS = ("price", "colour", "battery", "case", "menu", "voice", "chip", "logo")
CHOICES = ("red", "large", "cheap", "round", "quiet", "new", "plain", "bright")
PEOPLE = ("Ann", "Bo", "Cem", "Dee")
FILLER = ("well", "so", "right", "maybe", "then", "yes", "we", "could", "look", "at", "that", "again")


def meeting(seed: int) -> dict:
    """Return the turns of a meeting, and a question about each of two topics."""
    draw = random.Random(seed)
    turns, questions = [], []
    for topic in draw.sample(TOPICS, 2):
        who, choice = draw.choice(PEOPLE), draw.choice(CHOICES)
        part = [{"speaker": draw.choice(PEOPLE), "content": " ".join(draw.choices(FILLER, k=5))} for _ in range(4)]
        part[draw.randrange(4)] = {"speaker": who, "content": f"the {topic} must be {choice} ."}
        turns += part
        questions.append(
            {"question": f"What about the {topic}?", "summary": f"{who} wants the {topic} to be {choice}."}
        )
    return {"document": turns, "questions": questions}


meetings = [meeting(seed) for seed in range(300)]
print(meetings[0]["questions"][0])

# %%
# Train
# -----

folder = tempfile.TemporaryDirectory()
run = longspan.train(
    "summarisation",
    data=meetings,
    run=Path(folder.name, "run"),
    dim=48,
    depth=1,
    heads=2,
    feed_forward_dim=96,
    dropout=0.0,
    vocab_size=340,
    learning_rate=1e-2,
    warmup_steps=40,
    batch_tokens=4096,
    beams=1,
    num_train_epochs=8,
    min_steps=0,
    progress=False,
)
scores = run.scores["validation"]
print(f"ROUGE-1 {scores.rouge_1:.1f}, ROUGE-2 {scores.rouge_2:.1f}, ROUGE-Lsum {scores.rouge_lsum:.1f}")
print(scores.signature)
print(f"{scores.novelty:.0%} of the word pairs are not in the meeting")

# %%
# Ask about a new meeting
# -----------------------

(found,) = run.predict([meeting(1000)])
for one, asked in zip(found.questions, meeting(1000)["questions"], strict=True):
    print(f"{one['question']} {one['summary']} (reference: {asked['summary']})")

# %%
# Baselines
# ---------
# Extracts need no training. The oracle reads the reference.

made = longspan.compare(
    "summarisation",
    [],
    1,
    run=Path(folder.name, "compare"),
    data=meetings,
    baselines=["constant", "lead", "textrank", "oracle"],
)
values = {each.baseline: each.scores["validation"].rouge_1 for each in made.baselines} | {"the model": scores.rouge_1}
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.barh([*values], [*values.values()])
axes.set(xlabel="ROUGE-1", xlim=(0, 100))
axes.invert_yaxis()
plt.show()

# %%
# Take away: compare what a model writes with extracts before you use it.
# The page :doc:`/summarisation` has data, scores and baselines.
