"""Linear-chain conditional random fields: partition function, marginals, best paths, and what is known so far.

A path y of n labels has the score  s(y) = a[y_1] + Σ_t e[t, y_t] + Σ_t A[y_t, y_{t+1}] + z[y_n],  and the probability
exp(s(y)) / Z, where Z is the sum of exp(s) over all paths. Costs grow with n and the square of the number of labels.
Sums are made of logarithms, in at least float32, so that scores may be of any size, and -inf where a label is ruled
out.

Source: Lafferty et al. 2001, "Conditional Random Fields", https://repository.upenn.edu/cis_papers/159. The recursions
are those of Rabiner 1989, "A tutorial on hidden Markov models", https://doi.org/10.1109/5.18626
"""

import itertools
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function

from longspan.ops.pooling import accumulation_dtype


def log_partition(
    scores: Float[Tensor, "r n l"],
    lengths: Int[Tensor, " r"],
    transitions: Float[Tensor, "l l"],
    start: Float[Tensor, " l"],
    end: Float[Tensor, " l"],
) -> Float[Tensor, " r"]:
    """Return log Z of each row, 0 for an empty one.

    Args:
        scores: e; positions from a row's length on do not count.
        lengths: number of labels of each row.
        transitions: A, from the first label to the second.
        start: a.
        end: z.
    """
    kind = accumulation_dtype(scores.dtype)
    parts = (scores, transitions, start, end)
    found: Tensor = _LogPartition.apply(lengths, *(part.to(kind) for part in parts))
    return found


def log_marginals(
    scores: Float[Tensor, "r n l"],
    lengths: Int[Tensor, " r"],
    transitions: Float[Tensor, "l l"],
    start: Float[Tensor, " l"],
    end: Float[Tensor, " l"],
) -> Float[Tensor, "r n l"]:
    """Return the logarithm of the probability of each label at each position, 0 beyond the lengths."""
    kind = accumulation_dtype(scores.dtype)
    scores, transitions, start, end = (part.to(kind) for part in (scores, transitions, start, end))
    before = _forward(scores, lengths, transitions, start)
    after = _backward(scores, lengths, transitions, end)
    joint = before + after
    return _within(joint - joint.logsumexp(-1, keepdim=True), lengths)


def best_path(
    scores: Float[Tensor, "r n l"],
    lengths: Int[Tensor, " r"],
    transitions: Float[Tensor, "l l"],
    start: Float[Tensor, " l"],
    end: Float[Tensor, " l"],
) -> Int[Tensor, "r n"]:
    """Return the labels of the path with the highest score (Viterbi 1967); 0 beyond the lengths."""
    kind = accumulation_dtype(scores.dtype)
    scores, transitions, start, end = (part.detach().to(kind) for part in (scores, transitions, start, end))
    rows, positions, labels = scores.shape
    path = torch.zeros(rows, positions, dtype=torch.long, device=scores.device)
    if not positions:
        return path
    best, came = start + scores[:, 0], []
    own = torch.arange(labels, device=scores.device).expand(rows, labels)
    for t in range(1, positions):
        highest, previous = (best.unsqueeze(2) + transitions).max(1)
        going = (t < lengths).unsqueeze(1)
        best = torch.where(going, highest + scores[:, t], best)
        # Beyond its end a path stays where it was.
        came.append(torch.where(going, previous, own))
    label = (best + end).argmax(1)
    path[:, -1] = label
    for t in range(positions - 2, -1, -1):
        label = came[t].gather(1, label.unsqueeze(1)).squeeze(1)
        path[:, t] = label
    return path * (torch.arange(positions, device=scores.device) < lengths.unsqueeze(1))


def filtered(
    scores: Float[Tensor, "r n l"],
    lengths: Int[Tensor, " r"],
    transitions: Float[Tensor, "l l"],
    start: Float[Tensor, " l"],
    state: Float[Tensor, "r l"] | None = None,
) -> tuple[Float[Tensor, "r n l"], Float[Tensor, "r l"]]:
    """Log-probabilities of each label when the chain has been read up to it, and the state to go on from.

    Args:
        scores, lengths, transitions, start: see `log_partition`.
        state: log-probabilities of the last label so far; None, or NaN in a row, where a chain begins.

    Returns:
        Log-probabilities given the scores up to each position, 0 beyond the lengths, and those of the last label.
    """
    kind = accumulation_dtype(scores.dtype)
    scores, transitions, start = (part.to(kind) for part in (scores, transitions, start))
    if state is None:
        state = scores.new_full((scores.shape[0], scores.shape[2]), torch.nan)
    found = []
    for t in range(scores.shape[1]):
        begins = state.isnan().any(1, keepdim=True)
        now = torch.where(begins, start, _step(state.nan_to_num(0.0, neginf=-torch.inf), transitions)) + scores[:, t]
        now = now.log_softmax(-1)
        state = torch.where((t < lengths).unsqueeze(1), now, state)
        found.append(now)
    return _within(torch.stack(found, 1) if found else scores, lengths), state


