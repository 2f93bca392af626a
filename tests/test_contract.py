"""The contract every mixer keeps. A new mixer is found by name and runs through all of it."""

import copy
from typing import Any

import pytest
import torch
from contract import (
    DIM,
    TOLERANCE,
    both_precisions,
    build,
    causal_only,
    close,
    count_flops,
    crossing,
    cuts,
    every,
    inputs,
    known,
    lengths,
    linear,
    masks,
    naive_form,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_map

from longspan import mixers
from longspan.errors import UserError


@every
@given(mask=masks())
def test_agrees_with_the_naive_form_in_float64(name: str, causal: bool, mask: Tensor) -> None:
    mixer = build(name, causal, torch.float64)
    naive = naive_form(name)
    b, t = mask.shape
    x = inputs(b, t, torch.float64)
    close(mixer(x, mask), naive(mixer, x, mask))
    close(mixer(x), naive(mixer, x))


@every
@both_precisions
@pytest.mark.parametrize("t", [300, 2500])
def test_low_precision_stays_near_float64(name: str, causal: bool, dtype: torch.dtype, t: int) -> None:
    """Known failure elsewhere: position ids in bfloat16, in which 1,600 positions collapse to 585."""
    # Over many positions in small windows, in which one position more or less is seen.
    small: dict[str, Any] = {"radius": 8, "block_size": 4} if t > 2048 else {}
    mixer, x = build(name, causal, dtype, **known(name, small)), inputs(2, t, dtype)
    mask = torch.ones(2, t, dtype=torch.bool)
    mask[0, :7] = mask[1, t - 10 :] = False
    y = mixer(x, mask)
    assert y.dtype == dtype
    close(y, copy.deepcopy(mixer).double()(x.double(), mask))


@linear
@both_precisions
def test_65536_positions_are_as_right_as_few(name: str, dtype: torch.dtype) -> None:
    """Known failure elsewhere: running sums in bfloat16, which stop growing at 256."""
    for causal in (False, True) if "causal" in mixers.options(name) else (False,):
        mixer, x = build(name, causal, dtype, **known(name, {"max_length": 65536})), inputs(1, 65536, dtype)
        with torch.inference_mode():
            y, expected = mixer(x).double(), mixer.double()(x.double())
        # Each stretch is compared at its own size, as some outputs shrink as 1/t.
        size = expected.unflatten(1, (256, 256)).abs().amax((2, 3)).repeat_interleave(256, 1).unsqueeze(-1)
        # Half precision moves a query near the border of two buckets into the other one.
        tolerance = TOLERANCE[dtype] if dtype == torch.float32 else 0.1
        torch.testing.assert_close(y / size, expected / size, rtol=tolerance, atol=tolerance)


@crossing
@given(mask=masks(), m=lengths, data=st.data())
def test_cross_attention_agrees_with_the_naive_form(name: str, mask: Tensor, m: int, data: st.DataObject) -> None:
    mixer = build(name, dtype=torch.float64)
    naive = naive_form(name)
    b, n = mask.shape
    x, context = inputs(b, n, torch.float64), inputs(b, m, torch.float64)
    context_mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=b * m, max_size=b * m))).view(b, m)
    close(mixer(x, mask, context=context, context_mask=context_mask), naive(mixer, x, mask, context, context_mask))
    close(mixer(x, context=context), naive(mixer, x, None, context, None))


@crossing
@both_precisions
def test_padding_of_the_context_changes_nothing(name: str, dtype: torch.dtype) -> None:
    mixer, x, context = build(name, dtype=dtype), inputs(2, 9, dtype), inputs(2, 30, dtype)
    padded = torch.cat((context.new_full((2, 5, DIM), 1e3), context, context.new_full((2, 3, DIM), 1e3)), 1)
    real = torch.zeros(2, 38, dtype=torch.bool)
    real[:, 5:35] = True
    close(mixer(x, context=padded, context_mask=real), mixer(x, context=context))
    real[0] = False
    x.requires_grad_()
    y = mixer(x, context=padded, context_mask=real)
    assert (y[0] == 0).all()
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@crossing
def test_cross_attention_is_neither_causal_nor_packed(name: str) -> None:
    x = inputs(1, 4)
    if mixers.describe(name).causal:
        with pytest.raises(UserError, match="context"):
            build(name, True)(x, context=x)
    with pytest.raises(UserError, match="context"):
        build(name)(x, document_ids=torch.zeros(1, 4, dtype=torch.long), context=x)


