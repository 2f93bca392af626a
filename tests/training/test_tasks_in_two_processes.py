"""Every task trains in two processes as in one, with whole and with divided weights: the same complete run."""

import json
from pathlib import Path
from typing import Any

import outside
import pytest
import torch
from safetensors.torch import load_file
from torchrun import in_two_processes

from longspan import recipes, tasks, train
from longspan.verbs.runs import load_run

HERE = Path(__file__).parent
# In the last batch of an epoch, some of these leave a process without a row.
NUMBER = 13
#: What test_two_processes.py trains, with interruptions and all else.
ELSEWHERE = ["document_classification", "language_modelling"]
#: Of what each other task reads, besides the columns that all share.
KEYS: dict[str, list[str]] = {
    "audio_classification": ["data.sample_rate=1000", "data.bands=4", "data.speed=0.2", "data.noise=0.1"],
    "document_pairs": [],
    "document_regression": ['data.label_column="stars"'],
    "evidence": [],
    "frame_labelling": [
        "data.sample_rate=1000",
        "data.bands=4",
        "data.max_length=12",
        "data.speed=0.2",
        "data.shift=0.02",
    ],
    "graph_classification": [],
    "image_classification": [],
    "masked_spans": ['model.mixers=["messages"]', 'model.decoder_mixers=["softmax"]', "data.max_length=16"],
    "masked_words": ["training.segment_length=16"],
    "multi_label_classification": ['data.label_columns=["cat","dog"]'],
    "node_classification": [],
    "question_answering": [],
    "recommendation": ["model.wide=true"],
    "summarisation": ['model.mixers=["messages"]', "model.copy=true", "training.beams=2"],
    "token_classification": ["model.wide=true", "training.seed=1"],
    "translation": ['model.mixers=["softmax"]', "training.beams=2"],
}
#: Tasks of others, with streams of other kinds.
OUTSIDE = ("sensors", "digits")
# Dropout would draw other numbers, and Adam makes whole steps of what rounding leaves of gradients that are zero.
SAME = ["model.dim=8", "model.heads=2", "model.dropout=0.0", "data.validation_fraction=0.3", "training.optim=sgd"]
SAME += ["training.learning_rate=0.1", "training.max_steps=3", "training.warmup_steps=0", "training.eval_strategy=no"]


def rows(task: str) -> list[dict[str, Any]]:
    """Examples of different lengths."""
    found: list[dict[str, Any]] = []
    for number in range(NUMBER):
        words = [f"word{(number * 7 + i * i) % 11}" for i in range(3 + number * 5 % 13)]
        text = " ".join(words)
        if task == "token_classification":
            found.append({"tokens": words, "labels": ["B-A" if word == "word1" else "O" for word in words]})
        elif task == "evidence":
            found.append({"parts": words, "questions": [{"question": f"where {words[2]}", "evidence": [2]}]})
        elif task == "frame_labelling":
            sound = [((place * number) % 7) / 7 for place in range(200 + 40 * (number % 5))]
            segments = [{"start": 0.02 * (place + 1), "end": 0.02 * (place + 2), "label": "ab"[(number + place) % 2]}
                        for place in range(number % 4 + 1)]  # fmt: skip
            found.append({"recording": sound, "segments": segments})
        elif task == "graph_classification":
            edges = [[place, place + 1] for place in range(len(words) - 1)]
            found.append({"nodes": words, "edges": edges, "label": "ab"[number % 2]})
        elif task == "image_classification":
            grey = [[(place * number * column) % 251 for column in range(8)] for place in range(8 + number % 4)]
            found.append({"image": [[[level] * 3 for level in row] for row in grey], "label": "ab"[number % 2]})
        elif task == "recommendation":
            clicks = [{"user": f"u{number}", "title": f"title {word}", "time": number, "clicked": place % 3 == 0}
                      for place, word in enumerate(dict.fromkeys(words))]  # fmt: skip
            found += clicks
        else:
            found.append({"text": text, "label": "ab"[number % 2], "stars": number / 4, "cat": number % 2,
                          "dog": number % 3 == 0, "context": text, "question": "Which?",
                          "first": text, "second": " ".join(words[::-1][number % 3 :]),
                          "document": text, "summary": words[0], "source": text,
                          "recording": [((place * number) % 7) / 7 for place in range(100 + 20 * (number % 5))],
                          "target": " ".join(words[::-1][number % 3 :]),
                          "answers": [{"text": words[1], "answer_start": len(words[0]) + 1}]})  # fmt: skip
    return found


