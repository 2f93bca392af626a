"""Position encodings."""

import math

import pytest
import torch

from longspan.errors import UserError
from longspan.models.parts.positions import NAMES, Positions, count_positions, fourier_features, sinusoid


def test_sinusoid_is_interleaved() -> None:
    table = sinusoid(torch.arange(6), 8)
    for position in range(6):
        for pair in range(4):
            angle = position / 10000 ** (2 * pair / 8)
            assert table[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_fourier_features_of_points_in_the_plane() -> None:
    x = torch.tensor([[0.5, -1.0]])
    features = fourier_features(x, 3)
    assert features.shape == (1, 2 * 7)
    expected = [0.5, -1.0]
    expected += [math.sin(2**level * c) for c in (0.5, -1.0) for level in range(3)]
    expected += [math.cos(2**level * c) for c in (0.5, -1.0) for level in range(3)]
    torch.testing.assert_close(features[0], torch.tensor(expected))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_1600_positions_stay_1600_in_low_precision(name: str, dtype: torch.dtype) -> None:
    """Known failure elsewhere: position ids computed in bfloat16 collapse 1,600 positions to 585."""
    encode = Positions(name, 32, max_positions=2048).to(dtype)
    encoded = encode(torch.zeros(1, 1600, 32, dtype=dtype), count_positions(torch.ones(1, 1600)))
    assert encoded.dtype == dtype
    assert encoded[0].unique(dim=0).shape[0] >= (1600 if dtype == torch.float32 else 1500)


@pytest.mark.parametrize("name", NAMES)
def test_padding_on_the_left_moves_nothing(name: str) -> None:
    encode = Positions(name, 8)
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    embedded = torch.randn(1, 5, 8)
    padded = encode(embedded, count_positions(mask))
    torch.testing.assert_close(padded[:, 2:], encode(embedded[:, 2:], count_positions(mask[:, 2:])))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_numbers_begin_again_after_a_period(name: str) -> None:
    encode, embedded = Positions(name, 8, max_positions=5, period=5), torch.zeros(2, 12, 8)
    encoded = encode(embedded, count_positions(torch.ones(2, 12)))
    assert torch.equal(encoded[:, 5:10], encoded[:, :5])
    assert encoded[0, :5].unique(dim=0).shape[0] == 5
    # A stream: each part for itself, however far it has come.
    far = encode.at(embedded[:, :2], torch.tensor([[5 * 10**9, 5 * 10**9 + 1]]))
    torch.testing.assert_close(far, encoded[:, :2])


def test_no_step_takes_sinusoids_away() -> None:
    """Adam moves a number by its learning rate, whatever its size: a factor of 0.07 was gone in 40 steps for good."""
    encode, numbers = Positions("sinusoidal", 192), count_positions(torch.ones(1, 9))
    optimizer = torch.optim.AdamW(encode.parameters(), lr=2e-3)
    for _ in range(60):
        optimizer.zero_grad()
        encode(torch.zeros(1, 9, 192), numbers).square().sum().backward()
        optimizer.step()
    left = encode(torch.zeros(1, 9, 192), numbers) / sinusoid(numbers, 192)
    assert left.nanmedian() > 0.8 * 192**-0.5


def test_concatenation_doubles_the_width_and_keeps_the_embedding() -> None:
    encode = Positions("sinusoidal", 8, combine="concat")
    embedded = torch.randn(2, 3, 8)
    joined = encode(embedded, count_positions(torch.ones(2, 3)))
    assert joined.shape[2] == encode.output_dim == 16
    assert torch.equal(joined[..., :8], embedded)
    torch.testing.assert_close(joined[0, :, 8:], sinusoid(torch.arange(3), 8) * 8**-0.5)


def test_documents_longer_than_learned_positions_are_refused() -> None:
    encode = Positions("learned", 4, max_positions=10)
    assert encode(torch.zeros(1, 10, 4), count_positions(torch.ones(1, 10))).shape == (1, 10, 4)
    padded = count_positions(torch.tensor([[1] * 10 + [0] * 5]))
    assert encode(torch.zeros(1, 15, 4), padded).shape == (1, 15, 4)
    with pytest.raises(UserError, match="at most 10 tokens for learned positions, got a document of 11"):
        encode(torch.zeros(1, 11, 4), count_positions(torch.ones(1, 11)))


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'sinusoidal'"):
        Positions("sinusoid", 4)
    with pytest.raises(UserError, match="did you mean 'concat'"):
        Positions("learned", 4, combine="concatenate")
