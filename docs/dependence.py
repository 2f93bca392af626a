"""Draw for each mechanism which inputs each output depends on: `python docs/dependence.py FOLDER`.

The entry (t, j) of a matrix is the size of the derivative of output t by input j, on a logarithmic scale. It is
relative to the largest one, and measured with random weights and inputs.
"""

import hashlib
import inspect
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt

from longspan import mixers

LENGTH, DIM, PROBES = 48, 16, 4
#: Windows, blocks and ranks that a picture of 48 positions can show.
OPTIONS: dict[str, dict[str, Any]] = {
    "bigbird": {"block_size": 4, "random_blocks": 1},
    "convolution": {"kernel_size": 5},
    "linformer": {"rank": 8, "max_length": LENGTH},
    "local": {"radius": 4},
    "longformer": {"radius": 4},
    "reformer": {"hashes": 1, "buckets": 8, "chunk": 4},
}
DARK = {"text.color": "#ced6dd", "axes.labelcolor": "#ced6dd", "axes.edgecolor": "#8a93a6"}
DARK |= {"xtick.color": "#ced6dd", "ytick.color": "#ced6dd"}


def dependence(name: str, **options: Any) -> np.ndarray:
    """Return the logarithm to base 10 of the size of d y_t / d x_j, relative to the largest, (t, j)."""
    torch.manual_seed(0)
    heads = {"heads": 2} if "heads" in mixers.options(name) else {}
    mixer = mixers.build(name, DIM, **heads, **OPTIONS.get(name, {}), **options)
    x = torch.randn(1, LENGTH, DIM, requires_grad=True)
    y = mixer(x)
    sizes = torch.zeros(LENGTH, LENGTH)
    for t in range(LENGTH):
        for _ in range(PROBES):
            (gradient,) = torch.autograd.grad(y[0, t] @ torch.randn(DIM), x, retain_graph=True)
            sizes[t] += gradient[0].square().sum(1)
    return (0.5 * np.log10((sizes / sizes.max()).numpy() + 1e-12)).clip(-4, 0)


def forms(name: str) -> dict[str, dict[str, Any]]:
    """Return the forms of a mechanism that are drawn, each with its options."""
    found: dict[str, dict[str, Any]] = {"": {}}
    if mixers.describe(name).causal:
        found |= {"causal": {"causal": True}}
        if "forget" in mixers.options(name):
            found |= {"causal, forget=input": {"causal": True, "forget": "input"}}
    return found


def draw(name: str, folder: Path) -> None:
    """Write NAME-light.png and NAME-dark.png."""
    matrices = {form: dependence(name, **options) for form, options in forms(name).items()}
    for theme in ("light", "dark"):
        with mpl.rc_context(DARK if theme == "dark" else {}):
            figure, axes = plt.subplots(1, len(matrices), figsize=(3 * len(matrices) + 0.8, 3.1), squeeze=False)
            for axis, (form, matrix) in zip(axes[0], matrices.items(), strict=True):
                colours = "viridis" if theme == "dark" else "Blues"
                shown = axis.imshow(matrix, cmap=colours, vmin=-4, vmax=0)
                axis.set_title(form or "both directions", fontsize=10)
                axis.set_xlabel("input")
            axes[0, 0].set_ylabel("output")
            bar = figure.colorbar(shown, ax=axes[0], fraction=0.03, ticks=[-4, -2, 0])
            bar.ax.set_yticklabels(["≤ 10⁻⁴", "10⁻²", "1"])
            figure.savefig(folder / f"{name}-{theme}.png", dpi=110, transparent=True, bbox_inches="tight")
            plt.close(figure)


def draw_all(folder: Path) -> None:
    """Draw all mechanisms whose code has changed since they were drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in mixers.names():
        code = inspect.getsource(inspect.getmodule(mixers.load(name)) or mixers) + Path(__file__).read_text()
        drawn, digest = folder / f"{name}.sha256", hashlib.sha256(code.encode()).hexdigest()
        if not drawn.exists() or drawn.read_text() != digest:
            draw(name, folder)
            drawn.write_text(digest)


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]))
