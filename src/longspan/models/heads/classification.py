"""A document classifier: pooling and a linear layer on top of the model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from longspan.errors import UserError
from longspan.models.config import LongspanConfig
from longspan.models.embeddings.frames import FrameSettings
from longspan.models.heads.base import delegate_args
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.parts.losses import IGNORED, Losses, Mixed, class_losses, mean_loss
from longspan.models.settings import HeadSettings, check_count, dropout_before, from_data
from longspan.models.wide.classifier import LONGEST, Wide
from longspan.models.wide.linear import LinearPart, RecordingPart
from longspan.ops import slices
from longspan.ops.counts import counting, present
from longspan.ops.pooling import accumulation_dtype, mean_of_all, softmax_pool
from longspan.options import FINITE, Range, option

SINGLE_LABEL, MULTI_LABEL, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
PROBLEM_TYPES = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)


#: Counts that add up to less are none at all.
TINY = 1e-6
POOLINGS = ("attention", "mean", "max", "mean+max", "first")


@strict
@dataclass
class ClassificationSettings(HeadSettings):
    """Settings of a document classifier, or of regression."""

    pooling: str = option(
        "attention",
        'pooling of a document into one vector: "attention" (additive pooling), "mean", "max", "mean+max" (both '
        'concatenated) or "first"',
        POOLINGS,
    )
    wide: bool = option(
        False,
        "whether the model adds the logits of a linear model, which is fitted to the training examples first. Of "
        "recordings, it reads means and deviations of cepstral coefficients; of graphs, numbers of types, degrees and "
        "edges; of images, gradients and colours; of pairs of documents, shared tokens. Of documents, it reads n-grams "
        "of 1 to 3 tokens. The rest of the model then reads, with each token, how strongly its n-grams indicate each "
        "class. The validation split chooses the scale of each part.",
    )
    wide_buckets: int | None = option(
        None,
        "places in the hash table of these n-grams; of two with the same place, the more frequent one stays. None "
        "means enough for the training documents: at most `2^20`, and `2^22` for all classes together.",
        Range(1),
    )
    wide_characters: bool | None = option(
        None,
        "whether the linear model also has n-grams of 2 to 5 characters within a token, so that words that look alike "
        "share weights. None means yes if training documents are few and they improve predictions of held-out "
        "training documents; in a model built without training, no.",
    )
    label_smoothing: float | int = option(
        0.0, "share of the target spread evenly over all classes in the classification loss", Range(0, 1)
    )
    classifier_dropout: float | int | None = dropout_before("the classifier")
    class_weights: list[float] | None = from_data(
        None, "the weight of each class in the classification loss in training; None means 1", Range(0, below=math.inf)
    )
    thresholds: list[float] | None = from_data(
        None,
        "probability from which each of several labels is predicted; None means 0.5. The model does not apply them.",
        Range(0, 1),
    )
    part_thresholds: list[list[float]] | None = from_data(
        None, "thresholds of the wide and of the deep part alone, by which they are compared; None means 0.5"
    )
    target_mean: float | int = from_data(
        0.0,
        "offset of the outputs of regression, with `target_scale` as their factor. The loss compares standardised "
        "targets and outputs, without both.",
        FINITE,
    )
    target_scale: float | int = from_data(1.0, "see `target_mean`", Range(above=0, below=math.inf))

    def check(self, config: Any) -> None:
        if self.wide_characters and not self.wide:
            raise UserError(
                "wide_characters needs a wide part, got wide_characters=True with wide=False; set model.wide=true or "
                "leave it out."
            )
        check_count(self, "class_weights", config.num_labels, "labels")
        check_count(self, "thresholds", config.num_labels, "labels")
        if (self.target_mean, self.target_scale) != (0, 1) and config.problem_type != REGRESSION:
            raise UserError(
                f"target_mean and target_scale are for regression, got problem_type={config.problem_type!r}; leave "
                "them out."
            )


class Pooling(nn.Module):
    """One vector per document from one per token; a document without tokens gives zeros.

    "attention" is the additive pooling of Wu et al. 2021: Σ_t softmax_t(w·tanh(W x_t)) x_t. "mean" averages the real
    tokens; "max" takes the largest value of each channel, "mean+max" both, one after the other; "first" takes the first
    real token.

    Attributes:
        output_dim: width of the vectors: 2 * dim for "mean+max", otherwise dim.
    """

    def __init__(self, name: str, dim: int) -> None:
        super().__init__()
        self.name = name
        self.output_dim = 2 * dim if name == "mean+max" else dim
        if name == "attention":
            self.hidden = nn.Linear(dim, dim)
            self.score = nn.Linear(dim, 1, bias=False)

    def forward(self, x: Float[Tensor, "b t d"], mask: Shaped[Tensor, "b t"] | None = None) -> Float[Tensor, "b p"]:
        """Return the pooled vectors; with a mask of counts (`ops.counts`), positions count that often."""
        if mask is not None:
            x = x.masked_fill(~present(mask).unsqueeze(-1), 0)
        if slices.current() is not None:
            return self._of_slices(x, mask)
        if self.name == "attention":
            return softmax_pool(x, self.score(torch.tanh(self.hidden(x))), mask).squeeze(1)
        if self.name == "mean+max":
            return torch.cat((_mean(x, mask), _largest(x, mask)), 1)
        return {"mean": _mean, "max": _largest, "first": _first}[self.name](x, mask)

    def _of_slices(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.name == "attention":
            logits = self.score(torch.tanh(self.hidden(x)))
            return mean_of_all(softmax_pool(x, logits, mask), logits.mT, mask).squeeze(1)
        if self.name == "first":
            raise UserError(
                "expected pooling of slices of rows by attention, mean or max, got first; choose one of them, or leave "
                "rows whole."
            )
        mask = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
        dtype = accumulation_dtype(x.dtype)
        largest = x.masked_fill(~mask.unsqueeze(-1), -math.inf).max(1).values
        parts = x.sum(1, dtype=dtype), mask.sum(1, keepdim=True).to(dtype), largest
        total, count, largest = slices.state_of_all(parts, _sums_and_largest)
        pooled = {"mean": (total / count.clamp_min(1)).to(x.dtype), "max": largest.masked_fill(count == 0, 0)}
        return torch.cat([pooled[name] for name in self.name.split("+")], 1)


def _sums_and_largest(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    return one[0] + other[0], one[1] + other[1], torch.maximum(one[2], other[2])


def _mean(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return x.mean(1)
    if counting(mask):
        return (x * mask.unsqueeze(-1).to(x.dtype)).sum(1) / mask.sum(1, keepdim=True).clamp_min(TINY).to(x.dtype)
    return x.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


def _largest(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return x.max(1).values
    hidden = ~present(mask).unsqueeze(-1)
    x = x.masked_fill(hidden, -math.inf)
    if counting(mask) and x.shape[1] > 1:
        # The largest is there as far as it counts, and else the next one: exact for a count of 0, too.
        values, places = x.topk(2, 1)
        largest, following = values.unbind(1)
        share = _at_most_one(mask.gather(1, places[:, 0])).to(x.dtype)
        largest = torch.where(following > -math.inf, following + share * (largest - following), largest)
    else:
        largest = x.max(1).values
    return largest.masked_fill(hidden.all(1), 0)


def _at_most_one(counts: Tensor) -> Tensor:
    """Counts up to 1, with the gradient 1 at 1, where they mostly are: that of `clamp` depends on PyTorch's release."""
    return counts.masked_fill(counts > 1, 1)