@every
def test_mixers_without_cross_attention_say_so(name: str, causal: bool) -> None:
    if not mixers.describe(name).context:
        with pytest.raises(UserError, match="context"):
            build(name, causal)(inputs(1, 4), context=inputs(1, 4))


@every
def test_gradients_agree_with_finite_differences(name: str, causal: bool) -> None:
    mixer = build(name, causal, torch.float64)
    for t in (3, DIM + 2):
        x = inputs(2, t, torch.float64).requires_grad_()
        mask = torch.ones(2, t, dtype=torch.bool)
        mask[0, -1] = False
        assert torch.autograd.gradcheck(lambda x, mask=mask: mixer(x, mask), (x,), atol=1e-6)
        (mixer(x, mask) ** 2).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


@every
@both_precisions
@given(left=st.integers(0, 40), right=st.integers(0, 40), t=lengths)
def test_padding_on_either_side_changes_nothing(
    name: str, causal: bool, dtype: torch.dtype, left: int, right: int, t: int
) -> None:
    """Known failures elsewhere: a mask silently ignored; padding left in a normaliser."""
    mixer, x = build(name, causal, dtype), inputs(2, t, dtype)
    padded = torch.full((2, left + t + right, DIM), 1e3, dtype=dtype)
    padded[:, left : left + t] = x
    mask = torch.zeros(padded.shape[:2], dtype=torch.bool)
    mask[:, left : left + t] = True
    y = mixer(padded, mask)
    close(y[:, left : left + t], mixer(x))
    assert (y[:, :left] == 0).all()
    assert (y[:, left + t :] == 0).all()


@every
@both_precisions
@pytest.mark.parametrize("place", [0, 211, 299])
def test_one_real_token_among_padding_is_alone(name: str, causal: bool, dtype: torch.dtype, place: int) -> None:
    """Known failure elsewhere: rows with almost nothing to attend to becoming uniform, or NaN."""
    mixer, x = build(name, causal, dtype, **known(name, {"radius": 8})), torch.full((1, 300, DIM), 1e3, dtype=dtype)
    x[:, place] = inputs(1, 1, dtype)[:, 0]
    x.requires_grad_()
    mask = torch.arange(300).unsqueeze(0) == place
    y = mixer(x, mask)
    close(y[:, place], mixer(x[:, place : place + 1])[:, 0])
    assert (y[~mask] == 0).all()
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert (x.grad[~mask] == 0).all()


@every
@both_precisions
def test_batch_mates_change_nothing(name: str, causal: bool, dtype: torch.dtype) -> None:
    mixer, x = build(name, causal, dtype), inputs(3, 40, dtype)
    mask = torch.rand(3, 40) > 0.3
    close(mixer(x, mask)[1:2], mixer(x[1:2], mask[1:2]))


@every
@both_precisions
def test_rows_of_padding_give_zeros_and_finite_gradients(name: str, causal: bool, dtype: torch.dtype) -> None:
    """Known failure elsewhere: rows with nothing to attend to becoming uniform, or NaN."""
    mixer, x = build(name, causal, dtype), inputs(2, 9, dtype).requires_grad_()
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[1, 4] = True
    y = mixer(x, mask)
    assert (y[0] == 0).all()
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert (x.grad[0] == 0).all()


@every
@given(data=st.data(), t=lengths)
def test_packed_documents_are_separate_calls(name: str, causal: bool, data: st.DataObject, t: int) -> None:
    mixer, x = build(name, causal), inputs(2, t)
    sizes = data.draw(cuts(t))
    segments = (7 - torch.arange(len(sizes))).repeat_interleave(torch.tensor(sizes)).expand(2, -1)
    if False:
        with pytest.raises(TypeError):
            mixer(x, document_ids=segments)
        return
    full = torch.ones(2, t, dtype=torch.bool)
    masked = torch.tensor(data.draw(st.lists(st.booleans(), min_size=2 * t, max_size=2 * t))).view(2, t)
    for mask in (full, masked):
        documents = zip(x.split(sizes, 1), mask.split(sizes, 1), strict=True)
        close(mixer(x, mask, document_ids=segments), torch.cat([mixer(part, real) for part, real in documents], 1))
    close(mixer(x, document_ids=segments), mixer(x, full, document_ids=segments))


