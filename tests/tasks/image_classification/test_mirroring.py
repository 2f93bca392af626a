"""Whether images may be mirrored in training."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from longspan import train
from longspan.ops.images import ORDERS, picture, sequence
from longspan.tasks.image_classification.mirroring import mirrored_suit


def slopes(count: int, seed: int, both: bool) -> tuple[list[np.ndarray], torch.Tensor]:
    """Noisy stripes that rise to the right or fall; or, if each class has both, narrow and wide ones."""
    random = np.random.default_rng(seed)
    labels = torch.from_numpy(random.integers(0, 2, count))
    images = []
    for label in labels.tolist():
        rows, columns = np.indices((16, 16))
        rising = random.random() < 0.5 if both else label == 1
        along = columns - rows if rising else columns + rows
        waves = np.sin(along * (2 if both and label else 0.8) + random.uniform(0, 6))
        images.append((100 + 60 * waves + 10 * random.standard_normal((16, 16))).astype(np.uint8)[..., None])
    return images, labels


@pytest.mark.parametrize("both", [True, False])
def test_mirrored_images_of_other_classes_do_not_suit(both: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert mirrored_suit(*slopes(80, 0, both), *slopes(40, 1, both), classes=2) is both
    assert f"data.flip={str(both).lower()}" in capsys.readouterr().err


@pytest.mark.parametrize("order", ORDERS)
def test_a_picture_is_that_of_its_patches(order: str) -> None:
    image = np.random.default_rng(0).integers(0, 255, (12, 8, 3), np.uint8)
    patches, places = sequence(image, 4, order)
    np.testing.assert_array_equal(picture(patches, places, 4), image)


def test_the_recipe_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = slopes(60, 0, False)
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        folder = tmp_path / "stripes" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(folder / f"{number}.png")
    small = ["model.dim=16", "model.depth=1", "model.heads=2", "training.num_train_epochs=1"]
    settings = [f"data.path={tmp_path / 'stripes'}", "data.validation_fraction=0.4", *small]
    train("images", settings, run=tmp_path / "run", progress=False)
    assert "data.flip=false" in capsys.readouterr().err