class _LogPartition(Function):
    """log Z, whose gradients are the probabilities of labels and of pairs of labels."""

    @staticmethod
    def forward(ctx: Any, lengths: Tensor, scores: Tensor, transitions: Tensor, start: Tensor, end: Tensor) -> Tensor:
        before = _forward(scores, lengths, transitions, start)
        total = scores.new_zeros(len(lengths))
        if scores.shape[1]:
            last = before[:, -1]
            total = torch.where(lengths > 0, (last + end).logsumexp(-1), 0)
        ctx.save_for_backward(lengths, scores, transitions, start, end, before, total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        lengths, scores, transitions, start, end, before, total = ctx.saved_tensors
        if not scores.shape[1]:
            return None, *(torch.zeros_like(each) for each in (scores, transitions, start, end))
        after = _backward(scores, lengths, transitions, end)
        shares = _within((before + after - total[:, None, None]).exp(), lengths) * gradient[:, None, None]
        # A pair: what came before, the transition, and the second label with what comes after it.
        second = scores[:, 1:] + after[:, 1:] - total[:, None, None]
        there = torch.arange(1, scores.shape[1], device=scores.device) < lengths.unsqueeze(1)
        pairs = torch.zeros_like(transitions)
        for t in range(scores.shape[1] - 1):
            joint = before[:, t, :, None] + transitions + second[:, t, None, :]
            pairs += ((gradient * there[:, t])[:, None, None] * joint.exp()).nan_to_num(0.0).sum(0)
        last = (lengths - 1).clamp_min(0)[:, None, None].expand(-1, 1, scores.shape[2])
        return None, shares, pairs, shares[:, 0].sum(0), shares.gather(1, last).squeeze(1).sum(0)


def _forward(scores: Tensor, lengths: Tensor, transitions: Tensor, start: Tensor) -> Tensor:
    """Return the log-sums over the paths up to each label, (r, n, l); beyond the lengths those of the last one."""
    found = []
    for t in range(scores.shape[1]):
        if not t:
            now = start + scores[:, 0]
        else:
            now = torch.where((t < lengths).unsqueeze(1), _step(now, transitions) + scores[:, t], now)
        found.append(now)
    return torch.stack(found, 1) if found else scores


def _backward(scores: Tensor, lengths: Tensor, transitions: Tensor, end: Tensor) -> Tensor:
    """Return the log-sums over what may follow each label, (r, n, l); beyond the lengths those of the last one."""
    now, found = end.expand(scores.shape[0], -1), []
    for t in range(scores.shape[1] - 1, -1, -1):
        found.append(now)
        if t:
            now = torch.where((t < lengths).unsqueeze(1), _step(now + scores[:, t], transitions.T), now)
    return torch.stack(found[::-1], 1) if found else scores


def _step(now: Tensor, transitions: Tensor) -> Tensor:
    return (now.unsqueeze(2) + transitions).logsumexp(1)


def _within(values: Tensor, lengths: Tensor, other: float = 0.0) -> Tensor:
    """Return values (r, n, l) with `other` beyond the lengths."""
    there = torch.arange(values.shape[1], device=values.device) < lengths.unsqueeze(1)
    return values.masked_fill(~there.unsqueeze(-1), other)


def naive_paths(
    scores: Float[Tensor, "n l"],
    transitions: Float[Tensor, "l l"],
    start: Float[Tensor, " l"],
    end: Float[Tensor, " l"],
) -> tuple[Int[Tensor, "p n"], Float[Tensor, " p"]]:
    """Return all paths of one row and their scores, one by one from the formula."""
    positions, labels = scores.shape
    paths = list(itertools.product(range(labels), repeat=positions))
    totals = []
    for path in paths:
        total = start[path[0]] + end[path[-1]] + scores[range(positions), path].sum()
        totals.append(total + sum(transitions[pair] for pair in itertools.pairwise(path)))
    return torch.tensor(paths), torch.stack(totals)
