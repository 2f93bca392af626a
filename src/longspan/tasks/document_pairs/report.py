"""What the model card says about classifiers of pairs of documents."""

from longspan.machine.printing import code_names
from longspan.models.publishing import NAME
from longspan.report.card import CardParts
from longspan.results import TrainingResult
from longspan.tasks.base import Recipe


def card_parts(recipe: Recipe, result: TrainingResult) -> CardParts:
    """Return what the model card says about a classifier of pairs of documents."""
    length = recipe.data.max_length
    kept = f"only the {recipe.data.keep} {length:,} tokens of each are read" if length else "they are read in full"
    return CardParts(
        description=f"A classifier of pairs of documents, trained with the recipe `{recipe.name}`.",
        made=f". It reads each of two documents by itself, compares them, and distinguishes "
        f"{code_names(result.details['labels'])}.",
        results="Macro-F1 is the mean over classes. The calibration error compares confidence with accuracy.",
        use=_USE.format(name=NAME),
        limitations=_LIMITATIONS.format(kept=kept),
        tags=("document-pairs", "long-document"),
        metrics=("accuracy", "f1"),
        metric_names={"macro_f1": "f1"},
    )


_USE = """\
```python
from longspan import LongspanForDocumentPairs
from transformers import AutoTokenizer

{name}
model = LongspanForDocumentPairs.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)
first, second = (tokenizer([text], return_tensors="pt") for text in ("Some text.", "Another text."))
found = model(**first, second_ids=second["input_ids"], second_mask=second["attention_mask"])
print(model.config.id2label[int(found.logits.argmax())])
```

`longspan predict FOLDER FILE` labels the pairs of a table."""

_LIMITATIONS = """\
The scores apply to pairs like those it was trained on, and {kept}. It always answers with one of its classes, even for
documents of another kind or language. It shares the biases of its training data."""
