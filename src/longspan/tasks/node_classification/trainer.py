"""Training of node classifiers: on the full graph at once, or on neighbourhoods drawn around some nodes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import Dataset as Rows
from torch.utils.data import Sampler

from longspan.data.graphs.neighbours import Neighbourhoods
from longspan.data.graphs.processor import NodeInputs
from longspan.models.losses import IGNORED
from longspan.tasks.class_scores import ClassificationScores
from longspan.training.base import LongspanTrainer
from longspan.training.lengths import targets
from longspan.training.loader import Loader, data_seed

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