def _first(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return x[:, 0]
    rows, real = torch.arange(x.shape[0], device=x.device), present(mask).int()
    at = real.argmax(1)
    first = x[rows, at]
    if counting(mask):
        others = real.scatter(1, at.unsqueeze(1), 0)
        following = torch.where(others.any(1, keepdim=True), x[rows, others.argmax(1)], first)
        first = following + _at_most_one(mask[rows, at]).unsqueeze(1).to(x.dtype) * (first - following)
    return first


@dataclass
class ClassifierOutput(SequenceClassifierOutput):
    """Outputs of transformers' classifiers, and more.

    Attributes:
        parts: (b, 2, num_labels) the logits of a model's two parts, wide and deep, if it has them.
        plain_loss: the loss without label smoothing and class weights, where training has them; no gradient.
    """

    parts: Tensor | None = None
    plain_loss: Tensor | None = None


class LongspanForSequenceClassification(LongspanPreTrainedModel):
    """Classify whole documents, or give each one or several numbers.

    `forward` takes the arguments of `LongspanModel`, except for packed documents and states, and `labels`; other
    embeddings than those of tokens read streams of their own, by their names. It returns
    `logits` (b, num_labels) and, with labels, the `loss`, which depends on `config.problem_type`:

    - "single_label_classification": `labels` (b,) are class numbers, -100 for no label; cross-entropy, in training with
      `config.head.label_smoothing` and, times the weight of the document's class, with `config.head.class_weights`;
    - "multi_label_classification": `labels` (b, num_labels) are 0 or 1 (or in between), -100 where unknown; binary
      cross-entropy;
    - "regression": `labels` are numbers (b,), or (b, num_labels) with several; squared error. With
      `config.head.target_scale` (and `target_mean`), logits and labels have the unit of the data, and the loss is the
      squared error divided by the square of the scale.

    As in transformers, a `problem_type` of None is inferred from the first labels and saved in the configuration:
    regression with num_labels=1, otherwise single labels if they are integers, and multiple labels if not. The loss is
    the mean over all labels, or their sum divided by `num_items_in_batch`: weights do not change what it is divided by,
    so that the batches of one step add up to the loss of one large batch.

    With `config.head.wide`, a linear model over n-grams of tokens is added
    (`longspan.models.wide.classifier.Wide`). `logits` are the sum of both parts, each times its scale, and `parts`
    (b, 2, num_labels) has their own logits, wide first. In training, loss and logits are those of the deep part alone,
    so that it does not rely on counts that are overfitted to the training documents. With its tokens it reads log-count
    ratios of n-grams, counted without them.

    Raises:
        UserError: for labels of another shape or type, `label_smoothing` without single labels, `document_ids`, and
            `inputs_embeds` with `config.head.wide`.
    """

    head_settings = ClassificationSettings
    #: Number of vectors, each as wide as `Pooling` makes them, that the classifier reads side by side.
    vectors: ClassVar[int] = 1
    wide: Wide | LinearPart | None

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        config, settings = self.config, self.config.head
        self.num_labels = config.num_labels
        self.longspan = LongspanModel(config)
        self.pooling = Pooling(settings.pooling, config.dim)
        self.dropout = self.head_dropout()
        self.classifier = nn.Linear(self.vectors * self.pooling.output_dim, config.num_labels)
        if settings.wide:
            self.wide = self._build_wide()
        if isinstance(self.wide, Wide):
            width = self.longspan.embeddings.output_dim
            self.evidence = nn.Linear(LONGEST * config.num_labels, width, bias=False)
        self.post_init()

    def _build_wide(self) -> Wide | LinearPart:
        """Wide part, by default of documents."""
        settings = self.config.head
        tokens = self.config.vocab_size if settings.wide_characters else None
        return Wide(settings.wide_buckets or 2**20, self.config.num_labels, tokens)

    def tables(self) -> list[nn.Embedding]:
        """Tables of n-grams and, with a wide part, that of tokens.

        Adam's momentum moves a rare token's vector about seven times as far each time it is read, and rare tokens tell
        training documents apart.
        """
        if not isinstance(self.wide, Wide) or self.window_encoder is not None:
            return super().tables()
        tokens = self.get_input_embeddings()
        return super().tables() + ([tokens] if isinstance(tokens, nn.Embedding) else [])

    def resize_token_embeddings(self, *arguments: Any, **options: Any) -> nn.Module:
        resized = super().resize_token_embeddings(*arguments, **options)
        if isinstance(self.wide, Wide):
            self.wide.resize(self.config.vocab_size)
        return resized

    @delegate_args("inputs_embeds", "counts", "streams")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        wide_streams: Mapping[str, Tensor | None] | None = None,
        **read: Any,
    ) -> ClassifierOutput:
        if document_ids is not None:
            raise UserError(
                "expected one document per row to classify, got packed documents (document_ids); give each document "
                "its own row."
            )
        mask = None if attention_mask is None else attention_mask.bool()
        evidence = None
        if isinstance(self.wide, Wide):
            if input_ids is None:
                raise UserError(
                    "expected input_ids for a model with wide=True, which counts n-grams of tokens, got inputs_embeds; "
                    "give the tokens."
                )
            evidence = self.evidence(self.wide.evidence(input_ids, mask).to(self.dtype))
        pooled, hidden_states = self.pooled(input_ids, attention_mask, added_embeds=evidence, **read)
        logits = self.classifier(self.dropout(pooled))
        parts = None
        if self.wide is not None and not self.training:
            streams = {**read, **(wide_streams or {})}
            wide = self.wide(input_ids, mask) if isinstance(self.wide, Wide) else self.wide(mask, **streams)
            parts = torch.stack([wide, logits.float()], 1)
            logits = self.wide.combined(wide, logits)
        return self.classified(logits, labels, num_items_in_batch, hidden_states=hidden_states, parts=parts)

    def pooled(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, **read: Any
    ) -> tuple[Float[Tensor, "b p"], tuple[Tensor, ...] | None]:
        """Return a vector for each document, and the hidden states if they were asked for.

        Args:
            input_ids: (b, t) tokens; None for other streams.
            attention_mask: (b, t), 1 at real positions.
            read: further arguments of `LongspanModel`.
        """
        hidden = self.longspan(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, **read)
        mask = None if attention_mask is None else attention_mask.bool()
        if mask is not None and read.get("inputs_embeds") is None:
            mask = self.longspan.embeddings.reduced(mask)
        counts = read.get("counts")
        if counts is not None:
            mask = counts if mask is None else counts * mask
        return self.pooling(hidden.last_hidden_state, mask), hidden.hidden_states

    def classified(
        self, logits: Tensor, labels: Tensor | None, num_items_in_batch: int | Tensor | None, **more: Any
    ) -> ClassifierOutput:
        """Output with logits in the unit of the data, their loss where there are labels, and `more`."""
        loss, plain = (None, None) if labels is None else self.losses(logits, labels, num_items_in_batch)
        mean, scale = self.config.head.target_mean, self.config.head.target_scale
        if (mean, scale) != (0, 1):
            logits = logits.to(accumulation_dtype(logits.dtype)) * scale + mean
        return ClassifierOutput(loss=loss, logits=logits, plain_loss=plain, **more)

    @property
    def smooths_labels(self) -> bool:
        return self.config.problem_type in (SINGLE_LABEL, None)

    def count_items(self, labels: Tensor) -> Tensor:
        problem = self.config.problem_type or _problem_type(labels, self.num_labels)
        return _label_mask(labels, problem).sum()

    def losses(
        self, logits: Tensor, labels: Tensor, num_items_in_batch: int | Tensor | None, mixed: Mixed | None = None
    ) -> Losses:
        """Losses of logits; `mixed` are second labels of mixtures."""
        problem = self.config.problem_type or _problem_type(labels, self.num_labels)
        labels = _checked(labels.to(logits.device), problem, logits.shape, self.config.problem_type is None)
        smoothing = self.config.head.label_smoothing
        if smoothing and problem != SINGLE_LABEL:
            raise UserError(
                f"label_smoothing is for single labels, got label_smoothing={smoothing} with problem_type={problem!r}; "
                "set it to 0."
            )
        if mixed is not None and problem != SINGLE_LABEL:
            raise UserError(f"expected mixed labels with single labels, got problem_type={problem!r}; leave mixup out.")
        if self.config.problem_type is None:
            # Saved, as it tells pipelines which function turns logits into scores.
            self.config.problem_type = problem
        scores = logits.to(accumulation_dtype(logits.dtype))
        if problem == SINGLE_LABEL:
            weights = self.config.head.class_weights
            return class_losses(
                scores,
                labels,
                num_items_in_batch,
                training=self.training,
                smoothing=smoothing,
                weights=weights,
                mixed=mixed,
            )
        known = _label_mask(labels, problem)
        targets = labels.where(known, 0).to(scores.dtype)
        if problem == REGRESSION:
            targets = (targets - self.config.head.target_mean) / self.config.head.target_scale
            losses = nn.functional.mse_loss(scores, targets, reduction="none")
        else:
            losses = nn.functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
        return Losses(mean_loss(losses.masked_fill(~known, 0), known.sum(), num_items_in_batch))