@every
def test_packed_documents_must_stand_together(name: str, causal: bool) -> None:
    mixer, x = build(name, causal), inputs(1, 3)
    if True:
        with pytest.raises(ValueError, match="stand together"):
            mixer(x, document_ids=torch.tensor([[0, 1, 0]]))


@causal_only
@both_precisions
@given(data=st.data(), t=st.integers(2, 70))
def test_causal_outputs_and_gradients_ignore_the_future(
    name: str, dtype: torch.dtype, data: st.DataObject, t: int
) -> None:
    mixer, x = build(name, True, dtype), inputs(1, t, dtype)
    now = data.draw(st.integers(0, t - 2))
    changed = x.clone()
    changed[:, now + 1 :] += 5
    close(mixer(changed)[:, : now + 1], mixer(x)[:, : now + 1])
    x.requires_grad_()
    mixer(x)[:, now].sum().backward()
    assert x.grad is not None
    assert (x.grad[:, now + 1 :] == 0).all()


@causal_only
@both_precisions
@given(mask=masks(), data=st.data())
def test_streaming_in_any_segments_is_the_whole(
    name: str, dtype: torch.dtype, mask: Tensor, data: st.DataObject
) -> None:
    mixer, (b, t) = build(name, True, dtype), mask.shape
    x = inputs(b, t, dtype).masked_fill(~mask.unsqueeze(-1), 1e3)
    sizes, state, parts = data.draw(cuts(t)), mixer.init_state(b), []
    for part, real in zip(x.split(sizes, 1), mask.split(sizes, 1), strict=True):
        # Where nothing is masked, with and without saying so.
        y, state = mixer.step(part, state, None if real.all() and data.draw(st.booleans()) else real)
        parts.append(y)
    y = torch.cat(parts, 1)
    close(y, mixer(x, mask))
    assert (y[~mask] == 0).all()


@causal_only
@both_precisions
@pytest.mark.parametrize("holes", [False, True])
def test_rows_that_are_reset_begin_anew_and_the_others_go_on(name: str, dtype: torch.dtype, holes: bool) -> None:
    """Known failure elsewhere: memories never reset, so that a document sees the one before it."""
    mixer, x = build(name, True, dtype), inputs(3, 40, dtype)
    mask = torch.rand(3, 40) > 0.3 if holes else torch.ones(3, 40, dtype=torch.bool)
    rows, state, parts = torch.tensor([True, False, True]), mixer.init_state(3), []
    for start, end in ((0, 1), (1, 25), (25, 26), (26, 40)):
        if start == 25:
            state = mixer.reset(state, rows)
        y, state = mixer.step(x[:, start:end], state, mask[:, start:end] if holes else None)
        parts.append(y)
    y = torch.cat(parts[2:], 1)
    close(y[rows], mixer(x[rows, 25:], mask[rows, 25:]))
    close(y[~rows], mixer(x[~rows], mask[~rows])[:, 25:])


@causal_only
@pytest.mark.parametrize("holes", [False, True])
def test_a_state_grows_only_where_none_is_claimed(name: str, holes: bool) -> None:
    """Counted is what its tensors keep alive, not only what they show. Softmax attention claims no state."""
    mixer, x = build(name, True, **known(name, {"radius": 8, "memory": 8})), inputs(2, 60)
    mask = torch.rand(2, 60) > 0.3 if holes else None
    state, sizes = mixer.init_state(2), []
    for part in (slice(0, 20), slice(20, 21), slice(21, 60)):
        _, state = mixer.step(x[:, part], state, None if mask is None else mask[:, part])
        tensors: list[Tensor] = []
        tree_map(tensors.append, state)
        sizes.append(sum(tensor.untyped_storage().nbytes() for tensor in tensors))
    assert (sizes[0] == sizes[1] == sizes[2]) == mixer.bounded_state


