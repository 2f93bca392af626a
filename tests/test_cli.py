"""The command line: verbs, exit codes, and where words go."""

import dataclasses
import errno
import json
import shutil
import subprocess
import sys

import pytest

from longspan import cli, mixers, recipes, tasks
from longspan.errors import UserError
from longspan.results import TrainingResult
from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.base.options import GenerationOptions

SCORES = ClassificationScores(
    accuracy=0.75, macro_f1=0.7, calibration_error=0.1, loss=0.6, per_class={}, reliability=[], confusion=[]
)
RESULT = TrainingResult(
    task="document_classification",
    folder="runs/quickstart",
    scores={"validation": SCORES},
    history=[],
    kept_epoch=1.0,
    steps=3,
    processes=1,
    tokens_per_second=1234.5,
    padding_fraction=0.1,
    peak_memory_bytes=2**30,
    parameters=5000,
    seconds=61.0,
    word_vectors_found=None,
    data={"train": {"documents": 8, "tokens": 80, "median_length": 10, "longest": 12, "cut_documents": 1,
                    "removed_tokens": 3}, "skipped": {}},
)  # fmt: skip


@pytest.fixture
def fake_train(monkeypatch):
    """Replace training by a noisy stand-in and record what it was called with."""
    calls = []

    def train(recipe, run=None, **options):
        calls.append((recipe, run, options))
        print("noise from a library")
        return RESULT

    monkeypatch.setattr("longspan.verbs.train.train", train)
    monkeypatch.setattr(cli, "use_fastest_exact_products", lambda: None)
    return calls


def test_help_needs_nothing_heavy():
    code = (
        "import sys, longspan.cli; longspan.cli.build_parser()[0].format_help();"
        "heavy = {'torch', 'transformers', 'datasets', 'numpy', 'matplotlib', 'importlib.metadata'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


HEAVY = {"torch", "transformers", "datasets", "numpy", "matplotlib", "longspan.tasks.base.task"}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["train", "evaluate", "predict", "generate", "convert", "compare"])
def test_the_help_of_a_verb_needs_nothing_heavy(verb):
    code = f"""
import sys, longspan.cli
try:
    longspan.cli.main([{verb!r}, "--help"])
except SystemExit:
    print(sorted({HEAVY!r} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_the_flags_of_evaluate_are_the_options_of_the_tasks(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["evaluate", "--help"])
    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for task in tasks.names():
        for option in dataclasses.fields(tasks.evaluation_options(task)):
            assert f"--{option.name.replace('_', '-')} " in text
            assert option.metadata["help"] in text
    assert "--context {carried,sliding}" in text
    assert "--window N" in text


def test_the_flags_of_generate_are_its_options_with_their_defaults(capsys):
    with pytest.raises(SystemExit):
        cli.main(["generate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for option in dataclasses.fields(GenerationOptions):
        assert f"--{option.name.replace('_', '-')} " in text
        assert option.metadata["help"] in text
    assert "maximum number of tokens to generate (default: 256)" in text
    assert "(default: False)" not in text


def test_what_is_given_reaches_the_function_and_nothing_else(monkeypatch):
    """Defaults are the function's own: a flag that is not given is not passed on."""
    given = []

    def generate(run, prompt, *, statistics, **options):
        given.append((str(run), prompt, options))
        return iter(["text"])

    monkeypatch.setattr("longspan.verbs.trained.generate", generate)
    monkeypatch.setattr(cli, "use_fastest_exact_products", lambda: None)
    assert cli.main(["generate", "mine", "--prompt", "a", "--top-k", "5", "--temperature", "0.5", "--greedy"]) == 0
    assert cli.main(["generate", "mine"]) == 0
    assert given == [("mine", "a", {"top_k": 5, "temperature": 0.5, "greedy": True}), ("mine", "", {})]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["generate", "mine", "--top-k", "many"], ["--top-k", "'many'"]),
        (["generate", "mine", "--top-k"], ["--top-k"]),
    ],
)
def test_wrong_values_of_flags_end_with_usage(arguments, named, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    # The sentence is Python's own.
    last = capsys.readouterr().err.splitlines()[-1]
    assert all(name in last for name in named)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["generate", "mine", "--topk", "5"], "unrecognized argument '--topk'; did you mean '--top-k'?"),
        (["predict", "mine", "--split", "x"], "unrecognized argument '--split'; the nearest of 28 names are --best, "),
        (["generate", "mine", "a.csv", "b.csv"], "unrecognized argument 'a.csv'; leave it out."),
        (["train", "quickstart", "--rum=x"], "unrecognized argument '--rum=x'; did you mean '--run'?"),
    ],
)
def test_unknown_arguments_are_answered_with_the_nearest(arguments, told, capsys):
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"longspan: {told}")


