"""What the model card says about document classifiers."""

from collections.abc import Mapping, Sequence
from typing import Any

from longspan.machine.printing import code_names
from longspan.models.publishing import NAME
from longspan.report.card import CardParts
from longspan.results.parts import Parts
from longspan.tasks.base import Recipe


def card_parts(recipe: Recipe, labels: Sequence[str], parts: Mapping[str, Any] | None = None) -> CardParts:
    """Return what the model card says about a classifier with these labels, and these `Parts` if it has any."""
    length = recipe.data.max_length
    # A pipeline reads documents whole unless told otherwise.
    cut = f", truncation=True, max_length={length}" if length else ""
    left = '\nclassify.tokenizer.truncation_side = "left"' if length and recipe.data.keep == "last" else ""
    kept = f"only the {recipe.data.keep} {length:,} tokens of each are read" if length else "they are read in full"
    told = "" if parts is None else _PARTS.format(**Parts.from_dict(parts).values)
    return CardParts(
        description=f"A text classifier trained with the recipe `{recipe.name}`.",
        made=f". It distinguishes {code_names(labels)}.",
        results="Macro-F1 is the mean over classes. The calibration error compares confidence with accuracy." + told,
        use=_USE.format(name=NAME, left=left, cut=cut),
        limitations=_LIMITATIONS.format(kept=kept),
        pipeline_tag="text-classification",
        tags=("long-document",),
        metrics=("accuracy", "f1"),
        metric_names={"macro_f1": "f1"},
    )


_PARTS = """
Its logits are those of a linear model over n-grams of 1 to 3 tokens (validation accuracy {counts:.3f} alone) and of a
sequence model ({network:.3f} alone), weighted by the validation split."""

_USE = """\
```python
import longspan.models  # makes the architecture known to transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

{name}
model = AutoModelForSequenceClassification.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)
classify = pipeline("text-classification", model=model, tokenizer=tokenizer){left}
print(classify("Some text."{cut}))
```

`longspan predict FOLDER FILE` labels whole files."""

_LIMITATIONS = """\
The scores apply to documents like those it was trained on, and {kept}. It always answers with one of its
classes, even for documents of no such class or in another language. It shares the biases of its training data."""
