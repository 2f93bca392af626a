"""Multinomial logistic regression over fixed features: `fit_linear`, and `FeatureCounts` for parts of models."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import torch
from datasets.utils import tqdm
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from longspan.data.batches.encoding import lengths
from longspan.models.parts.losses import IGNORED
from longspan.models.wide.linear import LinearPart
from longspan.results.scores import S
from longspan.tasks.base.classes import ClassificationScores, calibrated_loss, classification_scores
from longspan.tasks.base.task import Counted, Counts, Fitted, Prepared, Recipe, check_validation
from longspan.training.lengths import Collator, scoring_batches, targets

#: Penalties that validation chooses from, the strongest first, as shares of the mean square of an example's features.
PENALTIES = tuple(10.0 ** (-exponent / 2) for exponent in range(2, 15))
#: Nats that a weaker penalty has to gain on all held-out examples: where these are few, confidence may be chance.
_STEP = 0.1
#: Examples whose features are computed at once, and their positions, padding included.
_ROWS, _POSITIONS = 64, 2**17
#: Weaker penalties that may be worse before the search ends.
_PATIENCE = 2


@dataclass(frozen=True)
class LinearFit:
    """A fitted model, the best on validation data.

    Attributes:
        weight: `(f, c)`.
        bias: `(c,)`.
        penalty: The chosen one of `PENALTIES`.
        loss: Cross-entropy on the validation data, with what a weaker penalty and a factor have to gain.
    """

    weight: Tensor
    bias: Tensor
    penalty: float
    loss: float


def fit_linear(
    features: Float[Tensor, "n f"],
    labels: Int[Tensor, " n"],
    held_out: Float[Tensor, "m f"],
    truth: Int[Tensor, " m"],
    classes: int,
    penalties: Sequence[float] = PENALTIES,
) -> LinearFit:
    """Fit weights to training data for each penalty, and return those with the lowest cross-entropy on held-out data.

    The problem is convex, so nothing depends on a seed: mean cross-entropy + λ/2 |W|², solved by L-BFGS. Each penalty
    starts at the solution of the one before.

    Args:
        features: Those of training examples, of similar scale.
        labels: Their classes.
        held_out: Features of validation examples.
        truth: Their classes.
        classes: Number of classes.
        penalties: Choices, the strongest first.
    """
    size = float(features.double().square().sum(1).mean().clamp_min(1e-12))
    # In units of the features' size, steps of the solver and penalties fit all data alike.
    scaled = features / size**0.5
    weight = features.new_zeros(features.shape[1], classes, requires_grad=True)
    bias = features.new_zeros(classes, requires_grad=True)
    best: LinearFit | None = None
    worse = 0
    for number, penalty in enumerate(penalties):
        _solve(scaled, labels, weight, bias, penalty)
        solved, shift = weight.detach() / size**0.5, bias.detach()
        logits = held_out @ solved + shift
        loss, factor = calibrated_loss(logits, truth)
        loss = (loss + number * _STEP) / len(truth)
        worse = 0 if best is None or loss < best.loss else worse + 1
        if not worse:
            best = LinearFit(factor * solved, factor * shift, penalty, loss)
        elif worse == _PATIENCE:
            break
    assert best is not None
    return best


def fit_standardised(features: Mapping[str, Tensor], labels: Mapping[str, Tensor], classes: int) -> LinearFit:
    """Fit to "train" and choose by "validation"; see `fit_linear`.

    Features, `(n, f)`, are standardised by the training examples; the weights are those of features as they are.
    Examples with the class number `IGNORED` are left out.
    """
    known = {name: labels[name] != IGNORED for name in ("train", "validation")}
    train, held_out = (features[name][rows] for name, rows in known.items())
    right, truth = (labels[name][rows] for name, rows in known.items())
    mean, deviation = train.mean(0), train.std(0, correction=0)
    # What is constant in training says nothing, whatever it is later.
    constant = deviation <= 1e-6 * mean.abs().clamp_min(1)
    scale = torch.where(constant, 0, 1 / deviation.where(~constant, 1))
    found = fit_linear((train - mean) * scale, right, (held_out - mean) * scale, truth, classes)
    weight = scale[:, None] * found.weight
    return replace(found, weight=weight, bias=found.bias - mean @ weight)


def _solve(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, penalty: float) -> None:
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, tolerance_change=1e-7, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = cross_entropy(features @ weight + bias, labels) + penalty / 2 * weight.square().sum()
        found.backward()
        return found

    with torch.enable_grad():
        optimizer.step(loss)


class FeatureCounts(Counts[S], Generic[S]):
    """Logistic regression over the features of the `LinearPart` of a task's models."""

    def learn(self, part: LinearPart, prepared: Prepared) -> None:
        """Fit what the features depend on to the training split, if anything."""

    @abc.abstractmethod
    def examples(self, part: LinearPart, prepared: Prepared, split: str) -> tuple[Tensor, Tensor]:
        """Features of a split, `(n, f)`, and class numbers, `(n,)`, `IGNORED` where there is none."""

    @abc.abstractmethod
    def scored(
        self, part: LinearPart, prepared: Prepared, logits: Mapping[str, Tensor]
    ) -> tuple[dict[str, S], dict[str, object]]:
        """Scores of held-out splits by their logits, and what validation chose, as JSON."""

    def count(self, recipe: Recipe, prepared: Prepared) -> Counted:
        part, _, _ = self._fitted(recipe, prepared)

        def enter(model: PreTrainedModel) -> None:
            model.wide.load_state_dict(part.state_dict())

        return Counted({}, enter)

    def fit(self, recipe: Recipe) -> Fitted[S]:
        prepared = recipe.task.prepare(recipe)
        part, found, features = self._fitted(recipe, prepared)
        logits = {name: rows @ part.weight + part.bias for name, rows in features.items() if name != "train"}
        scores, chosen = self.scored(part, prepared, logits)
        return Fitted(scores, {"penalty": found.penalty, **chosen}, part.weight.numel() + part.bias.numel())

    def _fitted(self, recipe: Recipe, prepared: Prepared) -> tuple[LinearPart, LinearFit, dict[str, Tensor]]:
        """Part of a model fitted to the training split, its choices, and the features of each split."""
        task, splits = recipe.task, prepared.splits
        check_validation(splits)
        given = {**prepared.config, **prepared.processor.settings(recipe.model)}
        with torch.device("meta"):
            kind = task.model_class(task.configure({**recipe.model, "wide": True, "causal": False}, given)).wide
        part: LinearPart = kind.to_empty(device="cpu")
        part.reset_parameters()
        self.learn(part, prepared)
        features, labels = {}, {}
        for name in splits:
            features[name], labels[name] = self.examples(part, prepared, name)
        found = fit_standardised(features, labels, part.bias.shape[0])
        part.weight.copy_(found.weight)
        part.bias.copy_(found.bias)
        return part, found, features


