"""Pictures of found evidence."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from longspan.report.pictures import save
from longspan.tasks.evidence.scores import SHARE, EvidenceScores, probabilities

#: Questions that are drawn, evenly among those there are.
QUESTIONS = 12
_TITLE = 90


def recall_curve(scores: EvidenceScores, path: Path) -> None:
    """Draw which share of the evidence is read if so much of each document is, the best parts first.

    Args:
        scores: The scores of a split.
        path: The PNG file to write.
    """
    figure = Figure(figsize=(5.4, 4), layout="constrained")
    axes = figure.subplots()
    shares = [0.0, *map(float, scores.recall_by_share)]
    axes.plot(shares, [0.0, *scores.recall_by_share.values()], marker="o", markersize=4, label="the model")
    axes.plot([0, 1], [0, 1], color="gray", linestyle=":", label="any order")
    axes.axvline(SHARE, color="black", linestyle="--", linewidth=1, label=f"a sixth: {scores.recall_at_sixth:.3f}")
    axes.set(xlabel="share of each document that is read", ylabel="recall of the parts that answer")
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower right")
    save(figure, path)


def strips(
    logits: Sequence[np.ndarray], truth: Sequence[np.ndarray], questions: Sequence[str], threshold: float, path: Path
) -> None:
    """Draw the probability of every part for some questions, from the first part to the last, and what is right.

    Args:
        logits: `(p,)` for each question.
        truth: `(p,)` bool for each.
        questions: Their texts.
        threshold: The probability from which a part is marked.
        path: The PNG file to write.
    """
    drawn = np.unique(np.linspace(0, len(logits) - 1, min(QUESTIONS, len(logits))).round().astype(int)).tolist()
    figure = Figure(figsize=(10, 0.4 + 0.95 * len(drawn)), layout="constrained")
    for axes, number in zip(figure.subplots(len(drawn), 1, squeeze=False)[:, 0], drawn, strict=True):
        chances, gold = probabilities(logits[number]), truth[number]
        x = np.arange(len(chances))
        axes.fill_between(x, 0, 1, where=gold, step="mid", color="tab:orange", alpha=0.35, linewidth=0, label="answers")
        axes.step(x, chances / max(chances.max(), 1e-9), where="mid", color="tab:blue", linewidth=0.8, label="score")
        marked = np.where(chances >= threshold, -0.12, np.nan)
        axes.plot(x, marked, color="tab:blue", linewidth=4, solid_capstyle="butt", label="marked")
        question = " ".join(questions[number].split())
        shown = question if len(question) <= _TITLE else f"{question[:_TITLE]}…"
        axes.set_title(shown, fontsize=8, loc="left", pad=2, parse_math=False)
        axes.set(xlim=(-0.5, len(chances) - 0.5), ylim=(-0.25, 1.05), yticks=[])
        axes.tick_params(labelsize=7)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    save(figure, path)
