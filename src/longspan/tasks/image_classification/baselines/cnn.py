"""A small convolutional network: `Cnn`."""

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.base.task import Baseline, Fitted, Recipe
from longspan.tasks.image_classification.baselines._images import Images, images
from longspan.tasks.image_classification.mirroring import HELD_OUT, TRAIN, mirrored_suit, spread

#: Channels of the stages, each with two convolutions; height and width are halved between them.
WIDTHS = (32, 64, 128)
BATCH, RATE, SMOOTHING, DECAY = 64, 3e-3, 0.1, 1e-2


class Cnn(Baseline[ClassificationScores]):
    """A convolutional network of six layers, trained as long as the recipe trains a model."""

    trains = True

    def fit(self, recipe: Recipe) -> Fitted[ClassificationScores]:
        found = images(recipe)
        random = np.random.default_rng(recipe.training["seed"])
        with torch.random.fork_rng():
            torch.manual_seed(recipe.training["seed"])
            model = network(found.pixels["train"].shape[3], len(found.config.id2label))
            epochs = _train(model, found, recipe, random)
        model.eval()
        logits = {}
        with torch.inference_mode():
            for split in found.held_out():
                parts = torch.from_numpy(found.pixels[split]).split(BATCH)
                logits[split] = torch.cat([model(_input(part)) for part in parts])
        return found.fitted(logits, {"epochs": round(epochs, 2)}, sum(one.numel() for one in model.parameters()))


def network(channels: int, classes: int) -> nn.Sequential:
    """Return a network that maps images (b, channels, h, w) to logits (b, classes)."""
    layers: list[nn.Module] = []
    for number, width in enumerate(WIDTHS):
        for before in (channels, width):
            layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        if number < len(WIDTHS) - 1:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels, classes))


def _train(model: nn.Module, found: Images, recipe: Recipe, random: np.random.Generator) -> float:
    """Train within the recipe's time or number of epochs, with a learning rate that ends at 0; return the epochs."""
    targets, pixels = found.targets["train"], found.pixels["train"]
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    loss_of = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    change = recipe.data.augmentation
    if recipe.data.flip == "auto":
        parts: list[Any] = []
        for name, most in (("train", TRAIN), ("validation", HELD_OUT)):
            some = spread(len(found.pixels[name]), most)
            parts += [found.pixels[name][some], found.targets[name][some]]
        change = recipe.data.decided(mirrored_suit(*parts, classes=len(found.config.id2label))).augmentation
    minutes, start, steps = recipe.options.max_minutes, time.monotonic(), 0
    every = max(1, math.ceil(len(pixels) / BATCH))
    total = every * recipe.training["num_train_epochs"]
    for rows in _batches(len(pixels), random):
        done = steps / total
        if minutes:
            done = max(done, (time.monotonic() - start) / (60 * minutes))
        if done >= 1:
            break
        for group in optimizer.param_groups:
            # A short warm-up, then a cosine.
            group["lr"] = RATE * min(1.0, (steps + 1) / 100) * 0.5 * (1 + math.cos(math.pi * done))
        now = change.in_epoch(steps // every)
        batch = np.stack([now.changed(pixels[row], random) for row in rows])
        loss = loss_of(model(_input(torch.from_numpy(batch))), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    return steps / every


def _batches(count: int, random: np.random.Generator) -> Iterator[np.ndarray]:
    while True:
        order = random.permutation(count)
        yield from (order[start : start + BATCH] for start in range(0, count, BATCH))


def _input(pixels: Tensor) -> Tensor:
    """Return images (b, h, w, c) uint8 as a network reads them, (b, c, h, w) from -2 to 2."""
    found = (pixels.permute(0, 3, 1, 2).float() / 255 - 0.5) * 4
    return found.contiguous(memory_format=torch.channels_last)
