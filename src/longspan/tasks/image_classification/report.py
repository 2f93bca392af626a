"""What the model card says about image classifiers."""

from longspan.machine.printing import code_names
from longspan.models.publishing import NAME
from longspan.report.card import CardParts
from longspan.results import TrainingResult
from longspan.tasks.base import Recipe
from longspan.tasks.class_scores import ClassificationScores
from longspan.tasks.image_classification.options import ImageClassificationData
from longspan.tasks.options import LengthTrainingOptions


def card_parts(
    recipe: Recipe[ImageClassificationData, LengthTrainingOptions], result: TrainingResult[ClassificationScores]
) -> CardParts:
    """Return what the model card says about a classifier of images."""
    data = recipe.data
    size = "pixels" if data.patch_size == 1 else f"patches of {data.patch_size} x {data.patch_size} pixels"
    return CardParts(
        description=f"An image classifier trained with the recipe `{recipe.name}`.",
        made=f". It reads {size} as a sequence, and distinguishes {code_names(result.details['labels'])}.",
        results="Macro-F1 is the mean over classes. The calibration error compares confidence with accuracy.",
        use=_USE.format(name=NAME),
        limitations=_LIMITATIONS.format(side=data.max_side),
        pipeline_tag="image-classification",
        metrics=("accuracy", "f1"),
        metric_names={"macro_f1": "f1"},
    )


_USE = """\
```python
import longspan.models  # makes the architecture known to transformers
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline

{name}
model = AutoModelForImageClassification.from_pretrained(name)
processor = AutoImageProcessor.from_pretrained(name)
classify = pipeline("image-classification", model=model, image_processor=processor)
print(classify("picture.png"))
```

`longspan predict FOLDER FILE` labels files, folders of images and tables."""

_LIMITATIONS = """\
The scores apply to images like those it was trained on. Larger images are scaled down to {side} pixels. It always
answers with one of its classes, even for images of no such class. It shares the biases of its training data."""
