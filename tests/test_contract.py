"""The contract every mixer keeps. A new mixer is found by name and runs through all of it."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.base import Capabilities, ContextState, Mixer
from longspan.testing import check_mixer, mixer_checks

#: Checks that take seconds.
SLOW = ("agrees", "gradients", "compiles", "exports", "adapters", "quantised", "offloaded", "many_positions")
#: Of these `make test-fast` runs what does not take long: a sum over all, attention, a window and a matrix as a state.
FEW = ("additive", "softmax", "local", "delta")


def cases() -> list[object]:
    found: list[object] = []
    for name in mixers.names():
        for case, check in mixer_checks(name):
            fast = name in FEW and not case.startswith((*SLOW, "looks", "programs"))
            found.append(pytest.param(check, id=f"{name}-{case}", marks=[] if fast else pytest.mark.slow))
    if torch.cuda.is_available():
        found += [
            pytest.param(check, id=f"cuda-{name}-{case}")
            for name in mixers.names()
            for case, check in mixer_checks(name, device="cuda")
        ]
    return found


@pytest.mark.parametrize("check", cases())
def test_every_mixer_keeps_the_contract(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["gru", "sru"])
@pytest.mark.parametrize("promise", ["streaming_in_any_cuts", "adapters", "operations", "forward_mode"])
def test_so_do_other_cells(cell: str, promise: str) -> None:
    for name, check in mixer_checks(cell):
        if promise in name:
            check()


def forgetting_cases() -> list[object]:
    forgetting = [name for name in mixers.names() if "forget" in mixers.options(name)]
    return [
        pytest.param(check, id=f"{name}-{case}")
        for name in forgetting
        for case, check in mixer_checks(name, options={"causal": True, "forget": "input"})
        # One mixer stands for all; `tests/mixers/test_forgetting.py` has the others' naive forms, and gradients.
        if name == "linear" or not case.startswith(SLOW)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("check", forgetting_cases())
def test_so_do_mixers_that_forget(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("name", mixers.names())
def test_every_mixer_describes_itself(name: str) -> None:
    description = mixers.describe(name)
    assert description.summary.endswith(".")
    assert description.cost
    assert "http" in description.source
    assert "Equations" in description.docstring


@pytest.mark.parametrize("name", mixers.names())
def test_unknown_options_are_errors_with_the_nearest_name(name: str) -> None:
    option = next(iter(mixers.options(name)))
    with pytest.raises(UserError, match=f"did you mean '{option}'"):
        mixers.build(name, 16, **{option + "x": 1})


class RunningMean(Mixer):
    """A mixer outside the package: a projection of the mean of all positions, or of those so far."""

    capabilities = Capabilities(causal=True, streaming=True)

    def __init__(self, dim: int, *, causal: bool = False) -> None:
        super().__init__(dim, causal=causal)
        self.project = torch.nn.Linear(dim, dim)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.causal:
            return self.advance(x, mask, self.init_state(x.shape[0], x.dtype, x.device))[0]
        total, count = self.sums(x, mask)
        return self.project((total[:, -1:] / count[:, -1:].clamp_min(1)).to(x.dtype)).expand_as(x)

    def operations(self, length: int) -> int:
        return 2 * (length if self.causal else 1) * self.dim**2

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(dtype, torch.float32)
        count = torch.zeros(batch_size, 1, dtype=exact, device=device)
        return count.expand(-1, self.dim).clone(), count

    def advance(
        self, x: Tensor, mask: Tensor | None, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        total, count = (before.unsqueeze(1) + new for before, new in zip(state, self.sums(x, mask), strict=True))
        y = self.project((total / count.clamp_min(1)).to(x.dtype))
        return y, (total[:, -1].clone(), count[:, -1].clone())

    def sums(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(x.dtype, torch.float32)
        real = torch.ones_like(x[..., :1], dtype=exact) if mask is None else mask.unsqueeze(-1).to(exact)
        return x.to(exact).cumsum(1), real.cumsum(1)


def running_means(mixer: RunningMean, x: Tensor, mask: Tensor | None) -> Tensor:
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = list(range(x.shape[1])) if mask is None else mask[row].nonzero().flatten().tolist()
        for number, i in enumerate(real):
            y[row, i] = mixer.project(x[row, real[: number + 1] if mixer.causal else real].mean(0))
    return y


@pytest.mark.slow
def test_a_mixer_from_outside_the_package_passes() -> None:
    check_mixer(RunningMean, naive=running_means)


@pytest.mark.slow
def test_the_mixer_of_the_docs_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[1] / "docs" / "adding-a-mechanism.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "mean_of_the_docs.py").write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("mean_of_the_docs")
    check_mixer(module.Mean, naive=module.naive)


class CountsPadding(RunningMean):
    """Padding left in the normaliser."""

    def sums(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().sums(x, None)


class Remembers(RunningMean):
    """What a stream leaves behind is seen by the next."""

    left: Tensor | None = None

    def advance(
        self, x: Tensor, mask: Tensor | None, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if self.left is not None and self.left.shape == state[0].shape:
            state = (state[0] + self.left, state[1])
        y, after = super().advance(x, mask, state)
        self.left = after[0].detach()
        return y, after


class LooksAhead(RunningMean):
    """A causal form that reads the future."""

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        total, count = self.sums(x, mask)
        return self.project((total[:, -1:] / count[:, -1:].clamp_min(1)).to(x.dtype)).expand_as(x)


class Widens(RunningMean):
    """Float32 whatever comes in."""

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return super().mix(x, mask).float()


class ReadsWeights(RunningMean):
    """A folded product that takes the weight of whatever its projection has become."""

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.causal:
            return super().mix(x, mask)
        total, count = self.sums(x, mask)
        mean = (total[:, -1:] / count[:, -1:].clamp_min(1)).to(x.dtype)
        return torch.nn.functional.linear(mean, self.project.weight, self.project.bias).expand_as(x)


class Cheap(RunningMean):
    """Costs more than it says."""

    def operations(self, length: int) -> int:
        return super().operations(length) // 2


class Vast(RunningMean):
    """Says that its state is smaller than it is."""

    def state_size(self, positions: int) -> int:
        return self.dim


class Tells(RunningMean):
    """Each position is told the mean of a context, and the sum of x so far."""

    capabilities = Capabilities(causal=True, streaming=True, context=True)

    def mix_context(self, x: Tensor, mask: Tensor | None, context: Tensor, context_mask: Tensor | None) -> Tensor:
        if self.causal:
            return super().mix_context(x, mask, context, context_mask)
        return self.project(x) + self.read_context(context, context_mask).context.unsqueeze(1)

    def read_context(self, context: Tensor, context_mask: Tensor | None) -> ContextState:
        total, count = self.sums(context, context_mask)
        mean = (total[:, -1] / count[:, -1].clamp_min(1)).to(context.dtype)
        exact = torch.promote_types(context.dtype, torch.float32)
        return ContextState(mean, torch.zeros_like(mean, dtype=exact))

    def advance_context(self, x: Tensor, mask: Tensor | None, state: ContextState) -> tuple[Tensor, ContextState]:
        seen = x.to(state.prefix.dtype).cumsum(1) + state.prefix.unsqueeze(1)
        return self.project(seen.to(x.dtype)) + state.context.unsqueeze(1), state._replace(prefix=seen[:, -1].clone())

    def reset(self, state: Any, rows: Tensor) -> Any:
        if isinstance(state, ContextState):
            return state._replace(prefix=state.prefix.masked_fill(rows.unsqueeze(1), 0))
        return super().reset(state, rows)

    def context_operations(self, length: int, context_length: int) -> int:
        return 2 * length * self.dim**2


def told(
    mixer: Tells, x: Tensor, mask: Tensor | None, context: Tensor | None = None, context_mask: Tensor | None = None
) -> Tensor:
    if context is None:
        return running_means(mixer, x, mask)
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        known = context[row] if context_mask is None else context[row, context_mask[row]]
        for i in range(x.shape[1]) if mask is None else mask[row].nonzero().flatten().tolist():
            seen = x[row, : i + 1] if mask is None else x[row, : i + 1][mask[row, : i + 1]]
            if len(known):
                y[row, i] = mixer.project(seen.sum(0) if mixer.causal else x[row, i]) + known.mean(0)
    return y


@pytest.mark.slow
def test_one_from_outside_that_takes_a_context_passes() -> None:
    check_mixer(Tells, naive=told)


class CountsPaddingOfContexts(Tells):
    def read_context(self, context: Tensor, context_mask: Tensor | None) -> ContextState:
        return super().read_context(context, None)


class KnowsTheEnd(Tells):
    def advance_context(self, x: Tensor, mask: Tensor | None, state: ContextState) -> tuple[Tensor, ContextState]:
        y, after = super().advance_context(x, mask, state)
        return y + after.prefix.unsqueeze(1).to(y.dtype), after


class ForgetsContexts(Tells):
    def reset(self, state: Any, rows: Tensor) -> Any:
        if isinstance(state, ContextState):
            state = state._replace(context=state.context.masked_fill(rows.unsqueeze(1), 0))
        return super().reset(state, rows)


class UsesUpContexts(Tells):
    def advance_context(self, x: Tensor, mask: Tensor | None, state: ContextState) -> tuple[Tensor, ContextState]:
        y, after = super().advance_context(x, mask, state)
        return y, after._replace(context=after.context / 2)


class CheapContexts(Tells):
    def context_operations(self, length: int, context_length: int) -> int:
        return super().context_operations(length, context_length) // 2


class CutsContextsOff(Tells):
    def read_context(self, context: Tensor, context_mask: Tensor | None) -> ContextState:
        return super().read_context(context.detach(), context_mask)


@pytest.mark.parametrize(
    ("broken", "told_of"),
    [
        (CountsPaddingOfContexts, "Padding of a context changes nothing"),
        (KnowsTheEnd, "outputs and their gradients depend on nothing of x that comes later"),
        (ForgetsContexts, "`reset` lets some rows start over with the context that they have"),
        (UsesUpContexts, "A state with a context is tensors, batch first, which steps do not change"),
        (CheapContexts, "Cross attention takes the claimed `context_operations`"),
        (CutsContextsOff, "Gradients of cross attention are right"),
    ],
)
def test_a_broken_context_is_told_what_it_breaks(broken: type[Mixer], told_of: str) -> None:
    others = []
    for name, check in mixer_checks(broken, naive=told, options={"causal": True}):
        if "context" not in name and "cross" not in name:
            continue
        try:
            check()
        except AssertionError as error:
            if told_of in str(error):
                return
            others.append(str(error))
    pytest.fail(f"it was told of other promises alone: {others}")


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (CountsPadding, "CountsPadding breaks a promise. Padding on either side changes nothing"),
        (
            Remembers,
            "Remembers (causal) breaks a promise. Read whole, in any cuts or token by token",
        ),
        (LooksAhead, "LooksAhead (causal) breaks a promise. A causal mixer's outputs, and their gradients, depend on"),
        (Widens, "breaks a promise. Results keep the type of x and are as accurate as it allows"),
        (ReadsWeights, "ReadsWeights breaks a promise. LoRA on each nn.Linear reaches the result"),
        (Cheap, "Cheap breaks a promise. A forward pass takes the claimed `operations`"),
        (Vast, "Vast (causal) breaks a promise. A row's state holds `state_size` numbers"),
    ],
)
def test_a_broken_one_is_told_what_it_breaks(broken: type[Mixer], told: str) -> None:
    others = []
    for name, check in mixer_checks(broken, naive=running_means):
        # Slow, and nothing that any of them breaks.
        if "compiles" in name or "many_positions" in name:
            continue
        try:
            check()
        except AssertionError as error:
            if told in str(error):
                return
            others.append(str(error))
    pytest.fail(f"it was told of other promises alone: {others}")


def test_what_is_no_mixer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"derived from longspan\.mixers\.Mixer"):
        check_mixer(torch.nn.Linear)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="expected a device that PyTorch can use here, got cuda:99"):
        check_mixer(RunningMean, device="cuda:99")


class Twice(torch.autograd.Function):
    """2 x, whose derivative forwards is missing."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Tensor:
        return 2 * grad[0]


class TwiceAtFault(Twice):
    """The same, whose derivative forwards has a fault."""

    @staticmethod
    def jvp(ctx: Any, *along: Tensor) -> Tensor:
        raise RuntimeError("shapes do not fit")


@pytest.mark.parametrize("function", [Twice, TwiceAtFault])
def test_forward_mode_is_refused_by_pytorch_alone(function: type[torch.autograd.Function]) -> None:
    """Known failure: any RuntimeError counted as a refusal."""

    class Doubling(RunningMean):
        def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
            return super().mix(function.apply(x), mask)

    (check,) = [check for name, check in mixer_checks(Doubling) if name == "forward_mode_is_right_or_refused"]
    if function is Twice:
        check()
    else:
        with pytest.raises((RuntimeError, AssertionError), match="shapes do not fit"):
            check()
