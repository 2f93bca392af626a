"""
Stream tokens with a constant state
===================================

A causal mixer can read a text token by token. Its outputs equal those of one full pass. With a linear mixer, the state
has a constant size.
"""

# %%
# One token at a time
# -------------------
# ``init_state`` returns the state before the first token. ``step`` returns outputs and the next state. We compare the
# outputs with those of one full pass.

import time

import matplotlib.pyplot as plt
import numpy as np
import torch

from longspan import mixers

torch.manual_seed(0)
x = torch.randn(1, 400, 32)

with torch.no_grad():
    for name in ("additive", "delta", "gated_linear", "messages", "softmax"):
        mixer = mixers.build(name, dim=32, causal=True).eval()
        whole = mixer(x)
        state, outputs = mixer.init_state(batch_size=1), []
        for token in x.split(1, dim=1):
            y, state = mixer.step(token, state)
            outputs.append(y)
        difference = (torch.cat(outputs, 1) - whole).abs().max()
        print(f"{name:13} largest difference {float(difference):.0e}, {mixer.state_size(400):,} elements in the state")

# %%
# Segments of any length give the same outputs, so a long text need not fit into memory:

mixer = mixers.build("delta", dim=32, causal=True).eval()
with torch.no_grad():
    state, outputs = mixer.init_state(batch_size=1), []
    for part in x.split([1, 200, 99, 100], dim=1):
        y, state = mixer.step(part, state)
        outputs.append(y)
    print(torch.allclose(torch.cat(outputs, 1), mixer(x), atol=1e-5))

# %%
# State and time by position
# --------------------------
# Softmax attention keeps all keys and values. ``state_size`` returns the number of elements. The time is that of one
# token after a text of the given length.

positions = [2**power for power in range(5, 15)]
kinds = ["additive", "delta", "softmax"]
sizes: dict[str, list[int]] = {}
times: dict[str, list[float]] = {}
token = torch.randn(1, 1, 32)
with torch.no_grad():
    for name in kinds:
        mixer = mixers.build(name, dim=32, causal=True).eval()
        sizes[name] = [mixer.state_size(number) for number in positions]
        times[name], state, read = [], mixer.init_state(1), 0
        for number in positions:
            while read < number:
                length = min(1024, number - read)
                _, state = mixer.step(torch.randn(1, length, 32), state)
                read += length
            taken = []
            for _ in range(101):
                start = time.perf_counter()
                mixer.step(token, state)
                taken.append(time.perf_counter() - start)
            times[name].append(1e6 * float(np.median(taken)))

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
for name, marker in zip(kinds, "os^", strict=True):
    left.loglog(positions, sizes[name], marker=marker, markersize=4, label=name)
    right.semilogx(positions, times[name], marker=marker, markersize=4, label=name)
left.set(xlabel="tokens read so far", ylabel="elements in the state", title="State")
right.set(xlabel="tokens read so far", ylabel="microseconds for the next token", title="Time", ylim=(0, None))
left.legend()
plt.show()

# %%
# Take away: with a linear mixer, the next token costs the same after a word and after a book.
# The guide :doc:`/guides/streaming` has states in models and in trained language models.
