"""The verb `explain`."""

import argparse
import re
import sys
from pathlib import Path
from typing import TextIO

from longspan.cli import flags
from longspan.cli.output import emit
from longspan.errors import UserError
from longspan.machine.session import quieten_transformers, use_fastest_exact_products


def add(verb: argparse.ArgumentParser) -> None:
    """Add the flags of the verb."""
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


def run(args: argparse.Namespace, out: TextIO) -> None:
    """Run the verb."""
    from longspan import explain
    from longspan.report.explanation import SUFFIXES, explanation_summary
    from longspan.results.outputs import check_file

    if args.out is not None:
        check_file(args.out, *SUFFIXES)
    overrides = [word for word in args.files if re.match(r"data\.\w+=", word)]
    files = [word for word in args.files if word not in overrides] or ["-"]
    if len(files) > 1:
        raise UserError(f"expected one file to explain an example of, got {len(files)}; name one, and its row.")
    quieten_transformers()
    use_fastest_exact_products()
    chosen = {"checkpoint": args.checkpoint} if hasattr(args, "checkpoint") else {}
    found = explain(
        args.run,
        files,
        row=args.row,
        of=args.of,
        at=args.at,
        method=args.method,
        check=args.check,
        overrides=overrides,
        stdin=sys.stdin.buffer,
        **chosen,
    )
    if args.out is not None:
        found.save(args.out)
    told = explanation_summary(found)
    emit(args, out, found.to_dict(), told if args.out is None else f"{told}\n\nwritten to {args.out}")
