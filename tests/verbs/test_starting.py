"""Models that start from another run: what they take of it, what is new, and what cannot be."""

import json
from pathlib import Path

import pytest
import torch
from language_runs import make_run
from safetensors.torch import load_file

from longspan import recipes, train
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.tasks.base.task import Recipe
from longspan.testing import check_task
from longspan.verbs.runs import load_run

TEXT = "the quick brown fox jumps over the lazy dog. purr meow whisker bark wag fetch 0123456789 and so on,\n" * 8


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("starts") / "plays", TEXT, ngrams=[2], ngram_buckets=16, depth=2)


def classify(animals: Path, *overrides: str) -> Recipe:
    given = [f"data.path={animals}", "training.max_steps=1", "training.eval_strategy=no", "training.max_minutes=0"]
    return recipes.load("classify", [*given, "model.wide=false", *overrides])


def test_tokens_embeddings_and_layers_are_those_of_the_run(animals, plays, tmp_path, capsys):
    recipe = classify(animals, f"model.start_from={plays}", "training.learning_rate=0")
    # The recipe's file has words and a model of its own.
    assert (recipe.data.tokens, recipe.data.tokenizer_from, recipe.model["dim"]) == ("characters", str(plays), 16)
    assert recipe.model["causal"] is True
    result = train(recipe, run=tmp_path / "run", progress=False)
    old, new = (load_file(folder / "model.safetensors") for folder in (plays, tmp_path / "run"))
    taken = [name for name in new if name.startswith("longspan.")]
    assert len(taken) > 20
    for name in taken:
        assert torch.equal(old[name], new[name]), name
    before, after = (tokenizer_of(load_run(folder).processor) for folder in (plays, tmp_path / "run"))
    assert before.get_vocab() == after.get_vocab()
    told = result.details["start_from"]
    assert told == {
        "run": str(plays),
        "loaded": ["longspan"],
        "new": ["classifier"],
        "left_out": ["lm_head"],
        "parameters": sum(old[name].numel() for name in taken),
    }
    written = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert written["start_from"] == told
    assert "It started from the run `plays`." in (tmp_path / "run" / "README.md").read_text()
    said = capsys.readouterr().err
    assert said.count("(all embeddings and layers)") == 1
    assert f"(all embeddings and layers) are those of {plays}; new: classifier; left out: lm_head\n" in said


@pytest.mark.slow
def test_a_run_that_started_from_another_is_resumed_and_used_without_it(animals, plays, tmp_path):
    gone = make_run(tmp_path / "gone", TEXT)
    started = [f"model.start_from={gone}", "training.max_steps=2", "training.eval_strategy=epoch"]
    recipe = classify(animals, *started)
    train(recipe, run=tmp_path / "run", progress=False)
    assert recipes.load(str(tmp_path / "run")).to_toml() == recipe.to_toml()
    longer = [*started, "training.max_steps=3"]
    assert train(classify(animals, *longer), run=tmp_path / "run", resume=True, progress=False).steps == 3
    gone.rename(tmp_path / "elsewhere")
    assert load_run(tmp_path / "run").recipe.start_from == str(gone)
    with pytest.raises(UserError, match=r"there is no run folder .*gone"):
        train(str(tmp_path / "run"), run=tmp_path / "again", progress=False)


def test_what_the_run_lacks_is_new_and_what_the_model_lacks_is_left_out(animals, plays, tmp_path):
    overrides = [f"model.start_from={plays}", "model.mixers=softmax,additive", "model.depth=1", "model.ngrams=[]"]
    recipe = classify(animals, *overrides, "training.learning_rate=0", "model.position=learned")
    told = train(recipe, run=tmp_path / "run", progress=False).details["start_from"]
    assert told["new"] == ["longspan.positions", "longspan.backbone.blocks.0.mixer", "classifier"]
    assert "longspan.backbone.blocks.0.feed_forward" in told["loaded"]
    assert told["left_out"] == [
        "longspan.embeddings.ngrams",
        "longspan.positions",
        "longspan.backbone.blocks.0.mixer",
        "longspan.backbone.blocks.1",
        "lm_head",
    ]


def test_parts_of_a_recipe_that_the_run_lacks_stay(animals, plays, tmp_path):
    plain = make_run(tmp_path / "plain", TEXT)
    own = tmp_path / "own.toml"
    own.write_text(
        f'[data]\npath = "{animals}"\n[model]\ndim = 64\nngrams = [3]\nngram_buckets = 32\nshort_convolution = 3\n'
    )
    recipe = recipes.load(str(own), [f"model.start_from={plain}"])
    found = [recipe.model[key] for key in ("dim", "ngrams", "ngram_buckets", "short_convolution")]
    # A convolution would change what the layers read.
    assert found == [16, [3], 32, 0]
    # That run has n-grams.
    assert recipes.load(str(own), [f"model.start_from={plays}"]).model["ngrams"] == [2]
    assert recipes.load(str(own), [f"model.start_from={plain}", "model.ngrams=[]"]).model["ngrams"] == []
    own.write_text(f'[data]\npath = "{animals}"\n[model]\nngrams = 3\n')
    with pytest.raises(UserError, match=r"model.ngrams expected a list"):
        recipes.load(str(own), [f"model.start_from={plain}"])


