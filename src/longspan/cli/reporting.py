"""The verb `report`."""

import argparse
from pathlib import Path
from typing import TextIO

from longspan.cli import flags
from longspan.cli.output import emit
from longspan.machine.session import quieten_transformers, use_fastest_exact_products


def add(verb: argparse.ArgumentParser) -> None:
    """Add the flags of the verb."""
    verb.add_argument("run", metavar="RUN", type=Path, help="run folder, or the folder of a comparison")
    flags.add_consent(verb)
    verb.add_argument("--out", metavar="FILE", type=Path, help="page to write, .html (default: RUN/report.html)")


def run(args: argparse.Namespace, out: TextIO) -> None:
    """Run the verb."""
    from longspan import write_report
    from longspan.report.run_report import NAME, report_summary

    quieten_transformers()
    use_fastest_exact_products()
    found = write_report(args.run, args.out)
    path = args.run / NAME if args.out is None else args.out
    emit(args, out, {**found.to_dict(), "written": str(path)}, f"{report_summary(found)}written to {path}")
