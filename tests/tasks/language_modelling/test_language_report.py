"""Tables and the model card of language models."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from language_runs import make_run

from longspan import generate, report, tasks
from longspan.report.card import model_card
from longspan.results import Evaluation, Statistics, TrainingResult
from longspan.tasks.base.task import Recipe
from longspan.tasks.language_modelling.options import LanguageModellingData, TrainingOptions
from longspan.tasks.language_modelling.scores import LanguageScores

TASK = tasks.load("language_modelling")
SCORES = LanguageScores(loss=1.512, perplexity=4.536, bits_per_byte=2.181, bits_per_character=2.25)
ROW = {"documents": 12, "tokens": 45000, "unknown": 17, "characters": 44000, "bytes": 46000, "longest": 9000}
RESULT = TrainingResult(
    task="language_modelling",
    folder="runs/mine",
    scores={"validation": SCORES, "test": dataclasses.replace(SCORES, loss=1.499)},
    history=[],
    kept_epoch=1.0,
    steps=3,
    processes=1,
    tokens_per_second=41234.4,
    padding_fraction=0.1,
    peak_memory_bytes=300 * 2**20,
    parameters=1234567,
    seconds=7300.0,
    word_vectors_found=None,
    data={"train": ROW, "test": ROW, "skipped": {}},
)
RECIPE = Recipe(
    "mine", TASK, LanguageModellingData(), {"mixers": ["relative"]}, options=TrainingOptions(segment_length=512)
)


def card() -> str:
    return model_card(RECIPE, RESULT, ["relative"], TASK.data_table(RESULT.data, "github"))


def test_the_training_summary() -> None:
    text = report.training_summary(RESULT, TASK.data_table(RESULT.data))
    for part in ("45,000", "17", "1.512", "1.499", "2.250", "41,234 tokens/s", "300 MiB", "2 h 1 min", "runs/mine"):
        assert part in text


def test_the_model_card_is_one_the_hub_reads() -> None:
    read = ModelCard(card())
    meta, body = read.data.to_dict(), read.text
    assert meta["library_name"] == "longspan"
    assert meta["pipeline_tag"] == "text-generation"
    assert {"longspan", "relative"} <= set(meta["tags"])
    assert meta["metrics"] == ["perplexity"]
    for part in ("| validation", "1.512", "1.499", "1,234,567", "segments of 512 tokens", "longspan generate"):
        assert part in body


@pytest.mark.parametrize(
    ("details", "told"),
    [
        (
            {"context": "sliding", "window": 1024, "stride": 512},
            "Each token was predicted from at most 1,024 before it, in windows 512 apart.",
        ),
        (
            {"context": "carried", "segment_length": 256, "attention_length": None},
            "Documents were read 256 tokens at a time with carried states.",
        ),
        (
            {"context": "carried", "segment_length": 256, "attention_length": 1600},
            "Documents were read 256 tokens at a time with carried states, with 1,600 positions of memory.",
        ),
    ],
)
def test_the_evaluation_report(details: dict[str, Any], told: str) -> None:
    positions = [{"from": 1, "to": 1, "tokens": 12, "loss": 3.25}, {"from": 2, "to": 3, "tokens": 24, "loss": 2.75}]
    found = {**ROW, **details, "by_position": positions}
    text = TASK.evaluation_report(Evaluation("language_modelling", "test", "a.txt", SCORES, found, {}, "runs/a/eval"))
    for part in (told, "45,000", "2.181", "2 to 3", "2.750", "written to runs/a/eval"):
        assert part in text


def test_the_model_card_shows_how_to_get_the_same_from_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "run", "the quick brown fox. Some text. " * 4)
    code = card().split("```python\n")[1].split("```")[0]
    code = code.replace("do_sample=True", "do_sample=False")
    monkeypatch.chdir(folder)
    capsys.readouterr()
    exec(code.replace("max_new_tokens=200", "max_new_tokens=20"), {})
    printed = capsys.readouterr().out
    expected = "Some text" + "".join(generate(folder, "Some text", max_new_tokens=20, greedy=True))
    assert printed.removesuffix("\n").removesuffix("<|endoftext|>") == expected


def test_what_a_generation_took() -> None:
    statistics: dict[str, Any] = {
        "prompt_tokens": 1234,
        "prompt_seconds": 2.0,
        "new_tokens": 5678,
        "seconds": 61.0,
        "ended": True,
        "tokens_per_second": 93.08,
        "early_milliseconds": 10.5,
        "late_milliseconds": 10.7,
        "state_bytes": 4096,
    }
    assert report.generation_summary(statistics) == (
        "1,234 tokens of prompt read in 2.0 s; 5,678 made in 1 min 1 s, then the document ended; 93.1 tokens/s; "
        "10.50 ms per token at first and 10.70 at last; state of 4,096 bytes"
    )
    assert report.generation_summary(Statistics().summary()).startswith("0 tokens of prompt read in 0.0 s; 0 made in")
    nothing = statistics | {"new_tokens": 0, "early_milliseconds": None, "late_milliseconds": None, "seconds": 0.0}
    assert "ms per token" not in report.generation_summary(nothing)