class ClassCounts(FeatureCounts[ClassificationScores]):
    """`FeatureCounts` of examples with one class each."""

    @torch.no_grad()
    def examples(self, part: LinearPart, prepared: Prepared, split: str) -> tuple[Tensor, Tensor]:
        examples, streams = prepared.splits[split], prepared.processor.streams
        streams = {name: stream for name, stream in streams.items() if name in examples.column_names}
        collate, rows = Collator(streams), examples.select_columns(list(streams)).with_format("numpy")
        found = torch.zeros(len(examples), part.weight.shape[0])
        for batch in tqdm(
            scoring_batches(lengths(examples), _ROWS, _POSITIONS), "Computing features", leave=False, delay=2
        ):
            read = collate([rows[number] for number in batch])
            mask = read.pop("attention_mask", None)
            found[torch.as_tensor(batch)] = part.features(None if mask is None else mask.bool(), None, **read)
        return found, targets(examples)

    def scored(
        self, part: LinearPart, prepared: Prepared, logits: Mapping[str, Tensor]
    ) -> tuple[dict[str, ClassificationScores], dict[str, object]]:
        names, splits = list(prepared.config["id2label"].values()), prepared.splits
        return {name: classification_scores(each, targets(splits[name]), names) for name, each in logits.items()}, {}
