"""
Cost against length
===================

Softmax attention compares all pairs of positions, so its cost grows with the square of the length. Additive attention
grows linearly. We measure from which length on it is faster.
"""

# %%
# Time a layer
# ------------
# ``mixers.build`` returns a PyTorch module. Each layer is timed on inputs of growing length. The fastest of several
# rounds counts.

import time

import matplotlib.pyplot as plt
import numpy as np
import torch

from longspan import mixers

torch.manual_seed(0)
names = ["additive", "linear", "softmax"]
layers = {name: mixers.build(name, dim=64, heads=4).eval() for name in names}
lengths = [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
seconds = {name: [] for name in names}

with torch.no_grad():
    for length in lengths:
        x = torch.randn(1, length, 64)
        best = dict.fromkeys(names, float("inf"))
        for _ in range(2 if length > 4096 else 5):
            for name, layer in layers.items():
                start = time.perf_counter()
                layer(x)
                best[name] = min(best[name], time.perf_counter() - start)
        for name in names:
            seconds[name].append(best[name])

# %%
# Exponents
# ---------
# On logarithmic axes, the slope is the exponent of the length. We fit it to the longest four lengths. ``operations``
# counts the operations of matrix products, independent of the machine.

for name in names:
    slope = np.polyfit(np.log(lengths[-4:]), np.log(seconds[name][-4:]), 1)[0]
    counted = layers[name].operations(16384) / layers[name].operations(8192)
    print(f"{name:9} {1e3 * seconds[name][-1]:8.1f} ms for 16,384 tokens, measured exponent {slope:.1f}, ", end="")
    print(f"twice the length: {counted:.1f} times the operations")

# %%
# Time by length
# --------------

figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for name, marker in zip(names, "os^", strict=True):
    axes.loglog(lengths, 1e3 * np.array(seconds[name]), marker=marker, label=name)
scale = 1e3 * seconds["softmax"][-1]
axes.loglog(lengths[-4:], scale * (np.array(lengths[-4:]) / lengths[-1]) ** 2, ":", color="grey", label="quadratic")
scale = 1e3 * seconds["additive"][-1]
axes.loglog(lengths[-4:], scale * np.array(lengths[-4:]) / lengths[-1], "--", color="grey", label="linear in length")
axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45)
axes.minorticks_off()
axes.set(xlabel="tokens in the text", ylabel="milliseconds per layer", title="A layer of width 64, forward pass")
axes.legend()
plt.show()

# %%
# Take away: for texts of a few hundred tokens all mixers cost about the same. For long texts, linear mixers are much
# faster. Times depend on the machine; operation counts do not. The guide :doc:`/guides/choosing-a-mixer` has the
# length from which each mixer is cheaper.
