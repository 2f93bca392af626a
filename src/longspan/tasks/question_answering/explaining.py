"""Which words of a question and its document speak for an answer: `answer_case`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.data.batches.streams import pad
from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.explanations.question import Question, Read
from longspan.tasks.base import Run
from longspan.tasks.explaining import Asked, Case, number_of_class, texts_as_one
from longspan.tasks.question_answering.trainer import PER_TOKEN
from longspan.tasks.question_answering.windows import Layout


def answer_case(
    run: Run, where: str, windows: Sequence[dict[str, Any]], span: tuple[int, int], name: str, said: dict[str, Any]
) -> Case:
    """Return what there is to explain about an answer: the log-odds of its first and of its last token, added.

    Args:
        run: The run.
        where: The place of the question.
        windows: The rows of its document, see `windows.FEATURES`.
        span: The characters of the answer in the document.
        name: The answer.
        said: What the model says, as JSON.

    Raises:
        UserError: No token is in the span.
    """
    model, tokenizer = run.model, tokenizer_of(run.processor)
    for row in windows:
        offsets = np.asarray(row["offsets"]).reshape(-1, 2)
        inside = np.flatnonzero((offsets[:, 1] > span[0]) & (offsets[:, 0] < span[1]))
        # In the window that has all of it.
        if len(inside) and offsets[-1, 1] >= span[1] and offsets[0, 0] <= span[0]:
            break
    else:
        raise UserError(f"{where}: expected an answer of tokens that are read together, got {name!r}; name another.")
    first, last = (int(row["begin"] + place) for place in (inside[0], inside[-1]))
    read = pad([row], {**run.processor.streams, **PER_TOKEN})
    batch = {key: each.to(model.device) for key, each in read.items()}
    ends = [number_of_class(number, name) for number in (first, last)]

    def odds(logits: Tensor) -> Tensor:
        return sum((end.value(logits[:, place]) for place, end in enumerate(ends)), logits.new_zeros(len(logits)))

    def share(logits: Tensor) -> Tensor:
        return ends[0].share(logits[:, 0]) * ends[1].share(logits[:, 1])

    question = Question(
        model,
        batch,
        odds,
        share,
        (Read(call=1 if model.config.cross_mixers else 0),),
        masked=False,
        output=lambda found: torch.stack((found.start_logits, found.end_logits), 1),
    )
    ((_, asked),) = tokens_with_offsets(tokenizer, [row["question"]])
    layout, none = Layout.of(tokenizer), np.full((1, 2), -1)
    head = np.concatenate([none.repeat(len(layout.before), 0), asked, none.repeat(len(layout.between), 0)])
    tail = none.repeat(row["length"] - row["begin"] - len(offsets), 0)
    # Characters are those of the whole document, of which the window has a part.
    document = np.concatenate([offsets - row["shift"], tail])
    places = texts_as_one([row["question"], row["text"]], [head, document])
    return Case(where, Asked(name, "log-odds", odds, share), question, places, said)
