"""Flags that several verbs have, and what is said about those that none has."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.errors import UserError, suggestion
from longspan.options import add_flags, names


def check_names(arguments: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Raise UserError for a flag that a parser does not have: before it asks for one that it requires."""
    known = [flag for action in parser._actions for flag in action.option_strings]
    for argument in arguments:
        if argument == "--":
            return
        if argument.startswith("--") and argument.partition("=")[0] not in known:
            reads_recipe = any(action.dest == "recipe" for action in parser._actions)
            recipe = next((word for word in arguments if not word.startswith("-")), "") if reads_recipe else ""
            raise unknown([argument], parser, recipe=recipe)


def unknown(arguments: Sequence[str], *parsers: argparse.ArgumentParser, recipe: str = "") -> UserError:
    """Return the error for unrecognised arguments, with the flag or recipe key nearest to the first."""
    flags = [flag for parser in parsers for action in parser._actions for flag in action.option_strings]
    first = arguments[0].partition("=")[0]
    if not first.startswith("-"):
        return UserError(f"unrecognized argument {arguments[0]!r}; leave it out.")
    hint = suggestion(first, flags)
    if recipe and not hint.startswith("did"):
        from longspan import recipes

        key = recipes.keys.resembling_key(first.lstrip("-"), recipes.load(recipe).task)
        hint = f"did you mean '{key}=...'?" if key else hint
    return UserError(f"unrecognized argument {arguments[0]!r}; {hint}")


class Version(argparse.Action):
    """Argparse's own action needs the version up front, and reading it takes time."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import longspan

        print(f"longspan {longspan.__version__}")
        parser.exit()


def add_recipe(verb: argparse.ArgumentParser) -> None:
    """Add a recipe with overrides."""
    verb.add_argument("recipe", metavar="RECIPE", help="recipe (`longspan recipes` lists them), TOML file, or run")
    told = "such as training.learning_rate=3e-4; `longspan show RECIPE` explains every key"
    verb.add_argument("overrides", metavar="key=value", nargs="*", help=told)
    add_consent(verb)


def add_run(verb: argparse.ArgumentParser, text: str = "run folder") -> None:
    """Add a run folder."""
    verb.add_argument("run", metavar="RUN", type=Path, help=text)
    add_consent(verb)


def add_checkpoint(verb: argparse.ArgumentParser) -> None:
    """Add the choice of a checkpoint."""
    verb.add_argument(
        "--checkpoint",
        metavar="STEP",
        default=argparse.SUPPRESS,
        help="step of the checkpoint to use, or `last`, for example of an unfinished run",
    )


def add_of_tasks(verb: argparse.ArgumentParser, kinds: Mapping[str, type]) -> None:
    """Add the options of tasks, dataclasses by the name of the task; what several tasks have in common, once."""
    owners: dict[str, list[str]] = {}
    for task, kind in kinds.items():
        for name in names(kind):
            owners.setdefault(name, []).append(task)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, having in owners.items():
        groups.setdefault(tuple(having), []).append(name)
    for sharing, shared in groups.items():
        title = f"task {sharing[0]}" if len(sharing) == 1 else f"tasks {' and '.join(sharing)}"
        add_flags(verb.add_argument_group(title), kinds[sharing[0]], shared)


def add_consent(verb: argparse.ArgumentParser) -> None:
    """Add consent to imports."""
    verb.add_argument(
        "--allow-import",
        metavar="NAME",
        action="append",
        default=[],
        help="your own package or module whose classes the recipe or run may import, installed or in the current "
        "directory; repeatable",
    )


def lengths_of(text: str) -> list[int]:
    """Return the lengths in a text such as "512,2048" or "512..16384". Raises UserError for anything else."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dots, last = part.partition("..")
        try:
            length, most = int(first), int(last if dots else first)
        except ValueError:
            raise UserError(
                f"expected --lengths as numbers, such as 512,2048 or 512..16384, got {part!r}; correct it."
            ) from None
        if length < 1 or most < length:
            raise UserError(
                f"expected --lengths of at least 1, the smaller one first, got {part!r}; write for example 512..16384."
            )
        while length <= most:
            found.append(length)
            length *= 2
    return found
