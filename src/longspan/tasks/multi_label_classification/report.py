"""Results of multi-label classifiers: tables, and what the model card says."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longspan.machine.printing import code_names
from longspan.models.publishing import NAME
from longspan.report import count, scores_table, share, table
from longspan.report.card import CardParts
from longspan.results import Evaluation, TrainingResult
from longspan.tasks.base.task import Recipe, Task
from longspan.tasks.multi_label_classification.scores import MultiLabelScores, precision_recall

_COLUMNS = {
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "average_precision": "average precision",
    "threshold": "threshold",
}


def evaluation_report(task: Task, evaluation: Evaluation[MultiLabelScores]) -> str:
    """Return what `longspan evaluate` prints."""
    scores, split = evaluation.scores, evaluation.split
    labels = (
        [name, *(share(row[key]) for key in _COLUMNS), count(row["support"])] for name, row in scores.per_label.items()
    )
    parts = [
        task.data_table({split: evaluation.details["truncation"]}),
        scores_table({split: scores}),
        table(["label", *_COLUMNS.values(), "documents"], labels),
        f"written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)


def card_parts(recipe: Recipe, result: TrainingResult) -> CardParts:
    """Return what the model card says about a model that gives these labels."""
    labels = result.details["labels"]
    length = recipe.data.max_length
    cut = f", truncation=True, max_length={length}" if length else ""
    left = '\nclassify.tokenizer.truncation_side = "left"' if length and recipe.data.keep == "last" else ""
    kept = f"only the {recipe.data.keep} {length:,} tokens of each are read" if length else "they are read in full"
    return CardParts(
        description=f"A multi-label text classifier trained with the recipe `{recipe.name}`.",
        made=f". It predicts which of {code_names(labels)} apply to a document, if any.",
        results=_RESULTS,
        use=_USE.format(name=NAME, left=left, cut=cut),
        limitations=_LIMITATIONS.format(kept=kept),
        pipeline_tag="text-classification",
        tags=("multi-label-classification", "long-document"),
        metrics=("f1",),
        metric_names={"micro_f1": "f1"},
    )


_RESULTS = """\
The mean average precision, the mean over labels, needs no threshold. Each label is given from a threshold of its own,
chosen for its F1 on the validation split: there F1 is a little better than on new documents."""

_USE = """\
```python
import longspan.models  # makes the architecture known to transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

{name}
model = AutoModelForSequenceClassification.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)
classify = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None){left}
thresholds = dict(zip(model.config.id2label.values(), model.config.head.thresholds))
for found in classify(["Some text."]{cut})[0]:
    if found["score"] >= thresholds[found["label"]]:
        print(found["label"], found["score"])
```

`longspan predict FOLDER FILE` labels whole files."""

_LIMITATIONS = """\
The scores apply to documents like those it was trained on, and {kept}. Thresholds of labels that were rare in the
validation split are uncertain. It shares the biases of its training data."""


#: Labels that are drawn, the most frequent ones; more could not be told apart.
LABELS = 8


def precision_recall_curves(
    logits: np.ndarray, truth: np.ndarray, names: Sequence[str], scores: MultiLabelScores, path: Path
) -> None:
    """Draw precision against recall: over all decisions, and for the most frequent labels with their thresholds.

    Args:
        logits: `(n, k)`.
        truth: `(n, k)` bool.
        names: The `k` labels.
        scores: The scores of these logits.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure

    from longspan.report.pictures import save, shortened

    figure = Figure(figsize=(8.2, 4.8), layout="constrained")
    axes = figure.subplots()
    if truth.any():
        together = precision_recall(logits.ravel(), truth.ravel())
        words = f"AP {together.average_precision:.3f}  all labels together"
        axes.step(together.recall, together.precision, where="pre", color="black", linewidth=2, label=words)
    frequent = sorted(np.flatnonzero(truth.any(0)).tolist(), key=lambda i: -truth[:, i].sum())[:LABELS]
    for i in frequent:
        curve, row = precision_recall(logits[:, i], truth[:, i]), scores.per_label[names[i]]
        # The name last: matplotlib hides what begins with an underscore.
        words = f"AP {row['average_precision']:.3f}  {shortened(names[i])} ({row['support']:,.0f})"
        (line,) = axes.step(curve.recall, curve.precision, where="pre", linewidth=1.2, label=words)
        axes.plot(row["recall"], row["precision"], "o", color=line.get_color(), markersize=5)
    title = "dots: at the thresholds"
    left_out = int(truth.any(0).sum()) - len(frequent)
    axes.set(
        xlim=(0, 1.01),
        ylim=(0, 1.02),
        xlabel="recall",
        ylabel="precision",
        title=title + (f"; {left_out:,} rarer labels are not drawn" if left_out else ""),
    )
    axes.grid(alpha=0.3)
    if axes.get_lines():
        figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    save(figure, path)
