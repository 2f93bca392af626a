"""Subject of the checks: a mixer and how to build it, inputs, masks, and when two results agree."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jaxtyping
import torch
from torch import Tensor, nn

from longspan.mixers.base import Mixer
from longspan.ops import blocks

# Float32 sums in another order differ by a few units in the last place; float16 keeps eleven bits, bfloat16 eight.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
CPU = torch.device("cpu")
# Options that keep things small, for mixers that have them.
NARROW: dict[str, Any] = {"radius": 8, "block_size": 4, "memory": 8}


@dataclass(frozen=True)
class Subject:
    """One form of a mixer: its class, how to build it, and the formula written out.

    Attributes:
        kind: the class.
        causal: whether it is the causal form.
        dim: width to build it with.
        options: options to build it with.
        naive: `naive(mixer, x, mask)`, with `context, context_mask` after them for cross attention, if there is one.
        device: where it is built and run.
    """

    kind: type[Mixer]
    causal: bool
    dim: int
    options: Mapping[str, Any] = field(default_factory=dict)
    naive: Callable[..., Tensor] | None = None
    device: torch.device = CPU

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"{self.kind.__name__}{' (causal)' if self.causal else ''}"

    @property
    def option_names(self) -> set[str]:
        """The names of its options."""
        return {p.name for p in inspect.signature(self.kind).parameters.values() if p.kind is p.KEYWORD_ONLY}

    def build(self, dtype: torch.dtype = torch.float32, **more: Any) -> Mixer:
        """Return a new mixer, always with the same weights, and with those options in `more` that it has."""
        more = {option: value for option, value in more.items() if option in self.option_names}
        causal = {"causal": True} if self.causal else {}
        # The same on every device, whose own random numbers are left alone.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return self.kind(self.dim, **{**self.options, **more, **causal}).to(self.device, dtype)

    @property
    def takes_context(self) -> bool:
        """Whether it attends to another sequence, as built."""
        return self.build().takes_context

    @property
    def streams(self) -> bool:
        """Whether it has states."""
        return self.causal and self.kind.capabilities.streaming

    def expected(self, mixer: Mixer, *inputs: Tensor | None) -> Tensor:
        """Result of the formula for the mixer."""
        assert self.naive is not None
        # Of thousands of small operations: what is recorded and checked around each takes longer than they do.
        with torch.no_grad(), without_shape_checks(), self.device:
            return self.naive(mixer, *inputs)

    def inputs(self, b: int, t: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return random inputs, always the same for the same sizes."""
        generator = torch.Generator().manual_seed(1000 * b + t)
        return torch.randn(b, t, self.dim, generator=generator).to(self.device, dtype)

    def full(self, b: int, t: int) -> Tensor:
        """Return a mask (b, t) without padding."""
        return torch.ones(b, t, dtype=torch.bool, device=self.device)

    def mask(self, b: int, t: int, seed: int, hidden: float) -> Tensor:
        """Return a mask (b, t), always the same for the same seed, with that share of padding."""
        return (torch.rand(b, t, generator=torch.Generator().manual_seed(seed)) > hidden).to(self.device)

    def masks(self, rounds: int = 1) -> Iterator[Tensor]:
        """Yield masks with padding on the left, on the right and between, and rows with no or one real position."""
        draw = torch.Generator().manual_seed(0)

        def number(least: int, most: int) -> int:
            return int(torch.randint(least, most + 1, (), generator=draw))

        for _ in range(rounds):
            for kind in ("left", "right", "any", "empty", "one"):
                b, t = number(1, 3), number(1, 70)
                cut, at = torch.randint(0, t + 1, (b, 1), generator=draw), torch.arange(t)
                mask = torch.rand(b, t, generator=draw) > 0.5
                if kind != "any":
                    mask = {"left": at >= cut, "right": at < cut, "one": at == cut}.get(kind, mask)
                if kind == "empty":
                    mask[0] = False
                yield mask.to(self.device)


def random_cuts(t: int, seed: int) -> list[int]:
    """Return the sizes of parts that `t` positions are cut into."""
    draw, sizes = torch.Generator().manual_seed(seed), list[int]()
    while sum(sizes) < t:
        sizes.append(int(torch.randint(1, t - sum(sizes) + 1, (), generator=draw)))
    return sizes


def in_steps(mixer: Mixer, x: Tensor, sizes: list[int], state: Any, mask: Tensor | None = None) -> Tensor:
    """Return the outputs for parts of these sizes, each read with the state after the one before."""
    parts, end = [], sum(sizes)
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
    cuts = zip(x[:, :end].split(sizes, 1), mask[:, :end].split(sizes, 1), strict=True)
    for number, (part, real) in enumerate(cuts):
        # Where nothing is masked, with and without a mask.
        y, state = mixer.step(part, state, None if real.all() and number % 2 else real)
        parts.append(y)
    return torch.cat(parts, 1)


def padded(x: Tensor, left: int, right: int, what: float) -> tuple[Tensor, Tensor]:
    """Return x with positions on either side that hold `what`, and the mask of its own positions."""
    mask = torch.zeros(len(x), left + x.shape[1] + right, dtype=torch.bool, device=x.device)
    mask[:, left : left + x.shape[1]] = True
    return nn.functional.pad(x, (0, 0, left, right), value=what), mask


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> None:
    """Compare within the rounding of `dtype`, by default that of `actual`."""
    tolerance = TOLERANCE[dtype or actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def need(condition: bool | Tensor, otherwise: str) -> None:
    """Raise AssertionError with the message `otherwise` unless the condition holds."""
    if not condition:
        raise AssertionError(otherwise)


def refused(error: type[Exception], word: str, call: Callable[[], Any]) -> None:
    """Raise AssertionError unless `call()` raises such an error with a message that contains the word."""
    try:
        call()
    except error as raised:
        need(word in str(raised), f"the message should mention {word!r}, but says: {raised}")
    else:
        raise AssertionError(f"expected {error.__name__} with {word!r} in its message, but nothing was raised")


def gradient(y: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of the sum of `y` with respect to `x`; zeros where `y` does not depend on it."""
    if not y.requires_grad:
        return torch.zeros_like(x)
    (found,) = torch.autograd.grad(y.sum(), x, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


@contextlib.contextmanager
def without_shape_checks() -> Iterator[None]:
    """Switch off jaxtyping's checks, which a suite may have on: compilers and transforms cannot follow them."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@contextlib.contextmanager
def small_blocks() -> Iterator[None]:
    """Make everything that is computed block by block when large do so for a few hundred numbers."""
    before = blocks.LARGE, blocks.BLOCK
    blocks.LARGE, blocks.BLOCK = 0, 1 << 10
    try:
        yield
    finally:
        blocks.LARGE, blocks.BLOCK = before
