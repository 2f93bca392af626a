"""Recurrent layers against PyTorch's own and their equations."""

import copy
from typing import Any

import jaxtyping
import pytest
import torch
from contract import close_with_gradients
from rounding import EXP, assert_within, module_errors, rounding
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers import recurrent
from longspan.mixers.recurrent import CELLS, Recurrent, naive
from longspan.testing.counting import count_operations

every_cell = pytest.mark.parametrize("cell", CELLS)
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["one-way", "two-way"])


def published(cell: str, ours: Recurrent, dim: int, bias: bool = True) -> Any:
    """Return PyTorch's module with the weights of `ours`."""
    kind: Any = nn.LSTM if cell == "lstm" else nn.GRU
    theirs = kind(dim, ours.width, batch_first=True, bidirectional=not ours.causal, bias=bias)
    weights = dict(ours.reader.state_dict())
    if ours.reverse_reader is not None:
        weights |= {f"{name}_reverse": weight for name, weight in ours.reverse_reader.state_dict().items()}
    theirs.load_state_dict(weights)
    return theirs.to(weights["weight_ih_l0"].dtype)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("bias", [True, False])
@both_ways
def test_agrees_with_torch_on_padded_rows(cell: str, causal: bool, bias: bool) -> None:
    """Known failure elsewhere: the reverse direction starts with the padding."""
    ours = Recurrent(6, cell=cell, causal=causal, bias=bias).double()
    theirs = published(cell, ours, 6, bias)
    x, lengths = torch.randn(3, 9, 6, dtype=torch.float64), torch.tensor([9, 1, 5])
    mask = torch.arange(9) < lengths.unsqueeze(1)
    packed, _ = theirs(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    torch.testing.assert_close(ours(x, mask), pad_packed_sequence(packed, batch_first=True)[0])
    torch.testing.assert_close(ours(x), theirs(x)[0])


@every_cell
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("t", [1, 12])
@both_ways
def test_agrees_with_the_naive_form_with_holes(cell: str, bias: bool, t: int, causal: bool) -> None:
    mixer = Recurrent(6, cell=cell, bias=bias, causal=causal).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(3, t, 6, dtype=torch.float64)
    mask = torch.rand(3, t) > 0.5
    mask[0] = False
    y = mixer(x, mask)
    torch.testing.assert_close(y, naive(mixer, x, mask))
    assert (y[0] == 0).all()
    torch.testing.assert_close(mixer(x), naive(mixer, x))


@pytest.mark.slow
@every_cell
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize("holes", [False, True])
def test_streams_with_a_state_of_constant_size(cell: str, dtype: torch.dtype, size: int, holes: bool) -> None:
    mixer, x = Recurrent(6, cell=cell, causal=True).to(dtype), torch.randn(3, 20, 6).to(dtype)
    mask = torch.rand(3, 20) > 0.5 if holes else torch.ones(3, 20, dtype=torch.bool)
    mask[2] &= not holes
    state, parts = mixer.init_state(3), []
    for part, real in zip(x.split(size, 1), mask.split(size, 1), strict=True):
        before = state
        y, state = mixer.step(part, state, real if holes else None)
        parts.append(y)
        assert [(s.shape, s.dtype) for s in state] == [(s.shape, torch.float32) for s in before]
        kept = ~real.any(1)
        assert all(torch.equal(s[kept], old[kept]) for s, old in zip(state, before, strict=True))
    # Sums over six inputs, six states and a bias, and functions made of exponentials; results, and what is computed
    # of x, are in the type of x.
    roundings = 13 + 2 * EXP
    allowed = module_errors(mixer, lambda other, rounded: other(rounded(x.double()), mask), roundings, torch.float32)
    if dtype == torch.bfloat16:
        allowed += module_errors(mixer, lambda other, rounded: other(rounded(x.double()), mask), 4, dtype)
    assert_within(torch.cat(parts, 1), mixer(x, mask).double(), 2 * allowed)


@every_cell
def test_no_weight_moves_the_state_past_what_is_masked(cell: str) -> None:
    mixer = Recurrent(6, cell=cell, causal=True).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=100)
    x, mask = torch.randn(1, 9, 6, dtype=torch.float64), torch.arange(9).unsqueeze(0) < 4
    _, expected = mixer.step(x[:, :4], mixer.init_state(1))
    torch.testing.assert_close(mixer.step(x, mixer.init_state(1), mask)[1], expected)


@pytest.mark.slow
@every_cell
@both_ways
def test_gradients(cell: str, causal: bool) -> None:
    mixer = Recurrent(4, cell=cell, causal=causal).double()
    x = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, True, True], [False] * 4])
    assert torch.autograd.gradcheck(lambda x: mixer(x, mask), (x,))
    mixer(x, mask).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


def counting(cell: str) -> Recurrent:
    """Return a layer whose first feature moves by about one thousandth of the way to one with each position."""
    mixer = Recurrent(2, cell=cell, causal=True)
    with torch.no_grad():
        weights = {name: weight.zero_() for name, weight in mixer.reader.named_parameters()}
        if cell == "sru":
            weights["projection.weight"][0, 0] = 1
            weights["gate_bias"].copy_(torch.tensor([7.0, 7.0, 20.0, 20.0]))
        elif cell == "gru":
            weights["weight_ih_l0"][4, 0] = 2
            weights["bias_ih_l0"][2:4] = 7
        else:
            weights["bias_ih_l0"].copy_(torch.tensor([-7.0, -7, 20, 20, 2, 2, 20, 20]))
    return mixer


