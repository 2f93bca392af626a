"""
Answer questions about a document
=================================

The recipe ``question-answering`` finds an answer as a span of a document. Here it learns from short documents and
answers questions about longer ones.
"""

# %%
# Questions, documents and answers
# --------------------------------
# A document lists places of things. Each answer is a span: its text and its first character.

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import longspan

PEOPLE = ["Anna", "Boris", "Chloe", "David", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Karim", "Lena"]
THINGS = ["key", "letter", "ring", "map", "coin", "book", "lamp", "photo", "watch", "ticket", "passport", "medal"]
PLACES = ["under the stairs", "in the garden", "behind the clock", "in a red box", "on the roof", "next to the oven"]


def example(facts: int, choose: random.Random) -> dict[str, object]:
    """Return a document of some facts and a question about one of them."""
    pairs = choose.sample([(person, thing) for person in PEOPLE for thing in THINGS], facts)
    asked = choose.randrange(facts)
    text, answer = "", {}
    for number, (person, thing) in enumerate(pairs):
        text += f"The {thing} of {person} is "
        place = choose.choice(PLACES)
        if number == asked:
            answer = {"text": [place], "answer_start": [len(text)]}
        text += f"{place} . "
    person, thing = pairs[asked]
    return {"question": f"Where is the {thing} of {person} ?", "context": text.strip(), "answers": answer}


choose = random.Random(0)
train = [example(choose.randint(2, 8), choose) for _ in range(1500)]
print(train[0]["question"], "|", train[0]["context"])

# %%
# Train
# -----
# The recipe has a short convolution, which combines each token with its neighbours.

folder = tempfile.TemporaryDirectory()
run = longspan.train(
    "question-answering",
    data=train,
    run=Path(folder.name, "run"),
    dim=64,
    tokens="words",
    num_train_epochs=5,
    min_steps=0,
    batch_tokens=4096,
    progress=False,
)
print(f"validation: exact match {run.scores['validation'].exact_match:.2f}")

# %%
# Longer documents
# ----------------
# The baseline answers with the most frequent place in the document.

lengths = [4, 8, 16, 32, 64]
ours, guessed = [], []
for facts in lengths:
    tests = [example(facts, choose) for _ in range(100)]
    answers = [test["answers"]["text"][0] for test in tests]
    ours.append(np.mean([one.answer == answer for one, answer in zip(run.predict(tests), answers, strict=True)]))
    often = [max(PLACES, key=test["context"].count) for test in tests]
    guessed.append(np.mean([guess == answer for guess, answer in zip(often, answers, strict=True)]))
    print(f"{facts:3} sentences: exact match {ours[-1]:.2f}, most frequent place {guessed[-1]:.2f}")

# %%
# Exact match by length
# ---------------------

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.axvspan(2, 8, color="tab:green", alpha=0.15, label="lengths in training")
axes.plot(lengths, ours, marker="o", label="longspan")
axes.plot(lengths, guessed, marker="s", color="grey", label="most frequent place")
axes.set_xscale("log", base=2)
axes.set_xticks(lengths, lengths)
axes.set(xlabel="sentences in the document", ylabel="exact match", ylim=(0, 1.05), title="100 documents per length")
axes.legend(loc="lower left")
plt.show()

# %%
# One answer, with the character at which it begins:

found = run.predict([{"question": train[0]["question"], "context": train[0]["context"]}])[0]
print(f"{found.answer!r} at character {found.start}, probability {found.probability:.2f}")

# %%
# Take away: an answer has its position in the document, and documents may be longer than in training.
# The page :doc:`/question-answering` has the formats, including SQuAD.
