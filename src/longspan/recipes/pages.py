"""Pages that `longspan recipes` and `longspan show RECIPE` print."""

import dataclasses
import textwrap
from typing import Any

from longspan import recipes
from longspan.recipes import keys
from longspan.recipes.keys import Key
from longspan.recipes.recipe_files import names, read_recipe
from longspan.tasks.base.task import Recipe

_LINK = "https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments"
_WIDTH = 100
"""Characters in a line where nothing else is asked for."""


def entries() -> list[dict[str, Any]]:
    """Entries of the recipes that come with the package: name, task, description, data."""
    return [_entry(recipes.load(name)) for name in names()]


def recipes_page(width: int | None = None) -> str:
    """Page that `longspan recipes` prints, the recipes of each task together, in lines of at most `width`."""
    found = entries()
    longest = max(len(entry["name"]) for entry in found)
    parts = []
    for task in sorted({entry["task"] for entry in found}):
        those = [entry for entry in found if entry["task"] == task]
        lines = [_wrapped(f"{task}: {those[0]['data']}", width, "    ")]
        for entry in those:
            own = f" (needs no data: data.path={entry['path']} is set)" if entry["path"] else ""
            text = f"  {entry['name']:<{longest}}  {entry['description']}{own}"
            lines.append(_wrapped(text, width, " " * (longest + 4)))
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, "`longspan show RECIPE` explains a recipe and every key."])


def describe(recipe: Recipe) -> dict[str, Any]:
    """Description of a recipe, and its keys with their values in it, their type, default and meaning."""
    return {
        **_entry(recipe),
        "keys": [{**dataclasses.asdict(key), "value": _value(recipe, key)} for key in keys.explained(recipe.task)],
        "further_training_keys": keys.further_keys(recipe.task),
    }


def recipe_page(recipe: Recipe, source: str, width: int | None = None) -> str:
    """Page that `longspan show RECIPE` prints: its comment, what it changes, and every key.

    Args:
        recipe: The recipe.
        source: Its name, or the path it was read from.
        width: Characters in a line.
    """
    found = keys.explained(recipe.task)
    changed = [key for key in found if _value(recipe, key) != key.default]
    usual = {key.name for key in found if key.table == "training"}
    told = (
        line.removeprefix("#").removeprefix(" ") for line in read_recipe(source)[1].splitlines() if line.startswith("#")
    )
    further = {name: value for name, value in recipe.training.items() if name not in usual}
    parts = [
        _wrapped(f"{recipe.name}: {recipe.description}", width, ""),
        "\n".join(told),
        _wrapped(f"task {recipe.task.name}: {recipe.task.data_hint}", width, "    "),
        "\n".join(
            [
                "What it changes (and the default):",
                *(f"  {key.table}.{key.name}={_shown(_value(recipe, key))} ({_shown(key.default)})" for key in changed),
                *(f"  training.{name}={_shown(value)}" for name, value in further.items()),
            ]
        ),
    ]
    for table in keys.TABLES:
        lines, part = [f"[{table}]"], ""
        for key in (key for key in found if key.table == table):
            if key.part != part:
                lines, part = [*lines, *([] if len(lines) == 1 else [""]), f"# {key.part}"], key.part
            default = "" if key not in changed else f"; default {_shown(key.default)}"
            text = f"{table}.{key.name}={_shown(_value(recipe, key))}  ({key.type}{default})"
            lines += [
                _wrapped(text, width, "    "),
                _wrapped(f"    {key.meaning[:1].upper()}{key.meaning[1:]}", width, "    "),
            ]
        parts.append("\n".join(lines))
    others = f"{len(keys.further_keys(recipe.task))} further keys of [training] are those of transformers: {_LINK}"
    return "\n\n".join(part for part in [*parts, others] if part)


def describe_key(name: str) -> dict[str, Any]:
    """Meaning of a key in recipes, by task where tasks differ. Raises UserError if there is no such key."""
    found = keys.everywhere(name)
    return {"key": name, "in": [{**dataclasses.asdict(key), "tasks": tasks} for key, tasks in found]}


def key_page(name: str, width: int | None = None) -> str:
    """Page that `longspan show TABLE.KEY` prints. Raises UserError if there is no such key."""
    parts = []
    for key, tasks in keys.everywhere(name):
        lines = [f"{name}  ({key.type}; default {_shown(key.default)})"]
        lines += [f"    {key.meaning[:1].upper()}{key.meaning[1:]}", f"    Tasks: {', '.join(tasks)}."]
        parts.append("\n".join(_wrapped(line, width, "    ") for line in lines))
    return "\n\n".join(parts)


def _entry(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "task": recipe.task.name,
        "description": recipe.description,
        "data": recipe.task.data_hint,
        "path": recipe.data.path,
    }


def _value(recipe: Recipe, key: Key) -> Any:
    """Value of a key in a recipe."""
    if key.table == "data":
        return getattr(recipe.data, key.name)
    if key.table == "model":
        return recipe.model.get(key.name, getattr(recipe, key.name, key.default))
    return recipe.training.get(key.name, getattr(recipe.options, key.name, key.default))


def _shown(value: Any) -> str:
    """Return a value as an override has it."""
    if value is None:
        return "unset"
    if value == "":
        return '""'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {_shown(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value)


def _wrapped(text: str, width: int | None, indent: str) -> str:
    return textwrap.fill(
        text, width or _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
