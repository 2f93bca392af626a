"""Transformer-XL's attention against the paper's formulas, and what goes wrong with its memory elsewhere."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounding import EXP, assert_within, errors_of_noise, module_errors
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from longspan.errors import UserError
from longspan.mixers.relative import Relative, RelativeState, naive
from longspan.ops import relative as op

DIM, HEADS, WIDTH = 8, 2, 4


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of queries, the last of them shorter, in few positions."""
    monkeypatch.setattr(op, "BLOCK", 4)


def build(**options: Any) -> Relative:
    torch.manual_seed(0)
    mixer = Relative(DIM, heads=HEADS, **{"causal": True} | options).double()
    for shared in (mixer.content_bias, mixer.distance_bias):
        torch.nn.init.normal_(shared)
    return mixer


def inputs(b: int, t: int, seed: int = 0) -> Tensor:
    return torch.randn(b, t, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def remembering(memory: Tensor) -> RelativeState:
    return RelativeState(memory, torch.ones(memory.shape[:2], dtype=torch.bool))


def stream(mixer: Relative, x: Tensor, sizes: list[int], state: RelativeState | None = None) -> Tensor:
    state, parts = state or mixer.init_state(x.shape[0]), []
    for part in x.split(sizes, 1):
        y, state = mixer.step(part, state)
        parts.append(y)
    return torch.cat(parts, 1)


def sinusoid(distance: Tensor) -> Tensor:
    """R of section 3.3: sines of all frequencies, then cosines."""
    angles = distance.double().unsqueeze(-1) / 10000 ** (torch.arange(0.0, DIM, 2, dtype=torch.float64) / DIM)
    return torch.cat((angles.sin(), angles.cos()), -1)


def by_pairs(mixer: Relative, x: Tensor, memory: Tensor) -> Tensor:
    """The terms (a) to (d) of section 3.3 for each pair, W_R R_{i-j} included, batch as it comes."""
    past, seen = memory.shape[1], torch.cat((memory, x), 1)
    distance = torch.arange(past, seen.shape[1]).unsqueeze(1) - torch.arange(seen.shape[1])
    hidden = distance < 0
    if mixer.window is not None:
        hidden = hidden | (distance > mixer.memory)
    if mixer.clamp:
        distance = distance.clamp(max=mixer.clamp)
    q, k, v = (
        w(inner).unflatten(-1, (HEADS, WIDTH))
        for w, inner in ((mixer.query, x), (mixer.key, seen), (mixer.value, seen))
    )
    r = mixer.distance(sinusoid(distance)).unflatten(-1, (HEADS, WIDTH))
    terms = (
        torch.einsum("bihe,bjhe->bhij", q, k)
        + torch.einsum("bihe,ijhe->bhij", q, r)
        + torch.einsum("he,bjhe->bhj", mixer.content_bias, k).unsqueeze(2)
        + torch.einsum("he,ijhe->hij", mixer.distance_bias, r)
    )
    weights = (terms / WIDTH**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    y: Tensor = mixer.output(torch.einsum("bhij,bjhe->bihe", weights, v).flatten(2))
    return y


def by_shifting(mixer: Relative, x: Tensor, memory: Tensor) -> Tensor:
    """Appendix B: all distances M + L - 1 … 0 once, and the rows of (q + v) Q^T shifted to the left."""
    past, length, seen = memory.shape[1], x.shape[1], torch.cat((memory, x), 1)
    distances = torch.arange(past + length - 1, -1, -1)
    if mixer.clamp:
        distances = distances.clamp(max=mixer.clamp)
    table = mixer.distance(sinusoid(distances)).unflatten(-1, (HEADS, WIDTH))
    q, k, v = (
        w(inner).unflatten(-1, (HEADS, WIDTH))
        for w, inner in ((mixer.query, x), (mixer.key, seen), (mixer.value, seen))
    )
    content = torch.einsum("bihe,bjhe->bhij", q + mixer.content_bias, k)
    columns = torch.einsum("bihe,khe->bhik", q + mixer.distance_bias, table)
    shifted = torch.cat((columns.new_zeros(*columns.shape[:3], 1), columns), 3)
    shifted = shifted.view(*columns.shape[:2], past + length + 1, length)[:, :, 1:].reshape(columns.shape)
    hidden = torch.ones(length, past + length, dtype=torch.bool).triu(1 + past)
    if mixer.window is not None:
        hidden = hidden | torch.ones(length, past + length, dtype=torch.bool).tril(past - mixer.memory - 1)
    weights = ((content + shifted) / WIDTH**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    y: Tensor = mixer.output(torch.einsum("bhij,bjhe->bihe", weights, v).flatten(2))
    return y


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("published", [by_pairs, by_shifting])
@pytest.mark.parametrize("b", [1, 3])
@pytest.mark.parametrize(("past", "length"), [(0, 9), (5, 9), (11, 3), (11, 1)])
@pytest.mark.parametrize("options", [{}, {"clamp": 4}, {"same_length": True, "memory": 11}, {"bias": True}])
def test_equals_the_paper(published: Any, b: int, past: int, length: int, options: dict[str, Any]) -> None:
    mixer, x, memory = build(**options), inputs(b, length, 1).requires_grad_(), inputs(b, past, 2)
    y, _ = mixer.step(x, remembering(memory))
    expected = published(mixer, x, memory)
    torch.testing.assert_close(y, expected)
    with torch.no_grad():
        torch.testing.assert_close(mixer.step(x, remembering(memory))[0], expected)
    if not past:
        torch.testing.assert_close(mixer(x), expected)
    tensors, probe = [x, *mixer.parameters()], torch.randn_like(y)
    actual_gradients = torch.autograd.grad(y, tensors, probe)
    torch.testing.assert_close(actual_gradients, torch.autograd.grad(expected, tensors, probe))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "options",
    [
        {"causal": False},
        {"causal": False, "clamp": 3},
        {"clamp": 3, "bias": True},
        {"same_length": True, "memory": 5},
        {"same_length": True, "memory": 0},
        {"output_projection": False},
    ],
)
def test_every_option_agrees_with_the_naive_form(options: dict[str, Any]) -> None:
    mixer, x = build(**options), inputs(2, 14)
    mask = torch.ones(2, 14, dtype=torch.bool)
    mask[0, :3] = mask[0, 6] = mask[1, 9:] = False
    for visible in (None, mask):
        expected = naive(mixer, x, visible)
        torch.testing.assert_close(mixer(x, visible), expected if visible is None else expected * mask.unsqueeze(-1))


def test_has_no_biases_unless_asked() -> None:
    assert sum(p.numel() for p in Relative(DIM, heads=HEADS).parameters()) == 5 * DIM * DIM + 2 * DIM
    with_biases = Relative(DIM, heads=HEADS, bias=True, output_projection=False)
    assert sum(p.numel() for p in with_biases.parameters()) == 4 * DIM * DIM + 3 * DIM + 2 * DIM


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), memory=st.integers(0, 6))
def test_with_same_length_the_cuts_never_matter(sizes: list[int], memory: int) -> None:
    mixer, x = build(same_length=True, memory=memory), inputs(2, sum(sizes))
    torch.testing.assert_close(stream(mixer, x, sizes), mixer(x))


