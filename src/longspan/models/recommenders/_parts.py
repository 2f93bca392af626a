"""Parts that the published recommenders have in common: additive pooling, convolutions over words."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.ops.dropout import Dropout
from longspan.ops.packing import zero_padding
from longspan.ops.pooling import PrefixMean, empty_prefix, merge, softmax_pool_state, softmax_weights


class Published(nn.Module):
    """A layer that begins as published (Glorot's weights, no biases) and not as those of a `LongspanModel`."""

    def reset_parameters(self) -> None:
        """Reset the weights."""
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)


class Dense(Published, nn.Linear):
    """A linear layer."""


class WordConvolution(Published, nn.Conv1d):
    """A convolution over words."""


class AdditivePooling(nn.Module):
    """Σ_t α_t x_t with α = softmax_t(q·tanh(V x_t + v)), over real positions; zeros without any.

    Where `values` are given, the mean is of them and not of x.

    Args:
        dim: width of x.
        query_dim: width of the query q.
        asked: whether each row comes with a query of its own; otherwise all rows have the same, which is learned.
    """

    def __init__(self, dim: int, query_dim: int, *, asked: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.hidden = Dense(dim, query_dim)
        self.query = None if asked else Dense(query_dim, 1, bias=False)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"],
        query: Float[Tensor, "b q"] | None = None,
        values: Float[Tensor, "b t e"] | None = None,
    ) -> tuple[Float[Tensor, "b e"], Float[Tensor, "b t"]]:
        """Return the means and the weights; `query` is each row's own."""
        x = zero_padding(x, mask)
        values = x if values is None else zero_padding(values, mask)
        weights = softmax_weights(self._logits(x, query), mask)
        return (weights.to(values.dtype).transpose(1, 2) @ values).squeeze(1), weights.squeeze(-1)

    def empty_state(
        self, batch_size: int, dtype: torch.dtype, device: torch.device, width: int | None = None
    ) -> PrefixMean:
        """Return the state of a mean over nothing, of values of a `width`, by default that of x."""
        return empty_prefix(batch_size, 1, self.dim if width is None else width, dtype, device)

    def advance(
        self,
        x: Float[Tensor, "b n d"],
        mask: Bool[Tensor, "b n"],
        state: PrefixMean,
        query: Float[Tensor, "b q"] | None = None,
        values: Float[Tensor, "b n e"] | None = None,
    ) -> tuple[Float[Tensor, "b e"], PrefixMean]:
        """Return the means over `n` more positions and all before, and the state after them."""
        x = zero_padding(x, mask)
        values = x if values is None else zero_padding(values, mask)
        state = merge(state, softmax_pool_state(values, self._logits(x, query), mask))
        return state.mean.squeeze(1).to(values.dtype), state

    def _logits(self, x: Tensor, query: Tensor | None) -> Tensor:
        hidden = torch.tanh(self.hidden(x))
        if self.query is None:
            assert query is not None
            return hidden @ query.unsqueeze(-1)
        logits: Tensor = self.query(hidden)
        return logits


class Convolution(nn.Module):
    """ReLU(W [x_{t-k} ... x_{t+k}] + b) at each word, of words with dropout; zeros lie around a text, and at padding.

    Args:
        dim: width of words.
        filters: width of the output.
        window: number of words that each output sees, 2k + 1.
        dropout: probability with which inputs and outputs are zeroed in training.
    """

    def __init__(self, dim: int, filters: int, window: int, dropout: float) -> None:
        super().__init__()
        self.convolution = WordConvolution(dim, filters, window, padding="same")
        self.dropout = Dropout(dropout)

    def forward(self, words: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"]) -> Float[Tensor, "n t f"]:
        words = zero_padding(self.dropout(words), mask)
        seen = self.convolution(words.transpose(1, 2)).transpose(1, 2).relu()
        return zero_padding(self.dropout(seen), mask)


class Text(nn.Module):
    """A text as one vector: additive pooling over a convolution of its words."""

    def __init__(self, dim: int, *, filters: int, window: int, query_dim: int, dropout: float) -> None:
        super().__init__()
        self.convolution = Convolution(dim, filters, window, dropout)
        self.pooling = AdditivePooling(filters, query_dim)

    def forward(self, words: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"]) -> Float[Tensor, "n f"]:
        pooled: Tensor = self.pooling(self.convolution(words, mask), mask)[0]
        return pooled
