"""Node classification from data to predictions."""

import base64
import json
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch

from longspan import evaluate, predict, recipes, train
from longspan.errors import UserError
from longspan.models import LongspanForNodeClassification
from longspan.models.embeddings.nodes import Nodes
from longspan.serving.model import Limits, Service
from longspan.tasks.node_classification.task import NodeBatches
from longspan.testing import check_task

SMALL = ["model.dim=8", "model.heads=2", "model.depth=1", "model.dropout=0.0", "data.validation_fraction=0.3"]


def ring(nodes: int = 60) -> networkx.Graph:
    """A ring in two halves with a class each, whose features say little."""
    random = np.random.default_rng(0)
    graph = networkx.cycle_graph(nodes)
    for node, values in graph.nodes(data=True):
        upper = node < nodes // 2
        values["label"] = "upper" if upper else "lower"
        values["near"], values["far"] = (float(x) for x in random.random(2) + np.array([0.5 * upper, 0.5]))
    return graph


def tables(folder: Path) -> Path:
    graph = ring()
    rows = ["node,near,far,label"]
    rows += [f"{node},{values['near']},{values['far']},{values['label']}" for node, values in graph.nodes(data=True)]
    (folder / "nodes.csv").write_text("\n".join(rows), encoding="utf-8")
    edges = [f"{a},{b}" for a, b in graph.edges]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]), encoding="utf-8")
    return folder / "nodes.csv"


def test_keeps_the_promises(tmp_path: Path) -> None:
    data = tables(tmp_path)
    check_task("node_classification", data, [f"data.edges={tmp_path / 'edges.csv'}", *SMALL])


def test_nodes_over_http(tmp_path: Path) -> None:
    settings = [*SMALL, "training.num_train_epochs=1"]
    run = train("nodes", settings, data=ring(), run=tmp_path / "run", progress=False)
    service, file = Service(run.loaded, Limits()), ring_file(tmp_path)
    sent = {"name": file.name, "bytes": base64.b64encode(file.read_bytes()).decode()}
    found = [one.to_dict() for one in predict(run.loaded, service.rows([sent]))]
    assert found == [one.to_dict() for one in predict(run.loaded, file)]
    assert len(found) == 60
    # An edge is a row of another file.
    with pytest.raises(UserError, match="rows of a table as JSON"):
        service.rows([sent | {"name": "nodes.csv"}])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


def test_trains_on_a_graph_in_memory(folder: Path) -> None:
    graph = ring()
    graph.add_node("alone", near=1.0, far=1.0)
    run = train(
        "nodes",
        [*SMALL, "model.depth=2", "model.feature_dropout=0.0", "training.num_train_epochs=60", "training.seed=0",
         "training.learning_rate=0.03", "data.walk_positions=2", "model.mixer_options.graph.attention_dropout=0.0"],
        data=graph,
        run=folder / "run",
        progress=False,
    )  # fmt: skip
    # A node's own features find about three of four.
    assert run.scores["validation"].accuracy > 0.8
    assert run.data["graph"]["isolated"] == 1
    assert run.data["graph"]["unlabelled"] == 1
    assert run.evaluate(split="validation").scores.accuracy == run.scores["validation"].accuracy
    found = list(run.predict(graph))
    assert [one.node for one in found] == [str(node) for node in graph.nodes]
    assert sum(found[0].probabilities.values()) == pytest.approx(1)
    some = list(predict(folder / "run", ring_file(folder), nodes="59, 3"))
    assert [one.node for one in some] == ["59", "3"]
    with pytest.raises(UserError, match="names of nodes, got 'nobody'"):
        list(predict(folder / "run", ring_file(folder), nodes="nobody"))
    weighed = run.explain(graph, row=31, method="weight")
    read = {place for place, score in enumerate(weighed.scores) if score}
    # A node reads itself and its neighbours, with all of its weight.
    assert read == {29, 30, 31}
    assert sum(weighed.scores) == pytest.approx(1)
    assert list(weighed.parts) == [f"layer {layer}, head {head}, attention" for layer in (1, 2) for head in (1, 2)]
    model = LongspanForNodeClassification.from_pretrained(folder / "run")
    assert model.config.head.kind() == "node_classification"
    saved = json.loads((folder / "run" / "processor.json").read_text())
    assert saved["walk_positions"] == 2


def ring_file(folder: Path) -> Path:
    path = folder / "ring.graphml"
    networkx.write_graphml(ring(), path)
    return path


