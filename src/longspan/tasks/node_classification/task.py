"""Node classification: `NodeClassification`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from torch import Tensor
from torch.utils.data import Dataset as Rows
from torch.utils.data import Sampler
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.columns.kinds import Column, Label
from longspan.data.graphs.graph import UNLABELLED, Graph, numbered
from longspan.data.graphs.neighbours import Neighbourhoods
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
from longspan.models.parts.losses import IGNORED
from longspan.report import count, table
from longspan.results import Prediction
from longspan.tasks.base.case import Case, class_asked, no_place
from longspan.tasks.base.classes import ClassificationScores, classification_scores, labels
from longspan.tasks.base.mistakes import class_errors, label_issues
from longspan.tasks.base.task import Baseline, Prepared, Recipe, Run, Task, baselines_in, check_validation
from longspan.tasks.node_classification import baselines
from longspan.tasks.node_classification.options import NodePredictionOptions, NodeTrainingOptions
from longspan.training.base import LongspanTrainer
from longspan.training.lengths import Loader, data_seed, targets

Drawn = tuple[int, int, np.ndarray]
"""The epoch and the number of a batch, and the rows of the data set in it."""


class NodeTrainer(LongspanTrainer[ClassificationScores]):
    """A `Trainer` that reads a graph and learns the labels of some of its nodes.

    Args:
        inputs: what the model reads of the graph.
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
        self.nodes = np.asarray(self.train_dataset["node"][:])
        self.labels = np.asarray(self.train_dataset["labels"][:])
        self.around = Neighbourhoods(inputs.edges, len(inputs.positions), fanout, hops) if batch_nodes else None
        self.seed = data_seed(self.args)

    def get_train_dataloader(self) -> Loader:
        batches = NodeBatches(
            len(self.nodes), self.batch_nodes, self.seed, self.args.process_index, self.args.world_size
        )
        return Loader(
            _Itself(),
            batch_sampler=batches,
            collate_fn=self.collated,
            num_workers=self.args.dataloader_num_workers,
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
        """Return the scores of the logits for the nodes of a data set."""
        found = logits_of(self.model, self.full)
        self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        return self.measure(found[torch.as_tensor(dataset["node"][:])], targets(dataset))

    def rehearse(self, dataset: Dataset) -> None:
        logits_of(self.model, self.full)

    def validation_sizes(self) -> np.ndarray:
        # Scoring one node reads the full graph, as scoring all does.
        return np.ones(len(self.eval_dataset), dtype=np.int64)


@torch.no_grad()
def logits_of(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return a model's logits (n, classes) for the nodes of a graph, on the CPU."""
    training = model.training
    model.eval()
    try:
        found: Tensor = model(**{name: each.to(model.device) for name, each in batch.items()}).logits[0]
    finally:
        model.train(training)
    return found.float().cpu()


class NodeBatches(Sampler[list[Drawn]]):
    """Batches of rows, other ones in each epoch; processes share each.

    Args:
        rows: How many there are.
        size: Rows of a batch and process; 0 for all rows at once.
        seed: Seed of the order.
        rank: Number of this process, from 0.
        world: Number of processes.
    """

    def __init__(self, rows: int, size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self.rows, self.seed, self.rank, self.world = rows, seed, rank, world
        self.together = size * world or rows
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Shuffle as for this epoch, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.rows // self.together)

    def __iter__(self) -> Iterator[list[Drawn]]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.rows)
        for number, first in enumerate(range(0, self.rows, self.together)):
            yield [(self.epoch, number, order[first : first + self.together][self.rank :: self.world])]


class _Itself(Rows[Any]):
    """A data set whose examples are what its sampler says."""

    def __getitem__(self, drawn: Drawn) -> Drawn:
        return drawn


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
