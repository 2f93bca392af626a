"""The command line: a thin verb for each public function.

Results go to standard output, everything else to standard error. Mistakes a user can fix end with exit code 2 and one
sentence, an interrupt with 130. Nothing heavy is imported before a verb needs it, so that `--help` answers at once.
"""

import argparse
import contextlib
import dataclasses
import functools
import gc
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from longspan import tasks
from longspan.cli import arena, benching, flags, serving
from longspan.cli.output import emit, stdout_for_results, width
from longspan.errors import UserError, nearest, sentence_of, suggestion
from longspan.machine import busy, imports
from longspan.machine.limits import limit_threads
from longspan.machine.printing import printable
from longspan.machine.session import paused_collector, quieten_transformers, use_fastest_exact_products
from longspan.options import add_flags, names
from longspan.tasks.base.options import GenerationOptions, ReadingOptions

if TYPE_CHECKING:
    from longspan.tasks.base.task import Run


def run() -> None:
    """Run the command line and end the process with its exit code."""
    limit_threads()
    with busy.watch():
        code = main()
    if "LOCAL_RANK" in os.environ:
        # One of several processes, whose connections have threads that may outlive the interpreter: it would abort.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    # Python would look through all objects once more before it ends.
    gc.freeze()
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on `argv` (default: the process's arguments) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = ""
    try:
        parser, verbs = build_parser(arguments[0] if arguments else "--help")
        if not arguments or arguments[0].startswith("-"):
            parser.parse_args(arguments or ["--help"])
            parser.error("expected a command first, then its options.")
        verb = arguments[0]
        if verb not in verbs:
            raise _no_command(arguments, verbs)
        # Intermixed, so that overrides may come before, between and after the flags.
        if not verbs[verb].get_default("may_have_more"):
            flags.check_names(arguments[1:], verbs[verb])
        args, rest = verbs[verb].parse_known_intermixed_args(arguments[1:])
        if rest and not args.may_have_more:
            raise flags.unknown(rest, verbs[verb], recipe=getattr(args, "recipe", ""))
        args.rest = rest
        with imports.allow(*args.allow_import), stdout_for_results() as out:
            code = args.run_verb(args, out)
            out.flush()
        return code or 0
    except KeyboardInterrupt as error:
        # Training says what it has saved.
        told = str(error) or ("the same command continues where it stopped" if verb in ("compare", "arena") else "")
        print(f"longspan: interrupted{': ' if told else ''}{told}.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has what it wanted. Python would complain again when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        print(f"longspan: {printable(sentence)}", file=sys.stderr)
        return 2


def _no_command(arguments: Sequence[str], verbs: Collection[str]) -> UserError:
    """The error for a first word that is no command: perhaps it is a recipe."""
    from longspan.recipes import recipe_files

    verb, *rest = arguments
    recipe = nearest(verb, recipe_files.names())
    if recipe is None or (recipe != verb and nearest(verb, verbs)):
        return UserError(f"there is no command {verb!r}; {suggestion(verb, verbs)}")
    if rest and not rest[0].startswith("-") and "=" not in rest[0]:
        rest[0] = f"data.path={rest[0]}"
    meant = shlex.join(["longspan", "train", recipe, *rest])
    what = "which is a recipe; did" if recipe == verb else "did"
    return UserError(f"there is no command {verb!r}{', ' if recipe == verb else '; '}{what} you mean `{meant}`?")


def build_parser(used: str = "") -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the whole command line, for its help, and the parser of each verb.

    Args:
        used: The only verb whose parser must know the flags and baselines of all tasks; by default, all verbs.
    """
    parser = argparse.ArgumentParser(
        prog="longspan",
        allow_abbrev=False,
        description="Train, compare and understand sequence models whose cost grows linearly.",
    )
    parser.add_argument("--version", action=flags.Version, help="print the version")
    adder = parser.add_subparsers(title="commands", metavar="COMMAND")
    verbs: dict[str, argparse.ArgumentParser] = {}

    def add(
        name: str, function: Callable[[argparse.Namespace, TextIO], int | None], text: str
    ) -> argparse.ArgumentParser:
        verb = adder.add_parser(name, allow_abbrev=False, help=text, description=text[0].upper() + text[1:] + ".")
        verb.set_defaults(run_verb=function, allow_import=[], may_have_more=False)
        verb.add_argument("--json", action="store_true", help="print the result as JSON")
        verbs[name] = verb
        return verb

    add("list", _list, "list the mixers with what each can do and costs")

    add("recipes", _recipes, "list the recipes with their tasks and the data they expect")

    verb = add(
        "show",
        _show,
        "show a recipe with all its keys, a key such as data.path, or a mixer: equations, options, cost and source",
    )
    verb.add_argument(
        "name", metavar="NAME", help="recipe (or a TOML file), mixer from `longspan list`, or a dotted path to your own"
    )
    flags.add_consent(verb)

    verb = add("plan", _plan, "predict time and memory of a training run, without training")
    flags.add_recipe(verb)
    told = "mixers to plan, separated by commas; A+B is a hybrid (default: the recipe's own, and softmax)"
    verb.add_argument("--mixers", metavar="A,B,C", default="", help=told)
    told = (
        "maximum lengths to plan, separated by commas: values of data.max_length, or of the key that sets the length "
        "in this task; A..B is A and its doublings up to B (default: the recipe's own, a half and a quarter of it)"
    )
    verb.add_argument("--lengths", metavar="N,N,N", default="", help=told)

    verb = add("train", _train, "train a model from a recipe")
    flags.add_recipe(verb)
    verb.add_argument("--run", metavar="DIR", type=Path, help="run folder (default: runs/RECIPE)")
    folder = verb.add_mutually_exclusive_group()
    folder.add_argument(
        "--resume",
        action="store_true",
        help="continue from the last checkpoint in the run folder, or start where there is no run yet; the number of "
        "epochs may be higher",
    )
    folder.add_argument("--finish", action="store_true", help="stop here: score and save the last checkpoint")
    folder.add_argument("--overwrite", action="store_true", help="replace the run folder")

    verb = add("evaluate", _evaluate, "score a trained model and draw figures of its scores")
    flags.add_run(verb)
    flags.add_checkpoint(verb)
    # Flags of an external task are known once its run is loaded.
    verb.set_defaults(may_have_more=True)
    told = "settings of the data that differ from training, such as data.encoding=auto or data.label_column=stars"
    verb.add_argument("overrides", metavar="key=value", nargs="*", help=told)
    verb.add_argument("--data", metavar="PATH", help="other data, in any form a recipe's data.path takes")
    told = "train, validation or test (default: test, or validation where there is no test split)"
    verb.add_argument("--split", metavar="NAME", help=told)
    if used in ("", "evaluate"):
        flags.add_of_tasks(verb, {task: tasks.evaluation_options(task) for task in tasks.names()})

    verb = add(
        "explain", _explain, "say which parts of an example speak for what a model says about it, and check that"
    )
    flags.add_run(verb)
    flags.add_checkpoint(verb)
    reads = (
        "a file with the example, as `longspan predict` reads it, or - for standard input (default); also "
        "data.KEY=VALUE: settings of the data that differ from training"
    )
    verb.add_argument("files", metavar="FILE", nargs="*", help=reads)
    verb.add_argument("--row", metavar="N", type=int, help="number of the example, from 1, where there are several")
    verb.add_argument("--class", metavar="C", dest="of", default="", help="what to explain (default: the prediction)")
    place = (
        "where a model says something about each part of an example: the number of a word, token, mask or part, from "
        "1, or seconds of a recording (default: the first with the rarest prediction; of language models, the next "
        "token)"
    )
    verb.add_argument("--at", metavar="N", type=float, help=place)
    told = (
        "removal (default): first-order effect of removing a part from all that others read; gradient: gradient times "
        "input; occlusion: the example is read again without windows of it; weight: mean of the raw weights of mixers, "
        "which are no explanation"
    )
    verb.add_argument("--method", metavar="M", default="removal", help=told)
    verb.add_argument("--check", action="store_true", help="delete parts to see whether the prediction follows scores")
    verb.add_argument(
        "--out", metavar="FILE", type=Path, help="also write a page (.html), JSON (.json) or arrays (.npz)"
    )

    verb = add("report", _report, "write a report of a run or a comparison as one page of HTML")
    verb.add_argument("run", metavar="RUN", type=Path, help="run folder, or the folder of a comparison")
    flags.add_consent(verb)
    verb.add_argument("--out", metavar="FILE", type=Path, help="page to write, .html (default: RUN/report.html)")

    verb = add("predict", _predict, "apply a trained model; prints one JSON line per example, in order")
    flags.add_run(verb, "run folder, or an export for ONNX of a document task, which needs no PyTorch")
    flags.add_checkpoint(verb)
    reads = (
        "table, text file or HTML page, folder of these, a text of several words, or - for one document per line "
        "(default); repeatable. Also "
        "data.KEY=VALUE: settings of the data that differ from training (./data.KEY=VALUE is a file)"
    )
    verb.add_argument("files", metavar="FILE", nargs="*", help=reads)
    told = (
        "csv, tsv, jsonl (default), or parquet and xlsx with --output; or another of the run's task, such as conll (a "
        "word with its label per line), or spacy, prodigy, label-studio and doccano (texts with spans)"
    )
    verb.add_argument("--format", metavar="NAME", default="", help=told)
    told = (
        "file to write instead of printing, in the format of its ending; with --jobs or --ray, folder of Parquet files"
    )
    verb.add_argument("--output", metavar="FILE", type=Path, help=told)
    verb.add_argument("--overwrite", action="store_true", help="replace the file")
    told = "processes that write shards in Parquet to the folder --output; the same command continues where it stopped"
    verb.add_argument("--jobs", metavar="N", type=int, help=told)
    told = "write these shards through Ray Data: on this machine, or on the cluster at an address such as auto"
    verb.add_argument("--ray", metavar="ADDRESS", nargs="?", const="", help=told)
    told = (
        "least probability of a label, others are left out; repeatable, for one label each. `evaluate` prints how many "
        "reach it, and chooses it for a --precision or --recall"
    )
    verb.add_argument("--min-probability", metavar="[LABEL=]P", type=_least, action="append", default=[], help=told)
    told = "new folder for copies of the files, in a folder for each label; files without one go to unsure"
    verb.add_argument("--sort-into", metavar="DIR", type=Path, help=told)
    add_flags(verb, ReadingOptions)
    if used in ("", "predict"):
        flags.add_of_tasks(verb, {task: tasks.prediction_options(task) for task in tasks.names()})

    verb = add("suggest", _suggest, "rank documents without labels by how much a model learns from them")
    flags.add_run(verb)
    flags.add_checkpoint(verb)
    told = f"documents, in any form `longspan predict` reads; also {reads.rpartition('Also ')[2]}"
    verb.add_argument("files", metavar="POOL", nargs="+", help=told)
    verb.add_argument("--output", metavar="FILE", type=Path, required=True, help="csv file to write")
    verb.add_argument("--overwrite", action="store_true", help="replace the file")
    told = "documents that are suggested at most (default: %(default)s)"
    verb.add_argument("--number", metavar="N", type=int, default=100, help=told)
    told = "file of `longspan serve` with labels, whose documents are left out (default: RUN-corrections.jsonl)"
    verb.add_argument("--corrections", metavar="FILE", type=Path, help=told)

    serving.add(add("serve", serving.run, "answer requests over HTTP, and show a page to try a model and correct it"))

    verb = add("generate", _generate, "generate text with a language model")
    flags.add_run(verb)
    flags.add_checkpoint(verb)
    prompt = verb.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", default="", help="text to continue (default: none)")
    prompt.add_argument("--prompt-file", metavar="FILE", help="file with the text, or - for standard input")
    add_flags(verb, GenerationOptions)
    verb.add_argument("--stats", action="store_true", help="print speed and memory at the end, on standard error")

    verb = add("export", _export, "export a trained model as a program that runs without longspan, or for the Hub")
    flags.add_run(verb)
    flags.add_checkpoint(verb)
    verb.add_argument("out", metavar="OUT", nargs="?", type=Path, help="folder to write (default: RUN/export-FORMAT)")
    verb.add_argument(
        "--format",
        metavar="{torch,onnx,hub}",
        default="torch",
        help="kind of program, or hub: a folder that transformers loads with trust_remote_code=True (default: torch)",
    )
    verb.add_argument(
        "--int8", action="store_true", help="quantise linear layers to int8, and report the loss of accuracy"
    )
    verb.add_argument("--data", metavar="PATH", help="other text to check it on, in any form `predict` takes")
    verb.add_argument("--split", metavar="NAME", help="split to check it on (default: test, or else validation)")
    verb.add_argument("--overwrite", action="store_true", help="replace the export in OUT")

    verb = add("convert", _convert, "convert a published Transformer-XL checkpoint to a run folder")
    verb.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="folder of the checkpoint, or its weights")
    verb.add_argument("out", metavar="OUT", type=Path, help="run folder to write")
    verb.add_argument("--overwrite", action="store_true", help="replace the run folder OUT")

    verb = add("compare", _compare, "train several mixers on one recipe, several seeds each, and compare them")
    flags.add_recipe(verb)
    verb.add_argument(
        "--mixers",
        metavar="A,B,C",
        default="",
        help="mixers to compare, separated by commas; A+B is a hybrid; leave it out to fit baselines only",
    )
    verb.add_argument(
        "--baselines",
        metavar="A,B,C",
        default="",
        help="baselines on the same splits (embeddings as embeddings:MODEL, a folder or a model in the Hub's cache, "
        "evidence as evidence:RUN): "
        + "; ".join(
            f"{' or '.join(found)} for {task}"
            for task in (tasks.names() if used in ("", "compare") else ())
            if (found := tasks.baseline_names(task))
        ),
    )
    verb.add_argument("--run", metavar="DIR", type=Path, help="folder for the runs (default: runs/compare-RECIPE)")
    verb.add_argument("--seeds", metavar="N", type=int, default=3, help="runs of each mixer (default: 3)")
    told = "minutes that all trainings share, each its part as a deadline, instead of epochs"
    verb.add_argument("--minutes", metavar="N", type=float, default=0.0, help=told)
    told = "runs at once, which share the cores; what they print goes to files (default: %(default)s)"
    verb.add_argument("--jobs", metavar="N", type=int, default=1, help=told)
    told = "command of a scheduler that gets a script for each run, such as 'sbatch --requeue'; their ends are awaited"
    verb.add_argument("--submit", metavar="COMMAND", default="", help=told)

    verb = add("check", _check, "check models of transformers: padding, causality, caches and more")
    verb.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        help="model type of transformers such as mamba, class such as BertLMHeadModel, or folder with config.json",
    )
    told = "checks to run, separated by commas, such as cached-chunks,beams (default: all but compilation)"
    verb.add_argument("--only", metavar="A,B,C", default="", help=told)
    verb.add_argument("--compile", action="store_true", help="check torch.compile, too, which takes minutes")
    verb.add_argument("--list", action="store_true", help="list the checks and end")
    flags.add_consent(verb)

    arena.add(add("arena", arena.run, "compare mixers on tasks of the Long Range Arena, for the same time each"))

    told = "measure time and memory of mixers over lengths, and how far they are from what this machine could do"
    benching.add(add("bench", benching.run, told))
    return parser, verbs


def _checkpoint(args: argparse.Namespace) -> dict[str, Any]:
    return {"checkpoint": args.checkpoint} if "checkpoint" in args else {}


def _loaded(args: argparse.Namespace) -> "Run":
    """The run of a verb."""
    with paused_collector():
        from longspan.verbs.runs import load_run

        quieten_transformers()
        use_fastest_exact_products()
        return load_run(args.run, **_checkpoint(args))


def _list(args: argparse.Namespace, out: TextIO) -> None:
    from longspan import mixers, report

    found = [mixers.describe(name) for name in mixers.names()]
    table = report.mixer_table(found, width(out))
    emit(args, out, [dataclasses.asdict(description) for description in found], table)


def _recipes(args: argparse.Namespace, out: TextIO) -> None:
    from longspan.recipes import pages

    emit(args, out, pages.entries(), pages.recipes_page(width(out)))


def _show(args: argparse.Namespace, out: TextIO) -> None:
    from longspan.recipes import showing
    from longspan.report.wrapping import wrapped

    found, page = showing.show(args.name, width(out))
    emit(args, out, found, wrapped(page, width(out)))


def _plan(args: argparse.Namespace, out: TextIO) -> None:
    lengths = flags.lengths_of(args.lengths)
    from longspan import plan
    from longspan.report.forecast import forecast_summary
    from longspan.report.wrapping import wrapped

    quieten_transformers()
    use_fastest_exact_products()
    mixers = [name.strip() for name in args.mixers.split(",") if name.strip()]
    found = plan(args.recipe, args.overrides, mixers=mixers, lengths=lengths)
    emit(args, out, found.to_dict(), wrapped(forecast_summary(found), width(out)))


def _train(args: argparse.Namespace, out: TextIO) -> None:
    from longspan import recipes

    recipe = recipes.load(args.recipe, args.overrides)
    recipe.require_data()
    from longspan import report, train
    from longspan.data.sources.paths import example_path
    from longspan.training import processes

    quieten_transformers()
    use_fastest_exact_products()
    ways = {"resume": args.resume, "overwrite": args.overwrite, "finish": args.finish}
    # The folder of a run, in place of a recipe, is continued or replaced.
    own = args.recipe if any(ways.values()) and Path(args.recipe).is_dir() else None
    result = train(recipe, run=args.run or own, **ways)
    if processes.rank() == 0:
        told = (
            recipe.task.data_table(result.data),
            example_path(recipe.data, recipe.task.inputs(recipe.data)),
            imports.consent_flags(),
        )
        emit(args, out, result.to_dict(), report.training_summary(result, *told))


def _evaluate(args: argparse.Namespace, out: TextIO) -> None:
    if args.rest and not args.run.is_dir():
        # The value of a flag that only the run's task knows is taken for the run.
        raise UserError(
            f"there is no run folder {str(args.run)!r}; name the run first, then {args.rest[0]}, which only its task "
            "may know."
        )
    run = _loaded(args)
    with _reading_slices(run) as leads:
        if leads:
            _evaluate_run(args, run, out)


def _reading_slices(run: Any) -> contextlib.AbstractContextManager[bool]:
    """Context in which the processes of a launcher read slices of each row: whether this one runs the verb."""
    if "LOCAL_RANK" not in os.environ:
        return contextlib.nullcontext(True)
    from longspan.verbs.together import reading_slices

    return reading_slices(run)


def _evaluate_run(args: argparse.Namespace, run: Any, out: TextIO) -> None:
    from longspan import evaluate
    from longspan.report import parts
    from longspan.report.run_report import mistakes_summary

    known = {name for task in tasks.names() for name in names(tasks.evaluation_options(task))}
    options = {name: value for name, value in vars(args).items() if name in known}
    if args.rest:
        parser = argparse.ArgumentParser(prog=f"longspan evaluate {run.folder}", add_help=False, allow_abbrev=False)
        add_flags(parser, run.task.evaluation_options)
        more, rest = parser.parse_known_args(args.rest)
        if rest:
            raise flags.unknown(rest, parser, build_parser()[1]["evaluate"])
        options |= vars(more)
    result = evaluate(run, args.data, args.split, args.overrides, **options)
    told = [run.task.evaluation_report(result), *parts.of_model(result.details, run.task.scores)]
    told += mistakes_summary(result)
    emit(args, out, result.to_dict(), "\n\n".join(told))


def _explain(args: argparse.Namespace, out: TextIO) -> None:
    from longspan.report.explanation import SUFFIXES, explanation_summary
    from longspan.results.outputs import check_file

    if args.out is not None:
        check_file(args.out, *SUFFIXES)
    overrides, files = _divided(args.files)
    files = files or ["-"]
    if len(files) > 1:
        raise UserError(f"expected one file to explain an example of, got {len(files)}; name one, and its row.")
    run = _loaded(args)
    from longspan import explain

    given = {name: getattr(args, name) for name in ("row", "of", "at", "method", "check")}
    found = explain(run, files, **given, overrides=overrides, stdin=sys.stdin.buffer)
    if args.out is not None:
        found.save(args.out)
    told = explanation_summary(found)
    emit(args, out, found.to_dict(), told if args.out is None else f"{told}\n\nwritten to {args.out}")


def _report(args: argparse.Namespace, out: TextIO) -> None:
    from longspan import write_report
    from longspan.report.run_report import NAME, report_summary

    quieten_transformers()
    use_fastest_exact_products()
    found = write_report(args.run, args.out)
    path = args.run / NAME if args.out is None else args.out
    emit(args, out, {**found.to_dict(), "written": str(path)}, f"{report_summary(found)}written to {path}")


def _predict(args: argparse.Namespace, out: TextIO) -> None:
    from longspan.programs.predicting import is_export
    from longspan.verbs.predict import opened, print_predictions

    known = {name for task in tasks.names() for name in names(tasks.prediction_options(task))}
    known |= {*names(ReadingOptions)}
    given = {name: value for name, value in vars(args).items() if name in known}
    given["overrides"], files = _divided(args.files)
    of_labels = {label: least for label, least in args.min_probability if label is not None}
    of_all = [least for label, least in args.min_probability if label is None]
    if len(of_all) > 1 or (of_all and of_labels) or len(of_labels) < len(args.min_probability) - len(of_all):
        raise UserError("expected one --min-probability for all labels or for each, got more; leave some out.")
    given["min_probability"] = of_labels or (of_all[0] if of_all else 0.0)
    if args.jobs is not None or args.ray is not None:
        _predict_shards(args, out, files or ["-"], given)
        return
    exported = is_export(args.run)
    run = opened(args.run, getattr(args, "checkpoint", None)) if exported else _loaded(args)
    if args.json and args.format not in ("", "json", "jsonl"):
        raise UserError(f"expected --json or --format {args.format}, got both; leave one out.")
    given |= {name: getattr(args, name) for name in ("output", "overwrite", "sort_into")}
    given["format"] = args.format or ("json" if args.json else "")
    # Programs are run without PyTorch.
    with contextlib.nullcontext(True) if exported else _reading_slices(run) as leads:
        if leads:
            print_predictions(run, files or ["-"], out, stdin=sys.stdin.buffer, **given)


def _predict_shards(args: argparse.Namespace, out: TextIO, files: Sequence[str], options: dict[str, Any]) -> None:
    from longspan.results.tables import FORMATS

    flag = "--jobs" if args.ray is None else "--ray"
    if args.output is None or args.output.suffix.removeprefix(".") in FORMATS:
        raise UserError(f"expected --output DIR, a folder, with {flag}, got {args.output or 'none'}; name a folder.")
    for name in ("format", "sort_into", "overwrite"):
        if getattr(args, name):
            raise UserError(f"expected {flag} without --{name.replace('_', '-')}, got both; leave one out.")
    engine = None
    if args.ray is not None:
        imports.require("ray", "--ray", instead="give --jobs N alone")
        from longspan.verbs.ray_data import by_ray

        engine = functools.partial(by_ray, address=args.ray)
    from longspan.verbs.predictor import Predictor
    from longspan.verbs.shards import predict_shards, prepare_process

    predictor = Predictor(args.run, **options, **_checkpoint(args), allow_imports=args.allow_import)
    prepare_process(predictor)
    result = predict_shards(predictor, files, args.output, jobs=args.jobs, engine=engine)
    told = f"{result['rows']:,} predictions in {result['shards']:,} files of {args.output}"
    emit(args, out, {**result, "folder": str(args.output)}, told)
    if result["errors"]:
        raise UserError(
            f"there are no predictions for {result['errors']} of {result['rows']} examples; their rows say why."
        )


def _least(value: str) -> tuple[str | None, float]:
    """A least probability, after the label that it is of, if it is of one."""
    label, is_of_one, number = value.rpartition("=")
    try:
        return (label if is_of_one else None), math.inf if is_of_one and number == "never" else float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a probability, or LABEL=PROBABILITY, got {value!r}") from None


def _suggest(args: argparse.Namespace, out: TextIO) -> None:
    from longspan.results.outputs import check_file

    check_file(args.output, ".csv")
    if args.output.exists() and not args.overwrite:
        raise UserError(f"expected a new file, got {str(args.output)!r}, which exists; add --overwrite to replace it.")
    overrides, files = _divided(args.files)
    run = _loaded(args)
    from longspan.verbs.suggest import suggest, write_suggestions

    given = {"overrides": overrides, "corrections": args.corrections, "stdin": sys.stdin.buffer}
    found = suggest(run, files, args.number, **given)
    write_suggestions(run, found, args.output)
    result = {"suggested": len(found), "written": str(args.output)}
    command = shlex.join(["longspan", "serve", str(args.run), "--label", str(args.output)])
    emit(args, out, result, f"{len(found):,} documents written to {args.output}; label them with\n\n    {command}")


def _divided(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Settings of data among words, and the other words."""
    overrides = [word for word in words if re.match(r"data\.\w+=", word)]
    return overrides, [word for word in words if word not in overrides]


def _generate(args: argparse.Namespace, out: TextIO) -> None:
    prompt = args.prompt if args.prompt_file is None else _read_text(args.prompt_file)
    with paused_collector():
        from longspan import generate
        from longspan.report import generation_summary
        from longspan.results import Statistics

        quieten_transformers()
        use_fastest_exact_products()
    statistics = Statistics()
    options = {name: value for name, value in vars(args).items() if name in names(GenerationOptions)}
    pieces = generate(args.run, prompt, statistics=statistics, **_checkpoint(args), **options)
    if args.json:
        text = "".join(pieces)
        print(json.dumps({"text": text, **statistics.summary()}, indent=2, ensure_ascii=False), file=out)
    else:
        try:
            for piece in pieces:
                print(piece, end="", file=out, flush=True)
        finally:
            print(file=out, flush=True)
            if args.stats:
                print(generation_summary(statistics.summary()), file=sys.stderr)


def _read_text(path: str) -> str:
    try:
        return (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"expected text in UTF-8 from {path!r}, got something else at byte {error.start}; save it as UTF-8."
        ) from None


def _export(args: argparse.Namespace, out: TextIO) -> None:
    from longspan import export
    from longspan.programs.exported import summary
    from longspan.programs.hub import HubExport

    quieten_transformers()
    use_fastest_exact_products()
    given = {name: getattr(args, name) for name in ("format", "int8", "data", "split", "overwrite")}
    result = export(args.run, args.out, **given, **_checkpoint(args))
    emit(args, out, result.to_dict(), result.summary() if isinstance(result, HubExport) else summary(result))


def _convert(args: argparse.Namespace, out: TextIO) -> None:
    from longspan.convert import convert

    quieten_transformers()
    result = convert(args.checkpoint, args.out, overwrite=args.overwrite)
    emit(args, out, result.to_dict(), result.summary())


def _compare(args: argparse.Namespace, out: TextIO) -> None:
    from longspan import compare
    from longspan.report.comparison import comparison_summary
    from longspan.report.wrapping import wrapped

    mixers, baselines = (
        [name.strip() for name in names.split(",") if name.strip()] for names in (args.mixers, args.baselines)
    )
    options = {"baselines": baselines, **{name: getattr(args, name) for name in ("minutes", "jobs", "submit")}}
    result = compare(args.recipe, mixers, args.seeds, args.overrides, args.run, **options)
    emit(args, out, result.to_dict(), wrapped(comparison_summary(result), width(out)))
    errors = [run.error for run in (*result.runs, *result.baselines)]
    failed = len(errors) - errors.count(None)
    if failed:
        raise UserError(f"{failed} of {len(errors)} runs failed; the same command tries them again.")


def _check(args: argparse.Namespace, out: TextIO) -> int:
    """Run the verb. Returns the exit code, 1 where a check fails."""
    if not args.models and not args.list:
        raise UserError("expected a model to check, got none; name one, such as mamba.")
    # Nothing is downloaded, kernels included. transformers reads this when it is imported.
    os.environ["HF_HUB_OFFLINE"] = "1"
    from longspan.report.checks import checks_list, checks_summary
    from longspan.testing import check_model, model_checks

    quieten_transformers()
    if args.list:
        emit(args, out, model_checks(), checks_list(model_checks(), width(out)))
        return 0
    only = [name.strip() for name in args.only.split(",") if name.strip()]
    reports = []
    try:
        for model in args.models:

            def show_progress(check: str, model: str = model) -> None:
                if sys.stderr.isatty():
                    print(f"\r\033[K{model}: {check}", end="", file=sys.stderr, flush=True)

            try:
                reports.append(check_model(model, only=only, compiled=args.compile, progress=show_progress))
            finally:
                if sys.stderr.isatty():
                    print("\r\033[K", end="", file=sys.stderr, flush=True)
    finally:
        # After a mistake or an interrupt, those checked before.
        if reports:
            emit(args, out, [report.to_dict() for report in reports], checks_summary(reports))
    return int(any(report.failed for report in reports))