def test_same_length_is_not_one_off() -> None:
    """Known failure elsewhere: an off-by-one in same_length, by which the oldest of the memory is never seen."""
    mixer, x = build(same_length=True, memory=5), inputs(1, 20).requires_grad_()
    for position in (0, 3, 5, 12, 19):
        seen = torch.autograd.grad(mixer(x)[:, position].sum(), x)[0].abs().sum((0, 2)).nonzero().flatten()
        assert seen.tolist() == list(range(max(0, position - 5), position + 1))
    state = remembering(inputs(1, 5, 1))
    for index, seen_by_the_second in ((0, False), (1, True)):
        changed = state.memory.clone()
        changed[:, index] += 1
        before, after = (mixer.step(x[:, :2], remembering(m))[0] for m in (state.memory, changed))
        assert not torch.equal(before[:, 0], after[:, 0])
        assert torch.equal(before[:, 1], after[:, 1]) != seen_by_the_second


def test_a_bounded_memory_forgets_at_the_cuts() -> None:
    """Without same_length a segment sees itself and the memory: what is forgotten depends on the cuts, as published."""
    mixer, x = build(memory=3), inputs(2, 12)
    torch.testing.assert_close(stream(mixer, x, [4] * 3)[:, 8:], by_pairs(mixer, x[:, 8:], x[:, 5:8]))
    one_by_one = stream(mixer, x, [1] * 12)
    torch.testing.assert_close(one_by_one, build(memory=3, same_length=True)(x))
    assert not torch.allclose(stream(mixer, x, [4] * 3), one_by_one)
    assert not torch.allclose(mixer(x), one_by_one)


