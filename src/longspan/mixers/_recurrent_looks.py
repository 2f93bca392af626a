"""What recurrent layers show: how much of what each position wrote into a unit is still in it."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from longspan.mixers._looks import Look, kept, there, time_constants
from longspan.ops.scan import accumulation_dtype

if TYPE_CHECKING:
    from longspan.mixers.recurrent import Recurrent, RecurrentState
else:
    # Its module imports this one.
    Recurrent = RecurrentState = Any


class _Direction(NamedTuple):
    """One direction, its positions in the order in which it reads them, padding last; all other tensors are so.

    Attributes:
        order: (b, t), the place of each in the row.
        real: (b, t), which are real.
        rates: (b, t, w), minus the logarithms of the forget gates.
        written: (b, t, w), what each position adds to the units.
        before: (b, w), what was in them before.
        output: from units at each position (b, t, w) to outputs.
    """

    order: Tensor
    real: Tensor
    rates: Tensor
    written: Tensor
    before: Tensor
    output: Callable[[Tensor], Tensor]


def look_at_recurrent(
    mixer: Recurrent, x: Tensor, mask: Tensor | None, at: Tensor | None, state: RecurrentState | None = None
) -> Look:
    """Return "kept" of each unit: the product of its forget gates between each position and `at`."""
    left, times, carried = list[Tensor](), list[Tensor](), dict[str, Tensor]()
    for way in _directions(mixer, x, mask, state):
        found = kept(way.rates.mT, way.real, None if at is None else _rank(way, at))
        if state is not None and at is not None:
            passed = (way.rates * way.real.unsqueeze(2)).cumsum(1)
            carried["kept"] = ((-there(passed, _rank(way, at))).exp() * way.before).unsqueeze(2)
        left.append(torch.zeros_like(found).scatter(2, way.order.unsqueeze(1).expand_as(found), found))
        decay = time_constants(way.rates * way.real.unsqueeze(2), way.real)
        assert decay is not None
        times.append(decay)
    return Look(at, {"kept": torch.cat(left, 1)}, time_constants=torch.cat(times), carried=carried)


def pool_recurrent(mixer: Recurrent, x: Tensor, mask: Tensor | None, look: Look, at: Tensor) -> Tensor:
    """Return the outputs at `at`, from what is kept there of all that was written."""
    ways = list(_directions(mixer, x, mask, look.state))
    outputs = []
    for way, left in zip(ways, look.weights["kept"].chunk(len(ways), 1), strict=True):
        left = left.gather(2, way.order.unsqueeze(1).expand_as(left)).mT
        units = (left * way.written).sum(1, keepdim=True)
        if "kept" in look.carried:
            units = units + look.carried["kept"].mT
        outputs.append(there(way.output(units.expand_as(left)), _rank(way, at)))
    return torch.cat(outputs, 1).to(x.dtype)


def _rank(way: _Direction, at: Tensor) -> Tensor:
    return (way.order == at.unsqueeze(1)).int().argmax(1)


def _directions(mixer: Recurrent, x: Tensor, mask: Tensor | None, state: RecurrentState | None) -> Iterator[_Direction]:
    places = torch.arange(x.shape[1], device=x.device)
    real = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
    state = mixer.empty_state(x.shape[0], x.dtype, x.device) if state is None else state
    # A GRU has no cells: its units are its outputs.
    before = state.cell if state.cell.shape[1] else state.hidden
    for number, reader in enumerate((mixer.reader, mixer.reverse_reader)):
        if reader is None:
            continue
        turned = -places if number else places
        order = torch.where(real, turned, len(places)).argsort(dim=1, stable=True)
        read = x.gather(1, order.unsqueeze(2).expand_as(x))
        hidden = reader(read, state)[0]
        # The columns of x that an SRU passes on.
        passed = read[..., number * mixer.width : (number + 1) * mixer.width]
        rates, written, output = _gates(reader, read, hidden, passed, state.hidden)
        yield _Direction(order, real.gather(1, order), rates, written, before.to(rates.dtype), output)


def _gates(
    reader: nn.Module, x: Tensor, hidden: Tensor, passed: Tensor, first: Tensor
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Return the rates, what is written and the output, from the inputs of a direction and its outputs.

    `first` is the output (b, w) before the first position, of units that have one.
    """
    dtype = accumulation_dtype(x.dtype)
    x, hidden = x.to(dtype), hidden.to(dtype)
    weights = {name: weight.to(dtype) for name, weight in reader.named_parameters()}
    if "weight_hh_l0" not in weights:
        candidate, forget, highway = linear(x, weights["projection.weight"]).chunk(3, 2)
        if "gate_bias" in weights:
            forget_bias, highway_bias = weights["gate_bias"].chunk(2)
            forget, highway = forget + forget_bias, highway + highway_bias
        return (
            -logsigmoid(forget),
            torch.sigmoid(-forget) * candidate,
            lambda cells: torch.lerp(passed.to(dtype), cells.tanh(), highway.sigmoid()),
        )
    before = torch.cat((first.to(dtype).unsqueeze(1), hidden[:, :-1]), 1)
    new = linear(x, weights["weight_ih_l0"], weights.get("bias_ih_l0"))
    old = linear(before, weights["weight_hh_l0"], weights.get("bias_hh_l0"))
    if new.shape[2] == 4 * hidden.shape[2]:
        i, f, g, o = (new + old).chunk(4, 2)
        return -logsigmoid(f), i.sigmoid() * g.tanh(), lambda cells: o.sigmoid() * cells.tanh()
    (r_new, z_new, n_new), (r_old, z_old, n_old) = new.chunk(3, 2), old.chunk(3, 2)
    candidate = (n_new + (r_new + r_old).sigmoid() * n_old).tanh()
    return -logsigmoid(z_new + z_old), torch.sigmoid(-z_new - z_old) * candidate, lambda units: units
