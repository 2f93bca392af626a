"""A graph classifier: a class for each graph."""

from dataclasses import dataclass
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor

from longspan.mixers.graph import Edges
from longspan.models.heads.base import delegate_args
from longspan.models.heads.classification import (
    ClassificationSettings,
    ClassifierOutput,
    LongspanForSequenceClassification,
)
from longspan.models.wide.linear import GraphPart, LinearPart


@strict
@dataclass
class GraphClassificationSettings(ClassificationSettings):
    """Settings of a graph classifier: those of `ClassificationSettings`, where nodes take the place of tokens."""


class LongspanForGraphClassification(LongspanForSequenceClassification):
    """Classify graphs.

    `forward` takes the streams of nodes (`longspan.models.embeddings.nodes`), `edges` (3, n) with a row of the batch, a
    source and a target each, an `attention_mask` (b, t), and `labels` (b,). It returns what
    `LongspanForSequenceClassification` does. A model whose mixers read no edges reads nodes alone.
    """

    head_settings = GraphClassificationSettings

    def _build_wide(self) -> LinearPart:
        return GraphPart(self.config.embeddings.node_features, self.config.num_labels)

    @delegate_args("inputs_embeds", "columns", "values", "places", "counts", "streams")
    def forward(  # type: ignore[override]
        self,
        nodes: Tensor | None = None,
        attention_mask: Tensor | None = None,
        edges: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **read: Any,
    ) -> ClassifierOutput:
        found: ClassifierOutput = super().forward(
            nodes=nodes,
            attention_mask=attention_mask,
            structure=Edges(edges) if edges is not None and self.longspan.backbone.has_structure(Edges) else None,
            labels=labels,
            wide_streams={"edges": edges},
            num_items_in_batch=num_items_in_batch,
            **read,
        )
        return found
