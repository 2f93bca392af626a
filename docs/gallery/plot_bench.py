"""
Measure mixers on your machine
==============================

``longspan bench`` measures time and memory of mixers over lengths, and how far they are from what the machine could do.
"""

# %%
# A small measurement
# -------------------
# Mixers take turns at each length. Those that would take too long or too much memory are left out, with a reason.

import matplotlib.pyplot as plt

import longspan
from longspan.report.bench import bench_summary

lengths = [256, 512, 1024, 2048]
result = longspan.bench(["additive", "linear", "softmax"], lengths, dim=64, heads=4, repeats=5)
print(bench_summary(result))

# %%
# Distance to the floor
# ---------------------
# The floor is the time for the unavoidable matrix products and bytes, at rates that are measured in the same run.

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
for name in result.mixers:
    rows = result.of(name)
    axes.semilogx([one.length for one in rows], [one.distance for one in rows], marker="o", label=name)
axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
axes.minorticks_off()
axes.set(xlabel="length (positions)", ylabel="time / floor", ylim=(0, None))
axes.legend()
plt.show()

# %%
# Take away: measure at the lengths of your data, on your machine. :doc:`/guides/bench` explains every column.
