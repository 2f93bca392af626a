"""Node classification: `NodeClassification`."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.columns.kinds import Column, Label
from longspan.data.graphs.graph import UNLABELLED, Graph, numbered
from longspan.data.graphs.neighbours import Neighbourhoods
from longspan.data.graphs.options import GraphData
from longspan.data.graphs.processor import GraphProcessor, NodeInputs
from longspan.data.graphs.reading import read_graph, with_graph
from longspan.data.processor import Places
from longspan.data.sources.announcements import note
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import Splits
from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.models import LongspanForNodeClassification
from longspan.models.embeddings.nodes import NodeSettings
from longspan.models.parts.losses import IGNORED
from longspan.report import count, table
from longspan.results import Prediction
from longspan.tasks.base.case import Case, class_asked, no_place
from longspan.tasks.base.classes import (
    ClassificationScores,
    balanced_scales,
    classification_scores,
    compare_accuracies,
    correct_rows,
    labels,
)
from longspan.tasks.base.engine import ModelInput, Pipeline, PipelineTask, predictions, read_row
from longspan.tasks.base.mistakes import class_errors, label_issues
from longspan.tasks.base.task import Prepared, Recipe, Run, check_validation
from longspan.tasks.node_classification.options import PredictionOptions, TrainingOptions
from longspan.training.arguments import data_seed
from longspan.training.base import LongspanTrainer
from longspan.training.lengths import EpochSampler, Loader, in_evaluation, targets
from longspan.training.streams import Examples

Drawn = tuple[int, int, np.ndarray]
"""The epoch and the number of a batch, and the rows of the data set in it."""


class NodeTrainer(LongspanTrainer[ClassificationScores]):
    """A `Trainer` that reads a graph and learns the labels of some of its nodes.

    Args:
        inputs: what the model reads of the graph.
        known: `(n,)` the labels that propagate, see `known_labels`.
        measure: computes scores from logits (n, classes) and labels (n,).
        batch_nodes: labelled nodes in a batch; 0 for the full graph.
        fanout: neighbours that are drawn of each node in each hop.
        hops: hops of neighbours that are drawn.
        kwargs: arguments of `Trainer`. Data sets have the numbers of nodes as `node` and their classes as `labels`.
    """

    def __init__(
        self,
        *args: Any,
        inputs: NodeInputs,
        known: Tensor,
        measure: Callable[[Tensor, Tensor], ClassificationScores],
        batch_nodes: int,
        fanout: int,
        hops: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        # Nodes are counted instead: there is no padding.
        self.masks = ()
        self.inputs, self.measure, self.batch_nodes = inputs, measure, batch_nodes
        self.full = inputs.batch()
        self.scored_batch = {**self.full, **_known_stream(self.model, known)}
        self.nodes = np.asarray(self.train_dataset["node"][:])
        self.labels = np.asarray(self.train_dataset["labels"][:])
        self.around = Neighbourhoods(inputs.edges, len(inputs.positions), fanout, hops) if batch_nodes else None
        self.seed = data_seed(self.args)

    def get_train_dataloader(self) -> Loader:
        batches = NodeBatches(
            len(self.nodes), self.batch_nodes, self.seed, self.args.process_index, self.args.world_size
        )
        return Loader(
            Examples(),
            batch_sampler=batches,
            collate_fn=self.collated,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.pins,
        )

    def collated(self, drawn: list[Drawn]) -> dict[str, Tensor]:
        """Return the batch of the rows that were drawn: the full graph, or a part around their nodes."""
        ((epoch, number, rows),) = drawn
        nodes, labels = self.nodes[rows], self.labels[rows]
        if self.around is None:
            batch = self.full
            given = np.full(len(self.inputs.positions), IGNORED, np.int64)
            given[nodes] = labels
        else:
            random = np.random.default_rng((self.seed, epoch, number, self.args.process_index))
            # A share without nodes is a batch of one without a label, as all processes take part in every step.
            seeds = nodes if len(nodes) else self.nodes[:1]
            part, edges, which = self.around.part(seeds, random)
            batch = self.inputs.part(part, edges, which).batch()
            given = np.full(len(part), IGNORED, np.int64)
            given[: len(labels)] = labels
        return {**batch, "labels": torch.from_numpy(given).unsqueeze(0)}

    def padding_fraction(self) -> float:
        """Return 0: there is no padding."""
        return 0.0

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        self.real_tokens += inputs["nodes"].shape[1]
        return super().training_step(model, inputs, *args, **kwargs)

    def score(self, dataset: Dataset) -> ClassificationScores:
        """Return the scores of the logits for the nodes of a data set.

        Those of the validation split choose the scales of a model's two parts, before a checkpoint is saved.
        """
        found, parts = outputs_of(self.model, self.scored_batch)
        self._scored_a_batch()
        nodes, gold = torch.as_tensor(dataset["node"][:]), targets(dataset)
        if parts is None:
            return self.measure(found[nodes], gold)
        parts, wide = parts[nodes], self.model.wide
        if dataset is self.eval_dataset:
            wide.scales.copy_(balanced_scales(parts, gold))
            # Training fits the network alone.
            self.loss_as_trained = float(cross_entropy(parts[:, 1].double(), gold))
        both = wide.combined(*parts.unbind(1))
        self.remember_parts(dataset, functools.partial(compare_accuracies, correct_rows(parts, both, gold)))
        return self.measure(both, gold)

    def rehearse(self, dataset: Dataset) -> None:
        outputs_of(self.model, self.scored_batch)

    def scoring_sizes(self, dataset: Dataset) -> np.ndarray:
        # Scoring one node reads the full graph, as scoring all does.
        return np.eye(1, len(dataset), dtype=np.int64)[0]


@torch.no_grad()
def outputs_of(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Logits (n, classes) of a model for the nodes of a graph, and those of its two parts (n, 2, classes) if it has
    them, on the CPU."""
    with in_evaluation(model):
        found = model(**{name: each.to(model.device) for name, each in batch.items()})
    return found.logits[0].float().cpu(), None if found.parts is None else found.parts[0].float().cpu()