class LongspanForAudioClassification(LongspanForSequenceClassification):
    """Classify recordings as `LongspanForSequenceClassification` classifies documents.

    `forward` takes `input_features` (b, t, channels), the frames of `LongspanFeatureExtractor`, and their
    `attention_mask`.
    """

    main_input_name = "input_features"
    embedding_settings = (FrameSettings,)

    def _build_wide(self) -> LinearPart:
        return RecordingPart(self.config.embeddings.channels, self.config.num_labels)

    @delegate_args("inputs_embeds", "counts", "streams")
    def forward(  # type: ignore[override]
        self,
        input_features: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **read: Any,
    ) -> ClassifierOutput:
        found: ClassifierOutput = super().forward(
            input_features=input_features,
            attention_mask=attention_mask,
            labels=labels,
            num_items_in_batch=num_items_in_batch,
            **read,
        )
        return found


def _label_mask(labels: Tensor, problem: str) -> Tensor:
    """Mask of the labels that are not missing: NaN, and -100 where that is no target of regression."""
    known = ~labels.isnan()
    return known if problem == REGRESSION else known & (labels != IGNORED)


def _problem_type(labels: Tensor, num_labels: int) -> str:
    """Return the problem type that transformers infers from labels if none is configured."""
    if num_labels == 1:
        return REGRESSION
    return SINGLE_LABEL if _are_integers(labels) else MULTI_LABEL


def _checked(labels: Tensor, problem: str, shape: torch.Size, inferred: bool) -> Tensor:
    """Return labels in the form of the loss: (b,) int64 for single labels, otherwise of the logits' `shape`."""
    rows, columns = shape
    several = problem == MULTI_LABEL or (problem == REGRESSION and columns > 1)
    fits = labels.shape == shape if several else labels.shape in ((rows,), (rows, 1))
    if fits and (problem != SINGLE_LABEL or _are_integers(labels)):
        return labels.reshape(rows).long() if problem == SINGLE_LABEL else labels.reshape(shape)
    kind = "integers" if problem == SINGLE_LABEL else "numbers"
    wanted = f"({rows}, {columns})" if several else f"({rows},)"
    how = "inferred from the labels, as it is not configured" if inferred else "as configured"
    raise UserError(
        f"expected labels as {kind} of shape {wanted} with problem_type={problem!r} ({how}), got {labels.dtype} of "
        f"shape {tuple(labels.shape)}; change the labels, or set problem_type to one of {', '.join(PROBLEM_TYPES)}."
    )


def _are_integers(labels: Tensor) -> bool:
    return not labels.is_floating_point() and labels.dtype != torch.bool
