"""Long recordings through causal models, segment by segment in constant memory: `streamed_logits`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.data.signals.decoding import blocks, seconds_of
from longspan.data.signals.frame_blocks import frame_blocks
from longspan.data.signals.processor import FRAMES, RecordingProcessor
from longspan.models import LongspanForAudioClassification
from longspan.models.embeddings.frames import Frames
from longspan.models.feature_extraction import LongspanFeatureExtractor
from longspan.models.limits import limits
from longspan.models.streamed_pooling import StreamedPooling

#: Recordings of more seconds are read in segments where the model allows it, each of this number of positions.
LONG, SEGMENT = 60.0, 1024


def can_stream(model: LongspanForAudioClassification) -> bool:
    """Return whether a model reads recordings of any length in constant memory."""
    mixers = [block.mixer for block in model.longspan.backbone.layers]
    streaming = all(mixer.capabilities.streaming and mixer.bounded_state for mixer in mixers)
    return bool(model.config.causal) and streaming and not limits(model)


def is_long(recording: Mapping[str, Any]) -> bool:
    """Return whether a recording is in a file and has more than `LONG` seconds."""
    return recording["samples"] is None and seconds_of(recording) > LONG


def streamed_logits(
    model: LongspanForAudioClassification, processor: RecordingProcessor, recording: Mapping[str, Any]
) -> Tensor:
    """Return the logits for a recording, (c,) float32: up to rounding, those for all of its frames at once.

    The recording is decoded twice, as its normalisation depends on all of it.

    Raises:
        Unreadable: It cannot be read.
    """
    extractor, rate = processor.extractor, processor.sample_rate
    mean, deviation = _moments(extractor, frame_blocks(extractor, blocks(recording, rate)))
    frames = (
        ((block - mean) / deviation).astype(np.float32) for block in frame_blocks(extractor, blocks(recording, rate))
    )
    body, pooling = model.longspan, StreamedPooling(model.pooling)
    assert isinstance(body.embeddings, Frames)
    with torch.inference_mode():
        states = body.init_states(1)
        for vectors in vector_blocks(body.embeddings, frames, model.device):
            found = body(inputs_embeds=vectors, past_key_values=states, use_cache=True)
            states = found.past_key_values
            pooling.add(found.last_hidden_state)
        logits: Tensor = model.classifier(pooling.result().to(model.dtype))[0]
        return logits.float().cpu()


def vector_blocks(embeddings: Frames, frames: Iterable[np.ndarray], device: torch.device) -> Iterator[Tensor]:
    """Yield the vectors of frames that come in blocks, (1, p, dim) at a time."""
    context, step = embeddings.reach, SEGMENT * embeddings.stride
    # Frames before the segment, of which its first vectors depend on, and the segment.
    before, kept = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32)
    for block in frames:
        kept = np.concatenate([kept, block]) if len(kept) else block
        while len(kept) >= step + context:
            yield _vectors(embeddings, before, kept[: step + context], step, device)
            seen = np.concatenate([before, kept[:step]]) if len(before) else kept[:step]
            before, kept = seen[len(seen) - min(context, len(seen)) :], kept[step:]
    if len(kept):
        yield _vectors(embeddings, before, kept, len(kept), device)


def _vectors(embeddings: Frames, before: np.ndarray, frames: np.ndarray, count: int, device: torch.device) -> Tensor:
    """Return the vectors of the first `count` frames after those `before` them."""
    given = np.concatenate([before, frames]) if len(before) else frames
    first, positions = len(before) // embeddings.stride, -(-count // embeddings.stride)
    found = embeddings({FRAMES: torch.from_numpy(given).unsqueeze(0).to(device)})
    return found[:, first : first + positions]


def _moments(extractor: LongspanFeatureExtractor, frames: Iterable[np.ndarray]) -> tuple[Any, Any]:
    """Return what to subtract from all frames of a recording, and what to divide them by."""
    axis = extractor.axis
    count, total, squares = 0, np.float64(0), np.float64(0)
    for block in frames if extractor.normalise != "none" else ():
        values = block.astype(np.float64)
        count += values.size if axis is None else len(values)
        total, squares = total + values.sum(axis), squares + np.square(values).sum(axis)
    if not count:
        return 0.0, 1.0
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0))
    return mean, np.maximum(deviation, extractor.least)
