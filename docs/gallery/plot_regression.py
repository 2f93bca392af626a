"""
Cross-validate a regression
===========================

``longspan.sklearn.LongspanRegressor`` predicts a number for each document. It is an estimator of scikit-learn, so
``cross_validate`` compares it with others.
"""

# %%
# Adverts with a price
# --------------------
# The price of a flat depends on its district, and each extra costs more in some districts than in others. A linear
# model of words cannot express this.

import random

import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold, cross_validate
from sklearn.pipeline import make_pipeline

from longspan.sklearn import LongspanRegressor

choose = random.Random(0)
DISTRICTS = {"centre": 3.0, "harbour": 2.0, "north": 1.0, "village": 0.5}
EXTRAS = {"balcony": 60, "garden": 80, "kitchen": 40, "bath": 50, "view": 90, "garage": 70}
FILLERS = [
    "bright",
    "quiet",
    "rooms",
    "near",
    "shops",
    "for",
    "rent",
    "from",
    "May",
    ",",
    "please",
    "call",
    "Anna",
    "in",
    "the",
    "evening",
]


def advert() -> tuple[str, float]:
    """Return an advert and the price in it."""
    district = choose.choice(list(DISTRICTS))
    extras = choose.sample(list(EXTRAS), choose.randint(0, 4))
    words = [district, *extras, *choose.sample(FILLERS, 8)]
    choose.shuffle(words)
    price = 200 + DISTRICTS[district] * (100 + sum(EXTRAS[extra] for extra in extras)) + choose.gauss(0, 10)
    return " ".join(words), price


texts, prices = map(list, zip(*(advert() for _ in range(600)), strict=True))
print(f"{prices[0]:.0f} euros: {texts[0]}")

# %%
# Two estimators, the same folds
# ------------------------------
# Keys of the recipe are parameters of the estimator. It standardises the targets.

longspan_model = LongspanRegressor(
    dim=32, depth=2, dropout=0.0, token_dropout=0.0, num_train_epochs=16, min_steps=0, max_minutes=0, random_state=0
)
ridge = make_pipeline(TfidfVectorizer(), RidgeCV(np.logspace(-3, 2, 11)))
folds = KFold(3, shuffle=True, random_state=0)
models = {"longspan": longspan_model, "TF-IDF and ridge": ridge}
results = {
    name: cross_validate(
        model, texts, prices, cv=folds, scoring="neg_mean_absolute_error", return_estimator=True, return_indices=True
    )
    for name, model in models.items()
}
errors = {name: -found["test_score"] for name, found in results.items()}
for name, found in errors.items():
    print(f"{name:16} mean absolute error {found.mean():5.1f}, by fold {np.round(found, 1)}")
print(f"lowest possible error, from the noise: {10 * np.sqrt(2 / np.pi):.1f}")

# %%
# Predicted and true
# ------------------

figure, panels = plt.subplots(1, 2, figsize=(8.5, 4), sharex=True, sharey=True, layout="constrained")
for axes, (name, found) in zip(panels, results.items(), strict=True):
    # The model of the first fold, and the adverts that it has not seen.
    test = found["indices"]["test"][0]
    true = np.array(prices)[test]
    predicted = found["estimator"][0].predict([texts[number] for number in test])
    for district in DISTRICTS:
        inside = np.array([district in texts[number].split() for number in test])
        axes.scatter(true[inside], predicted[inside], s=10, label=district)
    axes.axline((600, 600), slope=1, color="black", linewidth=0.8)
    axes.set(title=f"{name}: mean absolute error {errors[name].mean():.0f}", xlabel="true price, euros")
panels[0].set_ylabel("predicted price, euros")
panels[0].legend()
plt.show()

# %%
# Take away: estimators of ``longspan.sklearn`` work wherever those of scikit-learn do, so a baseline is one line.
# Where prices add up word by word, a linear model is enough. The guide :doc:`/guides/scikit-learn` has more.
