"""Simple models inside node classifiers: logistic regression and propagated labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longspan import evaluate, explain, load, predict, recipes, train
from longspan.errors import UserError
from longspan.models import LongspanForNodeClassification
from longspan.models.parts.losses import IGNORED
from longspan.models.wide.nodes import STEPS, NodePart
from longspan.ops.propagation import propagate_naive
from longspan.tasks.base.task import Baseline
from longspan.tasks.node_classification.baselines.label_propagation import LabelPropagation
from longspan.tasks.node_classification.baselines.linear import Linear

FEW_STEPS = ["training.num_train_epochs=10", "model.dim=8", "training.seed=0"]


def saved(path: Path, features: np.ndarray, edges: list[tuple[int, int]], labels: np.ndarray, train: int) -> Path:
    """Write a graph whose first nodes are for training, and the others for validation and testing, half each."""
    count = len(labels)
    row, column = np.nonzero(features)
    half = (train + count) // 2
    parts: dict[str, Any] = {"train": np.arange(train), "valid": np.arange(train, half), "test": np.arange(half, count)}
    np.savez(
        path,
        feature_row=row,
        feature_col=column,
        feature_value=features[row, column].astype(np.float32),
        shape=np.array(features.shape),
        label=labels,
        edges=np.array(edges),
        **parts,
    )
    return path


def web_graph(folder: Path, count: int = 240) -> Path:
    """Pages whose words tell their class, and whose links lead to other classes."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, count)
    topics = random.dirichlet(np.full(120, 0.2), 3)
    words = np.stack([random.multinomial(25, topics[label]) > 0 for label in labels]).astype(float)
    edges = []
    for node in range(count):
        others = np.flatnonzero(labels != labels[node])
        edges += [(node, int(other)) for other in random.choice(others, 3)]
    return saved(folder / "web.npz", words, edges, labels, count // 2)


def citation_graph(folder: Path, count: int = 600) -> Path:
    """Papers with features that tell little, most of which cite papers of their class."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, count)
    features = random.normal(size=(count, 20)) + 0.15 * random.normal(size=(4, 20))[labels]
    edges = []
    for node in range(count):
        same = np.flatnonzero(labels == labels[node])
        for chosen in random.random(2) < 0.8:
            edges.append((node, int(random.choice(same) if chosen else random.integers(count))))
    return saved(folder / "citations.npz", features, edges, labels, count // 3)


def fitted(kind: type[Baseline[Any]], path: Path) -> Any:
    return kind().fit(recipes.load("nodes", [f"data.path={path}"]))


def test_features_alone_count_where_neighbours_are_of_other_classes(tmp_path: Path) -> None:
    found = fitted(Linear, web_graph(tmp_path))
    assert found.scores["test"].accuracy > 0.9
    assert found.chosen["own features"] > 0.5
    assert found.chosen.get("propagated labels", 0) < 0.05


def test_labels_propagate_where_features_tell_little(tmp_path: Path) -> None:
    path = citation_graph(tmp_path)
    found, labels = fitted(Linear, path), fitted(LabelPropagation, path)
    assert found.chosen["propagated labels"] > 0
    assert found.scores["test"].accuracy > labels.scores["test"].accuracy > 0.7


def test_logits_are_those_of_the_formula() -> None:
    random = torch.Generator().manual_seed(0)
    table = torch.randn(7, 5, generator=random) * (torch.rand(7, 5, generator=random) < 0.5)
    places = torch.randn(7, 2, generator=random)
    edges = torch.randint(7, (2, 20), generator=random).unique(dim=1)
    part = NodePart(7, 3)
    for tensor in (part.weight, part.bias, part.shares):
        tensor.copy_(torch.randn(tensor.shape, generator=random))
    part.hops.fill_(2)
    part.base.fill_(1)
    part.retained.fill_(0.8)
    known = torch.tensor([2, IGNORED, 0, IGNORED, IGNORED, 1, IGNORED])
    row, column = table.nonzero().unbind(1)
    streams = (table.count_nonzero(1)[None], column[None], table[row, column][None], places[None])
    found = part(*streams, torch.cat((torch.zeros(1, edges.shape[1], dtype=torch.long), edges)), known[None])[0]

    features = torch.cat((table, places), 1)
    own = features @ part.weight[0] + part.bias[0]
    passed = propagate_naive(features, edges[0], edges[1], 2) @ part.weight[1] + part.bias[1]
    start = passed.softmax(-1)
    start[known != IGNORED] = torch.eye(3)[known[known != IGNORED]]
    spread = propagate_naive(start, edges[0], edges[1], STEPS, 1 - float(part.retained))
    spread = spread / spread.sum(1, keepdim=True)
    spread = torch.where(spread.isnan(), 1 / 3, spread)
    expected = part.shares[0] * own + part.shares[1] * passed + part.shares[2] * (0.99 * spread + 0.01 / 3).log()
    # Sums of at most 20 products of numbers of about 1, in other orders.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def run_and_graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("wide")
    path = citation_graph(folder)
    return train("nodes", [f"data.path={path}", *FEW_STEPS], run=folder / "run", progress=False), path


def test_parts_are_reported_and_saved(run_and_graph: tuple[Any, Path]) -> None:
    run, path = run_and_graph
    metrics = json.loads((Path(run.folder) / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["test_parts"]["values"]["both"] == pytest.approx(run.scores["test"].accuracy)
    assert metrics["parts"]["values"]["counts"] > 0.7
    loaded = load(run.folder)
    scored = loaded.evaluate()
    assert scored.scores.accuracy == run.scores["test"].accuracy
    assert scored.details["parts"]["values"] == metrics["test_parts"]["values"]
    assert len(list(predict(run.folder, path))) == 600
    assert len(explain(run.folder, path, row=3).scores) == 600


def test_only_labels_of_training_nodes_are_read(run_and_graph: tuple[Any, Path], tmp_path: Path) -> None:
    run, path = run_and_graph
    arrays = dict(np.load(path))
    hidden = np.concatenate((arrays["valid"], arrays["test"]))
    before = [one.probabilities for one in predict(run.folder, path)]
    arrays["label"][hidden] = (arrays["label"][hidden] + 1) % 4
    np.savez(tmp_path / "other.npz", **arrays)
    assert [one.probabilities for one in predict(run.folder, tmp_path / "other.npz")] == before
    arrays["label"][arrays["train"]] = 0
    np.savez(tmp_path / "other.npz", **arrays)
    assert [one.probabilities for one in predict(run.folder, tmp_path / "other.npz")] != before


def test_scored_nodes_do_not_read_their_labels(run_and_graph: tuple[Any, Path], tmp_path: Path) -> None:
    run, path = run_and_graph
    arrays = dict(np.load(path))
    random = np.random.default_rng(1)
    arrays["label"][arrays["train"]] = random.integers(0, 4, len(arrays["train"]))
    np.savez(tmp_path / "random.npz", **arrays)
    assert evaluate(run.folder, tmp_path / "random.npz", split="train").scores.accuracy < 0.4


def test_a_graph_without_edges_is_refused(run_and_graph: tuple[Any, Path]) -> None:
    run, _ = run_and_graph
    model = run.model
    assert isinstance(model, LongspanForNodeClassification)
    with pytest.raises(UserError, match="expected nodes and edges"):
        model(nodes=torch.ones(1, 3, dtype=torch.long))


def test_nodes_of_a_class_without_a_training_node_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = citation_graph(tmp_path, 200)
    arrays = dict(np.load(path))
    arrays["label"][arrays["test"][:10]] = 4
    np.savez(path, **arrays)
    run = train("nodes", [f"data.path={path}", *FEW_STEPS], run=tmp_path / "run", progress=False)
    assert "has the class '4'" in capsys.readouterr().err
    assert run.scores["test"].per_class["4"] == {"precision": 0, "recall": 0, "f1": 0, "support": 10}
    assert all(one.label != "4" for one in predict(run.folder, path))
