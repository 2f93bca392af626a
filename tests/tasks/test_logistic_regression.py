"""Logistic regression over fixed features."""

import torch

from longspan.tasks.base.linear import PENALTIES, fit_linear


def examples(seed: int, count: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes whose means differ in two of six features."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=random)
    features = torch.randn(count, 6, generator=random)
    features[:, 0] += labels
    features[:, 1] += (labels == 1) * 2
    return features * 100, labels


def test_the_solution_is_a_stationary_point() -> None:
    features, labels = (each.double() if each.is_floating_point() else each for each in examples(0))
    found = fit_linear(features, labels, features, labels, 3, [0.01])
    # Validation only scales the logits: undone, the gradient is zero.
    size = features.square().sum(1).mean().sqrt()
    factor = 2.0 ** (torch.arange(-6, 9) / 2)
    gradients = []
    for each in factor.tolist():
        weight = (found.weight / each * size).requires_grad_()
        logits = features / size @ weight + found.bias / each
        loss = torch.nn.functional.cross_entropy(logits, labels) + 0.005 * weight.square().sum()
        (gradient,) = torch.autograd.grad(loss, weight)
        gradients.append(float(gradient.abs().max()))
    # L-BFGS stops where a step gains less than 1e-7: g²/2λ with λ = 0.01, where the curvature is smallest.
    assert min(gradients) < 5e-5
    assert max(gradients) > 1e-3


def test_validation_chooses_the_penalty() -> None:
    features, labels = examples(0)
    held_out, truth = examples(1)
    found = fit_linear(features, labels, held_out, truth, 3)
    assert found.penalty in PENALTIES
    # Alone, a penalty is not charged for being weaker than others.
    charge = 0.1 * len(PENALTIES) / len(truth)
    for penalty in (PENALTIES[0], PENALTIES[-1]):
        assert found.loss <= fit_linear(features, labels, held_out, truth, 3, [penalty]).loss + charge
    accuracy = ((held_out @ found.weight + found.bias).argmax(1) == truth).float().mean()
    assert accuracy > 0.75


def test_classes_without_examples_are_never_predicted() -> None:
    features, labels = examples(0)
    found = fit_linear(features, labels, features, labels, 5)
    assert int((features @ found.weight + found.bias).argmax(1).max()) == 2
