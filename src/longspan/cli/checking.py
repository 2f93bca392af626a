"""The verb `check`."""

import argparse
import os
import sys
from typing import TextIO

from longspan.cli import flags
from longspan.cli.output import emit, width
from longspan.errors import UserError
from longspan.machine.session import quieten_transformers


def add(verb: argparse.ArgumentParser) -> None:
    """Add the flags of the verb."""
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


def run(args: argparse.Namespace, out: TextIO) -> int:
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