def test_sampled_training_with_a_global_mixer_and_features_of_edges(tmp_path: Path) -> None:
    graph = ring(40)
    for _, _, values in graph.edges(data=True):
        values["weight"] = 1.0
    run = train(
        "nodes",
        [*SMALL, 'model.mixers=["graph", "linear"]', "model.depth=2", 'data.edge_feature_columns=["weight"]',
         "training.batch_nodes=8", "training.fanout=2", "training.num_train_epochs=1"],
        data=graph,
        run=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    assert run.steps == 4
    assert run.model.longspan.backbone.layers[0].mixer.edge_width == 1
    assert evaluate(tmp_path / "run", graph).scores.loss > 0
    other = networkx.path_graph(3)
    networkx.set_edge_attributes(other, 1.0, "weight")
    with pytest.raises(UserError, match=r"expected 2 features of nodes in .*, got 0"):
        list(run.predict(other))


def test_baselines(tmp_path: Path) -> None:
    data = tables(tmp_path)
    recipe = recipes.load("nodes", [f"data.path={data}", f"data.edges={tmp_path / 'edges.csv'}", *SMALL])
    found = {name: kind().fit(recipe).scores["validation"].accuracy for name, kind in recipe.task.baselines().items()}
    assert sorted(found) == ["label_propagation", "linear", "logistic", "sgc"]
    # Of a ring in two halves, neighbours say more than a node's own features.
    assert found["logistic"] < min(found["sgc"], found["label_propagation"])
    assert found["label_propagation"] > 0.9


def test_batches_have_each_node_once_whatever_shares_them() -> None:
    alone = NodeBatches(10, 4, seed=0)
    shares = [NodeBatches(10, 2, 0, rank, 2) for rank in (0, 1)]
    for batches in (alone, *shares):
        batches.set_epoch(3)
    rows = [rows for [(_, _, rows)] in alone]
    assert len(alone) == len(rows) == 3
    assert sorted(np.concatenate(rows).tolist()) == list(range(10))
    for whole, *parts in zip(rows, *([rows for [(_, _, rows)] in each] for each in shares), strict=True):
        assert sorted(np.concatenate(parts).tolist()) == sorted(whole.tolist())


@pytest.mark.parametrize("features", [1, 5])
def test_embeddings_are_a_layer_of_dense_features(features: int) -> None:
    embeddings = Nodes(features, 2, 4, 0.0).double()
    assert embeddings.places is not None
    table = torch.randn(2, 3, features, dtype=torch.float64) * (torch.rand(2, 3, features) < 0.5)
    table[:, 1] = 0.5
    places = torch.randn(2, 3, 2, dtype=torch.float64)
    sizes = (table != 0).sum(2)
    columns, values = (torch.zeros(2, 3 * features, dtype=kind) for kind in (torch.long, torch.float64))
    for row in range(2):
        node, column = table[row].nonzero().T
        columns[row, : len(column)], values[row, : len(column)] = column, table[row][node, column]
    found = embeddings({"nodes": sizes, "columns": columns, "values": values, "places": places})
    expected = embeddings.features(table) + embeddings.places(places)
    torch.testing.assert_close(found, expected)
    weight = embeddings.features.weight
    (gradient,) = torch.autograd.grad(expected.square().sum(), weight)
    found.square().sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, gradient)
    # DistributedDataParallel warns of others.
    assert weight.grad.stride() == weight.stride()


def test_features_with_units_are_learned(tmp_path: Path) -> None:
    """Classes that depend on one feature, beside others in other units."""
    random = np.random.default_rng(0)
    graph = networkx.Graph()
    for node in range(400):
        age, height, income = random.uniform(18, 80), random.normal(1.7, 0.1), random.uniform(1e4, 9e4)
        graph.add_node(node, age=age, height=height, income=income, label="old" if age > 49 else "young")
    old = [values["label"] == "old" for _, values in graph.nodes(data=True)]
    for node in graph:
        alike = [other for other in graph if old[other] == old[node]]
        graph.add_edges_from((node, int(other)) for other in random.choice(alike, 3))
    run = train("nodes", ["training.num_train_epochs=40", "training.seed=0"], data=graph, run=tmp_path, progress=False)
    assert run.scores["validation"].accuracy > 0.95
    assert json.loads((tmp_path / "processor.json").read_text())["normalize"] == "columns"
    assert run.evaluate(split="validation").scores.accuracy == run.scores["validation"].accuracy
