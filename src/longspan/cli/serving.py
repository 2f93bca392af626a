"""The verb `serve`."""

import argparse
from pathlib import Path
from typing import Any, TextIO

from longspan.cli import flags
from longspan.machine.imports import require
from longspan.machine.printing import json_text

#: Limits of requests, by the names of their flags.
_LIMITS = (
    ("body", int, "16,000,000", "bytes of a request; more get 413"),
    ("inputs", int, "64", "inputs of a request; more get 413"),
    ("characters", int, "1,000,000", "characters of an input; more get 413"),
    ("queue", int, "64", "requests that a process answers or that wait; more get 429"),
    ("seconds", float, "30", "seconds from a request to its answer; later, it gets 504"),
)


def add(verb: argparse.ArgumentParser) -> None:
    """Add the flags of the verb."""
    flags.add_run(verb)
    flags.add_checkpoint(verb)
    told = "address to bind to (default: %(default)s, which only this machine reaches)"
    verb.add_argument("--host", metavar="NAME", default="127.0.0.1", help=told)
    told = "port; 0 for one that is free (default: %(default)s)"
    verb.add_argument("--port", metavar="N", type=int, default=8000, help=told)
    told = "processes, each with the model (default: %(default)s)"
    verb.add_argument("--workers", metavar="N", type=int, default=1, help=told)
    told = "bearer token that requests must have (default: that of the environment variable LONGSPAN_TOKEN, if set)"
    verb.add_argument("--token", metavar="TEXT", default="", help=told)
    told = "table of `longspan suggest`, whose examples the page shows one after the other to be labelled"
    verb.add_argument("--label", metavar="FILE", dest="to_label", type=Path, help=told)
    told = "file to which labels chosen on the page are appended (default: RUN-corrections.jsonl)"
    verb.add_argument("--corrections", metavar="FILE", type=Path, help=told)
    for name, kind, default, told in _LIMITS:
        verb.add_argument(f"--max-{name}", metavar="N", type=kind, help=f"{told} (default: {default})")


def run(args: argparse.Namespace, out: TextIO) -> None:
    """Run the verb."""
    for package in ("fastapi", "uvicorn"):
        require(package, "`longspan serve`")
    from longspan.serving.server import serve

    def announce(told: dict[str, Any]) -> None:
        line = json_text(told) if args.json else f"{told['run']}: {told['address']} (Ctrl+C to stop)"
        print(line, file=out, flush=True)

    given = {name: getattr(args, f"max_{name}") for name, *_ in _LIMITS}
    names = ("host", "port", "workers", "token", "corrections", "to_label")
    serve(
        args.run,
        limits={name: value for name, value in given.items() if value is not None},
        checkpoint=getattr(args, "checkpoint", None),
        allow_imports=args.allow_import,
        announce=announce,
        **{name: getattr(args, name) for name in names},
    )
