"""Local attention against the local-attention package, and its window to the position."""

import pytest
import torch
from local_attention import LocalAttention

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.local import Local, naive
from longspan.ops.heads import merge_heads, split_heads


def inputs(b: int, t: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(b, t, 8, generator=torch.Generator().manual_seed(t)).to(dtype)


@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_the_local_attention_package(causal: bool) -> None:
    theirs = LocalAttention(
        window_size=16,
        causal=causal,
        look_backward=1,
        look_forward=0 if causal else 1,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
    )
    ours = Local(8, heads=2, causal=causal, radius=16).double()
    x, mask = inputs(2, 160), torch.rand(2, 160) > 0.3
    for given in (None, mask):
        query, key, value = (split_heads(each(x), 2) for each in (ours.query, ours.key, ours.value))
        expected = ours.output(merge_heads(theirs(query, key, value, mask=given)))
        if given is not None:
            expected = expected * given.unsqueeze(-1)
        torch.testing.assert_close(ours(x, given), expected)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("radius", [0, 1, 7, 40, 500])
@pytest.mark.parametrize("t", [1, 2, 8, 100])
def test_every_radius_agrees_with_the_naive_form(t: int, radius: int, causal: bool) -> None:
    mixer, x = Local(8, heads=2, radius=radius, causal=causal, bias=False).double(), inputs(2, t)
    mask = torch.rand(2, t) > 0.5
    torch.testing.assert_close(mixer(x), naive(mixer, x))
    torch.testing.assert_close(mixer(x, mask), naive(mixer, x, mask))


@pytest.mark.slow
def test_the_window_ends_at_the_radius() -> None:
    """Known failure elsewhere: windows rounded to blocks, so that how far a position sees depends on where it is."""
    for causal in (False, True):
        mixer, x = Local(8, heads=2, radius=30, causal=causal).double(), inputs(1, 200)
        sees = torch.autograd.functional.jacobian(lambda x, m=mixer: m(x).sum((0, 2)), x).abs().sum((1, 3)) > 0
        distance = torch.arange(200).view(-1, 1) - torch.arange(200)
        assert torch.equal(sees, (distance <= 30) & (distance >= (0 if causal else -30)))


def test_masked_positions_keep_their_place() -> None:
    """Distances count masked positions, so that a hole brings nothing nearer."""
    mixer, x = Local(8, heads=2, radius=5).double(), inputs(1, 80)
    mask = torch.ones(1, 80, dtype=torch.bool)
    mask[0, 40:45] = False
    changed = x.clone()
    changed[0, 39] += 1
    assert torch.equal(mixer(changed, mask)[0, 45:], mixer(x, mask)[0, 45:])


@pytest.mark.parametrize("holes", [False, True])
def test_the_cache_never_exceeds_the_radius(holes: bool) -> None:
    mixer, x = Local(8, heads=2, radius=6, causal=True).double(), inputs(2, 100)
    mask = torch.rand(2, 100) > 0.5 if holes else torch.ones(2, 100, dtype=torch.bool)
    state, parts, sizes = mixer.init_state(2), [], [1, 1, 3, 70, 2, 23]
    for part, real in zip(x.split(sizes, 1), mask.split(sizes, 1), strict=True):
        y, state = mixer.step(part, state, real if holes else None)
        parts.append(y)
        assert state.key.shape == state.value.shape
        assert state.key.shape[2] <= 6
        assert state.visible.shape[1] == (state.key.shape[2] if holes else 0)
    torch.testing.assert_close(torch.cat(parts, 1), mixer(x, mask))


@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("causal", [False, True])
def test_several_windows_compile_and_export(causal: bool) -> None:
    """The contract's short sequences fit into one window."""
    torch._dynamo.reset()
    mixer, x = Local(8, heads=2, radius=3, causal=causal).double(), inputs(2, 80)
    mask = torch.rand(2, 80) > 0.3
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask), mixer(x, mask))
    program = torch.export.export(mixer, (x, mask))
    torch.testing.assert_close(program.module()(x, mask), mixer(x, mask))


def test_a_negative_radius_is_an_error() -> None:
    with pytest.raises(UserError, match="got -1"):
        mixers.build("local", 8, radius=-1)


def test_heads_must_divide_dim() -> None:
    with pytest.raises(UserError, match="dim=10 and heads=4"):
        mixers.build("local", 10, heads=4)