@pytest.mark.parametrize(
    ("options", "length"),
    [({"memory": 6}, 6), ({"memory": 6, "same_length": True}, None), ({"memory": 6, "start": "zeros"}, 0)],
)
def test_it_says_how_far_the_cuts_do_not_matter(options: dict[str, Any], length: int | None) -> None:
    mixer, x = build(**options), inputs(2, 20)
    assert mixer.exact_length == length
    singly, parts = stream(mixer, x, [1] * 20), stream(mixer, x, [4] * 5)
    same = 20 if length is None else length + 1
    torch.testing.assert_close(parts[:, :same], singly[:, :same])
    assert length is None or not torch.allclose(parts, singly)


def test_the_memory_holds_the_last_inputs_newest_last() -> None:
    """Known failure elsewhere: swapped arguments when updating the memory, so that it keeps the oldest or nothing."""
    mixer, x = build(memory=5), inputs(2, 9)
    state = mixer.init_state(2)
    for part in x.split([2, 1, 4, 2], 1):
        _, state = mixer.step(part, state)
    torch.testing.assert_close(state.memory, x[:, 4:])
    assert state.visible.all()
    _, state = mixer.step(x, state)
    torch.testing.assert_close(state.memory, x[:, 4:])


def test_without_memory_each_segment_is_alone() -> None:
    mixer, x = build(memory=0), inputs(2, 6)
    separate = torch.cat((mixer(x[:, :4]), mixer(x[:, 4:])), 1)
    torch.testing.assert_close(stream(mixer, x, [4, 2]), separate)


def test_no_gradient_flows_into_the_memory() -> None:
    mixer = build()
    earlier, later = inputs(1, 4, 1).requires_grad_(), inputs(1, 3, 2).requires_grad_()
    _, state = mixer.step(earlier, mixer.init_state(1))
    assert not state.memory.requires_grad
    y, _ = mixer.step(later, RelativeState(earlier, state.visible))
    y.sum().backward()
    assert earlier.grad is None
    assert later.grad is not None
    # The projections of the memory are taken anew, and learn.
    assert mixer.key.weight.grad is not None


@given(data=st.data(), memory=st.sampled_from([4, 50]), same_length=st.booleans())
def test_padding_in_segments_is_possible(data: st.DataObject, memory: int, same_length: bool) -> None:
    """Known failure elsewhere: padding impossible, as it enters the memory like any token and counts as distance."""
    mixer = build(memory=memory, same_length=same_length)
    lengths = [data.draw(st.lists(st.integers(0, 4), min_size=3, max_size=3)) for _ in range(2)]
    state = mixer.init_state(2)
    alone = [mixer.init_state(1), mixer.init_state(1)]
    for part in range(3):
        x = torch.full((2, 6, DIM), 1e3, dtype=torch.float64)
        mask = torch.zeros(2, 6, dtype=torch.bool)
        for row in range(2):
            real = data.draw(st.permutations(range(6)))[: lengths[row][part]]
            mask[row, real] = True
            x[row, mask[row]] = inputs(1, len(real), part)[0]
        y, state = mixer.step(x, state, mask)
        assert (y[~mask] == 0).all()
        for row in range(2):
            if lengths[row][part]:
                expected, alone[row] = mixer.step(x[row : row + 1, mask[row]], alone[row])
                torch.testing.assert_close(y[row, mask[row]], expected[0])
    assert state.memory.shape[1] <= memory


def test_a_memory_of_zeros_is_seen_as_in_published_models() -> None:
    mixer, x = build(memory=6, start="zeros"), inputs(2, 10)
    expected = by_shifting(mixer, x[:, :4], torch.zeros(2, 6, DIM, dtype=torch.float64))
    y, state = mixer.step(x[:, :4], mixer.init_state(2))
    torch.testing.assert_close(y, expected)
    assert not torch.allclose(build(memory=6).step(x[:, :4], build().init_state(2))[0], expected)
    # A document that begins later begins alike.
    y, state = mixer.step(x[:, 4:8], mixer.reset(state, torch.tensor([False, True])))
    torch.testing.assert_close(
        y[:1],
        by_shifting(mixer, x[:1, 4:8], state.memory.new_zeros(1, 6, DIM).index_copy(1, torch.arange(2, 6), x[:1, :4])),
    )
    torch.testing.assert_close(y[1:], by_shifting(mixer, x[1:, 4:8], state.memory.new_zeros(1, 6, DIM)))


def test_a_token_after_a_long_memory_costs_no_projection_of_it() -> None:
    mixer = Relative(64, heads=4, causal=True, memory=512, start="zeros")
    with FlopCounterMode(display=False) as counter:
        mixer.step(torch.zeros(1, 1, 64), mixer.init_state(1))
    # Twice as many operations as multiplications: scores by content and by distance, the sum; and a few projections.
    assert counter.get_total_flops() < 2 * (3 * 514 * 64 * 4 + 8 * 64 * 64)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("memory", [3, 60])
