"""Layers that attend to another sequence."""

from typing import Any

import checkpointing
import pytest
import torch
from torch import Tensor

from longspan import recipes
from longspan.errors import UserError
from longspan.models import LongspanForQuestionAnswering, LongspanModel
from longspan.models.questions import settle_question

IDS = torch.tensor([[0, 0, 5, 6, 7], [4, 8, 9, 3, 1]])
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


def build(**changes: Any) -> LongspanModel:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"vocab_size": 12, "dim": 8, "heads": 2, "mixers": ["local"], "cross_mixers": ["linear"]}
    # Weights large enough that what is read shows in bfloat16.
    settings["initializer_range"] = 0.3
    return LongspanModel(LongspanModel.configured(**settings | changes)).eval()


def read(model: LongspanModel, **given: Any) -> Tensor:
    hidden: Tensor = model(input_ids=IDS, attention_mask=MASK, **given).last_hidden_state
    return hidden


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_a_layer_attends_to_its_context_between_mixer_and_feed_forward(norm: str) -> None:
    block: Any = build(norm=norm).backbone.blocks[0]
    x, context = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    pre = norm == "pre"

    def leave(layer_norm: Any, before: Tensor, after: Tensor) -> Tensor:
        return before + after if pre else layer_norm(before + after)

    def enter(layer_norm: Any, before: Tensor) -> Tensor:
        return layer_norm(before) if pre else before

    y = leave(block.mixer_norm, x, block.mixer(enter(block.mixer_norm, x)))
    y = leave(block.cross_norm, y, block.cross_mixer(enter(block.cross_norm, y), context=context))
    y = leave(block.feed_forward_norm, y, block.feed_forward(enter(block.feed_forward_norm, y)))
    torch.testing.assert_close(block(x, context=context), y)


@pytest.mark.slow
@pytest.mark.parametrize("cross", ["additive", "linear", "messages", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_of_the_context_changes_nothing_and_an_empty_one_is_none(cross: str, dtype: torch.dtype) -> None:
    model = build(cross_mixers=[cross]).to(dtype)
    context = torch.randn(2, 3, 8, dtype=dtype)
    # The last bits of bfloat16 depend on the order of sums.
    close: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.05}
    rubbish = torch.full((2, 2, 8), torch.nan, dtype=dtype)
    for parts, mask in (((context, rubbish), [1, 1, 1, 0, 0]), ((rubbish, context), [0, 0, 1, 1, 1])):
        padded = read(model, context=torch.cat(parts, 1), context_mask=torch.tensor([mask, mask]))
        torch.testing.assert_close(padded, read(model, context=context), **close)
    one = read(model, context=context, context_mask=torch.tensor([[0, 0, 0], [1, 1, 1]]))
    torch.testing.assert_close(one[0], read(model)[0], **close)
    torch.testing.assert_close(one[1], read(model, context=context)[1], **close)
    assert not torch.allclose(one[1], read(model)[1], **close)


@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_checks")
# PyTorch's compiler asks for it where a graph ends, as at the gradient of the context.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_gradients_reach_the_context_through_checkpoints_and_compiled() -> None:
    def gradient(model: Any) -> Tensor:
        context = torch.linspace(-1, 1, 48).view(2, 3, 8).requires_grad_()
        model(input_ids=IDS, attention_mask=MASK, context=context).last_hidden_state.square().sum().backward()
        assert context.grad is not None
        return context.grad

    expected = gradient(build(depth=1))
    assert expected.abs().min() > 0
    checkpointed = build(depth=1, dropout=0.0).train()
    checkpointing.enable(checkpointed)
    torch.testing.assert_close(gradient(checkpointed), expected)
    torch.testing.assert_close(gradient(torch.compile(build(depth=1), backend="aot_eager")), expected)


def test_models_without_cross_attention_are_as_before() -> None:
    assert not [name for name in build(cross_mixers=None).state_dict() if "cross" in name]
    with pytest.raises(UserError, match=r"expected no context.*build it with cross_mixers"):
        read(build(cross_mixers=[]), context=torch.randn(2, 3, 8))


def test_shared_layers_share_their_cross_attention(tmp_path: Any) -> None:
    model = build(
        depth=4, share_layers=True, cross_mixers=["linear", "messages"], mixer_options={"messages": {"slots": 3}}
    )
    assert len(model.backbone.blocks) == 2
    model.save_pretrained(tmp_path)
    context = torch.randn(2, 3, 8)
    torch.testing.assert_close(
        read(LongspanModel.from_pretrained(tmp_path), context=context), read(model, context=context)
    )


def test_what_cannot_be_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"cross attention in model.cross_mixers, got 'local'; choose among additive, "):
        build(cross_mixers=["local"])
    with pytest.raises(UserError, match="one document per row with a context"):
        read(build(), context=torch.randn(2, 3, 8), document_ids=torch.zeros(2, 5, dtype=torch.long))
    with pytest.raises(UserError, match="question"):
        LongspanForQuestionAnswering.configured(question="behind")


def test_questions_are_read_through_mixers_that_can() -> None:
    def settled(**settings: Any) -> list[str] | None:
        config = LongspanForQuestionAnswering.configured(**settings)
        settle_question(config)
        return config.cross_mixers

    assert settled(mixers=["local", "linear"]) == ["linear"]
    assert settled(mixers=["local"], cross_mixers=["softmax"]) == ["softmax"]
    assert settled(mixers=["local"], question="front") is None
    with pytest.raises(UserError, match=r"mixer with cross attention to read questions, got local, relative; set"):
        settled(mixers=["local", "relative"])
    with pytest.raises(UserError, match="question='context'"):
        settled(question="front", cross_mixers=["linear"])


def test_tasks_without_questions_refuse_them() -> None:
    with pytest.raises(UserError, match=r"cross_mixers is not for the task 'document_regression' but for 'evidence'"):
        recipes.load("regression", ["model.cross_mixers=linear"])
