"""Images of one size as arrays: what the baselines of image classification share."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from longspan.data.batches.unreadable import readable, refusal
from longspan.data.images.augmentation import resized
from longspan.data.images.processor import ImageProcessor
from longspan.data.processor import Unreadable
from longspan.models import LongspanConfig
from longspan.tasks.base.baselines.bags import targets_of
from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.base.examples import ExampleTask
from longspan.tasks.base.task import Fitted, Recipe, check_validation

#: Baselines read images of at most this height and width.
SIDE = 32


@dataclass(frozen=True)
class Images:
    """A recipe's images, split as for its runs, and scaled to squares of one size.

    Attributes:
        pixels: By split, (n, side, side, channels) uint8.
        targets: By split, class numbers, (n,).
        config: The configuration of a model of the task, for labels and scores.
        task: The task.
    """

    pixels: dict[str, np.ndarray]
    targets: dict[str, Tensor]
    config: LongspanConfig
    task: ExampleTask

    def fitted(self, logits: Mapping[str, Tensor], chosen: dict[str, object], parameters: int) -> Fitted:
        """Return the result of a baseline with these outputs, (n, classes), for splits that are held out."""
        scores = {
            split: self.task.score(found.float(), self.targets[split], self.config) for split, found in logits.items()
        }
        return Fitted[ClassificationScores](scores, chosen, parameters)

    def held_out(self) -> list[str]:
        """Return the names of the splits that are not trained on."""
        return [split for split in self.pixels if split != "train"]


def images(recipe: Recipe) -> Images:
    """Return the images of a recipe. Raises UserError for whatever is wrong with them."""
    task, data = recipe.task, recipe.data
    assert isinstance(task, ExampleTask)
    loaded = task.load(data)
    if data.skip_bad_rows:
        loaded = readable(loaded, lambda rows: task.learned(rows, data), data, task.columns(data))
    splits = loaded.splits
    check_validation(splits)
    processor = task.learned(splits["train"], data)
    assert isinstance(processor, ImageProcessor)
    config = task.configure({}, {**processor.settings({}), **task.head(splits["train"], data)})
    pixels, side = {}, min(SIDE, data.max_side)
    for name, split in splits.items():
        found = []
        for row in split:
            try:
                found.append(resized(processor.decoded(row["image"]), side, side))
            except Unreadable as error:
                raise refusal(row["where"], str(error)) from None
        pixels[name] = np.stack(found)
    return Images(pixels, targets_of(task, splits, config), config, task)
