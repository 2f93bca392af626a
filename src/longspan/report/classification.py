"""Results of document classifiers: tables and the model card."""

from collections.abc import Mapping
from typing import Any

from longspan.recipes import Recipe
from longspan.report import count, duration, scored, scores_table, share, size, table
from longspan.tasks.classification import SCORES


def data_table(data: Mapping[str, Any], style: str = "simple") -> str:
    """Return the table of splits: documents, tokens, how many were cut and by how much, and the lengths."""
    splits = {name: row for name, row in data.items() if isinstance(row, Mapping) and "documents" in row}
    headers = ["split", "documents", "tokens", "median length", "longest", "cut documents", "tokens cut off"]
    keys = ["documents", "tokens", "median_length", "longest", "cut_documents", "removed_tokens"]
    return table(headers, ([name, *(count(row.get(key)) for key in keys)] for name, row in splits.items()), style)


def evaluation_summary(result: Mapping[str, Any]) -> str:
    """Return what `longspan evaluate` prints, from the result of `longspan.evaluate.evaluate`."""
    split = result["split"]
    keys = ("precision", "recall", "f1")
    classes = (
        [name, *(share(row[key]) for key in keys), count(row["support"])] for name, row in result["per_class"].items()
    )
    bins = (
        [f"{row['from']:.2f} to {row['to']:.2f}", count(row["count"]), share(row["confidence"]), share(row["accuracy"])]
        for row in result["reliability"]
    )
    parts = [
        data_table({split: result["truncation"]}),
        f"padding: {result['padding_fraction']:.1%} of the computed positions",
        scores_table(SCORES, {split: result}),
        table(["class", "precision", "recall", "F1", "support"], classes),
        table(["confidence", "documents", "mean confidence", "accuracy"], bins),
        f"written to {result['folder']}",
    ]
    return "\n\n".join(parts)


def model_card(recipe: Recipe, result: Mapping[str, Any]) -> str:
    """Return the README.md of a run folder, in the form the Hugging Face Hub reads.

    Args:
        recipe: The resolved recipe of the run.
        result: What `longspan.train.train` returns.
    """
    labels = result["labels"]
    mixers = recipe.model.get("mixers", ["additive"])
    tags = "\n".join(f"- {tag}" for tag in ("longspan", "long-document", *dict.fromkeys(mixers)))
    named = ", ".join(f"`{name}`" for name in labels[:50])
    more = f" and {len(labels) - 50} more" if len(labels) > 50 else ""
    length = recipe.data.max_length
    # A pipeline reads documents whole unless told otherwise.
    cut = f", truncation=True, max_length={length}" if length else ""
    left = '\nclassify.tokenizer.truncation_side = "left"' if length and recipe.data.keep == "last" else ""
    kept = f"only the {recipe.data.keep} {length:,} tokens of each are read" if length else "they are read whole"
    return _CARD.format(
        tags=tags,
        name=recipe.name,
        description=recipe.description or f"A text classifier trained with the recipe `{recipe.name}`.",
        labels=named + more,
        mixers=", ".join(mixers),
        parameters=count(result["parameters"]),
        scores=scores_table(SCORES, scored(result), "github"),
        data=data_table(result["data"], "github"),
        seconds=duration(result["seconds"]),
        speed=count(result["tokens_per_second"]),
        memory=size(result["peak_memory_bytes"]),
        kept=kept,
        cut=cut,
        left=left,
    )


_CARD = """\
---
library_name: transformers
pipeline_tag: text-classification
tags:
{tags}
metrics:
- accuracy
- f1
---

# {name}

{description}

Made with longspan: {mixers}, {parameters} parameters. It tells apart {labels}.

## Results

{scores}

Macro-F1 is the mean over classes. The calibration error compares confidence with accuracy: 0 is best.

## Use

```python
import longspan.models  # makes the architecture known to transformers
from transformers import pipeline

classify = pipeline("text-classification", model="PATH OF THIS FOLDER"){left}
print(classify("Some text."{cut}))
```

`longspan predict` labels whole files.

## Training

{data}

Training took {seconds} at {speed} tokens/s and {memory} of memory at most. `recipe.toml` holds every setting and
`environment.json` the versions and the machine; `longspan train recipe.toml` repeats the run.

## Limitations

The scores hold for documents like those it was trained on, and {kept}. It always answers with one of its
classes, also for documents of no such class or in another language. What is biased in the training data is biased
here.
"""
