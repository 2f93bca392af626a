"""What mixers show of how they read a row: with all options, against recurrences, and checks that find mistakes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from longspan import mixers
from longspan.mixers._looks import Look
from longspan.mixers.base import Capabilities, Mixer
from longspan.mixers.convolution import Convolution
from longspan.mixers.gated_linear import GatedLinear
from longspan.mixers.recurrent import Recurrent, SteppedUnit
from longspan.testing import mixer_checks

#: Forms that the contract's own cases do not build.
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("additive", {"forget": "input"}),
    ("additive", {"interaction": "concat", "scoring": "all-heads", "sharing": "none"}),
    ("additive", {"interaction": "concat", "forget": "fixed"}),
    ("additive", {"interaction": "add", "sharing": "head-wise", "output": "r"}),
    ("additive", {"output": "q"}),
    ("messages", {"forget": "learned", "causal": True}),
    ("competitive_gate", {"forget": "input", "causal": True}),
    ("competitive_lookup", {"forget": "input", "causal": True, "output_projection": False}),
    ("softmax", {"rotary": True}),
    ("softmax", {"alibi": True}),
    ("local", {"alibi": True, "rotary": True}),
    ("relative", {"same_length": True, "clamp": 5, "causal": True}),
    ("linear", {"rotary": True}),
    ("linear", {"forget": "input", "causal": True}),
    ("bounded_memory", {"forget": "input", "causal": True}),
    ("gated_linear", {"gate": "channel"}),
    ("gated_linear", {"decay": "none"}),
    ("recurrent", {"cell": "gru", "bias": False}),
    ("recurrent", {"cell": "sru"}),
    ("longformer", {"global_tokens": 3}),
    ("reformer", {"chunk": 4}),
    ("convolution", {"depthwise": True, "kernel_size": 5}),
]
PROMISES = (
    "looks_give_the_outputs[float64]",
    "looks_give_the_outputs[causal-float64]",
    "looks_at_whole_rows_are_means",
    "looks_continue_a_state[causal-float64]",
)


@pytest.mark.parametrize(("name", "options"), FORMS)
def test_all_forms_keep_the_promises(name: str, options: dict[str, Any]) -> None:
    kept = 0
    for promise, check in mixer_checks(name, options=options):
        if promise.startswith(PROMISES):
            check()
            kept += 1
    assert kept >= 2


def inputs(t: int, dim: int = 8) -> Tensor:
    return torch.randn(1, t, dim, generator=torch.Generator().manual_seed(t), dtype=torch.float64)


@pytest.mark.parametrize("causal", [True, False])
def test_gated_linear_attention_keeps_what_its_gates_leave(causal: bool) -> None:
    mixer = GatedLinear(8, heads=2, causal=causal).double()
    x, at = inputs(9), 4
    gates = (-mixer.forgetting(x, None)[0]).exp()
    left = mixer.look(x, at=at).weights["kept"][0]
    for head, kept in enumerate(left):
        backward = head == 1 and not causal
        for j in range(9):
            # The gates of all positions that are read after j.
            between = range(at, j) if backward else range(j + 1, at + 1)
            seen = j >= at if backward else j <= at
            torch.testing.assert_close(kept[j], gates[list(between), head].prod() if seen else kept[j] * 0)


def test_an_lstm_keeps_what_its_forget_gates_leave() -> None:
    mixer = Recurrent(4, causal=True).double()
    x, reader = inputs(7, 4), mixer.reader
    assert isinstance(reader, SteppedUnit)
    assert reader.bias_ih_l0 is not None
    assert reader.bias_hh_l0 is not None
    left, state, gates = mixer.look(x, at=6).weights["kept"][0], mixer.init_state(1), []
    for i in range(7):
        old = state.hidden
        _, state = mixer.step(x[:, i : i + 1], state)
        sums = x[0, i] @ reader.weight_ih_l0.T + reader.bias_ih_l0 + old[0] @ reader.weight_hh_l0.T + reader.bias_hh_l0
        gates.append(sums[4:8].sigmoid())
    for j in range(7):
        torch.testing.assert_close(left[:, j], torch.stack([torch.ones(4).double(), *gates[j + 1 :]]).prod(0))


def test_a_state_has_the_rest_of_the_weights() -> None:
    """The sums of additive attention after six positions: what these weigh in the whole row, and their means."""
    mixer = mixers.build("additive", 8, heads=2, causal=True, forget="fixed").double()
    x = inputs(9)
    _, state = mixer.step(x[:, :6], mixer.init_state(1))
    found, whole = mixer.look(x[:, 6:], at=1, state=state), mixer.look(x, at=7)
    for name in ("alpha", "beta"):
        own, all_of_it = found.weights[name], whole.weights[name]
        torch.testing.assert_close(own, all_of_it[:, :, 6:])
        torch.testing.assert_close(1 - own.sum(2), all_of_it[:, :, :6].sum(2))
    project: Any = mixer.query
    query = project(x).unflatten(2, (2, 4))
    earlier = torch.einsum("bht,bthe->bhe", whole.weights["alpha"][:, :, :6], query[:, :6])
    torch.testing.assert_close(found.carried["alpha"], earlier)


def test_looks_leave_a_state_as_it_is() -> None:
    mixer = mixers.build("softmax", 8, heads=2, causal=True, rotary=True).double()
    _, state = mixer.step(inputs(4), mixer.init_state(1))
    before = tree_map(torch.clone, state)
    mixer.look(inputs(5), state=state)
    for old, new in zip(tree_leaves(before), tree_leaves(state), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=0)


def test_time_constants_are_those_that_were_built() -> None:
    """Fixed rates: geometric from 2 to 4,096 positions; padding does not count."""
    mixer = mixers.build("additive", 8, heads=4, causal=True, forget="fixed").double()
    mask = torch.arange(9) < torch.tensor([[5], [9]])
    found = mixer.look(inputs(9).expand(2, -1, -1), mask).time_constants
    torch.testing.assert_close(found, 2.0 * 2048.0 ** (torch.arange(4).double() / 3))
    assert mixers.build("additive", 8, heads=4).double().look(inputs(9)).time_constants is None


def test_distances_are_those_of_a_window() -> None:
    mixer = mixers.build("local", 8, heads=2, radius=3).double()
    look = mixer.look(inputs(40))
    assert look.distances is not None
    assert look.reach is not None
    assert (look.distances[:, :3] > 0).all()
    # From a distance of 4 on.
    assert (look.distances[:, 3:] == 0).all()
    assert (look.reach <= 3).all()


def test_distances_of_a_kernel_are_its_norms() -> None:
    mixer = Convolution(8, kernel_size=5)
    with torch.no_grad():
        mixer.kernel.weight.zero_()[:, :, 4] = 1
    look = mixer.look(inputs(9).float())
    assert look.reach is not None
    torch.testing.assert_close(look.distances, torch.tensor([[0.0, 0.0, 1.0]]))
    assert look.reach.tolist() == [2]


def test_weights_of_linear_attention_are_normalised_products_of_features() -> None:
    mixer = mixers.build("linear", 8, heads=2).double()
    x = inputs(11)
    expected = mixer.context_weights(x, context=x)
    torch.testing.assert_close(mixer.look(x).weights["attention"], expected.mean(2))
    torch.testing.assert_close(mixer.look(x, at=3).weights["attention"], expected[:, :, 3])


class Mean(Mixer):
    """Every position receives the mean of all, or of those so far."""

    capabilities = Capabilities(causal=True, looks=True)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        real = torch.ones_like(x[..., :1]) if mask is None else mask.unsqueeze(2).to(x.dtype)
        y = x.cumsum(1) / real.cumsum(1).clamp_min(1)
        return y if self.causal else y[:, -1:].expand_as(x)

    def operations(self, length: int) -> int:
        return 0

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None, state: Any = None) -> Look:
        seen = torch.ones_like(x[..., 0]) if mask is None else mask.to(x.dtype)
        if at is not None and self.causal:
            seen = seen * (torch.arange(x.shape[1]) <= at.unsqueeze(1))
        shares = seen / seen.sum(1, keepdim=True).clamp_min(1)
        return Look(at, {"attention": shares.unsqueeze(1).to(torch.promote_types(x.dtype, torch.float32))})

    def pool_look(self, x: Tensor, mask: Tensor | None, look: Look, at: Tensor) -> Tensor:
        return (look.weights["attention"].to(x.dtype) @ x).squeeze(1)


class Streams(Mean):
    """The same with a state: how many positions there were, and their mean."""

    capabilities = Capabilities(causal=True, streaming=True, looks=True)

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        return torch.zeros(batch_size, 1, dtype=torch.double), torch.zeros(batch_size, self.dim, dtype=torch.double)

    def advance(self, x: Tensor, mask: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        number, mean = state
        real = torch.ones_like(x[..., :1]) if mask is None else mask.unsqueeze(2).to(x.dtype)
        numbers = number.unsqueeze(1) + real.cumsum(1)
        y = ((number * mean).unsqueeze(1) + x.cumsum(1)) / numbers.clamp_min(1)
        return y.to(x.dtype), (numbers[:, -1], y[:, -1])

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None, state: Any = None) -> Look:
        look = super().look_at(x, mask, at)
        if state is None or at is None:
            return look
        seen = torch.ones_like(x[..., 0]) if mask is None else mask.to(x.dtype)
        own = (seen * (torch.arange(x.shape[1]) <= at.unsqueeze(1))).sum(1, keepdim=True)
        share = self.share(own / (own + state[0]).clamp_min(1)).unsqueeze(2)
        carried = ((1 - share.squeeze(2)) * state[1]).unsqueeze(1)
        weights = (look.weights["attention"] * share).to(look.weights["attention"].dtype)
        return replace(look, weights={"attention": weights}, carried={"attention": carried})

    def share(self, own: Tensor) -> Tensor:
        return own

    def pool_look(self, x: Tensor, mask: Tensor | None, look: Look, at: Tensor) -> Tensor:
        y = super().pool_look(x, mask, look, at)
        return (y + look.carried["attention"].squeeze(1)).to(y.dtype) if look.carried else y


class ForgetsItsState(Streams):
    """Weights as if the row began here, and an output that is right all the same."""

    def share(self, own: Tensor) -> Tensor:
        return own.sqrt()


def changed(change: Callable[[Tensor], Tensor]) -> type[Mean]:
    class Changed(Mean):
        def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None, state: Any = None) -> Look:
            look = super().look_at(x, mask, at)
            return replace(look, weights={"attention": change(look.weights["attention"])})

    return Changed


class CountsPadding(Mean):
    """Padding in the normaliser, and with a weight."""

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None, state: Any = None) -> Look:
        return super().look_at(x, None, at)


class LooksAhead(Mean):
    """Weights of the future, which pool to the right output."""

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None, state: Any = None) -> Look:
        look = super().look_at(x, mask, at)
        return replace(look, weights={"attention": look.weights["attention"] + (0.0 if at is None else 1e-3)})


def told(kind: type[Mixer]) -> set[str]:
    """Return the promises about looks that a mixer breaks."""
    broken = set()
    for promise, check in mixer_checks(kind):
        if "look" in promise:
            try:
                check()
            except AssertionError as error:
                broken.add(str(error).partition("But: ")[2].partition("\n")[0])
    return broken


def test_checks_find_mistakes() -> None:
    assert not told(Mean)
    assert not told(Streams)
    assert any("not close" in reason for reason in told(ForgetsItsState))
    assert any("of padding are not zero" in reason for reason in told(CountsPadding))
    assert any("not seen yet" in reason for reason in told(LooksAhead))
    assert any("negative" in reason for reason in told(changed(lambda weights: -weights)))
    assert any("not close" in reason for reason in told(changed(lambda weights: weights * 1.01)))
    assert any("not close" in reason for reason in told(changed(lambda weights: weights.flip(2) * (weights > 0))))
    assert any("are torch.float16" in reason for reason in told(changed(lambda weights: weights.half())))
