"""Options of node classification."""

from dataclasses import dataclass

from longspan.data.graphs.options import GraphData
from longspan.tasks.base.options import EvaluationOptions, TrainingOptions, check_at_least, option

__all__ = ["EvaluationOptions", "GraphData", "NodePredictionOptions", "NodeTrainingOptions", "PredictionOptions"]


@dataclass(frozen=True)
class NodeTrainingOptions(TrainingOptions):
    """Training options of node classification."""

    batch_nodes: int = option(
        0, "labelled nodes in a batch, which is read with neighbours drawn around them; 0 reads the full graph at once"
    )
    fanout: int = option(10, "neighbours drawn of each node in each hop, with batch_nodes")
    hops: int = option(0, "hops of neighbours that are drawn, with batch_nodes; 0 for as many as the model has layers")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, batch_nodes=0, fanout=1, hops=0)


@dataclass(frozen=True)
class NodePredictionOptions:
    """Which nodes of a graph are labelled."""

    nodes: str = option("", "names of the nodes to label, separated by commas; all by default")


PredictionOptions = NodePredictionOptions
