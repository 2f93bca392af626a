"""Graph classification from data to predictions."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from longspan import recipes, train
from longspan.data.graphs.many import GraphsData, GraphsProcessor
from longspan.data.processor import Unreadable
from longspan.models.wide.linear import GraphPart
from longspan.testing import check_task

SMALL = ["model.dim=16", "model.heads=2", "model.depth=2", "model.dropout=0.0", "data.validation_fraction=0.3"]


def far_apart(count: int) -> list[dict[str, Any]]:
    """Paths whose ends have one of two colours each, over three to seven nodes: the class is whether both are alike.

    No node sees both ends in two layers, and each end's colour alone says nothing.
    """
    choose = random.Random(0)
    found = []
    for _ in range(count):
        ends = choose.choice("rb"), choose.choice("rb")
        first, last = (colour * choose.randint(3, 7) for colour in ends)
        nodes = [*first, *"n" * choose.randint(5, 12), *last]
        edges = [[number, number + 1] for number in range(len(nodes) - 1)]
        found.append({"nodes": nodes, "edges": edges, "label": "same" if ends[0] == ends[1] else "different"})
    return found


@pytest.mark.slow
def test_keeps_the_promises(tmp_path: Path) -> None:
    data = tmp_path / "graphs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in far_apart(60)), encoding="utf-8")
    check_task("graph_classification", data, [*SMALL, "data.walk_positions=2"])


@pytest.mark.slow
@pytest.mark.parametrize(("mixers", "solved"), [('["graph", "softmax"]', True), ('["graph"]', False)])
def test_what_is_far_apart_needs_a_global_mixer(mixers: str, solved: bool, tmp_path: Path) -> None:
    """A linear classifier of the mean over nodes, none of which has seen both ends, is right for half or three of four.

    Its logit is a sum over both ends, of which "same" is no monotonous function. Over ten seeds, accuracies were 0.98
    or more with the global mixer, and 0.79 or less without.
    """
    run = train(
        "graphs",
        [*SMALL, "model.wide=false", "model.dim=32", f"model.mixers={mixers}", "model.pooling=mean",
         "training.num_train_epochs=30", "training.seed=0", "training.learning_rate=0.003", "training.min_steps=0",
         "training.per_device_train_batch_size=8", "training.eval_strategy=no", "training.save_strategy=no",
         "training.load_best_model_at_end=false"],
        data=far_apart(320),
        run=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    assert (run.scores["validation"].accuracy > 0.88) is solved


def test_counts_of_degrees_as_a_baseline(tmp_path: Path) -> None:
    rows = [
        {
            "nodes": ["n"] * nodes,
            "edges": [[node, node + 1] for node in range(nodes - 1)] + [[nodes - 1, 0]] * closed,
            "label": "ring" if closed else "path",
        }
        for nodes in range(5, 25)
        for closed in (0, 1)
    ]
    (tmp_path / "graphs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = recipes.load("graphs", [f"data.path={tmp_path / 'graphs.jsonl'}", *SMALL])
    # A path has two nodes of degree 1.
    assert recipe.task.baselines()["degrees"]().fit(recipe).scores["validation"].accuracy == 1


def test_features_of_the_linear_model() -> None:
    part = GraphPart(2, 3)
    # Two graphs: a triangle of types 0, 0 and 1 with a loop, and one node of type 1.
    nodes, mask = torch.tensor([[1, 1, 1], [1, 0, 0]]), torch.tensor([[True, True, True], [True, False, False]])
    columns, values = torch.tensor([[0, 0, 1], [1, 0, 0]]), torch.tensor([[1.0, 1, 1], [1, 0, 0]])
    ends = [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0), (0, 0)]
    edges = torch.tensor([(0, *pair) for pair in ends] + [(1, 0, 0)]).T
    streams = {"nodes": nodes, "columns": columns, "values": values, "edges": edges}
    found = part.features(mask, None, **streams).expm1()
    types, degrees, pairs = found.split([2, 33, 4], 1)
    assert types.round().tolist() == [[2, 1], [0, 1]]
    assert degrees[0].round().nonzero().flatten().tolist() == [2]
    assert degrees[1].round().nonzero().flatten().tolist() == [0]
    assert pairs.round().tolist() == [[2, 2, 2, 0], [0, 0, 0, 0]]
    # Without its last node, the triangle is an edge.
    rest = part.features(mask, torch.tensor([[1.0, 1, 0], [1, 1, 1]]), **streams).expm1()
    assert rest.round()[0].nonzero().flatten().tolist() == [0, 3, 35]


def test_the_linear_model_is_reported(tmp_path: Path) -> None:
    sizes = [(kind, nodes) for nodes in range(8, 28) for kind in range(3)]
    rows = [
        {"nodes": ["n"] * nodes, "edges": [[0, n] for n in range(1, 3 + 2 * kind)], "label": str(kind)}
        for kind, nodes in sizes
    ]
    run = train("graphs", [*SMALL, "training.min_steps=0"], data=rows, run=tmp_path / "run", progress=False)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["parts"]["values"]["counts"] == 1 == run.scores["validation"].accuracy
    assert run.evaluate(split="validation").scores.accuracy == 1


def test_edges_of_missing_nodes_and_unknown_types() -> None:
    processor = GraphsProcessor(["C", "O"], 0)
    (found,) = processor.encode({"nodes": [["C", "X", "O"]], "edges": [[0.0, 1.0]]}, GraphsData())
    assert found.streams["nodes"].tolist() == [1, 0, 1]
    assert found.streams["columns"].tolist() == [0, 1]
    assert found.streams["edges"].tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [2, 2]]
    for wrong in (3.0, -1.0, 0.5):
        with pytest.raises(Unreadable, match="expected edges between nodes 0 to 2 of a graph, got one of node"):
            processor.encode({"nodes": [["C", "C", "O"]], "edges": [[0.0, wrong]]}, GraphsData())


@pytest.mark.slow
def test_an_explanation_says_which_nodes(tmp_path: Path) -> None:
    """A red node decides; the others are alike but for what they read of it."""
    rows = [
        {
            "nodes": ["n"] * 5 + ["r" if red else "n"] + ["n"] * more,
            "edges": [[node, node + 1] for node in range(5 + more)],
            "label": str(red),
        }
        for more in range(40)
        for red in (0, 1)
    ]
    run = train(
        "graphs", [*SMALL, "model.mixers=graph", "model.pooling=mean", "training.num_train_epochs=10",
        "training.learning_rate=0.01", "training.min_steps=0"], data=rows, run=tmp_path / "run", progress=False
    )  # fmt: skip
    found = run.explain(rows[9], of="1", check=True)
    assert (found.places, found.spans[5]) == ("nodes", [5, 6])
    pieces = found.pieces()
    assert pieces[5].text == "node 5 (r)"
    # Its neighbours, which have read it, speak for the class as well.
    strongest = sorted(pieces, key=lambda one: -one.score)[:3]
    assert {one.start for one in strongest} == {4, 5, 6}
    assert found.checks is not None
    assert "weight" in found.checks
    assert found.checks["removal"]["comprehensiveness"] > found.checks["random"]["comprehensiveness"]


def test_shapes_of_nodes_of_one_type_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for nodes in range(5, 65):
        rows.append({"nodes": ["n"] * nodes, "edges": [[0, n] for n in range(1, nodes)], "label": "star"})
        rows.append({"nodes": ["n"] * nodes, "edges": [[n, (n + 1) % nodes] for n in range(nodes)], "label": "ring"})
    run = train(
        "graphs", [*SMALL, "training.num_train_epochs=10", "training.min_steps=0"], data=rows, run=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    assert "nodes have one type only: how many neighbours each has is its feature" in capsys.readouterr().err
    assert run.scores["validation"].accuracy == 1
    larger = {"nodes": ["n"] * 300, "edges": [[0, n] for n in range(1, 300)]}
    assert [one.label for one in run.predict([larger])] == ["star"]


def test_degrees_are_no_features_where_types_or_walks_are(tmp_path: Path) -> None:
    nodes, edges = [["C", "C"], ["C", "C", "C"]], [[0.0, 1.0], [0.0, 1.0, 2.0, 1.0]]
    one = Dataset.from_dict({"nodes": nodes, "edges": edges})
    two = Dataset.from_dict({"nodes": [["C", "O"], nodes[1]], "edges": edges})
    assert GraphsProcessor.learned(one, GraphsData()) == GraphsProcessor(["C"], 0, 3)
    assert GraphsProcessor.learned(two, GraphsData()) == GraphsProcessor(["C", "O"], 0)
    assert GraphsProcessor.learned(one, GraphsData(walk_positions=2)) == GraphsProcessor(["C"], 2)
    # As earlier releases saved them.
    (tmp_path / "processor.json").write_text('{"types": ["C"], "walk_positions": 0}', encoding="utf-8")
    assert GraphsProcessor.from_pretrained(tmp_path) == GraphsProcessor(["C"], 0)
    (found,) = GraphsProcessor(["C"], 0, 3).encode({"nodes": [["C", "X", "C"]], "edges": [edges[1]]}, GraphsData())
    assert found.streams["nodes"].tolist() == [2, 1, 2]
    assert found.streams["columns"].tolist() == [0, 2, 3, 0, 2]
