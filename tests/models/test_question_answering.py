"""Answers as spans: scores by the formula, padding, what cannot be an answer, losses, and the Auto classes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from left_padding import moved_left
from torch import Tensor
from transformers import AutoModelForQuestionAnswering

from longspan import LongspanForQuestionAnswering, UserError
from longspan.data.batches.streams import Stream, pad

SMALLEST = torch.finfo(torch.float32).min


def build(**changes: Any) -> LongspanForQuestionAnswering:
    torch.manual_seed(3)
    settings: dict[str, Any] = {"vocab_size": 30, "dim": 8, "heads": 2, "depth": 1, "dropout": 0.0}
    settings |= {"initializer_range": 0.4, "position": "none", "short_convolution": 3, "question": "front"}
    return LongspanForQuestionAnswering(LongspanForQuestionAnswering.configured(**settings | changes)).eval()


def batch() -> dict[str, Tensor]:
    rows = [
        {"input_ids": torch.randint(1, 30, (length,)).tolist(), "token_type_ids": [0] * 3 + [1] * (length - 3)}
        for length in (19, 8, 4)
    ]
    return pad(rows, {"input_ids": Stream(mask="attention_mask"), "token_type_ids": Stream()})


def test_scores_are_the_formula() -> None:
    model = build().double()
    given = batch()
    ids, types = given["input_ids"][0, :19], given["token_type_ids"][0, :19]
    found = model(ids[None], token_type_ids=types[None])
    with torch.no_grad():
        x = model.longspan(ids[None]).last_hidden_state[0]
        asked = x[:3]
        q = (asked @ model.asked.weight[0]).softmax(0) @ asked
        for number, logits in enumerate((found.start_logits, found.end_logits)):
            w = model.match.weight[8 * number : 8 * number + 8]
            expected = x @ model.qa_outputs.weight[number] + model.qa_outputs.bias[number] + x @ (q + w @ q) / 8**0.5
            torch.testing.assert_close(logits[0, 3:], expected[3:], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(logits[0, 0], expected[0], rtol=1e-12, atol=1e-12)


def test_the_question_but_for_its_first_token_is_no_answer() -> None:
    found = build()(**batch())
    for logits in (found.start_logits, found.end_logits):
        assert (logits[:, 1:3] == SMALLEST).all()
        assert (logits[:, 0] > SMALLEST).all()
        assert (logits[0, 3:19] > SMALLEST).all()
        assert (logits[1, 8:] == SMALLEST).all()


@pytest.mark.parametrize(("types", "question"), [(True, "front"), (True, "context"), (False, "front")])
def test_padding_on_either_side_changes_nothing(types: bool, question: str) -> None:
    model = build(question=question).double()
    right = batch()
    left = moved_left(right)
    if not types:
        del right["token_type_ids"], left["token_type_ids"]
    one, other = model(**right), model(**left)
    for row in range(3):
        here, there = right["attention_mask"][row].bool(), left["attention_mask"][row].bool()
        alone = {key: value[row : row + 1, here] for key, value in right.items()}
        for name in ("start_logits", "end_logits"):
            torch.testing.assert_close(one[name][row, here], other[name][row, there])
            torch.testing.assert_close(one[name][row, here], model(**alone)[name][0])


def test_loss_is_the_mean_over_known_starts_and_ends() -> None:
    model, given = build(), batch()
    start, end = torch.tensor([4, 0, 99]), torch.tensor([6, 0, -1])
    found = model(**given, start_positions=start, end_positions=end)
    known = [
        -found[f"{name}_logits"].log_softmax(1)[row, place[row]]
        for name, place in (("start", start), ("end", end))
        for row in (0, 1)
    ]
    torch.testing.assert_close(found.loss, torch.stack(known).mean())
    labels = torch.stack([start, end], 1)
    assert torch.equal(model(**given, labels=labels).loss, found.loss)
    torch.testing.assert_close(model(**given, labels=labels, num_items_in_batch=8).loss, found.loss / 2)
    nothing = model(**given, labels=torch.full((3, 2), -100))
    assert nothing.loss == 0
    nothing.loss.backward()


def test_half_precision_has_finite_losses() -> None:
    model = build().bfloat16().train()
    given = batch()
    found = model(**given, labels=torch.tensor([[4, 6], [3, 3], [0, 0]]))
    assert found.start_logits.dtype == torch.float32
    found.loss.backward()
    assert found.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_what_cannot_be_read_is_refused() -> None:
    model, given = build(), batch()
    with pytest.raises(UserError, match="got packed documents"):
        model(given["input_ids"], document_ids=torch.zeros_like(given["input_ids"]))
    with pytest.raises(UserError, match="expected token_type_ids of shape"):
        model(given["input_ids"], token_type_ids=given["token_type_ids"][:, 1:])
    start = torch.tensor([4, 0, 3])
    for labels in (
        {"start_positions": start},
        {"start_positions": start, "end_positions": start, "labels": torch.stack([start, start], 1)},
    ):
        with pytest.raises(UserError, match="start_positions and end_positions, or both as labels"):
            model(**given, **labels)
    for wrong in (start, torch.zeros(3, 2), torch.zeros(2, 2, dtype=torch.long)):
        with pytest.raises(UserError, match="first and the last token of 3 answers as integers"):
            model(**given, labels=wrong)
    with pytest.raises(UserError, match="expected causal=False"):
        build(causal=True)


def test_it_is_an_auto_model(tmp_path: Path) -> None:
    model, given = build(answer_threshold=0.5, longest_answer=7), batch()
    model.save_pretrained(tmp_path)
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    assert isinstance(again, LongspanForQuestionAnswering)
    assert (again.config.head.answer_threshold, again.config.head.longest_answer) == (0.5, 7)
    assert torch.equal(again(**given).end_logits, model(**given).end_logits)
    for changes in ({"longest_answer": 0}, {"answer_threshold": float("nan")}):
        with pytest.raises(UserError, match=next(iter(changes))):
            LongspanForQuestionAnswering.configured(**changes)


def test_a_question_in_its_context_is_read_alone() -> None:
    model, given = build(question="context").double(), batch()
    assert model.config.cross_mixers == ["additive"]
    ids, types = given["input_ids"][:1, :19], given["token_type_ids"][:1, :19]
    found = model(ids, token_type_ids=types).start_logits
    with torch.no_grad():
        asked = model.longspan(ids[:, :3]).last_hidden_state
        q = (asked[0] @ model.asked.weight[0]).softmax(0) @ asked[0]
        mask = torch.tensor([[1, 0, 0] + [1] * 16])
        x = model.longspan(ids, attention_mask=mask, context=asked).last_hidden_state[0]
        expected = (
            x @ model.qa_outputs.weight[0] + model.qa_outputs.bias[0] + x @ (q + model.match.weight[:8] @ q) / 8**0.5
        )
    torch.testing.assert_close(found[0, 3:], expected[3:])
    with pytest.raises(UserError, match="a mixer with cross attention to read questions"):
        build(question="context", mixers=["convolution"])


@pytest.mark.slow
@pytest.mark.parametrize("question", ["front", "context"])
def test_it_is_exported(question: str) -> None:
    model, given = build(question=question), batch()
    program = torch.export.export(model, (), given, strict=False).module()
    torch.testing.assert_close(program(**given).start_logits, model(**given).start_logits)
