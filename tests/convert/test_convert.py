"""Published Transformer-XL checkpoints become models that say the same, and what is no such checkpoint is refused."""

import dataclasses
import json
import os
import pickle
import runpy
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from published_transformer_xl import Shape, log_probabilities, random_weights, start
from safetensors.torch import load_file, save_file
from torch import Tensor

from longspan.convert import convert
from longspan.convert.run_folder import Conversion
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.models import LongspanForCausalLM
from longspan.tasks.language_modelling.likelihood import token_losses
from longspan.tasks.language_modelling.options import TrainingOptions
from longspan.verbs.runs import load_run

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "transformer_xl_parity.py"))
CONFIGURATIONS: dict[str, dict[str, Any]] = BENCHMARK["CONFIGURATIONS"]
WORDS = ["<eos>", "<unk>", "the", "cat", "purrs", *(f"w{number}" for number in range(115))]


def shape_of(name: str) -> Shape:
    return Shape(**{**BENCHMARK["BASE"], **CONFIGURATIONS[name]})


SHAPE = shape_of("clamp_len, same_length, div_val 4, three rows")


def write(folder: Path, shape: Shape = SHAPE, layout: str = "transformers", **settings: Any) -> dict[str, Tensor]:
    """Write a checkpoint with random weights, and return these."""
    weights = random_weights(shape, layout)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({**shape.settings, **settings}), encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return weights


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint that a test may spoil."""
    write(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def converted(checkpoint: Path) -> LongspanForCausalLM:
    out = checkpoint.parent / "out"
    convert(checkpoint, out, progress=False)
    model = LongspanForCausalLM.from_pretrained(out)
    assert isinstance(model, LongspanForCausalLM)
    return model.eval()


def assert_says_the_same(
    model: LongspanForCausalLM, weights: dict[str, Tensor], shape: Shape, layout: str = "transformers"
) -> None:
    """Compare with the published form over three segments, each going on from the one before."""
    states, memory = model.longspan.init_states(shape.batch), start(shape, layout)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        ids = torch.randint(shape.vocab_size, (shape.batch, shape.segment), generator=generator)
        with torch.no_grad():
            output = model(ids, past_key_values=states)
        states = output.past_key_values
        expected, memory = log_probabilities(weights, shape, layout, ids, memory)
        # Ours is float32, which rounds numbers around 10 by 1e-6, and does so over and over in three layers.
        torch.testing.assert_close(output.logits.double(), expected, rtol=0, atol=3e-5)
        for state, theirs in zip(states.layers, memory, strict=True):
            kept = theirs[:, max(0, theirs.shape[1] - state.memory.shape[1]) :]
            torch.testing.assert_close(state.memory.double(), kept, rtol=0, atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_says_what_transformers_says(name: str, tmp_path: Path) -> None:
    weights = write(tmp_path / "checkpoint", shape_of(name))
    assert_says_the_same(converted(tmp_path / "checkpoint"), weights, shape_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_says_what_the_authors_code_says(name: str, tmp_path: Path) -> None:
    """Known failure elsewhere: the head's cluster columns stand in reversed order between two published code bases."""
    # Their biases are shared by all layers, and memories start empty.
    shape = dataclasses.replace(shape_of(name), untie_r=False)
    weights = write(tmp_path / "checkpoint", shape, "authors")
    settings = {name: shape.settings[name] for name in ("mem_len", "clamp_len", "same_length", "cutoffs")}
    (tmp_path / "checkpoint" / "config.json").rename(tmp_path / "checkpoint" / "args.json")
    (tmp_path / "checkpoint" / "args.json").write_text(json.dumps(settings), encoding="utf-8")
    assert_says_the_same(converted(tmp_path / "checkpoint"), weights, shape, "authors")


@pytest.mark.parametrize("tie_weight", [False, True, None, "no"])
def test_a_setting_that_transformers_4_ignores(tie_weight: Any, tmp_path: Path) -> None:
    """`tie_weight` was renamed `tie_word_embeddings` before transformers 4, whose `TransfoXLConfig` ties without it."""
    weights = write(tmp_path / "checkpoint", tie_weight=tie_weight)
    settings = json.loads((tmp_path / "checkpoint/config.json").read_text())
    del settings["tie_word_embeddings"]
    (tmp_path / "checkpoint/config.json").write_text(json.dumps(settings))
    assert_says_the_same(converted(tmp_path / "checkpoint"), weights, SHAPE)


