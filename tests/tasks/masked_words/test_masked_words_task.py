"""Masked words as a task: trained, scored, filled in, compared, and what cannot be."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from longspan import cli, explain, recipes, train
from longspan.data.config import DataConfig
from longspan.data.sources.formats.rows import Row
from longspan.data.text.tokenization import build_tokenizer
from longspan.errors import UserError
from longspan.mixers.additive import Additive
from longspan.results import TrainingResult
from longspan.tasks.masked_words.baselines.neighbours import _Counts
from longspan.tasks.masked_words.rows import likeliest_words
from longspan.tasks.masked_words.task import fill, ids_with_masks
from longspan.testing import check_task
from longspan.verbs import fitting
from longspan.verbs.evaluate import evaluate
from longspan.verbs.predict import predict
from longspan.verbs.runs import load_run

SMALL = ["model.dim=16", "model.heads=2", "model.depth=1", "model.short_convolution=3", "model.position=none"]
ROWS = ["training.segment_length=16", "training.per_device_train_batch_size=4", "data.tokens=words"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of threes, in which both neighbours of a word say what it is, and neither does alone."""
    rng, words = np.random.default_rng(0), ["cat", "dog", "owl", "fox"]
    rows = ["text"]
    for _ in range(160):
        line = []
        for _ in range(int(rng.integers(1, 6))):
            left, right = rng.integers(2, size=2)
            line += [f"left{left}", words[2 * left + right], f"right{right}"]
        rows.append(" ".join(line))
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory) -> TrainingResult:
    recipe = recipes.load(
        "masked-words",
        [f"data.path={texts}", *SMALL, *ROWS, "training.num_train_epochs=8", "training.learning_rate=2e-2",
         "training.masked_share=0.3", "training.warmup_steps=0", "model.dropout=0.0", "training.eval_strategy=no"],
    )  # fmt: skip
    return train(recipe, run=tmp_path_factory.mktemp("masked") / "run", progress=False)


@pytest.mark.slow
def test_it_is_a_task(texts):
    check_task("masked_words", texts, [*SMALL, *ROWS, "training.masking=spans"])


def test_it_resumes_within_an_epoch(texts, tmp_path):
    steps = ["training.max_steps=6", "training.eval_strategy=steps", "training.eval_steps=2", "model.dropout=0.1"]
    recipe = recipes.load("masked-words", [f"data.path={texts}", *SMALL, *ROWS, *steps])
    train(recipe, run=tmp_path / "whole", progress=False)
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    (tmp_path / "stopped" / "metrics.json").unlink()
    shutil.rmtree(tmp_path / "stopped" / "checkpoints" / "checkpoint-6")
    result = train(recipe, run=tmp_path / "stopped", resume=True, progress=False)
    assert 0 < result.epochs < 1
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_both_neighbours_are_read(trained):
    scores = trained.scores["validation"]
    assert scores.perplexity == pytest.approx(math.exp(scores.loss))
    # Who knows the place in a three alone has a third of one in two, one in four, one in two: 0.42.
    assert scores.accuracy > 0.6
    assert trained.padding_fraction == 0


