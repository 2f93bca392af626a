"""Cepstral coefficients of the frames of a position: `Cepstra`."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from longspan.models.wide.linear import FramePart, LinearPart
from longspan.tasks.base.linear import FeatureCounts
from longspan.tasks.base.task import Prepared
from longspan.tasks.frame_labelling.scores import FrameScores
from longspan.tasks.frame_labelling.trainer import PositionCollator, best_penalty, log_probabilities, smoothed_scores
from longspan.tasks.frame_labelling.windows import LABELS, recordings

#: Training positions at most, evenly spread, and windows whose features are computed at once.
MOST, _WINDOWS = 50_000, 8


class Cepstra(FeatureCounts[FrameScores]):
    """Cepstral coefficients of each position and its neighbours with logistic regression, smoothed like a model.

    With `model.wide`, models contain it (`longspan.models.wide.linear.FramePart`).
    """

    @torch.no_grad()
    def examples(self, part: LinearPart, prepared: Prepared, split: str) -> tuple[Tensor, Tensor]:
        assert isinstance(part, FramePart)
        streams = {**prepared.processor.streams, **LABELS}
        examples = prepared.splits[split]
        collate, rows = PositionCollator(streams, part.stride), examples.select_columns(list(streams))
        sizes = [-(-length // part.stride) for length in examples["length"][:]]
        every = math.ceil(sum(sizes) / MOST) if split == "train" else 1
        features, labels = [], []
        for start in range(0, len(sizes), _WINDOWS):
            some = sizes[start : start + _WINDOWS]
            batch = rows.with_format("numpy").select(range(start, start + len(some)))
            read = collate(list(batch))
            classes, mask = read.pop("labels"), read.pop("attention_mask", None)
            found = part.features(None if mask is None else mask.bool(), None, **read)
            real = torch.arange(found.shape[1]) < torch.tensor(some).unsqueeze(1)
            features.append(found[real][::every])
            labels.append(classes[real][::every])
        return torch.cat(features), torch.cat(labels)

    def scored(
        self, part: LinearPart, prepared: Prepared, logits: Mapping[str, Tensor]
    ) -> tuple[dict[str, FrameScores], dict[str, object]]:
        assert isinstance(part, FramePart)
        names, stride = list(prepared.config["id2label"].values()), part.stride
        found = {
            name: list(recordings(prepared.splits[name], log_probabilities(each), stride))
            for name, each in logits.items()
        }
        penalty, _ = best_penalty(found["validation"], names, stride)
        scores = {name: smoothed_scores(each, [penalty], names, stride)[0] for name, each in found.items()}
        return scores, {"switch_penalty": penalty}
