"""Convolutions over frames, and a class for each position."""

import itertools

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


STEMS = pytest.mark.parametrize("stem", [{"stem": 0}, {"stem": 2}, {"stem": 2, "stem_norm": "recording"}], ids=str)


@STEMS
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_there_is_a_position_for_each_stride(stride: int, stem: dict[str, object]) -> None:
    made = model(stride=stride, **stem)
    for length in (1, 5, 6, 7):
        assert made(input_features=frames(length)).logits.shape == (1, -(-length // stride), 3)


@STEMS
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side: str, stem: dict[str, object]) -> None:
    made, x = model(stride=3, **stem), frames(11)
    edge = torch.full((1, 5, 4), torch.nan, dtype=torch.float64)
    padded = torch.cat((edge, x) if side == "left" else (x, edge), 1)
    mask = (~padded.isnan().any(-1)).long()
    found = made(input_features=padded, attention_mask=mask).logits
    torch.testing.assert_close(found[:, :4], made(input_features=x).logits)


@STEMS
def test_a_row_without_frames_is_nothing_to_the_others(stem: dict[str, object]) -> None:
    made, x = model(**stem), frames(6)
    both = made(input_features=x.repeat(2, 1, 1), attention_mask=torch.tensor([[1] * 6, [0] * 6])).logits
    assert both.isfinite().all()
    torch.testing.assert_close(both[:1], made(input_features=x).logits)


def test_bands_are_convolved_as_by_the_equations() -> None:
    made, x = model(stride=2, stem=2, channels=5).longspan.embeddings, torch.randn(1, 7, 5, dtype=torch.float64)
    plane = x
    for place, (convolution, norm) in enumerate(zip(made.convolutions, made.norms, strict=True)):
        step, (_, times, bands) = 1 if place else 2, plane.shape
        found = torch.zeros(2 << place, -(-times // step), -(-bands // 2), dtype=torch.float64)
        for channel, t, band in itertools.product(*map(range, found.shape)):
            found[channel, t, band] = convolution.bias[channel] + sum(
                convolution.weight[channel, of, dt, db] * plane[of, step * t + dt - 1, 2 * band + db - 1]
                for of, dt, db in itertools.product(range(len(plane)), range(3), range(3))
                if 0 <= step * t + dt - 1 < times and 0 <= 2 * band + db - 1 < bands
            )
        plane = torch.stack([torch.nn.functional.gelu(norm(each)) for each in found.unbind(1)], 1)
    expected = made.project(plane.transpose(0, 1).flatten(1))
    torch.testing.assert_close(made({"input_features": x})[0], expected)


def test_the_norm_of_a_recording_reads_its_real_frames_alone() -> None:
    """A channel has mean 0 and deviation 1 over positions and bands, whatever stands at padding."""
    made = model(stem=2, stem_norm="recording", stride=1, convolutions=1).longspan.embeddings
    x, seen = frames(4), []
    hook = made.norms[0].register_forward_hook(lambda norm, given, found: seen.append(found))
    padded = torch.cat((x, torch.full((1, 2, 4), torch.nan, dtype=torch.float64)), 1)
    made({"input_features": padded}, mask=torch.tensor([[True] * 4 + [False] * 2]))
    hook.remove()
    channels = seen[0][0, :4].transpose(0, 1).flatten(1)
    torch.testing.assert_close(channels.mean(1), torch.zeros(2, dtype=torch.float64))
    variance = made.convolutions[0](torch.nn.functional.pad(x[:, None], (0, 0, 1, 1))).var((0, 2, 3), correction=0)
    torch.testing.assert_close(channels.var(1, correction=0), variance / (variance + 1e-5))
    with pytest.raises(UserError, match="expected stem_norm='layer' for a causal model"):
        model(stem=2, stem_norm="recording", causal=True)


@pytest.mark.parametrize("stem", [{"stem": 0}, {"stem": 2}], ids=str)
def test_a_causal_model_does_not_see_later_frames(stem: dict[str, object]) -> None:
    made, x = model(stride=2, causal=True, **stem), frames(12)
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
