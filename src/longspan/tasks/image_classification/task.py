"""Image classification: `ImageClassification`."""

from collections.abc import Mapping
from typing import ClassVar

from longspan.data.images.processor import AugmentedImages, ImageProcessor
from longspan.models import LongspanForImageClassification
from longspan.models.embeddings.patches import PatchSettings
from longspan.models.embeddings.pixels import PixelSettings
from longspan.report import count
from longspan.report.card import Hub
from longspan.tasks.base.classes import ClassificationScores, ClassTask
from longspan.tasks.base.examples import Facts
from longspan.tasks.base.task import Baseline, baselines_in
from longspan.tasks.image_classification import baselines
from longspan.tasks.image_classification.options import ImageClassificationData


class ImageClassification(ClassTask[ImageClassificationData]):
    """One label for each image, of any size."""

    data_config = ImageClassificationData
    hub = Hub("image-classification", (), ("accuracy", "f1"), {"macro_f1": "f1"})
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
