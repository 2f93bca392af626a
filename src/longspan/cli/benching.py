"""The verb `bench`."""

import argparse
import os
from pathlib import Path
from typing import Any, TextIO

from longspan.cli import flags
from longspan.cli.output import emit, width
from longspan.errors import UserError
from longspan.machine.session import quieten_transformers, use_fastest_exact_products


def add(verb: argparse.ArgumentParser) -> None:
    """Add the flags of the verb."""
    told = "options of mixers, such as linformer.max_length=65536; `longspan show MIXER` lists them"
    verb.add_argument("overrides", metavar="MIXER.OPTION=value", nargs="*", help=told)
    verb.add_argument(
        "--mixers",
        metavar="A,B,C",
        default="additive,linear,delta,softmax",
        help="mixers to measure, separated by commas; A+B is a hybrid (default: %(default)s)",
    )
    told = "512..65536 doubles; 512,1000,4096 is a list (default: %(default)s)"
    verb.add_argument("--lengths", metavar="LENGTHS", default="512..8192", help=told)
    for name, default, told in (
        ("--dim", 256, "width"),
        ("--heads", 8, "heads of mixers that have heads"),
        ("--batch-size", 1, "rows"),
        ("--layers", 0, "layers of a model around the mixers; 0 measures mixers alone"),
        ("--repeats", 7, "repetitions of each measurement"),
    ):
        verb.add_argument(name, metavar="N", type=int, default=default, help=f"{told} (default: %(default)s)")
    told = "time budget of a measurement; mixers whose call takes longer are left out (default: %(default)s)"
    verb.add_argument("--seconds", metavar="N", type=float, default=3.0, help=told)
    verb.add_argument("--causal", action="store_true", help="measure the causal forms")
    verb.add_argument("--backward", action="store_true", help="measure forward and backward passes together")
    told = "float32 (default) or bfloat16"
    verb.add_argument("--dtype", metavar="NAME", default="float32", help=told)
    verb.add_argument("--device", metavar="NAME", default="cpu", help="cpu (default) or cuda")
    told = "folder for bench.json and bench.png, which are replaced (default: runs/bench)"
    verb.add_argument("--out", metavar="DIR", type=Path, default=Path("runs", "bench"), help=told)
    flags.add_consent(verb)


def run(args: argparse.Namespace, out: TextIO) -> None:
    """Run the verb."""
    lengths, options = flags.lengths_of(args.lengths), _options(args.overrides)
    # PyTorch's profiler, which measures memory, writes to standard error when it begins and ends.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from longspan import bench
    from longspan.report.bench import bench_summary
    from longspan.report.wrapping import wrapped

    quieten_transformers()
    use_fastest_exact_products()
    names = [name.strip() for name in args.mixers.split(",") if name.strip()]
    sizes = ("dim", "heads", "batch_size", "layers", "causal", "backward", "dtype", "device", "repeats", "seconds")
    result = bench(names, lengths, options=options, out=args.out, **{name: getattr(args, name) for name in sizes})
    text = f"{wrapped(bench_summary(result), width(out))}\n\nwritten to {args.out}"
    emit(args, out, result.to_dict(), text)


def _options(overrides: list[str]) -> dict[str, dict[str, Any]]:
    from longspan.options import coerce
    from longspan.recipes import split_override

    found: dict[str, dict[str, Any]] = {}
    for override in overrides:
        parts, text = split_override(override)
        if len(parts) < 2:
            raise UserError(f"expected an option such as linformer.max_length=65536, got {override!r}; name the mixer.")
        found.setdefault(".".join(parts[:-1]), {})[parts[-1]] = coerce(text, Any)
    return found
