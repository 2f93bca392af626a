"""Convolutions over frames, and a class for each position."""

import pytest
import torch
from transformers import AutoModelForAudioFrameClassification

from longspan import LongspanForAudioFrameClassification, UserError

SHAPE = {"dim": 16, "heads": 2, "depth": 1, "channels": 4, "kernel": 3, "convolutions": 2, "num_labels": 3}


def model(**settings: object) -> LongspanForAudioFrameClassification:
    config = LongspanForAudioFrameClassification.configured(**{**SHAPE, **settings})
    return LongspanForAudioFrameClassification(config).double().eval()


def frames(length: int) -> torch.Tensor:
    return torch.randn(1, length, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_there_is_a_position_for_each_stride(stride: int) -> None:
    made = model(stride=stride)
    for length in (1, 5, 6, 7):
        assert made(input_features=frames(length)).logits.shape == (1, -(-length // stride), 3)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side: str) -> None:
    made, x = model(stride=3), frames(11)
    edge = torch.full((1, 5, 4), torch.nan, dtype=torch.float64)
    padded = torch.cat((edge, x) if side == "left" else (x, edge), 1)
    mask = (~padded.isnan().any(-1)).long()
    found = made(input_features=padded, attention_mask=mask).logits
    torch.testing.assert_close(found[:, :4], made(input_features=x).logits)


def test_a_causal_model_does_not_see_later_frames() -> None:
    made, x = model(stride=2, causal=True), frames(12)
    changed = torch.cat([x[:, :7], frames(5)], 1)
    one, other = (made(input_features=each).logits for each in (x, changed))
    # Position 3 begins with frame 6.
    torch.testing.assert_close(one[:, :4], other[:, :4])
    assert not torch.equal(one[:, 4:], other[:, 4:])


def test_the_loss_is_the_mean_over_labels(tmp_path: object) -> None:
    made, x = model(stride=2), frames(6)
    labels = torch.tensor([[2, -100, 0]])
    found = made(input_features=x, labels=labels)
    expected = -found.logits.log_softmax(-1)[0, [0, 2], [2, 0]].mean()
    torch.testing.assert_close(found.loss, expected)
    with pytest.raises(UserError, match=r"expected labels as integers of shape \(1, 3\)"):
        made(input_features=x, labels=labels[:, :2])
    made.save_pretrained(str(tmp_path))
    again = AutoModelForAudioFrameClassification.from_pretrained(str(tmp_path)).double()
    torch.testing.assert_close(again(input_features=x).logits, found.logits)


def test_even_kernels_are_refused() -> None:
    with pytest.raises(UserError, match="kernel must be odd"):
        model(kernel=4)
