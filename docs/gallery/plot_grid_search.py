"""
Search a grid of settings
=========================

``GridSearchCV`` selects settings of a recipe by cross-validation. Here it shows which part of a classifier uses word
order.
"""

# %%
# Sentences whose class depends on word order
# -------------------------------------------
# All sentences have two positive words, two negative words and "not". The word after "not" decides the class.

import random

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV

from longspan.sklearn import LongspanClassifier

GOOD = ["good", "great", "fine", "lovely", "bright", "warm", "fresh", "clever", "funny", "rich"]
BAD = ["bad", "awful", "dull", "ugly", "dark", "cold", "stale", "silly", "sad", "poor"]
choose = random.Random(0)


def review() -> tuple[str, str]:
    """Return a review with two praises and two complaints, one of the four negated, and its class."""
    words = [*choose.sample(GOOD, 2), *choose.sample(BAD, 2)]
    choose.shuffle(words)
    place = choose.randrange(4)
    label = "negative" if words[place] in GOOD else "positive"
    words.insert(place, "not")
    return "the film was " + " and ".join(words).replace("not and", "not"), label


texts, labels = map(list, zip(*(review() for _ in range(400)), strict=True))
print(labels[0], "|", texts[0])

# %%
# The grid
# --------
# ``wide`` adds n-gram counts. ``short_convolution`` combines each token with its neighbours before the mixer. Any key
# of the recipe may be in a grid.

model = LongspanClassifier(
    dim=16,
    heads=4,
    token_dropout=0.0,
    wide_characters=False,
    num_train_epochs=10,
    min_steps=0,
    max_minutes=0,
    random_state=0,
)
grid = {"wide": [False, True], "short_convolution": [0, 3]}
search = GridSearchCV(model, grid, cv=2, refit=False).fit(texts, labels)

results = search.cv_results_
for settings, mean in zip(results["params"], results["mean_test_score"], strict=True):
    print(f"{settings}: accuracy {mean:.2f}")

# %%
# Accuracy of each setting
# ------------------------

scores = results["mean_test_score"].reshape(2, 2)
if list(results["params"][0]) != ["short_convolution", "wide"]:
    scores = scores.T
figure, axes = plt.subplots(figsize=(4.8, 3.8), layout="constrained")
picture = axes.imshow(scores, cmap="viridis", vmin=0.5, vmax=1)
axes.set_xticks([0, 1], ["no n-grams", "n-grams"])
axes.set_yticks([0, 1], ["no convolution", "convolution of 3"])
for place in np.ndindex(scores.shape):
    colour = "black" if scores[place] > 0.8 else "white"
    axes.text(place[1], place[0], f"{scores[place]:.2f}", ha="center", va="center", color=colour, fontsize=14)
axes.set_title("Chance level: 0.50")
figure.colorbar(picture, ax=axes, label="accuracy, 2-fold cross-validation")
plt.show()

# %%
# Take away: additive attention without positions is a bag-of-words model. N-grams or a short convolution add word
# order.
# The guide :doc:`/guides/scikit-learn` has the estimators, and :doc:`/labels` the wide part.
