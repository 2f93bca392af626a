"""Pages of `longspan show NAME`: a mixer, a recipe, or a key of recipes."""

import dataclasses
from pathlib import Path
from typing import Any

from longspan import mixers, recipes, report
from longspan.errors import UserError, suggestion
from longspan.mixers.aliases import MEANT
from longspan.recipes import keys, pages, recipe_files


def show(name: str, width: int | None = None) -> tuple[dict[str, Any], str]:
    """Description of a mixer, a recipe or a key of recipes, and the page about it.

    Args:
        name: A mixer, an alias or dotted path of one, a recipe, the path of a TOML file, or a key such as "data.path".
        width: Characters in a line.

    Raises:
        UserError: There is neither.
    """
    known = [*mixers.names(), *mixers.aliases()]
    is_file = name.endswith(".toml") or Path(name).exists()
    if name.partition(".")[0] in keys.TABLES and not is_file:
        return pages.describe_key(name), pages.key_page(name, width)
    if name in known or ("." in name and not is_file):
        mixer = mixers.describe(name)
        return dataclasses.asdict(mixer), report.mixer_page(mixer)
    if name not in recipes.names() and not is_file:
        homes = keys.homes(name)
        hint = suggestion(
            name,
            [*known, *recipes.names()],
            meant={**MEANT, **recipe_files.OTHER_NAMES},
            see="`longspan list` or `longspan recipes`",
        )
        hint = f"did you mean {homes[0]!r}?" if homes else hint
        raise UserError(f"there is no mixer or recipe {name!r}; {hint}")
    recipe = recipes.load(name)
    return pages.describe(recipe), pages.recipe_page(recipe, name, width)