def a_graph(folder: Path) -> tuple[Path, Path]:
    """A ring of nodes, and the edges between them."""
    nodes = [f"{number},{number % 3},{'ab'[number % 2]}" for number in range(NUMBER)]
    edges = [f"{number},{(number + 1) % NUMBER}" for number in range(NUMBER)]
    for name, lines in {"nodes": ["node,size,label", *nodes], "edges": ["source,target", *edges]}.items():
        (folder / f"{name}.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "nodes.csv", folder / "edges.csv"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    overrides = {}
    for task, keys in KEYS.items():
        data = folder / f"{task}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows(task)), encoding="utf-8")
        if task == "node_classification":
            data, edges = a_graph(folder)
            keys = [*keys, f"data.edges={edges}"]
        (folder / f"{task}.toml").write_text(f'task = "{task}"\n', encoding="utf-8")
        overrides[task] = [f"data.path={data}", *SAME, *keys]
    outside.write(folder)
    for task in OUTSIDE:
        overrides[task] = [f"data.path={folder / outside.DATA[task]}", *SAME]
    (folder / "overrides.json").write_text(json.dumps(overrides), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def told(folder: Path) -> str:
    return in_two_processes(HERE / "tasks_in_two_processes.py", str(folder)).stdout


def test_all_tasks_are_tried() -> None:
    assert sorted([*KEYS, *ELSEWHERE]) == sorted(tasks.names())


@pytest.mark.slow
@pytest.mark.parametrize("task", [*KEYS, *OUTSIDE])
def test_a_task_trains_in_two_processes_as_in_one(
    task: str, folder: Path, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    assert [f"process {rank} ended {task}" in told for rank in (0, 1)] == [True, True], told
    overrides = json.loads((folder / "overrides.json").read_text())[task]
    recipe = recipes.load(
        str(folder / f"{task}.toml"), [*overrides, "training.per_device_train_batch_size=4"], allow_imports=OUTSIDE
    )
    expected = train(recipe, run=folder / f"{task} in one", progress=False, allow_imports=OUTSIDE).to_dict()
    for where in ("two", "parts"):
        same_as_one(task, folder, where, expected)


def same_as_one(task: str, folder: Path, where: str, expected: dict[str, Any]) -> None:
    run = folder / f"{task} in {where}"
    found = json.loads((run / "metrics.json").read_text())
    assert (found["processes"], expected["processes"], found["steps"], expected["steps"]) == (2, 1, 3, 3)
    assert found["validation"].keys() == expected["validation"].keys()
    assert found["data"] == expected["data"]
    written = [{path.name for path in each.iterdir()} for each in (run, folder / f"{task} in one")]
    assert written[0] == written[1]
    assert load_run(run, allow_imports=OUTSIDE).task.name in (task, outside.TASKS.get(task))
    weights, wanted = (load_file(each / "model.safetensors") for each in (run, folder / f"{task} in one"))
    assert weights.keys() == wanted.keys()
    for name, tensor in wanted.items():
        # Sums of gradients in another order, in float32. Scales are where an iterative search over such outputs ends.
        rtol = 1e-4 if name == "wide.scales" else 1e-5
        torch.testing.assert_close(
            weights[name], tensor, rtol=rtol, atol=1e-5, msg=f"{name}: {weights[name]}, {tensor}"
        )
    numbers = [{name: score for name, score in result["validation"].items() if isinstance(score, float)}
               for result in (found, expected)]  # fmt: skip
    assert numbers[1]
    # Such weights give scores that differ by as little.
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-4, abs=1e-5)
