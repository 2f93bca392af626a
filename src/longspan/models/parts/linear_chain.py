"""Linear chains of labels: what may follow what, scores of one part of a model or of two, and losses of paths."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.ops.crf import log_partition

#: The score of labels that may not follow each other.
_NEVER = -1e4
COUNTS_ALONE, NETWORK_ALONE = (1.0, 0.0), (0.0, 1.0)
"""The scales by which one part of a model counts alone, the wide one or the network."""


class LinearChain(nn.Module):
    """The scores of a linear-chain conditional random field: of labels after each other, first, and last.

    Labels that may not follow each other never do: in IOB2, I-X comes after B-X or I-X alone.

    Args:
        names: the labels.
        learned: whether the scores are learned; otherwise those of all that is allowed are 0.
    """

    def __init__(self, names: list[str], *, learned: bool) -> None:
        super().__init__()
        self.names = names
        self.learned = learned
        if learned:
            self.transitions = nn.Parameter(torch.zeros(len(names), len(names)))
            self.start = nn.Parameter(torch.zeros(len(names)))
            self.end = nn.Parameter(torch.zeros(len(names)))

    def forward(
        self, like: Tensor, wide: Float[Tensor, "l l"] | None = None, scales: Float[Tensor, " 2"] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores of transitions (l, l), starts (l,) and ends (l,), in the type and on the device of `like`.

        With the transitions of a wide part, and scales, they are those of both together.
        """
        labels = len(self.names)
        never = torch.tensor([[not follows(a, b) for b in self.names] for a in self.names], device=like.device)
        first = torch.tensor([not follows("O", name) for name in self.names], device=like.device)
        zeros = like.new_zeros(labels)
        transitions, start, end = zeros.expand(labels, labels), zeros, zeros
        if self.learned:
            transitions, start, end = (part.to(like) for part in (self.transitions, self.start, self.end))
        if wide is not None and scales is not None:
            # It has no scores of starts and ends: its features say where a sentence has them.
            own, other = scales.to(like).unbind()
            transitions, start, end = own * wide.to(like) + other * transitions, other * start, other * end
        return transitions.masked_fill(never, _NEVER), start.masked_fill(first, _NEVER), end


def follows(before: str, label: str) -> bool:
    """Say whether `label` may come after `before` in IOB2; any may follow any that are no such labels."""
    return not label.startswith("I-") or before in (label, f"B-{label[2:]}")


def path_losses(
    scores: Float[Tensor, "r n l"],
    gold: Int[Tensor, "r n"],
    lengths: Int[Tensor, " r"],
    transitions: Float[Tensor, "l l"],
    start: Float[Tensor, " l"],
    end: Float[Tensor, " l"],
) -> Float[Tensor, " r"]:
    """Return the negative log-likelihood of labels `gold`, below 0 where unknown; see `longspan.ops.crf`."""
    numbers = torch.arange(scores.shape[-1], device=gold.device)
    # Of a label that is not known, any will do: the sum is over all of them.
    wrong = (gold.unsqueeze(-1) >= 0) & (gold.unsqueeze(-1) != numbers)
    both = torch.cat((scores, scores.masked_fill(wrong, -torch.inf)))
    total = log_partition(both, lengths.repeat(2), transitions, start, end).view(2, -1)
    return total[0] - total[1]
