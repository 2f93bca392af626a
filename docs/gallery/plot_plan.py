"""
Plan a training run
===================

``longspan plan`` predicts time and memory of a training run from a few measured steps, before it starts.
"""

# %%
# Documents of many lengths
# -------------------------

import random

import matplotlib.pyplot as plt

import longspan
from longspan.report.forecast import forecast_summary

choose = random.Random(0)
words = [f"w{number}" for number in range(500)]
texts = [" ".join(choose.choices(words, k=choose.randint(20, 1000))) for _ in range(80)]
data = {"text": texts, "label": [choose.choice("ab") for _ in texts]}

# %%
# The plan
# --------
# Nothing is trained to the end, and nothing is written.

found = longspan.plan("classify", data=data, wide=False, mixers=["additive", "softmax"], seconds=0.5, progress=False)
print(forecast_summary(found))

# %%
# Time per step
# -------------

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
for name in ("additive", "softmax"):
    runs = [run for run in found.runs if run.mixer == name]
    axes.plot([run.positions for run in runs], [run.seconds_per_step for run in runs], marker="o", label=name)
axes.set(xlabel="longest document (tokens)", ylabel="seconds per step", xlim=(0, None), ylim=(0, None))
axes.legend()
plt.show()

# %%
# Take away: look at time and memory before a long run. :doc:`/guides/planning` explains every column.
