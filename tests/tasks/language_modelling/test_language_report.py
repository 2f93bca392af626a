"""Tables and the model card of language models."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from language_runs import make_run
from longspan.generate import generate

from longspan import report
from longspan.recipes import Recipe
from longspan.report import language_modelling
from longspan.runs import load_run

SCORES = {"loss": 1.512, "perplexity": 4.536, "bits_per_byte": 2.181, "bits_per_character": 2.25}
ROW = {"documents": 12, "tokens": 45000, "unknown": 17, "characters": 44000, "bytes": 46000, "longest": 9000}
RESULT: dict[str, Any] = {
    "validation": SCORES,
    "test": SCORES | {"loss": 1.499},
    "tokens_per_second": 41234.4,
    "peak_memory_bytes": 300 * 2**20,
    "parameters": 1234567,
    "seconds": 7300.0,
    "data": {"train": ROW, "test": ROW, "skipped": {}},
}
RECIPE = Recipe("mine", model={"mixers": ["relative"]}, training={"segment_length": 512}, task="language_modelling")


def test_the_training_summary(tmp_path: Path) -> None:
    text = report.training_summary("language_modelling", RESULT, tmp_path)
    for part in ("45,000", "17", "1.512", "1.499", "2.250", "41,234 tokens/s", "300 MiB", "2 h 1 min", str(tmp_path)):
        assert part in text


def test_the_model_card_is_one_the_hub_reads() -> None:
    card = ModelCard(language_modelling.model_card(RECIPE, RESULT))
    meta, body = card.data.to_dict(), card.text
    assert meta["library_name"] == "transformers"
    assert meta["pipeline_tag"] == "text-generation"
    assert {"longspan", "relative"} <= set(meta["tags"])
    assert meta["metrics"] == ["perplexity"]
    for part in ("| validation", "1.512", "1.499", "1,234,567", "segments of 512 tokens", "longspan generate"):
        assert part in body


def test_the_model_card_shows_how_to_get_the_same_from_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "run", "the quick brown fox. Some text. " * 4)
    code = language_modelling.model_card(RECIPE, RESULT).split("```python\n")[1].split("```")[0]
    code = code.replace("PATH OF THIS FOLDER", str(folder)).replace("do_sample=True", "do_sample=False")
    capsys.readouterr()
    exec(code.replace("max_new_tokens=200", "max_new_tokens=20"), {})
    printed = capsys.readouterr().out
    run = load_run(folder)
    expected = "Some text" + "".join(generate(run, "Some text", 20, greedy=True))
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
    assert language_modelling.generation_summary(statistics) == (
        "1,234 tokens of prompt read in 2.0 s; 5,678 made in 1 min 1 s, then the document ended; 93.1 tokens/s; "
        "10.50 ms per token at first and 10.70 at last; state of 4,096 bytes"
    )
    nothing = statistics | {"new_tokens": 0, "early_milliseconds": None, "late_milliseconds": None, "seconds": 0.0}
    assert "ms per token" not in language_modelling.generation_summary(nothing)
