"""BigBird: blocks that see their neighbours, two global blocks and a few random ones."""

from typing import TypeVar

import torch
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers.base import Capabilities
from longspan.mixers.looks import Pairwise, left_aligned_values
from longspan.ops.attention import attention
from longspan.ops.chunks import in_chunks, whole
from longspan.ops.execution import exporting
from longspan.ops.heads import head_width, merge_heads, split_heads
from longspan.ops.packing import left_aligned
from longspan.ops.window import block_attention

Number = TypeVar("Number", int, Tensor)


class Bigbird(Pairwise):
    """BigBird's attention: each block of positions sees its neighbours, the first and last block and random ones.

    Equations:
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t, split into heads of width e = dim / heads
        y_t = W_o concat_h( Σ_j softmax_j(q_t·k_j / √e) v_j ) over the j of the blocks that the block of t sees:
        block i of 0..n sees 0, n, i - 1, i, i + 1 and `random_blocks` others; blocks 0 and n see all

    Cost: t·2·(7 + random_blocks)·block_size·dim + 4·t·dim² time, t·dim memory
    Source: Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", https://arxiv.org/abs/2007.14062
    Deviations: each head's random blocks follow from `seed`, the block's number and the number of blocks, in training
        and in evaluation. In evaluation, transformers has no random blocks but counts block 0 again. No block counts
        twice. The last block is the last with a real position. Real positions are numbered from the row's start, so
        that padding shifts no block. A row without real positions gives zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        block_size: positions per block.
        random_blocks: number of random blocks that a block sees besides the others.
        seed: seed of the random blocks.
        bias: whether the four projections have biases.

    Raises:
        UserError: when `heads` does not divide `dim`, `block_size` is not positive or `random_blocks` is negative.
    """

    capabilities = Capabilities(looks=True)

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        block_size: int = 64,
        random_blocks: int = 3,
        seed: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__(dim)
        head_width("bigbird", dim, heads)
        if block_size < 1:
            raise UserError(f"bigbird expected a block_size of at least 1, got {block_size}; 64 is usual.")
        if random_blocks < 0:
            raise UserError(f"bigbird expected at least 0 random_blocks, got {random_blocks}; 3 is usual.")
        self.heads = heads
        self.block_size = block_size
        self.random_blocks = random_blocks
        self.seed = seed
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self._mix_aligned(x, None) if mask is None else left_aligned(self._mix_aligned, x, mask)

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
        return left_aligned_values(self._gather_aligned, x, mask, values)

    def operations(self, length: int) -> int:
        size = self.block_size
        blocks, seen = -(-length // size), 5 + self.random_blocks
        pairs = length**2
        if blocks > 4 + self.random_blocks:
            # Most blocks see a few others; the first and the last see all.
            pairs = blocks * size * size * (seen + 2)
        return 8 * length * self.dim**2 + 4 * pairs * self.dim

    def random_layout(self, blocks: Tensor, largest: int) -> Tensor:
        """Return the random blocks that each head's blocks 0 to `largest` - 1 see, (b, heads, largest, random_blocks).

        `blocks` (b,) is the number of blocks of each document. Where it has too few to choose from there is a -1.
        """
        heads = torch.arange(self.heads, device=blocks.device).view(-1, 1)
        number = torch.arange(largest, device=blocks.device)
        bits = _scramble(_scramble(_scramble(self.seed % 2**32) + heads) + number)
        # To choose from: 1 to i - 2 and i + 2 to n - 1.
        before, after = (number - 2).clamp(min=0), (blocks.view(-1, 1, 1) - 3 - number).clamp(min=0)
        chosen: list[Tensor] = []
        for i in range(self.random_blocks):
            # Floyd's sampling without replacement: a number drawn again is replaced by the newest candidate.
            new = before + after - self.random_blocks + i
            draw = _scramble(bits + i) % (new.clamp(min=0) + 1)
            again = torch.zeros_like(draw, dtype=torch.bool)
            for earlier in chosen:
                again = again | (draw == earlier)
            chosen.append(torch.where(new < 0, -1, torch.where(again, new, draw)))
        if not chosen:
            return number.new_zeros(blocks.shape[0], self.heads, largest, 0)
        drawn = torch.stack(chosen, -1)
        before, number = before.unsqueeze(-1), number.unsqueeze(-1)
        placed = torch.where(drawn < before, drawn + 1, drawn - before + number + 2)
        return torch.where(drawn < 0, -1, placed)

    def _mix_aligned(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the output for rows whose real positions come first."""
        y: Tensor = self.output(merge_heads(self._gather_aligned(x, mask, split_heads(self.value(x), self.heads))))
        return y

    def _gather_aligned(self, x: Tensor, mask: Tensor | None, value: Tensor) -> Tensor:
        query, key = (split_heads(projection(x), self.heads) for projection in (self.query, self.key))
        size, t = self.block_size, x.shape[1]
        n = -(-t // size)
        if not exporting() and n <= 4 + self.random_blocks:
            # Every block sees every other.
            return attention(query, key, value, mask)
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        query, key, value = (in_chunks(heads, 2, size) for heads in (query, key, value))
        return whole(self._sparse(query, key, value, in_chunks(real, 1, size)), 2, t)

    def _sparse(self, query: Tensor, key: Tensor, value: Tensor, in_block: Tensor) -> Tensor:
        """Outputs of the positions of blocks (b, h, n, block_size, e), from the blocks that they see.

        `in_block` (b, n, block_size) is True at real positions.
        """
        b, h, n, size, _ = query.shape
        last = (in_block.any(-1).sum(1) - 1).clamp(min=0)
        out = block_attention(query, key, value, self._visible_blocks(last, n), in_block)
        at_end = last.view(b, 1, 1, 1, 1).expand(-1, h, 1, size, query.shape[4])
        ends = torch.cat((query[:, :, :1], query.gather(2, at_end)), 3)
        number = torch.arange(n, device=last.device)
        whole = block_attention(ends, key, value, number.expand(b, h, 1, -1), in_block)
        first_out, last_out = whole.chunk(2, 3)
        number = number.view(n, 1, 1)
        out = torch.where(number == last.view(b, 1, 1, 1, 1), last_out, out)
        return torch.where(number == 0, first_out, out)

    def _visible_blocks(self, last: Tensor, n: int) -> Tensor:
        """Return the numbers of the blocks that each block sees, (b, heads, n, 5 + random_blocks), and -1 for none."""
        last, number = last.view(-1, 1, 1), torch.arange(n, device=last.device)
        near = torch.stack([number - 1, number, number + 1], -1).expand(last.shape[0], -1, -1)
        near = torch.where((near > 0) & (near < last), near, -1)
        ends = torch.cat((torch.zeros_like(last), torch.where(last > 0, last, -1)), -1).expand(-1, n, -1)
        fixed = torch.cat((ends, near), -1).unsqueeze(1).expand(-1, self.heads, -1, -1)
        return torch.cat((fixed, self.random_layout(last.flatten() + 1, n)), -1)


def _scramble(number: Number) -> Number:
    """Return 32 bits that look random, always the same for the same number."""
    for _ in range(2):
        number = ((number ^ (number >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return number ^ (number >> 16)


def naive(mixer: Bigbird, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` from the equations, row by row, head by head and block by block."""
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = torch.arange(x.shape[1]) if mask is None else mask[row].nonzero().flatten()
        if len(real):
            y[row, real] = _naive_row(mixer, x[row, real])
    return y


def _naive_row(mixer: Bigbird, x: Tensor) -> Tensor:
    """Compute one document (t, d)."""
    blocks = torch.arange(len(x)).split(mixer.block_size)
    n = len(blocks) - 1
    heads = []
    for head in range(mixer.heads):
        query, key, value = (
            projection(x).chunk(mixer.heads, 1)[head] for projection in (mixer.query, mixer.key, mixer.value)
        )
        out = torch.zeros_like(query)
        for i, block in enumerate(blocks):
            numbers = {0, n, i - 1, i, i + 1, *_naive_draw(mixer, head, i, n)} if 0 < i < n else set(range(n + 1))
            seen = torch.cat([blocks[j] for j in sorted(numbers) if 0 <= j <= n])
            scores = query[block] @ key[seen].T / query.shape[1] ** 0.5
            out[block] = scores.softmax(1) @ value[seen]
        heads.append(out)
    y: Tensor = mixer.output(torch.cat(heads, 1))
    return y


def _naive_draw(mixer: Bigbird, head: int, i: int, n: int) -> list[int]:
    """Draw the random blocks of block i of 0..n: Floyd's sample from those that it would not otherwise see."""

    def hashed(number: int) -> int:
        for _ in range(2):
            number = (number ^ (number >> 16)) * 0x45D9F3B % 2**32
        return number ^ (number >> 16)

    others = [j for j in range(1, n) if abs(j - i) > 1]
    places: list[int] = []
    bits = hashed(hashed(hashed(mixer.seed % 2**32) + head) + i)
    for draw in range(mixer.random_blocks):
        newest = len(others) - mixer.random_blocks + draw
        if newest >= 0:
            place = hashed(bits + draw) % (newest + 1)
            places.append(newest if place in places else place)
    return [others[place] for place in places]
