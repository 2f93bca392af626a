"""Attention by distance against its pair-by-pair form."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounding import assert_within, rounding
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from longspan.machine.session import use_fastest_exact_products
from longspan.ops import relative
from longspan.ops.relative import distance_encoding, distance_range, relative_attention, relative_attention_naive

Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
# The form that runs, and the one that is compiled and has gradients of gradients.
both_forms = pytest.mark.parametrize("form", [relative_attention, relative._in_plain_operations])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, the last of them shorter, at lengths that the naive form can bear; one head and row a part."""
    monkeypatch.setattr(relative, "BLOCK", 4)
    monkeypatch.setattr(relative, "TILE", 1)


@pytest.fixture
def blocks_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()


@pytest.fixture
def fast_products() -> Iterator[None]:
    """The command line's setting, by which other routines multiply matrices."""
    before = torch.get_float32_matmul_precision()
    use_fastest_exact_products()
    yield
    torch.set_float32_matmul_precision(before)


def arguments(n: int, m: int, causal: bool, window: int | None, shared: bool = False) -> Given:
    """Content, position, key, value and distance key; without heads in the last three when they are shared."""
    largest, smallest = distance_range(n, m, causal, window)
    heads, width = (() if shared else (3,)), 5 if shared else 4
    generator = torch.Generator().manual_seed(n * 100 + m)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    content, position = draw(2, 3, n, 4), draw(2, 3, n, width)
    key, value = draw(2, *heads, m, 4), draw(2, *heads, m, 6)
    return content, position, key, value, draw(*heads, largest - smallest + 1, width)


@given(
    n=st.integers(1, 11),
    before=st.integers(0, 11),
    causal=st.booleans(),
    window=st.none() | st.integers(0, 12),
    shared=st.booleans(),
    density=st.sampled_from([0.0, 0.3, 1.0]),
    tile=st.sampled_from([1, 60, 200, 2000]),
)
def test_is_the_sum_over_pairs(
    n: int, before: int, causal: bool, window: int | None, shared: bool, density: float, tile: int
) -> None:
    tensors = arguments(n, n + before, causal, window, shared)
    mask = torch.rand(2, n + before) < density
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relative, "TILE", tile)
        for visible in (None, mask):
            actual = relative_attention(*tensors, visible, causal, window)
            expected = relative_attention_naive(*tensors, visible, causal, window)
            torch.testing.assert_close(actual, expected)
            torch.testing.assert_close(relative._in_plain_operations(*tensors, visible, causal, window), expected)