@pytest.mark.slow
def test_a_head_of_the_same_kind_is_kept_and_special_tokens_are_added(animals, plays, tmp_path):
    shared = ["training.max_steps=1", "training.eval_strategy=no", "training.learning_rate=0"]
    path = f"data.path={plays.parent / 'text.txt'}"
    rows = ["training.segment_length=8", "training.per_device_train_batch_size=2", "model.forget=none"]
    again = recipes.load("shakespeare", [path, f"model.start_from={plays}", *shared, *rows])
    told = train(again, run=tmp_path / "again", progress=False).details["start_from"]
    assert (told["new"], told["left_out"]) == ([], [])
    # A classifier's tokenizer has no end token.
    labelled = train(classify(animals, "model.dim=16", "model.heads=2"), run=tmp_path / "labelled", progress=False)
    after = recipes.load("shakespeare", [path, f"model.start_from={labelled.folder}", *shared, *rows])
    result = train(after, run=tmp_path / "after", progress=False)
    assert result.details["start_from"]["new"] == ["longspan.embeddings.table.weight of 1 tokens", "lm_head"]
    old, new = (load_run(folder) for folder in (labelled.folder, tmp_path / "after"))
    assert tokenizer_of(new.processor).eos_token_id == len(tokenizer_of(old.processor))
    both = [one.model.get_input_embeddings().weight.detach() for one in (old, new)]
    assert torch.equal(both[0], both[1][:-1])
    kept = train(
        classify(animals, f"model.start_from={labelled.folder}"), run=tmp_path / "kept", progress=False
    ).details["start_from"]
    assert (kept["new"], kept["left_out"]) == ([], [])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    rows = [json.dumps({"source": f"the quick fox {number}", "target": f"purr {number}"}) for number in range(30)]
    (folder / "pairs.jsonl").write_text("\n".join(rows) + "\n")
    return folder / "pairs.jsonl"


