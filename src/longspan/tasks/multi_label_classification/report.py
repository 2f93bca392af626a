"""Results of multi-label classifiers: tables, and what the model card says."""

from longspan.machine.printing import code_names
from longspan.models.publishing import NAME
from longspan.report import count, scores_table, share, table
from longspan.report.card import CardParts
from longspan.results import Evaluation, TrainingResult
from longspan.tasks.base import Recipe, Task
from longspan.tasks.multi_label_classification.scores import MultiLabelScores

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
