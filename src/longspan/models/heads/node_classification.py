"""A node classifier: a class for each node of a graph."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import TokenClassifierOutput

from longspan.errors import UserError
from longspan.mixers.graph import Edges
from longspan.models.config import LongspanConfig
from longspan.models.heads.base import delegate_args
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.parts.losses import check_token_labels, class_losses, count_items
from longspan.models.settings import HeadSettings, dropout_before
from longspan.models.wide.nodes import NodePart
from longspan.ops.pooling import accumulation_dtype
from longspan.ops.propagation import propagate
from longspan.options import Range, option


@strict
@dataclass
class NodeClassificationSettings(HeadSettings):
    """Settings of a node classifier."""

    wide: bool = option(
        False,
        "whether logistic regression on features of nodes and of their neighbours, and label propagation, are combined "
        "with the network. They are fitted first. The validation nodes choose the weight of each.",
    )
    classifier_dropout: float | int | None = dropout_before("the classifier")
    label_smoothing: float | int = option(
        0.0, "share of the target spread evenly over all classes in the loss", Range(0, 1)
    )
    propagation_steps: int = option(
        0,
        "steps of personalised PageRank along the edges that average the logits of neighbours (Gasteiger et al. 2019).",
        Range(0, 1000),
    )
    teleport: float | int = option(0.1, "share of a node's own logits in each of these steps", Range(0, 1))
    consistency: float | int = option(
        0.0,
        "weight of a second loss in training, which reads each graph twice with different dropout. It is small if the "
        "probabilities of nodes, labelled or not, are the same both times (Feng et al. 2020).",
        Range(0, below=math.inf),
    )


@dataclass
class NodeLabels(TokenClassifierOutput):
    """Outputs of transformers' token classifiers, and more.

    Attributes:
        plain_loss: the loss of labels alone and without smoothing, where training has more; no gradient.
        parts: (b, t, 2, num_labels) the logits of a model's two parts, simple models first, if it has them.
    """

    plain_loss: Tensor | None = None
    parts: Tensor | None = None


class LongspanForNodeClassification(LongspanPreTrainedModel):
    """Classify the nodes of graphs.

    `forward` takes:

    - the streams of nodes (`longspan.models.embeddings.nodes.Nodes` lists them);
    - `edges` (3, n): row of the batch, source and target of each edge;
    - `edge_features` (n, f);
    - `attention_mask` (b, t);
    - `labels` (b, t): class numbers, -100 where unknown;
    - `known` (b, t): likewise, labels that a model with `config.head.wide` may read, those of training nodes.

    It returns `logits` (b, t, num_labels) and, with labels, the `loss`: the mean over known labels, or their sum
    divided by `num_items_in_batch`. With `consistency` c, a loss in training has two logits of each node, z_1 and z_2,
    of different dropout, and is the mean of both of these plus

        c · mean over nodes and i of ‖softmax(z_i) - s‖²,   s ∝ ((softmax(z_1) + softmax(z_2)) / 2)²

    where s has no gradient and sums to one. Source: Feng et al. 2020, "Graph Random Neural Networks for Semi-Supervised
    Learning on Graphs", https://arxiv.org/abs/2005.11079, with a temperature of 0.5. `logits` and
    `hidden_states` are those of the first reading then.

    With `config.head.wide`, simple models are combined with the network (`longspan.models.wide.nodes.NodePart`). In
    training, loss and logits are those of the network alone.

    Raises:
        UserError: for labels that are not integers of (b, t).
    """

    head_settings = NodeClassificationSettings

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.num_labels = self.config.num_labels
        self.longspan = LongspanModel(self.config)
        self.dropout = self.head_dropout()
        self.classifier = nn.Linear(self.config.dim, self.config.num_labels)
        if self.config.head.wide:
            embeddings = self.config.embeddings
            self.wide = NodePart(embeddings.node_features + embeddings.place_features, self.num_labels)
        self.post_init()

    @delegate_args("inputs_embeds", "columns", "values", "places", "edge_features", "counts", "streams")
    def forward(
        self,
        nodes: Tensor | None = None,
        attention_mask: Tensor | None = None,
        edges: Tensor | None = None,
        labels: Tensor | None = None,
        known: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **read: Any,
    ) -> NodeLabels:
        times = read.get("counts")
        features = read.pop("edge_features", None)
        weight = float(self.config.head.consistency) if self.training and labels is not None else 0.0
        if weight:
            rows = len(next(each for each in (nodes, read.get("inputs_embeds")) if each is not None))
            read = {name: _twice(each) for name, each in read.items()}
            nodes, attention_mask, labels, features = map(_twice, (nodes, attention_mask, labels, features))
            edges = None if edges is None else torch.cat((edges, edges + edges.new_tensor([[rows], [0], [0]])), 1)
            num_items_in_batch = None if num_items_in_batch is None else 2 * num_items_in_batch
        body = self.longspan(
            nodes=nodes,
            attention_mask=attention_mask,
            structure=Edges(edges, features)
            if edges is not None and self.longspan.backbone.has_structure(Edges)
            else None,
            use_cache=False,
            **read,
        )
        scores = self.classifier(self.dropout(body.last_hidden_state))
        scores = scores.to(accumulation_dtype(scores.dtype))
        steps = self.config.head.propagation_steps
        if steps and edges is not None:
            row, source, target = edges
            length = scores.shape[1]
            flat = propagate(
                scores.flatten(0, 1),
                row * length + source,
                row * length + target,
                steps,
                self.config.head.teleport,
                None if times is None else times.flatten(),
            )
            scores = flat.view_as(scores)
        parts = None
        if self.wide is not None and not self.training:
            if nodes is None or edges is None:
                raise UserError(
                    "expected nodes and edges for a model with wide=True, which reads features of nodes, got "
                    f"{'no edges' if edges is None else 'inputs_embeds'}; give both."
                )
            streams = (read.get(name) for name in ("columns", "values", "places"))
            simple = self.wide(nodes, *streams, edges, known, times)
            parts = torch.stack((simple, scores.float()), 2)
            scores = self.wide.combined(simple, scores)
        loss, plain = None, None
        if labels is not None:
            check_token_labels("labels", labels, scores.shape[:2])
            loss, plain = class_losses(
                scores.flatten(0, 1),
                labels.flatten(),
                num_items_in_batch,
                training=self.training,
                smoothing=self.config.head.label_smoothing,
            )
            if weight:
                plain = loss.detach() if plain is None else plain
                # The share of this batch in those accumulated, as the loss of its labels has.
                share = 1.0 if num_items_in_batch is None else count_items(labels) / num_items_in_batch
                loss = loss + weight * share * _inconsistency(scores, attention_mask)
        hidden = body.hidden_states
        if weight:
            scores = scores[:rows]
            hidden = None if hidden is None else tuple(each[:rows] for each in hidden)
        return NodeLabels(loss=loss, logits=scores, hidden_states=hidden, plain_loss=plain, parts=parts)


def _twice(each: Any) -> Any:
    """Return a tensor with its rows twice, and anything else as it is."""
    return torch.cat((each, each)) if isinstance(each, Tensor) else each


def _inconsistency(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Distance of the probabilities of two readings (2b, t, classes) from their sharpened mean."""
    shares = scores.softmax(-1).unflatten(0, (2, -1))
    with torch.no_grad():
        sharp = shares.mean(0).square()
        sharp = sharp / sharp.sum(-1, keepdim=True)
    apart = (shares - sharp).square().sum(-1)
    if mask is None:
        return apart.mean()
    real = mask.unflatten(0, (2, -1)).to(apart.dtype)
    return (apart * real).sum() / real.sum().clamp_min(1)