@causal_only
def test_state_can_be_detached_saved_and_reordered(name: str, tmp_path: Any) -> None:
    mixer, x = build(name, True), inputs(2, 12)
    _, state = mixer.step(x[:, :8], mixer.init_state(2))
    tensors: list[Tensor] = []
    tree_map(tensors.append, state)
    torch.save(tensors, tmp_path / "state.pt")
    loaded = iter(torch.load(tmp_path / "state.pt", weights_only=True))
    swapped = tree_map(lambda _: next(loaded).detach()[[1, 0]], state)
    y, _ = mixer.step(x[[1, 0], 8:], swapped)
    close(y[[1, 0]], mixer(x)[:, 8:])


@every
def test_step_without_causal_says_so(name: str, causal: bool) -> None:
    if not causal and mixers.describe(name).streaming:
        mixer = build(name)
        with pytest.raises(UserError, match="causal=True"):
            mixer.step(inputs(1, 1), mixer.init_state(1))


@every
@pytest.mark.usefixtures("no_shape_checks")
def test_compiles_without_graph_breaks(name: str, causal: bool) -> None:
    torch._dynamo.reset()
    mixer, x = build(name, causal), inputs(2, 20)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[0, 15:] = False
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    close(compiled(x, mask), mixer(x, mask))
    if causal:
        with torch.no_grad():
            _, state = mixer.step(x[:, :18], mixer.init_state(2))
            step = torch.compile(mixer.step, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(
                step(x[:, 18:], state, mask[:, 14:16]), mixer.step(x[:, 18:], state, mask[:, 14:16])
            )


@every
@pytest.mark.usefixtures("no_shape_checks")
def test_exports(name: str, causal: bool) -> None:
    mixer, x = build(name, causal), inputs(2, 20)
    mask = torch.ones(2, 20, dtype=torch.bool)
    program = torch.export.export(mixer, (x, mask))
    close(program.module()(x, mask), mixer(x, mask))


@every
def test_runs_under_autocast(name: str, causal: bool) -> None:
    mixer, x = build(name, causal), inputs(2, 50)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, torch.ones(2, 50, dtype=torch.bool))
        y.float().sum().backward()
    close(y, mixer(x), torch.bfloat16)


@every
def test_a_deep_copy_is_independent(name: str, causal: bool) -> None:
    mixer, x = build(name, causal), inputs(2, 10)
    before = mixer(x)
    other = copy.deepcopy(mixer)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(mixer(x), before)


@every
@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_extreme_logits_are_right(name: str, causal: bool, scale: float) -> None:
    """Known failure elsewhere: unshifted exp is infinite at 12 in float16 and 89 in float32; cumulative sums with one
    maximum give 0/0."""
    # A few tokens again and again: logits tie exactly, or are worlds apart. After them, one that outdoes them all.
    x = scale * torch.eye(DIM)[torch.arange(70) * 7 % 11].unsqueeze(0)
    x[:, 60] *= 1e2
    mixer = build(name, causal)
    y = mixer(x.requires_grad_())
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    naive = naive_form(name)
    with torch.no_grad():
        expected = naive(mixer.double(), x.double())
    size = expected[:, :60].abs().max()
    # Logits of 1e4 are rounded by up to 1e-3.
    torch.testing.assert_close(y[:, :60].double() / size, expected[:, :60] / size, rtol=0, atol=1e-3)
    close(y / expected.abs().max(), expected / expected.abs().max(), torch.bfloat16)


@every
def test_unknown_options_are_errors_with_the_nearest_name(name: str, causal: bool) -> None:
    option = next(iter(mixers.options(name)))
    with pytest.raises(UserError, match=f"did you mean '{option}'"):
        mixers.build(name, DIM, **{option + "x": 1})


@every
def test_describes_itself(name: str, causal: bool) -> None:
    description = mixers.describe(name)
    assert description.summary.endswith(".")
    assert description.cost
    assert "http" in description.source
    assert "Equations" in description.docstring


@every
def test_cost_grows_as_claimed(name: str, causal: bool) -> None:
    """Doubling the length doubles the counted operations of a linear mixer; a quadratic one says t²."""
    mixer = build(name, causal)
    ratio = count_flops(mixer, 2048) / count_flops(mixer, 1024)
    assert (ratio < 2.1) == mixer.linear
