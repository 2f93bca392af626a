"""
See what an image classifier looks at
=====================================

``longspan train images`` learns classes of images as sequences of patches. Covering one patch after the other shows
which of them the class depends on.
"""

# %%
# Images of three shapes
# ----------------------
# A disc, a triangle or a cross of any colour, at any place, over noise with a dark line across it.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image, ImageDraw

import longspan

SIDE, PATCH, SHAPES = 24, 4, ("cross", "disc", "triangle")
random = np.random.default_rng(0)


def drawn(shape: str) -> np.ndarray:
    """Return an image of a shape, (24, 24, 3) uint8."""
    image = Image.fromarray(random.integers(0, 90, (SIDE, SIDE, 3), np.uint8))
    pen = ImageDraw.Draw(image)
    pen.line([(0, int(random.integers(SIDE))), (SIDE, int(random.integers(SIDE)))], fill=(20, 20, 60), width=2)
    x, y = (int(place) for place in random.integers(0, SIDE - 10, 2))
    colour = tuple(int(level) for level in random.integers(120, 256, 3))
    if shape == "disc":
        pen.ellipse((x, y, x + 9, y + 9), fill=colour)
    elif shape == "triangle":
        pen.polygon([(x, y + 9), (x + 9, y + 9), (x + 4, y)], fill=colour)
    else:
        pen.rectangle((x + 3, y, x + 6, y + 9), fill=colour)
        pen.rectangle((x, y + 3, x + 9, y + 6), fill=colour)
    return np.asarray(image)


labels = [SHAPES[number % 3] for number in range(240)]
data = {"image": [drawn(label) for label in labels], "label": labels}

# %%
# Training on arrays
# ------------------
# Keys of the recipe are keywords. ``stem`` sets the channels of the convolutions that turn patches into vectors. The
# pooling ``max`` suits small objects in large images.

folder = Path(tempfile.mkdtemp(), "run")
model = {"dim": 32, "depth": 1, "stem": 16, "short_convolution": 7, "pooling": "max", "dropout": 0.0}
training = {"num_train_epochs": 8, "per_device_train_batch_size": 16, "learning_rate": 8e-3, "max_minutes": 0}
run = longspan.train("images", data=data, run=folder, **model, **training)
print(f"validation accuracy: {run.scores['validation'].accuracy:.2f}")

# %%
# Covering patches
# ----------------
# Each patch of an image is painted grey in turn. Where the probability of the class drops, the model needs that patch.


def covered(image: np.ndarray) -> list[np.ndarray]:
    """Return the image once for each patch, with that patch in grey."""
    copies = []
    for row in range(0, SIDE, PATCH):
        for column in range(0, SIDE, PATCH):
            copy = image.copy()
            copy[row : row + PATCH, column : column + PATCH] = 45
            copies.append(copy)
    return copies


figure, places = plt.subplots(2, 6, figsize=(8.5, 3.2), layout="constrained")
for number, shape in enumerate(SHAPES * 2):
    image = drawn(shape)
    whole, *parts = run.predict([image, *covered(image)])
    drop = [whole.probabilities[shape] - part.probabilities[shape] for part in parts]
    top, bottom = places[:, number]
    top.imshow(image)
    top.set_title(f"{whole.label} {whole.probabilities[whole.label]:.2f}", fontsize=9)
    shown = bottom.imshow(np.reshape(drop, (SIDE // PATCH, -1)), vmin=0, vmax=0.5, cmap="magma")
    for axes in (top, bottom):
        axes.set(xticks=[], yticks=[])
figure.colorbar(shown, ax=places[1], label="drop")
places[0, 0].set_ylabel("image")
places[1, 0].set_ylabel("drop")
plt.show()

# %%
# Take away: few small images are enough for simple shapes. Predictions of changed images show what a model looks at.
# :doc:`/images` has the data that are read, and augmentation.
