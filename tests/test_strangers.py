"""A run folder or recipe that somebody else wrote executes nothing, asks nothing, and costs one sentence."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from language_runs import make_run
from transformers import AutoModel, AutoModelForCausalLM

from longspan import LongspanForCausalLM, cli, recipes
from longspan.errors import UserError
from longspan.machine import imports
from longspan.verbs.runs import load_run

EVIL = """
from pathlib import Path
Path({mark!r}).touch()
import torch
from longspan.mixers.linear import Linear as Base

class Evil(Base):
    pass

def function(*_, **__):
    Path({mark!r}).touch()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "run", "the quick brown fox.\n" * 20, "linear", tokens="words")


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose writer put a module `evil` beside it, in the current directory and on Python's path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on standard input"))
    shutil.copy(made.parent / "text.txt", tmp_path)
    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture
def ran(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that appears when `evil` runs."""
    mark = tmp_path / "ran"
    for folder in (tmp_path, run):
        (folder / "evil.py").write_text(EVIL.format(mark=str(mark)))
    monkeypatch.setattr(imports, "_loaded", set())
    yield mark
    sys.modules.pop("evil", None)


def change(run: Path, name: str, **values: Any) -> None:
    path = run / name
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **values}))


def in_config(mixer: str) -> Callable[[Path], None]:
    return lambda run: change(run, "config.json", mixers=[mixer])


def in_recipe(mixer: str) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        path = run / "recipe.toml"
        path.write_text(path.read_text().replace('"linear"', json.dumps(mixer)))

    return spoil


def task(name: str) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        path = run / "recipe.toml"
        path.write_text(path.read_text().replace('"language_modelling"', json.dumps(name)))

    return spoil


def adapter(run: Path) -> None:
    settings = {"peft_type": "LORA", "base_model_name_or_path": "x", "target_modules": ["query"]}
    change(run, "adapter_config.json", **settings, megatron_config={"a": 1}, megatron_core="evil")


ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a mixer": (in_config("evil.Evil"), "'evil.Evil' (named in 'run/config.json') is code that has not been imported"),
    "a task": (task("evil.Evil"), "'evil.Evil' (named in 'run/recipe.toml') is code that has not been imported"),
    "a task, a function of Python's": (task("os._exit"), "got a builtin_function_or_method; name another one."),
    "a task, a class of Python's": (
        task("subprocess.Popen"),
        "derived from longspan.tasks.base.task.Task, got another",
    ),
    "in the recipe": (in_recipe("evil.Evil"), "'evil.Evil' (named in 'run/recipe.toml') is code that has not been"),
    "a mixer below": (in_config("run.evil.Evil"), "'run.evil.Evil' (named in 'run/config.json') is code that has not"),
    "a function": (
        in_config("evil.function"),
        "'evil.function' (named in 'run/config.json') is code that has not been",
    ),
    "a function of Python's": (in_config("os._exit"), "got a builtin_function_or_method; name another one."),
    "in the recipe, a function of Python's": (in_recipe("os._exit"), "got a builtin_function_or_method; name another"),
    "a class of Python's": (in_config("subprocess.Popen"), "derived from longspan.mixers.base.Mixer, got another"),
    "a tokenizer": (
        lambda run: change(
            run, "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", None]}
        ),
        "tokenizer_config.json', got one with code of its own (auto_map), which is never run",
    ),
    "a model": (
        lambda run: change(run, "config.json", auto_map={"AutoModelForCausalLM": "evil.Evil"}),
        "config.json' has an unknown key 'auto_map'",
    ),
    "a kernel": (
        lambda run: change(run, "config.json", attn_implementation="kernels-community/flash-attn"),
        "config.json' has an unknown key 'attn_implementation'",
    ),
    "embeddings": (
        lambda run: change(run, "config.json", embeddings={"kind": "evil.Evil"}),
        "the kind of embeddings 'evil.Evil' (named in 'run/config.json') is code that has not been",
    ),
    "a head": (
        lambda run: change(run, "config.json", head={"kind": "evil.Evil"}),
        "the kind of head 'evil.Evil' (named in 'run/config.json') is code that has not been",
    ),
    "a head that is none": (
        lambda run: change(run, "config.json", head="evil"),
        "expected head as settings or a dictionary with a 'kind', one of",
    ),
    "embeddings of no kind": (
        lambda run: change(run, "config.json", embeddings={"ngrams": [2]}),
        "expected embeddings as settings or a dictionary with a 'kind', one of",
    ),
    "embeddings of other settings": (
        lambda run: change(run, "config.json", embeddings={"kind": "tokens", "ngrams": "x", "auto_map": {}}),
        "ngrams expected a list",
    ),
    "a head of Python's": (
        lambda run: change(run, "config.json", head={"kind": "subprocess.Popen", "args": "true"}),
        "derived from longspan.models.settings.HeadSettings, got another",
    ),
    "a file of another place": (
        lambda run: change(run, "config.json", head={"kind": "../../evil"}),
        "'../../evil'",
    ),
    "an older version": (
        lambda run: change(run, "config.json", cutoffs=[3]),
        "'embeddings' and 'head' of 'run/config.json', got 'cutoffs' outside them, as older versions",
    ),
    "a quantiser": (
        lambda run: change(run, "config.json", quantization_config={"quant_method": "gptq"}),
        "config.json' has an unknown key 'quantization_config'",
    ),
    "an adapter": (adapter, "without adapters, got adapter_config.json of PEFT in"),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["evaluate", "predict", "generate"])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_run_folder_executes_nothing(
    name: str, verb: str, run: Path, ran: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, message = ATTACKS[name]
    spoil(run)
    arguments = {"evaluate": [], "predict": ["text.txt"], "generate": ["--prompt", "the"]}[verb]
    assert cli.main([verb, "run", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("longspan: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not ran.exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize("kind", [AutoModel, AutoModelForCausalLM, LongspanForCausalLM])
@pytest.mark.parametrize("name", ["a mixer", "a mixer below", "a function", "a function of Python's"])
def test_nor_with_transformers_own_loading(name: str, kind: Any, run: Path, ran: Path) -> None:
    ATTACKS[name][0](run)
    with pytest.raises(UserError, match=r"named in 'run'"):
        kind.from_pretrained("run")
    assert not ran.exists()


@pytest.mark.parametrize("what", [in_recipe, task])
@pytest.mark.parametrize("verb", ["train", "compare"])
def test_a_recipe_executes_nothing(
    verb: str, what: Callable[[str], Callable[[Path], None]], run: Path, ran: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    what("evil.Evil")(run)
    more = ["--mixers", "evil.Evil"] if verb == "compare" else []
    assert cli.main([verb, "run/recipe.toml", *more, "--run", "new"]) == 2
    assert "evil.Evil' (named in 'run/recipe.toml') is code that has not" in capsys.readouterr().err or more
    assert not ran.exists()
    assert not Path("new").exists()


@pytest.mark.parametrize("consent", ["evil", "evil.Evil"])
def test_with_consent_it_is_used(consent: str, run: Path, ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_config("evil.Evil")(run)
    in_recipe("evil.Evil")(run)
    assert (
        cli.main(["generate", "run", "--max-new-tokens", "3", "--allow-import", "other", "--allow-import", consent])
        == 0
    )
    assert ran.exists()
    assert capsys.readouterr().out


def test_consent_in_python(run: Path, ran: Path) -> None:
    in_config("evil.Evil")(run)
    with pytest.raises(UserError, match="has not been imported"):
        load_run("run", allow_imports=("other",))
    with imports.allow("evil"):
        AutoModelForCausalLM.from_pretrained("run")
    assert ran.exists()
    # It is imported already.
    assert type(load_run("run").model.longspan.backbone.blocks[0].mixer).__name__ == "Evil"


def test_a_recipe_names_a_mixer_of_ones_own(run: Path, ran: Path) -> None:
    in_recipe("evil.Evil")(run)
    with imports.allow("evil"):
        assert recipes.load("run/recipe.toml").model["mixers"] == ["evil.Evil"]


def same(name: str) -> Callable[[Path], None]:
    """Make a file a link to itself."""

    def spoil(run: Path) -> None:
        (run / name).unlink()
        (run / name).symlink_to(run / name)

    return spoil


def written(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda run: (run / name).write_bytes(content)


def pipe(run: Path) -> None:
    (run / "tokenizer.json").unlink()
    os.mkfifo(run / "tokenizer.json")


def config(**values: Any) -> Callable[[Path], None]:
    return lambda run: change(run, "config.json", **values)


ODD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "mixers": (config(mixers=[1]), 'mixers in \'run/config.json\' must be a list such as ["a", "b"], got [1];'),
    "a fraction": (config(dim=1e9), "dim in 'run/config.json' must be an integer, got 1000000000.0;"),
    "wide": (config(dim=10**9, feed_forward_dim=64, embedding_dim=16), "do not fit its config.json"),
    "deep": (config(depth=9999), "expected tensors for 9999 layers, got"),
    "deeper": (config(depth=100000), "depth must be from 0 to 10000, got 100000"),
    "positions": (config(position="learned", max_positions=2**30), "is missing in model.safetensors, but has shape"),
    "vocabulary": (config(vocab_size=10**12), "vocab_size must be at most 2147483647"),
    "heads": (config(heads=3), "heads"),
    "below no dropout": (config(dropout=-1), "dropout must be from 0 to 1, got -1"),
    "a dropout": (config(dropout=float("nan")), "dropout must be from 0 to 1, got nan"),
    "a switch": (config(causal="yes"), "causal in 'run/config.json' must be true or false, got 'yes';"),
    "options": (config(mixer_options={"linear": 1}), "mixer_options"),
    "an option": (
        config(mixer_options={"linear": {"heads": "x"}}),
        "expected a model from",
    ),
    "a type": (config(dtype="hub"), "dtype in 'run/config.json' must be one of float32"),
    "labels": (config(id2label={"1": "a"}), "id2label in 'run/config.json' must have a name for each of 0, 1, ..."),
    "one label": (
        config(id2label={"0": "a"}, problem_type="single_label_classification"),
        "expected at least two labels in 'run/config.json', got 1",
    ),
    "nesting": (written("config.json", b"[" * 100_000), "'run/config.json', got a damaged file"),
    "half the weights": (written("model.safetensors", b"\x10" + bytes(7) + b"{"), "model.safetensors' is damaged"),
    "a link to itself": (same("recipe.toml"), "expected recipe.toml in the run folder"),
    "a pipe": (pipe, "expected files and folders, got neither in 'run/tokenizer.json'"),
    "a tokenizer": (written("tokenizer.json", b"{}"), "the tokenizer in 'run' is damaged or incomplete"),
    "half a tokenizer": (written("tokenizer.json", b'{"version": "1.0", '), "the tokenizer in 'run' is damaged"),
    "generation": (
        written("generation_config.json", b'{"watermarking_config": {"a": 1}}'),
        "expected a model in 'run', got an error",
    ),
    "no recipe": (written("recipe.toml", b"\x00"), "recipe 'run/recipe.toml' is not valid TOML"),
    "nested recipe": (written("recipe.toml", b"a=" + b"[" * 50_000), "recipe 'run/recipe.toml' is not valid TOML"),
    "another task": (written("recipe.toml", b'task = "document_classification"'), "do not fit its config.json"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_damaged_and_odd_files(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, message = ODD[name]
    spoil(run)
    assert cli.main(["generate", "run"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("longspan: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize(
    "arguments",
    [["evaluate", "{}"], ["train", "{}"], ["convert", "{}", "o"], ["generate", "run", "--prompt-file", "{}"]],
)
@pytest.mark.parametrize("path", ["loop", "x" * 5000, "text.txt/below"])
def test_paths_that_lead_nowhere(
    path: str, arguments: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("loop").symlink_to("loop")
    assert cli.main([argument.format(path) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("longspan: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ELOOP, errno.EIO])
def test_a_folder_that_cannot_be_written(
    number: int, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The superuser, whom permissions do not stop, runs tests too."""

    usual = Path.mkdir

    def mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
        if path.parent.name == "run":
            raise OSError(number, os.strerror(number), str(path))
        usual(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert cli.main(["evaluate", "run"]) == 2
    # The data are read before it, with a bar of their own.
    assert capsys.readouterr().err.splitlines()[-1] == f"longspan: {os.strerror(number).lower()}: run/evaluation."
