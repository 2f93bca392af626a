"""Questions answered from files: training, scores, windows, exact places, and what is wrong with data."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from encoders import make_encoder
from questions import SQUAD, write_questions
from transformers import BertConfig

from longspan import UserError, compare, evaluate, predict, recipes, train
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import load
from longspan.results import TrainingResult
from longspan.tasks.question_answering.scores import AnswerScores
from longspan.testing import check_task
from longspan.verbs.runs import load_run

TINY = ["data.tokens=words", "model.dim=16", "model.heads=2", "model.feed_forward_dim=16", "model.depth=1"]


def recipe(data: Path, *more: str) -> Any:
    given = [f"data.path={data}", *TINY, "training.min_steps=0", "training.num_train_epochs=1", *more]
    return recipes.load("question-answering", given)


@pytest.mark.slow
def test_the_task_keeps_its_promises_where_some_questions_have_no_answer(tmp_path: Path) -> None:
    data = write_questions(tmp_path / "questions.jsonl", 40, unanswered=0.3)
    check_task("question_answering", data, [*TINY, "model.position=none", "training.learning_rate=0.01"])


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    """A run that has learned to answer, or not to, in documents read whole."""
    folder = tmp_path_factory.mktemp("learned")
    data = write_questions(folder / "questions.jsonl", 400, unanswered=0.3)
    more = ["training.num_train_epochs=10", "training.learning_rate=0.01", "model.dim=32", "model.dropout=0.0"]
    made = recipe(data, *more)
    return train(made, run=folder / "run", progress=False)


@pytest.mark.slow
def test_it_learns_to_answer_and_not_to(learned: TrainingResult) -> None:
    scores = learned.scores["validation"]
    assert isinstance(scores, AnswerScores)
    assert scores.f1 >= 0.9
    assert set(scores.kinds) == {"answer", "no answer"}
    assert sum(kind["questions"] for kind in scores.kinds.values()) == learned.data["validation"]["questions"] == 40
    assert load_run(Path(learned.folder)).model.config.head.answer_threshold == scores.threshold


@pytest.mark.slow
def test_predictions_are_stretches_of_the_document(learned: TrainingResult) -> None:
    text = "Gus has 777. So it is. Zoé has 123."
    asked = [Row({"question": f"What has {name}?", "context": text, "id": name}, name) for name in ("Gus", "Ada")]
    given, none = (found.to_dict() for found in predict(learned.folder, asked))
    assert text[given["start"] : given["end"]] == given["answer"]
    assert given["id"] == "Gus"
    assert none["answer"] == "" or none["answer"] in text
    for found in (given, none):
        assert len(found["alternatives"]) == 5
        for other in found["alternatives"]:
            assert text[other["start"] : other["end"]] == other["answer"]
        shares = [other["probability"] for other in found["alternatives"]]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) + found["no_answer"] <= 1 + 1e-9


@pytest.mark.slow
def test_a_limit_makes_windows_and_their_answers_meet(learned: TrainingResult, tmp_path: Path) -> None:
    """A document of many windows has the answer that a short one has, wherever it is."""
    run, filler = Path(learned.folder), "So it is. " * 40
    settings = run / "recipe.toml"
    text = settings.read_text()
    found = {}
    try:
        settings.write_text(text.replace("max_length = 0", "max_length = 40").replace("overlap = 128", "overlap = 8"))
        for depth in (0, 17, 40):
            context = filler[: depth * 10] + "Gus has 777. " + filler[depth * 10 :]
            (one,) = predict(run, [Row({"question": "What has Gus?", "context": context}, "a")])
            found[depth] = one.to_dict()
            assert context[found[depth]["start"] : found[depth]["end"]] == found[depth]["answer"]
    finally:
        settings.write_text(text)
    assert [one["start"] for one in found.values()] == [8, 178, 408]
    assert {one["answer"] for one in found.values()} == {"777"}


@pytest.mark.slow
def test_evaluation_lists_the_worst(learned: TrainingResult, tmp_path: Path) -> None:
    data = write_questions(tmp_path / "other.jsonl", 30)
    lines = data.read_text().splitlines()
    wrong = json.loads(lines[0])
    wrong["answers"] = {"text": ["has"], "answer_start": [wrong["context"].index("has")]}
    data.write_text("\n".join([json.dumps(wrong), *lines[1:]]))
    found = evaluate(learned.folder, str(data))
    assert found.scores.numbers()["exact_match"] < 1
    (mistake,) = (one for one in found.mistakes.worst if one.where == "other.jsonl, line 1")
    assert mistake.expected == "has"
    assert mistake.text == wrong["question"]


def test_squad_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(SQUAD), encoding="utf-8")
    made = recipe(path)
    splits = load(made.data, made.task.columns(made.data)).splits
    # Questions about the same document stay together.
    assert [len({*split["context"][:]}) for split in splits.values()] == [1, 1]
    assert [len(split) for split in splits.values()] == [2, 2]
    every = load(recipe(path, "data.validation_fraction=0").data, made.task.columns(made.data)).splits["train"]
    assert every["question"][:] == ["Who won?", "Who lost the war?", "Where?", "When?"]
    assert every["id"][:] == ["a1", "a2", "7", "8"]
    assert every["answers"][0] == {"text": ["Denver Broncos", "Broncos"], "start": [0, 7]}
    assert every["answers"][1] == {"text": [], "start": []}
    assert every["where"][3] == "squad.json, row 4"


def test_one_document_cannot_be_split(tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(SQUAD["data"][0]["paragraphs"][:1]), encoding="utf-8")
    made = recipe(path)
    with pytest.raises(UserError, match="the splits train, validation, got 1 different in column 'context'"):
        load(made.data, made.task.columns(made.data))


def changed(**changes: Any) -> dict[str, Any]:
    found = copy.deepcopy(SQUAD)
    paragraph = found["data"][0]["paragraphs"][1]
    for key, value in changes.items():
        place = paragraph["qas"][0] if key in paragraph["qas"][0] or key == "is_impossible" else paragraph
        if value is None:
            del place[key]
        else:
            place[key] = value
    return found


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"answers": [{"text": "Zürich", "answer_start": 14}]}, "but it begins at 13"),
        ({"answers": [{"text": "Bern", "answer_start": 13}]}, "but the document does not have it"),
        ({"answers": [{"text": "Zürich", "answer_start": -3}]}, "but it begins at 13|where an answer starts"),
        ({"answers": [{"text": " ", "answer_start": 2}]}, "an answer without text"),
        ({"answers": [{"text": "Zürich"}]}, "some without 'answer_start'"),
        ({"answers": {"text": ["Zürich"], "answer_start": []}}, "texts and starts that differ in number"),
        ({"answers": None}, "no answers in 1 row"),
        ({"is_impossible": True}, "answers to a question that has none"),
        ({"context": None}, "no context in 2 rows"),
        ({"context": "  "}, "no context in 2 rows"),
        ({"question": ""}, "no question in 1 row"),
    ],
)
def test_bad_rows_are_refused_or_counted(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(changed(**changes)), encoding="utf-8")
    made = recipe(path, "data.validation_fraction=0")
    with pytest.raises(UserError, match=problem) as caught:
        load(made.data, made.task.columns(made.data))
    assert "squad.json, row 3" in str(caught.value)
    made = recipe(path, "data.validation_fraction=0", "data.skip_bad_rows=true")
    kept = load(made.data, made.task.columns(made.data))
    assert len(kept.splits["train"]) + sum(kept.skipped.values()) == 4


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "expected JSON in squad.json, got an error at line 1, column 2"),
        ("[]", "expected rows in .*, got an empty file|expected a column 'question'"),
        ("", "got an empty file"),
        ('{"data": [{"questions": "x", "context": "y"}]}', "expected a column 'question' in squad.json.*'questions'"),
        ('[{"question": "x", "context": "y"}]', "expected a column 'answers' in squad.json"),
    ],
)
def test_files_that_are_no_questions_are_refused(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=problem):
        load(recipe(path).data, recipe(path).task.columns(recipe(path).data))


@pytest.mark.slow
def test_questions_longer_than_a_window_and_answers_too(tmp_path: Path, learned: TrainingResult) -> None:
    data = write_questions(tmp_path / "questions.jsonl", 40)
    with pytest.raises(UserError, match=r"line \d+: the question leaves no room .* of at most 6 tokens.*max_length"):
        train(recipe(data, "data.max_length=6"), run=tmp_path / "run", progress=False)
    row = json.loads(data.read_text().splitlines()[0])
    row["answers"] = {"text": [row["context"]], "answer_start": [0]}
    data.write_text("\n".join(json.dumps({**row, "context": row["context"] + "!" * number}) for number in range(20)))
    with pytest.raises(UserError, match=r"an answer that fits into a window, got one of \d+ tokens where the question"):
        train(recipe(data, "data.max_length=10"), run=tmp_path / "run", progress=False)


def test_a_model_that_takes_so_many_tokens_reads_windows(tmp_path: Path) -> None:
    data = write_questions(tmp_path / "questions.jsonl", 20)
    made = recipe(data, 'model.mixers=["linformer"]', "model.mixer_options.linformer.max_length=16")
    result = train(made, run=tmp_path / "run", progress=False)
    assert result.data["train"]["windows"] > result.data["train"]["questions"]
    assert all(found.error is None for found in predict(tmp_path / "run", data))


def test_a_pretrained_encoder_reads_questions_and_documents(tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 32}
    encoder = make_encoder(tmp_path / "encoder", BertConfig(vocab_size=60, hidden_size=8, **shape))
    data = write_questions(tmp_path / "questions.jsonl", 20, unanswered=0.3)
    given = [f"data.path={data}", f"model.encoder={encoder}", "training.min_steps=0", "training.num_train_epochs=1"]
    made = recipes.load("question-answering", [*given, *TINY[1:]])
    result = train(made, run=tmp_path / "run", progress=False)
    again = evaluate(tmp_path / "run", split="validation").scores
    # Outputs that are kept are float16, and so are those that are not.
    assert again.numbers() == pytest.approx(result.scores["validation"].numbers(), abs=1e-4)


@pytest.mark.usefixtures("compared_here")
def test_it_is_compared_with_its_baseline(tmp_path: Path) -> None:
    data = write_questions(tmp_path / "questions.jsonl", 30)
    given = [f"data.path={data}", *TINY, "training.min_steps=0", "training.num_train_epochs=1"]
    made = compare("question-answering", ["additive"], 1, given, tmp_path / "compare", baselines=["sentence"])
    (row,) = made.baselines
    assert row.error is None
    assert row.scores["validation"].numbers()["f1"] == 1


@pytest.mark.slow
def test_predict_says_which_rows_have_no_answer(tmp_path: Path, learned: TrainingResult) -> None:
    rows = [Row({"question": "Who?", "context": " "}, "a"), Row({"question": None, "context": "x"}, "b")]
    assert [found.error for found in predict(learned.folder, rows)] == ["no context", "no question"]
