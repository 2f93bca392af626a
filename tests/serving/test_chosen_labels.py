"""Labels chosen on the page: appended to a table that training reads."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from decisive_words import write_run
from drawn_images import write_shapes
from fastapi.testclient import TestClient

from longspan import UserError, recipes, train
from longspan.data.sources.loading import load
from longspan.results.outputs import append_line
from longspan.serving.app import app_of
from longspan.verbs.runs import load_run


def client_of(run: Any, **options: Any) -> TestClient:
    return TestClient(app_of(run, **options), base_url="http://localhost")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_lines_are_whole_whoever_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with ThreadPoolExecutor(8) as pool:
        counts = sorted(pool.map(lambda number: append_line(path, f"{number} " + "x" * 100_000), range(40)))
    assert counts == list(range(1, 41))
    found = path.read_text(encoding="utf-8").splitlines()
    assert {len(line.split(" ")[1]) for line in found} == {100_000}
    path.unlink()
    (tmp_path / "elsewhere").write_text("", encoding="utf-8")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="expected a file to append to"):
        append_line(path, "x")


def test_texts_and_mistakes(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "mine", ["no", "yes"], "good", "yes", "good bad film"))
    with client_of(run) as client:
        for body, status in (
            ({"input": "good film", "label": "no"}, 200),
            ({"input": {"text": "good"}, "label": "perhaps"}, 422),
            ({"input": {"text": "good"}, "label": ["yes", "no"]}, 422),
            ({"input": {"text": None}, "label": "yes"}, 422),
            ({"input": {"text": "a\nb\u2028c"}, "label": "yes"}, 200),
        ):
            answer = client.post("/corrections", json=body)
            assert answer.status_code == status, answer.text
    found = lines(tmp_path / "mine-corrections.jsonl")
    assert [(line["text"], line["label"]) for line in found] == [("good film", "no"), ("a\nb\u2028c", "yes")]


def test_an_example_of_a_list_is_labelled_only_with_all_its_columns(tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    rows = [f"{'good' if each % 2 else 'bad'} film {each},good film,{each % 2}" for each in range(40)]
    table.write_text("\n".join(["first,second,label", *rows]), encoding="utf-8")
    settings = [f"data.path={table}", "model.dim=8", "model.heads=1", "model.depth=1"]
    more = ["training.max_steps=1", "training.max_minutes=0"]
    run = train("pairs", [*settings, *more], run=tmp_path / "run", progress=False).loaded
    listed = tmp_path / "next.csv"
    listed.write_text("first,second\nsame,\nsame,one\n", encoding="utf-8")
    labels = tmp_path / "labels.jsonl"
    with client_of(run, to_label=listed, corrections=labels) as client:
        assert client.get("/metadata").json()["first_open"] == 0
        sent = {"input": {"first": "same", "second": "one"}, "label": "1"}
        assert client.post("/corrections", json=sent).status_code == 200
        # The first has no second text.
        assert client.get("/metadata").json()["first_open"] == 0
        assert [client.get(f"/to-label/{number}").json()["labels"] for number in range(2)] == [[], ["1"]]
        with labels.open("a", encoding="utf-8") as file:
            file.write("by hand\n")
        answer = client.get("/metadata")
        assert answer.status_code == 422
        assert "line 2: expected a JSON object with 'label'" in answer.json()["detail"]


def test_pictures_are_kept_next_to_the_table(tmp_path: Path) -> None:
    shapes = write_shapes(tmp_path / "shapes")
    small = [
        "model.dim=8",
        "model.heads=1",
        "model.depth=1",
        "training.max_steps=1",
        "training.max_minutes=0",
        f"data.path={shapes}",
    ]
    run = train("images", small, run=tmp_path / "run", progress=False)
    picture = next(shapes.rglob("*.png")).read_bytes()
    sent = {"name": "a.png", "bytes": base64.b64encode(picture + b"more").decode()}
    label = run.loaded.model.config.id2label[0]
    table = tmp_path / "kept.jsonl"
    with client_of(run.loaded, corrections=table) as client:
        assert client.post("/corrections", json={"input": sent, "label": label}).json() == {"corrections": 1}
        assert client.post("/corrections", json={"input": {"path": "/etc/passwd"}, "label": label}).status_code == 422
    recipe = recipes.load("images", [*small, f"data.corrections={table}"])
    rows = load(recipe.data, recipe.task.columns(recipe.data)).splits["train"]
    assert Path(rows["image"][-1]["path"]).read_bytes() == picture + b"more"
    assert rows["label"][-1] == label
