"""Words of a question and its document that speak for a part of the document as its answer: `part_case`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.processor import tokenizer_of
from longspan.explanations.question import InputSequence, Question
from longspan.tasks.base.case import Case, label_asked, texts_as_one
from longspan.tasks.base.task import Run
from longspan.tasks.evidence.tokens import collate, tokenise_document


def part_case(run: Run, where: str, parts: Sequence[str], question: str, number: int, said: dict[str, Any]) -> Case:
    """Case of a part of a document as evidence: the log-odds that it is.

    Args:
        run: The run.
        where: The place of the document.
        parts: Its parts.
        question: The question.
        number: That of the part, from 0.
        said: What the model says of the question, as JSON.
    """
    model, tokenizer = run.model, tokenizer_of(run.processor)
    (example,) = tokenise_document(tokenizer, parts, [question])
    batch = {name: each.to(model.device) for name, each in collate([example], run.processor.streams).items()}
    names = [f"part {place + 1}" for place in range(len(parts))]
    asked = label_asked(names, names[number])
    texts = [question, *parts]
    spans = [characters for _, characters in tokens_with_offsets(tokenizer, texts)]
    # What has no tokens has an unknown one.
    lengths = [len(example["question_ids"][0]), *example["part_lengths"]]
    spans = [own if len(own) else np.full((length, 2), -1) for own, length in zip(spans, lengths, strict=True)]
    sequences = (InputSequence("question_mask", "question_counts", 1), InputSequence())
    settings = {"question_rows": batch.pop("question_rows")}
    question_asked = Question(model, batch, asked.value, asked.share, sequences, rows=1, settings=settings)
    return Case(f"{where}, part {number + 1:,}", asked, question_asked, texts_as_one(texts, spans), said)
