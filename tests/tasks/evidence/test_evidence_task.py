"""Finding evidence from the command line."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from talks import talk, write_meetings, write_talks

from longspan import LongspanForEvidence, predict, recipes, train
from longspan.cli import main
from longspan.data.batches.streams import Stream
from longspan.errors import UserError
from longspan.results import TrainingResult
from longspan.tasks.evidence.tokens import QUESTIONS_AT_ONCE, Collator
from longspan.testing import check_task
from longspan.verbs.runs import load_run

SMALL = ["model.dim=8", "model.heads=2", "model.feed_forward_dim=8"]


@pytest.fixture(scope="module")
def meetings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_meetings(tmp_path_factory.mktemp("data") / "meetings", {"train": 12, "val": 5, "test": 5})


@pytest.fixture(scope="module")
def result(meetings: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    given = [f"data.path={meetings}", *SMALL, "training.num_train_epochs=2", "training.learning_rate=0.02"]
    return train("evidence", given, run=tmp_path_factory.mktemp("runs") / "run", progress=False)


@pytest.mark.slow
def test_it_keeps_what_tasks_promise(tmp_path: Path) -> None:
    path = write_talks(tmp_path / "talks.jsonl", 6)
    check_task("evidence", path, [*SMALL, "model.part_depth=0"])


@pytest.mark.slow
def test_evidence_is_found(result: TrainingResult) -> None:
    test = result.scores["test"].numbers()
    # A sixth of 30 parts is five; six answer. At random it would be 1/6.
    assert test["recall_at_sixth"] > 0.75
    assert test["average_precision"] > 0.9
    assert result.data["train"]["questions"] == 36


@pytest.mark.slow
def test_evaluate_and_predict(
    result: TrainingResult, meetings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", result.folder]) == 0
    out = capsys.readouterr().out
    assert "recall at a sixth" in out
    assert "parts that answer" in out
    assert {path.name for path in Path(result.folder, "evaluation").iterdir()} >= {"recall.png", "evidence.png"}
    new = talk(77)
    without = {"parts": new["parts"], "questions": [each["question"] for each in new["questions"]]}
    lines = [without, {"parts": new["parts"], "question": without["questions"][1]}, {"question": "Where?"}]
    path = tmp_path / "new.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert main(["predict", result.folder, str(path)]) == 2
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    several, one, bad = found
    assert bad["error"] == "no parts"
    for answer, asked in zip(several["questions"], new["questions"], strict=True):
        assert answer["question"] == asked["question"]
        ranked = [each["part"] for each in answer["parts"]]
        assert sorted(ranked) == list(range(30))
        assert len({*ranked[:6]} & {*asked["evidence"]}) >= 4
        assert answer["best"] == new["parts"][ranked[0]]
        scores = [each["score"] for each in answer["parts"]]
        assert scores == sorted(scores, reverse=True)
    assert one["questions"][0]["evidence"] == several["questions"][1]["evidence"]
    # QMSum's files, whose gold is not read.
    assert main(["predict", result.folder, str(meetings / "test" / "M0.json")]) == 0
    assert len(json.loads(capsys.readouterr().out)["questions"]) == 3


@pytest.mark.slow
def test_many_questions_are_asked_a_few_at_a_time(result: TrainingResult, tmp_path: Path) -> None:
    new = talk(5)
    questions = [f"What did they say about the {number}?" for number in range(QUESTIONS_AT_ONCE + 3)]
    path = tmp_path / "many.jsonl"
    path.write_text(json.dumps({"parts": new["parts"], "questions": questions}), encoding="utf-8")
    (found,) = predict(load_run(result.folder), path)
    assert [each["question"] for each in found.questions] == questions


@pytest.mark.slow
def test_baselines_and_mixers_compare(
    meetings: Path, tmp_path: Path, compared_here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["compare", "evidence", f"data.path={meetings}", *SMALL, "training.num_train_epochs=1"]
    given += ["--mixers", "local", "--seeds", "1", "--baselines", "random,bm25,bm25_smoothed,tfidf"]
    given += ["--run", str(tmp_path / "compared")]
    assert main(given) == 0
    out = capsys.readouterr().out
    for name in ("random", "bm25", "bm25_smoothed", "tfidf", "local"):
        assert name in out
    found = json.loads((tmp_path / "compared" / "comparison.json").read_text(encoding="utf-8"))
    recall = {row["baseline"]: row["test"]["recall_at_sixth"] for row in found["baselines"]}
    assert recall["random"] < recall["bm25"] < recall["bm25_smoothed"]
    assert recall["tfidf"] > recall["random"]


@pytest.mark.slow
def test_shares_of_a_batch_without_documents_count_for_nothing(result: TrainingResult) -> None:
    model = LongspanForEvidence.from_pretrained(result.folder)
    loss = model(**Collator({"input_ids": Stream(mask="attention_mask")})([])).loss
    assert loss == 0
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ['model.mixers=["local"]', "model.cross_mixers=[]"],
            "expected a mixer with cross attention to read questions",
        ),
        (['model.cross_mixers=["local"]'], "expected mixers with cross attention in model.cross_mixers, got 'local'"),
        (["model.question=behind"], "question"),
        (["model.pooling=max"], "pooling"),
        (["data.max_length=100"], "read in full"),
    ],
)
def test_mistakes_are_found_before_data_are_read(overrides: Sequence[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        train(recipes.load("evidence", ["data.path=nowhere", *overrides]), run=tmp_path / "run")