def translate(pairs: Path, *overrides: str) -> Recipe:
    given = [f"data.path={pairs}", "training.max_steps=1", "training.eval_strategy=no", "training.max_minutes=0"]
    return recipes.load("translation", [*given, "training.learning_rate=0", *overrides])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of masked words."""
    folder = tmp_path_factory.mktemp("masked")
    (folder / "text.txt").write_text(TEXT + "\n\n" + TEXT)
    small = ["data.tokens=characters", "model.dim=16", "model.heads=2", "model.depth=1", "training.max_steps=1"]
    small += ["training.per_device_train_batch_size=2", "training.segment_length=8", "training.max_minutes=0"]
    recipe = recipes.load("masked-words", [f"data.path={folder / 'text.txt'}", *small])
    train(recipe, run=folder / "run", progress=False)
    return folder / "run"


@pytest.mark.slow
def test_an_encoder_starts_from_masked_words_and_a_decoder_from_another_translation(filled, pairs, tmp_path, capsys):
    own = tmp_path / "own.toml"
    written = 'task = "translation"\n[model]\nmixers = ["softmax"]\ndecoder_mixers = ["linear"]\ndecoder_depth = 2\n'
    own.write_text(f'{written}\n[data]\npath = "{pairs}"\n[training]\nmax_steps = 1\nlearning_rate = 0.0\n')
    recipe = recipes.load(str(own), [f"model.start_from={filled}", "training.max_minutes=0"])
    # The encoder's shape is the run's; the decoder's stays the recipe's, as that run has none.
    assert [recipe.model[key] for key in ("mixers", "depth", "short_convolution")] == [["additive"], 1, 4]
    assert [recipe.model[key] for key in ("decoder_mixers", "decoder_depth")] == [["linear"], 2]
    told = train(recipe, run=tmp_path / "first", progress=False).details["start_from"]
    (grown, *new) = told["new"]
    assert told["loaded"] == ["longspan"]
    assert new == ["decoder", "lm_head"]
    assert grown == "longspan.embeddings.table.weight of 1 tokens"
    assert told["left_out"] == ["transform", "lm_head"]
    said = capsys.readouterr().err
    added = "encoder.embeddings.table.weight of 1 tokens"
    assert f"(encoder) are those of {filled}; new: {added}, decoder, lm_head;" in said
    old, new = (load_run(folder).model.state_dict() for folder in (filled, tmp_path / "first"))
    layers = [name for name in old if name.startswith("longspan.backbone.")]
    assert layers
    assert all(torch.equal(old[name], new[name]) for name in layers)

    # Of another translation, all is taken, and the shape of the decoder, too.
    again = translate(pairs, f"model.start_from={tmp_path / 'first'}")
    assert [again.model[key] for key in ("mixers", "decoder_mixers", "decoder_depth")] == [["additive"], ["linear"], 2]
    told = train(again, run=tmp_path / "again", progress=False).details["start_from"]
    assert (told["new"], told["left_out"]) == ([], [])
    assert f"(encoder, decoder, lm_head) are those of {tmp_path / 'first'}\n" in capsys.readouterr().err
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "again"))
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)

    # Another task takes the encoder, and leaves the decoder out.
    plain = ["training.learning_rate=0", "model.wide=false", "data.text_column=source", "data.label_column=target"]
    labelled = recipes.load("classify", [f"data.path={pairs}", f"model.start_from={tmp_path / 'first'}", *plain])
    assert not [key for key in labelled.model if "decoder" in key or "cross" in key]


@pytest.mark.slow
def test_layers_of_a_decoder_with_other_mixers_are_new(pairs, tmp_path):
    shape = ["data.tokens=bytes", "model.dim=8", "model.heads=2", "model.depth=1", "model.decoder_mixers=additive"]
    shape += ["model.decoder_forget=fixed", "model.decoder_mixer_options.additive.sharing=none"]
    train(translate(pairs, *shape), run=tmp_path / "first", progress=False)
    start = f"model.start_from={tmp_path / 'first'}"
    kept = translate(pairs, start)
    assert kept.model["decoder_forget"] == "fixed"
    other = translate(pairs, start, "model.decoder_mixers=softmax", "model.cross_attention=linear", "model.copy=true")
    # Neither forgetting nor the options are of these mixers.
    assert "decoder_forget" not in other.model
    assert other.model["decoder_mixer_options"] == {}
    told = train(other, run=tmp_path / "other", progress=False).details["start_from"]
    blocks = "decoder.backbone.blocks.0"
    assert told["new"] == [f"{blocks}.mixer", f"{blocks}.cross_mixer", "copying"]
    assert told["left_out"] == [f"{blocks}.mixer", f"{blocks}.cross_mixer"]
    assert f"{blocks}.feed_forward" in told["loaded"]


def test_an_encoder_starts_from_a_language_model(plays, pairs):
    assert "causal" not in translate(pairs, f"model.start_from={plays}").model


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dim=32", r"expected model.dim=16 as in '.*plays', .* got 32; leave it out"),
        ("model.heads=4", r"expected model.heads=2 as in"),
        ("data.tokens=bpe", r"expected data.tokens=characters as in '.*plays', .* got bpe"),
        ("data.lowercase=true", r"expected data.lowercase=false as in"),
        (
            "model.ngrams=[2] model.ngram_buckets=32",
            r"expected longspan.embeddings.ngrams.weight of shape \(16, 16\) as in",
        ),
        ("data.tokenizer_from=other", r"expected the tokenizer of the run in model.start_from.*'other'; leave it out"),
    ],
)
def test_what_does_not_fit_the_run_is_a_sentence(animals, plays, tmp_path, override, message):
    with pytest.raises(UserError, match=message):
        train(
            classify(animals, f"model.start_from={plays}", *override.split(" ")), run=tmp_path / "run", progress=False
        )
    assert not (tmp_path / "run").exists()


def test_there_must_be_a_finished_run(animals, plays, tmp_path):
    with pytest.raises(
        UserError, match=r"expected the folder of a run .*'.*/play', which is none; did you mean 'plays'"
    ):
        classify(animals, f"model.start_from={plays.parent / 'play'}")
    with pytest.raises(UserError, match=r"got '.*', which is none; name the folder of a run"):
        classify(animals, f"model.start_from={tmp_path}")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "recipe.toml").write_text((plays / "recipe.toml").read_text())
    with pytest.raises(UserError, match="is unfinished; continue it with"):
        train(classify(animals, f"model.start_from={unfinished}"), run=tmp_path / "run", progress=False)
    with pytest.raises(UserError, match=r"which --overwrite empties, got model\.start_from="):
        train(classify(animals, f"model.start_from={plays}"), run=plays, overwrite=True, progress=False)
    assert (plays / "model.safetensors").exists()


def test_in_a_recipe_of_its_own_what_is_said_beside_the_run_counts(animals, plays, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(f'[data]\npath = "{animals}"\n[model]\nstart_from = "{plays}"\ndepth = 1\n')
    recipe = recipes.load(str(own))
    assert (recipe.model["depth"], recipe.model["dim"], recipe.data.tokens) == (1, 16, "characters")
    # A run that names itself.
    circular = tmp_path / "circular"
    circular.mkdir()
    (circular / "recipe.toml").write_text(f'[model]\nstart_from = "{circular}"\n')
    assert recipes.load(str(circular)).start_from == str(circular)


@pytest.mark.slow
def test_every_task_can_start_from_a_run(animals, plays):
    small = ["model.wide=false", "training.batch_tokens=4096"]
    check_task("document_classification", animals, [f"model.start_from={plays}", *small])
