"""The verb `plan`."""

import argparse
from typing import TextIO

from longspan.cli import flags
from longspan.cli.output import emit, width
from longspan.machine.session import quieten_transformers, use_fastest_exact_products


def add(verb: argparse.ArgumentParser) -> None:
    """Add the flags of the verb."""
    flags.add_recipe(verb)
    told = "mixers to plan, separated by commas; A+B is a hybrid (default: the recipe's own, and softmax)"
    verb.add_argument("--mixers", metavar="A,B,C", default="", help=told)
    told = (
        "maximum lengths to plan, separated by commas: values of data.max_length, or of the key that sets the length "
        "in this task; A..B is A and its doublings up to B (default: the recipe's own, a half and a quarter of it)"
    )
    verb.add_argument("--lengths", metavar="N,N,N", default="", help=told)


def run(args: argparse.Namespace, out: TextIO) -> None:
    """Run the verb."""
    lengths = flags.lengths_of(args.lengths)
    from longspan import plan
    from longspan.report.forecast import forecast_summary
    from longspan.report.wrapping import wrapped

    quieten_transformers()
    use_fastest_exact_products()
    mixers = [name.strip() for name in args.mixers.split(",") if name.strip()]
    found = plan(args.recipe, args.overrides, mixers=mixers, lengths=lengths)
    emit(args, out, found.to_dict(), wrapped(forecast_summary(found), width(out)))