@every_cell
def test_a_slow_count_goes_on_in_bfloat16(cell: str) -> None:
    """Known failure elsewhere: a cell in bfloat16 stops where an addition is rounded away."""
    mixer, x = counting(cell).bfloat16(), torch.ones(1, 3000, 2).bfloat16()
    y = mixer(x)[0, :, 0].double()
    expected = copy.deepcopy(mixer).double()(x.double())[0, :, 0]
    assert y[2500] > 1.02 * y[1500]
    # States are in float32, results and what is computed of x in bfloat16.
    allowed = rounding(2, expected.abs(), torch.bfloat16)
    allowed += rounding(3000 * (6 + 2 * EXP), expected.max(), torch.float32)
    assert_within(y, expected, allowed)


@pytest.mark.slow
@every_cell
@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_extreme_inputs_saturate_and_stay_finite(cell: str, scale: float) -> None:
    mixer, x = Recurrent(6, cell=cell), (scale * torch.randn(1, 50, 6)).requires_grad_()
    y = mixer(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_an_sru_reads_65536_positions() -> None:
    mixer, x = Recurrent(6, cell="sru"), torch.randn(1, 65536, 6)
    with torch.inference_mode():
        y = mixer(x)
        # What has been forgotten a thousand positions later does not matter.
        torch.testing.assert_close(y[:, -500:], mixer(x[:, -1500:])[:, -500:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "trained"),
    [(cell, "weights") for cell in CELLS] + [("lstm", "nothing"), ("lstm", "weights and inputs")],
)
def test_compiles(cell: str, trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known failure elsewhere: an LSTM breaks the graph, and one for inputs without gradient fails to compile."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    torch._dynamo.reset()
    mixer = Recurrent(4, cell=cell, causal=True).requires_grad_(trained != "nothing")
    x, mask = torch.randn(2, 3, 4, requires_grad="inputs" in trained), torch.rand(2, 3) > 0.3
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    y, expected = compiled(x, mask), mixer(x, mask)
    torch.testing.assert_close(y, expected)
    parameters = [p for p in (*mixer.parameters(), x) if p.requires_grad]
    if parameters:
        for ours, theirs in zip(
            torch.autograd.grad(y.sum(), parameters), torch.autograd.grad(expected.sum(), parameters), strict=True
        ):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
@every_cell
def test_exports(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    mixer, x, mask = Recurrent(4, cell=cell), torch.randn(2, 5, 4), torch.rand(2, 5) > 0.3
    # With gradients, the loop that is exported reads those of tensors that are no leaves, of which PyTorch warns.
    with torch.no_grad():
        torch.testing.assert_close(torch.export.export(mixer, (x, mask)).module()(x, mask), mixer(x, mask))


@pytest.mark.parametrize(("cell", "products"), [("lstm", 8), ("gru", 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operations_are_counted_whoever_computes_them(cell: str, products: int, dtype: torch.dtype) -> None:
    """Known failure elsewhere: PyTorch's counter passes over oneDNN's LSTM."""
    mixer, x = Recurrent(4, cell=cell, causal=True).to(dtype), torch.zeros(3, 7, 4, dtype=dtype)
    assert count_operations(lambda: mixer(x)) == 2 * 3 * 7 * products * 4**2


@every_cell
def test_runs_under_autocast_after_a_product_in_half_precision(cell: str) -> None:
    mixer, x = Recurrent(6, cell=cell), torch.randn(2, 20, 6)
    expected = copy.deepcopy(mixer).double()(x.double())
    allowed = module_errors(mixer, lambda other, rounded: other(rounded(x.double())), 4, torch.bfloat16)
    for given in (x, x.bfloat16()):
        with torch.autocast("cpu", torch.bfloat16):
            y = mixer(given)
        assert_within(y, expected, allowed)


def test_two_directions_need_an_even_width() -> None:
    assert Recurrent(5, causal=True)(torch.zeros(1, 2, 5)).shape == (1, 2, 5)
    with pytest.raises(UserError, match="dim=5"):
        mixers.build("recurrent", 5)


def test_unknown_cells_are_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'lstm'"):
        mixers.build("recurrent", 8, cell="lstn")


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_rows_longer_than_what_is_read_at_once(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Recurrent(6, cell=cell, causal=True).double()
    x = torch.randn(2, 20, 6, dtype=torch.float64, requires_grad=True)
    whole = ours(x)
    monkeypatch.setattr(recurrent, "LONGEST", 7)
    close_with_gradients(ours(x), whole, x, *ours.parameters())


def test_weights_side_by_side_are_the_same_weights() -> None:
    """As cuDNN wants them; PyTorch warns of weights that are not."""
    weights = [parameter.requires_grad_() for parameter in Recurrent(6, causal=True).reader.parameters()]
    beside = recurrent._adjacent(weights)
    assert len({weight.untyped_storage().data_ptr() for weight in beside}) == 1
    for one, other in zip(weights, beside, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert torch.equal(torch.autograd.grad(other.sum(), one, retain_graph=True)[0], torch.ones_like(one))
