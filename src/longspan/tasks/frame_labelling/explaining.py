"""Stretches of a recording that speak for the label of a frame: `frame_label`."""

import numpy as np
import torch

from longspan.data.batches.streams import pad
from longspan.data.processor import Places
from longspan.data.signals.decoding import blocks
from longspan.data.signals.frame_blocks import frame_blocks, windows
from longspan.data.signals.processor import FRAMES
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.models.limits import too_long
from longspan.tasks.base.case import Case, class_asked
from longspan.tasks.base.classes import labels
from longspan.tasks.base.task import Run
from longspan.tasks.frame_labelling.prediction import FramesPrediction
from longspan.tasks.frame_labelling.processor import FrameProcessor
from longspan.tasks.frame_labelling.scores import OUTSIDE
from longspan.tasks.frame_labelling.windows import cut_for


def frame_label(run: Run, row: Row, of: str, at: float | None, prediction: FramesPrediction) -> Case:
    """Case of the label of a recording at a time.

    What speaks for it are the frames of the window in which it is labelled.

    Args:
        run: The run.
        row: The recording.
        of: The label; by default that of the segment that it is in.
        at: Seconds; by default the middle of the first segment, or of the recording, if it has none.
        prediction: The segments.

    Raises:
        UserError: See `Task.case`.
    """
    model, processor, names = run.model, run.processor, labels(run.model.config)
    assert isinstance(processor, FrameProcessor)
    if prediction.segments is None:
        raise UserError(f"{row.where}: expected a recording to explain, got {prediction.error}; choose another row.")
    frames = np.concatenate(
        list(frame_blocks(processor.extractor, blocks(row.values["recording"], processor.sample_rate)))
    )
    seconds = _time(at, prediction.segments, len(frames) * processor.hop)
    inside = (one["label"] for one in prediction.segments if one["start"] <= seconds < one["end"])
    label = next(inside, names[OUTSIDE])
    frame = min(len(frames) - 1, max(0, round((seconds - processor.middle) / processor.hop)))
    stride = model.config.embeddings.stride
    cut = cut_for(run.recipe.data.max_length, stride)
    first, own = 0, 0
    for window in windows([frames], cut.size, cut.context):
        own += window.last - window.first
        if frame < own:
            break
        first += cut.size - 2 * cut.context
    read = processor.extractor.normalised(window.frames)
    if problem := too_long(model, len(read)):
        raise UserError(f"{row.where}: {problem}.")
    place = (frame - first) // stride
    batch = {name: each.to(model.device) for name, each in pad([{FRAMES: read}], processor.streams).items()}
    asked = class_asked(names, of or label).at(place)
    with torch.no_grad():
        logits = model(**batch).logits.float().cpu()
    begins = (first + np.arange(len(read))) * processor.hop
    places = Places("seconds", np.stack([begins, begins + processor.hop], 1))
    question = Question(model, batch, asked.value, asked.share, masked=False, at=place)
    said = {"label": label, "probabilities": dict(zip(names, logits[0, place].softmax(-1).tolist(), strict=True))}
    return Case(f"{row.where}, at {seconds:.2f} s", asked, question, places, said, outputs=logits)


def _time(at: float | None, segments: list[dict[str, float]], end: float) -> float:
    """Return the time that is explained, in seconds."""
    if at is None:
        return (segments[0]["start"] + segments[0]["end"]) / 2 if segments else end / 2
    if not 0 <= at <= end:
        raise UserError(f"expected seconds of the recording, from 0 to {end:.2f}, got {at:g}; choose a time within it.")
    return at
