"""Losses: of classes, and over large vocabularies, exact and without several copies of the scores."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longspan import LongspanForCausalLM
from longspan.models.parts import losses
from longspan.models.parts.losses import Mixed, class_losses, cross_entropies, in_chunks, unknown_labels
from longspan.ops import linear_cross_entropy

VOCABULARY, ROWS, LENGTH = 16000, 2, 64


class Allocations(TorchDispatchMode):
    """Counts the elements of new storages."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self._kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                # Held, so that no later storage takes the same address.
                self._kept.append(storage)
                self.sizes[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return out

    def of_at_least(self, elements: int) -> int:
        return sum(size >= elements for size in self.sizes.values())


def model() -> LongspanForCausalLM:
    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "dim": 8, "heads": 2, "depth": 1, "causal": True}
    return LongspanForCausalLM(LongspanForCausalLM.configured(**shape))


def saved_bytes(run: Callable[[], Any]) -> int:
    """Bytes that autograd keeps for the backward pass, each storage once."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    assert result is not None
    return sum(storages.values())


def test_training_holds_scores_of_a_part_of_the_positions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CHUNK", 16 * VOCABULARY)
    monkeypatch.setattr(linear_cross_entropy, "_LOGITS", 16 * VOCABULARY)
    monkeypatch.setattr(linear_cross_entropy, "_ROWS", 1)
    made, ids = model().train(), torch.randint(1, VOCABULARY, (ROWS, LENGTH))
    all_scores = ROWS * LENGTH * VOCABULARY
    with Allocations() as counted:
        made(ids, labels=ids).loss.backward()
    # The output weights have 8 columns: the largest tensors are the scores of 16 positions.
    assert counted.of_at_least(16 * VOCABULARY + 1) == 0
    assert saved_bytes(lambda: made(ids, labels=ids).loss) < all_scores


def test_evaluation_holds_one_copy_of_the_logits_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CHUNK", 16 * VOCABULARY)
    made, ids = model().eval(), torch.randint(1, VOCABULARY, (ROWS, LENGTH))
    all_scores = ROWS * LENGTH * VOCABULARY
    for kept, copies in ((0, 1), (1, 0)):
        with torch.no_grad(), Allocations() as counted:
            made(ids, labels=ids, logits_to_keep=kept)
        assert counted.of_at_least(all_scores) == copies


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_parts_give_the_same_losses_and_gradients(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(3, 5, 11).to(dtype)
    targets = torch.randint(0, 11, (3, 5))
    targets[1, 2] = -100
    expected = torch.zeros(3, 5, dtype=torch.float64)
    for row in range(3):
        for i in range(5):
            if targets[row, i] >= 0:
                expected[row, i] = -scores[row, i].double().log_softmax(0)[targets[row, i]]
    gradients = []
    for chunk in (1 << 20, 4 * 11, 1):
        monkeypatch.setattr(losses, "CHUNK", chunk)
        leaf = scores.clone().requires_grad_()
        found = in_chunks(cross_entropies, leaf, targets, 11)
        assert found.shape == (3, 5)
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
        (found * torch.arange(15).view(3, 5)).sum().backward()
        gradients.append(leaf.grad)
    assert gradients[0] is not None
    for other in gradients[1:]:
        torch.testing.assert_close(gradients[0], other, rtol=0, atol=0)


def test_nothing_to_predict_costs_nothing() -> None:
    found = in_chunks(cross_entropies, torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), 4)
    assert found.shape == (0,)


@pytest.mark.parametrize("mixing", [False, True])
@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_losses_of_classes_are_smoothed_weighted_and_mixed_in_training(
    smoothing: float, weights: list[float] | None, mixing: bool
) -> None:
    scores = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    first, second, shares = torch.tensor([0, 2, 1, -100]), torch.tensor([1, 2, 0, -100]), torch.rand(4)
    mixed = Mixed(second, shares) if mixing else None

    def expected(smoothing: float, weights: list[float] | None) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for row in range(3):
            for label, share in (
                ((first[row], 1 - shares[row]), (second[row], shares[row]))
                if mixing
                else ((first[row], torch.tensor(1.0)),)
            ):
                target = torch.full((3,), smoothing / 3, dtype=torch.float64)
                target[label] += 1 - smoothing
                loss = -(target * scores[row].log_softmax(0)).sum() * (1 if weights is None else weights[int(label)])
                total = total + share.double() * loss
        return total

    for items, divisor in ((None, 3), (7, 7)):
        found = class_losses(scores, first, items, training=True, smoothing=smoothing, weights=weights, mixed=mixed)
        torch.testing.assert_close(found.minimised, expected(smoothing, weights) / divisor)
        if not smoothing and weights is None:
            assert found.plain is None
        else:
            assert found.plain is not None
            assert not found.plain.requires_grad
            torch.testing.assert_close(found.plain, (expected(0.0, None) / divisor).detach())
        validation = class_losses(scores, first, items, training=False, smoothing=smoothing, weights=weights)
        assert validation.plain is None
    torch.testing.assert_close(
        class_losses(scores, first, None, training=False, weights=weights).minimised,
        torch.nn.functional.cross_entropy(scores, first),
    )


def test_labels_that_are_not_known_have_no_number_that_could_be_one() -> None:
    assert unknown_labels(torch.tensor([[1, 2]])).tolist() == [[-100, -100]]
    assert unknown_labels(torch.tensor([1.5, 2.0])).isnan().all()
