"""Multinomial logistic regression over the n-grams of documents: `Regression`."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.tasks.document_classification.bags import Bags


@dataclass(frozen=True)
class Linear:
    """A linear model: weights `(size, c)` float32, and bias `(c,)`."""

    weights: np.ndarray
    bias: np.ndarray

    def logits(self, documents: Bags) -> Tensor:
        """Return the logits of documents, `(n, c)` float32."""
        return torch.from_numpy(documents.sums(self.weights) + self.bias.astype(np.float32))


class Regression:
    """A logistic regression over the n-grams of training documents, from strong penalties to weak ones.

    Args:
        documents: The bags of training documents.
        labels: `(n,)` their class numbers.
        class_weights: `(c,)` what multiplies the loss of documents of each class.
        ratio: `(size, c)` float32 what the weights are multiples of.
    """

    def __init__(self, documents: Bags, labels: np.ndarray, class_weights: np.ndarray, ratio: np.ndarray) -> None:
        self.documents, self.labels = documents, torch.from_numpy(labels)
        self.truth = np.eye(len(class_weights))[labels]
        self.importance = class_weights[labels]
        self.ratio = ratio
        self._found = torch.zeros(ratio.size + len(class_weights))

    def solve(self, penalty: float, steps: int) -> Linear:
        """Return the solution for the penalty λ after so many steps at most, starting from the one before."""
        found = self._found.requires_grad_()
        optimizer = torch.optim.LBFGS(
            [found],
            max_iter=steps,
            history_size=8,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-5,
            tolerance_change=1e-9 * len(self.labels),
        )

        def loss() -> Tensor:
            model = self._linear()
            logits = model.logits(self.documents).double()
            losses = cross_entropy(logits, self.labels, reduction="none").numpy()
            weights = found.detach()[: self.ratio.size]
            slopes = (logits.softmax(-1).numpy() - self.truth) * self.importance[:, None]
            inner = (self.documents.totals(slopes) * self.ratio).ravel() + penalty * weights.numpy()
            found.grad = torch.from_numpy(np.concatenate([inner, slopes.sum(0)])).float()
            return torch.tensor(losses @ self.importance) + penalty / 2 * weights.double().square().sum()

        optimizer.step(loss)
        self._found = found.detach()
        return self._linear()

    def _linear(self) -> Linear:
        values, size = self._found.detach().numpy(), self.ratio.size
        return Linear(values[:size].reshape(self.ratio.shape) * self.ratio, values[size:])
