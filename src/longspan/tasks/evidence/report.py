"""Results of finding evidence: tables, and what the model card says."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset

from longspan.report import scores_table, share, table
from longspan.report.pictures import needs_matplotlib, save
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes
from longspan.tasks.base.task import Task
from longspan.tasks.evidence.scores import SHARE, EvidenceScores, probabilities


def mistakes(logits: Sequence[np.ndarray], gold: Sequence[np.ndarray], examples: Dataset) -> Mistakes:
    """Return the questions whose likeliest part is no answer, the most confident first.

    Args:
        logits: For each question, `(p,)` those of the document's parts.
        gold: For each question, `(p,)` whether a part answers it; questions without any are left out.
        examples: The documents, with `parts`, `questions` and `where`.
    """
    top = [int(row.argmax()) for row in logits]
    scores = [
        float(probabilities(row)[best]) if right.any() and not right[best] else np.nan
        for row, right, best in zip(logits, gold, top, strict=True)
    ]
    ends = np.cumsum([len(questions) for questions in examples["questions"][:]])

    def tell(number: int) -> dict[str, str]:
        document = int(np.searchsorted(ends, number, "right"))
        row = examples[document]
        question = row["questions"][number - int(ends[document])]
        return {
            "where": row["where"],
            "expected": " / ".join(row["parts"][place] for place in np.flatnonzero(gold[number])),
            "said": row["parts"][top[number]],
            "text": question,
        }

    return Mistakes.ranked("probability of the likeliest part", scores, tell)


def evaluation_report(task: Task, evaluation: Evaluation[EvidenceScores]) -> str:
    """Report that `longspan evaluate` prints."""
    scores, split = evaluation.scores, evaluation.split
    recalls = ([share(float(read)), share(recall)] for read, recall in scores.recall_by_share.items())
    left = f"{scores.unanswered} questions that no part answers are not scored\n\n" if scores.unanswered else ""
    parts = [
        task.data_table({split: evaluation.details["data_summary"]}),
        scores_table({split: scores}),
        table(["share read", "recall"], recalls),
        f"{left}written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)


#: Questions that are drawn, evenly among those there are.
QUESTIONS = 12
_TITLE = 90


@needs_matplotlib
def recall_curve(scores: EvidenceScores, path: Path) -> None:
    """Draw which share of the evidence is read if so much of each document is, the best parts first.

    Args:
        scores: The scores of a split.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

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


@needs_matplotlib
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
    from matplotlib.figure import Figure

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
