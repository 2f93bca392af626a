"""Masked spans as a task: trained, resumed, filled in, and continued by summarisation."""

import json
import math
import shutil
from pathlib import Path

import pytest
import target_tasks
import torch
from safetensors.torch import load_file
from target_tasks import TINY

from longspan import UserError, cli, explain, recipes, train
from longspan.data.sources.formats.rows import Row
from longspan.results import TrainingResult
from longspan.tasks.base.task import Recipe
from longspan.testing import check_task
from longspan.verbs.evaluate import evaluate
from longspan.verbs.predict import predict
from longspan.verbs.runs import load_run

SMALL = [*TINY, "data.max_length=24", "training.warmup_steps=10", "training.per_device_train_batch_size=16"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of which any part follows from the rest."""
    sentences = ("the red cat sleeps all day", "a big dog runs in the park", "my old owl reads at night")
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    path.write_text("\n".join(["text", *(f"{sentences[n % 3]} {n}" for n in range(90))]) + "\n", encoding="utf-8")
    return path


def recipe(data: Path, *more: str) -> Recipe:
    return recipes.load("masked-spans", [f"data.path={data}", *SMALL, *more])


@pytest.fixture(scope="module")
def trained(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    more = ["training.max_steps=100", "training.learning_rate=1e-2", "model.dropout=0.0", "model.copy=false"]
    more += target_tasks.evaluated(100)
    made = recipe(texts, *more, "training.masked_share=0.3")
    return train(made, run=tmp_path_factory.mktemp("spans") / "run", progress=False)


@pytest.mark.slow
def test_it_is_a_task(texts: Path) -> None:
    check_task("masked_spans", texts, [*SMALL, "model.mixers=messages", "model.decoder_mixers=softmax"])


@pytest.mark.slow
def test_it_resumes_within_an_epoch(texts: Path, tmp_path: Path) -> None:
    made = recipe(texts, "training.max_steps=4", "model.dropout=0.1", *target_tasks.evaluated(2))
    train(made, run=tmp_path / "whole", progress=False)
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    (tmp_path / "stopped" / "metrics.json").unlink()
    shutil.rmtree(tmp_path / "stopped" / "checkpoints" / "checkpoint-4")
    result = train(made, run=tmp_path / "stopped", resume=True, progress=False)
    assert 0 < result.epochs < 1
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_masks_in_texts_are_filled_in(
    trained: TrainingResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without learning anything, it is 5.8, the logarithm of the number of tokens.
    assert trained.scores["validation"].numbers()["loss"] < 3.5
    texts = ["the red cat <mask> all day 3", "a big <mask> runs in<mask> park", "my old owl", "  ", "<mask>" * 99]
    run = load_run(Path(trained.folder))
    found = list(predict(run, [Row({"text": text}, str(number)) for number, text in enumerate(texts)]))
    for one, parts in ((found[0], ("the red cat ", " all day 3")), (found[1], ("a big ", " runs in", " park"))):
        told = one.to_dict()
        assert len(told["spans"]) == len(parts) - 1
        assert told["filled"] == parts[0] + "".join(map("".join, zip(told["spans"], parts[1:], strict=True)))
    assert found[2].to_dict() == {"where": "2", "filled": "my old owl", "spans": []}
    assert found[3].error == "empty document"
    assert found[4].error == "expected at most 2 masks, got 99"
    (tmp_path / "new.txt").write_text("the red cat <mask> all day 3")
    assert cli.main(["predict", trained.folder, str(tmp_path / "new.txt")]) == 0
    assert json.loads(capsys.readouterr().out)["filled"] == found[0].to_dict()["filled"]


@pytest.mark.slow
def test_evaluation_masks_the_same_spans(trained: TrainingResult, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", trained.folder, "--split", "validation"]) == 0
    told = capsys.readouterr().out
    assert "30% of the tokens were masked, in spans of 3 on average, the same ones each time, in 9 windows" in told
    found = evaluate(load_run(Path(trained.folder)), split="validation")
    assert found.scores.numbers() == pytest.approx(trained.scores["validation"].numbers(), rel=1e-5)


def test_long_documents_have_several_windows_and_a_part_is_scored(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(4):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"the red cat {number} sleeps all day " * 30)
    more = ["training.max_steps=1", "training.eval_strategy=no", "training.max_eval_tokens=40"]
    result = train(recipe(tmp_path / "texts", *more), run=tmp_path / "run", progress=False)
    assert result.data["validation"]["scored"] == 40
    assert result.data["validation"]["tokens"] > 100


@pytest.mark.slow
def test_a_summary_starts_from_it(trained: TrainingResult, tmp_path: Path) -> None:
    rows = ({"document": f"the red cat sleeps {n}", "summary": "a cat"} for n in range(20))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = [f"data.path={tmp_path / 'rows.jsonl'}", f"model.start_from={trained.folder}", "training.max_steps=1"]
    made = recipes.load("summarisation", [*given, "training.eval_strategy=no", "training.learning_rate=0"])
    told = train(made, run=tmp_path / "run", progress=False).details["start_from"]
    assert (told["loaded"], told["new"], told["left_out"]) == (["longspan", "decoder", "lm_head"], ["copying"], [])
    old, new = (load_file(Path(folder) / "model.safetensors") for folder in (trained.folder, tmp_path / "run"))
    assert all(torch.equal(old[name], new[name]) for name in old)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.masked_share=0", "training.masked_share must be above 0 and below 1, got 0"),
        ("training.span_length=0.5", "training.span_length must be at least 1, got 0.5"),
        ("data.max_length=0", "expected data.max_length, the tokens of a window, of at least 1, .*got 0"),
        ("data.keep=last", "data.keep='first', as documents are read in full, got 24 and 'last'"),
        ("data.tokens=words", "data.tokens to be bpe, bytes, characters or a pretrained tokenizer"),
        (
            "model.position=learned model.max_positions=8",
            r"at most 8 tokens for learned positions, .* in a window",
        ),
    ],
)
def test_mistakes_are_sentences(texts: Path, tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train(recipe(texts, *override.split(" ")), run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_sources_explain_what_is_written_for_masks(trained: TrainingResult) -> None:
    text = "the red cat <mask> all day 3"
    whole = explain(trained.folder, [text])
    assert (whole.of, whole.unit) == ("the spans", "nats")
    assert whole.value < 0
    assert [piece.text for piece in whole.pieces()] == ["the", "red", "cat", "<mask>", "all", "day", "3"]
    token = explain(trained.folder, [text], at=2)
    assert token.where.endswith(", token 2 of the spans")
    assert token.prediction["spans"] == whole.prediction["spans"]
    # Of the log probability of all tokens, that of one is a part.
    share = token.prediction["probabilities"][token.of]
    assert whole.value < math.log(share) < 0
    for given, options, said in (
        (["no mask"], {}, "got no <mask>"),
        ([text], {"at": 99}, "got 99"),
        ([text], {"of": "cat"}, "got 'cat' alone"),
    ):
        with pytest.raises(UserError, match=said):
            explain(trained.folder, given, **options)
