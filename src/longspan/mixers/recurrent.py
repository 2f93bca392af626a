"""Recurrent layers: LSTM, GRU and SRU, unidirectional and bidirectional."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.nn.functional import linear, logsigmoid

from longspan.errors import UserError, check_choice
from longspan.mixers.base import Capabilities, Look, Mixer
from longspan.mixers.looks import decay_weights, time_constants
from longspan.ops import slices
from longspan.ops.execution import by_hand, exporting, without_autocast
from longspan.ops.packing import left_aligned, left_aligned_step, zero_padding
from longspan.ops.pooling import accumulation_dtype
from longspan.ops.scan import lerp_scan

CELLS = ("lstm", "gru", "sru")
# Positions read at once: cuDNN refuses 65,536.
LONGEST = 1 << 15


class RecurrentState(NamedTuple):
    """The state after the positions so far, each (b, dim): a GRU has no `cell` and an SRU no `hidden` (width 0)."""

    hidden: Tensor
    cell: Tensor


class SteppedUnit(nn.Module):
    """One direction of an LSTM or GRU: PyTorch's functions, and the names its modules give their weights.

    Not the modules themselves, which the compiler refuses.
    """

    def __init__(self, dim: int, width: int, gates: int, bias: bool) -> None:
        super().__init__()
        self.gates = gates
        self.weight_ih_l0 = nn.Parameter(torch.empty(gates * width, dim))
        self.weight_hh_l0 = nn.Parameter(torch.empty(gates * width, width))
        self.bias_ih_l0 = nn.Parameter(torch.empty(gates * width)) if bias else None
        self.bias_hh_l0 = nn.Parameter(torch.empty(gates * width)) if bias else None
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    def forward(
        self, x: Float[Tensor, "b n d"], state: RecurrentState, mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """Continue from `state`; masked positions come last, do not change it, and have meaningless outputs."""
        # oneDNN's LSTM repacks the weights in every call, which costs too much for one position of a stream. Compilers
        # unroll loops of cells themselves, and transforms support only the cells.
        runs = x.shape[1] > 1 and by_hand()
        read = self._scan if exporting() else self._read_runs if runs else self._read_steps
        dtype = accumulation_dtype(x.dtype)
        parameters = (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0)
        weights = [parameter.to(dtype) for parameter in parameters if parameter is not None]
        if x.is_cuda and runs:
            weights = _adjacent(weights)
        state = RecurrentState(state.hidden.to(dtype), state.cell.to(dtype))
        with without_autocast(x):
            y, state = read(x.to(dtype), state, weights, mask)
        return y.to(x.dtype), state

    def rates(self, x: Float[Tensor, "b n d"], y: Float[Tensor, "b n w"]) -> Float[Tensor, "b n w"]:
        """Return minus the logarithms of the forget gates, from what was read from the start and the outputs."""
        dtype = accumulation_dtype(x.dtype)
        x, before = x.to(dtype), nn.functional.pad(y.to(dtype), (0, 0, 1, 0))[:, :-1]
        of = {name: weight.to(dtype) for name, weight in self.named_parameters()}
        sums = linear(x, of["weight_ih_l0"], of.get("bias_ih_l0"))
        sums = sums + linear(before, of["weight_hh_l0"], of.get("bias_hh_l0"))
        # Of an LSTM f, of a GRU z.
        return -logsigmoid(sums.chunk(self.gates, 2)[1])

    def _read_steps(
        self, x: Tensor, state: RecurrentState, weights: list[Tensor], mask: Tensor | None
    ) -> tuple[Tensor, RecurrentState]:
        outs = []
        for i in range(x.shape[1]):
            if self.gates == 3:
                after = state._replace(hidden=torch.gru_cell(x[:, i], state.hidden, *weights))
            else:
                after = RecurrentState(*torch.lstm_cell(x[:, i], (state.hidden, state.cell), *weights))
            state = after if mask is None else _chosen(mask[:, i], after, state)
            outs.append(state.hidden)
        return torch.stack(outs, 1), state

    def _scan(
        self, x: Tensor, state: RecurrentState, weights: list[Tensor], mask: Tensor | None
    ) -> tuple[Tensor, RecurrentState]:
        """Read positions one by one in one operation of the program, however many there are."""
        input_weight, weight, *biases = weights
        input_bias, bias = biases or (None, None)

        def cell(carried: tuple[Tensor, ...], inputs: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
            new, real = inputs
            old = nn.functional.linear(carried[0], weight, bias)
            after: tuple[Tensor, ...]
            if self.gates == 3:
                (r_new, z_new, n_new), (r_old, z_old, n_old) = new.chunk(3, 1), old.chunk(3, 1)
                z, n = (z_new + z_old).sigmoid(), (n_new + (r_new + r_old).sigmoid() * n_old).tanh()
                after = ((1 - z) * n + z * carried[0],)
            else:
                i, f, g, o = (new + old).chunk(4, 1)
                kept = f.sigmoid() * carried[1] + i.sigmoid() * g.tanh()
                after = (o.sigmoid() * kept.tanh(), kept)
            after = tuple(torch.where(real.unsqueeze(1), *pair) for pair in zip(after, carried, strict=True))
            # What is put out may not be the very tensor that is carried on.
            return after, after[0].clone()

        real = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
        inputs = (nn.functional.linear(x, input_weight, input_bias).transpose(0, 1), real.transpose(0, 1))
        # Two tensors even where both are the same zeros, as the scan would take them for one.
        start = (state.hidden,) if self.gates == 3 else (state.hidden.clone(), state.cell.clone())
        carried, y = scan(cell, start, inputs)
        return y.transpose(0, 1), RecurrentState(carried[0], state.cell if self.gates == 3 else carried[1])

    def _read_runs(
        self, x: Tensor, state: RecurrentState, weights: list[Tensor], mask: Tensor | None
    ) -> tuple[Tensor, RecurrentState]:
        if mask is None:
            return self._read_whole(x, state, weights)
        # To the end of the shortest row, from there to the end of the next, and so on: finished rows keep their state.
        lengths, begin, outs = mask.sum(1), 0, []
        for end in lengths.unique().tolist():
            if end:
                y, after = self._read_whole(x[:, begin:end], state, weights)
                state = _chosen(lengths >= end, after, state)
                outs.append(y)
                begin = end
        outs.append(x.new_zeros(x.shape[0], x.shape[1] - begin, state.hidden.shape[1]))
        return torch.cat(outs, 1), state

    def _read_whole(self, x: Tensor, state: RecurrentState, weights: list[Tensor]) -> tuple[Tensor, RecurrentState]:
        hidden, cell, outs = state.hidden.unsqueeze(0), state.cell.unsqueeze(0), []
        options = (weights, self.bias_ih_l0 is not None, 1, 0.0, torch.is_grad_enabled(), False, True)
        for part in x.split(LONGEST, 1):
            if self.gates == 3:
                y, hidden = torch.gru(part, hidden, *options)
            else:
                y, hidden, cell = torch.lstm(part, (hidden, cell), *options)
            outs.append(y)
        return outs[0] if len(outs) == 1 else torch.cat(outs, 1), RecurrentState(hidden[0], cell[0])


def _adjacent(weights: list[Tensor]) -> list[Tensor]:
    """Return the same weights one after the other in memory, as cuDNN wants them."""
    parts = torch.cat([weight.flatten() for weight in weights]).split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


def _chosen(rows: Tensor, new: RecurrentState, old: RecurrentState) -> RecurrentState:
    """Return the new state where `rows` (b,) is True and the old one elsewhere."""
    hidden, cell = (torch.where(rows.unsqueeze(1), *pair) for pair in zip(new, old, strict=True))
    return RecurrentState(hidden, cell)


class SimpleRecurrentUnit(nn.Module):
    """One direction of an SRU: its gates see the input only, so that all products come before the recurrence."""

    def __init__(self, dim: int, width: int, first: int, bias: bool) -> None:
        super().__init__()
        # Rows: candidate, forget gate, highway gate.
        self.projection = nn.Linear(dim, 3 * width, bias=False)
        self.gate_bias = nn.Parameter(torch.zeros(2 * width)) if bias else None
        # The columns of the input that the highway gate lets through.
        self.skipped = slice(first, first + width)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        state: RecurrentState,
        mask: Bool[Tensor, "b n"] | None = None,
        *,
        backwards: bool = False,
    ) -> tuple[Tensor, RecurrentState]:
        """Continue from `state`; masked positions do not change it, and have meaningless outputs.

        Slices of rows come from the last to the first with `backwards`, which changes nothing within each.
        """
        candidate, forget, highway = self._projected(x)
        # c_t = c_{t-1} + (1 - f) (x̃_t - c_{t-1}). σ(-z) is 1 - σ(z), and not zero where rounding makes σ(z) one.
        gates = zero_padding(torch.sigmoid(-forget), mask)
        values, gates = candidate.unsqueeze(2), gates.unsqueeze(2)
        before = slices.state_before(
            state.cell.unsqueeze(1),
            lambda: (lerp_scan(values, gates)[1], zero_padding(logsigmoid(forget), mask).sum(1, True)),
            _after_slice,
            backwards=backwards,
        )
        cells, last = lerp_scan(values, gates, before)
        skipped = x[..., self.skipped].to(candidate.dtype)
        y = torch.lerp(skipped, cells.squeeze(2).tanh(), highway.sigmoid())
        return y, state._replace(cell=last.squeeze(1))

    def rates(self, x: Float[Tensor, "b n d"], y: Float[Tensor, "b n w"]) -> Float[Tensor, "b n w"]:
        """Return minus the logarithms of the forget gates, which do not depend on the outputs."""
        return -logsigmoid(self._projected(x)[1].to(accumulation_dtype(x.dtype)))

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return candidates, and what forget gates and highway gates are the logistic function of."""
        candidate, forget, highway = self.projection(x).chunk(3, -1)
        if self.gate_bias is None:
            return candidate, forget, highway
        forget_bias, highway_bias = self.gate_bias.to(forget.dtype).chunk(2)
        return candidate, forget + forget_bias, highway + highway_bias