def test_several_blocks_run_under_autocast(memory: int) -> None:
    mixer, x = build(same_length=True, memory=memory).float(), inputs(2, 30).float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = stream(mixer, x, [25, 4, 1])
        y.float().sum().backward()

    def with_gradient(rounded: Callable[[Tensor], Tensor]) -> list[Tensor]:
        other, leaf = copy.deepcopy(mixer).double(), x.detach().double().requires_grad_()
        with torch.no_grad():
            for weight in other.parameters():
                weight.copy_(rounded(weight.detach()))
        out = rounded(stream(other, rounded(leaf), [25, 4, 1]))
        return [out.detach(), *torch.autograd.grad(out.sum(), leaf)]

    # Projections, scores, weights, means and what is computed of them are rounded.
    allowed = errors_of_noise(with_gradient, 8, torch.bfloat16)
    assert x.grad is not None
    for found, exact, error in zip((y.detach(), x.grad), with_gradient(lambda x: x), allowed, strict=True):
        assert_within(found, exact, error)


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks", "no_shape_checks")
def test_several_blocks_and_steps_compile() -> None:
    torch._dynamo.reset()
    mixer, x = build(same_length=True, memory=3), inputs(1, 6).requires_grad_()
    y = torch.compile(mixer, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(y, mixer(x))
    actual, expected = (torch.autograd.grad(out.sum(), x) for out in (y, mixer(x)))
    torch.testing.assert_close(actual, expected)
    step = torch.compile(mixer.step, backend="aot_eager", fullgraph=True)
    state, token = remembering(inputs(1, 3)), inputs(1, 1)
    torch.testing.assert_close(step(token, state), mixer.step(token, state))


def test_65536_positions_with_same_length() -> None:
    mixer, x = Relative(4, heads=1, causal=True, same_length=True, memory=8), torch.randn(1, 65536, 4)
    with torch.no_grad():
        y = mixer(x)
    last = x[:, -13:].double()
    allowed = module_errors(mixer, lambda other, rounded: other(rounded(last)), 3 * 4 + 9 + EXP, torch.float32)
    assert_within(y[:, -5:], naive(mixer.double(), last)[:, -5:], allowed)


def test_length_one_is_the_value() -> None:
    mixer, x = build(causal=False), inputs(2, 1)
    torch.testing.assert_close(mixer(x), mixer.output(mixer.value(x)))


def test_bfloat16_tells_distances_past_2048_apart() -> None:
    """Known failure elsewhere: distances computed in bfloat16, where past 2,048 sixteen of them are one."""
    mixer, x = build().bfloat16(), inputs(1, 2200).bfloat16()
    exact = build()
    exact.load_state_dict({name: weight.double() for name, weight in mixer.state_dict().items()})
    y, _ = mixer.step(x[:, -1:], remembering(x[:, :-1]))
    expected, _ = exact.step(x[:, -1:].double(), remembering(x[:, :-1].double()))

    def last(other: nn.Module, rounded: Callable[[Tensor], Tensor]) -> Tensor:
        assert isinstance(other, Relative)
        given = rounded(x.double())
        return other.step(given[:, -1:], remembering(given[:, :-1]))[0]

    assert_within(y, expected, module_errors(mixer, last, 8, torch.bfloat16))


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "same_length": True, "memory": 3}])
def test_logits_of_ten_thousand_are_right(options: dict[str, Any]) -> None:
    """Known failure elsewhere: unshifted exp is infinite at 89 in float32."""
    mixer = Relative(DIM, heads=HEADS, **options)
    with torch.no_grad():
        mixer.content_bias.fill_(1e4)
        mixer.distance_bias.fill_(-1e4)
    x = inputs(1, 12).float().requires_grad_()
    y = mixer(x)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    allowed = module_errors(
        mixer, lambda other, rounded: other(rounded(x.detach().double())), 3 * DIM + 12 + EXP, torch.float32
    )
    assert_within(y, naive(mixer.double(), x.double()), allowed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "dim=8 and heads=3"),
        ({"dim": 9, "heads": 3}, "even dim"),
        ({"memory": -1}, "memory=-1"),
        ({"clamp": -2}, "clamp=-2"),
        ({"same_length": True}, "causal=True"),
        ({"start": "zero"}, "did you mean 'zeros'"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Relative(**{"dim": DIM, "heads": HEADS} | options)
