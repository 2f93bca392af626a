"""A run folder or recipe that somebody else wrote executes nothing, asks nothing, and costs one sentence."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from language_runs import make_run
from transformers import AutoModel, AutoModelForCausalLM

from longspan import LongspanForCausalLM, cli, imports, recipes
from longspan.errors import UserError
from longspan.runs import load_run

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


def adapter(run: Path) -> None:
    settings = {"peft_type": "LORA", "base_model_name_or_path": "x", "target_modules": ["query"]}
    change(run, "adapter_config.json", **settings, megatron_config={"a": 1}, megatron_core="evil")


ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a mixer": (in_config("evil.Evil"), "'evil.Evil' (named in 'run/config.json') is code that has not been imported"),
    "in the recipe": (in_recipe("evil.Evil"), "'evil.Evil' (named in 'run/recipe.toml') is code that has not been"),
    "a mixer below": (in_config("run.evil.Evil"), "'run.evil.Evil' (named in 'run/config.json') is code that has not"),
    "a function": (
        in_config("evil.function"),
        "'evil.function' (named in 'run/config.json') is code that has not been",
    ),
    "a function of Python's": (in_config("os._exit"), "got a builtin_function_or_method; name another one."),
    "in the recipe, a function of Python's": (in_recipe("os._exit"), "got a builtin_function_or_method; name another"),
    "a class of Python's": (in_config("subprocess.Popen"), "derived from torch.nn.modules.module.Module, got another"),
    "a tokenizer": (
        lambda run: change(
            run, "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", None]}
        ),
        "tokenizer_config.json' asks for code of its own (auto_map), which is never run",
    ),
    "a model": (
        lambda run: change(run, "config.json", auto_map={"AutoModelForCausalLM": "evil.Evil"}),
        "config.json' has an unknown key 'auto_map'",
    ),
    "a kernel": (
        lambda run: change(run, "config.json", attn_implementation="kernels-community/flash-attn"),
        "config.json' has an unknown key 'attn_implementation'",
    ),
    "a quantiser": (
        lambda run: change(run, "config.json", quantization_config={"quant_method": "gptq"}),
        "config.json' has an unknown key 'quantization_config'",
    ),
    "an adapter": (adapter, "holds an adapter of PEFT, adapter_config.json, which is not loaded with a run"),
}


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


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_a_recipe_executes_nothing(verb: str, run: Path, ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_recipe("evil.Evil")(run)
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
