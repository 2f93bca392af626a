"""The tasks that docs/adding-a-task.md builds outside the package, and data for them."""

import re
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-task.md"
#: Their modules, and the files that `write` gives them.
DATA = {"stars": "reviews.csv", "sensors": "recordings.csv", "digits": "digits.csv"}
TASKS = {"stars": "stars.Stars", "sensors": "sensors.Sensors", "digits": "digits.Reversed"}
WORDS = {1: "awful", 2: "dull", 3: "fair", 4: "good", 5: "great"}


def blocks(kind: str) -> list[str]:
    """Return the page's fenced blocks of a kind, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def write(folder: Path) -> None:
    """Write the page's modules and recipes, and examples that can be learned."""
    for name, code, recipe in zip(DATA, blocks("python"), blocks("toml"), strict=True):
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
        (folder / f"{name}.toml").write_text(recipe, encoding="utf-8")
    rows = [f"{'word ' * (n % 7)}{WORDS[1 + n % 5]} film {n % 3},{1 + n % 5}" for n in range(200)]
    (folder / "reviews.csv").write_text("\n".join(["text,stars", *rows]) + "\n", encoding="utf-8")
    (folder / "new.csv").write_text("text\ngreat film\nawful film\n", encoding="utf-8")
    numbers = np.random.default_rng(0)
    made = ["".join(map(str, numbers.integers(10, size=1 + n % 6))) for n in range(200)]
    rows = [f"{digits},{digits[::-1]}" for digits in made]
    (folder / "digits.csv").write_text("\n".join(["digits,reversed", *rows]) + "\n", encoding="utf-8")
    recordings(folder, numbers)


def recordings(folder: Path, numbers: np.random.Generator) -> None:
    """Write waves of three frequencies, beside noise, as csv and npy files."""
    (folder / "waves").mkdir()
    rows = []
    for n in range(240):
        times, name = np.arange(20 + 7 * n % 40), f"waves/{n}.{'npy' if n % 2 else 'csv'}"
        wave = np.sin((0.1, 0.3, 0.7)[n % 3] * times + numbers.uniform(0, 6))
        values = np.stack([wave, numbers.normal(size=len(times))], 1)
        if n % 2:
            np.save(folder / name, values)
        else:
            np.savetxt(folder / name, values, delimiter=",")
        rows.append(f"{name},{('slow', 'middle', 'fast')[n % 3]}")
    (folder / "recordings.csv").write_text("\n".join(["recording,label", *rows]) + "\n", encoding="utf-8")
