"""Node classification: `NodeClassification`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.columns.kinds import Column, Label
from longspan.data.graphs.graph import UNLABELLED, Graph, numbered
from longspan.data.graphs.options import GraphData
from longspan.data.graphs.processor import GraphProcessor, NodeInputs
from longspan.data.graphs.reading import read_graph, with_graph
from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import Splits
from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.models import LongspanForNodeClassification
from longspan.models.embeddings.nodes import NodeSettings
from longspan.report import count, table
from longspan.results import Prediction
from longspan.tasks.base import Baseline, Recipe, Run, Task
from longspan.tasks.baselines import baselines_in
from longspan.tasks.class_scores import ClassificationScores, classification_scores
from longspan.tasks.classes import labels
from longspan.tasks.explaining import Case, class_asked, no_place
from longspan.tasks.mistakes import class_errors, label_issues
from longspan.tasks.node_classification import baselines
from longspan.tasks.node_classification.options import NodePredictionOptions, NodeTrainingOptions
from longspan.tasks.node_classification.trainer import NodeTrainer, logits_of
from longspan.tasks.prepared import Prepared, check_validation
from longspan.training.lengths import targets


@dataclass(frozen=True)
class NodePrediction(Prediction):
    """The most likely label of a node, and the probabilities of all labels."""

    node: str | None = None
    label: str | None = None
    probabilities: dict[str, float] | None = None


@dataclass(frozen=True)
class PreparedGraph(Prepared):
    """A graph that is ready for training, with what the model reads of it."""

    inputs: Any = None


@dataclass(frozen=True)
class Nodes:
    """Nodes of one split, and the graph that they are of."""

    rows: Dataset
    graph: Graph

    def __len__(self) -> int:
        return len(self.rows)


class NodeClassification(Task[ClassificationScores, GraphData, NodeTrainingOptions]):
    """A class for each node of a graph, some of whose nodes have a label."""

    data_config = GraphData
    length_key = ""
    training_options = NodeTrainingOptions
    prediction_options = NodePredictionOptions
    scores = ClassificationScores
    prediction = NodePrediction
    cuts_examples = False
    one_source = True
    model_class = LongspanForNodeClassification
    processor = GraphProcessor
    embeddings = (NodeSettings,)
    data_hint: ClassVar[str] = (
        "data.path=FILE (a graph as npz or graphml, or nodes as csv with data.edges=FILE), or a graph of networkx"
    )

    # What is read

    def columns(self, data: GraphData) -> Sequence[Column]:
        return [*self.processor.columns(data), Label("label", "label_column")]

    def reading(self, data: GraphData, given: Any) -> GraphData:
        return with_graph(data, given)

    def splits(self, data: GraphData) -> Splits:
        graph = read_graph(data.path, data, training=False)
        rows = _rows(graph)
        if not rows:
            raise UserError(f"expected labelled nodes to score in {graph.source}, got none; check data.label_column.")
        examples: dict[str, Any] = {name: Nodes(part, graph) for name, part in rows.items()}
        return Splits(examples, {})

    def inputs_of(
        self,
        run: Run[GraphData, NodeTrainingOptions],
        paths: Sequence[Path | str],
        data: GraphData,
        stdin: BinaryIO | None,
    ) -> Iterator[Row]:
        options = run.prediction or NodePredictionOptions()
        for path in paths:
            if str(path) == "-":
                raise UserError("expected files of graphs, got standard input; name a file.")
            graph = read_graph(path, with_graph(data, path), training=False)
            wanted = [name.strip() for name in options.nodes.split(",") if name.strip()]
            numbers = numbered(graph.names, wanted, graph.source) if wanted else np.arange(len(graph))
            for number in numbers.tolist():
                yield Row({"graph": graph, "node": number}, f"node {graph.names[number]} of {graph.source}", "")

    def inputs_in_memory(self, run: Run[GraphData, NodeTrainingOptions], given: Any, data: GraphData) -> Iterator[Row]:
        return self.inputs_of(run, [with_graph(data, given).path], data, None)

    def prepare(self, recipe: Recipe[GraphData, NodeTrainingOptions]) -> PreparedGraph:
        data = recipe.data
        graph = read_graph(data.path, data, training=True)
        check_validation(graph.splits)
        processor = GraphProcessor.of(graph, data)
        splits = _rows(graph)
        absent = set(range(len(graph.classes))) - set(splits["train"]["labels"][:])
        if absent:
            raise UserError(
                f"expected training nodes of each class in {graph.source}, got none of "
                f"{graph.classes[min(absent)]!r}; label some, or remove the class."
            )
        config = {
            "id2label": dict(enumerate(graph.classes)),
            "label2id": {name: number for number, name in enumerate(graph.classes)},
            **processor.settings(recipe.model),
        }
        self.configure(recipe.model, config)
        facts: dict[str, Any] = {name: {"nodes": len(rows)} for name, rows in splits.items()}
        return PreparedGraph(
            splits,
            processor,
            config,
            {**facts, "graph": _described(graph), "skipped": {}},
            {"labels": list(graph.classes)},
            inputs=processor.inputs(graph),
        )

    # What is trained

    def make_trainer(
        self,
        recipe: Recipe[GraphData, NodeTrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared,
    ) -> NodeTrainer:
        assert isinstance(prepared, PreparedGraph)
        options = recipe.options
        return NodeTrainer(
            model,
            arguments,
            train_dataset=prepared.splits["train"],
            eval_dataset=prepared.splits["validation"],
            inputs=prepared.inputs,
            measure=lambda logits, gold: classification_scores(logits, gold, labels(model.config)),
            batch_nodes=options.batch_nodes,
            fanout=options.fanout,
            hops=options.hops or model.config.depth,
        )

    # What a trained model does

    def evaluate(
        self,
        run: Run[GraphData, NodeTrainingOptions],
        examples: Any,
        split: str,
        options: Any,
        folder: Path,
    ) -> tuple[ClassificationScores, dict[str, Any]]:
        config, graph = run.model.config, examples.graph
        unknown = set(graph.classes) - set(labels(config))
        if unknown:
            raise UserError(
                f"expected only classes of the training graph in {graph.source}, got {min(unknown)!r}; remove it."
            )
        number = {name: place for place, name in enumerate(labels(config))}
        gold = targets(examples.rows)
        gold = gold.new_tensor([number[graph.classes[place]] for place in gold.tolist()])
        found = logits_of(run.model, _inputs(run, graph).batch())[examples.rows["node"][:]]
        scores = classification_scores(found, gold, labels(config))
        from longspan.report.calibration import calibration
        from longspan.report.confusion import confusion

        confusion(scores.confusion, labels(config), folder / "confusion.png")
        calibration(scores.reliability, scores.calibration_error, folder / "calibration.png")
        return scores, {
            "nodes": len(gold),
            "labels": labels(config),
            "graph": _described(graph),
            "mistakes": class_errors(found, gold, labels(config)).among(examples.rows),
            "label_issues": label_issues(found, gold, labels(config)).among(examples.rows),
        }

    def predict(self, run: Run[GraphData, NodeTrainingOptions], rows: Iterable[Row]) -> Iterator[Prediction]:
        names = labels(run.model.config)
        for (problem, graph), some in groupby(rows, lambda row: (row.problem, _Same(row.values.get("graph")))):
            if problem or graph.value is None:
                yield from (self.prediction(row.where, row.problem) for row in some)
                continue
            shares = logits_of(run.model, _inputs(run, graph.value).batch()).softmax(-1)
            for row in some:
                own = dict(zip(names, shares[row.values["node"]].tolist(), strict=True))
                name = graph.value.names[row.values["node"]]
                yield NodePrediction(row.where, None, name, max(own, key=lambda each: own[each]), own)

    def case(self, run: Run[GraphData, NodeTrainingOptions], row: Row, of: str, at: float | None) -> Case:
        no_place(at)
        (prediction,) = self.predict(run, [row])
        assert isinstance(prediction, NodePrediction)
        if prediction.label is None:
            raise UserError(f"{row.where}: expected a node to explain, got {prediction.error}; choose another row.")
        graph, model = row.values["graph"], run.model
        batch = {name: each.to(model.device) for name, each in _inputs(run, graph).batch().items()}
        batch["attention_mask"] = torch.ones_like(batch["nodes"])
        asked = class_asked(labels(model.config), of or prediction.label).at(row.values["node"])
        question = Question(model, batch, asked.value, asked.share, masked=False, rows=1, at=row.values["node"])
        first = np.arange(len(graph))
        places = Places("nodes", np.stack([first, first + 1], 1), names=list(graph.names))
        return Case(row.where, asked, question, places, prediction.to_dict())

    def baselines(self) -> Mapping[str, type[Baseline[ClassificationScores]]]:
        return baselines_in(baselines)

    # What is reported

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        splits = {name: row for name, row in data.items() if isinstance(row, Mapping) and "nodes" in row}
        graph = splits.pop("graph", {})
        told = [
            table(["split", "labelled nodes"], ([name, count(row["nodes"])] for name, row in splits.items()), style)
        ]
        if graph:
            rows = ([words, count(graph[key])] for key, words in _FACTS.items())
            told.append(table(["graph", ""], rows, style))
        return "\n\n".join(told)


_FACTS: dict[str, str] = {
    "nodes": "nodes",
    "edges": "edges, each way, with loops",
    "features": "features of a node",
    "edge_features": "features of an edge",
    "isolated": "nodes without edges to others",
    "unlabelled": "nodes without a label",
}


class _Same:
    """Tells graphs apart by what they are, not by their contents."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def _rows(graph: Graph) -> DatasetDict:
    """Return the labelled nodes of each split."""
    return DatasetDict(
        {
            name: Dataset.from_dict(
                {
                    "node": nodes,
                    "labels": graph.labels[nodes],
                    "length": np.ones(len(nodes), np.int64),
                    "where": [f"node {graph.names[node]} of {graph.source}" for node in nodes],
                }
            )
            for name, nodes in graph.splits.items()
            if len(nodes)
        }
    )


def _inputs(run: Run[GraphData, NodeTrainingOptions], graph: Graph) -> NodeInputs:
    processor = run.processor
    assert isinstance(processor, GraphProcessor)
    return processor.inputs(graph)


def _described(graph: Graph) -> dict[str, int]:
    source, target = graph.edges
    joined = np.zeros(len(graph), bool)
    joined[source[source != target]] = True
    joined[target[source != target]] = True
    return {
        "nodes": len(graph),
        "edges": graph.edges.shape[1],
        "features": graph.features.width,
        "edge_features": graph.edge_features.shape[1],
        "isolated": int((~joined).sum()),
        "unlabelled": int((graph.labels == UNLABELLED).sum()),
    }