def known_labels(graph: Graph, classes: Sequence[str]) -> Tensor:
    """Labels (n,) of the training nodes of a graph, -100 for all others: label propagation may read these alone."""
    numbers = {name: number for number, name in enumerate(classes)}
    found = np.full(len(graph), IGNORED, np.int64)
    for node in graph.splits.get("train", np.zeros(0, np.int64)).tolist():
        found[node] = numbers.get(graph.classes[graph.labels[node]], IGNORED)
    return torch.from_numpy(found)


def _known_stream(model: Any, known: Tensor) -> dict[str, Tensor]:
    """Stream of labels that a model with simple models reads."""
    return {} if model.wide is None else {"known": known.unsqueeze(0)}


class NodeBatches(EpochSampler[list[Drawn]]):
    """Batches of rows, other ones in each epoch; processes share each.

    Args:
        rows: Their number.
        size: Rows of a batch and process; 0 for all rows at once.
        seed: Seed of the order.
        rank: Number of this process, from 0.
        world: Number of processes.
    """

    def __init__(self, rows: int, size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self.rows, self.seed, self.rank, self.world = rows, seed, rank, world
        self.together = size * world or rows

    def __len__(self) -> int:
        return -(-self.rows // self.together)

    def __iter__(self) -> Iterator[list[Drawn]]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.rows)
        for number, first in enumerate(range(0, self.rows, self.together)):
            yield [(self.epoch, number, order[first : first + self.together][self.rank :: self.world])]


@dataclass(frozen=True)
class NodePrediction(Prediction):
    """The most likely label of a node, and the probabilities of all labels."""

    node: str | None = None
    label: str | None = None
    probabilities: dict[str, float] | None = None


@dataclass(frozen=True)
class PreparedGraph(Prepared[GraphProcessor]):
    """A graph that is ready for training, with what the model reads of it."""

    inputs: Any = None
    known: Any = None


@dataclass(frozen=True)
class Nodes:
    """Nodes of one split, and the graph that they are of."""

    rows: Dataset
    graph: Graph

    def __len__(self) -> int:
        return len(self.rows)


NodeRun = Run[GraphData, TrainingOptions, GraphProcessor]


class NodePipeline(Pipeline[tuple[Graph, int], Tensor, GraphProcessor]):
    """Nodes of graphs, each of which is read once for all of its nodes in a row."""

    example = "a node"

    def __init__(self, run: NodeRun, options: Any) -> None:
        super().__init__(run, options)
        self.names = labels(self.model.config)
        self._graph: Graph | None = None
        self._logits = torch.zeros(0, len(self.names))
        self._parts: Tensor | None = None
        # Nodes that are scored do not read their own labels.
        self.scored = torch.zeros(0, dtype=torch.long)

    def preprocess(self, rows: Sequence[Row]) -> Iterator[ModelInput[tuple[Graph, int]]]:
        for row in rows:
            yield ModelInput((row.values["graph"], row.values["node"]))

    def forward(self, inputs: Sequence[ModelInput[tuple[Graph, int]]]) -> Iterator[Tensor]:
        for one in inputs:
            graph, node = one.value
            yield self.logits(graph)[node]

    def logits(self, graph: Graph) -> Tensor:
        """Logits of all nodes of a graph, (n, classes)."""
        if graph is not self._graph:
            known = known_labels(graph, self.names).index_fill(0, self.scored, IGNORED)
            batch = self.processor.inputs(graph).batch() | _known_stream(self.model, known)
            self._graph, (self._logits, self._parts) = graph, outputs_of(self.model, batch)
        return self._logits

    def postprocess(self, row: Row, read: ModelInput[tuple[Graph, int]], output: Tensor) -> NodePrediction:
        graph, node = read.value
        own = dict(zip(self.names, output.softmax(-1).tolist(), strict=True))
        return NodePrediction(row.where, None, graph.names[node], max(own, key=lambda each: own[each]), own)

    def encode(self, examples: Any, split: str) -> Dataset:
        graph, numbers = examples.graph, {name: place for place, name in enumerate(self.names)}
        if unknown := set(graph.classes) - numbers.keys():
            raise UserError(
                f"expected only classes of the training graph in {graph.source}, got {min(unknown)!r}; remove it."
            )
        self.graph, gold = graph, targets(examples.rows)
        self.gold = gold.new_tensor([numbers[graph.classes[place]] for place in gold.tolist()])
        rows: Dataset = examples.rows
        self.scored = torch.as_tensor(rows["node"][:])
        return rows

    def check_lengths(self, encoded: Dataset) -> None:
        """Do nothing: a graph may have any number of nodes."""

    def outputs(self, encoded: Dataset) -> Tensor:
        return self.logits(self.graph)[encoded["node"][:]]

    def score(
        self, examples: Any, encoded: Dataset, outputs: Tensor, folder: Path
    ) -> tuple[ClassificationScores, dict[str, Any]]:
        gold, names = self.gold, self.names
        parts = {}
        if self._parts is not None:
            right = correct_rows(self._parts[encoded["node"][:]], outputs, gold)
            parts = {"parts": compare_accuracies(right).to_dict()}
        scores = classification_scores(outputs, gold, names)
        from longspan.report.calibration import calibration
        from longspan.report.confusion import confusion

        confusion(scores.confusion, names, folder / "confusion.png")
        calibration(scores.reliability, scores.calibration_error, folder / "calibration.png")
        return scores, {
            "nodes": len(gold),
            "labels": names,
            "graph": _described(self.graph),
            **parts,
            "mistakes": class_errors(outputs, gold, names).among(encoded),
            "label_issues": label_issues(outputs, gold, names).among(encoded),
        }


class NodeClassification(PipelineTask[ClassificationScores, GraphData, TrainingOptions, GraphProcessor]):
    """A class for each node of a graph, some of whose nodes have a label."""

    data_config = GraphData
    pipeline_class = NodePipeline
    trainer_class = NodeTrainer
    length_key = ""
    training_options = TrainingOptions
    prediction_options = PredictionOptions
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
        run: NodeRun,
        paths: Sequence[Path | str],
        data: GraphData,
        stdin: BinaryIO | None,
    ) -> Iterator[Row]:
        options = run.prediction or PredictionOptions()
        for path in paths:
            if str(path) == "-":
                raise UserError("expected files of graphs, got standard input; name a file.")
            graph = read_graph(path, with_graph(data, path), training=False)
            wanted = [name.strip() for name in options.nodes.split(",") if name.strip()]
            numbers = numbered(graph.names, wanted, graph.source) if wanted else np.arange(len(graph))
            for number in numbers.tolist():
                yield Row({"graph": graph, "node": number}, f"node {graph.names[number]} of {graph.source}", "")

    def inputs_in_memory(self, run: NodeRun, given: Any, data: GraphData) -> Iterator[Row]:
        return self.inputs_of(run, [with_graph(data, given).path], data, None)

    def prepare(self, recipe: Recipe[GraphData, TrainingOptions]) -> PreparedGraph:
        data = recipe.data
        graph = read_graph(data.path, data, training=True)
        check_validation(graph.splits)
        processor = GraphProcessor.of(graph, data)
        splits = _rows(graph)
        absent = set(range(len(graph.classes))) - set(splits["train"]["labels"][:])
        if absent:
            names = sorted(graph.classes[number] for number in absent)
            note(
                f"no training node of {graph.source} has the class {names[0]!r}"
                + (f", nor {len(names) - 1} others" if len(names) > 1 else "")
                + ": the model cannot learn it, and nodes of it count as errors"
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
            known=known_labels(graph, graph.classes),
        )

    # What is trained

    def trainer_options(
        self,
        recipe: Recipe[GraphData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared[GraphProcessor],
    ) -> dict[str, Any]:
        assert isinstance(prepared, PreparedGraph)
        options = recipe.options
        return {
            "inputs": prepared.inputs,
            "known": prepared.known,
            "measure": lambda logits, gold: classification_scores(logits, gold, labels(model.config)),
            "batch_nodes": options.batch_nodes,
            "fanout": options.fanout,
            "hops": options.hops or model.config.depth,
        }

    # What a trained model does

    def case(self, run: NodeRun, row: Row, of: str, at: float | None) -> Case:
        no_place(at)
        pipeline: NodePipeline = self.pipeline(run)
        read_row(pipeline, row)
        (prediction,) = predictions(pipeline, [row])
        assert isinstance(prediction, NodePrediction)
        assert prediction.label is not None
        graph, model = row.values["graph"], run.model
        batch = {name: each.to(model.device) for name, each in run.processor.inputs(graph).batch().items()}
        known = _known_stream(model, known_labels(graph, labels(model.config)))
        batch |= {name: each.to(model.device) for name, each in known.items()}
        batch["attention_mask"] = torch.ones_like(batch["nodes"])
        asked = class_asked(labels(model.config), of or prediction.label).at(row.values["node"])
        question = Question(model, batch, asked.value, asked.share, masked=False, rows=1, at=row.values["node"])
        first = np.arange(len(graph))
        places = Places("nodes", np.stack([first, first + 1], 1), names=list(graph.names))
        return Case(row.where, asked, question, places, prediction.to_dict())

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