@pytest.mark.slow
@both_forms
@pytest.mark.parametrize(("causal", "window"), [(False, None), (False, 4), (True, None), (True, 5)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("tile", [1, 80, 130, 2000])
def test_gradients_are_those_of_the_sum_over_pairs(
    form: Callable[..., Tensor],
    causal: bool,
    window: int | None,
    shared: bool,
    tile: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether a part is a row of a head, all rows of a head, or all rows of two or three."""
    monkeypatch.setattr(relative, "TILE", tile)
    tensors = arguments(9, 12, causal, window, shared)
    mask = torch.ones(2, 12, dtype=torch.bool)
    # The first row's first queries see nothing when causal, the second row's last blocks nothing hidden.
    mask[0, :5] = mask[1, 0] = False
    probe = torch.randn(2, 3, 9, 6, dtype=torch.float64)
    actual = torch.autograd.grad(form(*tensors, mask, causal, window), tensors, probe)
    expected = torch.autograd.grad(relative_attention_naive(*tensors, mask, causal, window), tensors, probe)
    torch.testing.assert_close(actual, expected)


def test_gradients_have_gradients() -> None:
    mask = torch.tensor([[False, True, True, True, True, True], [True] * 6])

    def attend(content: Tensor, position: Tensor, key: Tensor, value: Tensor, distance_key: Tensor) -> Tensor:
        return relative_attention(content, position, key, value, distance_key, mask, True)

    content, position, key, value, distance_key = arguments(5, 6, True, None)
    assert torch.autograd.gradgradcheck(attend, (content, position, key, value, distance_key), fast_mode=True)
    # Also when some of them are not asked for.
    position, value = position.detach(), value.detach()
    assert torch.autograd.gradgradcheck(attend, (content, position, key, value, distance_key), fast_mode=True)


@pytest.mark.usefixtures("blocks_as_they_are", "fast_products")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "m"), [(150, 400), (300, 300)])
def test_full_blocks_in_low_precision_stay_near_float64(dtype: torch.dtype, n: int, m: int) -> None:
    """Also through the routines for matrices that other settings choose, which copy what does not lie as they like."""
    exact = arguments(n, m, True, None)
    content, position, key, value, distance_key = (tensor.detach().to(dtype).requires_grad_() for tensor in exact)
    tensors = content, position, key, value, distance_key
    mask = torch.ones(2, m, dtype=torch.bool)
    mask[0, : m - n + 3] = False
    probe = torch.randn(2, 3, n, 6, dtype=torch.float64)
    out, expected = relative_attention(*tensors, mask, True), relative._in_plain_operations(*exact, mask, True, None)
    gradients = torch.autograd.grad(out, tensors, probe.to(dtype))
    # Sums of several hundred terms, each of which bfloat16 rounds to eight bits.
    tolerance = 1e-5 if dtype == torch.float32 else 6e-2
    for actual, wanted in zip((out, *gradients), (expected, *torch.autograd.grad(expected, exact, probe)), strict=True):
        assert actual.dtype == dtype
        assert (actual - wanted).norm() < tolerance * wanted.norm()


class Operations(TorchDispatchMode):
    """Remembers the names of all operations, and how many numbers each of them gave."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.done.append((func._overloadpacket.__name__, tensor.numel()))
        return out


@pytest.mark.slow
def test_masks_cost_only_where_they_hide_something() -> None:
    """A row without padding pays nothing for one with it, and keys that all queries of a block see pay nothing."""
    tensors, mask = arguments(64, 64, True, None), torch.ones(2, 64, dtype=torch.bool)
    limited = []
    for hidden in (0, 4):
        mask[1, 64 - hidden :] = False
        with Operations() as operations:
            relative_attention(*tensors, mask, True).sum().backward()
        limited.append([size for name, size in operations.done if name == "clamp_max_"])
    # Forwards and again backwards, for three heads: a triangle in 4 x 3 for each of 16 blocks of two rows,
    assert sum(limited[0]) == 2 * 3 * 16 * 2 * (4 * 3)
    # and all keys of the last block in one row.
    assert sum(limited[1]) == sum(limited[0]) + 2 * 3 * (4 * 64)


def test_fewer_queries_than_keys_continue_the_keys() -> None:
    """Known failure elsewhere: causal masks aligned to the wrong corner when queries are fewer than keys."""
    content, position, key, value, distance_key = arguments(9, 9, True, None)
    whole = relative_attention(content, position, key, value, distance_key, causal=True)
    last = relative_attention(content[:, :, 6:], position[:, :, 6:], key, value, distance_key[:, :12], causal=True)
    torch.testing.assert_close(last, whole[:, :, 6:])


def test_a_query_that_sees_nothing_gives_zeros_and_no_gradient() -> None:
    tensors = arguments(6, 6, True, 1)
    mask = torch.tensor([[True] * 6, [False, False, False, True, False, False]])
    out = relative_attention(*tensors, mask, True, 1)
    assert (out[1, :, [0, 1, 2, 5]] == 0).all()
    out[1, :, [0, 1, 2, 5]].sum().backward()
    assert all(tensor.grad is not None and (tensor.grad == 0).all() for tensor in tensors)


def test_distances_past_2048_keep_apart_in_bfloat16() -> None:
    """Known failure elsewhere: positions computed in bfloat16 collapse; past 2,048 sixteen of them are one."""
    encoded = distance_encoding(torch.arange(4096, 2000, -1), 64, torch.bfloat16)
    exact = distance_encoding(torch.arange(4096, 2000, -1), 64, torch.float64)
    # Angles in float32, and one rounding at the end.
    allowed = rounding(4, 4096.0, torch.float32) + rounding(1, exact.abs(), torch.bfloat16)
    assert_within(encoded, exact, allowed)
    assert encoded.unique(dim=0).shape == encoded.shape


def test_encoding_is_half_sines_half_cosines() -> None:
    """Known failure elsewhere: the interleaved sinusoid in place of Transformer-XL's two halves."""
    encoded = distance_encoding(torch.tensor([3, 0, -3]), 4, torch.float64)
    expected = torch.tensor([3.0, 0.03, 3.0, 0.03], dtype=torch.float64)
    torch.testing.assert_close(encoded[0], torch.cat((expected[:2].sin(), expected[2:].cos())))
    assert encoded[1].tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(encoded[2], encoded[0] * torch.tensor([-1, -1, 1, 1]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_logits_of_ten_thousand_do_not_overflow(dtype: torch.dtype) -> None:
    """Known failure elsewhere: unshifted exp is infinite at 12 in float16 and at 89 in float32."""
    logits = torch.tensor([-1e4, 1e4, 0.0, -1e4, 5e3]).to(dtype)
    value = torch.arange(1.0, 6.0).view(1, 5, 1).to(dtype)
    content = torch.ones(1, 1, 5, 1, dtype=dtype).requires_grad_()
    nothing = torch.zeros(9, 1, dtype=dtype)
    position = torch.zeros(1, 1, 5, 1, dtype=dtype)
    out = relative_attention(content, position, logits.view(1, 5, 1), value, nothing, causal=True)
    assert out.flatten().tolist() == [1.0, 2.0, 2.0, 2.0, 2.0]
    out.sum().backward()
    assert content.grad is not None
    assert content.grad.isfinite().all()


@both_forms
def test_large_bfloat16_scores_are_not_rounded_to_bfloat16(form: Callable[..., Tensor]) -> None:
    """Near 1e4 bfloat16 has steps of 64: rounded to it, scores that are ten apart would weigh the same."""
    given = [tensor.detach() for tensor in arguments(7, 7, True, None)]
    content, position, key, value, distance_key = (tensor.to(torch.bfloat16) for tensor in given)
    # The first of four components gives every score about 1e4, the others what tells keys apart.
    content[..., 0], key[..., 0] = 100.0, 100.0
    position[..., 0], distance_key[..., 0] = 10.0, 10.0
    tensors = content, position, key, value, distance_key
    out = form(*tensors, None, True, None)
    content, position, key, value, distance_key = (tensor.double() for tensor in tensors)
    exact = relative_attention_naive(content, position, key, value, distance_key, None, True, None)
    # Scores near 1e4 are sums of twice four products in float32. Weights, values' sum and result are in bfloat16.
    largest = value.abs().max()
    allowed = 2 * rounding(2 * 4 + 4, 1.1e4, torch.float32) * largest + rounding(3, largest, torch.bfloat16)
    assert_within(out, exact, allowed)


def kept_for_backward(n: int, causal: bool, window: int | None) -> int:
    """Count the numbers that wait for the backward pass, each storage once."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    tensors = arguments(n, n, causal, window)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = relative_attention(*tensors, None, causal, window)
    assert out.requires_grad
    return sum(storages.values())


@pytest.mark.slow
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 9)])
def test_weights_of_all_pairs_are_never_held(causal: bool, window: int | None) -> None:
    """Neither for the backward pass, in all blocks together, nor at any moment."""
    assert kept_for_backward(128, causal, window) <= 2.2 * kept_for_backward(64, causal, window)
    tensors = arguments(128, 128, causal, window)
    with Operations() as operations:
        relative_attention(*tensors, None, causal, window).sum().backward()
    assert max(size for _, size in operations.done) < 2 * 3 * 128 * 128 / 8


@pytest.mark.slow
def test_a_window_makes_the_cost_linear() -> None:
    counted = []
    for n in (64, 128):
        tensors = arguments(n, n, True, 9)
        with FlopCounterMode(display=False) as counter:
            relative_attention(*tensors, None, True, 9).sum().backward()
        counted.append(counter.get_total_flops())
    assert counted[1] < 2.2 * counted[0]
