"""A small convolutional network: `Cnn`."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from longspan.data.batches.by_length import LengthBatches
from longspan.data.batches.streams import Stream, pad
from longspan.ops.mel import normalised
from longspan.tasks.audio_classification.baselines._recordings import RecordingBaseline, Recordings
from longspan.tasks.base.baselines.bags import Candidate

#: Channels of the three layers.
CHANNELS = (16, 32, 64)
EPOCHS, BATCH, RATE = 30, 32, 2e-3


class Cnn(RecordingBaseline):
    """Three convolutions of the spectrogram with a mean over time, trained for 30 epochs without augmentation."""

    def candidates(self, recordings: Recordings, seed: int) -> Iterator[Candidate]:
        frames = {name: [normalised(one, 0, 1e-2) for one in some] for name, some in recordings.frames.items()}
        targets = recordings.targets["train"]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Network(frames["train"][0].shape[1], recordings.config.num_labels)
            batches = LengthBatches([len(one) for one in frames["train"]], BATCH, shuffle=True, seed=seed)
            optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
            steps = EPOCHS * len(batches)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
            for epoch in range(EPOCHS):
                batches.set_epoch(epoch)
                model.train()
                for rows in batches:
                    optimizer.zero_grad()
                    logits = model(*_batch([frames["train"][row] for row in rows]))
                    nn.functional.cross_entropy(logits, targets[rows]).backward()
                    optimizer.step()
                    schedule.step()
                logits = {name: _logits(model, some) for name, some in frames.items() if name != "train"}
                yield Candidate({"epoch": epoch + 1}, logits, sum(one.numel() for one in model.parameters()))


class Network(nn.Module):
    """Logits (b, classes) of frames (b, t, bands), whose mask (b, t) is True at real frames."""

    def __init__(self, bands: int, classes: int) -> None:
        super().__init__()
        sizes = (1, *CHANNELS)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(size, larger, 3, padding=1), nn.BatchNorm2d(larger), nn.GELU())
            for size, larger in zip(sizes, CHANNELS, strict=False)
        )
        self.pool = nn.MaxPool2d((1, 2), ceil_mode=True)
        self.dropout = nn.Dropout(0.2)
        self.output = nn.Linear(CHANNELS[-1] * math.ceil(bands / 2 ** len(CHANNELS)), classes)

    def forward(self, frames: Tensor, mask: Tensor) -> Tensor:
        real = mask[:, None, :, None]
        x = frames.unsqueeze(1)
        for layer in self.layers:
            x = self.pool(layer(x * real))
        summed = (x * real).sum(2) / real.sum(2)
        logits: Tensor = self.output(self.dropout(summed.flatten(1)))
        return logits


def _batch(frames: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    stream = Stream("float32", width=frames[0].shape[1], mask="mask")
    padded = pad([{"frames": one} for one in frames], {"frames": stream})
    return padded["frames"], padded["mask"].bool()


@torch.no_grad()
def _logits(model: Network, frames: list[np.ndarray]) -> Tensor:
    model.eval()
    logits: Tensor = torch.cat(
        [model(*_batch(frames[start : start + BATCH])) for start in range(0, len(frames), BATCH)]
    )
    return logits