def test_help_names_every_verb(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for verb in ("list", "show", "train", "evaluate", "predict", "generate", "convert", "compare"):
        assert f"  {verb} " in text


def test_list(capsys):
    assert cli.main(["list"]) == 0
    text = capsys.readouterr().out
    assert cli.main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == mixers.names()
    # Lines are wrapped.
    text = " ".join(text.split())
    for row in rows:
        assert row["name"] in text
        assert row["summary"] in text


def test_show(capsys):
    assert cli.main(["show", "additive"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    description = mixers.describe("additive")
    for part in (description.docstring, description.cost, description.source, *description.options):
        assert " ".join(part.split()) in text
    assert cli.main(["show", "additive", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["options"] == description.options


def test_train_passes_everything_on(fake_train, capsys, tmp_path):
    arguments = ["train", "quickstart", "training.seed=3", "--run", str(tmp_path), "model.depth=1", "--overwrite"]
    assert cli.main(arguments) == 0
    ((recipe, run_dir, options),) = fake_train
    assert recipe == recipes.load("quickstart", ["training.seed=3", "model.depth=1"])
    assert run_dir == tmp_path
    assert options == {"resume": False, "overwrite": True, "finish": False}
    captured = capsys.readouterr()
    assert "0.750" in captured.out
    assert "5,000 parameters, 1,234 tokens/s, 1.00 GiB peak memory, 1 min 1 s" in captured.out
    assert "run folder: runs/quickstart" in captured.out
    assert "noise" not in captured.out
    assert "noise" in captured.err


def test_train_prints_json_alone(fake_train, capsys):
    assert cli.main(["train", "--json", "quickstart"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(RESULT.to_dict()))
    # The default is the function's own; where it is, the result says.
    assert fake_train[0][1] is None


@pytest.mark.slow
def test_our_bars_are_shown_and_those_of_transformers_are_not(animals, tmp_path, capsys, monkeypatch):
    # As on a terminal.
    monkeypatch.setenv("LONGSPAN_BARS", "1")
    run = str(tmp_path / "run")
    # Documents of its own: what another test has tokenised is not tokenised again.
    animals = shutil.copy(animals, tmp_path / "own.csv")
    tiny = ["data.tokens=words", "data.vocab_size=50", "model.dim=8", "model.heads=2", "training.num_train_epochs=3"]
    # Checkpoints make transformers talk: about those it deletes, and on resuming about what it finds in them.
    assert (
        cli.main(["train", "quickstart", f"data.path={animals}", *tiny, "training.save_total_limit=1", "--run", run])
        == 0
    )
    shown = capsys.readouterr().err
    for bar in ("Tokenising train", "Training", "tokens/s", "training loss", "cross-entropy (nats)"):
        assert bar in shown
    (tmp_path / "run/metrics.json").unlink()
    again = ["train", f"{run}/recipe.toml", "--run", run, "--resume"]
    assert cli.main(again) == 0
    shown += capsys.readouterr().err
    assert cli.main(["evaluate", run]) == 0
    scored = capsys.readouterr().err
    assert "Scoring" in scored
    assert cli.main(["predict", run, str(animals)]) == 0
    shown += scored + capsys.readouterr().err
    for remark in ("[transformers]", "Warning", "Writing", "Loading"):
        assert remark not in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trian"], "there is no command 'trian'; did you mean 'train'?"),
        (
            ["classify", "my letters", "model.dim=8"],
            "there is no command 'classify', which is a recipe; did you mean `longspan train classify "
            "'data.path=my letters' model.dim=8`?",
        ),
        (["ner", "data.path=x.conll"], "did you mean `longspan train ner data.path=x.conll`?"),
        (["clasify"], "there is no command 'clasify'; did you mean `longspan train classify`?"),
        (["train", "quikstart"], "did you mean 'quickstart'?"),
        (["train", "imdb"], "recipe 'imdb' expected data.path=FOLDER"),
        (["show", "aditive"], "did you mean 'additive'?"),
        (["evaluate", "nowhere/quickstrt"], "there is no run folder 'nowhere/quickstrt'"),
        (["compare", "quickstart", "--mixers", "additive,softmx"], "did you mean 'softmax'?"),
        (["compare", "quickstart", "--mixers", ","], "expected at least one mixer or one baseline"),
    ],
)
def test_mistakes_end_with_one_sentence(arguments, sentence, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("longspan: ")
    assert sentence in captured.err
    assert captured.err.count("\n") == 1


def test_bad_flags_end_with_usage(capsys):
    for arguments in (["--json", "list"], ["train"], ["train", "quickstart", "--resume", "--overwrite"]):
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert end.value.code == 2
        assert "usage: longspan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (FileNotFoundError(errno.ENOENT, "Not there", "gone.csv"), 2, "not there: gone.csv."),
        (OSError(errno.ENOSPC, "No space"), 2, "no space"),
        (KeyboardInterrupt(), 130, "interrupted."),
        (KeyboardInterrupt("saved step 3"), 130, "interrupted: saved step 3."),
    ],
)
def test_errors_of_the_system(error, code, sentence, monkeypatch, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr(mixers, "names", fail)
    assert cli.main(["list"]) == code
    captured = capsys.readouterr().err
    assert captured.startswith("longspan: ")
    assert sentence in captured
    assert captured.count("\n") == 1


def test_a_mistake_inside_a_library_is_still_a_mistake(monkeypatch, capsys):
    def fail():
        try:
            raise UserError("row 3 has no label.")
        except UserError as error:
            raise RuntimeError("An error occurred while generating the dataset") from error

    monkeypatch.setattr(mixers, "names", fail)
    assert cli.main(["list"]) == 2
    assert capsys.readouterr().err == "longspan: row 3 has no label.\n"


def test_defects_are_not_hidden(monkeypatch):
    monkeypatch.setattr(mixers, "names", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["list"])


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly():
    process = subprocess.Popen(
        [sys.executable, "-m", "longspan", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as stderr:
        assert stderr.read() == ""
    assert process.wait() == 141


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compare", "quickstart", "--mixer", "additive"], "'--mixer'; did you mean '--mixers'?"),
        (["compare", "quickstart", "--mixer=additive"], "did you mean '--mixers'?"),
        (["compare", "quickstart", "--mixers", "additive", "--seed", "1"], "'--seed'; did you mean '--seeds'?"),
        (["train", "quickstart", "--over"], "'--over'; did you mean '--overwrite'?"),
        (["predict", "runs/none", "--check", "last"], "'--check'; did you mean '--checkpoint'?"),
    ],
)
def test_abbreviated_flags_are_refused(arguments, told, capsys):
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
