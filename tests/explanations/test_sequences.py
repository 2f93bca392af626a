"""Questions about several sequences, and about one position of the outputs: counts of 0 are deletions."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan import (
    LongspanForDocumentPairs,
    LongspanForEvidence,
    LongspanForQuestionAnswering,
    LongspanForSeq2SeqLM,
)
from longspan.explanations.methods import METHODS, removal
from longspan.explanations.question import InputSequence, Question

SMALL: dict[str, Any] = {
    "vocab_size": 20,
    "dim": 16,
    "depth": 1,
    "heads": 2,
    "feed_forward_dim": 16,
    "position": "none",
    "mixers": ["additive"],
    "short_convolution": 3,
    "dropout": 0.0,
}


def tokens(length: int, seed: int) -> Tensor:
    return torch.randint(1, 20, (1, length), generator=torch.Generator().manual_seed(seed))


def built(kind: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    return kind(kind.configured(**SMALL, **more)).double().eval()


def pairs() -> Question:
    batch = {"input_ids": tokens(7, 0), "second_ids": tokens(5, 1)}
    batch |= {
        "attention_mask": torch.ones_like(batch["input_ids"]),
        "second_mask": torch.ones_like(batch["second_ids"]),
    }
    reads = (InputSequence(), InputSequence("second_mask", "second_counts", 1))
    model = built(LongspanForDocumentPairs, num_labels=3)
    return Question(model, batch, lambda logits: logits[:, 1], lambda logits: logits.softmax(1)[:, 1], reads)


def written(copy: bool) -> Question:
    batch = {"input_ids": tokens(7, 0), "decoder_input_ids": tokens(4, 2)}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    model = built(LongspanForSeq2SeqLM, copy=copy, decoder_mixers=["additive"], cross_attention=["softmax"])
    token = int(batch["input_ids"][0, 2])
    return Question(model, batch, lambda logits: logits[:, 3, token], lambda logits: logits.softmax(-1)[:, 3, token])


def evidence(question: str) -> Question:
    batch = {"input_ids": tokens(9, 0), "question_ids": tokens(4, 1)}
    batch["question_ids"][0, 1] = batch["input_ids"][0, 4]
    batch |= {"part_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2, 2]]), "part_mask": torch.ones(1, 3).long()}
    batch |= {"attention_mask": torch.ones(1, 9).long(), "question_mask": torch.ones(1, 4).long()}
    settings = {"question_rows": torch.zeros(1, dtype=torch.long)}
    reads = (InputSequence("question_mask", "question_counts", 1), InputSequence())
    cross = {"cross_mixers": ["softmax"]} if question == "context" else {}
    model = built(LongspanForEvidence, question=question, part_depth=1, num_labels=1, **cross)
    share = torch.sigmoid
    return Question(
        model, batch, lambda logits: logits[:, 1], lambda logits: share(logits[:, 1]), reads, settings=settings, rows=1
    )


QUESTIONS: dict[str, Callable[[], Question]] = {
    "pairs": pairs,
    "written": lambda: written(False),
    "copied": lambda: written(True),
    "evidence": lambda: evidence("front"),
    "evidence-context": lambda: evidence("context"),
}


@pytest.fixture
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", QUESTIONS)
def test_counts_of_zero_are_deletions_and_gradients_are_slopes(name: str) -> None:
    """In float64, but for the outputs: equal to their rounding, and slopes to the square of the step."""
    question = QUESTIONS[name]()
    length, step = len(question.real), 1e-4
    assert sum(question.lengths) == length
    scores = removal(question)
    assert scores.abs().min() > 0
    with torch.no_grad():
        for at in range(length):
            kept = (torch.arange(length) != at).unsqueeze(0)
            (masked,) = question.without(kept)
            torch.testing.assert_close(question.counted(kept.double()).float(), masked, rtol=1e-6, atol=1e-6)
            counts = torch.ones(2, 1, length, dtype=torch.double)
            counts[:, 0, at] += torch.tensor([step, -step], dtype=torch.double)
            above, below = (question.value(question.counted(each)) for each in counts)
            torch.testing.assert_close(scores[at], ((above - below) / (2 * step))[0].float(), rtol=1e-3, atol=1e-5)
    for method in METHODS.values():
        found = method(question)
        assert found.shape == (length,)
        assert found.any()


@pytest.mark.parametrize("question", ["front", "context"])
def test_answers_depend_on_the_question_too(question: str) -> None:
    cross = {"cross_mixers": ["softmax"]} if question == "context" else {}
    model = built(LongspanForQuestionAnswering, question=question, **cross)
    batch = {"input_ids": tokens(10, 0), "token_type_ids": torch.tensor([[0] * 4 + [1] * 6])}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    asked = Question(
        model,
        batch,
        lambda logits: logits[:, 0, 6] + logits[:, 1, 7],
        lambda logits: logits.softmax(-1)[:, 0, 6],
        (InputSequence(call=int(bool(cross))),),
        masked=False,
        output=lambda found: torch.stack((found.start_logits, found.end_logits), 1),
    )
    for method in METHODS.values():
        scores = method(asked)
        assert scores[:4].abs().max() > 0, "tokens of the question"
        assert scores[4:].abs().max() > 0, "tokens of the document"