@pytest.mark.slow
def test_masks_in_texts_are_filled_in(trained, tmp_path, capsys):
    texts = ["left1 <mask> right0 left0 <mask>right0", "left1 owl", "<mask>", "  "]
    run = load_run(trained.folder)
    found = list(predict(run, [Row({"text": text}, str(number)) for number, text in enumerate(texts)]))
    first = found[0].to_dict()
    assert first["filled"] == "left1 owl right0 left0 catright0"
    assert [(one["start"], one["end"]) for one in first["masks"]] == [(6, 12), (26, 32)]
    for mask, text in zip(first["masks"], ["owl", "cat"], strict=True):
        shares = [one["probability"] for one in mask["tokens"]]
        assert mask["tokens"][0]["token"] == text
        assert len(shares) == 5
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) <= 1 + 1e-6
    assert found[1].to_dict() == {"where": "1", "filled": "left1 owl", "masks": []}
    assert len(found[2].to_dict()["masks"]) == 1
    assert found[3].error == "empty document"
    file = tmp_path / "new.jsonl"
    file.write_text(json.dumps({"text": "left1 <mask> right0"}) + "\n")
    assert cli.main(["predict", trained.folder, str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["filled"] == "left1 owl right0"


def test_spaces_before_masks_belong_to_the_words_of_pieces():
    tokenizer = build_tokenizer(DataConfig(tokens="bpe", vocab_size=300), ["a good film is a good film"] * 9, mask=True)
    asked = {}

    class Model(torch.nn.Module):
        config = type("Config", (), {"vocab_size": len(tokenizer)})
        device = torch.device("cpu")

        def base_model(self, input_ids):
            asked["ids"] = input_ids[0].tolist()
            return type("Output", (), {"last_hidden_state": torch.nn.functional.one_hot(input_ids, 300).float()})

        def scores(self, hidden):
            (good,) = tokenizer(" good").input_ids
            return torch.nn.functional.one_hot(torch.full(hidden.shape[:1], good), 300).float() * 9

    ids = ids_with_masks(tokenizer, "a <mask> film")
    filled, masks = fill(tokenizer, "a <mask> film", likeliest_words(Model(), ids, tokenizer.mask_token_id, 5))
    assert asked["ids"] == ids.tolist()
    assert ids.tolist() == [*tokenizer("a").input_ids, tokenizer.mask_token_id, *tokenizer(" film").input_ids]
    assert (filled, masks[0]["tokens"][0]["token"]) == ("a good film", "good")
    assert ids_with_masks(tokenizer, "<mask>").tolist() == [tokenizer.mask_token_id]


@pytest.mark.slow
def test_evaluation_says_what_was_masked(trained, capsys):
    assert cli.main(["evaluate", trained.folder, "--split", "validation"]) == 0
    told = capsys.readouterr().out
    assert "tokens were predicted, 30% of all in words, in rows of 16 tokens, the same ones each time." in told
    evaluation = evaluate(load_run(trained.folder), split="validation")
    assert evaluation.scores.numbers() == pytest.approx(trained.scores["validation"].numbers(), rel=1e-5)


@pytest.mark.slow
def test_any_recipe_starts_from_it(trained, animals, tmp_path):
    recipe = recipes.load(
        "classify",
        [f"data.path={animals}", f"model.start_from={trained.folder}", "model.wide=false", "training.max_steps=1",
         "training.max_minutes=0", "training.eval_strategy=no"],
    )  # fmt: skip
    told = train(recipe, run=tmp_path / "run", progress=False).details["start_from"]
    assert (told["loaded"], told["new"], told["left_out"]) == (["longspan"], ["classifier"], ["transform", "lm_head"])


def test_neighbours_against_counts_written_out(texts):
    recipe = recipes.load("masked-words", [f"data.path={texts}", *SMALL, *ROWS, "training.masked_share=0.3"])
    fitted = fitting.find(recipe.task, "neighbours").fit(recipe)
    assert fitted.chosen["discount"] in (0.5, 0.75, 0.9)
    assert fitted.scores["validation"].accuracy > 0.7
    documents = [np.array(ids) for ids in ([5, 6, 7], [5, 8, 7], [5, 6, 9], [], [7])]
    counts, discount = _Counts(documents, 10), 0.5
    every = [5, 6, 7, 5, 8, 7, 5, 6, 9, 7]

    def interpolated(seen: list[int], token: int, lower: float) -> float:
        if not seen:
            return lower
        return (max(seen.count(token) - discount, 0) + discount * len(set(seen)) * lower) / len(seen)

    def probability(token: int) -> float:
        alone = interpolated(every, token, 0.1)
        # After 5: 6, 8, 6. Before 7: 6, 8, and the beginning of a document.
        lower = (interpolated([6, 8, 6], token, alone) + interpolated([6, 8], token, alone)) / 2
        return interpolated([6, 8], token, lower)

    for token in (6, 8, 9):
        scores = counts.scores(np.array([5]), np.array([token]), np.array([7]), discount)
        assert scores.loss == pytest.approx(-math.log(probability(token)))
        assert scores.accuracy == (token == 6)
    before, after = np.array([5]), np.array([7])
    losses = [counts.scores(before, np.array([token]), after, discount).loss for token in range(10)]
    assert sum(math.exp(-loss) for loss in losses) == pytest.approx(1)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.causal=true", r"model.causal=true would hide what comes after a masked word"),
        ("training.masked_share=0", r"training.masked_share must be above 0 and below 1, got 0"),
        ("training.masked_share=1", r"training.masked_share must be above 0 and below 1, got 1"),
        ("training.masking=word", r"did you mean 'words'"),
        ("training.segment_length=0", r"training.segment_length must be at least 1, got 0"),
        ("training.segment_length=99999", r"expected at least 399,996 tokens to train on, 4 rows"),
        ("data.max_length=9", r"data.max_length=9 cuts documents, but masked words reads them in full"),
        ("model.position=learned model.max_positions=8", r"at most 8 tokens for learned positions, got 16 in a row"),
    ],
)
def test_mistakes_are_sentences(texts, tmp_path, override, message):
    overrides = [f"data.path={texts}", *SMALL, *ROWS, *override.split(" ")]
    with pytest.raises(UserError, match=message):
        train("masked-words", overrides, run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_mixers_must_keep_documents_apart(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(Additive, "capabilities", replace(Additive.capabilities, packing=False))
    with pytest.raises(UserError, match="expected mixers that keep several documents in a row apart, got 'additive'"):
        train("masked-words", [f"data.path={texts}", *SMALL, *ROWS], run=tmp_path / "run", progress=False)


@pytest.mark.slow
def test_neighbours_of_a_mask_explain_what_fills_it(trained):
    text = "left0 dog right1 left1 <mask> right0 left0 <mask> right0"
    found = explain(trained.folder, [text], at=2)
    assert found.where.endswith(", mask 2")
    assert found.of == "cat"
    assert max(found.prediction["probabilities"], key=found.prediction["probabilities"].get) == "cat"
    assert len(found.scores) == 9
    strongest = sorted(range(9), key=lambda place: -abs(found.scores[place]))[:2]
    assert sorted(strongest) == [6, 8]
    other = explain(trained.folder, [text], of="fox", at=2)
    assert other.of == "fox"
    assert other.value < found.value
    for given, wrong, said in (
        ([text], {"at": 3}, "from 1 to 2, got 3"),
        ([text], {"of": "cat dog"}, "expected one token of the model, got 'cat dog', which is 2"),
        (["no mask"], {}, "got no <mask>"),
    ):
        with pytest.raises(UserError, match=said):
            explain(trained.folder, given, **wrong)