def _after_slice(cell: Tensor, part: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cell after a slice: what it leaves from nothing, and what its forget gates leave of the one before."""
    last, kept = part
    return last + kept.to(last.dtype).exp() * cell


class Recurrent(Mixer):
    """Recurrent layer: an LSTM, GRU or SRU reads position after position, in one direction or in both.

    Equations (σ is the logistic function; W act on x_t, U on h_{t-1}; biases are left out):
        lstm: i, f, o = σ(W x_t + U h_{t-1}),  g = tanh(W_g x_t + U_g h_{t-1})
              c_t = f ⊙ c_{t-1} + i ⊙ g,  h_t = o ⊙ tanh(c_t)
        gru:  r, z = σ(W x_t + U h_{t-1}),  n = tanh(W_n x_t + r ⊙ U_n h_{t-1}),  h_t = (1 - z) ⊙ n + z ⊙ h_{t-1}
        sru:  f, r = σ(W x_t),  c_t = f ⊙ c_{t-1} + (1 - f) ⊙ W_c x_t,  h_t = r ⊙ tanh(c_t) + (1 - r) ⊙ x_t
        causal: y_t = h_t, of width dim
        otherwise: y_t = [h_t; h'_t], each of width dim / 2, where h' reads the sequence from its end

    Order of computation: an SRU is a `lerp_scan` whose gate is 1 - f; only the others go step by step.

    Cost: 8·t·dim² time, one position after the other (gru 6; sru 3, in a scan), t·dim memory; constant state
    Source: Hochreiter & Schmidhuber 1997; Cho et al. 2014 (gru); Lei et al. 2018 (sru), https://arxiv.org/abs/1709.02755
    Deviations: LSTM and GRU are PyTorch's, with their two biases each and their names for the weights. The SRU is the
        paper's first version, whose gates do not see the cell. With two directions, each passes on its own half of x_t,
        as in the authors' code. Masked positions are skipped (`left_aligned`). In half precision LSTM and GRU compute
        in float32: a cell that counts stops early where additions are rounded away.
    Compile: PyTorch's compiler unrolls LSTM and GRU, once for each length; run long sequences in eager mode.

    Args:
        dim: width of the input and the output.
        cell: "lstm", "gru" or "sru".
        causal: whether a position sees only itself and those before it; otherwise there are two directions.
        bias: whether there are biases.

    Raises:
        UserError: when `cell` is unknown, or `dim` is odd without `causal`.
    """

    capabilities = Capabilities(causal=True, streaming=True, looks=True, slices=True)

    def __init__(self, dim: int, *, cell: str = "lstm", causal: bool = False, bias: bool = True) -> None:
        super().__init__(dim, causal=causal)
        check_choice("recurrent cell", cell, CELLS)
        if not causal and dim % 2:
            raise UserError(
                f"recurrent expected an even dim, half for each direction, got dim={dim}; change it or use causal=True."
            )
        self.cell = cell
        self.width = dim if causal else dim // 2
        self.reader = self._build(dim, 0, bias)
        self.reverse_reader = None if causal else self._build(dim, self.width, bias)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if slices.current() is not None:
            return self._read_slice(x, mask)
        if mask is None:
            return self._read_aligned(x, torch.ones_like(x[..., 0], dtype=torch.bool))
        return left_aligned(self._read_aligned, x, mask)

    def operations(self, length: int) -> int:
        # SRU: candidate and two gates of the input; the others have as many products of the previous hidden state.
        products = {"sru": 3 * self.dim, "gru": 3 * (self.dim + self.width), "lstm": 4 * (self.dim + self.width)}
        return 2 * length * self.width * products[self.cell] * (1 if self.causal else 2)

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> RecurrentState:
        zeros = torch.zeros(batch_size, self.width, dtype=accumulation_dtype(dtype), device=device)
        nothing = zeros[:, :0]
        return RecurrentState(nothing if self.cell == "sru" else zeros, nothing if self.cell == "gru" else zeros)

    def advance(self, x: Tensor, mask: Tensor | None, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        if mask is None or slices.current() is not None:
            y, state = self.reader(x, state, mask)
            return y, state
        return left_aligned_step(lambda real, there: self.reader(real, state, there), x, mask)

    def _build(self, dim: int, first: int, bias: bool) -> nn.Module:
        """Return one direction, whose outputs are the columns of y from `first` on."""
        if self.cell == "sru":
            return SimpleRecurrentUnit(dim, self.width, first, bias)
        return SteppedUnit(dim, self.width, 4 if self.cell == "lstm" else 3, bias)

    def _read_aligned(self, x: Tensor, mask: Tensor) -> Tensor:
        """Read rows whose real positions come first: the padding after them cannot affect them."""
        state = self.empty_state(x.shape[0], x.dtype, x.device)
        y: Tensor = self.reader(x, state)[0]
        if self.reverse_reader is None:
            return y
        # Reverse each row's real part before reading and again after it; padding stays at the end.
        t = x.shape[1]
        turned = mask.sum(1, keepdim=True) - 1 - torch.arange(t, device=x.device)
        turned = torch.where(turned < 0, turned + t, turned).unsqueeze(-1)
        reverse = self.reverse_reader(x.gather(1, turned.expand_as(x)), state)[0]
        return torch.cat((y, reverse.gather(1, turned.expand_as(reverse))), -1)

    def _read_slice(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Read slices of rows, whose padding stays where it is: it does not change what an SRU knows."""
        state = self.empty_state(x.shape[0], x.dtype, x.device)
        y: Tensor = self.reader(x, state, mask)[0]
        if self.reverse_reader is None:
            return y
        turned = None if mask is None else mask.flip(1)
        return torch.cat((y, self.reverse_reader(x.flip(1), state, turned, backwards=True)[0].flip(1)), -1)

    @property
    def takes_slices(self) -> bool:
        return self.cell == "sru"

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        """ "kept" of each unit: the product of its forget gates between each position and `at`."""
        places = torch.arange(x.shape[1], device=x.device)
        real = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
        state, left, times = self.empty_state(x.shape[0], x.dtype, x.device), list[Tensor](), list[Tensor]()
        readers: tuple[Any, ...] = (self.reader, self.reverse_reader)
        for number, reader in enumerate(readers):
            if reader is None:
                continue
            # As it reads them: padding last, which changes nothing.
            order = torch.where(real, -places if number else places, len(places)).argsort(dim=1, stable=True)
            read = x.gather(1, order.unsqueeze(2).expand_as(x))
            rates = reader.rates(read, reader(read, state)[0]) * real.gather(1, order).unsqueeze(2)
            rank = None if at is None else (order == at.unsqueeze(1)).int().argmax(1)
            found = decay_weights(rates.mT, real.gather(1, order), rank)
            left.append(torch.zeros_like(found).scatter(2, order.unsqueeze(1).expand_as(found), found))
            decay = time_constants(rates, real)
            assert decay is not None
            times.append(decay)
        return Look({"kept": torch.cat(left, 1)}, time_constants=torch.cat(times))


def naive(mixer: Recurrent, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` from the equations, row by row, direction by direction, position by position."""
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = list(range(x.shape[1])) if mask is None else mask[row].nonzero().squeeze(1).tolist()
        for number, reader in enumerate((mixer.reader, mixer.reverse_reader)):
            if reader is None:
                continue
            hidden = cell = x.new_zeros(mixer.width)
            columns = slice(number * mixer.width, (number + 1) * mixer.width)
            for i in reversed(real) if number else real:
                hidden, cell = _naive_step(reader, x[row, i], hidden, cell, columns)
                y[row, i, columns] = hidden
    return y


def _naive_step(reader: nn.Module, x: Tensor, hidden: Tensor, cell: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    if isinstance(reader, SimpleRecurrentUnit):
        candidate, forget, highway = (reader.projection.weight @ x).chunk(3)
        bias = x.new_zeros(2 * len(cell)) if reader.gate_bias is None else reader.gate_bias
        f, r = (torch.stack((forget, highway)) + bias.view(2, -1)).sigmoid()
        cell = f * cell + (1 - f) * candidate
        return r * cell.tanh() + (1 - r) * x[columns], cell
    weights = dict(reader.named_parameters())
    new = weights["weight_ih_l0"] @ x + weights.get("bias_ih_l0", 0)
    old = weights["weight_hh_l0"] @ hidden + weights.get("bias_hh_l0", 0)
    if len(new) == 4 * len(cell):
        i, f, g, o = (new + old).chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell
    (r_new, z_new, n_new), (r_old, z_old, n_old) = new.chunk(3), old.chunk(3)
    z, n = (z_new + z_old).sigmoid(), (n_new + (r_new + r_old).sigmoid() * n_old).tanh()
    return (1 - z) * n + z * hidden, cell