def test_without_names_given_twice(tmp_path: Path) -> None:
    """A .safetensors file holds a tied weight under one of its names only."""
    shape = dataclasses.replace(shape_of("narrow embeddings"), untie_r=False)
    weights = write(tmp_path / "checkpoint", shape)
    kept = {tensor.data_ptr(): (name, tensor) for name, tensor in reversed(weights.items())}
    assert len(kept) < len(weights)
    save_file(dict(kept.values()), tmp_path / "checkpoint" / "model.safetensors")
    (tmp_path / "checkpoint" / "pytorch_model.bin").unlink()
    model = converted(tmp_path / "checkpoint")
    assert_says_the_same(model, weights, shape)
    assert sum(tensor.numel() for tensor in load_file(tmp_path / "out" / "model.safetensors").values()) == sum(
        parameter.numel() for parameter in model.parameters()
    )


def test_memory_starts_as_zeros_that_are_seen(tmp_path: Path) -> None:
    """Known failure elsewhere: published models start from a full memory of zeros, which takes a share of attention."""
    weights = write(tmp_path / "checkpoint")
    model = converted(tmp_path / "checkpoint")
    ids = torch.arange(12).view(3, 4)
    with torch.no_grad():
        said = model(ids, use_cache=True).logits.double()
    full, _ = log_probabilities(weights, SHAPE, "transformers", ids, start(SHAPE, "transformers"))
    empty, _ = log_probabilities(weights, SHAPE, "transformers", ids, start(SHAPE, "authors"))
    assert (full - empty).abs().max() > 0.1
    torch.testing.assert_close(said, full, rtol=0, atol=3e-5)


