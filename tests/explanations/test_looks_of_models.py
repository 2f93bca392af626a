"""Looks of whole models: those of each layer's mixer at what it reads, and raw weights as scores."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from longspan import LongspanForSequenceClassification, mixers
from longspan.errors import UserError
from longspan.explanations.question import Question, looks
from longspan.explanations.weights import weight, weight_rows

LENGTH, PADDED = 20, 24


def model_of(**more: object) -> LongspanForSequenceClassification:
    torch.manual_seed(0)
    settings = {"vocab_size": 20, "dim": 16, "heads": 2, "feed_forward_dim": 16, "num_labels": 3, **more}
    return LongspanForSequenceClassification(LongspanForSequenceClassification.configured(**settings)).eval()


def question_of(model: LongspanForSequenceClassification) -> Question:
    ids = torch.randint(1, 20, (1, PADDED), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(PADDED) < LENGTH).long().unsqueeze(0)
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    return Question(model, batch, lambda logits: logits[:, 1], lambda x: x.softmax(1)[:, 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mixers", "names"),
    [
        (["additive", "softmax"], ["alpha", "beta", "attention"]),
        (["messages", "lstm"], ["send", "receive", "kept"]),
        (["competitive_lookup", "convolution"], ["shares", "lookup"]),
        (["delta"], ["adds", "subtracts"]),
    ],
)
def test_weights_of_a_model_are_shares_of_its_real_positions(mixers: list[str], names: list[str]) -> None:
    question = question_of(model_of(mixers=mixers, depth=2))
    scores, rows = weight(question), weight_rows(question.weights())
    assert scores.shape == (PADDED,)
    assert (scores >= 0).all()
    assert (scores[LENGTH:] == 0).all()
    torch.testing.assert_close(scores.sum(), torch.tensor(1.0))
    assert {name.split(", ")[-1] for name in rows} == set(names)
    assert all(row.shape == (PADDED,) for row in rows.values())


def test_rows_are_named_by_layer_and_head_or_slot() -> None:
    question = question_of(model_of(mixers=["additive", "messages"], depth=3))
    names = list(weight_rows(question.weights()))
    assert names[:4] == [f"layer 1, head {head}, {name}" for name in ("alpha", "beta") for head in (1, 2)]
    assert "layer 2, slot 8, send" in names
    assert names[-1] == "layer 3, head 2, beta"


@pytest.mark.parametrize("share", [False, True])
def test_each_layer_shows_what_its_mixer_reads(share: bool) -> None:
    """The look of its mixer at what the model gave it."""
    model = model_of(mixers=["additive"], depth=2, share_layers=share)
    question, read = question_of(model), list[tuple[Tensor, Tensor]]()
    blocks = model.base_model.backbone.layers
    handles = [
        mixer.register_forward_hook(lambda _, given, y: read.append(given[:2]))
        for mixer in dict.fromkeys(block.mixer for block in blocks)
    ]
    model(**question.batch)
    for handle in handles:
        handle.remove()
    found = looks(model, question.batch, at=7)
    assert len(found) == len(read) == 2
    for block, look, given in zip(blocks, found, read, strict=True):
        expected = block.mixer.look(*given, at=7)
        assert look.weights.keys() == {"alpha", "beta"}
        for name, weights in look.weights.items():
            torch.testing.assert_close(weights, expected.weights[name])
    assert not any(block.mixer._forward_pre_hooks for block in blocks)


def test_of_causal_models_the_last_real_position_reads() -> None:
    model = model_of(mixers=["softmax", "gated_linear"], depth=2, causal=True)
    batch = question_of(model).batch
    for last, given in zip(looks(model, batch), looks(model, batch, at=LENGTH - 1), strict=True):
        for name, weights in last.weights.items():
            torch.testing.assert_close(weights, given.weights[name])


def test_weights_change_no_model() -> None:
    model = model_of(mixers=["softmax"], depth=1)
    weight(question_of(model))
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_models_without_weights_of_positions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="weights of positions"):
        weight(question_of(model_of(mixers=["convolution"], depth=1)))
    question, kind = question_of(model_of(mixers=["graph"], depth=1)), mixers.load("graph")
    monkeypatch.setattr(kind, "capabilities", replace(kind.capabilities, looks=False))
    with pytest.raises(UserError, match="looked at, got graph"):
        weight(question)
