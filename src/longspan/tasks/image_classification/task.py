"""Image classification: `ImageClassification`."""

from collections.abc import Mapping
from typing import ClassVar

from longspan.data.images.processor import AugmentedImages, ImageProcessor
from longspan.machine.printing import code_names
from longspan.models import LongspanForImageClassification
from longspan.models.embeddings.patches import PatchSettings
from longspan.models.embeddings.pixels import PixelSettings
from longspan.models.publishing import NAME
from longspan.report import count
from longspan.report.card import CardParts
from longspan.results import TrainingResult
from longspan.tasks.base.classes import ClassificationScores, ClassTask
from longspan.tasks.base.examples import Facts
from longspan.tasks.base.options import LengthTrainingOptions
from longspan.tasks.base.task import Baseline, Recipe, baselines_in
from longspan.tasks.image_classification import baselines
from longspan.tasks.image_classification.options import ImageClassificationData


class ImageClassification(ClassTask[ImageClassificationData]):
    """One label for each image, of any size."""

    data_config = ImageClassificationData
    length_key = "data.max_side"
    processor = ImageProcessor
    embeddings = (PatchSettings, PixelSettings)
    model_class = LongspanForImageClassification
    augmented_class = AugmentedImages
    example = "an image"
    data_hint = (
        "data.path=FOLDER (a folder with one sub-folder of image files per class, or a csv, tsv, jsonl or parquet file "
        "with paths), or data.train=FILE"
    )
    facts: ClassVar[Facts] = {
        "documents": ("images", count),
        "tokens": ("patches", count),
        "median_length": ("median length", count),
        "longest": ("longest", count),
    }

    def baselines(self) -> Mapping[str, type[Baseline[ClassificationScores]]]:
        return baselines_in(baselines)

    def card_parts(
        self,
        recipe: Recipe[ImageClassificationData, LengthTrainingOptions],
        result: TrainingResult[ClassificationScores],
    ) -> CardParts:
        return card_parts(recipe, result)


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
