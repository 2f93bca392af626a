"""Graph classification: `GraphClassification`."""

from typing import ClassVar

from longspan.data.graphs.many import GraphsData, GraphsProcessor
from longspan.models import LongspanForGraphClassification
from longspan.models.embeddings.nodes import NodeSettings
from longspan.report import count
from longspan.tasks.base.classes import ClassTask
from longspan.tasks.base.task import Facts


class GraphClassification(ClassTask[GraphsData]):
    """A class for each graph, of any number of nodes."""

    data_config = GraphsData
    length_key = ""
    processor = GraphsProcessor
    embeddings = (NodeSettings,)
    cuts_examples = False
    model_class = LongspanForGraphClassification
    unused = ClassTask.unused - {"wide"}
    example = "a graph"
    data_hint = "data.path=FILE (jsonl or parquet, or csv with JSON lists: nodes, edges, label), or data.train=FILE"
    facts: ClassVar[Facts] = {
        "documents": ("graphs", count),
        "tokens": ("nodes", count),
        "median_length": ("median nodes", count),
        "longest": ("most nodes", count),
    }