def test_losses_come_in_token_order(tmp_path: Path) -> None:
    """Known failure elsewhere: per-token losses returned in cluster order."""
    weights = write(tmp_path / "checkpoint")
    ids, targets = torch.randint(120, (2, 3, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        losses = converted(tmp_path / "checkpoint")(ids, shift_labels=targets, use_cache=True).losses
    expected, _ = log_probabilities(weights, SHAPE, "transformers", ids, start(SHAPE, "transformers"))
    expected = -expected.gather(2, targets.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(losses.double(), expected, rtol=0, atol=3e-5)


def test_says_what_it_did(checkpoint: Path) -> None:
    result = convert(checkpoint, checkpoint.parent / "out", progress=False)
    model = LongspanForCausalLM.from_pretrained(checkpoint.parent / "out")
    assert result == Conversion(
        checkpoint=str(checkpoint),
        folder=str(checkpoint.parent / "out"),
        layout="transformers",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=3,
        dim=32,
        heads=4,
        vocabulary=120,
        end="<eos>",
        unknown="<unk>",
        lowercase=False,
        memory=7,
        same_length=True,
        clamp=5,
        start="zeros",
    )
    assert Conversion(**json.loads(json.dumps(result.to_dict()))) == result
    lines = result.summary().splitlines()
    assert lines[0] == f"{checkpoint}: a checkpoint of transformers"
    assert "3 layers of width 32 with 4 heads" in lines[1]
    assert "120 words" in lines[1]
    assert lines[2].startswith(
        "7 positions of memory, which starts as zeros that are seen; every position sees as many; "
    )
    assert lines[2].endswith("distances up to 5")
    assert lines[3] == f"written to {checkpoint.parent / 'out'}"


def test_is_a_run_folder(tmp_path: Path) -> None:
    weights = write(tmp_path / "checkpoint", tgt_len=5)
    convert(tmp_path / "checkpoint", tmp_path / "out", progress=False)
    run = load_run(tmp_path / "out")
    assert isinstance(run.recipe.options, TrainingOptions)
    assert (run.task.name, run.recipe.options.segment_length) == ("language_modelling", 5)
    assert (
        run.model.config.eos_token_id == run.model.config.bos_token_id == tokenizer_of(run.processor).eos_token_id == 0
    )
    document = tokenizer_of(run.processor)("the cat\npurrs w1 w2 dog\nw114").input_ids
    assert document == [2, 3, 0, 4, 6, 7, 1, 0, 119]
    losses = token_losses(run.model, [document], rows=1, segment_length=5)
    shape = dataclasses.replace(SHAPE, batch=1)
    memory, expected = start(shape, "transformers"), []
    for inputs, targets in (([0, *document[:4]], document[:5]), (document[4:], [*document[5:], 0])):
        said, memory = log_probabilities(weights, shape, "transformers", torch.tensor([inputs]), memory)
        expected += [-said[0, position, target].item() for position, target in enumerate(targets)]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(expected), rtol=0, atol=3e-5)


def test_a_vocabulary_without_an_end(checkpoint: Path) -> None:
    """As of characters in the authors' code: documents begin with the most frequent word, and all of them are shown."""
    (checkpoint / "vocab.txt").write_text("\n".join(f"{byte}" for byte in range(120)), encoding="utf-8")
    result = convert(checkpoint, checkpoint.parent / "out", progress=False)
    assert (result.end, result.unknown) == ("0", None)
    run = load_run(checkpoint.parent / "out")
    assert run.model.config.eos_token_id == 0
    assert tokenizer_of(run.processor).decode([0, 5, 0], skip_special_tokens=True) == "0 5 0"


# What is refused


class Payload:
    """Runs a command when it is unpickled the usual way."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def test_a_malicious_vocabulary(checkpoint: Path) -> None:
    (checkpoint / "vocab.pkl").write_bytes(pickle.dumps({"idx2sym": Payload(checkpoint / "executed")}))
    with pytest.raises(UserError, match=r"vocab.pkl', got posix.system"):
        convert(checkpoint, checkpoint.parent / "out", progress=False)
    assert not (checkpoint / "executed").exists()
    assert not (checkpoint.parent / "out").exists()


@pytest.mark.parametrize("new", [True, False])
def test_malicious_weights(new: bool, checkpoint: Path) -> None:
    weights = {"a": torch.zeros(2), "b": Payload(checkpoint / "executed")}
    torch.save(weights, checkpoint / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    with pytest.raises(UserError, match=r"got objects \(posix.system\) that need code, and none was run"):
        convert(checkpoint, checkpoint.parent / "out", progress=False)
    assert not (checkpoint / "executed").exists()


def test_a_whole_module(checkpoint: Path) -> None:
    """What the authors' train.py saves: it says how to save the weights alone."""
    (checkpoint / "pytorch_model.bin").unlink()
    torch.save(torch.nn.Linear(2, 2), checkpoint / "model.pt")
    with pytest.raises(UserError, match=r"torch.nn.modules.linear.Linear.*`torch.save\(model.state_dict\(\), 'py"):
        convert(checkpoint, checkpoint.parent / "out", progress=False)


def replace(name: str, content: bytes | str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def settings(**changed: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        said = {**json.loads((folder / "config.json").read_text()), **changed}
        (folder / "config.json").write_text(
            json.dumps({key: value for key, value in said.items() if value is not None})
        )

    return change


def weights(change_weights: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        found = torch.load(folder / "pytorch_model.bin", weights_only=True)
        change_weights(found)
        torch.save(found, folder / "pytorch_model.bin")

    return change


def shorten(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-500])

    return change


def only(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in folder.iterdir():
            if path.name not in names:
                path.unlink()

    return change


GPT2 = {"transformer.wte.weight": torch.zeros(9, 4), "transformer.h.0.ln_1.weight": torch.zeros(4)}
BIAS = "transformer.layers.1.dec_attn.r_w_bias"
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another architecture": (settings(model_type="bert"), "expected a Transformer-XL, .* got a model of type 'bert'"),
    "another model": (lambda f: torch.save(GPT2, f / "pytorch_model.bin"), "expected a Transformer-XL language model"),
    "no weights": (only("config.json", "vocab.txt"), "expected weights, model.safetensors, pytorch_model.bin or mod"),
    "no vocabulary": (only("config.json", "pytorch_model.bin"), "expected a vocabulary, vocab.pkl, vocab.bin or voc"),
    "no settings": (only("pytorch_model.bin", "vocab.txt"), "expected mem_len, clamp_len, same_length in a config.jso"),
    "half a setting": (settings(clamp_len=None), "expected clamp_len in a config.json next to"),
    "truncated weights": (shorten("pytorch_model.bin"), "is damaged or not a file of torch.save; get"),
    "empty weights": (replace("pytorch_model.bin", b""), "is damaged or not a file of torch.save; get"),
    "text": (
        replace("pytorch_model.bin", "version https://git-lfs.github.com/spec/v1\n"),
        "is damaged or not a file of",
    ),
    "a program": (
        lambda f: zipfile.ZipFile(f / "pytorch_model.bin", "a").writestr("pytorch_model/constants.pkl", b""),
        "got a TorchScript program, which is not run",
    ),
    "no tensors": (lambda f: torch.save([1], f / "pytorch_model.bin"), "expected tensors by name"),
    "truncated safetensors": (replace("model.safetensors", b"\x10" + bytes(7) + b"{"), "is damaged"),
    "truncated vocabulary": (replace("vocab.pkl", pickle.dumps(WORDS)[:-20]), "is damaged or not a pickle"),
    "empty vocabulary": (replace("vocab.bin", b""), "is damaged or not a pickle"),
    "no vocabulary inside": (replace("vocab.pkl", pickle.dumps(["a"])), "expected a vocabulary with idx2sym"),
    "words of numbers": (replace("vocab.pkl", pickle.dumps({"idx2sym": [1]})), "expected a list of words"),
    "ids with gaps": (replace("vocab.pkl", pickle.dumps({"sym2idx": {"a": 0, "b": 2}})), "got gaps"),
    "the same word twice": (replace("vocab.pkl", pickle.dumps({"idx2sym": ["a", "a"]})), "expected each word once"),
    "characters": (replace("vocab.pkl", pickle.dumps({"idx2sym": ["a"], "delimiter": ""})), "got the delimiter ''"),
    "an empty line": (replace("vocab.txt", "a\n\nb\n"), "got none in line 2"),
    "bytes": (replace("vocab.txt", b"\xff\xfe"), "expected UTF-8 text"),
    "another vocabulary": (replace("vocab.txt", "a\nb\n"), r"got 2 words in .* and 120 vectors"),
    "broken settings": (replace("config.json", "{"), "expected a JSON object"),
    "pre-norm": (settings(pre_lnorm=True), "with pre_lnorm=False, got pre_lnorm=True, .* which is not supported"),
    "another attention": (settings(attn_type=2), "with attn_type=0, got attn_type=2, .* which is not supported"),
    "its weights": (
        weights(lambda w: w.update({"transformer.r_emb": torch.zeros(1)})),
        r"weights of another kind of attention \(r_emb\)",
    ),
    "sampled softmax": (settings(sample_softmax=100), "sample_softmax=-1, got sample_softmax=100, a sampled one"),
    "a number as text": (settings(mem_len="160"), "mem_len in the settings must be of type int, got '160'"),
    "a number as a switch": (settings(mem_len=True), "mem_len in the settings must be of type int, got True"),
    "no ties": (settings(tie_projs=True), "tie_projs in the settings must list true or false"),
    "nothing to see": (settings(mem_len=0), "expected mem_len of at least 1 with same_length, got 0"),
    "other cutoffs": (settings(cutoffs=[30, 80]), r"expected cutoffs=\[40, 80\] in the settings, .* got \[30, 80\]"),
    "another width": (settings(d_model=64), "expected d_model=32 in the settings, .* got 64"),
    "another division": (settings(div_val=2), r"expected the width of each .* divided by div_val=2, got \[32, 8, 2\]"),
    "a missing weight": (weights(lambda w: w.pop(BIAS)), "got none for layers.1.dec_attn.r_w_bias"),
    "a weight too many": (
        weights(lambda w: w.update(extra=torch.zeros(1))),
        "expected only weights of a Transf.* got extra",
    ),
    "a wrong shape": (
        weights(lambda w: w.update({BIAS: torch.zeros(4, 9)})),
        r"expected shape \(4, 8\) .*got \(4, 9\)",
    ),
    "a missing head": (
        weights(lambda w: [w.pop(n) for n in list(w) if "crit" in n]),
        "as many rows of crit.cluster_weight as cutoffs",
    ),
    "narrow heads": (
        weights(lambda w: w.update({BIAS.replace("1", "0"): torch.zeros(4, 4)})),
        "got 4 heads of width 4 and a model width of 32",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_such_checkpoint(case: str, checkpoint: Path) -> None:
    change, message = BAD[case]
    change(checkpoint)
    with pytest.raises(UserError, match=message) as caught:
        convert(checkpoint, checkpoint.parent / "out", progress=False)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == ["checkpoint"]


def test_no_checkpoint(checkpoint: Path) -> None:
    with pytest.raises(UserError, match=r"there is no checkpoint .*did you mean 'checkpoint'\?"):
        convert(checkpoint.parent / "chekpoint", checkpoint.parent / "out")


def test_nothing_is_overwritten_but_runs(checkpoint: Path) -> None:
    out = checkpoint.parent / "out"
    convert(checkpoint, out, progress=False)
    (out / "mine.txt").touch()
    with pytest.raises(UserError, match="exists; choose another folder, or replace it with --overwrite"):
        convert(checkpoint, out, progress=False)
    assert (out / "mine.txt").exists()
    convert(checkpoint, out, overwrite=True, progress=False)
    assert not (out / "mine.txt").exists()
    with pytest.raises(UserError, match="is not a run folder, so it is not replaced"):
        convert(checkpoint, checkpoint, overwrite=True, progress=False)
    assert (checkpoint / "pytorch_model.bin").exists()


@pytest.mark.parametrize("existing", [True, False])
def test_a_failure_leaves_nothing_half_written(
    existing: bool, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = checkpoint.parent / "out"
    if existing:
        convert(checkpoint, out, progress=False)
    before = sorted(path.name for path in out.glob("*"))
    monkeypatch.setattr("longspan.convert.run_folder._recipe", lambda *_: shutil.disk_usage("/no such disk"))
    with pytest.raises(FileNotFoundError):
        convert(checkpoint, out, overwrite=True, progress=False)
    assert sorted(path.name for path in out.glob("*")) == before
    assert len(list(checkpoint.parent.iterdir())) == 1 + existing


def test_progress_goes_to_standard_error(checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    convert(checkpoint, checkpoint.parent / "out")
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "Reading weights" in printed.err
    convert(checkpoint, checkpoint.parent / "out", overwrite=True, progress=False)
    assert capfd.readouterr() == ("", "")
