"""The verb `arena`."""

import argparse
from pathlib import Path
from typing import TextIO

from longspan.challenges import CHALLENGES
from longspan.cli import flags
from longspan.cli.output import emit, width
from longspan.errors import UserError


def add(verb: argparse.ArgumentParser) -> None:
    """Add the flags of the verb."""
    told = "settings of all trainings, such as model.dim=128; `longspan show arena` explains every key"
    verb.add_argument("overrides", metavar="key=value", nargs="*", help=told)
    verb.add_argument(
        "--mixers",
        metavar="A,B,C",
        required=True,
        help="mixers to compare, separated by commas; A+B is a hybrid; layers of short convolutions are added as a "
        "control",
    )
    verb.add_argument(
        "--tasks",
        metavar="A,B,C",
        default="",
        help=f"any of {', '.join(CHALLENGES)} (default: those that need no data, and those with --data)",
    )
    verb.add_argument(
        "--data",
        metavar="TASK=PATH",
        action="append",
        default=[],
        help="your copy of the data of a task; repeatable: "
        + "; ".join(f"{name}={one.needs}" for name, one in CHALLENGES.items() if one.needs),
    )
    told = "time for each training, validations included (default: 10)"
    verb.add_argument("--minutes", metavar="N", type=float, default=10.0, help=told)
    verb.add_argument("--scratch-only", action="store_true", help="leave out pretraining on the inputs of each task")
    verb.add_argument("--run", metavar="DIR", type=Path, help="folder for data and runs (default: runs/arena)")
    flags.add_consent(verb)


def run(args: argparse.Namespace, out: TextIO) -> None:
    """Run the verb."""
    data = {}
    for given in args.data:
        name, equals, path = given.partition("=")
        if not equals or not path:
            raise UserError(f"expected --data TASK=PATH, got {given!r}; write for example --data image=cifar10.")
        data[name] = path
    from longspan import arena
    from longspan.report.arena import arena_summary
    from longspan.report.wrapping import wrapped

    mixers, tasks = ([name.strip() for name in names.split(",") if name.strip()] for names in (args.mixers, args.tasks))
    options = {"data": data, "minutes": args.minutes, "pretrain": not args.scratch_only}
    result = arena(mixers, tasks, args.overrides, args.run, **options)
    emit(args, out, result.to_dict(), wrapped(arena_summary(result), width(out)))
    if failed := len(result.errors()):
        raise UserError(f"{failed} of {len(result.runs)} runs failed; the same command tries them again.")
