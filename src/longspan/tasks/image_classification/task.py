"""Image classification: `ImageClassification`."""

from collections.abc import Mapping
from typing import ClassVar

from longspan.data.images.augmented import AugmentedImages
from longspan.data.images.processor import ImageProcessor
from longspan.models import LongspanForImageClassification
from longspan.models.embeddings.patches import PatchSettings
from longspan.models.embeddings.pixels import PixelSettings
from longspan.report import count
from longspan.report.card import CardParts
from longspan.results import TrainingResult
from longspan.tasks.base import Baseline, Recipe
from longspan.tasks.baselines import baselines_in
from longspan.tasks.class_scores import ClassificationScores
from longspan.tasks.classes import ClassTask
from longspan.tasks.examples import Facts
from longspan.tasks.image_classification import baselines, report
from longspan.tasks.image_classification.options import ImageClassificationData
from longspan.tasks.options import LengthTrainingOptions


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
        return report.card_parts(recipe, result)
