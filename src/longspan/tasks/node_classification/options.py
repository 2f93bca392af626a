"""Options of node classification."""

from dataclasses import dataclass

from longspan.data.graphs.options import GraphData
from longspan.options import Range, option
from longspan.tasks.base import options
from longspan.tasks.base.options import EvaluationOptions

__all__ = ["EvaluationOptions", "GraphData", "PredictionOptions", "TrainingOptions"]


@dataclass(frozen=True)
class TrainingOptions(options.TrainingOptions):
    """Training options of node classification."""

    batch_nodes: int = option(
        0,
        "labelled nodes in a batch, which is read with neighbours drawn around them; 0 reads the full graph at once",
        Range(0),
    )
    fanout: int = option(10, "neighbours drawn of each node in each hop, with batch_nodes", Range(1))
    hops: int = option(
        0, "hops of neighbours that are drawn, with batch_nodes; 0 for as many as the model has layers", Range(0)
    )


@dataclass(frozen=True)
class PredictionOptions(options.PredictionOptions):
    """Nodes of a graph to label."""

    nodes: str = option("", "names of the nodes to label, separated by commas; all by default")
