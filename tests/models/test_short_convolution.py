"""The convolution in front of a mixer: what it sees, in both forms, with padding, packed documents and programs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan import LongspanConfig, LongspanModel, UserError
from longspan.models.parts.short_convolution import ShortConvolution

both = pytest.mark.parametrize("causal", [False, True])


def convolution(width: int, causal: bool) -> ShortConvolution:
    return ShortConvolution(6, width, causal=causal).double()


def build(head: Any = LongspanModel, **changes: Any) -> Any:
    torch.manual_seed(3)
    shape: dict[str, Any] = {"vocab_size": 23, "dim": 16, "heads": 2, "depth": 2, "short_convolution": 4}
    return head(head.configured(**shape | changes)).double().eval()


def tokens(b: int, t: int) -> Tensor:
    return torch.randint(1, 23, (b, t), generator=torch.Generator().manual_seed(t))


@both
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_each_position_sees_its_neighbours(width: int, causal: bool) -> None:
    made, x = convolution(width, causal), torch.randn(2, 9, 6, dtype=torch.float64)
    before = width - 1 if causal else width // 2
    expected = torch.zeros_like(x)
    for t in range(9):
        for i in range(width):
            if 0 <= t + i - before < 9:
                expected[:, t] += made.weight[i] * x[:, t + i - before]
    torch.testing.assert_close(made(x)[0], expected)


@both
def test_no_positions_are_none(causal: bool) -> None:
    x = torch.randn(2, 0, 6)
    assert torch.equal(ShortConvolution(6, 4, causal=causal)(x)[0], x)


def test_a_body_saved_without_one_is_given_a_new_one(tmp_path: Path) -> None:
    build(short_convolution=0).save_pretrained(tmp_path)
    model = LongspanModel.from_pretrained(tmp_path, short_convolution=4)
    weight = model.backbone.blocks[1].convolution.weight
    assert 0.1 < weight.abs().mean() < 0.4
    assert weight.abs().max() <= 0.5


@both
@torch.inference_mode()
def test_padding_and_batch_mates_change_nothing(causal: bool) -> None:
    model, ids = build(causal=causal, position="none"), tokens(2, 7)
    expected = model(ids).last_hidden_state
    for left, right in ((3, 0), (0, 3), (5, 5)):
        padded = torch.nn.functional.pad(ids, (left, right), value=9)
        mask = torch.zeros_like(padded)
        mask[:, left : left + 7] = 1
        y = model(padded, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(y[:, left : left + 7], expected)
        embedded = model.embeddings.table(padded).masked_fill(mask.unsqueeze(-1) == 0, torch.nan)
        y = model(inputs_embeds=embedded, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(y[:, left : left + 7], expected)
    mask = torch.tensor([[1] * 7, [0] * 7])
    assert model(ids, attention_mask=mask).last_hidden_state.isfinite().all()
    torch.testing.assert_close(model(ids[:, :1]).last_hidden_state, model(ids[:, :1].clone()).last_hidden_state)


@both
@pytest.mark.parametrize("mixer", ["additive", "softmax"])
def test_packed_documents_are_separate_calls(mixer: str, causal: bool) -> None:
    model, ids = build(mixers=[mixer], causal=causal, position="none"), tokens(1, 12)
    lengths = [1, 2, 6, 3]
    numbers = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths)).unsqueeze(0)
    packed = model(ids, document_ids=numbers).last_hidden_state
    apart = [model(part).last_hidden_state for part in ids.split(lengths, 1)]
    torch.testing.assert_close(packed, torch.cat(apart, 1))
    weights = [block.convolution.weight for block in model.backbone.blocks]
    found = torch.autograd.grad((packed**2).sum(), weights)
    torch.testing.assert_close(found, torch.autograd.grad(sum((y**2).sum() for y in apart), weights))


@torch.inference_mode()
def test_the_future_is_not_seen() -> None:
    model, ids = build(causal=True), tokens(1, 12)
    changed = ids.clone()
    changed[:, 8:] = changed[:, 8:] % 22 + 1
    torch.testing.assert_close(
        model(changed).last_hidden_state[:, :8], model(ids).last_hidden_state[:, :8], rtol=0, atol=0
    )


def test_models_without_one_are_as_before() -> None:
    plain = build(short_convolution=0)
    assert plain.config.to_dict()["short_convolution"] == LongspanConfig().short_convolution == 0
    assert not any("convolution" in name for name in plain.state_dict())


@pytest.mark.parametrize(("width", "told"), [(-1, "from 0 to 128, got -1"), (10**6, "from 0 to 128, got 1000000")])
def test_widths_that_are_none_are_refused(width: int, told: str) -> None:
    with pytest.raises(UserError, match=f"short_convolution must be {told}"):
        LongspanConfig(short_convolution=width)
