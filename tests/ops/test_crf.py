"""Linear-chain conditional random fields against the sum over all paths."""

import numpy as np
import pytest
import torch
from torch import Tensor

from longspan.ops import crf_numpy
from longspan.ops.crf import best_path, filtered, log_marginals, log_partition, naive_paths

LENGTHS = torch.tensor([4, 1, 0, 3])


def parts(labels: int = 3, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(0)
    shapes = [(len(LENGTHS), 4, labels), (labels, labels), (labels,), (labels,)]
    return tuple((scale * torch.randn(shape, generator=random, dtype=torch.float64)).to(dtype) for shape in shapes)


def test_log_partition_and_marginals_are_those_of_all_paths() -> None:
    scores, *rest = parts()
    total, shares = log_partition(scores, LENGTHS, *rest), log_marginals(scores, LENGTHS, *rest)
    best = best_path(scores, LENGTHS, *rest)
    for row, length in enumerate(LENGTHS.tolist()):
        assert not shares[row, length:].any()
        assert not best[row, length:].any()
        if not length:
            assert total[row] == 0
            continue
        paths, found = naive_paths(scores[row, :length], *rest)
        torch.testing.assert_close(total[row], found.logsumexp(0))
        probabilities = (found - found.logsumexp(0)).exp()
        for t in range(length):
            expected = torch.stack([probabilities[paths[:, t] == label].sum() for label in range(3)])
            torch.testing.assert_close(shares[row, t].exp(), expected)
        torch.testing.assert_close(best[row, :length], paths[found.argmax()])


def test_gradients() -> None:
    inputs = [part.requires_grad_() for part in parts()]
    assert torch.autograd.gradcheck(lambda scores, *rest: log_partition(scores, LENGTHS, *rest), inputs)


def test_labels_that_are_ruled_out_have_no_part() -> None:
    scores, transitions, start, end = parts()
    ruled = scores.clone()
    ruled[0, 1, 1:] = -torch.inf
    ruled[3, 2, 0] = -torch.inf
    ruled.requires_grad_()
    total = log_partition(ruled, LENGTHS, transitions, start, end)
    paths, found = naive_paths(scores[0], transitions, start, end)
    torch.testing.assert_close(total[0], found[paths[:, 1] == 0].logsumexp(0))
    (gradient,) = torch.autograd.grad(total.sum(), ruled)
    assert gradient.isfinite().all()
    assert not gradient[0, 1, 1:].any()


def test_read_in_segments_it_knows_the_same() -> None:
    scores, transitions, start, _ = parts()
    whole, last = filtered(scores, LENGTHS, transitions, start)
    for row, length in enumerate(LENGTHS.tolist()):
        for t in range(length):
            # Without what comes later, the sum over the paths up to here.
            paths, found = naive_paths(scores[row, : t + 1], transitions, start, torch.zeros_like(start))
            expected = torch.stack([found[paths[:, t] == label].logsumexp(0) for label in range(3)]).log_softmax(0)
            torch.testing.assert_close(whole[row, t], expected)
    state, seen = None, []
    for begin, end in ((0, 1), (1, 1), (1, 3), (3, 4)):
        found, state = filtered(
            scores[:, begin:end], (LENGTHS - begin).clamp(0, end - begin), transitions, start, state
        )
        seen.append(found)
    torch.testing.assert_close(torch.cat(seen, 1), whole)
    assert state is not None
    torch.testing.assert_close(state, last, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_any_size(dtype: torch.dtype) -> None:
    inputs = [part.requires_grad_() for part in parts(scale=1e4, dtype=dtype)]
    total = log_partition(inputs[0], LENGTHS, *inputs[1:])
    assert total.dtype == torch.float32
    total.sum().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in inputs)
    assert log_marginals(inputs[0], LENGTHS, *inputs[1:]).exp().isfinite().all()


def test_no_positions() -> None:
    scores, *rest = parts()
    empty = scores[:, :0].requires_grad_()
    total = log_partition(empty, torch.zeros_like(LENGTHS), *rest)
    total.sum().backward()
    assert not total.any()
    assert best_path(empty, torch.zeros_like(LENGTHS), *rest).shape == (4, 0)


def test_marginals_have_the_gradients_of_their_formula() -> None:
    scores, transitions, start, end = (part.requires_grad_() for part in parts())
    given = (scores, LENGTHS, transitions, start)
    assert torch.autograd.gradcheck(log_marginals, (*given, end))
    assert torch.autograd.gradcheck(lambda *each: filtered(*each)[0], given)


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("positions", [0, 1, 4])
def test_numpy_computes_the_same(scale: float, positions: int) -> None:
    scores, *rest = parts(scale=scale, dtype=torch.float32)
    rest[0][0, 2] = -1e4
    lengths = LENGTHS.clamp_max(positions)
    arguments = (scores[:, :positions], lengths, *rest)
    arrays = [each.numpy() for each in arguments]
    # A sum of at most 4 scores and 3 transitions, and logarithms of sums of 3, rounded at each step.
    largest = 7 * float(max(each.abs().max() for each in (scores, *rest)))
    rounding = 16 * largest * float(np.finfo(np.float32).eps)
    found = crf_numpy.log_marginals(*arrays)
    np.testing.assert_allclose(found, log_marginals(*arguments).numpy(), rtol=0, atol=rounding)
    assert (crf_numpy.best_path(*arrays) == best_path(*arguments).numpy()).all()
