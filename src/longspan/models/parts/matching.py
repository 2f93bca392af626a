"""Matches of a question's words in a document: term weighting as in BM25, with weights that are learned."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from longspan.ops.counts import present
from longspan.ops.scan import accumulation_dtype
from longspan.ops.segments import segment_sum

#: Saturation of term frequencies and weight of length: BM25's usual k1 and b.
SATURATION, LENGTH = 1.5, 0.75
#: Standard deviations, in parts, of the Gaussians by which a part sees what occurs around it; 0 is the part alone.
SPREADS = (0.0, 2.0, 4.0, 8.0, 14.0, 28.0)
#: The one by which new weights go.
FIRST_SPREAD = 8.0
_REACH = 2
_LARGEST_COMPARISON = 1 << 26


class LexicalMatch(nn.Module):
    """Scores of the parts of a document by the words they share with a question.

    Token j of a question occurs f_jp times in part p, and in P_j of P parts. Part p has the length n_p.

        i_j  = log(1 + (P - P_j + 0.5) / (P_j + 0.5)), 0 if P_j = 0
        m_jp = i_j f_jp (k1 + 1) / (f_jp + k1 (1 - b + b n_p / mean n))
        s_hp = Σ_j g_hj m_jp / Σ_j g_hj i_j                               for each head h
        u_hp = Gaussian means of s_h around p, one for each of SPREADS, standardised over the document's parts

    m is BM25 (Robertson and Zaragoza 2009). The weights g = softplus(table[token] + w·hidden) begin as equal, so a
    new model ranks parts as BM25 does, smoothed over neighbours, and learns which words of a question mean nothing.

    Args:
        vocab_size: number of tokens.
        dim: width of the hidden states of questions.
        heads: number of sets of weights.
    """

    def __init__(self, vocab_size: int, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.table = nn.Parameter(torch.empty(vocab_size, heads))
        self.hidden = nn.Parameter(torch.empty(dim, heads))
        self.bias = nn.Parameter(torch.empty(heads))
        self.output = nn.Parameter(torch.empty(heads, len(SPREADS)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin with equal weights of all tokens, smoothed by FIRST_SPREAD."""
        for parameter in (self.table, self.hidden, self.bias, self.output):
            nn.init.zeros_(parameter)
        with torch.no_grad():
            self.output[:, SPREADS.index(FIRST_SPREAD)] = 1 / self.heads

    @property
    def features(self) -> int:
        """Number of features of each part."""
        return self.heads * len(SPREADS)

    def forward(
        self,
        matches: Float[Tensor, "q p m"],
        rarity: Float[Tensor, "q m"],
        question_ids: Int[Tensor, "q m"],
        question_hidden: Float[Tensor, "q m d"],
        question_mask: Shaped[Tensor, "q m"],
        part_mask: Bool[Tensor, "q p"],
    ) -> tuple[Float[Tensor, "q p f"], Float[Tensor, "q p"]]:
        """Return u and its weighted sum, a logit for each part; `matches` and `rarity` are m and i.

        The mask of questions may hold counts (`ops.counts`), as in `matches`.
        """
        dtype = matches.dtype
        with torch.autocast(matches.device.type, enabled=False):
            weights = self.table.to(dtype)[question_ids] + question_hidden.to(dtype) @ self.hidden.to(dtype)
            weights = nn.functional.softplus(weights + self.bias.to(dtype)) * question_mask.unsqueeze(-1)
            possible = (rarity.unsqueeze(-1) * weights).sum(1, keepdim=True)
            around = _smoothed(matches @ weights / possible.clamp_min(1e-3), part_mask)
            features = _standardised(around, part_mask).flatten(2)
            return features, features @ self.output.to(dtype).flatten()


def matches(
    input_ids: Int[Tensor, "b t"],
    mask: Shaped[Tensor, "b t"],
    part_ids: Int[Tensor, "b t"],
    part_mask: Bool[Tensor, "b p"],
    question_ids: Int[Tensor, "q m"],
    question_mask: Shaped[Tensor, "q m"],
    question_rows: Int[Tensor, " q"],
) -> tuple[Float[Tensor, "q p m"], Float[Tensor, "q m"]]:
    """Return BM25's weight of each token of each question in each part, and how rare tokens are: m and i above.

    `question_rows` says which row of documents each question is about. Masks may hold counts: a token occurs as often
    as it counts.
    """
    count = part_mask.shape[1]
    dtype = accumulation_dtype(torch.get_default_dtype())
    times, mask, question_mask = mask.to(dtype), present(mask), present(question_mask)
    lengths = segment_sum(times.unsqueeze(-1), part_ids, count, mask)
    parts = part_mask.sum(1, keepdim=True).to(dtype)
    usual = lengths.sum((1, 2)).view(-1, 1, 1) / parts.clamp_min(1).unsqueeze(-1)
    long = (1 - LENGTH + LENGTH * lengths / usual.clamp_min(1e-6))[question_rows]
    # As many questions at a time as a comparison of all their tokens with all those of a document has room for.
    at_once = max(1, _LARGEST_COMPARISON // max(1, input_ids.shape[1] * question_ids.shape[1]))
    found = []
    for first in range(0, len(question_ids), at_once):
        rows = question_rows[first : first + at_once]
        same = input_ids[rows].unsqueeze(-1) == question_ids[first : first + at_once].unsqueeze(1)
        found.append(segment_sum(same * times[rows].unsqueeze(-1), part_ids[rows], count, mask[rows]))
    often = torch.cat(found) if found else lengths.new_zeros(0, count, question_ids.shape[1])
    often = often * question_mask.unsqueeze(1)
    having = (often > 0).sum(1).to(dtype)
    rarity = ((parts[question_rows] - having + 0.5) / (having + 0.5)).log1p() * (having > 0)
    weights = often * (SATURATION + 1) / (often + SATURATION * long)
    return weights * rarity.unsqueeze(1), rarity


def _smoothed(scores: Tensor, part_mask: Tensor) -> Tensor:
    """Return Gaussian means of `scores` (q, p, h) around each part, (q, p, h, s), 0 being beyond either end."""
    q, p, h = scores.shape
    reach = int(_REACH * max(SPREADS))
    distance = torch.arange(-reach, reach + 1, device=scores.device, dtype=scores.dtype)
    spreads = scores.new_tensor(SPREADS).clamp_min(1e-2).unsqueeze(1)
    kernels = (-0.5 * (distance / spreads).square()).exp()
    kernels = (kernels / kernels.sum(1, keepdim=True)).unsqueeze(1)
    rows = scores.masked_fill(~part_mask.unsqueeze(-1), 0).transpose(1, 2).reshape(q * h, 1, p)
    return nn.functional.conv1d(rows, kernels, padding=reach).view(q, h, len(SPREADS), p).permute(0, 3, 1, 2)


def _standardised(scores: Tensor, part_mask: Tensor) -> Tensor:
    """Return `scores` (q, p, h, s) with mean 0 and variance 1 over the real parts of each row."""
    real = part_mask[..., None, None]
    count = real.sum(1, keepdim=True).clamp_min(1)
    centred = (scores - (scores * real).sum(1, keepdim=True) / count) * real
    spread = (centred.square().sum(1, keepdim=True) / count + 1e-8).sqrt()
    return centred / spread
