"""Finding a recipe by its name or path, with suggestions for an unknown one: `read_recipe`."""

import tomllib
from importlib import resources
from pathlib import Path

from longspan import mixers, tasks
from longspan.data.sources.files.opening import suffix
from longspan.data.sources.formats.tables import FORMATS
from longspan.errors import UserError, nearest, suggestion
from longspan.mixers.aliases import MEANT

FOR_LABELS, FOR_TEXT = "classify", "model-text"
"""The recipes for data of one's own: with a label for each document, and without."""

DEFAULT_TASK = "document_classification"

#: Usual words by the recipe for them. Suggestions only.
WORDS: dict[str, str] = {
    "classify": "documents sentiment text_classification",
    "masked-words": "bert masked_lm mlm pretraining",
    "model-text": "gpt language language_model lm text_generation",
    "multi-label": "tags",
    "pairs": "duplicates nli paraphrases siamese",
    "regression": "number numbers ratings",
}
OTHER_NAMES = {word: recipe for recipe, words in WORDS.items() for word in words.split()}

_LARGEST = 1 << 20
"""No recipe has as many bytes."""


def names() -> list[str]:
    """Return the names of the recipes that come with the package, sorted."""
    files = resources.files("longspan.recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def read_recipe(name_or_path: str) -> tuple[str, str]:
    """Return the name and the text of a recipe: one that comes with longspan, a TOML file, or that of a run folder.

    Raises:
        UserError: No such recipe; the message says what to give in place of data, a task or a mixer.
    """
    if name_or_path in names():
        file = resources.files("longspan.recipes") / f"{name_or_path}.toml"
        return name_or_path, file.read_text(encoding="utf-8")
    path = Path(name_or_path)
    name = path.stem
    # An empty name would be that of the current directory.
    if name_or_path and (path / "recipe.toml").is_file():
        name, path = path.resolve().name, path / "recipe.toml"
    if not path.is_file() or suffix(path) in FORMATS or path.stat().st_size > _LARGEST:
        raise _no_recipe(name_or_path, path)
    if path.suffix == ".toml":
        return name, read_toml(path)
    try:
        text = path.read_text(encoding="utf-8")
        tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        raise _no_recipe(name_or_path, path) from None
    return name, text


def read_toml(path: Path) -> str:
    """The text of a recipe's TOML file.

    Raises:
        UserError: It is no recipe by its size, or has another encoding.
    """
    if path.stat().st_size > _LARGEST:
        raise UserError(f"expected a recipe of at most {_LARGEST:,} bytes in {str(path)!r}, got more; restore it.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"recipe {str(path)!r} expected UTF-8, got another encoding; save it as UTF-8.") from None


def _no_recipe(given: str, path: Path) -> UserError:
    if given and path.is_dir():
        classes = any(entry.is_dir() for entry in path.iterdir())
        return _data(given, f"the folder {given!r}", FOR_LABELS if classes else FOR_TEXT)
    if path.is_file():
        return _data(given, f"the data file {given!r}", FOR_LABELS if suffix(path) in FORMATS else FOR_TEXT)
    if "=" in given:
        return UserError(f"expected a recipe before {given!r}, got none; did you mean '{FOR_LABELS} {given}'?")
    if given in tasks.names():
        those = [name for name in names() if tomllib.loads(read_recipe(name)[1]).get("task", DEFAULT_TASK) == given]
        return UserError(f"expected a recipe, got the task {given!r}; its recipes are {', '.join(those)}.")
    if mixer := next(
        (name for name in (given, MEANT.get(given, "")) if name in (*mixers.names(), *mixers.aliases())), ""
    ):
        return UserError(
            f"expected a recipe, got the mixer {given!r}; did you mean '{FOR_LABELS} model.mixers={mixer}'?"
        )
    if path.suffix == ".toml":
        near = nearest(path.stem, names(), OTHER_NAMES)
        hint = f"did you mean {near!r}?" if near else "check the path."
        return UserError(f"there is no recipe file {given!r}; {hint}")
    hint = suggestion(given, names(), meant=OTHER_NAMES, see="`longspan recipes`")
    return UserError(f"there is no recipe {given!r} (the path of a TOML file works too); {hint}")


def _data(given: str, what: str, recipe: str) -> UserError:
    return UserError(f"expected a recipe first, got {what}; did you mean '{recipe} data.path={given}'?")
