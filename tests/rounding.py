"""Largest rounding errors of a correct computation, from its operands: no processor and no library has more.

With u half the distance from 1 to the next number of a type, a sum of n products in any order is off by at most
γ_n Σ|x_i y_i|, γ_n = n u / (1 - n u). So is a number that is rounded n times on its way, times the magnitudes of all
terms (Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1). Magnitudes and references are computed
in float64.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

# An exponential in any library for vectors is right to four units in the last place: eight times half a unit.
EXP = 8


def rounding(roundings: Tensor | int, magnitude: Tensor | float, dtype: torch.dtype) -> Tensor:
    """The error of numbers of a magnitude that were rounded so often, one after the other.

    Results below the smallest normal number may be zero, or have an absolute error.
    """
    each = torch.as_tensor(roundings, dtype=torch.float64) * (torch.finfo(dtype).eps / 2)
    assert (each < 0.5).all(), "so many roundings leave no digit"
    return each / (1 - each) * magnitude + torch.finfo(dtype).tiny


def errors_of_noise(
    function: Callable[[Callable[[Tensor], Tensor]], list[Tensor]], roundings: int, dtype: torch.dtype, draws: int = 8
) -> list[float]:
    """Largest errors of a function whose formula has no simple bound, such as a network or its gradients.

    The function, in float64, hands what it computes with to `rounded`, which moves each number, and each gradient that
    comes back, by up to u at random. `roundings` is how many roundings the longest sum between two of these calls has.
    """
    generator = torch.Generator().manual_seed(0)

    def moved(x: Tensor) -> Tensor:
        return x * (1 + (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1) * torch.finfo(dtype).eps / 2)

    def rounded(x: Tensor) -> Tensor:
        x = moved(x)
        if x.requires_grad:
            x.register_hook(moved)
        return x

    exact = function(lambda x: x)
    errors = [0.0] * len(exact)
    for _ in range(draws):
        for i, (one, other) in enumerate(zip(function(rounded), exact, strict=True)):
            errors[i] = max(errors[i], (one - other).abs().max().item())
    return [roundings * error for error in errors]


def module_errors(module: nn.Module, run: Callable[..., Tensor], roundings: int, dtype: torch.dtype) -> float:
    """Largest errors of `run(module, rounded)`, which hands its inputs, in float64, to `rounded`; weights are, too."""

    def results(rounded: Callable[[Tensor], Tensor]) -> list[Tensor]:
        other = copy.deepcopy(module).double()
        with torch.no_grad():
            for weight in other.parameters():
                weight.copy_(rounded(weight.detach()))
            return [run(other, rounded)]

    return errors_of_noise(results, roundings, dtype)[0]


def assert_within(found: Tensor, exact: Tensor, allowed: Tensor | float) -> None:
    """Compare with a reference in float64."""
    excess = ((found.double() - exact).abs() / allowed).max().item() if found.numel() else 0.0
    assert excess <= 1, f"the error is {excess:.3g} times the largest that rounding explains"
