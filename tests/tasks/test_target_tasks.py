"""Tasks with a text for each text: what does not fit is one sentence, before anything is trained."""

import json
from pathlib import Path

import pytest
from target_tasks import recipe

from longspan import UserError, train

TRANSLATION, SUMMARISATION = "translation", "summarisation"
OF_BOTH = [
    (["data.tokens=words"], "data.tokens to be bpe, bytes, characters or a pretrained tokenizer"),
    (["model.position=learned", "model.max_positions=4"], "at most 4 tokens for learned positions, got .* in a"),
    (["training.beams=0"], "beams must be at least 1, got 0"),
    (['model.decoder_mixers=["longformer"]'], "longformer"),
]


def write_rows(path: Path, rows: list[tuple[str, str]]) -> Path:
    """Write pairs with the columns of both tasks."""
    names = ("source", "target"), ("document", "summary")
    lines = ({name: text for columns in names for name, text in zip(columns, row, strict=True)} for row in rows)
    path.write_text("\n".join(json.dumps({**line, "question": "What?"}) for line in lines))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "settings", "problem"),
    [
        *((task, *case) for task in (TRANSLATION, SUMMARISATION) for case in OF_BOTH),
        (TRANSLATION, ["data.target_column=deutsch"], "expected a column 'deutsch' in pairs.jsonl, got 'source'"),
        (TRANSLATION, ["data.keep=last"], "data.keep must be 'first' for translation, got 'last'"),
        (TRANSLATION, ["model.shared_vocabulary=false"], "key 'model.shared_vocabulary'; it belongs in .data."),
        (TRANSLATION, ["data.target_vocab_size=300"], "no data.target_vocab_size with one vocabulary, got 300"),
        (TRANSLATION, ["data.shared_vocabulary=false", "data.tokens=gpt2"], "tokens that are learned from each side"),
        (TRANSLATION, ["data.shared_vocabulary=false", "model.copy=true"], "one vocabulary of source and target to"),
        (TRANSLATION, ["training.bpe_dropout=1.0"], "bpe_dropout must be at least 0 and below 1, got 1.0"),
        (TRANSLATION, ["training.bpe_dropout=0.1", "data.tokens=bytes"], "a tokenizer of byte-level BPE for training"),
        (TRANSLATION, ["data.max_length=2"], "training pairs of at most data.max_length=2 tokens, got only longer"),
        (SUMMARISATION, ["data.summary_column=answer"], "expected a column 'answer' in pairs.jsonl, got 'source', "),
        (SUMMARISATION, ["data.question_column=query"], "expected a column 'query' in pairs.jsonl"),
        (SUMMARISATION, ["training.summarised_examples=0"], "summarised_examples must be at least 1, got 0"),
        (SUMMARISATION, ["data.shared_vocabulary=false"], "data.shared_vocabulary is not for the task 'summarisation'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(task: str, settings: list[str], problem: str, tmp_path: Path) -> None:
    rows = [(f"the old dog sees {number} cats", f"der alte Hund sieht {number} Katzen") for number in range(30)]
    data = write_rows(tmp_path / "pairs.jsonl", rows)
    with pytest.raises(UserError, match=problem) as caught:
        train(recipe(task, data, *settings), run=tmp_path / "run", progress=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("task", "what"), [(TRANSLATION, "target"), (SUMMARISATION, "summary")])
def test_a_target_may_be_too_long_where_its_source_is_not(task: str, what: str, tmp_path: Path) -> None:
    rows = [(f"{number}", " ".join(["x"] * 30 + [str(number)])) for number in range(30)]
    data = write_rows(tmp_path / "pairs.jsonl", rows)
    settings = ["model.position=learned", "model.max_positions=16", "data.vocab_size=262"]
    with pytest.raises(UserError, match=rf"at most 16 tokens for learned positions, got \d+ in a {what}; set model"):
        train(recipe(task, data, *settings), run=tmp_path / "run", progress=False)
