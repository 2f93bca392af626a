"""Image classification: `ImageClassification`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.images.processor import AugmentedImages, ImageProcessor
from longspan.models import LongspanForImageClassification
from longspan.models.embeddings.patches import COORDINATES, PIXELS, PatchSettings
from longspan.models.embeddings.pixels import PixelSettings
from longspan.ops.images import picture
from longspan.report import count
from longspan.report.card import Hub
from longspan.tasks.base.classes import ClassTask
from longspan.tasks.base.task import Facts, Prepared, Recipe
from longspan.tasks.image_classification.mirroring import HELD_OUT, TRAIN, mirrored_suit, spread
from longspan.tasks.image_classification.options import ImageClassificationData
from longspan.training.lengths import targets


class ImageClassification(ClassTask[ImageClassificationData]):
    """One label for each image, of any size."""

    data_config = ImageClassificationData
    hub = Hub("image-classification", (), ("accuracy", "f1"), {"macro_f1": "f1"})
    length_key = "data.max_side"
    processor = ImageProcessor
    embeddings = (PatchSettings, PixelSettings)
    model_class = LongspanForImageClassification
    unused = ClassTask.unused - {"wide"}
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

    def trainer_options(
        self, recipe: Recipe, model: PreTrainedModel, arguments: TrainingArguments, prepared: Prepared
    ) -> dict[str, Any]:
        data = recipe.data
        if data.flip == "auto":
            parts: list[Any] = []
            for name, most in (("train", TRAIN), ("validation", HELD_OUT)):
                rows = prepared.splits[name]
                rows = rows.select(spread(len(rows), most))
                streams = rows.select_columns([PIXELS, COORDINATES]).with_format("numpy")
                parts.append([_picture(one, data.patch_size) for one in streams])
                parts.append(targets(rows))
            flip = mirrored_suit(*parts, classes=len(prepared.config["id2label"]))
            recipe = replace(recipe, data=data.decided(flip))
        return super().trainer_options(recipe, model, arguments, prepared)


def _picture(streams: Mapping[str, Any], patch: int) -> np.ndarray:
    """Image that a processor made streams of."""
    places = np.asarray(streams[COORDINATES]).reshape(-1, 2)
    return picture(np.asarray(streams[PIXELS]).reshape(len(places), -1), places, patch).astype(np.uint8)
