"""Training of frame labelling: `FrameTrainer`, and labels of recordings from scores."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn

from longspan.data.batches.streams import Stream
from longspan.models.parts.losses import IGNORED
from longspan.results.parts import BOTH, NAMES, Parts
from longspan.results.scores import check_finite
from longspan.tasks.base.classes import balanced_scales
from longspan.tasks.base.mixing import ratio_of_sums
from longspan.tasks.frame_labelling.scores import FrameScores, frame_scores
from longspan.tasks.frame_labelling.smoothing import PENALTIES, paths
from longspan.tasks.frame_labelling.windows import recordings
from longspan.training.lengths import Collator, LengthTrainer, Rows, ragged_outputs

#: The classes of a recording's frames, and the log-probabilities of its positions.
Scored = tuple[np.ndarray, np.ndarray]


class FrameTrainer(LengthTrainer[FrameScores]):
    """A `LengthTrainer` of windows of recordings, whose frames have labels.

    Whenever it scores the validation split, it chooses the scales of both parts of a model that has a wide one, and the
    penalty of changes that the model's labels are smoothed with: the one with the lowest segment error rate, and among
    equals with the highest accuracy. It does so before a checkpoint is saved, so each one has its own. No other split
    changes them, and training does not depend on them.

    Args:
        names: the class names.
        args, kwargs: those of `LengthTrainer`.
    """

    def __init__(self, *args: Any, names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data_collator = PositionCollator(self.streams, self.stride)
        self.names = names

    @property
    def stride(self) -> int:
        """Frames for each position of the model."""
        return int(self.model.config.embeddings.stride)

    def outputs(self, dataset: Dataset, name: str = "") -> Tensor:
        """Return the logits of all positions of windows, one window after the other, or the outputs "parts"."""
        rows = self.rows(dataset, [stream for stream in self.streams if stream != "labels"])
        return position_logits(self.model, rows, dataset["length"][:], name=name or "logits", **self.scoring(dataset))

    def score(self, dataset: Dataset) -> FrameScores:
        """Return the scores of the smoothed labels; see the class."""
        model: Any = self.model
        validation, stride = dataset is self.eval_dataset, self.stride
        logits = self.outputs(dataset, output_of(model))
        if model.wide is not None and validation:
            model.wide.scales.copy_(_scales(dataset, logits, stride))
        penalties = PENALTIES if validation else [float(model.switch_penalty)]

        def smoothed_best(found: Tensor) -> tuple[float, FrameScores]:
            return best_penalty(
                list(recordings(dataset, log_probabilities(found), stride)), self.names, stride, penalties
            )

        both = combined(model, logits)
        penalty, scores = smoothed_best(both)
        if model.wide is not None and validation:
            # Smoothed labels may be worse than those of a part, although frames one by one are not.
            found = compare_labels(dataset, logits, both, penalty, stride)
            if (best := found.best()) != BOTH:
                model.wide.scales.copy_(torch.eye(2)[NAMES.index(best)])
                both = combined(model, logits)
                penalty, scores = smoothed_best(both)
        model.switch_penalty.fill_(penalty)
        if model.wide is not None:
            self.remember_parts(dataset, functools.partial(compare_labels, dataset, logits, both, penalty, stride))
        return scores


def output_of(model: Any) -> str:
    """Output of a model that is scored."""
    return "logits" if model.wide is None else "parts"


def combined(model: Any, outputs: Tensor) -> Tensor:
    """Logits of positions, `(n, c)`, from the outputs `output_of` a model."""
    return outputs if model.wide is None else model.wide.combined(*outputs.unbind(1))


def _scales(dataset: Dataset, parts: Tensor, stride: int) -> Tensor:
    """Scales of both parts, `(2,)`, from their logits for the positions of windows, `(n, 2, c)`."""
    scored = list(recordings(dataset, parts.numpy(), stride))
    middles = [np.minimum(np.arange(len(own)) * stride + stride // 2, len(right) - 1) for right, own in scored]
    labels = np.concatenate([right[middle] for (right, _), middle in zip(scored, middles, strict=True)])
    return balanced_scales(torch.from_numpy(np.concatenate([own for _, own in scored])), torch.from_numpy(labels))


def compare_labels(dataset: Dataset, parts: Tensor, both: Tensor, penalty: float, stride: int) -> Parts:
    """Frame accuracy of both parts alone and together, with one penalty of changes."""
    sums = []
    for logits in (*parts.unbind(1), both):
        right, (found,) = smoothed(recordings(dataset, log_probabilities(logits), stride), [penalty], stride)
        hits = [(int((one == other).sum()), len(one)) for one, other in zip(right, found, strict=True)]
        sums.append(torch.tensor(hits))
    return ratio_of_sums(FrameScores, "accuracy", sums)


class PositionCollator(Collator):
    """A `Collator` of windows, whose batches have the labels of positions instead of those of frames."""

    def __init__(self, streams: Mapping[str, Stream], stride: int) -> None:
        super().__init__(streams)
        self.stride = stride

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = super().__call__(examples)
        frames = batch[next(iter(self.streams))].shape[1]
        return {**batch, "labels": of_positions(batch["labels"], frames, self.stride)}


def position_logits(
    model: Any,
    rows: Rows | Sequence[dict[str, Any]],
    lengths: Sequence[int],
    *,
    name: str = "logits",
    **options: Any,
) -> Tensor:
    """Return the logits of all positions of windows, one window after the other, (positions, classes).

    With the name "parts" they are those of both parts, (positions, 2, classes).
    """
    sizes = [-(-length // model.config.embeddings.stride) for length in lengths]
    shape = (2, model.config.num_labels) if name == "parts" else (model.config.num_labels,)
    return ragged_outputs(model, rows, sizes=sizes, name=name, shape=shape, **options)


def log_probabilities(logits: Tensor) -> np.ndarray:
    """Return the logarithms of probabilities. Raises UserError if logits are not finite."""
    check_finite(logits, "recordings")
    found: np.ndarray = logits.log_softmax(-1).numpy()
    return found


def of_positions(labels: Tensor, frames: int, stride: int) -> Tensor:
    """Return the labels of positions, (b, ⌈frames / stride⌉), those of their middle frames, from labels (b, t)."""
    positions = -(-frames // stride)
    padded = nn.functional.pad(labels, (0, positions * stride - labels.shape[1]), value=IGNORED)
    return padded.unflatten(1, (positions, stride))[:, :, stride // 2]


def best_penalty(
    scored: Sequence[Scored], names: Sequence[str], stride: int, penalties: Sequence[float] = PENALTIES
) -> tuple[float, FrameScores]:
    """Return the penalty with the lowest segment error rate, and the scores with it."""
    found = smoothed_scores(scored, penalties, names, stride)
    return min(zip(penalties, found, strict=True), key=lambda one: (one[1].segment_error, -one[1].accuracy))


def smoothed_scores(
    scored: Iterable[Scored], penalties: Sequence[float], names: Sequence[str], stride: int
) -> list[FrameScores]:
    """Return the scores of recordings with each penalty of changes."""
    right, found = smoothed(scored, penalties, stride)
    return [frame_scores(right, labels, names) for labels in found]


def smoothed(
    scored: Iterable[Scored], penalties: Sequence[float], stride: int
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Return the right labels of recordings, (t,) each, and for each penalty of changes those given to them."""
    right: list[np.ndarray] = []
    found: list[list[np.ndarray]] = [[] for _ in penalties]
    for classes, scores in scored:
        right.append(classes)
        for own, labels in zip(found, paths(scores, penalties), strict=True):
            own.append(np.repeat(labels, stride)[: len(classes)])
    return right, found
